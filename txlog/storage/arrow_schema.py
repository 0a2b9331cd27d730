"""How does a topic's schema look in Arrow, and do stored columns agree with it?

`txlog.core.schema` has the closed list of types. Only this module maps them to Arrow types. Inside a store, columns are
found by field id, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from txlog.core.records import SchemaField
from txlog.core.schema import OFFSET_COLUMN, TIMESTAMP_COLUMN, assign_ids, check_fields, decimal_type, parse_decimal
from txlog.errors import CorruptRecordError, SchemaMismatchError
from txlog.text import nearest

OFFSET_FIELD = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)
TIMESTAMP_FIELD = pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", "UTC"), nullable=False)
FIELD_ID_KEY = b"PARQUET:field_id"
SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SCALAR_NAMES = {arrow: name for name, arrow in SCALARS.items()}
_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str, pa.DataType | None], ...] = (
    (pa.types.is_uint8, "int16", pa.int16()),
    (pa.types.is_uint16, "int32", pa.int32()),
    (pa.types.is_uint32, "int64", pa.int64()),
    (pa.types.is_uint64, "int64 or decimal128(20, 0)", pa.int64()),
    (pa.types.is_float16, "float32", pa.float32()),
    (pa.types.is_timestamp, 'timestamp("us", tz="UTC") or timestamp("us")', None),
    (pa.types.is_date64, "date32", pa.date32()),
    (pa.types.is_decimal, "decimal128(precision, scale) with 0 <= scale <= precision <= 38", None),
    (pa.types.is_large_string, "string", pa.string()),
    (pa.types.is_string_view, "string", pa.string()),
    (pa.types.is_large_binary, "binary", pa.binary()),
    (pa.types.is_binary_view, "binary", pa.binary()),
    (pa.types.is_fixed_size_binary, "binary", pa.binary()),
    (pa.types.is_dictionary, "the type of its values", None),
    (pa.types.is_large_list, "list", None),
    (pa.types.is_fixed_size_list, "list", None),
    (pa.types.is_null, "the type that its values will have", None),
)
"""Other types of Arrow: what to use instead, for a message, and the nearest type, unless it depends on the type's
parts."""


def to_fields(schema: pa.Schema, *, where: str = "schema") -> tuple[SchemaField, ...]:
    """Return the topic schema of an Arrow schema, with ids from 1 on, depth first.

    Raises SchemaMismatchError, beginning with `where`, if a type is not in the closed list or a name is not allowed.
    """
    fields = assign_ids([_to_field(field, field.name, where) for field in schema])
    check_fields(fields, where)
    return fields


def nearest_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of another program's file, with the nearest type of a topic for each other type.

    Sending its rows changes no value: a value that the type cannot hold is refused then.
    """
    return pa.schema([_nearest_field(field) for field in schema])


def _nearest_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return pa.field(field.name, _nearest_type(field.type), field.nullable)


def _nearest_type(arrow: Any) -> Any:
    for matches, _, better in _INSTEAD:
        if better is not None and matches(arrow):
            return better
    if pa.types.is_dictionary(arrow):
        return _nearest_type(arrow.value_type)
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", None if arrow.tz is None else "UTC")
    if pa.types.is_decimal(arrow) and arrow.precision <= 38:
        return pa.decimal128(arrow.precision, arrow.scale)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return pa.list_(_nearest_field(arrow.value_field))
    if pa.types.is_struct(arrow):
        return pa.struct([_nearest_field(child) for child in arrow])
    if pa.types.is_map(arrow):
        return pa.map_(_nearest_field(arrow.key_field), _nearest_field(arrow.item_field))
    return arrow


def to_arrow(fields: Sequence[SchemaField]) -> pa.Schema:
    """Return the Arrow schema of `fields`, with `PARQUET:field_id` on every field, nested ones included (W9)."""
    return _arrow_schema(tuple(fields))


