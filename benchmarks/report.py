"""How are the results kept and shown? Raw samples in JSON; tables in Markdown, also in the page of the documentation."""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Goal, Measured, Spec

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
PACKAGES = ("pyarrow", "pyspark", "delta-spark", "deltalake", "confluent-kafka")
EMPTY = "-"


def conditions(*, seed: int, scale: float, scale_factor: float, rounds: int, beside: bool) -> dict[str, Any]:
    """Return what a reader of the figures must know. `beside` says that the machine had other work."""
    import txlog

    versions = {"txlog": txlog.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": versions,
        "seed": seed,
        "scale": scale,
        "scale factor": scale_factor,
        "rounds": rounds,
        "other work beside it": beside,
    }


def to_json(measured: Measured, about: dict[str, Any]) -> dict[str, Any]:
    """Return the raw samples of a spec as JSON's types."""
    rounds = {
        name: [{figure: [round(value, 4) for value in samples] for figure, samples in turn.items()} for turn in turns]
        for name, turns in measured.rounds.items()
    }
    return {
        "row": measured.spec.row,
        "title": measured.spec.title,
        "about": about,
        "rounds": rounds,
        "missing": measured.missing,
    }


def keep(file: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the results; those of other rows, from earlier runs, stay in the file."""
    kept = {(each["row"], each["title"]): each for each in (*load(file), *results)}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(list(kept.values())) + "\n", encoding="utf-8")
    partial.replace(file)


def load(file: Path) -> list[dict[str, Any]]:
    """Return the kept results; none if there is no file."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return found


def of_specs(results: Iterable[dict[str, Any]], specs: Sequence[Spec]) -> list[tuple[Measured, dict[str, Any]]]:
    """Return the results of these specs, in their order, with the conditions of each."""
    kept = {(each["row"], each["title"]): each for each in results}
    return [
        (
            Measured(
                spec=spec,
                rounds=found["rounds"],
                missing=found["missing"],
                full_size=min(found["about"]["scale"], found["about"]["scale factor"]) >= 1,
                beside=found["about"]["other work beside it"],
            ),
            found["about"],
        )
        for spec in specs
        if (found := kept.get((spec.row, spec.title)))
    ]


def goals_table(found: Iterable[Measured]) -> str:
    """Return one line for each goal."""
    lines = [_goal_line(measured, goal) for measured in found for goal in measured.spec.goals]
    return _table(("row", "work", "side", "figure", "value", "beside it", "ratio (quartiles)", "goal", "result"), lines)


def floors(found: Iterable[Measured]) -> str:
    """Return what stands behind the goals that were measured and are not met, as a list."""
    missed = [
        measured.spec
        for measured in found
        if measured.spec.floor and any("not met" in outcome(measured, goal)[1] for goal in measured.spec.goals)
    ]
    return "\n".join(
        ["Some goals are not met. This list has what was tried, and where the floor is.", ""]
        + [f"- {spec.row}, {spec.title}: {spec.floor}" for spec in missed]
        if missed
        else []
    )


def figures_table(found: Iterable[Measured]) -> str:
    """Return one line for each figure of each contestant."""
    lines = []
    for measured in found:
        spec = measured.spec
        for contestant in (each.name for each in spec.contestants):
            if reason := measured.missing.get(contestant):
                lines.append((spec.row, spec.title, contestant, reason, EMPTY, EMPTY, EMPTY))
            for figure in measured.figures(contestant):
                medians, tails = (measured.by_round(contestant, figure, which) for which in ("p50", "p99"))
                spread = f"{_number(min(medians))} to {_number(max(medians))}" if len(medians) > 1 else EMPTY
                cells = (_number(median(medians)), spread, _number(median(tails)))
                lines.append((spec.row, spec.title, contestant, figure, *cells))
    return _table(("row", "work", "side", "figure", "p50", "of the rounds", "p99"), lines)


def conditions_text(found: Sequence[tuple[Measured, dict[str, Any]]]) -> str:
    """Return the conditions of the results as a list, the most results first. Each line begins with its rows.

    A row with results of several runs is named with the titles of its results, except in the first line.
    """
    abouts = {json.dumps(about, sort_keys=True): about for _, about in found}
    runs = {key: [one.spec for one, about in found if about == abouts[key]] for key in abouts}
    shared = Counter(row for specs in runs.values() for row in {spec.row for spec in specs})
    lines: list[str] = []
    for key, specs in sorted(runs.items(), key=lambda run: -len(run[1])):
        about = abouts[key]
        names = dict.fromkeys(f"`{one.row}`" + (f" ({one.title})" if shared[one.row] > 1 else "") for one in specs)
        rows = f"Results of {', '.join(names)}" if lines else "All other results" if len(runs) > 1 else "All results"
        versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
        quiet = "other work beside it: provisional" if about["other work beside it"] else "no other work beside it"
        sizes = f"scale {about['scale']:g}, TPC-H's scale factor {about['scale factor']:g}, {about['rounds']} rounds, seed {about['seed']}"
        lines.append(f"- {rows}: {about['date']}; {about['machine']}; {quiet}; {sizes}; {versions}.")
    return "\n".join(lines)


def publish(page: Path, found: Sequence[tuple[Measured, dict[str, Any]]], specs: Sequence[Spec], plot: Path) -> None:
    """Replace the generated part of the page. It also names the rows of `specs` that have no result."""
    measured = [each for each, _ in found]
    rows = {each.spec.row for each in measured}
    without = [row for row in dict.fromkeys(spec.row for spec in specs) if row not in rows]
    parts = (
        conditions_text(found),
        f"These rows have no published result: {', '.join(without)}." if without else "Every row has a result.",
        goals_table(measured),
        floors(measured),
        f"![How far each figure is from its goal]({plot.name})",
        "### All figures",
        figures_table(measured),
    )
    text = page.read_text(encoding="utf-8")
    made = "\n\n".join(part for part in (BEGIN, *parts, END) if part)
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: made, text, flags=re.DOTALL), encoding="utf-8")


def is_met(measured: Measured, goal: Goal) -> bool:
    """Return whether the goal was measured and is met."""
    value, _ = outcome(measured, goal)
    return value is not None and goal.is_met(value)


def outcome(measured: Measured, goal: Goal) -> tuple[float | None, str]:
    """Return what the goal bounds (None if it is not established), and the result in words."""
    values = measured.by_round(goal.of, goal.figure, goal.statistic)
    theirs = measured.by_round(goal.versus, goal.figure, goal.statistic) if goal.versus else values
    if not values or not theirs:
        return None, "not measured"
    if goal.versus is None:
        value = median(values)
    elif (ratio := measured.ratio(goal)) is None:
        return None, "spread too wide"
    else:
        value = ratio.median
    result = "met" if goal.is_met(value) else "**not met**"
    if not measured.full_size:
        result = "not at full size"
    elif measured.beside and not measured.spec.once:
        result += ", provisional"
    return value, result


def _goal_line(measured: Measured, goal: Goal) -> tuple[str, ...]:
    spec = measured.spec
    mine, theirs = (
        _number(median(values)) if (values := measured.by_round(name, goal.figure, goal.statistic)) else EMPTY
        for name in (goal.of, goal.versus or "")
    )
    beside = f"{goal.versus} {theirs}" if goal.versus else EMPTY
    ratio = measured.ratio(goal) if goal.versus else None
    shown = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else EMPTY
    figure = f"{goal.statistic} {goal.figure}"
    return spec.row, spec.title, goal.of, figure, mine, beside, shown, str(goal), outcome(measured, goal)[1]


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
