"""Assignments of partitions to members, with the results of Kafka's assignors."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from txlog.config.table import ASSIGNOR_NAMES
from txlog.core.assignors import (
    ASSIGNORS,
    Assignment,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from txlog.core.members import numbers_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember


def member(name: str, *topics: str, instance: str = "", owned: str = "") -> GroupMember:
    held = (TopicPartition(each[:-1], int(each[-1])) for each in owned.split())
    return GroupMember(
        member_id=name,
        instance_id=instance,
        topics=topics,
        assignors=(),
        session_timeout_ms=0,
        generation=0,
        assigned=numbers_of(held),
    )


def shown(found: Assignment) -> dict[str, str]:
    return {name: " ".join(f"{tp.topic}{tp.partition}" for tp in tps) for name, tps in found.items()}


def test_range_gives_the_first_members_one_more_of_each_topic() -> None:
    both = [member("b", "s", "t"), member("a", "s", "t")]
    assert shown(assign_range(both, {"s": 3, "t": 3})) == {"a": "s0 s1 t0 t1", "b": "s2 t2"}
    assert shown(assign_range(both, {"s": 1})) == {"a": "s0", "b": ""}


def test_round_robin_goes_on_with_the_next_member_at_the_next_topic() -> None:
    both = [member("b", "s", "t"), member("a", "s", "t")]
    assert shown(assign_round_robin(both, {"s": 3, "t": 3})) == {"a": "s0 s2 t1", "b": "s1 t0 t2"}


def test_round_robin_skips_members_without_the_topic() -> None:
    three = [member("a", "r"), member("b", "r", "s"), member("c", "r", "s", "t")]
    found = assign_round_robin(three, {"r": 1, "s": 2, "t": 3})
    assert shown(found) == {"a": "r0", "b": "s0", "c": "s1 t0 t1 t2"}


def test_static_members_come_first_in_the_order_of_their_instances() -> None:
    three = [member("a", "t"), member("z", "t", instance="1"), member("b", "t", instance="2")]
    assert shown(assign_range(three, {"t": 3})) == {"z": "t0", "b": "t1", "a": "t2"}


def test_a_topic_without_a_subscriber_is_given_to_no_member() -> None:
    for assign in (assign_range, assign_round_robin):
        assert assign([member("a", "t")], {"s": 2}) == {"a": ()}
        assert assign([], {"s": 2}) == {}


def sticky(partitions: dict[str, int], **owned: str) -> dict[str, str]:
    members = [member(name, *partitions, owned=held) for name, held in owned.items()]
    return {name: " ".join(sorted(held.split())) for name, held in shown(assign_sticky(members, partitions)).items()}


@pytest.mark.parametrize(
    ("partitions", "owned", "expected"),
    [
        # The cases of Kafka's AbstractStickyAssignorTest, by its names for topics (s, t: topic1, topic2).
        ({"t": 3}, {"a": ""}, {"a": "t0 t1 t2"}),
        ({"t": 2}, {"a": "t0 t1 u0 u1"}, {"a": "t0 t1"}),
        ({"s": 1, "t": 2}, {"a": ""}, {"a": "s0 t0 t1"}),
        ({"t": 2}, {"a": "", "b": ""}, {"a": "t0", "b": "t1"}),
        ({"t": 1}, {"a": "", "b": ""}, {"a": "t0", "b": ""}),
        ({"s": 3, "t": 3}, {"a": "", "b": ""}, {"a": "s0 s2 t1", "b": "s1 t0 t2"}),
        ({"s": 2, "t": 3}, {"a": "s0 t1", "b": "s1 t2"}, {"a": "s0 t0 t1", "b": "s1 t2"}),
        ({"s": 2, "t": 3}, {"a": "s0", "b": "s1", "c": ""}, {"a": "s0 t1", "b": "s1 t2", "c": "t0"}),
        ({"t": 3}, {"a": "t0 t1 t2", "b": ""}, {"a": "t0 t1", "b": "t2"}),
        ({"t": 3}, {"b": "t2"}, {"b": "t0 t1 t2"}),
        ({"s": 3, "t": 4}, {"a": "", "b": ""}, {"a": "s0 s2 t1 t3", "b": "s1 t0 t2"}),
        (
            {"s": 3, "t": 4},
            {"a": "s0 s2 t1 t3", "b": "s1 t0 t2", "c": "", "d": ""},
            {"a": "s0 t1", "b": "s1 t0", "c": "s2 t3", "d": "t2"},
        ),
        ({"s": 3, "t": 4}, {"c": "s2 t3", "d": "t2"}, {"c": "s0 s2 t1 t3", "d": "s1 t0 t2"}),
    ],
)  # fmt: skip
def test_sticky_with_one_subscription(
    partitions: dict[str, int], owned: dict[str, str], expected: dict[str, str]
) -> None:
    assert sticky(partitions, **owned) == expected


def test_sticky_keeps_one_more_with_one_member_only() -> None:
    # In Kafka the member whose id has the lower hash keeps two. The shares are the same.
    assert sticky({"s": 2, "t": 2}, a="s0 t0", b="s1 t1", c="") == {"a": "s0 t0", "b": "s1", "c": "t1"}


def test_sticky_with_different_subscriptions() -> None:
    # Kafka's testMultipleConsumersMixedTopicSubscriptions and testPoorRoundRobinAssignmentScenario
    three = [member("a", "s"), member("b", "s", "t"), member("c", "s")]
    assert shown(assign_sticky(three, {"s": 3, "t": 2})) == {"a": "s0 s2", "b": "t0 t1", "c": "s1"}
    every, odd = ("p", "q", "r", "s", "t"), ("p", "r", "t")
    four = [member("a", *every), member("b", *odd), member("c", *odd), member("d", *every)]
    found = shown(assign_sticky(four, {"p": 2, "q": 1, "r": 2, "s": 1, "t": 2}))
    assert found == {"a": "q0 r0", "b": "p0 r1", "c": "p1 t0", "d": "s0 t1"}


def assert_even(found: Assignment, members: Iterable[GroupMember]) -> None:
    """Assert what Kafka's verifyValidityAndBalance does: no partition can move to a share that is smaller by two or
    more."""
    topics = {each.member_id: each.topics for each in members}
    for more, less in permutations(found, 2):
        movable = any(tp.topic in topics[less] for tp in found[more])
        assert len(found[more]) - len(found[less]) <= 1 or not movable, (more, less)


def assert_sticky(before: Assignment, after: Assignment) -> None:
    """Assert what Kafka's isSticky does: no two members give each other partitions of one topic."""
    was = {tp: member_id for member_id, tps in before.items() for tp in tps}
    pairs = {
        (tp.topic, was[tp], member_id)
        for member_id, tps in after.items()
        for tp in tps
        if was.get(tp, member_id) != member_id
    }
    assert not {(topic, to, source) for topic, source, to in pairs} & pairs


