"""The transaction coordinator, as a library: init, register, end, roll forward, time out.

No process owns a coordinator partition: the next process finishes what a dead one began (PROTOCOL.md, "Transactions",
W21 to W33).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import msgspec

from txlog.core import names
from txlog.core.append_rules import MarkerDraft, RollPolicy, marker_is_there, merge_parts, next_marker
from txlog.core.effects import Gather, NewId, Program, ReadClocks
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.owner_errors import describe_owner
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    CommitRecord,
    Outcome,
    StagedPart,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.state import PartitionState
from txlog.core.transactions import (
    COMPLETE,
    IDLE,
    PREPARED,
    AlreadyCommitted,
    Done,
    Judgement,
    LookFirst,
    Refused,
    RollForward,
    Skipped,
    Transit,
    TxnVersion,
    completed,
    is_completed_by,
    judge_abort_by_others,
    judge_add_partitions,
    judge_complete,
    judge_end,
    judge_init,
)
from txlog.errors import (
    InvalidRequestError,
    InvalidTxnTimeoutError,
    OutcomeUnknownError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, get_view
from txlog.protocol.seal import seal_one
from txlog.protocol.slot import append_slot
from txlog.protocol.slot_record import Stop, encode_checked
from txlog.protocol.staged_lists import read_parts, store_parts
from txlog.protocol.table import Written, describe, partition_of_producer_id, prepared_guard, state_partition, transit
from txlog.protocol.topics import TopicLooks, look_at_topics, schemas_of

_MARKER_HEADROOM_BYTES = 1024
"""How much longer the real marker may be than the trial one, because of its offsets, digest and timestamp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResult:
    """How a transaction ended."""

    txn: TransactionMetadata
    """The id's record. The producer goes on with its epoch."""
    skipped: bool = False
    """The version was not above the last committed one, so nothing of this transaction was written."""
    already_committed: bool = False
    """An abort came too late: the commit had won."""

    def __str__(self) -> str:
        """Return one line for people, as in `print(txn.result)`."""
        skipped = f", skipped: version {self.txn.txn_version} is in the log" if self.skipped else ""
        return f"{describe_owner(self.txn)}: {self.txn.state}{skipped}"


