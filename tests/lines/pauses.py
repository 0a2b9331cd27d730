"""Where can a process stop for a long time, and what happens if others go on meanwhile?

A process learns that time has passed from two things alone: its clocks, and the answers of the store. So the lines
between two of these *steps* are alike, and a pause before each of them stands for a pause at each line. `Steps` counts
them in all threads of one process. It can also pause at a line of the calling thread, which needs many more runs and
shows that nothing else tells the time.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from tests.lines.at_line import Line, at_line, lines_of, not_counted

STORE = ("storage/memory.py", "testing/clock.py")
"""The store and the clock of the tests. They are not part of the process that is paused."""


PATIENT = {"default.api.timeout.ms": 1_000_000_000, "max.block.ms": 1_000_000_000, "delivery.timeout.ms": 1_000_000_000}
"""Time-outs that are longer than the pauses. Otherwise most calls would end in a time-out, and show nothing else."""


class Step(NamedTuple):
    """The `nth` step (from 1) of a call: a reading of a clock, or a request before or after the store has answered
    it."""

    nth: int
    what: str

    def __str__(self) -> str:
        return f"step {self.nth} ({self.what})"


class Steps:
    """The steps of one process while a call runs in it, and the pause before one of them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._act: Callable[[], None] | None = None
        self._at: Step | None = None
        self.seen: list[Step] | None = None
        self.since = -1
        """Steps since the pause ended; -1 before that."""

    def take(self, what: str) -> None:
        """Note a step. All threads of the process stand still while it is paused."""
        with self._lock:
            if self.since >= 0:
                self.since += 1
            elif self.seen is not None:
                self.seen.append(Step(len(self.seen) + 1, what))
                # Another thread may have taken a step earlier or later this time: the number decides.
                if self._at is not None and self._at.nth == len(self.seen):
                    self.pause()
                    self.since = 1

    def pause(self) -> None:
        """Let the others go on while this process stands still."""
        act, self._act, self.seen = self._act, None, None
        if act is not None:
            with not_counted():
                act()
            self.since = 0

    def of(self, call: Callable[[], object]) -> list[Step]:
        """Return the steps of a call."""
        self.seen = []
        try:
            call()
            return self.seen
        finally:
            self.seen = None

    def paused(self, where: Step | Line, act: Callable[[], None], call: Callable[[], object]) -> object:
        """Run a call, and `act` before `where`. Return and raise what the call does."""
        self._act = act
        self._at, self.seen = (where, []) if isinstance(where, Step) else (None, None)
        block: AbstractContextManager[None] = at_line(where, self.pause) if isinstance(where, Line) else nullcontext()
        try:
            with block:
                return call()
        finally:
            self._act = self._at = self.seen = None

    def lines_of(self, call: Callable[[], object]) -> list[Line]:
        """Return the lines of the process that a call runs."""
        return [line for line in lines_of(call) if line.file not in STORE]


Where = Step | Line
Meanwhile = Callable[..., None]


def every(points: Sequence[Where], meanwhile: Sequence[Meanwhile]) -> list[tuple[Where, Meanwhile]]:
    """Return each point with each thing that may happen meanwhile."""
    return list(itertools.product(points, meanwhile))


def some(
    points: Sequence[Where], meanwhile: Sequence[Meanwhile], number: int, count: int
) -> list[tuple[Where, Meanwhile]]:
    """Return `count` points that are spread over the call, each with one thing; other ones for each `number` of a
    case."""
    count = min(count, len(points))
    at = [(2 * turn + 1) * len(points) // (2 * count) + number % 3 for turn in range(count)]
    return [
        (points[min(each, len(points) - 1)], meanwhile[(number + turn) % len(meanwhile)])
        for turn, each in enumerate(at)
    ]


def judge_all(chosen: Sequence[tuple[Where, Meanwhile]], life: Callable[[Any, Meanwhile], bool]) -> None:
    """Live each life, and report all that fail."""
    wrong = []
    for where, meanwhile in chosen:
        try:
            while not life(where, meanwhile) and isinstance(where, Step) and where.nth > 1:
                # Its threads took fewer steps this time, so an earlier one stands for it.
                where = Step(where.nth // 2, "")
        except Exception as error:
            wrong.append(f"{where}, {meanwhile.__name__}: {type(error).__name__}: {str(error)[:600]}")
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong)


class SlowClock:
    """A clock whose readings are steps of its process."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps

    def now_ms(self) -> int:
        self._steps.take("now_ms")
        found: int = self._inner.now_ms()
        return found

    def monotonic_ms(self) -> int:
        self._steps.take("monotonic_ms")
        found: int = self._inner.monotonic_ms()
        return found

    def sleep_ms(self, ms: int) -> None:
        self._steps.take("sleep_ms")
        self._inner.sleep_ms(ms)


class SlowStore:
    """A store whose requests are two steps of the process: before and after the store has answered."""

    def __init__(self, inner: Any, steps: Steps) -> None:
        self._inner, self._steps = inner, steps
        self.url, self.place = inner.url, inner.place

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(path: str, *arguments: Any, **named: Any) -> Any:
            self._steps.take(f"before {verb} {path}")
            try:
                return found(path, *arguments, **named)
            finally:
                self._steps.take(f"after {verb} {path}")

        return request
