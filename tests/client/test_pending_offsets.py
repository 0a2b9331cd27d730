"""Offsets that could not be sent at once, rows that were never accepted, and calls that wait for others' offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import ORDERS, World, orders, tp
from txlog.client.groups import OffsetAndMetadata
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.errors import (
    ConcurrentTransactionsError,
    OffsetMetadataTooLargeError,
    SchemaMismatchError,
    StoreAccessError,
    TransactionAbortableError,
    TxlogError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txlog.testing.failing_store import Fault

A = tp("orders", 0)
every_kind = pytest.mark.parametrize("staged", [False, True, None], ids=["eager", "staged", "deferred"])


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.open().create_topic("orders", ORDERS)
    yield world
    world.close()


def committed(world: World) -> int | None:
    found = world.open().consumer(group_id="g").committed(A)[A]
    return None if found is None else found.offset


def begun(store: Store, name: str = "x", **settings: Any) -> Producer:
    """Return a producer with a row in its open transaction."""
    producer = store.producer(name, **settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1))
    producer.flush()
    return producer


# -- a commit does not succeed without the offsets --------------------------------------------------------------------


@every_kind
def test_a_commit_waits_for_the_offsets_that_another_transaction_holds(world, staged):
    holder = begun(world.open(), "holder")
    holder.send_offsets_to_transaction({A: 9}, "g", expected={A: None})
    producer = begun(world.open(max_block_ms=300), staged=staged)
    if staged:
        producer.send_offsets_to_transaction({A: 1}, "g", expected={A: None})
    else:
        with pytest.raises(ConcurrentTransactionsError):
            producer.send_offsets_to_transaction({A: 1}, "g", expected={A: None})
    with pytest.raises(ConcurrentTransactionsError):
        producer.commit_transaction()
    assert world.read() == []
    holder.abort_transaction()
    producer.commit_transaction()
    assert (world.read(), committed(world)) == ([1], 1)


@every_kind
def test_a_commit_sends_the_offsets_that_an_outage_kept_back(world, staged):
    outage, store = world.outage(max_block_ms=300)
    producer = begun(store, staged=staged)
    outage.pattern = "__consumer_offsets"
    if staged:
        producer.send_offsets_to_transaction({A: 1}, "g")
    else:
        with pytest.raises(TxlogTimeoutError):
            producer.send_offsets_to_transaction({A: 1}, "g")
    with pytest.raises(TxlogTimeoutError):
        producer.commit_transaction()
    assert world.read() == []
    outage.pattern = None
    producer.commit_transaction()
    assert (world.read(), committed(world)) == ([1], 1)


@pytest.mark.parametrize("later", [1, 2])
def test_of_two_offsets_of_a_partition_the_later_call_wins_though_the_first_failed(world, later):
    outage, store = world.outage(max_block_ms=300)
    producer = begun(store)
    outage.pattern = "__consumer_offsets"
    with pytest.raises(TxlogTimeoutError):
        producer.send_offsets_to_transaction({A: 1}, "g")
    outage.pattern = None
    producer.send_offsets_to_transaction({A: later}, "g")
    producer.commit_transaction()
    assert committed(world) == later


@every_kind
def test_of_three_calls_the_last_wins_though_it_repeats_the_first(world, staged):
    outage, store = world.outage(max_block_ms=300)
    producer = begun(store, staged=staged)
    outage.pattern = "__consumer_offsets"
    for offset in (5, 7):
        if staged:
            producer.send_offsets_to_transaction({A: offset}, "g")
        else:
            with pytest.raises(TxlogTimeoutError):
                producer.send_offsets_to_transaction({A: offset}, "g")
    outage.pattern = None
    producer.send_offsets_to_transaction({A: 5}, "g")
    producer.commit_transaction()
    assert committed(world) == 5


def test_an_abort_forgets_the_offsets(world):
    outage, store = world.outage(max_block_ms=300)
    producer = begun(store)
    outage.pattern = "__consumer_offsets"
    with pytest.raises(TxlogTimeoutError):
        producer.send_offsets_to_transaction({A: 1}, "g")
    outage.pattern = None
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(2))
    assert (world.read(), committed(world)) == ([2], None)


@every_kind
def test_offsets_that_are_refused_leave_a_transaction_that_can_only_be_aborted(world, staged):
    _, store = world.failing(Fault(action="403", match="put_if_absent __consumer_offsets"))
    producer = begun(store, staged=staged)
    if staged:
        producer.send_offsets_to_transaction({A: 1}, "g")
    else:
        with pytest.raises(StoreAccessError):
            producer.send_offsets_to_transaction({A: 1}, "g")
    for _ in range(2):
        with pytest.raises(StoreAccessError):
            producer.commit_transaction()
    producer.abort_transaction()
    assert (world.read(), committed(world)) == ([], None)


def test_offsets_with_too_much_metadata_do_so_too(world):
    producer = begun(world.open())
    with pytest.raises(OffsetMetadataTooLargeError):
        producer.send_offsets_to_transaction({A: OffsetAndMetadata(offset=1, metadata="x" * 5000)}, "g")
    with pytest.raises(OffsetMetadataTooLargeError):
        producer.commit_transaction()
    producer.abort_transaction()


# -- ... nor without rows that were never accepted --------------------------------------------------------------------


def unknown_topic(producer: Producer) -> None:
    producer.send("nobody", orders(2))


def unknown_partition(producer: Producer) -> None:
    producer.send("orders", orders(2), partition=7)


@every_kind
@pytest.mark.parametrize("send", [unknown_topic, unknown_partition])
def test_a_send_that_raises_at_once_leaves_a_transaction_that_can_only_be_aborted(world, staged, send):
    producer = begun(world.open(), staged=staged)
    with pytest.raises(UnknownTopicOrPartitionError):
        send(producer)
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.commit_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(3))
    assert world.read() == [3]


def test_a_send_that_runs_out_of_time_at_once_does_so_too(world):
    outage, store = world.outage(default_api_timeout_ms=300, metadata_max_age_ms=0)
    producer = begun(store)
    outage.pattern = "topic"
    for call in (lambda: producer.send("orders", orders(2)), producer.commit_transaction):
        with pytest.raises(TransactionAbortableError, match=r"were not sent.*default\.api\.timeout\.ms"):
            call()
    outage.pattern = None
    producer.abort_transaction()
    assert world.read() == []


def test_a_send_with_wrong_arguments_does_not_as_with_a_serializer_of_kafka(world):
    producer = begun(world.open())
    with pytest.raises(SchemaMismatchError):
        producer.send("orders", pa.table({"id": ["no number"]}))
    producer.commit_transaction()
    assert world.read() == [1]


# -- waiting for another transaction's offsets, with a clock whose sleeps take longer than asked ----------------------


def fetch(store: Store) -> None:
    store.consumer(group_id="g").committed(A)


def commit(store: Store) -> None:
    store.consumer(group_id="g").commit({A: 1})


def send_with_transaction(store: Store) -> None:
    begun(store, "other").send_offsets_to_transaction({A: 1}, "g", expected={A: None})


def reset(store: Store) -> None:
    store.admin().reset_offsets("g", {A: 1})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (fetch, UnstableOffsetCommitError),
        (commit, ConcurrentTransactionsError),
        (send_with_transaction, ConcurrentTransactionsError),
        (reset, ConcurrentTransactionsError),
    ],
)
@pytest.mark.parametrize("timeout_ms", [250, 1000])
def test_a_call_that_waits_for_undecided_offsets_says_so_at_its_end(
    world: World, call: Callable[[Store], None], expected: type[TxlogError], timeout_ms: int
) -> None:
    holder = begun(world.open(), "holder")
    holder.send_offsets_to_transaction({A: 9}, "g", expected={A: None})
    before_ms = world.clock.monotonic_ms()
    with pytest.raises(expected):
        call(world.open(max_block_ms=timeout_ms, default_api_timeout_ms=timeout_ms))
    assert timeout_ms <= world.clock.monotonic_ms() - before_ms < 2 * timeout_ms
    holder.abort_transaction()
