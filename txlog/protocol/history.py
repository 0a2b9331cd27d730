"""How does a maintenance job record what it did, and how is that found again?

Each run of a job writes one object in `__maintenance/` when it has ended (PROTOCOL.md, "History"). No reader, writer or
job depends on it. So it is written last, and the oldest objects are deleted when there are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """A run in the history, as its name shows it."""

    started_ms: int
    run_id: str

    @property
    def path(self) -> str:
        return MAINTENANCE_FOLDER + names.history_name(self.started_ms, self.run_id)


def put_run(ctx: Context, run: CleanupRun, keep: int = KEPT_RUNS) -> Program[None]:
    """Add a run to the history, and delete the oldest beyond `keep`. Costs one PUT and one LIST."""
    path = RunName(started_ms=run.started_at, run_id=run.run_id).path
    yield from put_pure(ctx, path, envelope.encode(run))
    listed = yield from list_runs()
    yield from many([delete(name.path) for name in listed[: max(0, len(listed) - keep)]])


def list_runs() -> Program[list[RunName]]:
    """Return the existing runs, oldest first."""
    listed: Sequence[str] = yield List(MAINTENANCE_FOLDER)
    found = [parsed for name in listed if (parsed := names.parse_history_name(name)) is not None]
    return [RunName(started_ms=started_ms, run_id=run_id) for started_ms, run_id in found]


def read_runs(wanted: Sequence[RunName]) -> Program[list[CleanupRun]]:
    """Return the runs of these names, in order, without those that were deleted.

    Raises CorruptRecordError naming a damaged one.
    """
    found = yield from many([get(name.path) for name in wanted])
    return [_decoded(name, data) for name, data in zip(wanted, found, strict=True) if data is not None]


def _decoded(name: RunName, data: bytes) -> CleanupRun:
    run, _ = envelope.decode(data, CleanupRun, name.path)
    if (run.started_at, run.run_id) != (name.started_ms, name.run_id):
        raise CorruptRecordError(
            f"{name.path}: it says that it is run {run.run_id} of {run.started_at}; an object was swapped or copied. "
            "Nothing depends on it: delete it"
        )
    return run
