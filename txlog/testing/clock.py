"""How do tests control time and ids? With a clock that moves only when told, and ids that follow from a seed.

Threads may share both, because the driver runs a Gather in threads.
"""

from __future__ import annotations

import random
import threading

from txlog.core.records import FIRST_DRAWN_PRODUCER_ID

DEFAULT_NOW_MS = 1_700_000_000_000


class ManualClock:
    """A `Clock` that stands still until `advance_ms` or `sleep_ms` moves it. Both of its times move together.

    A sleep takes `oversleeps_ms` longer than asked, because every real sleep takes a little longer. So a thread that
    waits until a deadline wakes up after it.
    """

    def __init__(self, now_ms: int = DEFAULT_NOW_MS, *, oversleeps_ms: int = 0) -> None:
        self._oversleeps_ms = oversleeps_ms
        self._now_ms = now_ms
        self._monotonic_ms = 0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def sleep_ms(self, ms: int) -> None:
        if ms > 0:
            self.advance_ms(ms + self._oversleeps_ms)

    def advance_ms(self, ms: int) -> None:
        """Move the time forward by `ms` milliseconds. Raises ValueError for negative ones: see `step_wall_ms`."""
        if ms < 0:
            raise ValueError(f"time passes forwards, got {ms} ms; step_wall_ms sets the wall clock back")
        with self._lock:
            self._now_ms += ms
            self._monotonic_ms += ms

    def step_wall_ms(self, ms: int) -> None:
        """Set the wall clock forward or back without time passing, as an administrator or NTP does."""
        with self._lock:
            self._now_ms += ms


class SeededIds:
    """An `IdGenerator` whose ids follow from `seed`. Generators with different seeds share no id."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._seed = seed % 2**32
        self._count = 0
        self._lock = threading.Lock()

    def new_id(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self._seed:08x}{self._count:024x}"

    def new_producer_id(self) -> int:
        with self._lock:
            return FIRST_DRAWN_PRODUCER_ID + self._random.randrange(2**62)

    def jitter(self, ms: int) -> int:
        if ms <= 0:
            return 0
        with self._lock:
            return ms // 2 + self._random.randrange(ms + 1)
