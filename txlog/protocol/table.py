"""How is the transaction-state table read and changed?

An id's state is the last record with its key in one partition of `__transaction_state`. Every transition is one
compare-and-set append on that record; the loser reloads and decides again (PROTOCOL.md, "The coordinator", W23).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from txlog.core.append_rules import BatchDraft, Refuse, next_record
from txlog.core.effects import NewId, Program
from txlog.core.internal_partitions import internal_partition
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import CommitRecord, TransactionEntry, TransactionMetadata, TransactionRow
from txlog.core.state import PartitionState
from txlog.core.transactions import Judgement, LookFirst, Refused, Transit, is_this_ongoing, not_registered_error
from txlog.errors import TransactionalIdNotFoundError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import gather_fresh_views, get_fresh_view, get_view
from txlog.protocol.seal import seal_if_long, seal_quietly
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import AppendResult, Guard, Stop, encode_checked

Judge: TypeAlias = Callable[[PartitionState, TransactionMetadata | None, int, str], Judgement | None]
"""(state of the table's partition, the id's record, wall clock, write_id) -> what to do; None: nothing."""

_PREPARE_HEADROOM_BYTES = 1024
"""How much longer a PREPARE_ABORT may be than the ONGOING that it ends, because of its states, epochs and times."""


@dataclass(frozen=True, slots=True)
class Written:
    """This process's own transition is in: the record as written, and its offset. The id may have moved on since."""

    row: TransactionRow


def state_partition(ctx: Context, transactional_id: str) -> TopicPartition:
    """Return the partition of an id: abs(javaStringHash(id)) mod N, as in Kafka."""
    return TopicPartition(
        TRANSACTION_STATE_TOPIC, internal_partition(transactional_id, ctx.constants.transaction_state_partitions)
    )


def partition_of_producer_id(ctx: Context, producer_id: int) -> TopicPartition:
    """Return the partition of a transactional producer id's transactional.id: PID = slot offset x N + n."""
    return TopicPartition(TRANSACTION_STATE_TOPIC, producer_id % ctx.constants.transaction_state_partitions)


def transit(
    ctx: Context, views: Views, transactional_id: str, judge: Judge
) -> Program[tuple[Views, Written | Judgement | None]]:
    """Apply `judge` to the id's last record until its transition is in, or `judge` returns none.

    A transition is a process's own only if the record has that process's `write_id` (W23), because two instances may
    write records that are equal otherwise. Verdicts other than a transition are made on a fresh table.
    """
    tp = state_partition(ctx, transactional_id)
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        row = state.transactions.get(transactional_id)
        judgement = judge(state, row.value if row is not None else None, now_ms, write_id)
        if not isinstance(judgement, Transit):
            return Stop(judgement, refused=isinstance(judgement, Refused | LookFirst))
        entry = TransactionEntry(key=transactional_id, value=judgement.to)
        record = _table_record(ctx, state, entry, now_ms, write_id)
        if judgement.to.state == "ONGOING" or judgement.to.attached:
            # The PREPARE_ABORT that follows is longer and must fit too (W43): nothing else could ever end the
            # transaction, or fence the instance.
            encode_checked(tp, record, headroom_bytes=_PREPARE_HEADROOM_BYTES)
        return record

    views, view = yield from get_view(ctx, views, tp)
    view, outcome = yield from append_slot(ctx, view, decide, write_id=write_id)
    if isinstance(outcome, Stop):
        # Do not seal here: sealing removes records from the tail, and a refused caller may search it for an earlier try
        # that won.
        return with_view(views, view), outcome.value
    # Look before sealing, because the id may have moved on from this record.
    row = _own_row(view, transactional_id, write_id)
    view = yield from seal_if_long(ctx, view)
    return with_view(views, view), Written(row)


