"""How do the members of a group share its partitions (W51, W52, W53, W54, W55)? Pure functions on the fold.

A change of the members makes the next generation, which assigns all partitions again. A member takes part in it by a
record that names what it still holds, and gets those assigned partitions that no other member owns. So each
partition has one owner at most, whatever the members know of each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

import msgspec

from txlog.core.assignors import ASSIGNORS
from txlog.core.names import TopicPartition
from txlog.core.records import Entry, GroupEntry, GroupMember, GroupRow, GroupValue, HeartbeatEntry, Numbers
from txlog.core.state import PartitionState
from txlog.errors import CommitFailedError, InvalidRequestError

Quiet: TypeAlias = Mapping[str, int]
"""Members that a process has found silent for their session, each with the `timestamp` of its last heartbeat (W53)."""
STOPPED = -2
"""In a `Quiet`: the process was this member itself, and has stopped."""


def find_member(value: GroupValue | None, member_id: str) -> GroupMember | None:
    """Return the member with this id; None if the group does not have it."""
    if value is None:
        return None
    return next((member for member in value.members if member.member_id == member_id), None)


def partitions_of(numbers: Numbers) -> frozenset[TopicPartition]:
    """Return the partitions that a stored field names."""
    return frozenset(TopicPartition(topic, number) for topic, found in numbers.items() for number in found)


def numbers_of(partitions: Iterable[TopicPartition]) -> Numbers:
    """Return the stored form of partitions."""
    found: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        found.setdefault(tp.topic, []).append(tp.partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def owned_by_others(value: GroupValue, member_id: str) -> frozenset[TopicPartition]:
    """Return what the other members own."""
    return frozenset().union(*(partitions_of(each.owned) for each in value.members if each.member_id != member_id))


def is_over(row: GroupRow, member: GroupMember, now_ms: int, quiet: Quiet | None = None) -> bool:
    """Return whether the member's session is over at this time, which is that of a record (W53).

    With `quiet`, times of two clocks end no session, however far they are apart: one of them may have been set.
    Without it they are compared: this is for a process that does not remove members.
    """
    beat_ms = beat_of(row, member.member_id)
    if quiet is None:
        return now_ms - max(beat_ms, 0) > member.session_timeout_ms
    return quiet.get(member.member_id) in (beat_ms, STOPPED)


def beat_of(row: GroupRow, member_id: str) -> int:
    """Return the `timestamp` of the member's last heartbeat; -1 if there is none.

    Each heartbeat has a higher one (W54).
    """
    return next((beat.timestamp for beat in row.beats if beat.member_id == member_id), -1)


def find_living(row: GroupRow | None, now_ms: int) -> GroupMember | None:
    """Return a member whose session is not over; None if the group has none."""
    value = _value(row)
    return next((each for each in value.members if row is not None and not is_over(row, each, now_ms)), None)


def needs_change(
    row: GroupRow, partitions: Mapping[str, int], member_id: str = "", quiet: Quiet | None = None, now_ms: int = 0
) -> bool:
    """Return whether the group needs a new generation: a session is over, or a topic has more partitions (W53).

    The member `member_id` asks, and knows by its own clocks that it lives. `now_ms` counts only without `quiet`.
    """
    value = row.entry.value
    return value is not None and (
        any(is_over(row, each, now_ms, quiet) for each in value.members if each.member_id != member_id)
        or needs_more(value, partitions)
    )


def needs_sync(value: GroupValue, member: GroupMember, held: Collection[TopicPartition]) -> bool:
    """Return whether a member that holds `held` must write what it holds, or may get more (W52)."""
    assigned, owned = partitions_of(member.assigned), partitions_of(member.owned)
    return (
        member.generation < value.generation
        or not owned.issubset(held)
        or not (assigned - owned).issubset(owned_by_others(value, member.member_id))
    )


def judge_join(
    row: GroupRow | None,
    *,
    group: str,
    joining: GroupMember,
    partitions: Mapping[str, int],
    now_ms: int,
    quiet: Quiet | None = None,
) -> tuple[Entry, ...] | InvalidRequestError:
    """Return the entries with which a member joins (W51).

    A member with the same `instance_id` is replaced. If its subscription is the same, the new bearer takes over its
    partitions in the same generation.
    """
    value = _value(row)
    before = next((each for each in value.members if _is_bearer(each, joining)), None)
    others = [each for each in value.members if each is not before]
    living = [each for each in others if row is not None and not is_over(row, each, now_ms, quiet)]
    if before is not None and living == others and _is_same(before, joining) and not needs_more(value, partitions):
        heir = msgspec.structs.replace(
            joining, generation=before.generation, assigned=before.assigned, owned=before.owned
        )
        members = sorted([*others, heir], key=lambda each: each.member_id)
        after = msgspec.structs.replace(value, members=tuple(members), updated_at=now_ms)
        return _entries(group, after, joining.member_id)
    if before is not None:
        joining = msgspec.structs.replace(joining, assigned=before.assigned)
    assignor = choose_assignor([*living, joining])
    if assignor is None:
        names = sorted({name for each in living for name in each.assignors})
        return InvalidRequestError(
            f"group {group!r}: member {joining.member_id!r} has the assignors {', '.join(joining.assignors)}, and the "
            f"other members have {', '.join(names)}; one assignor must be common to all. "
            "hint: set partition.assignment.strategy"
        )
    after = _regenerate(value, [*living, joining], partitions, now_ms)
    return _entries(group, _grant(after, joining.member_id, ()), joining.member_id)


def judge_sync(
    row: GroupRow | None,
    *,
    group: str,
    member_id: str,
    held: Collection[TopicPartition],
    partitions: Mapping[str, int],
    now_ms: int,
    quiet: Quiet | None = None,
    topics: tuple[str, ...] = (),
) -> tuple[Entry, ...] | None:
    """Return the entries with which a member takes part in the group's generation; None if there is nothing to write.

    `held` is what the member still reads. The record takes everything else from it, and gives to it what is assigned to
    it and free. If a session is over, or a topic has more partitions, the record also makes a new generation. With
    `topics` it does so, too, and the member subscribes to these from now on. With `quiet` the member knows by its own
    clocks that it lives itself.
    """
    value = _value(row)
    member = find_member(value, member_id)
    if row is None or member is None or (quiet is None and is_over(row, member, now_ms)):
        return None
    after = value
    if topics or needs_change(row, partitions, member_id, quiet, now_ms):
        others = [each for each in value.members if each is not member and not is_over(row, each, now_ms, quiet)]
        own = msgspec.structs.replace(member, topics=topics or member.topics)
        after = _regenerate(value, [*others, own], partitions, now_ms)
    elif not needs_sync(value, member, held):
        return None
    still = partitions_of(member.owned).intersection(held)
    return _entries(group, _grant(after, member_id, still), member_id)


def judge_leave(
    row: GroupRow | None, *, group: str, member_id: str, now_ms: int, quiet: Quiet | None = None
) -> tuple[Entry, ...] | None:
    """Return the entries with which a member leaves; None if it is not a member. The last one leaves the generation.

    The sessions of members in `quiet` end with it (W53).
    """
    value = _value(row)
    if row is None or find_member(value, member_id) is None:
        return None
    others = [each for each in value.members if each.member_id != member_id]
    living = [each for each in others if not is_over(row, each, now_ms, quiet or {})]
    after = _regenerate(value, living, {}, now_ms)
    return (GroupEntry(group=group, value=after),)


def without(value: GroupValue, members: Collection[GroupMember], now_ms: int) -> GroupValue:
    """Return the next generation without members that an operator removes (W53). Others get their share."""
    return _regenerate(value, [each for each in value.members if each not in members], {}, now_ms)


def judge_heartbeat(
    row: GroupRow | None, *, group: str, member_id: str, now_ms: int, alive: bool = False
) -> tuple[Entry, ...] | None:
    """Return the entry that shows that a member lives; None if it was removed, or its session is over (W54).

    `alive`: the member knows by its own clocks that its session is not over.
    """
    member = find_member(_value(row), member_id)
    if row is None or member is None or (not alive and is_over(row, member, now_ms)):
        return None
    return (HeartbeatEntry(group=group, member_id=member_id),)


def check_member(
    state: PartitionState,
    group: str,
    member_id: str,
    generation: int,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    *,
    alive: bool = False,
) -> CommitFailedError | None:
    """Return None if a member may commit offsets of these partitions, otherwise the error (W55).

    It must own those whose topics the group shares: another member may have read them and left since. `alive`: the
    member knows by its own clocks that its session is not over.
    """
    row = state.groups.get(group)
    value = _value(row)
    member = find_member(value, member_id)
    if row is None or member is None:
        why = (
            "the group does not have this member: it left, or its session was over, or another process "
            "has its group.instance.id"
        )
    elif member.generation != generation:
        why = f"the member is in generation {member.generation} by now"
    elif not alive and is_over(row, member, now_ms):
        why = f"it has shown no sign of life for its session.timeout.ms of {member.session_timeout_ms}"
    else:
        lacking = sorted({tp for tp in partitions if tp.topic in value.partitions} - partitions_of(member.owned))
        if not lacking:
            return None
        other = lacking[0] in owned_by_others(value, member_id)
        why = f"another member reads {lacking[0]}" if other else f"it gave up {lacking[0]}, or never had it"
    return CommitFailedError(
        f"group {group!r}: member {member_id!r} of generation {generation} may not commit: {why}. "
        "hint: abort the transaction if one is open; the next poll() joins the group again and goes on "
        "at the committed offsets"
    )


def choose_assignor(members: Collection[GroupMember]) -> str | None:
    """Return the assignor that most members name first among those that all members name; None if there is none."""
    common = frozenset(ASSIGNORS).intersection(*(member.assignors for member in members))
    votes = [next(name for name in member.assignors if name in common) for member in members] if common else []
    return min(common, key=lambda name: (-votes.count(name), name), default=None)


def needs_more(value: GroupValue, partitions: Mapping[str, int]) -> bool:
    """Return whether a topic has more partitions than the assignment knows."""
    return any(value.partitions.get(topic, 0) < count for topic, count in partitions.items())


def _value(row: GroupRow | None) -> GroupValue:
    value = row.entry.value if row is not None else None
    return value if value is not None else GroupValue(generation=0, member_id="")


def _is_bearer(member: GroupMember, joining: GroupMember) -> bool:
    """Return whether a join replaces this member. A join whose outcome was unknown is repeated with the same id."""
    if joining.instance_id:
        return member.instance_id == joining.instance_id
    return member.member_id == joining.member_id


def _is_same(before: GroupMember, joining: GroupMember) -> bool:
    return (set(before.topics), before.assignors) == (set(joining.topics), joining.assignors)


def _regenerate(
    value: GroupValue, members: Collection[GroupMember], partitions: Mapping[str, int], now_ms: int
) -> GroupValue:
    """Return the next generation, with these members. What they own and have seen stays.

    A group without members keeps its generation.
    """
    if not members:
        return GroupValue(generation=value.generation, member_id="", updated_at=now_ms)
    topics = {topic for member in members for topic in member.topics}
    counts = {
        topic: max(value.partitions.get(topic, 0), partitions.get(topic, 0))
        for topic in sorted(topics)
        if topic in value.partitions or topic in partitions
    }
    assignor = choose_assignor(members)
    assert assignor is not None, "a member without a common assignor does not join"
    given = ASSIGNORS[assignor](members, counts)
    return GroupValue(
        generation=value.generation + 1,
        member_id="",
        updated_at=now_ms,
        assignor=assignor,
        partitions=counts,
        members=tuple(
            msgspec.structs.replace(each, assigned=numbers_of(given[each.member_id]))
            for each in sorted(members, key=lambda each: each.member_id)
        ),
    )


def _grant(value: GroupValue, member_id: str, still: Collection[TopicPartition]) -> GroupValue:
    """Return the group after a member has seen its generation, and owns `still` and what is free of its share."""
    others = owned_by_others(value, member_id)
    return msgspec.structs.replace(
        value,
        members=tuple(
            msgspec.structs.replace(
                each,
                generation=value.generation,
                owned=numbers_of(frozenset(still) | (partitions_of(each.assigned) - others)),
            )
            if each.member_id == member_id
            else each
            for each in value.members
        ),
    )


def _entries(group: str, value: GroupValue, member_id: str) -> tuple[Entry, ...]:
    return GroupEntry(group=group, value=value), HeartbeatEntry(group=group, member_id=member_id)
