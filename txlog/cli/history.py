"""`txlog history`: which maintenance jobs ran, and what did they do?"""

from __future__ import annotations

from typing import Annotated

from txlog.cli.options import Session, Topics, option
from txlog.cli.output import Output
from txlog.errors import InvalidRequestError
from txlog.text import time_text


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
    # Local imports, because `--help` does not need them.
    from txlog.inspection.sections import step_cells
    from txlog.maintenance.history import read_history

    rows = read_history(session.store.runtime, topics=topics, jobs=job or (), limit=limit)

    def text(out: Output) -> None:
        out.records(
            (
                {
                    "started": time_text(row.step.started_at),
                    "job": row.step.job,
                    "topic": row.step.topic,
                    "partition": row.step.partition,
                    **step_cells(row.by, row.step),
                }
                for row in rows
            ),
            empty="No maintenance job has done anything " + ("there." if topics or job else "yet."),
        )

    session.out.show(rows, text)
