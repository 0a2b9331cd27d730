"""The transaction coordinator, as a library: init, register, end, roll forward, time out, expire.

No process owns a coordinator partition: the next process finishes what a dead one began (PROTOCOL.md, "Transactions",
W21 to W33).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import msgspec

from txlog.core import envelope, names
from txlog.core.append_rules import MarkerDraft, RollPolicy, marker_is_there, next_control, next_marker
from txlog.core.effects import Gather, Get, NewId, Now, Program
from txlog.core.moments import MAX_CLOCK_ERROR_MS
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    CommitRecord,
    Outcome,
    StagedList,
    StagedObject,
    StagedPart,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.staged_parts import merge_parts
from txlog.core.state import PartitionState, check_targets
from txlog.core.transactions import (
    IDLE,
    PREPARED,
    AlreadyCommitted,
    Done,
    Judgement,
    Refused,
    RollForward,
    Skipped,
    Transit,
    TxnVersion,
    is_timed_out,
    judge_abort_by_others,
    judge_add_partitions,
    judge_complete,
    judge_end,
    judge_init,
    may_be_forgotten,
    may_expire,
)
from txlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    InvalidTxnTimeoutError,
    MissingObjectError,
    OutcomeUnknownError,
    RecordTooLargeError,
    TransactionalIdNotFoundError,
    TxlogError,
)
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import gather_fresh_views, get_fresh_view, get_view
from txlog.protocol.put import put_pure
from txlog.protocol.seal import seal_quietly
from txlog.protocol.slot import Stop, append_slot, encode_checked
from txlog.protocol.table import (
    Written,
    partition_of_producer_id,
    prepared_guard,
    put_tombstone,
    state_partition,
    transit,
)

MAX_STAGED_INLINE_BYTES = 256 * 2**10
"""A longer list of staged files is written to a separate object, so that the table's records stay small."""

MAX_EXPIRED_PRODUCERS = 100_000
"""Ids that one `expire` record may name (W43): 2 MB of its 4 MiB. The next pass takes the rest."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What a sweep did, by transactional.id (producer id for producers)."""

    aborted: tuple[str, ...] = ()
    rolled_forward: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


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

    def judge(state: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
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
            views = yield from _roll_forward_current(ctx, views, transactional_id)
        elif isinstance(result, Written):
            if result.row.value.state == "EMPTY":
                return views, result.row.value
            views, _ = yield from _finish_own(ctx, views, result.row)
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

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        return judge_add_partitions(current, txn, wanted, now_ms=now_ms, write_id=write_id, version=version)

    while True:
        views, result = yield from transit(ctx, views, txn.transactional_id, judge)
        if isinstance(result, RollForward):
            views = yield from _roll_forward_current(ctx, views, txn.transactional_id)
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
    refusal: TxlogError | None = None,
) -> Program[tuple[Views, EndResult]]:
    """End a transaction (EndTxn).

    This writes PREPARE_* (the decision), a marker in every partition in parallel, and COMPLETE_*. `staged` parts become
    visible only with the commit; their files have this PID and `txn`'s current epoch. `refusal` is raised instead of
    deciding to commit, because a topic with staged rows was deleted (`topics.refresh_topic_of_rows`, W46). A commit
    that is decided already, or skipped, ignores it.

    A repeated call finishes what the first one decided. Raises ProducerFencedError, InvalidProducerIdMappingError,
    InvalidProducerEpochError (it was timed out before the commit), TxnVersionScopeError, OutcomeUnknownError (repeat
    the call; delete nothing). Raises InvalidRequestError or RecordTooLargeError, before anything is decided, for staged
    parts that could not be rolled forward.
    """
    staged, staged_object = yield from _staged_object(ctx, txn, _checked_parts(txn, staged if commit else ()))
    outcome: Outcome = "commit" if commit else "abort"
    decided = False

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
        judgement = judge_end(
            current,
            txn,
            outcome,
            now_ms=now_ms,
            write_id=write_id,
            staged=staged,
            staged_object=staged_object,
            version=version,
        )
        return Refused(refusal) if commit and refusal is not None and isinstance(judgement, Transit) else judgement

    refused: TxlogError | None = None
    try:
        while refused is None:
            views, result = yield from transit(ctx, views, txn.transactional_id, judge)
            if isinstance(result, RollForward):
                decided = decided or result.prepare.last_epoch == txn.producer_epoch
                views = yield from _roll_forward_current(ctx, views, txn.transactional_id)
            elif isinstance(result, Written):
                views, done = yield from _finish_own(ctx, views, result.row)
                return views, EndResult(txn=done)
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
                won = _own_commit(views[state_partition(ctx, txn.transactional_id)], txn)
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


