"""Which options does `format("txlog")` take, and what became of those of Spark's Kafka source and sink?

One table, `OPTIONS`: name, calls, default, range, sentence, and how it differs from Spark's Kafka option of the same name.
`options` parses by it, messages list it, docs/kafka.md is it, rendered. A second one, `KAFKA_OPTIONS`, lists the options of
Spark's Kafka source and sink (Spark 4.2, "Structured Streaming + Kafka Integration Guide"), so that each of them has a row:
those that txlog shares are found in the first, the others say here what there is instead.

Pure: planning processes read it before they do anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

Call: TypeAlias = Literal["read", "readStream", "write", "writeStream"]

SAME = "the same"
"""In `Option.kafka`: nobody need look it up again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of `format("txlog")`."""

    name: str
    calls: tuple[Call, ...]
    """Which of `spark.read`, `spark.readStream`, `df.write`, `df.writeStream` take it."""
    default: str
    """As it would be written; in words where it depends; "" if there is none."""
    range: str
    """What a value must be, in words."""
    doc: str
    """One sentence or two."""
    kafka: str | None = None
    """How it differs from Spark's Kafka option of that name; None if Spark's Kafka has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOption:
    """One option of Spark's Kafka source or sink that txlog has not under that name."""

    name: str
    """With `*` for whatever stands there; the first that matches counts."""
    side: Literal["source", "sink", "both"]
    here: str
    """What does the same here, or why nothing is needed."""


def names_of(*calls: Call) -> tuple[str, ...]:
    """The options that any of `calls` takes, in the table's order; `storage.<name>` is none by itself."""
    exact = (option for option in OPTIONS if not option.name.endswith(">"))
    return tuple(option.name for option in exact if any(call in option.calls for call in calls))


def kafka_option(name: str) -> KafkaOption | None:
    """The option of Spark's Kafka source or sink that a user means by `name`, if txlog has none of that name."""
    return next((one for one in KAFKA_OPTIONS if fnmatchcase(name.lower(), one.name.lower())), None)


