"""Which settings does this client use, and where do they come from?

The first layer that has a key wins. The layers are, in this order: the call, what the store was opened with, the
topic's own configuration, the file that `config_file` or TXLOG_CONFIG names, Kafka's defaults. `txlog.config` checks
the values; this module only reads the file and the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txlog.config import (
    COMPACTED_SEGMENT_MS,
    KEYS,
    SCOPES,
    ClientConfig,
    ConsumerConfig,
    Layer,
    ProducerConfig,
    Scope,
    StoreConfig,
    TopicConfig,
    Value,
    parse_document,
    restrict,
)
from txlog.core.append_rules import RollPolicy
from txlog.core.records import StoreConstants, TopicMetadata
from txlog.errors import InvalidConfigurationError, InvalidTxnTimeoutError
from txlog.text import any_text

CONFIG_VARIABLE = "TXLOG_CONFIG"

_TIMEOUTS = ("transaction.timeout.ms", "transaction.max.timeout.ms")
_NEED_A_GROUP = ("enable.auto.commit", "group.instance.id")
_BY_FIELD = {key.field: key.name for key in KEYS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The layers below a call, and the resulting settings of each kind of client."""

    client: Layer = field(default_factory=dict)
    """What the store was opened with: keys of any scope."""
    file: Mapping[Scope, Mapping[str, Value]] = field(default_factory=dict)
    """The configuration file, by scope."""
    path: str | None = None
    """Path of that file."""

    @classmethod
    def load(cls, config: Layer | None, config_file: str | os.PathLike[str] | None) -> Settings:
        """Check `config` and read the file: `config_file`, or else the one that TXLOG_CONFIG names, if any.

        Raises InvalidConfigurationError with the file, the key and the range.
        """
        given = dict(config or {})
        # A key that no scope has is refused by the smallest table. A value is checked by each scope that has its key.
        ClientConfig.parse({name: value for name, value in given.items() if name not in KEYS})
        file, path = _read_file(config_file)
        settings = cls(client=given, file=file, path=path)
        for scope in SCOPES:
            for name, value in restrict(given, scope).items():
                if value is not None:
                    KEYS[name].parse(value)
        return settings

    def client_config(self, call: Layer | None = None) -> ClientConfig:
        """Return the settings of administrative calls."""
        return ClientConfig.parse(call or {}, *self._below("client"))

    def producer_config(self, call: Layer) -> ProducerConfig:
        """Return the settings of a producer, and of Spark's writes."""
        try:
            return ProducerConfig.parse(call, *self._below("producer"))
        except InvalidTxnTimeoutError as error:
            # Each value is valid by itself. One of them may come from the file, which the caller does not see.
            if not any(name in self.file.get("producer", {}) for name in _TIMEOUTS):
                raise
            raise InvalidTxnTimeoutError(f"{error} (settings of {self.path} are among them)") from None

    def consumer_config(self, call: Layer, defaults: Layer | None = None) -> ConsumerConfig:
        """Return the settings of a consumer. `defaults` come before Kafka's defaults, and after everything else.

        Raises InvalidConfigurationError also for a setting of the call that has no effect without group.id.
        """
        config = ConsumerConfig.parse(call, *self._below("consumer"), defaults or {})
        for name in _NEED_A_GROUP if config.group_id is None else ():
            if (value := call.get(name)) is not None and KEYS[name].parse(value):
                raise InvalidConfigurationError(
                    f"{name} = {any_text(value)} has no effect without group.id. "
                    f"hint: give a group.id, or leave {name} out"
                )
        return config

    def topic_config(self, topic: TopicMetadata) -> TopicConfig:
        """Return the settings of a topic as this client knows them. Unknown ones are ignored (PROTOCOL.md, R4).

        Raises InvalidConfigurationError for a stored value that is invalid for its key. A writer or a maintenance job
        that used the default instead might do what the topic forbids. Readers do not call this.
        """
        try:
            layers = restrict(self.client, "topic"), restrict(topic.config, "topic"), self.file.get("topic", {})
            config = TopicConfig.parse(*layers)
            if "compact" in config.cleanup_policy:
                config = TopicConfig.parse(*layers, {"segment.ms": COMPACTED_SEGMENT_MS})
            return config
        except InvalidConfigurationError as error:
            raise InvalidConfigurationError(f"topic {topic.topic!r}: {error}") from None

    def row_config(self, call: Layer, topic: TopicMetadata) -> ProducerConfig:
        """Return a producer's settings for one topic, which may set `inline.max.bytes` and `compression.type`."""
        of_topic = restrict(topic.config, "producer")
        file_topic = restrict(self.file.get("topic", {}), "producer")
        client, file = self._below("producer")
        return ProducerConfig.parse(call, client, of_topic, file, file_topic)

    def roll_policy(self, topic: TopicMetadata) -> RollPolicy:
        """Return when segments of the topic are full. A policy from an older configuration is legal (W20)."""
        config = self.topic_config(topic)
        return RollPolicy(batches=config.segment_batches, bytes=config.segment_bytes, ms=config.segment_ms)

    def store_constants(self) -> StoreConstants:
        """Return the constants of a store that is made now."""
        config = StoreConfig.parse(*self._below("store"))
        return StoreConstants(
            delete_grace_ms=config.delete_grace_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            transaction_state_partitions=config.transaction_state_log_num_partitions,
            consumer_offsets_partitions=config.offsets_topic_num_partitions,
        )

    def _below(self, scope: Scope) -> tuple[Layer, Layer]:
        return restrict(self.client, scope), self.file.get(scope, {})


def call_layer(config: Layer | None, keywords: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of one call: `config` has dotted names, keywords are in snake case.

    For example, `linger_ms` is `linger.ms`. Raises InvalidConfigurationError if both set the same key. The parser
    checks unknown names.
    """
    layer = dict(config or {})
    for name, value in keywords.items():
        dotted = _BY_FIELD.get(name, name.replace("_", "."))
        if value is None:
            continue
        if dotted in layer:
            raise InvalidConfigurationError(f"{dotted} is given twice: as {name}= and in config")
        layer[dotted] = value
    return layer


def _read_file(config_file: str | os.PathLike[str] | None) -> tuple[dict[Scope, dict[str, Value]], str | None]:
    """Return the file's layers and its path; no layers and None if no file is named."""
    source = "config_file"
    if config_file is None:
        config_file = os.environ.get(CONFIG_VARIABLE) or None
        source = CONFIG_VARIABLE
    if config_file is None:
        return {}, None
    path = Path(config_file)
    try:
        return parse_document(tomllib.loads(path.read_text(encoding="utf-8"))), str(path)
    except OSError as error:
        raise InvalidConfigurationError(
            f"{source} names {str(path)!r}, which cannot be read: {error.strerror or error}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigurationError(f"{path}: not a TOML file: {error}") from None
    except (InvalidConfigurationError, InvalidTxnTimeoutError) as error:
        raise type(error)(f"{path}: {error}") from None
