"""How do consumer groups commit offsets, and how do members join and leave? See PROTOCOL.md, W34 to W36."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import msgspec

from txlog.core import groups as rules
from txlog.core.append_rules import BatchDraft, Refuse, check_batch, next_record
from txlog.core.effects import NewId, Now, Program
from txlog.core.groups import OffsetsCondition, offset_entries, offsets_partition
from txlog.core.members import find_member, is_over
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TopicPartition
from txlog.core.records import (
    CommitRecord,
    Entry,
    GroupEntry,
    GroupMember,
    GroupValue,
    HeartbeatEntry,
    OffsetEntry,
    OffsetValue,
    TransactionMetadata,
)
from txlog.core.state import PartitionState
from txlog.core.transactions import Skipped, TxnVersion
from txlog.errors import (
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    OutcomeUnknownError,
    StoreAccessError,
    TxlogError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
)
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import gather_fresh_views, get_fresh_view, get_view
from txlog.protocol.seal import seal_in_turn
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import AppendResult, Guard, Stop, find_own
from txlog.protocol.table import registered_guard
from txlog.protocol.transactions import add_partitions, resolve

Judge: TypeAlias = Callable[[PartitionState, int], tuple[Entry, ...] | TxlogError | None]
"""(the fold, wall clock) -> the entries to append, an error, or None: there is nothing to write."""

MAX_METADATA_LENGTH = 4096
MAX_REMOVED_ENTRIES = 4000
"""Entries of one record that removes idle groups. Even with the longest names it stays below the limit of commit
objects."""


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group: its members, if it has any, and its committed and pending offsets."""

    group: str
    member: GroupValue | None
    """The membership. A group without members may have one, because the generation stays."""
    beats: dict[str, int] = {}
    """When each member of `member.members` showed last that it lives."""
    silent: frozenset[str] = frozenset()
    """Members whose session was over when the group was listed or described. They may still be in its row."""
    offsets: dict[TopicPartition, OffsetValue]
    pending: dict[TopicPartition, OffsetValue | None]
    """None: an undecided transaction removes the offset."""

    @property
    def living(self) -> tuple[GroupMember, ...]:
        """The members that a look shows: those that are not `silent`."""
        return tuple(each for each in self.member.members if each.member_id not in self.silent) if self.member else ()


@dataclass(slots=True)
class GroupChange:
    """One call of an operator that changes a group, with all its tries (PROTOCOL.md, W44)."""

    write_id: str
    """The write id of the records of all tries, so that a later try finds what an earlier one has written."""
    member: GroupValue | None = None
    """The member that the record removes."""
    slots: set[int] = field(default_factory=set)
    """Slots where a record of an earlier try may be, or may still land."""

    @property
    def in_doubt(self) -> bool:
        """Return whether an earlier try may have taken effect."""
        return bool(self.slots)

    def has_won(self, view: PartitionView) -> bool:
        """Return whether `view`, a fresh one, shows the record of an earlier try.

        Forget the slots that it shows to be lost. Raise InvalidRequestError if the record of such a slot is sealed:
        `view` shows neither that the earlier try won nor that it lost, and a second record could undo later ones.
        """
        if not self.slots:
            return False
        if find_own(view, self.write_id) is not None:
            return True
        self.slots.difference_update(stored.slot for stored in view.tail)
        if any(slot < view.state.next_offset for slot in self.slots):
            raise InvalidRequestError(
                f"{view.topic_partition}: its record would be sealed by now, and a second one could undo newer changes"
            )
        return False


def home_of(ctx: Context, group: str) -> TopicPartition:
    """Return the partition that holds a group."""
    return offsets_partition(group, ctx.constants.consumer_offsets_partitions)


