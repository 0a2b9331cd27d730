"""What may be deleted, and in which order does vacuum find out and delete?

The order is that of PROTOCOL.md (C8), and no other is safe. Vacuum lists the files, then folds the whole table of
transactions, then reads the chains of all partitions of the topic, then deletes. Many vacuums may run at once beside
writers, readers and other maintenance jobs, and may die anywhere. Each deletion is complete in itself, and the next
pass finds what is left. A pass that finds nothing to delete writes nothing. See PROTOCOL.md, "Clean-up", C5 to C10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from txlog.core import chain, envelope, names, vacuum
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Gather, Get, List, Modified, Now, Program, PutIfAbsent
from txlog.core.names import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, SegmentObject, TopicPartition
from txlog.core.records import Boundary, Clean, TransactionMetadata
from txlog.core.snapshot_state import decode_snapshot
from txlog.core.vacuum import Dead, Folder, Kind, Why
from txlog.errors import StorageError, StoreAccessError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.expiry import append_nothing
from txlog.protocol.load import present
from txlog.protocol.put import encode_readable
from txlog.protocol.requests import AT_ONCE, delete, many, modified, names_in, size, store_now
from txlog.protocol.seal import seal_quietly
from txlog.protocol.snapshot import fold_table
from txlog.protocol.vacuum_dead import (
    ChainContent,
    dead_files,
    dead_numbers,
    dead_parts,
    dead_staged_lists,
    dead_waiting,
    judge_drawn,
    read_chain,
)
from txlog.protocol.vacuum_published import PublishRetention, kept_files


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFiles:
    """The files of a topic whose names carry producer and epoch, listed before the table was folded."""

    topic: str
    partitions: tuple[int, ...]
    """Partitions that have a folder."""
    rows: Mapping[int, tuple[str, ...]]
    """Partition -> names below its `rows/`."""
    staged_folders: tuple[str, ...]
    """Names below `staged/`, each ending in `/`."""
    staged_lists: Mapping[int, tuple[str, ...]]
    """In the table of transactions: partition -> names of `.staged` objects."""
    is_published: bool = False
    """Whether the topic has publications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """An object that was deleted, or would be in a dry run."""

    dead: Dead
    bytes: int | None
    """Its length; None if sizes were not asked for, or if it was deleted already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """What a look at one partition found. It stays true whatever other processes do."""

    topic_partition: TopicPartition
    folder: Folder = field(repr=False)
    clean: Clean | None
    log_start_offset: int
    boundary: int | None
    """A higher boundary that may be created; None if no higher one may be created."""
    dead: tuple[Dead, ...]
    """Dead objects, in the order in which they are deleted."""
    marks: frozenset[str]
    """Names of superseded objects that no `.clean` lists yet."""

    @property
    def has_work(self) -> bool:
        """Return whether a sweep of it would delete or write anything."""
        return (
            self.boundary is not None
            or bool(self.marks)
            or any(dead.waits_until_ms is None for dead in self.dead)
            # Notes of objects that other processes have deleted meanwhile.
            or self.has_old_notes
        )

    @property
    def has_old_notes(self) -> bool:
        """Return whether the list of cleaned runs still notes objects that no longer exist."""
        left = {name for part in self.folder.parts for name in vacuum.note_names(part)}
        return self.clean is not None and any(each.name not in left for each in self.clean.superseded)


def read_store_clock(*, dry_run: bool = False) -> Program[int]:
    """Return the store's time, to which all ages of a pass are counted (W48).

    It is taken before the pass plans anything, so ages are at most too small. A dry run that may not write returns this
    machine's clock, less the largest error that it may have.
    """
    try:
        return (yield from store_now())
    except (StoreAccessError, StorageError):
        if not dry_run:
            raise
        return int((yield Now())) - MAX_CLOCK_ERROR_MS


def list_topics() -> Program[tuple[str, ...]]:
    """Return the folders of the root that are topics, deleted and internal ones included."""
    listed: tuple[str, ...] = yield List("")
    found = []
    for name in listed:
        topic = name[:-1]
        if not name.endswith("/") or not names.is_topic_name(topic):
            continue
        if topic in INTERNAL_TOPICS or (
            not names.is_reserved(topic)
            and any(names.parse_topic_metadata_name(each) is not None for each in (yield List(name)))
        ):
            found.append(topic)
    return tuple(found)


def list_files(topic: str) -> Program[TopicFiles]:
    """Do step 1 of C8: list a topic's files. Costs a LIST, one per partition, and one of `staged/` if it exists.

    Names that do not parse are left out here and in all that follows, so no pass deletes them (W59).
    """
    listed: tuple[str, ...] = yield List(f"{topic}/")
    partitions = tuple(sorted(n for name in listed if (n := names.parse_partition_folder(name)) is not None))
    is_table = topic == TRANSACTION_STATE_TOPIC
    prefixes = [f"{topic}/{n}/" if is_table else f"{topic}/{n}/rows/" for n in partitions]
    found = (
        [] if topic in INTERNAL_TOPICS and not is_table else (yield from many([names_in(each) for each in prefixes]))
    )
    folders = (yield List(f"{topic}/staged/")) if "staged/" in listed else ()
    by_partition = dict(zip(partitions, found, strict=False))
    staged = {n: tuple(each for each in by_partition[n] if names.parse_staged_list_name(each)) for n in by_partition}
    return TopicFiles(
        topic=topic,
        partitions=partitions,
        rows={} if is_table else by_partition,
        staged_folders=tuple(each for each in folders if names.parse_staged_folder(each) is not None),
        staged_lists=staged if is_table else {},
        is_published=names.PUBLICATION_FOLDER in listed,
    )


def read_table(ctx: Context, views: Views) -> Program[tuple[Views, Mapping[int, TransactionMetadata]]]:
    """Do step 2 of C8: fold the whole table of transactions, by producer id."""
    views, rows, _ = yield from fold_table(ctx, views)
    return views, {txn.producer_id: txn for txn in rows}


def plan_topic(
    ctx: Context,
    views: Views,
    files: TopicFiles,
    table: Mapping[int, TransactionMetadata],
    *,
    now_ms: int,
    dry_run: bool = False,
    publish: PublishRetention | None = None,
) -> Program[tuple[Views, tuple[PartitionPlan, ...]]]:
    """Do step 3 of C8: read the chains of all partitions, and judge. `now_ms` is from `read_store_clock`.

    `publish` is needed for a topic that has publications: their files stay (C13).

    Where only an `expire` that names no producer makes a drawn producer's file dead, one is appended, except in a dry
    run (C9).
    """
    staged, rest, empty = yield from _list_staged(files, table)
    if not dry_run:
        # A killed Spark job leaves folders without files. Only a file system has such folders. They are not objects, so
        # they are not reported.
        yield from many([delete(folder) for folder in empty])
    plans = []
    # A partition that had no folder when the files were listed may have one now, with records that name those files.
    for n in sorted({*files.partitions, *staged, *([0] if rest else ())}):
        tp = TopicPartition(files.topic, n)
        mine = [f"{n}/rows/{name}" for name in files.rows.get(n, ())] + staged.get(n, [])
        views, plan = yield from _plan_partition(
            ctx, views, tp, mine, files.staged_lists.get(n, ()), table, now_ms=now_ms, dry_run=dry_run
        )
        plans.append(plan)
    if publish is not None:
        kept = yield from kept_files(ctx, files.topic, publish, now_ms=now_ms, dry_run=dry_run)
        plans = [replace(plan, dead=tuple(kept.judge(files.topic, dead) for dead in plan.dead)) for plan in plans]
        rest += kept.dead
    if rest and plans:
        plans[0] = replace(plans[0], dead=(*rest, *plans[0].dead))
    return views, tuple(plans)


def sweep(ctx: Context, plan: PartitionPlan, *, dry_run: bool, sizes: bool) -> Program[tuple[Deleted, ...]]:
    """Delete what a plan found dead and due. Return what was deleted.

    It first creates the plan's boundary. At the end it notes what the plan found superseded. A dry run deletes and
    writes nothing, and returns what would be deleted. `sizes` asks for the length of each object.
    """
    tp = plan.topic_partition
    due = [dead for dead in plan.dead if dead.waits_until_ms is None]
    if not dry_run:
        boundary = yield from _raise_boundary(plan)
        due = [dead for dead in due if _may_go(dead, boundary)]
    deleted: list[Deleted] = []
    for first in range(0, len(due), AT_ONCE):
        part = due[first : first + AT_ONCE]
        lengths = (yield Gather(tuple(size(each.path) for each in part))) if sizes else [None] * len(part)
        if not dry_run:
            # Objects of one kind may be deleted at once, different kinds only in this order.
            for batch in [list(run) for _, run in groupby(part, key=attrgetter("kind"))]:
                yield Gather(tuple(delete(each.path) for each in batch))
        deleted += [Deleted(dead=each, bytes=size) for each, size in zip(part, lengths, strict=True)]
    if not dry_run and tp.topic not in INTERNAL_TOPICS:
        gone = {each.dead.path for each in deleted}
        left = [part for part in plan.folder.parts if tp.folder + vacuum.part_name(part) not in gone]
        made = vacuum.next_notes(plan.clean, left, plan.marks, plan.log_start_offset, (yield Now()))
        if made is not None:
            # If another job or vacuum publishes this number first, the next pass notes these objects.
            path = tp.folder + names.clean_name(made.number)
            yield PutIfAbsent(path, encode_readable(path, made))
    return tuple(deleted)


# -- a partition ------------------------------------------------------------------------------------------------------


def _plan_partition(
    ctx: Context,
    views: Views,
    tp: TopicPartition,
    files: Sequence[str],
    staged_lists: Sequence[str],
    table: Mapping[int, TransactionMetadata],
    *,
    now_ms: int,
    dry_run: bool,
) -> Program[tuple[Views, PartitionPlan]]:
    grace_ms = ctx.vacuum_grace_ms
    views, known = yield from read_chain(ctx, views, tp)
    if not dry_run and _is_spent(known.view):
        views = yield from _seal_spent(ctx, views, tp)
        views, known = yield from read_chain(ctx, views, tp)
    drawn = yield from judge_drawn(files, known, now_ms, grace_ms)
    if not dry_run and Why.DRAWN_AFTER_RECORD in drawn.values():
        views = yield from append_nothing(ctx, views, tp, ctx.roll_of(tp))
        # Read the chain again: a late append may have won the slot before.
        views, known = yield from read_chain(ctx, views, tp)
        drawn = yield from judge_drawn(files, known, now_ms, grace_ms)
        drawn = {path: why for path, why in drawn.items() if why is Why.DRAWN}
    boundary = yield from _next_boundary(tp, known, now_ms, grace_ms)
    seen = max(known.folder.listing.boundary, boundary or 0)
    boundaries = known.folder.boundaries
    times_ms = yield from many([modified(tp.folder + names.boundary_name(number)) for number in boundaries])
    bounds_ms = dict(zip(boundaries, times_ms, strict=True))
    parts, marks = dead_parts(known, bounds_ms, seen, now_ms, grace_ms)
    dead: list[Dead] = [
        Dead(path=tp.folder + names.batch_name(base), kind=Kind.SLOT, why=Why.BELOW_BOUNDARY)
        for base in known.folder.slots
        if base < seen
    ]
    dead += dead_files(files, known, drawn, table)
    dead += yield from dead_staged_lists(staged_lists, known, table)
    dead += parts
    dead += yield from dead_waiting(known)
    dead += dead_numbers(known, bounds_ms, now_ms, grace_ms)
    return views, PartitionPlan(
        topic_partition=tp,
        folder=known.folder,
        clean=known.clean,
        log_start_offset=known.state.log_start_offset,
        boundary=boundary,
        dead=tuple(dead),
        marks=marks,
    )


def _is_spent(view: PartitionView) -> bool:
    """Return whether a user's tail holds rows, and all of them lie below the log start.

    A deleted topic may never get another record. Without sealing, such a tail would stay forever.
    """
    with_rows = [stored.record for stored in view.tail if stored.record.records]
    return (
        view.topic_partition.topic not in INTERNAL_TOPICS
        and bool(with_rows)
        and with_rows[-1].end_offset <= view.state.log_start_offset
    )


def _seal_spent(ctx: Context, views: Views, tp: TopicPartition) -> Program[Views]:
    """End the active segment if it holds rows, and seal all finished segments."""
    base = views[tp].state.segment_base
    if any(stored.record.records for stored in views[tp].tail if stored.record.segment_base == base):
        views = yield from append_nothing(ctx, views, tp, RollPolicy(batches=1))
    return with_view(views, (yield from seal_quietly(ctx, views[tp])))


def _next_boundary(tp: TopicPartition, known: ChainContent, now_ms: int, grace_ms: int) -> Program[int | None]:
    """Return the highest offset at which a boundary may be created now; None if there is no such offset (C6).

    By the time at which the store got its index, the segment that ends there was sealed at least the grace ago. The
    snapshot at that offset can be read.
    """
    candidates = vacuum.bounds(known.folder)
    low, high = 0, len(candidates)
    # Segments are sealed in order, so their times rise.
    while low < high:
        middle = (low + high) // 2
        sealed_ms = yield Modified(tp.folder + candidates[middle].index)
        if sealed_ms is not None and now_ms - sealed_ms >= grace_ms:
            low = middle + 1
        else:
            high = middle
    if not low:
        return None
    end = candidates[low - 1].end_offset
    path = tp.folder + names.snapshot_name(end)
    decode_snapshot(present((yield Get(path)), path), tp, end)
    return end


def _raise_boundary(plan: PartitionPlan) -> Program[int]:
    """Create the plan's boundary. Return the highest boundary that a LIST made afterwards shows (C6)."""
    if plan.boundary is None:
        return plan.folder.listing.boundary
    tp = plan.topic_partition
    made = Boundary(offset=plan.boundary, created_at=(yield Now()))
    yield PutIfAbsent(tp.folder + names.boundary_name(plan.boundary), envelope.encode(made))
    # It may be this boundary or another process's: only a boundary that a LIST shows allows a deletion.
    return chain.parse_listing((yield List(tp.folder)), tp.folder).boundary


