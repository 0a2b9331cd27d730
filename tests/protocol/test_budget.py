"""The request budget of PROTOCOL.md, asserted exactly: requests by verb, and rounds of requests that wait for one
another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocol.harness import (
    A,
    B,
    Cluster,
    Cost,
    Process,
    context,
    measure,
    rolling,
)
from txlog.core import envelope, names
from txlog.core.effects import Gather
from txlog.core.groups import OffsetsCondition, offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.records import Clean, SchemaField
from txlog.core.transactions import TxnVersion
from txlog.protocol import expiry, groups, table, topic_changes, topics, transactions
from txlog.protocol.load import gather_fresh_views, load, refresh
from txlog.protocol.read import offset_for_timestamp, plan_read
from txlog.protocol.seal import seal

PARTITIONS = pytest.mark.parametrize("partitions", [1, 2, 4])


def cost(cluster: Cluster, program: Any) -> Cost:
    return measure(cluster, program)[1]


def topic(partitions: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(partitions)]


def warm(partitions: int, *, known: bool = True, transactional_id: str = "x") -> tuple[Cluster, Process]:
    """Return a producer that holds views of everything that it will touch.

    `known`: its partitions know its producer id, as after its first transaction. Otherwise W21 needs one more read for
    each partition.
    """
    cluster = Cluster()
    process = Process(cluster, transactional_id)
    process.do(process.init())
    if known:
        for tp in topic(partitions):
            process.stage(tp, "first")
        process.stage_offsets({0: 1})
        process.do(process.commit())
    offsets_tp = offsets_partition("g", context().constants.consumer_offsets_partitions)
    process.views = cluster.run(gather_fresh_views(process.ctx, process.views, [*topic(partitions), offsets_tp]))
    return cluster, process


# -- append -----------------------------------------------------------------------------------------------------------


def test_a_warm_append_is_one_conditional_put() -> None:
    cluster = Cluster()
    process = Process(cluster)
    process.do(process.idempotent())
    assert cost(cluster, process.send(A, "cold")) == Cost(lists=1, puts=1, rounds=2, put_rounds=1)
    assert cost(cluster, process.send(A, "warm")) == Cost(puts=1, rounds=1, put_rounds=1)
    assert cost(cluster, process.send(A, "file", in_file=True)) == Cost(puts=1, rounds=1, put_rounds=1)


def test_a_warm_transactional_append_is_one_conditional_put() -> None:
    cluster, process = warm(1)
    process.do(process.register(A))
    assert cost(cluster, process.append(A, process.draft(A, "a"))) == Cost(puts=1, rounds=1, put_rounds=1)
    cluster, process = warm(1, known=False)
    process.do(process.register(A))
    # W21 reads the table once more for each partition
    assert cost(cluster, process.append(A, process.draft(A, "a"))) == Cost(gets=1, puts=1, rounds=2, put_rounds=1)
    assert cost(cluster, process.append(A, process.draft(A, "b"))) == Cost(puts=1, rounds=1, put_rounds=1)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_lost_slot_costs_a_look_at_its_record_and_one_put_more(ahead: int) -> None:
    cluster = Cluster()
    one, two = Process(cluster), Process(cluster)
    for process in (one, two):
        process.do(process.idempotent())
    process.do(one.send(A, "warm"))
    for _ in range(ahead):
        two.do(two.send(A, "ahead"))
    if ahead == 1:
        expected = Cost(puts=2, gets=1, rounds=3, put_rounds=2)
    else:
        # A writer that is further behind reads the records up to the end, and then the end, before its third PUT.
        expected = Cost(puts=3, gets=2 + (ahead - 2) + 1, rounds=5 + (ahead - 2) + 1, put_rounds=3)
    assert cost(cluster, one.send(A, "late")) == expected


def test_sealing_a_segment() -> None:
    """Sealing checks whether another writer did it, writes the Parquet file, and needs two PUTs; `.txnindex` needs one
    more."""
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(2))
    process.do(process.idempotent())
    process.do(process.send(A, "a"))
    process.do(process.send(A, "b"))
    assert cost(cluster, process.send(A, "c")) == Cost(puts=1 + 2, gets=1, others=1, rounds=5, put_rounds=3)


# -- transactions -----------------------------------------------------------------------------------------------------


def test_init_is_one_conditional_put_when_warm() -> None:
    cluster = Cluster()
    process = Process(cluster)
    assert cost(cluster, process.init()) == Cost(lists=1, puts=1, rounds=2, put_rounds=1)
    assert cost(cluster, process.init()) == Cost(puts=1, rounds=1, put_rounds=1)


def test_a_tombstone_is_one_conditional_put() -> None:
    cluster, process = warm(1)
    # Its last transaction has no COMPLETE_*: the tombstone of its owner follows PREPARE_COMMIT.
    program = expiry.remove_own(process.ctx, process.views, process.identity)
    assert cost(cluster, program) == Cost(puts=1, rounds=1, put_rounds=1)


def test_complete_is_one_conditional_put_unless_the_owner_goes_on() -> None:
    cluster, process = warm(1)
    complete = transactions.complete(process.ctx, process.views, process.identity)
    assert measure(cluster, complete)[1] == Cost(puts=1, rounds=1, put_rounds=1)
    process.views = cluster.run(gather_fresh_views(process.ctx, process.views, list(process.views)))
    assert cost(cluster, transactions.complete(process.ctx, process.views, process.identity)) == Cost()


@PARTITIONS
def test_staged_transaction(partitions: int) -> None:
    cluster, process = warm(partitions)
    for tp in topic(partitions):
        process.stage(tp, "s")
    assert cost(cluster, process.commit()) == Cost(puts=partitions + 1, rounds=2, put_rounds=2)


@pytest.mark.parametrize("count", [1, 3])
def test_the_look_before_a_staged_commit_is_one_get_a_topic(count: int) -> None:
    cluster = Cluster()
    names_of = [f"t{number}" for number in range(count)]
    made = [
        cluster.run(topic_changes.create_topic(context(), name, append_log_start=_no_log_start)) for name in names_of
    ]

    def looks(known: bool) -> Any:
        return (
            yield Gather(tuple(topics.refresh_topic_of_rows(each.topic, 0, each if known else None) for each in made))
        )

    assert measure(cluster, looks(True)) == (tuple(made), Cost(gets=count, rounds=1))
    assert measure(cluster, looks(False)) == (tuple(made), Cost(gets=count, lists=count, rounds=2))
    wider = cluster.run(
        topic_changes.alter_topic(context(), "t0", add_columns=[SchemaField(id=0, name="x", type="int64")])
    )
    # the new version, the check that no newer one exists, and the version of the rows
    look = topics.refresh_topic_of_rows("t0", 0, made[0])
    assert measure(cluster, look) == (wider, Cost(gets=3, rounds=3))


def _no_log_start(tp: TopicPartition, version: int) -> Any:
    raise AssertionError(f"{tp} is not deleted (version {version})")


@PARTITIONS
def test_staged_transaction_with_its_rows_inline(partitions: int) -> None:
    cluster, process = warm(partitions)
    for tp in topic(partitions):
        process.stage_inline(tp, "s", "t")
    assert cost(cluster, process.commit()) == Cost(puts=partitions + 1, rounds=2, put_rounds=2)
    assert [list(cluster.read(tp).values())[-2:] for tp in topic(partitions)] == [["s", "t"]] * partitions


@PARTITIONS
def test_a_first_staged_transaction_re_reads_the_table_once_a_partition(partitions: int) -> None:
    cluster, process = warm(partitions, known=False)
    for tp in topic(partitions):
        process.stage(tp, "s")
    assert cost(cluster, process.commit()) == Cost(puts=partitions + 1, gets=partitions, rounds=3, put_rounds=2)


@PARTITIONS
def test_staged_transaction_with_a_list_object(partitions: int) -> None:
    cluster, process = warm(partitions)
    for number in range(1500):
        process.stage(TopicPartition("orders", number % partitions), "s")
    assert cost(cluster, process.commit()) == Cost(puts=partitions + 2, gets=1, rounds=4, put_rounds=3)


@PARTITIONS
def test_staged_transaction_with_unconditional_offsets(partitions: int) -> None:
    """P includes the partition of `__consumer_offsets`."""
    cluster, process = warm(partitions)
    for tp in topic(partitions):
        process.stage(tp, "s")
    process.stage_offsets({0: 9})
    assert cost(cluster, process.commit()) == Cost(puts=partitions + 1 + 1, rounds=2, put_rounds=2)


@PARTITIONS
@pytest.mark.parametrize("groups_count", [1, 2])
def test_staged_transaction_with_conditional_offsets(partitions: int, groups_count: int) -> None:
    """P + 2 + 2 G in 4 rounds: register all, pending offsets, PREPARE, markers."""
    chosen = ["g", "h"][:groups_count]
    tps = [offsets_partition(group, 2) for group in chosen]
    assert len(set(tps)) == groups_count
    cluster, process = warm(partitions)
    process.do(process.commit_offsets({0: 0}, group="h"))
    process.stage_offsets({0: 1}, group="h")
    process.do(process.commit())
    for tp in topic(partitions):
        process.stage(tp, "s")

    def commit() -> Any:
        if groups_count > 1:
            yield from process.register(*tps)
        for group in chosen:
            yield from process.send_offsets({0: 9}, group, OffsetsCondition(expected={A: 1}))
        return (yield from process.commit())

    total = cost(cluster, commit())
    assert total.puts == partitions + 2 + 2 * groups_count
    if groups_count == 1:
        assert total == Cost(puts=partitions + 4, rounds=4, put_rounds=4)
    else:
        # for each group in turn: is its partition registered in the fresh table?
        assert (total.gets, total.lists) == (2, 0)
    assert cluster.committed() == {0: 9}


@PARTITIONS
def test_eager_transaction(partitions: int) -> None:
    """2 P + 2: one record registers all, a batch each, PREPARE, a marker each."""
    cluster, process = warm(partitions)

    def transaction() -> Any:
        yield from process.register(*topic(partitions))
        for tp in topic(partitions):
            yield from process.append(tp, process.draft(tp, "a"))
        return (yield from process.commit())

    total = cost(cluster, transaction())
    assert (total.puts, total.gets, total.lists) == (2 * partitions + 2, 0, 0)
    assert total.put_rounds == partitions + 3  # this test appends to one partition after another; the rest is 1 + 2
    again = warm(partitions)[1]
    again.do(again.register(*topic(partitions)))
    assert cost(again.cluster, again.abort()) == Cost(puts=partitions + 1, rounds=2, put_rounds=2)


def test_a_skipped_version_is_one_get() -> None:
    cluster, process = warm(1)
    process.do(process.commit(version=TxnVersion(version=1)))
    process.stage(A, "s")
    assert cost(cluster, process.commit(version=TxnVersion(version=1))) == Cost(gets=1, rounds=1)


# -- opening, reading -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [1, 2, 5])
def test_opening_a_partition_cold(tail: int) -> None:
    """1 LIST, then the snapshot, `.clean` and the tail's records in one round."""
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(5))
    process.do(process.idempotent())
    for number in range(10 + tail):
        process.do(process.send(A, str(number)))
    cluster.objects[A.folder + names.clean_name(0)] = envelope.encode(Clean(number=0, runs=(), created_at=1))
    assert cost(cluster, load(context(), A)) == Cost(lists=1, gets=1 + 1 + tail, rounds=2)


