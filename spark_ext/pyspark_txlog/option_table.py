"""Which options does `format("txlog")` take, and what replaces the options of Spark's Kafka source and sink?

Each `Option` below is one option: its calls, value, default, description, and how it differs from Spark's Kafka option
of the same name. A call parses its options by this table, and its code reads the value by the row: `options[WHERE]`.
Error messages list the table, and docs/kafka.md contains it. The second table, `KAFKA_OPTIONS`, covers all other
options of Spark's Kafka source and sink (Spark 4.2, "Structured Streaming + Kafka Integration Guide"): each row says
what to use instead.

If Spark's Kafka source has an option, txlog uses its name, default and JSON. Settings of a consumer or producer
(`isolation.level`, `transactional.id`) keep Kafka's dotted names, and have no default here: if the call does not give
one, the store's settings decide. PROTOCOL.md explains `isolation.level` ("Reading"), `transactional.id`
("Transactions") and `txn.version` ("Transaction versions").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import Any, Generic, Literal, TypeAlias

from pyspark_txlog import option_values as values
from pyspark_txlog.metadata_schemas import TABLES
from pyspark_txlog.option_values import Parse, T_co, Value
from txlog.engine import KEYS

Call: TypeAlias = Literal["read", "readStream", "write", "writeStream"]
Side: TypeAlias = Literal["source", "sink", "both"]

ALL_ROWS, LATEST_ROWS = "all", "latest"
"""The values of the option `rows`."""
SAME = "the same"
"""The value of `Option.kafka` if nothing differs."""
CATALOG_HINT = (
    "Tables of Spark's catalog (CREATE TABLE ... USING txlog, saveAsTable) are not supported: "
    "Spark drops their options. "
    "hint: use CREATE TEMPORARY VIEW name USING txlog OPTIONS (path '...', subscribe '...'), "
    "TxLog.create_views(), .save(path), or .start(path)"
)


@dataclass(frozen=True, slots=True)
class Option(Generic[T_co]):
    """One option of `format("txlog")`. Its value is None if the call does not give it."""

    name: str
    calls: tuple[Call, ...]
    """The calls that take it: `spark.read`, `spark.readStream`, `df.write`, `df.writeStream`."""
    value: Value[T_co]
    _: KW_ONLY
    default: str = ""
    """The value of a call that does not give the option, as the option's text; "" if there is none."""
    otherwise: str = ""
    """What counts instead if there is no default, as a phrase."""
    missing: str = ""
    """The error of a call that must give the option and does not; `{}` is Spark's method that sets the path."""
    overridden_by: tuple[str, ...] = ()
    """The options that count instead if they are given, the first of them first."""
    stream: tuple[str, Parse[T_co]] | None = None
    """Default and parser of a stream, if they differ from a batch's."""
    doc: str
    """One or two sentences."""
    kafka: str | None = None
    """How it differs from Spark's Kafka option of that name; None if Spark's Kafka has no such option."""
    native: str = ""
    """What a native scan has instead; "" if it takes the option as `spark.read` does."""


class Always(Option[T_co]):
    """An option that always has a value, because it has `default` or `missing`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class KafkaOption:
    """One option of Spark's Kafka source or sink that txlog does not have under that name."""

    name: str
    """`*` stands for any text; the first row that matches is used."""
    side: Side
    here: str
    """What to use instead, or why nothing is needed."""


def names_of(call: Call) -> tuple[str, ...]:
    """Return the options that `call` takes, in the table's order, without the pattern `storage.<name>`."""
    return tuple(option.name for option in OPTIONS if call in option.calls and not option.name.endswith(">"))


def find_option(name: str) -> Option[Any] | None:
    """Return the option of that name, in any case; None if there is none."""
    return _BY_NAME.get(name.lower())


def calls_text(option: Option[Any]) -> str:
    """Return whose option it is, for messages: `a batch read`, `a write`."""
    return next(text for text, calls in _CALLS.items() if calls == option.calls)


def kafka_option(name: str) -> KafkaOption | None:
    """Return the option of Spark's Kafka source or sink that matches `name`, if txlog has no option of that name."""
    return next((one for one in KAFKA_OPTIONS if fnmatchcase(name.lower(), one.name.lower())), None)


# -- the tables -------------------------------------------------------------------------------------------------------

