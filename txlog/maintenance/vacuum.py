"""Which objects of a store can no reader or writer still use, and how large are they?

A dry run reports them and changes nothing. Vacuum is safe beside writers, readers, other jobs and other vacuums, and it
can be killed at any point. The transaction-state table, the chains and the grace decide what may be deleted, in the
order of `txlog.protocol.vacuum`. See PROTOCOL.md, "Clean-up", C5 to C10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.core import names
from txlog.core.effects import Program
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.core.vacuum import NOT_KNOWN_YET, Dead
from txlog.errors import CorruptLogError, TxlogError, UnknownTopicOrPartitionError
from txlog.maintenance.partition_loop import StoreWatch
from txlog.maintenance.workers import Here, Progress, Task, Workers
from txlog.protocol.context import Context, Views
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
from txlog.text import count_text

STEP_TIMEOUT_MS = 3_600_000
"""A partition may have many objects to delete. A failed request is retried as everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumedObject:
    """An object that was deleted, or would be."""

    path: str
    """Path below the store's root."""
    kind: str
    why: str
    bytes: int | None
    """None if the object did not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingObject:
    """An object that nothing needs any more, but that stays for paused readers and writers."""

    path: str
    kind: str
    why: str
    until_ms: int | None
    """`delete.grace.ms` after it was superseded. None if that time begins only with a vacuum that deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTotal:
    """Objects of one kind that are deleted for the same reason."""

    kind: str
    why: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTopic:
    """A damaged topic, in which nothing was deleted."""

    topic: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumReport:
    """What one vacuum did, or would do."""

    dry_run: bool
    topics: tuple[str, ...]
    partitions: int
    deleted: tuple[VacuumedObject, ...]
    """The deleted objects. In a dry run: the objects that would be deleted."""
    waiting: tuple[WaitingObject, ...]
    failed: tuple[FailedTopic, ...]

    @property
    def bytes(self) -> int:
        """Size of all deleted objects."""
        return sum(each.bytes or 0 for each in self.deleted)

    def by_partition(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return deleted objects and bytes by partition. Leftovers of Spark count in partition 0."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for each in self.deleted:
            topic, _, rest = each.path.partition("/")
            staged = names.parse_rows_path(rest)
            folder = names.parse_partition_folder(rest.partition("/")[0] + "/")
            tp = TopicPartition(topic, staged.partition if staged is not None else folder or 0)
            objects, size = found.get(tp, (0, 0))
            found[tp] = (objects + 1, size + (each.bytes or 0))
        return found

    def totals(self) -> tuple[KindTotal, ...]:
        """Return the totals by kind and reason, the most bytes first."""
        found: dict[tuple[str, str], tuple[int, int]] = {}
        for each in self.deleted:
            objects, size = found.get((each.kind, each.why), (0, 0))
            found[each.kind, each.why] = (objects + 1, size + (each.bytes or 0))
        made = [
            KindTotal(kind=kind, why=why, objects=objects, bytes=size) for (kind, why), (objects, size) in found.items()
        ]
        return tuple(sorted(made, key=lambda each: (-each.bytes, each.kind, each.why)))


def vacuum(
    runtime: Runtime,
    session: Session,
    topics: Sequence[str] | None = None,
    *,
    dry_run: bool = True,
    on_progress: Progress | None = None,
    workers: Workers | None = None,
) -> VacuumReport:
    """Delete the objects that no reader or writer can still use in `topics` (None: all topics, internal ones included).

    This process decides what is deleted; `workers` delete it (None: this process too), one partition for each task. A
    dry run needs no workers. Damage in one topic does not stop the others: the report names it. If the call fails, the
    objects deleted so far stay deleted, and the next call continues.

    Raises UnknownTopicOrPartitionError for a name that never was a topic, ClockSkewError, StorageError,
    TxlogTimeoutError.
    """
    if not dry_run:
        runtime.ensure_writable()
    session = session.with_timeout(STEP_TIMEOUT_MS)
    now_ms = _store_clock(session, dry_run)
    wanted = _topics(session, topics)
    files = [_list_files(session, topic) for topic in wanted]
    table = session.call("reading the table of transactions", read_table)
    total = sum(len(each.partitions) for each in files)
    done = 0
    sweepers = Here(session) if workers is None or dry_run else workers
    watch = StoreWatch(runtime)
    deleted: list[Deleted] = []
    waiting: list[Dead] = []
    failed: list[FailedTopic] = []
    for each in files:
        if on_progress is not None:
            on_progress(each.topic, done, total)
        try:
            plans = _plan(session, each, table, now_ms, dry_run)
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
        except CorruptLogError as error:
            failed.append(FailedTopic(topic=each.topic, error=str(error)))
        finally:
            # Views hold the rows of tails, and the next topic does not need them.
            if each.topic not in INTERNAL_TOPICS:
                session.forget([TopicPartition(each.topic, n) for n in each.partitions])
    return VacuumReport(
        dry_run=dry_run,
        topics=tuple(wanted),
        partitions=total,
        deleted=tuple(
            VacuumedObject(path=each.dead.path, kind=each.dead.kind.value, why=each.dead.why.value, bytes=each.bytes)
            for each in deleted
        ),
        waiting=tuple(
            WaitingObject(
                path=dead.path,
                kind=dead.kind.value,
                why=dead.why.value,
                until_ms=None if dead.waits_until_ms == NOT_KNOWN_YET else dead.waits_until_ms,
            )
            for dead in waiting
        ),
        failed=tuple(failed),
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
    def swept(ctx: Context, views: Views) -> Program[tuple[Views, tuple[Deleted, ...]]]:
        return views, (yield from sweep(ctx, plan, dry_run=dry_run, sizes=True))

    return session.with_timeout(STEP_TIMEOUT_MS).call(f"deleting in {plan.topic_partition}", swept)


def _store_clock(session: Session, dry_run: bool) -> int:
    def read(ctx: Context, views: Views) -> Program[tuple[Views, int]]:
        return views, (yield from read_store_clock(dry_run=dry_run))

    return session.call("reading the store's clock", read)


def _topics(session: Session, topics: Iterable[str] | None) -> list[str]:
    def listed(ctx: Context, views: Views) -> Program[tuple[Views, tuple[str, ...]]]:
        return views, (yield from list_topics())

    known = session.call("listing topics", listed)
    if topics is None:
        return list(known)
    wanted = list(dict.fromkeys(topics))
    for topic in wanted:
        if topic not in known:
            raise UnknownTopicOrPartitionError(
                f"{session.runtime.where} has no topic {topic!r}, and no deleted one of that name; `txlog topics list` shows them all"
            )
    return wanted


def _list_files(session: Session, topic: str) -> TopicFiles:
    def listed(ctx: Context, views: Views) -> Program[tuple[Views, TopicFiles]]:
        return views, (yield from list_files(topic))

    return session.call(f"listing the files of {topic!r}", listed)


def _plan(
    session: Session, files: TopicFiles, table: Mapping[int, TransactionMetadata], now_ms: int, dry_run: bool
) -> tuple[PartitionPlan, ...]:
    def planned(ctx: Context, views: Views) -> Program[tuple[Views, tuple[PartitionPlan, ...]]]:
        return (yield from plan_topic(ctx, views, files, table, now_ms=now_ms, dry_run=dry_run))

    return session.call(f"reading the chains of {files.topic!r}", planned)
