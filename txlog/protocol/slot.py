"""How does one record get into the next free slot of a partition, exactly once?

1. Decide on the folded state.
2. Create the slot with put-if-absent.
3. Settle an unknown outcome.
4. Acknowledge only if no boundary has overtaken the slot.

See PROTOCOL.md, "Appending", W10 to W15. Every append of txlog uses `append_slot`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from txlog.core import chain, envelope, names
from txlog.core.effects import List, Now, Program, PutOutcome, ReadClocks, Sleep
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, CommitRecord, GroupRow, OffsetRow, TransactionEntry
from txlog.core.state import PartitionState
from txlog.errors import (
    CoordinatorContentionError,
    CorruptRecordError,
    InvalidRequestError,
    OutcomeUnknownError,
    RecordTooLargeError,
    TxlogError,
)
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import prove, read_slot, refresh, reload
from txlog.protocol.put import create

MAX_RACE_PAUSE_MS = 8
"""The longest pause after a lost slot. A writer that paused longer the more slots it has lost would lose again, to
those that have just won and do not pause."""

Decide: TypeAlias = "Callable[[PartitionState, int], CommitRecord | Stop]"
"""(state folded up to the slot, wall clock) -> the record for that slot, or a Stop."""
Guard: TypeAlias = "Callable[[PartitionState], Program[Stop | None]]"
"""Called before a PUT, after the fold. None: go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Do not append; `value` is the caller's. It counts only on a fresh tail; `append_slot` ensures that."""

    value: Any
    refused: bool = False
    """Whether the record must not be appended. False: it need not be appended."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The record is in the chain, at these offsets, and acknowledged."""

    base_offset: int
    records: int
    timestamp: int
    duplicate: bool = False
    """Whether an earlier try had already written the batch."""


def append_slot(
    ctx: Context,
    view: PartitionView,
    decide: Decide,
    *,
    write_id: str,
    payload: bytes = b"",
    guard: Guard | None = None,
    guard_holds: bool = False,
) -> Program[tuple[PartitionView, AppendResult | Stop]]:
    """Append the record that `decide` makes for the next free slot, exactly once (W10, invariants 1 and 3).

    `guard_holds`: the consent of `guard` also holds for later folds that `_continues` finds. `payload` is left out if
    the record announces none. `decide` is called again for every slot; a Stop is final only on a tail that was read
    after this call began (W15). A record may have landed in a slot that was deleted since. It is
    then searched by its `write_id` and by folded state before anything else is tried (W12). Raises InvalidRequestError
    or RecordTooLargeError for a record that readers would refuse (W5). Raises OutcomeUnknownError if the record may
    have landed, and only then (W13).
    """
    in_doubt: CommitRecord | None = None
    try:
        fresh = False
        guarded_end: int | None = None
        now = yield ReadClocks()
        if view.age_ms(now) >= ctx.max_view_age_ms:
            # The slot of an old view may have been deleted. A write there is allowed and is settled later, but has no
            # effect.
            view, fresh = (yield from reload(ctx, view)), True
        elif view.needs_proof(now):
            # A write after a record that no longer exists would leave a hole (W47).
            view = yield from prove(ctx, view)
        for race in range(ctx.max_races):
            if in_doubt is not None and (found := find_own(view, write_id)) is not None:
                return view, found
            now_ms = yield Now()
            decision = decide(view.state, now_ms)
            if (
                not isinstance(decision, Stop)
                and guard is not None
                and (in_doubt is not None or not guard_holds or not _continues(view, guarded_end))
            ):
                stop = yield from guard(view.state)
                decision, guarded_end = (decision, view.state.next_offset) if stop is None else (stop, None)
            if isinstance(decision, Stop):
                if not fresh:
                    view, fresh = (yield from refresh(ctx, view)), True
                    continue
                if in_doubt is not None and decision.refused and not _shows_absent(view.state, in_doubt):
                    raise _unknown(view, in_doubt)
                return view, decision
            if in_doubt is not None and not (_is_known(view.state, decision) or _is_repeatable(decision)):
                raise _unknown(view, in_doubt)
            stored = encode_checked(view.topic_partition, decision, payload if decision.payload_bytes else b"")
            started_at = yield ReadClocks()
            holder = yield from _create_slot(ctx, view, (stored,), write_id)
            own = next((each.record for each in holder or () if each.record.write_id == write_id), None)
            if holder is None:
                # The slot was deleted meanwhile: only the folded state can show what happened.
                in_doubt = in_doubt or decision
                view, fresh = (yield from reload(ctx, view)), True
            elif own is not None:
                return ctx.learn(view.extended(holder, listed_at=started_at)), _appended(own)
            else:
                # Another record has the slot (invariant 15). Usually the next one is free.
                view, fresh = ctx.learn(view.extended(holder)), False
                if race:
                    yield Sleep(min(2 ** (race - 1), MAX_RACE_PAUSE_MS, ctx.retry_backoff_max_ms), full_jitter=True)
                    view, fresh = (yield from refresh(ctx, view)), True
        raise CoordinatorContentionError(
            f"{view.topic_partition}: lost {ctx.max_races} races for the next offset (now {view.state.next_offset}) "
            "to other writers; try again"
        )
    except TxlogError as error:
        # While an outcome is in doubt, damage or a refusal settles nothing. Any error except this one would claim that
        # the rows are not in the log.
        if in_doubt is None or isinstance(error, OutcomeUnknownError):
            raise
        raise _unknown(view, in_doubt) from error


