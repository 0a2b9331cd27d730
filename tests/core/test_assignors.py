"""Assignments of partitions to members, with the results of Kafka's assignors."""

from __future__ import annotations

from txlog.core.assignors import Assignment, Subscriber, assign_range, assign_round_robin


def member(name: str, *topics: str, instance: str = "") -> Subscriber:
    return Subscriber(member_id=name, instance_id=instance, topics=topics)


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
