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


def append(table: str, rows: pa.Table, options: dict[str, str] | None = None) -> bool:
    """Append by path, as one commit. Return whether delta-rs could commit, with its own retries."""
    deltalake = package()
    try:
        deltalake.write_deltalake(table, rows, mode="append", storage_options=options)
    except deltalake.exceptions.CommitFailedError:
        return False
    return True


@contextmanager
def appends(place: Place, rows: pa.Table, *, times: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of appends in this process."""
    package()
    call = partial(append, str(place.folder / "table"), rows)
    yield partial(timed, call, place.sized(times, least=3))


@contextmanager
def crew_of_appends(place: Place, rows: pa.Table, *, processes: int, seconds: float) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes that append to one table."""
    package()
    table = place.folder / "table"
    append(str(table), rows)
    with crew(partial(_member, table, rows), processes, max(seconds * place.scale, 0.5)) as turn:
        yield turn


@contextmanager
def _member(table: Path, rows: pa.Table, number: int) -> Iterator[tuple[Call, Callable[[], int]]]:
    yield partial(append, str(table), rows), no_requests
