"""What became of each batch of a partition, and which rows of which files are its own?

Every way of looking at a log takes this walk: reads, publications, merges, sizes, the exporter, pictures and
`txlog dump-log`. So a rule of which rows count stands here, once (PROTOCOL.md, "Reading", R10, R11). The walk needs
only indexes, commit records and the aborted transactions; no file is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, NamedTuple, TypeAlias

from txlog.core.names import TopicPartition
from txlog.core.records import AbortedTxn, CommitRecord, DataFile, IndexedFile, IndexEntry, SegmentIndex
from txlog.core.segments import end_of_entry, floor_entry
from txlog.core.snapshots import SnapshotCut
from txlog.errors import CorruptLogError

Fate: TypeAlias = Literal["committed", "aborted", "open", "control", "hidden", "removed"]
"""`committed`: readers see the rows, also those of a COMMIT (R11) and those without a transaction. `aborted`: none
does with read_committed (R10). `open`: its transaction has no marker yet. `control`: a batch without rows. `hidden`:
its transaction is not in the cut. `removed`: it lies wholly below the log start."""


class FileRows(NamedTuple):
    """Rows `[first_row, first_row + rows)` of a file."""

    file: DataFile
    schema_id: int
    first_row: int
    rows: int


class LogBatch(NamedTuple):
    """One batch of the log, and what became of it."""

    entry: CommitRecord | IndexEntry
    fate: Fate
    end_offset: int
    """The offset after the last one that a row of the batch can have."""
    segment: SegmentIndex | None
    """The segment or run that holds the batch. None: it is in the tail."""

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing between its rows: it is in a cleaned run."""
        return self.segment is not None and self.segment.generation > 0

    def rows_in_files(self, skip: int = 0, rows: int | None = None) -> Iterator[FileRows]:
        """Cut the batch's rows from number `skip` on into those of each file. `rows` None means all of them.

        Yields nothing for rows inside the commit record and for entries of internal topics.
        """
        entry, number = self.entry, 0
        left = entry.records - skip if rows is None else rows
        files: Sequence[DataFile] = ()
        schema_id = 0
        if isinstance(entry, CommitRecord):
            files, schema_id = entry.files, entry.schema_id
        elif self.segment is not None and entry.file is not None:
            files, number, skip = self.segment.files, entry.file, entry.first_row + skip
        while left and files:
            file = files[number]
            number += 1
            if skip >= file.rows:
                skip -= file.rows
                continue
            part = min(file.rows - skip, left)
            yield FileRows(file, file.schema_id if isinstance(file, IndexedFile) else schema_id, skip, part)
            skip, left = 0, left - part


def walk_batches(
    *,
    tp: TopicPartition,
    indexes: Iterable[SegmentIndex],
    tail: Iterable[CommitRecord] = (),
    aborted: Iterable[AbortedTxn] = (),
    start: int | None = None,
    end: int | None = None,
    log_start_offset: int = 0,
    cut: SnapshotCut | None = None,
    first_open: Mapping[int, int] | None = None,
) -> Iterator[LogBatch]:
    """Yield each batch that reaches into `[start, end)`, in the order of offsets, with its fate.

    `indexes` are those of a walk, in order; `tail` holds the commit records after them, and those that an index covers
    are ignored. Without `start` and `end` the walk has all that they hold. `aborted` are the aborted transactions that
    overlap the range; without them no batch is aborted, as a reader of read_uncommitted wants it. Without a `cut` no
    batch is hidden. `first_open` maps a producer to the first offset of its open transaction; a caller that has bounded
    `end` by the LSO needs none.

    Raises CorruptLogError for a hole: it is never skipped.
    """
    fate = _Judge(AbortedRanges(aborted), log_start_offset, cut, first_open or {})
    at = start
    for index in indexes:
        at = index.base_offset if at is None else at
        if index.end_offset <= at or (end is not None and at >= end):
            continue
        _check_covered(tp, at, end, index.base_offset)
        for number in range(max(floor_entry(index, at), 0), len(index.entries)):
            entry = index.entries[number]
            if end is not None and entry.base_offset >= end:
                break
            end_offset = end_of_entry(index, number)
            yield LogBatch(entry, fate.of(entry, end_offset, index.generation), end_offset, index)
        at = index.end_offset
    for record in tail:
        at = record.base_offset if at is None else at
        if record.end_offset <= at or (end is not None and at >= end):
            continue
        _check_covered(tp, at, end, record.base_offset)
        yield LogBatch(record, fate.of(record, record.end_offset, 0), record.end_offset, None)
        at = record.end_offset
    if at is not None and end is not None and at < end:
        raise CorruptLogError(
            f"{tp}: a read up to offset {end} finds nothing at offset {at}. hint: check the store with `txlog fsck`"
        )


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


@dataclass(frozen=True, slots=True)
class _Judge:
    """Decides the fate of single batches."""

    aborted: AbortedRanges
    log_start_offset: int
    cut: SnapshotCut | None
    first_open: Mapping[int, int]

    def of(self, entry: CommitRecord | IndexEntry, end_offset: int, generation: int) -> Fate:
        if end_offset <= self.log_start_offset:
            return "removed"
        # A cleaned run holds only committed batches, some of them without the rows that a compaction removed.
        if not generation:
            if not entry.records:
                return "control"
            if self.aborted.hides(entry.producer_id, entry.base_offset, entry.kind):
                return "aborted"
        if self.cut is not None and self.cut.hides(entry):
            return "hidden"
        if entry.transactional and entry.kind == "data":
            first = self.first_open.get(entry.producer_id)
            if first is not None and 0 <= first <= entry.base_offset:
                return "open"
        return "committed"


def _check_covered(tp: TopicPartition, at: int, end: int | None, found: int) -> None:
    if found > at:
        upto = "" if end is None else f" up to offset {end}"
        raise CorruptLogError(
            f"{tp}: a read{upto} finds nothing at offset {at}; the next batch begins at {found}. "
            "hint: check the store with `txlog fsck`"
        )
