"""Into how many tasks is a read divided, and which pieces does each task read?

A task of Spark's Python source costs 40 to 50 ms even if it reads little, and reads about 30 MB/s. So small pieces
share a task, and large files are cut at their row groups. The order of pieces, and so of offsets, is kept: a task reads
a run of consecutive pieces, perhaps from several partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from txlog.client.reading import ReadTask, piece_rows
from txlog.core.fetch_plan import FilePiece, InlinePiece, Piece, RowRange
from txlog.core.names import TopicPartition

MIN_TASK_BYTES = 8 * 2**20
"""About a quarter of a second of work: five times what the task itself costs."""
MAX_TASK_BYTES = 128 * 2**20
"""Spark's own `spark.sql.files.maxPartitionBytes`."""
MANY_TASKS = 256
"""From this many tasks on, tasks become larger instead of more."""
OPEN_COST_BYTES = 256 * 2**10
"""Opening a file costs about as much as reading this many bytes of it."""


def pack_tasks(
    tasks: Sequence[ReadTask], min_partitions: int | None = None, *, light: bool = True
) -> list[tuple[ReadTask, ...]]:
    """Divide the pieces of `tasks`, one for each topic partition, among runs of about equal cost; see `pack`.

    `light` pieces have no statistics: for workers in other processes, after files were skipped by statistics.
    """
    by_partition = {task.topic_partition: task for task in tasks}
    pieces = [without_statistics(piece) if light else piece for task in tasks for piece in task.pieces]
    whole = set(map(id, pieces))
    return [_input(run, by_partition, whole) for run in pack(pieces, min_partitions)]


