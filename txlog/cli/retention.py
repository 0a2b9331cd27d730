"""`txlog retention`: which rows are older, or more, than their topics keep?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.documents import RetentionDocument
from txlog.cli.options import Partitions, Session, TopicsOption, TopicsOrPartitions, command
from txlog.cli.output import Output
from txlog.cli.partitions import choose_partitions
from txlog.text import bytes_text, count_text, time_text

if TYPE_CHECKING:
    from txlog.maintenance.retention import Retained


def register(app: typer.Typer, *, panel: str) -> None:
    """Add the command."""
    command(app, "retention", panel=panel)(retention)


def retention(
    session: Session,
    topic: TopicsOrPartitions = None,
    topic_option: TopicsOption = None,
    partitions: Partitions = None,
    delete: Annotated[
        bool,
        typer.Option("--delete", metavar="", help="Remove the rows. Without this option the command only shows them."),
    ] = False,
) -> None:
    """Remove rows that are older, or more, than their topics keep. A dry run, unless --delete is given.

    Each topic's retention.ms and retention.bytes decide, for whole sealed segments at a time. Rows that a consumer
    group of retention.hold.groups has not read stay. Readers stop seeing the removed rows at once; vacuum deletes their
    files later.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.history import recorded
    from txlog.maintenance.retention import policy_of, retain_partition

    names = [*(topic or ()), *(topic_option or ())]
    wanted = choose_partitions(session.store, names, partitions)
    runtime = session.store.runtime
    reads = read_session(runtime)
    policies = {tp.topic: policy_of(runtime, tp.topic) for tp in wanted}
    documents = []
    with recorded(runtime, "retention") as history:
        for tp in wanted:
            policy = policies[tp.topic]
            if policy is None:
                continue
            with history.over(tp):
                found = retain_partition(reads, tp, policy, dry_run=not delete)
                if found is not None:
                    documents.append(retention_document(found, executed=delete))
                    if found.moves and delete:
                        history.add_retained(found)
            reads.forget([tp])
    session.out.show(documents, lambda out: show_retention(out, documents, len(wanted), executed=delete))


def retention_document(retained: Retained, *, executed: bool) -> RetentionDocument:
    """Return what was removed from one partition."""
    return RetentionDocument(
        topic=retained.topic_partition.topic,
        partition=retained.topic_partition.partition,
        executed=executed,
        log_start_before=retained.log_start_before,
        log_start_after=retained.log_start_after,
        segments=retained.segments,
        rows=retained.rows,
        bytes=retained.bytes,
        setting=retained.setting,
        held_by=retained.held_by,
        held_until=retained.held_until_ms,
    )


def show_retention(out: Output, documents: Sequence[RetentionDocument], partitions: int, *, executed: bool) -> None:
    """Show a table of partitions, and sentences."""
    if documents:
        out.table(
            (
                "partition",
                "log start",
                "will be" if not executed else "is now",
                "segments",
                "rows",
                "bytes",
                "because of",
            ),
            [
                (
                    f"{each.topic}-{each.partition}",
                    each.log_start_before,
                    each.log_start_after,
                    each.segments,
                    each.rows,
                    each.bytes,
                    each.setting,
                )
                for each in documents
            ],
            empty="",
        )
    looked = count_text(partitions, "partition")
    rows, size = sum(each.rows for each in documents), sum(each.bytes for each in documents)
    what = f"{count_text(rows, 'row')}, {bytes_text(size)}, of {looked}"
    if not rows:
        out.line(f"Nothing to remove: no row of {looked} is beyond retention.ms or retention.bytes.")
    elif executed:
        out.line(f"Removed {what}. Their files are there until they are vacuumed.")
    else:
        out.line(f"Would remove {what}. Add --delete to do it.")
    for each in documents:
        if each.held_by is not None:
            until = "" if each.held_until is None else f", at the latest until {time_text(each.held_until)}"
            out.line(
                f"{each.topic}-{each.partition}: more would go, and stays for consumer group {each.held_by!r}{until}, unless it commits."
            )
