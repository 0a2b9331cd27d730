"""A real SIGKILL after (in a storm also before) every write of every public operation, on the local store; then a new process.

`test_crash` covers each request, reads too, in one process; here the operating system takes the process away with all
its threads, and the rest is what lies on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.operations import OPERATIONS
from tests.crash.processes import Place, Tally, kill_everywhere
from txlog.testing.failing_store import Moment

pytestmark = pytest.mark.slow
LEAST_KILLS = 150
MOMENTS = ("after", pytest.param("before", marks=pytest.mark.storm))
"""Before the second write there lies what lay there after the first, so that half of the kills are left to `make test-storm`."""


@pytest.fixture(scope="module")
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    total = Tally()
    yield total
    print(f"\n{total.kills} SIGKILLs, {total.restarts} restarts: invariants 1-12 hold")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_kill_at_every_write(name: str, moment: Moment, tmp_path: Path, tally: Tally) -> None:
    def place(point: str) -> Place:
        return Place(url=str(tmp_path / point), options={"fsync": False})

    done = kill_everywhere(name, place, tmp_path, moments=(moment,))
    assert done.kills == done.restarts > 0
    tally.kills += done.kills
    tally.restarts += done.restarts


def test_enough_were_killed(tally: Tally, request: pytest.FixtureRequest) -> None:
    """So that a change that makes the kills miss is seen. (It counts what ran before it.)"""
    ran = [item for item in request.session.items if item.name.startswith("test_a_kill_at_every_write[")]
    if len(ran) >= len(OPERATIONS):
        assert tally.kills >= LEAST_KILLS
