"""Which scenarios and mutants are there? All of them, from the modules that hold them by subject."""

from __future__ import annotations

from lab.explore import (
    appends,
    columns,
    combining,
    compactions,
    erasures,
    expiry,
    groups,
    merges,
    one_phase,
    past,
    publications,
    publishing,
    reads,
    restored,
    sharing,
    small,
    tested,
    topics,
    transactions,
    vacuums,
)
from lab.explore.mutant import Mutant
from lab.explore.scene import Scenario

_SUBJECTS = (
    appends,
    transactions,
    expiry,
    groups,
    reads,
    merges,
    compactions,
    erasures,
    vacuums,
    topics,
    restored,
    publishing,
    small,
    past,
    publications,
    columns,
    sharing,
    one_phase,
    combining,
)

SCENARIOS: dict[str, Scenario] = {
    name: scenario for subject in _SUBJECTS for name, scenario in subject.SCENARIOS.items()
}
EXPLORED: tuple[Mutant, ...] = tuple(mutant for subject in _SUBJECTS for mutant in subject.MUTANTS)
"""Each broken rule that a scenario must notice."""
MUTANTS: tuple[Mutant, ...] = (*EXPLORED, *tested.MUTANTS)
"""All broken rules, each with the scenario or the test that must notice it."""
