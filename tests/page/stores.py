"""Stores to look at."""

from __future__ import annotations

import random

import pyarrow as pa

from tests.client.world import World
from txlog.client import Store

ROWS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())))


def rows(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"id": start + number, "text": f"row {number}"} for number in range(count)]


def random_topic(world: World, seed: int, *, name: str = "orders", steps: int = 60) -> Store:
    """Return a store whose topic has transactions of three producers that overlap, end differently, or stay open."""
    draw = random.Random(seed)
    store = world.open()
    store.create_topic(name, ROWS, partitions=2, config={"segment.batches": 5})
    producers = [store.producer(f"writer-{number}", transaction_timeout_ms=60_000) for number in range(3)]
    plain = store.producer()
    opened = [False] * len(producers)
    for producer in producers:
        producer.init_transactions()
    for step in range(steps):
        world.clock.advance_ms(1000)
        number = draw.randrange(len(producers) + 1)
        if number == len(producers):
            plain.send(name, rows(draw.randrange(1, 4)), partition=draw.randrange(2))
            plain.flush()
            continue
        producer = producers[number]
        if not opened[number]:
            producer.begin_transaction()
            opened[number] = True
        elif draw.random() < 0.4:
            producer.commit_transaction() if draw.random() < 0.6 else producer.abort_transaction()
            opened[number] = False
            continue
        producer.send(name, rows(draw.randrange(1, 5), step), partition=draw.randrange(2))
        producer.flush()
    if not any(opened):
        producers[0].begin_transaction()
        producers[0].send(name, rows(3), partition=0)
        producers[0].flush()
    return store


def many_segments(world: World, segments: int, partitions: int = 4) -> Store:
    """Return a store with at least that many sealed segments, each of one batch."""
    store = world.open()
    store.create_topic("many", ROWS, partitions=partitions, config={"segment.batches": 1})
    producer = store.producer("loader")
    producer.init_transactions()
    sealed = 0
    while sealed < segments + 2 * partitions:
        world.clock.advance_ms(60_000)
        producer.begin_transaction()
        for partition in range(partitions):
            producer.send("many", rows(2, sealed), partition=partition)
        producer.flush()
        producer.abort_transaction() if sealed % 5 == 0 else producer.commit_transaction()
        sealed += 2 * partitions  # the rows and the marker
    producer.close()
    return store
