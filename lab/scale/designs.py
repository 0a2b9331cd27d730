"""Which way to combine many writers in one partition is the fastest, and what does it cost? See many-writers.md.

Unlike `lab.scale.model`, nothing here is the shipped protocol: a design is a sequence of requests, without states and
failures. It is compared before it is built. The times of requests are those of `lab.scale.model`, and what a request
does happens when it ends.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lab.scale.model import SPREAD

Design: TypeAlias = Literal["turns", "two phases", "decision aside", "one phase, by name", "one phase, by copy"]
Steps: TypeAlias = "Generator[Request | Wait | Both, Any, Any]"

DESIGNS: tuple[Design, ...] = ("turns", "two phases", "decision aside", "one phase, by name", "one phase, by copy")
LOOK_MS = 1000
"""How often a writer that appends all the time looks whether others wait."""
LEADER_LOOKS_MS, LEADER_RESTS_MS = 30, 60
"""How often a leader looks while it leads, and how long it waits between two records. If records came as fast as
requests, a writer that follows by name would never reach the newest one."""
FIRST_LOOK_MS = 30
"""How long a waiting writer waits before it looks for its result."""
PATIENCE_MS = 180
"""A waiting writer that sees no new record for once or twice as long tries to lead."""


@dataclass(frozen=True, slots=True)
class Request:
    kind: Literal["put", "get", "list"]
    act: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Wait:
    ms: float


@dataclass(frozen=True, slots=True)
class Both:
    """Run these at the same time, and go on when all have ended."""

    steps: Sequence[Steps]


@dataclass(slots=True)
class Clock:
    """Virtual time, and the requests that are under way."""

    latency_ms: float
    draw: random.Random
    now_ms: float = 0
    counts: bool = False
    requests: Counter[str] = field(default_factory=Counter)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    def start(self, steps: Steps, ended: Callable[[Any], None] = lambda _: None) -> None:
        def go(value: Any = None) -> None:
            try:
                what = steps.send(value)
            except StopIteration as end:
                ended(end.value)
                return
            self._do(what, go)

        go()

    def run(self, until_ms: float) -> None:
        while self._due and self._due[0][0] < until_ms:
            self.now_ms, _, act = heapq.heappop(self._due)
            act()

    def _do(self, what: Request | Wait | Both, go: Callable[[Any], None]) -> None:
        if isinstance(what, Wait):
            self._at(what.ms, lambda: go(None))
        elif isinstance(what, Request):
            self.requests[what.kind] += self.counts
            self._at(self.latency_ms * self.draw.lognormvariate(0, SPREAD), lambda: go(what.act()))
        else:
            left = len(what.steps)

            def one(_: Any) -> None:
                nonlocal left
                left -= 1
                if not left:
                    go(None)

            for steps in what.steps:
                self.start(steps, one)

    def _at(self, ms: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._due, (self.now_ms + ms, self._number, act))


@dataclass(slots=True)
class Chain:
    """A partition: its records, each with the items that it combines, and the items that wait."""

    clock: Clock
    copies: bool = True
    """Whether a leader reads what waits, and copies it into the record."""
    records: list[list[int]] = field(default_factory=list)
    waiting: dict[int, bool] = field(default_factory=dict)
    leads: dict[int, list[tuple[int, list[bool]]]] = field(default_factory=dict)
    """Leaders, each with its own items that the next record takes."""

    def put(self, slot: int, items: list[int]) -> Request:
        def act() -> bool:
            if slot != len(self.records):
                return False
            self.records.append(items)
            for item in items:
                self.waiting.pop(item, None)
            return True

        return Request("put", act)

    def get(self, slot: int) -> Request:
        return Request("get", lambda: self.records[slot] if slot < len(self.records) else None)

    def list(self) -> Request:
        return Request("list", lambda: [*self.waiting])


@dataclass(slots=True)
class Seen:
    """What one writer knows of a chain."""

    next: int = 0
    shared: bool = False
    """Whether it has met others here: it does not try a slot of its own first."""
    looked_at_ms: float = -1e9
    others_wait: bool = False


def take_turns(chain: Chain, seen: Seen, item: int) -> Steps:
    """Append as txlog 0.9 does: the loser of a slot reads it, and tries the next."""
    race = 0
    while not (yield chain.put(seen.next, [item])):
        yield chain.get(seen.next)
        seen.next += 1
        if race:
            while (yield chain.get(seen.next)) is not None:
                seen.next += 1
            yield Wait(chain.clock.draw.random() * 8)
        race += 1
    seen.next += 1


def combine(chain: Chain, seen: Seen, item: int, writer: int) -> Steps:
    """Append without others as long as there are none. Otherwise wait for a leader, or become one."""
    clock = chain.clock
    if seen.others_wait and writer not in chain.leads:
        chain.leads[writer] = []
        clock.start(_lead(chain, seen.next, set(), writer))
    seen.others_wait = False
    if writer in chain.leads:
        answer: list[bool] = []
        chain.leads[writer].append((item, answer))
        while not answer:
            yield Wait(5)
        seen.next = len(chain.records)
        if answer[0]:
            return
        seen.shared = True
    if not seen.shared:
        if clock.now_ms - seen.looked_at_ms > LOOK_MS:
            seen.looked_at_ms = clock.now_ms
            clock.start(_look(chain, seen))
        won = yield chain.put(seen.next, [item])
        if not won:
            yield chain.get(seen.next)
        seen.next += 1
        if won:
            return
        seen.shared = True
    yield Request("put", lambda: chain.waiting.update({item: True}))
    yield Wait(FIRST_LOOK_MS)
    moved_at_ms, patience_ms = clock.now_ms, PATIENCE_MS * (1 + clock.draw.random())
    while True:
        if clock.now_ms - moved_at_ms > patience_ms:
            if (yield chain.put(seen.next, [item])):
                seen.next += 1
                chain.leads[writer] = []
                clock.start(_lead(chain, seen.next, {item}, writer))
                return
            patience_ms = PATIENCE_MS * (1 + clock.draw.random())
        items = yield chain.get(seen.next)
        if items is not None:
            seen.next += 1
            moved_at_ms = clock.now_ms
            if item in items:
                return


def _look(chain: Chain, seen: Seen) -> Steps:
    seen.others_wait = bool((yield chain.list()))


def _lead(chain: Chain, slot: int, taken: set[int], writer: int) -> Steps:
    """Append what waits, record after record, until nothing waits or another writer has the slot."""
    clock, ready, idle, leading = chain.clock, [], 0, True

    def collect() -> Steps:
        nonlocal idle
        new = [item for item in (yield chain.list()) if item not in taken]
        taken.update(new)
        idle = 0 if new else idle + 1
        if not chain.copies:
            ready.extend(new)
        for item in new if chain.copies else ():
            clock.start(read(item))

    def read(item: int) -> Steps:
        ready.append((yield Request("get", lambda: item)))

    def look_again_and_again() -> Steps:
        while leading:
            clock.start(collect())
            yield Wait(LEADER_LOOKS_MS)

    clock.start(look_again_and_again())
    own: list[tuple[int, list[bool]]] = []
    while ready or idle <= 6:
        own, chain.leads[writer] = chain.leads[writer], []
        items = [*ready, *(item for item, _ in own)]
        ready.clear()
        if not items:
            yield Wait(5)
            continue
        taken.update(items)
        won = yield chain.put(slot, items)
        slot += 1
        for _, answer in own:
            answer.append(won)
        if not won:
            break
        yield Wait(LEADER_RESTS_MS)
    leading = False
    for _, answer in chain.leads.pop(writer):
        answer.append(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the writers of one design achieved."""

    design: Design
    writers: int
    partitions: int
    commits_per_second: float
    p50_ms: float
    p99_ms: float
    requests_per_commit: float


