"""Members of a group share its partitions: join, generation, assignment, sessions, commits (PROTOCOL.md, W51, W52, W53,
W54, W55)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.core.partition_log import OFFSETS_TP, Log, offset_entry
from txlog.core.groups import OffsetsCondition, check_commit
from txlog.core.members import (
    STOPPED,
    beat_of,
    check_member,
    find_member,
    is_over,
    judge_heartbeat,
    judge_join,
    judge_leave,
    judge_sync,
    needs_change,
    needs_sync,
    numbers_of,
    partitions_of,
)
from txlog.core.names import TopicPartition
from txlog.core.records import Entry, GroupEntry, GroupMember, GroupRow, GroupValue, HeartbeatEntry
from txlog.core.snapshot_state import check_snapshot, from_snapshot, to_snapshot
from txlog.errors import CommitFailedError, CorruptRecordError, InvalidRequestError

SESSION_MS = 1000
DAY_MS = 24 * 3600_000


def tp(number: int) -> TopicPartition:
    return TopicPartition("orders", number)


class Group:
    """The group `g` in a log. Each call writes what the shipped rules decide."""

    def __init__(self, count: int = 4) -> None:
        self.log = Log(OFFSETS_TP)
        self.partitions = {"orders": count}

    @property
    def row(self) -> GroupRow:
        return self.log.state.groups["g"]

    @property
    def value(self) -> GroupValue:
        found = self.row.entry.value
        assert found is not None
        return found

    def write(self, found: Any) -> bool:
        if not isinstance(found, tuple):
            return False
        entries: tuple[Entry, ...] = found
        self.log.put(self.log.draft(-1, -1, -1, entries=entries))
        return True

    def join(self, name: str, *, instance: str = "", topics: tuple[str, ...] = ("orders",), **more: Any) -> Any:
        joining = GroupMember(
            member_id=name,
            instance_id=instance,
            topics=topics,
            assignors=more.get("assignors", ("range",)),
            session_timeout_ms=SESSION_MS,
            generation=0,
        )
        found = judge_join(
            self.log.state.groups.get("g"),
            group="g",
            joining=joining,
            partitions=self.partitions,
            now_ms=self.log.now_ms,
        )
        return found if not self.write(found) else None

    def sync(self, name: str, held: Iterable[int]) -> bool:
        return self.write(
            judge_sync(
                self.row,
                group="g",
                member_id=name,
                held=[tp(number) for number in held],
                partitions=self.partitions,
                now_ms=self.log.now_ms,
            )
        )

    def beat(self, name: str) -> bool:
        return self.write(judge_heartbeat(self.row, group="g", member_id=name, now_ms=self.log.now_ms))

    def leave(self, name: str) -> bool:
        return self.write(judge_leave(self.row, group="g", member_id=name, now_ms=self.log.now_ms))

    def commit(self, name: str, generation: int, *numbers: int) -> Any:
        entries = [offset_entry("g", number, 9) for number in numbers]
        return check_commit(
            self.log.state,
            entries,
            group="g",
            condition=OffsetsCondition(generation=generation, member_id=name),
            producer_id=None,
            now_ms=self.log.now_ms,
        )

    def owned(self) -> dict[str, list[int]]:
        return {
            each.member_id: [at.partition for at in sorted(partitions_of(each.owned))] for each in self.value.members
        }

    def generations(self) -> list[int]:
        return [self.value.generation, *(each.generation for each in self.value.members)]


def test_what_a_process_has_watched_ends_a_session_and_times_of_two_clocks_do_not() -> None:
    group = Group()
    for name in "ab":
        group.join(name)
    row, now_ms = group.row, group.log.now_ms + SESSION_MS + 1
    assert row is not None
    a, b = group.value.members
    beat_ms = beat_of(row, "a")
    assert is_over(row, a, now_ms)
    assert not is_over(row, a, now_ms + DAY_MS, {}), "one of two clocks may have been set by days"
    assert is_over(row, a, 0, {"a": beat_ms})
    assert is_over(row, a, 0, {"a": STOPPED})
    assert not is_over(row, a, now_ms, {"a": beat_ms - 1}), "there is a newer heartbeat"
    assert not is_over(row, b, now_ms, {"a": beat_ms})
    assert judge_heartbeat(row, group="g", member_id="a", now_ms=now_ms) is None
    assert judge_heartbeat(row, group="g", member_id="a", now_ms=now_ms, alive=True)
    sync: dict[str, Any] = {"group": "g", "member_id": "a", "held": [], "partitions": group.partitions}
    assert judge_sync(row, now_ms=now_ms, **sync) is None
    for quiet, left in (({}, ["a", "b"]), ({"b": beat_of(row, "b")}, ["a"])):
        entries = judge_sync(row, now_ms=now_ms, quiet=quiet, **sync)
        assert entries is not None
        (value,) = [entry.value for entry in entries if isinstance(entry, GroupEntry)]
        assert value is not None
        assert [each.member_id for each in value.members] == left


def test_a_clock_that_was_set_by_days_ends_no_session_and_refuses_no_member_that_lives() -> None:
    """All records of the partition have such a time from then on (W11, W53, W54)."""
    group = Group()
    for name in "ab":
        group.join(name)
    row, now_ms = group.row, group.log.now_ms + DAY_MS
    member = find_member(group.value, "a")
    assert member is not None
    owned = partitions_of(member.owned)
    assert check_member(group.log.state, "g", "a", member.generation, owned, now_ms, alive=True) is None
    assert judge_heartbeat(row, group="g", member_id="a", now_ms=now_ms, alive=True) is not None
    own: dict[str, Any] = {"group": "g", "member_id": "a", "now_ms": now_ms}
    for entries, left in (
        (judge_sync(row, held=[], partitions=group.partitions, quiet={}, **own), "ab"),
        (judge_leave(row, **own), "b"),
    ):
        assert entries is not None
        (value,) = [entry.value for entry in entries if isinstance(entry, GroupEntry)]
        assert value is not None
        assert "".join(each.member_id for each in value.members) == left


def test_each_heartbeat_is_newer_than_the_one_before_while_the_clock_stands_still() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    for _ in range(3):
        assert group.row is not None
        before = {name: beat_of(group.row, name) for name in "ab"}
        assert group.beat("a")
        assert beat_of(group.row, "a") > before["a"]
        assert beat_of(group.row, "b") == before["b"]


def test_the_first_member_has_everything_at_once() -> None:
    group = Group()
    group.join("a")
    assert group.owned() == {"a": [0, 1, 2, 3]}
    assert group.generations() == [1, 1]
    assert not group.sync("a", range(4)), "there is nothing to write"


def test_a_second_member_gets_what_the_first_gives_up() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    assert group.owned() == {"a": [0, 1, 2, 3], "b": []}
    assert not group.sync("b", []), "it waits"
    assert group.sync("a", [0, 1])
    assert group.owned() == {"a": [0, 1], "b": []}
    assert group.sync("b", [])
    assert group.owned() == {"a": [0, 1], "b": [2, 3]}
    assert group.generations() == [2, 2, 2]
    assert not group.sync("a", [0, 1])
    assert not group.sync("b", [2, 3])


def test_a_member_that_leaves_takes_along_no_other_one_whose_session_only_another_clock_ends() -> None:
    group = Group()
    for name in "ab":
        group.join(name)
    group.log.now_ms += SESSION_MS + 1
    group.leave("a")
    assert [each.member_id for each in group.value.members] == ["b"]


def test_the_share_of_a_member_that_leaves_goes_to_the_others() -> None:
    group = Group()
    for name in "ab":
        group.join(name)
    group.sync("a", [0, 1])
    group.sync("b", [])
    assert group.leave("a")
    assert not group.leave("a")
    assert group.owned() == {"b": [2, 3]}
    assert group.sync("b", [2, 3])
    assert group.owned() == {"b": [0, 1, 2, 3]}
    assert group.leave("b")
    assert (group.value.members, group.value.generation) == ((), 3)
    group.join("c")
    assert group.generations() == [4, 4]


def test_a_member_whose_session_is_over_is_removed_and_its_share_goes_on() -> None:
    group = Group()
    group.join("a")
    group.log.now_ms += SESSION_MS
    group.join("b")
    assert set(group.owned()) == {"a", "b"}, "a session lasts as long as it says"
    group.log.now_ms += 1
    assert needs_change(group.row, group.partitions, now_ms=group.log.now_ms)
    assert group.sync("b", [])
    assert group.owned() == {"b": [0, 1, 2, 3]}
    assert not group.sync("a", range(4))
    assert not group.beat("a")


def test_a_join_removes_dead_members() -> None:
    group = Group()
    group.join("a")
    group.log.now_ms += SESSION_MS + 1
    group.join("b")
    assert group.owned() == {"b": [0, 1, 2, 3]}


def test_a_heartbeat_keeps_a_member_and_wakes_none() -> None:
    group = Group()
    group.join("a")
    group.log.now_ms += SESSION_MS
    assert group.beat("a")
    group.log.now_ms += SESSION_MS
    assert group.commit("a", 1, 0) is None
    group.log.now_ms += 1
    assert not group.beat("a"), "its session is over, although no process has removed it"
    assert not group.sync("a", [])
    assert not group.beat("b")
    error = group.commit("a", 1, 0)
    assert isinstance(error, CommitFailedError)
    assert "session.timeout.ms of 1000" in str(error)


def test_a_heartbeat_in_an_aborted_transaction_counts() -> None:
    group = Group()
    group.join("a")
    group.log.now_ms += SESSION_MS
    entries: tuple[Entry, ...] = (offset_entry("g", 0, 5), HeartbeatEntry(group="g", member_id="a"))
    group.log.put(group.log.draft(7, 0, -1, txn=True, entries=entries))
    group.log.marker(False, 7, 1)
    group.log.now_ms += SESSION_MS
    assert group.beat("a")
    assert not group.log.state.committed


def test_commits() -> None:
    group = Group()
    group.join("a")
    assert group.commit("a", 1, 0, 3) is None
    group.join("b")
    # the generation of a commit is the one that the member has seen
    assert group.commit("a", 1, 0, 3) is None
    assert isinstance(group.commit("a", 2, 0), CommitFailedError)
    group.sync("a", [0, 1])
    assert isinstance(group.commit("a", 1, 0), CommitFailedError)
    assert group.commit("a", 2, 0, 1) is None
    # another member may have read what it gave up, and have left since
    assert "it gave up orders-2" in str(group.commit("a", 2, 2))
    group.sync("b", [])
    assert "another member reads orders-2" in str(group.commit("a", 2, 0, 2))
    assert group.commit("b", 2, 2, 3) is None
    assert isinstance(group.commit("x", 2, 2), CommitFailedError)
    group.leave("a")
    assert isinstance(group.commit("a", 2, 0), CommitFailedError)


def test_a_static_member_takes_over_in_the_same_generation() -> None:
    group = Group()
    group.join("a", instance="one")
    group.join("b", instance="two")
    group.sync("a", [0, 1])
    group.sync("b", [])
    generations, owned = group.generations(), group.owned()
    group.join("c", instance="one")
    assert group.generations() == generations
    assert group.owned() == {"b": owned["b"], "c": owned["a"]}
    assert isinstance(group.commit("a", 2, 0), CommitFailedError)
    assert group.commit("c", 2, 0) is None
    assert not group.beat("a")


def test_a_static_member_with_another_subscription_makes_a_generation() -> None:
    group = Group()
    group.join("a", instance="one")
    group.partitions = {"orders": 4, "audit": 1}
    group.join("c", instance="one", topics=("orders", "audit"))
    assert group.generations() == [2, 2]
    assert group.value.members[0].owned == {"audit": (0,), "orders": (0, 1, 2, 3)}


def test_a_join_that_is_repeated_changes_nothing_else() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    before = group.value
    group.join("b")
    assert group.value == before


def test_a_member_subscribes_to_more_without_giving_up_what_it_owns() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    group.sync("a", [0, 1])
    group.sync("b", [])
    group.partitions = {"orders": 4, "new": 2}
    found = judge_sync(
        group.row,
        group="g",
        member_id="a",
        held=[tp(0), tp(1)],
        partitions=group.partitions,
        now_ms=group.log.now_ms,
        topics=("orders", "new"),
    )
    assert group.write(found)
    a, b = group.value.members
    assert group.generations() == [3, 3, 2]
    assert (a.topics, b.topics) == (("orders", "new"), ("orders",))
    assert partitions_of(a.owned) == {tp(0), tp(1), TopicPartition("new", 0), TopicPartition("new", 1)}
    assert partitions_of(b.owned) == {tp(2), tp(3)}


def test_more_partitions_make_a_generation() -> None:
    group = Group(2)
    group.join("a")
    group.partitions = {"orders": 3}
    assert needs_change(group.row, group.partitions, now_ms=group.log.now_ms)
    assert group.sync("a", [0, 1])
    assert group.owned() == {"a": [0, 1, 2]}
    # a member that has an older view of the topic takes nothing back
    group.partitions = {"orders": 2}
    assert not group.sync("a", [0, 1, 2])


def test_the_assignor_is_common_to_all() -> None:
    group = Group()
    group.join("a", assignors=("roundrobin", "range"))
    assert group.value.assignor == "roundrobin"
    error = group.join("b", assignors=("cooperative-sticky",))
    assert isinstance(error, InvalidRequestError)
    assert "partition.assignment.strategy" in str(error)
    group.join("b", assignors=("range", "cooperative-sticky"))
    assert group.value.assignor == "range"


def test_the_two_sticky_assignors_share_alike_and_do_not_mix() -> None:
    shares = []
    for name in ("sticky", "cooperative-sticky"):
        group = Group(6)
        for member in "abc":
            assert group.join(member, assignors=(name,)) is None
        shares.append([each.assigned["orders"] for each in group.value.members])
    assert shares[0] == shares[1]
    assert [len(share) for share in shares[0]] == [2, 2, 2]
    assert isinstance(group.join("d", assignors=("sticky",)), InvalidRequestError)


@pytest.mark.parametrize("seed", range(30))
def test_no_partition_has_two_owners_whatever_happens(seed: int) -> None:
    """Random joins, crashes, syncs with old views; in the end every partition has an owner again."""
    rng = random.Random(seed)
    group = Group(5)
    holds: dict[str, set[int]] = {}
    names = iter(f"m{number}" for number in range(1000))

    def follow(name: str, revokes: bool) -> None:
        member = find_member(group.value, name)
        if member is None:
            holds.pop(name)
            return
        if revokes:
            holds[name] &= {at.partition for at in partitions_of(member.assigned)}
        group.sync(name, holds[name])
        after = find_member(group.value, name)
        if after is None or is_over(group.row, after, group.log.now_ms):
            holds.pop(name)
        else:
            owns = {at.partition for at in partitions_of(after.owned)}
            assert holds[name] <= owns, "it would read what another member may get"
            holds[name] = owns

    for _ in range(120):
        group.log.now_ms += rng.choice([0, 100, 400])
        action = rng.choice(["join", "sync", "sync", "sync", "beat", "crash", "leave"])
        name = rng.choice(sorted(holds) or [""])
        if action == "join" and len(holds) < 4:
            name = next(names)
            group.join(name, assignors=(rng.choice(["range", "cooperative-sticky"]), "range"))
            joined = find_member(group.value, name)
            assert joined is not None
            holds[name] = {at.partition for at in partitions_of(joined.owned)}
        elif not name:
            continue
        elif action == "sync":
            follow(name, rng.random() < 0.7)
        elif action == "beat":
            group.beat(name)
        elif action == "crash":
            holds.pop(name)
        elif action == "leave":
            group.leave(name)
            holds.pop(name)
        owned = [number for numbers in group.owned().values() for number in numbers] if group.log.state.groups else []
        assert len(owned) == len(set(owned))
    group.join("last")
    holds["last"] = set()
    for _ in range(8):
        group.log.now_ms += 400
        for name in sorted(holds):
            follow(name, True)
    assert sorted(number for numbers in group.owned().values() for number in numbers) == list(range(5))
    for member in group.value.members:
        assert member.owned == member.assigned
        assert not needs_sync(group.value, member, partitions_of(member.owned))


def test_a_snapshot_keeps_members_and_heartbeats() -> None:
    group = Group()
    group.join("a")
    group.log.now_ms += 5
    group.join("b")
    snapshot = to_snapshot(group.log.state)
    check_snapshot(snapshot, "__consumer_offsets/0/x")
    again = from_snapshot(msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)), OFFSETS_TP)
    assert again.groups == group.log.state.groups
    (row,) = snapshot.groups
    for wrong in (row.beats[::-1], (row.beats[0], row.beats[0])):
        damaged = msgspec.structs.replace(snapshot, groups=(msgspec.structs.replace(row, beats=wrong),))
        with pytest.raises(CorruptRecordError, match="heartbeats"):
            check_snapshot(damaged, "__consumer_offsets/0/x")


@pytest.mark.parametrize("wrong", ["order", "owned", "generation", "single"])
def test_impossible_members_are_damage(wrong: str) -> None:
    group = Group()
    group.join("a")
    group.join("b")
    value = group.value
    one, two = value.members
    broken: dict[str, dict[str, Any]] = {
        "order": {"members": (two, one)},
        "owned": {"members": (one, msgspec.structs.replace(two, owned=numbers_of([tp(0)])))},
        "generation": {"generation": 1},
        "single": {"member_id": "a"},
    }
    entry = msgspec.structs.replace(group.row.entry, value=msgspec.structs.replace(value, **broken[wrong]))
    with pytest.raises(CorruptRecordError, match="members of group 'g' do not fit"):
        group.log.put(group.log.draft(-1, -1, -1, entries=(entry,)))
