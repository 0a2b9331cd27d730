"""Every command works on stores of every earlier release, and changes nothing else. PROTOCOL.md, "Features"."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.older.cases import CASES, OTHERS, Case, NotHereError, commands
from tests.older.life import STORES, Life
from tests.older.state import wrong

EVERY = [(name, each) for name, found in CASES.items() for each in found]
NAMES = list(STORES)


def test_each_command_has_a_case() -> None:
    assert commands() - CASES.keys() == set(OTHERS)


def live(life: Life, cases: Sequence[tuple[str, Case]], *, second_reader: int = 0) -> list[str]:
    """Run cases one after the other. Return those that had work.

    The second reader looks after every `second_reader` cases (0: only at the end).
    """
    worked, after = [], life.state()
    for number, (name, each) in enumerate(cases, 1):
        where = f"{number}: {name} ({each.__name__})"
        before, objects = after, life.objects()
        try:
            change = each(life, before)
        except NotHereError:
            continue
        worked.append(f"{name}: {each.__name__}")
        if life.objects() != objects:
            assert change is not None, f"{where} wrote {sorted(life.objects().keys() ^ objects.keys())}"
            assert life.damages() == [], where
            after = life.state()
            assert wrong(before, after, change) == [], where
        if second_reader and number % second_reader == 0:
            assert life.second_reader() == [], where
    assert life.second_reader() == []
    return worked


@pytest.mark.parametrize("store", NAMES)
def test_a_part_of_the_table(store: str, tmp_path: Path) -> None:
    """Each case runs on one of the four stores, or on two."""
    with Life.of(store, tmp_path) as life:
        worked = live(life, EVERY[NAMES.index(store) % 3 :: 3])
    assert len(worked) > len(EVERY) / 6


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", NAMES)
def test_in_the_order_of_the_table(store: str, tmp_path: Path) -> None:
    with Life.of(store, tmp_path) as life:
        worked = live(life, EVERY, second_reader=1)
    assert len(worked) > 0.8 * len(EVERY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("store", NAMES)
def test_in_random_orders(store: str, seed: int, tmp_path: Path) -> None:
    dice = random.Random(f"{store} {seed}")
    with Life.of(store, tmp_path, seed) as life:
        live(life, dice.choices(EVERY, k=2 * len(EVERY)), second_reader=5)