def fetch_offsets(
    ctx: Context, views: Views, group: str, partitions: Iterable[TopicPartition]
) -> Program[tuple[Views, dict[TopicPartition, OffsetValue | None]]]:
    """Return the committed offsets, read fresh; None for a partition without one.

    If an undecided transaction holds an offset, it is rolled forward or timed out, if that is due and the store lets
    this reader write (PROTOCOL.md, R18). Otherwise the call raises UnstableOffsetCommitError (retriable). It never
    returns the older value.
    """
    tp = home_of(ctx, group)
    wanted = tuple(partitions)
    views, view = yield from get_fresh_view(ctx, views, tp)
    refused: StoreAccessError | None = None
    for producer_id in sorted(view.state.pending):
        if any((group, *want) in view.state.pending[producer_id] for want in wanted):
            try:
                views = yield from resolve(ctx, views, producer_id)
            except StoreAccessError as error:
                # The next request shows whether this process may read at least.
                refused = error
    if view.state.pending:
        views, view = yield from get_fresh_view(ctx, views, tp)
    found: dict[TopicPartition, OffsetValue | None] = {}
    for want in wanted:
        answer = rules.fetch_offset(view.state, group, want, require_stable=True)
        if isinstance(answer, UnstableOffsetCommitError) and refused is not None:
            raise UnstableOffsetCommitError(
                f"{answer}. It may be decided or timed out, but this reader may not write, so it waits for a writer "
                "or for maintenance to end it"
            ) from refused
        if isinstance(answer, UnstableOffsetCommitError):
            raise answer
        found[want] = answer
    return views, found


def commit_offsets(
    ctx: Context,
    views: Views,
    group: str,
    offsets: Mapping[TopicPartition, OffsetValue | None],
    condition: OffsetsCondition | None = None,
) -> Program[Views]:
    """Commit offsets outside of a transaction. A None offset removes the committed one; an empty map does nothing.

    Raises CommitFailedError (the condition does not hold), ConcurrentTransactionsError (a pending conditional offset).
    """
    if not offsets:
        return views
    now_ms = yield Now()
    entries = stamped_entries(group, offsets, now_ms)

    def check(state: PartitionState, time_ms: int) -> TxlogError | None:
        return rules.check_commit(state, entries, group=group, condition=condition, producer_id=None, now_ms=time_ms)

    return (yield from append_entries(ctx, views, group, entries, check, member_id=_member_of(condition)))


def send_offsets(
    ctx: Context,
    views: Views,
    txn: TransactionMetadata,
    group: str,
    offsets: Mapping[TopicPartition, OffsetValue],
    condition: OffsetsCondition | None = None,
    version: TxnVersion | None = None,
) -> Program[tuple[Views, TransactionMetadata | Skipped]]:
    """Send offsets within an eager transaction (TxnOffsetCommit).

    This registers the group's partition, then appends the offsets as pending. The condition is checked on the fold of
    the slot that the record takes. Return the id's record, or Skipped if `version` is not above the last committed one.
    Raises what add_partitions raises, CommitFailedError (abort), ConcurrentTransactionsError (another transaction's
    offsets are pending: repeat the call).
    """
    if not offsets:
        return views, txn
    tp = home_of(ctx, group)
    views, registered = yield from add_partitions(ctx, views, txn, [tp], version)
    if isinstance(registered, Skipped):
        return views, registered
    now_ms = yield Now()
    entries = stamped_entries(group, offsets, now_ms, conditional=condition is not None)

    def check(state: PartitionState, time_ms: int) -> TxlogError | None:
        return rules.check_commit(
            state, entries, group=group, condition=condition, producer_id=txn.producer_id, now_ms=time_ms
        )

    guard = registered_guard(ctx, views, registered, tp)
    views = yield from append_entries(
        ctx, views, group, entries, check, guard, txn=txn, member_id=_member_of(condition)
    )
    return views, registered


def join_group(
    ctx: Context, views: Views, group: str, member_id: str, client_id: str, topics: tuple[str, ...]
) -> Program[tuple[Views, tuple[GroupValue, GroupValue | None]]]:
    """Join the group by a compare-and-set on its partition: generation + 1 fences older members (W36).

    Return the new membership and the former one, None for a new group.
    """
    write_id = yield NewId()
    before: GroupValue | None = None

    def judge(state: PartitionState, now_ms: int) -> tuple[Entry, ...]:
        nonlocal before
        before = membership(state, group)
        entry = rules.judge_join(
            state, group=group, member_id=member_id, client_id=client_id, topics=topics, now_ms=now_ms
        )
        return (entry,)

    views, view, _ = yield from append_change(ctx, views, group, judge, write_id)
    joined = [
        entry.value
        for stored in view.tail
        if stored.record.write_id == write_id
        for entry in stored.record.entries
        if isinstance(entry, GroupEntry) and entry.value is not None
    ]
    value = joined[0] if joined else membership(view.state, group)
    assert value is not None
    return views, (value, before)


