"""A topic whose columns change, beside a model that knows each row by field ids."""

from __future__ import annotations

import contextlib
import random
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tests.client.world import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.evolution import (
    AddColumn,
    AllowNulls,
    Change,
    DropColumn,
    MoveColumn,
    RenameColumn,
    SetType,
    has_default,
    last_field_id,
)
from txlog.core.names import TopicPartition
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import InvalidConfigurationError, SchemaMismatchError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.merge import merge_partition
from txlog.protocol.column_changes import change_columns

TP = TopicPartition("orders", 0)
LARGE = MergePolicy(target_bytes=2**30)
SCHEMA = pa.schema(
    (
        pa.field("id", pa.int32(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(7, 2)),
        pa.field("at", pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.int16())])),
        pa.field("tags", pa.list_(pa.int8())),
    )
)
CONFIG = {"segment.batches": 4, "inline.max.bytes": 3000, "key.columns": "id"}
NAMES = ["name", "price", "title", "cost", "a", "b"]


def made(world: World, schema: pa.Schema = SCHEMA, **config: Any) -> Store:
    """Return a store with the topic `orders`, one partition."""
    store = world.open()
    own = {key.replace("_", "."): value for key, value in config.items()}
    settings = {key: value for key, value in {**CONFIG, **own}.items() if value is not None}
    store.create_topic("orders", schema, config=settings)
    return store


def topic_of(store: Store) -> TopicMetadata:
    return store.runtime.topic("orders", 0)


def change(store: Store, *changes: Change, topic: str = "orders") -> TopicMetadata:
    """Change columns, in a process that knows the newest ones."""
    runtime = store.runtime
    base = runtime.topic(topic, 0)
    changed = runtime.run(change_columns(runtime.context(), base, changes, write_id=runtime.ids.new_id()))
    runtime.remember_topic(changed)
    return changed


def merge(store: Store) -> None:
    merge_partition(store.runtime, reading.read_session(store.runtime), TP, LARGE)


def check(store: Store) -> None:
    report = check_store(store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"], report.findings


def value_of(field: SchemaField, dice: random.Random) -> Any:
    """Return a value for a field: a scalar, a list, or a dict by name."""
    if field.nullable and dice.random() < 0.2:
        return None
    if field.type == "struct":
        return {child.name: value_of(child, dice) for child in field.fields}
    if field.type == "list":
        return [value_of(field.fields[0], dice) for _ in range(dice.randrange(3))]
    if field.type == "map":
        return [(key, value_of(field.fields[1], dice)) for key in dice.sample(["", "k", "l"], dice.randrange(3))]
    if field.type == "bool":
        return dice.random() < 0.5
    if field.type == "string":
        return dice.choice(["", "a", "ä", "n" * 40])
    if field.type.startswith("decimal"):
        return Decimal(dice.randrange(-99_999, 99_999)) / 100
    if field.type.startswith("float"):
        return dice.randrange(-1000, 1000) / 8
    return dice.randrange(-100, 100)


def by_id(field: SchemaField, value: Any) -> Any:
    """Return a value with ids instead of names."""
    if value is None or not field.fields:
        return value
    if field.type == "struct":
        return {child.id: by_id(child, value[child.name]) for child in field.fields}
    if field.type == "map":
        return [(key, by_id(field.fields[1], each)) for key, each in value]
    return [by_id(field.fields[0], each) for each in value]


def shown(field: SchemaField, value: Any, last_id: int) -> Any:
    """Return a value of the model as a reader of `field` must see it."""
    if value is None or not field.fields:
        return value
    if field.type == "struct":
        return {child.name: of_row(child, value, last_id) for child in field.fields}
    if field.type == "map":
        return [(key, shown(field.fields[1], each, last_id)) for key, each in value]
    return [shown(field.fields[0], each, last_id) for each in value]


def of_row(field: SchemaField, row: dict[int, Any], last_id: int) -> Any:
    if field.id in row:
        return shown(field, row[field.id], last_id)
    if not has_default(field, last_id):
        return None
    default: Any = field.default
    return Decimal(default) if field.type.startswith("decimal") else default


class Model:
    """The rows of the log. Each has its values by id, and the last id that existed when it was written."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.rows: list[tuple[dict[int, Any], int]] = []

    def some(
        self, topic: TopicMetadata, count: int
    ) -> tuple[pa.Table | list[dict[str, Any]], list[tuple[dict[int, Any], int]]]:
        """Return new rows of this version, as a producer takes them, and as the model keeps them."""
        rows = [{field.name: value_of(field, self.dice) for field in topic.schema} for _ in range(count)]
        kept = [
            ({field.id: by_id(field, row[field.name]) for field in topic.schema}, last_field_id(topic)) for row in rows
        ]
        return rows, kept

    def seen_by(self, fields: tuple[SchemaField, ...]) -> list[dict[str, Any]]:
        return [{field.name: of_row(field, row, last) for field in fields} for row, last in self.rows]


def some_change(topic: TopicMetadata, dice: random.Random, step: int) -> Change:
    """Return a change, which may be refused."""
    field = dice.choice(topic.schema)
    at = next((each for each in topic.schema if each.type == "struct"), None)
    inner = dice.choice(at.fields).name if at is not None else "x"
    struct = (at.name,) if at is not None else ("none",)
    add = SchemaField(id=1, name=dice.choice(NAMES), type=dice.choice(["int8", "float32", "string", "decimal(6,2)"]))
    value: Any = {"int8": step % 100, "float32": 0.5, "string": f"d{step}", "decimal(6,2)": "1.25"}[add.type]
    with_default = msgspec.structs.replace(add, default=value)
    wider = {"int8": "int32", "int16": "int64", "int32": "int64", "float32": "float64"}
    new_type = wider.get(field.type, "decimal(30,2)")
    changes: list[Change] = [
        AddColumn(add),
        AddColumn(with_default),
        AddColumn(with_default, struct),
        RenameColumn((field.name,), dice.choice(NAMES)),
        RenameColumn((*struct, inner), dice.choice(["x", "y", "z"])),
        DropColumn((field.name,)),
        DropColumn((*struct, inner)),
        MoveColumn((field.name,), dice.choice([None, topic.schema[-1].name])),
        SetType((field.name,), new_type),
        SetType((*struct, inner), "float64"),
        SetType(("tags", "element"), dice.choice(["int16", "int64"])),
        AllowNulls((field.name,)),
    ]
    return dice.choice(changes)


def try_change(store: Store, dice: random.Random, step: int) -> None:
    """Change a column; or change none, because the drawn change is not allowed."""
    with contextlib.suppress(SchemaMismatchError, InvalidConfigurationError):
        change(store, some_change(topic_of(store), dice, step))
