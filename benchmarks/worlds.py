"""A store in memory, its clock, and processes that open it: for works of months, and for counts that repeat exactly."""

from __future__ import annotations

from collections.abc import Mapping

import txlog
from txlog.client.store import Store
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore


class World:
    """One store."""

    def __init__(self, settings: Mapping[str, object] | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.memory = MemoryObjectStore(clock=self.clock)
        self.counting = CountingStore(self.memory)
        self._settings = {"linger.ms": 0, **(settings or {})}
        self._processes = 0

    def open(self, counting: CountingStore | None = None) -> Store:
        """Open the store in another process, without threads: requests in memory are too fast for them."""
        self._processes += 1
        store: Store = txlog.open(
            "memory://",
            config=self._settings,
            clock=self.clock,
            ids=SeededIds(self._processes),
            object_store=counting or self.counting,
        )
        runtime = store.runtime
        runtime.driver = Driver(runtime.store, runtime.clock, runtime.ids, threads=0)
        return store
