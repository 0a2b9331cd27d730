"""Each change of columns that is allowed, with rows from before and after it, and what every road must show."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from txlog.core.evolution import AddColumn, AllowNulls, Change, DropColumn, MoveColumn, RenameColumn, SetType
from txlog.core.records import SchemaField

SCHEMA = pa.schema(
    (
        pa.field("id", pa.int32(), nullable=False),
        pa.field("a", pa.string()),
        pa.field("b", pa.string()),
        pa.field("n", pa.int8()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("s", pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.string())])),
        pa.field("l", pa.list_(pa.struct([pa.field("x", pa.int8())]))),
        pa.field("m", pa.map_(pa.string(), pa.float32())),
    )
)
ROW: dict[str, Any] = {
    "id": 1,
    "a": "A",
    "b": "B",
    "n": -128,
    "f": 0.5,
    "d": Decimal("-999.99"),
    "s": {"x": -5, "y": "Y"},
    "l": [{"x": 1}, None],
    "m": [("k", 1.5)],
}
"""What the first row has, which is written before the change."""


@dataclass(frozen=True, slots=True)
class Case:
    """One change. The second row is written after it."""

    changes: tuple[Change, ...]
    old: dict[str, Any]
    """Values of the first row in the new columns, where they are not those of ROW."""
    new: dict[str, Any]
    """Values of the second row; other columns are null."""
    gone: tuple[str, ...] = ()
    where: str = ""
    """A condition that only the first row fulfils, in the new columns."""
    first: tuple[str, ...] = ()
    """The names of the first columns afterwards."""


def column(name: str, kind: str, **more: Any) -> SchemaField:
    return SchemaField(id=1, name=name, type=kind, **more)


CASES: dict[str, Case] = {
    "rename": Case((RenameColumn(("a",), "title"),), {"title": "A"}, {"title": "T"}, ("a",), "title = 'A'"),
    "swap names": Case(
        (RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b")),
        {"a": "B", "b": "A"},
        {"a": "A"},
        where="a = 'B'",
    ),
    "drop": Case((DropColumn(("a",)),), {}, {"b": "Z"}, ("a",), "b = 'B'"),
    "drop and use the name again": Case(
        (DropColumn(("a",)), AddColumn(column("a", "string"))), {"a": None}, {"a": "A"}, where="a IS NULL"
    ),
    "drop and use the name again with another type": Case(
        (DropColumn(("a",)), AddColumn(column("a", "int64", default=2**40))),
        {"a": 2**40},
        {"a": -1},
        where=f"a = {2**40}",
    ),
    "move": Case(
        (MoveColumn(("n",)), MoveColumn(("id",), "b")), {}, {"n": 1}, where="n = -128", first=("n", "a", "b", "id")
    ),
    "widen an integer": Case((SetType(("n",), "int64"),), {}, {"n": 2**40}, where="n < 0"),
    "widen the key": Case((SetType(("id",), "int64"),), {}, {"n": 2}, where="id = 1"),
    "widen a float": Case((SetType(("f",), "float64"),), {}, {"f": 1e300}, where="f < 1"),
    "widen a decimal": Case((SetType(("d",), "decimal(30,2)"),), {}, {"d": Decimal("1e20")}, where="d = -999.99"),
    "allow nulls": Case((AllowNulls(("id",)),), {}, {"id": None}, where="id IS NOT NULL"),
    "add": Case((AddColumn(column("c", "string")),), {"c": None}, {"c": "C"}, where="c IS NULL"),
    "add with a default": Case(
        (AddColumn(column("c", "float32", default=0.1)), SetType(("c",), "float64")),
        {"c": 0.10000000149011612},
        {"c": None},
        where="c > 0",
    ),
    "in a struct": Case(
        (
            RenameColumn(("s", "x"), "z"),
            SetType(("s", "z"), "int32"),
            DropColumn(("s", "y")),
            AddColumn(column("y", "bool", default=True), ("s",)),
            MoveColumn(("s", "y"), None),
        ),
        {"s": {"y": True, "z": -5}},
        {"s": {"y": None, "z": 2**30}},
    ),
    "in a list": Case(
        (SetType(("l", "element", "x"), "int64"), AddColumn(column("y", "string", default="e"), ("l", "element"))),
        {"l": [{"x": 1, "y": "e"}, None]},
        {"l": [{"x": 2**40, "y": None}]},
    ),
    "in a map": Case((SetType(("m", "value"), "float64"),), {}, {"m": [("k", 1e300)]}),
    "everything, twice": Case(
        (
            RenameColumn(("a",), "t"),
            DropColumn(("b",)),
            SetType(("n",), "int16"),
            RenameColumn(("t",), "b"),
            SetType(("n",), "int32"),
            RenameColumn(("n",), "a"),
        ),
        {"b": "A", "a": -128},
        {"b": "N", "a": 2**31 - 1},
        ("n",),
        "a < 0",
    ),
}


def expected(case: Case) -> list[dict[str, Any]]:
    """Return both rows in the new columns, without their order."""
    kept = {name: value for name, value in ROW.items() if name not in case.gone}
    names = [*kept, *(name for name in case.old if name not in kept)]
    old = {**kept, **case.old}
    new = {name: case.new.get(name, 2 if name == "id" else None) for name in names}
    return [old, new]


def second_row(case: Case) -> dict[str, Any]:
    return {"id": 2, **case.new}
