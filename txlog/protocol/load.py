"""How does a process learn a partition's state, cold and warm?

Cold: one LIST, then the snapshot, the `.clean` and the tail's records in parallel. Warm: the next slots by name until
one is missing. See PROTOCOL.md, "Opening a partition".
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from txlog.core import chain, envelope, names
from txlog.core.ages import ClockReading
from txlog.core.effects import Gather, Get, List, Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, end_digest, stored_records
from txlog.core.records import Clean
from txlog.core.snapshot_state import decode_snapshot
from txlog.core.state import PartitionState, replay
from txlog.errors import (
    CorruptLogError,
    CorruptRecordError,
    MissingObjectError,
    StorageError,
    StoreChangedError,
)
from txlog.protocol.context import LOOK_AGE_MS, Context, Mark, PartitionView, Views, with_view
from txlog.protocol.requests import get, names_in
from txlog.protocol.stores import check_store

T = TypeVar("T")

MAX_SLOTS_BY_NAME = 12
"""New records that a process follows by name, each with a GET after the other: so many GETs cost as much as a LIST. A
process further behind makes a LIST: then all GETs are one round, and the end is that of the LIST, however fast others
append."""
MAX_MS_BY_NAME = 10_000
"""How long a process follows by name, where a store answers slowly. A call then still has time for the LIST."""
MAX_LISTING_MS = 30_000
"""The longest LIST whose time counts: a longer one may have been a pause of the process."""


def load(ctx: Context, tp: TopicPartition) -> Program[PartitionView]:
    """Return the partition's view from one LIST. An empty partition is a view at offset 0.

    Raises CorruptLogError naming the damaged or missing object. Raises StorageError if every try took longer than a
    view may be old, and StoreChangedError if the location holds another store.
    """
    for attempt in range(ctx.max_loads):
        listed_at: ClockReading = yield ReadClocks()
        listed = (yield Gather((names_in(tp.folder), check_store(ctx))))[0] if ctx.store else (yield List(tp.folder))
        try:
            view: PartitionView | CorruptLogError = yield from _open(
                tp, chain.parse_listing(listed, tp.folder), listed_at
            )
        except CorruptLogError as error:
            view = error
        now: ClockReading = yield ReadClocks()
        # A process that slept during its GETs may have read slots that were deleted and created again since. What it
        # found, good or damaged, counts only if the LIST is still young (R7).
        young = now.ms_since(listed_at) < ctx.max_view_age_ms
        if isinstance(view, PartitionView) and young:
            return view
        # Maintenance may have deleted objects between the LIST and the GETs: list again. An object that stays missing
        # is damage.
        last = attempt == ctx.max_loads - 1
        if isinstance(view, CorruptLogError) and young and (last or not isinstance(view, MissingObjectError)):
            raise view
    raise StorageError(
        f"{tp}: could not be opened within {ctx.max_view_age_ms} ms, a tenth of delete.grace.ms, "
        f"in {ctx.max_loads} tries"
    )


def refresh(ctx: Context, view: PartitionView, max_age_ms: int | None = None) -> Program[PartitionView]:
    """Return `view` on the fresh tail: a request after this call began showed its end to be the log end.

    The next slots are read by name, one GET more than there are new records. Instead a LIST is made in two cases.

    * The view is older than a tenth of the grace (or than `max_age_ms`): only records found by name on a younger view
      count (R7). The view is loaded again.
    * MAX_SLOTS_BY_NAME were read, or MAX_MS_BY_NAME are over: a process that is not faster than the writers would
      follow them forever. A LIST of the new names shows the rest. But first the process follows for twice as long as
      the last such LIST took. While a long LIST is made, others may write more than MAX_SLOTS_BY_NAME records, and the
      next LIST would not find the end either.
    """
    limit_ms = ctx.max_view_age_ms if max_age_ms is None else min(max_age_ms, ctx.max_view_age_ms)
    least_ms = 2 * min(view.listing_ms, MAX_LISTING_MS)
    began = now = yield ReadClocks()
    # Not itertools.count(): the explorer compares what a program holds.
    slots = 0
    while True:
        by_name_ms = now.ms_since(began)
        if view.age_ms(now) >= limit_ms:
            break
        if by_name_ms >= least_ms and (slots >= MAX_SLOTS_BY_NAME or by_name_ms >= MAX_MS_BY_NAME):
            found = yield from _catch_up(ctx, view)
            ended = yield ReadClocks()
            if found is None:
                break
            return ctx.learn(replace(found, listing_ms=ended.ms_since(now)))
        following = read_slot(view.topic_partition, view.state.next_offset)
        if view.needs_proof(now):
            before = view
            view, stored = yield Gather((prove(ctx, before), following))
            if view.listed_at != before.listed_at:
                return view
        else:
            stored = yield from following
        # The age is measured after the answer: a process that slept during its GET may see a tail that was deleted
        # since.
        now = yield ReadClocks()
        if view.age_ms(now) >= ctx.max_view_age_ms:
            break
        if not stored:
            return view
        view = ctx.learn(view.extended(stored))
        slots += 1
    return (yield from reload(ctx, view))


def _catch_up(ctx: Context, view: PartitionView) -> Program[PartitionView | None]:
    """Return `view` at the end that a LIST of the names from its tail on shows; None if that LIST lacks a name.

    What others have sealed is a snapshot, and all new records after it are one round. Also returns None for what may
    have been deleted and created again meanwhile, because the view is too old (R7).
    """
    tp = view.topic_partition
    listing = chain.parse_listing((yield List(tp.folder, start_after=f"{view.sealed_end:020d}")), tp.folder)
    following, sealed, end = {each.base_offset: each for each in listing.segments}, [], view.sealed_end
    while end in following:
        sealed.append(following[end])
        end = following[end].end_offset
    is_sealed = end > view.state.next_offset
    first = end if is_sealed else view.state.next_offset
    bases = [base for base in listing.batches if base >= first]
    paths = [names.batch_name(base) for base in bases] + [names.snapshot_name(end)] * is_sealed
    found = list((yield Gather(tuple(get(tp.folder + path) for path in paths)))) if paths else []
    if None in found or view.age_ms((yield ReadClocks())) >= ctx.max_view_age_ms:
        return None
    if is_sealed:
        state = decode_snapshot(found.pop(), tp, end)
        view = replace(view, walk=(*view.walk, *sealed), base=state, tail=(), state=state)
    slots = [stored_records(data, tp, base) for base, data in zip(bases, found, strict=True)]
    ends = [view.state.next_offset, *(each[-1].record.end_offset for each in slots)]
    if ends[:-1] != bases:
        return None
    stored = tuple(each for records in slots for each in records)
    asks = view.must_list or is_sealed or any(each.record.asks_for_a_list for each in stored)
    return replace(view, tail=(*view.tail, *stored), state=replay(view.state, stored), must_list=asks)


def reload(ctx: Context, view: PartitionView) -> Program[PartitionView]:
    """Return the partition's view from a new LIST.

    Raises StoreChangedError if what `view` has seen is not in it. A log end never goes back, so the store was restored
    to an older state (R20).
    """
    loaded = yield from load(ctx, view.topic_partition)
    end, last = view.state.next_offset, view.last
    shown = loaded.digest_at(end)
    if shown is None and last is not None and last.slot >= loaded.boundary:
        # Others have sealed what lies at the end.
        data = yield Get(view.topic_partition.folder + names.batch_name(last.slot))
        if data is None or end_digest(data) != last.digest:
            # Below a boundary that is newer than the LIST, vacuum may have deleted the slot, and a writer that slept
            # may have created it again.
            loaded = yield from load(ctx, view.topic_partition)
            shown = "" if last.slot >= loaded.boundary else None
    if loaded.state.next_offset < end or shown not in (view.state.last_digest, None):
        raise (yield from _changed(ctx, view, loaded))
    return ctx.learn(loaded)


def relisting(
    ctx: Context,
    view: PartitionView,
    find: Callable[[PartitionView], Program[T]],
    again: type[CorruptLogError] = MissingObjectError,
) -> Program[tuple[PartitionView, T]]:
    """Return what `find` finds in `view`, with the view.

    If maintenance has deleted an object that the view names, list again and look in the newer view (R15). Raises
    MissingObjectError for an object that stays missing: that is damage. A `find` that makes a LIST of its own gives
    CorruptLogError as `again`, because its LIST may contradict an older view. Also list first if erased rows may be in
    what the view names (R23).
    """
    if view.must_list:
        view = yield from reload(ctx, view)
    for _ in range(ctx.max_loads - 1):
        try:
            return view, (yield from find(view))
        except again:
            view = yield from reload(ctx, view)
    return view, (yield from find(view))


def prove(ctx: Context, view: PartitionView) -> Program[PartitionView]:
    """Return `view` after a look whether the chain still holds its end.

    Costs one GET by name, two if this process has appended. The view is loaded again if its slots were deleted since.
    Raises StoreChangedError (W47).
    """
    now: ClockReading = yield ReadClocks()
    tp, last = view.topic_partition, view.last
    if last is None and view.state.next_offset == 0:
        yield from check_store(ctx)
        return replace(view, proven_at=now)
    if last is None:
        return (yield from reload(ctx, view))
    marks = [last] if view.mark in (last, None) else [view.mark, last]
    found = yield Gather(tuple(get(tp.folder + names.batch_name(mark.slot)) for mark in marks))
    for mark, data in zip(marks, found, strict=True):
        if data is None or end_digest(data) != mark.digest:
            # Below a boundary a slot may be deleted, or created again by a writer that slept.
            # Learned only if it shows no other store: the next call must meet the error, too.
            loaded = yield from reload(replace(ctx, learned=None), view)
            if mark.slot >= loaded.boundary:
                if data is not None:
                    stored_records(data, tp, mark.slot)  # raises the error of a damaged record
                raise (yield from _changed(ctx, view, loaded))
            return ctx.learn(loaded)
    return replace(view, proven_at=now, mark=last)


def look_again(
    ctx: Context, views: Views, tps: Collection[TopicPartition], age_ms: int = LOOK_AGE_MS
) -> Program[Views]:
    """Return `views` after a look at the chains of `tps` in one round, if the last look at one is `age_ms` old (W47).

    Partitions that are missing in `views` are loaded. Looks that are half as old are made again, too, so that the next
    ones fall together. Raises StoreChangedError, and what reading a partition raises.
    """
    now = yield ReadClocks()
    held = {tp: views[tp] for tp in tps if tp in views}
    if len(held) == len(tps) and not any(view.needs_proof(now, age_ms) for view in held.values()):
        return views
    programs = [load(ctx, tp) for tp in tps if tp not in held]
    programs += [prove(ctx, view) for view in held.values() if view.needs_proof(now, age_ms // 2)]
    return with_view(views, *(yield Gather(tuple(programs))))


def get_view(ctx: Context, views: Views, tp: TopicPartition) -> Program[tuple[Views, PartitionView]]:
    """Return the view of `tp` in `views`, loaded if it is missing there.

    A held view may be stale but is never wrong.
    """
    view = views.get(tp)
    if view is None:
        view = ctx.learn((yield from load(ctx, tp)))
        views = with_view(views, view)
    return views, view


def get_fresh_view(ctx: Context, views: Views, tp: TopicPartition) -> Program[tuple[Views, PartitionView]]:
    """Return the view of `tp` on the fresh tail."""
    view = views.get(tp)
    view = ctx.learn((yield from load(ctx, tp))) if view is None else (yield from refresh(ctx, view))
    return with_view(views, view), view


def gather_fresh_views(ctx: Context, views: Views, tps: list[TopicPartition]) -> Program[Views]:
    """Return `views` with fresh views of `tps`, read in parallel."""

    def one(tp: TopicPartition) -> Program[PartitionView]:
        _, view = yield from get_fresh_view(ctx, views, tp)
        return view

    return with_view(views, *(yield Gather(tuple(one(tp) for tp in tps))))


def read_slot(tp: TopicPartition, base_offset: int) -> Program[tuple[StoredRecord, ...]]:
    """Return the commit records in the slot at `base_offset`; none if it is free.

    A deleted slot is free, too: the caller knows the boundary.
    """
    data = yield Get(tp.folder + names.batch_name(base_offset))
    return () if data is None else stored_records(data, tp, base_offset)


def read_clean(tp: TopicPartition, number: int) -> Program[Clean]:
    """Return a list of cleaned runs that was listed. Raises MissingObjectError if it is gone."""
    return decode_clean((yield Get(tp.folder + names.clean_name(number))), tp, number)


def decode_clean(data: bytes | None, tp: TopicPartition, number: int) -> Clean:
    """Return the list of cleaned runs that an object holds, checked."""
    path = tp.folder + names.clean_name(number)
    clean, _ = envelope.decode(present(data, path), Clean, path)
    chain.check_clean(clean, number, path)
    return clean


def present(data: bytes | None, path: str) -> bytes:
    """Return `data`, which the log requires at `path`. Raise MissingObjectError if the object does not exist."""
    if data is None:
        raise MissingObjectError(f"{path}: the log names it, and it is gone. hint: check the store with `txlog fsck`")
    return data


def trim_to(view: PartitionView, base: PartitionState, *segments: names.SegmentName) -> PartitionView:
    """Return `view` after the tail up to the end of `base`, its fold there, was sealed as `segments`."""
    end_offset = base.next_offset
    return replace(
        view,
        walk=view.walk + segments,
        base=base,
        tail=tuple(stored for stored in view.tail if stored.record.base_offset >= end_offset),
    )


def _changed(ctx: Context, view: PartitionView, loaded: PartitionView) -> Program[StoreChangedError]:
    """Return the error for a log that does not hold what `view` has seen.

    Raises StoreChangedError if the location holds another store.
    """
    if ctx.store is not None:
        yield from check_store(replace(ctx, store=replace(ctx.store, checked_at=None)))
    seen, end = view.state.next_offset, loaded.state.next_offset
    what = f"the log ends at {end}, and" if end < seen else f"the log ends at {end}, but with other records:"
    return StoreChangedError(
        f"{view.topic_partition}: {what} this process has seen it up to {seen}. The store was put back to an older "
        "state, or records were deleted. "
        "hint: close what was made from the store, run `txlog fsck`, and open the store again"
    )


def _open(tp: TopicPartition, listing: chain.PartitionListing, listed_at: ClockReading) -> Program[PartitionView]:
    # Cleaned runs lie within the sealed part, so the names alone show the sealed end, and all GETs are one round.
    expected_end = max(
        [listing.boundary, *(s.end_offset for s in listing.segments), *(s.end_offset for s in listing.runs)]
    )
    snapshot_offset = max((offset for offset in listing.snapshots if offset <= expected_end), default=0)
    tail_names = [base for base in listing.batches if base >= snapshot_offset]
    programs = [get(tp.folder + names.batch_name(base)) for base in tail_names]
    if snapshot_offset:
        programs.append(get(tp.folder + names.snapshot_name(snapshot_offset)))
    if listing.clean is not None:
        programs.append(get(tp.folder + names.clean_name(listing.clean)))
    found = list((yield Gather(tuple(programs)))) if programs else []

    clean = None if listing.clean is None else decode_clean(found.pop(), tp, listing.clean)
    state = PartitionState.empty(tp)
    if snapshot_offset:
        path = tp.folder + names.snapshot_name(snapshot_offset)
        state = decode_snapshot(present(found.pop(), path), tp, snapshot_offset)
    sealed_end = chain.sealed_end(listing, clean)
    by_base = dict(zip(tail_names, found, strict=True))

    records: list[StoredRecord] = []
    at = snapshot_offset
    last = tail_names[-1] if tail_names else -1
    while at <= last or at < sealed_end:
        path = tp.folder + names.batch_name(at)
        # A LIST of several pages, or of a local folder, may miss a name that an older one follows: ask for it by name
        # (R5).
        data = by_base[at] if at in by_base else (yield Get(path))
        records += stored_records(present(data, path), tp, at)
        at = records[-1].record.end_offset
    # A slot is created only at the log's end, so the record before it ends where each listed slot begins (R6).
    led_to = {stored.slot for stored in records}
    for slot in tail_names:
        if slot not in led_to:
            raise CorruptRecordError(
                f"{tp.folder}{names.batch_name(slot)}: it lies inside the batch before it, so one of the two was "
                "replaced; check the store with `txlog fsck`"
            )
    sealed = [stored for stored in records if stored.record.base_offset < sealed_end]
    tail = tuple(stored for stored in records if stored.record.base_offset >= sealed_end)
    base = replay(state, sealed)
    if base.next_offset != sealed_end:
        raise CorruptLogError(
            f"{tp.folder}: sealed up to {sealed_end}, but a batch ends at {base.next_offset}. "
            "hint: check the store with `txlog fsck`"
        )
    state = replay(base, tail)
    # An internal partition's chain begins at the boundary. Its snapshot holds the fold of everything below.
    start = listing.boundary if tp.topic in names.INTERNAL_TOPICS else state.log_start_offset
    return PartitionView(
        topic_partition=tp,
        listed_at=listed_at,
        proven_at=listed_at,
        mark=Mark.of(tail),
        boundary=listing.boundary,
        walk=chain.walk(listing, clean, start),
        base=base,
        tail=tail,
        state=state,
    )
