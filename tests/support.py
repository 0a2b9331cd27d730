"""How do tests run a protocol program without a driver? Over a dict, one effect at a time, with hooks for the
unexpected.

`drive` is the loop. `World` keeps the time, the ids and the requests. A test can answer an effect itself: to lose a
reply, to let another writer go first, or to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from txlog.core.ages import ClockReading
from txlog.core.effects import (
    Delete,
    Effect,
    Gather,
    Get,
    List,
    NewId,
    NewProducerId,
    Now,
    Program,
    PutIfAbsent,
    PutOutcome,
    ReadClocks,
    Sleep,
    StoreNow,
)

T = TypeVar("T")
Store = dict[str, bytes]
ASK_STORE = object()
"""A hook returns this if the store should answer the effect as usual."""


class World:
    """A store as a dict, a clock that moves with each sleep, and ids that count up."""

    def __init__(self) -> None:
        self.store: Store = {}
        self.now_ms = 1_600_000_000_000
        self.monotonic_ms = 0
        self.requests: list[Effect] = []
        """Every effect that asks the store, in order."""
        self.hook: Callable[[Effect], Any] = lambda effect: ASK_STORE
        """Called first with each effect. It answers the effect, raises into the program, or returns ASK_STORE."""
        self._ids = 0

    def run(self, program: Program[T]) -> T:
        return drive(program, self.answer)

    def answer(self, effect: Effect) -> Any:
        if isinstance(effect, Get | List | PutIfAbsent | Delete):
            self.requests.append(effect)
        hooked = self.hook(effect)
        if hooked is not ASK_STORE:
            return hooked
        match effect:
            case Get(path):
                return self.store.get(path)
            case PutIfAbsent(path, data):
                held = self.store.setdefault(path, data)
                return PutOutcome.WRITTEN if held is data else PutOutcome.CONFLICT
            case List(prefix, start_after):
                return list_names(self.store, prefix, start_after)
            case Delete(path, others):
                for each in (path, *others):
                    self.store.pop(each, None)
            case Now():
                return self.now_ms
            case ReadClocks():
                return ClockReading(self.now_ms, self.monotonic_ms)
            case StoreNow():
                return self.now_ms
            case Sleep(ms):
                self.now_ms += ms
                self.monotonic_ms += ms
            case NewId():
                self._ids += 1
                return f"{self._ids:032x}"
            case NewProducerId():
                self._ids += 1
                return 2**62 + self._ids
            case Gather(programs):
                return self._gather(programs)
            case _:
                raise NotImplementedError(f"{type(effect).__name__} needs the driver")
        return None

    def _gather(self, programs: tuple[Program[Any], ...]) -> tuple[Any, ...]:
        results: list[Any] = []
        errors: list[Exception] = []
        for program in programs:
            try:
                results.append(self.run(program))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return tuple(results)


def drive(program: Program[T], answer: Callable[[Effect], Any]) -> T:
    """Run a program to its end. What `answer` raises is thrown into the program."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            effect = program.send(value) if error is None else program.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        value, error = None, None
        try:
            value = answer(effect)
        except Exception as raised:
            error = raised


def list_names(store: Store, prefix: str = "", start_after: str = "") -> tuple[str, ...]:
    """List one folder deep, in byte order, folders with a `/`, as effects.List specifies."""
    found = set()
    for path in store:
        if path.startswith(prefix):
            head, slash, _ = path[len(prefix) :].partition("/")
            found.add(head + slash)
    return tuple(sorted((name for name in found if name > start_after), key=str.encode))


def partition_for(key_hash: int, partitions: int) -> int:
    """Return the partition of a record key with this murmur2 hash: Kafka's `toPositive(hash) % n`."""
    return (key_hash & 0x7FFFFFFF) % partitions
