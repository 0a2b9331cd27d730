"""Which process is killed, stopped or doubled, and when? One seed decides; the reactions of the processes are not
fixed.

    kill    SIGKILL, and after a while a new instance.
    stop    SIGSTOP, and SIGCONT after a while, sometimes long after its transaction timed out.
    twin    A second instance of the same id beside the first.
    zombie  SIGSTOP, a second instance, SIGCONT: the first one wakes up and does not know.

Calm periods come in between, so that the processes also make progress (as in Jepsen's nemesis).
"""

from __future__ import annotations

import heapq
import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.chaos import plan
from lab.chaos.plan import Assignment, Place, Role
from lab.chaos.processes import Process, Worker
from txlog.clock import Clock, SystemClock

TICK_MS = 20
CALM_MS = 2000
FINISH_MS = 60_000
"""How long a process may take to finish its current work."""
OVERDUE_MS = 13_000
"""A stop that is longer than a transaction's timeout and the interval in which writers look for dead transactions."""
LEAST_COMMITS = 3
"""The least commits of every role that commits, before a storm ends.

On a slow machine a process dies before it has done anything, so a short storm would prove nothing.
"""
LONGEST_MS = 120_000
"""The maximum extension of a storm for that."""

Starter = Callable[[Assignment], Process]


@dataclass(slots=True)
class Slot:
    """A name, and its current instances."""

    role: Role
    name: str
    start: Starter = Worker
    live: list[Process] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """The counts of strikes, by kind and process."""

    started: int = 0
    kills: int = 0
    stops: int = 0
    twins: int = 0
    fenced: int = 0
    """Processes that ended because a newer instance took over."""
    by_role: Counter[str] = field(default_factory=Counter)
    """Kills."""
    failures: list[str] = field(default_factory=list)
    """Processes that ended in an unexpected way."""


