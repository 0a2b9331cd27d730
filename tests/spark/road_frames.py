"""Frames for both roads of Spark: columns of every type, sizes around every bound, plans of every kind.

A frame is a plain value, so that both roads get the same one, and a failing test prints it. `build` makes it again for
each road.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from tests.spark.scalars import SCALARS

Shape: TypeAlias = Literal[
    "range", "files", "cached", "shuffled", "joined", "sorted", "filtered", "union", "limited", "retried", "counted"
]
SHAPES: tuple[Shape, ...] = (
    "range", "files", "cached", "shuffled", "joined", "sorted", "filtered", "union", "limited", "retried", "counted",
)  # fmt: skip
SIZES = (0, 1, 2, 199, 2_000, 9_999, 10_000, 10_001, 12_345, 20_002)
"""Around the bounds of a small frame (over Connect) and `inline.max.bytes`, and beyond maxRecordsPerFile."""
TASKS = (1, 1, 2, 3, 7)
PAIR = pa.struct([pa.field("key", pa.string()), pa.field("when", pa.timestamp("us", "UTC"))])
STRICT = pa.struct([pa.field("number", pa.int32(), nullable=False), pa.field("text", pa.string())])
_TYPES = {each.name: each for each in SCALARS if each.name != "row"}
COLUMNS: dict[str, tuple[pa.Field[pa.DataType], str]] = {
    "a_bool": (_TYPES["a_bool"], "id % 2 = 0"),
    "a_byte": (_TYPES["a_byte"], "CAST(id % 120 - 60 AS TINYINT)"),
    "a_short": (_TYPES["a_short"], "CAST(id % 32768 AS SMALLINT)"),
    "a_long": (_TYPES["a_long"], "9223372036854775807 - id"),
    "a_float": (_TYPES["a_float"], "CAST(id / 3 AS FLOAT)"),
    "a_double": (
        _TYPES["a_double"],
        "CASE id % 11 WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN double('-Infinity') ELSE id * 0.1D END",
    ),
    "a_string": (_TYPES["a_string"], "concat('naïve ☃ ', id % 17)"),
    "some_bytes": (_TYPES["some_bytes"], "unhex(lpad(hex(id), 6, '0'))"),
    "a_date": (_TYPES["a_date"], "date_add(DATE'1500-01-01', CAST(id * 17 % 300000 AS INT))"),
    "an_instant": (_TYPES["an_instant"], "timestamp_micros(id * 86400000123 - 14000000000000000)"),
    "a_wall_clock": (_TYPES["a_wall_clock"], "CAST(timestamp_micros(id * 86400000123 - 999999) AS TIMESTAMP_NTZ)"),
    "a_decimal": (_TYPES["a_decimal"], "CAST(concat(id, '1234567890123456789.123456789') AS DECIMAL(38,9))"),
    "a_small_decimal": (pa.field("a_small_decimal", pa.decimal128(9, 2)), "CAST(id % 1000 / 100 AS DECIMAL(9,2))"),
    "a_list": (pa.field("a_list", pa.list_(pa.field("element", pa.int64()))), "array(id, NULL, -id)"),
    "a_map": (
        pa.field("a_map", pa.map_(pa.string(), pa.field("value", pa.float64()))),  # type: ignore[call-overload]
        "map('a', id * 1.0D, concat('b', id % 3), NULL)",
    ),
    "a_struct": (pa.field("a_struct", PAIR), "named_struct('when', timestamp_micros(id), 'key', string(id))"),
    "nested": (
        pa.field("nested", pa.list_(pa.field("element", PAIR))),
        "array(NULL, named_struct('key', NULLIF(string(id), '3'), 'when', timestamp_micros(id)))",
    ),
    "strict": (pa.field("strict", STRICT), "named_struct('number', CAST(id AS INT), 'text', NULL)"),
}
"""By name: the topic's column, and the SQL of its value for the row `id`."""
KEY: pa.Field[Any] = pa.field("order_id", pa.int64(), nullable=False)
CARRIER: pa.Field[Any] = pa.field("carrier", pa.string())
"""Columns of every topic of the harness."""


