"""Committed offsets of groups as tables: pending ones (PROTOCOL.md, R16) and conditional commits (W34, W35)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.partition_log import OFFSETS_TP, Log, offset_entry
from txlog.core.groups import (
    OffsetsCondition,
    check_commit,
    fetch_offset,
    judge_join,
    offset_entries,
    offsets_partition,
)
from txlog.core.names import TopicPartition
from txlog.core.records import GroupEntry, GroupValue, OffsetValue
from txlog.errors import CommitFailedError, ConcurrentTransactionsError, UnstableOffsetCommitError

T0, T1, T2 = (TopicPartition("orders", n) for n in range(3))
ME, OTHER = 10, 11
PLAIN = None


def log_of(*steps: tuple[Any, ...]) -> Log:
    """A log of ("plain", partition, offset), ("pending", pid, partition, offset, conditional), ("join", generation,
    id)"""
    log = Log(OFFSETS_TP)
    for step in steps:
        if step[0] == "plain":
            log.offsets([offset_entry("g", step[1], step[2])])
        elif step[0] == "pending":
            log.offsets([offset_entry("g", step[2], step[3], step[4])], pid=step[1], epoch=0)
        else:
            value = GroupValue(generation=step[1], member_id=step[2])
            log.put(log.draft(-1, -1, -1, entries=(GroupEntry(group="g", value=value),)))
    return log


def started_from(**expected: int | None) -> OffsetsCondition:
    return OffsetsCondition(expected={TopicPartition("orders", int(p[1:])): offset for p, offset in expected.items()})


def generation(number: int, member: str) -> OffsetsCondition:
    return OffsetsCondition(generation=number, member_id=member)


@pytest.mark.parametrize(
    ("steps", "who", "condition", "error"),
    [
        ((), PLAIN, None, None),
        ((), ME, None, None),
        # a commit without metadata is accepted, with members or without
        ((("join", 3, "m"),), ME, None, None),
        ((("join", 3, "m"),), PLAIN, None, None),
        # the generation and the member decide
        ((("join", 3, "m"),), ME, generation(3, "m"), None),
        ((("join", 3, "m"), ("join", 4, "n")), ME, generation(3, "m"), CommitFailedError),
        ((("join", 3, "m"),), ME, generation(3, "n"), CommitFailedError),
        ((("join", 3, "m"),), ME, generation(4, "m"), CommitFailedError),
        ((), ME, generation(1, "m"), CommitFailedError),
        ((("join", 3, "m"),), PLAIN, generation(2, "m"), CommitFailedError),
        # a fenced member gets this error, whatever else is pending
        ((("join", 4, "n"), ("pending", OTHER, 0, 9, True)), ME, generation(3, "m"), CommitFailedError),
        # the offset at which the job started decides
        ((), ME, started_from(p0=None), None),
        ((), ME, started_from(p0=0), CommitFailedError),
        ((("plain", 0, 5),), ME, started_from(p0=5), None),
        ((("plain", 0, 5),), ME, started_from(p0=4), CommitFailedError),
        ((("plain", 0, 5),), ME, started_from(p0=None), CommitFailedError),
        ((("plain", 0, 5), ("plain", 0, None)), ME, started_from(p0=None), None),
        ((("plain", 0, 5),), PLAIN, started_from(p0=4), CommitFailedError),
        # others' pending offsets are undecided, so the commit is retriable
        ((("pending", OTHER, 0, 9, True),), ME, started_from(p0=None), ConcurrentTransactionsError),
        ((("pending", OTHER, 0, 9, False),), ME, started_from(p0=None), ConcurrentTransactionsError),
        ((("pending", OTHER, 0, 9, False),), PLAIN, started_from(p0=None), ConcurrentTransactionsError),
        # the producer's own pending offsets do not matter: this is a repeated call
        ((("pending", ME, 0, 9, True),), ME, started_from(p0=None), None),
        ((("pending", OTHER, 1, 9, True),), ME, started_from(p0=None), None),
        # a plain commit must not overtake conditional offsets; it may overtake unconditional ones
        ((("pending", OTHER, 0, 9, True),), PLAIN, None, ConcurrentTransactionsError),
        ((("pending", OTHER, 0, 9, False),), PLAIN, None, None),
        ((("pending", OTHER, 1, 9, True),), PLAIN, None, None),
        ((("pending", OTHER, 0, 9, True),), ME, None, None),
    ],
)
def test_commits(steps: tuple[Any, ...], who: int | None, condition: Any, error: type[Exception] | None) -> None:
    log = log_of(*steps)
    found = check_commit(log.state, [offset_entry("g", 0, 9)], group="g", condition=condition, producer_id=who)
    assert (type(found) if found is not None else None) is error


def test_another_group_is_another_matter() -> None:
    log = log_of(("plain", 0, 5), ("pending", OTHER, 0, 9, True), ("join", 4, "n"))
    entries = [offset_entry("h", 0, 9)]
    for condition in (None, started_from(p0=None)):
        assert check_commit(log.state, entries, group="h", condition=condition, producer_id=ME) is None


def test_two_jobs_of_one_range_cannot_both_commit() -> None:
    # the second is refused while the first is undecided, and always after the first has committed
    log = log_of(("plain", 0, 5))
    entries = [offset_entry("g", 0, 9, True)]
    condition = started_from(p0=5)

    def verdict(pid: int) -> Any:
        return check_commit(log.state, entries, group="g", condition=condition, producer_id=pid)

    assert verdict(ME) is None
    log.offsets(entries, pid=ME, epoch=0)
    assert isinstance(verdict(OTHER), ConcurrentTransactionsError)
    log.commit(ME, 1)
    error = verdict(OTHER)
    assert isinstance(error, CommitFailedError)
    for part in ("'g'", "orders-0", "started from offset 5", "9 is committed now"):
        assert part in str(error)


def test_fetch_over_pending_offsets() -> None:
    log = Log(OFFSETS_TP)
    log.offsets([offset_entry("g", 0, 100), offset_entry("g", 1, 110)])
    log.offsets([offset_entry("g", 1, 111), offset_entry("g", 2, 211)], pid=10, epoch=0)

    def fetch(tp: TopicPartition, stable: bool) -> Any:
        found = fetch_offset(log.state, "g", tp, require_stable=stable)
        return found.offset if isinstance(found, OffsetValue) else type(found)

    assert [fetch(tp, True) for tp in (T0, T1, T2)] == [100, UnstableOffsetCommitError, UnstableOffsetCommitError]
    assert [fetch(tp, False) for tp in (T0, T1, T2)] == [100, 110, type(None)]
    log.commit(10, 1)
    assert [fetch(tp, True) for tp in (T0, T1, T2)] == [100, 111, 211]


def test_joining_takes_the_group() -> None:
    log = log_of()
    for number, member in ((1, "a"), (2, "b"), (3, "a")):
        entry = judge_join(log.state, group="g", member_id=member, client_id="c", topics=("orders",), now_ms=5)
        assert entry.value is not None
        assert (entry.value.generation, entry.value.member_id) == (number, member)
        log.put(log.draft(-1, -1, -1, entries=(entry,)))


def test_entries_stand_in_order() -> None:
    value = OffsetValue(offset=1)
    found = offset_entries("g", {T2: value, T0: None, T1: value})
    assert [(entry.partition, entry.value) for entry in found] == [(0, None), (1, value), (2, value)]


@pytest.mark.parametrize(("group", "partition"), [("", 0), ("a", 47), ("my-txn", 45), ("é€😀", 6)])
def test_a_group_lives_where_kafka_puts_it(group: str, partition: int) -> None:
    assert offsets_partition(group, 50) == TopicPartition("__consumer_offsets", partition)
