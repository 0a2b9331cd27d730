"""A snapshot shows a transaction whole although it wrote to a partition that was added meanwhile (invariant 17)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.world import ORDERS, World, orders
from txlog.client import reading
from txlog.protocol.snapshot import take_snapshot


def test_a_partition_that_is_added_before_the_cut_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS)
    with store.producer() as producer:
        producer.send("orders", orders(0), partition=0).result()

    def late(*args: Any) -> Any:
        monkeypatch.setattr(reading, "take_snapshot", take_snapshot)
        world.open().alter_topic("orders", partitions=2)
        with world.open().producer("t") as other, other.transaction():
            other.send("orders", orders(1), partition=0)
            other.send("orders", orders(2), partition=1)
        return take_snapshot(*args)

    monkeypatch.setattr(reading, "take_snapshot", late)
    rows = world.open().snapshot("orders").table("orders").to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [0, 1, 2]
    world.close()
