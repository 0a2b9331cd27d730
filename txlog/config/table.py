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

ASSIGNOR_NAMES = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""The values of partition.assignment.strategy; `txlog.core.assignors` has a function for each."""
DEFAULT_ISOLATION: IsolationLevel = "read_committed"
MAX_INLINE_BYTES = 3 * MIB
"""Limit of inline rows in a commit object of 4 MiB (PROTOCOL.md, W5). The record itself needs the rest."""


def _table(*keys: ConfigKey) -> dict[str, ConfigKey]:
    return {key.name: key for key in keys}


_ACTORS: frozenset[Scope] = frozenset({"client", "producer", "consumer"})
_CALLERS: frozenset[Scope] = frozenset({"client", "consumer"})
_PRODUCER: frozenset[Scope] = frozenset({"producer"})
_CONSUMER: frozenset[Scope] = frozenset({"consumer"})
_GROUPS: frozenset[Scope] = frozenset({"producer", "consumer"})
_TOPIC: frozenset[Scope] = frozenset({"topic"})
_ROWS: frozenset[Scope] = frozenset({"producer", "topic"})
_STORE: frozenset[Scope] = frozenset({"store"})

COMPACTED_SEGMENT_MS = DAY_MS
"""The default of `segment.ms` in a topic with `cleanup.policy=compact`."""

KEYS: dict[str, ConfigKey] = _table(
    ConfigKey("client.id", "str", _ACTORS, "",
        doc="A name for this client, shown where members and instances are listed."),
    ConfigKey("default.api.timeout.ms", "int", _CALLERS, MINUTE_MS, minimum=0, maximum=INT32_MAX,
        doc="Longest time that a call may take if it is given no other time limit."),
    ConfigKey("metadata.max.age.ms", "int", _ACTORS, 5 * MINUTE_MS, minimum=0, maximum=INT64_MAX,
        doc="After this time topics, their partitions and settings, and listings are looked up again."),
    ConfigKey("retries", "int", _ACTORS, INT32_MAX, minimum=0, maximum=INT32_MAX,
        doc="How often a lost slot or a failed request is tried again; the call's time-out usually ends it first."),
    ConfigKey("retry.backoff.ms", "int", _ACTORS, 100, minimum=0, maximum=INT64_MAX,
        doc="Pause before the first retry; it doubles with each further one."),
    ConfigKey("retry.backoff.max.ms", "int", _ACTORS, SECOND_MS, minimum=0, maximum=INT64_MAX,
        doc="Longest pause between two retries."),
    ConfigKey("transactional.id", "str", _PRODUCER, None, minimum=1,
        doc="The producer's stable name: it fences older instances and finishes or aborts what they left. Without "
            "it there are no transactions."),
    ConfigKey("transaction.timeout.ms", "int", _PRODUCER, MINUTE_MS, minimum=1, maximum=INT32_MAX,
        error=InvalidTxnTimeoutError,
        doc="Any client may abort a transaction that is open for longer than this."),
    ConfigKey("transaction.max.timeout.ms", "int", _PRODUCER, 15 * MINUTE_MS, minimum=1, maximum=INT32_MAX,
        doc="Largest value of transaction.timeout.ms: a dead producer can block readers for this long."),
    ConfigKey("staged", "bool", _PRODUCER, None,
        doc="Whether rows of a transaction enter the log at the decision to commit (true), or as they are sent "
            "(false). If it is not given, a small transaction waits for its commit, and a larger one is sent."),
    ConfigKey("linger.ms", "int", _PRODUCER, 5, minimum=0, maximum=INT64_MAX,
        doc="How long a batch waits for more rows before it is sent."),
    ConfigKey("batch.size", "int", _PRODUCER, MIB, minimum=0, maximum=INT32_MAX,
        doc="A batch of this many bytes is sent without waiting. A larger table is one batch all the same.",
        kafka_default="16384: requests to an object store cost far more than a broker's"),
    ConfigKey("max.block.ms", "int", _PRODUCER, MINUTE_MS, minimum=0, maximum=INT64_MAX,
        doc="Longest time that a producer's transaction calls and a blocked send may take."),
    ConfigKey("delivery.timeout.ms", "int", _PRODUCER, 2 * MINUTE_MS, minimum=0, maximum=INT32_MAX,
        doc="Longest time from send to success or failure of a batch."),
    ConfigKey("group.id", "str", _CONSUMER, None, minimum=1,
        doc="The consumer group whose committed offsets this consumer reads and writes; needed to subscribe or "
            "commit."),
    ConfigKey("group.instance.id", "str", _CONSUMER, None, minimum=1,
        doc="A stable name of this member of the group. A consumer that comes back with it within session.timeout.ms "
            "takes over the partitions of the consumer before, without a rebalance."),
    ConfigKey("partition.assignment.strategy", "list", _CONSUMER, ("range", "cooperative-sticky"),
        items=", ".join(ASSIGNOR_NAMES),
        doc="How the members of a group share partitions, the preferred way first. All members "
            "must have one in common."),
    ConfigKey("session.timeout.ms", "int", _CONSUMER, 45 * SECOND_MS, minimum=1, maximum=INT32_MAX,
        doc="A member that shows no sign of life for this long loses its partitions to the other members."),
    ConfigKey("heartbeat.interval.ms", "int", _CONSUMER, 15 * SECOND_MS, minimum=1, maximum=INT32_MAX,
        doc="A member that wrote nothing else for this long writes a heartbeat. It must be less "
            "than session.timeout.ms.",
        kafka_default="3000: a heartbeat is a request that the store bills"),
    ConfigKey("max.poll.interval.ms", "int", _CONSUMER, 5 * MINUTE_MS, minimum=1, maximum=INT32_MAX,
        doc="A member that does not poll for this long leaves its group."),
    ConfigKey("allow.mixed.groups", "bool", _GROUPS, False,
        doc="Whether members that share partitions, and a job that reads all of its partitions itself, such as a "
            "Spark query, may commit offsets of one group. They then read the same rows."),
    ConfigKey("isolation.level", "choice", _CONSUMER, DEFAULT_ISOLATION, choices=get_args(IsolationLevel),
        doc="Whether rows of open and aborted transactions are hidden or shown.",
        kafka_default="read_uncommitted: users of a transactional log expect only committed rows"),
    ConfigKey("auto.offset.reset", "choice", _CONSUMER, "latest", choices=("earliest", "latest", "none"),
        doc="Where to begin when there is no committed offset, or it is out of range; none makes it an error."),
    ConfigKey("enable.auto.commit", "bool", _CONSUMER, True,
        doc="Whether poll() regularly commits the offsets of the rows that the poll before it returned."),
    ConfigKey("auto.commit.interval.ms", "int", _CONSUMER, 5 * SECOND_MS, minimum=0, maximum=INT32_MAX,
        doc="How often enable.auto.commit commits."),
    ConfigKey("max.poll.records", "int", _CONSUMER, 65_536, minimum=1, maximum=INT32_MAX,
        doc="The most rows that one poll returns.",
        kafka_default="500: a poll returns one columnar batch, which is slow to read in small pieces"),
    ConfigKey("fetch.max.wait.ms", "int", _CONSUMER, 500, minimum=0, maximum=INT32_MAX,
        doc="Longest pause between two looks at a log that has nothing new. The pauses begin at 1 ms and grow."),
    ConfigKey("key.columns", "list", _TOPIC, (),
        doc="The columns whose value decides a row's partition, and which row is the newest of its key when "
            "compacting."),
    ConfigKey("cleanup.policy", "list", _TOPIC, ("delete",), choices=("compact", "delete"),
        doc="How old rows are removed: delete them by retention.ms and retention.bytes, keep the latest of each "
            "key, or both."),
    ConfigKey("retention.ms", "int", _TOPIC, -1, minimum=-1, maximum=INT64_MAX,
        doc="Rows older than this may be deleted; -1 keeps them.",
        kafka_default="604800000, 7 days: tables are kept, and rows are deleted only if the user asks for it"),
    ConfigKey("retention.bytes", "int", _TOPIC, -1, minimum=-1, maximum=INT64_MAX,
        doc="The oldest rows of a partition larger than this may be deleted; -1 keeps them."),
    ConfigKey("retention.hold.groups", "list", _TOPIC, (), items="group ids",
        doc="Consumer groups whose unread rows stay, however old or many they are, until they have committed an "
            "offset beyond them or retention.hold.max.ms is over."),
    ConfigKey("retention.hold.max.ms", "int", _TOPIC, 7 * DAY_MS, minimum=-1, maximum=INT64_MAX,
        doc="A group of retention.hold.groups that has not committed for this long counts as dead and holds no "
            "rows; -1 waits forever."),
    ConfigKey("delete.retention.ms", "int", _TOPIC, DAY_MS, minimum=0, maximum=INT64_MAX,
        doc="How long the tombstone of a key stays when compacting, for readers that are behind."),
    ConfigKey("min.compaction.lag.ms", "int", _TOPIC, 0, minimum=0, maximum=INT64_MAX,
        doc="Rows younger than this are not compacted."),
    ConfigKey("min.cleanable.dirty.ratio", "float", _TOPIC, 0.5, minimum=0, maximum=1,
        doc="A log is compacted when at least this share of its bytes was not compacted yet."),
    ConfigKey("publish.formats", "list", _TOPIC, (), choices=("delta", "iceberg"),
        doc="The formats in which the topic's files are also a table for other engines; see txlog publish."),
    ConfigKey("publish.max.lag.ms", "int", _TOPIC, MINUTE_MS, minimum=0, maximum=INT64_MAX,
        doc="Rows inside commit records are written to a file, so that they can be published, when they are older "
            "than this."),
    ConfigKey("publish.retention.ms", "int", _TOPIC, 7 * DAY_MS, minimum=0, maximum=INT64_MAX,
        doc="How long vacuum keeps the files of a published version after the next one has replaced it."),
    ConfigKey("publish.rows", "choice", _TOPIC, "all", choices=("all", "latest"),
        doc="Whether published tables have all rows, or of each key the newest row that is no tombstone."),
    ConfigKey("publish.delete.mode", "choice", _TOPIC, "merge-on-read", choices=("copy-on-write", "merge-on-read"),
        doc="With publish.rows=latest: whether a file of which some rows are not the newest ones is named with a list "
            "of these (a deletion vector of Delta, position deletes of Iceberg), or its other rows are copied, for "
            "engines that do not read such lists."),
    ConfigKey("publish.catalog", "str", _TOPIC, None, minimum=1,
        doc="The catalog, by its name in the configuration of pyiceberg, in which the topic is an Iceberg table, too."),
    ConfigKey("publish.table", "str", _TOPIC, None, minimum=1,
        doc="The name of that table, with its namespace, as sales.orders; the default is txlog.<topic>."),
    ConfigKey("publish.files", "choice", _TOPIC, "copy", choices=("copy", "log"),
        doc="Whether that table names copies of the topic's files, which programs may delete with the table, or these "
            "files themselves."),
    ConfigKey("segment.batches", "int", _TOPIC, 100, minimum=1, maximum=INT32_MAX,
        doc="A segment of this many batches is closed: opening a partition costs a request for each batch after it."),
    ConfigKey("segment.bytes", "int", _TOPIC, GIB, minimum=14, maximum=INT32_MAX,
        doc="A segment of this many bytes is closed."),
    ConfigKey("segment.ms", "int", _TOPIC, 7 * DAY_MS, minimum=1, maximum=INT64_MAX,
        doc="A segment that began this long ago is closed by the next append. In a topic with cleanup.policy=compact "
            "the default is 86400000, a day: only closed segments are compacted."),
    ConfigKey("max.message.bytes", "int", _TOPIC, MIB, minimum=0, maximum=MAX_INLINE_BYTES,
        doc="The most bytes of rows that a commit record may carry.",
        kafka_default="1048588, for every batch: here it holds for rows inside a commit record only, rows in "
                      "Parquet files have no such limit"),
    ConfigKey("inline.max.bytes", "int", _ROWS, 64 * KIB, minimum=0, maximum=MAX_INLINE_BYTES,
        doc="Batches smaller than this are stored in their commit record, with one request; larger ones are first "
            "written as Parquet files. 0 always writes files."),
    ConfigKey("compression.type", "choice", _ROWS, "zstd", choices=("zstd", "lz4", "snappy", "gzip", "none"),
        doc="How the Parquet files that txlog writes are compressed. Rows inside a commit record are compressed "
            "with zstd, or not at all with none.",
        kafka_default="none: rows are Parquet pages, which compress well and are read far more often than written"),
    ConfigKey("delete.grace.ms", "int", _STORE, DAY_MS, minimum=10 * SECOND_MS, maximum=INT64_MAX,
        doc="How long objects stay after they were superseded. A process that slept for a tenth of it must read the "
            "partition again.",
        kafka_default="60000 (file.delete.delay.ms): here it is also how long a paused writer or reader may sleep "
                      "before it has to look again"),
    ConfigKey("producer.id.expiration.ms", "int", _STORE, DAY_MS, minimum=1, maximum=INT32_MAX,
        doc="A partition forgets a producer that has no open transaction and has not written to it for this long. "
            "Longer than any delivery.timeout.ms and transaction.timeout.ms."),
    ConfigKey("transactional.id.expiration.ms", "int", _STORE, 7 * DAY_MS, minimum=1, maximum=INT32_MAX,
        doc="A transactional.id without a transaction for this long is removed, unless it holds a txn.version."),
    ConfigKey("transaction.state.log.num.partitions", "int", _STORE, 50, minimum=1, maximum=10_000,
        doc="Partitions of the table of transactions."),
    ConfigKey("offsets.topic.num.partitions", "int", _STORE, 50, minimum=1, maximum=10_000,
        doc="Partitions of the table of committed offsets."),
)  # fmt: skip


def keys_of(scope: Scope) -> tuple[ConfigKey, ...]:
    """Return the keys of `scope`, in the table's order."""
    return tuple(key for key in KEYS.values() if scope in key.scopes)
