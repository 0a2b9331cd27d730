"""The published tables show the rows of a cut: each transaction wholly or not at all, and each row once to a follower.

Vacuum keeps the files of their versions (C13), and a later publication never shows less (W58).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.publication.lives import Life
from txlog.publication import publish


@pytest.fixture(autouse=True)
def _no_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the files of the formats: these tests are about the chain of publications."""

    def nothing(*args: Any, **more: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(publish, "write_version", nothing)
    monkeypatch.setattr(publish, "complete_version", nothing)
    monkeypatch.setattr(publish._Attempt, "_is_written", lambda *_: True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keyed", [False, True])
def test_tables_show_a_cut_of_the_topic(seed: int, keyed: bool) -> None:
    life = Life(seed, keyed=keyed)
    for _ in range(60):
        life.step()
    life.check()
    life.close()
