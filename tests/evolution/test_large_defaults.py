"""Large defaults: a topic that nobody could read is never written, and old rows stay readable however many there
are."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.client.world import World, rows_of
from tests.evolution.log import change, check, made, merge, topic_of
from txlog.core import envelope
from txlog.core.evolution import AddColumn, WrittenSchema
from txlog.core.records import SchemaField
from txlog.core.schema import MAX_DEFAULT_BYTES, assign_ids
from txlog.errors import CorruptRecordError, RecordTooLargeError, SchemaMismatchError
from txlog.protocol.topics import decode_version
from txlog.storage import arrow_evolution
from txlog.storage.arrow_evolution import project
from txlog.storage.arrow_schema import to_arrow
from txlog.storage.inline_rows import with_offsets

ID = pa.schema([pa.field("id", pa.int32())])


@pytest.mark.parametrize(("type_", "value"), [(pa.string(), "x"), (pa.string(), "ä"), (pa.binary(), b"x")])
def test_a_default_has_so_many_bytes(world: World, type_: pa.DataType, value: Any) -> None:
    store = made(world, ID, key_columns=None)
    longest = value * (MAX_DEFAULT_BYTES // len(value.encode() if isinstance(value, str) else value))
    with pytest.raises(
        SchemaMismatchError, match=r"column 'c': a default of \d+ bytes, more than the 32768 that it may have\. hint"
    ) as refused:
        store.alter_topic("orders", add_columns=pa.schema([("c", type_)]), column_defaults={"c": longest + value})
    assert len(str(refused.value)) < 300
    with store.producer() as producer:
        producer.send("orders", {"id": 1}).result()
    assert [field.name for field in topic_of(world.open()).schema] == ["id"]
    store.alter_topic("orders", add_columns=pa.schema([("c", type_)]), column_defaults={"c": longest})
    assert rows_of(world.open().consumer("orders", auto_offset_reset="earliest"))[0]["c"] == longest


def test_a_stored_default_above_the_limit_is_damage(world: World) -> None:
    changed = change(
        made(world, ID, key_columns=None), AddColumn(SchemaField(id=1, name="c", type="string", default="d"))
    )
    first, column = changed.schema
    large = msgspec.structs.replace(column, default="d" * (MAX_DEFAULT_BYTES + 1))
    data = envelope.encode(msgspec.structs.replace(changed, schema=(first, large)))
    with pytest.raises(CorruptRecordError, match="column 'c': a default of 32769 bytes"):
        decode_version(data, "orders", changed.number)


def test_half_of_a_surrogate_pair_is_no_default(world: World) -> None:
    store = made(world, ID, key_columns=None)
    with pytest.raises(SchemaMismatchError, match="is not a default for string"):
        store.alter_topic("orders", add_columns=pa.schema([("c", pa.string())]), column_defaults={"c": "a\ud800"})


def test_a_version_that_is_too_large_to_read_is_not_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(world, ID, key_columns=None)
    monkeypatch.setattr(envelope, "MAX_OBJECT_BYTES", 100_000)
    columns = {f"c{number}": "x" * MAX_DEFAULT_BYTES for number in range(4)}
    with pytest.raises(
        RecordTooLargeError, match=r"orders/topic\.0{19}1\.json: would have 13\d{4} bytes.*so the topic stays as it is"
    ):
        store.alter_topic("orders", add_columns=pa.schema(dict.fromkeys(columns, pa.string())), column_defaults=columns)
    assert topic_of(world.open()).number == 0
    with store.producer() as producer:
        producer.send("orders", {"id": 1}).result()
    assert world.open().table("orders").count() == 1


DEEP = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("s", pa.struct([pa.field("x", pa.int8())])),
        pa.field("l", pa.list_(pa.struct([pa.field("x", pa.int8())]))),
        pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("x", pa.int8())]))),
    ]
)


@pytest.mark.parametrize("above", [(), ("s",), ("l", "element"), ("m", "value")])
@pytest.mark.parametrize("inline", [0, 20_000])
def test_rows_with_a_long_default_come_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch, above: tuple[str, ...], inline: int
) -> None:
    store = made(world, DEEP, key_columns=None, inline_max_bytes=inline, segment_batches=2)
    value = {"x": 1}
    row = {"s": value, "l": [value, value], "m": [("k", value)]}
    for first in range(0, 150, 50):
        with store.producer() as producer:
            producer.send(
                "orders", [{"id": number, **row} for number in range(first, first + 50)], partition=0
            ).result()
    default = "x" * 1000
    monkeypatch.setattr(arrow_evolution, "MAX_ADDED_BYTES", 10_000)
    change(world.open(), AddColumn(SchemaField(id=1, name="c", type="string", default=default), above))
    made_new = {"x": 1, "c": default}
    wanted = {**row, **{name: {"s": made_new, "l": [made_new] * 2, "m": [("k", made_new)]}[name] for name in above[:1]}}
    wanted |= {} if above else {"c": default}
    for merged in (False, True):
        found = [batch.num_rows for batch in world.open().table("orders").scan()]
        assert sum(found) == 150
        rows = world.open().table("orders").to_arrow(columns=["id", *wanted]).to_pylist()
        assert rows == [{"id": number, **wanted} for number in range(150)]
        if not merged:
            merge(world.open())
    check(world.open())


def test_a_batch_of_arrow_holds_the_longest_default_of_all_its_rows() -> None:
    fields = assign_ids([SchemaField(id=1, name="id", type="int32")])
    wanted = (*fields, SchemaField(id=2, name="c", type="string", default="x" * MAX_DEFAULT_BYTES))
    rows = 70_000
    table = pa.table({"id": pa.array(range(rows), pa.int32())}).cast(to_arrow(fields))
    (batch,) = with_offsets(table, [(rows, 0, 0)]).to_batches()
    seen = 0
    for part in project(batch, WrittenSchema(fields, 1), wanted):
        assert part.nbytes < 2 * arrow_evolution.MAX_ADDED_BYTES
        assert part.column("id")[0].as_py() == seen == part.column("_offset")[0].as_py()
        seen += part.num_rows
    assert seen == rows
