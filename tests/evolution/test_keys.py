"""A key whose columns are renamed: the newest row of each key stays the newest, before and after compaction."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World, rows_of
from tests.evolution.log import TP, change, check, made, topic_of
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.evolution import AddColumn, Change, MoveColumn, RenameColumn, SetType
from txlog.core.records import SchemaField
from txlog.maintenance.compact import compact_partition, compaction_policy

SCHEMA = pa.schema([pa.field("id", pa.int32()), pa.field("zone", pa.string()), pa.field("price", pa.float32())])
CHANGES: list[tuple[Change, ...]] = [
    (RenameColumn(("id",), "tmp"), RenameColumn(("price",), "id"), RenameColumn(("tmp",), "price")),
    (SetType(("id",), "float64"), MoveColumn(("price",), "zone")),
    (AddColumn(SchemaField(id=1, name="note", type="string")),),
]


def latest_of(rows: list[tuple[int, str | None, float | None]]) -> list[tuple[int, str | None, float | None]]:
    newest = {row[0]: number for number, row in enumerate(rows)}
    return [
        row
        for number, row in enumerate(rows)
        if newest[row[0]] == number and (row[1] is not None or row[2] is not None)
    ]


def shown(store: Store, rows: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    names = {field.id: field.name for field in topic_of(store).schema}
    return [(row[names[1]], row[names[2]], row[names[3]]) for row in rows]


def compact(store: Store) -> None:
    policy = compaction_policy(store.runtime, topic_of(store), min_cleanable_dirty_ratio=0)
    assert policy is not None
    compact_partition(store.runtime, reading.read_session(store.runtime), TP, policy)


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_row_of_each_key(world: World, seed: int) -> None:
    dice = random.Random(seed)
    made(world, SCHEMA, cleanup_policy="compact", min_compaction_lag_ms=0)
    rows: list[tuple[int, str | None, float | None]] = []
    for changes in [(), *CHANGES]:
        if changes:
            change(world.open(), *changes)
        for _ in range(6):
            writer = world.open()
            names = {field.id: field.name for field in topic_of(writer).schema}
            more = [
                (dice.randrange(5), dice.choice([None, "a", "b"]), dice.choice([None, 0.5, 2.0]))
                for _ in range(dice.choice([1, 3, 30]))
            ]
            rows += more
            batch = [{names[1]: row[0], names[2]: row[1], names[3]: row[2]} for row in more]
            with writer.producer() as producer:
                producer.send("orders", batch, partition=0).result()
        reader = world.open()
        assert shown(reader, reader.table("orders").latest().read_all().to_pylist()) == latest_of(rows)
        if dice.random() < 0.7:
            compact(world.open())
            assert shown(reader, reader.table("orders").latest().read_all().to_pylist()) == latest_of(rows)
    compact(world.open())
    reader = world.open()
    assert shown(reader, reader.table("orders").latest().read_all().to_pylist()) == latest_of(rows)
    assert len(rows_of(reader.consumer("orders", auto_offset_reset="earliest"))) < len(rows)
    check(world.open())


def test_a_policy_of_before_a_swap_of_names_compacts_by_the_same_column(world: World) -> None:
    store = made(world, SCHEMA, cleanup_policy="compact", min_compaction_lag_ms=0)
    with store.producer() as producer:
        for number in range(8):
            producer.send("orders", [{"id": number % 2, "zone": str(number), "price": 1.0}], partition=0).result()
    policy = compaction_policy(store.runtime, topic_of(store), min_cleanable_dirty_ratio=0)
    assert policy is not None
    change(store, *CHANGES[0])
    with store.producer() as producer:
        for number in range(4):
            producer.send("orders", [{"price": number % 2, "zone": f"new{number}", "id": 5.0}], partition=0).result()
    compact_partition(store.runtime, reading.read_session(store.runtime), TP, policy)
    rows = shown(store, world.open().table("orders").latest().read_all().to_pylist())
    assert rows == [(0, "new2", 5.0), (1, "new3", 5.0)]


def test_a_renamed_key_goes_to_the_same_partition(world: World) -> None:
    store = world.open()
    store.create_topic("many", SCHEMA, partitions=16, config={"key.columns": "id"})
    with store.producer() as producer:
        producer.send("many", [{"id": number, "zone": "old", "price": None} for number in range(100)]).result()
    change(store, *CHANGES[0], topic="many")
    with world.open().producer() as producer:
        producer.send("many", [{"price": number, "zone": "new", "id": None} for number in range(100)]).result()
    table = world.open().table("many").to_arrow(columns=["price", "zone", "_partition"]).to_pylist()
    places: dict[int, set[int]] = {}
    for row in table:
        places.setdefault(row["price"], set()).add(row["_partition"])
    assert all(len(found) == 1 for found in places.values())
    assert len(places) == 100
    assert {place for found in places.values() for place in found} > {0}
