"""How far is each work from its goals? One plot for all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from textwrap import shorten
from typing import Any

MET, NOT_MET = "#2b6777", "#e0a458"
LABEL = 90
"""Characters of a label."""


def plot_goals(published: Iterable[dict[str, Any]], path: Path) -> None:
    """Draw a bar for each result with goals: how many times the bound its worst goal is.

    The bar begins at the bound. To the left the goal is met, to the right it is not.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    # Text stays text, and two runs over the same figures write the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "txlog"})
    from matplotlib import pyplot as plt

    bars = []
    for each in published:
        if goals := [goal for goal in each["goals"] if goal["times"]]:
            worst = max(goals, key=lambda goal: goal["times"])
            bars.append((shorten(f"{each['row']}: {each['title']}", LABEL, placeholder=" …"), worst["times"]))
    figure, axis = plt.subplots(figsize=(11, 0.24 * len(bars) + 1.2), constrained_layout=True)
    axis.barh(
        [label for label, _ in bars],
        [times - 1 for _, times in bars],
        left=1,
        color=[MET if times <= 1 else NOT_MET for _, times in bars],
    )
    for number, (_, times) in enumerate(bars):
        side = "right" if times < 1 else "left"
        axis.text(times, number, f" {times:.2f} ", va="center", ha=side, fontsize=8)
    axis.set_xscale("log")
    axis.margins(x=0.12, y=0.01)
    axis.axvline(1, color="#444444", linewidth=1)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.set_xlabel("worst goal, times its bound (1 and less: all are met)", fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
