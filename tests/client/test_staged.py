"""Staged transactions by hand, as Spark's driver makes them; sessions, their retries and timeouts."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from tests.client.world import ORDERS, orders, tp
from txlog.client.groups import GroupOffsets, group_offsets
from txlog.client.reading import read_session
from txlog.client.staged import StagedTransaction
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.groups import OffsetsCondition
from txlog.core.records import OffsetValue
from txlog.core.state import PartitionState
from txlog.errors import (
    CommitFailedError,
    InvalidRequestError,
    OutcomeUnknownError,
    ProducerFencedError,
    TransactionalIdNotFoundError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import PartitionView
from txlog.protocol.transactions import resolve
from txlog.storage.conform import conform
from txlog.testing.failing_store import Fault


def staged(store, txn, *ids, partition=0, topic="orders"):
    files = StagedFiles(store.runtime, txn.txn)
    metadata = store.runtime.topic(topic)
    files.add(metadata, conform(orders(*ids), metadata.schema, topic=topic), partition)
    return files.finish()


def test_commit_and_the_next_transaction_of_the_same_instance(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    for number in range(3):
        assert txn.producer_epoch == number
        parts = staged(store, txn, number, number + 10)
        assert txn.commit(parts, version=number).skipped is False
    assert txn.commit(staged(store, txn, 99), version=2).skipped is True
    assert world.read() == [0, 10, 1, 11, 2, 12]


def test_a_job_beside_members_goes_on_without_an_init(world, store):
    with store.producer() as producer:
        for number in range(3):
            producer.send("orders", orders(number), partition=0)
            producer.flush()
    member = world.open(auto_offset_reset="earliest").consumer("orders", group_id="g", allow_mixed_groups=True)
    member.poll(0)
    runtime, last, orders_0 = world.open().runtime, None, tp("orders", 0)
    for number in range(3):
        txn = StagedTransaction.begin(runtime, "nightly", last=last, allow_mixed_groups=True)
        sent = group_offsets({orders_0: number + 1}, "g", {orders_0: number or None}, who="nightly")
        last = txn.commit(offsets=[sent], version=number).txn
    assert member.committed(orders_0)[orders_0].offset == 3
    member.close()


def test_an_instance_goes_on_without_an_init_unless_another_one_came(world, store):
    begun = StagedTransaction.begin(store.runtime, "nightly")
    last = begun.commit(staged(store, begun, 0), version=0).txn
    with world.counting.counting() as cost:
        txn = StagedTransaction.begin(store.runtime, "nightly", session=begun.session, last=last)
    assert (cost.put_if_absent, txn.producer_epoch) == (0, last.producer_epoch)
    last = txn.commit(staged(store, txn, 1), version=1).txn
    other = StagedTransaction.begin(store.runtime, "nightly")
    txn = StagedTransaction.begin(store.runtime, "nightly", session=begun.session, last=last)
    assert txn.producer_epoch == other.producer_epoch + 1
    with pytest.raises(ProducerFencedError):
        other.commit(staged(store, other, 99), version=2)
    txn.commit(staged(store, txn, 2), version=2)
    assert world.read() == [0, 1, 2]


def test_nothing_to_commit_writes_nothing(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    with world.counting.counting() as cost:
        txn.commit()
        txn.abort()
    assert cost.total == 0


def test_drawn_id_is_forgotten(world, store):
    txn = StagedTransaction.begin(store.runtime)
    assert txn.drawn
    assert txn.transactional_id.startswith("__spark-")
    with pytest.raises(InvalidRequestError, match=r"txn.version 1 needs a transactional.id of your own"):
        txn.commit(staged(store, txn, 1), version=1)
    txn.commit(staged(store, txn, 1))
    assert txn.forget()
    with pytest.raises(TransactionalIdNotFoundError):
        store.admin().describe_transaction(txn.transactional_id)
    assert world.read() == [1]
    assert not StagedTransaction.begin(store.runtime, "mine").forget()


def test_a_commit_stays_one_if_its_drawn_id_cannot_be_forgotten(world, store, caplog):
    outage, other = world.outage()
    txn = StagedTransaction.begin(other.runtime)
    txn.commit(staged(other, txn, 1))
    outage.pattern = "put_if_absent __transaction_state"
    assert not txn.forget()
    assert f"{txn.transactional_id!r} was not removed, and expires later" in caplog.text
    assert world.read() == [1]


def test_second_instance_fences_the_first(world, store):
    one = StagedTransaction.begin(store.runtime, "nightly")
    parts = staged(store, one, 1)
    two = StagedTransaction.begin(world.open().runtime, "nightly")
    with pytest.raises(ProducerFencedError, match=r"'nightly' .*was fenced before it could commit"):
        one.commit(parts)
    two.commit(staged(store, two, 2))
    assert world.read() == [2]


@pytest.mark.parametrize("landed", [False, True])
def test_abort_after_an_attempted_commit_tells_what_won(world, store, landed):
    fault = Fault(action="lose_reply", moment="after", match=r"put_if_absent .*PREPARE_COMMIT")
    outage, other = world.outage(*([fault] if landed else []), max_block_ms=300)
    txn = StagedTransaction.begin(other.runtime, "nightly")
    parts = staged(other, txn, 1)
    outage.pattern = "get __transaction_state" if landed else "__transaction_state"
    with pytest.raises(OutcomeUnknownError, match="hint: repeat the same call"):
        txn.commit(parts)
    outage.pattern = None
    assert txn.abort().already_committed is landed
    assert world.read() == ([1] if landed else [])


def test_offsets_ride_along(world, store):
    source = tp("orders", 3)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    plain = GroupOffsets(group="g", offsets={source: OffsetValue(offset=0)})
    txn.commit(staged(store, txn, 1), offsets=[plain])
    condition = OffsetsCondition(expected={source: 7})
    wrong = GroupOffsets(group="g", offsets={source: OffsetValue(offset=8)}, condition=condition)
    with pytest.raises(CommitFailedError, match="started from offset 7, but 0 is committed now"):
        txn.commit(staged(store, txn, 2), offsets=[wrong])
    txn.abort()
    right = GroupOffsets(
        group="g", offsets={source: OffsetValue(offset=8)}, condition=OffsetsCondition(expected={source: 0})
    )
    txn.commit(staged(store, txn, 3), offsets=[right])
    assert world.read() == [1, 3]
    assert store.consumer(group_id="g").committed(source)[source].offset == 8


def test_parts_of_different_schemas_cannot_be_one_batch(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    old = staged(store, txn, 1)
    store.alter_topic("orders", add_columns=pa.schema([("more", pa.int8())]))
    with pytest.raises(
        InvalidRequestError,
        match=r"orders-0: the topic.s columns changed .*files of schema 0 and of schema 1 .*cannot be one batch",
    ):
        txn.commit([*old, *staged(store, txn, 2)])
    txn.abort()
    assert world.read() == []


# -- segments ---------------------------------------------------------------------------------------------------------


def small_segments(store):
    """Let "orders" roll after three batches."""
    store.alter_topic("orders", config={"segment.batches": 3})


def sealed(world):
    """Return (sealed segments, batches in the tail) of the first partition."""
    described = world.open().admin().describe_partition("orders", 0)
    return len(described.segments), described.tail_batches


def test_commits_by_processes_that_never_opened_the_topic_roll_and_seal_as_it_says(world, store):
    """As in Spark, one process begins the transaction, and another one commits it and knows only the files."""
    small_segments(store)
    for number in range(10):
        begun = StagedTransaction.begin(world.open().runtime, "nightly")
        parts = staged(store, begun, number)
        resumed = StagedTransaction.resume(world.open().runtime, begun.txn, drawn=False, attempted=False)
        resumed.commit(parts)
    assert sealed(world) == (3, 1)
    assert world.read() == list(range(10))


@pytest.mark.parametrize("finisher", ["init", "expire", "reader"])
def test_whoever_rolls_a_commit_forward_rolls_its_segments_as_the_topic_says(world, store, finisher):
    small_segments(store)
    for number in range(4):
        outage, dying = world.outage(max_block_ms=300)
        txn = StagedTransaction.begin(dying.runtime, "nightly")
        parts = staged(store, txn, number)
        outage.pattern = "put_if_absent orders/"
        with pytest.raises(OutcomeUnknownError):
            txn.commit(parts)
        other = world.open()
        if finisher == "init":
            StagedTransaction.begin(other.runtime, "nightly")
        elif finisher == "expire":
            other.admin().expire()
        else:
            other.runtime.run(resolve(other.runtime.context(), {}, txn.producer_id))
    assert sealed(world) == (1, 1)
    assert world.read() == list(range(4))


def test_a_topic_is_looked_up_once_a_commit_however_many_partitions(world, store):
    """The topic's settings come with it, once. Later commits know that it was not deleted (W46)."""
    txn = StagedTransaction.begin(store.runtime, "nightly")
    cold = StagedTransaction.resume(world.open().runtime, txn.txn, drawn=False, attempted=False)
    for expected in (["list", "get"], []):
        parts = [part for number in range(4) for part in staged(store, cold, number, partition=number)]
        with world.counting.counting() as cost:
            cold.commit(parts)
        assert [verb for verb, path in cost.calls() if re.search(r"^orders/(topic|$)", path)] == expected


