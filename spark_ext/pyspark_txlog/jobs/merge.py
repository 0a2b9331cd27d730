"""How are the small files of many partitions merged on a Spark cluster?

    python -m pyspark_txlog.jobs.merge --store s3://bucket/log orders --sort carrier

or the file itself under spark-submit. It does the same as `txlog merge`, with the same result. The driver plans every
partition and publishes each run as soon as it is copied. The executors copy the rows, with one task for each run, so a
large partition uses many tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, Topics, running
from pyspark_txlog.jobs.partition_jobs import Failures, run_tasks
from pyspark_txlog.messages import say
from txlog.cli.merge import merge_document, planned_document, show_merges
from txlog.cli.output import Output, OutputFormat
from txlog.cli.partitions import choose_partitions
from txlog.client.reading import MAX_RELISTS, read_session
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.client.store import Store
from txlog.core.cleaning import DEFAULT_TARGET_BYTES, PLAIN, FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.records import IndexedFile
from txlog.errors import MissingObjectError, TxlogError
from txlog.maintenance.history import recorded
from txlog.maintenance.merge import Merged, check_layout, copy_rows, plan_partition, publish_merge
from txlog.protocol.clean import Merge
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """The rows of one run, for an executor to copy."""

    merge: Merge
    layout: FileLayout


def merge_partitions(
    spark: SparkSession,
    store: Store,
    partitions: Iterable[TopicPartition],
    policy: MergePolicy | None = None,
    layout: FileLayout = PLAIN,
) -> tuple[tuple[Merged, ...], tuple[TxlogError, ...]]:
    """Merge the files in `partitions` that are worth it; return the runs that were made and the errors of the others.

    An error in one run, such as a damaged input, does not affect the others. If the store itself fails, the remaining
    runs are skipped. Prints what it did to the driver's console, and records it in the store's history.
    """
    runtime = store.runtime
    session = read_session(runtime)
    left = list(partitions)
    _check_topics(runtime, left, layout)
    made: list[Merged] = []
    with recorded(runtime, "merge") as history, Failures(runtime, history) as failed:
        for attempt in range(MAX_RELISTS + 1):
            merges = [merge for tp in left for merge in _planned(session, tp, policy or MergePolicy(), failed)]
            again: set[TopicPartition] = set()
            for merge, copied in _copied(spark, runtime, merges, layout):
                tp = merge.topic_partition
                if isinstance(copied, TxlogError):
                    done: Merged | TxlogError = copied
                else:
                    unique, file = copied
                    done = failed.attempt(tp, partial(publish_merge, session, merge.written_as(unique), file))
                if isinstance(done, MissingObjectError) and attempt < MAX_RELISTS:
                    # Another maintenance job was faster, and vacuum deleted the objects. A new plan contains what is
                    # left to do.
                    again.add(tp)
                elif isinstance(done, TxlogError):
                    failed.add(tp, done)
                else:
                    made.append(done)
                    history.add_merged(done)
                    _say_done(done, len(made), len(merges))
            session.forget(left)
            left = sorted(again)
            if not left:
                break
    made.sort(key=lambda each: (each.topic_partition, each.base_offset))
    return tuple(made), tuple(failed.errors)


def main(
    store: StoreOption = None,
    topic: Topics = None,
    target_bytes: Annotated[
        int,
        typer.Option(min=1, help="Target size of a merged file. Files of at least half that size are not rewritten."),
    ] = DEFAULT_TARGET_BYTES,
    sort: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Sort the rows of each row group by this column.")
    ] = None,
    bloom: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Write Bloom filters of this column.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only print what would be merged; write nothing.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Merge the small files of topics into large ones, with one task for each run of segments."""
    out = Output(output)
    with running("merge") as job:
        layout = FileLayout(sort=tuple(sort or ()), bloom=tuple(bloom or ()))
        policy = MergePolicy(target_bytes=target_bytes)
        opened = job.open(store, storage_option)
        partitions = choose_partitions(opened, topic or ())
        failed: tuple[TxlogError, ...] = ()
        if dry_run:
            _check_topics(opened.runtime, partitions, layout)
            session = read_session(opened.runtime)
            documents = [planned_document(each) for tp in partitions for each in plan_partition(session, tp, policy)]
        else:
            made, failed = merge_partitions(job.session(conf), opened, partitions, policy, layout)
            documents = [merge_document(each) for each in made]
        out.show(documents, lambda out: show_merges(out, documents, dry_run=dry_run, failed=len(failed)))
        job.raise_first(failed)


def _copied(
    spark: SparkSession, runtime: Runtime, merges: Sequence[Merge], layout: FileLayout
) -> Iterable[tuple[Merge, tuple[str, IndexedFile | None] | TxlogError]]:
    """Yield each of `merges` with the suffix under which its rows were copied, and their file."""
    by_unique = {merge.run.unique: merge for merge in merges}
    # The largest first, because a large run that starts last would run alone at the end.
    order = sorted(merges, key=lambda merge: merge.bytes_before, reverse=True)
    tasks = [_Copy(merge=merge.rows_only(), layout=layout) for merge in order]
    for task, outcome in run_tasks(spark, runtime, tasks, _copy, title=_title):
        yield by_unique[task.merge.run.unique], outcome


def _copy(runtime: Runtime, task: _Copy) -> tuple[str, IndexedFile | None]:
    # If Spark repeats a task or runs it twice, each attempt must write under its own name.
    unique = runtime.ids.new_id()
    return unique, copy_rows(runtime, task.merge.written_as(unique), layout=task.layout)


def _title(task: _Copy) -> str:
    merge = task.merge
    return f"txlog merge: {merge.topic_partition}, offsets {merge.run.base_offset} to {merge.run.end_offset - 1}"


def _check_topics(runtime: Runtime, partitions: Iterable[TopicPartition], layout: FileLayout) -> None:
    for topic in {tp.topic for tp in partitions}:
        check_layout(runtime, runtime.topic(topic), layout)


def _planned(session: Session, tp: TopicPartition, policy: MergePolicy, failed: Failures) -> tuple[Merge, ...]:
    found = failed.attempt(tp, partial(plan_partition, session, tp, policy), only_reads=True)
    if isinstance(found, TxlogError):
        failed.add(tp, found)
        return ()
    return found


def _say_done(merged: Merged, number: int, of: int) -> None:
    offsets = f"{merged.topic_partition}, offsets {merged.base_offset} to {merged.end_offset - 1}"
    before = f"{count_text(merged.files_before, 'file')}, {bytes_text(merged.bytes_before)}"
    after = f"{bytes_text(merged.bytes)}" if merged.took_effect else "nothing: another clean-up was faster"
    say(f"merge {number:,} of {of:,}: {offsets}: {before} into {after}")


if __name__ == "__main__":
    typer.run(main)
