"""How does a call answer when one of its requests fails, and is the answer true?

The test tries every public operation that writes, each of its requests, and each way in which a request can fail. A
call ends in *ok*, *failed* or *unknown* (PROTOCOL.md, "What is promised, and what is not"). The effect of a *failed*
call never shows later, that of an *ok* call always does. A repeated call joins the first one. An abort after the
decision answers "committed". Another process, whose requests all succeed, reads the result after it has recovered the
store.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pytest

from lab.invariants import check_store
from tests.crash import operations
from tests.crash.operations import CALLS, SETTINGS, WITHOUT_ROWS
from txlog.client.admin.admin import Admin
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.errors import (
    CorruptLogError,
    IllegalStateError,
    NotAStoreError,
    OutcomeUnknownError,
    StoreAccessError,
    TransactionalIdNotFoundError,
    TxlogError,
    TxlogTimeoutError,
    UnsupportedStoreError,
)
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault

UNKNOWN = (OutcomeUnknownError, TxlogTimeoutError)
Then: TypeAlias = Literal["stop", "repeat", "abort"]
"""What a caller does after *unknown*."""
ALWAYS = 10**6
THINNED = 97
"""The run of all tests takes one cell out of this many."""
REPEATED: tuple[tuple[type, str], ...] = (
    (Producer, "init_transactions"),
    (Producer, "send_offsets_to_transaction"),
    (Producer, "commit_transaction"),
    (Producer, "abort_transaction"),
    (StagedTransaction, "commit"),
    (StagedTransaction, "abort"),
    (Consumer, "commit"),
    (Consumer, "subscribe"),
    (Admin, "abort_transaction"),
    (Admin, "expire"),
    (Admin, "expire_id"),
    (Admin, "delete_records"),
    (Admin, "reset_offsets"),
    (Admin, "remove_members"),
    (Admin, "delete_group"),
    (Store, "create_topic"),
    (Store, "alter_topic"),
    (Store, "delete_topic"),
)
"""The calls that a caller repeats."""
PATIENCE: Mapping[str, object] = {
    **SETTINGS,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 100,
    "max.block.ms": 1000,
    "delivery.timeout.ms": 1000,
    "default.api.timeout.ms": 1000,
}
"""Limits that end an outage soon."""

ANY = r"^(?!\w+ __probe/)"
"""Every request except those of the probe, which a process makes once, and not in every run."""

Faults: TypeAlias = Callable[[int, str], tuple[Fault, ...]]
"""(number of the request, its path) -> the faults from this request on."""


def _from(number: int, action: Any) -> Fault:
    return Fault(action=action, match=ANY, number=number, times=ALWAYS)


def _once(number: int, action: Any) -> Fault:
    return Fault(action=action, match=ANY, number=number)


def _lost(number: int, moment: Any = "after") -> Fault:
    return Fault(action="lose_reply", moment=moment, match=ANY, number=number)


def _damaged(path: str, times: int) -> Fault:
    return Fault(action="damage", match=f"^get {path}$", times=times)


OF_CREATES: Mapping[str, Faults] = {
    "written and the reply lost": lambda number, path: (_lost(number),),
    "the request lost": lambda number, path: (_lost(number, "before"),),
    "the reply lost, what settles it damaged once": lambda number, path: (_lost(number), _damaged(path, 1)),
    "the reply lost, what settles it damaged": lambda number, path: (_lost(number), _damaged(path, ALWAYS)),
    "the reply lost, then silence": lambda number, path: (_lost(number), _from(number + 1, "fail")),
    "the reply lost, then 403": lambda number, path: (_lost(number), _from(number + 1, "403")),
}
"""Faults that only a conditional write can meet."""
OF_ALL: Mapping[str, Faults] = {
    "fails": lambda number, path: (_once(number, "fail"),),
    "silence": lambda number, path: (_from(number, "fail"),),
    "403": lambda number, path: (_once(number, "403"),),
    "404": lambda number, path: (_once(number, "404"),),
    "501": lambda number, path: (_once(number, "501"),),
    "403 from there on": lambda number, path: (_from(number, "403"),),
    "501 from there on": lambda number, path: (_from(number, "501"),),
}
OF_READS: Mapping[str, Faults] = {
    "damaged once": lambda number, path: (_once(number, "damage"),),
    "damaged": lambda number, path: (_damaged(path, ALWAYS),),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One operation, and the fault at one of its requests."""

    name: str
    number: int
    request: str
    outcome: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome}, at request {self.number}, {self.request}"


