"""`txlog fsck`: is the store whole?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from txlog.cli.errors import LOOK
from txlog.cli.options import Session, Topics, option
from txlog.cli.output import Output, progress_bar
from txlog.errors import TxlogError
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from txlog.maintenance.fsck import FsckReport
    from txlog.maintenance.fsck.repair import RepairedObject


_STOP = (
    "Stop every writer before you repair anything: a writer that continues after a lost record changes the "
    "log for good. Then restore "
    'the objects below. The page "Check, repair, restore, back up" explains how, and whether rows are lost.'
)


def fsck(
    session: Session,
    topics: Topics,
    metadata_only: Annotated[
        bool,
        option(
            "--metadata-only",
            "Only check the length of Parquet files. This is faster, but does not find damage inside them.",
        ),
    ] = False,
    repair: Annotated[
        bool,
        option("--repair", "Recreate snapshots and indexes of sealed segments from the log. Nothing else is changed."),
    ] = False,
) -> None:
    """Verify every object of the store, and that the objects agree. Without --repair nothing is changed.

    The exit status is 0 if all is whole, and 4 (stop and look) if an object is damaged or missing. Notes are about
    objects that a crash or a maintenance job left behind; vacuum removes them later.
    """
    # A local import, because it loads pyarrow.
    from txlog.maintenance.fsck import check_store

    runtime = session.damaged_runtime()

    def check() -> FsckReport:
        workers = session.workers(runtime)
        with progress_bar("the store") as progress:
            return check_store(runtime.store, topics=topics, rows=not metadata_only, progress=progress, workers=workers)

    report = check()
    if not report.is_clean:
        found = _repair(session, report, dry_run=not repair)
        if any(each.is_made for each in found) and repair:
            report = msgspec.structs.replace(check(), repaired=found)
        else:
            report = msgspec.structs.replace(report, repairable=found)
    session.out.show(report, lambda out: show_report(out, report, repair=repair))
    if not report.is_clean:
        raise typer.Exit(LOOK)


def _repair(session: Session, report: FsckReport, *, dry_run: bool) -> tuple[RepairedObject, ...]:
    """Return what can be recreated, or was recreated. Returns nothing for a store that cannot be opened."""
    from txlog.maintenance.fsck.repair import repair

    try:
        runtime = session.store.runtime
    except TxlogError:
        return ()
    return repair(runtime, report.findings, dry_run=dry_run)


def show_report(out: Output, report: FsckReport, *, repair: bool = False) -> None:
    """Show the findings of a check to people. `repair`: whether a repair was asked for."""
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
    made = {each.path for each in report.repairable if each.is_made}
    # A finding may stand for several similar objects.
    mended = {each.path for each in report.findings if each.path in made and each.count <= len(made)}
    if any(each.kind != "note" and each.path not in mended for each in report.findings):
        out.line()
        out.line(_STOP)
    if repair and not report.is_clean and not report.repaired:
        out.line()
        out.line(
            "--repair changed nothing: it can recreate only snapshots and indexes, and only "
            "from records that are whole."
        )
    columns = ("object", "because")
    out.section("Recreated", columns, _repairs(report.repaired, True))
    out.section(
        "`txlog fsck --repair` can recreate these, without any loss", columns, _repairs(report.repairable, True)
    )
    out.section("Cannot be recreated", columns, _repairs((*report.repaired, *report.repairable), False))
    findings = [(f.kind, f.path or "/", f.found) for f in report.findings]
    out.section("Findings", ("kind", "object", "found"), findings)
    for finding in report.findings:
        if finding.kind != "note":
            out.heading(f"{finding.path} is {finding.kind}")
            times = f" (and {finding.count - 1:,} more like this)" if finding.count > 1 else ""
            advice = "`txlog fsck --repair` recreates it" if finding.path in mended else finding.advice
            out.fields([("expected", finding.expected + times), ("found", finding.found), ("to do", advice)])
    unnamed = report.damaged + report.missing + report.notes - len(report.findings)
    if unnamed:
        out.line(f"... and {count_text(unnamed, 'finding')} more.")


def _repairs(found: Iterable[RepairedObject], is_made: bool) -> list[tuple[str, str]]:
    return [(each.path, each.why) for each in found if each.is_made is is_made]
