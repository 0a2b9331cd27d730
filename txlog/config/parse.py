"""Which value counts when several places set a setting?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

from txlog.config.kafka_settings import other_name, why_not
from txlog.config.key import SCOPES, IsolationLevel, Layer, Scope, Value
from txlog.config.table import ASSIGNOR_NAMES, KEYS, keys_of
from txlog.errors import InvalidConfigurationError, InvalidTxnTimeoutError
from txlog.text import nearest, shorten


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
class _ActorConfig(_Config):
    """The settings that clients, producers and consumers have."""

    client_id: str
    metadata_max_age_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(_ActorConfig):
    """Settings of an opened store: its administrative calls."""

    scope: ClassVar[Scope] = "client"

    default_api_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(_ActorConfig):
    """Settings of a producer."""

    scope: ClassVar[Scope] = "producer"

    transactional_id: str | None
    transaction_timeout_ms: int
    transaction_max_timeout_ms: int
    staged: bool | None
    linger_ms: int
    batch_size: int
    max_block_ms: int
    delivery_timeout_ms: int
    inline_max_bytes: int
    compression_type: str
    allow_mixed_groups: bool

    def _check(self) -> None:
        if self.transaction_timeout_ms > self.transaction_max_timeout_ms:
            raise InvalidTxnTimeoutError(
                f"transaction.timeout.ms = {self.transaction_timeout_ms} is beyond transaction.max.timeout.ms = "
                f"{self.transaction_max_timeout_ms}; lower the one or raise the other"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(_ActorConfig):
    """Settings of a consumer."""

    scope: ClassVar[Scope] = "consumer"

    default_api_timeout_ms: int
    group_id: str | None
    group_instance_id: str | None
    partition_assignment_strategy: tuple[str, ...]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    allow_mixed_groups: bool
    isolation_level: IsolationLevel
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_records: int
    fetch_max_wait_ms: int

    def _check(self) -> None:
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise InvalidConfigurationError(
                f"heartbeat.interval.ms = {self.heartbeat_interval_ms} must be less than session.timeout.ms = "
                f"{self.session_timeout_ms} (milliseconds). hint: set heartbeat.interval.ms to a third of "
                "session.timeout.ms; 45 seconds are session.timeout.ms=45000"
            )
        unknown = [name for name in self.partition_assignment_strategy if name not in ASSIGNOR_NAMES]
        if unknown or not self.partition_assignment_strategy:
            raise InvalidConfigurationError(
                f"partition.assignment.strategy = {unknown[0] if unknown else ''!r}: expected one or more of "
                f"{', '.join(ASSIGNOR_NAMES)}"
            )


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
    publish_formats: tuple[str, ...]
    publish_max_lag_ms: int
    publish_rows: Literal["all", "latest"]
    publish_delete_mode: Literal["copy-on-write", "merge-on-read"]
    publish_retention_ms: int
    publish_catalog: str | None
    publish_table: str | None
    publish_files: Literal["copy", "log"]
    segment_batches: int
    segment_bytes: int
    segment_ms: int
    max_message_bytes: int
    inline_max_bytes: int
    compression_type: str

    def _check(self) -> None:
        name = self.publish_table
        if name is not None and ("." not in name or not all(name.split("."))):
            raise InvalidConfigurationError(
                f"publish.table = {name!r} does not name a namespace and a table. "
                "hint: write both with a dot between them, as in publish.table=sales.orders"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(_Config):
    """Constants of a store. They are fixed when it is made and never change (`txlog.json`)."""

    scope: ClassVar[Scope] = "store"

    delete_grace_ms: int
    producer_id_expiration_ms: int
    transactional_id_expiration_ms: int
    transaction_state_log_num_partitions: int
    offsets_topic_num_partitions: int


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
            raise InvalidConfigurationError(f"[{name}] must be a table of keys, found {shorten(repr(table), 80)}")
        layers[name] = _check_layer(dict(_flatten(table)), name)
    return layers


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
    if (known_as := other_name(name)) is not None:
        where = "" if scope in ("client", *KEYS[known_as].scopes) else f" It belongs to the {_scopes_of(known_as)[-1]}."
        return f"{start}. Did you mean '{known_as}'?{where}"
    if (why := why_not(name)) is not None:
        return f"{start}: txlog does not need it, {why}."
    # A store is opened with settings of any scope.
    known = KEYS.values() if scope == "client" else keys_of(scope)
    similar = nearest(name, [key.name for key in known if not _is_opposite(name, key.name)])
    if not similar and scope == "store":
        similar = f" A new store takes {', '.join(key.name for key in known)}; --store and txlog.open name its URL."
    return f"{start}.{similar}"


def _is_opposite(name: str, other: str) -> bool:
    """Return whether one of the names is of a minimum and the other of a maximum."""
    words, others = (set(each.lower().replace("_", ".").split(".")) for each in (name, other))
    return words ^ others >= {"min", "max"}


def _flatten(table: Layer, prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
