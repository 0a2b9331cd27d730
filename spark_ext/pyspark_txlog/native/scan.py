"""How does Spark read a topic with its own Parquet reader?

txlog plans as for `format("txlog")`: offsets, isolation, pieces of files and inline batches. Spark gets a list of files
and an expression for the offset of each row. Rows of files do not pass through Python. Inline rows do: the driver hands
them to Spark as Arrow. So column pruning, push-down into row groups, vectorised decoding and `count()` from footers are
Spark's own. A frame keeps the plan that was made with it: it does not grow, and each use reads the same rows.

    whole files                 Every row counts: a plain scan.
    parts of files              A range of offsets or times begins or ends in the file, or aborted batches lie between.
                                Rows are chosen by their position.
    files with `_offset`        Sealed inline rows and cleaned runs: columns hold the offset and time of each row. In
                                other files the offset is the file's first offset plus the row's position, and the
                                time is the batch's.

A file of an older schema lacks columns; they are read as null. Spark finds columns by name here. Within one version of
a topic no two columns differ only in case, so a name finds the same column as its id (PROTOCOL.md, "Types"). If columns
were renamed, dropped or widened, the files of each version are a scan of their own (`pyspark_txlog.native.columns`).
For floats, push-down is restricted so that no row is lost that Spark's own filter keeps (FLOAT_OPTIONS,
ODD_FLOAT_OPTIONS). Spark checks pages against their checksums, but not the footers' digests (PROTOCOL.md, R13). All
columns are nullable, as in any file scan of Spark.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.arrow import spark_batches
from pyspark_txlog.messages import MARK
from pyspark_txlog.native.columns import converted_columns, physical_schema, strict_schema
from pyspark_txlog.native.locations import escape_glob, spark_folder
from pyspark_txlog.native.newest import divided_tasks, newest
from pyspark_txlog.source.batch_reader import condition_of, key_columns, plan_topics, read_tasks, topic_tasks
from pyspark_txlog.source.options import ReadOptions, reads_latest
from pyspark_txlog.source.predicate import filter_column, named, quoted
from pyspark_txlog.source.subscription import subscribed_topics
from txlog.engine import (
    MAX_TASK_BYTES,
    DataFile,
    FilePiece,
    InlinePiece,
    ReadTask,
    RowRange,
    Runtime,
    TopicPartition,
    read_task,
)
from txlog.engine.arrow import columns_to_read
from txlog.engine.conditions import Predicate
from txlog.engine.schemas import SchemaField, TopicMetadata, WrittenSchema
from txlog.errors import InvalidRequestError, SchemaMismatchError

SCAN_OPTIONS: Mapping[str, str] = {
    # Off by default (PROTOCOL.md, "Integrity").
    "parquet.page.verify-checksum.enabled": "true",
    # A session may switch these on. A missing or unreadable row must never be skipped silently.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    # txlog's files always hold days and microseconds of the proleptic Gregorian calendar.
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # A folder `_partition=0` must not become a column, and each file must be listed once for every form of its path.
    "recursiveFileLookup": "true",
}
FLOAT_OPTIONS: Mapping[str, str] = {
    # parquet-mr searches 0.0 in a row group's dictionary or Bloom filter, and misses -0.0, which is equal.
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
    # The same in each row, if spark.sql.parquet.recordLevelFilter.enabled hands the filter to parquet-mr's row reader.
    "parquet.filter.record-level.enabled": "false",
}
"""For topics with float columns."""
ODD_FLOAT_OPTIONS: Mapping[str, str] = {
    # Arrow's bounds of a row group ignore NaN, which is greater than every number in Spark.
    "parquet.filter.stats.enabled": "false",
}
"""For files with float columns that may hold NaN."""
V1_SOURCES = "spark.sql.sources.useV1SourceList"
LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""For more paths than this (default 32) Spark starts a job to list them: 1,000 paths took 5 s instead of 0.25 s."""
ONE_TASK_BYTES = 4 * 2**20
"""Rows of up to this size are one task, so that an aggregation needs no shuffle. Spark makes one task of a single file
of this size (`spark.sql.files.openCostInBytes`), but several of several smaller files."""

