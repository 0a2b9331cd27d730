"""One topic with every type of the closed list, and rows for it."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa

from txlog.storage.arrow_schema import to_arrow, to_fields

UTC = datetime.UTC
EVERY_TYPE = pa.schema(
    (
        pa.field("flag", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i16", pa.int16()),
        pa.field("i32", pa.int32()),
        pa.field("i64", pa.int64(), nullable=False),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("big", pa.decimal128(38, 0)),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("point", pa.struct([pa.field("x", pa.float64()), pa.field("y", pa.float64(), nullable=False)])),
        pa.field("props", pa.map_(pa.string(), pa.int64())),
        pa.field("deep", pa.list_(pa.struct([("k", pa.string()), ("v", pa.map_(pa.string(), pa.list_(pa.int32())))]))),
    )
)
FIELDS = to_fields(EVERY_TYPE)
ROWS: list[dict[str, object]] = [
    {
        "flag": True, "i8": -128, "i16": 32767, "i32": -(2**31), "i64": 2**63 - 1, "f32": 1.5, "f64": -2.25,
        "price": Decimal("1234567890.12"), "big": Decimal(10**37), "text": "zwölf €", "raw": b"\x00\xff",
        "day": datetime.date(1969, 12, 31),
        "at": datetime.datetime(2024, 2, 29, 12, 30, 1, 123456, UTC), "local": datetime.datetime(1, 1, 1),
        "tags": ["a", None, ""],
        "point": {"x": None, "y": 2.0}, "props": [("a", 1), ("b", None)],
        "deep": [{"k": "x", "v": [("y", [1, None])]}, None],
    },
    dict.fromkeys(EVERY_TYPE.names) | {"i64": -(2**63)},
    {
        "flag": False, "i8": 127, "i16": -1, "i32": 0, "i64": 0, "f32": 0.0, "f64": 1e300,
        "price": Decimal("-0.01"), "big": Decimal(-1), "text": "", "raw": b"", "day": datetime.date(9999, 12, 31),
        "at": datetime.datetime(1970, 1, 1, tzinfo=UTC), "local": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
        "tags": [],
        "point": {"x": 0.5, "y": -1.0}, "props": [], "deep": [],
    },
]  # fmt: skip


def rows_table(rows: list[dict[str, object]] | None = None) -> pa.Table:
    """Return ROWS under the topic's schema, as Arrow itself would convert them."""
    return pa.Table.from_pylist(ROWS if rows is None else rows, schema=to_arrow(FIELDS))
