"""Run seeds of the simulation. Each seed is a different story, the same on every run. A failing seed becomes its own test."""

from __future__ import annotations

import pytest

from tests.effort import cases
from tests.protocol.simulation import simulate


@pytest.mark.parametrize("block", cases(range(8)))
def test_seeds(block: int) -> None:
    outcomes: set[str] = set()
    for seed in range(block * 8, block * 8 + 8):
        simulation = simulate(seed)
        outcomes |= {story.outcome for story in simulation.stories} | set(simulation.plain.values())
    assert outcomes >= {"committed", "unknown"}


def test_a_seed_is_one_story() -> None:
    one, two = simulate(3), simulate(3)
    assert one.story == two.story
    assert one.cluster.objects == two.cluster.objects