_KEY_PARTS = 3
"""The last parts of a path that tell the files of one topic apart: `<partition>/rows/<name>`,
`<topic>/<partition>/<name>`, `<staged folder>/_partition=<n>/<name>`. Their characters are the same in a URL."""
_LOCK = threading.Lock()


def scan(spark: SparkSession, runtime: Runtime, options: ReadOptions) -> dict[str, DataFrame]:
    """Return a frame for each topic that the options name, by topic, planned together.

    Raises OffsetOutOfRangeError, UnknownTopicOrPartitionError, SchemaMismatchError.
    """
    topics = subscribed_topics(runtime, options)
    wanted = {name: schemas.select({name: topic.schema}, options[table.COLUMNS]) for name, topic in topics.items()}
    return frames_of(spark, runtime, options, topics, wanted)


def frames_of(
    spark: SparkSession,
    runtime: Runtime,
    options: ReadOptions,
    topics: Mapping[str, TopicMetadata],
    wanted: Mapping[str, StructType],
    *,
    exact: bool = False,
) -> dict[str, DataFrame]:
    """Return the rows of each topic with the columns `wanted` of it, planned together. `exact` as in `frame_of`.

    Raises as `scan` does, and InvalidRequestError for the newest rows of a topic without a key.
    """
    if not reads_latest(options):
        tasks = topic_tasks(runtime, options, topics, wanted, topics)
        return {name: frame_of(spark, runtime, name, wanted[name], own, exact=exact) for name, own in tasks.items()}
    keys = {name: key_columns(runtime, topic) for name, topic in topics.items()}
    plans = plan_topics(runtime, options, topics)
    found = {}
    for name, topic in topics.items():
        whole = _whole(topic, wanted[name])
        own = [plan for plan in plans if plan.topic_partition.topic == name]
        planned = read_tasks(runtime, own, whole.names, options, topics)
        old, new = divided_tasks(topic, keys[name], own, planned)
        compacted = frame_of(spark, runtime, name, whole, old, exact=exact) if old else None
        frame = frame_of(spark, runtime, name, whole, new, exact=exact) if new or not old else None
        found[name] = newest(compacted, frame, keys[name], topic.schema)
        if (condition := condition_of(options, topic)) is not None:
            found[name] = found[name].filter(filter_column(condition.root))
        found[name] = found[name].select(*(quoted(each) for each in wanted[name].names))
    return found


def frame_of(
    spark: SparkSession,
    runtime: Runtime,
    topic: str,
    schema: StructType,
    tasks: Sequence[ReadTask],
    *,
    exact: bool = False,
) -> DataFrame:
    """Return the rows of `tasks` as a frame with exactly the columns of `schema`.

    All tasks are of `topic` and read at least these columns. `exact` keeps the columns that are not nullable, except
    over Spark Connect. Raises UnsupportedStoreError if Spark cannot access the store, InvalidRequestError if the
    session's Parquet reader does not number a file's rows.
    """
    readers = spark.conf.get(V1_SOURCES, "parquet") or ""
    if "parquet" not in readers.lower().replace(" ", "").split(","):
        raise InvalidRequestError(
            f"topic {topic!r}: {V1_SOURCES} = {readers!r} selects Spark's Parquet reader of version 2, which does not "
            "number the rows of a file. "
            'hint: add "parquet" to the list, or read with format("txlog")'
        )
    found = _TopicScan(spark, runtime, f"{spark_folder(spark, runtime)}/{topic}", exact=exact).frame(schema, tasks)
    return found.alias(MARK)


