"""Groups of many members: races, lost replies, crashes, sessions and commits (PROTOCOL.md, W51 to W55, W57)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from lab.simulate.cluster import DiedError, Fault
from tests.protocol.harness import (
    CONSTANTS,
    Cluster,
    Process,
    Task,
    at,
    context,
    is_put,
    nth_put,
    rolling,
)
from tests.protocol.test_groups import preempted
from txlog.core.effects import Get, PutIfAbsent
from txlog.core.groups import JOB_MARK, OffsetsCondition, offsets_partition
from txlog.core.members import find_member, partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember, GroupRow, GroupValue, OffsetValue
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    InvalidRequestError,
    UnstableOffsetCommitError,
)
from txlog.protocol import group_admin, groups, members
from txlog.protocol.seal import finished_segments

G = offsets_partition("g", CONSTANTS.consumer_offsets_partitions)
OFFSETS = "__consumer_offsets"
SESSION_MS = 45_000
COUNTS = {"orders": 2}
CRASHES: tuple[Fault, ...] = ("crash", "crash after", "crash in flight")


def tp(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


def joining(name: str, instance: str = "", assignor: str = "range") -> GroupMember:
    return GroupMember(
        member_id=name,
        instance_id=instance,
        topics=("orders",),
        assignors=(assignor,),
        session_timeout_ms=SESSION_MS,
        generation=0,
    )


def join(name: str, instance: str = "", ctx: Any = None) -> Any:
    return members.join(ctx or context(), {}, "g", joining(name, instance), COUNTS)


def sync(name: str, held: Iterable[int], ctx: Any = None) -> Any:
    return members.sync(ctx or context(), {}, "g", name, [tp(number) for number in held], COUNTS)


def row(cluster: Cluster) -> GroupRow:
    return cluster.view(G).state.groups["g"]


def value(cluster: Cluster) -> GroupValue:
    found = row(cluster).entry.value
    assert found is not None
    return found


def owned(cluster: Cluster) -> dict[str, list[int]]:
    return {
        each.member_id: [held.partition for held in sorted(partitions_of(each.owned))]
        for each in value(cluster).members
    }


def condition(cluster: Cluster, name: str) -> OffsetsCondition:
    member = find_member(value(cluster), name)
    assert member is not None
    return OffsetsCondition(generation=member.generation, member_id=name)


def started(cluster: Cluster, transactional_id: str = "x") -> Process:
    process = Process(cluster, transactional_id)
    process.do(process.init())
    return process


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_two_joins_at_once_share_the_partitions() -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        return cluster, Task(cluster, join("p")), Task(cluster, join("q"))

    for cluster, _, _ in preempted(make):
        assert value(cluster).generation == 2
        held = [number for numbers in owned(cluster).values() for number in numbers]
        assert sorted(held) == [0, 1], "the first one has all, and gives up half at its sync"
        assert [len(partitions_of(each.assigned)) for each in value(cluster).members] == [1, 1]


def test_a_sync_beside_a_join_leaves_one_owner() -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        cluster.run(join("p"))
        cluster.run(join("q"))
        cluster.run(sync("p", [0]))
        return cluster, Task(cluster, sync("q", [])), Task(cluster, join("r"))

    for cluster, _, _ in preempted(make):
        held = [number for numbers in owned(cluster).values() for number in numbers]
        assert len(held) == len(set(held))
        assert owned(cluster)["p"] == [0]
        assert value(cluster).generation == 3


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
@pytest.mark.parametrize("call", ["join", "sync", "leave", "heartbeat"])
def test_a_change_whose_reply_is_lost_is_one_record(cluster: Cluster, call: str, fault: Fault) -> None:
    cluster.run(join("p"))
    cluster.run(join("q"))
    programs = {
        "join": lambda: join("r", ctx=rolling(1)),
        "sync": lambda: sync("p", [0], ctx=rolling(1)),
        "leave": lambda: members.leave(rolling(1), {}, "g", "q"),
        "heartbeat": lambda: members.heartbeat(rolling(1), {}, "g", "p"),
    }
    before = len(cluster.records(G))
    _, found = cluster.run(programs[call](), nth_put(1, fault))
    cluster.land()
    assert found == row(cluster)
    assert len(cluster.records(G)) == before + 1


@pytest.mark.parametrize("instance", ["", "one"])
def test_a_join_that_is_repeated_after_a_crash_is_the_same_member(cluster: Cluster, instance: str) -> None:
    """A client repeats a call of unknown outcome with the same member id."""
    cluster.run(join("p"))
    for step in range(1, 12):
        copy = cluster.copy()
        with suppress(DiedError):
            copy.run(join("q", instance), at(step, "crash after"))
        copy.land()
        copy.run(join("q", instance))
        assert value(copy).generation == 2
        assert [each.member_id for each in value(copy).members] == ["p", "q"]


@pytest.mark.parametrize("transactional", [False, True])
def test_a_member_of_an_older_generation_cannot_commit(cluster: Cluster, transactional: bool) -> None:
    process = started(cluster)

    def commit(at_condition: OffsetsCondition, **offsets: int) -> None:
        values = {int(name[1:]): offset for name, offset in offsets.items()}
        if transactional:
            process.do(process.send_offsets(values, condition=at_condition))
            process.do(process.commit())
        else:
            process.do(process.commit_offsets(values, condition=at_condition))

    cluster.run(join("p"))
    first = condition(cluster, "p")
    commit(first, p0=1, p1=1)
    cluster.run(join("q"))
    commit(first, p0=2, p1=2)
    cluster.run(sync("p", [0]))
    with pytest.raises(CommitFailedError, match="is in generation 2 by now"):
        commit(first, p0=3)
    if transactional:
        process.do(process.abort())
    cluster.run(sync("q", []))
    second = condition(cluster, "p")
    with pytest.raises(CommitFailedError, match="another member reads orders-1"):
        commit(second, p0=4, p1=4)
    if transactional:
        process.do(process.abort())
    commit(second, p0=5)
    commit(condition(cluster, "q"), p1=6)
    assert cluster.committed() == {0: 5, 1: 6}


@pytest.mark.parametrize("transactional", [False, True])
def test_a_member_that_sleeps_past_its_session_is_fenced_at_its_next_commit(
    cluster: Cluster, transactional: bool
) -> None:
    process = started(cluster)
    send = process.send_offsets if transactional else process.commit_offsets
    cluster.run(join("p"))
    cluster.pass_ms(SESSION_MS)
    process.do(send({0: 1}, condition=condition(cluster, "p")))
    cluster.pass_ms(SESSION_MS)
    process.do(send({0: 2}, condition=condition(cluster, "p")))
    cluster.pass_ms(SESSION_MS + 1)
    with pytest.raises(CommitFailedError, match=r"session\.timeout\.ms of 45000"):
        process.do(send({0: 3}, condition=condition(cluster, "p")))
    records = len(cluster.records(G))
    cluster.run(members.heartbeat(context(), {}, "g", "p"))
    cluster.run(sync("p", [0, 1]))
    assert len(cluster.records(G)) == records, "it does not come back to life"


def test_a_join_between_the_check_and_the_append_of_a_commit(cluster: Cluster) -> None:
    """Another member takes the partitions while a commit is under way: the commit is judged at its own slot."""
    cluster.run(join("p"))
    process = started(cluster)
    task = process.start(process.send_offsets({0: 1, 1: 1}, condition=condition(cluster, "p"))).run(
        until=is_put(OFFSETS)
    )
    cluster.pass_ms(SESSION_MS + 1)
    cluster.run(join("q"))
    assert owned(cluster) == {"q": [0, 1]}
    task.run()
    with pytest.raises(CommitFailedError, match="does not have this member"):
        _ = task.result
    cluster.check()


def test_a_crash_between_revoke_and_assign_costs_one_session(cluster: Cluster) -> None:
    cluster.run(join("p"))
    cluster.run(join("q"))
    cluster.run(sync("q", []))
    assert owned(cluster) == {"p": [0, 1], "q": []}
    for _ in range(4):
        cluster.pass_ms(SESSION_MS // 4)
        cluster.run(members.heartbeat(context(), {}, "g", "q"))
    cluster.pass_ms(1)
    cluster.run(sync("q", []))
    assert owned(cluster) == {"q": [0, 1]}


def test_a_sync_that_crashes_anywhere_leaves_one_owner(cluster: Cluster) -> None:
    cluster.run(join("p"))
    cluster.run(join("q"))
    for step in range(1, 12):
        for fault in CRASHES:
            copy = cluster.copy()
            with suppress(DiedError):
                copy.run(sync("p", [0], ctx=rolling(1)), at(step, fault))
            copy.run(sync("q", []))
            copy.land()
            held = owned(copy)
            assert held["p"] in ([0], [0, 1])
            assert not set(held["p"]) & set(held["q"])


def test_a_heartbeat_is_a_record_only_of_a_member(cluster: Cluster) -> None:
    cluster.run(join("p"))
    cluster.pass_ms(5)
    cluster.run(members.heartbeat(context(), {}, "g", "p"))
    (beat,) = row(cluster).beats
    assert (beat.member_id, beat.timestamp) == ("p", cluster.now_ms)
    records = len(cluster.records(G))
    cluster.run(members.heartbeat(context(), {}, "g", "x"))
    cluster.run(members.heartbeat(context(), {}, "h", "p"))
    assert len(cluster.records(G)) == records


def test_an_operator_removes_all_members(cluster: Cluster) -> None:
    cluster.run(join("p"))
    cluster.run(join("q", "one"))
    with pytest.raises(InvalidRequestError, match="in use by member 'p' and 1 other member"):
        cluster.run(group_admin.delete_group(context(), {}, "g"))
    p = condition(cluster, "p")
    _, removed = cluster.run(group_admin.remove_members(context(), {}, "g"))
    assert removed is not None
    assert [each.member_id for each in removed.members] == ["p", "q"]
    assert not value(cluster).members
    process = started(cluster)
    with pytest.raises(CommitFailedError):
        process.do(process.commit_offsets({0: 1}, condition=p))
    cluster.run(join("r"))
    assert owned(cluster) == {"r": [0, 1]}


def test_an_operator_removes_one_static_member(cluster: Cluster) -> None:
    def remove(*instances: str) -> list[str]:
        _, removed = cluster.run(group_admin.remove_members(context(), {}, "g", None, instances))
        assert removed is not None
        return [each.member_id for each in removed.members]

    cluster.run(join("p"))
    cluster.run(join("q", "one"))
    cluster.run(sync("p", [1]))
    cluster.run(sync("q", []))
    assert owned(cluster) == {"p": [1], "q": [0]}
    before, q = value(cluster).generation, condition(cluster, "q")
    with pytest.raises(InvalidRequestError, match=r"'g' has no member with the group\.instance\.id 'two'"):
        remove("one", "two")
    assert remove("one") == ["q"]
    assert (value(cluster).generation, owned(cluster)) == (before + 1, {"p": [1]})
    process = started(cluster)
    with pytest.raises(CommitFailedError, match="the group does not have this member"):
        process.do(process.commit_offsets({0: 1}, condition=q))
    cluster.run(sync("p", [1]))
    assert owned(cluster) == {"p": [0, 1]}
    cluster.run(members.leave(context(), {}, "g", "p"))
    with pytest.raises(InvalidRequestError, match=r"no member with the group\.instance\.id 'one'"):
        remove("one")
    cluster.run(join("r", "one"))
    assert remove("one") == ["r"]
    assert not value(cluster).members
    cluster.check()


@pytest.mark.parametrize("call", ["reset", "delete"])
def test_an_operator_need_not_force_what_is_dead(cluster: Cluster, call: str) -> None:
    cluster.run(join("p"))
    programs = {
        "reset": lambda: group_admin.reset_offsets(context(), {}, "g", {tp(0): OffsetValue(offset=3)}),
        "delete": lambda: group_admin.delete_group(context(), {}, "g"),
    }
    cluster.pass_ms(SESSION_MS)
    with pytest.raises(InvalidRequestError, match="in use"):
        cluster.run(programs[call]())
    cluster.pass_ms(1)
    _, removed = cluster.run(programs[call]())
    assert removed is not None
    assert [each.member_id for each in removed.members] == ["p"]
    assert not cluster.view(G).state.groups or not value(cluster).members


def test_a_look_judges_sessions_as_an_operator_does(cluster: Cluster) -> None:
    cluster.run(join("p"))
    cluster.pass_ms(10)
    cluster.run(join("q"))
    records = len(cluster.records(G))
    cluster.pass_ms(SESSION_MS - 10)
    assert described(cluster) == ([], ["p", "q"])
    cluster.pass_ms(1)
    assert described(cluster) == (["p"], ["q"])
    cluster.pass_ms(10)
    assert described(cluster) == (["p", "q"], [])
    assert [each.member_id for each in value(cluster).members] == ["p", "q"]
    assert len(cluster.records(G)) == records
    cluster.run(members.join(context(), {}, "g", joining("r"), COUNTS))
    # The last record of the partition shows what a clock that is behind does not.
    (found,) = groups.groups_of([cluster.view(G)], 0)
    assert (sorted(found.silent), [each.member_id for each in found.living]) == ([], ["r"])
    cluster.pass_ms(SESSION_MS + 1)
    (found,) = groups.groups_of([cluster.view(G)], 0)
    assert not found.silent
    cluster.run(groups.commit_offsets(context(), {}, "g", {tp(0): OffsetValue(offset=1)}))
    (found,) = groups.groups_of([cluster.view(G)], 0)
    assert found.silent == {"r"}


def described(cluster: Cluster) -> tuple[list[str], list[str]]:
    """Return the members that a look takes for dead, and those that it shows."""
    _, found = cluster.run(groups.describe_group(context(), {}, "g"))
    return sorted(found.silent), [each.member_id for each in found.living]


def test_no_common_assignor_is_refused(cluster: Cluster) -> None:
    cluster.run(join("p"))
    other = members.join(context(), {}, "g", joining("q", assignor="roundrobin"), COUNTS)
    with pytest.raises(InvalidRequestError, match=r"partition\.assignment\.strategy"):
        cluster.run(other)


def test_members_survive_sealing_and_cleaning(cluster: Cluster) -> None:
    ctx = rolling(1)
    cluster.run(join("p", ctx=ctx))
    cluster.pass_ms(7)
    cluster.run(join("q", ctx=ctx))
    for _ in range(3):
        cluster.run(members.heartbeat(ctx, {}, "g", "p"))
    before = row(cluster)
    _, found = cluster.run(members.look(ctx, {}, "g"))
    assert found == before
    assert [beat.member_id for beat in before.beats] == ["p", "q"]
    cluster.check()


def test_an_idle_group_without_members_expires(cluster: Cluster) -> None:
    cluster.run(join("p"))
    _, gone = cluster.run(groups.expire_groups(context(), {}, 0))
    assert gone == ()
    cluster.run(members.leave(context(), {}, "g", "p"))
    _, gone = cluster.run(groups.expire_groups(context(), {}, 0))
    assert gone == ("g",)


# -- idle groups ------------------------------------------------------------------------------------------------------


def test_a_group_of_dead_members_expires(cluster: Cluster) -> None:
    """The retention begins when the last session is over. A commit of a member is a sign of life."""
    process = started(cluster)
    cluster.run(join("p"))
    cluster.run(join("q", "static"))
    cluster.run(sync("p", [0]))
    process.do(process.commit_offsets({0: 3}, group="g", condition=condition(cluster, "p")))
    cluster.pass_ms(20_000)
    cluster.run(members.heartbeat(context(), {}, "g", "q"))
    cluster.pass_ms(SESSION_MS + 1_000)
    assert cluster.run(groups.expire_groups(context(), {}, 1_000))[1] == ()
    cluster.pass_ms(1)
    assert cluster.run(groups.expire_groups(context(), {}, 1_000))[1] == ("g",)
    assert cluster.run(groups.list_groups(context(), {}))[1] == ()
    cluster.run(join("r"))
    assert value(cluster).generation == 1
    assert owned(cluster) == {"r": [0, 1]}
    cluster.check()


def test_a_member_that_joins_before_the_group_expires_keeps_it(cluster: Cluster) -> None:
    process = started(cluster)
    cluster.run(join("p"))
    process.do(process.commit_offsets({0: 3}, group="g", condition=condition(cluster, "p")))
    cluster.pass_ms(SESSION_MS + 2_000)
    sweep = Task(cluster, groups.expire_groups(context(), {}, 1_000)).run(until=is_put(OFFSETS))
    cluster.run(join("q"))
    assert sweep.run().result[1] == ()
    assert owned(cluster) == {"q": [0, 1]}
    assert cluster.committed("g") == {0: 3}


def test_a_group_with_undecided_offsets_does_not_expire(cluster: Cluster) -> None:
    process = started(cluster)
    cluster.run(join("p"))
    process.do(process.send_offsets({0: 3}, group="g", condition=condition(cluster, "p")))
    cluster.pass_ms(SESSION_MS + 60_000)
    assert cluster.run(groups.expire_groups(context(), {}, 1_000))[1] == ()


# -- jobs that read without membership --------------------------------------------------------------------------------


def of_job(name: str = "the query", **expected: int | None) -> OffsetsCondition:
    return OffsetsCondition(job=name, expected={tp(int(each[1:])): offset for each, offset in expected.items()})


@pytest.mark.parametrize("transactional", [False, True])
def test_a_job_cannot_commit_for_a_group_of_members(cluster: Cluster, transactional: bool) -> None:
    process = started(cluster)
    send = process.send_offsets if transactional else process.commit_offsets
    cluster.run(join("p"))
    cluster.pass_ms(SESSION_MS)
    with pytest.raises(CommitFailedError, match=r"'g': the query may not commit .* member 'p' .*allow\.mixed\.groups"):
        process.do(send({0: 1}, condition=of_job(p0=None)))
    if transactional:
        process.do(process.abort())
    assert cluster.committed() == {}
    cluster.pass_ms(1)
    process.do(send({0: 1}, condition=of_job(p0=None)))
    if transactional:
        process.do(process.commit())
    assert cluster.committed() == {0: 1}, "the session of the member is over"


def test_a_member_that_joins_while_a_job_commits(cluster: Cluster) -> None:
    """The commit is judged at its own slot."""
    process = started(cluster)
    task = process.start(process.commit_offsets({0: 1}, condition=of_job())).run(until=is_put(OFFSETS))
    cluster.run(join("p"))
    task.run()
    with pytest.raises(CommitFailedError, match="the query may not commit"):
        _ = task.result


@pytest.mark.parametrize("pending", [False, True])
def test_a_member_cannot_join_the_group_of_a_job(cluster: Cluster, pending: bool) -> None:
    process = started(cluster)
    marked = {tp(0): OffsetValue(offset=1, metadata=f"{JOB_MARK}the query")}
    if pending:
        process.do(process.send_offsets({1: 1}))
        cluster.run(groups.send_offsets(context(), process.views, process.identity, "g", marked, of_job(p0=None)))
    else:
        cluster.run(groups.commit_offsets(context(), {}, "g", marked, of_job()))
    with pytest.raises(InvalidRequestError, match=r"'g': 'p' may not become a member, because the query has committed"):
        cluster.run(join("p"))
    assert "g" not in cluster.view(G).state.groups
    other = members.join(context(), {}, "g", joining("p"), COUNTS, beside_jobs=True)
    cluster.run(other)
    assert owned(cluster) == {"p": [0, 1]}


def test_a_member_may_join_after_an_operator_has_set_the_offsets(cluster: Cluster) -> None:
    marked = {tp(0): OffsetValue(offset=1, metadata=f"{JOB_MARK}the query")}
    cluster.run(groups.commit_offsets(context(), {}, "g", marked, of_job()))
    cluster.run(groups.commit_offsets(context(), {}, "h", marked, of_job()))
    cluster.run(group_admin.reset_offsets(context(), {}, "g", {tp(0): OffsetValue(offset=1)}))
    cluster.run(join("p"))
    assert owned(cluster) == {"p": [0, 1]}


# -- sealing ----------------------------------------------------------------------------------------------------------


def test_one_member_seals_a_segment_and_others_follow_later(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that dies before it seals leaves the segment to those who see many records after it."""
    monkeypatch.setattr("txlog.protocol.seal.LEFT_RECORDS", 4)
    monkeypatch.setattr("txlog.protocol.seal.LEFT_GROUP_RECORDS", 8)
    ctx = rolling(4)
    views: dict[str, Any] = {}
    for name in "pqr":
        views[name], _ = cluster.run(members.join(ctx, {}, "g", joining(name), COUNTS))

    def beat(name: str, *faults: Any) -> None:
        views[name], _ = cluster.run(members.look(ctx, views[name], "g"))
        views[name], _ = cluster.run(members.heartbeat(ctx, views[name], "g", name), *faults)

    def sealed() -> int:
        return sum(path.startswith(G.folder) and path.endswith(".index") for path in cluster.objects)

    beat("p")
    with pytest.raises(DiedError):
        beat("q", nth_put(2, "crash"))  # its record begins the second segment
    assert sealed() == 0
    for _ in range(3):
        beat("r")
    assert (sealed(), len(finished_segments(views["r"][G]))) == (0, 1)
    puts: list[str] = []

    def note(_: int, effect: Any) -> None:
        if isinstance(effect, PutIfAbsent):
            puts.append(effect.path.rpartition(".")[2])

    beat("r", note)
    assert (sealed(), puts) == (2, ["batch", "snapshot", "index", "snapshot", "index"]), (
        "its own record began the third"
    )
    for _ in range(3):
        beat("r", note)
    puts.clear()
    beat("p", note)
    assert finished_segments(views["p"][G]) == []
    assert puts == ["batch", "snapshot", "index"]
    assert sealed() == 3
    cluster.check()


