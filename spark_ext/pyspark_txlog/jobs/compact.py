"""How are the keyed topics of a store compacted on a Spark cluster?

    python -m pyspark_txlog.jobs.compact --store s3://bucket/log users

or the file itself under spark-submit. It does the same as `txlog compact`, with the same result. A pass over one
partition is one task, because one process must hold all keys of a partition in memory. The driver plans and publishes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, running
from pyspark_txlog.jobs.partition_jobs import Failures, run_tasks
from pyspark_txlog.messages import say
from txlog.cli.compact import (
    compact_document,
    compaction_policies,
    planned_document,
    show_compactions,
)
from txlog.cli.output import Output, OutputFormat
from txlog.cli.partitions import choose_partitions
from txlog.client.reading import MAX_RELISTS, read_session
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.client.store import Store
from txlog.core.cleaning import DEFAULT_MAX_KEYS
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TopicPartition
from txlog.errors import MissingObjectError, TxlogError
from txlog.maintenance.compact import (
    Compacted,
    Copied,
    cleanable_part,
    copy_survivors,
    plan_partition,
    publish_compaction,
)
from txlog.maintenance.history import recorded
from txlog.maintenance.users_topics import refuse_internal
from txlog.protocol.compact import CompactionPlan
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact_partitions(
    spark: SparkSession, store: Store, policies: Mapping[TopicPartition, CompactionPolicy]
) -> tuple[tuple[Compacted, ...], tuple[TxlogError, ...]]:
    """Compact each partition by its policy, in as many passes as are due; return the passes and the errors of the
    others.

    An error in one partition does not affect the others. If the store itself fails, the remaining partitions are
    skipped. Prints what it did to the driver's console, and records it in the store's history.
    """
    runtime = store.runtime
    session = read_session(runtime)
    made: list[Compacted] = []
    left = dict.fromkeys(policies, 0)
    """Partitions that may have more to do, and how often in a row one of their objects was missing."""
    with recorded(runtime, "compact") as history, Failures(runtime, history) as failed:
        while left:
            plans = [plan for tp in left if (plan := _planned(session, tp, policies[tp], failed)) is not None]
            # The largest first, because a large pass that starts last would run alone at the end.
            plans.sort(key=lambda plan: plan.cleanable.clean_bytes + plan.cleanable.dirty_bytes, reverse=True)
            again: dict[TopicPartition, int] = {}
            for plan, copied in run_tasks(spark, runtime, plans, _copy, title=_title):
                tp = plan.topic_partition
                if isinstance(copied, TxlogError):
                    done: Compacted | TxlogError = copied
                else:
                    done = failed.attempt(tp, partial(publish_compaction, session, plan, copied))
                if isinstance(done, MissingObjectError) and left[tp] < MAX_RELISTS:
                    # Another maintenance job was faster, and vacuum deleted the objects. A new plan contains what is
                    # left to do.
                    again[tp] = left[tp] + 1
                elif isinstance(done, TxlogError):
                    failed.add(tp, done)
                else:
                    made.append(done)
                    history.add_compacted(done)
                    _say_done(done)
                    if done.took_effect:
                        again[tp] = 0
            session.forget(list(left))
            left = again
    made.sort(key=lambda each: (each.topic_partition, each.generation))
    return tuple(made), tuple(failed.errors)


def main(
    store: StoreOption = None,
    topic: Annotated[
        list[str] | None, typer.Argument(help="Topics (default: every topic with cleanup.policy=compact).")
    ] = None,
    min_cleanable_dirty_ratio: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Which part must not have been compacted yet; else the topic's setting."),
    ] = None,
    max_keys: Annotated[
        int, typer.Option(min=1, help="Keys that a task holds in memory, 24 bytes each; more keys need more passes.")
    ] = DEFAULT_MAX_KEYS,
    dry_run: Annotated[bool, typer.Option(help="Only print how much there is to do; write nothing.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Keep the latest committed row of each key, with one task for each partition."""
    out = Output(output)
    with running("compact") as job:
        refuse_internal(topic or (), "compacted")
        opened = job.open(store, storage_option)
        policies = compaction_policies(
            opened.runtime,
            choose_partitions(opened, topic or ()),
            are_named=bool(topic),
            min_cleanable_dirty_ratio=min_cleanable_dirty_ratio,
            max_keys=max_keys,
        )
        failed: tuple[TxlogError, ...] = ()
        session = read_session(opened.runtime)
        if dry_run:
            documents = [planned_document(tp, cleanable_part(session, tp, policy)) for tp, policy in policies.items()]
        else:
            made, failed = compact_partitions(job.session(conf), opened, policies)
            documents = [compact_document(each) for each in made]
        waiting = [] if documents or failed else [cleanable_part(session, tp, each) for tp, each in policies.items()]
        out.show(
            documents,
            lambda out: show_compactions(
                out, documents, partitions=len(policies), dry_run=dry_run, failed=len(failed), waiting=waiting
            ),
        )
        job.raise_first(failed)


def _copy(runtime: Runtime, plan: CompactionPlan) -> Copied:
    # If Spark repeats a task or runs it twice, each attempt must write under its own name.
    return copy_survivors(runtime, replace(plan, unique=runtime.ids.new_id()))


def _title(plan: CompactionPlan) -> str:
    names = plan.cleanable.names
    return f"txlog compact: {plan.topic_partition}, offsets {names[0].base_offset} to {names[-1].end_offset - 1}"


def _planned(session: Session, tp: TopicPartition, policy: CompactionPolicy, failed: Failures) -> CompactionPlan | None:
    found = failed.attempt(tp, partial(plan_partition, session, tp, policy), only_reads=True)
    if isinstance(found, TxlogError):
        failed.add(tp, found)
        return None
    return found


def _say_done(done: Compacted) -> None:
    offsets = f"{done.topic_partition}, offsets {done.base_offset} to {done.end_offset - 1}"
    before = f"{count_text(done.rows_before, 'row')}, {bytes_text(done.bytes_before)}"
    after = f"{count_text(done.rows, 'row')}, {bytes_text(done.bytes)}"
    say(f"compact {offsets}: {before} into {after if done.took_effect else 'nothing: another clean-up was faster'}")


if __name__ == "__main__":
    typer.run(main)
