"""How are the results kept and shown? Raw samples and figures in JSON; tables in Markdown.

A run keeps its samples. The documentation keeps their figures in a file beside its page, and the page is made from it.
"""

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
        **_about_broker(measured),
    }


def keep(file: Path, results: Sequence[dict[str, Any]]) -> None:
    """Write the results; those of other rows, from earlier runs, stay in the file."""
    kept = {(each["row"], each["title"]): each for each in (*load(file), *results)}
    write(file, kept.values())


def write(file: Path, results: Iterable[dict[str, Any]]) -> None:
    """Replace the file, with a line for each result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in results)
    partial.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    partial.replace(file)


def load(file: Path) -> list[dict[str, Any]]:
    """Return the kept results; none if there is no file."""
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return found


def in_order(results: Iterable[dict[str, Any]], specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """Return the newest result of each of these specs, in their order."""
    kept = {(each["row"], each["title"]): each for each in results}
    return [found for spec in specs if (found := kept.get((spec.row, spec.title)))]


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
                broker=found.get("broker"),
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
                spread = f"{number(min(medians))} to {number(max(medians))}" if len(medians) > 1 else EMPTY
                cells = (number(median(medians)), spread, number(median(tails)))
                lines.append((spec.row, spec.title, contestant, figure, *cells))
    return _table(("row", "work", "side", "figure", "p50", "of the rounds", "p99"), lines)


def conditions_text(results: Sequence[dict[str, Any]]) -> str:
    """Return the conditions of the results as a list, the most results first. Each line begins with its rows.

    A row with results of several runs is named with the titles of its results, except in the first line.
    """
    abouts = {json.dumps(each["about"], sort_keys=True): each["about"] for each in results}
    runs = {key: [each for each in results if each["about"] == about] for key, about in abouts.items()}
    shared = Counter(row for mine in runs.values() for row in {each["row"] for each in mine})
    lines: list[str] = []
    for key, mine in sorted(runs.items(), key=lambda run: -len(run[1])):
        about = abouts[key]
        names = dict.fromkeys(
            f"`{each['row']}`" + (f" ({each['title']})" if shared[each["row"]] > 1 else "") for each in mine
        )
        rows = f"Results of {', '.join(names)}" if lines else "All other results" if len(runs) > 1 else "All results"
        versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
        quiet = "other work beside it: provisional" if about["other work beside it"] else "no other work beside it"
        sizes = (
            f"scale {about['scale']:g}, TPC-H's scale factor {about['scale factor']:g}, "
            f"{about['rounds']} rounds, seed {about['seed']}"
        )
        lines.append(f"- {rows}: {about['date']}; {about['machine']}; {quiet}; {sizes}; {versions}.")
    return "\n".join([*lines, *_broker_lines(results)])


def _broker_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each of Kafka's brokers: how it was warmed, and for which rows."""
    brokers: dict[str, dict[str, None]] = {}
    for each in results:
        if broker := each.get("broker"):
            first, last = (number(rate) for rate in (broker["per s"][0], broker["per s"][-1]))
            how = f"warmed for {broker['warm-up s']:.0f} s, from {first} to {last} transactions per s"
            brokers.setdefault(how, {})[f"`{each['row']}`"] = None
    return [f"- Kafka's broker of {', '.join(rows)}: {how}." for how, rows in brokers.items()]


def summary(measured: Measured, about: dict[str, Any]) -> dict[str, Any]:
    """Return what the documentation keeps of a result, as JSON's types: goals and figures without the samples."""
    spec = measured.spec
    figures = {
        name: {figure: _figure(measured, name, figure) for figure in measured.figures(name)} for name in measured.rounds
    }
    return {
        "row": spec.row,
        "title": spec.title,
        "about": about,
        "missing": measured.missing,
        "goals": [_goal(measured, goal) for goal in spec.goals],
        "figures": figures,
        **_about_broker(measured),
    }


def results_table(published: Iterable[dict[str, Any]]) -> str:
    """Return one line for each result that has goals: its first goal, and how many of its goals are met."""
    lines = []
    for each in published:
        if not each["goals"]:
            continue
        goal, *_ = each["goals"]
        states = [one["result"].partition(",")[0] for one in each["goals"]]
        met = f"{states.count('met')} of {len(states)}"
        if open_ones := sorted({state for state in states if state not in ("met", "not met")}):
            met += f" ({', '.join(open_ones)})"
        elif goal["result"].endswith("provisional"):
            met += ", provisional"
        theirs = f"{goal['beside']}: {_shown(goal['theirs'])}" if goal["beside"] else EMPTY
        cells = (f"{goal['side']}: {_shown(goal['value'])}", theirs)
        lines.append(
            (each["row"], each["title"], goal["figure"], *cells, _shown_ratio(goal["ratio"]), goal["goal"], met)
        )
    return _table(("row", "work", "figure", "txlog", "beside it", "ratio (quartiles)", "goal", "goals met"), lines)


