"""How does a program run without others? Preludes, readers of a store at rest, and recovery run like this."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from lab.explore.world import World
from txlog.core.ages import ClockReading
from txlog.core.effects import Gather, NewId, NewProducerId, Now, Program, PutIfAbsent, ReadClocks, Sleep, StoreNow
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID
from txlog.errors import TxlogError

T = TypeVar("T")

MAX_EFFECTS = 3_000
"""The maximum number of requests of a program, before it counts as endless."""


class _DiedError(Exception):
    """A program was stopped at the requested point."""


def run_alone(world: World, store: int, now_ms: int, program: Program[Any], name: str = "alone") -> tuple[int, Any]:
    """Run a program without other actors. Return the store afterwards, and its result."""
    runner = _Runner(world, store, now_ms, name, None)
    result = runner.run(program)
    return runner.store, result


def run_until(world: World, store: int, now_ms: int, program: Program[Any], before: str, name: str) -> int:
    """Run a program, and kill it before its first conditional write to a path that contains `before`.

    Return the store.
    """
    runner = _Runner(world, store, now_ms, name, before)
    try:
        runner.run(program)
    except _DiedError:
        return runner.store
    raise AssertionError(f"nothing was written to {before!r}")


class _Runner:
    def __init__(self, world: World, store: int, now_ms: int, name: str, before: str | None) -> None:
        self.world, self.store, self.now_ms, self.name, self.before = world, store, now_ms, name, before
        self.drawn = 0

    def run(self, program: Program[T]) -> T:
        answer: Any = None
        send: Callable[[Any], Any] = program.send
        for _ in range(MAX_EFFECTS):
            try:
                effect = send(answer)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            send, answer = program.send, None
            if isinstance(effect, Gather):
                results = [self._result(child) for child in effect.programs]
                error = next((each for each in results if isinstance(each, TxlogError)), None)
                send, answer = (program.send, tuple(results)) if error is None else (program.throw, error)
            elif isinstance(effect, NewId | NewProducerId):
                self.drawn += 1
                unique = hashlib.blake2b(f"{self.name}/{self.drawn}".encode(), digest_size=16).hexdigest()
                is_id = isinstance(effect, NewId)
                answer = unique if is_id else FIRST_DRAWN_PRODUCER_ID + int(unique[:12], 16)
            elif isinstance(effect, Now | StoreNow):
                answer = self.now_ms
            elif isinstance(effect, ReadClocks):
                answer = ClockReading(self.now_ms, self.now_ms)
            elif not isinstance(effect, Sleep):
                if self.before is not None and isinstance(effect, PutIfAbsent) and self.before in effect.path:
                    raise _DiedError
                reply = self.world.answer(self.store, effect, self.world.request_id(effect), self.now_ms)
                answer, self.store = reply.value, reply.store
        raise AssertionError(f"a lone program does not end: {MAX_EFFECTS} effects, the last {effect}"[:200])

    def _result(self, program: Program[Any]) -> Any:
        """Run several programs to their end before raising the first error."""
        try:
            return self.run(program)
        except TxlogError as error:
            return error
