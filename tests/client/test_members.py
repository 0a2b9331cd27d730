"""Consumers of one group share its partitions (PROTOCOL.md, W51 to W57: W52, W54, W56 and W57 by the client)."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client.consumer import Consumer
from txlog.client.consumer.fetcher import CREATED_AGAIN_MS
from txlog.client.groups import GroupOffsets
from txlog.client.groups.members import LOOK_MS
from txlog.client.offsets import raise_committed
from txlog.client.reading import read_session
from txlog.client.staged import StagedTransaction
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.groups import offsets_partition
from txlog.core.records import OffsetValue
from txlog.errors import (
    ClockSkewError,
    CommitFailedError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRequestError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.context import INTERNAL_ROLL
from txlog.testing.clock import ManualClock

SESSION_MS = 45_000
FOUR = [tp("orders", number) for number in range(4)]


@pytest.fixture
def world():
    made = World()
    made.open().create_topic("orders", ORDERS, partitions=4)
    made.open().create_topic("out", ORDERS)
    yield made
    made.close()


class Member:
    """A consumer in a separate process, and what its listeners have heard."""

    def __init__(self, world: World, name: str, *, topics: Any = "orders", lost: bool = True, **settings: Any) -> None:
        self.world = world
        self.store = world.open()
        self.told: list[tuple[str, list[int]]] = []
        self.consumer: Consumer = self.store.consumer(
            group_id="g",
            client_id=name,
            **{
                "auto_offset_reset": "earliest",
                "enable_auto_commit": False,
                "partition_assignment_strategy": "cooperative-sticky",
                **settings,
            },
        )
        listeners = {"on_assign": self.note("assign"), "on_revoke": self.note("revoke")}
        self.consumer.subscribe(topics, **listeners, **({"on_lost": self.note("lost")} if lost else {}))

    def note(self, what: str) -> Any:
        return lambda partitions: self.told.append((what, [each.partition for each in partitions]))

    @property
    def membership(self) -> Any:
        return self.consumer._membership

    @property
    def held(self) -> list[int]:
        return [each.partition for each in self.consumer.assignment()]

    def poll(self) -> list[int]:
        """Return the rows of the partitions that it owns now."""
        batches = iter(lambda: self.consumer.poll(0), None)
        return [row["id"] for batch in batches for row in batch.to_pylist()]


def settle(*members: Member) -> None:
    """Let each member look at the group, often enough for partitions to move."""
    for _ in range(3):
        members[0].world.clock.advance_ms(LOOK_MS)
        for member in members:
            assert member.consumer.poll(0) is None


def appends(cost: Any) -> int:
    """Return how many records were written to groups' partitions."""
    return sum(
        verb == "put_if_absent" and path.endswith(".batch") and path.startswith("__consumer_offsets")
        for verb, path in cost.calls()
    )


def send(world: World, *ids: int) -> None:
    """Append to each partition a row for each id: 10 * id + partition."""
    with world.open().producer() as producer:
        for number in range(4):
            producer.send("orders", orders(*(10 * each + number for each in ids)), partition=number)


def committed(world: World) -> list[int | None]:
    found = world.open().consumer(group_id="g").committed(*FOUR)
    return [None if each is None else each.offset for each in (found[at] for at in FOUR)]


def test_a_second_member_gets_half_and_the_first_one_goes_on_with_the_rest(world):
    a = Member(world, "a")
    assert a.held == [0, 1, 2, 3]
    assert a.told == [("assign", [0, 1, 2, 3])]
    send(world, 1)
    assert sorted(a.poll()) == [10, 11, 12, 13]
    a.consumer.commit()
    b = Member(world, "b")
    assert b.held == []
    assert b.consumer.poll(0) is None, "it waits for what is assigned to it"
    settle(a, b)
    assert (a.held, b.held) == ([0, 1], [2, 3])
    assert a.told[1:] == [("revoke", [2, 3])]
    assert b.told == [("assign", [2, 3])]
    send(world, 2)
    assert (sorted(a.poll()), sorted(b.poll())) == ([20, 21], [22, 23])
    a.consumer.commit()
    b.consumer.commit()
    assert committed(world) == [2, 2, 2, 2]
    assert a.consumer.group_metadata().generation_id == b.consumer.group_metadata().generation_id == 2
    with pytest.raises(CommitFailedError, match="another member reads orders-2"):
        a.consumer.commit({FOUR[2]: 1})
    b.consumer.close()
    settle(a)
    assert a.held == [0, 1, 2, 3]
    send(world, 3)
    assert sorted(a.poll()) == [30, 31, 32, 33], "it goes on where the other one has committed"


def test_no_row_is_read_twice_while_members_come_and_go(world):
    """With a commit before each change, as auto commit makes it."""
    settings: dict[str, Any] = {
        "enable_auto_commit": True,
        "auto_commit_interval_ms": 10**6,
        "partition_assignment_strategy": "range",
    }
    members = [Member(world, "a", **settings)]
    read: list[int] = []
    for step in range(1, 13):
        send(world, step)
        if step in (2, 4, 5):
            members.append(Member(world, f"m{step}", **settings))
        if step in (7, 9):
            members.pop(0).consumer.close()
        world.clock.advance_ms(LOOK_MS)
        for member in members:
            read += member.poll()
            member.membership.tick()
    for _ in range(3):
        world.clock.advance_ms(LOOK_MS)
        for member in members:
            read += member.poll()
    assert sorted(read) == sorted(10 * step + number for step in range(1, 13) for number in range(4))


