"""`python -m lab.explore`: explore, print the tables, and fail if a rule is broken or a mutant is not caught."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lab.explore.catalogue import EXPLORED, SCENARIOS
from lab.explore.runner import MutantResult, ScenarioResult, Task, run
from lab.explore.scene import Size
from lab.explore.store_rules import NAMES
from lab.spread import add_processes, spread


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every scenario was explored to its end without a violation and every mutant was caught, else 1."""
    chosen = _arguments(arguments)
    size: Size = "quick" if chosen.quick else "full"
    console = Console(stderr=True)
    names = chosen.scenario or list(SCENARIOS)
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        console.print(f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}")
        return 2
    known = [mutant for mutant in EXPLORED if not chosen.scenario or mutant.scenario in names]
    planted = known if chosen.mutants or not chosen.scenario else []
    tasks = [Task(name=name, size=size, max_seconds=chosen.seconds) for name in ([] if chosen.mutants else names)]
    tasks += [Task(name=each.name, mutant=True, size=size, max_seconds=chosen.seconds) for each in planted]
    found: dict[Task, ScenarioResult | MutantResult] = {}
    with console.status(f"exploring: 0 of {len(tasks)}") as status:
        for task, result in spread(run, tasks, chosen.processes):
            found[task] = result
            line = f"{len(found)} of {len(tasks)}: {result.name}, {_ended(result)}, {result.seconds:,.1f} s"
            status.update(f"exploring: {escape(line)}")
            # On a terminal the status line moves; elsewhere minutes would pass without output.
            if not console.is_terminal:
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    results = [found[task] for task in tasks]
    scenarios = [each for each in results if isinstance(each, ScenarioResult)]
    mutants = [each for each in results if isinstance(each, MutantResult)]
    if chosen.output == "json":
        sys.stdout.write(msgspec.json.encode({"scenarios": scenarios, "mutants": mutants}).decode() + "\n")
    else:
        terminal = Console()
        show(scenarios, mutants, terminal if terminal.is_terminal else Console(width=180), traces=chosen.traces)
    failed = [each.name for each in scenarios if not each.complete] + [each.name for each in mutants if not each.caught]
    return 1 if failed else 0


def _ended(result: ScenarioResult | MutantResult) -> str:
    if isinstance(result, MutantResult):
        return "caught" if result.caught else "SURVIVED"
    return "all hold" if result.complete else result.violation or "not finished"


def show(
    scenarios: Sequence[ScenarioResult], mutants: Sequence[MutantResult], console: Console, *, traces: bool = False
) -> None:
    """Print both tables, and the trace of every violation."""
    if scenarios:
        table = _table(
            "Scenarios",
            "scenario",
            "what happens",
            "faults",
            ">states",
            ">transitions",
            ">stores",
            ">seconds",
            "for",
            "result",
        )
        for each in scenarios:
            table.add_row(
                each.name, each.what, _faults(each), f"{each.states:,}", f"{each.transitions:,}", f"{each.stores:,}", f"{each.seconds:,.1f}",
                ", ".join(NAMES[number] for number in each.invariants), escape(_ended(each)), style=None if each.complete else "bold red",
            )  # fmt: skip
        states, transitions = sum(each.states for each in scenarios), sum(each.transitions for each in scenarios)
        table.add_section()
        table.add_row(
            "", "", "", f"{states:,}", f"{transitions:,}", "", f"{sum(each.seconds for each in scenarios):,.1f}", "", ""
        )
        console.print(table)
    for each in scenarios:
        if each.violation is not None:
            console.print(f"\n[bold]{escape(each.name)}[/]: {escape(each.violation)}")
            _print_trace(each.trace, console)
    if mutants:
        table = _table(
            "Mutants", "rule that was broken", "rules", "scenario", ">states", ">steps", ">seconds", "caught by"
        )
        for mutant in mutants:
            table.add_row(
                mutant.name, mutant.rules, mutant.scenario, f"{mutant.states:,}", str(mutant.steps), f"{mutant.seconds:,.1f}",
                escape(mutant.rule[:100]) if mutant.caught else "SURVIVED", style=None if mutant.caught else "bold red",
            )  # fmt: skip
        console.print(table)
        caught = sum(mutant.caught for mutant in mutants)
        console.print(f"{caught} of {len(mutants)} mutants caught in {sum(m.seconds for m in mutants):,.0f} s")
    for mutant in mutants if traces else ():
        console.print(f"\n[bold]{escape(mutant.name)}[/]: {escape(mutant.rule)}")
        _print_trace(mutant.trace, console)


def _faults(result: ScenarioResult) -> str:
    """Return the possible faults beside a crash, which can happen to every actor anywhere."""
    kinds = ((result.lost_replies, "lost"), (result.failures, "failed"), (result.ticks, "tick"))
    return ", ".join(f"{number} {kind}" for number, kind in kinds if number)


def _print_trace(trace: Sequence[str], console: Console) -> None:
    for number, line in enumerate(trace, 1):
        console.print(f"  {number:3}  {escape(line)}", highlight=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"), justify="right" if right else "left", no_wrap=right or column == columns[0]
        )
    return table


def _arguments(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m lab.explore", description=__doc__, allow_abbrev=False)
    parser.add_argument("--scenario", action="append", metavar="NAME", help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="small sizes: everything within two minutes")
    parser.add_argument("--mutants", action="store_true", help="only the mutants")
    parser.add_argument(
        "--seconds", type=float, default=3_600.0, help="the limit for one scenario; after that it is not finished"
    )
    parser.add_argument("--traces", action="store_true", help="print how each mutant was caught")
    add_processes(parser)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