def test_a_member_drops_what_others_have_sealed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlog.protocol.seal.LEFT_RECORDS", 4)
    monkeypatch.setattr("txlog.protocol.seal.LEFT_GROUP_RECORDS", 8)
    ctx = rolling(4)
    q, _ = cluster.run(members.join(ctx, {}, "g", joining("q"), COUNTS))
    p, _ = cluster.run(members.join(ctx, {}, "g", joining("p"), COUNTS))
    # After more records than MAX_SLOTS_BY_NAME, the look itself would drop what is sealed.
    for times in (8, 7):
        for _ in range(times):
            p, _ = cluster.run(members.heartbeat(ctx, p, "g", "p"))
        q, _ = cluster.run(members.look(ctx, q, "g"))
    assert len(finished_segments(q[G])) == 4
    asked: list[str] = []

    def note(_: int, effect: Any) -> None:
        if isinstance(effect, Get | PutIfAbsent):
            asked.append(effect.path.rpartition(".")[2])

    q, _ = cluster.run(members.heartbeat(ctx, q, "g", "q"), note)
    assert [kind for kind in asked if kind != "batch"] == ["index"], "one look at the newest of three"
    assert len(finished_segments(q[G])) == 1
    cluster.check()


# -- consumers outside the group -----------------------------------------------------------------------------------


