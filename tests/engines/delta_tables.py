"""Delta tables of a topic in a folder, and the rows that each must show."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.publication.delta_topic import PublishedTopic
from tests.storage.arrow_rows import EVERY_TYPE, FIELDS
from txlog.storage.arrow_schema import to_fields

NUMBERS = pa.schema((pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string())))
EPOCH = dt.datetime(1970, 1, 1)
LONG = "a beginning that is longer than statistics may be, "
DENSE = [(0, 70_000), *((row, row + 1) for row in range(70_000, 130_000, 2)), (200_000, 200_003), (399_999, 400_000)]
"""Rows of every kind of container: runs, bitmaps and arrays."""


@dataclass(frozen=True)
class Table:
    folder: str
    rows: list[dict[str, Any]]
    """What the newest version shows, in no order."""
    topic: PublishedTopic


def numbers(first: int, end: int) -> list[dict[str, Any]]:
    return [{"n": n, "s": f"{LONG}{n}"} for n in range(first, end)]


def arrow(rows: Iterable[dict[str, Any]], schema: pa.Schema = NUMBERS) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def without(rows: list[dict[str, Any]], removed: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
    gone = {row for first, end in removed for row in range(first, end)}
    return [row for at, row in enumerate(rows) if at not in gone]


def plain(root: Path) -> Table:
    """Only appends, and so the oldest protocol; with checkpoints."""
    topic = PublishedTopic(to_fields(NUMBERS), root)
    for number in range(13):
        topic.publish(topic.file(arrow(numbers(10 * number, 10 * number + 10))))
    return Table(f"{root}/orders", numbers(0, 130), topic)


def cut(root: Path) -> Table:
    """Files without some rows, some of them replaced, over two checkpoints."""
    topic = PublishedTopic(to_fields(NUMBERS), root)
    first, small = topic.file(arrow(numbers(0, 100))), topic.file(arrow(numbers(100, 200)), removed=[(0, 5), (50, 60)])
    topic.publish(first, small)
    dense = topic.file(arrow(numbers(1_000, 401_000)), removed=DENSE[:-1])
    topic.publish(dense)
    for number in range(2, 25):
        one = topic.file(arrow(numbers(1_000_000 + number, 1_000_001 + number)))
        topic.publish(one)
        if number == 12:
            topic.publish(topic.without(small.path, (0, 10), (50, 60)), removed=[first.path], replace=True)
        if number == 20:
            topic.publish(topic.without(dense.path, *DENSE), replace=True)
        if number == 22:
            merged = topic.file(arrow(numbers(1_000_022, 1_000_023)))
            topic.publish(merged, removed=[one.path], replace=True)
    rows = without(numbers(100, 200), [(0, 10), (50, 60)]) + without(numbers(1_000, 401_000), DENSE)
    return Table(f"{root}/orders", rows + numbers(1_000_002, 1_000_025), topic)


def every_type(root: Path) -> Table:
    """All types, one file a hundred rows, so that readers can skip files; and one file of nulls."""
    topic = PublishedTopic(FIELDS, root)
    rows = [_row(number) for number in range(300)]
    for first in range(0, 300, 100):
        topic.publish(topic.file(arrow(rows[first : first + 100], EVERY_TYPE)))
    nulls = [{**dict.fromkeys(EVERY_TYPE.names), "i64": -1}]
    topic.publish(topic.file(arrow(nulls, EVERY_TYPE)))
    return Table(f"{root}/orders", rows + nulls, topic)


def new_column(root: Path) -> Table:
    """A column was added, and the log before the checkpoint after that is gone."""
    topic = PublishedTopic(to_fields(NUMBERS), root)
    for number in range(6):
        topic.publish(topic.file(arrow(numbers(10 * number, 10 * number + 10))))
    schema = NUMBERS.append(pa.field("at", pa.timestamp("us")))
    topic.change(to_fields(schema))
    topic.publish(replace=True)
    for number in range(6, 12):
        rows = [{**row, "at": EPOCH + dt.timedelta(days=number)} for row in numbers(10 * number, 10 * number + 10)]
        topic.publish(topic.file(arrow(rows, schema)))
    for version in range(10):
        (root / f"orders/_delta_log/{version:020d}.json").unlink()
    rows = [
        {**row, "at": EPOCH + dt.timedelta(days=row["n"] // 10) if row["n"] >= 60 else None} for row in numbers(0, 120)
    ]
    return Table(f"{root}/orders", rows, topic)


def odd_names(root: Path) -> Table:
    """Spark's folders, and characters that a URI escapes."""
    schema = pa.schema([pa.field("a b.c,;{}=ä", pa.int64())])
    topic = PublishedTopic(to_fields(schema), root)
    path = "staged/3-1-abc/_partition=0/part-0#a@b+c~d.parquet"
    topic.publish(topic.file(arrow([{"a b.c,;{}=ä": 7}], schema), path=path))
    return Table(f"{root}/orders", [{"a b.c,;{}=ä": 7}], topic)


TABLES = (plain, cut, every_type, new_column, odd_names)


def _row(number: int) -> dict[str, Any]:
    moment = EPOCH + dt.timedelta(days=20_000, microseconds=number * 1_234_567 + 999)
    return {
        "flag": number % 2 == 0, "i8": number % 128, "i16": -number, "i32": number * 1_000, "i64": number,
        "f32": number / 4, "f64": number / 7, "price": Decimal(number) / 100, "big": Decimal(10) ** 30 + number,
        "text": f"{LONG}{chr(0x1F600 + number % 50)}{number}", "raw": bytes([number % 256] * 3),
        "day": dt.date(2020, 1, 1) + dt.timedelta(days=number), "at": moment.replace(tzinfo=dt.UTC), "local": moment,
        "tags": ["a", None] if number % 3 else None, "point": {"x": None, "y": number / 2},
        "props": [("k", number), ("l", None)], "deep": [{"k": "x", "v": [("y", [number, None])]}, None],
    }  # fmt: skip