def render_markdown() -> str:
    """docs/kafka.md between its two markers: both tables, for people."""
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
        doc="Where the store is; what `load`, `save` and `start` take. Not a store in memory, which other processes cannot see.",
    ),
    Option(
        name="storageOptions",
        calls=_ALL,
        default="{}",
        range="a JSON object",
        doc="Options of the store's driver, all of them at once; no message repeats them.",
    ),
    Option(
        name="storage.<name>",
        calls=_ALL,
        default="",
        range="text, true, false or a JSON object",
        doc="One option of the store's driver; goes over `storageOptions`.",
    ),
    Option(
        name="subscribe",
        calls=_READS,
        default="",
        range=_TOPICS,
        doc="The topics to read. Exactly one of `subscribe`, `subscribePattern`, `assign` must be given.",
        kafka="the same; a topic that does not exist is an error at once",
    ),
    Option(
        name="subscribePattern",
        calls=_READS,
        default="",
        range="a Python regular expression",
        doc="Reads the topics whose whole name matches.",
        kafka="the expression is Python's, not Java's; new topics join a running query",
    ),
    Option(
        name="assign",
        calls=_READS,
        default="",
        range='{"topic": [0, 1]}',
        doc="Reads these partitions, and no others.",
        kafka=SAME,
    ),
    Option(
        name="startingOffsets",
        calls=_READS,
        default="earliest; of a stream: latest",
        range=f"earliest, latest (a stream), committed, or JSON: {_OFFSETS_JSON}, -2 earliest, -1 latest (a stream)",
        doc="Where to begin, each partition named; `committed` is where the consumer group `group.id` stands. A stream that has a checkpoint goes on there.",
        kafka="the same, and `committed`",
    ),
    Option(
        name="startingTimestamp",
        calls=_READS,
        default="",
        range="milliseconds since 1970",
        doc="Begins with the first batch appended at or after that time; goes before the two other starting options.",
        kafka="times are those of the append to the log (Kafka's LogAppendTime), never the producer's",
    ),
    Option(
        name="startingOffsetsByTimestamp",
        calls=_READS,
        default="",
        range=f"JSON: {_TIMES_JSON}",
        doc="The same by partition; goes before `startingOffsets`.",
        kafka="times are those of the append to the log",
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        calls=_READS,
        default="error",
        range="error, latest",
        doc="Where a partition begins that has no row as new as the time asked for.",
        kafka="the same; for batches too",
    ),
    Option(
        name="endingOffsets",
        calls=_READ,
        default="latest",
        range=f"latest, or JSON: {_OFFSETS_JSON}, -1 latest",
        doc="Where to end, exclusively. A read_committed read ends at the last stable offset at the latest.",
        kafka=SAME,
    ),
    Option(
        name="endingTimestamp",
        calls=_READ,
        default="",
        range="milliseconds since 1970",
        doc="Ends before the first batch appended at or after that time.",
        kafka="times are those of the append to the log",
    ),
    Option(
        name="endingOffsetsByTimestamp",
        calls=_READ,
        default="",
        range=f"JSON: {_TIMES_JSON}",
        doc="The same by partition.",
        kafka="times are those of the append to the log",
    ),
    Option(
        name="group.id",
        calls=_READS,
        default="the client's setting of that name",
        range="text",
        doc="The consumer group for `startingOffsets=committed`; of a stream also the group that its progress is committed for, after each batch.",
    ),
    Option(
        name="auto.offset.reset",
        calls=_READS,
        default="the client's setting of that name, else `none`",
        range="earliest, latest, none",
        doc="With `startingOffsets=committed`: where a partition begins for which the group has no offset; none is an error.",
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
        default="`*`, all of the topic's own",
        range="column names, separated by commas or as a JSON list",
        doc="The columns to read, in that order; `*` is all of the topic's own. `_topic`, `_partition`, `_offset`, `_timestamp` are read only where named.",
    ),
    Option(
        name="where",
        calls=_READS,
        default="",
        range="a condition in Spark's SQL: columns against literals, `IN`, `BETWEEN`, `IS NULL`, `AND`, `OR`, `NOT`",
        doc="Only rows for which the condition is true; files whose statistics exclude it are not opened. On `_partition`, `_offset`, `_timestamp`, too.",
    ),
    Option(
        name="metadata",
        calls=_READ,
        default="",
        range="transactions, partitions, segments, consumer_groups, aborted, history, files",
        doc="The log's own state in place of rows; of the other options only those that choose topics go with it.",
    ),
    Option(
        name="failOnDataLoss",
        calls=_READS,
        default="true",
        range="true, false",
        doc="Whether a query fails if offsets it should have read are gone; otherwise it goes on after them, and says how many.",
        kafka="the same; what was lost is counted",
    ),
    Option(
        name="minPartitions",
        calls=_READS,
        default="",
        range="an integer of at least 1",
        doc="At least so many Spark tasks, as far as there are files to share out.",
        kafka="the same; files of rows are not divided below a row group",
    ),
    Option(
        name="maxOffsetsPerTrigger",
        calls=_STREAM,
        default="",
        range="an integer of at least 1",
        doc="At most so many offsets in a micro-batch, over all partitions, as shares of what is there; a transaction may be cut.",
        kafka=SAME,
    ),
    Option(
        name="minOffsetsPerTrigger",
        calls=_STREAM,
        default="",
        range="an integer of at least 1, at most maxOffsetsPerTrigger",
        doc="Waits until so many offsets are there, for as long as `maxTriggerDelay`.",
        kafka=SAME,
    ),
    Option(
        name="maxTriggerDelay",
        calls=_STREAM,
        default="15m",
        range="a number and ms, s, m, h or d",
        doc="How long `minOffsetsPerTrigger` may hold a micro-batch back.",
        kafka=SAME,
    ),
    Option(
        name="metadata.max.age.ms",
        calls=_STREAM,
        default="the client's setting of that name, 300000",
        range="an integer of at least 0",
        doc="How often new partitions, and new topics of a pattern, are looked for.",
    ),
    Option(
        name="topic",
        calls=_WRITES,
        default="of each row: its column `topic`",
        range="a topic's name",
        doc="Where all rows go; without it each row's column `topic` says so.",
        kafka="the same; the topic must exist. A column `topic` beside the option is refused, unless the topic has such a column: nothing is dropped unsaid",
    ),
    Option(
        name="key",
        calls=_WRITES,
        default="the topic's `key.columns`",
        range="column names, separated by commas or as a JSON list",
        doc="The columns whose hash chooses the partition, as Kafka's default partitioner computes it; a column `partition` goes before it.",
    ),
    Option(
        name="transactional.id",
        calls=_WRITES,
        default="the client's setting of that name, else drawn for this write; of a stream: always made of its checkpoint location",
        range="text",
        doc="The name under which the write is fenced and recognised.",
    ),
    Option(
        name="txn.version",
        calls=_WRITE,
        default="",
        range="an integer of at least 0",
        doc="The number of the transaction: a number not above the last one committed under `transactional.id` is skipped. A stream's is its batch number.",
    ),
    Option(
        name="transaction.timeout.ms",
        calls=_WRITES,
        default="the client's setting of that name, 60000",
        range="an integer of at least 1",
        doc="When others may end a transaction that this writer left between decision and end.",
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
        doc="Spark's checkpoint of the query. Needed as an option: Spark's session-wide default does not reach a Python sink.",
        kafka="the same, but as an option of the query",
    ),
    Option(
        name="commitSourceOffsets",
        calls=_SINK,
        default="true",
        range="true, false",
        doc="Whether the sources' offsets are part of each micro-batch's transaction; false for a checkpoint that only Spark can read, and "
        "refused where the id has committed offsets.",
    ),
    Option(
        name="queryName",
        calls=_SINK,
        default="",
        range="text",
        doc="What `queryName(...)` sets, for Spark's own use.",
        kafka=SAME,
    ),
)

