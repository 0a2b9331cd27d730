"""Which cut over partitions shows what was appended up to a past time, with every transaction whole?

The log keeps the append time of each row, but not for ever the time of each marker. So the cut shows the transactions
that are committed now and of which every row was appended by then. It hides a transaction with a later row in all
partitions. The same time gives the same rows again, unless a transaction that was open meanwhile commits.

The cut counts as taken at that time. So maintenance keeps what it needs, and it is refused after the grace, as every
snapshot is (C3, R19).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from txlog.core.ages import ClockReading
from txlog.core.effects import Gather, Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.records import NO_PRODUCER_EPOCH, CommitRecord, IndexEntry
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidRequestError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import relisting
from txlog.protocol.read import read_indexes
from txlog.text import time_text


def cut_as_of(
    ctx: Context, views: Views, cut: SnapshotCut, ends: Mapping[TopicPartition, int], as_of_ms: int
) -> Program[tuple[Views, SnapshotCut]]:
    """Return the part of `cut` that lies below `ends`, without the transactions that have rows after `as_of_ms`.

    `ends` are the offsets of the first rows that are newer than `as_of_ms`. `views` are those of the cut. Costs one GET
    for each segment after the ends. Raises InvalidRequestError for a time before the grace.
    """
    if as_of_ms >= cut.taken_at.wall_ms:
        return views, cut
    ends = {tp: min(end, cut.ends[tp]) for tp, end in ends.items()}
    found = yield Gather(tuple(_later(ctx, views[tp], ends[tp], cut.ends[tp], as_of_ms) for tp in ends))
    cut = hide_transactions(cut, [each for _, later in found for each in later])
    # After the indexes were read: a merge may have joined batches of transactions that were complete for the grace.
    now: ClockReading = yield ReadClocks()
    if now.wall_ms - as_of_ms >= ctx.constants.delete_grace_ms:
        raise InvalidRequestError(
            f"as_of = {time_text(as_of_ms)}: the log shows whole transactions only for delete.grace.ms = "
            f"{ctx.constants.delete_grace_ms} ms. "
            "hint: choose a later time, or read each topic up to it with end="
        )
    return with_view(views, *(view for view, _ in found)), replace(cut, ends=ends, taken_at=ClockReading(as_of_ms))


def hide_transactions(cut: SnapshotCut, later: Iterable[tuple[int, int]]) -> SnapshotCut:
    """Return the cut without these transactions, each given by its producer id and marker epoch."""
    settled = dict(cut.settled)
    for producer_id, marker_epoch in later:
        # A producer that the cut hides stays hidden with all its transactions.
        shown = settled.get(producer_id, marker_epoch if cut.shows(producer_id, marker_epoch) else NO_PRODUCER_EPOCH)
        settled[producer_id] = min(shown, marker_epoch - 1)
    return replace(cut, settled=settled)


def _later(
    ctx: Context, view: PartitionView, start: int, end: int, as_of_ms: int
) -> Program[tuple[PartitionView, set[tuple[int, int]]]]:
    """Return producer id and marker epoch of the transactions that have a batch of rows after `as_of_ms`, below `end`.

    All rows from `start` on are newer. A batch before `start` counts, too, if compaction has removed its newer rows.
    """

    def find(found: PartitionView) -> Program[set[tuple[int, int]]]:
        chosen = [name for name in found.walk if name.end_offset > start and name.base_offset < end]
        known = yield from read_indexes(found, chosen, {})
        batches: list[CommitRecord | IndexEntry] = [
            entry
            for name in chosen
            for entry in known[name].index.entries
            # In generation 0 an entry without rows is a marker. In a cleaned run it is a batch that compaction emptied.
            if entry.records or name.generation
        ]
        batches += [stored.record for stored in found.tail if stored.record.records]
        return transactions_of(each for each in batches if each.timestamp > as_of_ms and each.base_offset < end)

    return (yield from relisting(ctx, view, find))


def transactions_of(batches: Iterable[CommitRecord | IndexEntry]) -> set[tuple[int, int]]:
    """Return producer id and marker epoch of each transaction that has one of these batches."""
    return {
        # The marker of a transaction of epoch e has epoch e + 1. A COMMIT that carries rows is its own marker.
        (batch.producer_id, batch.producer_epoch + (batch.kind != "commit"))
        for batch in batches
        if batch.kind == "commit" or batch.transactional
    }