def topic_schema(columns: tuple[str, ...]) -> pa.Schema:
    """Return the schema of a topic with these columns of COLUMNS."""
    return pa.schema([KEY, CARRIER, *(COLUMNS[name][0] for name in columns)])


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Rows `first` to `first + count - 1` in `tasks` tasks, as `shape` makes them."""

    first: int = 0
    count: int = 10
    tasks: int = 2
    shape: Shape = "range"
    columns: tuple[str, ...] = ()
    nulls: bool = False
    """Whether a third of the values of each nullable column are null, also of `carrier`, which may be a key."""
    width: int = 0
    """Characters of another column `text` of random text, so that rows are wide; 0 for none."""
    extra: tuple[str, ...] = ()
    """More columns, as SQL over `id`: a column `partition`, or values that the topic cannot take."""
    settings: dict[str, str] = field(default_factory=dict, hash=False)
    """Settings of the session while the frame is made and written."""

    def sql(self) -> list[str]:
        """Return the columns as SQL over `id`."""

        def nullable(number: int, value: str) -> str:
            return f"IF(pmod(hash(id, {number}), 3) = 0, NULL, {value})" if self.nulls else value

        made = ["id AS order_id", nullable(0, "concat('c', id % 5)") + " AS carrier"]
        made += [f"{nullable(at, COLUMNS[name][1])} AS {name}" for at, name in enumerate(self.columns, start=1)]
        if self.width:
            made.append(f"substr(repeat(sha2(string(id), 512), {self.width // 128 + 1}), 1, {self.width}) AS text")
        replaced = {each.rpartition(" AS ")[2] for each in self.extra}
        return [each for each in made if each.rpartition(" AS ")[2] not in replaced] + list(self.extra)


@dataclass(kw_only=True)
class Counts:
    """What Spark counts beside a write: an Observation before the last steps of the plan, and an accumulator."""

    seen: Observation | None = None
    passed: Accumulator[int] | None = None

    def found(self) -> dict[str, object]:
        """Return the counts; waits for the Observation."""
        made: dict[str, object] = {} if self.passed is None else {"accumulator": self.passed.value}
        return made if self.seen is None else {**made, **self.seen.get}


def build(frame: Frame, spark: SparkSession, folder: Path, counts: Counts | None = None) -> DataFrame:
    """Return the frame. `folder` keeps the files that it reads; both roads read the same ones."""
    rows = spark.range(frame.first, frame.first + frame.count, 1, frame.tasks).selectExpr(*frame.sql())
    if frame.shape == "files":
        files = folder / f"files-{frame.first}-{frame.count}"
        if not files.exists():
            rows.write.parquet(str(files))
        rows = spark.read.schema(rows.schema).parquet(str(files))
    if counts is not None and counts.seen is not None:
        rows = rows.observe(counts.seen, F.count(F.lit(1)).alias("n"), F.sum("order_id").alias("total"))
    return _SHAPES[frame.shape](rows, frame, counts)


def _plain(rows: DataFrame, frame: Frame, counts: Counts | None) -> DataFrame:
    return rows


def _cached(rows: DataFrame, frame: Frame, counts: Counts | None) -> DataFrame:
    cached = rows.cache()
    if frame.first % 2 == 0:
        cached.count()
    return cached


def _joined(rows: DataFrame, frame: Frame, counts: Counts | None) -> DataFrame:
    other = rows.sparkSession.range(frame.first, frame.first + frame.count, 2).withColumnRenamed("id", "order_id")
    return rows.join(other, "order_id", "left").repartition(frame.tasks, "order_id").sortWithinPartitions("order_id")


def _retried(rows: DataFrame, frame: Frame, counts: Counts | None) -> DataFrame:
    """Return the rows; the first attempt of each odd task, or of the only task, fails after all of its rows."""
    tasks = frame.tasks

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        task = TaskContext.get()
        assert task is not None
        if task.attemptNumber() == 0 and (task.partitionId() % 2 or tasks == 1):
            raise RuntimeError("fails once")

    return rows.mapInArrow(fail_once, rows.schema)


def _counted(rows: DataFrame, frame: Frame, counts: Counts | None) -> DataFrame:
    """Return the rows; an accumulator counts those that pass."""
    passed = counts.passed if counts is not None else None
    if passed is None:
        return rows

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            passed.add(batch.num_rows)
            yield batch

    return rows.mapInArrow(count, rows.schema)


_SHAPES: dict[Shape, Callable[[DataFrame, Frame, Counts | None], DataFrame]] = {
    "range": _plain,
    "files": _plain,
    "cached": _cached,
    "shuffled": lambda rows, frame, _: rows.repartition(frame.tasks, "order_id").sortWithinPartitions("order_id"),
    "joined": _joined,
    "sorted": lambda rows, *_: rows.orderBy(F.col("order_id").desc()),
    "filtered": lambda rows, *_: rows.where("order_id % 3 < 2"),
    "union": lambda rows, *_: rows.union(rows.where("order_id % 2 = 0")),
    "limited": lambda rows, frame, _: rows.coalesce(1).limit(frame.count // 2 + 1),
    "retried": _retried,
    "counted": _counted,
}


def draw(random: Random, first: int, columns: tuple[str, ...], *, largest: int = SIZES[-1]) -> Frame:
    """Return a random frame whose rows begin at `first`."""
    settings = {
        "spark.sql.adaptive.enabled": random.choice(["true", "false"]),
        "spark.sql.files.maxRecordsPerFile": random.choice(["0", "0", "700"]),
        "spark.sql.execution.arrow.maxRecordsPerBatch": random.choice(["131072", "1000"]),
    }
    return Frame(
        first=first,
        count=random.choice([size for size in SIZES if size <= largest]),
        tasks=random.choice(TASKS),
        shape=random.choice(SHAPES),
        columns=tuple(name for name in columns if random.random() < 0.8),
        nulls=random.random() < 0.5,
        settings=settings,
    )