# -- what Spark staged ------------------------------------------------------------------------------------------------


def _list_staged(
    files: TopicFiles, table: Mapping[int, TransactionMetadata]
) -> Program[tuple[dict[int, list[str]], list[Dead], list[str]]]:
    """Return what lies below the staged folders whose producer and epoch are dead, as three collections.

    1. Partition -> files of rows.
    2. Other objects, which Spark's committer made and no record can name.
    3. Empty folders.

    A folder was listed before the table was folded, but its files may be listed later. The folder's name shows producer
    and epoch, and once these are dead they stay dead.
    """
    found: dict[int, list[str]] = {}
    rest: list[Dead] = []
    empty: list[str] = []
    for folder in files.staged_folders:
        whose = names.parse_staged_folder(folder)
        why = None if whose is None else vacuum.judge_producer(*whose, table)
        if why is None:
            continue
        paths, without = yield from _list_deep(files.topic, f"staged/{folder}")
        empty += [f"{files.topic}/{each}" for each in without]
        for path in paths:
            parsed = names.parse_rows_path(path)
            if parsed is None:
                rest.append(Dead(path=f"{files.topic}/{path}", kind=Kind.ROWS, why=why))
            else:
                found.setdefault(parsed.partition, []).append(path)
    return found, rest, empty


def _list_deep(topic: str, folder: str) -> Program[tuple[list[str], list[str]]]:
    """Return the objects at any depth, and the empty folders (without `/`)."""
    found: list[str] = []
    empty: list[str] = []
    waiting = [folder]
    while waiting:
        listed = yield from many([names_in(f"{topic}/{each}") for each in waiting])
        below: list[str] = []
        for parent, children in zip(waiting, listed, strict=True):
            if not children:
                empty.append(parent.removesuffix("/"))
            for child in children:
                (below if child.endswith("/") else found).append(parent + child)
        waiting = below
    return found, empty


def _may_go(dead: Dead, boundary: int) -> bool:
    """Return whether the boundary of the last LIST allows a deletion.

    Slots below the boundary may be deleted, and indexes whose age lets it rise.
    """
    parsed = names.parse_partition_object(dead.path.rpartition("/")[2])
    if isinstance(parsed, SegmentObject):
        return parsed.segment.generation > 0 or parsed.segment.end_offset <= boundary
    return dead.kind is not Kind.SLOT or (parsed is not None and parsed.number < boundary)
