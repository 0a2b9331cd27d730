"""How do the columns of a file become a frame's columns, if the topic's columns have changed since the file was
written?

Spark reads a file with the names and types of the version that its rows name. Here each of these columns is found by
its field id (PROTOCOL.md, "Changed columns"). A narrower type becomes the wider one, and a field that was added later
gets its default or null. The same applies inside of structs, lists and maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from pyspark.sql import Column, functions
from pyspark.sql.types import StructField, StructType

from pyspark_txlog import schemas
from pyspark_txlog.source.predicate import literal, named
from txlog.engine.schemas import SchemaField, WrittenSchema, has_default


def physical_schema(fields: Sequence[SchemaField]) -> StructType:
    """Return the columns of a file of these fields. All are nullable, as in any file scan of Spark."""
    return StructType([StructField(each.name, each.dataType) for each in schemas.to_spark(fields)])


def strict_schema(
    physical: StructType, own: Sequence[SchemaField], wanted: StructType, fields: Sequence[SchemaField]
) -> StructType:
    """Return `physical` with the columns not nullable that `wanted` has so.

    `own` are the fields of the file, and `fields` those that `wanted` has. Columns of both are found by id; `_offset`
    and `_timestamp` by name.
    """
    targets = {field.id: field for field in fields if field.name in wanted.names}
    written = {field.name: field for field in own}
    made = []
    for column in physical:
        field = written.get(column.name)
        target = None if field is None else targets.get(field.id)
        if field is None:
            column = wanted[column.name] if column.name in wanted.names else column
        elif target is not None:
            kind = (
                wanted[target.name].dataType
                if is_same(field, target)
                else StructType([column]).toNullable()[0].dataType
            )
            column = StructField(column.name, kind, wanted[target.name].nullable)
        made.append(column)
    return StructType(made)


def converted_columns(written: WrittenSchema, fields: Sequence[SchemaField]) -> dict[str, Column]:
    """Return the columns `fields`, by name, of a frame that has the columns of `written`."""
    own = {field.id: field for field in written.fields}
    return {field.name: _top(own.get(field.id), field, written.last_field_id) for field in fields}


def is_same(written: SchemaField, wanted: SchemaField) -> bool:
    """Return whether values of both have one type.

    Names and ids of children count, and whether they are nullable does not.
    """
    return (
        written.type == wanted.type
        and len(written.fields) == len(wanted.fields)
        and all(
            (old.id, old.name) == (new.id, new.name) and is_same(old, new)
            for old, new in zip(written.fields, wanted.fields, strict=True)
        )
    )


def _top(written: SchemaField | None, wanted: SchemaField, last_id: int) -> Column:
    return _converted(None if written is None else named(written.name), written, wanted, last_id)


def _converted(column: Column | None, written: SchemaField | None, wanted: SchemaField, last_id: int) -> Column:
    """Return a column, or a field inside of one, as the wanted field."""
    kind = schemas.to_spark([wanted])[0].dataType
    if column is None or written is None:
        if has_default(wanted, last_id):
            # Without `otherwise` Spark takes the column as nullable, as its other files have it.
            return functions.when(functions.lit(True), _default(wanted).cast(kind))
        return functions.lit(None).cast(kind)
    if is_same(written, wanted):
        return column
    if wanted.type == "struct":
        own = {field.id: field for field in written.fields}
        children = []
        for child in wanted.fields:
            found = own.get(child.id)
            value = None if found is None else column.getField(found.name)
            children.append(_converted(value, found, child, last_id).alias(child.name))
        # The struct itself may be null, and has no default inside then.
        return functions.when(column.isNotNull(), functions.struct(*children))
    if wanted.type == "list":
        old, new = written.fields[0], wanted.fields[0]
        return functions.transform(column, lambda each: _converted(each, old, new, last_id))
    if wanted.type == "map":
        # The key of a map never changes.
        old, new = written.fields[1], wanted.fields[1]
        return functions.transform_values(column, lambda _, each: _converted(each, old, new, last_id))
    return column.cast(kind)


def _default(field: SchemaField) -> Column:
    if field.type.startswith("decimal"):
        return literal(Decimal(cast(str, field.default)), field)
    if field.type == "binary":
        return functions.lit(bytes.fromhex(cast(str, field.default)))
    return literal(cast("int | float | str", field.default), field)
