"""Which rows of which files does a read of `[start, end)` of one partition return, and in what order?

`core/fates.py` decides which batches a reader sees; this module cuts their rows to the range. No file is opened, and a
file that holds only rows of aborted transactions never will be. The caller has bounded `end` by the last stable offset
or the log end. For read_uncommitted it gives no aborted transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from txlog.core.fates import LogBatch, walk_batches
from txlog.core.names import SegmentObject, TopicPartition, parse_partition_object
from txlog.core.records import AbortedTxn, CommitRecord, DataFile, IndexedFile, SegmentIndex
from txlog.core.segments import check_rows
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
    pieces: list[Piece] = []
    payloads = {record.base_offset: payload for record, payload in tail}
    records = [record for record, _ in tail]
    for batch in walk_batches(tp=tp, indexes=indexes, tail=records, aborted=aborted, start=start, end=end, cut=cut):
        if batch.fate == "committed" and batch.entry.records:
            for piece in _pieces(tp, batch, payloads, start, end):
                _add(pieces, piece)
    return tuple(pieces)


def _pieces(
    tp: TopicPartition, batch: LogBatch, payloads: Mapping[int, bytes], start: int, end: int
) -> Iterator[Piece]:
    """Yield the pieces of one batch's rows in `[start, end)`: one for each of its files."""
    entry = batch.entry
    if isinstance(entry, CommitRecord):
        check_rows(entry, str(tp))
    if entry.entries if isinstance(entry, CommitRecord) else entry.file is None:
        raise CorruptLogError(
            f"{tp}: the batch at offset {entry.base_offset} holds entries; an internal topic cannot be read"
        )
    bounds = entry if batch.segment is None else batch.segment
    start, end = max(start, bounds.base_offset), min(end, bounds.end_offset)
    if batch.has_gaps:
        skipped, rows, base_offset, timestamp = 0, entry.records, BY_COLUMN, BY_COLUMN
    else:
        skipped = max(start - entry.base_offset, 0)
        rows = min(end, entry.end_offset) - entry.base_offset - skipped
        base_offset, timestamp = entry.base_offset + skipped, entry.timestamp
    if rows <= 0:
        return
    if isinstance(entry, CommitRecord) and entry.payload_bytes:
        yield InlinePiece(
            topic_partition=tp,
            payload=payloads[entry.base_offset],
            schema_id=entry.schema_id,
            range=RowRange(first_row=skipped, rows=rows, base_offset=base_offset, timestamp=timestamp),
            rows=entry.records,
        )
        return
    for file, schema_id, first_row, part in batch.rows_in_files(skipped, rows):
        yield FilePiece(
            topic_partition=tp,
            file=file,
            schema_id=schema_id,
            ranges=(RowRange(first_row=first_row, rows=part, base_offset=base_offset, timestamp=timestamp),),
            offset_column=isinstance(file, IndexedFile) and file.offset_column,
            start=start,
            end=end,
        )
        base_offset += 0 if batch.has_gaps else part


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
