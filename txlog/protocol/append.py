"""How are batches appended, and the log start moved? See PROTOCOL.md, "Appending", W17, W19."""

from __future__ import annotations

from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft, Duplicate, Refuse, check_batch, next_control, next_record
from txlog.core.effects import NewId, Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.records import CommitRecord, TransactionMetadata
from txlog.core.state import PartitionState
from txlog.errors import IllegalStateError, StorageError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, get_view
from txlog.protocol.seal import seal_quietly
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import AppendResult, Guard, Stop
from txlog.protocol.table import registered_guard


def append_batch(
    ctx: Context,
    views: Views,
    tp: TopicPartition,
    draft: BatchDraft,
    txn: TransactionMetadata | None = None,
    *,
    files_begun: ClockReading | None = None,
) -> Program[tuple[Views, AppendResult]]:
    """Append a data batch, idempotently if it has a sequence. `txn` is the open transaction of a transactional batch.

    `files_begun` is a moment just before the first file of a draft without a transaction was begun (None: when this
    call began). Files older than a tenth of the grace must not be named any more: StorageError then asks for a draft
    with new files (W8).

    Raises InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError, UnknownTopicOrPartitionError (the
    topic was deleted), ProducerFencedError, RecordTooLargeError, OutcomeUnknownError. After all of these except the
    last, nothing was written. Repeating the identical draft is safe while the partition keeps its producer; after
    OutcomeUnknownError a drawn producer id is not used again. Raises IllegalStateError if `txn` is not the draft's, or
    did not register the partition first (invariant 9). Raises InvalidRequestError for a draft that cannot be stored.
    """
    _check_transaction(tp, draft, txn)
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        verdict = check_batch(state, draft)
        if isinstance(verdict, Duplicate | Refuse):
            return Stop(verdict, refused=isinstance(verdict, Refuse))
        return next_record(state, draft, now_ms=now_ms, write_id=write_id)

    views, view = yield from get_view(ctx, views, tp)
    if txn is not None:
        guard: Guard | None = registered_guard(ctx, views, txn, tp)
    elif draft.files:
        guard = _young_files_guard(ctx, tp, (yield ReadClocks()) if files_begun is None else files_begun)
    else:
        guard = None
    # The age of files is looked at before each PUT, because a writer may sleep before it loses a slot (W8).
    view, outcome = yield from append_slot(
        ctx, view, decide, write_id=write_id, payload=draft.payload, guard=guard, guard_holds=txn is not None
    )
    views = with_view(views, view)
    if isinstance(outcome, AppendResult):
        return views, outcome
    verdict = outcome.value
    if isinstance(verdict, Duplicate):
        return views, AppendResult(verdict.base_offset, draft.records, verdict.timestamp, duplicate=True)
    raise verdict.error


def _young_files_guard(ctx: Context, tp: TopicPartition, begun: ClockReading) -> Guard:
    """Return a guard that refuses files which vacuum may have deleted.

    Vacuum judges files of a drawn producer id by their age, because these ids have no later epoch (C8, C9). If a writer
    sleeps between this check and the PUT, it finds its slot taken: vacuum first waits for a later record or appends
    one.
    """

    def guard(_: PartitionState) -> Program[Stop | None]:
        now: ClockReading = yield ReadClocks()
        age_ms = now.ms_since(begun)
        if age_ms < ctx.max_view_age_ms:
            return None
        error = StorageError(
            f"{tp}: the batch's files are {age_ms} ms old, more than a tenth of delete.grace.ms, and vacuum may have "
            "deleted them; nothing was written: write them again"
        )
        return Stop(Refuse(error), refused=True)

    return guard


def append_log_start(
    ctx: Context, views: Views, tp: TopicPartition, log_start_offset: int | None, deleted_version: int = 0
) -> Program[tuple[Views, int]]:
    """Move the log start (never back) to `log_start_offset`, or after the last row if None.

    Return the log start after it. A reader that has read the last row stays in range. A deletion gives the topic's
    `deleted` version and leaves the log empty. A partition that already holds this deletion is not changed
    (PROTOCOL.md, "Topics").
    """
    write_id = yield NewId()
    views, view = yield from get_fresh_view(ctx, views, tp)
    wanted = _end_of_rows(view) if log_start_offset is None else log_start_offset

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        # The record itself takes an offset. Only a deletion hides that offset too, because a reader may stand right
        # before it (W49).
        target = state.next_offset + 1 if deleted_version else wanted
        if deleted_version and state.deleted_version >= deleted_version:
            return Stop(None)
        if not deleted_version and target <= state.log_start_offset:
            return Stop(None)
        return next_control(
            state,
            now_ms=now_ms,
            write_id=write_id,
            log_start_offset=target,
            deleted_version=deleted_version,
            roll=ctx.roll_of(tp),
        )

    view, _ = yield from append_slot(ctx, view, decide, write_id=write_id)
    return with_view(views, view), view.state.log_start_offset


def append_deletion(ctx: Context, tp: TopicPartition) -> Program[None]:
    """Append the record of a topic's deletion to a partition of `__transaction_state` (W46).

    The state of the partition counts them, so the fold of each later slot shows that there was one.
    """
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord:
        return next_control(
            state,
            now_ms=now_ms,
            write_id=write_id,
            log_start_offset=state.log_start_offset,
            deleted_version=state.deleted_version + 1,
            roll=ctx.internal_roll,
        )

    _, view = yield from get_fresh_view(ctx, {}, tp)
    view, _ = yield from append_slot(ctx, view, decide, write_id=write_id)
    yield from seal_quietly(ctx, view)


def _end_of_rows(view: PartitionView) -> int:
    """Return the offset after the last row of the view; if its tail has no rows, the beginning of the tail."""
    ends = [stored.record.end_offset for stored in view.tail if stored.record.records]
    return max(ends, default=view.base.next_offset)


def _check_transaction(tp: TopicPartition, draft: BatchDraft, txn: TransactionMetadata | None) -> None:
    """Raise IllegalStateError unless the batch is of the open transaction and its partition was registered (W22).

    If the partition knows the producer, the table is not read again, so this is the only check of it.
    """
    who = f"{tp}: batch of producer {draft.producer_id}, epoch {draft.producer_epoch}"
    if draft.transactional != (txn is not None):
        raise IllegalStateError(
            f"{who}: a transactional batch needs its transaction, and any other batch must not have one"
        )
    if txn is None:
        return
    if (txn.producer_id, txn.producer_epoch) != (draft.producer_id, draft.producer_epoch):
        raise IllegalStateError(
            f"{who} in the transaction of {txn.transactional_id!r}, which is producer {txn.producer_id}, "
            f"epoch {txn.producer_epoch}"
        )
    # The partitions of a PREPARE_* belong to the transaction that it ends, not to the next one of its epoch (W22).
    if txn.state != "ONGOING" or tp not in txn.partitions:
        raise IllegalStateError(
            f"{who}: the partition was not registered with the transaction of {txn.transactional_id!r} before"
        )
