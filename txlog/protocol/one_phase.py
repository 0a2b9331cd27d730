"""How does a small transaction of one partition commit without a decision in the table?

Its rows are one idempotent batch, which is visible as a whole from its slot on. A newer instance of the id fences the
older one in each partition to which that one is attached. See PROTOCOL.md, "One phase", W61 to W64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft, Duplicate, Refuse, check_batch, next_record
from txlog.core.effects import NewId, Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.one_phase import (
    is_attached,
    is_id_too_old,
    is_too_old,
    judge_attach,
    judge_detach,
    judge_detach_own,
    judge_fence,
)
from txlog.core.owner_errors import describe_owner
from txlog.core.records import CommitRecord, StagedPart, TransactionMetadata
from txlog.core.state import PartitionState
from txlog.core.transactions import Done, Judgement, Refused, RollForward, completed, not_registered_error
from txlog.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    OutcomeUnknownError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, get_view
from txlog.protocol.seal import seal_one
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import AppendResult, Guard, Stop
from txlog.protocol.table import Judge, Written, look_up, state_partition, transit
from txlog.protocol.transactions import EndResult, roll_forward, roll_forward_current, with_fresh_knowledge


def attach(
    ctx: Context, views: Views, txn: TransactionMetadata, tp: TopicPartition
) -> Program[tuple[Views, TransactionMetadata]]:
    """Attach the instance of `txn` to a partition, durably, before its first commit in one phase there (W61).

    Return the id's record. Raises ProducerFencedError, InvalidProducerIdMappingError, InvalidProducerEpochError (an
    operator ended the epoch), InvalidTxnStateError (a transaction is open).
    """
    known = yield from with_fresh_knowledge(ctx, views, txn)

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        return judge_attach(current, known, tp, now_ms=now_ms, write_id=write_id)

    views, result = yield from _transit(ctx, views, txn.transactional_id, judge)
    if isinstance(result, Refused):
        raise result.error
    return views, result.row.value if isinstance(result, Written) else result.txn


_FINAL = (InvalidProducerEpochError, UnknownTopicOrPartitionError)
"""Refusals that a record in the partition is the reason for: it took the slot of each earlier try, or a later one."""


@dataclass(frozen=True, slots=True)
class _NotAttached:
    """The table, not the partition, refuses the batch."""

    error: TxlogError


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePhase:
    """What one transaction commits in one phase. All tries of its commit, and its abort, are about the same value."""

    part: StagedPart
    """Its rows. They are inline."""
    base_sequence: int
    """How many rows the instance has committed in one phase, or sent, to this partition in this epoch."""
    begun: ClockReading
    """A moment before the first try."""
    since: int
    """An offset of the partition that was not above the log end at that moment."""
    in_doubt: bool = False
    """Whether an earlier try may have landed."""


def commit_in_one_phase(
    ctx: Context, views: Views, txn: TransactionMetadata, wanted: OnePhase
) -> Program[tuple[Views, AppendResult | None]]:
    """Commit rows of one partition as one batch. Return None if the commit needs two phases (W63).

    A repeated call joins the first one, because the partition knows the batch by its sequences. Raises
    IllegalStateError if the instance is not attached, or has rows in files. Raises InvalidProducerEpochError (a newer
    instance or an operator ended the epoch), UnknownTopicOrPartitionError (the topic was deleted),
    OutOfOrderSequenceError, RecordTooLargeError, OutcomeUnknownError (repeat the call, or abort).
    """
    part, tp = wanted.part, wanted.part.topic_partition
    if not part.payload or tp not in (txn.attached or ()):
        raise IllegalStateError(
            f"{describe_owner(txn)}: it is not attached to {tp}, or its rows are in files, so it cannot commit in one "
            "phase"
        )
    draft = BatchDraft(
        records=part.rows,
        transactional_id=txn.transactional_id,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        base_sequence=wanted.base_sequence,
        schema_id=part.schema_id,
        payload=part.payload,
        roll=ctx.roll_of(tp),
    )
    write_id = yield NewId()

    def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
        verdict = check_batch(state, draft)
        if isinstance(verdict, Duplicate):
            return Stop(verdict)
        if isinstance(verdict, Refuse) and isinstance(verdict.error, _FINAL):
            return Stop(verdict, refused=True)
        if is_too_old(state, draft, now_ms, ctx.constants) or is_id_too_old(txn, now_ms, ctx.constants):
            return Stop(None, refused=True)
        if isinstance(verdict, Refuse):
            return Stop(verdict, refused=True)
        return next_record(state, draft, now_ms=now_ms, write_id=write_id)

    views, view = yield from get_view(ctx, views, tp)
    guard = _attached_guard(ctx, views, txn, wanted)
    view, outcome = yield from append_slot(ctx, view, decide, write_id=write_id, payload=draft.payload, guard=guard)
    views = with_view(views, view)
    if isinstance(outcome, AppendResult):
        return (yield from seal_one(ctx, views, [tp], txn.producer_id)), outcome
    verdict = outcome.value
    if isinstance(verdict, Duplicate):
        return views, AppendResult(verdict.base_offset, draft.records, verdict.timestamp, duplicate=True)
    if wanted.in_doubt:
        if (found := _landed(txn, wanted, view)) is not None:
            return views, replace(found, duplicate=True)
        # Only a record in the partition shows that the slot of the earlier try is taken. The table does not.
        if not (isinstance(verdict, Refuse) and isinstance(verdict.error, _FINAL)):
            raise OutcomeUnknownError(
                f"{describe_owner(txn)}: an earlier try of its commit to {tp} may still land. "
                "hint: call abort_transaction(), which finds out what won"
            )
    if verdict is None:
        return views, None
    raise verdict.error


def abort_one_phase(
    ctx: Context, views: Views, txn: TransactionMetadata, wanted: OnePhase
) -> Program[tuple[Views, EndResult]]:
    """End the epoch after a commit in one phase of unknown outcome, and find out what became of it (W64).

    The ABORT in the partition has a higher epoch, so the batch cannot land after it. The records before it show whether
    the batch has landed. Raises OutcomeUnknownError if others have sealed them meanwhile, ProducerFencedError,
    InvalidProducerIdMappingError.
    """
    known = yield from with_fresh_knowledge(ctx, views, txn)

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        return judge_fence(current, known, now_ms=now_ms, write_id=write_id)

    views, result = yield from _transit(ctx, views, txn.transactional_id, judge)
    if isinstance(result, Refused):
        views, landed = yield from _of_fenced(ctx, views, txn, wanted)
        if landed:
            return views, EndResult(txn=txn, already_committed=True)
        raise result.error
    if isinstance(result, Written):
        views = yield from roll_forward(ctx, views, result.row)
        made = result.row.value
        ended = completed(made, now_ms=made.updated_at, write_id=made.write_id)
    else:
        ended = result.txn
    views, view = yield from get_fresh_view(ctx, views, wanted.part.topic_partition)
    return views, EndResult(txn=ended, already_committed=_landed(txn, wanted, view) is not None)


def _transit(
    ctx: Context, views: Views, transactional_id: str, judge: Judge
) -> Program[tuple[Views, Written | Done | Refused]]:
    """Apply `judge` to the id's record until its transition is in, is not needed, or is refused.

    A PREPARE_* is rolled forward first.
    """
    while True:
        views, result = yield from transit(ctx, views, transactional_id, judge)
        if not isinstance(result, RollForward):
            assert isinstance(result, Written | Done | Refused)
            return views, result
        views = yield from roll_forward_current(ctx, views, transactional_id)


def _of_fenced(ctx: Context, views: Views, txn: TransactionMetadata, wanted: OnePhase) -> Program[tuple[Views, bool]]:
    """Return whether the batch of an instance that was fenced is in the log.

    Raises OutcomeUnknownError as long as it may still land: until a record with a higher epoch is in the partition.
    """
    tp = wanted.part.topic_partition
    views, _ = yield from look_up(ctx, views, txn.transactional_id)
    views = yield from roll_forward_current(ctx, views, txn.transactional_id)
    views, view = yield from get_fresh_view(ctx, views, tp)
    entry = view.state.producers.get(txn.producer_id)
    landed = _landed(txn, wanted, view) is not None
    if not landed and (entry is None or entry.producer_epoch <= txn.producer_epoch):
        raise OutcomeUnknownError(
            f"{describe_owner(txn)}: it was fenced, and its commit to {tp} may still land. hint: repeat the call"
        )
    return views, landed


def _landed(txn: TransactionMetadata, wanted: OnePhase, view: PartitionView) -> AppendResult | None:
    """Return the batch if its partition has it; None if it has not, and never will because its epoch is over.

    Raises OutcomeUnknownError if others have sealed records since the first try.
    """
    owner = (txn.producer_id, txn.producer_epoch, wanted.base_sequence)
    for stored in view.tail:
        record = stored.record
        if record.kind == "data" and (record.producer_id, record.producer_epoch, record.base_sequence) == owner:
            return AppendResult(record.base_offset, record.records, record.timestamp)
    if view.sealed_end > wanted.since:
        raise OutcomeUnknownError(
            f"{describe_owner(txn)}: its commit to {view.topic_partition} may have landed, and the records of that "
            "time are sealed. hint: look whether the rows are there before you send them again"
        )
    return None


def detach_own(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[Views]:
    """Detach an instance that ends, and that is unsure of no commit: the next one need not fence it (W62)."""
    known = yield from with_fresh_knowledge(ctx, views, txn)

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement | None:
        return judge_detach_own(current, known, now_ms=now_ms, write_id=write_id)

    views, _ = yield from transit(ctx, views, txn.transactional_id, judge)
    return (yield from seal_one(ctx, views, [state_partition(ctx, txn.transactional_id)], txn.producer_id))


def detach(ctx: Context, views: Views, transactional_id: str, *, force: bool = False) -> Program[tuple[Views, bool]]:
    """End the epoch of an idle, attached id, so that it may be removed (W62). Return whether it was due.

    `force`: an operator removes it, also if it is not expired.
    """

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement | None:
        return judge_detach(current, now_ms=now_ms, write_id=write_id, constants=ctx.constants, force=force)

    views, result = yield from transit(ctx, views, transactional_id, judge)
    if not isinstance(result, Written):
        return views, False
    return (yield from roll_forward(ctx, views, result.row)), True


def _attached_guard(ctx: Context, views: Views, txn: TransactionMetadata, wanted: OnePhase) -> Guard:
    """Return what stops a batch that the partition cannot judge any more.

    The partition may have forgotten the producer since the first try, which is then not recognised (W16). A partition
    that does not know the producer takes its batch only if the table, read later than the fold, shows the instance
    attached (W61).
    """
    tp = wanted.part.topic_partition

    def guard(state: PartitionState) -> Program[Stop | None]:
        now: ClockReading = yield ReadClocks()
        if 2 * now.ms_since(wanted.begun) >= ctx.constants.producer_id_expiration_ms:
            return Stop(None, refused=True)
        if txn.producer_id in state.producers:
            return None
        _, current = yield from look_up(ctx, views, txn.transactional_id)
        if is_attached(current, txn, tp):
            return None
        return Stop(_NotAttached(not_registered_error(current, txn, tp)), refused=True)

    return guard
