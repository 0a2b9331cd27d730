"""`python -m benchmarks [P3 P8 ...]`: measure rows of the table, beside rivals in the same run."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from benchmarks import report
from benchmarks.harness import Spec, measure
from benchmarks.plots import plot_goals
from benchmarks.resources import Resources
from benchmarks.specs import all_specs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = PAGE.with_suffix(".json")
CACHE = Path.home() / ".cache" / "txlog" / "bench"


def main(
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows such as P3 (default: all but erase and longest-run).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds that count.", min=1)] = 5,
    scale: Annotated[float, typer.Option(help="Multiplies the sizes of all works; 1 is what the goals mean.")] = 1.0,
    quick: Annotated[bool, typer.Option("--quick", help="The same as --rounds 3 --scale 0.1.")] = False,
    scale_factor: Annotated[float, typer.Option(help="TPC-H's scale factor of the input.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the rows, and of the order of the contestants.")] = 1,
    beside: Annotated[bool, typer.Option("--beside", help="The machine has other work: say so in the page.")] = False,
    publish: Annotated[
        bool,
        typer.Option(
            "--publish", help="Measure nothing; write the kept results into docs/benchmarks.json, and its page."
        ),
    ] = False,
    rest: Annotated[
        bool, typer.Option("--rest", help="Only what has no result of today under the same conditions.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit status 1 if a goal of these rows is not met at full size.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder for bench.json and the tables.")] = Path("reports"),
) -> None:
    """Measure, print the table of goals, and keep the raw samples."""
    # A run that is stopped clears up too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if quick:
        rounds, scale, scale_factor = 3, 0.1, 0.1
    specs = all_specs()
    chosen = choose(specs, rows or [])
    about = report.conditions(seed=seed, scale=scale, scale_factor=scale_factor, rounds=rounds, beside=beside)
    kept = output / "bench.json"
    failed = [] if publish else run(without_result(chosen, kept, about) if rest else chosen, kept, about)
    results = report.load(kept)
    found = report.of_specs(results, chosen)
    mine = [measured for measured, _ in found]
    about_them = report.conditions_text(report.in_order(results, chosen))
    text = "\n\n".join((about_them, report.goals_table(mine), report.figures_table(mine)))
    output.mkdir(parents=True, exist_ok=True)
    (output / PAGE.name).write_text(text + "\n", encoding="utf-8")
    print(text)
    if publish:
        measured_now = [report.summary(*each) for each in report.of_specs(results, specs)]
        published = report.in_order([*report.load(FIGURES), *measured_now], specs)
        report.write(FIGURES, published)
        plot = PAGE.with_suffix(".svg")
        plot_goals(published, plot)
        report.publish(PAGE, published, specs, plot)
    missed = [
        measured.spec.title
        for measured in mine
        # A small run decides nothing.
        if measured.full_size and not all(report.is_met(measured, goal) for goal in measured.spec.goals)
    ]
    if check and missed:
        print(f"not met: {'; '.join(missed)}", file=sys.stderr)
        raise typer.Exit(1)
    if failed:
        print(f"these failed: {'; '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def choose(specs: tuple[Spec, ...], rows: list[str]) -> tuple[Spec, ...]:
    """Return the specs of these rows; if none is named, all that do not run apart. Exits if a name is unknown."""
    known = list(dict.fromkeys(spec.row for spec in specs))
    if unknown := [row for row in rows if row not in known]:
        raise typer.BadParameter(f"{', '.join(unknown)} is not a row; the rows are {', '.join(known)}")
    return tuple(spec for spec in specs if (spec.row in rows if rows else not spec.apart))


def without_result(specs: tuple[Spec, ...], kept: Path, about: dict[str, Any]) -> tuple[Spec, ...]:
    """Return the specs that have no result of today under the same conditions."""
    done = {(each["row"], each["title"]) for each in report.load(kept) if each["about"] == about}
    return tuple(spec for spec in specs if (spec.row, spec.title) not in done)


def run(specs: tuple[Spec, ...], kept: Path, about: dict[str, Any]) -> list[str]:
    """Measure each spec, and keep its samples at once, so that a stopped run loses only one.

    Return those that failed.
    """
    console = Console(file=sys.stderr)
    failed = []
    began = time.perf_counter()
    # Kafka's rows come first, so that they share one warm broker, and so that no other row runs beside it.
    specs = tuple(sorted(specs, key=lambda spec: not spec.needs_kafka))
    with Resources(CACHE, scale_factor=about["scale factor"]) as resources:
        for number, spec in enumerate(specs, 1):
            if not spec.needs_kafka:
                resources.end_kafka()
            head = f"{number}/{len(specs)} {spec.row} {spec.title}"
            folder = Path(tempfile.mkdtemp(prefix="txlog-bench-"))
            try:
                with console.status(head) as status:
                    measured = measure(
                        spec,
                        resources,
                        folder,
                        rounds=about["rounds"],
                        seed=about["seed"],
                        scale=about["scale"],
                        note=partial(_tell, status, head),
                    )
                report.keep(kept, [report.to_json(measured, about)])
            except Exception:
                # The other rows are still worth their hour. They may need a Spark that this row has broken.
                console.print_exception(max_frames=4)
                failed.append(head)
                resources.restart()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            console.print(f"{head}: {time.perf_counter() - began:,.0f} s since the start")
    return failed


def _tell(status: Status, head: str, step: str) -> None:
    status.update(f"{head}: {step}")


if __name__ == "__main__":
    typer.run(main)
