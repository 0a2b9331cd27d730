"""How is a storm displayed? One live line on a terminal, a line at intervals elsewhere, and the table at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.chaos.plan import Place
from lab.chaos.proof import Proof
from lab.chaos.published import COLUMNS, Published
from lab.chaos.settings import Settings
from lab.chaos.storm import Storm, Tally

EVERY_S = 0.5
EVERY_PLAIN_S = 15.0
MOST_DETAILS = 20


class Show:
    """Writes to one console."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live: Live | None = None
        self._storm: Storm | None = None
        self._place: Place | None = None
        self._settings: Settings | None = None
        self._phase = "storming"
        self._begin = self._said = 0.0

    @contextmanager
    def live(self, storm: Storm, place: Place, settings: Settings) -> Iterator[None]:
        """Show the storm during the block."""
        self._storm, self._place, self._settings = storm, place, settings
        self._begin = time.monotonic()
        self._console.print(
            f"{settings.seconds:.0f} seconds of chaos, seed {settings.seed}, on {storm.place.url}", highlight=False
        )
        if not self._console.is_terminal:
            yield
            return
        with Live(self._line(), console=self._console, transient=True, auto_refresh=False) as self._live:
            yield
        self._live = None

    def phase(self, name: str) -> None:
        """Name the phase that begins now."""
        self._phase = name
        self._said = 0.0
        self.tick()

    def tick(self) -> None:
        """Show something if it is time. The storm calls this often."""
        now = time.monotonic()
        if now - self._said < (EVERY_S if self._live is not None else EVERY_PLAIN_S):
            return
        self._said = now
        if self._live is not None:
            self._live.update(self._line(), refresh=True)
        else:
            self._console.print(self._line())

    def proof(self, proof: Proof, tally: Tally, stormed_ms: int, settings: Settings) -> None:
        """Show the tables, and what is wrong."""
        must = Table(title="must be 0", title_justify="left")
        for column in proof.columns:
            must.add_column(column, justify="right")
        must.add_row(*(Text(str(count), "bold red" if count else "green") for count in proof.columns.values()))
        facts = Table(show_header=False, title="the storm", title_justify="left")
        facts.add_column()
        facts.add_column(justify="right")
        report, census = proof.report, proof.census
        transactions = ", ".join(f"{count:,} {outcome}" for outcome, count in proof.transactions.most_common())
        roles = ", ".join(f"{role} {count}" for role, count in sorted(tally.by_role.items()))
        for name, value in {
            "lasted": f"{stormed_ms / 1000:.0f} s, seed {settings.seed}",
            "processes": f"{tally.started:,} started, {tally.fenced:,} fenced by a newer instance",
            "SIGKILL": f"{tally.kills:,} ({roles})",
            "SIGSTOP, SIGCONT": f"{tally.stops:,}",
            "second instances": f"{tally.twins:,}",
            "transactions": transactions,
            "versions of jobs": ", ".join(f"{name} {last + 1:,}" for name, last in proof.versions.items()),
            "rows": f"{report.rows_written:,} written, {report.rows_read:,} read, {proof.made:,} made of others",
            "group of several members": f"{proof.readers:,} members read rows in {proof.generations:,} generations",
            "log": f"{census.records:,} records, {census.segments:,} sealed segments, {census.decisions:,} decisions",
            **(
                {
                    "maintenance": ", ".join(
                        f"{count:,} {name.replace('_', ' ')}" for name, count in proof.maintained.items()
                    )
                }
                if proof.maintained
                else {}
            ),
            **(
                {
                    "erasures": f"{proof.erased.begun:,} of {proof.erased.rows:,} rows, "
                    f"{proof.erased.finished_by_others:,} finished by others, {proof.erased.never_begun:,} never begun"
                }
                if proof.erased is not None
                else {}
            ),
            "history": f"{report.events:,} events",
            "longest reader stall": f"{proof.stall_ms / 1000:.1f} s ({proof.stall_where or 'none'})",
            "longest pause of the witness": f"{proof.witness_pause_ms / 1000:.1f} s (the machine's doing)",
        }.items():
            facts.add_row(name, value)
        self._console.print(facts)
        if proof.published is not None:
            self._console.print(_engines(proof.published))
        self._console.print(must)
        for detail in proof.details[:MOST_DETAILS]:
            self._console.print(detail, style="red", highlight=False, markup=False)
        if len(proof.details) > MOST_DETAILS:
            self._console.print(f"... and {len(proof.details) - MOST_DETAILS} more")

    def _line(self) -> Text:
        if self._storm is None or self._place is None or self._settings is None:
            return Text("")
        tally, live = self._storm.tally, sum(len(slot.live) for slot in self._storm.slots)
        stall = ""
        witness = Path(self._place.histories) / "witness.json"
        if witness.exists():
            said = json.loads(witness.read_text())
            stall = f"  stall {said['now_ms'] / 1000:.1f} s, longest {said['stall_ms'] / 1000:.1f} s"
        failed = f"  {len(tally.failures)} failed" if tally.failures else ""
        return Text(
            f"{self._phase}  {time.monotonic() - self._begin:.0f} s  {live} processes  {tally.kills} killed  "
            f"{tally.stops} stopped  {tally.twins} twins  {tally.fenced} fenced{stall}{failed}"
        )


def _engines(published: Published) -> Table:
    """Return the reads of each engine, and what must be 0."""
    table = Table(title="published tables, read by other engines: must be 0", title_justify="left")
    table.add_column("engine")
    for name in ("reads", "old", *COLUMNS):
        table.add_column(name, justify="right")
    for engine, found in published.found.items():
        counts = (Text(str(found[name]), "bold red" if found[name] else "green") for name in COLUMNS)
        table.add_row(engine, f"{published.reads[engine]:,}", f"{published.old_reads[engine]:,}", *counts)
    note = (
        f"old: of an older version. {published.tables:,} different tables were seen, and vacuum deleted "
        f"{published.deleted:,} published files"
    )
    if published.slow:
        note += f"; {published.slow:,} reads failed that took longer than files are kept"
    table.caption = note
    return table