_CALLS: Mapping[str, tuple[Call, ...]] = {
    "a batch read": ("read",),
    "a read of rows": ("read", "readStream"),
    "a stream": ("readStream",),
    "a batch write": ("write",),
    "a write": ("write", "writeStream"),
    "a streaming write": ("writeStream",),
    "a streaming query": ("readStream", "writeStream"),
    "every call": ("read", "readStream", "write", "writeStream"),
}
"""Whose option it is, for messages, and the calls that take it."""
_READ, _READS, _STREAM, _WRITE, _WRITES, _SINK, _STREAMS, _ALL = _CALLS.values()


def _setting(name: str, calls: tuple[Call, ...], *, otherwise: str = "{}", doc: str) -> Option[Any]:
    """Return the row of a client's setting. `{}` in `otherwise` stands for the setting and its default."""
    key = KEYS[name]
    client = "the client's setting of that name" + ("" if key.default is None else f", {key.default_text}")
    return Option(name, calls, values.setting(name), otherwise=otherwise.format(client), doc=doc)


PATH = Always(
    "path",
    _ALL,
    values.STORE,
    missing=f"where is the store? Name its folder or URL in .{{}}(...). {CATALOG_HINT}",
    doc="The folder or URL of the store; `load`, `save` and `start` set it. A store in memory is not supported, "
    "because other processes cannot see it.",
    native="the TxLog names the store",
)
STORAGE_OPTIONS = Always(
    "storageOptions",
    _ALL,
    values.STORAGE,
    default="{}",
    doc="All options of the store's driver at once. Messages never show them.",
    native="the TxLog has them",
)
STORAGE_OPTION = Option(
    "storage.<name>",
    _ALL,
    values.STORAGE_VALUE,
    doc="One option of the store's driver. It overrides the same name in `storageOptions`.",
)
SUBSCRIBE = Option(
    "subscribe",
    _READS,
    values.TOPICS,
    doc="The topics to read. Exactly one of `subscribe`, `subscribePattern`, `assign` must be given.",
    kafka="the same; if a topic does not exist, the query fails at once",
    native="name topics by .to_dfs(name, ...)",
)
SUBSCRIBE_PATTERN = Option(
    "subscribePattern",
    _READS,
    values.PATTERN,
    doc="Reads the topics whose whole name matches the expression.",
    kafka="the expression is Python's, not Java's; a running query also reads new topics that match",
)
ASSIGN = Option("assign", _READS, values.ASSIGNMENT, doc="Reads only these partitions.", kafka=SAME)
STARTING_OFFSETS = Always(
    "startingOffsets",
    _READS,
    values.STARTS,
    default="earliest",
    stream=("latest", values.offsets("latest", "earliest", "committed")),
    overridden_by=("startingTimestamp", "startingOffsetsByTimestamp"),
    doc="Where to begin. JSON must name each partition. `committed` is the committed offset of the consumer group "
    "`group.id`. A stream with a checkpoint ignores this option and continues at the checkpoint.",
    kafka="the same, and `committed`",
)
STARTING_TIMESTAMP = Option(
    "startingTimestamp",
    _READS,
    values.TIME,
    doc="Begins with the first batch appended at or after that time. It overrides the two other starting options.",
    kafka="the time is the append time in the log (Kafka's LogAppendTime), never the producer's time",
)
STARTING_OFFSETS_BY_TIMESTAMP = Option(
    "startingOffsetsByTimestamp",
    _READS,
    values.TIMES,
    overridden_by=("startingTimestamp",),
    doc="The same for each partition. It overrides `startingOffsets`.",
    kafka="the time is the append time in the log",
)
STARTING_OFFSETS_BY_TIMESTAMP_STRATEGY = Always(
    "startingOffsetsByTimestampStrategy",
    _READS,
    values.choice("error", "latest"),
    default="error",
    doc="What to do if a partition has no row at or after the requested time.",
    kafka="the same; batch reads have it too",
)
ENDING_OFFSETS = Always(
    "endingOffsets",
    _READ,
    values.ENDS,
    default="latest",
    overridden_by=("endingTimestamp", "endingOffsetsByTimestamp"),
    doc="Where to end; this offset itself is not read. With read_committed, the read ends at the last "
    "stable offset or earlier.",
    kafka=SAME,
)
ENDING_TIMESTAMP = Option(
    "endingTimestamp",
    _READ,
    values.TIME,
    doc="Ends before the first batch appended at or after that time.",
    kafka="the time is the append time in the log",
)
ENDING_OFFSETS_BY_TIMESTAMP = Option(
    "endingOffsetsByTimestamp",
    _READ,
    values.TIMES,
    overridden_by=("endingTimestamp",),
    doc="The same for each partition.",
    kafka="the time is the append time in the log",
)
GROUP_ID: Option[str] = _setting(
    "group.id",
    _READS,
    doc="The consumer group for `startingOffsets=committed`. A stream also commits its progress for "
    "this group after each batch.",
)
ALLOW_MIXED_GROUPS: Option[bool] = _setting(
    "allow.mixed.groups",
    _STREAMS,
    doc="Whether the query may commit offsets of a group whose members share partitions. They read "
    "the same rows as the query.",
)
AUTO_OFFSET_RESET: Option[str] = _setting(
    "auto.offset.reset",
    _READS,
    otherwise="the client's setting of that name, else `none`",
    doc="With `startingOffsets=committed`: where to begin in a partition for which the group has no "
    "offset. `none` raises an error.",
)
ISOLATION_LEVEL: Option[str] = _setting(
    "isolation.level", _READS, doc="Whether rows of open and aborted transactions are hidden."
)
COLUMNS = Option(
    "columns",
    _READS,
    values.COLUMNS,
    otherwise="`*`, all columns of the topic",
    doc="The columns to read, in that order. `*` means all columns of the topic. `_topic`, `_partition`, `_offset`, "
    "`_timestamp` are read only if they are named.",
)
WHERE = Option(
    "where",
    _READS,
    values.CONDITION,
    doc="Returns only rows for which the condition is true. It does not open files that cannot match by their "
    "statistics. `_partition`, `_offset`, `_timestamp` are allowed too.",
)
ROWS = Always(
    "rows",
    _READ,
    values.choice(ALL_ROWS, LATEST_ROWS),
    default=ALL_ROWS,
    doc="`latest` reads a topic with a key as a table: the newest committed row of each key, without keys whose newest "
    "row is a tombstone. `where` then chooses among these rows. It takes no option for a start or an end.",
)
METADATA = Option(
    "metadata",
    _READ,
    values.choice(*TABLES),
    doc="Reads the log's own state instead of rows. Only the options that choose topics are allowed with it.",
    native='spark.read.format("txlog").option("metadata", ...) reads the log\'s own state',
)
FAIL_ON_DATA_LOSS = Always(
    "failOnDataLoss",
    _READS,
    values.BOOLEAN,
    default="true",
    doc="If offsets were removed before the query read them: true raises an error; false continues after them and "
    "reports how many were lost.",
    kafka="the same; lost offsets are counted",
)
MIN_PARTITIONS = Option(
    "minPartitions",
    _READS,
    values.integer(1),
    doc="The minimum number of Spark tasks. There may be fewer if there are too few rows.",
    kafka="the same",
    native="Spark splits this scan itself; set spark.sql.files.minPartitionNum or maxPartitionBytes",
)
MAX_OFFSETS_PER_TRIGGER = Option(
    "maxOffsetsPerTrigger",
    _STREAM,
    values.integer(1),
    doc="The maximum number of offsets in a micro-batch, over all partitions, in proportion to what each has. "
    "It may cut a transaction.",
    kafka=SAME,
)
MIN_OFFSETS_PER_TRIGGER = Option(
    "minOffsetsPerTrigger",
    _STREAM,
    values.integer(1, ", at most maxOffsetsPerTrigger"),
    doc="Waits until this many offsets are available, but at most `maxTriggerDelay`.",
    kafka=SAME,
)
MAX_TRIGGER_DELAY = Always(
    "maxTriggerDelay",
    _STREAM,
    values.DELAY,
    default="15m",
    doc="How long `minOffsetsPerTrigger` may delay a micro-batch.",
    kafka=SAME,
)
METADATA_MAX_AGE_MS: Option[int] = _setting(
    "metadata.max.age.ms",
    _STREAM,
    doc="How often the query looks for new partitions, and for new topics that match a pattern.",
)
TOPIC = Option(
    "topic",
    _WRITES,
    values.TOPIC,
    otherwise="for each row: its column `topic`",
    doc="The topic of all rows. Without this option, the column `topic` of each row names its topic.",
    kafka="the same, but the topic must exist. If both the option and a column `topic` are given, the write fails, "
    "unless the topic has such a column. So no column is dropped silently",
)
KEY = Option(
    "key",
    _WRITES,
    values.COLUMNS,
    otherwise="the topic's `key.columns`",
    doc="The columns whose hash chooses the partition, computed as in Kafka's default partitioner. A column "
    "`partition` overrides it.",
)
TRANSACTIONAL_ID: Option[str] = _setting(
    "transactional.id",
    _WRITES,
    otherwise="{}, else a random id for this write. In a stream it is always derived from its checkpoint location",
    doc="The name by which txlog fences older writers and detects a repeated write.",
)
TXN_VERSION = Option(
    "txn.version",
    _WRITE,
    values.VERSION,
    doc="The number of the transaction. If it is not above the last one committed under `transactional.id`, the "
    "write is skipped. A stream uses its batch number.",
)
TRANSACTION_TIMEOUT_MS: Option[int] = _setting(
    "transaction.timeout.ms",
    _WRITES,
    doc="The time after which other clients may end a transaction that this writer left open.",
)
COMPRESSION_TYPE: Option[str] = _setting(
    "compression.type",
    _WRITES,
    otherwise="the topic's, else {}",
    doc="How the pages of the Parquet files are compressed.",
)
MERGE_SCHEMA = Always(
    "mergeSchema",
    _WRITES,
    values.BOOLEAN,
    default="false",
    doc="Adds the frame's columns that the topic lacks, as nullable ones at its end, before the first row is "
    "written. They stay if the write fails. Needs the option `topic`.",
)
CHECKPOINT_LOCATION = Always(
    "checkpointLocation",
    _SINK,
    values.FOLDER,
    missing="where is the query's checkpoint? Name it in .option('checkpointLocation', …): Spark does not pass "
    "spark.sql.streaming.checkpointLocation to a Python sink, and without a checkpoint txlog cannot "
    "detect repeated micro-batches",
    doc="Spark's checkpoint of the query. Set it as an option, because Spark does not pass its session-wide "
    "default to a Python sink.",
    kafka="the same, but it must be an option of the query",
)
COMMIT_SOURCE_OFFSETS = Always(
    "commitSourceOffsets",
    _SINK,
    values.BOOLEAN,
    default="true",
    doc="Whether each micro-batch's transaction includes the sources' offsets. Use false for a checkpoint that only "
    "Spark can read. False is refused if the id has committed offsets.",
)
QUERY_NAME = Option(
    "queryName", _SINK, values.TEXT, doc="The name that `queryName(...)` sets. Only Spark uses it.", kafka=SAME
)