def test_a_plain_commit_without_membership_needs_a_group_without_live_members(cluster: Cluster) -> None:
    process, outsider = started(cluster), started(cluster, "y")
    outsider.do(outsider.commit_offsets({0: 1}))
    cluster.run(join("p"))
    with pytest.raises(
        CommitFailedError, match=r"group 'g': a consumer that is no member may not commit, because member 'p'"
    ):
        outsider.do(outsider.commit_offsets({0: 2}))
    # In a transaction the epoch of the producer protects it, as in Kafka.
    process.do(process.send_offsets({0: 3}))
    process.do(process.commit())
    cluster.pass_ms(SESSION_MS + 1)
    outsider.do(outsider.commit_offsets({1: 4}))
    assert cluster.committed() == {0: 3, 1: 4}


def test_a_plain_commit_without_membership_is_judged_at_its_slot(cluster: Cluster) -> None:
    outsider = started(cluster)
    task = outsider.start(outsider.commit_offsets({0: 1})).run(until=is_put(OFFSETS))
    cluster.run(join("p"))
    with pytest.raises(CommitFailedError, match="no member"):
        _ = task.run().result
    assert cluster.committed() == {}


def test_an_operator_sets_offsets_beside_live_members_only_by_force(cluster: Cluster) -> None:
    cluster.run(join("p"))
    reset = {tp(0): OffsetValue(offset=1)}
    with pytest.raises(InvalidRequestError):
        cluster.run(group_admin.reset_offsets(context(), {}, "g", reset))
    cluster.run(group_admin.reset_offsets(context(), {}, "g", reset, force=True))
    assert cluster.committed() == {0: 1}


