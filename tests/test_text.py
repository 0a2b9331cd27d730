"""How txlog spells times, sizes and numbers for people."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from txlog.text import any_text, bytes_text, count_text, duration_text, parse_time, range_text, shorten, time_text


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_356_998_400_123, "2013-01-01T00:00:00.123Z"),
        (-1, "-"),
        (2**63 - 1, "-"),
        (253_402_300_800_000, "-"),
    ],
)
def test_time(timestamp_ms: int, text: str) -> None:
    assert time_text(timestamp_ms) == text


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_reads_back(timestamp_ms: int) -> None:
    assert parse_time(time_text(timestamp_ms)) == timestamp_ms


@pytest.mark.parametrize(
    ("text", "timestamp_ms"),
    [
        ("2013-01-01", 1_356_998_400_000),
        ("2013-01-01T01:00:00+01:00", 1_356_998_400_000),
        ("2013-01-01T00:00:00", 1_356_998_400_000),
        ("1356998400000", 1_356_998_400_000),
        ("yesterday", None),
        ("", None),
        ("-5", None),
        ("2013-13-01", None),
    ],
)
def test_parse_time(text: str, timestamp_ms: int | None) -> None:
    assert parse_time(text) == timestamp_ms


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (-1, "-"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (12_500, "12.5 s"),
        (60_000, "1 min"),
        (200_000, "3 min 20 s"),
        (7_500_000, "2 h 5 min"),
        (86_400_000, "1 d"),
        (86_400_000 + 5_000, "1 d"),
        (604_800_000 + 4 * 3_600_000, "7 d 4 h"),
    ],
)
def test_duration(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (4200, "4.1 KiB"), (2**30, "1 GiB"), (2**50, "1024 TiB")],
)
def test_bytes(size_bytes: int, text: str) -> None:
    assert bytes_text(size_bytes) == text


def test_a_cut_shows():
    assert [shorten("offsets", most) for most in (3, 6, 7, 8)] == ["of…", "offse…", "offsets", "offsets"]


def test_counts_and_ranges() -> None:
    assert [count_text(number, "row") for number in (0, 1, 2048)] == ["no rows", "1 row", "2,048 rows"]
    assert count_text(2, "batch") == "2 batches"
    assert (range_text(7, 7), range_text(7, 12)) == ("offset 7", "offsets 7 to 12")


class ManyLines:
    def __repr__(self) -> str:
        return "many\nlines"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("orders", "'orders'"),
        ("two\nlines", r"'two\nlines'"),
        (2.5, "2.5"),
        (("orders", -1), "('orders', -1)"),
        (2**63, "9223372036854775808"),
        (ManyLines(), "<ManyLines>"),
        ([ManyLines()], "<list>"),
    ],
)
def test_any_value_is_one_line(value: object, text: str) -> None:
    assert any_text(value) == text


@given(st.text() | st.binary() | st.integers() | st.lists(st.text()))
def test_no_value_is_long(value: object) -> None:
    assert len(any_text(value)) < 700
