"""Which settings exist, which values may they have, and which value counts when several places set them?

The table `KEYS` has name, kind, default, range and sentence of each. The `...Config` classes are its typed views, one
per scope. `parse` takes layers of dotted names; the first layer that has a key counts. Values are checked once, here.
Unknown keys are refused, and the error names the most similar known one. `conf/txlog.toml` is this table, rendered.

Names, defaults and ranges are Kafka's (kafka 4.x documentation). Where a default differs, `kafka_default` gives the
reason. This module has only values: the client reads files and the environment.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeAlias, cast, get_args

from txlog.errors import InvalidConfigurationError, InvalidRequestError, InvalidTxnTimeoutError
from txlog.text import nearest

Scope: TypeAlias = Literal["client", "producer", "consumer", "topic", "store"]
Kind: TypeAlias = Literal["int", "bool", "str", "float", "choice", "list"]
Value: TypeAlias = int | bool | str | float | tuple[str, ...] | None
Layer: TypeAlias = Mapping[str, object]
IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]

SCOPES: tuple[Scope, ...] = get_args(Scope)

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One setting. It has no default if `default` is empty (None); `minimum` of text is its least length."""

    name: str
    kind: Kind
    default: Value
    scopes: frozenset[Scope]
    doc: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    items: str = "column names"
    """What the items of a list without choices are, as text."""
    kafka_default: str | None = None
    """Kafka's default and why txlog's differs; None if they are the same or Kafka has no such key."""
    error: type[InvalidRequestError] = InvalidConfigurationError

    @property
    def field(self) -> str:
        """Return the name of the attribute in the `...Config` classes."""
        return self.name.replace(".", "_")

    @property
    def expected(self) -> str:
        """Return what a value must be, as text."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "list":
            return "a comma-separated list of " + (", ".join(self.choices) if self.choices else self.items)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "text that is not empty" if self.minimum else "text"
        noun = "an integer" if self.kind == "int" else "a number"
        if self.maximum is None or self.maximum in (INT32_MAX, INT64_MAX):
            return f"{noun} of at least {self.minimum}"
        return f"{noun} from {self.minimum} to {self.maximum}"

    @property
    def default_text(self) -> str:
        """Return the default as text."""
        return "none" if self.default is None else self.text(self.default) or "empty"

    def parse(self, value: object) -> Value:
        """Return `value` from Python, TOML or text as this key's type. Raises `error`, naming key, value and range."""
        parsed = _PARSERS[self.kind](self, value)
        if parsed is None:
            raise self.error(f"{self.name} = {_shown(value)}: expected {self.expected} (default {self.default_text})")
        return parsed

    def text(self, value: Value) -> str:
        """Return a `value` from `parse` as text that `parse` reads back."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return "" if value is None else str(value)


class _Config:
    """The settings of one scope, with a field for each of its keys."""

    __slots__ = ()
    scope: ClassVar[Scope]

    @classmethod
    def parse(cls, *layers: Layer) -> Self:
        """Return the settings of `layers` over the defaults; the first layer that has a key counts.

        A value of None counts as not given. Every layer is checked completely, also where a higher one counts. Raises
        InvalidConfigurationError (or the key's own error) for a key that this scope does not know, a value of the wrong
        kind or out of range.
        """
        checked = [_check_layer(layer, cls.scope) for layer in layers]
        values: dict[str, Any] = {}
        for key in keys_of(cls.scope):
            values[key.field] = next((layer[key.name] for layer in checked if key.name in layer), key.default)
        config = cls(**values)
        config._check()
        return config

    def _check(self) -> None:
        """Raise if the values contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(_Config):
    """Settings of an opened store: its administrative calls."""

    scope: ClassVar[Scope] = "client"

    client_id: str
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(_Config):
    """Settings of a producer."""

    scope: ClassVar[Scope] = "producer"

    client_id: str
    metadata_max_age_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    transactional_id: str | None
    transaction_timeout_ms: int
    transaction_max_timeout_ms: int
    staged: bool
    linger_ms: int
    batch_size: int
    max_block_ms: int
    delivery_timeout_ms: int
    inline_max_bytes: int
    compression_type: str

    def _check(self) -> None:
        if self.transaction_timeout_ms > self.transaction_max_timeout_ms:
            raise InvalidTxnTimeoutError(
                f"transaction.timeout.ms = {self.transaction_timeout_ms} is beyond transaction.max.timeout.ms = "
                f"{self.transaction_max_timeout_ms}; lower the one or raise the other"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(_Config):
    """Settings of a consumer."""

    scope: ClassVar[Scope] = "consumer"

    client_id: str
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    group_id: str | None
    isolation_level: IsolationLevel
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    fetch_max_wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(_Config):
    """Settings of a topic, kept in its metadata."""

    scope: ClassVar[Scope] = "topic"

    key_columns: tuple[str, ...]
    cleanup_policy: tuple[str, ...]
    retention_ms: int
    retention_bytes: int
    retention_hold_groups: tuple[str, ...]
    retention_hold_max_ms: int
    delete_retention_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    segment_batches: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    inline_max_bytes: int
    compression_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Config):
    """Constants of a store. They are fixed when it is made and never change (`txlog.json`)."""

    scope: ClassVar[Scope] = "store"

    delete_grace_ms: int
    producer_id_expiration_ms: int
    transactional_id_expiration_ms: int
    transaction_state_log_num_partitions: int
    offsets_topic_num_partitions: int


def keys_of(scope: Scope) -> tuple[ConfigKey, ...]:
    """Return the keys of `scope`, in the table's order."""
    return tuple(key for key in KEYS.values() if scope in key.scopes)


def restrict(layer: Layer, scope: Scope) -> dict[str, object]:
    """Return the part of `layer` that `scope` knows.

    For example, a topic's configuration can be a layer of a producer's.
    """
    return {name: value for name, value in layer.items() if name in KEYS and scope in KEYS[name].scopes}


def parse_isolation(text: str) -> IsolationLevel:
    """Return the isolation level that `text` names. Raises InvalidConfigurationError."""
    return cast(IsolationLevel, KEYS["isolation.level"].parse(text))


def check_topic_config(config: Layer) -> dict[str, str]:
    """Return `config` as text for `TopicMetadata.config`: only given settings, each value in its one spelling.

    Raises InvalidConfigurationError as `TopicConfig.parse` does.
    """
    return {name: KEYS[name].text(value) for name, value in _check_layer(config, "topic").items()}


def parse_document(document: Layer) -> dict[Scope, dict[str, Value]]:
    """Return the layers of a configuration file by scope, with checked values; a missing scope is empty.

    `document` is what a TOML parser returns: a table per scope, as in conf/txlog.toml. Keys may be quoted or bare
    dotted names. Raises InvalidConfigurationError for unknown tables and keys and for bad values.
    """
    layers: dict[Scope, dict[str, Value]] = {scope: {} for scope in SCOPES}
    for name, table in document.items():
        # For TOML a bare dotted key before the first table is a table: client.id is [client] with a key id.
        for key, _ in _flatten({name: table}):
            if key in KEYS:
                homes = " or ".join(f"[{scope}]" for scope in _scopes_of(key))
                raise InvalidConfigurationError(
                    f"configuration key '{key}' stands outside of its table; put it below {homes}"
                )
        if name not in SCOPES:
            raise InvalidConfigurationError(
                f"unknown configuration table [{name}]; the tables are {', '.join(SCOPES)}.{nearest(name, SCOPES)}"
            )
        if not isinstance(table, Mapping):
            raise InvalidConfigurationError(f"[{name}] must be a table of keys, found {_shown(table)}")
        layers[name] = _check_layer(dict(_flatten(table)), name)
    return layers


def render_toml() -> str:
    """Return the table as conf/txlog.toml.

    It has every key with its sentence, default and range, each line ready to be uncommented.
    """
    lines = [
        "# Settings of txlog, with their defaults. Uncomment the settings to change, and name this file in TXLOG_CONFIG or",
        "# --config. A setting that is given to a call, a client or a topic overrides the one here.",
        "#",
        "# Written by conf/generate.py from the table in txlog/config.py; edit it there.",
    ]
    for scope in SCOPES:
        lines += ["", "", f"# {_SCOPE_DOCS[scope]}", f"[{scope}]"]
        for key in keys_of(scope):
            lines += ["", *_render_key(key)]
    return "\n".join(lines) + "\n"


# -- the table --------------------------------------------------------------------------------------------------------


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
        default=False,
        scopes=_PRODUCER,
        doc="Whether rows of a transaction enter the log at the decision to commit, not as they are sent: "
        "an open transaction then does not block readers, and an aborted one leaves nothing behind.",
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
        doc="Pause between two looks at a log that has nothing new.",
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
        doc="How the Parquet files that txlog writes are compressed.",
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

_SCOPE_DOCS: dict[Scope, str] = {
    "client": "An opened store: topics, administration.",
    "producer": "Producers, and Spark's writes.",
    "consumer": "Consumers.",
    "topic": "Topics, unless their own configuration has the setting.",
    "store": "Constants of a store. They are fixed when it is made, at its first topic, and ignored afterwards.",
}

_NO_SUCH_KEY = {
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


# -- helpers ----------------------------------------------------------------------------------------------------------


def _check_layer(layer: Layer, scope: Scope) -> dict[str, Value]:
    checked: dict[str, Value] = {}
    for name, value in layer.items():
        key = KEYS.get(name)
        if key is None or scope not in key.scopes:
            raise InvalidConfigurationError(_unknown(name, scope))
        if value is not None:
            checked[name] = key.parse(value)
    return checked


def _scopes_of(name: str) -> list[Scope]:
    return [scope for scope in SCOPES if scope in KEYS[name].scopes]


def _unknown(name: str, scope: Scope) -> str:
    start = f"unknown {scope} configuration key '{name}'"
    if name in KEYS:
        return f"{start}: it is a setting of the {' and '.join(_scopes_of(name))}, not of the {scope}."
    if name in _NO_SUCH_KEY:
        return f"{start}: txlog does not need it, {_NO_SUCH_KEY[name]}."
    return start + "." + (nearest(name, [key.name for key in keys_of(scope)]) or nearest(name, KEYS))


def _flatten(table: Layer, prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _parse_int(key: ConfigKey, value: object) -> Value:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if _in_range(key, value) else None


def _parse_float(key: ConfigKey, value: object) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and _in_range(key, number) else None


def _parse_bool(key: ConfigKey, value: object) -> Value:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def _parse_str(key: ConfigKey, value: object) -> Value:
    return value if isinstance(value, str) and len(value) >= (key.minimum or 0) else None


def _parse_choice(key: ConfigKey, value: object) -> Value:
    text = value.strip().lower() if isinstance(value, str) else None
    return text if text in key.choices else None


def _parse_list(key: ConfigKey, value: object) -> Value:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return None
    items = tuple(item.strip() for item in value)
    if not all(items) or len(set(items)) != len(items) or any("," in item for item in items):
        return None
    if key.choices:
        # The order of choices has no meaning, so they have one spelling. A list without choices is not a valid value.
        return tuple(sorted(items)) if items and set(items) <= set(key.choices) else None
    return items


def _in_range(key: ConfigKey, value: float) -> bool:
    return (key.minimum is None or value >= key.minimum) and (key.maximum is None or value <= key.maximum)


_PARSERS = {
    "int": _parse_int,
    "bool": _parse_bool,
    "str": _parse_str,
    "float": _parse_float,
    "choice": _parse_choice,
    "list": _parse_list,
}


def _render_key(key: ConfigKey) -> list[str]:
    lines = [*textwrap.wrap(key.doc, 112), f"Default: {key.default_text}; {key.expected}."]
    if key.kafka_default:
        lines += textwrap.wrap(f"Kafka's default: {key.kafka_default}.", 112)
    return [*(f"# {line}" for line in lines), f"#{key.name} = {_toml(key)}"]


def _toml(key: ConfigKey) -> str:
    if key.kind in ("int", "float", "bool"):
        return key.text(key.default)
    if isinstance(key.default, tuple):
        return "[" + ", ".join(f'"{item}"' for item in key.default) + "]"
    return '"..."' if key.default is None else f'"{key.default}"'
