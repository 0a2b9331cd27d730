"""How does one record get into the next free slot of a partition, exactly once?

1. Decide on the folded state.
2. Create the slot with put-if-absent.
3. Settle an unknown outcome.
4. Acknowledge only if no boundary has overtaken the slot.

See PROTOCOL.md, "Appending", W10 to W15. Every append of txlog uses `append_slot`.
"""

from __future__ import annotations

from dataclasses import replace

from txlog.core.effects import Now, Program, ReadClocks, Sleep
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, CommitRecord, TransactionEntry
from txlog.core.state import PartitionState
from txlog.errors import (
    CoordinatorContentionError,
    OutcomeUnknownError,
    TxlogError,
)
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import prove, refresh, reload
from txlog.protocol.slot_record import (
    AppendResult,
    Decide,
    Guard,
    Stop,
    appended,
    create_slot,
    encode_checked,
    find_own,
)
from txlog.protocol.waiting import is_shared, looking, wait, waits

MAX_LOST_SLOTS = 2
"""Slots that an append may lose before it waits for a leader. Two or three writers that take turns are faster."""
MAX_RACE_PAUSE_MS = 8
"""The longest pause after a lost slot. A writer that paused longer the more slots it has lost would lose again, to
those that have just won and do not pause."""


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
    may_be_taken = False  # whether a record of this call waits, and a leader may still take it
    try:
        fresh = False
        guarded_end: int | None = None
        waited = False  # a writer whose record was settled tries a slot before it waits again
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
                unsure = may_be_taken or (in_doubt is not None and not _shows_absent(view.state, in_doubt))
                if in_doubt is not None and decision.refused and unsure:
                    raise _unknown(view, in_doubt)
                return view, decision
            if in_doubt is not None and not (_is_known(view.state, decision) or _is_repeatable(decision)):
                raise _unknown(view, in_doubt)
            stored = encode_checked(view.topic_partition, decision, payload if decision.payload_bytes else b"")
            combines = waits(ctx, view, stored)
            if combines and not waited and (race >= MAX_LOST_SLOTS or is_shared(view)):
                waited = True
                before, in_doubt = in_doubt, in_doubt or decision
                view, own, settled = yield from wait(ctx, replace(view, others_wait=False), stored)
                if own is not None:
                    return view, appended(own)
                may_be_taken = may_be_taken or not settled
                in_doubt, fresh = (in_doubt if may_be_taken else before), False
                continue
            waited = False
            started_at = yield ReadClocks()
            creating = create_slot(ctx, view, (stored,), write_id)
            if combines:
                view, holder = yield from looking(view, started_at, creating)
            else:
                holder = yield from creating
            own = next((each.record for each in holder or () if each.record.write_id == write_id), None)
            if holder is None:
                # The slot was deleted meanwhile: only the folded state can show what happened.
                in_doubt = in_doubt or decision
                view, fresh = (yield from reload(ctx, view)), True
            elif own is not None:
                return ctx.learn(view.extended(holder, listed_at=started_at)), appended(own)
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


def _continues(view: PartitionView, end_offset: int | None) -> bool:
    """Return whether the table's consent on a fold that ended at `end_offset` holds for this view, too (W21).

    Only an `expire` record makes a partition forget a producer. So a producer that neither fold knows had no record
    between the two, and no process has ended its transaction in this partition.
    """
    if end_offset is None or end_offset < view.sealed_end:
        return False
    return all(each.record.kind != "expire" for each in view.tail if each.record.base_offset >= end_offset)


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
