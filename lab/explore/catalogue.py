"""Which scenarios and mutants are there? All of them, from the modules that hold them by subject."""

from __future__ import annotations

from lab.explore import columns, mutants, past, publications, scenarios, sharing, small
from lab.explore.mutants import Mutant
from lab.explore.scenarios import Scenario

_SUBJECTS = (scenarios, small, past, publications, columns, sharing)

SCENARIOS: dict[str, Scenario] = {
    name: scenario for subject in _SUBJECTS for name, scenario in subject.SCENARIOS.items()
}
MUTANTS: tuple[Mutant, ...] = (
    *mutants.MUTANTS,
    *small.MUTANTS,
    *past.MUTANTS,
    *publications.MUTANTS,
    *columns.MUTANTS,
    *sharing.MUTANTS,
)
"""Each broken rule, and the scenario that must notice it."""
