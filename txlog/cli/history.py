"""`txlog history`: which maintenance jobs ran, and what did they do?"""

from __future__ import annotations

from typing import Annotated

from txlog.cli.options import Session, Topics, TopicsOption, option
from txlog.cli.output import Output
from txlog.errors import InvalidRequestError
from txlog.text import bytes_text, duration_text, time_text


def history(
    session: Session,
    topic: Topics = None,
    topic_option: TopicsOption = None,
    job: Annotated[
        list[str] | None, option("--job JOB", "Only merge, compact, retention, vacuum or repair; may be repeated.")
    ] = None,
    limit: Annotated[int, option("--limit N", "Only the newest N.")] = 100,
) -> None:
    """Show what maintenance jobs did, newest first.

    Each line has the time, the process, the offsets, and the files and bytes before and after. A run that found nothing
    to do leaves no entry. The newest 2,000 runs are kept.
    """
    if limit < 1:
        raise InvalidRequestError(f"--limit {limit}: expected at least 1")
    # A local import, because `--help` does not need it.
    from txlog.maintenance.history import read_history

    rows = read_history(
        session.store.runtime, topics=[*(topic or ()), *(topic_option or ())], jobs=job or (), limit=limit
    )

    def text(out: Output) -> None:
        out.table(
            (
                "started",
                "job",
                "topic",
                "partition",
                "outcome",
                "offsets",
                "files",
                "bytes",
                "deleted",
                "took",
                "by",
                "message",
            ),
            [
                (
                    time_text(row.step.started_at),
                    row.step.job,
                    row.step.topic,
                    row.step.partition,
                    row.step.outcome,
                    f"{row.step.base_offset} to {row.step.end_offset - 1}" if row.step.base_offset >= 0 else None,
                    f"{row.step.input_files:,} → {row.step.output_files:,}" if row.step.input_files else None,
                    f"{bytes_text(row.step.bytes_read)} → {bytes_text(row.step.bytes_written)}"
                    if row.step.bytes_read
                    else None,
                    f"{row.step.deleted_objects:,}, {bytes_text(row.step.deleted_bytes)}"
                    if row.step.deleted_objects
                    else None,
                    duration_text(max(0, row.step.ended_at - row.step.started_at)),
                    row.by,
                    row.step.message or None,
                )
                for row in rows
            ],
            empty="No maintenance job has done anything yet."
            if not (topic or topic_option or job)
            else "No maintenance job has done anything there.",
        )

    session.out.show(rows, text)