def missed(published: Iterable[dict[str, Any]], specs: Sequence[Spec]) -> str:
    """Return the goals that were measured and are not met, as a list: figure, what was tried, where the floor is."""
    floors = {(spec.row, spec.title): spec.floor for spec in specs}
    lines = []
    for each in published:
        goals = [
            f"{one['figure']} of {one['side']} is {_shown(one['value'])}"
            + (f", {one['ratio'][0]:.2f} × {one['beside']}" if one["ratio"] else "")
            + f"; the goal is {one['goal']}"
            for one in each["goals"]
            if one["result"].startswith("not met")
        ]
        if goals:
            floor = floors.get((each["row"], each["title"]), "")
            lines.append(f"- **{each['row']}, {each['title']}.** {'. '.join(goals)}. {_sentence(floor)}".rstrip())
    return "\n".join(lines)


def publish(page: Path, published: Sequence[dict[str, Any]], specs: Sequence[Spec], plot: Path) -> None:
    """Replace the generated part of the page. It also names the rows of `specs` that have no result."""
    rows = {each["row"] for each in published}
    without = [row for row in dict.fromkeys(spec.row for spec in specs) if row not in rows]
    parts = (
        results_table(published),
        f"These rows have no published result: {', '.join(without)}." if without else "",
        f"![How far each figure is from its goal]({plot.name})",
        "### Goals that are not met",
        missed(published, specs) or "Every goal that was measured is met.",
        "### Conditions",
        conditions_text(published),
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
    result = "met" if goal.is_met(value) else "not met"
    if not measured.full_size:
        result = "not at full size"
    elif measured.beside and not measured.spec.once:
        result += ", provisional"
    return value, result


def number(value: float) -> str:
    """Return a figure as the tables show it."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _about_broker(measured: Measured) -> dict[str, Any]:
    return {"broker": measured.broker} if measured.broker else {}


def _figure(measured: Measured, name: str, figure: str) -> dict[str, Any]:
    medians, tails = (measured.by_round(name, figure, which) for which in ("p50", "p99"))
    return {
        "p50": round(median(medians), 4),
        "of the rounds": [round(min(medians), 4), round(max(medians), 4)],
        "p99": round(median(tails), 4),
    }


def _goal(measured: Measured, goal: Goal) -> dict[str, Any]:
    mine, theirs = (
        round(median(values), 4) if (values := measured.by_round(name, goal.figure, goal.statistic)) else None
        for name in (goal.of, goal.versus or "")
    )
    ratio = measured.ratio(goal) if goal.versus else None
    value, result = outcome(measured, goal)
    return {
        "side": goal.of,
        "figure": f"{goal.statistic} {goal.figure}",
        "value": mine,
        "beside": goal.versus,
        "theirs": theirs,
        "ratio": [round(one, 4) for one in (ratio.median, ratio.low, ratio.high)] if ratio else None,
        "goal": str(goal),
        "times": round(times, 4) if (times := _times(goal, value)) and measured.full_size else None,
        "result": result,
    }


def _times(goal: Goal, value: float | None) -> float | None:
    """Return how many times the bound the figure is, so that 1 and less is met."""
    bound = goal.at_least if goal.at_most is None else goal.at_most
    if not value or not bound:
        return None
    return value / bound if goal.at_most is not None else bound / value


def _goal_line(measured: Measured, goal: Goal) -> tuple[str, ...]:
    found = _goal(measured, goal)
    beside = f"{goal.versus} {_shown(found['theirs'])}" if goal.versus else EMPTY
    result = "**not met**" if found["result"] == "not met" else found["result"]
    cells = (goal.of, found["figure"], _shown(found["value"]), beside, _shown_ratio(found["ratio"]), found["goal"])
    return measured.spec.row, measured.spec.title, *cells, result


def _shown(value: float | None) -> str:
    return EMPTY if value is None else number(value)


def _shown_ratio(ratio: Sequence[float] | None) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else EMPTY


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
