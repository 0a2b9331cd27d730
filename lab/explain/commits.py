"""Which objects does a commit create, in which order, and what does each of them change?

`trace` commits one transaction over two topics, in memory. Each step is one object that the commit created. For each
step the store is built again with the objects up to this one, as if the process had died right after it. Other
processes then read this store, and recover it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa

import txlog
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore

TOPICS = ("orders", "payments")
SCHEMA = pa.schema([("order_id", pa.int64())])
ID = "shop"
TIMEOUT_MS = 60_000
GROUP = "till"
BEFORE, NEW = (1, 2), (3, 4)
"""The rows of each topic: those of an earlier transaction, and those of the transaction that is traced."""

Level: TypeAlias = Literal["read_committed", "read_uncommitted", "snapshot"]
LEVELS: tuple[Level, ...] = ("read_committed", "read_uncommitted", "snapshot")


@dataclass(frozen=True, slots=True)
class Slot:
    """A commit record: its offsets in its partition, and what it is."""

    folder: str
    base: int
    end: int
    label: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The store right after an object was created. A step without a path is the store before the transaction."""

    path: str
    label: str
    """What the object is, for example COMMIT."""
    slots: tuple[Slot, ...]
    ends: dict[str, tuple[int, int]]
    """(last stable offset, log end offset) by partition's folder."""
    shown: dict[Level, tuple[str, ...]]
    """The topics in which a reader of a level sees the new rows."""
    successor: tuple[str, ...]
    """The topics in which the new rows are visible after a new instance of the id has started."""
    sweep: tuple[str, ...]
    """... after the time-out, and a sweep by another process."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A commit, or an abort."""

    requests: tuple[tuple[str, str], ...]
    """(verb, path) of every request of the transaction, and of the close that follows."""
    steps: tuple[Step, ...]


def trace(*, staged: bool | None = None, commit: bool = True, offsets: bool = False) -> Trace:
    """Run one transaction of two rows to each topic, and follow it."""
    clock = ManualClock(oversleeps_ms=3)
    memory = MemoryObjectStore(clock=clock)
    counting = CountingStore(memory)
    with _open(counting, clock, 1) as store:
        for topic in TOPICS:
            store.create_topic(topic, SCHEMA, partitions=1)
        producer = store.producer(ID, staged=staged, linger_ms=10**6)
        producer.init_transactions()

        def transaction(rows: tuple[int, ...], commit: bool) -> None:
            producer.begin_transaction()
            for topic in TOPICS:
                producer.send(topic, [{"order_id": row} for row in rows], partition=0)
            if not commit:
                producer.flush()  # otherwise the rows have not left the buffer, and the abort writes nothing
            if offsets:
                producer.send_offsets_to_transaction({TopicPartition("baskets", 0): max(rows)}, GROUP)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()

        transaction(BEFORE, True)
        before = _objects(memory)
        with counting.counting() as cost:
            transaction(NEW, commit)
            producer.close()
    requests = _in_rounds(cost.calls())
    created = [path for verb, path in requests if verb in {"put_if_absent", "write_file"}]
    after = _objects(memory)
    steps = []
    for number in range(len(created) + 1):
        objects = before | {path: after[path] for path in created[:number]}
        path = created[number - 1] if number else ""
        steps.append(_step(path, objects, set(created[:number]), clock.now_ms()))
    return Trace(requests, tuple(steps))


def _step(path: str, objects: dict[str, bytes], new: set[str], now_ms: int) -> Step:
    def at(later_ms: int = 0) -> tuple[MemoryObjectStore, ManualClock]:
        clock = ManualClock(now_ms + later_ms, oversleeps_ms=3)
        store = MemoryObjectStore(clock=clock)
        for name, data in objects.items():
            store.put_if_absent(name, data)
        return store, clock

    memory, clock = at()
    with _open(memory, clock, 2) as store:
        found = {topic: store.admin().list_offsets(topic)[TopicPartition(topic, 0)] for topic in TOPICS}
        ends = {f"{topic}/0": (each.last_stable_offset, each.log_end_offset) for topic, each in found.items()}
        shown = {level: _shown(store, level) for level in LEVELS}
    memory, clock = at()
    with _open(memory, clock, 3) as store:
        store.producer(ID).init_transactions()
        successor = _shown(store, "read_committed")
    memory, clock = at(TIMEOUT_MS + 1)
    with _open(memory, clock, 4) as store:
        store.admin().expire()
        sweep = _shown(store, "read_committed")
    slots = tuple(_slot(name, objects[name], name in new) for name in sorted(objects) if name.endswith(".batch"))
    return Step(path, _label(objects[path]) if path else "", slots, ends, shown, successor, sweep)


def _open(object_store: MemoryObjectStore | CountingStore, clock: ManualClock, seed: int) -> Store:
    return txlog.open("memory://", clock=clock, ids=SeededIds(seed), object_store=object_store)


def _shown(store: Store, level: Level) -> tuple[str, ...]:
    def rows(topic: str) -> list[int]:
        if level == "snapshot":
            read = store.snapshot(*TOPICS).table(topic).to_arrow(["order_id"])
        else:
            read = store.table(topic).to_arrow(["order_id"], isolation_level=level)
        return [row for row in read["order_id"].to_pylist() if row is not None]

    found = {topic: rows(topic) for topic in TOPICS}
    for topic, values in found.items():
        if values not in ([*BEFORE], [*BEFORE, *NEW]):
            raise AssertionError(f"{topic} has the rows {values} for {level}")
    return tuple(topic for topic, values in found.items() if len(values) > len(BEFORE))


def _objects(memory: MemoryObjectStore, folder: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in memory.list(folder):
        path = folder + name
        data = None if name.endswith("/") else memory.get(path)
        found |= _objects(memory, path) if data is None else {path: data}
    return found


def _in_rounds(calls: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the requests with those of one round in order of their names: threads send them at the same time."""
    ordered: list[tuple[str, str]] = []
    round_: list[tuple[str, str]] = []
    for call in calls:
        if round_ and (_kind(call) != _kind(round_[0]) or _kind(call) == ("put_if_absent", True)):
            ordered += sorted(round_)
            round_ = []
        round_.append(call)
    return (*ordered, *sorted(round_))


def _kind(call: tuple[str, str]) -> tuple[str, bool]:
    """Return what requests of one round have in common. A record of the table of transactions is always alone."""
    return call[0], call[1].startswith("__transaction_state/")


def _header(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data.partition(b"\n")[0])
    return found


def _label(data: bytes) -> str:
    header = _header(data)
    if header["kind"] == "data" and header["entries"]:
        value = header["entries"][0]["value"]
        return value["state"] if header["entries"][0]["type"] == "transaction" else "offsets"
    rows = "+ rows " if header["kind"] != "data" else "rows "
    marker = "" if header["kind"] == "data" else header["kind"].upper()
    return f"{marker} {rows if header['records'] else ''}".strip()


def _slot(path: str, data: bytes, is_new: bool) -> Slot:
    header = _header(data)
    folder = path.rpartition("/")[0]
    base = header["base_offset"]
    return Slot(folder, base, base + max(header["records"], 1), _label(data), is_new)
