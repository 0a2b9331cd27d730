"""Which rows does a read of one partition return, and where is a timestamp?

This module only plans, from indexes, transaction indexes and the tail's records. It opens no file of rows
(PROTOCOL.md, "Reading", R10 to R12).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from txlog.config import IsolationLevel
from txlog.core import envelope
from txlog.core.effects import Gather, Get, Program, ReadClocks
from txlog.core.fetch_plan import Piece, plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, SegmentIndex, TxnIndex
from txlog.core.segments import (
    aborted_txn_of,
    check_index,
    check_txn_index,
    collect_aborted_txns,
    end_of_entry,
    first_at_or_after_timestamp,
    is_coalesced,
)
from txlog.core.snapshots import SnapshotCut
from txlog.errors import CorruptRecordError, MissingObjectError, OffsetOutOfRangeError
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import present, relisting
from txlog.text import count_text

ReadIndexes: TypeAlias = Mapping[SegmentName, "ReadIndex"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndex:
    """A segment's index with its aborted transactions."""

    index: SegmentIndex
    aborted: tuple[AbortedTxn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The rows of `[start, end)` as pieces of files and inline batches, in the order of offsets."""

    topic_partition: TopicPartition
    start: int
    end: int
    """End of the read, at most the isolation level's end of the log."""
    isolation: IsolationLevel
    cut: SnapshotCut | None = field(default=None, repr=False)
    """The snapshot that the rows belong to. None: the rows of the isolation level."""
    pieces: tuple[Piece, ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()
    """Aborted transactions that overlap the range; empty for read_uncommitted."""
    indexes: ReadIndexes = field(repr=False)
    """Indexes read so far. Pass them to the next plan of this partition."""


class TimeHit(NamedTuple):
    """The place of the first row at or after a time: at `offset`, with time `timestamp`, unless there are `pieces`."""

    offset: int
    timestamp: int
    pieces: tuple[Piece, ...] = ()
    """The rows of several batches that a merge made one entry. The first of them at or after the time is the wanted
    row, and only their columns show which one it is. All of them are at or after the log start."""


def end_offset(view: PartitionView, isolation: IsolationLevel) -> int:
    """Return the end for a reader of that level: the LSO (R10, invariant 6), or the log end."""
    return view.state.last_stable_offset if isolation == "read_committed" else view.state.next_offset


def plan_read(
    ctx: Context,
    view: PartitionView,
    start: int,
    end: int | None,
    isolation: IsolationLevel,
    indexes: ReadIndexes | None = None,
    cut: SnapshotCut | None = None,
) -> Program[tuple[PartitionView, ReadPlan]]:
    """Plan a read of `[start, end)`; `end` None, or beyond it, means the isolation level's end of the log.

    With a `cut` that has this partition the read ends at the cut's end, whatever the LSO is, without transactions that
    are not in the cut. `isolation` is then read_committed, and the view must reach as far. Raises InvalidRequestError
    for a cut that is too old, by the grace or because of a later compaction.

    A start between that end and the log end gives an empty plan. Raises OffsetOutOfRangeError below the log start or
    beyond the log end. Costs one GET per segment in range, and one per announced `.txnindex`.
    """

    def find(found: PartitionView) -> Program[ReadPlan]:
        _check_range(found, start)
        bound = end_offset(found, isolation) if cut is None else cut.ends[found.topic_partition]
        stop = bound if end is None else min(end, bound)
        # The indexes were given with `view`, and none is known of a newer view.
        known = dict(indexes or {}) if found is view else {}
        plan = ReadPlan(
            topic_partition=found.topic_partition,
            start=start,
            end=max(start, stop),
            isolation=isolation,
            cut=cut,
            indexes=known,
        )
        if start >= stop:
            return plan
        chosen = [name for name in found.walk if name.end_offset > start and name.base_offset < stop]
        known = yield from read_indexes(found, chosen, known)
        aborted: tuple[AbortedTxn, ...] = ()
        if isolation == "read_committed":
            known, aborted = yield from aborted_of_range(found, chosen, known, start, stop)
        if cut is not None:
            # Check after the indexes were read: if the snapshot became too old meanwhile, they may lack what it needs.
            cut.check_age((yield ReadClocks()), ctx.constants.delete_grace_ms)
            for name in chosen:
                cut.check_compacted(found.topic_partition, known[name].index)
        pieces = plan_fetch(
            tp=found.topic_partition,
            indexes=[known[name].index for name in chosen],
            # Reading a payload copies it, and a consumer that follows the end needs few records of a long tail.
            tail=[
                (stored.record, stored.payload)
                for stored in found.tail
                if stored.record.end_offset > start and stored.record.base_offset < stop
            ],
            aborted=aborted,
            start=start,
            end=stop,
            cut=cut,
        )
        return replace(plan, pieces=pieces, aborted=aborted, indexes=known)

    return (yield from relisting(ctx, view, find))


def offset_for_timestamp(
    ctx: Context, view: PartitionView, timestamp_ms: int, isolation: IsolationLevel
) -> Program[tuple[PartitionView, tuple[TimeHit, ...]]]:
    """Return where the first batch with a timestamp (ms) at or after `timestamp_ms` is.

    The result is empty if no batch below the isolation level's end has one. Usually there is one hit. If all rows of
    the first hit may be older, a second hit follows; it counts if they are. Timestamps of a partition never decrease,
    so the search halves the segments: one GET per step.
    """

    def find(found: PartitionView) -> Program[tuple[TimeHit, ...]]:
        return (yield from _find_timestamp(found, timestamp_ms, end_offset(found, isolation)))

    return (yield from relisting(ctx, view, find))


def read_partition(view: PartitionView) -> Program[tuple[ReadIndexes, tuple[AbortedTxn, ...]]]:
    """Return the indexes of all segments and runs that reach above the log start, and the aborted transactions there.

    Costs one GET for each segment, and one for each announced `.txnindex`. For `relisting`: maintenance may delete an
    index of the view before it is read (R15).
    """
    start = view.state.log_start_offset
    walk = [name for name in view.walk if name.end_offset > start]
    indexes = yield from read_indexes(view, walk, {})
    return (yield from aborted_of_range(view, walk, indexes, start, view.state.next_offset))


def read_plain_index(tp: TopicPartition, name: SegmentName) -> Program[SegmentIndex]:
    """Return the index of a segment or run, checked. Raises MissingObjectError or CorruptRecordError naming it."""
    path = tp.folder + name.index
    index, _ = envelope.decode(present((yield Get(path)), path), SegmentIndex, path)
    check_index(index, name, path)
    return index


def read_index(tp: TopicPartition, name: SegmentName) -> Program[ReadIndex]:
    """Return a sealed segment's index, checked, with the aborted transactions that it announces.

    Internal topics are supported, too. Raises MissingObjectError or CorruptRecordError naming the object.
    """
    index = yield from read_plain_index(tp, name)
    if not index.aborted_txns:
        return ReadIndex(index=index, aborted=())
    path = tp.folder + name.txnindex
    data = yield Get(path)
    if data is None:
        raise MissingObjectError(
            f"{path}: the index announces {count_text(index.aborted_txns, 'aborted transaction')}, and it is gone. "
            "hint: check the store with `txlog fsck`"
        )
    txn_index, _ = envelope.decode(data, TxnIndex, path)
    check_txn_index(txn_index, name, path, expected=index.aborted_txns, entries=index.entries)
    return ReadIndex(index=index, aborted=txn_index.aborted)


def _find_timestamp(view: PartitionView, timestamp_ms: int, bound: int) -> Program[tuple[TimeHit, ...]]:
    log_start = view.state.log_start_offset
    known: dict[SegmentName, ReadIndex] = {}
    hits: list[TimeHit] = []
    if view.base.last_timestamp >= timestamp_ms and view.walk:
        low, high = 0, len(view.walk) - 1
        while low < high:
            middle = (low + high) // 2
            known = yield from read_indexes(view, [view.walk[middle]], known)
            entries = known[view.walk[middle]].index.entries
            # A cleaned run may be empty and then has no time. Going left is always safe, because the scan below goes
            # on.
            if not entries or entries[-1].timestamp >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        for name in view.walk[low:]:
            known = yield from read_indexes(view, [name], known)
            index = known[name].index
            first = first_at_or_after_timestamp(index, timestamp_ms)
            for at in range(len(index.entries) if first is None else first, len(index.entries)):
                entry = index.entries[at]
                if not entry.records or end_of_entry(index, at) <= log_start:
                    continue
                hits.append(_hit(view.topic_partition, index, at, log_start))
                # The log start may lie after the last row of an entry with gaps.
                if not hits[-1].pieces or entry.base_offset >= log_start:
                    return _below(bound, hits)
    for stored in view.tail:
        record = stored.record
        if record.timestamp >= timestamp_ms and record.records and record.end_offset > log_start:
            hits.append(TimeHit(max(record.base_offset, log_start), record.timestamp))
            break
    return _below(bound, hits)


def _hit(tp: TopicPartition, index: SegmentIndex, at: int, log_start: int) -> TimeHit:
    entry = index.entries[at]
    start = max(entry.base_offset, log_start)
    if not is_coalesced(index, entry):
        return TimeHit(start, entry.timestamp)
    pieces = plan_fetch(tp=tp, indexes=[index], tail=(), aborted=(), start=start, end=end_of_entry(index, at))
    return TimeHit(start, entry.timestamp, pieces)


def _check_range(view: PartitionView, start: int) -> None:
    """Raise OffsetOutOfRangeError below the log start (R12) and beyond the log end."""
    state = view.state
    if state.log_start_offset <= start <= state.next_offset:
        return
    if start < state.log_start_offset:
        why = (
            "It lies below the log start: retention (retention.ms and retention.bytes of the topic) or a "
            "deletion removed the rows."
        )
        advice = ", or set auto.offset.reset=earliest; retention.hold.groups keeps rows that a group has not read"
    else:
        why = "It lies beyond the log end."
        advice = " (the end waits for the next row); auto.offset.reset=earliest reads all rows again"
    raise OffsetOutOfRangeError(
        f"{view.topic_partition}: offset {start} is out of range, the log holds {state.log_start_offset} to "
        f"{state.next_offset}. {why} hint: choose an offset in that range{advice}"
    )


def aborted_of_range(
    view: PartitionView,
    chosen: list[SegmentName],
    known: dict[SegmentName, ReadIndex],
    start: int,
    end: int,
) -> Program[tuple[dict[SegmentName, ReadIndex], tuple[AbortedTxn, ...]]]:
    """Return the aborted transactions that overlap `[start, end)`.

    An entry is in its *marker's* segment, which may come long after the rows. So later segments are read until the LSO
    of one shows that no transaction below `end` was still open (R10).
    """
    found: list[AbortedTxn] = []
    first = view.walk.index(chosen[0]) if chosen else len(view.walk)
    for name in view.walk[first:]:
        known = yield from read_indexes(view, [name], known)
        read = known[name]
        aborted, is_complete = collect_aborted_txns(read.aborted, fetch_offset=start, upper_bound_offset=end)
        found.extend(aborted)
        if is_complete or read.index.last_stable_offset >= end:
            return known, tuple(found)
    tail = [txn for stored in view.tail if (txn := aborted_txn_of(stored.record)) is not None]
    aborted, _ = collect_aborted_txns(tail, fetch_offset=start, upper_bound_offset=end)
    found.extend(aborted)
    return known, tuple(found)


def read_indexes(
    view: PartitionView, wanted: list[SegmentName], known: dict[SegmentName, ReadIndex]
) -> Program[dict[SegmentName, ReadIndex]]:
    """Return `known` with the indexes of `wanted`; those that are read now are compared with `view`."""
    missing = [name for name in wanted if name not in known]
    if not missing:
        return known
    found = yield Gather(tuple(read_index(view.topic_partition, name) for name in missing))
    for name, read in zip(missing, found, strict=True):
        _check_in_view(view, read.index, name)
    return {**known, **dict(zip(missing, found, strict=True))}


def _check_in_view(view: PartitionView, index: SegmentIndex, name: SegmentName) -> None:
    """Raise CorruptRecordError if an index contradicts the state that the view was opened with (PROTOCOL.md, R21)."""
    if index.generation:
        return
    path = view.topic_partition.folder + name.index
    log_start = view.state.log_start_offset
    opened: dict[int, int] = {}
    for entry in index.entries:
        if entry.kind == "data" and entry.transactional:
            # Only the remaining rows of a transaction hold the LSO.
            if entry.end_offset > log_start:
                opened.setdefault(entry.producer_id, entry.base_offset)
        elif entry.kind in ("commit", "abort"):
            opened.pop(entry.producer_id, None)
    first = min(opened.values(), default=index.end_offset)
    if index.last_stable_offset > max(first, log_start):
        raise CorruptRecordError(
            f"{path}: last stable offset {index.last_stable_offset}, and a transaction in it is "
            f"open from offset {first} on"
        )
    base = view.base
    # If the last stable offset is too low, readers only read more transaction indexes than needed.
    if index.end_offset == base.next_offset and (
        index.last_digest != base.last_digest or index.last_stable_offset > base.last_stable_offset
    ):
        raise CorruptRecordError(
            f"{path}: it ends with digest {index.last_digest[:12]}… and last stable offset "
            f"{index.last_stable_offset}; the state at its end has {base.last_digest[:12]}… and "
            f"{base.last_stable_offset}; one of the two was replaced"
        )


def _below(bound: int, hits: list[TimeHit]) -> tuple[TimeHit, ...]:
    return tuple(hit for hit in hits if hit.offset < bound)
