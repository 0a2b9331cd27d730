"""What state of a log can you query besides its rows? `.option("metadata", "transactions")` and others, as DataFrames.

TABLES is the contract: name, type and meaning of every column, in order. New columns may be added at the end; existing
ones never change, move or disappear. Times are timestamps, or null. Each query reads the present state, consistent for
each partition but not over all of them. `subscribe`, `subscribePattern` or `assign` choose topics in the tables that
have rows for partitions. Without them all topics except the internal ones are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import MetadataOptions, parse_metadata_options
from pyspark_txlog.source import packing
from pyspark_txlog.source.subscription import subscribed_partitions, subscribed_topics
from txlog.client import reading
from txlog.client.admin import Admin
from txlog.client.descriptions import PartitionDescription
from txlog.client.runtime import Runtime
from txlog.core.fetch_plan import FilePiece
from txlog.core.names import TopicPartition, parse_rows_path
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.maintenance.history import read_history
from txlog.text import nearest

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS_A_TASK = 16
"""A task of a Python source costs at least 40 ms; reading the state of a partition costs a few requests."""

Row = tuple[Any, ...]

_PLACE = spark.StructType(
    [spark.StructField("topic", spark.StringType()), spark.StructField("partition", spark.IntegerType())]
)
_BOUNDS = spark.StructType(
    [
        spark.StructField("min", spark.StringType()),
        spark.StructField("max", spark.StringType()),
        spark.StructField("nulls", spark.LongType()),
    ]
)
# Listed here because Spark parses types in the JVM, and planning processes have no JVM.
_TYPES: Mapping[str, spark.DataType] = {
    "string": spark.StringType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "boolean": spark.BooleanType(),
    "timestamp": spark.TimestampType(),
    "array<string>": spark.ArrayType(spark.StringType()),
    "array<struct<topic:string,partition:int>>": spark.ArrayType(_PLACE),
    "map<string,struct<min:string,max:string,nulls:bigint>>": spark.MapType(spark.StringType(), _BOUNDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the log's state."""

    doc: str
    columns: tuple[tuple[str, str, str], ...]
    """(name, Spark's type, meaning)."""
    rows: Callable[[Runtime, Sequence[TopicPartition]], Iterable[Row]]
    """Return the rows as tuples in the order of the columns; times are milliseconds or None."""
    by_partition: bool
    """Whether `rows` reads the partitions that it is given; else it reads the whole store once."""

    @property
    def schema(self) -> spark.StructType:
        """The columns as Spark's, with their meaning as comments."""
        return spark.StructType(
            [spark.StructField(name, _TYPES[kind], True, {"comment": doc}) for name, kind, doc in self.columns]
        )


class MetadataReader(DataSourceReader):
    """A batch read of one of TABLES. Driver side: `partitions`. Executor side: `read`."""

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
        table = TABLES[self._options.table]
        if not table.by_partition:
            return [InputPartition(())]
        with closing(_open(self._options)) as runtime:
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

        table = TABLES[self._options.table]
        if partition.value is None:
            # Without partitions Spark makes one task itself.
            return iter(())
        with closing(_open(self._options)) as runtime:
            rows = list(table.rows(runtime, partition.value)) if runtime.descriptor is not None else []
        target = to_arrow_schema(self._schema, timezone="UTC")
        places = {name: at for at, (name, _, _) in enumerate(table.columns)}
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


def _open(options: MetadataOptions) -> Runtime:
    return Runtime.open(options.store.path, storage_options=options.store.storage)


