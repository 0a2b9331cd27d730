"""How does Spark's own filter keep the rows of a condition `where`? It must agree with `Predicate.keep`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

from pyspark.sql import Column, functions

from pyspark_txlog.schemas import to_spark
from txlog.engine.conditions import Every, Known, Node, Null, OneOf, Some, Value
from txlog.engine.schemas import SchemaField

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge}


def filter_column(node: Node) -> Column:
    """Return the condition for Spark's `filter`, on a frame that has all columns of the condition."""
    if isinstance(node, Every | Some):
        return reduce(and_ if isinstance(node, Every) else or_, map(filter_column, node.parts))
    column = named(node.field.name)
    if isinstance(node, Null):
        return column.isNotNull() if node.negated else column.isNull()
    if isinstance(node, Known):
        return functions.when(column.isNotNull(), functions.lit(node.truth))
    if isinstance(node, OneOf):
        found = column.isin([literal(value, node.field) for value in node.values])
        return ~found if node.negated else found
    compared: Column = _COMPARE[node.operator](column, literal(node.value, node.field))
    return compared


def literal(value: Value, field: SchemaField) -> Column:
    """Return a literal of exactly the column's type, independent of the session's time zone and calendar."""
    kind = to_spark([field])[0].dataType
    if field.type == "date":
        return functions.expr(f"date_from_unix_date({value})")
    if field.type == "timestamp":
        return functions.expr(f"timestamp_micros({value}L)")
    if field.type == "timestamp_ntz":
        return functions.expr(f"timestamp_ntz'1970-01-01' + make_dt_interval(0, 0, 0, {Decimal(value).scaleb(-6):f})")
    if isinstance(value, float):
        return functions.lit(value)
    if isinstance(value, Decimal):
        return functions.lit(f"{value:f}").cast(kind)
    return functions.lit(value).cast(kind)


def named(name: str) -> Column:
    """Return the column of that name, whatever characters it has."""
    return functions.col(quoted(name))


def quoted(name: str) -> str:
    """Quote a column's name so that Spark accepts any characters in it."""
    return "`" + name.replace("`", "``") + "`"