@lru_cache(maxsize=256)
def _arrow_schema(fields: tuple[SchemaField, ...]) -> pa.Schema:
    # Every batch that is sent, read or sealed needs its topic's schema several times.
    return pa.schema([_to_arrow_field(field) for field in fields])


def stored_fields(schema: pa.Schema, where: str) -> tuple[SchemaField, ...]:
    """Return the fields of a schema that txlog wrote, with the stored ids.

    Raises CorruptRecordError, beginning with `where`.
    """
    try:
        fields = tuple(_with_stored_id(_to_field(field, field.name, where), field) for field in schema)
        check_fields(fields, where)
    except (SchemaMismatchError, ValueError) as error:
        raise CorruptRecordError(f"{where}: its Arrow schema is not a valid topic schema: {error}") from error
    return fields


def field_id(field: pa.Field[Any]) -> int | None:
    """Return the id of a field; None if it has no id."""
    text = (field.metadata or {}).get(FIELD_ID_KEY)
    return int(text) if text is not None and text.isdigit() else None


def wanted_fields(fields: Sequence[SchemaField], columns: Sequence[str] | None) -> tuple[SchemaField, ...]:
    """Return the fields named by `columns` (None: all), in the order of `fields`. Raises SchemaMismatchError."""
    if columns is None:
        return tuple(fields)
    known = [field.name for field in fields]
    for name in columns:
        if name not in known:
            raise SchemaMismatchError(
                f"column {name!r} is unknown; the topic has {', '.join(known)}.{nearest(name, known)}"
            )
    return tuple(field for field in fields if field.name in set(columns))


# -- stored columns ---------------------------------------------------------------------------------------------------


def check_stored(schema: pa.Schema, fields: Sequence[SchemaField], where: str) -> None:
    """Raise CorruptRecordError, beginning with `where`, if stored columns contradict a schema (PROTOCOL.md, R21).

    `fields` are those of the version that the rows name, or of a later one. Columns are only added; no known feature
    allows anything else. So each stored column is one of them, with its id, name and type.
    """
    target = to_arrow(fields)
    if schema.equals(target, check_metadata=True):
        return
    ids = [field_id(found) for found in schema]
    # An id of 0 is an id, too: no column of a topic has it.
    if all(number is None for number in ids):
        unknown = [name for name in schema.names if name not in (*target.names, OFFSET_COLUMN, TIMESTAMP_COLUMN)]
        if unknown:
            raise CorruptRecordError(
                f"{where}: column {unknown[0]!r} is in it, and the topic's metadata has no such column; one of the "
                "two was replaced, look at them with `txlog fsck`"
            )
        return
    by_id = {field_id(wanted): wanted for wanted in target}
    for number, found in zip(ids, schema, strict=True):
        wanted = by_id.get(number)
        if number is not None and (wanted is None or found.name != wanted.name or not is_same(found, wanted)):
            there = "no such column" if wanted is None else f"{wanted.name!r}: {wanted.type}"
            raise CorruptRecordError(
                f"{where}: column {found.name!r} (id {number}): {found.type} is in it, and the topic's metadata has "
                f"{there}; one of the two was replaced. "
                "hint: look at them with `txlog fsck`"
            )


def is_same(found: pa.Field[Any], target: pa.Field[Any], *, named: bool = True) -> bool:
    """Return whether a stored column has the topic's id and type. It may allow nulls where the topic does not.

    Spark cannot give an id to the children of a list or map. If they have an id, it is compared.
    """
    number = field_id(found)
    if number != field_id(target) if named else number not in (None, field_id(target)):
        return False
    own, wanted = found.type, target.type
    if own.id != wanted.id or not pa.types.is_nested(wanted):
        return bool(own.equals(wanted))
    is_struct = pa.types.is_struct(wanted)
    children, targets = child_fields(own), child_fields(wanted)
    if is_struct and [child.name for child in children] != [child.name for child in targets]:
        return False
    return all(is_same(child, other, named=is_struct) for child, other in zip(children, targets, strict=True))


