"""A simulated crash at every storage request of every public operation: the store then answers nothing (invariant 11).

The test controls time and ids. So two crashes that leave the same bytes and the same acknowledgements are one case, and
only one of them is checked. `test_kill` does the same with real processes and real SIGKILLs.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.crash import operations
from tests.crash.operations import OPERATIONS, Restart
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault, Moment, SimulatedCrash

ENDLESS = 500
WRITES = "^(put|write_file|delete)(?!.*__probe/)"
SEGMENT_BATCHES = {"sealing": 2, "tail": 100}
TAIL = ("append", "eager transaction", "staged transaction", "Spark commit")
RESTARTS = (0, pytest.param(1, marks=pytest.mark.storm))
"""0 and 1 choose the restart that begins. With both, as in `make test-storm`, each state is restarted in both ways."""
LONG = ("eager abort", "Spark commit, drawn id", "operator's abort", "staged on a condition", "sweep", "Spark abort")
"""Only `make test-storm` runs these: other operations make the same requests of the protocol, in another order."""
CASES = [pytest.param(name, "sealing", marks=pytest.mark.storm if name in LONG else ()) for name in OPERATIONS]
CASES += [pytest.param(name, "tail") for name in TAIL]


class World:
    """One operation, the store that it finds, and the states that its crashes have left so far."""

    def __init__(self, name: str, segments: str) -> None:
        self.name = name
        self.objects = operations.prepared(name, SEGMENT_BATCHES[segments], ManualClock(), SeededIds(1))
        self.left: set[tuple[tuple[tuple[str, str], ...], frozenset[tuple[str, bytes]]]] = set()
        self.crashes = 0

    def store(self) -> MemoryObjectStore:
        store = MemoryObjectStore(clock=self.clock())
        operations.fill(store, self.objects)
        return store

    def clock(self) -> ManualClock:
        """Return a clock that is later than everything before."""
        return ManualClock(ManualClock().now_ms() + 1_000_000)

    def crash(self, inner: ObjectStore, fault: Fault) -> list[tuple[str, str]] | None:
        """Return the notes from before the crash, or None if the operation ended without the crash."""
        notes: list[tuple[str, str]] = []
        failing = FailingStore(inner, fault)
        with contextlib.suppress(SimulatedCrash, Exception):
            operations.run(
                self.name, failing, lambda event, unit: notes.append((event, unit)), self.clock(), SeededIds(2)
            )
        if not failing.dead:
            return None
        self.crashes += 1
        return notes

    def is_new(self, store: ObjectStore, notes: list[tuple[str, str]]) -> bool:
        before = len(self.left)
        self.left.add((tuple(notes), frozenset(operations.objects_of(store))))
        return len(self.left) > before


@pytest.mark.parametrize("first", RESTARTS)
@pytest.mark.parametrize(("name", "segments"), CASES)
def test_a_crash_at_every_request(name: str, segments: str, first: int) -> None:
    """Restart after each state that a crash can leave, in turn by init and by maintenance."""
    world = World(name, segments)
    moments: tuple[Moment, ...] = ("before", "after")
    for moment in moments:
        for number in range(1, ENDLESS):
            store = world.store()
            notes = world.crash(store, Fault(action="crash", moment=moment, number=number))
            if notes is None:
                break
            if not world.is_new(store, notes):
                continue
            left = dict(operations.objects_of(store))
            how: Restart = "init" if (len(world.left) + first) % 2 else "maintenance"
            later = ManualClock(world.clock().now_ms() + 1_000_000)
            again = MemoryObjectStore(clock=later)
            operations.fill(again, left)
            try:
                operations.restart(name, again, notes, how, later, SeededIds(3))
            except BaseException as error:
                error.add_note(f"{name}, crash {moment} request {number}, restart by {how}, noted {notes}")
                raise
        else:
            pytest.fail("the operation never came to its end")
    assert world.crashes
    print(f"{name}: {world.crashes} crashes, {len(world.left)} different states")


@pytest.mark.parametrize("name", ["eager transaction", "pipeline", "delete beside a transaction"])
def test_a_crash_at_every_write_on_disk(name: str, tmp_path: Path) -> None:
    """The same over a folder, with the machine's clock and parallel requests."""
    objects = operations.prepared(name, 100)
    for number in range(1, ENDLESS):
        store = LocalObjectStore(str(tmp_path / str(number)), fsync=False)
        operations.fill(store, objects)
        notes: list[tuple[str, str]] = []
        failing = FailingStore(store, Fault(action="crash", moment="after", match=WRITES, number=number))
        with contextlib.suppress(SimulatedCrash, Exception):
            operations.run(name, failing, lambda *noted, notes=notes: notes.append(noted))
        if not failing.dead:
            return
        operations.restart(name, store, notes, "init" if number % 2 else "maintenance")
    pytest.fail("the operation never came to its end")
