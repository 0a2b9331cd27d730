"""Random lives of a published topic: each version of its tables shows the rows of its cut, with any reader."""

from __future__ import annotations

import pytest

from tests.publication.wild_lives import WildLife

LIVES = 200
STEPS = 50
SAMPLE = (18, 67, 119, 132)
"""Lives that noticed defects in their first runs."""


def live(seed: int) -> WildLife:
    life = WildLife(seed, "/lives")
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"life {seed}, {life.keyed=}, {life.formats=}: {life.told}")
        raise
    return life


@pytest.mark.parametrize("seed", SAMPLE)
def test_each_version_shows_its_cut(seed: int) -> None:
    assert live(seed).checked


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_each_version_of_all_lives_shows_its_cut(first: int) -> None:
    assert sum(live(seed).checked for seed in range(first, first + 10)) > 50