def _finish_own(ctx: Context, views: Views, prepare: TransactionRow) -> Program[tuple[Views, TransactionMetadata]]:
    """`roll_forward` of the decision that this same call has written.

    If anything fails from there on, the call never answers *failed* (W44). A caller that received *failed* could delete
    what it staged.
    """
    try:
        return (yield from roll_forward(ctx, views, prepare))
    except OutcomeUnknownError:
        raise
    except TxlogError as error:
        raise _unfinished(prepare.value, error) from error


def _unfinished(txn: TransactionMetadata, error: TxlogError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"transactional.id {txn.transactional_id!r} (producer {txn.producer_id}, epoch {txn.producer_epoch}): its transaction is decided, and "
        f"finishing it failed ({error}). Repeat the same call; any other process may finish it, too"
    )


def roll_forward(ctx: Context, views: Views, prepare: TransactionRow) -> Program[tuple[Views, TransactionMetadata]]:
    """Finish a PREPARE_*: markers in parallel, then COMPLETE_* (W27, invariant 5). Return the COMPLETE_* record.

    Any process may do this, at any time, any number of times (W25, invariant 11). The rows are visible to
    read_committed from the markers on.
    """
    txn = prepare.value
    commit = txn.state == "PREPARE_COMMIT"
    staged = yield from _staged_parts(ctx, txn)
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
        view, _ = yield from append_slot(
            ctx, view, decide, write_id=write_id, payload=draft.payload, guard=prepared_guard(ctx, views, txn)
        )
        return (yield from seal_quietly(ctx, view))

    if tps:
        marked = yield Gather(tuple(marker(tp) for tp in tps))
        for view in marked:
            views = with_view(views, view)

    def complete(
        _: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str
    ) -> Judgement | None:
        return judge_complete(current, txn, now_ms=now_ms, write_id=write_id)

    views, result = yield from transit(ctx, views, txn.transactional_id, complete)
    if isinstance(result, Written):
        return views, result.row.value
    return views, _completed(txn)


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
    views, _ = yield from _finish(ctx, views, transactional_id, only_if_timed_out=False)
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
            views, _ = yield from _finish(ctx, views, row.value.transactional_id, only_if_timed_out=True)
            break
    return views


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
                views, what = yield from _finish(ctx, views, transactional_id, only_if_timed_out=True)
                if what is not None:  # None: another process has finished it meanwhile
                    (aborted if what == "aborted" else rolled).append(transactional_id)
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

    With `force` (an operator, or a drawn id after its commit) the id need not be expired, and may hold a `txn.version`.
    It still must not have an open transaction, nor one that hung and was finished a moment ago.
    """

    def may(txn: TransactionMetadata, now_ms: int) -> bool:
        if force:
            return may_be_forgotten(txn, now_ms, ctx.constants.delete_grace_ms)
        return may_expire(txn, now_ms, ctx.constants)

    return (yield from put_tombstone(ctx, views, transactional_id, may))


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


def list_transactions(
    ctx: Context, views: Views, partitions: Collection[int] | None = None
) -> Program[tuple[Views, tuple[TransactionRow, ...]]]:
    """Return every id's last record, by transactional.id: the whole table (or these partitions of it), read fresh."""
    numbers = range(ctx.constants.transaction_state_partitions) if partitions is None else sorted(partitions)
    tps = [TopicPartition(names.TRANSACTION_STATE_TOPIC, number) for number in numbers]
    views = yield from gather_fresh_views(ctx, views, tps)
    rows = [row for tp in tps for row in views[tp].state.transactions.values()]
    return views, tuple(sorted(rows, key=lambda row: row.value.transactional_id))


def look_up(ctx: Context, views: Views, transactional_id: str) -> Program[tuple[Views, TransactionMetadata | None]]:
    """Return the id's last record, read fresh; None if it has no record."""
    views, view = yield from get_fresh_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    return views, None if row is None else row.value


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


def describe(ctx: Context, views: Views, transactional_id: str) -> Program[tuple[Views, TransactionRow]]:
    """Return the id's last record, read fresh; raise TransactionalIdNotFoundError if it has no record."""
    views, view = yield from get_fresh_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    if row is None:
        raise TransactionalIdNotFoundError(
            f"no transactional.id {transactional_id!r} in this store; `txlog transactions list` shows them all"
        )
    return views, row


def partitions_of(ctx: Context, prepare: TransactionMetadata) -> Program[tuple[TopicPartition, ...]]:
    """Return the partitions that need a marker of a PREPARE_*.

    These are the registered ones and, for a commit, those of staged parts.
    """
    staged = yield from _staged_parts(ctx, prepare)
    parts = {part.topic_partition for part in staged} if prepare.state == "PREPARE_COMMIT" else set()
    return tuple(sorted({*prepare.partitions, *parts}))


