"""Small transactions, whose rows wait for their commit: requests, futures, what sends the rows earlier, failures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
import threading
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import ORDERS, World, many, orders, tp
from txlog.client.producer import Producer
from txlog.client.producer.deferred_rows import MAX_DEFERRED_BYTES
from txlog.client.store import Store
from txlog.core import envelope
from txlog.core.records import StoreDescriptor
from txlog.errors import (
    CommitFailedError,
    IllegalStateError,
    OutcomeUnknownError,
    ProducerFencedError,
    StorageError,
    TransactionAbortedError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.testing.failing_store import Fault

A = tp("orders", 0)


def begun(store: Store, name: str = "loader", **settings: Any) -> Producer:
    """Return a producer in an open transaction."""
    producer = store.producer(name, **settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def is_registered(world: World, name: str = "loader") -> bool:
    """Return whether the store knows of the open transaction."""
    return world.open().admin().describe_transaction(name).state == "ONGOING"


# -- what a commit costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [2, 10])
def test_a_commit_writes_the_decision_then_one_record_a_partition(world, store, partitions):
    store.create_topic("wide", ORDERS, partitions=10)
    with store.producer("loader") as producer:
        for _ in range(2):
            with world.counting.counting() as cost, producer.transaction():
                for number in range(100):
                    producer.send("wide", orders(number), partition=number % partitions)
        written = [path.split("/")[0] for verb, path in cost.calls() if verb == "put_if_absent"]
    assert cost.write_file == 0
    assert written[: partitions + 1] == ["__transaction_state", *["wide"] * partitions]
    assert (cost.get, cost.list) == (0, 0), "an earlier commit has looked whether the topic exists"
    assert len(world.read("wide")) == 200


def test_rows_that_are_too_large_to_be_inline_become_one_file_of_their_partition(world, store):
    with store.producer("loader") as producer, world.counting.counting() as cost, producer.transaction():
        large = [producer.send("orders", many(1000, start), partition=0) for start in (0, 1000)]
        small = producer.send("orders", orders(1), partition=1)
    assert cost.write_file == 1
    assert [future.result().base_offset for future in large] == [0, 1000]
    assert small.result().base_offset == 0
    assert world.read() == [*range(2000), 1]


def test_offsets_are_written_by_their_own_call(world, store):
    store.producer("other").init_transactions()
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0)
        producer.send_offsets_to_transaction({A: 1}, "g", expected={A: None})
        with pytest.raises(CommitFailedError):
            producer.send_offsets_to_transaction({A: 2}, "g", expected={A: 7})
        producer.abort_transaction()
        with producer.transaction(), world.counting.counting() as cost:
            producer.send("orders", orders(2), partition=0)
            producer.send_offsets_to_transaction({A: 1}, "g", expected={A: None})
        assert cost.put_if_absent == 2
        assert world.ends() == (0, 1, 1)
    assert world.read() == [2]
    assert store.consumer(group_id="g").committed(A)[A].offset == 1


def test_a_store_that_knows_no_inline_staged_rows_gets_eager_transactions(world, store):
    descriptor, _ = envelope.decode(world.memory.get("txlog.json"), StoreDescriptor, "txlog.json")
    old = StoreDescriptor(
        features=tuple(feature for feature in descriptor.features if feature != "staged-inline"),
        store_id=descriptor.store_id,
        created_at=descriptor.created_at,
        constants=descriptor.constants,
    )
    world.memory.delete("txlog.json")
    world.memory.put_if_absent("txlog.json", envelope.encode(old))
    producer = begun(world.open())
    concurrent.futures.wait([producer.send("orders", orders(1), partition=0)], timeout=60)
    assert is_registered(world)
    producer.commit_transaction()
    assert world.read() == [1]


# -- futures ----------------------------------------------------------------------------------------------------------


def test_futures_have_the_offsets_and_times_of_the_commit(world, store):
    with store.producer("loader") as producer:
        for _ in range(2):
            _, _, first = world.ends()
            with producer.transaction():
                one, two = (producer.send("orders", orders(*ids), partition=0) for ids in ((1, 2), (3, 4)))
                spread = producer.send("orders", orders(*range(20)), key="id")
                world.clock.advance_ms(5)
            assert (one.result().base_offset, two.result().base_offset) == (first, first + 2)
            assert one.result().timestamp == two.result().timestamp == spread.result().timestamp > 0
            assert sum(part.records for part in spread.result().parts) == 20
            assert all(part.base_offset >= 0 for part in spread.result().parts)


def test_callbacks_run_after_the_commit_in_the_order_of_the_sends(world, store):
    seen = []
    with store.producer("loader", batch_size=1) as producer:
        with producer.transaction():
            for number in range(5):
                future = producer.send("orders", orders(number), partition=0)
                future.add_done_callback(lambda done: seen.append((done.result().base_offset, world.read())))
            assert seen == []
        assert seen == [(number, [0, 1, 2, 3, 4]) for number in range(5)]


def test_calls_that_wait_are_refused_in_a_callback_of_the_commit(store):
    answers: list[str] = []

    def callback(_: object) -> None:
        for call in (
            producer.flush,
            producer.close,
            late.result,
            producer.commit_transaction,
            producer.begin_transaction,
        ):
            try:
                call()
            except IllegalStateError as error:
                answers.append(str(error))

    with store.producer("loader") as producer, producer.transaction():
        producer.send("orders", orders(1), partition=0).add_done_callback(callback)
        late = producer.send("orders", orders(2), partition=0)
    assert len(answers) == 5
    assert all("was called in the callback of a future" in answer for answer in answers)


def test_a_coroutine_that_awaits_a_future_waits_for_the_commit(store):
    async def run() -> int:
        with store.producer("loader") as producer:
            with producer.transaction():
                awaited = asyncio.wrap_future(producer.send("orders", orders(1), partition=0))
            return int((await awaited).base_offset)

    assert asyncio.run(run()) == 0


def test_an_abort_writes_nothing_and_fails_the_futures(world, store):
    producer = begun(store)
    future = producer.send("orders", orders(1), partition=0)
    with world.counting.counting() as cost:
        producer.abort_transaction()
    assert cost.total == 0
    with pytest.raises(TransactionAbortedError, match="their transaction was aborted first"):
        future.result()


def test_rows_of_a_repeated_version_have_no_offset(world, store):
    with store.producer("loader") as producer:
        with producer.transaction(3):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction()
        future = producer.send("orders", orders(2), partition=0)
        result = producer.commit_transaction(version=3)
    assert result.skipped
    skipped = r"transactional\.id 'loader' \(producer \d+, epoch \d+\): \w+, skipped: version 3 is in the log"
    assert re.fullmatch(skipped, str(result))
    assert (future.result().base_offset, future.result().timestamp) == (-1, -1)
    assert world.read() == [1]


# -- what sends the rows before the commit ----------------------------------------------------------------------------

ASKS = {
    "flush": lambda producer, future: producer.flush(),
    "result": lambda producer, future: future.result(),
    "exception": lambda producer, future: future.exception(),
    "done": lambda producer, future: [future.done(), concurrent.futures.wait([future])],
    "wait": lambda producer, future: concurrent.futures.wait([future], timeout=60),
    "as_completed": lambda producer, future: list(concurrent.futures.as_completed([future], timeout=60)),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_whoever_asks_gets_the_offset_before_the_commit(world, store, ask):
    producer = begun(store)
    future = producer.send("orders", orders(1), partition=0)
    assert world.read(isolation="read_uncommitted") == []
    ask(producer, future)
    assert future.result(0).base_offset == 0
    assert is_registered(world)
    producer.send("orders", orders(2), partition=0)
    producer.commit_transaction()
    assert world.read() == [1, 2]
    with producer.transaction(), world.counting.counting() as cost:
        producer.send("orders", orders(3), partition=0)
    assert cost.total == 0, "the next transaction waits again"
    producer.close()


def test_a_poll_of_done_ends(store):
    producer = begun(store)
    future = producer.send("orders", orders(1), partition=0)
    pause = threading.Event()
    for _ in range(6000):
        if future.done():
            break
        pause.wait(0.01)
    assert future.result(0).base_offset == 0
    producer.close()


def test_a_flush_of_nothing_leaves_the_transaction_small(world, store):
    producer = begun(store)
    producer.flush()
    producer.send("orders", orders(1), partition=0)
    producer.commit_transaction()
    assert world.open().admin().describe_partition("orders", 0).tail_batches == 1


def test_more_rows_than_a_decision_may_carry_are_sent(world, store):
    producer = begun(store)
    rows = many(10_000, width=60)
    futures = [
        producer.send("orders", rows, partition=number % 2) for number in range(MAX_DEFERRED_BYTES // rows.nbytes + 1)
    ]
    concurrent.futures.wait(futures, timeout=60)
    assert is_registered(world)
    producer.commit_transaction()
    assert len(world.read()) == len(futures) * 10_000


def test_rows_that_are_larger_inline_than_a_decision_may_carry_are_sent(world, store):
    schema = pa.schema([(f"column_{number}", pa.int8()) for number in range(100)])
    row = pa.table([pa.array([1], pa.int8())] * 100, schema=schema)
    store.create_topic("wide", schema, partitions=128)
    producer = begun(store, compression_type="none")
    futures = [producer.send("wide", row, partition=number) for number in range(128)]
    assert 128 * row.nbytes < MAX_DEFERRED_BYTES
    producer.commit_transaction()
    assert {future.result(0).base_offset for future in futures} == {0}
    assert world.ends("wide") == (0, 2, 2), "a row and its marker"
    assert len(world.read("wide", column="column_7")) == 128


def test_rows_of_two_schemas_are_sent(world, store):
    producer = begun(world.open(metadata_max_age_ms=0))
    producer.send("orders", orders(1), partition=0)
    store.alter_topic("orders", add_columns=pa.schema([("more", pa.int8())]))
    producer.send("orders", [{"id": 2, "name": "b", "more": 3}], partition=0)
    producer.commit_transaction()
    assert world.read() == [1, 2]
    assert world.read(column="more") == [None, 3]


def test_the_time_to_deliver_begins_when_rows_are_sent(world, store):
    producer = begun(store, delivery_timeout_ms=1000, transaction_timeout_ms=1000)
    producer.send("orders", orders(1), partition=0)
    world.clock.advance_ms(100_000)
    producer.flush()
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send("orders", orders(2), partition=0)
    world.clock.advance_ms(100_000)
    assert world.open().admin().expire().aborted == ()
    producer.commit_transaction()
    assert world.read() == [1, 2]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_fenced_instance_publishes_nothing_and_its_futures_say_why(world, store):
    one = begun(store)
    future = one.send("orders", orders(1), partition=0)
    with world.open().producer("loader"):
        with pytest.raises(ProducerFencedError):
            one.commit_transaction()
        with pytest.raises(ProducerFencedError):
            future.result()
    one.close()
    assert world.read(isolation="read_uncommitted") == []


def test_rows_of_a_deleted_topic_fail_with_their_commit(world, store):
    producer = begun(store)
    future = producer.send("orders", orders(1), partition=0)
    world.open().delete_topic("orders")
    with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
        producer.commit_transaction()
    with pytest.raises(UnknownTopicOrPartitionError):
        future.result()
    producer.abort_transaction()


def test_a_file_that_cannot_be_written_in_time_leaves_the_transaction_open(world, store):
    outage, other = world.outage(max_block_ms=300)
    producer = begun(other, inline_max_bytes=0)
    future = producer.send("orders", orders(1), partition=0)
    outage.pattern = "write_file"
    with pytest.raises(TxlogTimeoutError, match=r"within 300 ms \(max.block.ms\)"):
        producer.commit_transaction()
    outage.pattern = None
    producer.send("orders", orders(2), partition=0)
    producer.commit_transaction()
    assert future.result().base_offset == 0
    assert world.read() == [1, 2]


def test_a_thread_that_asked_during_a_commit_that_failed_gets_its_offset(world, store):
    class Asked:
        """A store whose files cannot be written; meanwhile another thread asks for its offset."""

        def __getattr__(self, verb: str) -> object:
            return getattr(world.memory, verb)

        def write_file(self, path: str, chunks: object) -> int:
            if not threads:
                threads.append(threading.Thread(target=lambda: found.append(small.result().base_offset)))
                threads[0].start()
                while not producer._sender._was_asked:
                    threading.Event().wait(0.01)
            raise StorageError("no file today")

    threads: list[threading.Thread] = []
    found: list[Any] = []
    producer = begun(world.open(Asked(), max_block_ms=100, delivery_timeout_ms=100))
    small = producer.send("orders", orders(1), partition=0)
    producer.send("orders", many(2000), partition=1)
    with pytest.raises(TxlogTimeoutError):
        producer.commit_transaction()
    threads[0].join(60)
    assert found == [0]
    producer.close()


@pytest.mark.parametrize("landed", [False, True])
@pytest.mark.parametrize("end", ["commit", "abort", "close"])
def test_rows_of_a_commit_in_doubt_wait_for_its_outcome(world, store, landed, end):
    faults = [Fault(action="lose_reply", moment="after", match="put_if_absent .*PREPARE_COMMIT")] if landed else []
    outage, other = world.outage(*faults, max_block_ms=300)
    producer = begun(other)
    future = producer.send("orders", orders(1), partition=0)
    producer.send("orders", orders(2), partition=1)
    outage.pattern = "get __transaction_state" if landed else "__transaction_state"
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    assert not future.done()
    for call in (future.result, future.exception, producer.flush):
        with pytest.raises(OutcomeUnknownError, match=r"hint: call commit_transaction\(\) again"):
            call()
    outage.pattern = None
    if end == "commit":
        producer.commit_transaction()
    elif end == "close":
        producer.close()
    elif landed:
        with pytest.raises(IllegalStateError, match="it is committed"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
    if landed or end == "commit":
        assert future.result(0).base_offset in (0, -1)
        assert world.read() == [1, 2]
    else:
        with pytest.raises(TransactionAbortedError):
            future.result(0)
        assert world.read() == []
    producer.close()


@pytest.mark.parametrize("end", ["commit", "abort", "close"])
def test_a_ctrl_c_behind_a_commit_that_won_loses_and_repeats_nothing(world, store, monkeypatch, end):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    producer = begun(store)
    future = producer.send("orders", orders(1), partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(producer._session, "end_overdue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    if end == "commit":
        assert not producer.commit_transaction().skipped
    elif end == "abort":
        with pytest.raises(IllegalStateError, match="it is committed"):
            producer.abort_transaction()
    producer.close()
    assert future.result(0).base_offset == 0
    assert world.read() == [1]


@pytest.mark.parametrize("end", ["commit", "close"])
def test_a_ctrl_c_in_a_callback_leaves_no_other_future_open(world, store, end):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    producer = begun(store)
    spread = producer.send("orders", orders(*range(20)), key="id")
    first, second = (producer.send("orders", orders(number), partition=0) for number in (20, 21))
    spread.add_done_callback(interrupted)
    first.add_done_callback(interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    if end == "commit":
        producer.commit_transaction()
    producer.close()
    assert second.result(0).base_offset == first.result(0).base_offset + 1 > 0
    assert [part.partition for part in spread.result(0).parts] == [0, 1, 2, 3]
    assert sorted(world.read()) == [*range(22)]


def test_a_commit_that_stays_in_doubt_fails_its_futures_when_the_producer_closes(world, store):
    outage, other = world.outage(max_block_ms=300)
    producer = begun(other)
    future = producer.send("orders", orders(1), partition=0)
    outage.pattern = "__transaction_state"
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    with pytest.raises(OutcomeUnknownError, match="closed, and it is still unknown"):
        producer.close()
    with pytest.raises(OutcomeUnknownError):
        future.result(0)
