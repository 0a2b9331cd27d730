"""Assignments of partitions to members, with the results of Kafka's assignors."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.config.table import ASSIGNOR_NAMES
from txlog.core.assignors import (
    ASSIGNORS,
    Assignment,
    Subscriber,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from txlog.core.names import TopicPartition


def member(name: str, *topics: str, instance: str = "", owned: str = "") -> Subscriber:
    held = frozenset(TopicPartition(each[:-1], int(each[-1])) for each in owned.split())
    return Subscriber(member_id=name, instance_id=instance, topics=topics, owned=held)


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
    members = [
        Subscriber(member_id=each, topics=tuple(topics), owned=frozenset(first.get(each, ())))
        for each, topics in after.items()
    ]
    found = assign(members, counts)
    assert found.keys() == after.keys()
    given_out = [tp for tps in found.values() for tp in tps]
    read = set().union(*after.values())
    assert sorted(given_out) == [TopicPartition(t, n) for t in sorted(counts) if t in read for n in range(counts[t])]
    assert all(tp.topic in after[each] for each, tps in found.items() for tp in tps)
    if name == "cooperative-sticky":
        for one, two in combinations(found, 2):
            more, less = (one, two) if len(found[one]) > len(found[two]) else (two, one)
            movable = any(tp.topic in after[less] for tp in found[more])
            assert len(found[more]) - len(found[less]) <= 1 or not movable
        if before == after:
            assert {each: set(tps) for each, tps in found.items()} == {each: set(tps) for each, tps in first.items()}