@pytest.mark.parametrize("settings", [True, False])
def test_a_decided_commit_goes_on_in_a_topic_that_was_deleted_or_whose_settings_cannot_be_read(world, store, settings):
    store.create_topic("other", ORDERS)
    dying, other = world.outage(max_block_ms=300)
    txn = StagedTransaction.begin(other.runtime, "nightly")
    parts = [*staged(store, txn, 1), *staged(store, txn, 2, topic="other")]
    dying.pattern = "put_if_absent orders/"
    with pytest.raises(OutcomeUnknownError):
        txn.commit(parts)
    store.delete_topic("other")
    outage, finisher = world.outage()
    outage.pattern = None if settings else r"list orders/$"
    StagedTransaction.begin(finisher.runtime, "nightly")
    assert world.read() == [1]


# -- topics that are deleted ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anew", [False, True])
def test_rows_of_a_deleted_topic_refuse_the_whole_commit(world, store, anew):
    """The commit is refused before its decision, in every process.

    Nothing is visible, and the next transaction works.
    """
    store.create_topic("other", ORDERS)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    parts = [*staged(store, txn, 1), *staged(store, txn, 2, topic="other")]
    store.delete_topic("other")
    if anew:
        store.create_topic("other", ORDERS)
    cold = StagedTransaction.resume(world.open().runtime, txn.txn, drawn=False, attempted=False)
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'nightly'.*'other' was deleted.*abort the transaction"):
        cold.commit(parts, version=1)
    assert not cold.abort().already_committed
    assert world.read() == []
    if anew:
        cold.commit([*staged(store, cold, 3), *staged(store, cold, 4, topic="other")], version=1)
        assert (world.read(), world.read("other")) == ([3], [4])


