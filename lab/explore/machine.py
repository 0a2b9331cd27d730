"""Where is one actor, which requests may it make next, and where is it after an answer?

An actor is a script of calls; each takes a client (a value) and is a generator that returns the next one. A place in a
script is a *spot*: a number for (call, value of the client, frames of the suspended generators). An answer is a look-up
in a table. Only a new pair of spot and answer runs shipped code, from the beginning of its call or from a generator
that still waits there. The programs of a Gather have their own spots and advance in every order. They may read what
their parent holds, and share nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lab.explore.frames import canonical, fingerprint
from lab.explore.world import Request
from txlog.core.effects import Gather, NewId, NewProducerId, Now, ReadClocks, Sleep, StoreNow
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID

MAX_LIVE = 30_000
"""Suspended generators that are kept so that the first answer at a spot costs no replay."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait until that long after the scenario began: an effect of the test kit's own programs. The answer is None."""

    ms: int


@dataclass(frozen=True, slots=True)
class Throw:
    """An answer that is raised."""

    error: Exception

    @property
    def key(self) -> Hashable:
        return (type(self.error), str(self.error))


Ask: TypeAlias = Request | Now | ReadClocks | StoreNow | WaitUntil
Call: TypeAlias = Callable[[Any], Generator[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Pending:
    """One request for which an actor waits, and the concurrent program that made it."""

    path: tuple[int, ...]
    ask: Ask


@dataclass(slots=True)
class _Spot:
    program: int
    history: tuple[Any, ...]
    effect: Any = None
    children: tuple[int, ...] = ()
    base: int = -1
    """For a Gather with spots for its programs: the spot of the Gather itself."""
    result: Any = None
    ended: bool = False
    pending: tuple[Pending, ...] = ()
    client: Any = None
    drawn: int = 0
    edges: dict[tuple[int, Hashable], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    """The actor's name, for the ids that it draws."""
    call: int
    client: Any = None
    parent: int = -1
    child: int = -1


class _Drawn:
    """The ids that a running program draws. They are counted, so that a replay draws the same."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Machine:
    """The spots of one actor."""

    def __init__(self, name: str, client: Any, script: Sequence[Call], *, in_turn: bool = False) -> None:
        self.name = name
        self.in_turn = in_turn
        """Whether the programs of its Gathers run one after the other, in order. This is one of the possible orders."""
        self.script = tuple(script)
        self.spots: list[_Spot] = []
        self._programs: list[_Program] = []
        self._program_ids: dict[Hashable, int] = {}
        self._spot_ids: dict[Hashable, int] = {}
        self._live: dict[int, tuple[Generator[Any, Any, Any], _Drawn]] = {}
        self.replays = 0
        self.start = self._begin(0, client)

    def pending(self, spot: int) -> tuple[Pending, ...]:
        """Return the actor's requests at the spot; an ended actor has none."""
        return self.spots[spot].pending

    def client(self, spot: int) -> Any:
        """Return the client as the last finished call left it."""
        return self.spots[spot].client

    def step(self, spot: int, number: int, value: Any, key: Hashable) -> int:
        """Return the spot after the answer to the `number`-th pending request; `key` represents the value."""
        edge = (number, key)
        found = self.spots[spot].edges.get(edge)
        if found is None:
            path = self.spots[spot].pending[number].path
            found = self.spots[spot].edges[edge] = self._advance(spot, path, value)
        return found

    # -- programs -----------------------------------------------------------------------------------------------------

    def _begin(self, call: int, client: Any) -> int:
        """Return the first spot of a call, or the final spot of the script if it has no such call."""
        stopped = call >= len(self.script) or getattr(client, "stopped", False)
        key = ("call", len(self.script) if stopped else call, canonical(client))
        program = self._program_ids.get(key)
        if program is None:
            program = self._program_ids[key] = len(self._programs)
            self._programs.append(_Program(f"{self.name}.{call}", call, client))
        if stopped:
            return self._spot((program, "stopped"), lambda: _Spot(program, (), ended=True, client=client))
        return self._enter(program, ())

    def _generator(self, program: int) -> Generator[Any, Any, Any]:
        made = self._programs[program]
        if made.parent < 0:
            return self.script[made.call](made.client)
        parent = self.spots[made.parent]
        _, gather, _ = self._replay(parent.program, parent.history)
        return gather.programs[made.child]  # type: ignore[no-any-return]

    def _replay(self, program: int, history: tuple[Any, ...]) -> tuple[Generator[Any, Any, Any], Any, _Drawn]:
        """Replay a generator to the point after these answers. Return it, its effect, and what it has drawn."""
        self.replays += 1
        running, drawn = self._generator(program), _Drawn()
        effect = self._send(program, running, drawn, None, first=True)
        for value in history:
            effect = self._send(program, running, drawn, value)
        return running, effect, drawn

    def _send(
        self, program: int, running: Generator[Any, Any, Any], drawn: _Drawn, value: Any, *, first: bool = False
    ) -> Any:
        """Return the next effect that the program cannot answer itself; StopIteration when it returns."""
        effect = next(running) if first else _answer(running, value)
        while True:
            if isinstance(effect, Sleep):
                effect = running.send(None)
            elif isinstance(effect, NewId | NewProducerId):
                drawn.count += 1
                unique = hashlib.blake2b(
                    f"{self._programs[program].name}/{drawn.count}".encode(), digest_size=16
                ).hexdigest()
                is_id = isinstance(effect, NewId)
                effect = running.send(unique if is_id else FIRST_DRAWN_PRODUCER_ID + int(unique[:12], 16))
            else:
                drawn.count += isinstance(effect, Gather)  # each of its programs has its own ids
                return effect

    # -- spots --------------------------------------------------------------------------------------------------------

    def _advance(self, spot: int, path: tuple[int, ...], value: Any) -> int:
        at = self.spots[spot]
        if at.base < 0:
            return self._enter(at.program, (*at.history, value), self._live.pop(spot, None))
        number = path[0]
        child = self._advance(at.children[number], path[1:], value)
        return self._gathered(at.base, (*at.children[:number], child, *at.children[number + 1 :]))

    def _enter(
        self,
        program: int,
        history: tuple[Any, ...],
        live: tuple[Generator[Any, Any, Any], _Drawn] | None = None,
    ) -> int:
        """Return the spot after `history`; `live` is a generator that waits for its last answer."""
        try:
            if live is None:
                running, effect, drawn = self._replay(program, history)
            else:
                running, drawn = live
                first = not history
                effect = self._send(program, running, drawn, None if first else history[-1], first=first)
        except StopIteration as stop:
            return self._ended(program, history, stop.value)
        except Exception as error:
            return self._ended(program, history, Throw(error))
        key = (program, drawn.count, fingerprint(running))
        client = self._client_of(program)
        count = drawn.count
        spot = self._spot(key, lambda: _Spot(program, history, effect, client=client, drawn=count))
        if len(self._live) >= MAX_LIVE:
            self._live.clear()
        self._live[spot] = (running, drawn)
        if isinstance(effect, Gather):
            return self._gather(spot, effect.programs)
        self.spots[spot].pending = (Pending((), effect),)
        return spot

    def _ended(self, program: int, history: tuple[Any, ...], value: Any) -> int:
        made = self._programs[program]
        if made.parent < 0:
            if isinstance(value, Throw):
                value = made.client.broken(value.error)
            return self._begin(made.call + 1, value)
        key = (program, "ended", value.key if isinstance(value, Throw) else canonical(value))
        return self._spot(key, lambda: _Spot(program, history, result=value, ended=True))

    def _gather(self, spot: int, programs: tuple[Generator[Any, Any, Any], ...]) -> int:
        children = []
        for number, running in enumerate(programs):
            key = ("child", spot, number)
            program = self._program_ids.get(key)
            if program is None:
                program = self._program_ids[key] = len(self._programs)
                above = self.spots[spot]
                name = f"{self._programs[above.program].name}/{above.drawn}.{number}"
                self._programs.append(_Program(name, -1, parent=spot, child=number))
            children.append(self._enter(program, (), (running, _Drawn())))
        return self._gathered(spot, tuple(children))

    def _gathered(self, base: int, children: tuple[int, ...]) -> int:
        at = self.spots[base]
        if all(self.spots[child].ended for child in children):
            results = [self.spots[child].result for child in children]
            error = next((result for result in results if isinstance(result, Throw)), None)
            value: Any = error if error is not None else tuple(results)
            # This generator made the programs, and they use its locals, so a different generator must continue.
            self._live.pop(base, None)
            return self._enter(at.program, (*at.history, value))
        running = [(number, child) for number, child in enumerate(children) if not self.spots[child].ended]
        pending = tuple(
            Pending((number, *each.path), each.ask)
            for number, child in (running[:1] if self.in_turn else running)
            for each in self.spots[child].pending
        )
        client = at.client
        return self._spot(
            ("gathered", base, children),
            lambda: _Spot(at.program, at.history, at.effect, children, base, pending=pending, client=client),
        )

    def _client_of(self, program: int) -> Any:
        made = self._programs[program]
        return made.client if made.parent < 0 else self.spots[made.parent].client

    def _spot(self, key: Hashable, make: Callable[[], _Spot]) -> int:
        found = self._spot_ids.get(key)
        if found is None:
            found = self._spot_ids[key] = len(self.spots)
            self.spots.append(make())
        return found


def _answer(running: Generator[Any, Any, Any], value: Any) -> Any:
    return running.throw(value.error) if isinstance(value, Throw) else running.send(value)
