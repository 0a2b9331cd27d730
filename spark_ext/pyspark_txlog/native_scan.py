"""How does Spark read a topic with its own Parquet reader?

txlog plans, as for `format("txlog")`: offsets, isolation, pieces of files and inline batches. What Spark gets is a list of
files and an expression for each row's place in the log; no row passes through Python but those that ride inline, which
the driver hands over as Arrow. So column pruning, push-down into row groups, vectorised decoding and `count()` from footers
are Spark's own. A frame stands for what was planned when it was made: it does not grow, and however often it is used,
it reads the same rows.

    whole files                 every row counts: nothing but a scan
    parts of files              a range of offsets or times begins or ends within, or aborted batches lie between: rows are
                                chosen by their position
    files with `_offset`        sealed inline rows and cleaned runs: place and time of a row are in its columns; elsewhere they
                                are the file's first offset plus the row's position, and the time of its batch

A file of an older schema lacks columns, and they are null. Columns are found by name here: a topic's are never renamed,
dropped, or equal but for case, so a name finds what its id would (PROTOCOL.md, "Types"). Of floats, push-down is held to
what leaves out no row that Spark's own filter keeps (FLOAT_OPTIONS, ODD_FLOAT_OPTIONS). Pages are checked against their
checksums; the footers' digests are not (PROTOCOL.md, R13). All columns are nullable, as in any of Spark's file scans.
"""

from __future__ import annotations

import datetime
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from pyspark_txlog import schemas
from pyspark_txlog.arrow import spark_batches
from pyspark_txlog.locations import escape_glob, spark_folder
from pyspark_txlog.options import READ_OPTIONS, SettledOptions, parse_read_options, settled
from pyspark_txlog.predicate import Predicate, quoted
from pyspark_txlog.reader import plan_topics, read_tasks
from pyspark_txlog.subscription import subscribed_topics
from txlog.client import rows
from txlog.client.offsets import format_offsets
from txlog.client.reading import ReadTask
from txlog.client.runtime import Runtime
from txlog.config import nearest
from txlog.core import names
from txlog.core.fetch_plan import FilePiece, InlinePiece, RowRange
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile, SchemaField
from txlog.errors import InvalidRequestError, UnknownOptionError

