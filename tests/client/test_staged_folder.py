"""Files that another writer left for a staged transaction: checked by name and footer, and named where they are."""

from __future__ import annotations

import pytest

from lab.testing.damage import overwrite
from tests.client.world import orders, tp
from txlog.client.staged import StagedTransaction
from txlog.client.transactions.staged_files import read_staged_folder
from txlog.core.names import staged_folder
from txlog.errors import CorruptLogError, TxlogError, UnknownTopicOrPartitionError
from txlog.storage.conform import conform
from txlog.storage.parquet_writer import write_rows_file


def leave(store, folder, partition, name, *ids):
    """Write a file of the topic's columns below the folder, as Spark's writer does."""
    topic = store.runtime.topic("orders")
    rows = conform(orders(*ids), topic.schema, topic="orders")
    path = f"{folder}_partition={partition}/{name}.parquet"
    write_rows_file(store.runtime.store, "orders", path, rows.to_batches(), topic.schema)


def test_what_was_left_is_committed_where_it_lies(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    folder = staged_folder(txn.producer_id, txn.producer_epoch, "0123456789abcdef")
    for partition, name, ids in ((1, "part-1", (3,)), (0, "part-1", (2,)), (0, "part-0", (1,)), (1, "part-2", ())):
        leave(store, folder, partition, name, *ids)
    topic = store.runtime.topic("orders")
    parts = read_staged_folder(store.runtime, topic, folder)
    assert [(part.topic_partition, [file.rows for file in part.files]) for part in parts] == [
        (tp("orders", 0), [1, 1]),
        (tp("orders", 1), [1]),
    ]
    txn.commit(parts)
    assert world.read() == [1, 2, 3]


def test_files_are_adopted_in_the_order_of_their_numbers(world, store):
    """Spark numbers the tasks with 5 digits or more, and the files of a task with 3 or more."""
    txn = StagedTransaction.begin(store.runtime, "nightly")
    folder = staged_folder(txn.producer_id, txn.producer_epoch, "0123456789abcdef")
    places = [(0, 999), (0, 1000), (0, 1001), (99_999, 0), (100_000, 0), (100_000, 101), (100_000, 1000)]
    for number, (task, count) in reversed([*enumerate(places)]):
        leave(store, folder, 0, f"part-{task:05}-1f6c0a9e-0000-4c1d-b77e-c1230000c999-c{count:03}.zstd", number)
    txn.commit(read_staged_folder(store.runtime, store.runtime.topic("orders"), folder))
    assert store.table("orders").to_arrow().column("id").to_pylist() == [*range(len(places))]


def test_what_a_writer_that_is_done_cannot_have_left_is_refused(world, store):
    runtime, folder = store.runtime, "staged/1-0-0123456789abcdef/"
    topic = runtime.topic("orders")
    assert read_staged_folder(runtime, topic, folder) == ()
    for name, error in (
        ("_temporary/0/part-0.parquet", CorruptLogError),
        ("_partition=0/_temporary/0/part-0.parquet", CorruptLogError),
        ("_partition=0/__magic/job/part-0.parquet", CorruptLogError),
        ("_partition=0/part-0.orc", CorruptLogError),
        ("part-0.parquet", CorruptLogError),
        ("_partition=99/part-0.parquet", UnknownTopicOrPartitionError),
        ("_partition=0/part-0.parquet", TxlogError),
    ):
        path = f"orders/{folder}{name}"
        overwrite(runtime.store, path, b"no Parquet")
        with pytest.raises(error, match=r"orders/staged/"):
            read_staged_folder(runtime, topic, folder)
        runtime.store.delete(path)
    overwrite(runtime.store, f"orders/{folder}_SUCCESS", b"")
    assert read_staged_folder(runtime, topic, folder) == ()
