"""Which partitions does each member of a group get? Pure functions with the results of Kafka's assignors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember

Assignment: TypeAlias = dict[str, tuple[TopicPartition, ...]]
"""Partitions by member id; every member has an item."""


def assign_range(members: Iterable[GroupMember], partitions: Mapping[str, int]) -> Assignment:
    """Assign as Kafka's RangeAssignor: neighbouring partitions of each topic. The first members get one more."""
    ordered = sorted(members, key=_order)
    given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    for topic in sorted(partitions):
        readers = [member for member in ordered if topic in member.topics]
        if not readers:
            continue
        share, more = divmod(partitions[topic], len(readers))
        start = 0
        for number, member in enumerate(readers):
            end = start + share + (number < more)
            given[member.member_id] += [TopicPartition(topic, each) for each in range(start, end)]
            start = end
    return {member_id: tuple(tps) for member_id, tps in given.items()}


def assign_round_robin(members: Iterable[GroupMember], partitions: Mapping[str, int]) -> Assignment:
    """Return Kafka's RoundRobinAssignor: partitions in order, each to the next member that subscribes to its topic."""
    ordered = sorted(members, key=_order)
    given: dict[str, list[TopicPartition]] = {member.member_id: [] for member in ordered}
    turn = 0
    for topic in sorted(partitions):
        if not any(topic in member.topics for member in ordered):
            continue
        for number in range(partitions[topic]):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            given[ordered[turn % len(ordered)].member_id].append(TopicPartition(topic, number))
            turn += 1
    return {member_id: tuple(tps) for member_id, tps in given.items()}


def assign_sticky(members: Iterable[GroupMember], partitions: Mapping[str, int]) -> Assignment:
    """Return Kafka's sticky assignments: shares that differ by one at most, and few partitions that move.

    What the generation before gave to a member is its `assigned`. Kafka's result depends on the order of a hash table
    where several members may keep one partition more. Here the members have their order by id. If the subscriptions
    differ, the shares are as even as the subscriptions allow.
    """
    readers = sorted(members, key=lambda member: member.member_id)
    known = {topic: count for topic, count in partitions.items() if any(topic in each.topics for each in readers)}
    if len({frozenset(each.topics) for each in readers}) == 1:
        return _assign_alike(readers, known)
    return _assign_unlike(readers, known)


def _order(member: GroupMember) -> tuple[bool, str]:
    """Return the sort key: static members by instance id come first, then dynamic members by member id."""
    return (not member.instance_id, member.instance_id or member.member_id)


def _assign_alike(members: list[GroupMember], partitions: Mapping[str, int]) -> Assignment:
    """Assign to members with the same subscription: each gets the quota, and the first ones get one more."""
    every = [TopicPartition(topic, number) for topic in sorted(partitions) for number in range(partitions[topic])]
    quota, more = divmod(len(every), len(members))
    given: dict[str, list[TopicPartition]] = {}
    low, full = [], []
    for member in members:
        held = sorted(member.assigned_partitions.intersection(every), key=lambda tp: (tp.partition, tp.topic))
        limit = quota + (len(held) > quota and more > 0)
        more -= limit > quota
        given[member.member_id] = held[:limit]
        if len(held) < quota:
            low.append(member.member_id)
        elif limit == quota:
            full.append(member.member_id)
    taken = {tp for tps in given.values() for tp in tps}
    turn = 0
    for tp in every:
        if tp in taken:
            continue
        if low:
            turn %= len(low)
            name = low[turn]
            turn += 1
            given[name].append(tp)
            if len(given[name]) == quota:
                turn -= 1
                low.remove(name)
                full.append(name)
        else:
            given[full.pop(0)].append(tp)
    return {member_id: tuple(tps) for member_id, tps in given.items()}


def _assign_unlike(members: list[GroupMember], partitions: Mapping[str, int]) -> Assignment:
    """Assign to members with different subscriptions. Move a partition only if that makes two shares more even."""
    readers = {topic: [each.member_id for each in members if topic in each.topics] for topic in partitions}
    every = sorted(
        (TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)),
        key=lambda tp: (len(readers[tp.topic]), tp),
    )
    given: dict[str, set[TopicPartition]] = {
        each.member_id: {tp for tp in each.assigned_partitions.intersection(every) if tp.topic in each.topics}
        for each in members
    }
    owner = {tp: member_id for member_id, tps in given.items() for tp in tps}

    def least(tp: TopicPartition) -> str:
        return min(readers[tp.topic], key=lambda member_id: (len(given[member_id]), member_id))

    for tp in every:
        if tp not in owner:
            owner[tp] = least(tp)
            given[owner[tp]].add(tp)
    moved = True
    while moved:
        moved = False
        for tp in every:
            to = least(tp)
            if len(given[to]) + 1 < len(given[owner[tp]]):
                given[owner[tp]].remove(tp)
                given[to].add(tp)
                owner[tp], moved = to, True
    return {member_id: tuple(sorted(tps)) for member_id, tps in given.items()}


ASSIGNORS: Mapping[str, Callable[[Iterable[GroupMember], Mapping[str, int]], Assignment]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_sticky,
}
"""The assignors by their names in `partition.assignment.strategy`.

In Kafka the two sticky ones give the same shares, and differ in how partitions move. Here they move in one way."""
