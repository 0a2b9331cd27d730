"""Scenarios of groups: offsets, generations and members; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls, member_calls
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant, nothing
from lab.explore.scene import TIMEOUT_MS, A, B, Scenario, Scene, Size, context
from txlog.core import groups as core_groups, members, snapshot_state, state
from txlog.core.append_rules import RollPolicy
from txlog.core.groups import check_commit
from txlog.core.names import TopicPartition
from txlog.core.records import Heartbeat
from txlog.errors import CommitFailedError
from txlog.protocol import groups, members as member_programs

# -- scenarios --------------------------------------------------------------------------------------------------------


def _offsets(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x", "y"), partitions=(A, B), exclusive=("range",))
    ready = {
        name: scene.before(
            name, scene.client(name), calls.init(), member_calls.fetch_offsets(), calls.stage(B, f"range by {name}")
        )
        for name in ("x", "y")
    }
    send = member_calls.send_offsets(None, expected=True)
    if size == "full":
        scene.actor("x", ready["x"], send, calls.commit())
    else:
        scene.actor("x", scene.before("x1", ready["x"], send), calls.commit())
    scene.actor("y", ready["y"], send, calls.commit())
    return scene


def _pending(size: Size) -> Scene:
    """An eager transaction with offsets dies; a plain commit and a fetch meet its pending offsets."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(ticks=(TIMEOUT_MS + 1,) if full else ()))
    owner = scene.before(
        "x", scene.client("x"), calls.init(), member_calls.fetch_offsets(), member_calls.send_offsets(3, expected=True)
    )
    scene.actor("x", owner, calls.commit())
    scene.actor("plain", scene.client(), member_calls.commit_offsets(7), member_calls.fetch_offsets())
    return scene


def _order(size: Size) -> Scene:
    """Two transactions with offsets of one group, neither with a condition: the later send counts."""
    full = size == "full"
    scene = Scene(transactional_ids=("x", "y"), budget=Budget(lost=2 if full else 0))
    one = scene.before("x", scene.client("x"), calls.init(), member_calls.send_offsets(1, expected=False))
    two = scene.before("y", scene.client("y"), calls.init(), member_calls.send_offsets(2, expected=False))
    scene.actor("x", one, calls.commit())
    scene.actor("y", two, calls.commit())
    return scene


