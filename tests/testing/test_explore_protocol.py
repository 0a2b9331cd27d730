"""The shipped protocol, explored: small sizes of every scenario, and every mutant caught. `make simulate` runs them whole."""

from __future__ import annotations

import pytest

from txlog.testing.explore.mutants import MUTANTS, Mutant
from txlog.testing.explore.runner import explore, hunt
from txlog.testing.explore.scenarios import SCENARIOS


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_invariant_holds_in_every_state(name: str) -> None:
    result = explore(SCENARIOS[name], "quick")
    assert result.violation is None, "\n".join((result.violation or "", *result.trace))
    assert result.complete


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    result = hunt(mutant)
    assert result.caught, f"{mutant.scenario!r} does not notice: {mutant.name}"