# -- zombies ----------------------------------------------------------------------------------------------------------


def test_offsets_that_are_pending_while_the_partition_moves(cluster: Cluster) -> None:
    """The new owner cannot pass them. It begins where the transaction ends."""
    process, other = started(cluster), started(cluster, "y")
    cluster.run(join("p"))
    p = condition(cluster, "p")
    process.do(process.send_offsets({0: 3}, condition=p))
    # The heartbeat of the offsets is 1 ms newer than that of the join, although the clock stood still.
    cluster.pass_ms(SESSION_MS + 2)
    cluster.run(join("q"))
    assert owned(cluster) == {"q": [0, 1]}
    with pytest.raises(UnstableOffsetCommitError):
        cluster.run(groups.fetch_offsets(context(), {}, "g", [tp(0)]))
    with pytest.raises(ConcurrentTransactionsError):
        other.do(other.commit_offsets({0: 1}, condition=condition(cluster, "q")))
    with pytest.raises(CommitFailedError, match="does not have this member"):
        process.do(process.send_offsets({0: 5}, condition=p))
    for commits in (True, False):
        copy = cluster.copy()
        zombie = Process(copy, "x")
        zombie.txn, zombie.pid, zombie.epoch = process.txn, process.pid, process.epoch
        zombie.do(zombie.commit() if commits else zombie.abort())
        _, found = copy.run(groups.fetch_offsets(context(), {}, "g", [tp(0)]))
        seen = found[tp(0)]
        assert (seen.offset if seen else None) == (3 if commits else None)
        copy.check()


