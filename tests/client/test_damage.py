"""Flip a bit in any object of a store: the error names the object, or the object was not needed.

Wrong rows never appear.
"""

from __future__ import annotations

import re

import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.errors import CorruptLogError, TxlogError
from txlog.storage.memory import MemoryObjectStore


def filled() -> World:
    """Return a store with at least one object of every kind: sealed and active, inline and files, aborted and
    committed."""
    world = World()
    store = world.open(**{"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1})
    store.create_topic("small", ORDERS, config={"segment.batches": 3})
    with store.producer("loader") as eager, store.producer("files", inline_max_bytes=0) as files:
        for number in range(4):
            producer = eager if number % 2 else files
            producer.begin_transaction()
            producer.send("small", orders(number, number + 100), partition=0).result()
            producer.send_offsets_to_transaction({tp("small", 0): number}, "g")
            if number == 1:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        with files.transaction():
            files.send("small", orders(*range(200, 230)), partition=0)
    return world


def looked_at(memory: MemoryObjectStore) -> list[object]:
    """Return everything that a reader and an operator see of the store."""
    world = World()
    world.memory = world.counting.inner = memory
    try:
        store = world.open()
        admin = store.admin()
        return [
            store.topic("small"),
            rows_of(store.consumer("small", auto_offset_reset="earliest")),
            admin.describe_partition("small", 0),
            admin.list_transactions(),
            admin.list_groups(),
        ]
    finally:
        world.close()


def outcome_of(memory: MemoryObjectStore) -> list[object] | TxlogError:
    """Return what is visible, or the error."""
    try:
        return looked_at(memory)
    except TxlogError as error:
        return error


def paths_of(memory: MemoryObjectStore, folder: str = "") -> list[str]:
    found = []
    for name in memory.list(folder):
        found += paths_of(memory, folder + name) if name.endswith("/") else [folder + name]
    return found


def kind_of(path: str) -> str:
    return "topic.json" if "/topic." in path else re.sub(r".*[/.]", "", path)


@pytest.fixture(scope="module")
def healthy() -> tuple[MemoryObjectStore, list[object]]:
    world = filled()
    world.close()
    return world.memory, looked_at(world.memory)


KINDS = ["json", "topic.json", "batch", "index", "txnindex", "snapshot", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", [0.02, 0.5, 0.98], ids=["begin", "middle", "end"])
def test_flipped_bit(healthy, kind, where):
    memory, expected = healthy
    paths = [path for path in paths_of(memory) if kind_of(path) == kind]
    assert paths, kind
    noticed = 0
    for path in paths:
        data = memory.get(path)
        damaged = bytearray(data)
        damaged[int(len(data) * where)] ^= 0x10
        overwrite(memory, path, bytes(damaged))
        found = outcome_of(memory)
        overwrite(memory, path, data)
        if isinstance(found, TxlogError):
            assert isinstance(found, CorruptLogError)
            assert path in str(found)
            noticed += 1
        else:
            assert found == expected, path
    assert noticed


def test_every_kind_of_object_was_there(healthy):
    memory, _ = healthy
    assert {kind_of(path) for path in paths_of(memory)} == set(KINDS)


@pytest.mark.parametrize("kind", ["txnindex", "parquet", "snapshot", "index"])
def test_object_that_is_gone(healthy, kind):
    memory, expected = healthy
    noticed = 0
    for path in (path for path in paths_of(memory) if kind_of(path) == kind):
        data = memory.get(path)
        memory.delete(path)
        found = outcome_of(memory)
        overwrite(memory, path, data)
        if isinstance(found, TxlogError):
            assert isinstance(found, CorruptLogError)
            assert path.rpartition("/")[0].partition("/")[0] in str(found)
            noticed += 1
        else:
            # A reader does not need an index or a snapshot as long as the records that it covers exist.
            assert found[:2] == expected[:2], path
    assert noticed or kind in ("snapshot", "index")