def _finish(
    ctx: Context, views: Views, transactional_id: str, *, only_if_timed_out: bool
) -> Program[tuple[Views, str | None]]:
    """Roll a PREPARE_* forward, or abort an ONGOING transaction. Return "rolled forward", "aborted" or None."""

    def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement | None:
        return judge_abort_by_others(current, now_ms=now_ms, write_id=write_id, only_if_timed_out=only_if_timed_out)

    views, result = yield from transit(ctx, views, transactional_id, judge)
    if isinstance(result, RollForward):
        return (yield from _roll_forward_current(ctx, views, transactional_id)), "rolled forward"
    if isinstance(result, Written):
        views, _ = yield from _finish_own(ctx, views, result.row)
        return views, "aborted"
    return views, None


def _roll_forward_current(ctx: Context, views: Views, transactional_id: str) -> Program[Views]:
    """Roll forward the PREPARE_* that the id's record shows in `views`, if the record is still a PREPARE_*."""
    views, view = yield from get_view(ctx, views, state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    if row is not None and row.value.state in PREPARED:
        views, _ = yield from roll_forward(ctx, views, row)
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


def _own_commit(view: PartitionView, txn: TransactionMetadata) -> TransactionMetadata | None:
    """Return the record that completed the commit of `txn`'s epoch, if the tail still shows its PREPARE_COMMIT.

    Only the owner of the epoch writes a PREPARE_COMMIT. The returned record registers no partition. This is the case of
    an earlier try of the same call that had won with an unknown outcome, after which the id moved on. The repeated call
    returns that commit, and the next call of this instance is fenced (W44).
    """
    for value in _changes(view):
        if value.state == "PREPARE_COMMIT" and (value.producer_id, value.last_epoch) == (
            txn.producer_id,
            txn.producer_epoch,
        ):
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
    """Return the COMPLETE_* of a PREPARE_* that another process has finished.

    Its identity does not depend on that process.
    """
    finished = judge_complete(prepare, prepare, now_ms=prepare.updated_at, write_id=prepare.write_id)
    assert finished is not None
    return finished.to


def _staged_object(
    ctx: Context, txn: TransactionMetadata, staged: tuple[StagedPart, ...]
) -> Program[tuple[tuple[StagedPart, ...], StagedObject | None]]:
    if len(msgspec.json.encode(staged)) <= MAX_STAGED_INLINE_BYTES:
        return staged, None
    unique = yield NewId()
    name = names.staged_list_name(txn.producer_id, txn.producer_epoch, unique)
    data = envelope.encode(StagedList(staged=staged))
    if len(data) > envelope.MAX_OBJECT_BYTES:
        raise RecordTooLargeError(
            f"transactional.id {txn.transactional_id!r}: a list of staged files of {len(data)} bytes, more than the {envelope.MAX_OBJECT_BYTES} that one "
            "may have; write fewer and larger files"
        )
    yield from put_pure(ctx, state_partition(ctx, txn.transactional_id).folder + name, data)
    return (), StagedObject(name=name, bytes=len(data), digest=envelope.digest(data))


def _staged_parts(ctx: Context, txn: TransactionMetadata) -> Program[tuple[StagedPart, ...]]:
    table = state_partition(ctx, txn.transactional_id).folder
    where = f"{table} transactional.id {txn.transactional_id!r}"
    if txn.staged_object is None:
        check_targets(txn.partitions, txn.staged, where)
        return txn.staged
    if names.parse_staged_list_name(txn.staged_object.name) is None:
        raise CorruptRecordError(
            f"transactional.id {txn.transactional_id!r}: {txn.staged_object.name!r} is not the name of a staged list"
        )
    path = table + txn.staged_object.name
    data = yield Get(path)
    if data is None:
        raise MissingObjectError(
            f"{path}: the staged files of transactional.id {txn.transactional_id!r} are listed there, and it is gone"
        )
    if envelope.digest(data) != txn.staged_object.digest:
        raise CorruptRecordError(f"{path}: its digest is not the one in the PREPARE record of {txn.transactional_id!r}")
    if len(data) != txn.staged_object.bytes:
        raise CorruptRecordError(
            f"{path}: it has {len(data)} bytes, and the PREPARE record of {txn.transactional_id!r} says {txn.staged_object.bytes}"
        )
    value, _ = envelope.decode(data, StagedList, path)
    check_targets(txn.partitions, value.staged, path)
    return value.staged


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