@dataclass(slots=True, kw_only=True)
class _ScannedFile:
    """What to read of one file."""

    tp: TopicPartition
    file: DataFile
    stored: bool
    """Whether it has `_offset` and `_timestamp` columns."""
    odd: bool = False
    """Whether its floats may be NaN."""
    written: WrittenSchema | None = None
    """The columns of the version that its rows name, if they are not the frame's."""
    ranges: list[tuple[RowRange, FilePiece]] = field(default_factory=list)
    """Its rows, each range with its piece. Of a range by column only rows with offsets of the piece count."""

    @property
    def whole(self) -> bool:
        """Whether the scan reads all its rows, and one rule gives the offset of each."""
        if sum(each.rows for each, _ in self.ranges) != self.file.rows:
            return False
        if self.stored:
            return all(not each.by_column or piece.covers_file for each, piece in self.ranges)
        return len({(each.base_offset - each.first_row, each.timestamp) for each, _ in self.ranges}) == 1


def _whole(topic: TopicMetadata, wanted: StructType) -> StructType:
    """Return all columns that the choice of the newest rows may need, those of `wanted` as they are there."""
    known = {column.name: column for column in wanted}
    columns = schemas.select({topic.topic: topic.schema}, [schemas.ALL_COLUMNS, *schemas.METADATA.names])
    return StructType([known.get(column.name, column) for column in columns])


