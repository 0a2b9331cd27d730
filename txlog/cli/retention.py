"""`txlog retention`: which rows are older, or more, than their topics keep?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlog.cli.documents import RetentionDocument, document_of
from txlog.cli.options import Execute, Partitions, Session, TopicsOrPartitions
from txlog.cli.output import Output
from txlog.cli.partitions import choose_partitions
from txlog.core.retention import ACTIVE
from txlog.text import bytes_text, count_text, time_text

if TYPE_CHECKING:
    from txlog.protocol.retention import RetentionPlan


def retention(
    session: Session, names: TopicsOrPartitions, partitions: Partitions = None, execute: Execute = False
) -> None:
    """Remove rows that are older, or more, than their topics keep. A dry run, unless --execute is given.

    Each topic's retention.ms and retention.bytes decide, for whole sealed segments at a time. Rows that a consumer
    group of retention.hold.groups has not read stay. Readers stop seeing the removed rows at once; vacuum deletes their
    files later.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.history import record
    from txlog.maintenance.partition_loop import gather
    from txlog.maintenance.retention import policy_of, retain_partitions

    wanted = choose_partitions(session.store, names, partitions)
    runtime = session.store.runtime
    by_topic = {name: policy_of(runtime, name) for name in dict.fromkeys(tp.topic for tp in wanted)}
    policies = {tp: policy for tp in wanted if (policy := by_topic[tp.topic]) is not None}
    found = retain_partitions(read_session(runtime), policies, session.workers(runtime), dry_run=not execute)
    retained, failed = gather(record(runtime, "retention", found) if execute else found)
    documents = [retention_document(each, executed=execute) for each in retained]
    session.show(documents, lambda out: show_retention(out, documents, len(wanted), executed=execute), failed)


def retention_document(retained: RetentionPlan, *, executed: bool) -> RetentionDocument:
    """Return what was removed from one partition."""
    sources = (retained, retained.topic_partition)
    return document_of(RetentionDocument, *sources, executed=executed, held_until=retained.held_until_ms)


def show_retention(out: Output, documents: Sequence[RetentionDocument], partitions: int, *, executed: bool) -> None:
    """Show a table of partitions, and sentences."""
    moves = [each for each in documents if each.log_start_after > each.log_start_before]
    if moves:
        out.records(
            {
                "partition": f"{each.topic}-{each.partition}",
                "log start": each.log_start_before,
                "will be" if not executed else "is now": each.log_start_after,
                "segments": each.segments,
                "rows": each.rows,
                "bytes": each.bytes,
                "because of": each.setting,
            }
            for each in moves
        )
    looked = count_text(partitions, "partition")
    rows, size = sum(each.rows for each in documents), sum(each.bytes for each in documents)
    what = f"{count_text(rows, 'row')}, {bytes_text(size)}, of {looked}"
    if not rows and documents:
        out.line("Nothing can be removed now.")
    elif not rows:
        out.line(f"Nothing to remove: no row of {looked} is beyond retention.ms or retention.bytes.")
    elif executed:
        out.line(f"Removed {what}. Their files stay until vacuum deletes them.")
    else:
        out.line(f"Would remove {what}. Add --execute to do it.")
    for each in documents:
        if each.active_rows:
            out.line(
                f"{each.topic}-{each.partition}: {count_text(each.active_rows, 'row')} beyond retention.ms or "
                f"retention.bytes stay, {ACTIVE}."
            )
        if each.held_by is not None:
            until = "" if each.held_until is None else f" or until {time_text(each.held_until)}"
            out.line(
                f"{each.topic}-{each.partition}: consumer group {each.held_by!r} holds more rows, "
                f"until it commits{until}."
            )
