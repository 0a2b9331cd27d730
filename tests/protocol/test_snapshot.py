"""Invariant 17: a snapshot shows each transaction whole or not at all, and every commit that returned before it.

The tests interleave a snapshot with a commit in every way, request by request. Further tests abort an id, let it time
out or expire, create it again, or leave a transaction open. In another test the rows are far behind their marker.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator

import pytest

from tests.effort import cases
from tests.protocol.harness import (
    CONSTANTS,
    GRACE_MS,
    HOUR_MS,
    A,
    B,
    C,
    Cluster,
    Process,
    Task,
    context,
    is_put,
    measure,
    rolling,
)
from txlog.core.ages import ClockReading
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidRequestError
from txlog.protocol.context import Context, Views
from txlog.protocol.expiry import expire, expire_producers, remove
from txlog.protocol.read import plan_read
from txlog.protocol.snapshot import take_snapshot
from txlog.protocol.snapshot_as_of import cut_as_of

ALL = (A, B, C)


def taken(ctx: Context, tps: Iterable[TopicPartition] = ALL) -> Program[SnapshotCut]:
    views: Views = {}
    _, cut = yield from take_snapshot(ctx, views, tps)
    return cut


def shown(cluster: Cluster, cut: SnapshotCut) -> dict[TopicPartition, list[str]]:
    """Return the words that the cut shows in each partition, read now. Later appends must not change them."""
    found = {}
    for tp in cut.ends:
        view = cluster.view(tp)
        _, plan = cluster.run(plan_read(context(), view, view.state.log_start_offset, None, "read_committed", cut=cut))
        found[tp] = [word for _, word in cluster.words(plan)]
    return found


def snapshot(cluster: Cluster, ctx: Context | None = None, tps: Iterable[TopicPartition] = ALL) -> list[str]:
    """Return all words that a snapshot shows, in order. A whole transaction has one word for all partitions."""
    found = shown(cluster, cluster.run(taken(ctx or context(), tps)))
    first, *others = found.values()
    assert all(words == first for words in others), found
    return first


def begun(cluster: Cluster, *, staged: bool, word: str = "t", name: str = "x", ctx: Context | None = None) -> Process:
    """Return a process with a transaction that has the same word in each partition."""
    process = Process(cluster, name, ctx)
    process.do(process.init())
    for tp in ALL:
        if staged:
            process.stage(tp, word)
        else:
            process.do(process.send(tp, word))
    return process


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "eager"])
def test_every_interleaving_with_a_commit(staged: bool) -> None:
    """Make the snapshot's requests before, between and after those of the commit.

    The requests of a Gather run one by one.
    """
    cluster = Cluster()
    process = begun(cluster, staged=staged)
    commits = steps_of(cluster.copy(), process, commit=True)
    looks = Task(cluster.copy(), taken(context())).run().count
    whole = parts = 0
    for places in cases(schedules(commits, looks)):
        world = cluster.copy()
        world.rows = dict(cluster.rows)
        committing = clone(world, process).start_commit()
        looking = Task(world, taken(context()))
        for looks_now in places:
            chosen = looking if looks_now else committing
            if not chosen.done:
                chosen.step()
        # The commit may have added records, so the snapshot may need more requests than it needs alone.
        looking.run()
        assert committing.done
        found = shown(world, looking.result)
        assert set(map(tuple, found.values())) in ({()}, {("t",)}), (places, found)
        whole += found[A] == ["t"]
        parts += found[A] == []
        if not any(places[:commits]):  # the commit returned before the snapshot
            assert found[A] == ["t"]
    assert whole
    assert parts


class Committing:
    """The process of another world, at the point where its commit begins."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def start_commit(self) -> Task:
        return self.process.start(self.process.commit())


def clone(cluster: Cluster, process: Process) -> Committing:
    other = Process(cluster, process.transactional_id, process.ctx)
    other.views, other.txn, other.sequences = process.views, process.txn, dict(process.sequences)
    other.staged, other.pid, other.epoch = list(process.staged), process.pid, process.epoch
    return Committing(other)


def steps_of(cluster: Cluster, process: Process, *, commit: bool) -> int:
    task = clone(cluster, process).start_commit()
    return task.run().count