def find_columns(schema: pa.Schema, fields: Sequence[SchemaField]) -> tuple[int | None, ...]:
    """Return the position of each of `fields` in a stored schema (R14), None for a missing one."""
    by_id = {number: at for at, field in enumerate(schema) if (number := field_id(field)) is not None}
    if by_id:
        return tuple(by_id.get(field.id) for field in fields)
    by_name = {field.name: at for at, field in enumerate(schema)}
    return tuple(by_name.get(field.name) for field in fields)


# -- types ------------------------------------------------------------------------------------------------------------


def _to_field(field: pa.Field[Any], path: str, where: str) -> SchemaField:
    name, children = _to_type(field.type, path, where)
    return SchemaField(id=1, name=field.name, type=name, nullable=field.nullable, fields=children)


def _to_type(arrow: pa.DataType, path: str, where: str) -> tuple[str, tuple[SchemaField, ...]]:
    if arrow in _SCALAR_NAMES:
        return _SCALAR_NAMES[arrow], ()
    if pa.types.is_decimal128(arrow) and parse_decimal(decimal_type(arrow.precision, arrow.scale)):
        return decimal_type(arrow.precision, arrow.scale), ()
    if pa.types.is_struct(arrow):
        return "struct", tuple(_to_field(child, f"{path}.{child.name}", where) for child in arrow)
    if pa.types.is_list(arrow):
        return "list", (_to_field(arrow.value_field.with_name("element"), f"{path}.element", where),)
    if pa.types.is_map(arrow):
        key, value = arrow.key_field.with_name("key"), arrow.item_field.with_name("value")
        return "map", (_to_field(key, f"{path}.key", where), _to_field(value, f"{path}.value", where))
    instead = next((f"; use {better}" for matches, better, _ in _INSTEAD if matches(arrow)), "")
    raise SchemaMismatchError(f"{where}: column {path!r}: Arrow's {arrow} is not a type of a topic{instead}")


def _to_arrow_field(field: SchemaField, *, loose: bool = False) -> pa.Field[Any]:
    nullable = field.nullable or loose
    return pa.field(field.name, to_arrow_type(field, loose=loose), nullable, {FIELD_ID_KEY: str(field.id).encode()})


def to_arrow_type(field: SchemaField, *, loose: bool = False) -> Any:
    """Return the Arrow type; with `loose`, one that allows nulls at all levels below."""
    scalar = SCALARS.get(field.type)
    if scalar is not None:
        return scalar
    children: list[Any] = [_to_arrow_field(child, loose=loose) for child in field.fields]
    if loose and field.type == "map":
        children[0] = children[0].with_nullable(False)
    if field.type == "struct":
        return pa.struct(children)
    if field.type == "list":
        return pa.list_(children[0])
    if field.type == "map":
        return pa.map_(children[0], children[1])
    digits = parse_decimal(field.type)
    if digits is None:
        raise SchemaMismatchError(f"column {field.name!r}: type {field.type!r} is not one that this txlog knows")
    return pa.decimal128(*digits)


def _with_stored_id(field: SchemaField, arrow: pa.Field[Any]) -> SchemaField:
    found = field_id(arrow)
    if found is None:
        raise ValueError(f"column {field.name!r} carries no field id")
    pairs = zip(field.fields, child_fields(arrow.type), strict=True)
    children = tuple(_with_stored_id(child, own) for child, own in pairs)
    return SchemaField(id=found, name=field.name, type=field.type, nullable=field.nullable, fields=children)


def child_fields(arrow: pa.DataType) -> list[pa.Field[Any]]:
    """Return the fields directly below a type: none, if it is not nested."""
    if pa.types.is_map(arrow):
        return [arrow.key_field, arrow.item_field]
    return [arrow.field(number) for number in range(arrow.num_fields)]
