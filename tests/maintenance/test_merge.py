"""A merge changes nothing that a reader sees, at any moment; what it leaves is one file a run."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.client.world import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.fsck import check_store
from txlog.maintenance.merge import merge_partition

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
TP = TopicPartition("orders", 0)
LARGE = MergePolicy(target_bytes=2**30)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 4})
    return opened


def fill(store: Store, seed: int, transactions: int = 30) -> int:
    """Random transactions, aborted ones among them, inline and as files, eager and staged, and plain batches between. -> rows"""
    dice = random.Random(seed)
    number = 0

    def some() -> pa.Table:
        nonlocal number
        count = dice.choice([1, 2, 5, 4000])
        number += count
        return pa.table({"id": range(number - count, number), "name": ["n" * dice.randrange(5)] * count}, SCHEMA)

    with (
        store.producer(transactional_id="eager") as eager,
        store.producer(transactional_id="staged", staged=True) as staged,
        store.producer() as plain,
    ):
        for _ in range(transactions):
            which = dice.choice([eager, staged, plain])
            if which is plain:
                plain.send("orders", some()).result()
                continue
            which.begin_transaction()
            for _ in range(dice.randrange(1, 4)):
                which.send("orders", some())
            which.flush()
            if dice.random() < 0.4:
                plain.send("orders", some()).result()
            if dice.random() < 0.3:
                which.abort_transaction()
            else:
                which.commit_transaction()
    return number


def read(
    store: Store, start: int = 0, end: int | None = None, isolation: str = "read_committed"
) -> list[tuple[object, ...]]:
    plan = reading.plan(store.runtime, "orders", 0, start, end, isolation)
    (task,) = reading.tasks(store.runtime, [plan], isolation=isolation)
    found: list[tuple[object, ...]] = []
    for batch in reading.read_task(task, store.runtime.store):
        found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def merge(store: Store, policy: MergePolicy = LARGE):  # type: ignore[no-untyped-def]
    return merge_partition(store.runtime, reading.read_session(store.runtime), TP, policy)


@pytest.mark.parametrize("seed", range(4))
def test_a_merge_changes_no_row_no_offset_no_timestamp(store: Store, seed: int) -> None:
    fill(store, seed)
    before = read(store)
    (done,) = merge(store)
    assert done.took_effect
    assert done.files <= 1 < done.files_before
    assert read(store) == before
    offsets = [row[-2] for row in before]
    dice = random.Random(seed)
    for _ in range(20):
        start, end = sorted((dice.choice(offsets), dice.choice(offsets)))
        assert read(store, start, end) == [row for row in before if start <= row[-2] < end]
    report = check_store(store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"]
