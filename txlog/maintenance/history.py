"""What did maintenance do in a store?

The history has the job, the time, the process, the offsets, and the files and bytes before and after. Each job reports
its steps to a `Recorder`. When the job ends, the recorder writes them as one object (PROTOCOL.md, "History"). A run
that did nothing writes nothing. The history never makes a job fail: the work of the job is done, whether or not the
history can be written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, TypeAlias, TypeVar

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core.names import TopicPartition
from txlog.core.records import CleanupRun, CleanupStep
from txlog.errors import TxlogError
from txlog.logs import log
from txlog.maintenance.compact import Compacted
from txlog.maintenance.erase import Erased
from txlog.maintenance.merge import Merged
from txlog.maintenance.partition_loop import Outcome
from txlog.protocol import history as protocol
from txlog.protocol.retention import RetentionPlan

D = TypeVar("D", bound=Merged | RetentionPlan | None)

StepOutcome: TypeAlias = Literal["published", "discarded", "deleted", "failed"]

MAX_STEPS = 10_000
"""Steps of one run that are kept, failed ones first. So the record stays small, also if a run covers a large store."""
_MAX_MESSAGE = 2_000
_MAX_READ = 256
"""Runs that are read at once."""
_LOG = logging.getLogger(__name__)


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run, and the run that it belongs to."""

    run_id: str
    by: str
    step: CleanupStep


class Recorder:
    """Collect the steps of one run of a job."""

    def __init__(self, runtime: Runtime, job: str) -> None:
        self.job = job
        self._clock = runtime.clock
        self.started_at = self._clock.now_ms()
        self.steps: list[CleanupStep] = []
        self._began_at = self.started_at

    @contextlib.contextmanager
    def running(self, job: str) -> Iterator[None]:
        """Give the steps inside the `with` block this job's name, if the run consists of several jobs."""
        before, self.job = self.job, job
        self._began_at = self._clock.now_ms()
        try:
            yield
        finally:
            self.job = before

    @contextlib.contextmanager
    def over(self, tp: TopicPartition, job: str | None = None) -> Iterator[None]:
        """Time the work on one partition: steps that are added inside began here.

        A TxlogError is recorded as a failed step and raised again.
        """
        with self.running(job or self.job):
            try:
                yield
            except TxlogError as error:
                self.add(tp, "failed", message=str(error))
                raise

    def add(
        self,
        tp: TopicPartition,
        outcome: StepOutcome,
        *,
        message: str = "",
        **figures: int,
    ) -> None:
        """Record a step on a partition, or that it failed. `figures` are the numbers of a CleanupStep."""
        now_ms = self._clock.now_ms()
        self.steps.append(
            CleanupStep(
                job=self.job,
                topic=tp.topic,
                partition=tp.partition,
                started_at=min(self._began_at, now_ms),
                ended_at=now_ms,
                outcome=outcome,
                message=message[:_MAX_MESSAGE],
                **figures,
            )
        )
        self._began_at = now_ms

    def add_outcome(self, tp: TopicPartition, outcome: Merged | RetentionPlan | TxlogError | None) -> None:
        """Record what a verb did to a partition. What it left alone is not recorded."""
        match outcome:
            case TxlogError():
                self.add(tp, "failed", message=str(outcome))
            case Merged():
                self.add(
                    tp,
                    "published" if outcome.took_effect else "discarded",
                    base_offset=outcome.base_offset,
                    end_offset=outcome.end_offset,
                    generation=outcome.generation,
                    input_files=outcome.files_before,
                    output_files=outcome.files,
                    rows_read=_rows_read(outcome),
                    rows_written=outcome.rows,
                    bytes_read=outcome.bytes_before,
                    bytes_written=outcome.bytes,
                )
            case RetentionPlan() if outcome.moves:
                self.add(tp, "deleted", base_offset=outcome.log_start_before, end_offset=outcome.log_start_after)

    def follow(self, outcomes: Iterable[Outcome[D]]) -> Iterator[Outcome[D]]:
        """Yield what a verb yields, and record it."""
        for tp, outcome in outcomes:
            self.add_outcome(tp, outcome)
            yield tp, outcome


@contextlib.contextmanager
def recorded(runtime: Runtime, job: str) -> Iterator[Recorder]:
    """Record one run of a job. At the end the history holds all steps that were recorded, also if the job failed.

        with recorded(runtime, "merge") as history:
            made, failed = gather(history.follow(merge_partitions(session, partitions, policy)))

    Without steps nothing is written. If the history cannot be written, a warning is logged and no error is raised.
    """
    recorder = Recorder(runtime, job)
    try:
        yield recorder
    finally:
        if recorder.steps:
            _write(runtime, recorder)


def record(runtime: Runtime, job: str, outcomes: Iterable[Outcome[D]]) -> Iterator[Outcome[D]]:
    """Yield what a verb yields, and record it as one run of `job`."""
    with recorded(runtime, job) as history:
        yield from history.follow(outcomes)


def read_history(
    runtime: Runtime, *, topics: Collection[str] = (), jobs: Collection[str] = (), limit: int | None = None
) -> list[HistoryRow]:
    """Return the newest `limit` steps (None: all) of these topics and jobs (empty: all), newest first.

    Costs one LIST, and one GET for each run that is read. Raises CorruptRecordError with the name of a damaged run.
    """
    left = runtime.run(protocol.list_runs())[::-1]
    rows: list[HistoryRow] = []
    while left and (limit is None or len(rows) < limit):
        window = min(_MAX_READ, len(left) if limit is None else max(1, limit - len(rows)))
        for run in runtime.run(protocol.read_runs(left[:window])):
            rows += [
                HistoryRow(run_id=run.run_id, by=run.by, step=step)
                for step in reversed(run.steps)
                if (not topics or step.topic in topics) and (not jobs or step.job in jobs)
            ]
        left = left[window:]
    return rows if limit is None else rows[:limit]


def _rows_read(made: Merged) -> int:
    if isinstance(made, Compacted):
        return made.rows_before
    return made.rows + (made.rows_erased if isinstance(made, Erased) else 0)


def _write(runtime: Runtime, recorder: Recorder) -> None:
    # The sort is stable. Failed steps come first only if there are too many steps to keep.
    steps = recorder.steps
    if len(steps) > MAX_STEPS:
        steps = sorted(steps, key=lambda step: step.outcome != "failed")[:MAX_STEPS]
    run = CleanupRun(
        run_id=runtime.ids.new_id(),
        job=recorder.job,
        by=f"{socket.gethostname()}:{os.getpid()}",
        started_at=recorder.started_at,
        ended_at=runtime.clock.now_ms(),
        steps=tuple(steps),
    )
    try:
        runtime.run(protocol.put_run(runtime.context(), run))
    except TxlogError as error:
        text = "%s: what %s did is not in the history: %s"
        log(_LOG, logging.WARNING, "history_failed", text, runtime.where, recorder.job, error, store=runtime.where)