SCAN_OPTIONS: Mapping[str, str] = {
    # PROTOCOL.md, "Integrity": off by default.
    "parquet.page.verify-checksum.enabled": "true",
    # A session may have these on; a row that is missing or cannot be read is never left out unseen.
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    # txlog's files hold days and microseconds of the proleptic Gregorian calendar, whoever wrote them.
    "datetimeRebaseMode": "CORRECTED",
    "mergeSchema": "false",
    # A folder `_partition=0` is no column; and each file is listed once, however its path was given.
    "recursiveFileLookup": "true",
}
FLOAT_OPTIONS: Mapping[str, str] = {
    # parquet-mr looks for 0.0 in a row group's dictionary or Bloom filter, and passes over -0.0, which equals it.
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
    # ... and in each row, if spark.sql.parquet.recordLevelFilter.enabled hands the filter to parquet-mr's row reader.
    "parquet.filter.record-level.enabled": "false",
}
"""For topics with columns of floats."""
ODD_FLOAT_OPTIONS: Mapping[str, str] = {
    # Arrow's bounds of a row group leave NaN out, which to Spark is greater than every number.
    "parquet.filter.stats.enabled": "false",
}
"""For files with columns of floats that may hold NaN."""
V1_SOURCES = "spark.sql.sources.useV1SourceList"
LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""More paths than this, 32 by default, and Spark starts a job to list them: 1,000 cost 5 s instead of 0.25 s."""

_NOT_HERE = {
    "path": "the store is the TxLog's",
    "storageOptions": "they are the TxLog's",
    "subscribe": "name topics by .table(name) or .to_dfs(name, ...)",
    "metadata": 'spark.read.format("txlog").option("metadata", ...) reads the log\'s own state',
    "minPartitions": "tasks of a native scan are Spark's, see spark.sql.files.minPartitionNum and maxPartitionBytes",
}
_KEY_PARTS = 3
"""So many parts of a path tell the files of one topic apart: `<partition>/rows/<name>`, `<topic>/<partition>/<name>`,
`<staged folder>/_partition=<n>/<name>`. None of them has a character that a URL would spell otherwise."""
_LOCK = threading.Lock()


def scan_options(runtime: Runtime, topics: Sequence[str], given: Mapping[str, object]) -> SettledOptions:
    """The options of `spark.read.format("txlog")` as keyword arguments: `starting_offsets` or `startingOffsets`,
    `isolation_level`; None is as good as left out. Offsets may be a mapping (of TopicPartition, or of topic to partition to
    offset), times a `datetime` with a time zone, columns a list.

    `topics` None-empty are subscribed to; else `given` has `assign` or `subscribePattern`. Raises UnknownOptionError,
    InvalidRequestError, InvalidConfigurationError.
    """
    known = {_plain(name): name for name in READ_OPTIONS}
    options = {"path": runtime.where}
    for name, value in given.items():
        option = known.get(_plain(name))
        if option is None:
            spelled = [_snake(each) for each in READ_OPTIONS if each not in _NOT_HERE]
            raise UnknownOptionError(
                f"option {name!r} is unknown: a native scan has {', '.join(spelled)}.{nearest(name, spelled)}"
            )
        if option in _NOT_HERE:
            raise InvalidRequestError(f"option {option!r} is none of a native scan's: {_NOT_HERE[option]}")
        if option in options:
            raise InvalidRequestError(f"option {option!r} is given twice, once as {name!r}; give it once")
        if value is not None:
            options[option] = _text(option, value)
    if topics:
        options["subscribe"] = ",".join(topics)
    return settled(parse_read_options(options), runtime.settings)


def scan(spark: SparkSession, runtime: Runtime, options: SettledOptions) -> dict[str, DataFrame]:
    """A frame for each topic that the options name, by topic, planned together.

    Raises what planning raises: OffsetOutOfRangeError, UnknownTopicOrPartitionError, SchemaMismatchError.
    """
    topics = subscribed_topics(runtime, options)
    plans = plan_topics(runtime, options, topics)
    made = {}
    for name, topic in topics.items():
        schema = schemas.select({name: topic.schema}, options.columns)
        own = [plan for plan in plans if plan.topic_partition.topic == name]
        made[name] = frame_of(spark, runtime, name, schema, read_tasks(runtime, own, schema.names, options))
    return made


def frame_of(
    spark: SparkSession, runtime: Runtime, topic: str, schema: StructType, tasks: Sequence[ReadTask]
) -> DataFrame:
    """The rows of `tasks`, all of `topic` and with at least the columns of `schema`, as a frame with just these.

    Raises UnsupportedStoreError where Spark has no way to the store, InvalidRequestError where the session reads Parquet in a
    way that does not number a file's rows.
    """
    readers = spark.conf.get(V1_SOURCES, "parquet") or ""
    if "parquet" not in readers.lower().replace(" ", "").split(","):
        raise InvalidRequestError(
            f"topic {topic!r}: a native scan counts the rows of Parquet files, which Spark's reader of version 2 cannot tell, and {V1_SOURCES} = {readers!r} chooses "
            'that one: add "parquet" to the list, or read with format("txlog")'
        )
    return _TopicScan(spark, runtime, f"{spark_folder(spark, runtime)}/{topic}").frame(schema, tasks)


@dataclass(slots=True, kw_only=True)
class _ScannedFile:
    """What is wanted of one file."""

    tp: TopicPartition
    file: DataFile
    stored: bool
    """Whether it has `_offset` and `_timestamp` columns."""
    odd: bool = False
    """Whether floats in it may be NaN."""
    ranges: list[_Range] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all its rows are wanted, and one rule gives the place of each."""
        if sum(each.rows.rows for each in self.ranges) != self.file.rows:
            return False
        if self.stored:
            return all(not each.rows.by_column or each.covers(self.file) for each in self.ranges)
        return len({(each.rows.base_offset - each.rows.first_row, each.rows.timestamp) for each in self.ranges}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Rows of a file; of one by column, only those with offsets in `[start, end)`."""

    rows: RowRange
    start: int
    end: int

    def covers(self, file: DataFile) -> bool:
        """Whether `[start, end)` holds all offsets of the segment that the file was written for."""
        found = names.parse_partition_object(file.path.rpartition("/")[2])
        return (
            isinstance(found, names.SegmentObject)
            and self.start <= found.segment.base_offset
            and found.segment.end_offset <= self.end
        )


class _TopicScan:
    """The frame of one topic."""

    def __init__(self, spark: SparkSession, runtime: Runtime, folder: str) -> None:
        self._spark = spark
        self._runtime = runtime
        self._folder = folder

    def frame(self, schema: StructType, tasks: Sequence[ReadTask]) -> DataFrame:
        """The rows of `tasks`, all of one topic, with the columns of `schema`."""
        if not tasks:
            return self._spark.createDataFrame([], schema)
        # Partitions are planned one after the other: the newest schema has all columns.
        newest = max(tasks, key=lambda task: len(task.fields))
        fields = newest.fields
        read = [*(newest.columns or ()), *newest.metadata_columns]
        wanted = StructType(
            [
                StructField(
                    name,
                    (schemas.METADATA if name in schemas.METADATA.names else schemas.to_spark(fields))[name].dataType,
                )
                for name in read
            ]
        )
        parts = [
            self._files(group, fields, wanted)
            for group in _grouped(
                [piece for task in tasks for piece in task.pieces if isinstance(piece, FilePiece)], fields
            )
        ]
        if inline := self._inline(tasks, fields, wanted):
            parts.append(inline)
        frame = reduce(DataFrame.union, parts) if parts else self._spark.createDataFrame([], wanted)
        predicate = newest.keep
        if isinstance(predicate, Predicate):
            frame = frame.filter(predicate.column())
        return frame.select(*(quoted(name) for name in schema.names))

    def _files(self, files: Sequence[_ScannedFile], fields: Sequence[SchemaField], wanted: StructType) -> DataFrame:
        """A scan of files of one kind: all whole or all in part, all with stored offsets or all without, all perhaps with NaN
        or none."""
        stored, whole = files[0].stored, files[0].whole
        physical = StructType([StructField(each.name, each.dataType) for each in schemas.to_spark(fields)])
        if stored:
            physical = physical.add("_offset", LongType()).add("_timestamp", TimestampType())
        options = {**SCAN_OPTIONS, **(FLOAT_OPTIONS if any(_floats(fields)) else {})}
        if files[0].odd:
            options.update(ODD_FLOAT_OPTIONS)
        paths = [escape_glob(f"{self._folder}/{each.file.path}") for each in files]
        with _listed_at_once(self._spark, len(paths)):
            frame = self._spark.read.schema(physical).options(**options).parquet(*paths)
        columns = {name: functions.col(quoted(name)) for name in physical.names}
        place = _Place(frame, files, self._topic, stored=stored, whole=whole, wanted=wanted.names)
        if "_topic" in wanted.names:
            columns["_topic"] = functions.lit(self._topic)
        if "_partition" in wanted.names:
            columns["_partition"] = place.fact("p")
        if not whole:
            # Names that no topic's columns can have. Chosen before the place is computed: only rows that count have one.
            found = {"_offset_row": place.row, "_offset_range": place.matching_range()}
            kept = columns | found
            frame = frame.select(*(column.alias(name) for name, column in kept.items()))
            frame = frame.filter("_offset_range IS NOT NULL")
            columns = {name: functions.col(quoted(name)) for name in columns}
            if not stored:
                first = functions.col("_offset_range")
                columns["_offset"] = first["b"] + functions.col("_offset_row")
                columns["_timestamp"] = functions.timestamp_millis(first["t"])
        elif not stored:
            if "_offset" in wanted.names:
                columns["_offset"] = place.fact("b") + place.row
            if "_timestamp" in wanted.names:
                columns["_timestamp"] = functions.timestamp_millis(place.fact("t"))
        return frame.select(*(columns[name].alias(name) for name in wanted.names))

    def _inline(self, tasks: Sequence[ReadTask], fields: Sequence[SchemaField], wanted: StructType) -> DataFrame | None:
        """The rows that ride in commit records, through Arrow from here."""
        own = [name for name in wanted.names if name not in schemas.METADATA.names]
        metadata = [name for name in wanted.names if name in schemas.METADATA.names]
        schema = rows.schema_of(fields, own, metadata)
        batches = (
            rows.with_metadata(batch, task.topic_partition, schema)
            for task in tasks
            if (pieces := [piece for piece in task.pieces if isinstance(piece, InlinePiece)])
            for batch in rows.read_pieces(self._runtime.store, pieces, fields, own)
        )
        found = list(spark_batches(batches, wanted))
        if not found:
            return None
        return self._spark.createDataFrame(pa.Table.from_batches(found), schema=wanted)

    @property
    def _topic(self) -> str:
        return self._folder.rpartition("/")[2]


_RANGES = "array<struct<f:bigint,l:bigint,b:bigint,t:bigint,s:bigint,e:bigint>>"


class _Place:
    """Where a row of a scan stands: its position in its file, and what txlog knows of that file.

    That is `p`, the partition, and of a whole file without stored offsets `b`, the offset of its row 0, and `t`, its time; of a
    file in part `r`, its ranges. Only what is wanted is told, and told once if it is the same of all files.
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
        # By this call and not by name: a topic may have a column `_metadata`.
        metadata = frame.metadataColumn("_metadata")
        self.row: Column = metadata["row_index"]
        self._stored = stored
        self._kinds: dict[str, str] = {}
        self._same: dict[str, int] = {}
        facts: list[dict[str, Any]] = [{} for _ in files]
        if "_partition" in wanted:
            self._add("p", "int", [each.tp.partition for each in files], facts)
        if not whole:
            self._add("r", _RANGES, [[_described(part) for part in each.ranges] for each in files], facts)
        elif not stored:
            first = [each.ranges[0].rows for each in files]
            if "_offset" in wanted:
                self._add("b", "bigint", [part.base_offset - part.first_row for part in first], facts)
            if "_timestamp" in wanted:
                self._add("t", "bigint", [part.timestamp for part in first], facts)
        # A row's key must cost nothing: a name alone where names will do, and they do but for files of Spark's own writer.
        keys = [each.file.path.rpartition("/")[2] for each in files]
        key, path = metadata["file_name"], metadata["file_path"]
        if len(set(keys)) != len(keys):
            keys = ["/".join(f"{topic}/{each.file.path}".split("/")[-_KEY_PARTS:]) for each in files]
            key = functions.substring_index(path, "/", -_KEY_PARTS)
        # A JSON text becomes one literal when the plan is made; the look-up is one expression, so a row makes it once.
        kind = f"struct<{','.join(f'{name}:{kind}' for name, kind in self._kinds.items())}>"
        text = json.dumps(dict(zip(keys, facts, strict=True)), separators=(",", ":"))
        message = functions.concat(functions.lit("txlog: this scan was not planned for a file "), path)
        self._known: Column = functions.coalesce(
            functions.from_json(functions.lit(text), f"map<string,{kind}>")[key],
            functions.raise_error(message).cast(kind),
        )

    def fact(self, name: str) -> Column:
        """What is known of the row's file."""
        if name in self._same:
            return functions.lit(self._same[name])
        return self._known[name]

    def matching_range(self) -> Column:
        """The range of the file that the row is in, null if it is in none."""

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


def _described(part: _Range) -> dict[str, int]:
    """The first row and the one behind the last, offset of the file's row 0 and time; of a range by column its offsets."""
    rows = part.rows
    known = {
        "f": rows.first_row,
        "l": rows.first_row + rows.rows,
        "b": rows.base_offset - rows.first_row,
        "t": rows.timestamp,
    }
    return {**known, "s": part.start, "e": part.end} if rows.by_column else known


def _floats(fields: Sequence[SchemaField], *, nested: bool = False) -> Iterator[tuple[SchemaField, bool]]:
    """Columns of floats on which Spark pushes filters down, and whether each is within a struct."""
    for each in fields:
        if each.type == "struct":
            yield from _floats(each.fields, nested=True)
        elif each.type.startswith("float"):
            yield each, nested


def _grouped(pieces: Sequence[FilePiece], fields: Sequence[SchemaField]) -> list[list[_ScannedFile]]:
    """The files of `pieces`, each once, those of one kind together."""
    floats = list(_floats(fields))
    found: dict[str, _ScannedFile] = {}
    for piece in pieces:
        scanned = found.setdefault(
            piece.file.path,
            _ScannedFile(
                tp=piece.topic_partition,
                file=piece.file,
                stored=piece.offset_column,
                # The log has bounds of top-level columns alone, and none of a column with NaN or infinity.
                odd=any(nested or str(each.id) not in piece.file.statistics for each, nested in floats),
            ),
        )
        scanned.ranges += [_Range(rows=each, start=piece.start, end=piece.end) for each in piece.ranges]
    groups: dict[tuple[bool, bool, bool], list[_ScannedFile]] = {}
    for scanned in found.values():
        groups.setdefault((scanned.stored, scanned.whole, scanned.odd), []).append(scanned)
    return list(groups.values())


@contextmanager
def _listed_at_once(spark: SparkSession, paths: int) -> Iterator[None]:
    """Has Spark look at so many paths from the driver, in threads."""
    # One at a time: what another has set for a moment would be put back as if it had always been so.
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


def _plain(name: str) -> str:
    return re.sub(r"[._]", "", name).lower()


def _snake(option: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", option).replace(".", "_").lower()


def _text(option: str, value: object) -> str:
    """What the option would be in `.option(...)`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise InvalidRequestError(
                f"option {option!r}: {value!r} has no time zone, and could mean two times; give it one"
            )
        return str((value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1))
    if isinstance(value, Mapping):
        if value and all(isinstance(key, TopicPartition) for key in value):
            return format_offsets(value)
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return json.dumps(list(value))
    return str(value)