def again(members: Iterable[GroupMember], given: Assignment) -> list[GroupMember]:
    """Return the members as they are at the next rebalance."""
    return [replace(each, assigned=numbers_of(given.get(each.member_id, ()))) for each in members]


# The cases of Kafka's AbstractStickyAssignorTest with different subscriptions that check only evenness and stickiness.


def test_sticky_after_one_of_many_members_left() -> None:
    counts = {f"t{number:02}": number for number in range(1, 20)}
    members = [member(f"m{number:02}", *list(counts)[:number]) for number in range(1, 20)]
    first = assign_sticky(members, counts)
    assert_even(first, members)
    left = [each for each in again(members, first) if each.member_id != "m10"]
    second = assign_sticky(left, counts)
    assert_even(second, left)
    assert_sticky({name: tps for name, tps in first.items() if name != "m10"}, second)


def test_sticky_when_a_member_subscribes_to_one_more_topic() -> None:
    counts = {f"t{number}": 1 for number in range(1, 5)}
    members = [member("a", "t0"), member("b", "t1"), member("c", "t2", "t3", "t4")]
    first = assign_sticky(members, counts)
    more = [replace(each, topics=(*each.topics, "t1")) if each.member_id == "a" else each for each in members]
    second = assign_sticky(again(more, first), counts)
    assert_even(second, more)
    assert_sticky(first, second)


def test_sticky_moves_what_makes_shares_more_even() -> None:
    members = [
        member("a", "p", "q", owned="p0"),
        member("b", "p", "q", "r", "s", owned="q0 r0"),
        member("c", "q", "r", "s", "t", "u", owned="s0 t0 u0"),
    ]
    found = assign_sticky(members, dict.fromkeys("pqrstu", 1))
    assert_even(found, members)
    assert_sticky({each.member_id: tuple(each.assigned_partitions) for each in members}, found)


def test_sticky_with_random_subscriptions_and_members_that_leave() -> None:
    for seed in range(20):
        drawn = random.Random(seed)
        counts = {f"t{number}": drawn.randrange(1, 11) for number in range(12)}
        members = [
            member(f"m{number:02}", *drawn.sample(sorted(counts), drawn.randrange(1, 8))) for number in range(30)
        ]
        first = assign_sticky(members, counts)
        assert_even(first, members)
        left = drawn.sample(again(members, first), 22)
        second = assign_sticky(left, counts)
        assert_even(second, left)


def test_each_name_of_the_setting_has_an_assignor() -> None:
    assert tuple(ASSIGNORS) == ASSIGNOR_NAMES


SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abcde"), st.sets(st.sampled_from("stu"), min_size=1), min_size=1)
COUNTS = st.dictionaries(st.sampled_from("stu"), st.integers(1, 6), min_size=1)


@given(SUBSCRIPTIONS, SUBSCRIPTIONS, COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_reader(
    before: dict[str, set[str]], after: dict[str, set[str]], counts: dict[str, int], name: str
) -> None:
    assign = ASSIGNORS[name]
    first = assign([member(each, *topics) for each, topics in before.items()], counts)
    members = again([member(each, *topics) for each, topics in after.items()], first)
    found = assign(members, counts)
    assert found.keys() == after.keys()
    given_out = [tp for tps in found.values() for tp in tps]
    read = set().union(*after.values())
    assert sorted(given_out) == [TopicPartition(t, n) for t in sorted(counts) if t in read for n in range(counts[t])]
    assert all(tp.topic in after[each] for each, tps in found.items() for tp in tps)
    if name == "cooperative-sticky":
        assert_even(found, members)
        if before == after:
            assert {each: set(tps) for each, tps in found.items()} == {each: set(tps) for each, tps in first.items()}
