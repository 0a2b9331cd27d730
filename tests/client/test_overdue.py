"""A writer that meets a dead transaction after its timeout ends it, so that readers continue (PROTOCOL.md, W28)."""

from __future__ import annotations

import pytest

from tests.client.test_staged import staged
from tests.client.world import orders
from txlog.client.staged import StagedTransaction
from txlog.errors import OutcomeUnknownError

SEND = {"key": None, "partition": 0}
LOOK_MS = 10_000


@pytest.fixture
def dead(world, store):
    """Return a producer that opened a transaction in orders-0 and then died; its timeout is 1 s."""
    producer = world.open().producer("dead", transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1, 2), **SEND).result(20)
    return producer


def append(store):
    producer = store.producer()
    producer.send("orders", orders(7), **SEND)
    producer.flush()


def commit_eager(store):
    with store.producer("eager") as producer, producer.transaction():
        producer.send("orders", orders(7), **SEND)


def commit_staged(store):
    txn = StagedTransaction.begin(store.runtime, "staged")
    txn.commit(staged(store, txn, 7))


WRITERS = pytest.mark.parametrize("write", [append, commit_eager, commit_staged])


@WRITERS
def test_a_writer_ends_the_timed_out_transaction_that_it_meets(world, store, dead, write):
    world.clock.advance_ms(LOOK_MS)
    write(world.open())
    _, lso, leo = world.ends()
    assert lso == leo
    assert store.admin().describe_transaction("dead").state == "COMPLETE_ABORT"
    assert world.read() == [7]


@pytest.fixture
def slow(world, store):
    """Return a living producer whose transaction may be open for a minute."""
    producer = world.open().producer("slow", transaction_timeout_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), **SEND).result(20)
    return producer


@WRITERS
def test_not_before_its_time_out(world, slow, write):
    world.clock.advance_ms(2 * LOOK_MS)
    write(world.open())
    assert world.ends()[1] == 0
    slow.commit_transaction()
    assert world.read() == [1, 7]


def test_a_decided_transaction_is_rolled_forward_as_it_was_decided(world, store):
    _, dying = world.outage()
    producer = dying.producer("dead", max_block_ms=1)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), **SEND).result(20)
    dying.runtime.store.pattern = r"put_if_absent orders/"
    with pytest.raises(OutcomeUnknownError, match="decided"):
        producer.commit_transaction()
    world.clock.advance_ms(LOOK_MS)
    append(world.open())
    assert world.read() == [1, 7]


def test_a_living_transaction_is_looked_up_no_oftener_than_every_ten_seconds(world, slow):
    world.clock.advance_ms(LOOK_MS)
    writer = world.open().producer()
    requests = []
    for _ in range(20):
        with world.counting.counting() as cost:
            writer.send("orders", orders(7), **SEND).result(20)
            writer.flush()
        requests.append(cost.total)
        world.clock.advance_ms(1000)
    # Appends are one second apart, so two GETs first check that the log still holds what the writer has seen.
    assert [number for number, count in enumerate(requests) if count > 3] == [0, 10], requests


@WRITERS
def test_what_goes_wrong_with_it_does_not_fail_the_write(world, store, dead, write):
    world.clock.advance_ms(LOOK_MS)
    table = str(store.admin().describe_transaction("dead").coordinator).rpartition("-")[2]
    outage, opened = world.outage()
    outage.pattern = rf"__transaction_state/{table}/"
    write(opened)
    assert store.admin().describe_transaction("dead").state == "ONGOING", "it was tried, and left to the next writer"
    append(world.open())
    assert world.read() == [7, 7]