def schedules(commits: int, looks: int) -> Iterator[tuple[bool, ...]]:
    """Return all ways in which the two can alternate.

    If there are too many, return drawn ones and those at the edges.
    """
    total = commits + looks
    drawn = random.Random(17)
    chosen = {tuple(range(looks)), tuple(range(commits, total))}
    chosen |= {tuple(range(first, first + looks)) for first in range(commits + 1)}
    while len(chosen) < 1500:
        chosen.add(tuple(sorted(drawn.sample(range(total), looks))))
    for places in sorted(chosen):
        yield tuple(at in places for at in range(total))


@pytest.mark.parametrize("per_segment", [100, 1, 2])
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "eager"])
def test_of_one_ids_transactions_a_prefix_is_seen(staged: bool, per_segment: int) -> None:
    """Also where sealed segments hold the rows."""
    ctx = rolling(per_segment)
    cluster = Cluster()
    process = Process(cluster, ctx=ctx)
    process.do(process.init())
    done: list[str] = []
    for number in range(6):
        word = f"t{number}"
        for tp in ALL:
            if staged:
                process.stage(tp, word)
            else:
                process.do(process.send(tp, word))
            assert snapshot(cluster, ctx) == done
        task = process.start(process.end(number != 2))
        while not task.done:
            task.step()
            assert snapshot(cluster, ctx) in (done, [*done, word])
        done += [word] if number != 2 else []
        assert snapshot(cluster, ctx) == done


def test_a_hanging_transaction_hides_itself_and_nothing_else() -> None:
    cluster = Cluster()
    hanging = begun(cluster, staged=False, word="hangs")
    other = begun(cluster, staged=True, word="later", name="y")
    other.do(other.commit())
    plain = Process(cluster, "0")
    plain.do(plain.idempotent())
    for tp in ALL:
        plain.do(plain.send(tp, "plain"))
    assert cluster.read(A) == {}
    assert snapshot(cluster) == ["later", "plain"]
    hanging.do(hanging.commit())
    assert snapshot(cluster) == ["hangs", "later", "plain"]


def test_what_is_prepared_is_seen_once_its_markers_are_there() -> None:
    """The coordinator died. The snapshot shows the transaction once all markers are there, even without COMPLETE."""
    cluster = Cluster()
    process = begun(cluster, staged=True)
    task = process.start(process.commit())
    task.run(until=is_put("orders/0/"))
    assert snapshot(cluster) == []
    assert cluster.read(C) == {0: "t"}
    task.run(until=is_put("orders/1/"))
    assert cluster.read(A) == {0: "t"}
    assert snapshot(cluster) == []
    # The transaction is not whole either in a snapshot of only the partitions that already have the marker.
    assert snapshot(cluster, tps=[A, C]) == []
    task.step()
    txn = cluster.txn("x")
    assert txn is not None
    assert txn.state == "PREPARE_COMMIT"
    assert snapshot(cluster) == ["t"]


def test_what_is_prepared_to_abort_is_hidden() -> None:
    cluster = Cluster()
    process = begun(cluster, staged=False)
    task = process.start(process.abort())
    while not task.done:
        assert snapshot(cluster) == []
        task.step()
    assert snapshot(cluster) == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_id_that_is_gone_was_whole(committed: bool) -> None:
    """The id is removed and its producers expire. Then it is created again and has an open transaction."""
    cluster = Cluster()
    ctx = context()
    process = begun(cluster, staged=False, word="old")
    process.do(process.end(committed))
    process.do(process.complete())
    old = ["old"] if committed else []
    _, gone = cluster.run(remove(ctx, {}, "x", force=True))
    assert gone
    assert snapshot(cluster) == old
    cluster.pass_ms(8 * 24 * HOUR_MS)
    for tp in ALL:
        assert cluster.run(expire_producers(ctx, {}, tp))[1] == (process.pid,)
    assert snapshot(cluster) == old
    again = begun(cluster, staged=False, word="new")
    assert again.pid != process.pid
    assert snapshot(cluster) == old
    cut = cluster.run(taken(ctx))
    again.do(again.commit())
    assert shown(cluster, cut)[A] == old
    assert snapshot(cluster) == [*old, "new"]


