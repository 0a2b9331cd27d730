"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import ORDERS, World, many
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


@pytest.fixture
def numbered(world: World) -> Store:
    """Return a store whose topic `facts` has three files in one partition, with ids 0 to 2999, and an inline batch."""
    opened = world.open()
    opened.create_topic("facts", ORDERS, config={"inline.max.bytes": 1024})
    with opened.producer() as producer:
        for first in (0, 1000, 2000):
            producer.send("facts", many(1000, first)).result()
        producer.send("facts", [{"id": 3000, "name": "last"}]).result()
    return opened
