"""Random stores for the second reader: what users do, on real files, with maintenance between."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.client.world import ORDERS, World
from tests.crash.operations import objects_of
from tests.evolution.log import CONFIG, SCHEMA, Model, try_change
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum

STEPS = 50
TOPICS = {"orders": 1, "events": 2, "scratch": 1}
"""Partitions by topic: one whose columns change, one that is compacted, one that is deleted and created again."""


def make_store(seed: int, folder: Path) -> None:
    """Write the store of a random world to `folder`, which must be empty."""
    world = World()
    life = _Life(world, random.Random(seed))
    try:
        life.run()
        for path, data in objects_of(world.memory):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    finally:
        # The folder keeps the open transactions. Closing their producers here ends them only in the world.
        life.close()
        world.close()


class _Life:
    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice = world, dice
        self.store = world.open()
        self.model = Model(dice)
        self.open: dict[str, Any] = {}
        self.producers: list[Any] = []
        self.store.create_topic("orders", SCHEMA, config=CONFIG)
        keyed = {"key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.batches": 3}
        self.store.create_topic("events", ORDERS, partitions=2, config=keyed)
        self._create_scratch()

    def run(self) -> None:
        doings = [self._write] * 10 + [self._change, self._merge, self._compact, self._retain, self._vacuum]
        doings += [self._begin, self._begin, self._end, self._scratch, self._group]
        for _ in range(STEPS):
            self.world.clock.advance_ms(self.dice.choice([0, 1, 1000]))
            with contextlib.suppress(TxlogError):
                self.dice.choice(doings)()

    def close(self) -> None:
        """Close the producers that are still open."""
        for producer in self.producers:
            with contextlib.suppress(TxlogError):
                producer.close()

    def _rows(self, store: Store, topic: str) -> Any:
        if topic == "orders":
            return self.model.some(store.runtime.topic(topic), self.dice.choice([1, 2, 30]))[0]
        return [
            {"id": self.dice.randrange(9), "name": self.dice.choice([None, "a", "b" * 50])}
            for _ in range(self.dice.choice([1, 3, 20]))
        ]

    def _send(self, producer: Any, store: Store) -> None:
        topic = self.dice.choice(list(TOPICS))
        partition = self.dice.randrange(TOPICS[topic])
        producer.send(topic, self._rows(store, topic), partition=partition)

    def _write(self) -> None:
        store = self.world.open(inline_max_bytes=self.dice.choice([0, 65536]))
        kind = self.dice.choice(["plain", "eager", "staged", "staged", "unsaid"])
        if kind == "plain":
            with store.producer() as producer:
                self._send(producer, store)
            return
        staged = {"eager": False, "staged": True, "unsaid": None}[kind]
        with store.producer(f"{kind}{self.dice.randrange(2)}", staged=staged) as producer:
            producer.begin_transaction()
            for _ in range(self.dice.choice([1, 2, 3])):
                self._send(producer, store)
            if self.dice.random() < 0.4:
                offsets = {TopicPartition("events", 0): self.dice.randrange(9)}
                producer.send_offsets_to_transaction(offsets, f"g{self.dice.randrange(2)}")
            if self.dice.random() < 0.3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()

    def _begin(self) -> None:
        name = f"open{self.dice.randrange(3)}"
        if name not in self.open:
            store = self.world.open(inline_max_bytes=self.dice.choice([0, 65536]))
            producer = store.producer(
                name, staged=False, transaction_timeout_ms=2**31 - 1, transaction_max_timeout_ms=2**31 - 1
            )
            self.producers.append(producer)
            producer.init_transactions()
            producer.begin_transaction()
            self.open[name] = (producer, store)
        producer, store = self.open[name]
        self._send(producer, store)
        producer.flush()
        if self.dice.random() < 0.3:
            producer.send_offsets_to_transaction({TopicPartition("events", 1): self.dice.randrange(9)}, "pending")

    def _end(self) -> None:
        if self.open:
            producer, _ = self.open.pop(self.dice.choice(list(self.open)))
            producer.commit_transaction() if self.dice.random() < 0.5 else producer.abort_transaction()
            producer.close()

    def _group(self) -> None:
        with self.world.open().consumer(
            "events", group_id=f"h{self.dice.randrange(2)}", auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            consumer.poll(0)
            consumer.commit()

    def _change(self) -> None:
        try_change(self.world.open(), self.dice, self.dice.randrange(1000))

    def _merge(self) -> None:
        store = self.world.open()
        layout = FileLayout(sort=self.dice.choice([(), ("id",)]))
        for topic, partitions in TOPICS.items():
            for number in range(partitions):
                policy = MergePolicy(target_bytes=2**30, max_inputs=self.dice.choice([2, 100]))
                tp = TopicPartition(topic, number)
                merge_partition(store.runtime, reading.read_session(store.runtime), tp, policy, layout=layout)

    def _compact(self) -> None:
        store = self.world.open()
        policy = compaction_policy(store.runtime, store.runtime.topic("events", 0))
        assert policy is not None
        for number in range(2):
            tp = TopicPartition("events", number)
            compact_partition(store.runtime, reading.read_session(store.runtime), tp, policy)

    def _retain(self) -> None:
        info = self.store.admin().list_offsets("orders")[TopicPartition("orders", 0)]
        before = self.dice.randint(info.log_start_offset, info.last_stable_offset)
        self.store.admin().delete_records("orders", 0, before)

    def _vacuum(self) -> None:
        self.world.clock.advance_ms(self.dice.choice([1, 30]) * 3_600_000)
        store = self.world.open()
        vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)

    def _scratch(self) -> None:
        store = self.world.open()
        with contextlib.suppress(TxlogError):
            store.delete_topic("scratch")
        if self.dice.random() < 0.8:
            self._create_scratch()

    def _create_scratch(self) -> None:
        more = [pa.field(f"c{number}", pa.float64()) for number in range(self.dice.randrange(2))]
        self.world.open().create_topic("scratch", pa.schema([*ORDERS, *more]), config={"segment.batches": 4})