def leave_group(ctx: Context, views: Views, group: str, generation: int, member_id: str) -> Program[Views]:
    """Leave the group if this member still holds it. The generation stays."""

    def judge(state: PartitionState, now_ms: int) -> tuple[Entry, ...] | None:
        value = membership(state, group)
        if value is None or (value.generation, value.member_id) != (generation, member_id):
            return None
        return (GroupEntry(group=group, value=GroupValue(generation=generation, member_id="", updated_at=now_ms)),)

    views, _, _ = yield from append_change(ctx, views, group, judge, (yield NewId()))
    return views


def append_change(
    ctx: Context, views: Views, group: str, judge: Judge, write_id: str
) -> Program[tuple[Views, PartitionView, bool]]:
    """Append what `judge` makes of the fold at the slot, in one record. Raise the error that it returns.

    Return the views, the group's partition before its finished segments were sealed, and whether a record was appended.
    """

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        found = judge(state, now_ms)
        if found is None or isinstance(found, TxlogError):
            return Stop(found, refused=found is not None)
        draft = BatchDraft(records=len(found), entries=found, roll=ctx.internal_roll)
        return next_record(state, draft, now_ms=now_ms, write_id=write_id)

    views, view = yield from get_view(ctx, views, home_of(ctx, group))
    view, outcome = yield from append_slot(ctx, view, decide, write_id=write_id)
    if isinstance(outcome, Stop) and outcome.value is not None:
        raise outcome.value
    views = with_view(views, (yield from seal_in_turn(ctx, view, write_id)))
    return views, view, not isinstance(outcome, Stop)


def list_groups(ctx: Context, views: Views) -> Program[tuple[Views, tuple[GroupDescription, ...]]]:
    """Return every group that has a member or an offset, read fresh, by name."""
    tps = [TopicPartition(CONSUMER_OFFSETS_TOPIC, n) for n in range(ctx.constants.consumer_offsets_partitions)]
    views = yield from gather_fresh_views(ctx, views, tps)
    return views, groups_of([views[tp] for tp in tps], (yield Now()))


def groups_of(views: Iterable[PartitionView], now_ms: int) -> tuple[GroupDescription, ...]:
    """Return every group of these partitions that has a member or an offset, by name, as a look shows it now."""
    found = [_judged(description, view.state, now_ms) for view in views for description in _describe_all(view.state)]
    return tuple(sorted(found, key=lambda description: description.group))


def describe_group(ctx: Context, views: Views, group: str) -> Program[tuple[Views, GroupDescription]]:
    """Return one group, read fresh; raise GroupIdNotFoundError if it does not exist."""
    views, view = yield from get_fresh_view(ctx, views, home_of(ctx, group))
    return views, _judged(known_group(view.state, group), view.state, (yield Now()))


def _judged(found: GroupDescription, state: PartitionState, now_ms: int) -> GroupDescription:
    """Return the group with its silent members, by the times that a process compares that removes nobody (W57)."""
    row = state.groups.get(found.group)
    if row is None or found.member is None:
        return found
    now_ms = max(now_ms, state.last_timestamp)
    silent = frozenset(each.member_id for each in found.member.members if is_over(row, each, now_ms))
    return msgspec.structs.replace(found, silent=silent)


