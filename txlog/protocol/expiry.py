"""Which transactional ids and producers are forgotten, and which transactions does a sweep end (W28, W32, W33)?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.append_rules import RollPolicy, next_control
from txlog.core.effects import NewId, Now, Program, gathered
from txlog.core.names import TopicPartition
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, CommitRecord, TransactionMetadata
from txlog.core.state import PartitionState
from txlog.core.transactions import (
    IDLE,
    PREPARED,
    as_its_owner_knows,
    is_timed_out,
    may_be_forgotten,
    may_expire,
)
from txlog.errors import TxlogError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import gather_fresh_views, get_fresh_view
from txlog.protocol.one_phase import detach
from txlog.protocol.seal import seal_quietly
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import Stop
from txlog.protocol.table import list_transactions, partition_of_producer_id, put_tombstone, state_partition
from txlog.protocol.transactions import finish, roll_forward_current, with_fresh_knowledge

MAX_EXPIRED_PRODUCERS = 100_000
"""Ids that one `expire` record may name (W43): 2 MB of its 4 MiB. The next pass takes the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What a sweep did, by transactional.id (producer id for producers)."""

    aborted: tuple[str, ...] = ()
    rolled_forward: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def expire(
    ctx: Context, views: Views, partitions: Collection[int] | None = None
) -> Program[tuple[Views, ExpireResult]]:
    """Sweep the whole table once: roll every PREPARE_* forward, abort what is past its timeout, remove idle ids.

    `partitions` are those of the table that hold anything, if known. If one id fails, the sweep continues with the
    others and raises the first error at the end.
    """
    views, rows = yield from list_transactions(ctx, views, partitions)
    aborted: list[str] = []
    rolled: list[str] = []
    removed: list[str] = []
    first_error: Exception | None = None
    for row in rows:
        transactional_id = row.value.transactional_id
        try:
            now_ms = yield Now()
            if row.value.state in PREPARED or is_timed_out(row.value, now_ms):
                views, what = yield from finish(ctx, views, transactional_id, only_if_timed_out=True)
                if what is not None:  # None: another process has finished it meanwhile
                    (aborted if what == "aborted" else rolled).append(transactional_id)
            elif row.value.attached:
                views, _ = yield from detach(ctx, views, transactional_id)
            elif may_expire(row.value, now_ms, ctx.constants):
                views, gone = yield from remove(ctx, views, transactional_id)
                if gone:
                    removed.append(transactional_id)
        except TxlogError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return views, ExpireResult(aborted=tuple(aborted), rolled_forward=tuple(rolled), removed=tuple(removed))


def remove(ctx: Context, views: Views, transactional_id: str, *, force: bool = False) -> Program[tuple[Views, bool]]:
    """Write a tombstone if the id is idle and expired. Return whether it was removed.

    With `force` (an operator) the id need not be expired, and may hold a `txn.version`. It still must not have an open
    transaction, nor one that hung and was finished a moment ago. An instance that is attached to partitions is fenced
    there first (W62).
    """

    def may(current: TransactionMetadata, now_ms: int) -> bool:
        if force:
            return may_be_forgotten(current, now_ms, ctx.constants.delete_grace_ms)
        return may_expire(current, now_ms, ctx.constants)

    views, removed = yield from put_tombstone(ctx, views, transactional_id, may)
    row = views[state_partition(ctx, transactional_id)].state.transactions.get(transactional_id)
    if removed or not force or row is None or not row.value.attached:
        return views, removed
    views, _ = yield from detach(ctx, views, transactional_id, force=True)
    return (yield from put_tombstone(ctx, views, transactional_id, may))


def finish_and_remove(ctx: Context, views: Views, transactional_id: str) -> Program[tuple[Views, bool]]:
    """Roll the id's PREPARE_* forward, if `views` show one, and remove the id with `force`."""
    views = yield from roll_forward_current(ctx, views, transactional_id)
    return (yield from remove(ctx, views, transactional_id, force=True))


