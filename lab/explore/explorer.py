"""Which states can some actors over one store reach? Every one of them is visited, and every rule is checked in each.

A state is a store, a spot for every actor, the requests in flight, the time, and the remaining budget of faults. From a
state the next request of any actor may be answered. Its reply may be lost: it was applied, it was not, or it will be
later. It may be applied, and the adapter's own retry is answered CONFLICT. It may fail, a late request may land, or
time may pass. A crash needs no step: a crashed actor takes no more steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, Protocol, TypeAlias

from lab.explore.machine import Machine, Throw, WaitUntil
from lab.explore.world import START_MS, World
from txlog.core.ages import ClockReading
from txlog.core.effects import Delete, List, Now, PutIfAbsent, PutOutcome, ReadClocks, StoreNow
from txlog.errors import StorageError

State: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int]
"""(store, spots, objects in flight, ticks so far, lost replies left, failures left)."""

_CONFLICT = PutOutcome.CONFLICT
_UNKNOWN = PutOutcome.UNKNOWN


class Watch(Protocol):
    """Checks the reached states; each method returns a description of a fault, or None."""

    def state(self, store: int, clients: tuple[Any, ...]) -> str | None: ...
    def change(self, before: int, after: int, clients: tuple[Any, ...]) -> str | None: ...
    def alone(self, store: int, ticks: int) -> str | None: ...
    def ended(self, clients: dict[str, Any]) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Which faults may happen, how often, and when time passes."""

    lost: int = 0
    """Replies to conditional writes that are lost (or retried inside the adapter)."""
    late: bool = True
    """Whether a write whose reply was lost may also land later."""
    failures: int = 0
    """Requests that fail with StorageError, and were certainly not applied."""
    ticks: tuple[int, ...] = ()
    """The steps of the time, in ms, in this order; each can happen at any point."""


@dataclass(frozen=True, slots=True)
class ClockErrors:
    """The errors of one actor's clocks, in ms: an item for each tick that has passed, the last one for the rest.

    An item that differs from the one before is a step of the clock.
    """

    wall: tuple[int, ...] = (0,)
    monotonic: tuple[int, ...] = (0,)
    """Below 0: the clock did not count, because the machine slept."""

    def wall_ms(self, ticks: int) -> int:
        return self.wall[min(ticks, len(self.wall) - 1)]

    def monotonic_ms(self, ticks: int) -> int:
        return self.monotonic[min(ticks, len(self.monotonic) - 1)]


RIGHT = ClockErrors()
STORE = "the store"
"""The clock of the store, which belongs to no actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken rule, and the steps that lead to it."""

    rule: str
    trace: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Exploration:
    """The result of an exploration."""

    states: int = 0
    transitions: int = 0
    stores: int = 0
    spots: int = 0
    finals: int = 0
    seconds: float = 0.0
    """CPU time of this process only; other work of the machine does not count."""
    complete: bool = False
    violation: Violation | None = None
    ended: set[str] = field(default_factory=set)
    """The kinds of the clients' last notes."""


@dataclass(frozen=True, slots=True)
class _Step:
    who: str
    what: str


