"""A column of every type that has no nested columns, for tests that carry every type through Spark."""

from __future__ import annotations

import pyarrow as pa

SCALARS = (
    pa.field("row", pa.int32(), nullable=False),
    pa.field("a_bool", pa.bool_()),
    pa.field("a_byte", pa.int8()),
    pa.field("a_short", pa.int16()),
    pa.field("a_long", pa.int64()),
    pa.field("a_float", pa.float32()),
    pa.field("a_double", pa.float64()),
    pa.field("a_string", pa.string()),
    pa.field("some_bytes", pa.binary()),
    pa.field("a_date", pa.date32()),
    pa.field("an_instant", pa.timestamp("us", "UTC")),
    pa.field("a_wall_clock", pa.timestamp("us")),
    pa.field("a_decimal", pa.decimal128(38, 9)),
)
