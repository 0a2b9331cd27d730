"""Which rows are in each range of a partition's offsets, and which transactions does the log show?

The partition is read from its end to its start, a few indexes at a time, because a transaction's marker is behind its
rows. A few hundred spans and the newest transactions are kept, however long the log is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txlog.client.admin.descriptions import PartitionDescription
from txlog.client.session.session import Session
from txlog.core.effects import Gather, Program
from txlog.core.fates import LogBatch, walk_batches
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, CommitRecord, IndexEntry, SegmentIndex
from txlog.core.segments import aborted_txn_of
from txlog.drawing.spans import Span, Spans
from txlog.errors import CorruptLogError
from txlog.inspection.sections import FilePoint, Piece, Ribbon
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import relisting
from txlog.protocol.read import ReadIndex, read_index
from txlog.text import bytes_text, count_text

_CHUNK = 64
"""Indexes that are in memory at once."""


@dataclass(slots=True)
class PartitionLook:
    """One partition as a look found it."""

    ribbon: Ribbon
    pieces: list[Piece]
    """The newest transactions, newest first."""
    files: list[FilePoint]
    totals: dict[str, int]
    """Rows, files, bytes and aborted transactions in the part that was read."""
    indexes: int
    """Indexes that were read."""
    unread: int
    """Sealed segments and runs whose index was not read."""


def ribbon_of(partition: PartitionDescription) -> Ribbon:
    """Return what a description shows. It has no batches: other producers' rows may lie in an aborted range."""
    start, end, lso = partition.log_start_offset, partition.log_end_offset, partition.last_stable_offset
    fates = [Span(start, lso, "committed", Counter(), "readable with read_committed")] if start < lso else []
    fates += [Span(max(lso, start), end, "open", Counter(), "behind an open transaction")] if lso < end else []
    fates += [
        Span(
            max(txn.first_offset, start),
            txn.last_offset + 1,
            "aborted",
            Counter(),
            f"aborted by producer {txn.producer_id}",
        )
        for txn in partition.aborted
    ]
    places = [
        Span(
            max(each.base_offset, start),
            each.end_offset,
            "merged" if each.generation else "sealed",
            Counter({"merged" if each.generation else "sealed": 1}),
            f"{count_text(each.batches, 'batch')}, {count_text(each.records, 'row')}, {bytes_text(each.bytes)}",
        )
        for each in partition.segments
    ]
    if partition.tail_batches:
        rows = count_text(partition.tail_records, "row")
        tail_start = max(partition.sealed_end, start)
        places.append(Span(tail_start, end, "tail", Counter({"tail": partition.tail_batches}), rows))
    return Ribbon(
        topic=partition.topic,
        partition=partition.partition,
        log_start_offset=start,
        last_stable_offset=lso,
        log_end_offset=end,
        fates=fates,
        places=places,
        open_transactions=len(partition.open_transactions),
        aborted_transactions=len(partition.aborted),
        files=sum(each.files for each in partition.segments),
        bytes=sum(each.bytes for each in partition.segments) + partition.tail_bytes,
        rows=sum(each.records for each in partition.segments) + partition.tail_records,
    )


def look_at_partitions(
    session: Session,
    views: Mapping[TopicPartition, PartitionView],
    *,
    max_indexes: int,
    max_spans: int,
    max_pieces: int,
    damaged: list[CorruptLogError],
) -> dict[TopicPartition, PartitionLook]:
    """Look at partitions, and append the errors of damaged ones to `damaged`.

    Costs one or two GETs for each of at most `max_indexes` indexes. `max_spans` and `max_pieces` are limits of one
    partition.
    """
    looks = {}
    for number, (tp, view) in enumerate(views.items()):
        # A share of what the partitions before it have left.
        share = max_indexes // (len(views) - number)
        try:
            looks[tp] = _look_at(session, view, share, max_spans, max_pieces)
        except CorruptLogError as error:
            damaged.append(error)
            continue
        max_indexes -= looks[tp].indexes
    return looks


def _look_at(session: Session, view: PartitionView, max_indexes: int, max_spans: int, max_pieces: int) -> PartitionLook:
    def program(ctx: Context, views: Views) -> Program[tuple[Views, PartitionLook]]:
        _, look = yield from relisting(ctx, view, lambda found: _Look(found, max_indexes, max_spans, max_pieces).run())
        return views, look

    return session.call(f"reading the indexes of {view.topic_partition}", program)


