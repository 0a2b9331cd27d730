"""Which files and rows do a topic's published tables have, and what changes from one publication to the next?

A publication is a version of tables in other formats that name txlog's own files (PROTOCOL.md, "Publication"). It shows
the rows of a snapshot of the topic that are in files: all of a transaction or none. A file may hold other rows, too;
the tables leave these out. Rows that a file was published without are later published as a copy, so that a reader who
follows the tables sees each row once, in a file that is new to him. This module only decides; it reads no file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter

import msgspec

from txlog.core.fates import walk_batches
from txlog.core.names import TopicPartition, table_version_path
from txlog.core.records import AbortedTxn, CommitRecord, DataFile, IndexedFile, SegmentIndex
from txlog.core.records.publications import (
    FormatName,
    OffsetRun,
    Publication,
    PublishedFile,
    PublishedPartition,
    RowRun,
)
from txlog.core.row_runs import joined, minus, positions
from txlog.core.snapshots import SnapshotCut
from txlog.errors import CorruptLogError

MAX_GROUPS = 100
"""With more groups of files than this, a publication joins the small ones into its own."""
WHOLE_EVERY = 50
"""Each publication whose number is a multiple of this lists all files. So few objects are read to know the tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring rows of a file, with offsets in `[first_offset, end_offset)`, in any order."""

    first_row: int
    rows: int
    first_offset: int
    end_offset: int
    is_exact: bool
    """Whether each row's offset is known: the first row has the first offset, and there are no gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBatch:
    """The batch of a file that holds no offsets and times itself."""

    base_offset: int
    """Offset of the file's first row."""
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFile:
    """A file of the log below a cut, with the rows that the cut shows, in order."""

    partition: int
    file: DataFile
    schema_id: int
    spans: tuple[Span, ...]
    batch: OfBatch | None
    """None: the file has the columns `_offset` and `_timestamp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPartition:
    """What a cut shows of one partition."""

    log_start_offset: int
    cut: PublishedPartition
    files: tuple[ShownFile, ...]
    compacted_end_offset: int = 0
    """Compactions have used rows below it, and so may have removed rows below them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The state of a topic's published tables: the fold of its publications."""

    newest: Publication
    digest: str
    files: Mapping[str, PublishedFile] = field(repr=False)
    """By path."""

    @property
    def number(self) -> int:
        return self.newest.number

    def version_of(self, name: FormatName) -> int:
        """Return the version of the table in one format: 0 for the first."""
        return self.newest.number - self.newest.formats[name]

    def path_of(self, name: FormatName) -> str:
        """Return the path of the object that declares this version of the table in one format."""
        return table_version_path(name, self.newest.topic, self.version_of(name))

    def has(self, partition: int, offset: int) -> bool:
        """Return whether the tables have, or had, the committed row at `offset`."""
        if partition >= len(self.newest.partitions):
            return False
        shown = self.newest.partitions[partition]
        at = bisect_right(shown.hidden, offset, key=attrgetter("first_offset")) - 1
        return offset < shown.end_offset and (at < 0 or offset >= shown.hidden[at].end_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """New rows of a file that holds others, too. They are published as a separate file.

    So no file that an `append` adds has rows that a reader must leave out: readers that follow a table often read its
    new files alone.
    """

    shown: ShownFile
    rows: tuple[RowRun, ...]
    """The rows to copy, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What must change in the tables. First files are replaced, then rows are added."""

    replaced: tuple[PublishedFile, ...] = ()
    """Files with rows that the tables have in other files until now."""
    removed: tuple[str, ...] = ()
    """Paths of files that are not part of the log any more, or were copied from such files."""
    added: tuple[PublishedFile, ...] = ()
    """Files whose rows are all new, and all in the tables from then on."""
    copies: tuple[Copy, ...] = ()
    moved: tuple[Copy, ...] = ()
    """Copies of rows that the tables have, in a file that must leave them. They replace it."""


def fold(before: Tables | None, publication: Publication, digest: str) -> Tables:
    """Return the tables after one more publication. Without `before` it must be `whole`."""
    if before is None and not publication.whole:
        raise CorruptLogError(
            f"{publication.topic}: publication {publication.number} builds on the one before it, which is not there"
        )
    held = {} if before is None else before.files
    listed = {file.path: file for file in publication.added}
    if publication.whole:
        return Tables(newest=publication, digest=digest, files=listed)
    gone = set(publication.removed)
    files = {path: file for path, file in held.items() if path not in gone} | listed
    # A list of files that has lost one is written again, without it.
    touched = {held[path].group for path in (*gone, *listed) if path in held}
    if len({file.group for file in files.values()} - touched) >= MAX_GROUPS:
        touched = {file.group for file in files.values()}
    regrouped = {
        path: msgspec.structs.replace(file, group=publication.number) if file.group in touched else file
        for path, file in files.items()
    }
    return Tables(newest=publication, digest=digest, files=regrouped)


def whole(before: Tables, publication: Publication) -> Publication:
    """Return the same publication as one that lists all files of the tables, so that no earlier one is needed."""
    files = fold(before, publication, "").files
    return msgspec.structs.replace(
        publication, whole=True, added=tuple(files[path] for path in sorted(files)), removed=()
    )


def shown_partition(
    *,
    tp: TopicPartition,
    indexes: Sequence[SegmentIndex],
    tail: Sequence[CommitRecord],
    aborted: Iterable[AbortedTxn],
    log_start_offset: int,
    end_offset: int,
    cut: SnapshotCut,
) -> ShownPartition:
    """Return which rows in files a cut shows below `end_offset`, and which committed rows it hides.

    `indexes` and `tail` are those of one walk from the log start on. No record below `end_offset` has inline rows.
    """
    spans: dict[str, list[Span]] = {}
    files: dict[str, tuple[DataFile, int, OfBatch | None]] = {}
    hidden: list[OffsetRun] = []
    for batch in walk_batches(
        tp=tp, indexes=indexes, tail=tail, aborted=aborted, start=log_start_offset, end=end_offset, cut=cut
    ):
        entry = batch.entry
        if not entry.records:
            continue
        if batch.fate == "hidden":
            hidden.append(OffsetRun(entry.base_offset, batch.end_offset))
        if batch.fate != "committed":
            continue
        first = entry.base_offset
        for file, schema_id, first_row, rows in batch.rows_in_files():
            own = isinstance(file, IndexedFile) and file.offset_column
            is_sorted = isinstance(file, IndexedFile) and file.sorted_by is not msgspec.UNSET
            is_exact = batch.end_offset - entry.base_offset == entry.records and not is_sorted
            span = Span(
                first_row=first_row,
                rows=rows,
                first_offset=first,
                end_offset=first + rows if is_exact else batch.end_offset,
                is_exact=is_exact,
            )
            times_itself = None if own else OfBatch(base_offset=first - first_row, timestamp=entry.timestamp)
            files[file.path] = (file, schema_id, times_itself)
            spans.setdefault(file.path, []).append(span)
            first += rows if is_exact else 0
    compacted = [index.compacted.end_offset for index in indexes if index.compacted is not msgspec.UNSET]
    return ShownPartition(
        log_start_offset=log_start_offset,
        compacted_end_offset=max(compacted, default=0),
        cut=PublishedPartition(end_offset=end_offset, hidden=tuple(hidden)),
        files=tuple(
            ShownFile(partition=tp.partition, file=file, schema_id=schema_id, spans=tuple(spans[path]), batch=batch)
            for path, (file, schema_id, batch) in files.items()
        ),
    )


def is_compacted_ahead(before: Tables, partitions: Sequence[ShownPartition]) -> bool:
    """Return whether a compaction may have used rows that the tables do not show yet.

    A replacement would then remove rows of a key, and the newer ones would come only afterwards.
    """
    return any(
        now.compacted_end_offset > then.end_offset
        or any(run.first_offset < now.compacted_end_offset for run in then.hidden)
        for then, now in zip(before.newest.partitions, partitions, strict=False)
    )


def unclear_files(before: Tables | None, partitions: Sequence[ShownPartition]) -> list[ShownFile]:
    """Return the files whose `_offset` column must be read before `compare`.

    They are files of cleaned runs with an entry of which the tables have only some rows, or will keep only some.
    """
    return [
        shown
        for number, partition in enumerate(partitions)
        for edges in (_edges(before, partition, number),)
        for shown in partition.files
        if any(not span.is_exact and _inside(edges, span) for span in shown.spans)
    ]


def rows_of_cut(
    before: Tables | None, partitions: Sequence[ShownPartition], offsets: Mapping[str, Sequence[int]]
) -> dict[str, tuple[tuple[RowRun, ...], tuple[RowRun, ...]]]:
    """Return for each file the rows in the cut and at or above the log start: those of the cut before, and new ones.

    `offsets` and errors are as in `compare`.
    """
    if before is not None:
        _check_not_older(before, partitions)
    return {
        each.file.path: _split(intervals, each, offsets.get(each.file.path, ()))
        for number, partition in enumerate(partitions)
        for intervals in (_Intervals(before, partition, number),)
        for each in partition.files
    }


def compare(
    before: Tables | None,
    partitions: Sequence[ShownPartition],
    offsets: Mapping[str, Sequence[int]],
    misread: Collection[str] = (),
) -> Changes:
    """Return what must change in the tables so that they show `partitions`, which are all of the topic, in order.

    `offsets` holds the offset of each row of the files that are unclear. Files in `misread` leave the tables: their
    rows are copied. Raises CorruptLogError if the cut lacks rows that the tables have: it is then older than they are.
    """
    listed = {} if before is None else before.files
    if before is not None:
        _check_not_older(before, partitions)
    # After its end a publication begins with the files of the log alone: vacuum may have deleted its copies. Rows that
    # were in a copy would stay removed from their file. So would those of a table of newest rows.
    begins_again = before is not None and (not before.newest.formats or bool(before.newest.key))
    held = {} if begins_again else listed
    intervals = [_Intervals(before, partition, number) for number, partition in enumerate(partitions)]
    shown = {each.file.path: each for partition in partitions for each in partition.files}
    copies_of: dict[str, list[PublishedFile]] = {}
    for file in held.values():
        copies_of.setdefault(file.source, []).append(file)
    gone = {path for path, file in held.items() if (file.source or path) not in shown or path in misread}
    replaced: list[PublishedFile] = []
    added: list[PublishedFile] = []
    copies: list[Copy] = []
    moved: list[Copy] = []
    for path, each in shown.items():
        old, new = _split(intervals[each.partition], each, offsets.get(path, ()))
        published = held.get(path)
        parts = [part for part in copies_of.get(path, ()) if part.path not in misread]
        every = (RowRun(0, each.file.rows),)
        missing = minus(old, _rows_of(parts))
        if path in misread:
            if missing:
                moved.append(Copy(shown=each, rows=missing))
        elif published is not None:
            lost = _rows_of(part for part in copies_of.get(path, ()) if part.path in misread)
            removed = minus(every, minus(old, minus(published.removed, lost)))
            if removed != published.removed:
                # The log start has moved into the file.
                replaced.append(_published(each, removed))
        elif missing:
            replaced.append(_published(each, minus(every, missing)))
        elif new == every:
            added.append(_published(each, ()))
            continue
        for part in parts:
            expired = positions(part.source_rows, minus(part.source_rows, old))
            if expired != part.removed:
                replaced.append(msgspec.structs.replace(part, removed=expired))
        if new:
            copies.append(Copy(shown=each, rows=new))
    if begins_again:
        gone = listed.keys() - {file.path for file in replaced}
    return Changes(
        replaced=tuple(replaced),
        removed=tuple(sorted(gone)),
        added=tuple(added),
        copies=tuple(copies),
        moved=tuple(moved),
    )


# -- details ----------------------------------------------------------------------------------------------------------


def _rows_of(copies: Iterable[PublishedFile]) -> tuple[RowRun, ...]:
    """Return the rows of their source that are in copies."""
    return joined(sorted((run for part in copies for run in part.source_rows), key=attrgetter("first_row")))


def _published(shown: ShownFile, removed: tuple[RowRun, ...]) -> PublishedFile:
    return PublishedFile(
        **shown.file.file_fields,
        partition=shown.partition,
        schema_id=shown.schema_id,
        removed=removed,
        since=0,
        group=0,
    )


def _edges(before: Tables | None, partition: ShownPartition, number: int) -> list[int]:
    """Return, in order, the offsets at which "the tables had it" or "the log still has it" may change."""
    edges = {partition.log_start_offset}
    if before is not None and number < len(before.newest.partitions):
        then = before.newest.partitions[number]
        edges |= {then.end_offset, *(edge for run in then.hidden for edge in (run.first_offset, run.end_offset))}
    return sorted(edges)


def _inside(edges: Sequence[int], span: Span) -> bool:
    at = bisect_right(edges, span.first_offset)
    return at < len(edges) and edges[at] < span.end_offset


class _Intervals:
    """Which offsets of a partition the tables had, between edges. A partition may have many files and many edges."""

    def __init__(self, before: Tables | None, partition: ShownPartition, number: int) -> None:
        self.edges = _edges(before, partition, number)
        # Below the first edge, from it to the second one, and so on.
        self._are_old: list[bool | None] = [
            None if offset < partition.log_start_offset else before is not None and before.has(number, offset)
            for offset in (-1, *self.edges)
        ]

    def is_old(self, offset: int) -> bool | None:
        """Return whether the tables had the row at `offset`; None if it lies below the log start."""
        return self._are_old[bisect_right(self.edges, offset)]


def _split(
    intervals: _Intervals, shown: ShownFile, offsets: Sequence[int]
) -> tuple[tuple[RowRun, ...], tuple[RowRun, ...]]:
    """Return the rows at or above the log start that the tables had, and those that are new to them."""
    old: list[RowRun] = []
    new: list[RowRun] = []
    for first, end, is_old in _runs(shown, intervals, offsets):
        if is_old is not None:
            (old if is_old else new).append(RowRun(first, end))
    return joined(old), joined(new)


def _runs(shown: ShownFile, intervals: _Intervals, offsets: Sequence[int]) -> Iterator[tuple[int, int, bool | None]]:
    """Yield rows `[first, end)`, and whether the tables had them."""
    edges = intervals.edges
    for span in shown.spans:
        end_row = span.first_row + span.rows
        if not _inside(edges, span):
            yield span.first_row, end_row, intervals.is_old(span.first_offset)
        elif span.is_exact:
            cuts = edges[bisect_right(edges, span.first_offset) : bisect_left(edges, span.end_offset)]
            for begin, end in pairwise((span.first_offset, *cuts, span.end_offset)):
                row = span.first_row - span.first_offset
                yield row + begin, row + end, intervals.is_old(begin)
        else:
            row = span.first_row
            for is_old, rows in groupby(map(intervals.is_old, map(int, offsets[row:end_row]))):
                first, row = row, row + sum(1 for _ in rows)
                yield first, row, is_old


def _check_not_older(before: Tables, partitions: Sequence[ShownPartition]) -> None:
    """Raise CorruptLogError if the tables would lose rows that they show (W58)."""
    for number, then in enumerate(before.newest.partitions):
        now = partitions[number].cut
        # A batch that begins below the log start may not have been looked at then.
        lost = now.end_offset < then.end_offset or any(
            before.has(number, run.first_offset)
            for run in now.hidden
            if partitions[number].log_start_offset <= run.first_offset < then.end_offset
        )
        if lost:
            raise CorruptLogError(
                f"{before.newest.topic}-{number}: publication {before.number} shows rows up to offset "
                f"{then.end_offset}, and a later cut up to {now.end_offset} lacks some of them. "
                "hint: check the store with `txlog fsck`"
            )
