"""`txlog erase` and `txlog erasures`: remove the rows that match a condition, and keep the offsets of all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from txlog.cli.documents import CancelDocument, EraseDocument, RemainsDocument, document_of
from txlog.cli.options import Execute, Session, argument, command, group, option
from txlog.cli.output import Output, progress_bar
from txlog.errors import CorruptLogError, InvalidRequestError
from txlog.text import bytes_text, count_text, time_text

app = group("erasures", "List erasures that have begun and not ended, and cancel one.")


def erase(
    session: Session,
    topic: Annotated[str, argument("TOPIC", "The topic.")],
    where: Annotated[
        str,
        option("--where CONDITION", "The rows for which this is true, as in \"customer = 'ann'\".", show_default=False),
    ],
    wait_ms: Annotated[
        int | None,
        option(
            "--wait-ms MS",
            "How long to wait for open transactions that rows to erase lie behind (default: 60000).",
            min=0,
        ),
    ] = None,
    verify: Annotated[
        bool,
        option(
            "--verify",
            "Search all objects of the store for such rows, also those that no reader needs, and show when they go.",
        ),
    ] = False,
    execute: Execute = False,
) -> None:
    """Remove all rows that match a condition. A dry run that counts them, unless --execute is given.

    They are the rows that are in the topic when the command begins. Offsets and times of the other rows stay, and so do
    groups and transactions. No read that begins after the command returns such a row. A command that was stopped is
    finished by `maintain`, or by the next erasure in the topic. This is safe beside writers, readers and other
    maintenance. The old files stay until vacuum deletes them.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.admin.admin import ERASE_WAIT_MS
    from txlog.client.reading import read_session
    from txlog.maintenance.erase import count_matches, erase as erase_rows
    from txlog.maintenance.erase_check import find_remains
    from txlog.maintenance.history import record
    from txlog.maintenance.partition_loop import gather

    runtime = session.store.runtime
    reads = read_session(runtime)
    if verify:
        if execute:
            raise InvalidRequestError("--verify and --execute exclude each other: erase first, then verify")
        with progress_bar("searching objects", "objects") as progress:
            remains = find_remains(reads, topic, where, progress)
        found = [document_of(RemainsDocument, each) for each in remains]
        session.show(found, lambda out: _show_remains(out, found), [])
        return
    with progress_bar("looking for rows", "rows") as progress:
        if execute:
            erasing = erase_rows(
                reads,
                topic,
                where,
                wait_ms=ERASE_WAIT_MS if wait_ms is None else wait_ms,
                workers=session.workers(runtime),
                progress=progress,
            )
            made, failed = gather(record(runtime, "erase", erasing))
            documents = [
                EraseDocument(
                    topic=each.topic_partition.topic,
                    partition=each.topic_partition.partition,
                    rows=each.rows_erased,
                    segments=each.segments_before,
                    bytes=each.bytes_before,
                    executed=True,
                )
                for each in made
                if each.took_effect
            ]
        else:
            failed = []
            documents = [
                EraseDocument(topic=tp.topic, partition=tp.partition, rows=rows, executed=False)
                for tp, rows in count_matches(runtime, topic, where).items()
                if rows
            ]
    session.show(documents, lambda out: _show(out, documents, executed=execute, failed=len(failed)), failed)


@command(app, "list")
def list_erasures(session: Session) -> None:
    """List the erasures that have begun and not ended. `maintain` goes on with them, and shows what they wait for."""
    damaged: list[CorruptLogError] = []
    found = session.admin.list_erasures(damaged=damaged)

    def text(out: Output) -> None:
        out.records(
            (
                {
                    "id": each.erasure_id,
                    "topic": each.topic,
                    "condition": each.where,
                    "began": time_text(each.created_at),
                }
                for each in found
            ),
            empty="No erasure can be shown." if damaged else "Every erasure has ended.",
        )

    session.show(found, text, damaged)


@command(app, "cancel")
def cancel(
    session: Session, erasure_id: Annotated[str, argument("ERASURE", "The id, as `txlog erasures list` shows it.")]
) -> None:
    """Cancel an erasure that has not ended. Rows that it has erased stay erased.

    A process that is working on it does not stop.
    """
    session.admin.cancel_erasure(erasure_id)
    said = f"Cancelled erasure {erasure_id}. Rows that it has erased stay erased."
    session.out.show(CancelDocument(erasure_id=erasure_id), lambda out: out.line(said))


def _show_remains(out: Output, remains: Sequence[RemainsDocument]) -> None:
    from txlog.core.vacuum import NOT_KNOWN_YET

    if not remains:
        out.line("No object holds such a row.")
        return
    out.records(
        {
            "object": each.path,
            "rows": each.rows or None,
            "gone": "a read may return them"
            if each.is_current
            else "not known yet"
            if each.gone_at_ms is None or each.gone_at_ms == NOT_KNOWN_YET
            else "with the next vacuum"
            if not each.gone_at_ms
            else f"by a vacuum after {time_text(each.gone_at_ms)}",
        }
        for each in remains
    )
    with_rows = sum(bool(each.rows) for each in remains)
    out.line()
    holding = f"{count_text(with_rows, 'object')} with such rows." if with_rows else "No object holds such a row."
    out.line(f"{holding} {_others(len(remains) - with_rows)}".strip())
    if any(each.is_current for each in remains):
        out.line(
            "A read of the topic, or of a published table, may return rows. Erase with --execute, then "
            "`txlog publish --once`."
        )
    elif all(each.gone_at_ms is not None and each.gone_at_ms != NOT_KNOWN_YET for each in remains):
        last = max(each.gone_at_ms or 0 for each in remains)
        when = f"after {time_text(last)}" if last else "now"
        out.line(f"No read returns the rows. Vacuum can delete the last object {when}.")
    else:
        out.line(
            "No read returns the rows. The time is not known until vacuum has seen that nothing needs an object: run "
            "`txlog maintain --once`, and verify again."
        )


def _others(number: int) -> str:
    if not number:
        return ""
    has = "has" if number == 1 else "have"
    return f"{count_text(number, 'object')} {has} the smallest and largest values of a file that may have held some."


def _show(out: Output, documents: Sequence[EraseDocument], *, executed: bool, failed: int) -> None:
    if documents:
        out.records(
            {
                "partition": f"{each.topic}-{each.partition}",
                "rows": each.rows,
                "segments": each.segments,
                "bytes": None if each.bytes is None else bytes_text(each.bytes),
            }
            for each in documents
        )
        out.line()
    rows = count_text(sum(each.rows for each in documents), "row")
    if not documents and not failed:
        out.line("No row matches.")
    elif not executed:
        out.line(f"Would erase {rows}. Add --execute to do it.")
    elif not failed:
        out.line(f"Erased {rows}. The old files stay until vacuum deletes them.")
