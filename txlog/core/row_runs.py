"""Sets of a file's rows, as runs `[first_row, end_row)` in order: differences, counts and positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txlog.core.records.publications import RowRun


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
