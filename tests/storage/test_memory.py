"""The store in memory: the contract, and its own behaviour."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from lab.testing.store_contract import StoreContract
from tests.storage.processes import in_fork
from txlog.errors import UnsupportedStoreError
from txlog.storage.memory import MemoryObjectStore, shared_memory_store
from txlog.testing.clock import ManualClock


class TestMemoryObjectStore(StoreContract):
    def make_store(self, tmp_path: Path) -> MemoryObjectStore:
        return MemoryObjectStore("contract")


def test_one_store_per_name():
    shared_memory_store("one").put_if_absent("a", b"1")
    assert shared_memory_store("one").get("a") == b"1"
    assert shared_memory_store("two").get("a") is None


def test_its_clock_is_the_one_given():
    clock = ManualClock(now_ms=1_700_000_000_000)
    store = MemoryObjectStore("clock", clock)
    store.put_if_absent("a", b"1")
    clock.advance_ms(5)
    store.put_if_absent("b", b"1")
    one, two = store.modified_ms("a"), store.modified_ms("b")
    assert one is not None
    assert two is not None
    assert two - one == 5


def test_it_keeps_its_own_copy_of_the_data():
    store = MemoryObjectStore()
    data: Any = bytearray(b"abc")
    store.put_if_absent("a", data)
    data[0] = 0
    assert store.get("a") == b"abc"


def test_it_cannot_be_sent_to_another_process():
    with pytest.raises(UnsupportedStoreError, match=r"memory://jar.*one process"):
        pickle.dumps(MemoryObjectStore("jar"))


def test_a_forked_child_is_refused():
    store = MemoryObjectStore("parent")
    store.put_if_absent("a", b"1")
    store._lock.acquire()  # as if another thread of the parent were using it at this time

    def refused():
        try:
            store.get("a")
        except UnsupportedStoreError as error:
            return "before the fork" in str(error)
        return False

    assert in_fork(refused)
