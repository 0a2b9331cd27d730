"""Which rows did a reader miss if it stands below the log start? A topic that was created again begins there.

A deletion moves the log start one beyond its own record, so it also passes each reader that has read every row. Such a
reader lost nothing, and each row from the log start on is new to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txlog.client.session.session import Session
from txlog.config import IsolationLevel
from txlog.core.effects import Program
from txlog.core.fates import walk_batches
from txlog.core.names import TopicPartition
from txlog.core.records import CommitRecord
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import read_slot, relisting
from txlog.protocol.read import ReadIndex, read_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The offsets between a reader and the log start."""

    log_start: int
    offsets: int
    """How many of these offsets may have held rows that the reader would have got."""
    by_deletion: bool
    """Whether a deletion of the topic set this log start. Then all rows of the topic that exists now are still
    there."""


def removed_offsets(session: Session, view: PartitionView, start: int, isolation: IsolationLevel) -> Removed:
    """Return what a reader at `start` has missed below the log start of `view`, or of a newer view.

    Costs at most one GET for each record without rows just below the log start that the view does not hold, and one for
    an index.
    """

    def find(found: PartitionView) -> Program[Removed]:
        return (yield from _look_below(found, start, isolation))

    def program(ctx: Context, views: Views) -> Program[tuple[Views, Removed]]:
        after, removed = yield from relisting(ctx, view, find)
        return with_view(views, after), removed

    if start >= view.state.log_start_offset:
        return Removed(log_start=view.state.log_start_offset, offsets=0, by_deletion=False)
    return session.call("looking at what was removed", program)


def _look_below(view: PartitionView, start: int, isolation: IsolationLevel) -> Program[Removed]:
    log_start = end = view.state.log_start_offset
    by_deletion = False
    held = {stored.record.end_offset: stored.record for stored in view.tail}
    aborted: dict[int, int] = {}
    while end > start:
        record = held.get(end)
        # A record without rows takes one offset. Below the boundary its slot may hold a stale record.
        if record is None and end > view.boundary and (stored := (yield from read_slot(view.topic_partition, end - 1))):
            record = stored[-1].record
        if record is None or record.end_offset != end:
            break
        if end == log_start:
            by_deletion = record.deleted_version > 0
        if record.kind == "abort" and isolation == "read_committed":
            aborted[record.producer_id] = record.first_offset
        if record.records and not _is_aborted(record, aborted):
            break
        end = record.base_offset
    first = view.walk[0] if view.walk else None
    if first is not None and max(start, first.base_offset) < end:
        read = yield from read_index(view.topic_partition, first)
        by_deletion = by_deletion or _begins_at_deletion(view, read)
        # A compaction leaves out rows below the log start, so its run does not show whether there were any.
        if read.index.compacted is msgspec.UNSET:
            end = _end_of_rows(view.topic_partition, read, end, isolation)
    return Removed(log_start=log_start, offsets=max(end - start, 0), by_deletion=by_deletion)


def _is_aborted(record: CommitRecord, aborted: dict[int, int]) -> bool:
    first = aborted.get(record.producer_id, -1)
    return record.kind == "data" and record.transactional and 0 <= first <= record.base_offset


def _end_of_rows(tp: TopicPartition, read: ReadIndex, end: int, isolation: IsolationLevel) -> int:
    """Return the offset after the last row below `end`, or the beginning of the segment if it has no such row."""
    aborted = read.aborted if isolation == "read_committed" else ()
    batches = walk_batches(tp=tp, indexes=[read.index], aborted=aborted)
    ends = [
        min(batch.end_offset, end)
        for batch in batches
        if batch.fate == "committed" and batch.entry.records and batch.entry.base_offset < end
    ]
    return max(ends, default=read.index.base_offset)


def _begins_at_deletion(view: PartitionView, read: ReadIndex) -> bool:
    """Return whether the record before the log start is that of a deletion, or may be.

    A cleaned run no longer shows it. Retention usually moves the log start to the end of a run, and a reader that
    begins at the log start loses nothing.
    """
    base = view.state.log_start_offset - 1
    if not view.state.deleted_version or read.index.base_offset > base:
        return False
    if read.index.generation:
        return True
    return any(each.base_offset == base and each.kind == "log_start" for each in read.index.entries)
