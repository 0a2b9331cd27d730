"""Which partitions does each member of a group get? Pure functions with the results of Kafka's assignors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from txlog.core.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """What an assignor knows of a member."""

    member_id: str
    instance_id: str = ""
    """`group.instance.id`; empty for a dynamic member."""
    topics: tuple[str, ...]

    @property
    def order(self) -> tuple[bool, str]:
        """Return the sort key: static members by instance id come first, then dynamic members by member id."""
        return (not self.instance_id, self.instance_id or self.member_id)


Assignment: TypeAlias = dict[str, tuple[TopicPartition, ...]]
"""Partitions by member id; every member has an item."""


def assign_range(members: Iterable[Subscriber], partitions: Mapping[str, int]) -> Assignment:
    """Return Kafka's RangeAssignor: of each topic, neighbouring partitions; the first members get one more."""
    ordered = sorted(members, key=lambda member: member.order)
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


def assign_round_robin(members: Iterable[Subscriber], partitions: Mapping[str, int]) -> Assignment:
    """Return Kafka's RoundRobinAssignor: all partitions in order, each to the next member that subscribes to its topic."""
    ordered = sorted(members, key=lambda member: member.order)
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
