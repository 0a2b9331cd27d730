"""What state of a log can you query besides its rows? `.option("metadata", "transactions")` and others, as DataFrames.

`metadata_schemas` has the columns. Each query reads the present state, consistent for each partition but not over all
of them. `subscribe`, `subscribePattern` or `assign` choose topics in the tables that have rows for partitions. Without
them all topics except the internal ones are shown.
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
from pyspark_txlog.source import packing
from pyspark_txlog.source.options import MetadataOptions, parse_metadata_options
from pyspark_txlog.source.subscription import subscribed_partitions, subscribed_topics
from txlog import engine
from txlog.engine import FilePiece, Runtime, TopicPartition
from txlog.engine.schemas import SchemaField
from txlog.engine.tables import Admin, PartitionDescription, parse_rows_path, read_history
from txlog.errors import SchemaMismatchError
from txlog.text import nearest

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_A_TASK = 16
"""A task of a Python source costs at least 40 ms; reading the state of a partition costs a few requests."""

Row = tuple[Any, ...]
Rows = Callable[[Runtime, Sequence[TopicPartition]], Iterable[Row]]
"""Return the rows as tuples in the order of the table's columns; times are milliseconds or None."""


class MetadataReader(DataSourceReader):
    """A batch read of a metadata table. Driver side: `partitions`. Executor side: `read`."""

    def __init__(self, options: MetadataOptions, schema: spark.StructType) -> None:
        self._options = options
        self._schema = schema

    @classmethod
    @plain_errors
    def begin(cls, given: Mapping[str, str], schema: spark.StructType) -> MetadataReader:
        """Begin a read of the table that the options name.

        Raises UnknownOptionError, InvalidRequestError, and SchemaMismatchError if the user's schema has other columns
        than the table.
        """
        options = parse_metadata_options(given)
        check_columns(options.table, schema)
        return cls(options, schema)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the topic partitions that each task reads. Raises UnknownTopicOrPartitionError."""
        if self._options.table in _OF_THE_STORE:
            return [InputPartition(())]
        with closing(self._options.store.open()) as runtime:
            found = _partitions(runtime, self._options)
        return [
            InputPartition(tuple(found[first : first + PARTITIONS_A_TASK]))
            for first in range(0, len(found), PARTITIONS_A_TASK)
        ]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, as one batch."""
        # Imported here because planning does not need pyarrow.
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        name = self._options.table
        if partition.value is None:
            # Without partitions Spark makes one task itself.
            return iter(())
        with closing(self._options.store.open()) as runtime:
            rows_of = _OF_THE_STORE.get(name) or _OF_PARTITIONS[name]
            rows = list(rows_of(runtime, partition.value)) if runtime.descriptor is not None else []
        target = to_arrow_schema(self._schema, timezone="UTC")
        places = {name: at for at, (name, _, _) in enumerate(TABLES[name].columns)}
        arrays = []
        for field in target:
            values = [row[places[field.name]] for row in rows]
            if pa.types.is_timestamp(field.type):
                values = [None if value is None or value < 0 else value * 1000 for value in values]
                arrays.append(pa.array(values, pa.int64()).cast(field.type))
            else:
                arrays.append(pa.array(values, field.type))
        return iter([pa.RecordBatch.from_arrays(arrays, schema=target)])


def check_columns(name: str, schema: spark.StructType) -> None:
    """Raise SchemaMismatchError unless the table has each column of `schema`, with its type."""
    own = TABLES[name].schema
    for column in schema.fields:
        if column.name not in own.names or own[column.name].dataType != column.dataType:
            raise SchemaMismatchError(
                f"metadata={name}: no column {column.name!r} of type {column.dataType.simpleString()}.{nearest(column.name, own.names)} The "
                f"columns are {', '.join(f'{each.name} {each.dataType.simpleString()}' for each in own.fields)}"
            )


def _partitions(runtime: Runtime, options: MetadataOptions) -> list[TopicPartition]:
    if options.topics is None:
        return [
            TopicPartition(topic.topic, number) for topic in runtime.list_topics() for number in range(topic.partitions)
        ]
    topics = subscribed_topics(runtime, options.topics)
    return subscribed_partitions(engine.read_session(runtime), options.topics, topics)


