"""Stores to look at: one with everything that a page draws, and one with many segments."""

from __future__ import annotations

import random

import pyarrow as pa

from tests.client.world import World
from txlog.client import Store

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])


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
        world.clock.advance(1000)
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
