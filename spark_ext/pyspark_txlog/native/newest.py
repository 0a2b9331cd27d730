"""How does Spark find the newest row of each key? With the rule of compaction (PROTOCOL.md, C2, C2a)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window, functions
from pyspark.sql.types import DoubleType

from pyspark_txlog.source.predicate import named


def newest(frame: DataFrame, keys: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Return the newest row of each key in its partition unless it is a tombstone, and all rows without a key.

    `frame` has all columns of the topic, `_partition` and `_offset`. A row without a key has null in all columns
    `keys`, a tombstone in all columns `values`.
    """
    same = [functions.col("_partition"), *(_exact(frame, name) for name in keys)]
    # Spark keeps only the first row of each key already before it moves rows between tasks.
    number = functions.row_number().over(Window.partitionBy(*same).orderBy(functions.col("_offset").desc()))
    keyless = _all_null(keys)
    numbered = frame.filter(~keyless).withColumn("_offset_newest", number).filter("_offset_newest = 1")
    kept = numbered.filter(~_all_null(values)) if values else numbered
    return kept.drop("_offset_newest").union(frame.filter(keyless))


def _exact(frame: DataFrame, name: str) -> Column:
    """Return the key column as it is compared. Spark groups 0.0 and -0.0 together, but they are two keys."""
    column = named(name)
    return column.cast("string") if isinstance(frame.schema[name].dataType, DoubleType) else column


def _all_null(names: Sequence[str]) -> Column:
    return reduce(and_, (named(name).isNull() for name in names))
