"""What operators see and do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.cli.groups import _describe as show_group
from txlog.cli.output import Output, OutputFormat
from txlog.client.admin.descriptions import OffsetReset
from txlog.core.records import AbortedTxn
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidConfigurationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    StoreChangedError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import PROOF_AGE_MS
from txlog.protocol.groups import send_offsets
from txlog.protocol.load import load
from txlog.protocol.seal import seal
from txlog.testing.failing_store import Fault, SimulatedCrash

ORDERS_0 = tp("orders", 0)


@pytest.fixture
def hung(world, store):
    """Return a producer that left its transaction open, with rows in two partitions."""
    producer = store.producer("hung", transaction_timeout_ms=5000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    producer.send("orders", orders(2), partition=1).result()
    return producer


# -- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_are_listed_and_described(world, store, hung):
    with store.producer("done") as producer, producer.transaction(version=4):
        producer.send("orders", orders(3), partition=2)
    world.clock.advance_ms(700)
    admin = store.admin()
    assert [(t.transactional_id, t.state) for t in admin.list_transactions()] == [
        ("done", "COMPLETE_COMMIT"),
        ("hung", "ONGOING"),
    ]
    assert [t.transactional_id for t in admin.list_transactions(states=["ongoing"])] == ["hung"]
    assert admin.list_transactions(states="PREPARE_COMMIT") == ()
    described = admin.describe_transaction("hung")
    assert described.partitions == (("orders", 0), ("orders", 1))
    assert (described.timeout_ms, described.duration_ms, described.producer_epoch) == (5000, 700, 0)
    assert described.coordinator.startswith("__transaction_state-")
    done = admin.describe_transaction("done")
    assert (done.txn_version, done.duration_ms, done.last_outcome, done.partitions) == (4, -1, "commit", ())
    assert b'"transactional_id":"done"' in msgspec.json.encode(admin.list_transactions())


def test_ids_and_groups_of_another_store_are_not_taken_for_none(world, store):
    calls = (store.admin().list_transactions, store.admin().list_groups)
    assert [call() for call in calls] == [(), ()]
    other = World()
    other.seed = 7
    other.open().create_topic("orders", ORDERS)
    world.memory._objects.clear()
    world.memory._objects.update(other.memory._objects)
    world.clock.advance_ms(PROOF_AGE_MS)
    for call in calls:
        with pytest.raises(StoreChangedError, match="another store lies here now"):
            call()
    other.close()


def test_transactions_that_are_not_there(store):
    admin = store.admin()
    for call in (admin.describe_transaction, admin.abort_transaction, admin.expire_id):
        with pytest.raises(TransactionalIdNotFoundError, match=r"no transactional.id 'nobody'"):
            call("nobody")
    with pytest.raises(
        InvalidRequestError, match="'open' is not a state of a transaction; expected one of EMPTY, ONGOING"
    ):
        admin.list_transactions(states=["open"])


def test_hanging_transactions_are_found_with_what_ends_them(world, store, hung):
    admin = store.admin()
    assert admin.find_hanging(max_ms=1000) == ()
    world.clock.advance_ms(1001)
    found = admin.find_hanging(max_ms=1000)
    assert [(h.topic, h.partition, h.first_offset, h.transactional_id, h.state, h.open_ms) for h in found] == [
        ("orders", 0, 0, "hung", "ONGOING", 1001),
        ("orders", 1, 0, "hung", "ONGOING", 1001),
    ]
    assert "`txlog transactions abort hung` ends it" in found[0].advice
    assert admin.find_hanging(max_ms=1000, topic="orders") == found
    assert admin.find_hanging() == ()
    world.clock.advance_ms(5000)
    assert (
        "past its time-out; `txlog transactions expire --execute` aborts it"
        in admin.find_hanging(max_ms=1000)[0].advice
    )
    # After its own timeout the transaction hangs, however high the threshold is.
    assert [each.partition for each in admin.find_hanging()] == [0, 1]


def test_decided_transaction_that_was_not_finished_is_hanging_too(world, store):
    _, dying = world.failing(
        Fault(action="crash", moment="after", match=r"put_if_absent __transaction.*PREPARE_COMMIT")
    )
    producer = dying.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    with pytest.raises(SimulatedCrash):
        producer.commit_transaction()
    world.clock.advance_ms(1001)
    admin = store.admin()
    (found,) = admin.find_hanging(max_ms=1000)
    assert "PREPARE_COMMIT is decided and was not finished" in found.advice
    assert admin.expire(dry_run=True).rolled_forward == ("loader",)
    assert world.read() == []
    assert admin.expire().rolled_forward == ("loader",)
    assert world.read() == [1]
    assert admin.find_hanging(max_ms=1000) == ()


def test_abort_goes_through_the_coordinator_and_fences(world, store, hung):
    admin = store.admin()
    described = admin.abort_transaction("hung")
    assert (described.state, described.producer_epoch) == ("COMPLETE_ABORT", 1)
    assert admin.abort_transaction("hung") is None
    for partition in (0, 1):
        assert world.ends(partition=partition) == (0, 2, 2)
    with pytest.raises(Exception, match="'hung'"):
        hung.commit_transaction()
    assert world.read() == []


def test_fence(world, store, hung):
    assert store.admin().fence("hung").producer_epoch == 2
    with pytest.raises(ProducerFencedError):
        hung.commit_transaction()
    assert store.admin().fence("new").state == "EMPTY"


def test_expire_sweeps(world, store, hung):
    admin = store.admin()
    assert admin.expire().aborted == ()
    world.clock.advance_ms(5001)
    assert admin.expire(dry_run=True).aborted == ("hung",)
    assert world.ends() == (0, 0, 1)
    assert admin.expire().aborted == ("hung",)
    assert world.ends() == (0, 2, 2)
    world.clock.advance_ms(8 * 86_400_000)
    assert admin.expire(dry_run=True).removed == ("hung",)
    assert admin.expire().removed == ("hung",)
    assert admin.list_transactions() == ()


def test_an_id_is_forgotten_only_when_idle_or_by_force(world, store, hung):
    admin = store.admin()
    assert admin.expire_id("hung") is False
    assert admin.expire_id("hung", force=True) is False, "it has an open transaction"
    admin.abort_transaction("hung")
    assert admin.expire_id("hung") is False
    assert admin.expire_id("hung", force=True) is True


# -- partitions -------------------------------------------------------------------------------------------------------


def test_offsets(world, store, hung):
    with store.producer() as producer:
        producer.send("orders", orders(7), partition=0)
    admin = store.admin()
    info = admin.list_offsets("orders")[ORDERS_0]
    assert (info.log_start_offset, info.last_stable_offset, info.log_end_offset) == (0, 0, 2)
    assert (info.offset, info.timestamp) == (0, None)
    assert admin.list_offsets("orders", isolation="read_uncommitted")[ORDERS_0].offset == 2
    assert admin.list_offsets(["orders"], "earliest")[ORDERS_0].offset == 0
    by_time = admin.list_offsets("orders", world.clock.now_ms(), "read_uncommitted")[ORDERS_0]
    assert (by_time.offset, by_time.timestamp) == (0, world.clock.now_ms())
    assert admin.list_offsets("orders", world.clock.now_ms() + 1)[ORDERS_0].offset is None
    with pytest.raises(InvalidConfigurationError, match="offsets = 'newest': expected earliest, latest"):
        admin.list_offsets("orders", "newest")
    with pytest.raises(UnknownTopicOrPartitionError, match="Did you mean 'orders'"):
        admin.list_offsets("odrers")


def test_partition_is_described(world, store):
    store.create_topic("small", ORDERS, config={"segment.batches": 2})
    with store.producer("loader") as producer:
        with producer.transaction():
            producer.send("small", orders(1, 2)).result()
        producer.begin_transaction()
        producer.send("small", orders(3)).result()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("small", orders(4))
        producer.flush()
        ctx = store.runtime.context()
        store.runtime.run(seal(ctx, store.runtime.run(load(ctx, tp("small", 0)))))
        described = store.admin().describe_partition("small", 0)
        producer.abort_transaction()
    assert [(s.base_offset, s.end_offset, s.batches, s.records) for s in described.segments] == [
        (0, 3, 2, 2),
        (3, 5, 2, 1),
    ]
    assert [s.aborted_txns for s in described.segments] == [0, 1]
    assert all(s.bytes > 0 and s.files == 1 for s in described.segments)
    assert described.aborted == (
        AbortedTxn(producer_id=producer.producer_id, first_offset=3, last_offset=4, last_stable_offset=5),
    )
    assert (described.sealed_end, described.last_stable_offset, described.log_end_offset) == (5, 5, 6)
    assert (described.tail_batches, described.tail_records) == (1, 1)
    (opened,) = described.open_transactions
    assert (opened.producer_id, opened.txn_first_offset, opened.producer_epoch) == (producer.producer_id, 5, 2)


def test_producers_are_described(world, store, hung):
    (described,) = store.admin().describe_producers("orders", 0)
    assert (described.producer_id, described.producer_epoch, described.last_sequence) == (hung.producer_id, 0, 0)
    assert described.txn_first_offset == 0
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'orders' has no partition 9: it has 4, numbered 0 to 3"):
        store.admin().describe_producers("orders", 9)


def test_records_are_deleted(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1, 2, 3), partition=0)
    admin = store.admin()
    with pytest.raises(
        OffsetOutOfRangeError, match=r"orders-0: deleting records asks for offset 9, but the log holds 0 to 3"
    ):
        admin.delete_records("orders", 0, 9)
    assert admin.delete_records("orders", 0, 2) == 2
    assert world.read() == [3]
    # as in Kafka, the log start is already there, so a script may run again
    assert admin.delete_records("orders", 0, 1) == 2
    with pytest.raises(
        OffsetOutOfRangeError, match=r"below offset -1 cannot .* hint: to delete all rows leave the off"
    ):
        admin.delete_records("orders", 0, -1)
    assert admin.delete_records("orders", 0) == 3
    assert admin.delete_records("orders", 0) == 3
    assert world.read() == []
    assert world.ends() == (3, 5, 5)


@pytest.mark.parametrize("reset", ["latest", "earliest"])
def test_a_consumer_that_has_read_everything_stays_in_range_of_deleted_records(world, store, reset):
    """The record that moves the log start takes an offset too, and must not hide the end (W49)."""
    with store.producer() as producer:
        producer.send("orders", orders(1, 2), partition=0).result()
        with store.consumer("orders", group_id="g", auto_offset_reset=reset) as consumer:
            consumer.commit({ORDERS_0: 0, tp("orders", 1): 0})
            assert [row["id"] for batch in consumer.iterate() for row in batch.to_pylist()] == [1, 2]
            for more in (3, 4):
                # The second call must not hide the record of the first call either.
                start = store.admin().delete_records("orders", 0)
                assert store.admin().delete_records("orders", 0) == start
                producer.send("orders", orders(more), partition=0).result()
                assert [row["id"] for batch in consumer.iterate() for row in batch.to_pylist()] == [more]


# -- groups -----------------------------------------------------------------------------------------------------------


def test_groups_are_listed_with_their_lag(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(*range(10)), partition=0)
    consumer = store.consumer(
        "orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, client_id="c"
    )
    consumer.commit({ORDERS_0: 4})
    admin = store.admin()
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp("orders", 1): 0}, "other")
        (g, other) = admin.list_groups()
        producer.abort_transaction()
    assert (g.group, g.state, g.generation, g.client_id, g.topics) == ("g", "STABLE", 1, "c", ("orders",))
    (row,) = g.offsets
    assert (row.committed, row.lag, row.log_end_offset, row.pending) == (4, 6, 10, None)
    assert (other.group, other.state, other.generation) == ("other", "EMPTY", -1)
    assert (other.offsets[0].pending, other.offsets[0].committed, other.offsets[0].lag) == (0, None, None)
    consumer.close()
    assert admin.describe_group("g").state == "EMPTY"
    store.delete_topic("orders")
    (row,) = admin.describe_group("g").offsets
    assert (row.committed, row.lag, row.log_end_offset) == (4, None, None)


def test_an_offset_that_a_transaction_removes_is_shown_as_pending(store, capsys):
    """The format lets a transaction remove a committed offset, and another program may do so."""
    admin = store.admin()
    admin.reset_offsets("g", {ORDERS_0: 4})
    with store.producer("loader", staged=False) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0).result()
        coordinator = producer._transactions._coordinator
        removals: Any = {ORDERS_0: None, tp("orders", 1): None}
        coordinator._take("removing", lambda ctx, views: send_offsets(ctx, views, coordinator.txn, "g", removals))
        (one, two) = admin.describe_group("g").offsets
        assert (one.committed, one.pending, one.pending_removal) == (4, None, True)
        assert (two.partition, two.committed, two.pending, two.pending_removal) == (1, None, None, True)
        with pytest.raises(InvalidRequestError, match="has offsets in an undecided transaction"):
            admin.delete_group("g")
        show_group(Output(OutputFormat.TEXT), admin.describe_group("g"))
        assert [line.split()[:4] for line in capsys.readouterr().out.splitlines() if "removal" in line] == [
            ["orders", "0", "4", "removal"],
            ["orders", "1", "-", "removal"],
        ]
        producer.commit_transaction()
    with pytest.raises(GroupIdNotFoundError):
        admin.describe_group("g")


def test_offsets_of_a_group_are_reset(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(*range(10)), partition=0)
    store.consumer(group_id="g").commit({ORDERS_0: 4})
    admin = store.admin()
    plan = admin.plan_reset("g", spec="earliest")
    assert plan == (OffsetReset(topic="orders", partition=0, before=4, after=0),)
    assert admin.describe_group("g").offsets[0].committed == 4
    admin.reset_offsets("g", plan)
    assert admin.describe_group("g").offsets[0].committed == 0
    assert admin.plan_reset("g", spec="latest")[0].after == 10
    assert admin.plan_reset("g", shift_by=3)[0].after == 3
    assert admin.plan_reset("g", shift_by=-3)[0].after == 0
    (beyond,) = admin.plan_reset("g", shift_by=99)
    assert (beyond.after, beyond.asked) == (10, 99)
    assert admin.plan_reset("g", spec=world.clock.now_ms() + 1)[0].after == 10
    assert admin.plan_reset("new", [("orders", 1)], "latest")[0].before is None
    admin.reset_offsets("new", {("orders", 1): 0})
    assert admin.describe_group("new").offsets[0].partition == 1


def test_a_reset_passes_over_what_stands_for_another_systems_offset(store):
    with store.producer(transactional_id="sink") as producer, producer.transaction():
        producer.send_offsets_to_transaction({ORDERS_0: 4, ("__source.0", 0): 9}, "sink")
    admin = store.admin()
    assert [each.topic for each in admin.describe_group("sink").offsets] == ["__source.0", "orders"]
    assert admin.plan_reset("sink", spec="earliest") == (OffsetReset(topic="orders", partition=0, before=4, after=0),)


def test_resets_that_cannot_be(store):
    admin = store.admin()
    with pytest.raises(GroupIdNotFoundError, match="no consumer group 'g' in this store"):
        admin.plan_reset("g", spec="earliest")
    with pytest.raises(InvalidRequestError, match="give either where the offsets go, or shift_by"):
        admin.plan_reset("g")
    with pytest.raises(InvalidRequestError, match="group 'g' has no offset for orders-0; shift_by needs one"):
        admin.plan_reset("g", [ORDERS_0], shift_by=1)
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.reset_offsets("g", {("orders", 7): 0})
    consumer = store.consumer("orders", group_id="g", client_id="c")
    for call in (
        lambda: admin.reset_offsets("g", {ORDERS_0: 0}),
        lambda: admin.delete_offsets("g", [ORDERS_0]),
        lambda: admin.delete_group("g"),
    ):
        with pytest.raises(
            InvalidRequestError, match=r"group 'g' is in use by member 'c-\w+', which joined 20.*force=True"
        ):
            call()
    consumer.close()


def test_a_member_that_was_killed_is_removed_and_fenced(world, store):
    killed = store.consumer("orders", group_id="g", client_id="c", enable_auto_commit=False)
    killed.commit({ORDERS_0: 0})
    admin = world.open().admin()
    member = admin.describe_group("g").member_id
    with pytest.raises(InvalidRequestError, match="is in use by member"):
        admin.reset_offsets("g", {ORDERS_0: 0}, dry_run=True)
    assert admin.reset_offsets("g", {ORDERS_0: 0}, force=True, dry_run=True) == (member,)
    assert admin.describe_group("g").state == "STABLE"
    assert admin.remove_members("g") == (member,)
    assert admin.remove_members("g") == ()
    described = admin.describe_group("g")
    assert (described.state, described.generation, described.offsets[0].committed) == ("EMPTY", 2, 0)
    with pytest.raises(CommitFailedError, match="the group has no member now: this one left, or was removed"):
        killed.commit({ORDERS_0: 5})
    killed.close()
    assert admin.describe_group("g").generation == 2
    with pytest.raises(GroupIdNotFoundError):
        admin.remove_members("nobody")


def test_a_rival_that_joins_during_a_forced_reset_is_removed_too(world, store, monkeypatch):
    """The state on which the reset was decided changes before its record is written, so the reset is decided again."""
    store.consumer(group_id="g").commit({ORDERS_0: 0})
    rivals: list[Any] = []
    put = world.memory.put_if_absent

    def join_first(path, data):
        if path.startswith("__consumer_offsets") and not rivals:
            rivals.append(None)  # its own record succeeds
            rivals[0] = world.open().consumer("orders", group_id="g", client_id="r", enable_auto_commit=False)
        return put(path, data)

    admin = world.open().admin()
    monkeypatch.setattr(world.memory, "put_if_absent", join_first)
    (removed,) = admin.reset_offsets("g", {ORDERS_0: 0}, force=True)
    assert removed.startswith("r-")
    with pytest.raises(CommitFailedError):
        rivals[0].commit({ORDERS_0: 5})
    rivals[0].close()


def test_offsets_of_an_unknown_group_cannot_be_deleted(world, store):
    admin = store.admin()
    with world.counting.counting() as cost, pytest.raises(GroupIdNotFoundError, match="no consumer group 'nobody'"):
        admin.delete_offsets("nobody", [ORDERS_0])
    assert not [path for verb, path in cost.calls() if verb == "put_if_absent" and path.endswith(".batch")]
    assert admin.list_groups() == ()
    consumer = store.consumer("orders", group_id="g", enable_auto_commit=False)
    consumer.close()
    assert admin.delete_offsets("g", [ORDERS_0]) == (), "a group without offsets is known by its generation"
    admin.reset_offsets("h", {ORDERS_0: 0})  # an offset makes the group
    admin.delete_offsets("h", [tp("orders", 1)])
    admin.delete_offsets("h", [ORDERS_0])
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_offsets("h", [ORDERS_0])


def test_reset_over_undecided_conditional_offsets_is_refused(world, store):
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({ORDERS_0: 1}, "g", expected={ORDERS_0: None})
        admin = store.admin(default_api_timeout_ms=100)
        with pytest.raises(ConcurrentTransactionsError, match="group 'g', orders-0"):
            admin.reset_offsets("g", {ORDERS_0: 0})
        with pytest.raises(InvalidRequestError, match="group 'g' has offsets in an undecided transaction"):
            admin.delete_group("g")
        producer.abort_transaction()


def test_groups_and_offsets_are_deleted(world, store):
    store.consumer(group_id="g").commit({ORDERS_0: 0, tp("orders", 1): 0})
    admin = store.admin()
    admin.delete_offsets("g", [ORDERS_0])
    assert [row.partition for row in admin.describe_group("g").offsets] == [1]
    admin.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        admin.describe_group("g")
    assert admin.list_groups() == ()
    assert rows_of(store.consumer("orders", group_id="g", auto_offset_reset="earliest")) == []


# -- sealing ----------------------------------------------------------------------------------------------------------


def test_seal_ends_the_active_segment_once(world, store):
    with store.producer() as producer, store.producer("hangs") as hangs:
        producer.send("orders", orders(1, 2), partition=0).result()
        hangs.begin_transaction()
        hangs.send("orders", orders(3), partition=1)
        hangs.flush()
        admin = store.admin()
        ends = admin.seal("orders", [0, 1])
        assert ends.keys() == {tp("orders", 0), tp("orders", 1)}
        for number in (0, 1):
            described = admin.describe_partition("orders", number)
            assert described.segments[-1].end_offset == ends[tp("orders", number)] == 2 - number
        # Nothing is there to end any more, and the rows of an open transaction go on in the next segment.
        before = world.memory.list("orders/0/")
        assert admin.seal("orders", [0]) == {tp("orders", 0): ends[tp("orders", 0)]}
        assert world.memory.list("orders/0/") == before
        hangs.send("orders", orders(4), partition=1)
        hangs.commit_transaction()
        producer.send("orders", orders(5), partition=0).result()
    assert world.read() == [1, 2, 5, 3, 4]
    assert world.open().admin().seal("orders").keys() == {tp("orders", number) for number in range(4)}
    with pytest.raises(InvalidRequestError, match="'__consumer_offsets' is an internal topic"):
        admin.seal("__consumer_offsets")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.seal("nowhere")


def test_segments_of_a_compacted_topic_end_after_a_day(world, store):
    store.create_topic("keyed", ORDERS, config={"key.columns": "id", "cleanup.policy": "compact"})
    settings = store.runtime.settings
    assert settings.topic_config(store.runtime.topic("keyed")).segment_ms == 86_400_000
    assert settings.topic_config(store.runtime.topic("orders")).segment_ms == 7 * 86_400_000
    store.alter_topic("keyed", config={"segment.ms": 5})
    assert settings.topic_config(store.runtime.topic("keyed", 0)).segment_ms == 5