def _internal(size: Size) -> Scene:
    """Internal topics are sealed in the middle of a transaction with offsets."""
    ctx = context(internal_roll=RollPolicy(batches=2 if size == "full" else 1))
    scene = Scene(ctx=ctx, transactional_ids=("x",), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("x", scene.client("x"), calls.init())
    scene.actor("owner", owner, member_calls.send_offsets(1, expected=True), calls.commit())
    scene.actor("plain", scene.client(), member_calls.commit_offsets(7))
    if size == "full":
        scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _generations(size: Size) -> Scene:
    """A second consumer joins a group while the first commits its offsets."""
    scene = Scene(budget=Budget(lost=2 if size == "full" else 1))
    one = scene.before("one", scene.client(), member_calls.join_group("one"))
    scene.actor("one", one, member_calls.commit_offsets(1))
    scene.actor("two", scene.client(), member_calls.join_group("two"), member_calls.commit_offsets(2))
    if size == "full":
        scene.actor("three", scene.client(), member_calls.join_group("three"))
    return scene


def _members(size: Size) -> Scene:
    """A second member joins while the first one commits and gives up half, plainly or in a transaction.

    A producer still has the membership of the first one as it was before.
    """
    full = size == "full"
    scene = Scene(transactional_ids=("x",) if full else (), budget=Budget(lost=1 if full else 0))
    one = scene.before(
        "one", scene.client("x" if full else ""), *([calls.init()] if full else []), member_calls.join_members("one")
    )
    commits = [member_calls.sync_member(), member_calls.commit_held(2, everything=True)]
    if full:
        commits = [member_calls.commit_held(1, transaction=True), member_calls.sync_member(), calls.commit()]
    scene.actor("one", one, *commits)
    scene.actor("producer", replace(one, txn=None), member_calls.commit_held(1))
    scene.actor(
        "two", scene.client(), member_calls.join_members("two"), member_calls.sync_member(), member_calls.commit_held(3)
    )
    return scene


def _outsider(size: Size) -> Scene:
    """A consumer outside the group commits plainly while a member joins, commits and leaves."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(member_calls.SESSION_MS + 1,) if full else ()))
    scene.actor(
        "one",
        scene.client(),
        member_calls.join_members("one"),
        member_calls.commit_held(1),
        member_calls.leave_members(),
    )
    scene.actor("outsider", scene.client(), member_calls.commit_offsets(7, outsider=True))
    return scene


def _member_sleeps(size: Size) -> Scene:
    """A member sleeps past its session, between any two requests of its commit, while another member goes on."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(member_calls.SESSION_MS + 1,)))
    one = scene.before("one", scene.client(), member_calls.join_members("one"))
    two = scene.before("two", scene.client(), member_calls.join_members("two"))
    one = scene.before("one again", one, member_calls.sync_member())
    scene.actor(
        "one",
        one,
        member_calls.commit_held(1),
        member_calls.beat_member(),
        *([member_calls.commit_held(2)] if full else []),
    )
    scene.actor("two", two, member_calls.beat_member(), member_calls.sync_member(), member_calls.commit_held(3))
    return scene


def _two_leaders(size: Size) -> Scene:
    """A member has died, and the two others make the next generation at once, beside a third that joins."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0), past_ms=member_calls.SESSION_MS + 1)
    scene.before("dead", scene.client(), member_calls.join_members("dead"))
    scene.past_ms = 0
    one = scene.client()
    scene.actor("one", one, member_calls.join_members("one"), member_calls.sync_member(), member_calls.commit_held(1))
    scene.actor(
        "two", scene.client(), member_calls.join_members("two"), member_calls.sync_member(), member_calls.commit_held(2)
    )
    if full:
        scene.actor("three", scene.client(), member_calls.join_members("three"))
    return scene


def _revoked(size: Size) -> Scene:
    """A member dies between giving up a partition and its record, or leaves; another one waits for the partition."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(member_calls.SESSION_MS + 1,) if full else ()))
    one = scene.before("one", scene.client(), member_calls.join_members("one"))
    two = scene.before("two", scene.client(), member_calls.join_members("two"))
    scene.actor("one", one, member_calls.sync_member(), member_calls.commit_held(1), member_calls.leave_members())
    scene.actor("two", two, member_calls.sync_member(), member_calls.sync_member(), member_calls.commit_held(2))
    return scene


def _static_member(size: Size) -> Scene:
    """A consumer joins with the `group.instance.id` of a member that still commits."""
    scene = Scene(budget=Budget(lost=1 if size == "full" else 0))
    one = scene.before("one", scene.client(), member_calls.join_members("one", "first"))
    two = scene.before("two", scene.client(), member_calls.join_members("two", "second"))
    one = scene.before("one again", one, member_calls.sync_member())
    scene.actor("one", one, member_calls.commit_held(1), member_calls.beat_member(), member_calls.commit_held(2))
    scene.actor("two", two, member_calls.sync_member(), member_calls.commit_held(3))
    scene.actor("heir", scene.client(), member_calls.join_members("heir", "first"), member_calls.commit_held(4))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="offsets", what="two jobs process the same range, and both try to commit it", rules=(12,), build=_offsets),
        Scenario(name="pending", what="a plain commit and a fetch meet offsets of an undecided transaction", rules=(12,), build=_pending),
        Scenario(name="generations", what="a consumer joins a group while another commits", rules=(12,), build=_generations),
        Scenario(name="members", what="a member joins a group while another commits and gives up half", rules=(12,), build=_members),
        Scenario(name="member sleeps", what="a member sleeps past its session during a commit", rules=(12,), build=_member_sleeps),
        Scenario(name="outsider", what="a consumer that is no member commits beside a member", rules=(12,), build=_outsider),
        Scenario(name="two leaders", what="two members make the next generation without a dead one", rules=(12,), build=_two_leaders),
        Scenario(name="revoked", what="a member dies between a revocation and its record, or leaves", rules=(12,), build=_revoked),
        Scenario(name="static member", what="a consumer takes over the instance of a member that still commits", rules=(12,), build=_static_member),
        Scenario(name="order", what="two transactions send offsets of one group, and end in any order", rules=(12,), build=_order),
        Scenario(name="internal", what="internal topics are sealed while offsets are pending", rules=(12, 13), build=_internal),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------

