"""How far may the log start move? Kafka's rules for whole segments, and the limit that a group sets."""

from __future__ import annotations

import pytest

from txlog.core import retention
from txlog.core.names import SegmentName
from txlog.core.records import OffsetValue
from txlog.core.retention import Hold, SealedBytes


def sealed(base: int, end: int, newest_ms: int | None = 0, size: int = 10) -> SealedBytes:
    return SealedBytes(name=SegmentName(base, end, 0), bytes=size, rows=end - base, newest_ms=newest_ms)


@pytest.mark.parametrize(
    ("newest_ms", "retention_ms", "expired"),
    [
        (0, -1, False),
        (0, 100, False),
        (0, 99, True),
        (99, 0, True),
        (100, 0, False),
        (500, 10, False),
        (None, 10, True),
    ],
)
def test_a_segment_expires_once_its_newest_row_is_older(
    newest_ms: int | None, retention_ms: int, expired: bool
) -> None:
    assert retention.is_expired(newest_ms, 100, retention_ms) is expired


def test_by_time_the_oldest_go_up_to_the_first_that_is_young() -> None:
    young_between = [sealed(0, 4, 1), sealed(4, 8, 2), sealed(8, 12, 95), sealed(12, 16, 3)]
    assert retention.end_by_time(young_between, 100, 50) == 8
    assert retention.end_by_time(young_between[2:], 100, 50) == 0
    assert retention.end_by_time([], 100, 50) == 0


def test_an_empty_run_goes_with_what_follows_it_and_never_alone() -> None:
    assert retention.end_by_time([sealed(0, 4, None), sealed(4, 8, 99)], 100, 50) == 0
    assert retention.end_by_time([sealed(0, 4, None), sealed(4, 8, 1), sealed(8, 12, None)], 100, 50) == 8


@pytest.mark.parametrize(
    ("retention_bytes", "end"),
    [(-1, 0), (0, 12), (5, 12), (6, 8), (15, 8), (16, 4), (25, 4), (26, 0), (1000, 0)],
)
def test_by_bytes_the_log_never_becomes_smaller_than_that(retention_bytes: int, end: int) -> None:
    newest_first = [sealed(8, 12), sealed(4, 8), sealed(0, 4)]
    assert retention.end_by_bytes(newest_first, 5, retention_bytes) == end


def test_only_whole_segments_below_the_lso_go() -> None:
    """The log start moves over whole segments, not above the LSO and not into the active one (C7)."""
    walk = [SegmentName(0, 4, 0), SegmentName(4, 12, 1, "aaaaaaaa"), SegmentName(12, 16, 0)]
    assert retention.bounded_end(walk, 16, 20, None) == 16
    assert retention.bounded_end(walk, 16, 15, None) == 12
    assert retention.bounded_end(walk, 16, 11, None) == 4
    assert retention.bounded_end(walk, 16, 3, None) == 0
    assert retention.bounded_end(walk, 16, 20, Hold(group="g", offset=12, until_ms=0)) == 12
    assert retention.bounded_end(walk, 16, 20, Hold(group="g", offset=11, until_ms=0)) == 4


def test_a_group_holds_as_long_as_it_lives() -> None:
    committed = {
        "live": OffsetValue(offset=7, timestamp=90),
        "slow": OffsetValue(offset=3, timestamp=50),
        "dead": OffsetValue(offset=1, timestamp=49),
    }
    assert retention.holds_of(committed, 100, 50) == (
        Hold(group="slow", offset=3, until_ms=100),
        Hold(group="live", offset=7, until_ms=140),
    )
    assert [hold.group for hold in retention.holds_of(committed, 10**15, -1)] == ["dead", "slow", "live"]
    assert retention.holds_of({}, 100, 50) == ()