def compare(
    design: Design, writers: int, partitions: int, *, latency_ms: float = 60, table: int = 50, seconds: int = 20
) -> Outcome:
    """Let each writer commit one transaction after the other to its partition, and return what they achieved."""
    clock = Clock(latency_ms, random.Random(0))
    places = random.Random(1)
    logs = [Chain(clock, design != "one phase, by name") for _ in range(partitions)]
    states = [Chain(clock) for _ in range(table)]
    took_ms: list[float] = []

    def write(number: int) -> Steps:
        log, state = logs[number % partitions], states[places.randrange(table)]
        seen, seen_state = Seen(), Seen()
        yield Wait(places.random() * 500)
        for item in range(number, 2**62, writers):
            asked_at_ms = clock.now_ms
            if design == "turns":
                yield from take_turns(state, seen_state, item)
                yield from take_turns(log, seen, item)
            else:
                if design == "two phases":
                    yield from combine(state, seen_state, item, number)
                elif design == "decision aside":
                    yield Request("put", lambda: None)
                yield from combine(log, seen, item, number)
            if clock.counts:
                took_ms.append(clock.now_ms - asked_at_ms)

    for number in range(writers):
        clock.start(write(number))
    clock.run(10_000)
    clock.counts = True
    clock.run(10_000 + seconds * 1000)
    took_ms.sort()
    return Outcome(
        design=design,
        writers=writers,
        partitions=partitions,
        commits_per_second=len(took_ms) / seconds,
        p50_ms=took_ms[len(took_ms) // 2],
        p99_ms=took_ms[len(took_ms) * 99 // 100],
        requests_per_commit=clock.requests.total() / len(took_ms),
    )


if __name__ == "__main__":
    for load in ((1, 1), (2, 1), (10, 1), (100, 1), (1000, 64)):
        for each in DESIGNS:
            found = compare(each, *load)
            print(
                f"| {found.writers:,} | {found.partitions} | {each} | {found.commits_per_second:,.1f} | "
                f"{found.p50_ms:,.0f} | {found.p99_ms:,.0f} | {found.requests_per_commit:.1f} |",
                flush=True,
            )
