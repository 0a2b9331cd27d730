"""Which settings exist, with which default and range?

Names, defaults and ranges are Kafka's (kafka 4.x documentation). Where a default differs, `kafka_default` gives the
reason.
"""

from __future__ import annotations

from typing import get_args

from txlog.config.key import INT32_MAX, INT64_MAX, ConfigKey, IsolationLevel, Scope
from txlog.errors import InvalidTxnTimeoutError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

DEFAULT_ISOLATION: IsolationLevel = "read_committed"
MAX_INLINE_BYTES = 3 * MIB
"""Limit of inline rows in a commit object of 4 MiB (PROTOCOL.md, W5). The record itself needs the rest."""


def _table(*keys: ConfigKey) -> dict[str, ConfigKey]:
    return {key.name: key for key in keys}


_ACTORS: frozenset[Scope] = frozenset({"client", "producer", "consumer"})
_CALLERS: frozenset[Scope] = frozenset({"client", "consumer"})
_PRODUCER: frozenset[Scope] = frozenset({"producer"})
_CONSUMER: frozenset[Scope] = frozenset({"consumer"})
_TOPIC: frozenset[Scope] = frozenset({"topic"})
_ROWS: frozenset[Scope] = frozenset({"producer", "topic"})
_STORE: frozenset[Scope] = frozenset({"store"})

