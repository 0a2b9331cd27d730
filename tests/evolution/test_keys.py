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
from txlog.core.evolution import AddColumn, Change, DropColumn, MoveColumn, RenameColumn, SetType
from txlog.core.records import SchemaField
from txlog.core.schema import KAFKA_FIELDS
from txlog.errors import InvalidConfigurationError, SchemaMismatchError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.protocol import topic_changes
from txlog.storage.arrow_schema import to_arrow

SCHEMA = pa.schema((pa.field("id", pa.int32()), pa.field("zone", pa.string()), pa.field("price", pa.float32())))
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


COMPACT = {"cleanup.policy": "compact"}
DEFAULT = SchemaField(id=1, name="note", type="string", default="n")


def test_the_newest_rows_of_keys_are_judged_by_the_columns_of_now(world: World) -> None:
    """A merge rewrites rows without a dropped column, and with the default of a new one: the result is the same before
    it."""
    store = made(world, SCHEMA)
    for row in ({"id": 1, "zone": "a"}, {"id": 2, "price": 1.0}, {"id": 3}):
        with store.producer() as producer:
            producer.send("orders", row).result()

    def ids() -> list[int]:
        return [row["id"] for row in world.open().table("orders").latest().read_all().to_pylist()]

    assert ids() == [1, 2]
    change(store, DropColumn(("zone",)))
    assert ids() == [2]
    change(store, AddColumn(DEFAULT))
    assert ids() == [1, 2, 3]


@pytest.mark.parametrize("step", [DropColumn(("zone",)), AddColumn(DEFAULT)], ids=["drop", "default"])
@pytest.mark.parametrize("earlier", [False, True], ids=["never compacted", "compacted before"])
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "rows"])
def test_compaction_is_refused_after_a_change_of_tombstones(
    world: World, step: Change, earlier: bool, filled: bool
) -> None:
    """W39: a row of before has no value now, or a tombstone has one, and compaction would remove or keep it (C2a)."""
    store = made(world, SCHEMA, cleanup_policy="compact" if earlier else None)
    if filled:
        with store.producer() as producer:
            producer.send("orders", [{"id": 1, "zone": "a"}, {"id": 2}]).result()
    if earlier:
        with pytest.raises(SchemaMismatchError, match="would change which rows are tombstones"):
            change(store, step)
        store.alter_topic("orders", remove_config=["cleanup.policy"])
    number = change(store, step).number
    change(store, RenameColumn(("price",), "cost"))
    with pytest.raises(
        InvalidConfigurationError, match=rf"version {number} changed the column .*copy the rows"
    ) as error:
        store.alter_topic("orders", config=COMPACT)
    assert len(str(error.value)) <= 300
    # A topic that is created again under the name has no such history.
    store.delete_topic("orders")
    store.create_topic("orders", SCHEMA, config={"key.columns": "id", **COMPACT})


def test_another_key_of_a_compacted_topic_has_its_own_tombstones(world: World) -> None:
    store = made(world, SCHEMA)
    change(store, AddColumn(DEFAULT))
    store.alter_topic("orders", config={"key.columns": "note", **COMPACT})
    with pytest.raises(InvalidConfigurationError, match="version 1 changed the column 'note'"):
        store.alter_topic("orders", config={"key.columns": "id"})


def test_compaction_is_allowed_after_changes_that_keep_the_tombstones(world: World) -> None:
    store = made(world, SCHEMA)
    for changes in CHANGES:
        change(store, *changes)
    # Only `value` tells the tombstones of Kafka's columns.
    store.create_topic("kafka", config={"key.columns": "key"})
    change(store, AddColumn(DEFAULT), AddColumn(SchemaField(id=1, name="c", type="int8")), topic="kafka")
    change(store, DropColumn(("c",)), topic="kafka")
    for topic in ("orders", "kafka"):
        assert store.alter_topic(topic, config=COMPACT).config["cleanup.policy"] == "compact"


def test_a_change_of_tombstones_that_is_not_looked_for_removes_live_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that turns compaction on without a look at earlier versions."""
    monkeypatch.setattr(topic_changes, "tombstone_change", lambda before, after, key: None)
    store = made(world, SCHEMA, min_compaction_lag_ms=0, delete_retention_ms=0)
    for number in range(10):
        with store.producer() as producer:
            producer.send("orders", {"id": number, "zone": "a"}).result()
    change(store, DropColumn(("zone",)))
    store.alter_topic("orders", config=COMPACT)
    for _ in range(2):
        world.clock.advance_ms(1000)
        compact(world.open())
    assert world.open().table("orders").count() < 10


@pytest.mark.parametrize(("key", "dropped"), [("id", "zone"), ("price", "id")], ids=["a value column", "the key"])
def test_a_pass_with_settings_of_before_a_change_that_ended_compaction_stops(
    world: World, key: str, dropped: str
) -> None:
    """C2a: the topic was compacted when the policy was made, and rows of now would be judged by other columns."""
    schema = pa.schema((pa.field("id", pa.int32()), pa.field("zone", pa.string()), pa.field("price", pa.float64())))
    store = made(world, schema, cleanup_policy="compact", min_compaction_lag_ms=0)
    policy = compaction_policy(store.runtime, topic_of(store), min_cleanable_dirty_ratio=0)
    assert policy is not None
    store.alter_topic("orders", config={"key.columns": key}, remove_config=["cleanup.policy"])
    change(store, DropColumn((dropped,)))
    for _ in range(9):
        with store.producer() as producer:
            producer.send("orders", {"price": 1.0}).result()
    before = rows_of(world.open().consumer("orders", auto_offset_reset="earliest"))
    with pytest.raises(InvalidConfigurationError, match=r"ended the compaction by id, .*hint: compact again"):
        compact_partition(store.runtime, reading.read_session(store.runtime), TP, policy)
    assert rows_of(world.open().consumer("orders", auto_offset_reset="earliest")) == before


UNKEYED = pa.schema([to_arrow(KAFKA_FIELDS).field(0).with_name("k"), *list(to_arrow(KAFKA_FIELDS))[1:]])


@pytest.mark.parametrize(("schema", "changes"), [
    (UNKEYED, {"rename_columns": {"k": "key"}}),
    (to_arrow(KAFKA_FIELDS).append(pa.field("more", pa.int8())), {"drop_columns": ["more"]}),
], ids=["rename", "drop"])  # fmt: skip
def test_columns_that_become_kafkas_need_consent_because_rows_then_go_by_key(
    world: World, schema: pa.Schema, changes: dict[str, Any]
) -> None:
    """W39: rows of before are in any partition, and new rows of their key in one."""
    store = world.open()
    for topic, partitions in (("orders", 4), ("single", 1), ("empty", 4)):
        store.create_topic(topic, schema, partitions=partitions)
        if topic != "empty":
            with store.producer() as producer:
                producer.send(topic, {schema.names[0]: b"k", "value": b"old"}, partition=partitions - 1).result()
    for topic in ("single", "empty"):  # no row moves
        assert store.alter_topic(topic, **changes).version == 1
    with pytest.raises(InvalidConfigurationError, match=r"would move keys .*allow_key_movement=True"):
        store.alter_topic("orders", **changes)
    assert store.topic("orders").version == 0
    assert store.alter_topic("orders", **changes, allow_key_movement=True).version == 1
    with pytest.raises(InvalidConfigurationError, match=r"version 1 (moved keys|changed the column)"):
        store.alter_topic("orders", config={"key.columns": "key", **COMPACT})
