"""A real SIGKILL after every write of every public operation on the local store, and then a new process.

The storm also kills before each write. `test_crash` covers each request, also reads, in one process. Here the operating
system ends the process with all its threads, and the state is what the disk has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.operations import OPERATIONS
from tests.crash.processes import Place, Tally, kill_everywhere
from txlog.testing.failing_store import Moment

pytestmark = pytest.mark.slow
LEAST_KILLS = 7
"""The average number of kills of an operation."""
OFTEN = ("append", "eager transaction", "staged transaction", "pipeline", "takeover", "group commit", "Spark commit")
NAMES = [name if name in OFTEN else pytest.param(name, marks=pytest.mark.storm) for name in OPERATIONS]
"""`test_crash` crashes the other operations at every request; `make test-storm` kills them too."""
MOMENTS = ("after", pytest.param("before", marks=pytest.mark.storm))
"""The store before the second write equals the store after the first one, so only `make test-storm` runs half of the
kills."""


@pytest.fixture(scope="module")
def tallies() -> Iterator[dict[Moment, Tally]]:
    found: dict[Moment, Tally] = {"before": Tally(), "after": Tally()}
    yield found
    for moment, total in found.items():
        print(f"\n{moment}: {total.kills} SIGKILLs, {total.restarts} restarts: invariants 1-12 hold")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_every_write(name: str, moment: Moment, tmp_path: Path, tallies: dict[Moment, Tally]) -> None:
    def place(point: str) -> Place:
        return Place(url=str(tmp_path / point), options={"fsync": False})

    done = kill_everywhere(name, place, tmp_path, moments=(moment,))
    assert done.kills == done.restarts > 0
    tallies[moment].kills += done.kills
    tallies[moment].restarts += done.restarts


@pytest.mark.parametrize("moment", MOMENTS)
def test_enough_were_killed(moment: Moment, tallies: dict[Moment, Tally], request: pytest.FixtureRequest) -> None:
    """Detect a change that makes the kills miss. (This counts the tests that ran before it.)"""
    names = [item.name for item in request.session.items]
    ran = [name for name in names if name.startswith("test_a_kill_at_every_write[") and name.endswith(f"-{moment}]")]
    if len(ran) >= len(OFTEN):
        assert tallies[moment].kills >= LEAST_KILLS * len(ran)
