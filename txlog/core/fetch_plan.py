"""Which rows of which files does a read of `[start, end)` of one partition return, and in what order?

The answer needs only indexes, commit records and the aborted transactions; no file is opened (PROTOCOL.md, "Reading",
R10, R11). Control batches without rows are never returned; a COMMIT that carries rows is. A batch of an aborted
transaction is dropped as a whole, so a file that holds nothing else is never read. The caller has bounded `end` by the
last stable offset or the log end. For read_uncommitted it gives no aborted transactions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TypeAlias

from txlog.core.names import SegmentObject, TopicPartition, parse_partition_object
from txlog.core.records import AbortedTxn, CommitRecord, DataFile, IndexedFile, SegmentIndex
from txlog.core.segments import check_rows, floor_entry
from txlog.core.snapshots import SnapshotCut
from txlog.errors import CorruptLogError

BY_COLUMN = -1
"""Value of a range's `base_offset`: the rows' offsets and timestamps are in the file's `_offset` and `_timestamp`
columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows `[first_row, first_row + rows)` of a file, with the offset of the first and the timestamp (ms) of all.

    If `base_offset` is BY_COLUMN, offsets have gaps. Then take offset and timestamp of each row from the columns, and
    only rows whose offset is in the piece's `[start, end)`.
    """

    first_row: int
    rows: int
    base_offset: int
    timestamp: int

    @property
    def by_column(self) -> bool:
        return self.base_offset == BY_COLUMN


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePiece:
    """Rows of one Parquet file. Its ranges are in the order of rows and of offsets."""

    topic_partition: TopicPartition
    file: DataFile
    schema_id: int
    ranges: tuple[RowRange, ...]
    offset_column: bool
    start: int
    """Lower offsets are not wanted. Only ranges by column need this."""
    end: int
    """Offsets from here on are not wanted. Only ranges by column need this."""

    @property
    def covers_file(self) -> bool:
        """Whether `[start, end)` contains all offsets of the segment that the file was written for."""
        found = parse_partition_object(self.file.path.rpartition("/")[2])
        if not isinstance(found, SegmentObject):
            return False
        return self.start <= found.segment.base_offset and found.segment.end_offset <= self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePiece:
    """Inline rows of a commit record, an Arrow IPC stream. The range counts rows of that stream."""

    topic_partition: TopicPartition
    payload: bytes
    schema_id: int
    range: RowRange
    rows: int
    """Rows of the whole stream, as the commit record states."""


Piece: TypeAlias = FilePiece | InlinePiece


def plan_fetch(
    *,
    tp: TopicPartition,
    indexes: Sequence[SegmentIndex],
    tail: Sequence[tuple[CommitRecord, bytes]],
    aborted: Iterable[AbortedTxn],
    start: int,
    end: int,
    cut: SnapshotCut | None = None,
) -> tuple[Piece, ...]:
    """Return the pieces that hold the rows of `[start, end)`, in the order of offsets.

    `indexes` are those of a walk, in order, from the one that contains `start` on. `tail` holds commit records with
    their payloads, in order; records that an index covers are ignored. With a `cut`, rows of transactions that are not
    in it are left out. The indexes and the tail must cover the whole range: a hole raises CorruptLogError and is never
    skipped.
    """
    if start >= end:
        return ()
    aborted_ranges = AbortedRanges(aborted)
    pieces: list[Piece] = []
    at = start
    for index in indexes:
        if at >= end or index.end_offset <= at:
            continue
        _check_covered(tp, at, end, index.base_offset)
        for file_piece in _index_pieces(tp, index, aborted_ranges, at, min(end, index.end_offset), cut):
            _add(pieces, file_piece)
        at = index.end_offset
    for record, payload in tail:
        if at >= end or record.end_offset <= at:
            continue
        _check_covered(tp, at, end, record.base_offset)
        hidden = aborted_ranges.hides(record.producer_id, record.base_offset, record.kind)
        if record.records and not hidden and not (cut is not None and cut.hides(record)):
            for piece in _record_pieces(tp, record, payload, at, min(end, record.end_offset)):
                _add(pieces, piece)
        at = record.end_offset
    if at < end:
        raise CorruptLogError(
            f"{tp}: a read of offsets {start} to {end} finds nothing at offset {at}. hint: check the store with `txlog fsck`"
        )
    return tuple(pieces)


class AbortedRanges:
    """Finds whether a batch belongs to an aborted transaction: same producer, offset within an aborted range.

    Ranges of one producer never overlap: a transaction begins after the marker of the one before it.
    """

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for txn in aborted:
            self._by_producer.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
        for ranges in self._by_producer.values():
            ranges.sort()

    def hides(self, producer_id: int, offset: int, kind: str = "data") -> bool:
        """Return whether a batch of that producer at `offset` was aborted (R10).

        The rows of a COMMIT never are (R11).
        """
        ranges = self._by_producer.get(producer_id)
        if ranges is None or kind != "data":
            return False
        at = bisect_right(ranges, offset, key=itemgetter(0)) - 1
        return at >= 0 and offset <= ranges[at][1]


def _index_pieces(
    tp: TopicPartition,
    index: SegmentIndex,
    aborted: AbortedRanges,
    start: int,
    end: int,
    cut: SnapshotCut | None,
) -> Iterator[FilePiece]:
    """Yield the pieces of one segment or run. A batch that lies in several files gives one piece for each."""
    position = max(floor_entry(index, start), 0)
    for number in range(position, len(index.entries)):
        entry = index.entries[number]
        if entry.base_offset >= end:
            return
        if not entry.records:
            continue
        if entry.file is None:
            raise CorruptLogError(
                f"{tp}: the batch at offset {entry.base_offset} has no file; an internal topic cannot be read"
            )
        if cut is not None and cut.hides(entry):
            continue
        # A cleaned run holds only rows of committed transactions, and its offsets have gaps.
        if index.generation:
            trimmed, base_offset, timestamp = entry.records, BY_COLUMN, BY_COLUMN
            skipped = 0
        elif aborted.hides(entry.producer_id, entry.base_offset, entry.kind):
            continue
        else:
            skipped = max(start - entry.base_offset, 0)
            trimmed = min(end, entry.end_offset) - entry.base_offset - skipped
            base_offset, timestamp = entry.base_offset + skipped, entry.timestamp
        if trimmed <= 0:
            continue
        row_range = RowRange(
            first_row=entry.first_row + skipped, rows=trimmed, base_offset=base_offset, timestamp=timestamp
        )
        yield from _file_pieces(tp, index.files, entry.file, row_range, start, end)


def _record_pieces(tp: TopicPartition, record: CommitRecord, payload: bytes, start: int, end: int) -> Iterator[Piece]:
    check_rows(record, str(tp))
    skipped = max(start - record.base_offset, 0)
    row_range = RowRange(
        first_row=skipped,
        rows=end - record.base_offset - skipped,
        base_offset=record.base_offset + skipped,
        timestamp=record.timestamp,
    )
    if record.payload_bytes:
        yield InlinePiece(
            topic_partition=tp, payload=payload, schema_id=record.schema_id, range=row_range, rows=record.records
        )
        return
    if record.entries:
        raise CorruptLogError(
            f"{tp}: the batch at offset {record.base_offset} holds entries; an internal topic cannot be read"
        )
    yield from _file_pieces(tp, record.files, 0, row_range, start, end, record.schema_id)


def _file_pieces(
    tp: TopicPartition,
    files: Sequence[DataFile],
    number: int,
    wanted: RowRange,
    start: int,
    end: int,
    schema_id: int = 0,
) -> Iterator[FilePiece]:
    """Cut `wanted` into ranges of each file's own rows, and yield a piece for each of these files.

    `wanted` counts rows from file `number` on, over the ends of files. Files of an index state their schema.
    """
    skip, left, base_offset = wanted.first_row, wanted.rows, wanted.base_offset
    while left:
        file = files[number]
        number += 1
        if skip >= file.rows:
            skip -= file.rows
            continue
        rows = min(file.rows - skip, left)
        yield FilePiece(
            topic_partition=tp,
            file=file,
            schema_id=file.schema_id if isinstance(file, IndexedFile) else schema_id,
            ranges=(replace(wanted, first_row=skip, rows=rows, base_offset=base_offset),),
            offset_column=isinstance(file, IndexedFile) and file.offset_column,
            start=start,
            end=end,
        )
        skip, left = 0, left - rows
        base_offset += 0 if wanted.by_column else rows


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece, or widen the last piece if the new one continues in the same file."""
    last = pieces[-1] if pieces else None
    if not (isinstance(piece, FilePiece) and isinstance(last, FilePiece) and last.file.path == piece.file.path):
        pieces.append(piece)
        return
    new, old = piece.ranges[0], last.ranges[-1]
    if new.first_row < old.first_row + old.rows:
        # Rows of a file are in the order of offsets, so this range cannot continue the last piece. Begin another piece.
        pieces.append(piece)
        return
    ranges = (*last.ranges[:-1], replace(old, rows=old.rows + new.rows)) if _adjacent(old, new) else (*last.ranges, new)
    pieces[-1] = replace(last, ranges=ranges)


def _adjacent(old: RowRange, new: RowRange) -> bool:
    if new.first_row != old.first_row + old.rows or new.by_column != old.by_column:
        return False
    return old.by_column or (new.base_offset == old.base_offset + old.rows and new.timestamp == old.timestamp)


def _check_covered(tp: TopicPartition, at: int, end: int, found: int) -> None:
    if found > at:
        raise CorruptLogError(
            f"{tp}: a read up to offset {end} finds nothing at offset {at}; the next batch begins at {found}. hint: check the store with `txlog fsck`"
        )
