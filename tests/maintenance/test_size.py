"""The size of a partition and the estimated gain of a merge: the merge gains that much, and then nothing is left to
gain."""

from __future__ import annotations

from tests.client.world import ORDERS, World
from txlog.client import reading
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.size import PartitionSize, measure_partition

TP = TopicPartition("orders", 0)
COUNTS = [name for name in PartitionSize.__struct_fields__ if name not in ("topic", "partition")]


def test_files_small_ones_aborted_rows_and_what_a_merge_would_gain(world: World) -> None:
    store = world.open(inline_max_bytes=0)
    store.create_topic("orders", ORDERS, config={"segment.batches": 4})
    with store.producer("loader") as producer:
        for number in range(6):
            producer.begin_transaction()
            producer.send("orders", [{"id": number, "name": "n"}] * 10)
            producer.flush()
            if number % 3:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    session = reading.read_session(store.runtime)
    before = measure_partition(session, TP)
    assert (before.rows, before.aborted_rows) == (60, 20)
    assert (before.files, before.small_files) == (6, 6)
    assert (before.segments, before.tail_batches) == (2, 4)
    assert (before.merge_runs, before.merge_files) == (1, 4)
    assert before.files - before.merge_files + before.merge_runs == 3
    # Slots, indexes, transaction indexes, snapshots, the folder of rows and its files.
    assert before.objects == 12 + 2 + 2 + 2 + 1 + 6
    assert before.bytes == sum(
        world.memory.size(f"orders/0/rows/{name}") for name in world.memory.list("orders/0/rows/")
    )
    merge_partition(store.runtime, session, TP, MergePolicy())
    after = measure_partition(reading.read_session(store.runtime), TP)
    assert after.files == 3
    assert (after.rows, after.aborted_rows) == (40, 0)
    assert (after.merge_runs, after.merge_files, after.merge_bytes) == (0, 0, 0)


def test_an_empty_partition(world: World) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS)
    size = measure_partition(reading.read_session(store.runtime), TP)
    assert size == PartitionSize(topic="orders", partition=0, **dict.fromkeys(COUNTS, 0))
