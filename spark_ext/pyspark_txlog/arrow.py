"""How do batches of a log become batches that Spark accepts?

Spark compares the Arrow schema of the first batch exactly with its own. Each batch has a fixed cost: batches of 1,000
rows take three times as long as batches of 32,000. So this module casts batches to exactly Spark's schema, and joins or
cuts them to a suitable size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

MIN_ROWS = 32_768
MAX_ROWS = 262_144
MAX_BYTES = 64 * 2**20
"""Limits wide rows, because a whole batch is copied through a socket into the JVM."""

# Spark 4.0 and 4.1 have another parameter. UTC is its default.
_IN_UTC: Mapping[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def spark_batches(batches: Iterator[pa.RecordBatch], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the same rows with exactly Spark's columns, found by name; all batches except the last have MIN_ROWS to
    MAX_ROWS rows."""
    target = arrow_schema(schema)
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(_select(batch, target))
        rows += batch.num_rows
        size += waiting[-1].nbytes
        if rows >= MIN_ROWS or size >= MAX_BYTES:
            yield from _sized(waiting, size)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield from _sized(waiting, size)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of a data source."""
    return to_arrow_schema(schema, **_IN_UTC)


def _select(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in target:
        column = batch.column(field.name)
        arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _sized(batches: list[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    step = min(MAX_ROWS, max(rows * MAX_BYTES // max(size, 1), 1))
    # More than one remains if a column of texts has more than 2 GiB.
    for whole in batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches():
        for start in range(0, whole.num_rows, step):
            yield whole.slice(start, step)