def test_a_commit_that_is_decided_or_skipped_does_not_ask_for_its_topics(world, store):
    lost = Fault(action="lose_reply", moment="after", match=r"put_if_absent .*PREPARE_COMMIT")
    outage, other = world.outage(lost, max_block_ms=300)
    txn = StagedTransaction.begin(other.runtime, "nightly")
    parts = staged(store, txn, 1)
    outage.pattern = "get __transaction_state"
    with pytest.raises(OutcomeUnknownError):
        txn.commit(parts, version=7)
    knows = world.open()
    knows.runtime.topic("orders")
    store.delete_topic("orders")
    store.create_topic("orders", ORDERS, 4)
    outage.pattern = None
    # A repeated call joins the first one, even if the topic changed meanwhile.
    assert txn.commit(parts, version=7).txn.txn_version == 7
    # A version that was committed is skipped. The process that wrote these rows knows the deleted topic.
    old = staged(knows, txn, 2)
    assert txn.commit(old, version=7).skipped
    with pytest.raises(UnknownTopicOrPartitionError):
        txn.commit(old, version=8)
    assert world.read() == []


@pytest.mark.parametrize("landed", [False, True])
def test_a_refusal_never_contradicts_an_earlier_try(world, store, landed):
    """The first call may have been decided, and the client cannot know.

    If its decision is in, the second call joins it. If not, the record of the deletion has taken its slot, so the
    second call knows that nothing is decided, and refuses (W46).
    """
    fault = Fault(action="lose_reply", moment="after", match=r"put_if_absent .*PREPARE_COMMIT")
    outage, other = world.outage(*([fault] if landed else []), max_block_ms=300)
    txn = StagedTransaction.begin(other.runtime, "nightly")
    parts = staged(other, txn, 1)
    outage.pattern = "get __transaction_state" if landed else "__transaction_state"
    with pytest.raises(OutcomeUnknownError):
        txn.commit(parts)
    outage.pattern = None
    store.delete_topic("orders")
    if landed:
        assert txn.commit(parts).txn.state == "COMPLETE_COMMIT"
        return
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'orders' was deleted .*nothing is committed"):
        txn.commit(parts)
    assert txn.abort().txn.state == "COMPLETE_ABORT"