def pack(pieces: Sequence[Piece], min_partitions: int | None = None) -> list[tuple[Piece, ...]]:
    """Split `pieces` into runs of about equal cost, none empty; at least `min_partitions` runs if there are enough
    rows."""
    if not pieces:
        return []
    total = sum(map(cost, pieces))
    target = min(max(total // MANY_TASKS, MIN_TASK_BYTES), MAX_TASK_BYTES)
    tasks = max(-(-total // target), min_partitions or 1)
    units = [unit for piece in pieces for unit in cut_at_row_groups(piece, max(total // tasks, 1))]
    if len(units) < (min_partitions or 1):
        units = _cut_evenly(units, min_partitions or 1)
    return _runs(units, min(tasks, len(units)))


def offsets_of(piece: Piece) -> tuple[int, int]:
    """Return the range `[first, end)` of the piece's offsets; for a cleaned run it is an outer bound."""
    ranges = [piece.range] if isinstance(piece, InlinePiece) else piece.ranges
    if isinstance(piece, FilePiece) and has_gaps(piece):
        return piece.start, piece.end
    return ranges[0].base_offset, ranges[-1].base_offset + ranges[-1].rows


def without_statistics(piece: Piece) -> Piece:
    """Return the piece without statistics, which planning has used and executors do not need."""
    if isinstance(piece, FilePiece):
        return replace(piece, file=msgspec.structs.replace(piece.file, statistics={}))
    return piece


def has_gaps(piece: Piece) -> bool:
    """Whether the piece belongs to a cleaned run, so that a part of its rows is not a range of offsets."""
    return isinstance(piece, FilePiece) and any(part.by_column for part in piece.ranges)


def cost(piece: Piece) -> int:
    """Return the cost of reading the piece, in bytes."""
    if isinstance(piece, InlinePiece):
        return len(piece.payload)
    return OPEN_COST_BYTES + piece.file.bytes * piece_rows([piece]) // max(piece.file.rows, 1)


def cut_at_row_groups(piece: Piece, target: int) -> Iterator[Piece]:
    """Yield `piece`, or parts of about `target` bytes that begin and end at row groups."""
    if isinstance(piece, InlinePiece) or cost(piece) <= target or len(piece.file.row_groups) < 2:
        yield piece
        return
    wanted_rows = max(target * max(piece.file.rows, 1) // max(piece.file.bytes, 1), 1)
    ends: list[int] = []
    first = end = 0
    for rows in piece.file.row_groups:
        end += rows
        if end - first >= wanted_rows:
            ends.append(end)
            first = end
    yield from _cut_at(piece, ends)


def _cut_evenly(units: Sequence[Piece], wanted: int) -> list[Piece]:
    """Cut the pieces with the most rows, even inside row groups, until there are `wanted` pieces (or no piece has two
    rows)."""
    parts = [1] * len(units)
    rows = [piece_rows([unit]) for unit in units]
    for _ in range(wanted - len(units)):
        largest = max(range(len(units)), key=lambda at: rows[at] / parts[at])
        if rows[largest] <= parts[largest]:
            break
        parts[largest] += 1
    return [part for unit, count in zip(units, parts, strict=True) for part in _split_rows(unit, count)]


def _split_rows(piece: Piece, count: int) -> Iterator[Piece]:
    if count == 1:
        yield piece
        return
    total = piece_rows([piece])
    shares = [total * (at + 1) // count - total * at // count for at in range(count)]
    if isinstance(piece, InlinePiece):
        skipped = 0
        for share in shares:
            yield replace(piece, range=_part(piece.range, skipped, share))
            skipped += share
        return
    left = list(piece.ranges)
    for share in shares:
        taken: list[RowRange] = []
        while share:
            taken.append(_take(left, share))
            share -= taken[-1].rows
        yield replace(piece, ranges=tuple(taken))


def _cut_at(piece: FilePiece, ends: Sequence[int]) -> Iterator[FilePiece]:
    """Yield the parts of `piece` below each row number of `ends`, and the part after the last."""
    left = list(piece.ranges)
    for end in [*ends, sum(piece.file.row_groups)]:
        taken: list[RowRange] = []
        while left and left[0].first_row < end:
            taken.append(_take(left, end - left[0].first_row))
        if taken:
            yield replace(piece, ranges=tuple(taken))


def _take(left: list[RowRange], most: int) -> RowRange:
    """Take the first of the ranges, or only its first `most` rows."""
    head = left.pop(0)
    if most < head.rows:
        left.insert(0, _part(head, most, head.rows - most))
    return _part(head, 0, min(head.rows, most))


def _part(whole: RowRange, skipped: int, rows: int) -> RowRange:
    base_offset = whole.base_offset if whole.by_column else whole.base_offset + skipped
    return replace(whole, first_row=whole.first_row + skipped, rows=rows, base_offset=base_offset)


def _runs(units: Sequence[Piece], count: int) -> list[tuple[Piece, ...]]:
    """Split `units` into `count` consecutive runs, none empty, cut where the cost is nearest to equal shares."""
    total = sum(map(cost, units))
    runs: list[list[Piece]] = [[]]
    done = 0
    for at, unit in enumerate(units):
        value = cost(unit)
        missing = count - len(runs)
        # If more than half of the unit lies after the border, it belongs to the next run. The same if the runs left
        # need all units left.
        begins_next = (done + value / 2) * count >= total * len(runs) or len(units) - at <= missing
        if runs[-1] and missing and begins_next:
            runs.append([])
        runs[-1].append(unit)
        done += value
    return [tuple(run) for run in runs]


def _input(
    run: tuple[Piece, ...], tasks: Mapping[TopicPartition, ReadTask], whole: Collection[int]
) -> tuple[ReadTask, ...]:
    made: list[ReadTask] = []
    for piece in run:
        first, end = offsets_of(piece)
        # The first offset of a part of a cleaned run is not known, so only a whole one can be planned again (R15).
        again = not has_gaps(piece) or id(piece) in whole
        last = made[-1] if made else None
        if last is not None and last.topic_partition == piece.topic_partition:
            made[-1] = replace(last, end=end, pieces=(*last.pieces, piece), relist=last.relist and again)
        else:
            task = tasks[piece.topic_partition]
            made.append(replace(task, start=first, end=end, pieces=(piece,), relist=task.relist and again))
    return tuple(made)
