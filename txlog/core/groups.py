"""May this group commit these offsets now, and what has it committed?

The functions judge on the fold of a `__consumer_offsets` partition up to the slot that the commit would take
(PROTOCOL.md, W34, W35, W57).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from txlog.core.ages import ClockReading
from txlog.core.internal_partitions import internal_partition
from txlog.core.members import check_member, find_living
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from txlog.core.records import GroupEntry, GroupValue, OffsetEntry, OffsetValue
from txlog.core.state import PartitionState
from txlog.errors import CommitFailedError, ConcurrentTransactionsError, TxlogError, UnstableOffsetCommitError

JOB_MARK = "txlog-job: "
"""Begins the metadata of offsets that a job has committed. The rest names the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCondition:
    """The condition of an offset commit.

    It is the group's generation and member, or the offsets that the job started from.
    """

    generation: int | None = None
    member_id: str = ""
    expected: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """Committed offset that each partition must still have; None: no offset was committed."""
    job: str = ""
    """Names a job that reads its partitions without membership. Then the group must have no live member (W57)."""
    alive: bool = False
    """Whether the member knows by its own clocks that its session is not over (W54)."""
    alive_at: ClockReading | None = None
    """When the member showed last that it lives, if this process knows."""
    session_timeout_ms: int = 0

    def judged(self, now: ClockReading) -> OffsetsCondition:
        """Return the condition with `alive`, if this process knows when the member showed last that it lives."""
        alive = self.alive_at is not None and now.ms_since(self.alive_at) <= self.session_timeout_ms
        return replace(self, alive=self.alive or alive)


def offsets_partition(group: str, partitions: int) -> TopicPartition:
    """Return the partition of `__consumer_offsets` for a group: abs(javaStringHash(group)) mod N."""
    return TopicPartition(CONSUMER_OFFSETS_TOPIC, internal_partition(group, partitions))


def offset_entries(group: str, offsets: Mapping[TopicPartition, OffsetValue | None]) -> tuple[OffsetEntry, ...]:
    """Return the entries that commit `offsets` (None: a tombstone), in order of topic and partition."""
    return tuple(
        OffsetEntry(group=group, topic=tp.topic, partition=tp.partition, value=value)
        for tp, value in sorted(offsets.items(), key=lambda i: i[0])
    )


def check_commit(
    state: PartitionState,
    entries: Iterable[OffsetEntry],
    *,
    group: str,
    condition: OffsetsCondition | None,
    producer_id: int | None,
    now_ms: int = -1,
) -> TxlogError | None:
    """Return None if the commit may be appended next, otherwise the error (W34, W35, W55, W57).

    A plain (non-transactional) commit has no `producer_id`. Without a `condition` it is that of a consumer that is no
    member, so the group must have no live member (W55). `now_ms` is the time of the record.
    """
    entries = tuple(entries)
    partitions = [TopicPartition(entry.topic, entry.partition) for entry in entries]
    if (wrong := _check_generation(state, group, condition, partitions, now_ms)) is not None:
        return wrong
    if condition is None and producer_id is None and (wrong := _check_empty(state, group, now_ms)) is not None:
        return wrong
    if condition is not None and condition.job and (wrong := _check_alone(state, group, condition.job, now_ms)):
        return wrong
    expected = condition.expected if condition is not None else {}
    for entry in entries:
        tp = TopicPartition(entry.topic, entry.partition)
        for pid, rows in state.pending.items():
            row = rows.get(entry.key)
            if row is None or pid == producer_id:
                continue
            pending_value = row.entry.value
            if tp in expected or (producer_id is None and pending_value is not None and pending_value.conditional):
                return ConcurrentTransactionsError(
                    f"group {group!r}, {tp}: producer {pid} has an undecided transaction with offset "
                    f"{pending_value.offset if pending_value else None} for it; try again when that is decided"
                )
        if tp in expected:
            committed = state.committed.get(entry.key)
            found = (
                committed.entry.value.offset if committed is not None and committed.entry.value is not None else None
            )
            if found != expected[tp]:
                return CommitFailedError(
                    f"group {group!r}, {tp}: the job started from offset {expected[tp]}, but {found} is committed "
                    "now: another job took this range. "
                    "hint: abort, read the committed offsets again and start from there"
                )
    return None


