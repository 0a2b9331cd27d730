"""Does an adapter keep the port's promises between processes too? The second half of the contract.

    class TestMyStore(StoreContract, ProcessContract):
        def make_store(self, tmp_path): return MyStore(…)

It is for stores that can be pickled: processes share the place, not the object. The fork server behind these processes
has imported the drivers and opened nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.testing.fork_server import fork_server
from txlog.storage.object_store import ObjectStore, PutOutcome


class ProcessContract:
    """What every ObjectStore that several processes can open must do."""

    processes = 8
    names = 500

    def make_store(self, tmp_path: Path) -> ObjectStore:
        """Return a new, empty store that can be pickled."""
        raise NotImplementedError

    def test_one_of_many_processes_wins(self, tmp_path: Path) -> None:
        """All race for the same names, in the same order; the losers find the winner's object, whole."""
        store, context = self.make_store(tmp_path), fork_server()
        start = context.Barrier(self.processes)
        # The barrier also keeps a worker from taking a second task before each worker has one.
        with ProcessPoolExecutor(self.processes, context, initializer=_wait_at, initargs=(start,)) as pool:
            results = list(pool.map(functools.partial(_race, store, self.names), range(self.processes)))
        assert [error for result in results for error in result.errors] == []
        won = [name for result in results for name in result.won]
        assert sorted(won) == list(range(self.names)), "a name without a winner, or with two"
        with ThreadPoolExecutor(8) as threads:
            kept = list(threads.map(lambda name: store.get(_path(name)), range(self.names)))
        for number, result in enumerate(results):
            assert all(kept[name] == body(number, name) for name in result.won), (
                f"what process {number} won is not there"
            )

    def test_it_can_be_sent_to_another_process(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.put_if_absent("t/here", b"1")
        with ProcessPoolExecutor(1, fork_server()) as pool:
            assert pool.submit(_answer, store).result() == b"1"
        assert store.get("t/there") == b"2"


class _Result:
    """What one process saw."""

    def __init__(self) -> None:
        self.won: list[int] = []
        self.errors: list[str] = []


def body(number: int, name: int) -> bytes:
    """Return what a process writes under a name: long enough to be seen in parts, and recognisable as whole."""
    text = b"%d %d " % (number, name) * 300
    return hashlib.sha256(text).digest() + text


def _race(store: ObjectStore, names: int, number: int) -> _Result:
    result = _Result()
    (start,) = _STARTS
    start.wait(60)
    for name in range(names):
        outcome = store.put_if_absent(_path(name), body(number, name))
        if outcome is PutOutcome.WRITTEN:
            result.won.append(name)
        elif outcome is PutOutcome.UNKNOWN:
            result.errors.append(f"process {number}, name {name}: the outcome is unknown")
        elif name % 7 == 0:
            result.errors += [f"process {number}, name {name}: {error}" for error in _look(store, name)]
    return result


def _look(store: ObjectStore, name: int) -> Iterator[str]:
    data = store.get(_path(name))
    if data is None:
        yield "lost to an object that is not there"
    elif hashlib.sha256(data[32:]).digest() != data[:32]:
        yield f"lost to {len(data)} bytes that are not a whole object"


def _answer(store: ObjectStore) -> bytes | None:
    store.put_if_absent("t/there", b"2")
    return store.get("t/here")


def _path(name: int) -> str:
    return f"race/{name:05d}"


def _wait_at(start: Any) -> None:
    _STARTS.append(start)


# In a worker process: what it waits for before it begins.
_STARTS: list[Any] = []
