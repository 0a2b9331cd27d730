"""How far may the log start move?

Pure: what sealed segments and runs hold, the topic's settings and the offsets of groups go in, an offset comes out
(PROTOCOL.md, "Clean-up", C7). Kafka's rules: whole segments, the oldest first, and never the active one;
of a compacted run, which has grown out of many segments, batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txlog.core.names import SegmentName
from txlog.core.records import OffsetValue, SegmentIndex
from txlog.core.segments import end_of_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedBytes:
    """What counts of a sealed segment or current run."""

    name: SegmentName
    bytes: int
    """Of its files."""
    rows: int
    newest_ms: int | None
    """Append time of its last batch; None if it is a run of which no row is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A consumer group that has not read everything yet."""

    group: str
    offset: int
    """Its committed offset: the next that it will read."""
    until_ms: int
    """When the hold ends if the group commits nothing more."""


def measure(index: SegmentIndex, name: SegmentName) -> SealedBytes:
    """What `index` says of the segment or run `name`."""
    return SealedBytes(
        name=name,
        bytes=sum(file.bytes for file in index.files),
        rows=sum(entry.records for entry in index.entries),
        # Timestamps of a partition never decrease.
        newest_ms=index.entries[-1].timestamp if index.entries else None,
    )


def is_expired(newest_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """Whether all of a segment is older than `retention.ms`. Kafka's comparison: as old as that is not older."""
    return retention_ms >= 0 and (newest_ms is None or now_ms - newest_ms > retention_ms)


def end_by_time(oldest_first: Iterable[SealedBytes], now_ms: int, retention_ms: int) -> int:
    """Where the leading segments end that are older than `retention.ms`; 0 if none is.

    An empty run goes with what follows it, never alone: moving the log start over it would free nothing.
    """
    end = 0
    for each in oldest_first:
        if not is_expired(each.newest_ms, now_ms, retention_ms):
            break
        if each.newest_ms is not None:
            end = each.name.end_offset
    return end


def end_by_bytes(newest_first: Iterable[SealedBytes], tail_bytes: int, retention_bytes: int) -> int:
    """Where the leading segments end without which the log still has `retention.bytes`; 0 if there are none.

    The log never shrinks below that size: Kafka's rule, by which it may be larger by up to one segment. Reads `newest_first`
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


def cut_of_run(
    index: SegmentIndex, *, log_start_offset: int, now_ms: int, retention_ms: int, excess_bytes: int
) -> SealedBytes | None:
    """The leading batches of a compacted run that may go, named by where they end; None if none may.

    A compaction leaves one run that always ends with new rows, so whole segments are no measure of it: here its entries are.
    They go if they are older than `retention.ms`, or make up no more than `excess_bytes`, what the log has above
    `retention.bytes`. A row of a run is taken for an average one.
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
        if (
            not is_expired(entry.timestamp, now_ms, retention_ms)
            and size * (rows + entry.records) > excess_bytes * whole
        ):
            break
        end, rows, newest_ms = entry_end, rows + entry.records, entry.timestamp
    if not end:
        return None
    name = SegmentName(index.base_offset, end, index.generation)
    return SealedBytes(name=name, bytes=size * rows // whole, rows=rows, newest_ms=newest_ms)


def rows_from(index: SegmentIndex, offset: int) -> int:
    """Rows of the batches that reach beyond `offset`."""
    return sum(entry.records for at, entry in enumerate(index.entries) if end_of_entry(index, at) > offset)


def holds_of(committed: Mapping[str, OffsetValue], now_ms: int, max_hold_ms: int) -> tuple[Hold, ...]:
    """The groups whose committed offsets still hold the log start back, the one that is furthest behind first.

    A group that has committed nothing for `max_hold_ms` (-1: however long) is taken for dead. One that never committed an
    offset here has nothing to hold.
    """
    found = []
    for group, value in committed.items():
        until_ms = 2**63 - 1 if max_hold_ms < 0 else value.timestamp + max_hold_ms
        if now_ms <= until_ms:
            found.append(Hold(group=group, offset=value.offset, until_ms=until_ms))
    return tuple(sorted(found, key=lambda hold: (hold.offset, hold.group)))


def bounded_end(walk: Sequence[SegmentName], wanted: int, last_stable_offset: int, hold: Hold | None) -> int:
    """The end of a sealed segment or run up to which rows may go: at most `wanted`, the LSO, and what a group has read.

    0 if there is none. (Kafka lets go of an open transaction's rows too; here the end of it may be yet to come, and a reader
    of its rows would find a part of them.)
    """
    limit = min(wanted, last_stable_offset)
    if hold is not None:
        limit = min(limit, hold.offset)
    return max((name.end_offset for name in walk if name.end_offset <= limit), default=0)
