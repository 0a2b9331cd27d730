"""delta-rs, DuckDB, Polars and pyiceberg read each version of the tables of random lives in which rows are erased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.engines import READERS
from tests.engines.test_wild_lives import Engines, live
from tests.publication.erasing_lives import ErasingLife
from tests.publication.test_erasing_lives import LIVES
from txlog.protocol import publications

pytestmark = pytest.mark.timeout(1800)
SAMPLE = (7, 11, 16)


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    found = Engines()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _whole_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make publications whole more often: each life ends when nothing of an erased row is left."""
    monkeypatch.setattr(publications, "WHOLE_EVERY", 10)


@pytest.mark.engines
@pytest.mark.parametrize("latest", [False, True])
def test_engines_read_no_erased_row(latest: bool, tmp_path: Path, engines: Engines) -> None:
    events: Counter[str] = Counter()
    before = engines.events.copy()
    for seed in SAMPLE:
        events += live(seed, tmp_path / f"life{seed}", engines, latest=latest, kind=ErasingLife)
    assert events["erased a committed row"]
    assert [name for name in READERS if not (engines.events - before)[f"read by {name}"]] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_engines_read_no_erased_row_of_all_lives(first: int, tmp_path: Path, engines: Engines) -> None:
    for seed in range(first, first + 10):
        for latest in (False, True):
            live(seed, tmp_path / f"life{seed}{latest}", engines, latest=latest, kind=ErasingLife)