SCRIPT = "lab.explore.member_calls."

CHECK_MEMBER, CHECK_GENERATION = members.check_member, core_groups._check_generation

JUDGE_HEARTBEAT, JUDGE_SYNC, REGENERATE = members.judge_heartbeat, members.judge_sync, members._regenerate

CHANGE = member_programs._change
"""What the replacements below call: the shipped functions."""


def _commit_of_any_generation(state: Any, group: str, member_id: str, _: int, *rest: Any, **more: Any) -> Any:
    member = members.find_member(state.groups[group].entry.value, member_id)
    return None if member is None else CHECK_MEMBER(state, group, member_id, member.generation, *rest, **more)


def _commit_for_any_partition(state: Any, group: str, condition: Any, _: Any, now_ms: int) -> Any:
    return CHECK_GENERATION(state, group, condition, (), now_ms)


def _commit_of_nobodys(
    state: Any, group: str, member_id: str, generation: int, tps: Any, *rest: Any, **more: Any
) -> Any:
    others = members.owned_by_others(state.groups[group].entry.value, member_id)
    return CHECK_MEMBER(state, group, member_id, generation, others.intersection(tps), *rest, **more)


def _commit_of_the_dead(
    state: Any, group: str, member_id: str, generation: int, tps: Any, now_ms: int, **_: Any
) -> Any:
    return CHECK_MEMBER(state, group, member_id, generation, tps, now_ms, alive=True)


def _beat_of_the_dead(row: Any, *, group: str, member_id: str, now_ms: int, **_: Any) -> Any:
    return JUDGE_HEARTBEAT(row, group=group, member_id=member_id, now_ms=now_ms, alive=True)


def _sync_of_the_dead(row: Any, *, member_id: str, now_ms: int, **more: Any) -> Any:
    if row is not None:
        mine = Heartbeat(member_id=member_id, timestamp=now_ms)
        row = msgspec.structs.replace(
            row, beats=tuple(mine if each.member_id == member_id else each for each in row.beats)
        )
    return JUDGE_SYNC(row, member_id=member_id, now_ms=now_ms, **more)


def _grant_at_once(value: Any, member_id: str, still: Any) -> Any:
    taken = frozenset(still) | members.partitions_of(members.find_member(value, member_id).assigned)  # type: ignore[union-attr]
    return msgspec.structs.replace(
        value,
        members=tuple(
            msgspec.structs.replace(each, generation=value.generation, owned=members.numbers_of(taken))
            if each.member_id == member_id
            else msgspec.structs.replace(each, owned=members.numbers_of(members.partitions_of(each.owned) - taken))
            for each in value.members
        ),
    )


def _regenerate_at_once(*given: Any) -> Any:
    value = REGENERATE(*given)
    return msgspec.structs.replace(
        value,
        members=tuple(
            msgspec.structs.replace(
                each, owned=members.numbers_of(members.partitions_of(each.owned) & members.partitions_of(each.assigned))
            )
            for each in value.members
        ),
    )


def _regenerate_in_place(value: Any, *given: Any) -> Any:
    after = REGENERATE(value, *given)
    return msgspec.structs.replace(after, generation=max(value.generation, 1))


def _is_over_soon(row: Any, member: Any, now_ms: int, quiet: Any = None) -> bool:
    return now_ms >= 0


def _apply_without_beats(self: Any, row: Any) -> None:
    self.groups.pop(row.entry.group, None)
    if row.entry.value is not None:
        self.groups[row.entry.group] = row


def _change_judged_once(ctx: Any, views: Any, group: str, judge: Any, *check: Any) -> Any:
    judged: list[Any] = []

    def once(row: Any, now_ms: int) -> Any:
        judged.append(judge(row, now_ms=now_ms))
        return judged[0]

    return (yield from CHANGE(ctx, views, group, once, *check))


def _committed_alone(folded: Any, entries: Any, **kwargs: Any) -> Any:
    return check_commit(replace(folded, pending={}), entries, **kwargs)


def _plain_commits_are_free(folded: Any, entries: Any, **kwargs: Any) -> Any:
    return None if kwargs["producer_id"] is None else check_commit(folded, entries, **kwargs)


