"""The table of settings: Kafka's names, defaults and ranges; layers; and refused values with their messages."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib

import pytest

from conf.generate import render_toml
from txlog import config
from txlog.config import (
    KEYS,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    Scope,
    StoreConfig,
    TopicConfig,
    check_topic_config,
    parse_document,
    restrict,
)
from txlog.core.append_rules import RollPolicy
from txlog.core.envelope import MAX_COMMIT_BYTES
from txlog.core.records import StoreConstants
from txlog.errors import InvalidConfigurationError, InvalidRequestError, InvalidTxnTimeoutError
from txlog.protocol.context import Context
from txlog.protocol.transactions import init_producer
from txlog.text import nearest

INT32 = 2**31 - 1
INT64 = 2**63 - 1
CONFIGS = (ClientConfig, ProducerConfig, ConsumerConfig, TopicConfig, StoreConfig)

# name, default, least, most (None: a range has no meaning for it). Kafka's values, unless Kafka has no such setting or
# PROTOCOL.md differs.
TABLE = [
    ("client.id", "", None, None),
    ("default.api.timeout.ms", 60_000, 0, INT32),
    ("metadata.max.age.ms", 300_000, 0, INT64),
    ("retries", INT32, 0, INT32),
    ("retry.backoff.ms", 100, 0, INT64),
    ("retry.backoff.max.ms", 1000, 0, INT64),
    ("transactional.id", None, 1, None),
    ("transaction.timeout.ms", 60_000, 1, INT32),
    ("transaction.max.timeout.ms", 900_000, 1, INT32),
    ("staged", None, None, None),
    ("linger.ms", 5, 0, INT64),
    ("batch.size", 1_048_576, 0, INT32),
    ("max.block.ms", 60_000, 0, INT64),
    ("delivery.timeout.ms", 120_000, 0, INT32),
    ("group.id", None, 1, None),
    ("group.instance.id", None, 1, None),
    ("partition.assignment.strategy", ("range", "cooperative-sticky"), None, None),
    ("session.timeout.ms", 45_000, 1, INT32),
    ("heartbeat.interval.ms", 15_000, 1, INT32),
    ("max.poll.interval.ms", 300_000, 1, INT32),
    ("allow.mixed.groups", False, None, None),
    ("isolation.level", "read_committed", None, None),
    ("auto.offset.reset", "latest", None, None),
    ("enable.auto.commit", True, None, None),
    ("auto.commit.interval.ms", 5000, 0, INT32),
    ("max.poll.records", 65_536, 1, INT32),
    ("fetch.max.wait.ms", 500, 0, INT32),
    ("key.columns", (), None, None),
    ("cleanup.policy", ("delete",), None, None),
    ("retention.ms", -1, -1, INT64),
    ("retention.bytes", -1, -1, INT64),
    ("retention.hold.groups", (), None, None),
    ("retention.hold.max.ms", 604_800_000, -1, INT64),
    ("delete.retention.ms", 86_400_000, 0, INT64),
    ("min.compaction.lag.ms", 0, 0, INT64),
    ("min.cleanable.dirty.ratio", 0.5, 0, 1),
    ("publish.formats", (), None, None),
    ("publish.max.lag.ms", 60_000, 0, INT64),
    ("publish.retention.ms", 604_800_000, 0, INT64),
    ("publish.rows", "all", None, None),
    ("publish.delete.mode", "merge-on-read", None, None),
    ("publish.catalog", None, 1, None),
    ("publish.table", None, 1, None),
    ("publish.files", "copy", None, None),
    ("segment.batches", 100, 1, INT32),
    ("segment.bytes", 1_073_741_824, 14, INT32),
    ("segment.ms", 604_800_000, 1, INT64),
    ("max.message.bytes", 1_048_576, 0, 3_145_728),
    ("inline.max.bytes", 65_536, 0, 3_145_728),
    ("compression.type", "zstd", None, None),
    ("delete.grace.ms", 86_400_000, 10_000, INT64),
    ("producer.id.expiration.ms", 86_400_000, 1, INT32),
    ("transactional.id.expiration.ms", 604_800_000, 1, INT32),
    ("transaction.state.log.num.partitions", 50, 1, 10_000),
    ("offsets.topic.num.partitions", 50, 1, 10_000),
]


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_is_complete() -> None:
    assert [row[0] for row in TABLE] == list(KEYS)


@pytest.mark.parametrize(("name", "default", "least", "most"), TABLE, ids=[row[0] for row in TABLE])
def test_defaults_and_ranges(name: str, default: object, least: float | None, most: float | None) -> None:
    key = KEYS[name]
    assert (key.default, key.minimum, key.maximum) == (default, least, most)
    assert key.default is None or key.parse(key.default) == default
    if key.kind in ("int", "float"):
        assert least is not None
        assert most is not None
        assert key.parse(least) == least
        assert key.parse(str(most)) == most
        for outside, bound in ((least - 1, least), (most + 1, most)):
            # The message names the bound that the value is beyond, or a user would not know what to change.
            for given in (outside, str(outside), f" {outside} "):
                with pytest.raises(
                    InvalidRequestError, match=rf"{re.escape(name)} = .*: expected (.*) \(default "
                ) as raised:
                    key.parse(given)
                expected = str(raised.value).partition("expected ")[2].partition(" (default")[0]
                assert re.search(rf"(?<![\d.]){re.escape(str(bound))}(?![\d.])", expected), expected
                assert len(str(raised.value)) <= 300
    elif least is not None:
        assert key.kind == "str"
        with pytest.raises(InvalidRequestError, match=r"expected text that is not empty \(default none\)"):
            key.parse("")


@pytest.mark.parametrize("cls", CONFIGS, ids=lambda cls: cls.__name__)
def test_a_config_has_exactly_the_fields_of_its_scope(cls: type[config.parse._Config]) -> None:
    expected = {key.field: key.default for key in config.keys_of(cls.scope)}
    assert dataclasses.asdict(cls.parse()) == expected  # type: ignore[call-overload]
    assert all(key.scopes for key in KEYS.values())


@pytest.mark.parametrize("name", ["isolation.level", "retention.ms", "max.message.bytes", "batch.size"])
def test_a_default_other_than_kafkas_says_why(name: str) -> None:
    assert KEYS[name].kafka_default


def test_defaults_that_lower_and_higher_layers_state_too_are_the_table_s() -> None:
    topic, store, client = TopicConfig.parse(), StoreConfig.parse(), ClientConfig.parse()
    assert RollPolicy() == RollPolicy(batches=topic.segment_batches, bytes=topic.segment_bytes, ms=topic.segment_ms)
    assert StoreConstants() == StoreConstants(
        delete_grace_ms=store.delete_grace_ms,
        producer_id_expiration_ms=store.producer_id_expiration_ms,
        transactional_id_expiration_ms=store.transactional_id_expiration_ms,
        transaction_state_partitions=store.transaction_state_log_num_partitions,
        consumer_offsets_partitions=store.offsets_topic_num_partitions,
    )
    context = Context()
    assert (context.retry_backoff_ms, context.retry_backoff_max_ms) == (
        client.retry_backoff_ms,
        client.retry_backoff_max_ms,
    )
    max_timeout_ms = inspect.signature(init_producer).parameters["max_timeout_ms"].default
    assert max_timeout_ms == ProducerConfig.parse().transaction_max_timeout_ms


def test_inline_rows_leave_room_for_their_record() -> None:
    assert config.MAX_INLINE_BYTES + 2**20 <= MAX_COMMIT_BYTES


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "parsed"),
    [
        ("linger.ms", 0, 0),
        ("linger.ms", "250", 250),
        ("linger.ms", " 250 ", 250),
        ("retention.ms", "-1", -1),
        ("staged", True, True),
        ("staged", "TRUE", True),
        ("enable.auto.commit", "false", False),
        ("isolation.level", "READ_UNCOMMITTED", "read_uncommitted"),
        ("min.cleanable.dirty.ratio", 1, 1.0),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("key.columns", "carrier, flight", ("carrier", "flight")),
        ("key.columns", ["carrier", "flight"], ("carrier", "flight")),
        ("key.columns", "", ()),
        ("cleanup.policy", "delete,compact", ("compact", "delete")),
        ("cleanup.policy", ["compact"], ("compact",)),
        ("transactional.id", "loader", "loader"),
        ("client.id", "", ""),
    ],
)
def test_values_as_python_toml_and_text_give_them(name: str, given: object, parsed: object) -> None:
    value = KEYS[name].parse(given)
    assert value == parsed
    assert type(value) is type(parsed)
    assert KEYS[name].parse(KEYS[name].text(value)) == parsed


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("linger.ms", "soon", "linger.ms = 'soon': expected an integer of at least 0 (default 5)"),
        (
            "retention.ms",
            "30d",
            "retention.ms = '30d': expected an integer of at least -1 (default -1). hint: retention.ms=2592000000",
        ),
        (
            "segment.ms",
            "12 H",
            "segment.ms = '12 H': expected an integer of at least 1 (default 604800000). hint: segment.ms=43200000",
        ),
        ("linger.ms", 1.0, "linger.ms = 1.0: expected an integer of at least 0 (default 5)"),
        ("linger.ms", True, "linger.ms = True: expected an integer of at least 0 (default 5)"),
        ("linger.ms", -1, "linger.ms = -1: expected an integer of at least 0 (default 5)"),
        (
            "offsets.topic.num.partitions",
            0,
            "offsets.topic.num.partitions = 0: expected an integer from 1 to 10000 (default 50)",
        ),
        ("staged", "yes", "staged = 'yes': expected true or false (default none)"),
        ("staged", 1, "staged = 1: expected true or false (default none)"),
        (
            "isolation.level",
            "committed",
            "isolation.level = 'committed': expected one of read_committed, read_uncommitted (default read_committed)",
        ),
        ("auto.offset.reset", 3, "auto.offset.reset = 3: expected one of earliest, latest, none (default latest)"),
        (
            "min.cleanable.dirty.ratio",
            "nan",
            "min.cleanable.dirty.ratio = 'nan': expected a number from 0 to 1 (default 0.5)",
        ),
        (
            "min.cleanable.dirty.ratio",
            10**400,
            "expected a number from 0 to 1 (default 0.5)",
        ),
        ("min.cleanable.dirty.ratio", False, "expected a number from 0 to 1 (default 0.5)"),
        (
            "key.columns",
            "a,,b",
            "key.columns = 'a,,b': expected a comma-separated list of column names (default empty)",
        ),
        ("key.columns", ["a", "a"], "expected a comma-separated list of column names (default empty)"),
        ("key.columns", ["a,b"], "expected a comma-separated list of column names (default empty)"),
        ("retention.hold.groups", "a,,b", "expected a comma-separated list of group ids (default empty)"),
        ("key.columns", 7, "key.columns = 7: expected a comma-separated list of column names (default empty)"),
        (
            "cleanup.policy",
            "shred",
            "cleanup.policy = 'shred': expected a comma-separated list of compact, delete (default delete)",
        ),
        ("cleanup.policy", "", "cleanup.policy = '': expected a comma-separated list of compact, delete"),
        ("transactional.id", "", "transactional.id = '': expected text that is not empty (default none)"),
        ("group.id", 5, "group.id = 5: expected text that is not empty (default none)"),
    ],
)
def test_bad_values_are_refused_with_key_value_and_range(name: str, given: object, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        KEYS[name].parse(given)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidConfigurationError, match=f"expected an integer from 0 to {INT64} ") as caught:
        KEYS["linger.ms"].parse("9" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [0, -1, "0", INT32 + 1, "soon"])
def test_a_timeout_out_of_range_is_kafkas_own_error(value: object) -> None:
    with pytest.raises(
        InvalidTxnTimeoutError,
        match=r"transaction\.timeout\.ms = .*: expected an integer (of at least 1|from 1 to 2147483647) ",
    ):
        ProducerConfig.parse({"transaction.timeout.ms": value})


def test_a_timeout_up_to_the_maximum_is_accepted() -> None:
    assert ProducerConfig.parse({"transaction.timeout.ms": 900_000}).transaction_timeout_ms == 900_000
    with pytest.raises(
        InvalidTxnTimeoutError,
        match=r"transaction\.timeout\.ms = 900001 is beyond transaction\.max\.timeout\.ms = 900000",
    ):
        ProducerConfig.parse({"transaction.timeout.ms": 900_001})
    raised = ProducerConfig.parse({"transaction.timeout.ms": 900_001}, {"transaction.max.timeout.ms": 1_000_000})
    assert raised.transaction_timeout_ms == 900_001


# -- unknown keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "name", "message"),
    [
        (ProducerConfig, "linger_ms", "unknown producer configuration key 'linger_ms'. Did you mean 'linger.ms'?"),
        (ProducerConfig, "lingerms", "unknown producer configuration key 'lingerms'. Did you mean 'linger.ms'?"),
        (ProducerConfig, "Linger.MS", "Did you mean 'linger.ms'?"),
        (ConsumerConfig, "isolation.leve", "Did you mean 'isolation.level'?"),
        (ConsumerConfig, "auto.offset.rest", "Did you mean 'auto.offset.reset'?"),
        (TopicConfig, "retention", "unknown topic configuration key 'retention'. Did you mean 'retention.ms'?"),
        (StoreConfig, "delete.grace", "Did you mean 'delete.grace.ms'?"),
        (ClientConfig, "xyzzy", "unknown client configuration key 'xyzzy'."),
        (
            ProducerConfig,
            "group.id",
            "unknown producer configuration key 'group.id': it is a setting of the consumer, not of the producer.",
        ),
        (ConsumerConfig, "compression.type", "it is a setting of the producer and topic, not of the consumer."),
        (
            ProducerConfig,
            "acks",
            "unknown producer configuration key 'acks': txlog does not need it, a batch that "
            "is published is as durable",
        ),
        (ProducerConfig, "buffer.memory", "max.block.ms says how long a send waits for it."),
        (ConsumerConfig, "fetch.min.bytes", "txlog does not need it, a poll returns what is there"),
        (ConsumerConfig, "offsets.retention.minutes", "txlog does not need it, committed offsets do not expire;"),
        (TopicConfig, "unclean.leader.election.enable", "txlog does not need it, there are no leaders"),
        (TopicConfig, "remote.storage.enable", "txlog does not need it, all rows are in the store"),
        (TopicConfig, "local.retention.ms", "txlog does not need it, all rows are in the store"),
        (TopicConfig, "max.compaction.lag.ms", "txlog does not need it, maintenance compacts when"),
    ],
)
def test_an_unknown_key_names_the_nearest(cls: type[config.parse._Config], name: str, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        cls.parse({name: 1})


@pytest.mark.parametrize(("cls", "name"), [(TopicConfig, "max.compaction.lags"), (ConsumerConfig, "delete.retention")])
def test_neither_the_opposite_nor_a_setting_of_another_scope_is_proposed(
    cls: type[config.parse._Config], name: str
) -> None:
    with pytest.raises(InvalidConfigurationError) as caught:
        cls.parse({name: 1})
    assert "min.compaction" not in str(caught.value)
    assert "delete.retention.ms" not in str(caught.value)


def test_nearest() -> None:
    assert nearest("colour", ["color", "shape"]) == " Did you mean 'color'?"
    assert nearest("starting_offsets", ["startingOffsets", "endingOffsets"]) == " Did you mean 'startingOffsets'?"
    assert nearest("key", ["retention.ms", "key.columns"]) == " Did you mean 'key.columns'?"
    assert nearest("zzz", ["color"]) == ""
    assert nearest("zzz", []) == ""


# -- layers -----------------------------------------------------------------------------------------------------------


def test_the_first_layer_that_has_a_key_wins() -> None:
    call = {"linger.ms": 1}
    client = {"linger.ms": 2, "batch.size": "2"}
    file = {"linger.ms": 3, "batch.size": 3, "staged": "true"}
    parsed = ProducerConfig.parse(call, client, file)
    assert (parsed.linger_ms, parsed.batch_size, parsed.staged, parsed.max_block_ms) == (1, 2, True, 60_000)


def test_none_means_not_given() -> None:
    assert ConsumerConfig.parse({"group.id": None}, {"group.id": "audit"}).group_id == "audit"
    assert ConsumerConfig.parse({"group.id": None}).group_id is None


@pytest.mark.parametrize("layer", [{"linger.ms": "bad"}, {"no.such.key": None}])
def test_a_layer_is_checked_also_where_a_higher_one_wins(layer: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigurationError):
        ProducerConfig.parse({"linger.ms": 1}, layer)


def test_a_topics_configuration_as_a_layer_of_a_producers() -> None:
    topic = {"inline.max.bytes": "0", "retention.ms": "5"}
    assert restrict(topic, "producer") == {"inline.max.bytes": "0"}
    assert ProducerConfig.parse(restrict(topic, "producer")).inline_max_bytes == 0


# -- topics -----------------------------------------------------------------------------------------------------------


def test_topic_configuration_is_kept_as_text_in_one_spelling() -> None:
    given = {
        "retention.ms": 5,
        "cleanup.policy": ["delete", "compact"],
        "key.columns": " a , b",
        "min.cleanable.dirty.ratio": "0.50",
        "compression.type": "ZSTD",
        "segment.bytes": None,
    }
    text = check_topic_config(given)
    assert text == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
        "key.columns": "a,b",
        "min.cleanable.dirty.ratio": "0.5",
        "compression.type": "zstd",
    }
    assert check_topic_config(text) == text
    assert TopicConfig.parse(text) == TopicConfig.parse(given)


def test_topic_configuration_is_checked() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"Did you mean 'segment\.bytes'"):
        check_topic_config({"segment.byte": 1})
    with pytest.raises(InvalidConfigurationError, match=r"segment\.bytes = 13"):
        check_topic_config({"segment.bytes": 13})


# -- the file ---------------------------------------------------------------------------------------------------------


def test_bare_and_quoted_keys_of_a_file() -> None:
    text = '[producer]\nlinger.ms = 7\n"batch.size" = 9\nretry.backoff.ms = 1\nretry.backoff.max.ms = 2\n[topic]\n'
    layers = parse_document(tomllib.loads(text))
    assert layers["producer"] == {"linger.ms": 7, "batch.size": 9, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2}
    assert all(layers[scope] == {} for scope in config.SCOPES if scope != "producer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[produser]\n",
            "unknown configuration table [produser]; the tables are client, producer, consumer, topic, store.",
        ),
        ("[produser]\n", "Did you mean 'producer'?"),
        ("client.id = 'x'\n", "configuration key 'client.id' stands outside of its table; put it below [client]"),
        ("linger.ms = 3\n", "configuration key 'linger.ms' stands outside of its table; put it below [producer]"),
        ("'compression.type' = 'zstd'\n", "put it below [producer] or [topic]"),
        ("producer = 3\n", "[producer] must be a table of keys, found 3"),
        ("[producer]\nlinger.m = 3\n", "unknown producer configuration key 'linger.m'. Did you mean 'linger.ms'?"),
        ("[producer]\nlinger.ms = '?'\n", "linger.ms = '?'"),
        ("[producer]\nlinger.ms = 2020-01-01\n", "linger.ms = datetime.date(2020, 1, 1): expected an integer"),
    ],
)
def test_a_bad_file_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=re.escape(message)):
        parse_document(tomllib.loads(text))


def test_the_rendered_file_uncommented_is_the_defaults() -> None:
    lines = render_toml().splitlines()
    assert max(map(len, lines)) <= 120
    assert tomllib.loads(render_toml()) == {scope: {} for scope in config.SCOPES}
    layers = parse_document(tomllib.loads("\n".join(re.sub(r"^#(?=\S)", "", line) for line in lines)))
    for scope in config.SCOPES:
        examples = {"bool": True, "str": "..."}
        expected: dict[str, object] = {
            key.name: examples[key.kind] if key.default is None else key.default for key in config.keys_of(scope)
        }
        assert layers[scope] == expected


@pytest.mark.parametrize("scope", config.SCOPES)
def test_the_rendered_file_tells_default_range_and_sentence(scope: Scope) -> None:
    text = " ".join(line.lstrip("# ") for line in render_toml().splitlines())
    for key in config.keys_of(scope):
        assert f"{key.doc} Default: " in text
        assert f"; {key.expected}. " in text
