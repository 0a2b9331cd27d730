"""Rows of one version of a topic's columns become rows of another one: by id, never by name or place."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.storage.arrow_rows import FIELDS, rows_table
from txlog.core.evolution import (
    AddColumn,
    AllowNulls,
    Change,
    DropColumn,
    MoveColumn,
    RenameColumn,
    SetType,
    WrittenSchema,
    apply_changes,
)
from txlog.core.records import SchemaField
from txlog.core.schema import assign_ids, max_field_id
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_evolution import columns_to_read, project
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow
from txlog.storage.inline_rows import with_offsets

UTC = datetime.UTC


def col(
    name: str, type_name: str = "int32", *children: SchemaField, nullable: bool = True, default: Any = msgspec.UNSET
) -> SchemaField:
    return SchemaField(id=1, name=name, type=type_name, nullable=nullable, fields=children, default=default)


OLD = assign_ids(
    [
        col("id", nullable=False),
        col("name", "string"),
        col("price", "decimal(9,2)"),
        col("tags", "list", col("element", "int8", nullable=False)),
        col("at", "struct", col("x", "float32"), col("y", "int16", nullable=False)),
        col("by", "map", col("key", "string", nullable=False), col("value", "struct", col("v"))),
    ]
)  # fmt: skip
LAST = max_field_id(OLD)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "tags": [1, 2], "at": {"x": 0.5, "y": 1}, "by": [("k", {"v": 1})]},
    {"id": 2, "name": None, "price": None, "tags": None, "at": None, "by": None},
    {"id": 3, "name": "c", "price": Decimal("-2.00"), "tags": [], "at": {"x": None, "y": 3}, "by": [("l", None), ("m", {"v": None})]},
    {"id": 4, "name": "d", "price": None, "tags": [7], "at": {"x": 4.0, "y": 4}, "by": []},
]  # fmt: skip
TIME = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def batch_of(rows: list[dict[str, Any]], fields: tuple[SchemaField, ...]) -> pa.RecordBatch:
    table = with_offsets(pa.Table.from_pylist(rows, to_arrow(fields)), [(len(rows), 0, 0)])
    (batch,) = table.combine_chunks().to_batches()
    return batch


def read(batch: pa.RecordBatch, written: WrittenSchema, wanted: tuple[SchemaField, ...]) -> pa.RecordBatch:
    """Return the rows as a reader of `wanted` sees them, with exactly its columns and types."""
    names = columns_to_read(written, wanted, "t")
    (made,) = project(batch.select([*names, "_offset", "_timestamp"]), written, wanted)
    made.validate(full=True)
    expected = pa.schema([*to_arrow(wanted), OFFSET_FIELD, TIMESTAMP_FIELD])
    assert made.schema.equals(expected, check_metadata=True)
    assert made.column("_offset").equals(batch.column("_offset"))
    return made


def after(*changes: Change, rows: list[dict[str, Any]] = ROWS) -> list[dict[str, Any]]:
    """Return rows of the old columns as a reader sees them after these changes, also from the middle of a batch."""
    fields, _ = apply_changes(OLD, LAST, changes)
    batch = batch_of(rows, OLD)
    whole = read(batch, WrittenSchema(OLD, LAST), fields).select([field.name for field in fields]).to_pylist()
    part = read(batch.slice(1, 2), WrittenSchema(OLD, LAST), fields).select([field.name for field in fields])
    assert part.to_pylist() == whole[1:3]
    return whole


def test_without_a_change_the_arrays_are_the_same() -> None:
    batch = batch_of(ROWS, OLD)
    made = read(batch, WrittenSchema(OLD, LAST), OLD)
    assert made.equals(batch, check_metadata=True)
    here, there = made.column("at").buffers()[1], batch.column("at").buffers()[1]
    assert there is None or (here is not None and here.address == there.address)


def test_names_that_were_swapped_do_not_swap_the_values() -> None:
    fields = assign_ids([col("a"), col("b")])
    swapped, _ = apply_changes(
        fields, 2, [RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b")]
    )
    made = read(batch_of([{"a": 1, "b": 2}], fields), WrittenSchema(fields, 2), swapped)
    assert made.select(["a", "b"]).to_pylist() == [{"b": 1, "a": 2}]


def test_a_column_of_a_dropped_name_has_no_old_values() -> None:
    rows = after(DropColumn(("name",)), AddColumn(col("name", "string")))
    assert [row["name"] for row in rows] == [None] * 4
    rows = after(DropColumn(("name",)), AddColumn(col("name", "string", default="new")))
    assert [row["name"] for row in rows] == ["new"] * 4


def test_the_same_holds_inside_of_a_struct_where_only_the_id_differs() -> None:
    rows = after(DropColumn(("at", "x")), AddColumn(col("x", "float32"), ("at",)))
    assert [row["at"] for row in rows] == [{"y": 1, "x": None}, None, {"y": 3, "x": None}, {"y": 4, "x": None}]
    rows = after(AddColumn(col("w"), ("by", "value")), DropColumn(("by", "value", "v")))
    assert rows[2]["by"] == [("l", None), ("m", {"w": None})]


def test_fields_of_a_struct_are_renamed_moved_and_added() -> None:
    rows = after(
        RenameColumn(("at", "x"), "lon"), MoveColumn(("at", "y")), AddColumn(col("z", "int64", default=9), ("at",))
    )
    assert [row["at"] for row in rows] == [
        {"y": 1, "lon": 0.5, "z": 9},
        None,
        {"y": 3, "lon": None, "z": 9},
        {"y": 4, "lon": 4.0, "z": 9},
    ]
    assert list(rows[0]["at"]) == ["y", "lon", "z"]


def test_types_become_wider_at_every_depth() -> None:
    rows = after(
        SetType(("id",), "int64"),
        SetType(("price",), "decimal(20,2)"),
        SetType(("tags", "element"), "int64"),
        SetType(("at", "x"), "float64"),
        SetType(("by", "value", "v"), "int64"),
        AllowNulls(("tags", "element")),
        AllowNulls(("at", "y")),
        AllowNulls(("id",)),
    )
    assert rows == ROWS


@pytest.mark.parametrize(
    ("type_name", "default", "value"),
    [
        ("bool", True, True), ("int8", -3, -3), ("int64", 2**62, 2**62), ("float32", 0.5, 0.5), ("float64", 0.1, 0.1),
        ("string", "ä", "ä"),
        ("binary", "00ff", b"\x00\xff"), ("date", 1, datetime.date(1970, 1, 2)), ("timestamp", 0, TIME),
        ("timestamp_ntz", 0, TIME.replace(tzinfo=None)), ("decimal(38,3)", "-7.5", Decimal("-7.500")),
    ],
)  # fmt: skip
def test_older_rows_have_the_default(type_name: str, default: Any, value: Any) -> None:
    fields, _ = apply_changes(OLD, LAST, [AddColumn(col("new", type_name, default=default))])
    made = read(batch_of(ROWS, OLD), WrittenSchema(OLD, LAST), fields)
    assert made.column("new").to_pylist() == [value] * 4


def test_rows_that_are_newer_than_a_drop_have_neither_the_default_nor_null() -> None:
    fields, last = apply_changes(OLD, LAST, [AddColumn(col("new", default=5))])
    dropped = tuple(field for field in fields if field.name != "new")
    with pytest.raises(SchemaMismatchError, match="column 'new' was dropped"):
        columns_to_read(WrittenSchema(dropped, last), fields, "t")
    assert "new" not in columns_to_read(WrittenSchema(dropped, last), fields[:-1], "t")


def test_a_file_may_lack_a_column_that_its_version_has_and_then_it_is_null() -> None:
    fields, last = apply_changes(OLD, LAST, [AddColumn(col("new", default=5))])
    (made,) = project(batch_of(ROWS, OLD), WrittenSchema(fields, last), fields)
    assert made.column("new").to_pylist() == [None] * 4


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (SetType(("id",), "int64"), "column 'id' is int64 now, and this read has int32"),
        (DropColumn(("id",)), "column 'id' was dropped"),
        (AllowNulls(("id",)), "column 'id' may be null now"),
    ],
)
def test_an_older_reader_is_told_to_begin_again(change: Change, why: str) -> None:
    fields, last = apply_changes(OLD, LAST, [change])
    with pytest.raises(
        SchemaMismatchError, match=f"t: the topic's columns changed after this read began: {why}.*restart"
    ):
        columns_to_read(WrittenSchema(fields, last), OLD, "t")
    assert columns_to_read(WrittenSchema(fields, last), OLD[1:], "t") == ("name", "price", "tags", "at", "by")


def test_an_older_reader_keeps_its_columns() -> None:
    fields, last = apply_changes(
        OLD, LAST, [RenameColumn(("name",), "title"), MoveColumn(("price",)), AddColumn(col("name", "int64"))]
    )
    newer = [{**row, "title": row["name"], "name": 8} for row in ROWS]
    made = read(batch_of(newer, fields), WrittenSchema(fields, last), OLD)
    shown = made.select([field.name for field in OLD]).to_pylist()
    assert shown == ROWS


def test_no_column_may_be_wanted() -> None:
    batch = batch_of(ROWS, OLD)
    (made,) = project(batch.select(["_offset", "_timestamp"]), WrittenSchema(OLD, LAST), ())
    assert made.num_rows == 4


def test_rows_of_every_type_pass_through() -> None:
    table = rows_table()
    batch = batch_of(table.to_pylist(), FIELDS)
    last = max_field_id(FIELDS)
    renamed, _ = apply_changes(FIELDS, last, [RenameColumn((field.name,), f"{field.name}_2") for field in FIELDS])
    made = read(batch, WrittenSchema(FIELDS, last), renamed)
    assert [made.column(at).to_pylist() for at in range(len(FIELDS))] == [
        batch.column(at).to_pylist() for at in range(len(FIELDS))
    ]


values = {
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "decimal(4,2)": st.decimals("-99.99", "99.99", places=2),
}
wide = {"int8": "int64", "int16": "int32", "int32": "int64", "float32": "float64", "decimal(4,2)": "decimal(38,2)"}


@given(
    st.sampled_from(sorted(wide)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(st.none() | values[name], min_size=1, max_size=5))
    )
)
def test_no_value_changes_when_its_type_becomes_wider(drawn: tuple[str, list[Any]]) -> None:
    name, cells = drawn
    fields = assign_ids([col("a", name), col("l", "list", col("element", name))])
    wider, _ = apply_changes(fields, 3, [SetType(("a",), wide[name]), SetType(("l", "element"), wide[name])])
    made = read(batch_of([{"a": cell, "l": cells} for cell in cells], fields), WrittenSchema(fields, 3), wider)
    assert made.column("a").to_pylist() == cells
    assert made.column("l").to_pylist() == [cells] * len(cells)
