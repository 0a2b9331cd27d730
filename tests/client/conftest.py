"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import ORDERS, World
from txlog.client.store import Store


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def store(world: World) -> Store:
    """Return a store with the topic `orders`: id int64 not null, name string; 4 partitions."""
    opened = world.open()
    opened.create_topic("orders", ORDERS, partitions=4)
    return opened