KAFKA_OPTIONS: tuple[KafkaOption, ...] = (
    KafkaOption(
        name="kafka.bootstrap.servers",
        side="both",
        here="the store's place, in `load(...)`, `save(...)`, `start(...)`: there are no brokers",
    ),
    KafkaOption(
        name="kafka.isolation.level",
        side="source",
        here="`isolation.level`, which is read_committed unless said otherwise; Kafka's default is read_uncommitted",
    ),
    KafkaOption(
        name="kafka.group.id",
        side="source",
        here="`group.id`; two queries of one group do not share partitions out, as in Spark's Kafka source",
    ),
    KafkaOption(name="groupIdPrefix", side="source", here="nothing: a query without `group.id` has no group"),
    KafkaOption(
        name="includeHeaders",
        side="both",
        here="nothing: `headers` is a column of topics of Kafka's record shape, and other topics have what columns they like",
    ),
    KafkaOption(
        name="maxRecordsPerPartition",
        side="source",
        here="nothing: tasks are cut by files and rows; `minPartitions` asks for more of them",
    ),
    KafkaOption(
        name="kafkaConsumer.pollTimeoutMs",
        side="source",
        here="nothing: tasks read files, no consumer polls; what a request may take is the store driver's own (`storage.<name>`)",
    ),
    KafkaOption(
        name="fetchOffset.numRetries",
        side="source",
        here="nothing: reads are repeated until `default.api.timeout.ms` (`TXLOG_CONFIG`)",
    ),
    KafkaOption(
        name="fetchOffset.retryIntervalMs",
        side="source",
        here="nothing: `retry.backoff.ms` and `retry.backoff.max.ms` (`TXLOG_CONFIG`)",
    ),
    KafkaOption(
        name="kafka.transactional.id",
        side="sink",
        here="`transactional.id`; Spark's Kafka sink takes none, and is at least once",
    ),
    KafkaOption(
        name="kafka.*",
        side="both",
        here="a setting of Kafka's consumer or producer; where it has a meaning here, the setting of the same name without `kafka.`, in `TXLOG_CONFIG`; an unknown one is an error",
    ),
    KafkaOption(
        name="spark.kafka.*.cache.*",
        side="both",
        here="nothing: no connections are kept",
    ),
    KafkaOption(
        name="spark.kafka.clusters.*",
        side="both",
        here="nothing: who may read and write is the object store's to say",
    ),
)


def _side(calls: tuple[Call, ...]) -> str:
    return "source" if set(calls) <= set(_READS) else "sink"


def _calls(calls: tuple[Call, ...]) -> str:
    return "all" if calls == _ALL else ", ".join(calls)


def _default(text: str) -> str:
    # What is written so in an option, or a sentence about it.
    return text if not text or " " in text else f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