class World:
    """One operation, the store that it finds, and all its cells."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects = operations.prepared(name, 2, ManualClock(), SeededIds(1))

    def store(self, clock: ManualClock) -> MemoryObjectStore:
        store = MemoryObjectStore(clock=clock)
        operations.fill(store, self.objects)
        return store

    def cells(self) -> Iterator[Cell]:
        failing = FailingStore(self.store(clock := _clock()))
        with operations.open_store(failing, clock, SeededIds(2), PATIENCE) as store:
            CALLS[self.name].act(store, lambda event, unit: None)
            # The later requests close the store.
            requests = [request for request in failing.operations if "__probe/" not in request]
        for number, request in enumerate(requests, 1):
            verb, _, path = request.partition(" ")
            kinds = {**OF_ALL, **(OF_CREATES if verb == "put_if_absent" else OF_READS if verb == "get" else {})}
            for outcome, faults in kinds.items():
                yield Cell(self.name, number, request, outcome, faults(number, path))

    def run(self, cell: Cell, then: Then) -> tuple[str, bool]:
        """Return the answer of the operation, and whether the caller had to continue after *unknown*."""
        clock = _clock()
        memory = self.store(clock)
        failing = FailingStore(memory, *cell.faults)
        notes: list[tuple[str, str]] = []
        with pytest.MonkeyPatch.context() as patch:
            went_on = _go_on(patch, then)
            answer = _act(failing, clock, self.name, notes)
        if answer == "failed":
            begun = [unit for event, unit in notes if event == "begin"]
            over = {unit for event, unit in notes if event != "begin"}
            notes += [("failed", unit) for unit in begun if unit not in over]
        self.judge(memory, clock, notes)
        return answer, bool(went_on)

    def judge(self, memory: MemoryObjectStore, clock: ManualClock, notes: list[tuple[str, str]]) -> None:
        """Raise AssertionError if an answer was not true."""
        operation = CALLS[self.name]
        with operations.open_store(memory, clock, SeededIds(3)) as store:
            for event, unit in notes:
                shows = operation.units[unit].shows
                if event in ("ok", "failed") and shows is not None:
                    assert shows(store) == (event == "ok"), f"{unit}: answered {event}, and took effect: {shows(store)}"
            for transactional_id in operation.ids:
                store.producer(transactional_id).init_transactions()
            clock.sleep_ms(3)
            store.admin().expire()
            operation.repeat(store)
            check_store(memory)
            if self.name not in WITHOUT_ROWS:
                operations.judge(store, operation, notes)


def _clock() -> ManualClock:
    """Return a clock that is later than everything before."""
    return ManualClock(ManualClock().now_ms() + 1_000_000, oversleeps_ms=1)


def _act(failing: FailingStore, clock: ManualClock, name: str, notes: list[tuple[str, str]]) -> str:
    """Run the operation. Return its answer."""
    try:
        with operations.open_store(failing, clock, SeededIds(2), PATIENCE) as store:
            CALLS[name].act(store, lambda event, unit: notes.append((event, unit)))
    except UNKNOWN:
        return "unknown"
    except (TxlogError, AssertionError):
        return "failed"
    return "ok"


def _go_on(patch: pytest.MonkeyPatch, then: Then) -> list[str]:
    """Let every caller that gets *unknown* repeat the call, or abort its transaction.

    Return the calls that did this.
    """
    went_on: list[str] = []
    for owner, name in REPEATED:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(self: Any, *args: Any, original: Any = original, name: str = name, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            except UNKNOWN as first:
                went_on.append(name)
                if then == "repeat":
                    return _repeat(functools.partial(original, self, *args, **kwargs), first)
                if then == "abort" and name in ("commit_transaction", "commit") and not isinstance(self, Consumer):
                    return _abort(self, first)
                raise

        patch.setattr(owner, name, call)
    return went_on


def _repeat(call: Callable[[], Any], first: Exception) -> Any:
    """Repeat a call of unknown outcome.

    The answer to the repetition is the answer to both calls, and is checked as such.
    """
    for _ in range(3):
        try:
            return call()
        except UNKNOWN:
            continue
        except (StoreAccessError, NotAStoreError, UnsupportedStoreError, CorruptLogError) as error:
            # The store refused the repetition before it could look, so the first call stays unknown.
            raise first from error
        except TransactionalIdNotFoundError as error:
            # For `expire_id` it is unknown which call removed the id.
            raise first from error
    raise first


def _abort(transaction: Any, first: Exception) -> Any:
    """Abort after a commit of unknown outcome. The abort's answer counts."""
    try:
        if isinstance(transaction, StagedTransaction):
            if (ended := transaction.abort()).already_committed:
                return ended
        else:
            transaction.abort_transaction()
    except IllegalStateError as error:
        if "it is committed" in str(error):
            return None
        raise first from error
    except TxlogError as error:
        raise first from error
    raise TxlogError("the transaction was aborted") from first


def _answers(cells: list[Cell]) -> Counter[str]:
    worlds = {name: World(name) for name in {cell.name for cell in cells}}
    answers: Counter[str] = Counter()
    wrong: list[str] = []
    for cell in cells:
        thens: list[Then] = ["stop"]
        for then in thens:
            try:
                answer, went_on = worlds[cell.name].run(cell, then)
            except AssertionError as error:
                wrong.append(f"{cell}, then {then}: {str(error).splitlines()[0]}")
                continue
            answers[answer] += 1
            if then == "stop" and went_on:
                thens += ["repeat", "abort"]
    print(f"{sum(answers.values())} answers: {dict(answers)}")
    assert not wrong, f"{len(wrong)} wrong answers:\n" + "\n".join(wrong[:50])
    return answers


@functools.cache
def _all_cells(name: str) -> tuple[Cell, ...]:
    return tuple(World(name).cells())


def test_answers_of_all_operations_thinned() -> None:
    cells = [cell for name in CALLS for cell in _all_cells(name)]
    assert set(_answers(cells[::THINNED])) == {"ok", "failed", "unknown"}


@pytest.mark.storm
@pytest.mark.parametrize("name", CALLS)
def test_answers(name: str) -> None:
    assert _answers(list(_all_cells(name)))
