"""How does a maintenance job record what it did, and how is that found again?

Each run of a job writes one object in `__maintenance/` when it has ended (PROTOCOL.md, "History"). No reader, writer or
job depends on it. So it is written last, and the oldest objects are deleted when there are too many.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.core import envelope, names
from txlog.core.effects import List, Program
from txlog.core.names import MAINTENANCE_FOLDER
from txlog.core.records import CleanupRun
from txlog.errors import CorruptRecordError
from txlog.protocol.context import Context
from txlog.protocol.put import put_pure
from txlog.protocol.requests import delete, get, many

KEPT_RUNS = 2_000
"""Runs that are kept: two pages of a LIST."""


def put_run(ctx: Context, run: CleanupRun, keep: int = KEPT_RUNS) -> Program[None]:
    """Add a run to the history, and delete the oldest beyond `keep`. Costs one PUT and one LIST."""
    yield from put_pure(ctx, _path(run.started_at, run.run_id), envelope.encode(run))
    listed = yield from list_runs()
    yield from many([delete(path) for path in listed[: max(0, len(listed) - keep)]])


def list_runs() -> Program[list[str]]:
    """Return the paths of the existing runs, oldest first."""
    listed: Sequence[str] = yield List(MAINTENANCE_FOLDER)
    return [MAINTENANCE_FOLDER + name for name in listed if names.parse_history_name(name) is not None]


def read_runs(paths: Sequence[str]) -> Program[list[CleanupRun]]:
    """Return the runs at these paths, in order, without those that were deleted.

    Raises CorruptRecordError naming a damaged one.
    """
    found = yield from many([get(path) for path in paths])
    return [_decoded(path, data) for path, data in zip(paths, found, strict=True) if data is not None]


def _decoded(path: str, data: bytes) -> CleanupRun:
    run, _ = envelope.decode(data, CleanupRun, path)
    if path != _path(run.started_at, run.run_id):
        raise CorruptRecordError(
            f"{path}: it says that it is run {run.run_id} of {run.started_at}; an object was swapped or copied. "
            "Nothing depends on it: delete it"
        )
    return run


def _path(started_ms: int, run_id: str) -> str:
    return MAINTENANCE_FOLDER + names.history_name(started_ms, run_id)
