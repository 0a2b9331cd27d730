"""A struct with a field that allows no nulls is itself null: whatever Arrow puts below it, a file can be written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World
from tests.evolution.log import TP, change, check, made, merge
from txlog.client.store import Store
from txlog.core.evolution import AddColumn
from txlog.core.records import SchemaField
from txlog.storage.arrow_schema import to_arrow

ID = pa.field("id", pa.int32())
X = pa.field("x", pa.int8(), nullable=False)
SHAPES = {
    "struct": pa.struct([X]),
    "struct of structs": pa.struct([pa.field("q", pa.struct([X]), nullable=False), pa.field("y", pa.int8())]),
    "inner struct": pa.struct([pa.field("q", pa.struct([X])), pa.field("y", pa.int8())]),
    "struct of a list": pa.struct([pa.field("q", pa.list_(pa.struct([X])), nullable=False)]),
    "list": pa.list_(pa.struct([X])),
    "map": pa.map_(pa.string(), pa.struct([X])),
}
FIELD = SchemaField(id=1, name="x", type="int8", nullable=False)
STRUCT = SchemaField(id=1, name="c", type="struct", fields=(FIELD,))
ELEMENT = SchemaField(id=1, name="element", type="struct", fields=(FIELD,))
INNER = SchemaField(id=1, name="q", type="struct", nullable=False, fields=(FIELD,))
ADDED = {
    "struct": STRUCT,
    "list": SchemaField(id=1, name="c", type="list", fields=(ELEMENT,)),
    "struct of structs": SchemaField(id=1, name="c", type="struct", fields=(INNER,)),
}


def segments(world: World) -> int:
    return sum(name.endswith(".index") for name in world.memory.list(f"{TP.topic}/{TP.partition}/"))


def send(store: Store, *sends: Any) -> None:
    for rows in sends:
        with store.producer() as producer:
            producer.send(TP.topic, rows, partition=0).result()


def column(store: Store, name: str) -> list[Any]:
    check(store)
    return store.table(TP.topic).to_arrow(columns=[name]).column(0).to_pylist()


@pytest.mark.parametrize("inline", [0, 10_000])
@pytest.mark.parametrize("form", ["left out", "null type", "txlog's type", "null"])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_with_a_null_struct_are_sealed_and_merged(world: World, shape: str, form: str, inline: int) -> None:
    schema = pa.schema([ID, pa.field("c", SHAPES[shape])])
    store = made(world, schema, key_columns=None, segment_batches=2, inline_max_bytes=inline)
    own = to_arrow(store.runtime.topic(TP.topic).schema).field("c")
    ids = pa.array([1, 2], pa.int32())
    columns: dict[str, Any] = {
        "left out": pa.table({"id": ids}),
        "null type": pa.table({"id": ids, "c": pa.nulls(2)}),
        "txlog's type": pa.table([ids, pa.nulls(2, own.type)], schema=pa.schema([ID, own])),
        "null": [{"id": 1, "c": None}, {"id": 2}],
    }
    send(store, *[columns[form]] * 5)
    assert segments(world) >= 2
    merge(store)
    assert column(store, "c") == [None] * 10


@pytest.mark.parametrize("inline", [0, 10_000])
@pytest.mark.parametrize("above", [(), ("s",)])
@pytest.mark.parametrize("shape", ADDED)
def test_rows_that_are_older_than_a_struct_are_sealed_and_merged(
    world: World, shape: str, above: tuple[str, ...], inline: int
) -> None:
    schema = pa.schema([ID, pa.field("s", pa.struct([pa.field("y", pa.int8())]))])
    store = made(world, schema, key_columns=None, segment_batches=2, inline_max_bytes=inline)
    send(store, [{"id": 1, "s": {"y": 1}}, {"id": 2}])
    change(store, AddColumn(ADDED[shape], above))
    send(store, *[{"id": 3}] * 4)
    assert segments(world) >= 2
    merge(store)
    assert column(store, "s" if above else "c") == [{"y": 1, "c": None} if above else None, *[None] * 5]


def test_inline_rows_with_nulls_below_a_null_struct_are_sealed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # An earlier txlog wrote such rows for a column that was left out.
    monkeypatch.setattr(
        "txlog.storage.conform.no_values", lambda rows, field: pa.nulls(rows, to_arrow([field]).field(0).type)
    )
    store = made(world, pa.schema([ID, pa.field("c", SHAPES["struct"])]), key_columns=None, segment_batches=2)
    send(store, *[pa.table({"id": pa.array([1], pa.int32())})] * 5)
    assert segments(world) >= 2
    assert column(store, "c") == [None] * 5
