"""Runs scenarios and mutants, and returns the findings: `make simulate` prints its tables from these values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import msgspec

from lab.explore import frames
from lab.explore.catalogue import EXPLORED, SCENARIOS
from lab.explore.explorer import Exploration, Violation
from lab.explore.mutant import Mutant, patched
from lab.explore.publisher import rows_are_words
from lab.explore.rules import Rules
from lab.explore.scene import Scenario, Size
from lab.explore.world import decoded_once, encoded_once
from txlog.errors import TxlogError

MAX_MUTANT_SECONDS = 60.0


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exploration of one scenario."""

    name: str
    what: str
    size: str
    actors: tuple[str, ...]
    lost_replies: int
    failures: int
    ticks: int
    states: int
    transitions: int
    stores: int
    """Different stores that were reached; from each a lone successor was run to its end."""
    spots: int
    """Different places of the shipped generators."""
    recoveries: int
    seconds: float
    invariants: tuple[int, ...]
    """The invariants for which the scenario exists. Every scenario checks all of them."""
    endings: tuple[str, ...]
    """The last answer that each actor got."""
    complete: bool
    violation: str | None = None
    trace: tuple[str, ...] = ()


class MutantResult(msgspec.Struct, frozen=True, kw_only=True):
    """One mutant, and whether its scenario failed."""

    name: str
    rules: str
    """The rules that the mutant breaks, by their numbers in PROTOCOL.md."""
    scenario: str
    caught: bool
    rule: str
    """The message of the scenario."""
    states: int
    steps: int
    """The number of steps in the trace."""
    seconds: float
    trace: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario or a mutant by its name, as a task for another process."""

    name: str
    mutant: bool = False
    size: Size
    """A mutant is hunted in the small size."""
    max_seconds: float


def run(task: Task) -> ScenarioResult | MutantResult:
    """Explore the scenario, or hunt the mutant."""
    if not task.mutant:
        return explore(SCENARIOS[task.name], task.size, max_seconds=task.max_seconds)
    (mutant,) = (each for each in EXPLORED if each.name == task.name)
    return hunt(mutant, max_seconds=min(task.max_seconds, MAX_MUTANT_SECONDS))


def explore(scenario: Scenario, size: Size, *, max_seconds: float = 3_600.0) -> ScenarioResult:
    """Explore one scenario to its end, in breadth: the trace of a violation is a shortest one."""
    with _prepared(), patched(scenario.patches):
        scene = scenario.build(size)
        explorer = scene.explorer()
        found = explorer.run(max_seconds=max_seconds)
    watch = explorer.watch
    assert isinstance(watch, Rules)
    return ScenarioResult(
        name=scenario.name,
        what=scenario.what,
        size=size,
        actors=tuple(scene.actors),
        lost_replies=scene.budget.lost,
        failures=scene.budget.failures,
        ticks=len(scene.budget.ticks),
        states=found.states,
        transitions=found.transitions,
        stores=found.stores,
        spots=found.spots,
        recoveries=watch.recoveries,
        seconds=round(found.seconds, 2),
        invariants=scenario.rules,
        endings=tuple(sorted(found.ended)),
        complete=found.complete,
        violation=found.violation.rule if found.violation is not None else None,
        trace=found.violation.trace if found.violation is not None else (),
    )


def hunt(mutant: Mutant, *, max_seconds: float = MAX_MUTANT_SECONDS) -> MutantResult:
    """Explore the mutant's scenario in its small size, in depth, until a rule fails."""
    scenario = SCENARIOS[mutant.scenario]
    with _prepared(), patched(scenario.patches), mutant.planted():
        try:
            explorer = scenario.build("quick").explorer(order="depth")
        except (TxlogError, AssertionError) as error:
            # The mutant breaks so much that the scenario cannot even begin.
            found = Exploration(violation=Violation(rule=f"15 liveness: {type(error).__name__}: {error}", trace=()))
        else:
            found = explorer.run(max_seconds=max_seconds)
    violation = found.violation
    return MutantResult(
        name=mutant.name,
        rules=mutant.rules,
        scenario=mutant.scenario,
        caught=violation is not None,
        rule=violation.rule if violation is not None else "",
        states=found.states,
        steps=len(violation.trace) if violation is not None else 0,
        seconds=round(found.seconds, 2),
        trace=violation.trace if violation is not None else (),
    )


@contextmanager
def _prepared() -> Iterator[None]:
    """Decode each record once, and forget the values of the previous exploration."""
    frames.forget()
    with ExitStack() as stack:
        stack.enter_context(rows_are_words())
        for module, name, once in (
            ("load", "stored_records", decoded_once),
            ("slot_record", "stored_record", encoded_once),
        ):
            stack.enter_context(patch(f"txlog.protocol.{module}.{name}", once))
        yield
