"""A group's offsets inside a transaction: commit, abort, conditions, and the consume-transform-produce loop."""

from __future__ import annotations

import pytest

from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client.groups import ConsumerGroupMetadata, OffsetAndMetadata
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    IllegalStateError,
    InvalidRequestError,
    ProducerFencedError,
    UnstableOffsetCommitError,
)
from txlog.testing.failing_store import Fault, SimulatedCrash

IN_0 = tp("orders", 0)
IN_1 = tp("orders", 1)
every_kind = pytest.mark.parametrize("staged", [False, True, None], ids=["eager", "staged", "deferred"])


def committed(world: World, group: str = "g") -> int | None:
    found = world.open().consumer(group_id=group).committed(IN_0)[IN_0]
    return None if found is None else found.offset


@pytest.fixture
def pipe(store):
    store.create_topic("out", ORDERS)
    with store.producer() as producer:
        producer.send("orders", orders(*range(5)), partition=0)
    return store


# -- with the transaction's outcome -------------------------------------------------------------------------------


@every_kind
def test_offsets_are_committed_with_the_transaction_and_only_with_it(world, pipe, staged):
    with pipe.producer("copy", staged=staged) as producer:
        with producer.transaction():
            producer.send("out", orders(1))
            producer.send_offsets_to_transaction({IN_0: 1}, "g")
        assert committed(world) == 1
        producer.begin_transaction()
        producer.send_offsets_to_transaction({IN_0: 2}, "g")
        producer.abort_transaction()
        assert committed(world) == 1
        with producer.transaction():
            producer.send_offsets_to_transaction({IN_0: OffsetAndMetadata(offset=3, metadata="m")}, "g")
    assert world.open().consumer(group_id="g").committed(IN_0) == {IN_0: OffsetAndMetadata(offset=3, metadata="m")}


@every_kind
def test_later_offsets_of_one_transaction_win(world, pipe, staged):
    with pipe.producer("copy", staged=staged) as producer, producer.transaction():
        producer.send_offsets_to_transaction({IN_0: 1}, "g")
        producer.send_offsets_to_transaction({IN_0: 4, tp("orders", 1): 0}, "g")
        producer.send_offsets_to_transaction({IN_0: 2}, "other")
    assert (committed(world), committed(world, "other")) == (4, 2)


def test_pending_offsets_are_unstable_and_never_answered_with_the_older_value(world, pipe):
    with pipe.producer("copy", transaction_timeout_ms=60_000) as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({IN_0: 1}, "g")
        peek = world.open().consumer(group_id="g", default_api_timeout_ms=500)
        with pytest.raises(UnstableOffsetCommitError, match=r"group 'g', orders-0: producer \d+ has an undecided"):
            peek.committed(IN_0)
        producer.commit_transaction()
        assert peek.committed(IN_0)[IN_0].offset == 1


def test_consumer_waits_for_pending_offsets_instead_of_reading_twice(world, pipe):
    with pipe.producer("copy") as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({IN_0: 3}, "g")
        consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest")
        consumer.assign([IN_0])
        assert consumer.poll(0) is None
        assert consumer.poll(1000) is None
        producer.commit_transaction()
        assert [row["id"] for row in rows_of(consumer)] == [3, 4]