KEYS: dict[str, ConfigKey] = _table(
    ConfigKey(
        name="client.id",
        kind="str",
        default="",
        scopes=_ACTORS,
        doc="A name for this client, shown where members and instances are listed.",
    ),
    ConfigKey(
        name="default.api.timeout.ms",
        kind="int",
        default=MINUTE_MS,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_CALLERS,
        doc="Longest time that a call may take if it is given no other time limit.",
    ),
    ConfigKey(
        name="metadata.max.age.ms",
        kind="int",
        default=5 * MINUTE_MS,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_ACTORS,
        doc="After this time topics, their partitions and settings, and listings are looked up again.",
    ),
    ConfigKey(
        name="retries",
        kind="int",
        default=INT32_MAX,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_ACTORS,
        doc="How often a lost slot or a failed request is tried again; the call's time-out usually ends it first.",
    ),
    ConfigKey(
        name="retry.backoff.ms",
        kind="int",
        default=100,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_ACTORS,
        doc="Pause before the first retry; it doubles with each further one.",
    ),
    ConfigKey(
        name="retry.backoff.max.ms",
        kind="int",
        default=SECOND_MS,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_ACTORS,
        doc="Longest pause between two retries.",
    ),
    ConfigKey(
        name="transactional.id",
        kind="str",
        default=None,
        minimum=1,
        scopes=_PRODUCER,
        doc="The producer's stable name: it fences older instances and finishes or aborts what they left. "
        "Without it there are no transactions.",
    ),
    ConfigKey(
        name="transaction.timeout.ms",
        kind="int",
        default=MINUTE_MS,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_PRODUCER,
        error=InvalidTxnTimeoutError,
        doc="Any client may abort a transaction that is open for longer than this.",
    ),
    ConfigKey(
        name="transaction.max.timeout.ms",
        kind="int",
        default=15 * MINUTE_MS,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_PRODUCER,
        doc="Largest value of transaction.timeout.ms: a dead producer can block readers for this long.",
    ),
    ConfigKey(
        name="staged",
        kind="bool",
        default=None,
        scopes=_PRODUCER,
        doc="Whether rows of a transaction enter the log at the decision to commit (true), or as they are sent (false). "
        "If it is not given, a small transaction waits for its commit, and a larger one is sent.",
    ),
    ConfigKey(
        name="linger.ms",
        kind="int",
        default=5,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_PRODUCER,
        kafka_default="0 before Kafka 4.0, 5 since: an append costs a request, so waiting a little saves requests",
        doc="How long a batch waits for more rows before it is sent.",
    ),
    ConfigKey(
        name="batch.size",
        kind="int",
        default=MIB,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_PRODUCER,
        kafka_default="16384: requests to an object store cost far more than a broker's",
        doc="A batch of this many bytes is sent without waiting. A larger table is one batch all the same.",
    ),
    ConfigKey(
        name="max.block.ms",
        kind="int",
        default=MINUTE_MS,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_PRODUCER,
        doc="Longest time that a producer's transaction calls and a blocked send may take.",
    ),
    ConfigKey(
        name="delivery.timeout.ms",
        kind="int",
        default=2 * MINUTE_MS,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_PRODUCER,
        doc="Longest time from send to success or failure of a batch.",
    ),
    ConfigKey(
        name="group.id",
        kind="str",
        default=None,
        minimum=1,
        scopes=_CONSUMER,
        doc="The consumer group whose committed offsets this consumer reads and writes; needed to subscribe or commit.",
    ),
    ConfigKey(
        name="isolation.level",
        kind="choice",
        default=DEFAULT_ISOLATION,
        choices=get_args(IsolationLevel),
        scopes=_CONSUMER,
        kafka_default="read_uncommitted: users of a transactional log expect only committed rows",
        doc="Whether rows of open and aborted transactions are hidden or shown.",
    ),
    ConfigKey(
        name="auto.offset.reset",
        kind="choice",
        default="latest",
        choices=("earliest", "latest", "none"),
        scopes=_CONSUMER,
        doc="Where to begin when there is no committed offset, or it is out of range; none makes it an error.",
    ),
    ConfigKey(
        name="enable.auto.commit",
        kind="bool",
        default=True,
        scopes=_CONSUMER,
        doc="Whether poll() regularly commits the offsets of the rows that the poll before it returned.",
    ),
    ConfigKey(
        name="auto.commit.interval.ms",
        kind="int",
        default=5 * SECOND_MS,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_CONSUMER,
        doc="How often enable.auto.commit commits.",
    ),
    ConfigKey(
        name="max.poll.records",
        kind="int",
        default=65_536,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_CONSUMER,
        kafka_default="500: a poll returns one columnar batch, which is slow to read in small pieces",
        doc="The most rows that one poll returns.",
    ),
    ConfigKey(
        name="fetch.max.wait.ms",
        kind="int",
        default=500,
        minimum=0,
        maximum=INT32_MAX,
        scopes=_CONSUMER,
        doc="Longest pause between two looks at a log that has nothing new. The pauses begin at 1 ms and grow.",
    ),
    ConfigKey(
        name="key.columns",
        kind="list",
        default=(),
        scopes=_TOPIC,
        doc="The columns whose value decides a row's partition, and which row is the newest of its key when compacting.",
    ),
    ConfigKey(
        name="cleanup.policy",
        kind="list",
        default=("delete",),
        choices=("compact", "delete"),
        scopes=_TOPIC,
        doc="How old rows are removed: delete them by retention.ms and retention.bytes, keep the latest of each key, "
        "or both.",
    ),
    ConfigKey(
        name="retention.ms",
        kind="int",
        default=-1,
        minimum=-1,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        kafka_default="604800000, 7 days: tables are kept, and rows are deleted only if the user asks for it",
        doc="Rows older than this may be deleted; -1 keeps them.",
    ),
    ConfigKey(
        name="retention.bytes",
        kind="int",
        default=-1,
        minimum=-1,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        doc="The oldest rows of a partition larger than this may be deleted; -1 keeps them.",
    ),
    ConfigKey(
        name="retention.hold.groups",
        kind="list",
        default=(),
        scopes=_TOPIC,
        items="group ids",
        doc="Consumer groups whose unread rows stay, however old or many they are, until they have committed an offset "
        "beyond them or retention.hold.max.ms is over.",
    ),
    ConfigKey(
        name="retention.hold.max.ms",
        kind="int",
        default=7 * DAY_MS,
        minimum=-1,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        doc="A group of retention.hold.groups that has not committed for this long counts as dead and holds no rows; -1 "
        "waits forever.",
    ),
    ConfigKey(
        name="delete.retention.ms",
        kind="int",
        default=DAY_MS,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        doc="How long the tombstone of a key stays when compacting, for readers that are behind.",
    ),
    ConfigKey(
        name="min.compaction.lag.ms",
        kind="int",
        default=0,
        minimum=0,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        doc="Rows younger than this are not compacted.",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        kind="float",
        default=0.5,
        minimum=0,
        maximum=1,
        scopes=_TOPIC,
        doc="A log is compacted when at least this share of its bytes was not compacted yet.",
    ),
    ConfigKey(
        name="segment.batches",
        kind="int",
        default=100,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_TOPIC,
        doc="A segment of this many batches is closed: opening a partition costs a request for each batch after it.",
    ),
    ConfigKey(
        name="segment.bytes",
        kind="int",
        default=GIB,
        minimum=14,
        maximum=INT32_MAX,
        scopes=_TOPIC,
        doc="A segment of this many bytes is closed.",
    ),
    ConfigKey(
        name="segment.ms",
        kind="int",
        default=7 * DAY_MS,
        minimum=1,
        maximum=INT64_MAX,
        scopes=_TOPIC,
        doc="A segment that began this long ago is closed by the next append.",
    ),
    ConfigKey(
        name="max.message.bytes",
        kind="int",
        default=MIB,
        minimum=0,
        maximum=MAX_INLINE_BYTES,
        scopes=_TOPIC,
        kafka_default="1048588, for every batch: here it holds for rows inside a commit record only, "
        "rows in Parquet files have no such limit",
        doc="The most bytes of rows that a commit record may carry.",
    ),
    ConfigKey(
        name="inline.max.bytes",
        kind="int",
        default=64 * KIB,
        minimum=0,
        maximum=MAX_INLINE_BYTES,
        scopes=_ROWS,
        doc="Batches smaller than this are stored in their commit record, with one request; larger ones are first "
        "written as Parquet files. 0 always writes files.",
    ),
    ConfigKey(
        name="compression.type",
        kind="choice",
        default="zstd",
        choices=("zstd", "lz4", "snappy", "gzip", "none"),
        scopes=_ROWS,
        kafka_default="none: rows are Parquet pages, which compress well and are read far more often than written",
        doc="How the Parquet files that txlog writes are compressed. Rows inside a commit record are compressed with zstd, "
        "or not at all with none.",
    ),
    ConfigKey(
        name="delete.grace.ms",
        kind="int",
        default=DAY_MS,
        minimum=10 * SECOND_MS,
        maximum=INT64_MAX,
        scopes=_STORE,
        kafka_default="60000 (file.delete.delay.ms): here it is also how long a paused writer or reader may sleep "
        "before it has to look again",
        doc="How long objects stay after they were superseded. A process that slept for a tenth of it "
        "must read the partition again.",
    ),
    ConfigKey(
        name="producer.id.expiration.ms",
        kind="int",
        default=DAY_MS,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_STORE,
        doc="A partition forgets a producer that has no open transaction and has not written to it for this long. "
        "Longer than any delivery.timeout.ms and transaction.timeout.ms.",
    ),
    ConfigKey(
        name="transactional.id.expiration.ms",
        kind="int",
        default=7 * DAY_MS,
        minimum=1,
        maximum=INT32_MAX,
        scopes=_STORE,
        doc="A transactional.id without a transaction for this long is removed, unless it holds a txn.version.",
    ),
    ConfigKey(
        name="transaction.state.log.num.partitions",
        kind="int",
        default=50,
        minimum=1,
        maximum=10_000,
        scopes=_STORE,
        doc="Partitions of the table of transactions.",
    ),
    ConfigKey(
        name="offsets.topic.num.partitions",
        kind="int",
        default=50,
        minimum=1,
        maximum=10_000,
        scopes=_STORE,
        doc="Partitions of the table of committed offsets.",
    ),
)