def test_a_cold_append_and_a_cold_staged_commit() -> None:
    cluster, process = warm(2)
    cluster.run(transactions.complete(context(), process.views, process.identity))
    cold = Process(cluster)
    cold.__dict__.update({**process.__dict__, "views": {}})
    for tp in topic(2):
        cold.stage(tp, "s")
    total = cost(cluster, cold.commit())
    # three partitions opened: the table (init, PREPARE, COMPLETE: 3 records), and two with one record each
    assert (total.puts, total.lists, total.gets) == (1 + 2, 3, 3 + 1 + 1)
    assert total.rounds == 2 + 2 + 2


@pytest.mark.parametrize("segments", [1, 3])
def test_planning_a_read(segments: int) -> None:
    """One GET per segment in range, and one per `.txnindex` that its index announces."""
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(2))
    process.do(process.idempotent())
    for number in range(2 * segments + 1):
        process.do(process.send(A, str(number)))
    view = cluster.view(A)
    assert cost(cluster, plan_read(context(), view, 0, None, "read_committed")) == Cost(gets=segments, rounds=1)
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(2))
    for _ in range(segments):  # two records a transaction: every segment has an abort
        process.do(process.init())
        process.do(process.send(A, "gone"))
        process.do(process.abort())
    process.do(process.send(A, "open"))
    view = cluster.view(A)
    assert len(view.walk) == segments
    assert cost(cluster, plan_read(context(), view, 0, None, "read_committed")) == Cost(gets=2 * segments, rounds=2)


