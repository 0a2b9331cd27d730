"""How does a record get into the log by the record of another writer?

A writer that has lost several slots puts its record beside the log, where it *waits*, and follows the log by name. A
leader takes what waits into one object. See PROTOCOL.md, "Waiting", W65 to W69.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from txlog.core import names
from txlog.core.ages import ClockReading
from txlog.core.combining import MAX_FOLLOWING, Followed, combine, may_wait
from txlog.core.effects import Delete, Gather, Get, List, Now, Program, PutIfAbsent, ReadClocks, Sleep
from txlog.core.features import COMBINED_RECORDS
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import CommitRecord
from txlog.core.state import replay
from txlog.errors import CorruptLogError, InvalidRequestError, TxlogError
from txlog.protocol.context import LOOK_AGE_MS, Context, Mark, PartitionView
from txlog.protocol.load import prove, read_slot, refresh, trim_to
from txlog.protocol.requests import many
from txlog.protocol.slot_record import check_owner_of_files, create_slot, encode_combined

T = TypeVar("T")

IDLE_LOOKS = 12
"""Looks in a row without a new record after which a leader stops."""
LOOKS = 4
"""A waiting writer that sees no new record in so many looks, and for PATIENCE_MS, leads itself."""
PATIENCE_MS = 25
MAX_PAUSE_MS = 100
SHARED_RECORDS = 3
"""Writers that would wait. Fewer are faster if they take turns."""
_LAST_RECORDS = 8
_MAX_SLOTS = 4
"""Slots that one look reads by name. A process further behind may never reach the end that way."""


def waits(ctx: Context, view: PartitionView, stored: StoredRecord) -> bool:
    """Return whether a record may wait in this store (W65)."""
    return COMBINED_RECORDS in ctx.features and may_wait(view.topic_partition, stored)


def is_shared(view: PartitionView) -> bool:
    """Return whether others wait, or one of the last objects holds some records: somebody leads, or did a moment
    ago."""
    last = Counter(each.slot for each in view.tail[-_LAST_RECORDS:])
    return view.others_wait or max(last.values(), default=0) >= SHARED_RECORDS


def looking(view: PartitionView, now: ClockReading, appending: Program[T]) -> Program[tuple[PartitionView, T]]:
    """Return the result of an append, and the view with a look beside it whether others wait (W69).

    A writer that puts one record after the other leaves no gap, so others might never get a slot. It looks once in
    LOOK_AGE_MS, and not if it has just begun.
    """
    if view.age_ms(now) >= LOOK_AGE_MS:
        return replace(view, waited_at=None), (yield from appending)
    if view.waited_at is None or now.ms_since(view.waited_at) < LOOK_AGE_MS:
        return replace(view, waited_at=view.waited_at or now), (yield from appending)
    found, result = yield Gather((_others_wait(view), appending))
    return replace(view, waited_at=now, others_wait=found), result


def _others_wait(view: PartitionView) -> Program[bool]:
    """Return whether anything waits that a leader with this view may take. Raises nothing: an append runs beside it."""
    try:
        return bool((yield from _listed(view))[0])
    except TxlogError:
        return False


def _listed(view: PartitionView) -> Program[tuple[list[tuple[int, str]], list[tuple[int, str]]]]:
    """List what waits and may be taken, and what is in the tail already: each as slot and write_id."""
    tail = view.tail
    slots = sorted({each.slot for each in tail})
    first = slots[-MAX_FOLLOWING] if len(slots) >= MAX_FOLLOWING else view.sealed_end
    listed = yield List(view.topic_partition.folder + names.WAITING_FOLDER, start_after=f"{first:020d}")
    parsed = [each for name in listed if (each := names.parse_waiting_name(name)) is not None]
    there = {each.record.write_id for each in tail} if parsed else set()
    return [each for each in parsed if each[1] not in there], [each for each in parsed if each[1] in there]


def wait(
    ctx: Context, view: PartitionView, stored: StoredRecord
) -> Program[tuple[PartitionView, CommitRecord | None, bool]]:
    """Let a record wait that was made for the end of `view`, until it is in the log, or settled, or not known any more.

    Return the view, the record as it is in the log (None: it is not in what the view shows), and whether it is settled:
    no leader takes it any more. If this raises, a leader may still take it, as after any try of unknown outcome (W68).
    """
    write_id = stored.record.write_id
    asked_at = yield ReadClocks()
    yield PutIfAbsent(names.waiting_path(view.topic_partition, stored.record.base_offset, write_id), stored.data)
    pause_ms = min(max((yield ReadClocks()).ms_since(asked_at) // 3, 1), MAX_PAUSE_MS)
    looks, moved_at = 0, asked_at
    while True:
        yield Sleep(pause_ms)
        before = view.state.next_offset
        leads = looks >= LOOKS and (yield ReadClocks()).ms_since(moved_at) >= PATIENCE_MS
        view = yield from (lead(ctx, view, stored) if leads else _look(ctx, view, write_id))
        looks += 1
        if leads or view.state.next_offset > before:
            looks, moved_at = 0, (yield ReadClocks())
        for each in reversed(view.tail):
            if each.record.write_id == write_id:
                return view, each.record, True
            if each.record.base_offset <= before:
                break
        may_be_taken = _may_be_taken(view, stored)
        if may_be_taken is not True:
            return view, None, may_be_taken is False


def lead(ctx: Context, view: PartitionView, stored: StoredRecord) -> Program[PartitionView]:
    """Append what waits, and `stored` first, as one object (W67). Return a view that shows the slot's records."""
    desk = Desk(view, ready=[stored], known={stored.record.write_id})
    yield from collect(desk)
    view = yield from refresh(ctx, view)
    asked_at = yield ReadClocks()
    view, won = yield from append_waiting(ctx, view, desk.ready)
    if won:
        ctx.leads(view, (yield ReadClocks()).ms_since(asked_at))
    return view


