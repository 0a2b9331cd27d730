"""A store with a bit of everything that the metrics of a store speak of, and an exporter of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.client.world import ORDERS, World, orders
from txlog.client import TopicPartition
from txlog.client.producer import Producer
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.exporter.exporter import Exporter
from txlog.metrics import Registry
from txlog.metrics.prometheus import text_of
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import SeededIds


def opener(world: World, object_store: ObjectStore | None = None) -> Callable[[], Runtime]:
    """Return how an exporter opens the store of `world`."""

    def open_store() -> Runtime:
        return Runtime.open(
            "memory://",
            config={"default.api.timeout.ms": 500},
            clock=world.clock,
            ids=SeededIds(99),
            object_store=object_store or world.counting,
        )

    return open_store


def exporter_of(world: World, registry: Registry, object_store: ObjectStore | None = None, **settings: Any) -> Exporter:
    return Exporter(opener(world, object_store), registry, clock=world.clock, **settings)


def filled(world: World, topics: int = 1, partitions: int = 2, **config: object) -> Store:
    """Make topics t0, t1, ... with one row in each partition."""
    store = world.open()
    for number in range(topics):
        dotted = {name.replace("_", "."): setting for name, setting in config.items()}
        store.create_topic(f"t{number}", ORDERS, partitions, config=dotted)
        with store.producer() as producer:
            for partition in range(partitions):
                producer.send(f"t{number}", orders(partition), partition=partition).result()
    return store


def hang(store: Store, rows: int = 3, **settings: Any) -> Producer:
    """Leave a transaction open in t0-0."""
    producer = store.producer("hanging", **settings)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t0", orders(*range(rows)), partition=0)
    producer.flush()
    return producer


def commit(store: Store, group: str, offset: int, topic: str = "t0", partition: int = 0) -> None:
    """Commit an offset of a group that has no member."""
    with store.consumer(group_id=group, enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition(topic, partition): offset})


def emitted(registry: Registry) -> set[str]:
    """Return the names of all metrics that a scrape shows."""
    lines = text_of(registry).splitlines()
    return {line.split()[2] for line in lines if line.startswith("# TYPE")}
