"""When does a client write the COMPLETE_* of its last transaction (PROTOCOL.md, W27)?"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.client.test_staged import staged
from tests.client.world import ORDERS, orders, tp
from txlog.client.producer import Producer, background_tasks
from txlog.client.producer.background_tasks import PACE_MS
from txlog.client.producer.sender import MAX_BACKGROUND_MS
from txlog.client.staged import StagedTransaction
from txlog.errors import TransactionalIdNotFoundError, TxlogTimeoutError
from txlog.protocol.context import LOOK_AGE_MS, PROOF_AGE_MS

pytestmark = pytest.mark.usefixtures("two_phases")


def state(world, transactional_id="loader"):
    return world.open().admin().describe_transaction(transactional_id).state


def transact(producer, *ids):
    with producer.transaction():
        producer.send("orders", orders(*ids), partition=0)


def wait_for(world, expected):
    for _ in range(200):
        if state(world) == expected:
            return
        time.sleep(0.02)
    raise AssertionError(f"the id is {state(world)}")


@pytest.mark.parametrize("is_staged", [False, True])
def test_close_completes_the_last_transaction(world, store, is_staged):
    with store.producer("loader", staged=is_staged) as producer:
        transact(producer, 1)
        assert state(world) == "PREPARE_COMMIT"
        transact(producer, 2)
        assert world.read() == [1, 2]
    assert state(world) == "COMPLETE_COMMIT"


def test_close_seals_a_long_tail_of_the_table(world, store):
    with store.producer("loader") as producer:
        for number in range(10):
            transact(producer, number)
    with world.counting.counting() as cost:
        world.open().producer("loader").init_transactions()
    # txlog.json, the snapshot, and the COMPLETE_COMMIT that begins the new segment; then the record of the init.
    assert (cost.list, cost.get, cost.put_if_absent, cost.total) == (1, 3, 1, 5)


@pytest.fixture
def short(monkeypatch):
    """Let the producer's thread look at the clock, which this file moves, every 20 ms."""
    monkeypatch.setattr(background_tasks, "LOOK_AGE_MS", 20)
    monkeypatch.setattr(background_tasks, "COMPLETE_AFTER_MS", 20)


def test_an_idle_producer_completes_its_last_transaction(world, store, short):
    with store.producer("loader") as producer:
        for number in range(2):
            transact(producer, number)
            assert state(world) == "PREPARE_COMMIT"
            world.clock.advance_ms(PACE_MS + 1)
            wait_for(world, "COMPLETE_COMMIT")


def test_a_producer_that_goes_on_soon_looks_at_the_log_meanwhile(world, store, short):
    with store.producer("loader") as producer:
        transact(producer, 1)
        # The last records of the table and of the partition, and those of the look before, if it found one.
        for number, gets in ((2, 2), (3, 4)):
            transact(producer, number)
            with world.counting.counting() as cost:
                world.clock.advance_ms(LOOK_AGE_MS)
                for _ in range(200):
                    if cost.get == gets:
                        break
                    time.sleep(0.02)
            assert (cost.get, cost.total) == (gets, gets)
            assert state(world) == "PREPARE_COMMIT"
        with world.counting.counting() as cost:
            transact(producer, 4)
        # The decision and the marker.
        assert (cost.get, cost.put_if_absent, cost.total) == (0, 2, 2)
        world.clock.advance_ms(PACE_MS)
        wait_for(world, "COMPLETE_COMMIT")


@contextmanager
def beside_a_task(producer: Producer) -> Iterator[threading.Thread]:
    """Yield a thread that commits, and that waits because the producer's thread has a task in hand."""
    transact(producer, 1)
    with producer._lock:
        producer._sender._background.running = True
    caller = threading.Thread(target=transact, args=(producer, 2))
    caller.start()
    caller.join(0.1)
    assert caller.is_alive()
    yield caller
    with producer._lock:
        producer._sender._background.running = False
    caller.join()


