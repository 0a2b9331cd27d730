"""`txlog history`: which maintenance jobs ran, and what did they do?"""

from __future__ import annotations

from typing import Annotated

from txlog.cli.options import Session, Topics, option
from txlog.cli.output import Output
from txlog.errors import InvalidRequestError
from txlog.text import bytes_text, duration_text, time_text


def history(
    session: Session,
    topics: Topics,
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

    rows = read_history(session.store.runtime, topics=topics, jobs=job or (), limit=limit)

    def text(out: Output) -> None:
        out.records(
            (
                {
                    "started": time_text(step.started_at),
                    "job": step.job,
                    "topic": step.topic,
                    "partition": step.partition,
                    "outcome": step.outcome,
                    "offsets": f"{step.base_offset} to {step.end_offset - 1}" if step.base_offset >= 0 else None,
                    "files": f"{step.input_files:,} → {step.output_files:,}" if step.input_files else None,
                    "bytes": f"{bytes_text(step.bytes_read)} → {bytes_text(step.bytes_written)}"
                    if step.bytes_read
                    else None,
                    "deleted": f"{step.deleted_objects:,}, {bytes_text(step.deleted_bytes)}"
                    if step.deleted_objects
                    else None,
                    "took": duration_text(max(0, step.ended_at - step.started_at)),
                    "by": row.by,
                    "message": step.message or None,
                }
                for row in rows
                for step in [row.step]
            ),
            empty="No maintenance job has done anything " + ("there." if topics or job else "yet."),
        )

    session.out.show(rows, text)