def test_a_member_that_died_costs_one_session_and_its_rows_are_read_again(world):
    dead, b = Member(world, "a"), Member(world, "b")
    settle(dead, b)
    send(world, 1)
    assert sorted(dead.poll()) == [10, 11]
    read: list[int] = []
    for held in ([2, 3], [2, 3], [0, 1, 2, 3]):
        world.clock.advance_ms(SESSION_MS // 3)
        b.membership.tick()
        read += b.poll()
        assert b.held == held
    assert sorted(read) == [10, 11, 12, 13]
    with pytest.raises(CommitFailedError, match="may not commit: the group does not have this member"):
        dead.consumer.commit()
    assert dead.consumer.poll(0) is None
    assert dead.told[-1] == ("lost", [0, 1])
    b.consumer.commit()
    settle(b, dead)
    assert len(dead.held) == len(b.held) == 2


def test_a_member_that_slept_past_its_session_is_told(world):
    a = Member(world, "a", lost=False)
    send(world, 1)
    a.consumer.poll(0)
    world.clock.advance_ms(SESSION_MS + 1)
    with pytest.raises(
        CommitFailedError, match=r"may not commit: it has shown no sign of life for its session\.timeout"
    ):
        a.consumer.commit()
    a.membership.tick()
    with pytest.raises(CommitFailedError, match="lost 4 partitions, because its session is over"):
        a.consumer.poll(0)
    assert sorted(a.poll()) == [10, 11, 12, 13], "it has joined again, and reads what it could not commit"
    a.consumer.commit()
    assert committed(world) == [1, 1, 1, 1]


def test_a_heartbeat_is_written_only_if_nothing_else_was(world):
    a = Member(world, "a")
    with world.counting.counting() as cost:
        for _ in range(4):
            world.clock.advance_ms(14_999)
            a.consumer.commit({FOUR[0]: 0})
            a.membership.tick()
    assert appends(cost) == 4
    with world.counting.counting() as cost:
        world.clock.advance_ms(15_000)
        a.membership.tick()
        a.membership.tick()
    assert appends(cost) == 1
    for _ in range(10):
        world.clock.advance_ms(15_000)
        a.membership.tick()
    a.consumer.poll(0)
    assert a.told == [("assign", [0, 1, 2, 3])]


@pytest.mark.parametrize(
    ("count", "minutes"), [(1, 60), (4, 60), (16, 15), pytest.param(16, 60, marks=pytest.mark.exhaustive)]
)
def test_an_idle_member_costs_what_the_documentation_says(world, count, minutes):
    """Each member reads the heartbeats of all others, but one member alone seals a segment of them."""
    members = [Member(world, f"m{number}") for number in range(count)]
    settle(*members)
    for member in members:
        member.membership._stop.set()  # its thread goes by real time
        member.consumer.pause(*member.consumer.assignment())
    with world.counting.counting() as cost:
        for _ in range(minutes * 60_000 // LOOK_MS):
            world.clock.advance_ms(LOOK_MS)
            for member in members:
                member.consumer.poll(0)
                member.membership.tick()
    beats = 4 * minutes
    assert appends(cost) <= beats * count
    verbs = Counter(verb for verb, path in cost.calls() if path.startswith("__consumer_offsets"))
    assert verbs["put_if_absent"] <= beats * count * 9 // 8
    assert verbs["get"] <= (6 * beats + beats * count + 5 * minutes) * count
    sealed = [path for verb, path in cost.calls() if verb == "put_if_absent" and path.endswith(".index")]
    assert len(sealed) == len(set(sealed)) >= beats * count // 16 - 1


def test_a_lone_member_joins_with_one_record_and_leaves_with_one(world):
    for _ in range(2):
        with world.counting.counting() as cost:
            a = Member(world, "a")
        assert appends(cost) == 1
        assert a.told == [("assign", [0, 1, 2, 3])]
        with world.counting.counting() as cost:
            a.consumer.close()
        assert appends(cost) == 1


def test_a_sync_of_unknown_outcome_is_not_repeated(world):
    a, b = Member(world, "a"), Member(world, "b")
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    assert (a.held, b.held) == ([0, 1], [])
    # The record is in the log, but the member did not get the answer.
    b.membership._sync(b.membership.member_id)
    assert b.held == []
    world.clock.advance_ms(LOOK_MS)
    with world.counting.counting() as cost:
        b.consumer.poll(0)
    assert appends(cost) == 0
    assert b.told == [("assign", [2, 3])]


def test_a_member_that_stops_polling_leaves(world):
    a, b = Member(world, "a", max_poll_interval_ms=20_000), Member(world, "b")
    settle(a, b)
    for _ in range(2):
        world.clock.advance_ms(15_000)
        a.membership.tick()
        b.membership.tick()
    settle(b)
    assert b.held == [0, 1, 2, 3]
    assert a.consumer.poll(0) is None
    assert a.told[-1] == ("lost", [0, 1])


@pytest.mark.parametrize("call", ["unsubscribe", "assign", "assign_topics", "subscribe"])
def test_rows_that_were_returned_are_committed_before_the_consumer_reads_something_else(world, call):
    send(world, 1)
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest")
    consumer.subscribe("orders")
    assert len(rows_of(consumer)) == 4
    getattr(consumer, call)(*{"unsubscribe": (), "assign": ([tp("out", 0)],)}.get(call, ("out",)))
    assert committed(world) == [1, 1, 1, 1]


def test_assigned_partitions_of_a_group_are_committed_before_others_are_assigned(world):
    send(world, 1)
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest")
    consumer.assign(FOUR[:2])
    assert len(rows_of(consumer)) == 2
    consumer.assign(FOUR[2:])
    assert committed(world) == [1, 1, None, None]


def test_a_second_subscription_to_the_same_topics_only_sets_the_listeners(world):
    a = Member(world, "a")
    send(world, 1)
    assert len(a.poll()) == 4
    before = a.consumer.group_metadata()
    told: list[int] = []
    with world.counting.counting() as cost:
        a.consumer.subscribe(["orders"], on_revoke=lambda partitions: told.append(len(partitions)))
    assert appends(cost) == 0
    assert a.consumer.group_metadata() == before
    assert a.poll() == [], "it goes on where it was"
    a.consumer.subscribe(["orders", "out"])
    assert told == [4]
    assert len(a.consumer.assignment()) == 5
    assert len(world.open().admin().describe_group("g").members) == 1


@pytest.mark.parametrize("call", ["close", "unsubscribe"])
@pytest.mark.parametrize("has_listener", [True, False])
def test_a_loss_is_reported_when_the_consumer_leaves(world, call, has_listener, caplog):
    a = Member(world, "a", lost=has_listener)
    world.clock.advance_ms(SESSION_MS + 1)
    getattr(a.consumer, call)()
    assert a.told[1:] == ([("lost", [0, 1, 2, 3])] if has_listener else [])
    assert ("lost 4 partitions, because its session is over" in caplog.text) is not has_listener


def test_a_member_that_an_operator_removed_learns_it_from_the_commit_of_close(world):
    a = Member(world, "a", enable_auto_commit=True)
    send(world, 1)
    a.poll()
    world.open().admin().remove_members("g")
    a.consumer.close()
    assert a.told[1:] == [("lost", [0, 1, 2, 3])]


@pytest.mark.parametrize("error", [ValueError("boom"), CommitFailedError("boom")])
def test_an_error_of_on_revoke_in_close_keeps_no_member(world, error, caplog):
    def fail(_: Any) -> None:
        calls.append(consumer.assignment())
        raise error

    calls: list[Any] = []
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.subscribe("orders", on_revoke=fail)
    stop = consumer._membership._stop
    if isinstance(error, ValueError):
        with pytest.raises(ValueError, match="boom"):
            consumer.close()
    else:
        consumer.close()
        assert "closed without leaving its group: boom" in caplog.text
    assert stop.wait(0), "the heartbeat thread ends"
    assert not world.open().admin().describe_group("g").members
    consumer.close()
    assert calls == [tuple(FOUR)]
    with pytest.raises(IllegalStateError, match="is closed"):
        consumer.poll(0)


def test_a_listener_may_close_the_consumer(world):
    made: list[Consumer] = []
    consumer = world.open().consumer(group_id="g", enable_auto_commit=False)

    def revoked(_: object) -> None:
        made.append(consumer)
        consumer.close()

    consumer.subscribe("orders", on_revoke=revoked)
    consumer.close()
    assert made == [consumer]
    assert not world.open().admin().describe_group("g").members


def test_on_lost_may_subscribe_to_other_topics(world):
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.subscribe("orders", on_lost=lambda _: consumer.subscribe("out"))
    world.clock.advance_ms(SESSION_MS + 1)
    assert consumer.poll(0) is None
    assert consumer.assignment() == (tp("out", 0),)
    (member,) = world.open().admin().describe_group("g").members
    assert member.topics == ("out",)


@pytest.mark.parametrize("call", ["unsubscribe", "assign", "assign_topics", "subscribe"])
def test_a_call_that_fails_to_leave_stops_reading_and_leaves_when_it_is_repeated(world, call):
    outage, store = world.outage()
    consumer = store.consumer(
        group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, default_api_timeout_ms=2000
    )
    consumer.subscribe("orders")
    send(world, 1)

    def leave() -> None:
        arguments = {"unsubscribe": (), "assign": ([tp("out", 0)],)}.get(call, ("out",))
        getattr(consumer, call)(*arguments)

    outage.pattern = "put_if_absent __consumer_offsets"
    with pytest.raises(TxlogTimeoutError):
        leave()
    outage.pattern = None
    assert consumer.assignment() == ()
    with pytest.raises(IllegalStateError, match="nothing to read"):
        consumer.poll(0)
    with pytest.raises(CommitFailedError, match=r"not a member of its group now. hint: call unsubscribe\(\) again"):
        consumer.commit({FOUR[0]: 0})
    with store.producer("copy") as producer, pytest.raises(CommitFailedError), producer.transaction():
        producer.send_offsets_to_transaction({FOUR[0]: 0}, consumer.group_metadata())
    leave()
    members = world.open().admin().describe_group("g").members
    assert [each.topics for each in members] == ([("out",)] if call == "subscribe" else [])
    assert [each.topic for each in consumer.assignment()] == ([] if call == "unsubscribe" else ["out"])
    assert committed(world) == [None] * 4


def test_a_static_member_comes_back_without_a_rebalance(world):
    a, b = Member(world, "a", group_instance_id="one"), Member(world, "b", group_instance_id="two")
    settle(a, b)
    metadata = a.consumer.group_metadata()
    a.consumer.close()
    assert a.told[-1] == ("revoke", [0, 1])
    world.clock.advance_ms(10_000)
    again = Member(world, "a", group_instance_id="one")
    assert again.held == [0, 1]
    assert again.consumer.group_metadata().generation_id == metadata.generation_id
    b.consumer.poll(0)
    assert b.told == [("assign", [2, 3])]
    rival = Member(world, "x", group_instance_id="one")
    with pytest.raises(CommitFailedError, match=r"instance\.id 'one'\. hint: close this consumer"):
        again.consumer.commit({FOUR[0]: 1})
    world.clock.advance_ms(LOOK_MS)
    for _ in range(2):
        with pytest.raises(CommitFailedError, match=r"another consumer has its group\.instance\.id 'one'"):
            again.consumer.poll(0)
    assert again.told[-1] == ("lost", [0, 1])
    again.consumer.close()
    rival.consumer.commit({FOUR[0]: 1})


@pytest.mark.parametrize("staged", [False, True, None])
def test_offsets_in_a_transaction_carry_the_generation(world, staged):
    a = Member(world, "a")
    metadata = a.consumer.group_metadata()
    b = Member(world, "b")
    settle(a, b)
    with world.open().producer("copy", staged=staged) as producer:

        def copy(of: Any, number: int) -> None:
            with producer.transaction():
                producer.send("out", orders(number))
                producer.send_offsets_to_transaction({FOUR[number]: 1}, of)

        with pytest.raises(CommitFailedError, match="is in generation 2 by now"):
            copy(metadata, 0)
        with pytest.raises(CommitFailedError, match="another member reads orders-2"):
            copy(a.consumer.group_metadata(), 2)
        copy(a.consumer.group_metadata(), 1)
        copy(b.consumer.group_metadata(), 3)
    assert world.read("out") == [1, 3]
    assert committed(world) == [None, 1, None, 1]


def test_a_transaction_that_carries_offsets_is_a_heartbeat(world):
    a = Member(world, "a")
    with world.open().producer("copy") as producer:
        for number in range(1, 8):
            world.clock.advance_ms(10_000)
            assert a.consumer.poll(0) is None
            with producer.transaction():
                producer.send_offsets_to_transaction({FOUR[0]: number}, a.consumer.group_metadata())
    with world.counting.counting() as cost:
        world.clock.advance_ms(LOOK_MS)
        a.consumer.poll(0)
        a.membership.tick()
    assert not appends(cost)
    assert a.told == [("assign", [0, 1, 2, 3])]


def test_a_listener_may_commit_what_it_gives_up(world):
    send(world, 1)
    made: list[Consumer] = []
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.subscribe("orders", on_revoke=lambda _: made[0].commit())
    made.append(consumer)
    assert len(rows_of(consumer)) == 4
    b = Member(world, "b", partition_assignment_strategy="range")
    world.clock.advance_ms(LOOK_MS)
    consumer.poll(0)
    assert committed(world) == [1, 1, 1, 1]
    send(world, 2)
    consumer.poll(0)
    consumer.close()
    assert sorted(filter(None, committed(world))) == [1, 1, 1, 2]
    settle_and_read = []
    for _ in range(3):
        world.clock.advance_ms(LOOK_MS)
        settle_and_read += b.poll()
    assert len(settle_and_read) == 3
    with pytest.raises(IllegalStateError, match="is closed"):
        consumer.commit()


def test_pauses_of_partitions_that_stay_survive_a_rebalance(world):
    a = Member(world, "a")
    a.consumer.pause(FOUR[0], FOUR[3])
    b = Member(world, "b")
    settle(a, b)
    assert a.consumer.paused() == (FOUR[0],)
    send(world, 1)
    assert (a.poll(), sorted(b.poll())) == ([11], [12, 13])


def test_added_partitions_are_shared_and_read_from_their_start(world):
    settings: dict[str, Any] = {"metadata_max_age_ms": 1000, "partition_assignment_strategy": "range"}
    a, b = Member(world, "a", **settings), Member(world, "b", **settings)
    settle(a, b)
    world.open().alter_topic("orders", partitions=6)
    with world.open().producer() as producer:
        producer.send("orders", orders(1, 2), partition=5)
    read: list[int] = []
    for _ in range(3):
        world.clock.advance_ms(LOOK_MS)
        read += a.poll() + b.poll()
    assert sorted(a.held + b.held) == [0, 1, 2, 3, 4, 5]
    assert read == [1, 2]


@pytest.mark.parametrize("reset", ["latest", "none"])
def test_the_member_that_tells_the_group_of_added_partitions_reads_them_from_their_start(world, reset):
    settings: dict[str, Any] = {"partition_assignment_strategy": "roundrobin"}
    a = Member(world, "a", auto_offset_reset="latest", **settings)
    a.consumer.poll(0)
    a.consumer.commit()
    world.open().alter_topic("orders", partitions=8)
    with world.open().producer() as producer:
        for number in range(4, 8):
            producer.send("orders", orders(number), partition=number)
    b = Member(world, "b", auto_offset_reset=reset, **settings)
    read: list[int] = []
    for _ in range(3):
        world.clock.advance_ms(LOOK_MS)
        read += a.poll() + b.poll()
    assert sorted(a.held + b.held) == list(range(8))
    assert max(b.held) == 7
    assert sorted(read) == [4, 5, 6, 7]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_member_with_old_metadata_reads_added_partitions_that_another_one_has_seen(world, assignor):
    a = Member(world, "a", partition_assignment_strategy=assignor)
    world.open().alter_topic("orders", partitions=7)
    b = Member(world, "b", partition_assignment_strategy=assignor)
    settle(a, b)
    assert sorted(a.held + b.held) == list(range(7))
    assert assignor != "roundrobin" or max(a.held) >= 4
    assert assignor != "roundrobin" or a.told[-1][0] == "assign"
    with world.open().producer() as producer:
        for number in range(7):
            producer.send("orders", orders(number), partition=number)
    assert sorted(a.poll() + b.poll()) == list(range(7))


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_a_restarted_batch_job_waits_for_the_member_that_died(world, partitions, assignor, caplog):
    """Its own share may be empty at first, because all partitions stay with the dead member."""
    world.open().create_topic("jobs", ORDERS, partitions=partitions)
    with world.open().producer() as producer:
        for number in range(partitions):
            producer.send("jobs", orders(number), partition=number)
    settings = {"auto_offset_reset": "earliest", "partition_assignment_strategy": assignor}
    dead = world.open().consumer(group_id="g", client_id="dead", **settings)
    dead.subscribe("jobs")
    dead._membership._stop.set()
    again = world.open().consumer(group_id="g", client_id="again", **settings)
    again.subscribe("jobs")
    began_ms = world.clock.now_ms()
    assert sorted(row["id"] for row in rows_of(again)) == list(range(partitions))
    assert SESSION_MS < world.clock.now_ms() - began_ms < SESSION_MS + 2 * LOOK_MS
    waits = [each for each in caplog.messages if "waits for member 'dead-" in each]
    assert len(waits) == 1, "it says so once"
    assert not again.awaited


def test_a_read_with_a_timeout_does_not_wait_longer_for_other_members(world, caplog):
    a, b = Member(world, "a"), Member(world, "b")
    began_ms = world.clock.now_ms()
    assert rows_of(b.consumer, 1000) == []
    assert world.clock.now_ms() - began_ms < 2000
    assert "waits for member 'a-" in caplog.text
    assert b.consumer.awaited == {a.membership.member_id: (FOUR[2], FOUR[3])}
    settle(a, b)
    send(world, 1)
    caplog.clear()
    assert len(rows_of(b.consumer)) == 2
    assert not b.consumer.awaited
    assert not caplog.messages


@pytest.mark.parametrize(("reset", "auto"), [("earliest", False), ("latest", False), ("none", True)])
def test_the_partitions_of_a_deleted_topic_are_revoked_and_the_members_read_on(world, reset, auto):
    settings: dict[str, Any] = {"auto_offset_reset": reset, "enable_auto_commit": auto}
    if reset == "none":
        world.open().admin().reset_offsets("g", {**dict.fromkeys(FOUR, 0), tp("out", 0): 0})
    a, b = (Member(world, name, topics=("orders", "out"), **settings) for name in "ab")
    settle(a, b)
    send(world, 1)
    read = [a.poll(), b.poll()]
    assert sorted(read[0] + read[1]) == [10, 11, 12, 13]
    owner = next(each for each in (a, b) if tp("out", 0) in each.consumer.assignment())
    held = {each: [at for at in each.consumer.assignment() if at.topic == "orders"] for each in (a, b)}
    world.open().delete_topic("orders")
    with world.open().producer() as producer:
        producer.send("out", orders(7))
    for member in (a, b):
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
            member.consumer.poll(0)
        assert member.told[-1] == ("revoke", [each.partition for each in held[member]])
        assert not [at for at in member.consumer.assignment() if at.topic == "orders"]
        member.told.clear()
    assert owner.poll() == [7]
    settle(a, b)
    assert not a.told + b.told, "it is said once, and the group needs no other generation"
    with world.counting.counting() as cost:
        assert a.poll() + b.poll() == []
    assert cost.total <= 4, "a deleted topic is looked for once a second, and not in each poll"
    world.open().create_topic("orders", ORDERS, partitions=4)
    send(world, 2)  # before the members look
    world.clock.advance_ms(CREATED_AGAIN_MS)
    assert sorted(a.poll() + b.poll()) == [20, 21, 22, 23]
    assert {each: [at for at in each.consumer.assignment() if at.topic == "orders"] for each in (a, b)} == held
    for member in (a, b):
        assert member.told == [("assign", [each.partition for each in held[member]])]
        member.consumer.commit()


@pytest.mark.parametrize("auto", [False, True])
def test_a_removed_member_has_lost_the_partitions_of_a_deleted_topic(world, auto):
    a, b = (Member(world, each, topics=("orders", "out"), enable_auto_commit=auto) for each in "ab")
    settle(a, b)
    send(world, 1)
    assert sorted(a.poll() + b.poll()) == [10, 11, 12, 13]
    held = a.held
    world.open().admin().remove_members("g")
    world.open().delete_topic("orders")
    a.told.clear()
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
        a.consumer.poll(0)
    assert a.consumer.poll(0) is None
    assert a.told[0] == ("lost", held), "it commits and revokes nothing"


def test_an_error_of_on_revoke_keeps_the_partitions_of_a_deleted_topic(world):
    def fail_twice(partitions: Any) -> None:
        told.append(partitions)
        if len(told) < 3:
            raise ValueError("boom")

    told: list[Any] = []
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.subscribe(["orders", "out"], on_revoke=fail_twice)
    send(world, 1)
    assert len(rows_of(consumer)) == 4
    world.open().delete_topic("orders")
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            consumer.poll(0)
        assert len(consumer.assignment()) == 5
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
        consumer.poll(0)
    assert consumer.assignment() == (tp("out", 0),)
    assert told == [tuple(FOUR)] * 3


def test_a_pattern_takes_in_topics_that_are_created_later(world):
    settings: dict[str, Any] = {"metadata_max_age_ms": 1000, "auto_offset_reset": "latest"}
    pattern = re.compile("orders|new-.*")
    a, b = (Member(world, name, topics=pattern, **settings) for name in "ab")
    settle(a, b)
    assert a.consumer.subscription() == b.consumer.subscription() == ("orders",)
    for topic in ("new-1", "other-new-1"):
        world.open().create_topic(topic, ORDERS, partitions=2)
    with world.open().producer() as producer:
        for number in range(2):
            producer.send("new-1", orders(number), partition=number)
    read: list[int] = []
    for _ in range(4):
        world.clock.advance_ms(LOOK_MS)
        for member in (a, b):
            read += member.poll()
            member.consumer.commit()
    assert sorted(read) == [0, 1], "from the first row, and once"
    assert a.consumer.subscription() == b.consumer.subscription() == ("orders", "new-1")
    held = sorted(a.consumer.assignment() + b.consumer.assignment())
    assert held == [tp("new-1", 0), tp("new-1", 1), *FOUR]
    assert len(a.held) == len(b.held) == 3
    assert world.open().admin().describe_group("g").topics == ("new-1", "orders")
    with world.counting.counting() as cost:
        a.consumer.subscribe(pattern)
    assert appends(cost) == 0
    with pytest.raises(UnknownTopicOrPartitionError, match="matches 'order'; the whole name must match"):
        a.consumer.subscribe(re.compile("order"))
    assert a.consumer.assignment(), "a refused call changes nothing"


def test_a_rebalance_that_is_asked_for_is_a_new_generation_with_the_same_shares(world):
    a, b = Member(world, "a"), Member(world, "b")
    settle(a, b)
    told, generation = a.told + b.told, a.consumer.group_metadata().generation_id
    a.consumer.enforce_rebalance()
    assert a.consumer.poll(0) is None
    assert a.consumer.group_metadata().generation_id == generation + 1
    settle(a, b)
    assert [each.consumer.group_metadata().generation_id for each in (a, b)] == [generation + 1] * 2
    assert a.told + b.told == told
    a.consumer.unsubscribe()
    for consumer in (a.consumer, world.open().consumer(group_id="h")):
        with pytest.raises(IllegalStateError, match=r"enforce_rebalance\(\) without subscribe\(\)"):
            consumer.enforce_rebalance()


def test_more_members_than_partitions(world):
    members = [Member(world, f"m{number}") for number in range(5)]
    settle(*members)
    settle(*members)
    assert sorted(number for each in members for number in each.held) == [0, 1, 2, 3]
    idle = next(each for each in members if not each.held)
    assert idle.consumer.poll(10) is None
    assert idle.consumer.assignment() == ()


def test_members_are_described(world):
    a, b = Member(world, "a"), Member(world, "b", group_instance_id="two")
    admin = world.open().admin()
    assert admin.describe_group("g").state == "PREPARING_REBALANCE"
    settle(a, b)
    send(world, 1)
    a.consumer.commit({FOUR[0]: 0})
    world.clock.advance_ms(5000)
    found = admin.describe_group("g")
    assert (found.state, found.generation, found.assignor, found.topics) == (
        "STABLE", 2, "cooperative-sticky", ("orders",),
    )  # fmt: skip
    assert [(each.client_id, each.instance_id) for each in found.members] == [("a", ""), ("b", "two")]
    assert [each.partitions for each in found.members] == [(FOUR[0], FOUR[1]), (FOUR[2], FOUR[3])]
    assert [each.assigned == each.partitions for each in found.members] == [True, True]
    assert found.members[0].seen_at == world.clock.now_ms() - 5000
    (row,) = found.offsets
    assert (row.lag, row.lag_ms) == (1, 5000)
    assert admin.remove_members("g") == tuple(each.member_id for each in found.members)
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    assert a.told[-2:] == [("lost", [0, 1]), ("assign", [0, 1, 2, 3])]


def test_a_look_does_not_show_members_whose_session_is_over(world):
    """It judges by its own clock, and writes nothing."""
    dead, b = Member(world, "a", group_instance_id="one"), Member(world, "b")
    settle(dead, b)
    for member in (dead, b):
        member.membership._stop.set()  # its thread goes by real time
    world.clock.advance_ms(15_000)
    dead.membership.tick()
    for _ in range(3):
        b.membership.tick()
        world.clock.advance_ms(15_000)
    admin = world.open().admin()

    def shown() -> tuple[str, list[str]]:
        with world.counting.counting() as cost:
            found = admin.describe_group("g")
            assert admin.list_groups()[0].members == found.members
        assert {"put_if_absent", "write_file", "delete"}.isdisjoint(verb for verb, _ in cost.calls())
        return found.state, [each.client_id for each in found.members]

    assert shown() == ("STABLE", ["a", "b"])
    world.clock.advance_ms(1)
    assert shown() == ("PREPARING_REBALANCE", ["b"])
    for _ in range(4):
        b.consumer.poll(0)
        b.membership.tick()
        world.clock.advance_ms(15_000)
    assert b.consumer.poll(0) is None
    assert b.held == [0, 1, 2, 3], "it has watched the other one for a session by now, and removed it"
    assert shown() == ("STABLE", ["b"])
    world.clock.advance_ms(SESSION_MS + 1)
    assert shown() == ("EMPTY", [])
    found = admin.describe_group("g")
    assert (found.member_id, found.assignor, found.topics) == ("", "", ())
    assert admin.reset_offsets("g", {FOUR[0]: 0}, dry_run=True), "what is shown as empty needs no force"


def test_an_operator_removes_one_static_member_which_joins_again(world):
    a, b = Member(world, "a", group_instance_id="one"), Member(world, "b")
    settle(a, b)
    admin = world.open().admin()
    with pytest.raises(InvalidRequestError, match=r"no member with the group\.instance\.id 'two'"):
        admin.remove_members("g", ["one", "two"])
    for wrong in ("", ["one", ""]):
        with pytest.raises(InvalidRequestError, match=r"is not a group\.instance\.id"):
            admin.remove_members("g", wrong)
    with pytest.raises(InvalidRequestError, match="the list of members to remove is empty"):
        admin.remove_members("g", [])
    removed = a.membership.member_id
    assert admin.remove_members("g", "one") == (removed,)
    settle(b)
    assert b.held == [0, 1, 2, 3]
    with pytest.raises(CommitFailedError, match="the group does not have this member"):
        a.consumer.commit({FOUR[0]: 0})
    assert a.consumer.poll(0) is None
    assert a.told[-1] == ("lost", [0, 1])
    settle(b, a)
    assert (len(a.held), len(b.held)) == (2, 2)


def test_what_the_page_says_of_listeners_and_commits_beside_kafka(world):
    consumer = world.open().consumer(group_id="lost", auto_offset_reset="earliest", enable_auto_commit=False)
    told: list[Any] = []

    def lost(partitions: Any) -> None:
        consumer.commit()
        with pytest.raises(CommitFailedError, match="not a member of its group now"):
            consumer.commit({FOUR[0]: 0})
        told.append(partitions)

    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'absent' does not exist"):
        consumer.subscribe(["orders", "absent"])
    consumer.subscribe("orders", on_lost=lost)
    assert consumer.assignment() == tuple(FOUR), "it has joined at once"
    world.clock.advance_ms(SESSION_MS + 1)
    assert consumer.poll(0) is None
    assert told == [tuple(FOUR)]
    assert world.open().consumer(group_id="lost").committed(*FOUR) == dict.fromkeys(FOUR)

    a = Member(world, "a", enable_auto_commit=True, auto_commit_interval_ms=10**6)
    send(world, 1)
    assert len(a.poll()) == 4
    Member(world, "b")
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    assert a.told[-1] == ("revoke", [2, 3])
    assert committed(world) == [None, None, 1, 1], "only what it gives up"


def test_what_the_page_says_of_static_members_and_operators_beside_kafka(world):
    admin = world.open().admin()
    admin.reset_offsets("g", {tp("out", 0): 0})
    a = Member(world, "a", group_instance_id="one", partition_assignment_strategy="range")
    with pytest.raises(InvalidRequestError, match="in use by member"):
        admin.delete_offsets("g", [tp("out", 0)])  # no member reads it
    again = Member(world, "a", group_instance_id="one", partition_assignment_strategy="roundrobin")
    assert again.held == [0, 1, 2, 3]
    assert admin.describe_group("g").assignor == "roundrobin"
    a.consumer.close()
    assert a.told[-1] == ("revoke", [0, 1, 2, 3]), "it has not looked since, and does not know that it was replaced"
    again.consumer.commit({FOUR[0]: 0})
    world.open().consumer(group_id="g", session_timeout_ms=2, heartbeat_interval_ms=1).close()


def test_no_assignor_in_common(world):
    Member(world, "a", partition_assignment_strategy="range")
    with pytest.raises(InvalidRequestError, match=r"partition\.assignment\.strategy"):
        Member(world, "b", partition_assignment_strategy="roundrobin")


def test_settings_that_contradict_each_other(world):
    with pytest.raises(InvalidConfigurationError, match="must be less than session"):
        world.open().consumer(group_id="g", session_timeout_ms=1000, heartbeat_interval_ms=1000)
    with pytest.raises(InvalidConfigurationError, match="'uniform': expected one or more of range, roundrobin"):
        world.open().consumer(group_id="g", partition_assignment_strategy="range,uniform")


def test_the_thread_keeps_a_member_alive_that_works_long(tmp_path: Path) -> None:
    with txlog.open(tmp_path) as store:
        store.create_topic("orders", ORDERS)
        consumer = store.consumer("orders", group_id="g", heartbeat_interval_ms=20, session_timeout_ms=20_000)
        admin = store.admin()
        (joined,) = admin.describe_group("g").members
        deadline = time.monotonic() + 15
        while admin.describe_group("g").members[0].seen_at <= joined.seen_at:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        consumer.commit({tp("orders", 0): 0})
        consumer.close()
        assert not admin.describe_group("g").members


def test_a_job_and_members_share_a_group_only_if_both_are_told_so(world):
    def commit(offset: int, **settings: Any) -> None:
        txn = StagedTransaction.begin(world.open().runtime, "nightly", **settings)
        sent = GroupOffsets(group="g", offsets={FOUR[0]: OffsetValue(offset=offset)})
        try:
            txn.commit(offsets=[sent])
        except CommitFailedError:
            txn.abort()
            raise

    send(world, 1, 2, 3)
    commit(1)
    with pytest.raises(
        InvalidRequestError, match=r"group 'g': 'a-.*' may not become a member, because transactional\.id 'nightly'"
    ):
        Member(world, "a")
    a = Member(world, "a", allow_mixed_groups=True)
    assert sorted(a.poll()) == [11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33]
    with pytest.raises(CommitFailedError, match=r"group 'g': transactional\.id 'nightly' may not commit .* member 'a-"):
        commit(2)
    with pytest.raises(CommitFailedError, match=r"group 'g': the streaming query may not commit .* member 'a-"):
        raise_committed(read_session(world.open().runtime), "g", {FOUR[0]: 2}, "the streaming query")
    assert committed(world) == [1, None, None, None]
    commit(2, allow_mixed_groups=True)
    assert committed(world) == [2, None, None, None]
    with pytest.raises(InvalidRequestError, match=r"'b-.*' may not become a member, because transactional"):
        Member(world, "b")
    a.consumer.commit()
    assert Member(world, "b").held == [], "the member has replaced the offsets of the job"


def test_offsets_of_a_job_keep_their_metadata(world):
    txn = StagedTransaction.begin(world.open().runtime, "nightly")
    offsets = {FOUR[0]: OffsetValue(offset=1, metadata="mine"), FOUR[1]: OffsetValue(offset=1)}
    txn.commit(offsets=[GroupOffsets(group="g", offsets=offsets)])
    found = world.open().consumer(group_id="g").committed(*FOUR[:2])
    assert [each.metadata for each in found.values()] == ["mine", "txlog-job: transactional.id 'nightly'"]


# -- clocks that are wrong --------------------------------------------------------------------------------------------


def a_record_from_ahead(world: World, ms: int) -> None:
    """Let a process whose clock is ahead commit for another group in the partition of "g"."""
    home = offsets_partition("g", 50)
    neighbour = next(name for name in map(str, range(10_000)) if offsets_partition(name, 50) == home)
    world.clock.step_wall_ms(ms)
    world.open().consumer(group_id=neighbour).commit({FOUR[0]: 0})
    world.clock.step_wall_ms(-ms)


MINUTES_14 = 14 * 60_000
DAY_MS = 24 * 3600_000


@pytest.mark.parametrize("ms", [14 * 60_000, 2 * 3600_000])
def test_a_record_from_ahead_ends_no_session_and_a_killed_member_is_removed_in_time(world, ms):
    """Each record of the partition has the time of that record until the clocks have caught up (W11)."""
    a, b = Member(world, "a"), Member(world, "b")
    settle(a, b)
    a_record_from_ahead(world, ms)
    a.consumer.commit({FOUR[0]: 0})
    for _ in range(20):
        world.clock.advance_ms(LOOK_MS)
        for each in (a, b):
            each.consumer.poll(0)
            each.membership.tick()
    assert (a.held, b.held) == ([0, 1], [2, 3])
    assert ("lost", [0, 1]) not in a.told
    assert ("lost", [2, 3]) not in b.told
    b.membership._stop.set()
    for _ in range((SESSION_MS + 10_000) // LOOK_MS):
        world.clock.advance_ms(LOOK_MS)
        a.consumer.poll(0)
        a.membership.tick()
    assert a.held == [0, 1, 2, 3]


class Elsewhere(Member):
    """A member whose clock is wrong: its wall clock differs from that of the world, and runs as fast."""

    def __init__(self, world: World, name: str, ms: int) -> None:
        self.wrong = ManualClock(now_ms=world.clock.now_ms() + ms)
        super().__init__(World.of(world.memory, self.wrong), name)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_member_whose_clock_is_set_by_hours_removes_nobody(world, leaves):
    a, b = Member(world, "a"), Elsewhere(world, "b", 0)
    settle(a, b)
    b.wrong.step_wall_ms(2 * 3600_000)
    if leaves:
        b.consumer.close()
    else:
        with pytest.raises(ClockSkewError):
            b.consumer.poll(0)
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    a.membership.tick()
    assert "lost" not in [what for what, _ in a.told]
    assert a.held == ([0, 1, 2, 3] if leaves else [0, 1])


@pytest.mark.parametrize("asks", ["topic", "rebalance"])
def test_a_sync_that_wrote_nothing_shows_no_life_and_is_made_again(world, monkeypatch, asks):
    pattern, names = re.compile("orders.*"), ["orders"]
    a = Member(world, "a", topics=pattern, metadata_max_age_ms=0)
    generation = a.consumer.group_metadata().generation_id
    if asks == "topic":
        world.open().create_topic("orders-2", ORDERS)
        names.append("orders-2")
    else:
        a.consumer.enforce_rebalance()
    world.clock.advance_ms(LOOK_MS)
    before = a.membership.alive_at
    with monkeypatch.context() as patch:
        patch.setattr("txlog.core.members.judge_sync", lambda *_, **more: None)
        a.consumer.poll(0)
    assert a.membership.alive_at == before
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    assert a.consumer.group_metadata().generation_id > generation
    assert {each.topic for each in a.consumer.assignment()} == set(names)
    assert a.membership.alive_at != before


def test_a_rebalance_that_was_asked_for_is_made_after_a_static_member_has_slept(world):
    """Its join takes over the generation that it had, so it asks for another one."""
    a = Member(world, "a", group_instance_id="one")
    a.poll()
    generation = a.consumer.group_metadata().generation_id
    a.consumer.enforce_rebalance()
    world.clock.advance_ms(SESSION_MS + 1)
    a.consumer.poll(0)
    assert [what for what, _ in a.told][:2] == ["assign", "lost"]
    world.clock.advance_ms(LOOK_MS)
    a.consumer.poll(0)
    assert a.consumer.group_metadata().generation_id == generation + 1


@pytest.mark.parametrize("wrong_ms", [-MINUTES_14, MINUTES_14])
@pytest.mark.parametrize("killed", ["the wrong one", "a right one"])
def test_a_wrong_clock_in_the_group_ends_no_session_and_hides_no_death(world, wrong_ms, killed):
    right = [Member(world, "a"), Member(world, "b")]
    settle(*right)
    wrong = Elsewhere(world, "c", wrong_ms)
    everybody = [*right, wrong]

    def live(members, ms):
        for _ in range(ms // LOOK_MS):
            world.clock.advance_ms(LOOK_MS)
            wrong.wrong.advance_ms(LOOK_MS)
            for each in members:
                each.consumer.poll(0)
                each.membership.tick()

    live(everybody, 120_000)
    assert sorted(held for each in everybody for held in each.held) == [0, 1, 2, 3]
    assert all(each.held for each in everybody)
    dead = wrong if killed == "the wrong one" else right[0]
    dead.membership._stop.set()
    rest = [each for each in everybody if each is not dead]
    live(rest, SESSION_MS + 10_000)
    assert sorted(held for each in rest for held in each.held) == [0, 1, 2, 3]
    assert not any(what == "lost" for each in everybody for what, _ in each.told)


@pytest.mark.parametrize("wrong_ms", [-MINUTES_14, MINUTES_14])
def test_a_join_with_a_wrong_clock_asks_the_store_how_old_a_heartbeat_is(world, wrong_ms):
    a = Member(world, "a")
    world.clock.advance_ms(SESSION_MS - 5_000)
    assert Elsewhere(world, "b", wrong_ms).held == [], "the session is not over"
    assert "lost" not in [what for what, _ in a.told]


def test_a_join_removes_no_member_that_lives_and_whose_clock_is_behind(world):
    """Its heartbeats have the times of that clock, which may be wrong by E (W53)."""
    behind = Elsewhere(world, "a", -MINUTES_14)
    world.clock.advance_ms(SESSION_MS - 5_000)
    assert Member(world, "b").held == []
    assert "lost" not in [what for what, _ in behind.told]


def test_a_join_removes_no_member_whose_clock_was_set_back_by_an_hour(world):
    """The store's time of a heartbeat that is still in the tail counts, not the heartbeat's `timestamp` (W53)."""
    behind = Elsewhere(world, "a", 0)
    behind.wrong.step_wall_ms(-3600_000)
    for _ in range((SESSION_MS + MAX_CLOCK_ERROR_MS) // 15_000 + 2):
        for clock in (world.clock, behind.wrong):
            clock.advance_ms(15_000)
        behind.consumer.poll(0)
        behind.membership.tick()
    assert Member(world, "b").held == []
    behind.consumer.poll(0)
    assert "lost" not in [what for what, _ in behind.told]


@pytest.mark.parametrize("wrong_ms", [0, MINUTES_14])
def test_a_join_long_after_a_death_waits_for_nothing(world, wrong_ms):
    """Also if the dead member's heartbeats were sealed since."""
    a = Member(world, "a")
    for number in range(40 if wrong_ms else 1):
        a.consumer.commit({FOUR[0]: number})
    world.clock.advance_ms(SESSION_MS + 1_000)
    assert Elsewhere(world, "b", wrong_ms).held == [0, 1, 2, 3]


def test_a_slow_call_hides_no_heartbeat_of_the_thread(world):
    a = Member(world, "a")
    began = a.store.runtime.read_clocks()
    world.clock.advance_ms(SESSION_MS - 10_000)
    a.membership.tick()
    a.membership._wrote(a.membership.member_id, began)
    assert a.membership._age_ms() == 0


def test_members_that_live_shorter_than_a_session_remove_a_dead_one(world):
    """Nobody watches it for long enough, and a busy neighbour seals its heartbeats again and again."""
    dead = Member(world, "a")
    dead.membership._stop.set()
    for number in range(30):
        world.clock.advance_ms(SESSION_MS - 5_000)
        for _ in range(INTERNAL_ROLL.batches):
            a_record_from_ahead(world, 0)
        short = Member(world, f"short{number}")
        short.consumer.poll(0)
        if short.held:
            break
        short.consumer.close()
    assert short.held == [0, 1, 2, 3]
    assert number * (SESSION_MS - 5_000) < SESSION_MS + MAX_CLOCK_ERROR_MS


@pytest.mark.parametrize("ms", [SESSION_MS - 5_000, SESSION_MS + 5_000])
def test_a_sync_after_a_long_revocation_shows_life_unless_the_session_is_over(world, ms):
    a = Member(world, "a")
    a.consumer.subscribe("orders", on_revoke=lambda _: world.clock.advance_ms(ms), on_lost=a.note("lost"))
    a.membership._stop.set()
    Member(world, "b").membership._stop.set()
    world.clock.advance_ms(LOOK_MS)
    generation = a.consumer.group_metadata().generation_id
    a.consumer.poll(0)
    if ms < SESSION_MS:
        assert a.membership._age_ms() == 0
        assert a.held == [0, 1]
    else:
        assert a.told == [("assign", [0, 1, 2, 3]), ("lost", [0, 1])]
        assert a.consumer.group_metadata().generation_id == generation + 2, "it has joined again, and wrote no sync"


@pytest.mark.parametrize("wrong_ms", [0, MINUTES_14])
def test_a_join_finds_a_death_whose_heartbeats_vacuum_has_removed(world, wrong_ms):
    """The log then has no segment: all of it lies below the boundary."""
    a, home = Member(world, "a"), offsets_partition("g", 50)
    a.membership._stop.set()
    for _ in range(INTERNAL_ROLL.batches):
        a_record_from_ahead(world, 0)
    runtime = world.open().runtime
    for _ in range(3):
        world.clock.advance_ms(2 * DAY_MS)
        vacuum(runtime, read_session(runtime), dry_run=False)
        a_record_from_ahead(world, 0)
    left = [path for path in world.memory.list(home.folder) if path.endswith((".index", ".boundary"))]
    assert [path.rpartition(".")[2] for path in left] == ["boundary"]
    assert Elsewhere(world, "b", wrong_ms).held == [0, 1, 2, 3]


@pytest.mark.parametrize("wrong_ms", [-MINUTES_14, MINUTES_14])
def test_a_join_after_the_death_of_a_member_with_a_wrong_clock_waits_for_nothing(world, wrong_ms):
    """Its last heartbeat may be from the future, by the clock of the process that joins."""
    dead = Elsewhere(world, "a", wrong_ms)
    dead.membership._stop.set()
    world.clock.advance_ms(SESSION_MS + 1_000)
    assert Member(world, "b").held == [0, 1, 2, 3]


def test_a_member_that_slept_past_its_session_is_fenced_although_nobody_has_noticed(world):
    a = Member(world, "a")
    metadata = a.consumer.group_metadata()
    world.clock.advance_ms(SESSION_MS + 1)
    with pytest.raises(CommitFailedError, match=r"session\.timeout\.ms"):
        a.consumer.commit({FOUR[0]: 0})
    with world.open().producer("copy") as producer:
        producer.begin_transaction()
        with pytest.raises(CommitFailedError, match=r"session\.timeout\.ms"):
            producer.send_offsets_to_transaction({FOUR[0]: 1}, metadata)
        producer.abort_transaction()


def test_a_poll_that_slept_past_its_session_while_it_read_joins_again_first(world, monkeypatch):
    send(world, 1)
    a = Member(world, "a")
    take = a.consumer._fetcher.next_batch

    def slowly():
        batch = take()
        if batch is not None:
            monkeypatch.undo()
            world.clock.advance_ms(SESSION_MS + 1)
        return batch

    monkeypatch.setattr(a.consumer._fetcher, "next_batch", slowly)
    assert sorted(a.poll()) == [10, 11, 12, 13]
    assert a.told[1:] == [("lost", [0, 1, 2, 3]), ("assign", [0, 1, 2, 3])], (
        "it has joined again before it returned them"
    )
