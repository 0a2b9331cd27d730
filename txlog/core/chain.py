"""Which sealed segments and cleaned runs make up a partition, in order?

The answer needs one LIST of the partition's folder and the highest `.clean` (PROTOCOL.md, "The chain rule", R5). At
each offset the first of these counts: the current cleaned run, the generation-0 index, or the commit record that begins
there. A run that the highest `.clean` does not name does not exist. This module reads nothing: it turns names into
offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from txlog.core import names
from txlog.core.names import NumberedName, SegmentName, SegmentObject
from txlog.core.records import Clean
from txlog.errors import CorruptLogError, CorruptRecordError, MissingObjectError

NO_CLEAN = Clean(number=-1, runs=(), created_at=-1)
"""Stands for the list of cleaned runs before the first one. It is never stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionListing:
    """The names in a partition's folder by kind, each kind in ascending order."""

    folder: str
    """The folder that was listed, for messages. It ends in `/`."""
    batches: tuple[int, ...]
    """Base offsets of commit records at or above the boundary; lower ones no longer count."""
    segments: tuple[SegmentName, ...]
    """Indexes of generation 0."""
    runs: tuple[SegmentName, ...]
    """Indexes of cleaned runs, current or not."""
    snapshots: tuple[int, ...]
    boundary: int
    """The highest boundary; 0 if there is none."""
    clean: int | None
    """Number of the highest `.clean`; None if no `.clean` exists."""


def parse_listing(listed: Iterable[str], folder: str = "") -> PartitionListing:
    """Sort the names of one LIST of a partition's folder by kind; skip names that do not belong to txlog (R3)."""
    numbered, parts = by_kind(listed)
    indexes = [part.segment for part in parts if part.kind == "index"]
    boundary = max(numbered["boundary"], default=0)
    return PartitionListing(
        folder=folder,
        batches=tuple(sorted(base for base in numbered["batch"] if base >= boundary)),
        segments=tuple(sorted(name for name in indexes if not name.generation)),
        runs=tuple(sorted(name for name in indexes if name.generation)),
        snapshots=tuple(sorted(numbered["snapshot"])),
        boundary=boundary,
        clean=max(numbered["clean"], default=None),
    )


def by_kind(listed: Iterable[str]) -> tuple[dict[str, list[int]], list[SegmentObject]]:
    """Return the numbers of a LIST's objects by kind, and its objects of segments and runs."""
    numbered: dict[str, list[int]] = {"batch": [], "snapshot": [], "boundary": [], "clean": []}
    parts = []
    for name in listed:
        match names.parse_partition_object(name):
            case NumberedName(kind=kind, number=number):
                numbered[kind].append(number)
            case SegmentObject() as part:
                parts.append(part)
    return numbered, parts


def sealed_end(listing: PartitionListing, clean: Clean | None) -> int:
    """Return the offset below which everything is sealed (R5). The tail of commit records begins there.

    A segment is sealed only after the one before it, and a boundary is created only where everything below is sealed.
    """
    given = clean.number if clean is not None else None
    if given != listing.clean:
        raise ValueError(
            f"{listing.folder}: the highest .clean of this listing is {listing.clean}, and {given} was given"
        )
    last_run = clean.runs[-1].end_offset if clean is not None and clean.runs else 0
    last_segment = max((segment.end_offset for segment in listing.segments), default=0)
    return max(listing.boundary, last_run, last_segment)


def walk(listing: PartitionListing, clean: Clean | None, start: int) -> tuple[SegmentName, ...]:
    """Return sealed segments and current runs in order, from the one that contains `start` up to the sealed end.

    `clean` is the object that `listing.clean` names. The result is empty if `start` is at or above the sealed end. In a
    user's topic `start` is at least the log start, in an internal topic at least the boundary: lower segments may be
    deleted.

    Raises MissingObjectError if the chain has a hole. A LIST of several pages may have raced with a sealing writer, so
    list again; if the hole stays, the log is damaged. Raises CorruptLogError if two segments have the same base offset.
    """
    end = sealed_end(listing, clean)
    if start >= end:
        return ()
    runs = tuple(run.name for run in clean.runs) if clean is not None else ()
    runs_at = {run.base_offset: run for run in runs}
    segments_at: dict[int, list[SegmentName]] = {}
    for segment in listing.segments:
        segments_at.setdefault(segment.base_offset, []).append(segment)
    first = _containing(runs, start) or _containing(listing.segments, start)
    found: list[SegmentName] = []
    at = first.base_offset if first is not None else start
    while at < end:
        name = runs_at.get(at)
        if name is None:
            candidates = segments_at.get(at, ())
            if len(candidates) > 1:
                listed = " and ".join(segment.index for segment in candidates)
                raise CorruptLogError(
                    f"{listing.folder}: segments {listed} begin at the same offset. "
                    "hint: check the store with `txlog fsck`"
                )
            if not candidates:
                raise MissingObjectError(
                    f"{listing.folder}: no sealed segment and no current cleaned run begins at offset {at}, "
                    f"but the log is sealed up to {end}. "
                    "hint: list again; if this persists, check the store with `txlog fsck`"
                )
            name = candidates[0]
        found.append(name)
        at = name.end_offset
    if clean is not None:
        _check_used(listing, clean, start, found)
    return tuple(found)


def check_clean(clean: Clean, number: int, path: str) -> None:
    """Raise CorruptRecordError naming `path` unless `clean` is version `number` with ordered, disjoint runs."""
    if clean.number != number:
        raise CorruptRecordError(f"{path}: holds version {clean.number}, and its name says {number}")
    before = 0
    for run in clean.runs:
        if run.base_offset < before or run.end_offset <= run.base_offset:
            raise CorruptRecordError(f"{path}: run {run.name.index} overlaps the one before it, or is empty")
        if names.parse_partition_object(run.name.index) is None:
            raise CorruptRecordError(f"{path}: {run.name.index!r} cannot be the name of a cleaned run")
        before = run.end_offset


def _check_used(listing: PartitionListing, clean: Clean, start: int, walked: Sequence[SegmentName]) -> None:
    """Raise CorruptRecordError if a walk leaves out a current run or takes a superseded one (PROTOCOL.md, R21)."""
    path = listing.folder + names.clean_name(clean.number)
    used = {name.index for name in walked}
    for run in clean.runs:
        if run.end_offset > start and run.name.index not in used:
            raise CorruptRecordError(f"{path}: no segment or run ends where its run {run.name.index} begins")
    for gone in clean.superseded:
        if gone.name in used:
            raise CorruptRecordError(
                f"{path}: it says that {gone.name} is superseded, and no run of it has these offsets"
            )


def _containing(ordered: Sequence[SegmentName], offset: int) -> SegmentName | None:
    at = bisect_right(ordered, offset, key=attrgetter("base_offset")) - 1
    return ordered[at] if at >= 0 and offset < ordered[at].end_offset else None
