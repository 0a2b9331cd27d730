"""How is a row of the table measured?

A spec names its contestants and its goals. `measure` starts all contestants and lets them run in turns, in another
order each round, so that a change of the machine's speed affects all of them equally. A ratio compares two contestants
round by round. If the ratios of the rounds differ too much, no ratio is given.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.resources import Resources

Samples = Mapping[str, Sequence[float]]
"""What one turn of a contestant measured, by figure. The name of a figure contains its unit."""
Statistic = Literal["p50", "p99"]

KAFKA = "Kafka"
"""How the names of the contestants begin that need Kafka's broker."""
WIDEST_SPREAD = 1.5
"""Between the quartiles of the rounds' ratios. A wider spread establishes no ratio."""
FEWEST_ROUNDS = 3


class NotAvailable(Exception):  # noqa: N818  it is an answer, not a failure
    """A contestant cannot run here, because a package or a file is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a contestant works, and how much."""

    folder: Path
    """Its own folder, empty at the start."""
    resources: Resources
    """What contestants share, for example the input and Spark."""
    seed: int
    scale: float = 1.0
    """Multiplies the sizes of works; 1 is the size that the goals mean."""

    def sized(self, number: int, *, least: int = 1) -> int:
        """Return that number for this run."""
        return max(round(number * self.scale), least)

    def paused(self, pause_s: float) -> float:
        """Return that pause for this run. Only tests shorten it: with less than a tenth of the size."""
        return pause_s * min(1.0, self.scale * 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One side of a comparison.

    `start` sets the contestant up, yields the call that is one turn, and clears up. It raises NotAvailable if the
    machine lacks something.
    """

    name: str
    start: Callable[[Place], AbstractContextManager[Callable[[], Samples]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound for one contestant: for its figure, or for the ratio of its figure to that of `versus`."""

    of: str
    figure: str
    versus: str | None = None
    at_most: float | None = None
    at_least: float | None = None
    statistic: Statistic = "p50"

    def __str__(self) -> str:
        sign, bound = ("≥", self.at_least) if self.at_most is None else ("≤", self.at_most)
        if self.at_most == self.at_least:
            sign = "="
        return f"{sign} {bound:g}" + (f" × {self.versus}" if self.versus else "")

    def is_met(self, value: float) -> bool:
        """Return whether the figure, or the ratio, keeps the bound."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One row, or one part of a row."""

    row: str
    """The row's name, such as P3. The parts of a row have the same name."""
    title: str
    contestants: tuple[Contestant, ...]
    goals: tuple[Goal, ...] = ()
    warm_up: int = 1
    """Turns of each contestant that do not count."""
    rounds: int | None = None
    """Overrides the rounds of the run, if a turn takes minutes."""
    once: bool = False
    """One round without a warm-up, and each ratio is given: for counts, and for works that repeat themselves."""
    apart: bool = False
    """Whether it runs only if its row is named, because it takes very long."""
    floor: str = ""
    """For goals that are not met: what was tried, and what the floor is. The page shows it then."""

    @property
    def needs_kafka(self) -> bool:
        """Return whether a contestant needs Kafka's broker."""
        return any(each.name.startswith(KAFKA) for each in self.contestants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median of the rounds' ratios, and their quartiles."""

    median: float
    low: float
    high: float


@dataclass(slots=True, kw_only=True)
class Measured:
    """The samples of one spec: by contestant, and by round."""

    spec: Spec
    rounds: dict[str, list[Samples]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a contestant did not run."""
    full_size: bool = True
    """Whether the work has the size that the goals mean."""
    beside: bool = False
    """Whether the machine had other work."""
    broker: Mapping[str, Any] | None = None
    """How Kafka's broker was warmed, if it took part."""

    def figures(self, contestant: str) -> list[str]:
        """Return the names of a contestant's figures."""
        return list(dict.fromkeys(name for samples in self.rounds.get(contestant, []) for name in samples))

    def by_round(self, contestant: str, figure: str, statistic: Statistic = "p50") -> list[float]:
        """Return one value for each round."""
        taken = [samples[figure] for samples in self.rounds.get(contestant, []) if samples.get(figure)]
        return [value_of(samples, statistic) for samples in taken]

    def ratio(self, goal: Goal) -> Ratio | None:
        """Return the ratio that a goal bounds; None if a side is missing, or if the spread is too wide."""
        mine = self.by_round(goal.of, goal.figure, goal.statistic)
        theirs = self.by_round(goal.versus, goal.figure, goal.statistic) if goal.versus else []
        ratios = [left / right for left, right in zip(mine, theirs, strict=False) if right]
        if self.spec.once and ratios:
            return Ratio(median=ratios[-1], low=ratios[-1], high=ratios[-1])
        if len(ratios) < FEWEST_ROUNDS:
            return None
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return Ratio(median=median, low=low, high=high) if high <= WIDEST_SPREAD * low else None


def measure(
    spec: Spec,
    resources: Resources,
    folder: Path,
    *,
    rounds: int,
    seed: int,
    scale: float = 1.0,
    note: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Run the spec. `note` gets a line for each step."""
    measured = Measured(spec=spec)
    rounds = 1 if spec.once else spec.rounds or rounds
    with ExitStack() as stack:
        turns = {}
        for number, contestant in enumerate(spec.contestants):
            note(f"start {contestant.name}")
            own = folder / str(number)
            own.mkdir(parents=True)
            place = Place(folder=own, resources=resources, seed=seed, scale=scale)
            try:
                turns[contestant.name] = stack.enter_context(contestant.start(place))
            except NotAvailable as reason:
                measured.missing[contestant.name] = str(reason)
        for name, turn in turns.items():
            for _ in range(0 if spec.once else spec.warm_up):
                note(f"warm up {name}")
                turn()
        dice = random.Random(f"{seed} {spec.row} {spec.title}")
        names = list(turns)
        for number in range(rounds):
            # Each second round has the reverse order of the one before.
            if number % 2:
                names.reverse()
            else:
                dice.shuffle(names)
            for name in names:
                note(f"round {number + 1} of {rounds}: {name}")
                measured.rounds.setdefault(name, []).append(turns[name]())
    if any(name.startswith(KAFKA) for name in turns):
        measured.broker = resources.about_kafka()
    return measured


def value_of(samples: Sequence[float], statistic: Statistic) -> float:
    """Return the statistic; with few samples, p99 is the largest one."""
    if statistic == "p50":
        return statistics.median(samples)
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
