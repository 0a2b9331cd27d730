"""How does a Spark cluster delete objects that no reader or writer can still use?

    python -m pyspark_txlog.jobs.vacuum --store s3://bucket/log --delete

or the file itself under spark-submit. It does the same as `txlog vacuum`, with the same result. The driver finds the
dead objects, in the only safe order. The executors delete them, with one task for each partition.
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
from txlog.errors import TxlogError
from txlog.maintenance.history import recorded
from txlog.maintenance.vacuum import STEP_TIMEOUT_MS, VacuumReport, sweep_partition, vacuum
from txlog.protocol.vacuum import Deleted, PartitionPlan
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def vacuum_store(spark: SparkSession, store: Store, topics: Sequence[str] | None = None) -> VacuumReport:
    """Run `txlog.maintenance.vacuum.vacuum` of `topics` (None: all), deleting on Spark's executors.

    Raises what that raises. If objects of a partition could not be deleted, the error is raised at the end of its
    topic.
    """
    runtime = store.runtime

    def sweeps(plans: Sequence[PartitionPlan]) -> Iterator[tuple[PartitionPlan, tuple[Deleted, ...]]]:
        busy = [plan for plan in plans if plan.has_work]
        yield from ((plan, ()) for plan in plans if not plan.has_work)
        # The most objects first, because a long task that starts last would run alone at the end.
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
    topic: Annotated[list[str] | None, typer.Argument(help="Topics (default: all, including txlog's own).")] = None,
    delete: Annotated[bool, typer.Option(help="Delete the objects; otherwise only print them.")] = False,
    objects: Annotated[bool, typer.Option(help="Print every object, and why it is dead.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Delete objects that no reader or writer can still use, one partition for each task. A dry run, unless --delete is given."""
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
    return sweep_partition(read_session(runtime).with_timeout(STEP_TIMEOUT_MS), plan)


def _title(plan: PartitionPlan) -> str:
    return f"txlog vacuum: {plan.topic_partition}, {count_text(len(plan.dead), 'object')}"


if __name__ == "__main__":
    typer.run(main)