def test_an_id_made_after_the_table_was_read_is_hidden() -> None:
    cluster = Cluster()
    ctx = context()
    looking = Task(cluster, taken(ctx))
    # The snapshot has read the table's two partitions; the logs are next.
    looking.run(until=lambda effect: "orders" in str(effect))
    process = begun(cluster, staged=True)
    process.do(process.commit())
    assert shown(cluster, looking.run().result) == {A: [], B: [], C: []}
    assert snapshot(cluster) == ["t"]


def test_a_transaction_that_times_out_stays_hidden() -> None:
    cluster = Cluster()
    begun(cluster, staged=False)
    cluster.pass_ms(61_000)
    cut = cluster.run(taken(context()))
    assert cluster.run(expire(context(), {}))[1].aborted == ("x",)
    assert shown(cluster, cut)[A] == []
    assert snapshot(cluster) == []


def test_a_cut_stays_what_it_is() -> None:
    cluster = Cluster()
    ctx = rolling(2)
    for number in range(3):
        process = begun(cluster, staged=bool(number % 2), word=f"t{number}", name=f"x{number}", ctx=ctx)
        process.do(process.commit())
    cut = cluster.run(taken(ctx))
    for number in range(3, 6):
        process = begun(cluster, staged=bool(number % 2), word=f"t{number}", name=f"x{number % 3}", ctx=ctx)
        process.do(process.commit())
        assert shown(cluster, cut) == {tp: ["t0", "t1", "t2"] for tp in ALL}
    for tp in ALL:
        cluster.clean_tail(tp, ctx)
    assert shown(cluster, cut) == {tp: ["t0", "t1", "t2"] for tp in ALL}


def test_a_cut_of_the_past_hides_what_is_newer_than_the_table() -> None:
    cluster = Cluster()
    process = Process(cluster)
    process.do(process.init())
    process.stage(A, "t0")
    process.do(process.commit())
    as_of_ms = cluster.now_ms
    cluster.pass_ms(1000)
    process.stage(B, "t1")
    process.do(process.commit())
    cluster.pass_ms(1000)
    views = {tp: cluster.view(tp) for tp in (A, B)}
    ends = {tp: view.state.next_offset for tp, view in views.items()}
    for settled, table_ends, words in (({process.pid: process.epoch}, (1, 1), ["t0"]), ({}, (0, 0), [])):
        # Without its id in the table, the producer is newer than the cut.
        cut = SnapshotCut(ends=ends, settled=settled, table_ends=table_ends, taken_at=ClockReading(cluster.now_ms))
        _, past = cluster.run(cut_as_of(context(), views, cut, {A: ends[A], B: 0}, as_of_ms))
        assert shown(cluster, past) == {A: words, B: []}


def test_a_cut_holds_for_the_grace() -> None:
    cluster = Cluster()
    cut = cluster.run(taken(context()))
    wall_ms, monotonic_ms = cluster.now_ms, cluster.monotonic_ms
    cut.check_age(ClockReading(wall_ms + GRACE_MS - 1, monotonic_ms + GRACE_MS - 1), GRACE_MS)
    # Either clock is enough. In another process only the wall clock counts.
    for now in (ClockReading(wall_ms + GRACE_MS, monotonic_ms), ClockReading(wall_ms, monotonic_ms + GRACE_MS)):
        with pytest.raises(InvalidRequestError, match="take another one"):
            cut.check_age(now, GRACE_MS)
    elsewhere = pickle.loads(pickle.dumps(cut))
    elsewhere.check_age(ClockReading(wall_ms, monotonic_ms + 10 * GRACE_MS), GRACE_MS)
    with pytest.raises(InvalidRequestError, match="take another one"):
        elsewhere.check_age(wall_ms + GRACE_MS, GRACE_MS)


def test_what_it_costs() -> None:
    """A warm snapshot with nothing new costs one GET for each partition of the table and of the logs, and writes
    nothing."""
    cluster = Cluster()
    process = begun(cluster, staged=True)
    process.do(process.commit())
    ctx = context()
    views, _ = cluster.run(take_snapshot(ctx, {}, ALL))
    _, cost = measure(cluster, take_snapshot(ctx, views, ALL))
    assert (cost.gets, cost.lists, cost.puts, cost.rounds) == (CONSTANTS.transaction_state_partitions + 3, 0, 0, 2)
