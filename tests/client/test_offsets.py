"""Texts of offsets, and the offsets that they mean."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.client.world import orders, tp
from txlog.client import offsets
from txlog.client.offsets import OffsetSpec
from txlog.client.reading import read_session
from txlog.errors import (
    InvalidConfigurationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

A, B = tp("orders", 0), tp("orders", 1)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("earliest", OffsetSpec(kind="earliest", option="o")),
        (" Latest ", OffsetSpec(kind="latest", option="o")),
        ('{"orders":{"0":23,"1":-2}}', OffsetSpec(kind="offsets", option="o", offsets={A: 23, B: -2})),
        ('{"t":{"0":-1}}', OffsetSpec(kind="offsets", option="o", offsets={tp("t", 0): -1})),
    ],
)
def test_specs(text, spec):
    assert offsets.parse_spec(text, "o") == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("newest", "o = 'newest': expected earliest, latest, or JSON"),
        ("", "o = '': expected"),
        ("committed", "o = 'committed': expected earliest, latest"),
        ("{", "o: not JSON"),
        ("{}", r"o: found '\{\}', expected"),
        ('{"t": 1}', "o: topic 't' has 1, expected"),
        ('{"t": {}}', "o: topic 't' has {}, expected"),
        ('{"t": {"x": 1}}', "o: topic 't': 'x' is not a partition"),
        ('{"t": {"-1": 1}}', "'-1' is not a partition"),
        ('{"t": {"0": -3}}', r"o: t-0 has -3, expected an offset, -2 \(earliest\) or -1 \(latest\)"),
        ('{"t": {"0": true}}', "t-0 has True"),
        ('{"t": {"0": 1.5}}', "t-0 has 1.5"),
        ('{"t": {"0": 9223372036854775808}}', "t-0 has 9223372036854775808"),
    ],
)
def test_specs_that_cannot_be(text, message):
    with pytest.raises(InvalidConfigurationError, match=message):
        offsets.parse_spec(text, "o")


def test_words_that_an_option_does_not_know():
    with pytest.raises(InvalidConfigurationError, match="expected earliest, or JSON"):
        offsets.parse_spec("latest", "o", words=("earliest",))
    with pytest.raises(InvalidConfigurationError, match=r"o: t-0 says -1 \(latest\), which is not possible here"):
        offsets.parse_spec('{"t": {"0": -1}}', "o", words=("earliest",))
    assert offsets.parse_spec("committed", "o", words=("committed",)).kind == "committed"


def test_there_and_back():
    given = {B: 5, A: -2, tp("a", 12): 0}
    text = offsets.format_offsets(given)
    assert text == '{"a":{"12":0},"orders":{"0":-2,"1":5}}'
    assert offsets.parse_offsets(text, "o") == given


def test_times_and_partitions():
    assert offsets.parse_timestamp("1700", "o").timestamp == 1700
    assert offsets.parse_timestamps('{"orders":{"0":5}}', "o").timestamps == {A: 5}
    assert offsets.parse_assign('{"orders":[1,0]}') == (A, B)
    for parse, text in (
        (offsets.parse_timestamp, "soon"),
        (offsets.parse_timestamp, "-1"),
        (offsets.parse_timestamps, '{"orders":{"0":-1}}'),
        (offsets.parse_assign, '{"orders":[0,0]}'),
        (offsets.parse_assign, '{"orders":[]}'),
        (offsets.parse_assign, '{"orders":["0"]}'),
    ):
        with pytest.raises(InvalidConfigurationError, match=r"^o[: ]"):
            parse(text, "o")


def test_a_time_is_rounded_up():
    assert offsets.milliseconds(pd.Timestamp(1_000_000, unit="ns", tz="UTC"), "o") == 1
    assert offsets.milliseconds(pd.Timestamp(1_000_001, unit="ns", tz="UTC"), "o") == 2


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(world, store):
    """orders-0 has offsets 0 to 5: two of them are removed, and one is undecided. orders-1 is empty."""
    with store.producer() as producer:
        producer.send("orders", orders(1, 2), partition=0).result()
        world.clock.advance_ms(100)
        producer.send("orders", orders(3), partition=0).result()
    store.admin().delete_records("orders", 0, 2)
    open_ended = store.producer("loader")
    open_ended.init_transactions()
    open_ended.begin_transaction()
    open_ended.send("orders", orders(4), partition=0).result()
    return read_session(world.open().runtime)


def resolved(session, spec, isolation="read_committed", **more):
    return offsets.resolve(session, [A, B], spec, isolation, **more)


def test_ends(session):
    earliest, latest = OffsetSpec(kind="earliest", option="o"), OffsetSpec(kind="latest", option="o")
    assert resolved(session, earliest) == {A: 2, B: 0}
    assert resolved(session, latest) == {A: 4, B: 0}
    assert resolved(session, latest, "read_uncommitted") == {A: 5, B: 0}


def test_given_offsets(session):
    def spec(a, b=-2):
        return OffsetSpec(kind="offsets", option="startingOffsets", offsets={A: a, B: b})

    assert resolved(session, spec(3, -1)) == {A: 3, B: 0}
    assert resolved(session, spec(5)) == {A: 5, B: 0}
    for bad in (1, 6):
        message = f"orders-0: startingOffsets asks for offset {bad}, but the log holds 2 to 5.*failOnDataLoss=false"
        with pytest.raises(OffsetOutOfRangeError, match=message):
            resolved(session, spec(bad))
    assert resolved(session, spec(0), clamp=True)[A] == 2
    assert resolved(session, spec(99), clamp=True)[A] == 5


def test_every_partition_must_be_named(session):
    spec = OffsetSpec(kind="offsets", option="startingOffsets", offsets={A: 3})
    with pytest.raises(
        InvalidConfigurationError, match=r"startingOffsets must name every partition.*lacks orders-1; -2 is"
    ):
        resolved(session, spec)
    spec = OffsetSpec(kind="offsets", option="startingOffsets", offsets={A: 3, B: 0, tp("orders", 3): 0})
    with pytest.raises(InvalidConfigurationError, match="startingOffsets names orders-3, which is not read: 2 part"):
        resolved(session, spec)
    with pytest.raises(InvalidConfigurationError, match=r"JSON as .*\. Did you mean 'earliest'\?$"):
        offsets.spec_of("beginning")
    with pytest.raises(InvalidConfigurationError, match=r"= 'beginning': expected latest, or JSON as .*-2}}$"):
        offsets.parse_spec("beginning", "endingOffsets", words=("latest",))
    with pytest.raises(InvalidConfigurationError, match=r"milliseconds.*hint: give int\(time\.timestamp\(\) \* 1000\)"):
        offsets.spec_of(pd.Timestamp(2026, 1, 1))
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 4"):
        offsets.resolve(session, [tp("orders", 4)], OffsetSpec(kind="earliest", option="o"))


def test_times(world, session):
    start = world.clock.now_ms() - 100
    spec = OffsetSpec(kind="timestamp", option="startingTimestamp", timestamp=start + 100)
    assert offsets.resolve(session, [A], spec) == {A: 2}
    with pytest.raises(NoOffsetForPartitionError, match="orders-1: startingTimestamp: no row is as new as that"):
        resolved(session, spec)
    assert resolved(session, spec, missing="latest") == {A: 2, B: 0}
    late = OffsetSpec(kind="timestamps", option="o", timestamps={A: start + 101, B: 0})
    assert resolved(session, late, missing="latest") == {A: 4, B: 0}


def test_committed(world, session, store):
    spec = OffsetSpec(kind="committed", option="startingOffsets")
    store.consumer(group_id="g").commit({A: 3})
    with pytest.raises(
        NoOffsetForPartitionError, match="orders-1: startingOffsets: there is no committed offset of group 'g'"
    ):
        resolved(session, spec, group="g")
    assert resolved(session, spec, group="g", missing="earliest") == {A: 3, B: 0}
    store.consumer(group_id="g").commit({A: 1})
    with pytest.raises(OffsetOutOfRangeError, match="asks for offset 1"):
        resolved(session, spec, group="g", missing="earliest")
    # One partition after another: the first one without an answer is named.
    with pytest.raises(NoOffsetForPartitionError, match="orders-1"):
        offsets.resolve(session, [B, A], spec, group="g")
    assert resolved(session, spec, group="g", missing="earliest", clamp=True) == {A: 2, B: 0}