def expire_groups(
    ctx: Context, views: Views, idle_ms: int, partitions: Collection[int] | None = None
) -> Program[tuple[Views, tuple[str, ...]]]:
    """Remove groups without live member and pending offset that have not committed for `idle_ms`. Return their names.

    A dead member counts as live until its session is over.

    This is Kafka's `offsets.retention.minutes`. `partitions` are those that hold anything, if known. A group that
    changes meanwhile is not removed.
    """
    numbers = range(ctx.constants.consumer_offsets_partitions) if partitions is None else sorted(partitions)
    tps = [TopicPartition(CONSUMER_OFFSETS_TOPIC, number) for number in numbers]
    views = yield from gather_fresh_views(ctx, views, tps)
    gone: list[str] = []
    for tp in tps:
        for _ in range(ctx.max_races):
            now_ms = yield Now()
            idle = [each for each in _describe_all(views[tp].state) if _is_idle(each, now_ms, idle_ms)]
            if not idle:
                break
            # One record removes many groups: each record costs a request, and its check reads every group of the
            # partition.
            taken, entries = _removed_together(idle)

            def check(state: PartitionState, _: int, taken: list[GroupDescription] = taken) -> TxlogError | None:
                now = {found.group: found for found in _describe_all(state)}
                changed = next((each for each in taken if now.get(each.group) != each), None)
                return None if changed is None else group_changed(changed.group)

            try:
                views = yield from append_entries(ctx, views, taken[0].group, entries, check)
            except ConcurrentTransactionsError:
                # Groups that have changed are no longer idle.
                views, _ = yield from get_fresh_view(ctx, views, tp)
                continue
            gone += [each.group for each in taken]
    return views, tuple(gone)


def _removed_together(idle: list[GroupDescription]) -> tuple[list[GroupDescription], tuple[Entry, ...]]:
    """Return the first of these groups, and the entries that remove them.

    These are as many as one record may hold, and at least one.
    """
    taken: list[GroupDescription] = []
    entries: list[Entry] = []
    for found in idle:
        its = tombstones(found)
        if taken and len(entries) + len(its) > MAX_REMOVED_ENTRIES:
            break
        taken.append(found)
        entries += its
    return taken, tuple(entries)


def tombstones(found: GroupDescription) -> tuple[Entry, ...]:
    """Return the entries that remove a group."""
    member = (GroupEntry(group=found.group, value=None),) if found.member is not None else ()
    return (*offset_entries(found.group, dict.fromkeys(found.offsets)), *member)


def _is_idle(found: GroupDescription, now_ms: int, idle_ms: int) -> bool:
    times, value = [each.timestamp for each in found.offsets.values()], found.member
    if value is not None:
        # The sessions of dead members end by themselves (W53). The only member of an older store has no session.
        ends = (found.beats.get(each.member_id, 0) + each.session_timeout_ms + 1 for each in value.members)
        times += [value.updated_at, *ends]
    if found.pending or (value is not None and value.member_id) or min(times, default=-1) < 0:
        return False
    return now_ms - max(times) >= idle_ms


def append_entries(
    ctx: Context,
    views: Views,
    group: str,
    entries: tuple[Entry, ...],
    check: Callable[[PartitionState, int], TxlogError | None],
    guard: Guard | None = None,
    change: GroupChange | None = None,
    txn: TransactionMetadata | None = None,
    member_id: str = "",
) -> Program[Views]:
    """Append `entries`, within `txn` if given, unless `check` returns an error for the state and the record's time.

    The record is also a heartbeat of `member_id` (W54). A transaction that blocks them is finished if that is due.
    """
    tp = home_of(ctx, group)
    draft = BatchDraft(records=len(entries), entries=entries, roll=ctx.internal_roll)
    if txn is not None:
        draft = replace(
            draft,
            transactional_id=txn.transactional_id,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            transactional=True,
        )
    write_id = change.write_id if change is not None else (yield NewId())

    tried: set[int] = set()

    def append(view: PartitionView) -> Program[tuple[PartitionView, AppendResult | Stop]]:
        try:
            return (yield from append_slot(ctx, view, decide, write_id=write_id, guard=guard, guard_holds=True))
        except (OutcomeUnknownError, TxlogTimeoutError):
            raise
        except TxlogError:
            # No record of this try can land any more (W13).
            if change is not None:
                change.slots.difference_update(tried)
            raise

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        verdict = check_batch(state, draft)
        if isinstance(verdict, Refuse):
            return Stop(verdict.error, refused=True)
        if (wrong := check(state, max(now_ms, state.last_timestamp))) is not None:
            return Stop(wrong, refused=True)
        if change is not None and state.next_offset not in change.slots:
            change.slots.add(state.next_offset)
            tried.add(state.next_offset)
        beats = find_member(membership(state, group), member_id) is not None
        beat = (HeartbeatEntry(group=group, member_id=member_id),) if beats else ()
        with_beat = replace(draft, records=draft.records + len(beat), entries=(*entries, *beat))
        return next_record(state, with_beat, now_ms=now_ms, write_id=write_id)

    views, view = yield from get_view(ctx, views, tp)
    view, outcome = yield from append(view)
    if isinstance(outcome, Stop) and isinstance(outcome.value, ConcurrentTransactionsError):
        # The producer of these offsets may be dead: a writer rolls forward or times out such a transaction (W25, W28).
        views = with_view(views, view)
        for producer_id in _pending_elsewhere(view.state, draft):
            views = yield from resolve(ctx, views, producer_id)
        view, outcome = yield from append(views[tp])
    if isinstance(outcome, Stop) and not (change is not None and change.has_won(view)):
        raise outcome.value.error if isinstance(outcome.value, Refuse) else outcome.value
    view = yield from seal_in_turn(ctx, view, write_id)
    return with_view(views, view)


