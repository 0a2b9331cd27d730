"""Which objects of a store may be deleted, which must wait, and why?

Pure functions: they take names, the table of transactions, the lists of cleaned runs and times, and return verdicts
(PROTOCOL.md, "Clean-up", C5 to C10). An object that is judged dead stays dead, whatever other processes do meanwhile:
epochs and boundaries only rise, and the log start never goes back. A current run is only ever replaced by one that
covers it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

import msgspec

from txlog.core import chain, names
from txlog.core.chain import PartitionListing
from txlog.core.names import SegmentName, SegmentObject
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, Clean, CleanedRun, Superseded, TransactionMetadata
from txlog.core.transactions import PREPARED


class Why(Enum):
    """Why an object may be deleted."""

    NO_PRODUCER = "nothing names it, and its producer's transactional.id was removed"
    LATER_EPOCH = "nothing names it, and its producer is at a later epoch with that transaction finished"
    DRAWN = "nothing names it, and the log has later records, so no append can still name it"
    DRAWN_AFTER_RECORD = "nothing names it, and after the next record no append can name it"
    BELOW_BOUNDARY = "it is sealed, and a boundary is above it"
    COVERED = "a current run covers it"
    BELOW_LOG_START = "it lies wholly below the log start"
    BELOW_BEGINNING = "the chain of this internal partition begins above it"
    LOST_RUN = "current runs overlap it, so it can never be published"
    LOST_SEALING = "its segment's index names another file"
    OLD_SNAPSHOT = "a later snapshot lies at or below the boundary"
    OLD_CLEAN = "a higher list of cleaned runs exists"
    OLD_BOUNDARY = "a higher boundary exists"
    OLD_PUBLICATION = "no publication that still counts builds on it"
    NOT_PUBLISHED = "no publication that still counts names it"
    SETTLED = "the slot that it waits for is sealed"


class Kind(Enum):
    """The kind of an object."""

    SLOT = "commit record"
    ROWS = "rows"
    STAGED_LIST = "staged list"
    INDEX = "index"
    TXNINDEX = "transaction index"
    SEGMENT_ROWS = "rows of a segment"
    SNAPSHOT = "snapshot"
    CLEAN = "list of cleaned runs"
    BOUNDARY = "boundary"
    PUBLICATION = "publication"
    TABLE = "object of a published table"
    WAITING = "waiting record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """An object that no reader or writer can still use."""

    path: str
    """Relative to the root."""
    kind: Kind
    why: Why
    waits_until_ms: int | None = None
    """When the object may be deleted, if not now: `delete.grace.ms` after it was superseded. NOT_KNOWN_YET lies many
    years ahead."""


NOT_KNOWN_YET = 2**62
"""Value of `Dead.waits_until_ms` if no `.clean` lists the object yet, or if the store has no clock."""


# -- files of writers -------------------------------------------------------------------------------------------------


def judge_producer(producer_id: int, producer_epoch: int, table: Mapping[int, TransactionMetadata]) -> Why | None:
    """Return why no transaction can still append files of that producer and epoch (C8, invariant 16).

    None means that one still may, or that the id was drawn. `table` is the whole table of transactions by producer id,
    folded after the files were listed.
    """
    if producer_id >= FIRST_DRAWN_PRODUCER_ID:
        return None
    txn = table.get(producer_id)
    if txn is None:
        return Why.NO_PRODUCER
    if txn.producer_epoch <= producer_epoch:
        return None
    # In both PREPARE_* states markers may be missing, so a slow append of that epoch may still find its slot free.
    return None if txn.state in PREPARED and txn.last_epoch == producer_epoch else Why.LATER_EPOCH


def judge_drawn(modified_ms: int | None, last_slot_ms: int | None, now_ms: int, grace_ms: int) -> Why | None:
    """Return why no append can still name an unnamed file of a drawn producer id; None if one still may (C9).

    `last_slot_ms` is when the store got the partition's last record; the record's own timestamp is its writer's clock.
    DRAWN_AFTER_RECORD: the file is dead as soon as the log has another record.
    """
    if modified_ms is None or now_ms - modified_ms <= grace_ms:
        return None
    is_late = last_slot_ms is not None and last_slot_ms > modified_ms + grace_ms // 2
    return Why.DRAWN if is_late else Why.DRAWN_AFTER_RECORD


# -- a partition's folder ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """All objects of a partition's folder, by kind."""

    listing: PartitionListing
    slots: tuple[int, ...]
    """Base offsets of commit records, also below the boundary."""
    boundaries: tuple[int, ...]
    cleans: tuple[int, ...]
    parts: tuple[SegmentObject, ...]
    """Indexes, transaction indexes and files of segments and runs."""
    has_waiting: bool
    """Whether there is a folder of waiting records."""

    @property
    def indexes(self) -> frozenset[SegmentName]:
        """Return the names of segments and runs that have an index, current or not."""
        return frozenset((*self.listing.segments, *self.listing.runs))


