"""How far may the log start move?

Pure functions: they take what sealed segments and runs hold, the topic's settings and the offsets of groups, and return
an offset (PROTOCOL.md, "Clean-up", C7). The rules are Kafka's: whole segments, the oldest first, and never the active
one. A compacted run combines many segments, so retention removes batches of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txlog.core.names import SegmentName
from txlog.core.records import CommitRecord, OffsetValue, SegmentIndex
from txlog.core.segments import end_of_entry

ACTIVE = (
    "in the active segment. It ends with the first write after segment.batches, segment.bytes or segment.ms is reached"
)
"""Why rows that the topic no longer keeps stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBytes:
    """What retention needs to know of a sealed segment or current run."""

    name: SegmentName
    bytes: int
    """Size of its files."""
    rows: int
    newest_ms: int | None
    """Append time of its last batch; None for a run without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A consumer group that has not read everything yet."""

    group: str
    offset: int
    """Its committed offset: the next that it will read."""
    until_ms: int
    """When the hold ends if the group does not commit again."""


def measure(index: SegmentIndex, name: SegmentName) -> SealedBytes:
    """Return bytes, rows and newest time of the segment or run `name`, from its index."""
    return SealedBytes(
        name=name,
        bytes=sum(file.bytes for file in index.files),
        rows=sum(entry.records for entry in index.entries),
        # Timestamps of a partition never decrease.
        newest_ms=index.entries[-1].timestamp if index.entries else None,
    )


def is_expired(newest_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """Return whether all of a segment is older than `retention.ms`. Exactly that old is not older, as in Kafka."""
    return retention_ms >= 0 and (newest_ms is None or now_ms - newest_ms > retention_ms)


def end_by_time(oldest_first: Iterable[SealedBytes], now_ms: int, retention_ms: int) -> int:
    """Return the end of the leading segments that are older than `retention.ms`; 0 if the first one is not.

    An empty run alone does not move the log start, because that would free nothing; it is removed with what follows it.
    """
    end = 0
    for each in oldest_first:
        if not is_expired(each.newest_ms, now_ms, retention_ms):
            break
        if each.newest_ms is not None:
            end = each.name.end_offset
    return end


def end_by_bytes(newest_first: Iterable[SealedBytes], tail_bytes: int, retention_bytes: int) -> int:
    """Return the end of the leading segments that may be removed so that the log keeps `retention.bytes`; else 0.

    The log never shrinks below that size, so it may be larger by up to one segment, as in Kafka. Reads `newest_first`
    only as far as needed.
    """
    if retention_bytes < 0:
        return 0
    size = tail_bytes
    for each in newest_first:
        if size >= retention_bytes:
            return each.name.end_offset
        size += each.bytes
    return 0


def rows_beyond(
    tail: Iterable[CommitRecord], *, log_start_offset: int, now_ms: int, retention_ms: int, excess_bytes: int
) -> int:
    """Count the leading rows of the tail that the limits alone do not keep.

    They are older than `retention.ms`, or together they have at most `excess_bytes`: the size of the log less
    `retention.bytes`.
    """
    rows = size = 0
    for record in tail:
        if record.end_offset <= log_start_offset or not record.records:
            continue
        size += bytes_of(record)
        if not is_expired(record.timestamp, now_ms, retention_ms) and size > excess_bytes:
            break
        rows += record.records
    return rows


def bytes_of(record: CommitRecord) -> int:
    """Return the size of the rows of a batch. Markers and retention's own records have none."""
    return record.payload_bytes + sum(file.bytes for file in record.files)


def cut_of_run(
    index: SegmentIndex, *, log_start_offset: int, now_ms: int, retention_ms: int, excess_bytes: int
) -> SealedBytes | None:
    """Return the leading batches of a compacted run that may be removed, named by their end; else None.

    A compaction leaves one run that always ends with new rows, so the end of the whole run is of no use here. Instead
    each entry is judged. Entries may be removed if they are older than `retention.ms`, or if together they have at most
    `excess_bytes`: the size of the log less `retention.bytes`. Each row counts with the run's average size.
    """
    whole = sum(entry.records for entry in index.entries)
    if index.compacted is msgspec.UNSET or not whole:
        return None
    size = sum(file.bytes for file in index.files)
    end = rows = 0
    newest_ms = None
    for at, entry in enumerate(index.entries):
        entry_end = end_of_entry(index, at)
        if entry_end <= log_start_offset or not entry.records:
            continue
        exceeds = size * (rows + entry.records) > excess_bytes * whole
        if exceeds and not is_expired(entry.timestamp, now_ms, retention_ms):
            break
        end, rows, newest_ms = entry_end, rows + entry.records, entry.timestamp
    if not end:
        return None
    name = SegmentName(index.base_offset, end, index.generation)
    return SealedBytes(name=name, bytes=size * rows // whole, rows=rows, newest_ms=newest_ms)


def rows_from(index: SegmentIndex, offset: int) -> int:
    """Count the rows of the batches that reach beyond `offset`."""
    if index.end_offset <= offset:
        return 0
    return sum(entry.records for at, entry in enumerate(index.entries) if end_of_entry(index, at) > offset)


def holds_of(committed: Mapping[str, OffsetValue], now_ms: int, max_hold_ms: int) -> tuple[Hold, ...]:
    """Return the groups whose committed offsets still hold the log start back, the one furthest behind first.

    A group that has not committed for `max_hold_ms` (-1: no limit) counts as dead. A group that never committed an
    offset here holds nothing back.
    """
    found = []
    for group, value in committed.items():
        until_ms = 2**63 - 1 if max_hold_ms < 0 else value.timestamp + max_hold_ms
        if now_ms <= until_ms:
            found.append(Hold(group=group, offset=value.offset, until_ms=until_ms))
    return tuple(sorted(found, key=lambda hold: (hold.offset, hold.group)))


def bounded_end(walk: Sequence[SegmentName], wanted: int, last_stable_offset: int, hold: Hold | None) -> int:
    """Return the highest end of a sealed segment or run up to which rows may be removed; else 0.

    The end is at most `wanted`, the LSO, and the offset of `hold`. Kafka also removes rows of an open transaction. Here
    its marker may still come, and a reader would then find only a part of its rows.
    """
    limit = min(wanted, last_stable_offset)
    if hold is not None:
        limit = min(limit, hold.offset)
    return max((name.end_offset for name in walk if name.end_offset <= limit), default=0)
