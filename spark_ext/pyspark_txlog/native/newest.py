"""How does Spark find the newest row of each key? With the rule of compaction (PROTOCOL.md, C2, C2a)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window, functions
from pyspark.sql.types import DoubleType

from pyspark_txlog.source.predicate import named
from txlog.engine import ReadPlan, ReadTask, offsets_of
from txlog.engine.schemas import SchemaField, TopicMetadata


def divided_tasks(
    topic: TopicMetadata, keys: Sequence[str], plans: Sequence[ReadPlan], tasks: Sequence[ReadTask]
) -> tuple[list[ReadTask], list[ReadTask]]:
    """Return the tasks of the plans in two parts: rows of which no two have the same key, and the rows after them.

    A task without pieces is in neither.
    """
    # A local import: it loads numpy and pyarrow.
    from txlog.engine.arrow import compacted_end_of

    parts: tuple[list[ReadTask], list[ReadTask]] = [], []
    for plan, task in zip(plans, tasks, strict=True):
        end = compacted_end_of(topic, plan, keys)
        for part, is_compacted in zip(parts, (True, False), strict=True):
            pieces = tuple(piece for piece in task.pieces if (offsets_of(piece)[1] <= end) == is_compacted)
            part += [replace(task, pieces=pieces)] if pieces else []
    return parts


def newest(
    compacted: DataFrame | None, frame: DataFrame | None, keys: Sequence[str], fields: Sequence[SchemaField]
) -> DataFrame:
    """Return the newest row of each key in its partition unless it is a tombstone, and all rows without a key.

    No two rows of `compacted` in a partition have the same key, and those of `frame` are newer. One of them may be
    None: it has no rows. Both have all columns of the topic, which are `fields`, with `_partition` and `_offset`. A row
    without a key has null in all columns `keys`, a tombstone in all value columns.
    """
    # A local import: it loads numpy and pyarrow.
    from txlog.engine.arrow import value_columns

    values = value_columns(fields, keys)
    never_null = {field.name for field in fields if not field.nullable}
    keyless, some_keyless = _all_null(keys), never_null.isdisjoint(keys)
    parts = [] if compacted is None else [compacted]
    if frame is not None:
        same = [functions.col("_partition"), *(_exact(frame, name) for name in keys)]
        # Spark keeps only the first row of each key already before it moves rows between tasks.
        number = functions.row_number().over(Window.partitionBy(*same).orderBy(functions.col("_offset").desc()))
        keyed = frame.filter(~keyless) if some_keyless else frame
        chosen = keyed.withColumn("_offset_newest", number).filter("_offset_newest = 1").drop("_offset_newest")
        if compacted is not None:
            # Only the keys of the newer rows are moved. A topic cannot have columns with these names.
            names = [f"_offset_newer_{at}" for at in range(len(same))]
            newer = keyed.select(*(column.alias(name) for column, name in zip(same, names, strict=True)))
            equal = (column.eqNullSafe(functions.col(name)) for column, name in zip(same, names, strict=True))
            parts = [compacted.join(newer, reduce(and_, equal), "left_anti")]
        parts += [chosen, *([frame.filter(keyless)] if some_keyless else ())]
    kept = reduce(DataFrame.union, parts)
    # Only rows with a key are tombstones.
    return kept.filter(keyless | ~_all_null(values)) if values and never_null.isdisjoint(values) else kept


def _exact(frame: DataFrame, name: str) -> Column:
    """Return the key column as it is compared. Spark groups 0.0 and -0.0 together, but they are two keys."""
    column = named(name)
    return column.cast("string") if isinstance(frame.schema[name].dataType, DoubleType) else column


def _all_null(names: Sequence[str]) -> Column:
    return reduce(and_, (named(name).isNull() for name in names))