def test_a_call_waits_for_the_task_of_the_thread(world, store, short):
    with store.producer("loader") as producer:
        with beside_a_task(producer):
            pass
        assert world.read() == [1, 2]


def test_a_slow_task_of_the_thread_holds_no_call_up(world, store, short):
    with store.producer("loader") as producer, beside_a_task(producer) as caller:
        world.clock.advance_ms(MAX_BACKGROUND_MS - 1)
        caller.join(0.1)
        assert caller.is_alive()
        world.clock.advance_ms(1)
        caller.join()
        assert world.read() == [1, 2]


def test_a_look_that_cannot_be_made_in_time_decides_nothing(world, store):
    outage, other = world.outage(max_block_ms=300)
    producer = other.producer("loader")
    producer.init_transactions()
    transact(producer, 1)
    producer.begin_transaction()
    producer.send("orders", orders(2), partition=0)
    world.clock.advance_ms(PROOF_AGE_MS)
    outage.pattern = "."
    with pytest.raises(TxlogTimeoutError):
        producer.commit_transaction()
    producer.abort_transaction()
    outage.pattern = None
    transact(producer, 3)
    producer.close()
    assert world.read() == [1, 3]


def test_a_large_decision_is_completed_at_once(world, store, monkeypatch):
    """A snapshot of the table holds the inline rows of a PREPARE_COMMIT until the COMPLETE_COMMIT."""
    monkeypatch.setattr(background_tasks, "LARGE_DECISION_BYTES", 4000)
    with store.producer("loader", compression_type="none") as producer:
        transact(producer, 1)
        assert state(world) == "PREPARE_COMMIT"
        transact(producer, *range(2, 400))
        wait_for(world, "COMPLETE_COMMIT")
        transact(producer, 400)
        assert state(world) == "PREPARE_COMMIT"
    assert world.read() == list(range(1, 401))


def test_an_idle_producer_leaves_an_open_transaction_alone(world, store, short):
    with store.producer("loader") as producer:
        transact(producer, 1)
        producer.begin_transaction()
        producer.send("orders", orders(2), partition=0).result()
        world.clock.advance_ms(PACE_MS)
        time.sleep(0.1)
        assert state(world) == "ONGOING"
        producer.commit_transaction()
    assert world.read() == [1, 2]


def test_a_transaction_of_offsets_alone_is_completed_too(world, store, short):
    with store.producer("loader") as producer:
        with producer.transaction():
            producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g")
        world.clock.advance_ms(PACE_MS)
        wait_for(world, "COMPLETE_COMMIT")


def test_a_store_that_refuses_complete_fails_no_call(world):
    world.open().create_topic("orders", ORDERS, partitions=4)
    outage, store = world.outage()
    producer = store.producer("loader", max_block_ms=1000)
    producer.init_transactions()
    transact(producer, 1)
    outage.fails("put_if_absent __transaction_state/", 10**6)
    producer.close()
    assert world.read() == [1]
    assert state(world) == "PREPARE_COMMIT"
    with world.open().producer("loader") as successor:
        transact(successor, 2)
    assert world.read() == [1, 2]


def test_the_tombstone_of_a_drawn_id_completes_its_transaction(world, store):
    txn = StagedTransaction.begin(store.runtime)
    with world.counting.counting() as cost:
        txn.commit(staged(store, txn, 1))
        assert state(world, txn.transactional_id) == "PREPARE_COMMIT"
        assert txn.forget()
    assert cost.put_if_absent == 3  # PREPARE_COMMIT, the rows, the tombstone
    with pytest.raises(TransactionalIdNotFoundError):
        state(world, txn.transactional_id)
    assert world.read() == [1]


def test_a_job_with_an_id_of_its_own_completes_at_once(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    txn.commit(staged(store, txn, 1))
    assert state(world, "nightly") == "COMPLETE_COMMIT"
