"""`txlog vacuum`: which objects can no reader or writer still use, and how large are they?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.documents import VacuumDocument, VacuumedEntry, VacuumedKind, VacuumFailure, WaitingEntry, document_of
from txlog.cli.errors import LOOK
from txlog.cli.options import Execute, Session, argument, option
from txlog.cli.output import Output, progress_bar
from txlog.text import bytes_text, count_text, time_text

if TYPE_CHECKING:
    from txlog.maintenance.vacuum import VacuumReport


def vacuum(
    session: Session,
    topics: Annotated[list[str], argument("TOPIC", "Only these topics (default: all, including internal ones).")],
    execute: Execute = False,
    objects: Annotated[bool, option("--objects", "Show every object, and the reason.")] = False,
    now: Annotated[
        bool,
        option(
            "--now",
            "Do not wait for delete.grace.ms and publish.retention.ms. Only while no other process uses the store.",
        ),
    ] = False,
) -> None:
    """Delete objects that no reader or writer can still use. A dry run, unless --execute is given.

    These are files of transactions that can never commit, files that a merge or retention replaced, and commit records
    that are sealed. Replaced objects stay for delete.grace.ms (24 hours unless the store was made with another value),
    so that paused readers and writers can go on. Vacuum is safe beside writers, readers and other vacuums, and it can
    be killed at any point.

    --now is not safe beside them: a reader may find files missing, and a writer that goes on after a pause may lose
    rows. Older snapshots and versions of published tables cannot be read any more. Each call deletes what the one
    before has left without a name, so call it until nothing is left.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.history import recorded
    from txlog.maintenance.vacuum import vacuum as run

    runtime = session.store.runtime
    with (
        recorded(runtime, "vacuum") as history,
        progress_bar("looking for objects to delete", "partitions") as progress,
    ):
        workers = session.workers(runtime)
        reads = read_session(runtime)
        report = run(
            runtime, reads, topics or None, dry_run=not execute, now=now, on_progress=progress, workers=workers
        )
        for tp, (count, size) in report.by_partition().items() if execute else ():
            history.add(tp, "deleted", deleted_objects=count, deleted_bytes=size)
    document = vacuum_document(runtime.where, report)
    session.out.show(document, lambda out: _show(out, document, objects=objects, now=now))
    if report.failed:
        raise typer.Exit(LOOK)


def _show(out: Output, document: VacuumDocument, *, objects: bool, now: bool) -> None:
    show_vacuum(out, document, objects=objects)
    if now and not document.executed:
        out.line(
            "With --now, processes that use the store meanwhile may find files missing or lose rows. Stop them first. "
            "Older snapshots and versions of published tables cannot be read any more."
        )
    elif now:
        out.line(
            "Call it again until two calls in a row delete nothing: each deletes what only the deleted objects named. "
            "If topics are published, call `txlog publish --once` before each."
        )


def vacuum_document(where: str, report: VacuumReport) -> VacuumDocument:
    """Return the report of one vacuum."""
    from txlog.core.vacuum import NOT_KNOWN_YET

    deleted = tuple(
        VacuumedEntry(path=each.dead.path, kind=each.dead.kind.value, why=each.dead.why.value, bytes=each.bytes)
        for each in report.deleted
    )
    return document_of(
        VacuumDocument,
        report,
        store=where,
        executed=not report.dry_run,
        objects=len(deleted),
        kinds=_kinds(deleted),
        deleted=deleted,
        waiting=tuple(
            WaitingEntry(
                path=each.path,
                kind=each.kind.value,
                why=each.why.value,
                until=None if each.waits_until_ms == NOT_KNOWN_YET else each.waits_until_ms,
            )
            for each in report.waiting
        ),
        failed=tuple(VacuumFailure(topic=topic, error=error) for topic, error in report.failed),
    )


def _kinds(deleted: Iterable[VacuumedEntry]) -> tuple[VacuumedKind, ...]:
    """Return the totals by kind and reason, the most bytes first."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for each in deleted:
        sizes.setdefault((each.kind, each.why), []).append(each.bytes or 0)
    made = [VacuumedKind(kind=kind, why=why, objects=len(each), bytes=sum(each)) for (kind, why), each in sizes.items()]
    return tuple(sorted(made, key=lambda each: (-each.bytes, each.kind, each.why)))


def show_vacuum(out: Output, document: VacuumDocument, *, objects: bool) -> None:
    """Show a table by kind and reason, or of every object, and sentences."""
    if objects and document.deleted:
        out.table(("object", "bytes", "why"), [(each.path, each.bytes, each.why) for each in document.deleted])
    elif document.kinds:
        out.table(
            ("kind", "objects", "bytes", "why"),
            [(each.kind, each.objects, each.bytes, each.why) for each in document.kinds],
        )
    looked = f"{count_text(len(document.topics), 'topic')} with {count_text(document.partitions, 'partition')}"
    if not document.objects:
        out.line(f"Nothing to delete in {looked}.")
    else:
        what = f"{count_text(document.objects, 'object')}, {bytes_text(document.bytes)}, of {looked}"
        out.line(f"Deleted {what}." if document.executed else f"Would delete {what}. Add --execute to do it.")
    if document.waiting:
        times = [each.until for each in document.waiting if each.until is not None]
        when = f"; vacuum may delete the first at {time_text(min(times))}" if times else ""
        out.line(f"{count_text(len(document.waiting), 'object')} more must wait out delete.grace.ms{when}.")
    for each in document.failed:
        out.line(f"Vacuum stopped in topic {each.topic!r}: {each.error}")