@dataclass(slots=True)
class Desk:
    """What a leader has at hand. Its programs run beside each other, and share it."""

    view: PartitionView
    ready: list[StoredRecord] = field(default_factory=list)
    """What it has read and not appended."""
    known: set[str] = field(default_factory=set)
    """The write_ids of all that it has seen waiting."""
    done: set[str] = field(default_factory=set)
    """The write_ids of all that it has seen waiting when it was in the log."""
    is_open: bool = True
    idle_looks: int = 0
    """Looks in a row that found nothing new."""
    pace_ms: int = 1
    """How long its last append took."""


def look_on(desk: Desk) -> Program[None]:
    """Look for what waits as long as the desk is open."""
    while desk.is_open:
        known = len(desk.known)
        done = yield from collect(desk)
        desk.idle_looks = 0 if len(desk.known) > known else desk.idle_looks + 1
        if done:
            yield Delete(done[0], tuple(done[1:]))
        yield Sleep(max(desk.pace_ms // 8, 1))


def lead_on(ctx: Context, desk: Desk) -> Program[None]:
    """Append what the looks find, until nothing waits or another process leads."""
    while desk.is_open:
        ready, won = desk.ready[:], None
        del desk.ready[: len(ready)]
        asked_at = yield ReadClocks()
        if ready:
            # An append after a record that no longer exists would leave a hole (W47).
            view = (yield from prove(ctx, desk.view)) if desk.view.needs_proof(asked_at) else desk.view
            view, won = yield from append_waiting(ctx, view, ready)
            desk.ready[:0] = _left(view, ready)
            desk.view = _trimmed(view)
        if won is None:
            # What is left may be refused for as long as no other record comes.
            if desk.idle_looks >= IDLE_LOOKS:
                desk.is_open = False
            yield Sleep(max(desk.pace_ms // 8, 1))
            continue
        if not won and is_shared(desk.view):
            desk.is_open = False
        desk.pace_ms = min(max((yield ReadClocks()).ms_since(asked_at), 1), 2 * MAX_PAUSE_MS)
        # Others follow by name. If records came as fast as requests, they would never reach the newest one.
        yield Sleep(desk.pace_ms)


def collect(desk: Desk) -> Program[list[str]]:
    """Read the records that wait and that a leader may take, as far as the desk does not know them.

    An object that is damaged, has another name or is gone is left out: nothing refers to it (W67). Return the paths of
    those that are in the log, which the desk has not returned before.
    """
    tp = desk.view.topic_partition
    waiting, there = yield from _listed(desk.view)
    wanted = [each for each in waiting if each[1] not in desk.known]
    done = [each for each in there if each[1] not in desk.done]
    desk.known.update(write_id for _, write_id in wanted)
    desk.done.update(write_id for _, write_id in done)
    yield from many([_read(desk, slot, write_id) for slot, write_id in wanted])
    return [names.waiting_path(tp, slot, write_id) for slot, write_id in done]


def _may_be_taken(view: PartitionView, stored: StoredRecord) -> bool | None:
    """Return whether a leader with this view may take a record; None: the view has not all that this depends on."""
    followed = Followed(view.base, view.tail, stored.record.base_offset)
    return not followed.settles(view.state, stored) if followed.knows(stored) else None


def _left(view: PartitionView, ready: Sequence[StoredRecord]) -> list[StoredRecord]:
    """Return what a leader may take later: there was no room for it, or another batch must come before."""
    followed = Followed(view.base, view.tail)
    return [each for each in ready if followed.knows(each) and not followed.settles(view.state, each)]


def _trimmed(view: PartitionView) -> PartitionView:
    """Return the view of a leader without old finished segments. It is not one to read from, because these may not be
    sealed."""
    slots = sorted({each.slot for each in view.tail})
    if len(slots) < 2 * MAX_FOLLOWING:
        return view
    kept = next(each.record.segment_base for each in view.tail if each.slot == slots[-MAX_FOLLOWING])
    old = [each for each in view.tail if each.record.segment_base < kept]
    return trim_to(view, replay(view.base, old)) if old else view


def append_waiting(
    ctx: Context, view: PartitionView, waiting: Sequence[StoredRecord]
) -> Program[tuple[PartitionView, bool | None]]:
    """Append what may be taken of `waiting` at the end of `view`.

    Return the view after it, and whether this process has the slot. None: nothing may be taken.
    """
    tp = view.topic_partition
    now_ms = yield Now()
    placed = combine(view.state, Followed(view.base, view.tail), waiting, roll=ctx.roll_of(tp), now_ms=now_ms)
    if not placed:
        return view, None
    made = encode_combined(tp, placed)
    started_at = yield ReadClocks()
    holder = yield from create_slot(ctx, view, made, made[0].record.write_id)
    if holder is None:
        return (yield from refresh(ctx, view)), False
    won = holder[-1].digest == made[-1].digest
    return ctx.learn(view.extended(holder, listed_at=started_at if won else None)), won


def _look(ctx: Context, view: PartitionView, write_id: str) -> Program[PartitionView]:
    """Return the view with the next slots, up to the one that has the own record, or to the end."""
    for _ in range(_MAX_SLOTS):
        now = yield ReadClocks()
        if view.needs_proof(now) or view.age_ms(now) >= ctx.max_view_age_ms:
            break
        stored = yield from read_slot(view.topic_partition, view.state.next_offset)
        if view.age_ms((yield ReadClocks())) >= ctx.max_view_age_ms:
            break
        if not stored:
            return view
        # The new record names the one before it, so the chain still holds that (W47).
        view = ctx.learn(replace(view.extended(stored), proven_at=now, mark=Mark.of(stored)))
        if any(each.record.write_id == write_id for each in stored):
            return view
    return (yield from refresh(ctx, view))


def _read(desk: Desk, slot: int, write_id: str) -> Program[None]:
    tp = desk.view.topic_partition
    data = yield Get(names.waiting_path(tp, slot, write_id))
    with suppress(CorruptLogError, InvalidRequestError):
        stored = None if data is None else stored_record(data, tp, slot)
        if stored is not None and stored.record.write_id == write_id and may_wait(tp, stored):
            check_owner_of_files(tp, stored.record)
            desk.ready.append(stored)
