"""Sets of a file's rows, as runs `[first_row, end_row)` in order: differences, counts and positions.

Many single rows are an array of their numbers, and text in a publication.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from txlog.core.partitioning import Offsets
from txlog.core.records.publications import PublishedFile, RowRun


def minus(rows: Sequence[RowRun], others: Sequence[RowRun]) -> tuple[RowRun, ...]:
    """Return the rows of `rows` that are not in `others`. Both are in order; the result is joined."""
    left: list[RowRun] = []
    at = 0
    for run in rows:
        first = run.first_row
        while at and others[at - 1].end_row > first:
            at -= 1
        while at < len(others) and others[at].end_row <= first:
            at += 1
        while at < len(others) and others[at].first_row < run.end_row:
            if first < others[at].first_row:
                left.append(RowRun(first, others[at].first_row))
            first = max(first, others[at].end_row)
            if others[at].end_row > run.end_row:
                break
            at += 1
        if first < run.end_row:
            left.append(RowRun(first, run.end_row))
    return joined(left)


def joined(rows: Iterable[RowRun]) -> tuple[RowRun, ...]:
    """Return the same rows, in order, with neighbours in one run."""
    made: list[RowRun] = []
    for run in rows:
        if made and made[-1].end_row == run.first_row:
            made[-1] = RowRun(made[-1].first_row, run.end_row)
        else:
            made.append(run)
    return tuple(made)


def count_rows(rows: Iterable[RowRun]) -> int:
    """Return how many rows there are."""
    return sum(run.end_row - run.first_row for run in rows)


def positions(rows: Sequence[RowRun], some: Sequence[RowRun]) -> tuple[RowRun, ...]:
    """Return where `some` of `rows` are if all `rows` are put behind each other."""
    made: list[RowRun] = []
    at = 0
    for run in rows:
        for part in some:
            first, end = max(part.first_row, run.first_row), min(part.end_row, run.end_row)
            if first < end:
                made.append(RowRun(at + first - run.first_row, at + end - run.first_row))
        at += run.end_row - run.first_row
    return joined(made)


def removed_from(file: PublishedFile) -> Offsets:
    """Return the numbers of the rows of a file that are not in the table, in order.

    Raises ValueError if they cannot be those of the file.
    """
    return rows_in(file.removed) if not file.removed_rows else _unpacked(file.removed_rows, file.rows)


def removed_runs(file: PublishedFile) -> tuple[RowRun, ...]:
    """Return the same rows as runs."""
    if not file.removed_rows:
        return file.removed
    flags = np.zeros(file.rows, dtype=np.bool_)
    flags[removed_from(file)] = True
    return runs_of(flags)


def packed(rows: Offsets) -> str:
    """Return rows, which are in order, as text: the gap before each as 4 bytes little-endian, by zlib, in Base64."""
    gaps = np.diff(rows, prepend=-1) - 1
    return base64.b64encode(zlib.compress(gaps.astype("<u4").tobytes(), 1)).decode() if len(rows) else ""


def rows_in(runs: Sequence[RowRun]) -> Offsets:
    """Return the numbers of the rows in runs."""
    return np.concatenate([_NOTHING, *(np.arange(run.first_row, run.end_row) for run in runs)])


def runs_of(flags: NDArray[np.bool_]) -> tuple[RowRun, ...]:
    """Return the rows that are marked."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return tuple(map(RowRun, edges[::2], edges[1::2]))


_NOTHING: Offsets = np.zeros(0, dtype=np.int64)


def _unpacked(text: str, rows: int) -> Offsets:
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(text, validate=True), 4 * rows)
        found: Offsets = np.cumsum(np.frombuffer(data, dtype="<u4").astype(np.int64) + 1) - 1
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if not unpacker.eof or not len(found) or found[-1] >= rows:
        raise ValueError(f"they are not below {rows}")
    return found
