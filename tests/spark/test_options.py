"""Options of `format("txlog")`: an error names every unknown option, and the expected value for every wrong one."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_txlog import option_table as table
from pyspark_txlog.sink.options import parse_stream_write_options, parse_write_options, settled_write
from pyspark_txlog.source.options import parse_read_options, parse_stream_options, settled
from pyspark_txlog.source.subscription import named_topics
from txlog.client.offsets import OffsetSpec
from txlog.client.session.settings import Settings
from txlog.core.names import TopicPartition
from txlog.errors import (
    InvalidConfigurationError,
    InvalidRequestError,
    InvalidTopicError,
    UnknownOptionError,
    UnsupportedStoreError,
)

READ = {"path": "/log", "subscribe": "orders"}
WRITE = {"path": "/log", "topic": "orders"}


def test_defaults_are_those_of_the_kafka_source() -> None:
    options = parse_read_options(READ)
    assert options[table.SUBSCRIBE] == ("orders",)
    assert options[table.STARTING_OFFSETS] == OffsetSpec(kind="earliest", option="startingOffsets")
    assert options[table.ENDING_OFFSETS] == OffsetSpec(kind="latest", option="endingOffsets")
    assert options[table.FAIL_ON_DATA_LOSS]
    assert (options[table.COLUMNS], options[table.MIN_PARTITIONS]) == (None, None)
    holds = settled(options, Settings())
    assert (holds.isolation_level, holds.group_id, holds.missing_start) == ("read_committed", None, "none")


def test_names_do_not_mind_case() -> None:
    options = parse_read_options(
        {
            "PATH": "/log",
            "SUBSCRIBE": "a, b,a",
            "startingoffsets": '{"a":{"0":-2}}',
            "FAILONDATALOSS": "False",
            "minpartitions": "4",
            "Isolation.Level": "read_uncommitted",
            "columns": '["a,b", "c"]',
        }
    )
    assert options[table.SUBSCRIBE] == ("a", "b")
    assert options[table.STARTING_OFFSETS] == OffsetSpec(
        kind="offsets", option="startingOffsets", offsets={TopicPartition("a", 0): -2}
    )
    assert not options[table.FAIL_ON_DATA_LOSS]
    assert options[table.MIN_PARTITIONS] == 4
    assert settled(options, Settings()).isolation_level == "read_uncommitted"
    assert options[table.COLUMNS] == ("a,b", "c")


def test_a_timestamp_comes_before_offsets_as_in_the_kafka_source() -> None:
    given = {
        **READ,
        "startingOffsets": "earliest",
        "startingTimestamp": "5",
        "endingOffsetsByTimestamp": "{}",
        "endingTimestamp": "9",
    }
    options = parse_read_options(given)
    assert options[table.STARTING_OFFSETS] == OffsetSpec(kind="timestamp", option="startingTimestamp", timestamp=5)
    assert options[table.ENDING_OFFSETS] == OffsetSpec(kind="timestamp", option="endingTimestamp", timestamp=9)


def test_assign_and_pattern() -> None:
    options = parse_read_options({"path": "/log", "assign": '{"orders":[2,0]}'})
    assert (named_topics(options), options[table.ASSIGN]) == (("orders",), {"orders": (0, 2)})
    assert parse_read_options({"path": "/log", "subscribePattern": "ord.*"})[table.SUBSCRIBE_PATTERN] == "ord.*"


def test_a_stream_is_told_whose_option_it_was_given() -> None:
    with pytest.raises(
        UnknownOptionError, match=r"'metadata' is unknown: a stream has .*It is an option of a batch read"
    ):
        parse_stream_options({**READ, "metadata": "files"})


def test_storage_options() -> None:
    given = {
        **READ,
        "storage.fsync": "false",
        "storage.key": "0123",
        "storage.client_kwargs": '{"region_name": "eu"}',
        "storageOptions": '{"key": "x", "timeout": 5}',
    }
    assert parse_read_options(given).storage == {
        "fsync": False,
        "key": "0123",
        "client_kwargs": {"region_name": "eu"},
        "timeout": 5,
    }


def test_credentials_are_not_shown() -> None:
    options = parse_read_options({**READ, "storage.secret": "hunter2"})
    assert "hunter2" not in repr(options)
    with pytest.raises(InvalidRequestError, match="storageOptions") as caught:
        parse_read_options({**READ, "storageOptions": '{"secret": "hunter2"'})
    assert "hunter2" not in str(caught.value)


def test_write_options() -> None:
    options = parse_write_options(WRITE)
    assert options[table.TOPIC] == "orders"
    assert options[table.KEY] is None
    assert options.settings == {}
    assert options[table.TXN_VERSION] is None
    options = parse_write_options(
        {
            "path": "/log",
            "key": "a, b",
            "transactional.id": "nightly",
            "txn.version": "3",
            "transaction.timeout.ms": "900000",
        }
    )
    assert (options[table.TOPIC], options[table.KEY], options[table.TXN_VERSION]) == (None, ("a", "b"), 3)
    assert options.settings == {"transactional.id": "nightly", "transaction.timeout.ms": 900_000}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"endingOfsets": "latest"},
            UnknownOptionError,
            "'endingofsets' is unknown: a read has no such option. Did you mean 'endingOffsets'",
        ),
        ({"transactional.id": "x"}, UnknownOptionError, "'transactional.id' is unknown: .* It is an option of a write"),
        ({"kafka.bootstrap.servers": "x"}, UnknownOptionError, "'kafka.bootstrap.servers' is unknown"),
        ({"storage.": "x"}, UnknownOptionError, "'storage.' is unknown: .* Did you mean 'storageOptions'"),
        ({"zzz": "x"}, UnknownOptionError, "'zzz' is unknown: a read has path, .*, storage.<name>.$"),
        ({"timestampAsOf": "x"}, UnknownOptionError, "no such option. Delta has it; here: `endingTimestamp`"),
        ({"versionAsOf": "1"}, UnknownOptionError, "no such option. Delta has it; here: `endingOffsets`"),
        ({"startingVersion": "1"}, UnknownOptionError, "no such option. Delta has it; here: `startingOffsets`"),
        ({"subscribe": "bad/name"}, InvalidTopicError, "topic name 'bad/name' is not valid"),
        ({"subscribe": "__consumer_offsets"}, InvalidTopicError, "reserved"),
        ({"subscribe": " , "}, InvalidRequestError, "'subscribe': expected topics"),
        (
            {"assign": '{"orders": [0]}'},
            InvalidRequestError,
            "exactly one of subscribe, subscribePattern, assign; found subscribe and assign",
        ),
        ({"isolation.level": "serializable"}, InvalidConfigurationError, "isolation.level = .*expected one of read_"),
        ({"failOnDataLoss": "no"}, InvalidRequestError, "'failOnDataLoss': expected true or false, found 'no'"),
        ({"minPartitions": "0"}, InvalidRequestError, "'minPartitions': expected an integer of at least 1, found '0'"),
        (
            {"minPartitions": "9" * 30},
            InvalidRequestError,
            "'minPartitions': expected an integer from 1 to 9223372036854775807",
        ),
        ({"columns": "[1]"}, InvalidRequestError, "'columns': expected column names"),
        ({"columns": "a,,b"}, InvalidRequestError, "'columns': expected column names"),
        ({"startingOffsetsByTimestampStrategy": "x"}, InvalidRequestError, "expected one of error, latest"),
        ({"auto.offset.reset": "x"}, InvalidRequestError, "expected one of earliest, latest, none"),
        (
            {"startingOffsets": "latest"},
            InvalidConfigurationError,
            "startingOffsets = 'latest': expected earliest, committed",
        ),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, InvalidConfigurationError, "orders-0 says -1"),
        ({"endingOffsets": "earliest"}, InvalidConfigurationError, "endingOffsets = 'earliest': expected latest"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, InvalidConfigurationError, "orders-0 says -2"),
        ({"startingTimestamp": "noon"}, InvalidConfigurationError, "startingTimestamp = 'noon': expected milliseconds"),
        (
            {"endingTimestamp": "2026-01-01"},
            InvalidConfigurationError,
            "'2026-01-01': expected milliseconds since 1970. hint: endingTimestamp=1767225600000",
        ),
        ({"endingOffsetsByTimestamp": '{"orders":{"x":1}}'}, InvalidConfigurationError, "'x' is not a partition"),
        ({"startingOffsets": ""}, InvalidRequestError, "'startingOffsets' is empty"),
        ({"path": "memory://log"}, UnsupportedStoreError, "in memory lives in one process"),
    ],
)
def test_bad_read_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_read_options({**READ, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "orders"}, r"where is the store\? Name its folder or URL in .load"),
        ({"path": "/log"}, "exactly one of .*; found none"),
        ({"path": "/log", "assign": "[0]"}, r"assign: found '\[0\]', expected"),
        ({"path": "/log", "assign": "{}"}, "assign: found '{}', expected"),
        ({"path": "/log", "assign": '{"orders": [-1]}'}, "topic 'orders' has .*, expected a list of partitions"),
        ({"path": "/log", "assign": '{"orders": [true]}'}, "topic 'orders' has .*, expected a list of partitions"),
        ({"path": "/log", "subscribePattern": "("}, "is not a valid regular expression"),
    ],
)
def test_bad_reads(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_read_options(options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transactionalid": "x"}, UnknownOptionError, "Did you mean 'transactional.id'"),
        (
            {"subscribe": "orders"},
            UnknownOptionError,
            "'subscribe' is unknown: a write has .* It is an option of a read",
        ),
        (
            {"txn.version": "-3", "transactional.id": "x"},
            InvalidRequestError,
            "-3 is not a txn.version: expected an integer from 0",
        ),
        (
            {"txn.version": "2026-01-01", "transactional.id": "x"},
            InvalidRequestError,
            "'2026-01-01' is not a txn.version: .* hint: version=20260101; if an older day may come later, use",
        ),
        ({"txnAppId": "x"}, UnknownOptionError, "a write has no such option. Delta has it; here: `transactional.id`"),
        ({"txnVersion": "1"}, UnknownOptionError, "a write has no such option. Delta has it; here: `txn.version`"),
        ({"replaceWhere": "a = 1"}, UnknownOptionError, "Delta has it; here: nothing: a log is append-only"),
        ({"compression.type": "rar"}, InvalidConfigurationError, "compression.type"),
        ({"topic": "a b"}, InvalidTopicError, "not valid"),
        ({"path": "memory://log"}, UnsupportedStoreError, "from many"),
    ],
)
def test_bad_write_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_write_options({**WRITE, **options})


def test_what_only_all_layers_together_can_miss() -> None:
    with pytest.raises(InvalidRequestError, match=r"name it in 'group\.id'"):
        settled(parse_read_options({**READ, "startingOffsets": "committed"}), Settings())
    with pytest.raises(InvalidRequestError, match="numbers the transactions of one"):
        settled_write(parse_write_options({**WRITE, "txn.version": "3"}), Settings())


def test_a_write_needs_a_place() -> None:
    with pytest.raises(InvalidRequestError, match=r"Name its folder or URL in .save"):
        parse_write_options({"topic": "orders"})
    with pytest.raises(InvalidRequestError, match=r"Name its folder or URL in .start\("):
        parse_stream_write_options({"topic": "orders"})
