"""What state of a log can you query besides its rows? `.option("metadata", "transactions")` and others, as DataFrames.

`metadata_schemas` has the columns. Each query reads the present state, consistent for each partition but not over all
of them. `subscribe`, `subscribePattern` or `assign` choose topics in the tables that have rows for partitions. Without
them all topics except the internal ones are shown.

`StoreMonitor` of `txlog.inspection`, which the exporter, `txlog top` and the page share, does not serve these tables.
It looks at each topic and partition of the store, and each table needs less.

* `transactions`, `consumer_groups` and `history` need one internal topic, or the journal. Groups also need the
  partitions that they have offsets of.
* `partitions`, `segments`, `aborted` and `files` are read by several tasks at once. A monitor in each task would look
  at the whole store again. It also drops the rows of commit records, whose size counts in `bytes`.

They share the parts that the monitor consists of: `partitions_in_use`, `read_partition`, and the walk over batches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.metadata_schemas import TABLES
from pyspark_txlog.options import Options
from pyspark_txlog.source.batch_reader import input_of
from pyspark_txlog.source.options import names_topics, parse_metadata_options
from pyspark_txlog.source.subscription import subscribed_partitions, subscribed_topics
from txlog import engine
from txlog.engine import FilePiece, Runtime, TopicPartition
from txlog.engine.schemas import SchemaField
from txlog.engine.tables import Admin, PartitionDescription, describe_partition, parse_rows_path, read_history
from txlog.errors import SchemaMismatchError
from txlog.text import nearest

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_A_TASK = 16
"""A task of a Python source costs at least 40 ms; reading the state of a partition costs a few requests."""

Row = dict[str, Any]
Rows = Callable[[Runtime, Sequence[TopicPartition]], Iterable[Row]]
"""Return the rows, with a value for each column of the table; times are milliseconds or None."""


class MetadataReader(DataSourceReader):
    """A batch read of a metadata table. Driver side: `partitions`. Executor side: `read`."""

    def __init__(self, options: Options, table: str, schema: spark.StructType) -> None:
        self._options = options
        self._table = table
        self._schema = schema

    @classmethod
    @plain_errors
    def begin(cls, given: Mapping[str, str], schema: spark.StructType) -> MetadataReader:
        """Begin a read of the table that the options name.

        Raises UnknownOptionError, InvalidRequestError, and SchemaMismatchError if the user's schema has other columns
        than the table.
        """
        table, options = parse_metadata_options(given)
        own = TABLES[table].schema
        for column in schema.fields:
            if column.name not in own.names or own[column.name].dataType != column.dataType:
                raise SchemaMismatchError(
                    f"metadata={table}: no column {column.name!r} of type "
                    f"{column.dataType.simpleString()}.{nearest(column.name, own.names)} The columns are "
                    f"{', '.join(f'{each.name} {each.dataType.simpleString()}' for each in own.fields)}"
                )
        return cls(options, table, schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the topic partitions that each task reads. Raises UnknownTopicOrPartitionError."""
        if self._table in _OF_THE_STORE:
            return [InputPartition(())]
        with closing(self._options.open()) as runtime:
            if names_topics(self._options):
                topics = subscribed_topics(runtime, self._options)
            else:
                topics = {topic.topic: topic for topic in runtime.list_topics()}
            found = subscribed_partitions(engine.read_session(runtime), self._options, topics)
        return [
            InputPartition(tuple(found[first : first + PARTITIONS_A_TASK]))
            for first in range(0, len(found), PARTITIONS_A_TASK)
        ]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, as one batch."""
        # Imported here because planning does not need pyarrow.
        import pyarrow as pa

        from pyspark_txlog.arrow import arrow_schema

        if (tps := input_of(partition)) is None:
            return iter(())
        with closing(self._options.open()) as runtime:
            rows_of = _OF_THE_STORE.get(self._table) or _OF_PARTITIONS[self._table]
            rows = list(rows_of(runtime, tps)) if runtime.descriptor is not None else []
        target = arrow_schema(self._schema)
        arrays = []
        for field in target:
            values = [row[field.name] for row in rows]
            if pa.types.is_timestamp(field.type):
                values = [None if value is None or value < 0 else value * 1000 for value in values]
            arrays.append(pa.array(values, field.type))
        return iter([pa.RecordBatch.from_arrays(arrays, schema=target)])


# -- rows -------------------------------------------------------------------------------------------------------------


def _transactions(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for txn in Admin(runtime).list_transactions():
        yield _row(
            "transactions",
            txn,
            last_epoch=_known(txn.last_epoch),
            duration_ms=_known(txn.duration_ms),
            partitions=[{"topic": topic, "partition": number} for topic, number in txn.partitions],
            txn_version=_known(txn.txn_version),
            coordinator_offset=txn.offset,
        )


def _partition_rows(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        opened = [each.txn_first_offset for each in found.open_transactions if each.txn_first_offset is not None]
        yield _row(
            "partitions",
            found,
            open_transactions=len(found.open_transactions),
            first_open_offset=min(opened, default=None),
            segments=len(found.segments),
            sealed_end_offset=found.sealed_end,
            boundary_offset=found.boundary,
            bytes=found.tail_bytes + sum(segment.bytes for segment in found.segments),
        )


def _segments(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        for each in found.segments:
            yield _row("segments", each, found, index=each.name)


def _aborted(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        for txn in found.aborted:
            yield _row("aborted", txn, found)


def _groups(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for group in Admin(runtime).list_groups():
        about = {
            "group_id": group.group,
            "generation": _known(group.generation),
            "member_id": group.member_id or None,
            "client_id": group.client_id or None,
            "topics": list(group.topics),
        }
        for each in group.offsets:
            numbers = {"committed_offset": each.committed, "pending_offset": each.pending}
            yield _row("consumer_groups", each, group, **about, **numbers)
        if not group.offsets:
            nothing = dict.fromkeys(name for name, _, _ in TABLES["consumer_groups"].columns)
            yield _row("consumer_groups", **{**nothing, **about, "state": group.state})


def _files(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    session = engine.read_session(runtime)
    views = session.fresh_views(list(wanted), "looking at files")
    ranges: dict[TopicPartition, tuple[int, int | None]] = {
        tp: (view.state.log_start_offset, None) for tp, view in views.items()
    }
    everything = engine.plan_reads(session, ranges, "read_uncommitted")
    known = {tp: plan.indexes for tp, plan in everything.items()}
    committed = engine.plan_reads(session, ranges, "read_committed", known)
    for tp, plan in everything.items():
        fields = {str(field.id): field for field in engine.topic_for(runtime, plan).schema}
        visible: dict[str, int] = {}
        for piece in committed[tp].pieces:
            if isinstance(piece, FilePiece):
                visible[piece.file.path] = visible.get(piece.file.path, 0) + engine.piece_rows([piece])
        walk = session.views[tp].walk
        by_file: dict[str, list[FilePiece]] = {}
        for each in plan.pieces:
            if isinstance(each, FilePiece):
                by_file.setdefault(each.file.path, []).append(each)
        for pieces in by_file.values():
            # A file has several pieces if the segment has batches of other files between its batches.
            piece = pieces[0]
            first, end = engine.offsets_of(piece)[0], engine.offsets_of(pieces[-1])[1]
            segment = next((name for name in walk if name.base_offset <= first < name.end_offset), None)
            written = parse_rows_path(piece.file.path)
            times = [part.timestamp for each in pieces for part in each.ranges if not part.by_column]
            yield _row(
                "files",
                piece.file,
                piece,
                tp,
                first_offset=first,
                end_offset=end,
                live_rows=engine.piece_rows(pieces),
                committed_rows=visible.get(piece.file.path, 0),
                row_groups=len(piece.file.row_groups),
                first_timestamp=min(times, default=None),
                last_timestamp=max(times, default=None),
                segment=segment.index if segment is not None else None,
                has_offset_column=piece.offset_column,
                producer_id=written.producer_id if written is not None else None,
                producer_epoch=written.producer_epoch if written is not None else None,
                statistics=_statistics(piece.file.statistics, fields),
            )


def _history(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for each in read_history(runtime):
        step = each.step
        yield _row(
            "history",
            step,
            each,
            base_offset=_known(step.base_offset),
            end_offset=step.end_offset if step.base_offset >= 0 else None,
            generation=_known(step.generation),
            message=step.message or None,
        )


def _row(table: str, *sources: object, **own: Any) -> Row:
    """Return a row of `table`. A column's value is in `own`, or an attribute of the first of `sources` that has it."""
    return {
        name: own[name] if name in own else next(getattr(each, name) for each in sources if hasattr(each, name))
        for name, _, _ in TABLES[table].columns
    }


def _known(number: int) -> int | None:
    return number if number >= 0 else None


def _descriptions(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[PartitionDescription]:
    session = engine.read_session(runtime)
    for tp in wanted:
        # The task has just opened the store, so the first look at each topic is fresh, and the next ones cost nothing.
        yield describe_partition(session, runtime.partition(tp.topic, tp.partition))
        session.forget([tp])


def _statistics(found: Mapping[str, tuple[Any, Any, int]], fields: Mapping[str, SchemaField]) -> list[tuple[str, Any]]:
    return [
        (
            fields[field_id].name,
            {
                "min": None if low is None else json.dumps(low, ensure_ascii=False),
                "max": None if high is None else json.dumps(high, ensure_ascii=False),
                "nulls": nulls,
            },
        )
        for field_id, (low, high, nulls) in found.items()
        if field_id in fields
    ]


_OF_THE_STORE: Mapping[str, Rows] = {"transactions": _transactions, "consumer_groups": _groups, "history": _history}
"""Tables that are read once."""
_OF_PARTITIONS: Mapping[str, Rows] = {
    "partitions": _partition_rows,
    "segments": _segments,
    "aborted": _aborted,
    "files": _files,
}
"""Tables that are read for the given partitions, by several tasks."""