# -- rows -------------------------------------------------------------------------------------------------------------


def _transactions(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for txn in Admin(runtime).list_transactions():
        yield (
            txn.transactional_id,
            txn.producer_id,
            txn.producer_epoch,
            txn.state,
            txn.last_outcome,
            txn.last_epoch if txn.last_epoch >= 0 else None,
            txn.timeout_ms,
            txn.started_at,
            txn.updated_at,
            txn.duration_ms if txn.duration_ms >= 0 else None,
            [{"topic": topic, "partition": number} for topic, number in txn.partitions],
            txn.txn_version if txn.txn_version >= 0 else None,
            txn.txn_scope,
            txn.coordinator,
            txn.offset,
        )


def _partition_rows(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        opened = [each.txn_first_offset for each in found.open_transactions if each.txn_first_offset is not None]
        yield (
            found.topic,
            found.partition,
            found.log_start_offset,
            found.last_stable_offset,
            found.log_end_offset,
            found.last_timestamp,
            len(found.open_transactions),
            min(opened, default=None),
            len(found.segments),
            found.sealed_end,
            found.boundary,
            found.tail_batches,
            found.tail_records,
            found.tail_bytes + sum(segment.bytes for segment in found.segments),
        )


def _segments(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        for each in found.segments:
            yield (
                found.topic,
                found.partition,
                each.base_offset,
                each.end_offset,
                each.generation,
                each.name,
                each.batches,
                each.records,
                each.files,
                each.bytes,
                each.aborted_txns,
            )


def _aborted(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[Row]:
    for found in _descriptions(runtime, wanted):
        for txn in found.aborted:
            yield (
                found.topic,
                found.partition,
                txn.producer_id,
                txn.first_offset,
                txn.last_offset,
                txn.last_stable_offset,
            )


def _groups(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for group in Admin(runtime).list_groups():
        about = (
            group.group,
            group.state,
            group.generation if group.generation >= 0 else None,
            group.member_id or None,
            group.client_id or None,
            list(group.topics),
        )
        if not group.offsets:
            yield (*about, *[None] * 10)
        for each in group.offsets:
            yield (
                *about,
                each.topic,
                each.partition,
                each.committed,
                each.pending,
                each.metadata,
                each.committed_at,
                each.log_start_offset,
                each.last_stable_offset,
                each.log_end_offset,
                each.lag,
            )


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
            first, end = packing.offsets_of(piece)[0], packing.offsets_of(pieces[-1])[1]
            segment = next((name for name in walk if name.base_offset <= first < name.end_offset), None)
            written = parse_rows_path(piece.file.path)
            times = [part.timestamp for each in pieces for part in each.ranges if not part.by_column]
            yield (
                tp.topic,
                tp.partition,
                piece.file.path,
                first,
                end,
                piece.file.rows,
                engine.piece_rows(pieces),
                visible.get(piece.file.path, 0),
                piece.file.bytes,
                len(piece.file.row_groups),
                piece.schema_id,
                min(times, default=None),
                max(times, default=None),
                segment.index if segment is not None else None,
                piece.offset_column,
                written.producer_id if written is not None else None,
                written.producer_epoch if written is not None else None,
                piece.file.digest,
                piece.file.footer_digest,
                _statistics(piece.file.statistics, fields),
            )


def _history(runtime: Runtime, _: Sequence[TopicPartition]) -> Iterator[Row]:
    for each in read_history(runtime):
        step = each.step
        yield (
            each.run_id,
            step.job,
            step.topic,
            step.partition,
            step.started_at,
            step.ended_at,
            step.outcome,
            step.base_offset if step.base_offset >= 0 else None,
            step.end_offset if step.base_offset >= 0 else None,
            step.generation if step.generation >= 0 else None,
            step.input_files,
            step.output_files,
            step.rows_read,
            step.rows_written,
            step.bytes_read,
            step.bytes_written,
            step.deleted_objects,
            step.deleted_bytes,
            step.message or None,
            each.by,
        )


def _descriptions(runtime: Runtime, wanted: Sequence[TopicPartition]) -> Iterator[PartitionDescription]:
    admin = Admin(runtime)
    return (admin.describe_partition(tp.topic, tp.partition) for tp in wanted)


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
