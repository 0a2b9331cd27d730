"""Which options does `format("txlog")` take, and what replaces the options of Spark's Kafka source and sink?

The table `OPTIONS` has the name, calls, default, range and description of each option, and how it differs from Spark's
Kafka option of the same name. `options` parses by it, error messages list it, and docs/kafka.md contains it. The second
table, `KAFKA_OPTIONS`, covers all other options of Spark's Kafka source and sink (Spark 4.2, "Structured Streaming +
Kafka Integration Guide"): each row says what to use instead.

Pure: planning processes load it first.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

Call: TypeAlias = Literal["read", "readStream", "write", "writeStream"]

SAME = "the same"
"""The value of `Option.kafka` if nothing differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of `format("txlog")`."""

    name: str
    calls: tuple[Call, ...]
    """The calls that take it: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream`."""
    default: str
    """The value as an option's text; a phrase where it depends on something; "" if there is no default."""
    range: str
    """The values that are allowed, as a phrase."""
    doc: str
    """One or two sentences."""
    kafka: str | None = None
    """How it differs from Spark's Kafka option of that name; None if Spark's Kafka has no such option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOption:
    """One option of Spark's Kafka source or sink that txlog does not have under that name."""

    name: str
    """`*` stands for any text; the first row that matches is used."""
    side: Literal["source", "sink", "both"]
    here: str
    """What to use instead, or why nothing is needed."""


def names_of(*calls: Call) -> tuple[str, ...]:
    """Return the options that any of `calls` takes, in the table's order, without the pattern `storage.<name>`."""
    exact = (option for option in OPTIONS if not option.name.endswith(">"))
    return tuple(option.name for option in exact if any(call in option.calls for call in calls))


def kafka_option(name: str) -> KafkaOption | None:
    """Return the option of Spark's Kafka source or sink that matches `name`, if txlog has no option of that name."""
    return next((one for one in KAFKA_OPTIONS if fnmatchcase(name.lower(), one.name.lower())), None)


def render_markdown() -> str:
    """Return both tables as Markdown, the part of docs/kafka.md between the two markers."""
    lines = ["### Options of Spark's Kafka source and sink", ""]
    lines += ['| Spark\'s Kafka | where | in `format("txlog")` |', "|---|---|---|"]
    rows = [(one.name, _side(one.calls), one.kafka) for one in OPTIONS if one.kafka is not None]
    rows += [(one.name, one.side, one.here) for one in KAFKA_OPTIONS]
    lines += [
        f"| `{name}` | {where} | {_cell(here)} |" for name, where, here in sorted(rows, key=lambda row: row[0].lower())
    ]
    lines += ["", '### All options of `format("txlog")`', ""]
    lines += ["| option | calls | default | range | |", "|---|---|---|---|---|"]
    lines += [
        f"| `{option.name}` | {_calls(option.calls)} | {_default(option.default)} | {_cell(option.range)} | {_cell(option.doc)} |"
        for option in OPTIONS
    ]
    return "\n".join(lines) + "\n"


# -- the tables -------------------------------------------------------------------------------------------------------

_READ: tuple[Call, ...] = ("read",)
_READS: tuple[Call, ...] = ("read", "readStream")
_STREAM: tuple[Call, ...] = ("readStream",)
_WRITE: tuple[Call, ...] = ("write",)
_WRITES: tuple[Call, ...] = ("write", "writeStream")
_SINK: tuple[Call, ...] = ("writeStream",)
_ALL: tuple[Call, ...] = (*_READS, *_WRITES)

_TOPICS = "topics, separated by commas"
_OFFSETS_JSON = '{"topic": {"0": 23, "1": -2}}'
_TIMES_JSON = '{"topic": {"0": 1700000000000}}'

OPTIONS: tuple[Option, ...] = (
    Option(
        name="path",
        calls=_ALL,
        default="",
        range="a folder, or an s3://, gs://, abfs:// URL",
        doc="The folder or URL of the store; `load`, `save` and `start` set it. A store in memory is not supported, because other processes cannot see it.",
    ),
    Option(
        name="storageOptions",
        calls=_ALL,
        default="{}",
        range="a JSON object",
        doc="All options of the store's driver at once. Messages never show them.",
    ),
    Option(
        name="storage.<name>",
        calls=_ALL,
        default="",
        range="text, true, false or a JSON object",
        doc="One option of the store's driver. It overrides the same name in `storageOptions`.",
    ),
    Option(
        name="subscribe",
        calls=_READS,
        default="",
        range=_TOPICS,
        doc="The topics to read. Exactly one of `subscribe`, `subscribePattern`, `assign` must be given.",
        kafka="the same; if a topic does not exist, the query fails at once",
    ),
    Option(
        name="subscribePattern",
        calls=_READS,
        default="",
        range="a Python regular expression",
        doc="Reads the topics whose whole name matches the expression.",
        kafka="the expression is Python's, not Java's; a running query also reads new topics that match",
    ),
    Option(
        name="assign",
        calls=_READS,
        default="",
        range='{"topic": [0, 1]}',
        doc="Reads only these partitions.",
        kafka=SAME,
    ),
    Option(
        name="startingOffsets",
        calls=_READS,
        default="earliest; for a stream: latest",
        range=f"earliest, latest (a stream), committed, or JSON: {_OFFSETS_JSON}, -2 earliest, -1 latest (a stream)",
        doc="Where to begin. JSON must name each partition. `committed` is the committed offset of the consumer group `group.id`. A stream with a checkpoint ignores this option and continues at the checkpoint.",
        kafka="the same, and `committed`",
    ),
    Option(
        name="startingTimestamp",
        calls=_READS,
        default="",
        range="milliseconds since 1970",
        doc="Begins with the first batch appended at or after that time. It overrides the two other starting options.",
        kafka="the time is the append time in the log (Kafka's LogAppendTime), never the producer's time",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        calls=_READS,
        default="",
        range=f"JSON: {_TIMES_JSON}",
        doc="The same for each partition. It overrides `startingOffsets`.",
        kafka="the time is the append time in the log",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        calls=_READS,
        default="error",
        range="error, latest",
        doc="What to do if a partition has no row at or after the requested time.",
        kafka="the same; batch reads have it too",
    ),
    Option(
        name="endingOffsets",
        calls=_READ,
        default="latest",
        range=f"latest, or JSON: {_OFFSETS_JSON}, -1 latest",
        doc="Where to end; this offset itself is not read. With read_committed, the read ends at the last stable offset or earlier.",
        kafka=SAME,
    ),
    Option(
        name="endingTimestamp",
        calls=_READ,
        default="",
        range="milliseconds since 1970",
        doc="Ends before the first batch appended at or after that time.",
        kafka="the time is the append time in the log",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        calls=_READ,
        default="",
        range=f"JSON: {_TIMES_JSON}",
        doc="The same for each partition.",
        kafka="the time is the append time in the log",
    ),
    Option(
        name="group.id",
        calls=_READS,
        default="the client's setting of that name",
        range="text",
        doc="The consumer group for `startingOffsets=committed`. A stream also commits its progress for this group after each batch.",
    ),
    Option(
        name="auto.offset.reset",
        calls=_READS,
        default="the client's setting of that name, else `none`",
        range="earliest, latest, none",
        doc="With `startingOffsets=committed`: where to begin in a partition for which the group has no offset. `none` raises an error.",
    ),
    Option(
        name="isolation.level",
        calls=_READS,
        default="the client's setting of that name, read_committed",
        range="read_committed, read_uncommitted",
        doc="Whether rows of open and aborted transactions are hidden.",
    ),
    Option(
        name="columns",
        calls=_READS,
        default="`*`, all columns of the topic",
        range="column names, separated by commas or as a JSON list",
        doc="The columns to read, in that order; `*` means all columns of the topic. `_topic`, `_partition`, `_offset`, `_timestamp` are read only if they are named.",
    ),
    Option(
        name="where",
        calls=_READS,
        default="",
        range="a condition in Spark's SQL: columns against literals, `IN`, `BETWEEN`, `IS NULL`, `AND`, `OR`, `NOT`",
        doc="Returns only rows for which the condition is true, and does not open files that cannot match by their statistics. `_partition`, `_offset`, `_timestamp` are allowed too.",
    ),
    Option(
        name="metadata",
        calls=_READ,
        default="",
        range="transactions, partitions, segments, consumer_groups, aborted, history, files",
        doc="Reads the log's own state instead of rows. Of the other options, only those that choose topics are allowed with it.",
    ),
    Option(
        name="failOnDataLoss",
        calls=_READS,
        default="true",
        range="true, false",
        doc="If offsets were removed before the query read them: true raises an error; false continues after them and reports how many were lost.",
        kafka="the same; lost offsets are counted",
    ),
    Option(
        name="minPartitions",
        calls=_READS,
        default="",
        range="an integer of at least 1",
        doc="The minimum number of Spark tasks. There may be fewer if there are too few files to split.",
        kafka="the same; a task reads at least one row group of a file",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        calls=_STREAM,
        default="",
        range="an integer of at least 1",
        doc="The maximum number of offsets in a micro-batch, over all partitions, in proportion to what each has. It may cut a transaction.",
        kafka=SAME,
    ),
    Option(
        name="minOffsetsPerTrigger",
        calls=_STREAM,
        default="",
        range="an integer of at least 1, at most maxOffsetsPerTrigger",
        doc="Waits until this many offsets are available, but at most `maxTriggerDelay`.",
        kafka=SAME,
    ),
    Option(
        name="maxTriggerDelay",
        calls=_STREAM,
        default="15m",
        range="a number and ms, s, m, h or d",
        doc="How long `minOffsetsPerTrigger` may delay a micro-batch.",
        kafka=SAME,
    ),
    Option(
        name="metadata.max.age.ms",
        calls=_STREAM,
        default="the client's setting of that name, 300000",
        range="an integer of at least 0",
        doc="How often the query looks for new partitions, and for new topics that match a pattern.",
    ),
    Option(
        name="topic",
        calls=_WRITES,
        default="for each row: its column `topic`",
        range="a topic's name",
        doc="The topic of all rows. Without this option, the column `topic` of each row names its topic.",
        kafka="the same, but the topic must exist. If both the option and a column `topic` are given, the write fails, unless the topic has such a column. So no column is dropped silently",
    ),
    Option(
        name="key",
        calls=_WRITES,
        default="the topic's `key.columns`",
        range="column names, separated by commas or as a JSON list",
        doc="The columns whose hash chooses the partition, computed as in Kafka's default partitioner. A column `partition` overrides it.",
    ),
    Option(
        name="transactional.id",
        calls=_WRITES,
        default="the client's setting of that name, else a random id for this write; for a stream: always derived from its checkpoint location",
        range="text",
        doc="The name by which txlog fences older writers and detects a repeated write.",
    ),
    Option(
        name="txn.version",
        calls=_WRITE,
        default="",
        range="an integer of at least 0",
        doc="The number of the transaction. If it is not above the last one committed under `transactional.id`, the write is skipped. A stream uses its batch number.",
    ),
    Option(
        name="transaction.timeout.ms",
        calls=_WRITES,
        default="the client's setting of that name, 60000",
        range="an integer of at least 1",
        doc="The time after which other clients may end a transaction that this writer left open.",
    ),
    Option(
        name="compression.type",
        calls=_WRITES,
        default="the topic's, else the client's setting of that name, zstd",
        range="none, gzip, snappy, lz4, zstd",
        doc="How the pages of the Parquet files are compressed.",
    ),
    Option(
        name="checkpointLocation",
        calls=_SINK,
        default="",
        range="a folder, or an s3://, gs://, abfs:// URL",
        doc="Spark's checkpoint of the query. Set it as an option, because Spark does not pass its session-wide default to a Python sink.",
        kafka="the same, but it must be an option of the query",
    ),
    Option(
        name="commitSourceOffsets",
        calls=_SINK,
        default="true",
        range="true, false",
        doc="Whether each micro-batch's transaction includes the sources' offsets. Use false for a checkpoint that only Spark can read. False is refused "
        "if the id has committed offsets.",
    ),
    Option(
        name="queryName",
        calls=_SINK,
        default="",
        range="text",
        doc="The name that `queryName(...)` sets. Only Spark uses it.",
        kafka=SAME,
    ),
)

KAFKA_OPTIONS: tuple[KafkaOption, ...] = (
    KafkaOption(
        name="kafka.bootstrap.servers",
        side="both",
        here="the store's path in `load(...)`, `save(...)`, `start(...)`: there are no brokers",
    ),
    KafkaOption(
        name="kafka.isolation.level",
        side="source",
        here="`isolation.level`; its default is read_committed, while Kafka's default is read_uncommitted",
    ),
    KafkaOption(
        name="kafka.group.id",
        side="source",
        here="`group.id`; two queries of one group do not divide the partitions between them, as in Spark's Kafka source",
    ),
    KafkaOption(name="groupIdPrefix", side="source", here="nothing: a query without `group.id` has no group"),
    KafkaOption(
        name="includeHeaders",
        side="both",
        here="nothing: topics of Kafka's record shape have a column `headers`; other topics have the columns that you define",
    ),
    KafkaOption(
        name="maxRecordsPerPartition",
        side="source",
        here="nothing: txlog divides tasks by files and rows; `minPartitions` asks for more tasks",
    ),
    KafkaOption(
        name="kafkaConsumer.pollTimeoutMs",
        side="source",
        here="nothing: tasks read files and no consumer polls; the store's driver has its own timeouts (`storage.<name>`)",
    ),
    KafkaOption(
        name="fetchOffset.numRetries",
        side="source",
        here="nothing: failed reads are retried until `default.api.timeout.ms` (`TXLOG_CONFIG`)",
    ),
    KafkaOption(
        name="fetchOffset.retryIntervalMs",
        side="source",
        here="nothing: `retry.backoff.ms` and `retry.backoff.max.ms` (`TXLOG_CONFIG`)",
    ),
    KafkaOption(
        name="kafka.transactional.id",
        side="sink",
        here="`transactional.id`; Spark's Kafka sink does not take it, and is at least once",
    ),
    KafkaOption(
        name="kafka.*",
        side="both",
        here="a setting of Kafka's consumer or producer. If txlog has it, set it without `kafka.` in `TXLOG_CONFIG`; otherwise it is an error",
    ),
    KafkaOption(
        name="spark.kafka.*.cache.*",
        side="both",
        here="nothing: there are no connections to cache",
    ),
    KafkaOption(
        name="spark.kafka.clusters.*",
        side="both",
        here="nothing: the object store controls who may read and write",
    ),
)


def _side(calls: tuple[Call, ...]) -> str:
    return "source" if set(calls) <= set(_READS) else "sink"


def _calls(calls: tuple[Call, ...]) -> str:
    return "all" if calls == _ALL else ", ".join(calls)


def _default(text: str) -> str:
    # A phrase has spaces and stays as it is; a literal value is set in code font.
    return text if not text or " " in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
