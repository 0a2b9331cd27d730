"""Bounds of a Delta log: always bounds, in the text that Delta wants."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tests.publication.delta_topic import PublishedTopic, runs
from txlog.publication.delta_statistics import delta_statistics
from txlog.storage.arrow_schema import to_fields

UTC = dt.UTC
US = dt.timedelta(microseconds=1)


def statistics(
    arrow: pa.DataType, values: list[object], removed: tuple[tuple[int, int], ...] = ()
) -> dict[str, object]:
    fields = to_fields(pa.schema([pa.field("c", arrow)]))
    topic = PublishedTopic(fields)
    file = topic.file(pa.table({"c": pa.array(values, arrow)}), removed=removed)
    return delta_statistics(file, fields)


def bounds(arrow: pa.DataType, values: list[Any]) -> tuple[object, object]:
    found = statistics(arrow, values)
    return found["minValues"].get("c"), found["maxValues"].get("c")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arrow", "values", "low", "high"),
    [
        (pa.int8(), [3, -128], -128, 3),
        (pa.int64(), [2**63 - 1, None], 2**63 - 1, 2**63 - 1),
        (pa.float32(), [0.5, -1.5], -1.5, 0.5),
        (pa.string(), ["b", "a"], "a", "b"),
        (pa.date32(), [dt.date(2024, 2, 29), dt.date(1969, 12, 31)], "1969-12-31", "2024-02-29"),
        # Down to the millisecond below, and up to the one above.
        (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=UTC) + US], "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.001Z"),
        (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=UTC)], "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.000Z"),
        (pa.timestamp("us"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)], "1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000"),
        # Delta has no bounds of these, or no text for them.
        (pa.bool_(), [True], None, None),
        (pa.timestamp("us"), [dt.datetime.max], None, None),
        (pa.timestamp("us"), [2**62], None, None),
        (pa.date32(), [-1_000_000, 0], None, None),
        (pa.float64(), [float("nan"), 1.0], None, None),
        (pa.string(), [None], None, None),
    ],
)  # fmt: skip
def test_bounds(arrow: pa.DataType, values: list[object], low: object, high: object) -> None:
    assert bounds(arrow, values) == (low, high)


def test_bounds_of_long_strings_are_still_bounds() -> None:
    values = ["x" * 100, "x" * 31 + "\U0010ffff" * 3, "w" * 100]
    low, high = bounds(pa.string(), values)
    assert low == "w" * 32
    assert isinstance(high, str)
    assert len(high.encode()) <= 32
    assert max(values) <= high


def test_counts_are_those_of_the_whole_file() -> None:
    found = statistics(pa.int32(), [1, None, 3, None], removed=((1, 3),))
    assert found == {
        "numRecords": 4, "minValues": {"c": 1}, "maxValues": {"c": 3}, "nullCount": {"c": 2}, "tightBounds": False,
    }  # fmt: skip
    assert statistics(pa.int32(), [1, 2])["tightBounds"] is True


def test_a_column_that_the_file_lacks_has_no_statistics() -> None:
    old = to_fields(pa.schema([pa.field("a", pa.int32())]))
    topic = PublishedTopic(old)
    file = topic.file(pa.table({"a": pa.array([1], pa.int32())}))
    both = to_fields(pa.schema([pa.field("a", pa.int32()), pa.field("b", pa.int32())]))
    assert delta_statistics(file, both)["nullCount"] == {"a": 0}
    assert runs([]) == file.removed
