"""Merge, retention and vacuum in any order and at any time, on a store to which producers write.

No kept row changes, no row is lost, and in the end the store has no unneeded object.
"""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.client.world import World
from tests.maintenance.retain import retain
from tests.maintenance.test_merge import SCHEMA, TP, merge, read
from txlog.client import reading
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.maintenance.fsck import check_store
from txlog.maintenance.vacuum import VacuumReport, vacuum

HOUR_MS = 3_600_000


class _Life:
    """A topic, its writers, and its maintenance."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.store: Store = world.open()
        self.store.create_topic("orders", SCHEMA, config={"segment.batches": 3})
        self.rows = 0
        self.producers: dict[str, Producer] = {}

    def table(self) -> pa.Table:
        """Return few rows, which are inline, or many, which become a file."""
        count = self.dice.choice([1, 2, 5, 4000])
        self.rows += count
        return pa.table({"id": range(self.rows - count, self.rows), "name": ["x"] * count}, SCHEMA)

    def producer(self, name: str) -> Producer:
        if name not in self.producers:
            made = self.store.producer(transactional_id=name, staged=name == "staged")
            made.init_transactions()
            self.producers[name] = made
        return self.producers[name]

    def transact(self) -> None:
        producer = self.producer(self.dice.choice(["eager", "staged", "other"]))
        producer.begin_transaction()
        for _ in range(self.dice.randrange(1, 4)):
            producer.send("orders", self.table())
        producer.flush()
        if self.dice.random() < 0.3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()

    def send_plainly(self) -> None:
        with self.store.producer() as producer:
            producer.send("orders", self.table()).result()

    def die(self) -> None:
        """Let a producer die without an abort, with rows in its transaction. Another instance takes over."""
        name = self.dice.choice(["eager", "staged"])
        producer = self.producer(name)
        producer.begin_transaction()
        producer.send("orders", self.table())
        producer.flush()
        self.store._clients.discard(producer)
        del self.producers[name]
        self.producer(name)

    def pass_time(self) -> None:
        self.world.clock.advance_ms(self.dice.choice([HOUR_MS, 12 * HOUR_MS, 25 * HOUR_MS]))

    def clean_up(self) -> None:
        """Run one of the three verbs. The rows from the log start on must not change."""
        before = read(self.store, self.world.ends()[0])
        start = 0
        match self.dice.choice(["merge", "retention", "vacuum", "vacuum"]):
            case "merge":
                merge(self.store, MergePolicy(target_bytes=self.dice.choice([1, 3000, 10**9])))
            case "retention":
                self.store.alter_topic("orders", config={"retention.bytes": self.dice.choice([-1, 20_000, 100_000])})
                retained = retain(self.store, TP)
                start = 0 if retained is None else retained.log_start_after
            case "vacuum":
                assert self.vacuum().failed == ()
        not_below: Any = pc.greater_equal
        expected = before.filter(not_below(before.column("_offset"), start)) if before.num_rows else before
        # An instance that took over in the background may have released more rows meanwhile.
        after = read(self.store, self.world.ends()[0])
        assert not expected.num_rows or after.slice(0, expected.num_rows) == expected

    def vacuum(self) -> VacuumReport:
        return vacuum(self.store.runtime, reading.read_session(self.store.runtime), dry_run=False)

    def check(self) -> None:
        assert not [each for each in check_store(self.world.memory).findings if each.kind != "note"]


@pytest.mark.parametrize("seed", range(2))
def test_clean_ups_by_turns(seed: int) -> None:
    world = World()
    life = _Life(world, seed)
    steps = [life.transact] * 6 + [life.send_plainly, life.die] + [life.clean_up] * 6 + [life.pass_time] * 3
    for _ in range(50):
        life.dice.choice(steps)()
    life.check()
    for producer in life.producers.values():
        producer.close()
    for _ in range(6):
        world.clock.advance_ms(25 * HOUR_MS)
        assert life.vacuum().failed == ()
    life.check()
    last = life.vacuum()
    assert (last.deleted, last.waiting) == ((), ())
    names = [path.removeprefix("orders/0/") for path in world.memory._objects if path.startswith("orders/0/")]
    for kind in (".clean", ".boundary", ".snapshot"):
        assert sum(name.endswith(kind) for name in names) <= 1
    indexes = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    assert {name.removesuffix(".txnindex") for name in names if name.endswith(".txnindex")} <= indexes
    files = [name for name in names if name.endswith(".parquet") and not name.startswith("rows/")]
    assert all(any(name.startswith(index) for index in indexes) for name in files)
    world.close()