class _Look:
    def __init__(self, view: PartitionView, max_indexes: int, max_spans: int, max_pieces: int) -> None:
        self._view, self._tp = view, view.topic_partition
        state = self._view.state
        self._start = state.log_start_offset
        self._fates = Spans(self._start, state.next_offset, max_spans, joined=True)
        self._places = Spans(self._start, state.next_offset, max_spans, joined=False)
        self._totals = {"rows": 0, "files": 0, "bytes": 0, "aborted": 0}
        self._first_open = {each.producer_id: each.txn_first_offset for each in state.open_transactions}
        self._files: list[FilePoint] = []
        self._aborted: list[AbortedTxn] = []
        self._pieces: list[Piece] = []
        self._current: dict[int, Piece] = {}
        self._max_pieces = max_pieces
        walk = [name for name in self._view.walk if name.end_offset > self._start]
        self._read = walk[-max_indexes:] if max_indexes else []
        self._unread = walk[: len(walk) - len(self._read)]

    def run(self) -> Program[PartitionLook]:
        view, state = self._view, self._view.state
        self._add_tail()
        names = self._read[::-1]
        for at in range(0, len(names), _CHUNK):
            some = names[at : at + _CHUNK]
            self._add_indexes(some, (yield Gather(tuple(read_index(self._tp, name) for name in some))))
        for name in reversed(self._unread):
            self._fates.add(name.base_offset, name.end_offset, "unread")
            self._places.add(name.base_offset, name.end_offset, "merged" if name.generation else "sealed")
        pieces = [*self._pieces, *self._current.values()]
        known = self._totals if not self._unread else {}
        ribbon = Ribbon(
            topic=self._tp.topic,
            partition=self._tp.partition,
            log_start_offset=state.log_start_offset,
            last_stable_offset=state.last_stable_offset,
            log_end_offset=state.next_offset,
            fates=self._fates.result(),
            places=self._places.result(),
            open_transactions=len(view.state.open_transactions),
            aborted_transactions=known.get("aborted"),
            files=known.get("files"),
            bytes=known.get("bytes"),
            rows=known.get("rows"),
        )
        newest = sorted(pieces, key=lambda piece: -piece.end_ms)
        return PartitionLook(
            ribbon=ribbon,
            pieces=newest[: self._max_pieces],
            files=self._files,
            totals=self._totals,
            indexes=len(self._read),
            unread=len(self._unread),
        )

    def _add_tail(self) -> None:
        records = [stored.record for stored in self._view.tail]
        self._aborted += [txn for record in records if (txn := aborted_txn_of(record)) is not None]
        self._totals["aborted"] += len(self._aborted)
        self._add_batches(tail=records)
        for record in reversed(records):
            size = record.payload_bytes + sum(file.bytes for file in record.files)
            rows, files = count_text(record.records, "row"), count_text(len(record.files), "file")
            title = f"tail, {rows}, {files}, {bytes_text(size)}"
            self._places.add(record.base_offset, record.end_offset, "tail", title)
            self._totals["files"] += len(record.files)
            self._totals["bytes"] += size
            if size:
                self._files.append(FilePoint(record.timestamp, "tail", size, max(len(record.files), 1)))

    def _add_indexes(self, names: Sequence[SegmentName], found: Sequence[ReadIndex]) -> None:
        for name, read in zip(names, found, strict=True):
            index = read.index
            self._aborted += read.aborted
            self._totals["aborted"] += len(read.aborted)
            # A transaction that began above this segment has nothing in it.
            self._aborted = [txn for txn in self._aborted if txn.first_offset < index.end_offset]
            self._add_batches(indexes=[index])
            place = "sealed" if not name.generation else "merged" if index.compacted is msgspec.UNSET else "compacted"
            size = sum(file.bytes for file in index.files)
            rows = count_text(sum(entry.records for entry in index.entries), "row")
            batches, files = count_text(len(index.entries), "batch"), count_text(len(index.files), "file")
            title = f"{place}, {batches}, {rows}, {files}, {bytes_text(size)}"
            self._places.add(name.base_offset, name.end_offset, place, title)
            self._totals["files"] += len(index.files)
            self._totals["bytes"] += size
            if index.files:
                at_ms = index.entries[-1].timestamp if index.entries else self._view.state.last_timestamp
                self._files.append(FilePoint(at_ms, place, size, len(index.files)))

    def _add_batches(self, indexes: Sequence[SegmentIndex] = (), tail: Sequence[CommitRecord] = ()) -> None:
        batches = walk_batches(
            tp=self._tp,
            indexes=indexes,
            tail=tail,
            aborted=self._aborted,
            log_start_offset=self._start,
            first_open=self._first_open,
        )
        for batch in reversed(list(batches)):
            if batch.fate != "removed":
                self._add_batch(batch)

    def _add_batch(self, batch: LogBatch) -> None:
        entry = batch.entry
        self._totals["rows"] += entry.records
        # A marker has the colour of the rows before it.
        fate = {"commit": "committed", "abort": "aborted"}.get(entry.kind, batch.fate)
        self._fates.add(entry.base_offset, batch.end_offset, fate)
        # A run may have forgotten the producers and markers of its rows.
        is_told = entry.kind in ("commit", "abort") or (entry.transactional and entry.producer_id >= 0)
        if is_told and not batch.has_gaps:
            self._add_piece(entry, batch.end_offset, fate)

    def _add_piece(self, batch: CommitRecord | IndexEntry, end_offset: int, fate: str) -> None:
        """Add a batch to its producer's transaction; a marker ends the transaction that is above it in the log."""
        pid, is_marker = batch.producer_id, batch.kind != "data"
        piece = self._current.get(pid)
        if piece is None or is_marker:
            if piece is not None:
                self._pieces.append(self._current.pop(pid))
            if len(self._pieces) + len(self._current) >= self._max_pieces:
                return
            # The marker of a transaction that wrote before it has the next epoch (PROTOCOL.md, "The coordinator").
            epoch = batch.producer_epoch - (is_marker and not batch.records)
            self._current[pid] = Piece(
                partition=str(self._tp),
                producer_id=pid,
                producer_epoch=epoch,
                start_ms=batch.timestamp,
                end_ms=batch.timestamp,
                kind=fate,
                first_offset=batch.base_offset,
                last_offset=end_offset - 1,
                rows=batch.records,
            )
            return
        piece.start_ms, piece.first_offset = batch.timestamp, batch.base_offset
        piece.producer_epoch = batch.producer_epoch
        piece.rows += batch.records