def keys_of(scope: Scope) -> tuple[ConfigKey, ...]:
    """Return the keys of `scope`, in the table's order."""
    return tuple(key for key in KEYS.values() if scope in key.scopes)


SCOPE_DOCS: dict[Scope, str] = {
    "client": "An opened store: topics, administration.",
    "producer": "Producers, and Spark's writes.",
    "consumer": "Consumers.",
    "topic": "Topics, unless their own configuration has the setting.",
    "store": "Constants of a store. They are fixed when it is made, at its first topic, and ignored afterwards.",
}

NOT_NEEDED = {
    "acks": "a batch that is published is as durable as the store",
    "bootstrap.servers": "there are no servers, only the store's URL",
    "enable.idempotence": "every producer is idempotent",
    "key.deserializer": "rows are columns with types",
    "key.serializer": "rows are columns with types",
    "max.in.flight.requests.per.connection": "one batch a partition is in flight",
    "message.timestamp.type": "`_timestamp` is always the time of the append",
    "min.insync.replicas": "replication belongs to the store",
    "num.partitions": "give the number of partitions when creating the topic",
    "replication.factor": "replication belongs to the store",
    "value.deserializer": "rows are columns with types",
    "value.serializer": "rows are columns with types",
}
"""Keys that people bring from Kafka, and why txlog does not need them."""
