"""`txlog fsck`: is the store whole?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from txlog.cli.errors import LOOK
from txlog.cli.options import Session, command
from txlog.cli.output import Output
from txlog.core.words import bytes_text, count_text

if TYPE_CHECKING:
    from txlog.maintenance.fsck import FsckReport, Progress


_STOP = (
    "Stop every writer before anything is repaired: who goes on over a lost record makes another log of it. Then restore the "
    'objects below; README, "When fsck finds something", says how, and whether rows are lost.'
)


def register(app: typer.Typer, *, panel: str) -> None:
    """Adds the command."""
    command(app, "fsck", panel=panel)(fsck)


def fsck(
    session: Session,
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only these topics; all if none is named.", show_default=False),
    ] = None,
    topic_option: Annotated[list[str] | None, typer.Option("--topic", hidden=True)] = None,
    metadata_only: Annotated[
        bool,
        typer.Option(
            "--metadata-only",
            metavar="",
            help="Open no Parquet file, only ask for its length: faster, and blind to damage in it.",
        ),
    ] = False,
) -> None:
    """Verify every object of the store, and how they hang together. Nothing is changed.

    Exit status 0 if all is whole, 4 (stop and look) if something is damaged or missing. Notes are what a crash may leave behind.
    """
    # Here and not at the top: it loads pyarrow.
    from txlog.maintenance.fsck import check_store

    store = session.object_store()
    with _progress() as progress:
        report = check_store(
            store, topics=[*(topic or ()), *(topic_option or ())], rows=not metadata_only, progress=progress
        )
    session.out.show(report, lambda out: _show(out, report))
    if not report.is_clean:
        raise typer.Exit(LOOK)


def _show(out: Output, report: FsckReport) -> None:
    looked = f"{count_text(report.objects, 'object')}, {bytes_text(report.bytes)}"
    if not report.rows_checked:
        looked += ", without files of rows"
    out.fields(
        [
            ("store", report.store),
            ("topics", ", ".join(report.topics)),
            ("partitions", report.partitions),
            ("checked", looked),
            ("damaged", report.damaged),
            ("missing", report.missing),
            ("notes", report.notes),
        ]
    )
    if not report.is_clean:
        out.line()
        out.line(_STOP)
    if report.findings:
        out.heading("Findings")
        out.table(("kind", "object", "found"), [(f.kind, f.path or "/", f.found) for f in report.findings], empty="")
    for finding in report.findings:
        if finding.kind != "note":
            out.heading(f"{finding.path} is {finding.kind}")
            times = f" (and {finding.count - 1:,} more like this)" if finding.count > 1 else ""
            out.fields([("expected", finding.expected + times), ("found", finding.found), ("to do", finding.advice)])
    unnamed = report.damaged + report.missing + report.notes - len(report.findings)
    if unnamed:
        out.line(f"... and {count_text(unnamed, 'finding')} more.")


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on the standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("the store", total=None)

        def show(where: str, done: int, total: int) -> None:
            bar.update(task, description=where, completed=done, total=total or None)

        yield show