class Explorer:
    """One search over one scenario."""

    def __init__(
        self,
        world: World,
        machines: Mapping[str, Machine],
        start: int,
        budget: Budget,
        watch: Watch,
        *,
        order: Literal["breadth", "depth"] = "breadth",
        clocks: Mapping[str, ClockErrors] | None = None,
    ) -> None:
        self.world = world
        clocks = clocks or {}
        self._clocks = tuple(clocks.get(name, RIGHT) for name in machines)
        self._store_clock = clocks.get(STORE, RIGHT)
        self.names = tuple(machines)
        self.machines = tuple(machines.values())
        self.budget = budget
        self.watch = watch
        self.order = order
        self.times = [START_MS]
        for ms in budget.ticks:
            self.times.append(self.times[-1] + ms)
        self.start_store = start
        self._checked_states: set[tuple[Any, ...]] = set()
        self._checked_changes: set[tuple[Any, ...]] = set()
        self._notes: dict[int, int] = {}
        self._checked_alone: set[tuple[int, int]] = set()

    def run(self, *, max_states: int = 50_000_000, max_seconds: float = 1e9) -> Exploration:
        """Explore until every state is reached, a rule is broken, or the limit is reached (then it is not complete)."""
        began = time.process_time()
        found = Exploration()
        spots = tuple(machine.start for machine in self.machines)
        first = self._settle((self.start_store, spots, (), 0, self.budget.lost, self.budget.failures))
        parents: dict[State, State | None] = {first: None}
        waiting: deque[State] = deque([first])
        following = waiting.popleft if self.order == "breadth" else waiting.pop
        wrong = self._check(first)
        if wrong is not None:
            found.violation = Violation(rule=wrong, trace=())
        while waiting and found.violation is None:
            state = following()
            moved = False
            for after in self._after(state):
                moved = True
                found.transitions += 1
                if after[0] != state[0] and (wrong := self._check_change(state, after)) is not None:
                    parents.setdefault(after, state)
                    found.violation = Violation(rule=wrong, trace=self._trace(parents, state, after))
                    break
                if after in parents:
                    continue
                parents[after] = state
                if (wrong := self._check(after)) is not None:
                    found.violation = Violation(rule=wrong, trace=self._trace(parents, state, after))
                    break
                waiting.append(after)
            if not moved:
                found.finals += 1
                clients = dict(zip(self.names, self._clients(state), strict=True))
                found.ended |= {f"{name}: {c.notes[-1].kind if c.notes else 'nothing'}" for name, c in clients.items()}
                if (wrong := self.watch.ended(clients)) is not None:
                    found.violation = Violation(rule=wrong, trace=self._trace(parents, parents[state], state))
                    break
            if found.transitions & 0xFFF == 0 or not moved:
                found.states, found.seconds = len(parents), time.process_time() - began
                if found.states > max_states or found.seconds > max_seconds:
                    break
        else:
            found.complete = found.violation is None
        found.states, found.seconds = len(parents), time.process_time() - began
        found.stores = len({store for store, _ in self._checked_alone})
        found.spots = sum(len(machine.spots) for machine in self.machines)
        return found

    # -- possible next steps ------------------------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[State]:
        return (after for after, _ in self._steps(state, describe=False))

    def _steps(self, state: State, *, describe: bool) -> Iterator[tuple[State, _Step | None]]:
        store, spots, flying, ticks, lost, failures = state
        world = self.world
        for number, machine in enumerate(self.machines):
            spot = spots[number]
            for which, pending in enumerate(machine.spots[spot].pending):
                ask = pending.ask
                if isinstance(ask, WaitUntil):
                    continue

                def go(
                    value: Any, key: Any, store: int, what: str,
                    number: int = number, machine: Machine = machine, spot: int = spot, which: int = which, ask: Any = ask,
                    flying: tuple[int, ...] = flying, lost: int = lost, failures: int = failures,
                ) -> tuple[State, _Step | None]:  # fmt: skip
                    there = machine.step(spot, which, value, key)
                    after = self._settle(
                        (store, (*spots[:number], there, *spots[number + 1 :]), flying, ticks, lost, failures)
                    )
                    return after, _Step(
                        self.names[number], f"{_say(ask)} {what or _say_answer(value)}"
                    ) if describe else None

                if isinstance(ask, Now | ReadClocks | StoreNow):
                    told = self._time(number, ask, ticks)
                    yield go(told, told, store, "")
                    continue
                answer = world.answer(store, ask, world.request_id(ask), self._store_ms(ticks))
                yield go(answer.value, answer.key, answer.store, "")
                if failures:
                    error = Throw(StorageError(f"planned failure of {type(ask).__name__}"))
                    yield go(error, "failed", store, "fails, and is not applied", failures=failures - 1)
                if lost and isinstance(ask, PutIfAbsent):
                    if answer.store != store:
                        yield go(_UNKNOWN, "unknown", answer.store, "is applied, and the reply is lost", lost=lost - 1)
                        yield go(
                            _CONFLICT, world.key(_CONFLICT), answer.store, "is applied, tried again inside the adapter, and answered CONFLICT",
                            lost=lost - 1,
                        )  # fmt: skip
                    yield go(_UNKNOWN, "unknown", store, "is lost, and so is the reply", lost=lost - 1)
                    if self.budget.late:
                        late = tuple(sorted((*flying, world.object_id(ask.path, ask.data))))
                        yield go(
                            _UNKNOWN, "unknown", store, "is on its way, and has no reply", flying=late, lost=lost - 1
                        )
        for position, number in enumerate(flying):
            path, data = world.objects[number]
            rest = (*flying[:position], *flying[position + 1 :])
            after = self._settle(
                (world.put(store, path, data, self._store_ms(ticks)), spots, rest, ticks, lost, failures)
            )
            yield after, _Step("network", f"a late request lands: {path}") if describe else None
        if ticks < len(self.budget.ticks):
            after = self._settle((store, spots, flying, ticks + 1, lost, failures))
            yield after, _Step("clock", f"{self.budget.ticks[ticks] / 1000:,.0f} s pass") if describe else None

    def _settle(self, state: State) -> State:
        """Take every step that commutes with all steps of the others: it needs no separate turn."""
        store, spots, flying, ticks, lost, failures = state
        world = self.world
        if flying:
            # A write lands without effect if an object exists at its path. If this object may be deleted, the write
            # still matters.
            flying = tuple(
                each
                for each in flying
                if world.deletable(world.objects[each][0]) or world.objects[each][0] not in world.files(store)
            )
        last = ticks == len(self.budget.ticks)
        now = self.times[ticks]
        places = list(spots)
        for number, machine in enumerate(self.machines):
            spot = places[number]
            going = True
            while going:
                going = False
                for which, pending in enumerate(machine.spots[spot].pending):
                    ask = pending.ask
                    if isinstance(ask, Now | ReadClocks | StoreNow):
                        if last:
                            told = self._time(number, ask, ticks)
                            spot, going = machine.step(spot, which, told, told), True
                            break
                    elif isinstance(ask, WaitUntil):
                        if now >= START_MS + ask.ms:
                            spot, going = machine.step(spot, which, None, None), True
                            break
                    elif not failures and not isinstance(ask, List | Delete) and world.is_certain(store, ask):
                        answer = world.answer(store, ask, world.request_id(ask), self._store_ms(ticks))
                        store = answer.store
                        spot, going = machine.step(spot, which, answer.value, answer.key), True
                        break
            places[number] = spot
        return (store, tuple(places), flying, ticks, lost, failures)

    def _time(self, number: int, ask: Now | ReadClocks | StoreNow, ticks: int) -> int | ClockReading:
        """Return the time of an actor's clocks, or of the store's."""
        if isinstance(ask, StoreNow):
            return self._store_ms(ticks)
        wall_ms = self.times[ticks] + self._clocks[number].wall_ms(ticks)
        if isinstance(ask, Now):
            return wall_ms
        return ClockReading(wall_ms, self.times[ticks] + self._clocks[number].monotonic_ms(ticks))

    def _store_ms(self, ticks: int) -> int:
        return self.times[ticks] + self._store_clock.wall_ms(ticks)

    # -- rules --------------------------------------------------------------------------------------------------------

    def _clients(self, state: State) -> tuple[Any, ...]:
        return tuple(machine.spots[spot].client for machine, spot in zip(self.machines, state[1], strict=True))

    def _told(self, client: Any) -> int:
        """Return a number for the answers that a client got."""
        found = self._notes.get(id(client))
        if found is None:  # clients live as long as their spots
            found = self._notes[id(client)] = self.world.key(("notes", client.notes))
        return found

    def _check(self, state: State) -> str | None:
        clients = self._clients(state)
        key = (state[0], *map(self._told, clients))
        if key not in self._checked_states:
            self._checked_states.add(key)
            if (wrong := self.watch.state(state[0], clients)) is not None:
                return wrong
        alone = (state[0], state[3])
        if alone not in self._checked_alone:
            self._checked_alone.add(alone)
            return self.watch.alone(*alone)
        return None

    def _check_change(self, before: State, after: State) -> str | None:
        clients = self._clients(before)
        key = (before[0], after[0], *map(self._told, clients))
        if key in self._checked_changes:
            return None
        self._checked_changes.add(key)
        return self.watch.change(before[0], after[0], clients)

    # -- traces -------------------------------------------------------------------------------------------------------

    def _trace(self, parents: dict[State, State | None], last: State | None, after: State) -> tuple[str, ...]:
        chain = [after]
        at = last
        while at is not None:
            chain.append(at)
            at = parents[at]
        chain.reverse()
        lines = []
        for one, two in pairwise(chain):
            step = next((step for reached, step in self._steps(one, describe=True) if reached == two), None)
            assert step is not None
            lines.append(f"{step.who}: {step.what}")
        return tuple(lines)


def _say(ask: Any) -> str:
    if isinstance(ask, PutIfAbsent):
        return f"PUT {ask.path} {_shown(ask.data)}"
    if isinstance(ask, List):
        return f"LIST {ask.prefix}"
    path = getattr(ask, "path", None)
    return f"{type(ask).__name__.upper()} {path}" if path else f"asks for {type(ask).__name__}"


def _say_answer(value: Any) -> str:
    if isinstance(value, PutOutcome):
        return f"-> {value.name}"
    if isinstance(value, bytes):
        return f"-> {_shown(value)}"
    if isinstance(value, tuple):
        return f"-> {len(value)} names, last {value[-1] if value else 'none'}"
    return f"-> {value}"


def _shown(data: bytes) -> str:
    line = data.split(b"\n", 1)[0].decode(errors="replace")
    words = [part for part in line.replace("{", "").replace('"', "").split(",") if part.split(":")[0] in _TELLING]
    return f"({', '.join(words)})" if words else f"({len(data)} bytes)"


_TELLING = {"kind", "producer_id", "producer_epoch", "base_sequence", "state", "records", "offset", "end_offset"}