def _partitions(runtime: Runtime, options: MetadataOptions) -> list[TopicPartition]:
    if options.topics is None:
        return [
            TopicPartition(topic.topic, number) for topic in runtime.list_topics() for number in range(topic.partitions)
        ]
    topics = subscribed_topics(runtime, options.topics)
    return subscribed_partitions(reading.read_session(runtime), options.topics, topics)


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
    session = reading.read_session(runtime)
    views = session.fresh_views(list(wanted), "looking at files")
    ranges: dict[TopicPartition, tuple[int, int | None]] = {
        tp: (view.state.log_start_offset, None) for tp, view in views.items()
    }
    everything = reading.plan_reads(session, ranges, "read_uncommitted")
    known = {tp: plan.indexes for tp, plan in everything.items()}
    committed = reading.plan_reads(session, ranges, "read_committed", known)
    for tp, plan in everything.items():
        fields = {str(field.id): field for field in reading.topic_for(runtime, plan).schema}
        visible: dict[str, int] = {}
        for piece in committed[tp].pieces:
            if isinstance(piece, FilePiece):
                visible[piece.file.path] = visible.get(piece.file.path, 0) + packing.rows_of(piece)
        walk = session.views[tp].walk
        for piece in plan.pieces:
            if not isinstance(piece, FilePiece):
                continue
            first, end = packing.offsets_of(piece)
            segment = next((name for name in walk if name.base_offset <= first < name.end_offset), None)
            written = parse_rows_path(piece.file.path)
            times = [part.timestamp for part in piece.ranges if not part.by_column]
            yield (
                tp.topic,
                tp.partition,
                piece.file.path,
                first,
                end,
                piece.file.rows,
                packing.rows_of(piece),
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


# -- the tables -------------------------------------------------------------------------------------------------------

_TOPIC = ("topic", "string", "the topic's name")
_PARTITION = ("partition", "int", "the partition's number")

TABLES: Mapping[str, Table] = {
    "transactions": Table(
        doc="A row for every transactional.id: its producer, and its open or last transaction.",
        rows=_transactions,
        by_partition=False,
        columns=(
            ("transactional_id", "string", "the id, which survives restarts"),
            ("producer_id", "bigint", "its producer id"),
            ("producer_epoch", "bigint", "its current epoch; older ones are fenced"),
            ("state", "string", "EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT or COMPLETE_ABORT"),
            ("last_outcome", "string", "commit or abort: how the last transaction ended; null if there was none"),
            ("last_epoch", "bigint", "the epoch of the transaction that ended last; null after an init"),
            ("timeout_ms", "bigint", "transaction.timeout.ms of its producer"),
            ("started_at", "timestamp", "when the open or last transaction registered its first partition"),
            ("updated_at", "timestamp", "when the state changed last"),
            ("duration_ms", "bigint", "how long the transaction has been open; null if none is"),
            (
                "partitions",
                "array<struct<topic:string,partition:int>>",
                "partitions that are registered with it, or take its staged rows",
            ),
            ("txn_version", "bigint", "the highest committed txn.version; null if there never was one"),
            ("txn_scope", "string", "what these versions count in: a streaming query's id; empty for the user's own"),
            ("coordinator", "string", "the partition of the transaction-state table that holds the id"),
            ("coordinator_offset", "bigint", "where in it the id's last record lies"),
        ),
    ),
    "partitions": Table(
        doc="A row for every partition: its ends, what holds readers back, what it consists of.",
        rows=_partition_rows,
        by_partition=True,
        columns=(
            _TOPIC,
            _PARTITION,
            ("log_start_offset", "bigint", "the first offset kept"),
            ("last_stable_offset", "bigint", "where read_committed ends"),
            ("log_end_offset", "bigint", "the next offset to be assigned; where read_uncommitted ends"),
            ("last_timestamp", "timestamp", "log-append time of the last batch"),
            ("open_transactions", "int", "transactions with rows here and no marker yet"),
            ("first_open_offset", "bigint", "the first row of the earliest of them"),
            ("segments", "int", "sealed segments and cleaned runs"),
            ("sealed_end_offset", "bigint", "below it the log lies in segments, from here on in commit records"),
            ("boundary_offset", "bigint", "commit records below it may have been deleted"),
            ("tail_batches", "int", "batches that are in no segment yet"),
            ("tail_records", "bigint", "their rows"),
            ("bytes", "bigint", "of the files that segments and tail name, and of the tail's commit records"),
        ),
    ),
    "segments": Table(
        doc="A row for every sealed segment and cleaned run of the current walk.",
        rows=_segments,
        by_partition=True,
        columns=(
            _TOPIC,
            _PARTITION,
            ("base_offset", "bigint", "its first offset"),
            ("end_offset", "bigint", "the first offset behind it"),
            ("generation", "int", "0 as sealed, more for cleaned runs"),
            ("index", "string", "the name of its index object"),
            ("batches", "int", "entries of the index, control batches included"),
            ("records", "bigint", "rows, aborted ones included"),
            ("files", "int", "files that hold them"),
            ("bytes", "bigint", "bytes of these"),
            ("aborted_txns", "int", "transactions whose ABORT marker lies in it"),
        ),
    ),
    "consumer_groups": Table(
        doc="A row for every partition that a consumer group has an offset for; one for a group that has none.",
        rows=_groups,
        by_partition=False,
        columns=(
            ("group_id", "string", "the group"),
            ("state", "string", "STABLE with a member, EMPTY without"),
            ("generation", "bigint", "its generation; older members are fenced"),
            ("member_id", "string", "its member"),
            ("client_id", "string", "what the member calls itself"),
            ("topics", "array<string>", "what the member subscribes to"),
            ("topic", "string", "the topic of an offset"),
            ("partition", "int", "the partition of an offset"),
            ("committed_offset", "bigint", "the next offset to read"),
            ("pending_offset", "bigint", "that of an undecided transaction"),
            ("metadata", "string", "what its committer wrote beside it"),
            ("committed_at", "timestamp", "when it was committed"),
            ("log_start_offset", "bigint", "the partition's first offset; null if the topic is gone"),
            ("last_stable_offset", "bigint", "where read_committed ends"),
            ("log_end_offset", "bigint", "the next offset to be assigned"),
            ("lag", "bigint", "offsets up to the last stable one not yet consumed; markers and aborted rows count"),
        ),
    ),
    "aborted": Table(
        doc="A row for every aborted transaction that had written rows to a partition.",
        rows=_aborted,
        by_partition=True,
        columns=(
            _TOPIC,
            _PARTITION,
            ("producer_id", "bigint", "whose it was"),
            ("first_offset", "bigint", "its first row here"),
            ("last_offset", "bigint", "its ABORT marker"),
            ("last_stable_offset", "bigint", "the last stable offset just after the marker"),
        ),
    ),
    "history": Table(
        doc="A row for everything that a run of a clean-up job did to a partition; none for what did nothing. The newest 2,000 runs.",
        rows=_history,
        by_partition=False,
        columns=(
            ("run_id", "string", "one run of a job"),
            ("job", "string", "merge, compact, retention, vacuum or repair"),
            _TOPIC,
            _PARTITION,
            ("started_at", "timestamp", "when it began"),
            ("ended_at", "timestamp", "when it ended; null if it did not"),
            ("outcome", "string", "published, discarded (another was first), deleted or failed"),
            ("base_offset", "bigint", "the first offset it worked on; null if it was about none"),
            ("end_offset", "bigint", "the first offset behind them"),
            ("generation", "int", "of the run it made; null if it made none"),
            ("input_files", "int", "files read"),
            ("output_files", "int", "files written"),
            ("rows_read", "bigint", "rows in the former"),
            ("rows_written", "bigint", "rows in the latter"),
            ("bytes_read", "bigint", "bytes of the former"),
            ("bytes_written", "bigint", "bytes of the latter"),
            ("deleted_objects", "bigint", "objects removed"),
            ("deleted_bytes", "bigint", "their bytes"),
            ("message", "string", "the reason of a failure"),
            ("by", "string", "the process that did it: host and process id"),
        ),
    ),
    "files": Table(
        doc="A row for every Parquet file that the log names from its start on; rows that ride in commit records have none.",
        rows=_files,
        by_partition=True,
        columns=(
            _TOPIC,
            _PARTITION,
            ("path", "string", "relative to the topic's folder"),
            ("first_offset", "bigint", "the first offset that it holds a row of"),
            ("end_offset", "bigint", "the first offset behind its last row"),
            ("rows", "bigint", "rows in the file"),
            ("live_rows", "bigint", "those at or above the log start"),
            ("committed_rows", "bigint", "those that read_committed shows now: 0 for aborted and undecided ones"),
            ("bytes", "bigint", "its length"),
            ("row_groups", "int", "its row groups"),
            ("schema_id", "bigint", "the version of the topic whose columns it has"),
            ("first_timestamp", "timestamp", "log-append time of its first batch; null in a cleaned run"),
            ("last_timestamp", "timestamp", "log-append time of its last batch; null in a cleaned run"),
            ("segment", "string", "the index that names it; null as long as a commit record does"),
            ("has_offset_column", "boolean", "whether `_offset` and `_timestamp` are columns of the file"),
            ("producer_id", "bigint", "who wrote it; null for files of a segment"),
            ("producer_epoch", "bigint", "and in which epoch"),
            ("digest", "string", "SHA-256 of the file; null for what Spark's own writer wrote"),
            ("footer_digest", "string", "SHA-256 of its footer"),
            (
                "statistics",
                "map<string,struct<min:string,max:string,nulls:bigint>>",
                "by column, outer bounds as JSON: dates in days, times in microseconds, strings cut at 32 bytes",
            ),
        ),
    ),
}
"""The tables by their names in the option `metadata`."""
