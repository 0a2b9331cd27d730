"""A store in memory with a clock that moves only when the test moves it, and any number of processes that open it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

import txlog
from txlog.client.consumer import Consumer
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import StorageError
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore
from txlog.testing.failing_store import FailingStore, Fault

ORDERS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))


class Outage:
    """A store that fails every request that matches `pattern`, as long as `pattern` is set."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._left: int | None = None
        self.pattern: str | None = None

    def fails(self, pattern: str, times: int) -> None:
        """Let that many matching requests fail."""
        self.pattern, self._left = (pattern, times) if times else (None, None)

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(path: str, *args: Any) -> Any:
            if self.pattern is not None and re.search(self.pattern, f"{verb} {path}"):
                if self._left is not None:
                    self._left -= 1
                    self.pattern = self.pattern if self._left else None
                raise StorageError(f"{self._inner.url}: {verb} {path!r} fails")
            return found(path, *args)

        return request


class World:
    """One object store, and the processes that opened it. Sends do not wait unless a test sets `linger_ms`."""

    def __init__(self) -> None:
        self.clock = ManualClock(oversleeps_ms=3)
        self.memory = MemoryObjectStore(clock=self.clock)
        self.counting = CountingStore(self.memory)
        self.processes: list[Store] = []
        self.seed = 0

    @classmethod
    def of(cls, memory: MemoryObjectStore, clock: ManualClock) -> World:
        """Return the same store as processes with another clock see it."""
        made = cls()
        made.clock, made.memory, made.counting = clock, memory, CountingStore(memory)
        made.seed = clock.now_ms()
        return made

    def open(self, object_store: ObjectStore | None = None, /, **config: Any) -> Store:
        """Open the store in another process, with its own ids and caches."""
        settings = {"linger.ms": 0, **{name.replace("_", "."): value for name, value in config.items()}}
        store = txlog.open(
            "memory://",
            config=settings,
            clock=self.clock,
            ids=SeededIds(self.seed + len(self.processes) + 1),
            object_store=object_store or self.counting,
        )
        self.processes.append(store)
        return store

    def failing(self, *faults: Fault, **config: Any) -> tuple[FailingStore, Store]:
        """Open the store in a process whose requests fail as the faults describe."""
        failing = FailingStore(self.memory, *faults)
        return failing, self.open(failing, **config)

    def outage(self, *faults: Fault, **config: Any) -> tuple[Outage, Store]:
        """Open the store in a process whose requests can be made to fail, and to work again."""
        outage = Outage(FailingStore(self.memory, *faults))
        return outage, self.open(cast(ObjectStore, outage), **config)

    def close(self) -> None:
        for store in self.processes:
            store.runtime.close()

    # -- reading the log, as a separate process ---------------------------------------------------------------------

    def read(self, topic: str = "orders", isolation: str = "read_committed", column: str = "id") -> list[Any]:
        """Return the values of a column, partition by partition, in order of offsets."""
        consumer = self.open().consumer(topic, isolation_level=isolation, auto_offset_reset="earliest")
        rows = sorted(rows_of(consumer), key=lambda row: (row["_partition"], row["_offset"]))
        return [row[column] for row in rows]

    def ends(self, topic: str = "orders", partition: int = 0) -> tuple[int, int, int]:
        """Return (log start, last stable offset, log end)."""
        offsets = self.open().admin().list_offsets(topic)
        info = offsets[TopicPartition(topic, partition)]
        return info.log_start_offset, info.last_stable_offset, info.log_end_offset


def tp(topic: str, partition: int) -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic, partition)


def rows_of(consumer: Consumer | Iterable[pa.RecordBatch], timeout_ms: int = 0) -> list[dict[str, Any]]:
    """Return all rows up to the end of the log."""
    batches = consumer.iterate(timeout_ms) if isinstance(consumer, Consumer) else consumer
    return [row for batch in batches for row in batch.to_pylist()]


def orders(*ids: int) -> list[dict[str, Any]]:
    """Return rows for the topic `orders`."""
    return [{"id": number, "name": f"n{number}"} for number in ids]


def many(rows: int, start: int = 0, width: int = 40) -> pa.Table:
    """Return rows that have too many bytes to be inline, if there are thousands of them."""
    ids = range(start, start + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"{i:0{width}d}" for i in ids])}, schema=ORDERS)