class Storm:
    """Runs processes, and ends all of them when the block ends, whatever happened."""

    def __init__(self, place: Place, seed: int, slots: Sequence[Slot], clock: Clock | None = None) -> None:
        self.place = place
        self.slots = list(slots)
        self.tally = Tally()
        self._random = random.Random(seed)
        self._clock = clock or SystemClock()
        self._instances = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._witness = Slot("witness", "witness")
        self._killed: set[int] = set()
        self._dead: list[Process] = []
        """Dead processes whose own child processes may still run. A dead Spark driver's JVM is part of the storm."""
        self._next_fault_ms = 0
        self._finishing = False

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in (*self.slots, self._witness):
            for process in slot.live:
                process.end()
            slot.live = []
        for process in self._dead:
            process.end()

    def run(self, duration_ms: int, progress: Callable[[], None]) -> None:
        """Run the storm for that long, and then until every role has committed LEAST_COMMITS times, for LONGEST_MS at
        most."""
        begin_ms = self._clock.monotonic_ms()
        end_ms = begin_ms + duration_ms
        self._start(self._witness)
        for slot in self.slots:
            self._start(slot)
        self._next_fault_ms = begin_ms + CALM_MS
        while (now_ms := self._clock.monotonic_ms()) < end_ms or (now_ms < end_ms + LONGEST_MS and self._is_early()):
            while self._due and self._due[0][0] <= now_ms:
                heapq.heappop(self._due)[2]()
            self._reap()
            if now_ms >= self._next_fault_ms:
                self._fault()
                calm = self._random.random() < 0.04
                self._next_fault_ms = now_ms + (CALM_MS if calm else self._random.randrange(150, 700))
            progress()
            self._clock.sleep_ms(TICK_MS)

    def calm_down(self, progress: Callable[[], None]) -> None:
        """Let every process finish its work; kill those that do not.

        The witness ends first, because writers end what a dead process leaves open, and the writers end too.
        """
        self._due.clear()
        self._finish([self._witness], progress)
        self._finish([slot for slot in self.slots if slot.live], progress)

    # -- faults -------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        able = [slot for slot in self.slots if slot.live and (slot.role != "spark" or self._is_at_work(slot.live[-1]))]
        if not able:
            return
        slot = self._random.choice(able)
        dice = self._random.random()
        process = slot.live[-1]
        if dice < 0.55 or (slot.role == "spark" and dice < 0.8):
            self._kill(slot, process)
        elif dice < 0.75:
            self._stop(process)
        elif slot.role in plan.HAS_ID and len(slot.live) < 3:
            if dice > 0.88:
                self._stop(process)
            self.tally.twins += 1
            self._start(slot)

    def _is_at_work(self, process: Process) -> bool:
        """Return whether a process that takes long to start has tried to commit.

        Otherwise it would always be killed before.
        """
        history = Path(self.place.histories) / f"{process.assignment.source}.jsonl"
        return history.exists() and b'"op":"end"' in history.read_bytes() and self._random.random() < 0.3

    def _is_early(self) -> bool:
        """Return whether a role that commits has only few commits."""
        return any(self._commits(slot.name) < LEAST_COMMITS for slot in self.slots if slot.role in plan.COMMITS)

    def _commits(self, name: str) -> int:
        histories = Path(self.place.histories).glob(f"{name}-*.jsonl")
        return sum(each.read_bytes().count(b'"outcome":"committed"') for each in histories)

    def _kill(self, slot: Slot, process: Process) -> None:
        self.tally.kills += 1
        self.tally.by_role[slot.role] += 1
        self._killed.add(process.pid)
        process.kill()

    def _stop(self, process: Process) -> None:
        if process.stopped:
            return
        self.tally.stops += 1
        process.stop()
        long = self._random.random() < 0.12
        self._later(OVERDUE_MS if long else self._random.randrange(50, 3000), process.resume)

    def _start(self, slot: Slot) -> None:
        self.tally.started += 1
        assignment = Assignment(
            place=self.place,
            role=slot.role,
            name=slot.name,
            instance=next(self._instances),
            seed=self._random.randrange(2**32),
        )
        slot.live.append(slot.start(assignment))

    def _start_if_empty(self, slot: Slot) -> None:
        if not slot.live:
            self._start(slot)

    def _later(self, wait_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self._clock.monotonic_ms() + wait_ms, next(self._order), action))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for slot in (*self.slots, self._witness):
            for process in list(slot.live):
                status = process.status()
                if status is None:
                    continue
                self._bury(slot, process, status)
                if not slot.live and slot is not self._witness:
                    self._later(self._random.randrange(1500), lambda slot=slot: self._start_if_empty(slot))  # type: ignore[misc]

    def _bury(self, slot: Slot, process: Process, status: int) -> None:
        slot.live.remove(process)
        if process.lingers:
            self._dead.append(process)
        else:
            process.end()
        # A process that was asked to finish before its handler existed dies from the signal.
        expected = {
            0,
            *((-signal.SIGTERM,) if self._finishing else ()),
            *((-signal.SIGKILL,) if process.pid in self._killed else ()),
        }
        if status == plan.FENCED:
            self.tally.fenced += 1
        elif status not in expected:
            self.tally.failures.append(
                f"process {process.pid} ({process.assignment.source}) ended with status {status}"
            )

    def _finish(self, slots: Sequence[Slot], progress: Callable[[], None]) -> None:
        self._finishing = True
        for slot in slots:
            for process in slot.live:
                process.finish()
        deadline_ms = self._clock.monotonic_ms() + FINISH_MS
        while any(slot.live for slot in slots) and self._clock.monotonic_ms() < deadline_ms:
            for slot in slots:
                for process in list(slot.live):
                    status = process.status()
                    if status is not None:
                        self._bury(slot, process, status)
            progress()
            self._clock.sleep_ms(TICK_MS)
        for slot in slots:
            for process in slot.live:
                self._killed.add(process.pid)
                self.tally.kills += 1
                process.end()
            slot.live = []
