"""Which objects of a store can no reader or writer still use, and how large are they?

A dry run reports them and changes nothing. Vacuum is safe beside writers, readers, other jobs and other vacuums, and it
can be killed at any point. The transaction-state table, the chains and the grace decide what may be deleted, in the
order of `txlog.protocol.vacuum`. See PROTOCOL.md, "Clean-up", C5 to C10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core import names
from txlog.core.effects import Program
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.vacuum import Dead
from txlog.errors import (
    CorruptLogError,
    InvalidConfigurationError,
    RecordTooLargeError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.partition_loop import StoreWatch
from txlog.maintenance.workers import Here, Progress, Task, Workers
from txlog.protocol.context import Context, Views, with_views
from txlog.protocol.topics import find_topic
from txlog.protocol.vacuum import (
    Deleted,
    PartitionPlan,
    TopicFiles,
    list_files,
    list_topics,
    plan_topic,
    read_store_clock,
    read_table,
    sweep,
)
from txlog.protocol.vacuum_published import PublishRetention
from txlog.publication.catalog import view_of_catalog
from txlog.publication.expired import expired_objects
from txlog.text import count_text

STEP_TIMEOUT_MS = 3_600_000
"""A partition may have many objects to delete. A failed request is retried as everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What one vacuum did, or would do."""

    dry_run: bool
    topics: tuple[str, ...]
    partitions: int
    deleted: tuple[Deleted, ...]
    """The deleted objects. In a dry run: the objects that would be deleted."""
    waiting: tuple[Dead, ...]
    """Objects that nothing needs any more, but that stay for paused readers and writers."""
    failed: tuple[tuple[str, str], ...]
    """Topics in which nothing more was deleted, each with its error: it is damaged, or its tables cannot go on."""

    @property
    def bytes(self) -> int:
        """Size of all deleted objects."""
        return sum(each.bytes or 0 for each in self.deleted)

    def by_partition(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return deleted objects and bytes by partition. Leftovers of Spark count in partition 0."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for each in self.deleted:
            topic, _, rest = each.dead.path.partition("/")
            staged = names.parse_rows_path(rest)
            folder = names.parse_partition_folder(rest.partition("/")[0] + "/")
            tp = TopicPartition(topic, staged.partition if staged is not None else folder or 0)
            objects, size = found.get(tp, (0, 0))
            found[tp] = (objects + 1, size + (each.bytes or 0))
        return found


def vacuum(
    runtime: Runtime,
    session: Session,
    topics: Sequence[str] | None = None,
    *,
    dry_run: bool = True,
    now: bool = False,
    on_progress: Progress | None = None,
    workers: Workers | None = None,
) -> VacuumReport:
    """Delete the objects that no reader or writer can still use in `topics` (None: all topics, internal ones included).

    This process decides what is deleted; `workers` delete it (None: this process too), one partition for each task. A
    dry run needs no workers. Damage in one topic, or tables that cannot go on, do not stop the others: the report names
    it. If the call fails, the objects deleted so far stay deleted, and the next call continues.

    With `now` objects do not stay for `delete.grace.ms` and `publish.retention.ms`. Then the rules protect nobody who
    uses the store meanwhile, or who was in the middle of something: neither readers, nor writers, nor other jobs.

    Raises UnknownTopicOrPartitionError for a name that never was a topic, ClockSkewError, StorageError,
    TxlogTimeoutError.
    """
    if not dry_run:
        runtime.ensure_writable()
    session = session.with_timeout(STEP_TIMEOUT_MS)
    now_ms = session.call(
        "reading the store's clock", lambda _, views: with_views(views, read_store_clock(dry_run=dry_run))
    )
    wanted = _topics(session, topics)
    files = [_list_files(session, topic) for topic in wanted]
    table = session.call("reading the table of transactions", read_table)
    total = sum(len(each.partitions) for each in files)
    done = 0
    sweepers = Here(session) if workers is None or dry_run else workers
    watch = StoreWatch(runtime)
    deleted: list[Deleted] = []
    waiting: list[Dead] = []
    failed: list[tuple[str, str]] = []
    for each in files:
        if on_progress is not None:
            on_progress(each.topic, done, total)
        try:
            plans = session.call(
                f"reading the chains of {each.topic!r}",
                partial(
                    _plan_now if now else plan_topic,
                    files=each,
                    table=table,
                    now_ms=now_ms,
                    dry_run=dry_run,
                    publish=_publish_retention(runtime, each, now=now) if each.is_published else None,
                ),
            )
            waiting += [dead for plan in plans for dead in plan.dead if dead.waits_until_ms is not None]
            tasks = [_task(plan, dry_run) for plan in plans if plan.has_work]
            done += len(plans) - len(tasks)
            errors: list[TxlogError] = []
            for task, gone in sweepers.map(tasks):
                watch.note("publish", gone)
                if isinstance(gone, TxlogError):
                    errors.append(gone)
                    if watch.is_down:
                        break
                    continue
                deleted += gone
                done += 1
                if on_progress is not None:
                    on_progress(task.subject, done, total)
            if errors:
                raise errors[0]
        except (CorruptLogError, InvalidConfigurationError, RecordTooLargeError) as error:
            # A publication that names too many files, or a format of a later version of txlog, concern this topic
            # alone.
            failed.append((each.topic, str(error)))
        finally:
            # Views hold the rows of tails, and the next topic does not need them.
            if each.topic not in INTERNAL_TOPICS:
                session.forget([TopicPartition(each.topic, n) for n in each.partitions])
    return VacuumReport(
        dry_run=dry_run,
        topics=tuple(wanted),
        partitions=total,
        deleted=tuple(deleted),
        waiting=tuple(waiting),
        failed=tuple(failed),
    )


def _plan_now(ctx: Context, views: Views, **given: Any) -> Program[tuple[Views, tuple[PartitionPlan, ...]]]:
    return plan_topic(replace(ctx, without_grace=True), views, **given)


def _publish_retention(runtime: Runtime, files: TopicFiles, *, now: bool) -> PublishRetention:
    """Return how long the versions of a published topic are kept, by its newest settings (W45)."""
    topic = runtime.run(find_topic(files.topic))
    if topic is None:
        return PublishRetention(retention_ms=0, is_ended=True, expired=expired_objects)
    config = runtime.settings.topic_config(topic)
    retention_ms = 0 if now else config.publish_retention_ms
    return PublishRetention(
        retention_ms=retention_ms,
        is_ended=topic.deleted or not config.publish_formats,
        deleted_version=topic.number if topic.deleted and config.publish_formats else None,
        expired=partial(expired_objects, catalog=view_of_catalog(runtime, topic, retention_ms)),
    )


def _task(plan: PartitionPlan, dry_run: bool) -> Task[TopicPartition, tuple[Deleted, ...]]:
    """Return the deletion of what a plan found. A dry run only asks for sizes."""
    return Task(
        subject=plan.topic_partition,
        title=f"txlog vacuum: {plan.topic_partition}, {count_text(len(plan.dead), 'object')}",
        work=partial(_sweep, plan, dry_run),
        size=len(plan.dead),
    )


def _sweep(plan: PartitionPlan, dry_run: bool, session: Session, progress: Progress | None) -> tuple[Deleted, ...]:
    return session.with_timeout(STEP_TIMEOUT_MS).call(
        f"deleting in {plan.topic_partition}",
        lambda ctx, views: with_views(views, sweep(ctx, plan, dry_run=dry_run, sizes=True)),
    )


def _list_files(session: Session, topic: str) -> TopicFiles:
    return session.call(f"listing the files of {topic!r}", lambda _, views: with_views(views, list_files(topic)))


def _topics(session: Session, topics: Iterable[str] | None) -> list[str]:
    known = session.call("listing topics", lambda _, views: with_views(views, list_topics()))
    if topics is None:
        return list(known)
    wanted = list(dict.fromkeys(topics))
    for topic in wanted:
        if topic not in known:
            raise UnknownTopicOrPartitionError(
                f"{session.runtime.where} has no topic {topic!r}, and no deleted one of that name; "
                "`txlog topics list` shows them all"
            )
    return wanted
