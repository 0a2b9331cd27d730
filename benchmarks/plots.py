"""How far is each figure from its goal? One plot for all goals."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import Measured
from benchmarks.report import outcome

MET, NOT_MET = "#2b6777", "#e0a458"


def plot_goals(found: Iterable[Measured], path: Path) -> None:
    """Draw a bar for each goal that was measured: how many times the bound, so that 1 and less is met."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    bars = []
    for measured in found:
        for goal in measured.spec.goals:
            value, _ = outcome(measured, goal)
            bound = goal.at_least if goal.at_most is None else goal.at_most
            if value and bound and measured.full_size:
                times = value / bound if goal.at_most is not None else bound / value
                label = f"{measured.spec.row}  {measured.spec.title}: {goal.statistic} {goal.figure} {goal}"
                bars.append((label, times))
    figure, axis = plt.subplots(figsize=(10, 0.3 * len(bars) + 1.2), constrained_layout=True)
    axis.barh(
        [label for label, _ in bars],
        [times for _, times in bars],
        color=[MET if times <= 1 else NOT_MET for _, times in bars],
    )
    for number, (_, times) in enumerate(bars):
        axis.text(times, number, f" {times:.2f}", va="center", fontsize=7)
    axis.set_xscale("log")
    axis.axvline(1, color="#444444", linewidth=1)
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set_xlabel("times the bound of the goal (1 and less: met)", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
