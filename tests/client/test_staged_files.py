"""Files of a staged transaction: split by partition, bounded in memory, invisible until the commit; resumed
elsewhere."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.client.world import ORDERS, World
from txlog.client.reading import plan_reads, read_session, read_task, tasks
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.topics.row_writer import key_columns_of
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.names import parse_rows_path
from txlog.core.records import StagedPart
from txlog.errors import ProducerFencedError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.protocol.stores import create_store
from txlog.storage.conform import conform


def orders(store: Store, first: int, count: int) -> pa.Table:
    table = pa.table({"id": range(first, first + count), "name": [f"n{number}" for number in range(count)]})
    return conform(table, store.runtime.topic("orders").schema, topic="orders")


def ids(store: Store) -> dict[int, list[int]]:
    """Return the order ids by partition, as a consumer reads them."""
    runtime = store.runtime
    plans = plan_reads(read_session(runtime), dict.fromkeys(runtime.partitions("orders"), (0, None)))
    found: dict[int, list[Any]] = {}
    for task in tasks(runtime, list(plans.values())):
        for batch in read_task(task, runtime.store):
            found.setdefault(task.topic_partition.partition, []).extend(batch.column("id").to_pylist())
    return found


def test_rows_go_to_one_file_a_partition_in_their_order(store: Store) -> None:
    runtime = store.runtime
    topic = runtime.topic("orders")
    transaction = StagedTransaction.begin(runtime, "nightly")
    files = StagedFiles(runtime, transaction.txn)
    files.add(topic, orders(store, 0, 6), np.array([2, 0, 2, 0, 2, 2], dtype=np.int32))
    files.add(topic, orders(store, 6, 2), 2)
    files.add(topic, orders(store, 0, 0), 3)
    files.add(topic, orders(store, 8, 2), np.array([0, 0], dtype=np.int32))
    parts = files.finish()
    assert [(part.partition, [file.rows for file in part.files]) for part in parts] == [(0, [4]), (2, [6])]
    for part in parts:
        name = parse_rows_path(part.files[0].path)
        assert name is not None
        assert (name.partition, name.producer_id, name.producer_epoch) == (
            part.partition,
            transaction.producer_id,
            transaction.producer_epoch,
        )
    assert ids(store) == {}
    transaction.commit(parts)
    assert ids(store) == {0: [1, 3, 8, 9], 2: [0, 2, 4, 5, 6, 7]}


def test_more_rows_than_memory_are_several_files_in_order(store: Store) -> None:
    runtime = store.runtime
    transaction = StagedTransaction.begin(runtime, "nightly")
    files = StagedFiles(runtime, transaction.txn, max_buffer_bytes=20_000)
    for first in range(0, 5000, 500):
        files.add(runtime.topic("orders"), orders(store, first, 500), first // 500 % 2)
    parts = files.finish()
    assert all(len(part.files) > 1 for part in parts)
    transaction.commit(parts)
    found = ids(store)
    assert found[0] == [number for number in range(5000) if number // 500 % 2 == 0]
    assert found[1] == [number for number in range(5000) if number // 500 % 2 == 1]


def few(
    store: Store, transaction: StagedTransaction, first: int, count: int, partition: int = 1
) -> tuple[StagedPart, ...]:
    """Return the result of a task with that many rows, if it may return them inline."""
    files = StagedFiles(store.runtime, transaction.txn, inline_bytes=64 * 1024)
    files.add(store.runtime.topic("orders"), orders(store, first, count), partition)
    return files.finish()


def test_few_rows_ride_in_the_commit_and_cost_no_file(world: World, store: Store) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    ids(store)
    with world.counting.counting() as cost:
        (part,) = parts = few(store, transaction, 0, 3)
        assert (part.rows, part.files) == (3, ())
        transaction.commit(parts)
    assert (cost.write_file, cost.put_if_absent) == (0, 3)
    assert ids(store) == {1: [0, 1, 2]}


def test_what_tasks_hand_back_for_one_partition_is_joined(world: World, store: Store) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    travelled = pickle.loads(pickle.dumps([*few(store, transaction, 0, 3), *few(store, transaction, 3, 2)]))
    with world.counting.counting() as cost:
        transaction.commit(travelled)
    assert cost.write_file == 0
    # The two are too large together, but not alone. The rows of the other partition stay inline.
    large = [*few(store, transaction, 5, 2500), *few(store, transaction, 2505, 2500), *few(store, transaction, 0, 1, 2)]
    assert all(part.payload for part in large)
    with world.counting.counting() as cost:
        transaction.commit(large)
    assert cost.write_file == 1
    assert ids(store) == {1: list(range(5005)), 2: [0]}


def test_few_rows_beside_files_are_written_and_keep_their_place(store: Store) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    files = StagedFiles(store.runtime, transaction.txn)
    files.add(store.runtime.topic("orders"), orders(store, 3, 2), 1)
    transaction.commit([*few(store, transaction, 0, 3), *files.finish(), *few(store, transaction, 5, 1)])
    assert ids(store) == {1: [0, 1, 2, 3, 4, 5]}


def test_a_column_that_is_added_while_tasks_are_at_work_is_null(store: Store) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    before = few(store, transaction, 0, 2)
    store.alter_topic("orders", add_columns=pa.schema([pa.field("paid", pa.bool_())]))
    transaction.commit([*before, *few(store, transaction, 2, 2)])
    assert ids(store) == {1: [0, 1, 2, 3]}


def test_one_decision_holds_so_much_and_the_largest_go_to_files(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    parts = [
        *few(store, transaction, 0, 1000, 0),
        *few(store, transaction, 0, 10, 1),
        *few(store, transaction, 0, 900, 2),
    ]
    monkeypatch.setattr("txlog.client.staged.MAX_INLINE_BYTES", 1000 + sum(len(part.payload) for part in parts[1:]))
    with world.counting.counting() as cost:
        transaction.commit(parts)
    assert cost.write_file == 1
    assert {partition: len(found) for partition, found in ids(store).items()} == {0: 1000, 1: 10, 2: 900}


def test_a_store_from_before_inline_rows_gets_files(world: World) -> None:
    old = world.open()
    old.runtime.run(create_store(old.runtime.constants, features=("staged-commit", "txn-v2")))
    old.create_topic("orders", ORDERS, 4)
    transaction = StagedTransaction.begin(old.runtime, "nightly")
    parts = few(old, transaction, 0, 3)
    assert [len(part.files) for part in parts] == [1]
    transaction.commit(parts)
    assert ids(old) == {1: [0, 1, 2]}


def test_a_partition_that_is_not_there_is_refused(store: Store) -> None:
    transaction = StagedTransaction.begin(store.runtime, "nightly")
    files = StagedFiles(store.runtime, transaction.txn)
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 4: it has 4, numbered 0 to 3"):
        files.add(store.runtime.topic("orders"), orders(store, 0, 1), 4)


def test_compression_is_the_calls_else_the_topics(store: Store) -> None:
    runtime = store.runtime
    store.create_topic("plain", ORDERS, config={"compression.type": "none"})
    rows = conform(pa.table({"id": range(5000), "name": ["x"] * 5000}), runtime.topic("plain").schema, topic="plain")
    sizes = {}
    for compression in (None, "zstd"):
        transaction = StagedTransaction.begin(runtime, "nightly")
        files = StagedFiles(runtime, transaction.txn, compression=compression)
        files.add(runtime.topic("plain"), rows, 0)
        sizes[compression] = files.finish()[0].files[0].bytes
    assert sizes["zstd"] < sizes[None] / 2


def test_another_process_commits_what_one_began(world: World, store: Store) -> None:
    began = StagedTransaction.begin(store.runtime)
    files = StagedFiles(store.runtime, began.txn)
    files.add(store.runtime.topic("orders"), orders(store, 0, 3), 1)
    travelled = pickle.loads(pickle.dumps((began.txn, files.finish())))
    elsewhere = world.open().runtime
    resumed = StagedTransaction.resume(elsewhere, travelled[0], drawn=True, attempted=False)
    resumed.commit(travelled[1])
    assert resumed.forget()
    assert ids(store) == {1: [0, 1, 2]}
    assert store.admin().list_transactions() == ()


def test_an_abort_elsewhere_asks_who_won(store: Store) -> None:
    runtime = store.runtime
    for commits in (False, True):
        began = StagedTransaction.begin(runtime, "nightly")
        txn = began.txn
        files = StagedFiles(runtime, txn)
        files.add(runtime.topic("orders"), orders(store, 0, 3), 1)
        if commits:
            StagedTransaction.resume(runtime, txn, drawn=False, attempted=False).commit(files.finish())
        ended = StagedTransaction.resume(runtime, txn, drawn=False, attempted=True).abort()
        assert ended.already_committed == commits
    assert ids(store) == {1: [0, 1, 2]}


def test_an_abort_elsewhere_after_a_newer_instance_is_fenced(store: Store) -> None:
    began = StagedTransaction.begin(store.runtime, "nightly")
    StagedTransaction.begin(store.runtime, "nightly")
    with pytest.raises(ProducerFencedError, match="nightly"):
        StagedTransaction.resume(store.runtime, began.txn, drawn=False, attempted=True).abort()


def test_the_key_is_the_calls_the_topics_or_kafkas(store: Store) -> None:
    runtime = store.runtime
    store.create_topic("keyed", ORDERS, 2, config={"key.columns": "name"})
    store.create_topic("events", None, 2)
    settings = runtime.settings
    assert key_columns_of(settings, runtime.topic("orders")) == ()
    assert key_columns_of(settings, runtime.topic("keyed")) == ("name",)
    assert key_columns_of(settings, runtime.topic("keyed"), ["id"]) == ("id",)
    assert key_columns_of(settings, runtime.topic("events")) == ("key",)
    with pytest.raises(SchemaMismatchError, match=r"no column 'nmae'. Did you mean 'name'"):
        key_columns_of(settings, runtime.topic("keyed"), ["nmae"])
