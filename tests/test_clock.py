"""Clocks and ids: the machine's ones keep their contracts, and the test controls those of the test kit."""

from __future__ import annotations

import pickle
import time

import pytest

from txlog import clock
from txlog.clock import Clock, IdGenerator, SystemClock, SystemIds
from txlog.core.ages import ClockReading
from txlog.testing.clock import ManualClock, SeededIds


def test_system_clock_gives_milliseconds() -> None:
    clock: Clock = SystemClock()
    assert 1_600_000_000_000 < clock.now_ms() < 10_000_000_000_000
    before = clock.monotonic_ms()
    clock.sleep_ms(0)
    clock.sleep_ms(-5)
    assert clock.monotonic_ms() >= before


@pytest.mark.parametrize(
    ("platform", "counts"),
    [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC"), ("win32", None), ("freebsd14", None)],
)
def test_the_machine_s_sleep_counts_as_age(platform: str, counts: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each platform's clock that counts sleep; without one, time.monotonic() and the wall clock."""
    told = {"CLOCK_BOOTTIME": 7, "CLOCK_MONOTONIC": 6, "CLOCK_UPTIME_RAW": 8}
    for name, number in told.items():
        monkeypatch.setattr(time, name, number, raising=False)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda number: number * 1_000_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1_000_000_000)
    monkeypatch.setattr(clock, "_AGEING_CLOCK", clock._ageing_clock(platform))
    assert SystemClock().monotonic_ms() == (1_000 if counts is None else told[counts] * 1_000)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_an_old_system_that_lacks_the_clock_has_the_other_one(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        monkeypatch.delattr(time, name, raising=False)
    assert clock._ageing_clock(platform) is None


def test_an_age_is_what_the_clock_says_that_says_more() -> None:
    then = ClockReading(1_000_000, 5_000)
    assert ClockReading(1_000_700, 5_700).ms_since(then) == 700
    assert ClockReading(1_000_700, 5_000).ms_since(then) == 700  # the monotonic clock stood still
    assert ClockReading(400_000, 5_700).ms_since(then) == 700  # the wall clock was set back
    assert ClockReading(9_000_000, 5_700).ms_since(then) == 8_000_000  # ... or forward
    assert pickle.loads(pickle.dumps(then)) == ClockReading(1_000_000)
    # another process has a different monotonic clock
    assert ClockReading(1_000_700, 99_999).ms_since(ClockReading(1_000_000)) == 700


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(1)], ids=lambda ids: type(ids).__name__)
def test_ids_keep_their_contract(ids: IdGenerator) -> None:
    """Ids are new, and drawn producer ids are not those of a coordinator (W4, W18)."""
    names = {ids.new_id() for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    assert all(2**62 <= ids.new_producer_id() < 2**63 for _ in range(100))
    assert all(50 <= ids.jitter(100) <= 150 for _ in range(200))
    assert (ids.jitter(0), ids.jitter(-3)) == (0, 0)


def test_seeded_ids_follow_from_the_seed() -> None:
    def draw(seed: int) -> list[object]:
        ids = SeededIds(seed)
        return [ids.new_id(), ids.new_producer_id(), ids.jitter(1000), ids.new_id()]

    assert draw(7) == draw(7)
    assert not set(draw(7)) & set(draw(8))


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    clock.sleep_ms(5)
    clock.advance_ms(10)
    clock.sleep_ms(-1)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1015, 15)
    clock.step_wall_ms(-500)
    assert (clock.now_ms(), clock.monotonic_ms()) == (515, 15)
    with pytest.raises(ValueError, match="step_wall_ms"):
        clock.advance_ms(-1)