def sort_out(listed: Iterable[str], folder: str) -> Folder:
    """Sort one LIST of a partition's folder by kind; skip names that do not belong to txlog."""
    found = tuple(listed)
    numbered, parts = chain.by_kind(found)
    return Folder(
        listing=chain.parse_listing(found, folder),
        slots=tuple(sorted(numbered["batch"])),
        boundaries=tuple(sorted(numbered["boundary"])),
        cleans=tuple(sorted(numbered["clean"])),
        parts=tuple(sorted(parts, key=attrgetter("segment", "kind"))),
        has_waiting=names.WAITING_FOLDER in found,
    )


def bounds(folder: Folder) -> tuple[SegmentName, ...]:
    """Return sealed segments at whose end a higher boundary may be created, lowest first (C6).

    Everything below is sealed, because segments are sealed in order. A snapshot holds the state at the new boundary.
    """
    snapshots = set(folder.listing.snapshots)
    return tuple(
        name
        for name in folder.listing.segments
        if name.end_offset > folder.listing.boundary and name.end_offset in snapshots
    )


def superseded_parts(
    folder: Folder, runs: Sequence[CleanedRun], gone_below: int, named: Collection[str], *, internal: bool = False
) -> dict[SegmentObject, Why]:
    """Return the objects of segments and runs that no reader can need again (C10), each with the reason.

    `gone_below` is the log start, or in an internal partition the highest boundary. `named` holds the names of the
    Parquet objects that an existing index names, current or not. They are deleted in a later pass than that index.
    """
    indexes = folder.indexes
    current = {run.name for run in runs}
    found: dict[SegmentObject, Why] = {}
    for part in folder.parts:
        name = part.segment
        why = _why_superseded(name, runs, current, gone_below)
        if internal and why is Why.BELOW_LOG_START:
            why = Why.BELOW_BEGINNING
        if part.kind == "parquet":
            if part_name(part) in named:
                continue
            if not name.generation and SegmentName(name.base_offset, name.end_offset, 0) in indexes:
                why = Why.LOST_SEALING
        if why is not None:
            found[part] = why
    return found


def part_name(part: SegmentObject) -> str:
    """Return the object's name in its folder."""
    return str(getattr(part.segment, part.kind))


def noted_since(part: SegmentObject, notes: Mapping[str, int]) -> int | None:
    """Return since when `part` is superseded, by the notes of a `.clean`; None without a note.

    The note is about the object itself or about its segment's index.
    """
    found = [notes[name] for name in note_names(part) if name in notes]
    return min(found, default=None)


def index_name(name: SegmentName) -> str:
    """Return the name of the `.index` that belongs to an object of that segment.

    A generation-0 file has a unique suffix, its index has none.
    """
    return (name if name.generation else SegmentName(name.base_offset, name.end_offset, 0)).index


def note_of(part: SegmentObject, why: Why) -> str:
    """Return the name under which a `.clean` notes that `part` is superseded.

    The segment's index stands for all objects of the segment.
    """
    return part_name(part) if why is Why.LOST_SEALING else index_name(part.segment)


def note_names(part: SegmentObject) -> tuple[str, str]:
    """Return the names under which a note may refer to `part`."""
    return part_name(part), index_name(part.segment)


