"""`python -m lab.simulate`: run random worlds, and print what happened in them.

    python -m lab.simulate --seeds 1000              worlds 0 to 999
    python -m lab.simulate --seed 4711               one of them again
    ... --history FOLDER                             its history, as JSON lines

The exit status is 1 if a world showed an anomaly.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from lab.histories.events import Note
from lab.histories.recorder import encode_history
from lab.simulate.world import DEFAULT_STEPS, Result, simulate
from lab.spread import add_processes, spread
from txlog.clock import Clock, SystemClock

REPORT_WORLDS = 50
"""Without a terminal for a progress bar, a line is printed after this many worlds."""
_CLEAN_UPS = ("merged", "compacted", "deleted")
SHOWN_CHARACTERS = 4_000
"""The maximum length of a failing world's report."""


@dataclass(slots=True)
class Totals:
    """The sums over all worlds."""

    worlds: int = 0
    requests: int = 0
    faults: int = 0
    deaths: int = 0
    events: int = 0
    operations: int = 0
    rows_written: int = 0
    rows_read: int = 0
    worst_lag_ms: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    clean_ups: Counter[str] = field(default_factory=Counter)
    """Runs merged and compacted, objects deleted."""
    notes: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, result: Result) -> None:
        report = result.report
        self.worlds += 1
        self.requests += result.requests
        self.faults += result.faults
        self.deaths += result.deaths
        self.events += report.events
        self.operations += report.operations
        self.rows_written += report.rows_written
        self.rows_read += report.rows_read
        self.worst_lag_ms = max(self.worst_lag_ms, report.worst_lag_ms)
        self.outcomes.update(report.outcomes)
        texts = [event.what.text for event in result.events if isinstance(event.what, Note)]
        self.clean_ups.update(word for text in texts if (word := text.partition(" ")[0]) in _CLEAN_UPS)
        self.notes.update(note.name for note in report.notes)
        self.anomalies.update(report.names)
        if not result.ok:
            self.failed.append(result.seed)


def main(arguments: Sequence[str] | None = None, clock: Clock | None = None) -> int:
    """Run the worlds of the arguments. Return the exit status."""
    options = _parse(arguments)
    clock = clock or SystemClock()
    console = Console()
    totals = Totals()
    started_ms = clock.monotonic_ms()
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("worlds", total=options.seeds)
        seeds = range(options.start, options.start + options.seeds)
        for seed, result in spread(partial(simulate, steps=options.steps), seeds, options.processes):
            totals.add(result)
            if not result.ok:
                progress.console.print(f"[bold red]seed {seed} failed[/]")
                progress.console.print(str(result)[:SHOWN_CHARACTERS], markup=False, highlight=False)
                progress.console.print(f"run it again: {_rerun(seed, options.steps)}", markup=False, highlight=False)
            if options.history is not None:
                options.history.mkdir(parents=True, exist_ok=True)
                (options.history / f"{seed}.jsonl").write_bytes(encode_history(result.events))
            progress.advance(bar)
            if not console.is_terminal and totals.worlds % REPORT_WORLDS == 0 and totals.worlds < options.seeds:
                took_s = (clock.monotonic_ms() - started_ms) / 1000
                console.print(
                    f"{totals.worlds} of {options.seeds} worlds, {len(totals.failed)} failed, {took_s:,.0f} s",
                    highlight=False,
                )
            progress.update(bar, description=f"worlds ({len(totals.failed)} failed)" if totals.failed else "worlds")
    console.print(_table(totals, clock.monotonic_ms() - started_ms))
    for seed in sorted(totals.failed):
        console.print(_rerun(seed, options.steps), markup=False, highlight=False)
    return 1 if totals.failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulate", description="Runs random worlds.", allow_abbrev=False
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="how many worlds (default: 100)")
    parser.add_argument("--start", type=int, metavar="SEED", help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, metavar="N", help="this world alone")
    parser.add_argument("--steps", type=int, default=DEFAULT_STEPS, help="requests a world (default: %(default)s)")
    parser.add_argument("--history", type=Path, help="folder to write every world's history to, as JSON lines")
    add_processes(parser)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        if options.seeds is not None or options.start is not None:
            parser.error("--seed names one world, --seeds and --start name many: give the one or the others")
        options.seeds, options.start = 1, options.seed
    options.seeds = 100 if options.seeds is None else options.seeds
    options.start = 0 if options.start is None else options.start
    return options


def _rerun(seed: int, steps: int) -> str:
    more = "" if steps == DEFAULT_STEPS else f" --steps {steps}"
    return f"python -m lab.simulate --seed {seed}{more}"


def _table(totals: Totals, elapsed_ms: int) -> Table:
    table = Table(title="Random worlds", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    committed, aborted, unknown = (totals.outcomes[each] for each in ("committed", "aborted", "unknown"))
    rows: list[tuple[str, str]] = [
        ("worlds", f"{totals.worlds:,}"),
        ("requests to the store", f"{totals.requests:,}"),
        ("  faults among them", f"{totals.faults:,}"),
        ("processes that died", f"{totals.deaths:,}"),
        ("operations of clients", f"{totals.operations:,}"),
        ("events recorded", f"{totals.events:,}"),
        ("runs merged", f"{totals.clean_ups['merged']:,}"),
        ("runs compacted", f"{totals.clean_ups['compacted']:,}"),
        ("objects deleted by vacuum", f"{totals.clean_ups['deleted']:,}"),
        ("rows written", f"{totals.rows_written:,}"),
        ("rows read", f"{totals.rows_read:,}"),
        ("transactions and sends: committed", f"{committed:,}"),
        ("  aborted", f"{aborted:,}"),
        ("  unknown to their client", f"{unknown:,}"),
        *((f"allowed: {name}", f"{count:,}") for name, count in sorted(totals.notes.items())),
        ("worst lag of a reader", f"{totals.worst_lag_ms / 1000:,.1f} s of simulated time"),
        *((f"ANOMALY: {name}", f"{count:,}") for name, count in sorted(totals.anomalies.items())),
        ("worlds with an anomaly", f"{len(totals.failed):,}"),
        ("time", f"{elapsed_ms / 1000:,.1f} s"),
    ]
    for name, figure in rows:
        table.add_row(name, figure)
    return table


if __name__ == "__main__":
    sys.exit(main())
