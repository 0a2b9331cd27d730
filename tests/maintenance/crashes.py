"""A maintenance verb meets a fault at each of its storage operations: it dies before or after, gets no answer or a
refusal.

A verb is any callable that takes an opened store. The store is prepared again for each fault. A writer, a transaction
and a reader that began before the verb continue after it. Then the verb runs again to its end, and once more, which
must not change what readers see. The store must be clean by `fsck` and by the test kit's invariants. read_committed
must return the same rows as before, or rows that `judge` allows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

import txlog
from lab.invariants import find_violations
from lab.testing.damage import overwrite
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.fsck import check_store
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import Action, FailingStore, Fault, Moment, SimulatedCrash

Verb: TypeAlias = Callable[[Store], object]
Rows: TypeAlias = dict[TopicPartition, list[tuple[object, ...]]]
"""Partition -> (columns of the topic, offset, timestamp) of each row, in the order of offsets."""
Judge: TypeAlias = Callable[[Rows, Rows], None]
"""Takes the rows before and now; raises AssertionError."""

Strikes: TypeAlias = tuple[tuple[Action, Moment], ...]
STRIKES: Strikes = (
    ("crash", "before"),
    ("crash", "after"),
    ("lose_reply", "before"),
    ("lose_reply", "after"),
)
SCHEMA = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
SETTINGS: Mapping[str, object] = {
    "linger.ms": 0,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 2,
    "transaction.state.log.num.partitions": 1,
    "offsets.topic.num.partitions": 1,
}
WRITES = "^(put|write_file|delete)"
MAX_OPERATIONS = 1000


@dataclass(slots=True)
class Tally:
    """The counts of faults and operations."""

    operations: int = 0
    """Operations of the verb without a fault."""
    strikes: int = 0
    states: set[frozenset[tuple[str, bytes]]] = field(default_factory=set, repr=False)
    """Different stores that faults left. Each is checked once."""


class Place:
    """One store in memory with its own clock; every process draws other ids."""

    def __init__(self, objects: Mapping[str, bytes] | None = None, now_ms: int | None = None) -> None:
        self.clock = ManualClock() if now_ms is None else ManualClock(now_ms)
        self.memory = MemoryObjectStore(clock=self.clock)
        self._processes = itertools.count(1)
        self._opened: list[Store] = []
        for path, data in (objects or {}).items():
            overwrite(self.memory, path, data)

    def open(self, object_store: ObjectStore | None = None) -> Store:
        """Open the store in another process, which makes its requests one by one."""
        number = next(self._processes)
        store = txlog.open(
            "memory://", config=SETTINGS, clock=self.clock, ids=SeededIds(number),
            object_store=object_store or self.memory,
        )  # fmt: skip
        store.runtime.driver = Driver(store.runtime.store, store.runtime.clock, store.runtime.ids, threads=0)
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.runtime.close()

    def objects(self) -> dict[str, bytes]:
        """Return all objects in the store."""
        return dict(_objects(self.memory, ""))


def prepared(history: Callable[[Store], None]) -> tuple[dict[str, bytes], int]:
    """Return what a history leaves: objects by path, and the time when it ended (ms)."""
    with closing(Place()) as place:
        history(place.open())
        return place.objects(), place.clock.now_ms()


def strike_everywhere(
    objects: Mapping[str, bytes],
    now_ms: int,
    verb: Verb,
    *,
    work_on: TopicPartition,
    judge: Judge | None = None,
    pass_ms: int = 0,
    strikes: Strikes = STRIKES,
) -> Tally:
    """Let `verb` meet each fault at each operation, on a store that begins with `objects` at `now_ms`.

    `pass_ms` is the time between the start of the surviving writers and readers, and the verb. Raises AssertionError,
    or the error that a client met, with a note that names the fault.
    """
    judge = judge or _is_unchanged
    tally = Tally()
    for action, moment in strikes:
        for number in range(1, MAX_OPERATIONS):
            with closing(Place(objects, now_ms)) as place:
                # A read changes nothing, so a crash at a read is the same as a crash after the write before it.
                match = "" if (action, moment) == ("lose_reply", "before") else WRITES
                failing = FailingStore(place.memory, Fault(action=action, moment=moment, match=match, number=number))
                try:
                    struck = _one_strike(place, failing, verb, work_on, judge, pass_ms, tally)
                except BaseException as error:
                    error.add_note(f"struck by {action} {moment} operation {number} of {match or 'all'}")
                    raise
            if not struck:
                tally.operations = max(tally.operations, number - 1)
                break
        else:
            raise AssertionError(f"the verb makes more than {MAX_OPERATIONS} operations")
    return tally


def read_all(store: Store) -> Rows:
    """Return the rows that read_committed returns, for every partition of every topic."""
    return {
        TopicPartition(topic.name, number): read_partition(store, TopicPartition(topic.name, number))
        for topic in store.topics()
        for number in range(topic.partitions)
    }


def read_partition(store: Store, tp: TopicPartition) -> list[tuple[object, ...]]:
    """Return these rows for one partition."""
    start = store.admin().list_offsets(tp.topic)[tp].log_start_offset
    return list(_rows_of(store, _plan(store, tp, start)))


# -- one fault --------------------------------------------------------------------------------------------------------


def _one_strike(
    place: Place,
    failing: FailingStore,
    verb: Verb,
    tp: TopicPartition,
    judge: Judge,
    pass_ms: int,
    tally: Tally,
) -> bool:
    """Return whether the verb reached that operation."""
    held = place.open()
    start = held.admin().list_offsets(tp.topic)[tp].log_start_offset
    tasks = _plan(held, tp, start)
    plain, eager = place.open().producer(), place.open().producer("lives on")
    plain.send(tp.topic, _row(10_001), partition=tp.partition).result()
    eager.init_transactions()
    before = read_all(place.open())
    place.clock.advance_ms(pass_ms)
    with suppress(SimulatedCrash, TxlogError):
        verb(place.open(failing))
    if not failing.struck:
        return False
    tally.strikes += 1
    left = frozenset(place.objects().items())
    if left in tally.states:
        return True
    tally.states.add(left)
    _go_on(place, verb, tp, judge, before, held, tasks, plain, eager)
    return True


def _go_on(
    place: Place,
    verb: Any,
    tp: TopicPartition,
    judge: Any,
    before: Rows,
    held: Store,
    tasks: Any,
    plain: Any,
    eager: Any,
) -> None:
    judge(before, read_all(place.open()))
    kept = {row[-2]: row for row in read_partition(place.open(), tp)}
    # A reader that planned before the verb sees the rows of its plan, or those that still exist if the verb may delete
    # some.
    seen = {row[-2]: row for row in _rows_of(held, tasks)}
    assert all(seen.get(offset, row) == row for offset, row in kept.items()), "a row changed under a reader"
    plain.send(tp.topic, _row(10_002), partition=tp.partition).result()
    with eager.transaction():
        eager.send(tp.topic, _row(10_003), partition=tp.partition)
    for producer in (plain, eager):
        producer.close()
    written = read_all(place.open())
    assert [row[0] for row in written[tp][-2:]] == [10_002, 10_003]
    for _ in range(2):
        verb(place.open())
        now = read_all(place.open())
        judge(written, now)
    report = check_store(place.memory, clock=place.clock, threads=0)
    assert report.is_clean, [str(each) for each in report.findings]
    _, violations = find_violations(place.memory)
    assert not violations, violations


def _is_unchanged(before: Rows, now: Rows) -> None:
    assert now == before


def _plan(store: Store, tp: TopicPartition, start: int) -> Sequence[reading.ReadTask]:
    made = reading.plan(store.runtime, tp.topic, tp.partition, start, None)
    return reading.tasks(store.runtime, [made])


def _rows_of(store: Store, tasks: Sequence[reading.ReadTask]) -> Iterator[tuple[object, ...]]:
    for task in tasks:
        for batch in reading.read_task(task, store.runtime.store):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _row(number: int) -> list[dict[str, object]]:
    return [{"id": number, "name": "lives on"}]


def _objects(store: ObjectStore, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name in store.list(prefix):
        if name.endswith("/"):
            yield from _objects(store, prefix + name)
        else:
            data = store.get(prefix + name)
            assert data is not None
            yield prefix + name, data