@pytest.mark.parametrize("transaction", [False, True])
def test_a_member_does_not_commit_what_it_gave_up_also_if_nobody_owns_it_now(
    cluster: Cluster, transaction: bool
) -> None:
    """Another member may have read the rows, committed them and left."""
    process = started(cluster)
    cluster.run(join("p"))
    cluster.run(join("q"))
    cluster.run(sync("p", [0]))
    cluster.run(sync("q", []))
    assert owned(cluster) == {"p": [0], "q": [1]}
    p = condition(cluster, "p")
    process.do(process.commit_offsets({1: 3}, condition=condition(cluster, "q")))
    cluster.run(members.leave(context(), {}, "g", "q"))
    call = process.send_offsets if transaction else process.commit_offsets
    with pytest.raises(CommitFailedError, match="it gave up orders-1, or never had it"):
        process.do(call({1: 3}, condition=p))
    process.do(process.commit_offsets({0: 1}, condition=p))
    assert cluster.committed() == {0: 1, 1: 3}


@pytest.mark.parametrize("lands", ["before the join", "after the join"])
def test_a_commit_that_lands_after_its_process_died(cluster: Cluster, lands: str) -> None:
    """The commit and the join want one slot. The commit counts only if it was first."""
    cluster.run(join("p"))
    commit = groups.commit_offsets(
        context(), {}, "g", {tp(0): OffsetValue(offset=3), tp(1): OffsetValue(offset=3)}, condition(cluster, "p")
    )
    with pytest.raises(DiedError):
        cluster.run(commit, nth_put(1, "crash in flight"))
    cluster.pass_ms(SESSION_MS + 2)
    if lands == "before the join":
        cluster.land()
    cluster.run(join("q"))
    cluster.land()
    if lands == "before the join":
        # The commit is a heartbeat of the time at which it was made, so the session is over all the same.
        assert cluster.committed() == {0: 3, 1: 3}
    else:
        assert cluster.committed() == {}
    assert owned(cluster) == {"q": [0, 1]}
    cluster.check()