def _staged_condition(offset: int | None, *, expected: bool, group: str = "g", staged: bool = False) -> Any:
    """Checks a condition only when the offsets are sent. They are staged, and the commit does not check them again."""

    def call(client: calls.Client) -> Any:
        tp = TopicPartition("orders", 0)
        _, found = yield from groups.fetch_offsets(client.ctx, client.views, group, [tp])
        held = found[tp]
        if (held.offset if held is not None else None) != client.started:
            return (yield from calls.failed(client, CommitFailedError("another job took this range")))
        return (yield from _ORIGINAL_SEND_OFFSETS(offset, expected=False, group=group, staged=True)(client))

    return call


_ORIGINAL_SEND_OFFSETS = member_calls.send_offsets


def _the_last_commit_wins(self: Any, row: Any) -> None:
    if row.entry.value is None:
        self.committed.pop(row.entry.key, None)
    else:
        self.committed[row.entry.key] = row


def _offsets_at_once(self: Any, record: Any, pending_of: int | None) -> None:
    _ORIGINAL_ENTRIES(self, record, None)


_ORIGINAL_ENTRIES = state._Fold._apply_entries


def _without_pending(folded: Any) -> Any:
    return msgspec.structs.replace(snapshot_state.to_snapshot(folded), pending=())


def _condition_unchecked(folded: Any, entries: Any, **kwargs: Any) -> Any:
    wrong = check_commit(folded, entries, **kwargs)
    return None if isinstance(wrong, CommitFailedError) else wrong


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("conditions look at committed offsets alone", "offsets", "W34", {CORE + "groups.check_commit": _committed_alone}),
        ("the starting offset is not compared", "offsets", "W34", {CORE + "groups.check_commit": _condition_unchecked}),
        ("conditional offsets are staged", "offsets", "W34", {SCRIPT + "send_offsets": _staged_condition}),
        ("a plain commit overtakes conditional offsets", "pending", "W35", {CORE + "groups.check_commit": _plain_commits_are_free}),
        ("offsets follow the order of commits", "order", "invariant 12", {CORE + "state._Fold._commit_offset": _the_last_commit_wins}),
        ("offsets do not wait for their transaction", "pending", "W34", {CORE + "state._Fold._apply_entries": _offsets_at_once}),
        ("generations are not compared", "generations", "W34, W36", {CORE + "groups._check_generation": nothing}),
        ("the generation of a member is not compared", "members", "W55", {CORE + "groups.check_member": _commit_of_any_generation}),
        ("any member commits for any partition", "members", "W55", {CORE + "groups._check_generation": _commit_for_any_partition}),
        ("a member commits what nobody owns", "members", "W55", {CORE + "groups.check_member": _commit_of_nobodys}),
        ("a consumer commits beside members", "outsider", "W55", {CORE + "groups._check_empty": nothing}),
        ("a commit does not look at the session", "member sleeps", "W54", {CORE + "groups.check_member": _commit_of_the_dead}),
        ("a heartbeat wakes the dead", "member sleeps", "W54", {CORE + "members.judge_heartbeat": _beat_of_the_dead}),
        ("a sync wakes the dead", "member sleeps", "W54", {CORE + "members.judge_sync": _sync_of_the_dead}),
        ("a member takes what another one still owns", "members", "W52", {CORE + "members._grant": _grant_at_once}),
        ("a join takes from the others what is not assigned to them", "members", "W52", {CORE + "members._regenerate": _regenerate_at_once}),
        ("live members are removed", "members", "W53", {CORE + "members.is_over": _is_over_soon}),
        ("a group entry forgets heartbeats", "two leaders", "W53", {CORE + "state._Fold._apply_group": _apply_without_beats}),
        ("a change of the members is judged once", "two leaders", "W51", {HERE + "members._change": _change_judged_once}),
        ("a join keeps the generation", "members", "W51", {CORE + "members._regenerate": _regenerate_in_place}),
        ("the bearer before stays a member", "static member", "W51", {CORE + "members._is_bearer": lambda member, joining: False}),
        ("a snapshot lacks pending offsets", "internal", "W38", {HERE + "seal.to_snapshot": _without_pending}),
    )
)  # fmt: skip