def remove_own(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[tuple[Views, bool]]:
    """Write the tombstone of a drawn id after its transaction. Return whether it was removed.

    A newer instance or an open transaction keeps the id, and so does a commit that hung (W32).
    """
    owner = yield from with_fresh_knowledge(ctx, views, txn)
    if owner is not txn:
        views = yield from roll_forward_current(ctx, views, txn.transactional_id)

    def may(current: TransactionMetadata, now_ms: int) -> bool:
        is_own = (current.producer_id, current.producer_epoch) == (txn.producer_id, txn.producer_epoch)
        known = as_its_owner_knows(current, owner, now_ms)
        return is_own and may_be_forgotten(known, now_ms, ctx.constants.delete_grace_ms)

    return (yield from put_tombstone(ctx, views, txn.transactional_id, may))


def expire_producers(ctx: Context, views: Views, tp: TopicPartition) -> Program[tuple[Views, tuple[int, ...]]]:
    """End the state of producers idle beyond `producer.id.expiration.ms`, by a record (W33). Return their ids.

    A transactional PID is included only if its id, folded later than the partition, is neither ONGOING nor PREPARE_*.
    One call ends at most MAX_EXPIRED_PRODUCERS.
    """
    views, view = yield from get_fresh_view(ctx, views, tp)
    now_ms = yield Now()
    idle = idle_producers(view.state, now_ms, ctx.constants.producer_id_expiration_ms)
    if not idle:
        return views, ()
    tables = sorted({partition_of_producer_id(ctx, pid) for pid in idle if pid < FIRST_DRAWN_PRODUCER_ID})
    folded_at = view.state.next_offset
    views = yield from gather_fresh_views(ctx, views, tables)
    busy = {
        row.value.producer_id
        for table in tables
        for row in views[table].state.transactions.values()
        if row.value.state not in IDLE
    }
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        if state.next_offset != folded_at:
            return Stop(())  # the table was folded before this state: try next time
        still_idle = idle_producers(state, now_ms, ctx.constants.producer_id_expiration_ms)
        expired = tuple(sorted((still_idle & idle) - busy)[:MAX_EXPIRED_PRODUCERS])
        if not expired:
            return Stop(())
        return next_control(state, now_ms=now_ms, write_id=write_id, expired=expired, roll=ctx.roll_of(tp))

    before = set(view.state.producers)
    view, _ = yield from append_slot(ctx, view, decide, write_id=write_id)
    view = yield from seal_quietly(ctx, view)
    return with_view(views, view), tuple(sorted(before - set(view.state.producers)))


def idle_producers(state: PartitionState, now_ms: int, expiration_ms: int) -> frozenset[int]:
    """Return the producers whose state may be expired, as far as the partition shows (W33).

    The time of a record is its writer's.
    """
    newest_ms, idle_ms = max(now_ms, state.last_timestamp), expiration_ms + 2 * MAX_CLOCK_ERROR_MS
    return frozenset(
        pid
        for pid, entry in state.producers.items()
        if entry.txn_first_offset < 0 and pid not in state.pending and newest_ms - entry.timestamp >= idle_ms
    )


def append_nothing(ctx: Context, views: Views, tp: TopicPartition, roll: RollPolicy) -> Program[Views]:
    """Append an `expire` that names no producer: it takes the slot that a late PUT would need (C9)."""
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord:
        return next_control(state, now_ms=now_ms, write_id=write_id, roll=roll)

    view, _ = yield from append_slot(ctx, views[tp], decide, write_id=write_id)
    return with_view(views, view)


def end_tails(
    ctx: Context,
    views: Views,
    partitions: Sequence[TopicPartition],
    is_due: Callable[[CommitRecord], bool],
) -> Program[Views]:
    """Seal the tails with a record that `is_due`, so that its rows are in a file, or its file in a segment.

    The active segment is ended by a record that names no producer. Costs an append and a sealing for each such
    partition.
    """
    return with_view(views, *(yield from gathered(end_tail(ctx, views[tp], is_due) for tp in partitions)))


def end_tail(ctx: Context, view: PartitionView, is_due: Callable[[CommitRecord], bool]) -> Program[PartitionView]:
    """Seal the tail if it has a record that `is_due`, as `end_tails` does."""
    due = [each.record for each in view.tail if is_due(each.record)]
    if not due:
        return view
    if due[-1].segment_base == view.state.segment_base:
        tp = view.topic_partition
        view = (yield from append_nothing(ctx, {tp: view}, tp, RollPolicy(batches=1)))[tp]
    return (yield from seal_quietly(ctx, view))
