"""The newest row of each key: the same before and after compaction, tombstones and rows without a key included."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.client.world import World, rows_of, tp
from tests.effort import cases
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.errors import InvalidRequestError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition

SCHEMA = pa.schema((("id", pa.int64()), ("kind", pa.string()), ("name", pa.string()), ("amount", pa.int64())))
CONFIG: dict[str, Any] = {
    "segment.batches": 4,
    "inline.max.bytes": 4096,
    "cleanup.policy": "compact",
    "key.columns": "id,kind",
    "min.cleanable.dirty.ratio": 0.0,
}
DAY_MS = 86_400_000
Row = dict[str, Any]


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("prices", SCHEMA, partitions=2, config=CONFIG)
    return opened


def fill(store: Store, dice: random.Random, transactions: int = 15) -> None:
    """Append random rows of few keys, a fifth of them tombstones: committed, aborted and plain ones."""

    def some() -> list[Row]:
        return [
            {
                "id": dice.choice([None, *range(6)]),
                "kind": dice.choice(["a", "b"]),
                "name": None if gone else dice.choice([None, f"n{dice.randrange(1000)}"]),
                "amount": None if gone else dice.randrange(100),
            }
            for _ in range(dice.choice([1, 3, 300]))
            for gone in [dice.random() < 0.2]
        ]

    with store.producer("works") as works, store.producer() as plain:
        for _ in range(transactions):
            if dice.random() < 0.4:
                plain.send("prices", some()).result()
                continue
            works.begin_transaction()
            works.send("prices", some())
            works.flush()
            if dice.random() < 0.3:
                works.abort_transaction()
            else:
                works.commit_transaction()


def expected(store: Store, topic: str = "prices") -> list[Row]:
    """Return what a program that keeps a dictionary finds."""
    rows = rows_of(store.consumer(topic, auto_offset_reset="earliest"))
    newest: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: (row["_partition"], row["_offset"])):
        newest[row["id"], row["kind"]] = row
    kept = [row for row in newest.values() if (row["name"], row["amount"]) != (None, None)]
    return sorted(kept, key=lambda row: (row["_partition"], row["_offset"]))


def compact(store: Store, partition: int) -> None:
    policy = compaction_policy(store.runtime, store.runtime.topic("prices"))
    assert policy is not None
    compact_partition(store.runtime, reading.read_session(store.runtime), tp("prices", partition), policy)


@pytest.mark.parametrize("seed", cases(range(6)))
def test_the_newest_row_of_each_key_before_and_after_compaction(world: World, store: Store, seed: int) -> None:
    dice = random.Random(seed)
    prices = store.table("prices")
    names = prices.schema.names
    for _ in range(3):
        fill(store, dice)
        kept = [{name: row[name] for name in names} for row in expected(store)]
        assert prices.latest().read_all().to_pylist() == kept
        cheap = [row for row in kept if row["amount"] is not None and row["amount"] < 50]
        for where in ("amount < 50", pc.field("amount") < 50):
            found = prices.latest(["name", "id"], where).read_all().to_pylist()
            assert found == [{"name": row["name"], "id": row["id"]} for row in cheap]
        # Tombstones may go a day after the first compaction that saw them.
        world.clock.advance_ms(dice.choice([0, 2 * DAY_MS]))
        for partition in range(2):
            compact(store, partition)
        assert prices.latest().read_all().to_pylist() == kept
        if dice.random() < 0.5:
            policy = MergePolicy(target_bytes=2**30)
            merge_partition(store.runtime, reading.read_session(store.runtime), tp("prices", 0), policy)
            assert prices.latest().read_all().to_pylist() == kept
    assert sum(batch.num_rows for batch in prices.latest(["id"])) == len(kept)


def test_rows_without_a_key_and_kafka_s_columns(world: World) -> None:
    store = world.open()
    store.create_topic("events")
    with store.producer() as producer:
        for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", None), (None, None)):
            producer.send("events", [{"key": key, "value": value}], partition=0).result()
    found = store.table("events").latest(["key", "value", "_offset"]).read_all().to_pylist()
    assert [(row["key"], row["value"], row["_offset"]) for row in found] == [
        (None, b"2", 1),
        (b"a", b"4", 3),
        (None, None, 5),
    ]


def test_the_past_and_what_is_not_committed(world: World, store: Store) -> None:
    def send(producer: Any, amount: int) -> None:
        producer.send("prices", [{"id": 1, "kind": "a", "name": "x", "amount": amount}], partition=0).result()

    with store.producer() as plain, store.producer("hangs") as hanging:
        send(plain, 1)
        cut = store.snapshot("prices").table("prices")
        world.clock.advance_ms(1000)
        send(plain, 2)
        hanging.begin_transaction()
        send(hanging, 3)
        prices = store.table("prices")
        assert prices.latest(["amount"]).read_all().to_pylist() == [{"amount": 2}]
        assert cut.latest(["amount"]).read_all().to_pylist() == [{"amount": 1}]
        hanging.abort_transaction()
    first = prices.to_arrow(["_timestamp"], end={0: 1}).column(0)[0].as_py()
    assert prices.latest(["amount"], as_of=first).read_all().to_pylist() == [{"amount": 1}]
    assert store.snapshot("prices").table("prices").latest(["amount"]).read_all().to_pylist() == [{"amount": 2}]


def test_a_key_that_was_moved_has_a_row_in_each_partition(world: World) -> None:
    store = world.open()
    store.create_topic("moved", SCHEMA, config={"key.columns": "id"})
    rows = [{"id": number, "name": "old"} for number in range(8)]
    with store.producer() as producer:
        producer.send("moved", rows)
    store.alter_topic("moved", partitions=2, allow_key_movement=True)
    with store.producer() as producer:
        producer.send("moved", [{**row, "name": "new"} for row in rows])
    found = store.table("moved").latest(["id", "name", "_partition"]).read_all().to_pylist()
    stayed = {row["id"] for row in found if (row["_partition"], row["name"]) == (0, "new")}
    moved = {row["id"] for row in found if row["_partition"] == 1}
    assert stayed
    assert moved
    assert stayed | moved == set(range(8))
    assert {row["id"] for row in found if row["name"] == "old"} == moved
    assert len(found) == 8 + len(moved)


def test_a_topic_without_a_key_is_refused(world: World, store: Store) -> None:
    store.create_topic("plain", SCHEMA)
    with pytest.raises(InvalidRequestError, match=r"topic 'plain' has no key, .*hint: set key\.columns of the topic"):
        store.table("plain").latest()