def encode_combined(tp: TopicPartition, records: Sequence[tuple[CommitRecord, bytes]]) -> tuple[StoredRecord, ...]:
    """Return the stored form of records that are one object, each with its inline rows, in order.

    Their digests are computed here, so only the first must name the record before it. Raises as `encode_checked`.
    """
    slot, previous = records[0][0].base_offset, records[0][0].previous
    found: list[StoredRecord] = []
    for number, (record, payload) in enumerate(records, start=1):
        more = msgspec.UNSET if number == len(records) else True
        linked = msgspec.structs.replace(record, previous=previous, more=more)
        found.append(encode_checked(tp, linked, payload, slot=slot))
        previous = found[-1].digest
    return tuple(found)


def encode_checked(
    tp: TopicPartition, record: CommitRecord, payload: bytes = b"", headroom_bytes: int = 0, slot: int | None = None
) -> StoredRecord:
    """Return the record's stored form, after reading it back as readers do (W5).

    If readers refused a stored record, no record could follow it. Raises InvalidRequestError; RecordTooLargeError
    unless `headroom_bytes` are left below the limit. A record with headroom is only tried, so it gets no digest.
    `slot` is that of an earlier record in the same object.
    """
    try:
        data = envelope.encode(record, payload)
        if len(data) + headroom_bytes > envelope.MAX_COMMIT_BYTES:
            raise RecordTooLargeError(
                f"{tp}: a commit object of {len(data)} bytes, more than the {envelope.MAX_COMMIT_BYTES} that one may "
                "have; send fewer rows at once"
            )
        stored = stored_record(data, tp, record.base_offset, slot=slot, hashed=not headroom_bytes)
    except RecordTooLargeError:
        raise
    except (CorruptRecordError, ValueError) as error:
        raise InvalidRequestError(f"{tp}: this cannot be stored: {error}") from None
    # A staged COMMIT names files of its transaction's epoch (W7). Vacuum uses these names (C8).
    owner = (record.producer_id, record.producer_epoch - (1 if record.kind == "commit" else 0))
    for file in record.files:
        parsed = names.parse_rows_path(file.path)
        if parsed is None or (parsed.producer_id, parsed.producer_epoch) != owner:
            raise InvalidRequestError(
                f"{tp}: a batch of producer {owner[0]}, epoch {owner[1]}, names the file {file.path}, which is not "
                "of that producer and epoch"
            )
    return stored


def _continues(view: PartitionView, end_offset: int | None) -> bool:
    """Return whether the table's consent on a fold that ended at `end_offset` holds for this view, too (W21).

    Only an `expire` record makes a partition forget a producer. So a producer that neither fold knows had no record
    between the two, and no process has ended its transaction in this partition.
    """
    if end_offset is None or end_offset < view.sealed_end:
        return False
    return all(each.record.kind != "expire" for each in view.tail if each.record.base_offset >= end_offset)