def put_tombstone(
    ctx: Context, views: Views, transactional_id: str, may: Callable[[TransactionMetadata, int], bool]
) -> Program[tuple[Views, bool]]:
    """Remove an id if `may` allows it. Return whether the id was removed.

    `may(record, wall clock)` gets the record that the removal replaces.
    """
    tp = state_partition(ctx, transactional_id)
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        row = state.transactions.get(transactional_id)
        if row is None or not may(row.value, now_ms):
            return Stop(None)
        return _table_record(ctx, state, TransactionEntry(key=transactional_id, value=None), now_ms, write_id)

    views, view = yield from get_view(ctx, views, tp)
    view, outcome = yield from append_slot(ctx, view, decide, write_id=write_id)
    view = yield from seal_quietly(ctx, view)
    return with_view(views, view), isinstance(outcome, AppendResult)


def registered_guard(ctx: Context, views: Views, txn: TransactionMetadata, tp: TopicPartition) -> Guard:
    """Return what stops an append unless this very ONGOING still registers the partition (W21, invariant 9).

    A partition whose fold does not know the PID takes its first transactional batch only after the transaction-state
    table, read later than the fold, shows that.
    """

    def guard(state: PartitionState) -> Program[Stop | None]:
        if txn.producer_id in state.producers:
            return None
        _, current = yield from look_up(ctx, views, txn.transactional_id)
        if current is not None and is_this_ongoing(current, txn) and tp in current.partitions:
            return None
        return Stop(Refuse(not_registered_error(current, txn, tp)), refused=True)

    return guard


def prepared_guard(ctx: Context, views: Views, prepare: TransactionMetadata) -> Guard:
    """Return the same guard for a marker: the table must still show this very PREPARE_* (W21)."""

    def guard(state: PartitionState) -> Program[Stop | None]:
        if prepare.producer_id in state.producers:
            return None
        _, current = yield from look_up(ctx, views, prepare.transactional_id)
        return None if current == prepare else Stop(None)

    return guard


def _own_row(view: PartitionView, transactional_id: str, write_id: str) -> TransactionRow:
    row = view.state.transactions.get(transactional_id)
    if row is not None and row.value.write_id == write_id:
        return row
    for stored in view.tail:
        for entry in stored.record.entries:
            if stored.record.write_id == write_id and isinstance(entry, TransactionEntry) and entry.value is not None:
                return TransactionRow(offset=stored.record.base_offset, value=entry.value)
    raise AssertionError(f"{transactional_id}: an acknowledged record {write_id} is in no table")


def _table_record(
    ctx: Context, state: PartitionState, entry: TransactionEntry, now_ms: int, write_id: str
) -> CommitRecord:
    draft = BatchDraft(records=1, entries=(entry,), roll=ctx.internal_roll)
    return next_record(state, draft, now_ms=now_ms, write_id=write_id)


def list_transactions(
    ctx: Context, views: Views, partitions: Collection[int] | None = None
) -> Program[tuple[Views, tuple[TransactionRow, ...]]]:
    """Return every id's last record, by transactional.id: the whole table (or these partitions of it), read fresh."""
    numbers = range(ctx.constants.transaction_state_partitions) if partitions is None else sorted(partitions)
    tps = [TopicPartition(TRANSACTION_STATE_TOPIC, number) for number in numbers]
    views = yield from gather_fresh_views(ctx, views, tps)
    return views, rows_of([views[tp] for tp in tps])


def rows_of(views: Iterable[PartitionView]) -> tuple[TransactionRow, ...]:
    """Return every id's last record in these partitions, by transactional.id."""
    rows = [row for view in views for row in view.state.transactions.values()]
    return tuple(sorted(rows, key=lambda row: row.value.transactional_id))


def look_up(ctx: Context, views: Views, transactional_id: str) -> Program[tuple[Views, TransactionMetadata | None]]:
    """Return the id's last record, read fresh; None if it has no record."""
    views, view = yield from get_fresh_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    return views, None if row is None else row.value


def describe(ctx: Context, views: Views, transactional_id: str) -> Program[tuple[Views, TransactionRow]]:
    """Return the id's last record, read fresh; raise TransactionalIdNotFoundError if it has no record."""
    views, view = yield from get_fresh_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    if row is None:
        raise TransactionalIdNotFoundError(
            f"no transactional.id {transactional_id!r} in this store; `txlog transactions list` shows them all"
        )
    return views, row
