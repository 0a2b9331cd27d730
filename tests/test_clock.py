"""Clocks and ids: the machine's keep their contracts, the test kit's are decided by the test."""

from __future__ import annotations

import time

import pytest

from txlog import clock
from txlog.clock import Clock, IdGenerator, SystemClock, SystemIds
from txlog.core import records
from txlog.testing.clock import ManualClock, SeededIds


def test_system_clock_gives_milliseconds() -> None:
    clock: Clock = SystemClock()
    assert 1_600_000_000_000 < clock.now_ms() < 10_000_000_000_000
    before = clock.monotonic_ms()
    clock.sleep_ms(0)
    clock.sleep_ms(-5)
    assert clock.monotonic_ms() >= before


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that counts suspended time")
def test_the_machine_s_sleep_counts_as_age(monkeypatch: pytest.MonkeyPatch) -> None:
    def clock_gettime_ns(clock: int) -> int:
        return {time.CLOCK_BOOTTIME: 90_000_000_000_000, time.CLOCK_MONOTONIC: 1_000_000}[clock]

    monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
    assert SystemClock().monotonic_ms() == 90_000_000


def test_the_core_knows_a_drawn_producer_id_by_the_same_bound() -> None:
    """The core may not import the module that asks the machine for the time, so the number stands twice."""
    assert clock.FIRST_DRAWN_PRODUCER_ID == records.FIRST_DRAWN_PRODUCER_ID


@pytest.mark.parametrize("ids", [SystemIds(), SeededIds(1)], ids=lambda ids: type(ids).__name__)
def test_ids_keep_their_contract(ids: IdGenerator) -> None:
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
