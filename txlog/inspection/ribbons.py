"""What has a partition in each range of its offsets, and which transactions does its log show?

The partition is read from its end to its start, a few indexes at a time, because a transaction's marker is behind its
rows. A few hundred spans and the newest transactions are kept, however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txlog.client.session import Session
from txlog.core.effects import Gather, Program
from txlog.core.fetch_plan import AbortedRanges
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import AbortedTxn, CommitRecord, IndexEntry
from txlog.core.segments import aborted_txn_of, end_of_entry
from txlog.drawing.sections import FilePoint, Piece, Ribbon
from txlog.drawing.spans import Spans
from txlog.errors import MissingObjectError
from txlog.protocol.context import Context, Views, with_views
from txlog.protocol.load import load
from txlog.protocol.read import ReadIndex, read_index
from txlog.text import bytes_text, count_text

_CHUNK = 64
"""Indexes that are in memory at once."""
_TRIES = 3
"""Looks at one partition, if maintenance deletes meanwhile what the first one names."""


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


def look_at_partition(
    session: Session, tp: TopicPartition, *, max_indexes: int, max_spans: int, max_pieces: int
) -> PartitionLook:
    """Look at one partition. Costs one LIST, one GET for each object of the tail, and one or two for each index that is read.

    Raises CorruptLogError with the name of a damaged or missing object.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _Look(session, tp, max_indexes, max_spans, max_pieces).result()
        except MissingObjectError:
            if not left:
                raise
    raise AssertionError("unreachable")


class _Look:
    def __init__(self, session: Session, tp: TopicPartition, max_indexes: int, max_spans: int, max_pieces: int) -> None:
        self._session, self._tp = session, tp
        self._view = session.call(f"looking at {tp}", lambda ctx, views: with_views(views, load(ctx, tp)))
        state = self._view.state
        self._start = state.log_start_offset
        self._fates = Spans(self._start, state.next_offset, max_spans, joined=True)
        self._places = Spans(self._start, state.next_offset, max_spans, joined=False)
        self._totals = {"rows": 0, "files": 0, "bytes": 0, "aborted": 0}
        self._files: list[FilePoint] = []
        self._aborted: list[AbortedTxn] = []
        self._pieces: list[Piece] = []
        self._current: dict[int, Piece] = {}
        self._max_pieces = max_pieces
        walk = [name for name in self._view.walk if name.end_offset > self._start]
        self._read = walk[-max_indexes:] if max_indexes else []
        self._unread = walk[: len(walk) - len(self._read)]

    def result(self) -> PartitionLook:
        view, state = self._view, self._view.state
        self._add_tail()
        names = self._read[::-1]
        for at in range(0, len(names), _CHUNK):
            self._add_indexes(names[at : at + _CHUNK])
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
        aborted = AbortedRanges(self._aborted)
        for record in reversed(records):
            size = record.payload_bytes + sum(file.bytes for file in record.files)
            self._add_batch(record, record.end_offset, aborted)
            title = f"tail, {count_text(record.records, 'row')}, {count_text(len(record.files), 'file')}, {bytes_text(size)}"
            self._places.add(record.base_offset, record.end_offset, "tail", title)
            self._totals["files"] += len(record.files)
            self._totals["bytes"] += size
            if size:
                self._files.append(FilePoint(record.timestamp, "tail", size, max(len(record.files), 1)))

    def _add_indexes(self, names: list[SegmentName]) -> None:
        for name, read in zip(names, self._indexes(names), strict=True):
            index = read.index
            self._aborted += read.aborted
            self._totals["aborted"] += len(read.aborted)
            # A transaction that began above this segment has nothing in it.
            self._aborted = [txn for txn in self._aborted if txn.first_offset < index.end_offset]
            aborted = AbortedRanges(self._aborted)
            for at in reversed(range(len(index.entries))):
                self._add_batch(index.entries[at], end_of_entry(index, at), aborted)
            place = "sealed" if not name.generation else "merged" if index.compacted is msgspec.UNSET else "compacted"
            size = sum(file.bytes for file in index.files)
            rows = sum(entry.records for entry in index.entries)
            title = (
                f"{place}, {count_text(len(index.entries), 'batch')}, {count_text(rows, 'row')}, "
                f"{count_text(len(index.files), 'file')}, {bytes_text(size)}"
            )
            self._places.add(name.base_offset, name.end_offset, place, title)
            self._totals["files"] += len(index.files)
            self._totals["bytes"] += size
            if index.files:
                at_ms = index.entries[-1].timestamp if index.entries else self._view.state.last_timestamp
                self._files.append(FilePoint(at_ms, place, size, len(index.files)))

    def _indexes(self, names: list[SegmentName]) -> tuple[ReadIndex, ...]:
        def program(ctx: Context, views: Views) -> Program[tuple[Views, tuple[ReadIndex, ...]]]:
            return views, tuple((yield Gather(tuple(read_index(self._tp, name) for name in names))))

        return self._session.call(f"reading the indexes of {self._tp}", program)

    def _add_batch(self, batch: CommitRecord | IndexEntry, end_offset: int, aborted: AbortedRanges) -> None:
        if end_offset <= self._start:
            return
        self._totals["rows"] += batch.records
        if batch.kind in ("log_start", "expire"):
            fate = "control"
        elif batch.kind == "abort" or aborted.hides(batch.producer_id, batch.base_offset, batch.kind):
            fate = "aborted"
        elif batch.transactional and batch.kind == "data" and self._is_open(batch):
            fate = "open"
        else:
            fate = "committed"
        self._fates.add(batch.base_offset, end_offset, fate)
        if batch.kind in ("commit", "abort") or (batch.transactional and batch.producer_id >= 0):
            self._add_piece(batch, end_offset, fate)

    def _is_open(self, batch: CommitRecord | IndexEntry) -> bool:
        entry = self._view.state.producers.get(batch.producer_id)
        return entry is not None and 0 <= entry.txn_first_offset <= batch.base_offset

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