class _TopicScan:
    """Builds the frame of one topic."""

    def __init__(self, spark: SparkSession, runtime: Runtime, folder: str, *, exact: bool = False) -> None:
        self._spark = spark
        self._runtime = runtime
        self._folder = folder
        self._exact = exact

    def frame(self, schema: StructType, tasks: Sequence[ReadTask]) -> DataFrame:
        """Return the rows of `tasks`, all of one topic, with the columns of `schema`."""
        if not tasks:
            return self._spark.createDataFrame([], schema)
        newest, written = _newest(tasks, self._topic)
        fields = newest.fields
        read = [*(newest.columns or ()), *newest.metadata_columns]
        own = schemas.to_spark(fields)
        known = {each.name: each for each in [*own, *schemas.METADATA, *(schema if self._exact else ())]}
        wanted = StructType(
            [StructField(name, known[name].dataType, not self._exact or known[name].nullable) for name in read]
        )
        groups = _grouped(
            [piece for task in tasks for piece in task.pieces if isinstance(piece, FilePiece)], fields, written
        )
        parts = [self._files(group, fields, wanted) for group in groups]
        sizes = [each.file.bytes for group in groups for each in group]
        inline = self._inline(tasks, fields, wanted)
        if inline:
            sizes.append(sum(batch.nbytes for batch in inline))
            parts.append(self._spark.createDataFrame(pa.Table.from_batches(inline), schema=wanted))
        one_task = len(sizes) > 1 and sum(sizes) <= ONE_TASK_BYTES
        if inline and not one_task:
            # Otherwise Spark makes a task for each of its cores, however few the rows are.
            parts[-1] = parts[-1].coalesce(1 + sizes[-1] // MAX_TASK_BYTES)
        frame = reduce(DataFrame.union, parts) if parts else self._spark.createDataFrame([], wanted)
        if one_task:
            frame = frame.coalesce(1)
        predicate = newest.keep
        if isinstance(predicate, Predicate):
            frame = frame.filter(filter_column(predicate.root))
        return frame if wanted.names == schema.names else frame.select(*(quoted(name) for name in schema.names))

    def _files(self, files: Sequence[_ScannedFile], fields: Sequence[SchemaField], wanted: StructType) -> DataFrame:
        """Scan files of one kind: all of the same columns, all whole or all in part, all with or all without stored
        offsets, all or none with possible NaN. `fields` are the frame's."""
        stored, whole, written = files[0].stored, files[0].whole, files[0].written
        own = fields if written is None else written.fields
        physical = physical_schema(own)
        if stored:
            more = (StructField("_offset", LongType()), StructField("_timestamp", TimestampType()))
            # To know which rows of a part count, Spark needs both.
            physical = StructType([*physical, *(each for each in more if not whole or each.name in wanted.names)])
        options = {**SCAN_OPTIONS, **(FLOAT_OPTIONS if any(_floats(own)) else {})}
        if files[0].odd:
            options.update(ODD_FLOAT_OPTIONS)
        paths = [escape_glob(f"{self._folder}/{each.file.path}") for each in files]
        with _listed_at_once(self._spark, len(paths)):
            frame = self._spark.read.schema(physical).options(**options).parquet(*paths)
        if self._exact:
            frame = _with_schema(frame, strict_schema(physical, own, wanted, fields))
        if whole and physical.names == wanted.names and written is None:
            # Expressions would cost 30 calls into Java for each column.
            return frame
        columns = {name: named(name) for name in physical.names}
        if written is not None:
            places = {name: columns[name] for name in physical.names[len(own) :]}
            columns = converted_columns(written, [field for field in fields if field.name in wanted.names]) | places
        place = _Place(frame, files, self._topic, stored=stored, whole=whole, wanted=wanted.names)
        if "_topic" in wanted.names:
            columns["_topic"] = functions.lit(self._topic)
        if "_partition" in wanted.names:
            columns["_partition"] = place.fact("p")
        if not whole:
            # No topic can have columns with these names. Filter first, so that offsets are computed only for the rows
            # that count.
            found = {"_offset_row": place.row, "_offset_range": place.matching_range()}
            kept = columns | found
            frame = frame.select(*(column.alias(name) for name, column in kept.items()))
            frame = frame.filter("_offset_range IS NOT NULL")
            columns = {name: named(name) for name in columns}
            if not stored:
                first = functions.col("_offset_range")
                columns["_offset"] = first["b"] + functions.col("_offset_row")
                columns["_timestamp"] = functions.timestamp_millis(first["t"])
        elif not stored:
            if "_offset" in wanted.names:
                columns["_offset"] = place.fact("b") + place.row
            if "_timestamp" in wanted.names:
                columns["_timestamp"] = functions.timestamp_millis(place.fact("t"))
        if self._exact:
            # Every row has these; Spark does not know it, because they come from a map.
            computed = schemas.METADATA.names if not stored else ["_partition"]
            for name in (name for name in computed if name in wanted.names and not wanted[name].nullable):
                columns[name] = functions.coalesce(columns[name], _ZEROS[name]())
        return frame.select(*(columns[name].alias(name) for name in wanted.names))

    def _inline(
        self, tasks: Sequence[ReadTask], fields: tuple[SchemaField, ...], wanted: StructType
    ) -> list[pa.RecordBatch]:
        """Return the rows stored inline in commit records."""
        own, metadata = schemas.divided(wanted.names)
        inline = (
            replace(
                task,
                fields=fields,
                columns=own,
                metadata_columns=metadata,
                pieces=tuple(piece for piece in task.pieces if isinstance(piece, InlinePiece)),
                keep=None,
            )
            for task in tasks
        )
        batches = (batch for task in inline for batch in read_task(task, self._runtime.store))
        return list(spark_batches(batches, wanted))

    @property
    def _topic(self) -> str:
        return self._folder.rpartition("/")[2]


_ZEROS: Mapping[str, Callable[[], Column]] = {
    "_topic": lambda: functions.lit(""),
    "_partition": lambda: functions.lit(0),
    "_offset": lambda: functions.lit(0).cast("bigint"),
    "_timestamp": lambda: functions.timestamp_millis(functions.lit(0)),
}
"""Values that Spark knows not to be null."""
_RANGES = "array<struct<f:bigint,l:bigint,b:bigint,t:bigint,s:bigint,e:bigint>>"


class _Place:
    """Computes where a row is in the log, from its position in its file and from what txlog knows about that file.

    The facts about a file: `p` is the partition. For a whole file without stored offsets, `b` is the offset of its row
    0 and `t` its time. For a partial file, `r` is its ranges. Only the facts that are needed are included; a fact that
    is the same for all files is included once.
    """

    def __init__(
        self,
        frame: DataFrame,
        files: Sequence[_ScannedFile],
        topic: str,
        *,
        stored: bool,
        whole: bool,
        wanted: Sequence[str],
    ) -> None:
        # Not by name, because a topic may have a column `_metadata`.
        metadata = frame.metadataColumn("_metadata")
        self.row: Column = metadata["row_index"]
        self._stored = stored
        self._kinds: dict[str, str] = {}
        self._same: dict[str, int] = {}
        facts: list[dict[str, Any]] = [{} for _ in files]
        if "_partition" in wanted:
            self._add("p", "int", [each.tp.partition for each in files], facts)
        if not whole:
            self._add("r", _RANGES, [[_described(*part) for part in each.ranges] for each in files], facts)
        elif not stored:
            first = [each.ranges[0][0] for each in files]
            if "_offset" in wanted:
                self._add("b", "bigint", [part.base_offset - part.first_row for part in first], facts)
            if "_timestamp" in wanted:
                self._add("t", "bigint", [part.timestamp for part in first], facts)
        # The key must be cheap to compute for each row. The file name alone is enough unless Spark's own writer wrote
        # the files.
        keys = [each.file.path.rpartition("/")[2] for each in files]
        key, path = metadata["file_name"], metadata["file_path"]
        if len(set(keys)) != len(keys):
            keys = ["/".join(f"{topic}/{each.file.path}".split("/")[-_KEY_PARTS:]) for each in files]
            key = functions.substring_index(path, "/", -_KEY_PARTS)
        # Spark turns the JSON text into one literal when it plans. The look-up is one expression, so each row computes
        # it once.
        kind = f"struct<{','.join(f'{name}:{kind}' for name, kind in self._kinds.items())}>"
        text = json.dumps(dict(zip(keys, facts, strict=True)), separators=(",", ":"))
        message = functions.concat(functions.lit("txlog: this scan was not planned for a file "), path)
        self._known: Column = functions.coalesce(
            functions.from_json(functions.lit(text), f"map<string,{kind}>")[key],
            functions.raise_error(message).cast(kind),
        )

    def fact(self, name: str) -> Column:
        """Return the fact `name` of the row's file."""
        if name in self._same:
            return functions.lit(self._same[name])
        return self._known[name]

    def matching_range(self) -> Column:
        """Return the range of the file that contains the row; null if no range does."""

        def holds(each: Column) -> Column:
            inside = (self.row >= each["f"]) & (self.row < each["l"])
            if not self._stored:
                return inside
            offset = functions.col("_offset")
            return inside & (each["s"].isNull() | ((offset >= each["s"]) & (offset < each["e"])))

        return functions.get(functions.filter(self.fact("r"), holds), functions.lit(0))

    def _add(self, name: str, kind: str, values: Sequence[Any], facts: Sequence[dict[str, Any]]) -> None:
        if kind != _RANGES and len(set(values)) == 1:
            self._same[name] = values[0]
            return
        self._kinds[name] = kind
        for known, value in zip(facts, values, strict=True):
            known[name] = value


def _with_schema(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return a scan of files with columns that are not nullable, which `spark.read.schema(...)` makes nullable.

    Over Spark Connect return the frame unchanged.
    """
    if not hasattr(frame, "_jdf") or frame.schema == schema:
        return frame
    session: Any = frame.sparkSession
    files = frame._jdf.queryExecution().analyzed().relation()
    own = session._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    same = (files.bucketSpec(), files.fileFormat(), files.options(), files.sparkSession())
    strict = files.copy(files.location(), files.partitionSchema(), own, *same)
    return DataFrame(session._jsparkSession.baseRelationToDataFrame(strict), session)


def _described(rows: RowRange, piece: FilePiece) -> dict[str, int]:
    """Return the first row, the row after the last, the offset of the file's row 0 and the time; for a range by column
    also its offsets."""
    known = {
        "f": rows.first_row,
        "l": rows.first_row + rows.rows,
        "b": rows.base_offset - rows.first_row,
        "t": rows.timestamp,
    }
    return {**known, "s": piece.start, "e": piece.end} if rows.by_column else known


def _floats(fields: Sequence[SchemaField], *, nested: bool = False) -> Iterator[tuple[SchemaField, bool]]:
    """Yield the float columns for which Spark pushes filters down, and whether each is inside a struct."""
    for each in fields:
        if each.type == "struct":
            yield from _floats(each.fields, nested=True)
        elif each.type.startswith("float"):
            yield each, nested


def _newest(tasks: Sequence[ReadTask], topic: str) -> tuple[ReadTask, dict[int, WrittenSchema]]:
    """Return a task that has the columns of all tasks, and the columns of each version that their rows name.

    Raises SchemaMismatchError if rows can have values that these columns cannot hold, or if the columns changed while
    the tasks were planned.
    """
    changed = [task for task in tasks if task.written]
    # Partitions are planned one after another. If columns were only added, the newest schema has the most columns.
    newest = max(changed or tasks, key=lambda task: len(task.fields))
    if any(task.fields != newest.fields for task in changed):
        raise SchemaMismatchError(
            f"topic {topic!r}: its columns changed while this read was planned. hint: restart the query or the reader"
        )
    written = {number: own for task in changed for number, own in task.written.items()}
    wanted = [field for field in newest.fields if newest.columns is None or field.name in newest.columns]
    for own in written.values():
        columns_to_read(own, wanted, f"topic {topic!r}")
    return newest, {number: own for number, own in written.items() if own.fields != newest.fields}


def _grouped(
    pieces: Sequence[FilePiece], fields: Sequence[SchemaField], written: Mapping[int, WrittenSchema] | None = None
) -> list[list[_ScannedFile]]:
    """Return the files of `pieces`, each once, grouped by kind.

    `written` has the versions with other columns than `fields`.
    """
    found: dict[str, _ScannedFile] = {}
    floats = {number: list(_floats(own.fields)) for number, own in (written or {}).items()}
    newest = list(_floats(fields))
    for piece in pieces:
        scanned = found.setdefault(
            piece.file.path,
            _ScannedFile(
                tp=piece.topic_partition,
                file=piece.file,
                stored=piece.offset_column,
                # The log has bounds only for top-level columns, and none for a column with NaN or infinity.
                odd=any(
                    nested or str(each.id) not in piece.file.statistics
                    for each, nested in floats.get(piece.schema_id, newest)
                ),
                written=(written or {}).get(piece.schema_id),
            ),
        )
        scanned.ranges += [(each, piece) for each in piece.ranges]
    groups: dict[Hashable, list[_ScannedFile]] = {}
    for scanned in found.values():
        # Versions with the same columns and another last_field_id need other defaults.
        own = scanned.written and (scanned.written.fields, scanned.written.last_field_id)
        groups.setdefault((own, scanned.stored, scanned.whole, scanned.odd), []).append(scanned)
    return list(groups.values())


@contextmanager
def _listed_at_once(spark: SparkSession, paths: int) -> Iterator[None]:
    """Make Spark list up to this many paths on the driver, in threads, instead of in a job."""
    # One thread at a time: otherwise another thread's temporary value would be restored as if it were the original.
    with _LOCK:
        before = spark.conf.get(LISTING_THRESHOLD, "32")
        if before is None or int(before) >= paths:
            yield
            return
        spark.conf.set(LISTING_THRESHOLD, str(paths))
        try:
            yield
        finally:
            spark.conf.set(LISTING_THRESHOLD, before)