def init_producer(
    ctx: Context, views: Views, transactional_id: str, timeout_ms: int, *, max_timeout_ms: int = 900_000
) -> Program[tuple[Views, TransactionMetadata]]:
    """Initialise a producer (InitProducerId). Return the id's record, EMPTY.

    This finishes or aborts what an older instance left, then fences that instance (invariant 8). Raises
    InvalidTxnTimeoutError before anything is written, as Kafka's INVALID_TRANSACTION_TIMEOUT.
    """
    if not 0 < timeout_ms <= max_timeout_ms:
        raise InvalidTxnTimeoutError(
            f"transactional.id {transactional_id!r}: transaction.timeout.ms = {timeout_ms} must be above 0 and at most "
            f"transaction.max.timeout.ms = {max_timeout_ms}"
        )
    state_tp = state_partition(ctx, transactional_id)
    partitions = ctx.constants.transaction_state_partitions
    was_open = False

    def judge(state: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        nonlocal was_open
        was_open = current is not None and current.state == "ONGOING"
        return judge_init(
            current,
            transactional_id=transactional_id,
            new_producer_id=state.next_offset * partitions + state_tp.partition,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
            write_id=write_id,
        )

    while True:
        views, result = yield from transit(ctx, views, transactional_id, judge)
        if isinstance(result, RollForward):
            views = yield from roll_forward_current(ctx, views, transactional_id)
            ctx.report("rolled forward", result.prepare)
        elif isinstance(result, Written):
            if result.row.value.state == "EMPTY":
                return views, result.row.value
            had_open = was_open
            views = yield from _finish_own(result.row.value, roll_forward(ctx, views, result.row))
            if had_open:
                ctx.report("aborted by an init", result.row.value)
        else:
            raise AssertionError(f"init of {transactional_id!r} gave {result!r}")


def add_partitions(
    ctx: Context,
    views: Views,
    txn: TransactionMetadata,
    partitions: Iterable[TopicPartition],
    version: TxnVersion | None = None,
) -> Program[tuple[Views, TransactionMetadata | Skipped]]:
    """Register partitions, durably, before the first eager batch to them; all partitions of a flush in one record.

    Return the id's record, or Skipped if `version` (given with conditional offsets) is not above the last committed
    one. Raises ProducerFencedError, InvalidProducerIdMappingError, InvalidProducerEpochError (timed out: abort first),
    TxnVersionScopeError.
    """
    wanted = tuple(partitions)
    known = yield from with_fresh_knowledge(ctx, views, txn)

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        return judge_add_partitions(current, known, wanted, now_ms=now_ms, write_id=write_id, version=version)

    while True:
        views, result = yield from transit(ctx, views, txn.transactional_id, judge)
        if isinstance(result, RollForward):
            views = yield from roll_forward_current(ctx, views, txn.transactional_id)
        elif isinstance(result, Written):
            return views, result.row.value
        elif isinstance(result, Done):
            return views, result.txn
        elif isinstance(result, Skipped):
            return views, result
        elif isinstance(result, Refused):
            raise result.error
        else:
            raise AssertionError(f"add_partitions of {txn.transactional_id!r} gave {result!r}")


def end_transaction(
    ctx: Context,
    views: Views,
    txn: TransactionMetadata,
    commit: bool,
    staged: tuple[StagedPart, ...] = (),
    version: TxnVersion | None = None,
    looks: TopicLooks | None = None,
    noted: Callable[[TopicLooks], None] = lambda looks: None,
) -> Program[tuple[Views, EndResult]]:
    """End a transaction (EndTxn).

    This writes PREPARE_* (the decision), and a marker in every partition in parallel. The result is the COMPLETE_*,
    which need not be written before the id's next record (W27): see `complete`. `staged` parts become visible only with
    the commit; their files have this PID and `txn`'s current epoch.

    `looks` is what this instance knows of their topics. Before it decides to commit, it looks at them again unless it
    has looked since the last deletion of any topic, and raises UnknownTopicOrPartitionError if one of them was deleted
    (W46). A commit that is decided already, or skipped, does not depend on that. `noted` gets what a look has found
    before anything is decided on it: all tries of one call begin with that. None: a try of another process may have
    decided, so there is no look.

    A repeated call finishes what the first one decided. Raises ProducerFencedError, InvalidProducerIdMappingError,
    InvalidProducerEpochError (it was timed out before the commit), TxnVersionScopeError, OutcomeUnknownError (repeat
    the call; delete nothing). Raises InvalidRequestError or RecordTooLargeError, before anything is decided, for staged
    parts that could not be rolled forward.
    """
    staged, staged_object = yield from store_parts(ctx, txn, _checked_parts(txn, staged if commit else ()))
    outcome: Outcome = "commit" if commit else "abort"
    known = yield from with_fresh_knowledge(ctx, views, txn)
    decided = False
    seen: TransactionMetadata | None = None
    schema_ids, table = schemas_of(staged), state_partition(ctx, txn.transactional_id)
    refusal: TxlogError | None = None

    def judge(state: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        nonlocal seen
        # Kept, because the next view may be of a LIST and show this record sealed.
        seen = current if current is not None and _is_own_commit(current, txn) else seen
        judgement = judge_end(
            current,
            known,
            outcome,
            now_ms=now_ms,
            write_id=write_id,
            staged=staged,
            staged_object=staged_object,
            version=version,
        )
        if not commit or looks is None or not isinstance(judgement, Transit):
            return judgement
        if refusal is not None:
            return Refused(refusal)
        return judgement if looks.hold(schema_ids, state.deleted_version) else LookFirst()

    def look(views: Views) -> Program[None]:
        nonlocal looks, refusal
        if commit and looks is not None:
            looks, found = yield from look_at_topics(looks, schema_ids, deletions_seen(views, table))
            refusal = found and deleted_under(txn, found)
            noted(looks)

    refused: TxlogError | None = None
    if looks is not None and not looks.hold(schema_ids, deletions_seen(views, table)):
        views, _ = yield from get_view(ctx, views, table)
        yield from look(views)
    try:
        while refused is None:
            views, result = yield from transit(ctx, views, txn.transactional_id, judge)
            if isinstance(result, RollForward):
                decided = decided or result.prepare.last_epoch == txn.producer_epoch
                views = yield from roll_forward_current(ctx, views, txn.transactional_id)
            elif isinstance(result, LookFirst):
                yield from look(views)
            elif isinstance(result, Written):
                views = yield from _finish_own(result.row.value, _put_markers(ctx, views, result.row))
                return views, EndResult(txn=_completed(result.row.value))
            elif isinstance(result, Done):
                return views, EndResult(txn=result.txn)
            elif isinstance(result, AlreadyCommitted):
                return views, EndResult(txn=result.txn, already_committed=True)
            elif isinstance(result, Skipped):
                if result.txn.state != "ONGOING":
                    return views, EndResult(txn=result.txn, skipped=True)
                views, ended = yield from end_transaction(ctx, views, txn, commit=False)
                return views, EndResult(txn=ended.txn, skipped=True)
            elif isinstance(result, Refused):
                won = _own_commit(views[table], txn, seen)
                if won is not None:
                    return views, EndResult(txn=won, already_committed=not commit)
                refused = result.error
            else:
                raise AssertionError(f"{outcome} of {txn.transactional_id!r} gave {result!r}")
    except TxlogError as error:
        if not decided or isinstance(error, OutcomeUnknownError):
            raise
        raise _unfinished(txn, error) from error
    raise refused


def deletions_seen(views: Views, table: TopicPartition) -> int:
    """Return how many deletions of topics this partition of the table shows in `views` (W46)."""
    view = views.get(table)
    return 0 if view is None else view.state.deleted_version


def deleted_under(txn: TransactionMetadata, error: UnknownTopicOrPartitionError) -> UnknownTopicOrPartitionError:
    """Return the error of a commit whose topic was deleted after its rows were made (W46)."""
    return UnknownTopicOrPartitionError(
        f"transactional.id {txn.transactional_id!r}: {error}. Rows are staged for it, so nothing is committed: abort "
        "the transaction, and begin a new one"
    )


def _finish_own(prepare: TransactionMetadata, finishing: Program[Views]) -> Program[Views]:
    """Run what finishes the decision that this same call has written.

    If anything fails from there on, the call never answers *failed* (W44). A caller that received *failed* could delete
    what it staged.
    """
    try:
        return (yield from finishing)
    except OutcomeUnknownError:
        raise
    except TxlogError as error:
        raise _unfinished(prepare, error) from error


def _unfinished(txn: TransactionMetadata, error: TxlogError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"transactional.id {txn.transactional_id!r} (producer {txn.producer_id}, epoch {txn.producer_epoch}): its "
        f"transaction is decided, and finishing it failed ({error.problem}). "
        "hint: repeat the same call; any other process may finish it, too"
    )


def roll_forward(ctx: Context, views: Views, prepare: TransactionRow) -> Program[Views]:
    """Finish a PREPARE_*: markers in parallel, then COMPLETE_* (W27, invariant 5).

    Any process may do this, at any time, any number of times (W25, invariant 11).
    """
    views = yield from _put_markers(ctx, views, prepare)
    return (yield from _put_complete(ctx, views, _completed(prepare.value)))


def complete(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[Views]:
    """Write the COMPLETE_* `txn` that an end has returned, if `views` still show its PREPARE_* (W27).

    The owner calls this when it does not expect to write the id's next record soon. Without it the next record of the
    owner implies the COMPLETE_*, or the next process rolls the PREPARE_* forward. So does an owner that looks too late.
    """
    known = yield from with_fresh_knowledge(ctx, views, txn)
    views, view = yield from get_view(ctx, views, state_partition(ctx, txn.transactional_id))
    row = view.state.transactions.get(txn.transactional_id)
    if row is None or not is_completed_by(row.value, txn):
        return views
    if not is_completed_by(row.value, known):
        return (yield from roll_forward(ctx, views, row))
    return (yield from _put_complete(ctx, views, txn))


def with_fresh_knowledge(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[TransactionMetadata]:
    """Return `txn` as its owner may be judged by; without its COMPLETE_* if that is known from too long ago (W25, W47).

    A store that was put back since then may hold the PREPARE_* without its markers. Rolling forward looks for them.
    """
    if txn.state not in COMPLETE:
        return txn
    view = views.get(state_partition(ctx, txn.transactional_id))
    if view is not None and not view.needs_proof((yield ReadClocks())):
        return txn
    return msgspec.structs.replace(txn, state="EMPTY")


def _put_complete(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[Views]:
    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement | None:
        return judge_complete(current, txn, now_ms=now_ms, write_id=write_id)

    views, _ = yield from transit(ctx, views, txn.transactional_id, judge)
    return (yield from seal_one(ctx, views, [state_partition(ctx, txn.transactional_id)], txn.producer_id))


def _put_markers(ctx: Context, views: Views, prepare: TransactionRow) -> Program[Views]:
    """Write the markers of a PREPARE_* in parallel, where they are not in yet.

    The rows are visible to read_committed from the markers on.
    """
    txn = prepare.value
    commit = txn.state == "PREPARE_COMMIT"
    staged = yield from read_parts(ctx, txn)
    parts = {part.topic_partition: part for part in staged} if commit else {}
    tps = sorted({*txn.partitions, *parts})
    ctx = yield from _with_rolls(ctx, tps)

    def marker(tp: TopicPartition) -> Program[PartitionView]:
        part = parts.get(tp)
        draft = _marker_draft(txn, txn.producer_epoch, commit, prepare.offset, part, ctx.roll_of(tp))
        write_id = yield NewId()

        def decide(state: PartitionState, now_ms: int) -> CommitRecord | Stop:
            # A second marker of this epoch could end the producer's next transaction (W26).
            if marker_is_there(state, txn.producer_id, txn.producer_epoch):
                return Stop(None)
            return next_marker(state, draft, now_ms=now_ms, write_id=write_id)

        _, view = yield from get_view(ctx, views, tp)
        guard = prepared_guard(ctx, views, txn)
        view, _ = yield from append_slot(
            ctx, view, decide, write_id=write_id, payload=draft.payload, guard=guard, guard_holds=True
        )
        return view

    if tps:
        views = with_view(views, *(yield Gather(tuple(marker(tp) for tp in tps))))
    return (yield from seal_one(ctx, views, [*tps, state_partition(ctx, txn.transactional_id)], txn.producer_id))


def abort_transaction(
    ctx: Context, views: Views, transactional_id: str
) -> Program[tuple[Views, TransactionMetadata | None]]:
    """Abort for an operator, through the coordinator: end an ONGOING transaction and with it the producer's epoch.

    A PREPARE_* is rolled forward, never changed (W25, W28). Return the id's record afterwards, None if it had no open
    transaction. Raises TransactionalIdNotFoundError.
    """
    views, row = yield from describe(ctx, views, transactional_id)
    if row.value.state in IDLE:
        return views, None
    views, _ = yield from finish(ctx, views, transactional_id, only_if_timed_out=False)
    views, row = yield from describe(ctx, views, transactional_id)
    return views, row.value


def resolve(ctx: Context, views: Views, producer_id: int) -> Program[Views]:
    """End a producer's transaction for a waiting reader: roll a PREPARE_* forward, time out what is due (R18)."""
    if producer_id >= FIRST_DRAWN_PRODUCER_ID:
        return views
    tp = partition_of_producer_id(ctx, producer_id)
    views, view = yield from get_fresh_view(ctx, views, tp)
    for row in view.state.transactions.values():
        if row.value.producer_id == producer_id:
            views, _ = yield from finish(ctx, views, row.value.transactional_id, only_if_timed_out=True)
            break
    return views


def shows_lost(ctx: Context, views: Views, txn: TransactionMetadata) -> Program[tuple[Views, bool]]:
    """Return whether the records, read fresh, still show that `txn` was not committed and never will be.

    They show it if an abort, or the init of a newer instance, ended its epoch. Otherwise a refused repetition proves
    nothing about an earlier try (W44).
    """
    tp = state_partition(ctx, txn.transactional_id)
    views, view = yield from get_fresh_view(ctx, views, tp)
    row = view.state.transactions.get(txn.transactional_id)
    values = [*_changes(view), *([row.value] if row is not None else [])]
    return views, any(
        value.producer_id == txn.producer_id
        and (
            (value.last_epoch == txn.producer_epoch and value.last_outcome == "abort")
            or (value.producer_epoch == txn.producer_epoch + 1 and value.state == "EMPTY")
        )
        for value in values
    )


def finish(
    ctx: Context, views: Views, transactional_id: str, *, only_if_timed_out: bool
) -> Program[tuple[Views, str | None]]:
    """Roll a PREPARE_* forward, or abort an ONGOING transaction. Return "rolled forward", "aborted" or None."""

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement | None:
        return judge_abort_by_others(current, now_ms=now_ms, write_id=write_id, only_if_timed_out=only_if_timed_out)

    views, result = yield from transit(ctx, views, transactional_id, judge)
    if isinstance(result, RollForward):
        views = yield from roll_forward_current(ctx, views, transactional_id)
        ctx.report("rolled forward", result.prepare)
        return views, "rolled forward"
    if isinstance(result, Written):
        views = yield from _finish_own(result.row.value, roll_forward(ctx, views, result.row))
        ctx.report("timed out" if only_if_timed_out else "aborted by an operator", result.row.value)
        return views, "aborted"
    return views, None


def roll_forward_current(ctx: Context, views: Views, transactional_id: str) -> Program[Views]:
    """Roll forward the PREPARE_* that the id's record shows in `views`, if the record is still a PREPARE_*."""
    views, view = yield from get_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    if row is not None and row.value.state in PREPARED:
        views = yield from roll_forward(ctx, views, row)
    return views


def _with_rolls(ctx: Context, tps: Iterable[TopicPartition]) -> Program[Context]:
    """Return `ctx` with the roll policies of all topics of `tps`.

    A process may end a transaction in topics that it has not opened.
    """
    if ctx.find_roll is None:
        return ctx
    unknown = sorted({tp.topic for tp in tps} - INTERNAL_TOPICS - set(ctx.roll))
    if not unknown:
        return ctx
    found = yield Gather(tuple(ctx.find_roll(topic) for topic in unknown))
    return replace(ctx, roll={**ctx.roll, **dict(zip(unknown, found, strict=True))})


def _checked_parts(txn: TransactionMetadata, staged: Iterable[StagedPart]) -> tuple[StagedPart, ...]:
    """Return one part per partition, each checked as the record that it will become (W29).

    A PREPARE_COMMIT is never revoked, so one that cannot be rolled forward would block its id forever.
    """
    parts = merge_parts(staged)
    for part in parts:
        tp = part.topic_partition
        if not names.is_topic_name(part.topic) or part.partition < 0:
            raise InvalidRequestError(f"{tp} cannot be a partition, and rows were staged for it")
        draft = _marker_draft(txn, txn.producer_epoch + 1, True, 0, part, RollPolicy())
        record = next_marker(PartitionState.empty(tp), draft, now_ms=0, write_id="0" * 32)
        if not record.records:
            raise InvalidRequestError(f"{tp}: the part that was staged for it has no rows; leave it out")
        encode_checked(tp, record, draft.payload, headroom_bytes=_MARKER_HEADROOM_BYTES)
    return parts


def _marker_draft(
    txn: TransactionMetadata,
    marker_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    part: StagedPart | None,
    roll: RollPolicy,
) -> MarkerDraft:
    return MarkerDraft(
        commit=commit,
        producer_id=txn.producer_id,
        marker_epoch=marker_epoch,
        coordinator_epoch=coordinator_epoch,
        records=part.rows if part is not None else 0,
        schema_id=part.schema_id if part is not None else 0,
        files=part.files if part is not None else (),
        payload=part.payload if part is not None else b"",
        entries=part.entries if part is not None else (),
        roll=roll,
    )


def _is_own_commit(value: TransactionMetadata, txn: TransactionMetadata) -> bool:
    """Return whether `value` decided the commit of `txn`'s epoch."""
    owner = (value.producer_id, value.last_epoch)
    return value.state == "PREPARE_COMMIT" and owner == (txn.producer_id, txn.producer_epoch)


def _own_commit(
    view: PartitionView, txn: TransactionMetadata, seen: TransactionMetadata | None
) -> TransactionMetadata | None:
    """Return the record that completed the commit of `txn`'s epoch.

    Its PREPARE_COMMIT is `seen`, which this call has met, or the tail still shows it.

    Only the owner of the epoch writes a PREPARE_COMMIT. The returned record registers no partition. This is the case of
    an earlier try of the same call that had won with an unknown outcome, after which the id moved on. The repeated call
    returns that commit, and the next call of this instance is fenced (W44).
    """
    for value in [seen] if seen is not None else _changes(view):
        if _is_own_commit(value, txn):
            # The id has moved on, so the transaction was completed. The PREPARE record names partitions. An append that
            # took them for registered would write to a partition where no process ends the transaction.
            return _completed(value)
    return None


def _changes(view: PartitionView) -> list[TransactionMetadata]:
    """Return the ids' states that the records of the tail wrote, oldest first."""
    return [
        entry.value
        for stored in view.tail
        for entry in stored.record.entries
        if isinstance(entry, TransactionEntry) and entry.value is not None
    ]


def _completed(prepare: TransactionMetadata) -> TransactionMetadata:
    """Return the COMPLETE_* of a PREPARE_* whose markers are all in. A process MUST have seen that."""
    return completed(prepare, now_ms=prepare.updated_at, write_id=prepare.write_id)
