"""Offsets of consumer groups, plain, staged and conditional, and membership (PROTOCOL.md, W34 to W36)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from lab.simulate.cluster import DiedError, Fault
from tests.effort import STRIDE
from tests.protocol.harness import (
    CONSTANTS,
    A,
    Cluster,
    Process,
    Task,
    at,
    context,
    is_put,
    nth_put,
    rolling,
)
from txlog.core.groups import OffsetsCondition, offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue
from txlog.core.transactions import Skipped, TxnVersion
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidProducerEpochError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    OutcomeUnknownError,
    ProducerFencedError,
    StorageError,
    UnstableOffsetCommitError,
)
from txlog.protocol import group_admin, groups

G = offsets_partition("g", CONSTANTS.consumer_offsets_partitions)
OFFSETS = "__consumer_offsets"
TXN_LOG = "__transaction_state"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def started(cluster: Cluster, transactional_id: str = "x", **kwargs: Any) -> Process:
    process = Process(cluster, transactional_id, **kwargs)
    process.do(process.init())
    return process


def expecting(offset: int | None) -> OffsetsCondition:
    return OffsetsCondition(expected={A: offset})


def of(member: Any) -> OffsetsCondition:
    return OffsetsCondition(generation=member.generation, member_id=member.member_id)


def join(cluster: Cluster, member: str) -> Any:
    return cluster.run(groups.join_group(context(), {}, "g", member, "client", ("orders",)))[1][0]


# -- plain ------------------------------------------------------------------------------------------------------------


def test_commit_and_fetch(cluster: Cluster) -> None:
    process = Process(cluster)
    assert process.do(process.fetch_offsets(0, 1)) == {0: None, 1: None}
    process.do(process.commit_offsets({0: 5, 1: 6}))
    process.do(process.commit_offsets({0: 7}))
    assert process.do(process.fetch_offsets(0, 1, 2)) == {0: 7, 1: 6, 2: None}
    assert process.do(process.fetch_offsets(0, group="h")) == {0: None}
    process.do(process.commit_offsets({1: None}))
    assert process.do(process.fetch_offsets(0, 1)) == {0: 7, 1: None}


def test_an_empty_map_asks_nothing(cluster: Cluster) -> None:
    process = started(cluster)
    cluster.requests.clear()
    process.do(process.commit_offsets({}))
    process.do(process.send_offsets({}))
    assert cluster.requests == []


def test_metadata_is_kept_and_bounded(cluster: Cluster) -> None:
    text = "m" * 4096
    ctx = context()
    cluster.run(groups.commit_offsets(ctx, {}, "g", {A: OffsetValue(offset=1, metadata=text)}))
    _, found = cluster.run(groups.fetch_offsets(ctx, {}, "g", [A]))
    value = found[A]
    assert value is not None
    assert (value.metadata, value.timestamp) == (text, cluster.now_ms)
    too_long = {A: OffsetValue(offset=2, metadata=text + "m")}
    process = started(cluster)
    for program in (
        groups.commit_offsets(ctx, {}, "g", too_long),
        groups.send_offsets(ctx, {}, process.identity, "g", too_long),
    ):
        with pytest.raises(OffsetMetadataTooLargeError, match=r"orders-0.*4097"):
            cluster.run(program)
    assert cluster.committed() == {0: 1}


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
def test_a_commit_whose_reply_is_lost(cluster: Cluster, fault: Fault) -> None:
    process = Process(cluster, faults=nth_put(1, fault))
    process.do(process.commit_offsets({0: 5}))
    cluster.land()
    assert cluster.committed() == {0: 5}
    assert len(cluster.records(G)) == 1


# -- in a transaction -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_move_with_the_outcome(cluster: Cluster, commit: bool) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}))
    process.do(process.send_offsets({0: 9, 1: 4}))
    assert cluster.committed() == {0: 5}
    process.do(process.end(commit))
    assert cluster.committed() == ({0: 9, 1: 4} if commit else {0: 5})
    cluster.check()


def test_the_later_send_wins_whatever_the_order_of_the_commits(cluster: Cluster) -> None:
    one, two = started(cluster, "one"), started(cluster, "two")
    one.do(one.send_offsets({0: 1}))
    two.do(two.send_offsets({0: 2}))
    two.do(two.commit())
    one.do(one.commit())
    assert cluster.committed() == {0: 2}


def test_a_fetch_never_gives_the_older_value(cluster: Cluster) -> None:
    process, reader = started(cluster), Process(cluster)
    process.do(process.commit_offsets({0: 5, 1: 5}))
    process.do(process.send_offsets({0: 9}))
    with pytest.raises(UnstableOffsetCommitError, match="'g', orders-0: producer 0"):
        reader.do(reader.fetch_offsets(0))
    assert reader.do(reader.fetch_offsets(1)) == {1: 5}
    process.do(process.commit())
    assert reader.do(reader.fetch_offsets(0, 1)) == {0: 9, 1: 5}


@pytest.mark.parametrize("commit", [True, False])
def test_a_fetch_over_a_decided_transaction_finishes_it(cluster: Cluster, commit: bool) -> None:
    process, reader = started(cluster), Process(cluster)
    process.do(process.send_offsets({0: 9}))
    process.faults = nth_put(1, "crash after", TXN_LOG)
    with pytest.raises(DiedError):
        process.do(process.end(commit))
    assert reader.do(reader.fetch_offsets(0)) == {0: 9 if commit else None}
    cluster.check()


def test_a_fetch_times_out_what_is_due(cluster: Cluster) -> None:
    process, reader = started(cluster), Process(cluster)
    process.do(process.send_offsets({0: 9}))
    cluster.pass_ms(60_000)
    with pytest.raises(UnstableOffsetCommitError):
        reader.do(reader.fetch_offsets(0))
    cluster.pass_ms(1)
    assert reader.do(reader.fetch_offsets(0)) == {0: None}
    cluster.check()


def test_staged_offsets_are_part_of_the_decision(cluster: Cluster) -> None:
    process, reader = started(cluster), Process(cluster)
    process.stage(A, "a")
    process.stage_offsets({0: 9})
    process.do(process.commit())
    assert (cluster.committed(), cluster.read(A)) == ({0: 9}, {0: "a"})
    assert reader.do(reader.fetch_offsets(0)) == {0: 9}
    process.stage_offsets({0: 12})
    process.do(process.abort())
    assert cluster.committed() == {0: 9}
    cluster.check()


def test_a_fenced_instance_commits_no_offsets(cluster: Cluster) -> None:
    old = started(cluster)
    old.do(old.send_offsets({0: 9}))
    late = old.start(old.send_offsets({0: 10})).run(until=is_put(OFFSETS))
    started(cluster)
    late.run()
    with pytest.raises(InvalidProducerEpochError):
        _ = late.result
    with pytest.raises(ProducerFencedError):
        old.do(old.send_offsets({0: 11}))
    assert cluster.committed() == {}
    cluster.check()


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry", "error"])
def test_send_offsets_may_be_repeated_after_any_failure(fault: Fault) -> None:
    for number in range(1, 12):
        cluster = Cluster()
        process = started(cluster)
        process.faults = at(number, fault)
        try:
            process.do(process.send_offsets({0: 9}, condition=expecting(None)))
        except (StorageError, OutcomeUnknownError):
            process.faults = lambda _, __: None
            process.do(process.send_offsets({0: 9}, condition=expecting(None)))
        cluster.land()
        process.do(process.commit())
        assert cluster.committed() == {0: 9}
        cluster.check()


# -- conditional ------------------------------------------------------------------------------------------------------


def test_a_wrong_start_is_refused_before_anything_is_pending(cluster: Cluster) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}))
    with pytest.raises(CommitFailedError, match="started from offset 4, but 5 is committed"):
        process.do(process.send_offsets({0: 9}, condition=expecting(4)))
    process.do(process.abort())
    process.do(process.send_offsets({0: 9}, condition=expecting(5)))
    process.do(process.commit())
    assert cluster.committed() == {0: 9}
    cluster.check()


def test_an_older_generation_is_refused(cluster: Cluster) -> None:
    first = join(cluster, "m1")
    process = started(cluster)

    process.do(process.send_offsets({0: 1}, condition=of(first)))
    process.do(process.commit())
    second = join(cluster, "m2")
    assert (first.generation, second.generation) == (1, 2)
    with pytest.raises(CommitFailedError, match="generation 2 of member 'm2'"):
        process.do(process.send_offsets({0: 2}, condition=of(first)))
    process.do(process.abort())
    with pytest.raises(CommitFailedError):
        process.do(process.commit_offsets({0: 2}, condition=of(first)))
    process.do(process.commit_offsets({0: 3}, condition=of(second)))
    assert cluster.committed() == {0: 3}


def test_a_member_that_joins_between_the_check_and_the_append(cluster: Cluster) -> None:
    """The condition is checked on the fold of the very slot that the record takes."""
    first = join(cluster, "m1")
    process = started(cluster)
    condition = OffsetsCondition(generation=first.generation, member_id="m1")
    task = process.start(process.send_offsets({0: 1}, condition=condition)).run(until=is_put(OFFSETS))
    join(cluster, "m2")
    task.run()
    with pytest.raises(CommitFailedError):
        _ = task.result


def test_a_plain_commit_over_pending_conditional_offsets_is_refused(cluster: Cluster) -> None:
    process, other = started(cluster), Process(cluster)
    process.do(process.send_offsets({0: 9}, condition=expecting(None)))
    with pytest.raises(ConcurrentTransactionsError, match=r"producer 0 .* offset 9"):
        other.do(other.commit_offsets({0: 3}))
    other.do(other.commit_offsets({1: 3}))
    process.do(process.commit())
    other.do(other.commit_offsets({0: 3}))
    assert cluster.committed() == {0: 3, 1: 3}


def preempted(make: Any, two: bool = False) -> Iterator[tuple[Cluster, Task, Task]]:
    """Pause the first task before each of its requests (with `two`, the second task too), then finish both."""
    first_steps = 0
    while True:
        second_steps = 0
        while True:
            cluster, first, second = make()
            for _ in range(first_steps):
                if not first.done:
                    first.step()
            over = first.done
            for _ in range(second_steps):
                if not second.done:
                    second.step()
            second_over = second.done or not two
            if two:
                first.run()
            second.run()
            first.run()
            yield cluster, first, second
            if second_over:
                break
            second_steps += STRIDE
        if over:
            return
        first_steps += 1


def job(process: Process, name: str, until_decided: bool = True) -> Any:
    """Init, send rows, move offsets from None to 10 under a condition, commit; abort if another job took the range."""
    yield from process.init()
    process.stage(A, name)
    for _ in range(20):
        try:
            yield from process.send_offsets({0: 10}, condition=expecting(None))
            break
        except ConcurrentTransactionsError:
            if not until_decided:
                raise
        except CommitFailedError:
            yield from process.abort()
            return "refused"
    else:
        yield from process.abort()
        return "gave up"
    yield from process.commit()
    return "committed"


def test_two_jobs_that_took_one_range_cannot_both_commit() -> None:
    outcomes: set[Any] = set()

    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        jobs = [Process(cluster, name) for name in ("one", "two")]
        tasks = [process.start(job(process, process.transactional_id)) for process in jobs]
        return cluster, tasks[0], tasks[1]

    for cluster, first, second in preempted(make, two=True):
        results = (first.result, second.result)
        outcomes.add(results)
        assert results.count("committed") <= 1
        words = list(cluster.read(A).values())
        assert len(words) == results.count("committed")
        assert cluster.committed() == ({0: 10} if words else {})
        cluster.check()
    assert {("committed", "refused"), ("refused", "committed")} <= outcomes


def test_a_job_s_sweep_never_lets_two_commit() -> None:
    """As in the test above, but one job dies at each request, and the other one meets what the first left."""
    for number in range(1, 25):
        cluster = Cluster()
        dead, alive = Process(cluster, "dead", faults=at(number, "crash in flight")), Process(cluster, "alive")
        with suppress(DiedError):
            dead.do(job(dead, "dead"))
        cluster.pass_ms(60_001)
        outcome = alive.do(job(alive, "alive"))
        cluster.land()
        started(cluster, "dead")
        words = list(cluster.read(A).values())
        assert len(words) == 1
        assert (words == ["alive"]) == (outcome == "committed")
        assert cluster.committed() == {0: 10}
        cluster.check()


@pytest.mark.parametrize("state", ["PREPARE_COMMIT", "PREPARE_ABORT", "timed out", "open"])
def test_a_writer_that_meets_an_undecided_transaction_finishes_what_is_due(cluster: Cluster, state: str) -> None:
    """A writer that meets an overdue transaction ends it (W28).

    Without this, a job whose predecessor died would get retriable errors for ever.
    """
    dead, alive = started(cluster, "dead"), started(cluster, "alive")
    dead.do(dead.send_offsets({0: 10}, condition=expecting(None)))
    if state.startswith("PREPARE"):
        dead.faults = nth_put(1, "crash after", TXN_LOG)
        with pytest.raises(DiedError):
            dead.do(dead.end(state == "PREPARE_COMMIT"))
    elif state == "timed out":
        cluster.pass_ms(60_001)
    program = alive.send_offsets({0: 11}, condition=expecting(None))
    if state == "PREPARE_COMMIT":
        with pytest.raises(CommitFailedError, match="10 is committed"):
            alive.do(program)
    elif state == "open":
        with pytest.raises(ConcurrentTransactionsError):
            alive.do(program)
    else:
        alive.do(program)
        alive.do(alive.commit())
        assert cluster.committed() == {0: 11}
    plain = Process(cluster)
    if state == "open":
        with pytest.raises(ConcurrentTransactionsError):
            plain.do(plain.commit_offsets({0: 3}))
    else:
        plain.do(plain.commit_offsets({0: 3}))
        assert cluster.committed() == {0: 3}


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_version_is_checked_before_any_condition(cluster: Cluster) -> None:
    process = started(cluster)
    process.do(process.commit(version=TxnVersion(version=4)))
    process.do(process.commit_offsets({0: 7}))
    skipped = process.do(process.send_offsets({0: 9}, condition=expecting(3), version=TxnVersion(version=4)))
    assert isinstance(skipped, Skipped)
    assert cluster.committed() == {0: 7}
    with pytest.raises(CommitFailedError):
        process.do(process.send_offsets({0: 9}, condition=expecting(3), version=TxnVersion(version=5)))


# -- membership -------------------------------------------------------------------------------------------------------


def test_two_joins_at_once_get_two_generations() -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        tasks = [Task(cluster, groups.join_group(context(), {}, "g", member, "", ())) for member in "pq"]
        return cluster, tasks[0], tasks[1]

    for _, first, second in preempted(make):
        assert {first.result[1][0].generation, second.result[1][0].generation} == {1, 2}


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
def test_a_join_whose_reply_is_lost_is_one_generation(cluster: Cluster, fault: Fault) -> None:
    join(cluster, "m1")
    _, (value, _) = cluster.run(groups.join_group(rolling(1), {}, "g", "m2", "", ()), nth_put(1, fault))
    cluster.land()
    assert (value.generation, value.member_id) == (2, "m2")
    assert len(cluster.records(G)) == 2


def test_leaving_keeps_the_generation_and_only_the_holder_can(cluster: Cluster) -> None:
    first, second = join(cluster, "m1"), join(cluster, "m2")
    cluster.run(groups.leave_group(context(), {}, "g", first.generation, "m1"))
    _, described = cluster.run(groups.describe_group(context(), {}, "g"))
    assert described.member is not None
    assert described.member.member_id == "m2"
    cluster.run(groups.leave_group(context(), {}, "g", second.generation, "m2"))
    _, described = cluster.run(groups.describe_group(context(), {}, "g"))
    assert described.member is not None
    assert (described.member.member_id, described.member.generation) == ("", 2)
    assert join(cluster, "m3").generation == 3


def test_list_and_describe(cluster: Cluster) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}, group="plain"))
    process.do(process.send_offsets({1: 6}, group="pending"))
    join(cluster, "m1")
    _, found = cluster.run(groups.list_groups(context(), {}))
    assert [(each.group, each.member is not None) for each in found] == [
        ("g", True),
        ("pending", False),
        ("plain", False),
    ]
    by_name = {each.group: each for each in found}
    assert {tp: value.offset for tp, value in by_name["plain"].offsets.items()} == {A: 5}
    pending = {tp: value and value.offset for tp, value in by_name["pending"].pending.items()}
    assert pending == {TopicPartition("orders", 1): 6}
    with pytest.raises(GroupIdNotFoundError, match="'nobody'"):
        cluster.run(groups.describe_group(context(), {}, "nobody"))


def test_deleting_a_group(cluster: Cluster) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5, 1: 6}))
    member = join(cluster, "m1")
    with pytest.raises(InvalidRequestError, match="'m1'"):
        cluster.run(group_admin.delete_group(context(), {}, "g"))
    cluster.run(groups.leave_group(context(), {}, "g", member.generation, "m1"))
    process.do(process.send_offsets({2: 7}))
    with pytest.raises(InvalidRequestError, match="undecided"):
        cluster.run(group_admin.delete_group(context(), {}, "g"))
    process.do(process.abort())
    cluster.run(group_admin.delete_group(context(), {}, "g"))
    assert cluster.committed() == {}
    with pytest.raises(GroupIdNotFoundError):
        cluster.run(group_admin.delete_group(context(), {}, "g"))


@pytest.mark.parametrize("meanwhile", ["join", "pending"])
def test_a_deletion_is_checked_at_its_own_slot(cluster: Cluster, meanwhile: str) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}))
    task = Task(cluster, group_admin.delete_group(context(), {}, "g")).run(until=is_put(OFFSETS))
    if meanwhile == "join":
        join(cluster, "m1")
    else:
        process.do(process.send_offsets({0: 7}))
    task.run()
    with pytest.raises(InvalidRequestError):
        _ = task.result
    assert cluster.committed() == {0: 5}


def test_a_tombstone_over_pending_offsets(cluster: Cluster) -> None:
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}))
    process.do(process.send_offsets({0: 7}))
    process.do(process.commit_offsets({0: None}))
    process.do(process.commit())
    assert cluster.committed() == {}
    cluster.check()


# -- operators --------------------------------------------------------------------------------------------------------

FIVE = {A: OffsetValue(offset=5)}


def described(cluster: Cluster) -> groups.GroupDescription:
    return cluster.run(groups.describe_group(context(), {}, "g"))[1]


def operators(**how: Any) -> dict[str, Any]:
    """Return the calls that an operator may make on a group, each as a program."""
    return {
        "reset": lambda: group_admin.reset_offsets(context(), {}, "g", FIVE, **how),
        "delete": lambda: group_admin.delete_group(context(), {}, "g", **how),
    }


@pytest.mark.parametrize("call", operators())
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_group_in_use_is_refused_with_the_way_out(cluster: Cluster, call: str, dry_run: bool) -> None:
    join(cluster, "m1")
    before = dict(cluster.objects)
    with pytest.raises(InvalidRequestError, match=r"'g' is in use by member 'm1', which joined 2023-11-14T.*--force"):
        cluster.run(operators(dry_run=dry_run)[call]())
    assert cluster.objects == before


@pytest.mark.parametrize("call", operators())
def test_a_dry_run_writes_nothing(cluster: Cluster, call: str) -> None:
    member = join(cluster, "m1")
    before = dict(cluster.objects)
    assert cluster.run(operators(dry_run=True, force=True)[call]())[1] == member
    cluster.run(groups.leave_group(context(), {}, "g", member.generation, "m1"))
    assert cluster.run(operators(dry_run=True)[call]())[1] is None
    assert len(cluster.objects) == len(before) + 1


@pytest.mark.parametrize("call", [*operators(), "remove"])
def test_a_member_that_is_removed_is_fenced(cluster: Cluster, call: str) -> None:
    member = join(cluster, "m1")
    process = started(cluster)
    process.do(process.commit_offsets({0: 3}, condition=of(member)))
    calls = {**operators(force=True), "remove": lambda: group_admin.remove_members(context(), {}, "g")}
    assert cluster.run(calls[call]())[1] == member
    for program in (process.commit_offsets, process.send_offsets):
        with pytest.raises(CommitFailedError, match=r"the group has no member now: this one left, or was removed"):
            process.do(program({0: 4}, condition=of(member)))
    cluster.run(groups.leave_group(context(), {}, "g", member.generation, "m1"))
    assert cluster.committed() == {"reset": {0: 5}, "delete": {}, "remove": {0: 3}}[call]
    if call != "delete":
        left = described(cluster).member
        assert left is not None
        assert (left.generation, left.member_id) == (2, "")
    process.do(process.commit_offsets({0: 6}, condition=of(join(cluster, "m2"))))
    with pytest.raises(CommitFailedError):
        process.do(process.commit_offsets({0: 4}, condition=of(member)))


def test_removing_nobody(cluster: Cluster) -> None:
    with pytest.raises(GroupIdNotFoundError):
        cluster.run(group_admin.remove_members(context(), {}, "g"))
    member = join(cluster, "m1")
    cluster.run(groups.leave_group(context(), {}, "g", member.generation, "m1"))
    before = dict(cluster.objects)
    assert cluster.run(group_admin.remove_members(context(), {}, "g"))[1] is None
    assert cluster.objects == before


def test_a_deletion_removes_what_it_saw(cluster: Cluster) -> None:
    """Another client commits an offset before the deletion gets its slot.

    This offset must not stay in a deleted group.
    """
    process = started(cluster)
    process.do(process.commit_offsets({0: 5}))
    task = Task(cluster, group_admin.delete_group(context(), {}, "g")).run(until=is_put(OFFSETS))
    process.do(process.commit_offsets({1: 6}))
    with pytest.raises(ConcurrentTransactionsError, match="changed"):
        _ = task.run().result
    assert cluster.committed() == {0: 5, 1: 6}


def test_a_reset_does_not_overtake_conditional_offsets(cluster: Cluster) -> None:
    """W35 also holds for operators.

    Otherwise the transaction's offsets would win later, or never, depending on their position.
    """
    process = started(cluster)
    process.do(process.send_offsets({0: 7}, condition=OffsetsCondition(expected={A: None})))
    with pytest.raises(ConcurrentTransactionsError):
        cluster.run(group_admin.reset_offsets(context(), {}, "g", FIVE))
    process.do(process.commit())
    assert cluster.committed() == {0: 7}


@pytest.mark.parametrize("force", [False, True])
def test_a_reset_and_a_join_at_once(force: bool) -> None:
    """A new member is checked at the slot of the reset. Offsets never move while a member keeps its group."""
    outcomes: set[Any] = set()

    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        reset = group_admin.reset_offsets(context(), {}, "g", FIVE, force=force)
        return cluster, Task(cluster, reset), Task(cluster, groups.join_group(context(), {}, "g", "m1", "", ()))

    for cluster, reset, joined in preempted(make):
        _, (member, _) = joined.result
        committing = groups.commit_offsets(context(), {}, "g", {A: OffsetValue(offset=9)}, of(member))
        try:
            _ = reset.result
        except (InvalidRequestError, ConcurrentTransactionsError) as error:
            outcomes.add(type(error))
            assert cluster.committed() == {}
            cluster.run(committing)
            continue
        assert cluster.committed() == {0: 5}
        kinds = [type(entry).__name__ for record in cluster.records(G) for entry in record.entries]
        if kinds[0] == "OffsetEntry":
            outcomes.add("reset, then joined")
            cluster.run(committing)
        else:
            outcomes.add("joined, then removed")
            assert force
            with pytest.raises(CommitFailedError):
                cluster.run(committing)
    assert outcomes == {
        "reset, then joined",
        *(["joined, then removed", ConcurrentTransactionsError] if force else [InvalidRequestError]),
    }


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
def test_a_forced_reset_whose_reply_is_lost_is_one_record(cluster: Cluster, fault: Fault) -> None:
    join(cluster, "m1")
    process = Process(cluster, faults=nth_put(1, fault))
    _, removed = process.do(group_admin.reset_offsets(context(), {}, "g", FIVE, force=True))
    cluster.land()
    assert removed is not None
    assert cluster.committed() == {0: 5}
    assert len(cluster.records(G)) == 2
    cluster.check()


def test_a_reset_without_offsets_asks_nothing(cluster: Cluster) -> None:
    assert cluster.run(group_admin.reset_offsets(context(), {}, "g", {}, force=True)) == ({}, None)
    assert cluster.requests == []


# -- over time --------------------------------------------------------------------------------------------------------


def test_offsets_survive_sealing_and_cleaning(cluster: Cluster) -> None:
    ctx = rolling(2)
    process = Process(cluster, ctx=ctx)
    process.do(process.init(timeout_ms=900_000))
    for number in range(9):
        process.do(process.send_offsets({0: number}, condition=expecting(number - 1 if number else None)))
        process.do(process.commit())
        if number % 4 == 2:
            cluster.pass_ms(86_400_000)
            cluster.clean_tail(G, ctx)
    assert cluster.committed() == {0: 8}
    pending = Process(cluster, "y", ctx)
    pending.do(pending.init(timeout_ms=900_000))
    pending.do(pending.send_offsets({1: 1}))
    for number in range(9, 12):
        process.do(process.send_offsets({0: number}))
        process.do(process.commit())
    cluster.pass_ms(86_400_000)
    cluster.clean_tail(G, ctx)
    assert cluster.state(G).pending.keys() == {pending.pid}
    pending.do(pending.commit())
    assert cluster.committed() == {0: 11, 1: 1}
    cluster.check()


def test_copy_loop_with_crashes() -> None:
    """Consume, transform and produce, with a crash at every request: each input is in the output exactly once."""
    cluster = Cluster()
    for attempt in range(200):
        crash = 3 + attempt * 7 % 61
        mode: Fault = "crash after" if crash % 2 else "crash in flight"
        process = Process(cluster, "copier", rolling(4), at(crash, mode))

        def run(process: Process = process) -> Any:
            yield from process.init()
            while True:
                (start,) = (yield from process.fetch_offsets(0)).values()
                start = start or 0
                if start >= 60:
                    return True
                words = [str(number * 10) for number in range(start, min(start + 3, 60))]
                if start % 2:
                    yield from process.send(A, *words)
                else:
                    process.stage(A, *words)
                yield from process.send_offsets({0: start + len(words)}, condition=expecting(start or None))
                yield from process.commit()

        try:
            if process.do(run()):
                break
        except DiedError:
            cluster.pass_ms(1_000)
            if attempt % 3 == 0:
                cluster.land()
    cluster.land()
    started(cluster, "copier")
    assert sorted(cluster.read(A).values(), key=int) == [str(number * 10) for number in range(60)]
    assert cluster.committed() == {0: 60}
    cluster.check()


# -- idle groups ------------------------------------------------------------------------------------------------------


def test_idle_groups_go_many_in_one_record(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(constants=msgspec.structs.replace(CONSTANTS, consumer_offsets_partitions=1))
    tp = TopicPartition(OFFSETS, 0)
    process = Process(cluster, ctx=ctx)
    idle = [f"g{number:02d}" for number in range(20)]
    for group in idle:
        process.do(process.commit_offsets({0: 1}, group=group))
    cluster.run(groups.join_group(ctx, {}, "member", "m", "client", ("orders",)))
    cluster.pass_ms(1000)
    process.do(process.commit_offsets({0: 1}, group="late"))
    before = len(cluster.batches(tp))
    sweep = Task(cluster, groups.expire_groups(ctx, {}, 1000)).run(until=is_put(OFFSETS))
    # One group is used again before the record gets its slot. This group stays, and the others are still removed.
    process.do(process.commit_offsets({0: 2}, group="g07"))
    assert sweep.run().result[1] == tuple(group for group in idle if group != "g07")
    assert len(cluster.batches(tp)) == before + 2
    left = [each.group for each in cluster.run(groups.list_groups(ctx, {}))[1]]
    assert left == ["g07", "late", "member"]
    monkeypatch.setattr(groups, "MAX_REMOVED_ENTRIES", 1)
    cluster.pass_ms(1000)
    assert cluster.run(groups.expire_groups(ctx, {}, 1000))[1] == ("g07", "late")
    assert len(cluster.batches(tp)) == before + 4