def test_polling() -> None:
    cluster = Cluster()
    process = Process(cluster)
    process.do(process.idempotent())
    process.do(process.send(A, "a"))
    view = cluster.view(A)
    assert cost(cluster, refresh(context(), view)) == Cost(gets=1, rounds=1)
    process.do(process.send(A, "b"))
    process.do(process.send(A, "c"))
    assert cost(cluster, refresh(context(), view)) == Cost(gets=3, rounds=3)


def test_latest_offsets_warm_are_one_get_a_partition_at_once() -> None:
    cluster, process = warm(4)
    program = gather_fresh_views(process.ctx, process.views, topic(4))
    assert cost(cluster, program) == Cost(gets=4, rounds=1)


def test_fetching_offsets_warm_is_one_get() -> None:
    cluster, process = warm(1)
    assert cost(cluster, process.fetch_offsets(0)) == Cost(gets=1, rounds=1)


def test_a_timestamp_in_the_tail_costs_nothing() -> None:
    cluster, process = warm(1)
    process.do(process.send(B, "b"))
    program = offset_for_timestamp(process.ctx, cluster.view(B), cluster.now_ms, "read_uncommitted")
    assert cost(cluster, program) == Cost()


def test_nothing_to_seal_costs_nothing() -> None:
    cluster, process = warm(1)
    assert cost(cluster, seal(process.ctx, cluster.view(A))) == Cost()


def test_describing_everything_opens_each_internal_partition_once() -> None:
    cluster, process = warm(1)
    assert cost(cluster, table.list_transactions(process.ctx, {})).lists == 2
    assert cost(cluster, groups.list_groups(process.ctx, {})).lists == 2