OPTIONS: tuple[Option[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Option))
_BY_NAME = {option.name.lower(): option for option in OPTIONS}

_KAFKA: Mapping[Side, Mapping[str, str]] = {
    "source": {
        "kafka.isolation.level": "`isolation.level`; its default is read_committed, while Kafka's default is read_uncommitted",
        "kafka.group.id": "`group.id`; two queries of one group do not divide the partitions between them, "
        "as in Spark's Kafka source",
        "groupIdPrefix": "nothing: a query without `group.id` has no group",
        "maxRecordsPerPartition": "nothing: txlog divides tasks by files and rows; `minPartitions` asks for more tasks",
        "kafkaConsumer.pollTimeoutMs": "nothing: tasks read files and no consumer polls; the store's driver has its own "
        "timeouts (`storage.<name>`)",
        "fetchOffset.numRetries": "nothing: failed reads are retried until `default.api.timeout.ms` (`TXLOG_CONFIG`)",
        "fetchOffset.retryIntervalMs": "nothing: `retry.backoff.ms` and `retry.backoff.max.ms` (`TXLOG_CONFIG`)",
    },
    "sink": {
        "kafka.transactional.id": "`transactional.id`; Spark's Kafka sink does not take it, and is at least once",
    },
    "both": {
        "kafka.bootstrap.servers": "the store's path in `load(...)`, `save(...)`, `start(...)`: there are no brokers",
        "includeHeaders": "nothing: topics of Kafka's record shape have a column `headers`; other topics have "
        "the columns that you define",
        "kafka.*": "a setting of Kafka's consumer or producer. If txlog has it, set it without `kafka.` in `TXLOG_CONFIG`; "
        "otherwise it is an error",
        "spark.kafka.*.cache.*": "nothing: there are no connections to cache",
        "spark.kafka.clusters.*": "nothing: the object store controls who may read and write",
    },
}

DELTA_OPTIONS: Mapping[str, str] = {
    "txnappid": "`transactional.id`",
    "txnversion": "`txn.version`",
    "timestampasof": "`endingTimestamp`, in milliseconds since 1970, reads the rows that were appended before",
    "versionasof": "`endingOffsets`; a topic has offsets, and no versions",
    "startingversion": "`startingOffsets`; a topic has offsets, and no versions",
    "replacewhere": "nothing: a log is append-only, so a write replaces no rows",
}
"""What to use instead of options of Delta's source and sink; names in lower case."""

KAFKA_OPTIONS: tuple[KafkaOption, ...] = tuple(
    KafkaOption(name, side, here) for side, options in _KAFKA.items() for name, here in options.items()
)
