"""Does the table of options agree with the parsers? Does each option of Spark's Kafka source and sink have a row?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pyspark_txlog.option_table import KAFKA_OPTIONS, OPTIONS, QUERY_NAME, Always, Option, kafka_option, names_of
from pyspark_txlog.sink.options import parse_stream_write_options, parse_write_options
from pyspark_txlog.source.options import parse_read_options, parse_stream_options
from txlog.errors import InvalidRequestError, UnknownOptionError

CALLS: Mapping[str, tuple[Callable[[Mapping[str, str]], Any], dict[str, str]]] = {
    "read": (parse_read_options, {"path": "/log", "subscribe": "orders"}),
    "readStream": (parse_stream_options, {"path": "/log", "subscribe": "orders"}),
    "write": (parse_write_options, {"path": "/log", "topic": "orders"}),
    "writeStream": (
        parse_stream_write_options,
        {"path": "/log", "topic": "orders", "checkpointLocation": "/checkpoint"},
    ),
}
"""A parser for each call, and the least that it needs."""
GUIDE = [
    "assign",
    "subscribe",
    "subscribePattern",
    "kafka.bootstrap.servers",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafka.group.id",
    "includeHeaders",
    "startingOffsetsByTimestampStrategy",
    "topic",
    "kafka.security.protocol",
    "kafka.isolation.level",
    "spark.kafka.consumer.cache.capacity",
    "spark.kafka.producer.cache.timeout",
    "spark.kafka.clusters.x.target",
]
"""The options in Spark 4.2's guide to its Kafka source and sink."""
MODES = ("subscribe", "subscribePattern", "assign")
GARBAGE = "(¬"
"""Not a valid expression, topic, number, word or JSON."""
FREE = ("text", "a folder", "column names")
"""Ranges that contain garbage, too."""

USES = [pytest.param(option, call, id=f"{call} {option.name}") for option in OPTIONS for call in option.calls]


def test_names_are_unique_without_regard_to_case() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert not {one.name.lower() for one in KAFKA_OPTIONS} & set(names)


def test_an_option_that_always_has_a_value_says_which() -> None:
    assert {option.name for option in OPTIONS if isinstance(option, Always)} == {
        option.name for option in OPTIONS if option.default or option.missing
    }


@pytest.mark.parametrize("name", GUIDE)
def test_each_option_of_spark_s_kafka_has_a_row(name: str) -> None:
    ours = next((option for option in OPTIONS if option.name == name), None)
    assert ours.kafka if ours else kafka_option(name)


@pytest.mark.parametrize(("option", "call"), USES)
def test_what_is_out_of_range_is_refused_by_name(option: Option[Any], call: str) -> None:
    if option.value.range.startswith(FREE):
        return
    parse, least = CALLS[call]
    if option.name in MODES:
        least = {"path": least["path"]}
    with pytest.raises(InvalidRequestError) as caught:
        parse({**least, option.name: GARBAGE})
    assert "is unknown" not in str(caught.value)


@pytest.mark.parametrize("call", CALLS)
def test_names_are_matched_without_regard_to_case(call: str) -> None:
    parse, least = CALLS[call]
    assert parse({name.upper(): value for name, value in least.items()}) == parse(least)


def test_a_query_may_have_a_name() -> None:
    """Spark passes the query's name among the options."""
    parse, least = CALLS["writeStream"]
    assert parse({**least, "queryname": "orders"})[QUERY_NAME] == "orders"


@pytest.mark.parametrize("call", CALLS)
def test_what_another_call_has_is_said(call: str) -> None:
    parse, least = CALLS[call]
    known = names_of(call)  # type: ignore[arg-type]
    for option in OPTIONS:
        if option.name not in known and not option.name.endswith(">"):
            with pytest.raises(InvalidRequestError):
                parse({**least, option.name: "1"})


@pytest.mark.parametrize("call", CALLS)
def test_an_option_of_spark_s_kafka_is_told_what_there_is_instead(call: str) -> None:
    parse, least = CALLS[call]
    for one in KAFKA_OPTIONS:
        with pytest.raises(UnknownOptionError) as caught:
            parse({**least, one.name.replace("*", "x"): "1"})
        assert one.here in str(caught.value)


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        ("read", "endingOffset", "endingOffsets"),
        ("readStream", "maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("write", "transactionalid", "transactional.id"),
        ("writeStream", "checkpointlocaton", "checkpointLocation"),
    ],
)
def test_a_misspelled_option_is_told_the_nearest(call: str, given: str, meant: str) -> None:
    parse, least = CALLS[call]
    with pytest.raises(UnknownOptionError, match=f"Did you mean '{meant}'"):
        parse({**least, given: "1"})