def test_columns_that_were_added_meanwhile_do_no_harm(world, store):
    txn = StagedTransaction.begin(store.runtime, "nightly")
    parts = staged(store, txn, 1)
    world.open().alter_topic("orders", add_columns=pa.schema([pa.field("extra", pa.string())]))
    with world.counting.counting() as cost:
        txn.commit(parts)
    # The new version, the check that no newer one exists, and the version for which the rows were made.
    assert [int(path[13:-5]) for verb, path in cost.calls() if path.startswith("orders/topic.")] == [1, 2, 0]
    assert world.read() == [1]


# -- retries and timeouts ---------------------------------------------------------------------------------------------


def test_trouble_with_the_store_is_ridden_out(world, store):
    failing, other = world.failing(Fault(action="fail", match=r"(get|list) orders/", times=5))
    assert other.admin().list_offsets("orders")[tp("orders", 0)].offset == 0
    assert len(failing.operations) > 5


def test_time_is_limited_and_the_message_says_by_which_setting(world, store):
    _, other = world.failing(Fault(action="fail", match=r"list orders/\d", times=10**6))
    before = world.clock.monotonic_ms()
    message = (
        r"admin of memory://: looking up offsets did not finish within 3000 ms \(default.api.timeout.ms\): "
        r"memory://: injected failure before list 'orders/\d/'\. hint: check the endpoint, the region and the network$"
    )
    with pytest.raises(TxlogTimeoutError, match=message):
        other.admin(default_api_timeout_ms=3000).list_offsets("orders")
    assert world.clock.monotonic_ms() - before <= 3100


@pytest.mark.parametrize(("retries", "requests"), [(0, 1), (1, 4), (3, 16)])
def test_retries_are_limited(world, store, retries, requests):
    """The request is retried first, and then the whole call."""
    failing, other = world.failing(Fault(action="fail", match=r"list orders/0/", times=10**6))
    with pytest.raises(TxlogTimeoutError):
        other.admin(retries=retries).list_offsets("orders")
    assert sum(operation == "list orders/0/" for operation in failing.operations) == requests


def test_catching_up_gets_through_a_store_that_fails_one_request_in_five(world, store):
    with store.producer() as producer:
        for number in range(60):
            producer.send("orders", orders(number), partition=0).result()
    faults = [Fault(action="fail", match=r"get orders/0/", number=5 * n) for n in range(1, 40)]
    failing, other = world.failing(*faults)
    session = read_session(other.runtime, retries=1)
    session.keep_view(
        PartitionView(
            topic_partition=tp("orders", 0),
            listed_at=other.runtime.read_clocks(),
            proven_at=None,
            mark=None,
            boundary=0,
            walk=(),
            base=PartitionState.empty(tp("orders", 0)),
            state=PartitionState.empty(tp("orders", 0)),
        )
    )
    views = session.fresh_views([tp("orders", 0)], "catching up")
    assert views[tp("orders", 0)].state.next_offset == 60
    assert sum("get orders/0/" in operation for operation in failing.operations) < 80


def test_a_failed_call_keeps_the_views(world, store):
    outage, other = world.outage()
    session = read_session(other.runtime, default_api_timeout_ms=100)
    session.fresh_views([tp("orders", 0)], "looking")
    views = session.views
    outage.pattern = "orders/"
    with pytest.raises(TxlogTimeoutError):
        session.fresh_views([tp("orders", 0), tp("orders", 1)], "looking")
    assert session.views is views


def test_long_tail_is_listed_again_once_its_first_segment_is_finished(world, store, monkeypatch):
    monkeypatch.setattr("txlog.client.session.session.LONG_TAIL_RECORDS", 5)
    store.create_topic("small", ORDERS, config={"segment.batches": 4})
    consumer = world.open().consumer("small", auto_offset_reset="earliest")
    with store.producer() as producer:
        for number in range(10):
            producer.send("small", orders(number)).result()
            assert consumer.poll(0).num_rows == 1
    view = consumer._session.views[tp("small", 0)]
    assert len(view.tail) == 10
    world.clock.advance_ms(5000)
    assert consumer.poll(0) is None
    assert len(consumer._session.views[tp("small", 0)].tail) == 2
