"""Do the random worlds find bugs? Bugs planted in the shipped protocol, each of which a world must show in its history."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

import pytest

from lab.simulate.sharers import Sharer
from lab.simulate.world import Result, World, simulate
from tests.protocol.test_mutants import MUTANTS, keep_view
from txlog.core.effects import ReadClocks

WORLDS = 100


def first_bad(name: str) -> Result | None:
    with patch(MUTANTS[name].target, MUTANTS[name].becomes):
        return next((result for seed in range(WORLDS) if not (result := simulate(seed)).ok), None)


@pytest.mark.parametrize(
    "name",
    [
        "markers are compared with >",
        "a view never grows old",
        "sequences are not checked",
        "an unknown write is taken for a failed one",
        "the LSO passes an open transaction",
        # It takes many worlds until one shows it.
        pytest.param("conditions look at committed offsets alone", marks=pytest.mark.storm),
    ],
)
def test_a_world_shows_it(name):
    result = first_bad(name)
    assert result is not None, f"{WORLDS} worlds, and none noticed"
    # The history is enough: no assertion of the simulation's own is needed.
    assert result.anomalies, result


def test_a_world_whose_store_goes_back_shows_that_nobody_looks():
    """Writers continue from views of deleted records. The log gets a gap, and acknowledged rows cannot be read."""
    with ExitStack() as planted:
        for module in ("slot", "load"):
            planted.enter_context(patch(f"txlog.protocol.{module}.prove", keep_view))
        result = next(
            (found for seed in range(WORLDS) if World(seed).goes_back and not (found := simulate(seed)).ok), None
        )
    assert result is not None, f"{WORLDS} worlds, and none noticed"


def _lives(self):
    """Do not look at the session (W56)."""
    return (yield ReadClocks())


def _quiet_soon(self, now):
    """Remove others a quarter of their session after their last heartbeat (W53)."""
    return {name: beat for name, (beat, seen) in self.watched.items() if now.monotonic_ms - seen > self.session_ms // 4}


@pytest.mark.parametrize(("method", "mutant"), [("_must_live", _lives), ("_quiet", _quiet_soon)])
def test_a_world_shows_that_two_members_read_one_partition(method, mutant):
    with patch.object(Sharer, method, mutant):
        found = next((result for seed in range(WORLDS) if not (result := simulate(seed)).ok), None)
    assert found is not None, f"{WORLDS} worlds, and none noticed"
    assert "which generation" in str(found)