def fetch_offset(
    state: PartitionState, group: str, tp: TopicPartition, *, require_stable: bool
) -> OffsetValue | UnstableOffsetCommitError | None:
    """Return the committed offset, or None if there is none.

    While a transaction with another offset is undecided, return an UnstableOffsetCommitError (R16).
    """
    key = (group, tp.topic, tp.partition)
    if require_stable:
        for pid, rows in state.pending.items():
            if key in rows:
                return UnstableOffsetCommitError(
                    f"group {group!r}, {tp}: producer {pid} has an undecided transaction with an offset for it; try "
                    "again when that is decided"
                )
    row = state.committed.get(key)
    return row.entry.value if row is not None else None


def find_job(state: PartitionState, group: str) -> str:
    """Return the job that has committed, or is about to commit, offsets of the group; empty if there is none (W57)."""
    for rows in (state.committed, *state.pending.values()):
        for row in rows.values():
            value = row.entry.value
            if row.entry.group == group and value is not None and value.metadata.startswith(JOB_MARK):
                return value.metadata.removeprefix(JOB_MARK)
    return ""


def judge_join(
    state: PartitionState, *, group: str, member_id: str, client_id: str, topics: tuple[str, ...], now_ms: int
) -> GroupEntry:
    """Return the entry with which a member joins the group: generation + 1 fences older members (W36)."""
    row = state.groups.get(group)
    generation = row.entry.value.generation + 1 if row is not None and row.entry.value is not None else 1
    return GroupEntry(
        group=group,
        value=GroupValue(
            generation=generation, member_id=member_id, client_id=client_id, topics=topics, updated_at=now_ms
        ),
    )


def _check_alone(state: PartitionState, group: str, job: str, now_ms: int) -> CommitFailedError | None:
    living = find_living(state.groups.get(group), now_ms)
    if living is None:
        return None
    return CommitFailedError(
        f"group {group!r}: {job} may not commit its offsets, because member {living.member_id!r} shares the "
        "partitions of this group. "
        "hint: let one of the two use the group; with a group.id of its own, or allow.mixed.groups=true, both read the "
        "same rows"
    )


def _check_empty(state: PartitionState, group: str, now_ms: int) -> CommitFailedError | None:
    living = find_living(state.groups.get(group), now_ms)
    if living is None:
        return None
    return CommitFailedError(
        f"group {group!r}: a consumer that is no member may not commit, because member {living.member_id!r} shares "
        "the partitions of this group. "
        "hint: call subscribe() to become a member, or name another group.id"
    )


def _check_generation(
    state: PartitionState,
    group: str,
    condition: OffsetsCondition | None,
    partitions: Iterable[TopicPartition],
    now_ms: int,
) -> CommitFailedError | None:
    if condition is None or condition.generation is None:
        return None
    row = state.groups.get(group)
    value = row.entry.value if row is not None else None
    if value is not None and value.members:
        member_id, alive = condition.member_id, condition.alive
        return check_member(state, group, member_id, condition.generation, partitions, now_ms, alive=alive)
    if value is not None and (value.generation, value.member_id) == (condition.generation, condition.member_id):
        return None
    found = "no member now: this one left, or was removed"
    if value is not None and value.member_id:
        found = f"generation {value.generation} of member {value.member_id!r} now: another consumer joined"
    return CommitFailedError(
        f"group {group!r}: member {condition.member_id!r} of generation {condition.generation} may not commit, "
        f"because the group has {found}. "
        "hint: call subscribe() again and continue from the committed offsets"
    )
