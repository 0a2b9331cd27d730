"""Do the random worlds find bugs?

Bugs planted in the shipped protocol, each of which a world must show in its history.
"""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from lab.explore.catalogue import MUTANTS
from lab.histories.events import Poll
from lab.simulate.remains import wrong_uncommitted
from lab.simulate.sharers import Sharer
from lab.simulate.world import Result, World, simulate
from txlog.core.effects import ReadClocks

WORLDS = 100
FIRST = {"an unknown write is taken for a failed one": 30}
"""The world that shows a bug soonest, so it is the first to be tried."""


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def first_with(name: str, kind: str) -> Result | None:
    with BY_NAME[name].planted():
        seeds = range(FIRST.get(name, 0), FIRST.get(name, 0) + WORLDS)
        return next((result for seed in seeds if getattr(result := simulate(seed), kind)), None)


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
    # The history is enough: no assertion of the simulation's own is needed.
    assert first_with(name, "anomalies") is not None, f"{WORLDS} worlds, and none noticed"


def test_a_world_whose_store_goes_back_shows_that_nobody_looks():
    """Writers continue from views of deleted records. The log gets a gap, and acknowledged rows cannot be read."""
    writers, readers = "a writer goes on behind a record that is gone", "a reader takes an older log for the log"
    with BY_NAME[writers].planted(), BY_NAME[readers].planted():
        result = next(
            (found for seed in range(WORLDS) if World(seed).goes_back and not (found := simulate(seed)).ok), None
        )
    assert result is not None, f"{WORLDS} worlds, and none noticed"


def test_the_objects_that_a_world_leaves_show_it():
    # Other worlds notice first that writers took any sequence for the first one of a producer.
    with BY_NAME["a snapshot lacks producers"].planted():
        troubles = ("\n".join(simulate(seed).trouble) for seed in range(WORLDS))
        assert any("is not the fold of the chain" in trouble for trouble in troubles), f"{WORLDS} worlds, none noticed"


def test_a_read_uncommitted_read_that_differs_from_the_last_one_is_trouble():
    """No clean-up took the row, and only the writer could say that it was aborted."""
    worlds = (list(simulate(seed).events) for seed in range(WORLDS))
    events = next(found for found in worlds if any(is_uncommitted(event.what) for event in found))
    assert wrong_uncommitted(events, ()) == []
    at = next(at for at, event in enumerate(events) if is_uncommitted(event.what))
    poll = events[at].what
    assert isinstance(poll, Poll)
    events[at] = msgspec.structs.replace(events[at], what=msgspec.structs.replace(poll, rows=poll.rows[1:]))
    (found,) = wrong_uncommitted(events, ())
    assert "uncommitted, and there is" in found
    assert wrong_uncommitted(events, [f"{poll.topic}/{poll.partition}/{0:020d}.clean"]) == []


def is_uncommitted(what):
    return isinstance(what, Poll) and what.isolation == "read_uncommitted" and what.rows and not what.final


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