def test_the_bearer_before_cannot_commit_and_the_new_one_begins_at_its_offsets(cluster: Cluster) -> None:
    process = started(cluster)
    cluster.run(join("p", "one"))
    p = condition(cluster, "p")
    process.do(process.send_offsets({0: 3}, condition=p))
    cluster.run(join("q", "one"))
    q = condition(cluster, "q")
    assert (q.generation, owned(cluster)) == (p.generation, {"q": [0, 1]})
    for records in (3, 4):
        with pytest.raises(CommitFailedError, match=r"another process has its group\.instance\.id"):
            process.do(process.send_offsets({0: records}, condition=p))
    process.do(process.commit())
    process.do(process.commit_offsets({0: 5}, condition=q))
    assert cluster.committed() == {0: 5}
    cluster.run(members.leave(context(), {}, "g", "p"))
    cluster.run(sync("p", [0, 1]))
    cluster.run(members.heartbeat(context(), {}, "g", "p"))
    assert owned(cluster) == {"q": [0, 1]}


def test_a_clock_ahead_ends_sessions_once_and_never_gives_two_owners(cluster: Cluster) -> None:
    """A joining process whose clock is ahead removes live members. Its records keep the time of the partition ahead."""
    process = started(cluster)
    cluster.run(join("p"))
    p = condition(cluster, "p")
    cluster.now_ms += SESSION_MS + 1
    cluster.run(join("q"))
    cluster.now_ms -= SESSION_MS + 1
    with pytest.raises(CommitFailedError):
        process.do(process.commit_offsets({0: 1}, condition=p))
    cluster.run(join("r"))
    cluster.run(sync("q", [0]))
    cluster.run(sync("r", []))
    assert owned(cluster) == {"q": [0], "r": [1]}
    beats = {beat.member_id: beat.timestamp for beat in row(cluster).beats}
    assert beats["r"] == beats["q"] > cluster.now_ms, "the time of a partition does not go back"
    cluster.pass_ms(SESSION_MS)
    cluster.run(members.heartbeat(context(), {}, "g", "r"))
    assert {each.member_id for each in value(cluster).members} == {"q", "r"}, "a dead member stays longer"