def collect_notes(cleans: Sequence[tuple[Clean, int | None]]) -> dict[str, int]:
    """Return since when each object is superseded (C5).

    `cleans` holds all existing lists of cleaned runs, lowest number first, each with the time at which the store got
    it. The result has the objects that the highest list names, with its `since`. A process reads `since` before it
    creates the list, and may sleep in between. So if the lowest list that names an object also noted it first, the
    store's time of that list counts if it is later. Without times of the store the result is NOT_KNOWN_YET.
    """
    if not cleans:
        return {}
    found: dict[str, int] = {}
    wanted = {each.name: each.since for each in cleans[-1][0].superseded}
    for clean, modified_ms in cleans:
        for each in clean.superseded:
            if each.name not in wanted or each.name in found:
                continue
            if each.since < clean.created_at:
                found[each.name] = wanted[each.name]
            else:
                found[each.name] = NOT_KNOWN_YET if modified_ms is None else max(wanted[each.name], modified_ms)
    return found


def first_above(numbers: Sequence[int], modified_ms: Mapping[int, int | None], least: int) -> int | None:
    """Return when the lowest of `numbers` that is at least `least` was created.

    Returns None if there is no such number, or if its time is unknown.
    """
    at = min((number for number in numbers if number >= least), default=None)
    return None if at is None else modified_ms.get(at)


def old_snapshots(folder: Folder) -> dict[int, int]:
    """Map each old snapshot to the lowest boundary at or above the next snapshot.

    A snapshot is old if a later one lies at or below the highest boundary.
    """
    found: dict[int, int] = {}
    snapshots = folder.listing.snapshots
    for at, number in enumerate(snapshots[:-1]):
        above = min((bound for bound in folder.boundaries if bound >= snapshots[at + 1]), default=None)
        if above is not None:
            found[number] = above
    return found


def old_numbers(numbers: Sequence[int]) -> dict[int, int]:
    """Map each number except the highest to the next higher one."""
    return dict(itertools.pairwise(numbers))


def next_notes(
    before: Clean | None,
    left: Collection[SegmentObject],
    marks: Collection[str],
    log_start_offset: int,
    now_ms: int,
) -> Clean | None:
    """Return the next list of cleaned runs, or None if it would equal the last one (C5).

    It notes newly superseded objects and drops deleted ones. `left` are the objects of segments and runs that still
    exist; `marks` are names that are superseded and not noted yet. Leading runs become one if they lie wholly below the
    log start and no object of them is left. So the list stays short, and none of their offsets becomes current again.
    """
    before = before or chain.NO_CLEAN
    known = {name for part in left for name in note_names(part)}
    kept = [each for each in before.superseded if each.name in known]
    noted = {each.name for each in kept}
    new = [Superseded(name=name, since=now_ms) for name in sorted(marks) if name not in noted]
    if not new and len(kept) == len(before.superseded):
        return None
    return Clean(
        number=before.number + 1,
        runs=_fewer_runs(before.runs, known, log_start_offset),
        superseded=(*kept, *new),
        created_at=now_ms,
    )


def _why_superseded(
    name: SegmentName, runs: Sequence[CleanedRun], current: Collection[SegmentName], gone_below: int
) -> Why | None:
    if name.end_offset <= gone_below:
        return Why.BELOW_LOG_START
    if not name.generation:
        covered = any(run.base_offset <= name.base_offset and name.end_offset <= run.end_offset for run in runs)
        return Why.COVERED if covered else None
    if name in current:
        return None
    over = [run for run in runs if run.base_offset < name.end_offset and name.base_offset < run.end_offset]
    if any(run.generation >= name.generation for run in over):
        inside = any(run.base_offset <= name.base_offset and name.end_offset <= run.end_offset for run in over)
        return Why.COVERED if inside else Why.LOST_RUN
    return None


def _fewer_runs(runs: Sequence[CleanedRun], known: Collection[str], log_start_offset: int) -> tuple[CleanedRun, ...]:
    gone = 0
    while gone < len(runs) and runs[gone].end_offset <= log_start_offset and runs[gone].name.index not in known:
        gone += 1
    if gone < 2:
        return tuple(runs)
    one = msgspec.structs.replace(
        runs[gone - 1], base_offset=runs[0].base_offset, generation=max(run.generation for run in runs[:gone])
    )
    return (one, *runs[gone:])
