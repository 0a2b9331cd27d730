"""How does a Spark cluster remove rows beyond the retention of their topics?

    python -m pyspark_txlog.jobs.retention --store s3://bucket/log --delete

or the file itself under spark-submit. It does the same as `txlog retention`, with the same result and one task for each
partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, Topics, running
from pyspark_txlog.jobs.partition_jobs import Failures, run_tasks
from pyspark_txlog.messages import say
from txlog.cli.output import Output, OutputFormat
from txlog.cli.partitions import choose_partitions
from txlog.cli.retention import retention_document, show_retention
from txlog.client.reading import read_session
from txlog.client.runtime import Runtime
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.history import recorded
from txlog.maintenance.retention import Retained, policy_of, retain_partition
from txlog.protocol.retention import RetentionPolicy
from txlog.text import count_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One partition, and the retention settings of its topic."""

    topic_partition: TopicPartition
    policy: RetentionPolicy
    delete: bool


def retain_partitions(
    spark: SparkSession, store: Store, partitions: Iterable[TopicPartition], *, delete: bool = False
) -> tuple[tuple[Retained, ...], tuple[TxlogError, ...]]:
    """Remove rows beyond the retention of the topics of `partitions`; return what was removed or held, and the errors.

    Without `delete` nothing is removed, and the result contains what would be removed. Raises
    UnknownTopicOrPartitionError, InvalidRequestError for an internal topic.
    """
    runtime = store.runtime
    wanted = list(partitions)
    policies = {tp.topic: policy_of(runtime, tp.topic) for tp in wanted}
    tasks = [
        _Task(topic_partition=tp, policy=policy, delete=delete)
        for tp in wanted
        if (policy := policies[tp.topic]) is not None
    ]
    found: list[Retained] = []
    with recorded(runtime, "retention") as history, Failures(runtime, history) as failed:
        for task, outcome in run_tasks(spark, runtime, tasks, _retain, title=_title):
            tp = task.topic_partition
            if isinstance(outcome, TxlogError):
                failed.add(tp, outcome)
            elif outcome is not None:
                found.append(outcome)
                if delete and outcome.moves:
                    history.add_retained(outcome)
                    say(f"retention: {tp}: {count_text(outcome.rows, 'row')} removed, {outcome.setting}")
    found.sort(key=lambda each: each.topic_partition)
    return tuple(found), tuple(failed.errors)


def main(
    store: StoreOption = None,
    topic: Topics = None,
    delete: Annotated[bool, typer.Option(help="Remove the rows; otherwise only print what would be removed.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Remove rows beyond the retention time or size of their topics. This is a dry run, unless --delete is given."""
    out = Output(output)
    with running("retention") as job:
        opened = job.open(store, storage_option)
        partitions = choose_partitions(opened, topic or ())
        found, failed = retain_partitions(job.session(conf), opened, partitions, delete=delete)
        documents = [retention_document(each, executed=delete) for each in found]
        out.show(documents, lambda out: show_retention(out, documents, len(partitions), executed=delete))
        job.raise_first(failed)


def _retain(runtime: Runtime, task: _Task) -> Retained | None:
    return retain_partition(read_session(runtime), task.topic_partition, task.policy, dry_run=not task.delete)


def _title(task: _Task) -> str:
    return f"txlog retention: {task.topic_partition}"


if __name__ == "__main__":
    typer.run(main)
