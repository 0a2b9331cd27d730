"""Does each setting of Kafka work, or get a reason why txlog does not have it?

`kafka_settings.toml` has those of Java's clients, of topics, librdkafka, confluent-kafka-python and kafka-python.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from txlog.client.session.settings import Settings, call_layer
from txlog.config import (
    KEYS,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    StoreConfig,
    TopicConfig,
    not_needed,
    other_names,
    parse_document,
)
from txlog.config.key import SCOPES
from txlog.errors import InvalidConfigurationError, InvalidRequestError

SETTINGS = tomllib.loads((Path(__file__).parent / "kafka_settings.toml").read_text(encoding="utf-8"))
REFUSED = [name for names in SETTINGS["refused"].values() for name in names]
CONFIGS: tuple[type[Any], ...] = (ClientConfig, ProducerConfig, ConsumerConfig, TopicConfig, StoreConfig)
REASON = re.compile(r"unknown (\w+) configuration key '[^']+': txlog does not need it, (?P<why>.+)\.")


def answers(name: str) -> set[str]:
    """Return what each kind of client says of a setting, without its own name and the setting's."""
    found = set()
    for config in CONFIGS:
        with pytest.raises(InvalidConfigurationError) as raised:
            config.parse({name: 1})
        found.add(str(raised.value).replace(f"unknown {config.scope} configuration key '{name}'", ""))
        assert len(str(raised.value)) <= 300
    return found


def test_the_table_has_each_setting_once() -> None:
    names = [*SETTINGS["accepted"], *SETTINGS["other_names"], *REFUSED]
    assert len(names) == len(set(names)) == 341


def test_txlog_has_the_accepted_settings_and_refuses_none_of_its_own() -> None:
    assert set(SETTINGS["accepted"]) <= set(KEYS)
    for name in KEYS:
        refused = {str(error) for config in CONFIGS if (error := _error(config, name)) is not None}
        assert not [each for each in refused if "does not need it" in each or "Did you mean" in each], refused


def _error(config: type[Any], name: str) -> InvalidRequestError | None:
    try:
        config.parse({name: KEYS[name].default})
    except InvalidRequestError as error:
        return error
    return None


def test_every_other_setting_of_kafka_is_refused_with_a_reason_and_no_other_advice() -> None:
    given = set()
    for name in REFUSED:
        (answer,) = answers(name)
        why = REASON.fullmatch(f"unknown any configuration key '{name}'{answer}")
        assert why is not None, (name, answer)
        given.add(why["why"])
        # As keyword arguments they have no dots.
        (keyword,) = call_layer(None, {name.replace(".", "_"): 1})
        assert answers(keyword) == {answer}
    assert given == set(not_needed().values())


def test_a_reason_names_only_settings_that_txlog_has() -> None:
    for why in set(not_needed().values()):
        assert set(re.findall(r"(?<![\w.-])[a-z]+(?:\.[a-z]+)+", why)) - {"txlog.metrics"} <= set(KEYS), why


def test_another_name_is_answered_with_the_name_that_txlog_knows() -> None:
    assert other_names() == SETTINGS["other_names"]
    for name, known in other_names().items():
        scopes = [scope for scope in SCOPES if scope in KEYS[known].scopes]
        hint, elsewhere = f". Did you mean '{known}'?", f" It belongs to the {scopes[-1]}."
        assert answers(name) == {hint if each.scope in ("client", *scopes) else hint + elsewhere for each in CONFIGS}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("auto.offset.reset", "by_duration:PT1H", "one of earliest, latest, none (default latest)"),
        ("auto.offset.reset", "smallest", "one of earliest, latest, none (default latest). Did you mean 'earliest'?"),
        ("auto.offset.reset", "End", "one of earliest, latest, none (default latest). Did you mean 'latest'?"),
        ("compression.type", "producer", "one of zstd, lz4, snappy, gzip, none (default zstd)"),
        ("compression.type", "uncompressed", "one of zstd, lz4, snappy, gzip, none (default zstd)"),
        ("enable.auto.commit", "yes", "true or false (default true)"),
        ("isolation.level", "0", "one of read_committed, read_uncommitted (default read_committed)"),
        ("linger.ms", 0.5, "an integer of at least 0 (default 5)"),
        ("max.message.bytes", 5 << 20, "an integer from 0 to 3145728 (default 1048576)"),
        ("max.poll.records", 0, "an integer of at least 1 (default 65536)"),
        ("retention.ms", -2, "an integer of at least -1 (default -1)"),
        ("retries", -1, "an integer of at least 0 (default 2147483647)"),
        ("session.timeout.ms", 0, "an integer of at least 1 (default 45000)"),
        ("transaction.timeout.ms", 0, "an integer of at least 1 (default 60000)"),
    ],
)
def test_values_of_kafka_that_txlog_does_not_take_are_answered_with_the_range(
    name: str, value: object, expected: str
) -> None:
    """docs/settings.md lists those that Kafka takes."""
    with pytest.raises(InvalidRequestError, match=re.escape(f"{name} = {value!r}: expected {expected}")):
        Settings.load({name: value}, None)


def test_an_assignor_has_its_short_name() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"RangeAssignor': expected one or more of range, roundrobin, "):
        ConsumerConfig.parse({"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"})


def test_a_short_session_of_kafka_needs_a_shorter_heartbeat() -> None:
    """Kafka's default of heartbeat.interval.ms is 3000."""
    with pytest.raises(InvalidConfigurationError, match=r"hint: set heartbeat\.interval\.ms to a third of session"):
        ConsumerConfig.parse({"session.timeout.ms": 6000})
    assert ConsumerConfig.parse({"session.timeout.ms": 6000, "heartbeat.interval.ms": 2000}).session_timeout_ms == 6000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.auto.commit", True),
        ("enable.auto.commit", "true"),
        ("group.instance.id", "one"),
    ],
)
def test_a_setting_without_effect_says_so(name: str, value: object) -> None:
    """Kafka's Java client refuses the first one, too."""
    message = f"{name} = {value!r} has no effect without group.id. hint: give a group.id, or leave {name} out"
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        Settings().consumer_config({name: value})
    assert Settings().consumer_config({name: value, "group.id": "g"}).group_id == "g"
    assert Settings(client={"group.id": "g"}).consumer_config({name: value}).group_id == "g"
    # What a store was opened with, and a file, are for consumers of groups and for others.
    assert Settings(client={name: value}).consumer_config({}).group_id is None
    file = parse_document({"consumer": {name: value}})
    assert Settings(file=file).consumer_config({"enable.auto.commit": False}).group_id is None
