"""A world whose store has the feature `schema-evolution`, which this version cannot make yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import World
from tests.evolution.log import open_gate


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    open_gate(monkeypatch)
    made = World()
    yield made
    made.close()
