"""How are the objects that nothing needs deleted from a Spark cluster?

    python -m pyspark_txlog.jobs.vacuum --store s3://bucket/log --delete

or the file itself under spark-submit. As `txlog vacuum`, and with its result: the driver finds out what is dead, in the one
order that is safe, and the executors delete it, a partition a task.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, running
from pyspark_txlog.jobs.partition_jobs import run_tasks
from pyspark_txlog.messages import say
from txlog.cli.errors import LOOK
from txlog.cli.output import Output, OutputFormat
from txlog.cli.vacuum import show_vacuum, vacuum_document
from txlog.client.reading import read_session
from txlog.client.runtime import Runtime
from txlog.client.store import Store
from txlog.core.words import bytes_text, count_text
from txlog.errors import TxlogError
from txlog.maintenance.history import recorded
from txlog.maintenance.vacuum import STEP_TIMEOUT_MS, VacuumReport, sweep_partition, vacuum
from txlog.protocol.vacuum import Deleted, PartitionPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def vacuum_store(spark: SparkSession, store: Store, topics: Sequence[str] | None = None) -> VacuumReport:
    """`txlog.maintenance.vacuum.vacuum` of `topics` (None: all), which deletes, on Spark's executors.

    Raises what that raises; a partition whose objects could not be deleted is raised at the end of its topic.
    """
    runtime = store.runtime

    def sweeps(plans: Sequence[PartitionPlan]) -> Iterator[tuple[PartitionPlan, tuple[Deleted, ...]]]:
        busy = [plan for plan in plans if plan.has_work]
        yield from ((plan, ()) for plan in plans if not plan.has_work)
        # The most objects first: a task that begins last and is long would be waited for alone.
        busy.sort(key=lambda plan: len(plan.dead), reverse=True)
        failed: list[TxlogError] = []
        for plan, outcome in run_tasks(spark, runtime, busy, _sweep, title=_title):
            if isinstance(outcome, TxlogError):
                failed.append(outcome)
                continue
            size = sum(each.bytes or 0 for each in outcome)
            say(f"vacuum: {plan.topic_partition}: {count_text(len(outcome), 'object')}, {bytes_text(size)}")
            yield plan, outcome
        if failed:
            raise failed[0]

    with recorded(runtime, "vacuum") as history:
        report = vacuum(runtime, read_session(runtime), topics, dry_run=False, sweeps=sweeps)
        for tp, (count, size) in report.by_partition().items():
            history.add(tp, "deleted", deleted_objects=count, deleted_bytes=size)
    return report


def main(
    store: StoreOption = None,
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics; all, txlog's own included, if none is named.")
    ] = None,
    delete: Annotated[bool, typer.Option(help="Do it; else only say what would be deleted.")] = False,
    objects: Annotated[bool, typer.Option(help="Name every object, and why.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete objects that nothing can need any more, a partition a task. A dry run, unless --delete is given."""
    out = Output(output)
    with running("vacuum") as job:
        opened = job.open(store, storage_option)
        runtime = opened.runtime
        if delete:
            report = vacuum_store(job.session(conf), opened, topic or None)
        else:
            report = vacuum(runtime, read_session(runtime), topic or None)
        document = vacuum_document(runtime.where, report)
        out.show(document, lambda out: show_vacuum(out, document, objects=objects))
        if report.failed:
            sys.exit(LOOK)


def _sweep(runtime: Runtime, plan: PartitionPlan) -> tuple[Deleted, ...]:
    return sweep_partition(read_session(runtime).patient(STEP_TIMEOUT_MS), plan)


def _title(plan: PartitionPlan) -> str:
    return f"txlog vacuum: {plan.topic_partition}, {count_text(len(plan.dead), 'object')}"


if __name__ == "__main__":
    typer.run(main)
