"""What does a Parquet file's footer say about its rows: row groups, and bounds of columns by field id?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import pyarrow as pa

from txlog.core.records import SchemaField
from txlog.storage.arrow_schema import child_fields, find_columns, to_arrow

Bounds: TypeAlias = tuple[Any, Any, int]
STATISTICS_BYTES = 32
"""Strings are cut at this many bytes in statistics."""


def row_groups(metadata: Any) -> tuple[int, ...]:
    return tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))


def file_statistics(
    metadata: Any, schema: pa.Schema, fields: Sequence[SchemaField], odd: set[str], group: int | None = None
) -> dict[str, Bounds]:
    """Return bounds of the top-level columns that have useful ones, by field id, from those of the row groups.

    `odd` are columns of floats that may hold NaN. With `group` only that row group counts.
    """
    groups = range(metadata.num_row_groups) if group is None else (group,)
    leaves = first_leaves(schema)
    targets = to_arrow(fields)
    bounds: dict[str, Bounds] = {}
    for number, at in enumerate(find_columns(schema, fields)):
        field = fields[number]
        plain = _PLAIN.get(field.type)
        if at is None or plain is None or schema.field(at).type != targets.field(number).type:
            continue
        if field.type.startswith("float") and field.name in odd:
            continue
        found = _column_bounds(metadata, groups, leaves[at], plain)
        if found is not None:
            bounds[str(field.id)] = found
    return bounds


def cut_below(text: str) -> str:
    """Return the longest beginning of `text` of at most STATISTICS_BYTES bytes. It is not greater than `text`."""
    return text.encode()[:STATISTICS_BYTES].decode("utf-8", "ignore")


def cut_above(text: str) -> str | None:
    """Return a string of at most STATISTICS_BYTES bytes that is not less than `text`; None if impossible.

    Strings are compared by code points.
    """
    head = cut_below(text)
    if head == text:
        return text
    while head:
        last = ord(head[-1])
        # The next code point must skip the surrogates, and must fit into the remaining bytes.
        following = 0xE000 if last == 0xD7FF else last + 1
        if following <= 0x10FFFF:
            raised = head[:-1] + chr(following)
            if len(raised.encode()) <= STATISTICS_BYTES:
                return raised
        head = head[:-1]
    return None


def first_leaves(schema: pa.Schema) -> list[int]:
    """Return the number of each column's first leaf: Parquet's metadata counts leaves."""
    *firsts, _ = accumulate((leaf_count(field.type) for field in schema), initial=0)
    return firsts


def leaf_count(arrow: Any) -> int:
    return sum(leaf_count(child.type) for child in child_fields(arrow)) or 1


def _column_bounds(metadata: Any, groups: Iterable[int], leaf: int, plain: Callable[[Any, bool], Any]) -> Bounds | None:
    low = high = None
    nulls = 0
    for number in groups:
        chunk = metadata.row_group(number).column(leaf)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        least, greatest = plain(statistics.min_raw, False), plain(statistics.max_raw, True)
        if least is None or greatest is None:
            return None
        low = least if low is None else min(low, least)
        high = greatest if high is None else max(high, greatest)
    return (low, high, nulls)


def _plain_float(value: Any, upper: bool) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plain_string(value: Any, upper: bool) -> str | None:
    # Another writer's string may not be UTF-8. Its place in the order of bytes cannot be written as text.
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return None
    return cut_above(text) if upper else cut_below(text)


_PLAIN: dict[str, Callable[[Any, bool], Any]] = {
    "bool": lambda value, upper: bool(value),
    **dict.fromkeys(
        ("int8", "int16", "int32", "int64", "date", "timestamp", "timestamp_ntz"), lambda value, upper: int(value)
    ),
    **dict.fromkeys(("float32", "float64"), _plain_float),
    "string": _plain_string,
}