def _member_of(condition: OffsetsCondition | None) -> str:
    return condition.member_id if condition is not None and condition.generation is not None else ""


def _pending_elsewhere(state: PartitionState, draft: BatchDraft) -> list[int]:
    """Return other producers with undecided offsets for any of the draft's keys."""
    keys = {entry.key for entry in draft.entries if isinstance(entry, OffsetEntry)}
    return sorted(pid for pid, rows in state.pending.items() if pid != draft.producer_id and not keys.isdisjoint(rows))


def active(value: GroupValue | None) -> GroupValue | None:
    """Return the membership if the group has a member, else None: a member that leaves keeps only the generation."""
    return value if value is not None and (value.member_id or value.members) else None


def group_changed(group: str) -> ConcurrentTransactionsError:
    """Return the error of a change that was judged on an older state of the group."""
    return ConcurrentTransactionsError(f"group {group!r} changed while it was being changed here; try again")


def membership(state: PartitionState, group: str) -> GroupValue | None:
    """Return what the group's last membership record holds; None if it has none."""
    row = state.groups.get(group)
    return row.entry.value if row is not None else None


def stamped_entries(
    group: str, offsets: Mapping[TopicPartition, OffsetValue | None], now_ms: int, *, conditional: bool = False
) -> tuple[OffsetEntry, ...]:
    """Return the entries that commit `offsets` at this time; None removes one. Raises OffsetMetadataTooLargeError."""
    stamped: dict[TopicPartition, OffsetValue | None] = {}
    for tp, value in offsets.items():
        if value is not None and len(value.metadata) > MAX_METADATA_LENGTH:
            raise OffsetMetadataTooLargeError(
                f"{tp}: offset metadata of {len(value.metadata)} characters, at most {MAX_METADATA_LENGTH} are stored"
            )
        if value is not None:
            value = msgspec.structs.replace(value, timestamp=now_ms, conditional=conditional)
        stamped[tp] = value
    return offset_entries(group, stamped)


def known_group(state: PartitionState, group: str) -> GroupDescription:
    """Return the group. Raises GroupIdNotFoundError if it has neither a membership nor offsets."""
    for found in _describe_all(state, group):
        return found
    raise GroupIdNotFoundError(
        f"no consumer group {group!r} in this store; `txlog consumer-groups list` shows them all"
    )


def _describe_all(state: PartitionState, only: str | None = None) -> list[GroupDescription]:
    """Return every group of the partition by name, or only `only`, in one pass over the state."""
    committed: dict[str, dict[TopicPartition, OffsetValue]] = {}
    pending: dict[str, dict[TopicPartition, OffsetValue | None]] = {}
    for (group, topic, partition), row in state.committed.items():
        if (only is None or group == only) and row.entry.value is not None:
            committed.setdefault(group, {})[TopicPartition(topic, partition)] = row.entry.value
    for rows in state.pending.values():
        for (group, topic, partition), row in rows.items():
            if only is None or group == only:
                pending.setdefault(group, {})[TopicPartition(topic, partition)] = row.entry.value
    members = {group: row.entry.value for group, row in state.groups.items() if only is None or group == only}
    return [
        GroupDescription(
            group=group,
            member=members.get(group),
            beats={beat.member_id: beat.timestamp for beat in state.groups[group].beats} if group in members else {},
            offsets=dict(sorted(committed.get(group, {}).items())),
            pending=dict(sorted(pending.get(group, {}).items())),
        )
        for group in sorted({*committed, *pending, *members})
    ]