def _create_slot(
    ctx: Context, view: PartitionView, stored: tuple[StoredRecord, ...], write_id: str
) -> Program[tuple[StoredRecord, ...] | None]:
    """Put records into their slot, as one object, until the slot is taken.

    Return the records that have it; None if the slot is below a boundary.
    """
    tp, slot = view.topic_partition, stored[0].slot

    def look(outcome: PutOutcome) -> Program[tuple[tuple[StoredRecord, ...] | None] | None]:
        # CONFLICT may be the process's own write, repeated inside the adapter. UNKNOWN may still land. The stored
        # record decides.
        holder = stored if outcome is PutOutcome.WRITTEN else (yield from read_slot(tp, slot))
        if not (yield from _not_overtaken(ctx, view, slot)):
            return (None,)
        return (holder,) if holder else None

    path, data = tp.folder + names.batch_name(slot), b"".join(each.data for each in stored)
    (found,) = yield from create(ctx, path, data, look, what=f"the record (write_id {write_id})")
    return found


def _not_overtaken(ctx: Context, view: PartitionView, slot: int) -> Program[bool]:
    """Return whether no boundary is above `slot` (W14, invariants 2 and 14).

    That is so if the view is young, or if a LIST made now shows no such boundary.
    """
    if view.age_ms((yield ReadClocks())) < ctx.max_view_age_ms:
        return True
    listed = yield List(view.topic_partition.folder)
    return chain.parse_listing(listed, view.topic_partition.folder).boundary <= slot


def find_own(view: PartitionView, write_id: str) -> AppendResult | None:
    """Return the record with this `write_id`, from the tail or as the last one of its key in the folded tables."""
    for stored in view.tail:
        if stored.record.write_id == write_id:
            return _appended(stored.record)
    state = view.state
    pending = (row for rows in state.pending.values() for row in rows.values())
    rows: list[OffsetRow | GroupRow] = [*state.committed.values(), *pending, *state.groups.values()]
    for row in rows:
        if row.write_id == write_id:
            return AppendResult(row.position, 1, state.last_timestamp)
    for txn in state.transactions.values():
        if txn.value.write_id == write_id:
            return AppendResult(txn.offset, 1, txn.value.updated_at)
    return None


def _appended(record: CommitRecord) -> AppendResult:
    return AppendResult(record.base_offset, record.records, record.timestamp)


def _is_known(state: PartitionState, record: CommitRecord) -> bool:
    """Return whether the fold can show what happened to a record in doubt.

    It can if it knows the PID, or if the second read of W21 covers the record (transactional PIDs). It cannot for an
    unknown drawn PID, nor for a record without a PID.
    """
    return record.producer_id in state.producers or 0 <= record.producer_id < FIRST_DRAWN_PRODUCER_ID


def _shows_absent(state: PartitionState, record: CommitRecord) -> bool:
    """Return whether the fold, which lacks the record, proves that it has not landed (W15).

    The fold keeps the batches of a producer's newest epoch. A later epoch, or a missing entry, proves nothing: after
    the end of a transaction both are possible, whether the record landed or not.
    """
    entry = state.producers.get(record.producer_id)
    return entry is not None and entry.producer_epoch <= record.producer_epoch


def _is_repeatable(record: CommitRecord) -> bool:
    """Return whether a record may be appended although an earlier try may have landed.

    Transitions are compare-and-set on the id's last record; expiries and deletions are checked against the state. So a
    second copy of these records has no effect.
    """
    if record.kind == "data":
        return bool(record.entries) and all(isinstance(entry, TransactionEntry) for entry in record.entries)
    return record.kind == "expire" or record.deleted_version > 0


def _unknown(view: PartitionView, record: CommitRecord) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{view.topic_partition}: a write at offset {record.base_offset} (producer {record.producer_id}) may have "
        "landed, and its slot was deleted, so its outcome cannot be settled. "
        "hint: close this producer, look whether the rows are there before you send them again, and open a new one"
    )
