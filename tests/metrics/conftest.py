"""The fixtures of all tests of metrics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import World
from txlog import metrics
from txlog.metrics import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    """The registry of this process, for one test."""
    with metrics.enabled() as made:
        yield made


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