def test_reader_of_offsets_times_a_dead_transaction_out(world, pipe):
    producer = pipe.producer("copy", transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({IN_0: 1}, "g")
    world.clock.advance_ms(1001)
    assert committed(world) is None
    assert world.open().admin().describe_transaction("copy").state == "COMPLETE_ABORT"


def test_reader_that_may_not_write_gets_the_offsets_that_are_decided(world, pipe):
    """The reader returns the decided offsets, and waits for the others (R18)."""
    world.open().admin().reset_offsets("g", {IN_0: 2})
    read_only = Fault(action="403", match=r"^(put|write|delete)", times=10**6)
    peek = world.failing(read_only)[1].consumer(group_id="g", default_api_timeout_ms=500)
    producer = pipe.producer("copy", transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({IN_1: 1}, "g")
    world.clock.advance_ms(1001)
    assert peek.committed(IN_0)[IN_0].offset == 2
    with pytest.raises(UnstableOffsetCommitError, match="this reader may not write"):
        peek.committed(IN_0, IN_1)
    assert committed(world) == 2
    assert world.open().consumer(group_id="g").committed(IN_1) == {IN_1: None}
    assert peek.committed(IN_0, IN_1)[IN_1] is None


@every_kind
def test_crash_between_decision_and_markers_is_rolled_forward_by_the_next_start(world, pipe, staged):
    fault = Fault(action="crash", moment="after", match=r"put_if_absent __transaction_state.*PREPARE_COMMIT")
    _, dying = world.failing(fault)
    producer = dying.producer("copy", staged=staged)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("out", orders(0)).add_done_callback(lambda _: None)
    producer.send_offsets_to_transaction({IN_0: 1}, "g")
    with pytest.raises(SimulatedCrash):
        producer.commit_transaction()
    with world.open().producer("copy"):
        assert committed(world) == 1
        assert world.read("out") == [0]


# -- conditions -------------------------------------------------------------------------------------------------------


@every_kind
def test_offsets_of_a_fenced_member_cannot_commit(world, pipe, staged):
    world.clock.advance_ms(1)  # a store's time with milliseconds is not cut to a second
    old = pipe.consumer("orders", group_id="g", enable_auto_commit=False)
    metadata = old.group_metadata()
    world.clock.advance_ms(45_001)
    new = world.open().consumer("orders", group_id="g", enable_auto_commit=False)
    with pipe.producer("copy", staged=staged) as producer:

        def copy():
            with producer.transaction():
                producer.send("out", orders(1))
                producer.send_offsets_to_transaction({IN_0: 1}, metadata)

        with pytest.raises(CommitFailedError, match=r"group 'g': member .* of generation 1 may not commit"):
            copy()
        with producer.transaction():
            producer.send("out", orders(2))
            producer.send_offsets_to_transaction({IN_0: 2}, new.group_metadata())
    assert world.read("out") == [2]
    assert committed(world) == 2


@every_kind
def test_of_two_jobs_that_took_the_same_range_one_commits(world, pipe, staged):
    def copy(producer, ids, expected, to):
        with producer.transaction():
            producer.send("out", orders(*ids))
            producer.send_offsets_to_transaction({IN_0: to}, "g", expected={IN_0: expected})

    with pipe.producer("one", staged=staged) as one, world.open().producer("two", staged=staged) as two:
        copy(one, [0, 1], None, 2)
        with pytest.raises(
            CommitFailedError, match=r"group 'g', orders-0: the job started from offset None, but 2 is committed now"
        ):
            copy(two, [0, 1, 2], None, 3)
        copy(two, [2], 2, 3)
    assert world.read("out") == [0, 1, 2]
    assert committed(world) == 3


def test_conditional_offsets_wait_for_other_undecided_ones(world, pipe):
    with pipe.producer("one") as one, world.open().producer("two", max_block_ms=500) as two:
        one.begin_transaction()
        one.send_offsets_to_transaction({IN_0: 1}, "g", expected={IN_0: None})
        two.begin_transaction()
        with pytest.raises(ConcurrentTransactionsError, match=r"orders-0: producer \d+ has an undecided transaction"):
            two.send_offsets_to_transaction({IN_0: 1}, "g", expected={IN_0: None})
        with pytest.raises(ConcurrentTransactionsError):
            world.open().consumer(group_id="g", default_api_timeout_ms=100).commit({IN_0: 7})
        one.abort_transaction()
        two.send_offsets_to_transaction({IN_0: 1}, "g", expected={IN_0: None})
        two.commit_transaction()
    assert committed(world) == 1


def test_staged_commit_with_undecided_offsets_of_another_may_be_repeated_or_aborted(world, pipe):
    with pipe.producer("one") as one, world.open().producer("two", staged=True, max_block_ms=500) as two:
        one.begin_transaction()
        one.send_offsets_to_transaction({IN_0: 1}, "g", expected={IN_0: None})
        two.begin_transaction()
        two.send("out", orders(9))
        two.send_offsets_to_transaction({IN_0: 1}, "g", expected={IN_0: None})
        with pytest.raises(ConcurrentTransactionsError):
            two.commit_transaction()
        one.abort_transaction()
        two.commit_transaction()
    assert world.read("out") == [9]


@every_kind
def test_version_is_judged_before_the_condition(world, pipe, staged):
    skipped = []
    with pipe.producer("copy", staged=staged) as producer:
        for expected, to in ((None, 1), (None, 1), (1, 2)):
            with producer.transaction(to) as scope:
                producer.send("out", orders(to))
                producer.send_offsets_to_transaction({IN_0: to}, "g", expected={IN_0: expected})
            skipped.append(scope.result.skipped)
    assert skipped == [False, True, False], "the repeated one is known by its version, before its offsets look wrong"
    assert world.read("out") == [1, 2]


# -- bad calls --------------------------------------------------------------------------------------------------------


def test_consumer_that_commits_by_itself_is_refused(pipe):
    consumer = pipe.consumer("orders", group_id="g")
    with pipe.producer("copy") as producer:
        producer.begin_transaction()
        with pytest.raises(
            IllegalStateError, match=r"commits its offsets by itself \(enable.auto.commit\).*enable_auto_commit=False"
        ):
            producer.send_offsets_to_transaction({IN_0: 1}, consumer.group_metadata())
        producer.abort_transaction()


def test_offsets_that_cannot_be(pipe):
    with pipe.producer("copy") as producer:
        producer.begin_transaction()
        for offsets, error, message in (
            ({IN_0: -1}, InvalidRequestError, "orders-0: -1 is not an offset"),
            ({IN_0: True}, InvalidRequestError, "orders-0: True is not an offset"),
            ({"orders": 1}, InvalidRequestError, "'orders' is not a partition"),
            ({("or/ders", 0): 1}, InvalidRequestError, "is not a partition"),
        ):
            with pytest.raises(error, match=message):
                producer.send_offsets_to_transaction(offsets, "g")
        with pytest.raises(InvalidRequestError, match=r"is not a group.id"):
            producer.send_offsets_to_transaction({IN_0: 1}, "")
        with pytest.raises(InvalidRequestError, match="generation 3 of group 'g' needs its member id"):
            producer.send_offsets_to_transaction({IN_0: 1}, ConsumerGroupMetadata(group_id="g", generation_id=3))
        producer.commit_transaction()


def test_fenced_producer_cannot_send_offsets(world, pipe):
    one = pipe.producer("copy")
    one.init_transactions()
    with world.open().producer("copy"):
        one.begin_transaction()
        with pytest.raises(ProducerFencedError, match=r"'copy'.*newest instance"):
            one.send_offsets_to_transaction({IN_0: 1}, "g")
        one.close()
    assert committed(world) is None


@every_kind
def test_what_a_job_fetches_after_its_init_stays_committed(world, pipe, staged):
    """A job that fetches before its init takes a range that the older instance may still commit (W42)."""
    older = pipe.producer("copy", staged=staged)
    older.init_transactions()
    fetched_before = committed(world)
    with older.transaction():
        older.send_offsets_to_transaction({IN_0: 3}, "g")
    with world.open().producer("copy", staged=staged):  # the block calls init_transactions
        fetched_after = committed(world)
        with pytest.raises(ProducerFencedError), older.transaction():
            older.send_offsets_to_transaction({IN_0: 5}, "g")
        assert (fetched_before, fetched_after, committed(world)) == (None, 3, 3)
    older.close()


# -- consume, transform, produce ----------------------------------------------------------------------------------


@every_kind
def test_copy_loop_with_aborts_and_restarts_is_exactly_once(world, store, staged):
    store.create_topic("out", ORDERS, partitions=2)
    with store.producer() as producer:
        for number in range(60):
            producer.send("orders", orders(number), partition=number % 4)
    rounds = 0
    while rounds < 200:
        process = world.open()
        consumer = process.consumer(
            "orders", group_id="copy", auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=3
        )
        with process.producer("copier", staged=staged) as producer:
            for _ in range(4):
                batch = consumer.poll(0)
                if batch is None:
                    break
                rounds += 1
                partition = batch.column("_partition")[0].as_py()
                producer.begin_transaction()
                producer.send("out", batch.select(["id", "name"]), key="name")
                next_offset = {tp("orders", partition): batch.column("_offset")[-1].as_py() + 1}
                producer.send_offsets_to_transaction(next_offset, consumer.group_metadata())
                if rounds % 3 == 0:
                    producer.abort_transaction()
                    consumer.seek_to_committed()
                else:
                    producer.commit_transaction()
        consumer.close()
        if batch is None:
            break
    assert sorted(world.read("out")) == list(range(60))
    assert len(world.read("out", isolation="read_uncommitted")) >= 60
    for partition in range(4):
        ids = [i for i in world.read("out") if i % 4 == partition]
        assert len(ids) == 15
