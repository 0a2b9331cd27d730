"""delta-rs (`deltalake`, extra `bench`): Delta tables without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import NotAvailable, Place, Samples
from benchmarks.timing import Call, crew, no_requests, timed


def package() -> Any:
    """Return the package `deltalake`; raise NotAvailable if it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise NotAvailable("needs the package deltalake") from error
    return deltalake


def append(table: Any, rows: pa.Table, options: dict[str, str] | None = None) -> bool:
    """Append as one commit, by path or by an open handle. Return whether delta-rs could commit, with its retries."""
    deltalake = package()
    try:
        deltalake.write_deltalake(table, rows, mode="append", storage_options=options)
    except deltalake.exceptions.CommitFailedError:
        return False
    return True


@contextmanager
def appends(place: Place, rows: pa.Table, *, times: int, handle: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of appends in this process, by an open handle or by path."""
    package()
    table = place.folder / "table"
    append(str(table), rows)
    yield partial(timed, partial(append, _given(table, handle), rows), place.sized(times, least=3))


@contextmanager
def crew_of_appends(
    place: Place, rows: pa.Table, *, processes: int, seconds: float, handle: bool
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes that append to one table, each by its own handle or by path."""
    package()
    table = place.folder / "table"
    append(str(table), rows)
    with crew(partial(_member, table, rows, handle), processes, max(seconds * place.scale, 0.5)) as turn:
        yield turn


@contextmanager
def _member(table: Path, rows: pa.Table, handle: bool, number: int) -> Iterator[tuple[Call, Callable[[], int]]]:
    yield partial(append, _given(table, handle), rows), no_requests


def _given(table: Path, handle: bool) -> Any:
    return package().DeltaTable(str(table)) if handle else str(table)
