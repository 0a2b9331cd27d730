"""How do a topic's schema and rows look in Arrow, and do given rows fit the topic?

`txlog.core.schema` has the closed list of types. Only this module maps them to Arrow types. Rows come in as anything
with Arrow's C interface, or as dictionaries, and get exactly the topic's schema. Columns are found by name, types are
cast only if no value can change, and missing nullable columns become null. Everything else is refused; the error names
the column, the expected and the found type. Inside a store, columns are found by field id, never by name.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txlog.core.records import SchemaField
from txlog.core.schema import (
    KAFKA_FIELDS,
    NUMBERS,
    OFFSET_COLUMN,
    RESERVED_PREFIXES,
    TIMESTAMP_COLUMN,
    assign_ids,
    check_fields,
    decimal_type,
    describe,
    parse_decimal,
    range_left,
)
from txlog.errors import CorruptRecordError, SchemaMismatchError
from txlog.text import nearest

OFFSET_FIELD = pa.field(OFFSET_COLUMN, pa.int64(), nullable=False)
TIMESTAMP_FIELD = pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", "UTC"), nullable=False)

FIELD_ID_KEY = b"PARQUET:field_id"

_SCALARS: dict[str, pa.DataType] = {
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
_SCALAR_NAMES = {arrow: name for name, arrow in _SCALARS.items()}

_OTHER_NAMES = {
    "bool": "SQL BOOLEAN",
    "int8": "SQL TINYINT",
    "int16": "SQL SMALLINT",
    "int32": "SQL INT",
    "int64": "SQL BIGINT",
    "float32": "SQL FLOAT",
    "float64": "SQL DOUBLE",
    **{name: f"Arrow {_SCALARS[name]}" for name in ("date", "timestamp", "timestamp_ntz")},
}

_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_uint8, "int16"),
    (pa.types.is_uint16, "int32"),
    (pa.types.is_uint32, "int64"),
    (pa.types.is_uint64, "int64 or decimal128(20, 0)"),
    (pa.types.is_float16, "float32"),
    (pa.types.is_timestamp, 'timestamp("us", tz="UTC") or timestamp("us")'),
    (pa.types.is_date64, "date32"),
    (pa.types.is_decimal, "decimal128(precision, scale) with 0 <= scale <= precision <= 38"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_string_view, "string"),
    (pa.types.is_large_binary, "binary"),
    (pa.types.is_binary_view, "binary"),
    (pa.types.is_fixed_size_binary, "binary"),
    (pa.types.is_dictionary, "the type of its values"),
    (pa.types.is_large_list, "list"),
    (pa.types.is_fixed_size_list, "list"),
    (pa.types.is_null, "the type that its values will have"),
)


# -- schemas ----------------------------------------------------------------------------------------------------------


def to_fields(schema: pa.Schema, *, where: str = "schema") -> tuple[SchemaField, ...]:
    """Return the topic schema of an Arrow schema, with ids from 1 on, depth first.

    Raises SchemaMismatchError, beginning with `where`, if a type is not in the closed list or a name is not allowed.
    """
    fields = assign_ids([_to_field(field, field.name, where) for field in schema])
    check_fields(fields, where)
    return fields


def to_arrow(fields: Sequence[SchemaField]) -> pa.Schema:
    """Return the Arrow schema of `fields`, with `PARQUET:field_id` on every field, nested ones included (W9)."""
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


# -- rows in ----------------------------------------------------------------------------------------------------------


def conform(data: object, fields: Sequence[SchemaField], *, topic: str) -> pa.Table:
    """Return `data` with exactly the topic's schema.

    `data` is a pyarrow Table or RecordBatch, anything else with `__arrow_c_stream__` or `__arrow_c_array__` (pandas,
    polars, duckdb), or a list of dictionaries. Raises SchemaMismatchError naming topic and column in these cases.

    * A column is unknown or repeated.
    * A column or value is missing where nulls are not allowed.
    * The column cannot hold a type or value, for example a string that is not UTF-8.
    """
    where = f"topic {topic!r}"
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_rows(data, fields, where)
    table = _to_table(data, where)
    _check_columns(table.column_names, fields, where)
    columns = []
    for field, arrow_field in zip(fields, to_arrow(fields), strict=True):
        if field.name in table.column_names:
            column = _cast_column(table.column(field.name), field, arrow_field, where)
            _check_values(column, field, where)
        elif field.nullable:
            column = pa.chunked_array([pa.nulls(table.num_rows, arrow_field.type)])
        else:
            raise SchemaMismatchError(
                f"{where}: column {field.name!r} ({describe(field)}) is missing, and only nullable columns may be left out"
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=to_arrow(fields))


def check_stored(schema: pa.Schema, fields: Sequence[SchemaField], where: str) -> None:
    """Raise CorruptRecordError, beginning with `where`, if stored columns contradict a schema (PROTOCOL.md, R21).

    `fields` are those of the version that the rows name, or of a later one. Columns are only added; no known feature
    allows anything else. So each stored column is one of them, with its id, name and type.
    """
    target = to_arrow(fields)
    if schema.equals(target, check_metadata=True):
        return
    ids = [field_id(found) for found in schema]
    if not any(ids):
        unknown = [name for name in schema.names if name not in (*target.names, OFFSET_COLUMN, TIMESTAMP_COLUMN)]
        if unknown:
            raise CorruptRecordError(
                f"{where}: column {unknown[0]!r} is in it, and the topic's metadata has no such column; one of the two was replaced, "
                "look at them with `txlog fsck`"
            )
        return
    by_id = {field_id(wanted): wanted for wanted in target}
    for number, found in zip(ids, schema, strict=True):
        wanted = by_id.get(number)
        if number is not None and (wanted is None or found.name != wanted.name or not is_same(found, wanted)):
            there = "no such column" if wanted is None else f"{wanted.name!r}: {wanted.type}"
            raise CorruptRecordError(
                f"{where}: column {found.name!r} (id {number}): {found.type} is in it, and the topic's metadata has {there}; "
                "one of the two was replaced, look at them with `txlog fsck`"
            )


def is_same(found: pa.Field[Any], target: pa.Field[Any], *, named: bool = True) -> bool:
    """Return whether a stored column has the topic's id and type. It may allow nulls where the topic does not.

    Spark cannot give an id to the children of a list or map. If they have an id, it is compared.
    """
    number = field_id(found)
    if number != field_id(target) if named else number not in (None, field_id(target)):
        return False
    own, wanted = found.type, target.type
    if pa.types.is_struct(wanted):
        return (
            pa.types.is_struct(own)
            and [child.name for child in own] == [child.name for child in wanted]
            and all(is_same(a, b) for a, b in zip(own, wanted, strict=True))
        )
    if pa.types.is_list(wanted):
        return pa.types.is_list(own) and is_same(own.value_field, wanted.value_field, named=False)
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(own)
            and is_same(own.key_field, wanted.key_field, named=False)
            and is_same(own.item_field, wanted.item_field, named=False)
        )
    return bool(own.equals(wanted))


def find_columns(schema: pa.Schema, fields: Sequence[SchemaField]) -> tuple[int | None, ...]:
    """Return the position of each of `fields` in a stored schema (R14), None for a missing one."""
    by_id = {number: at for at, field in enumerate(schema) if (number := field_id(field)) is not None}
    if by_id:
        return tuple(by_id.get(field.id) for field in fields)
    by_name = {field.name: at for at, field in enumerate(schema)}
    return tuple(by_name.get(field.name) for field in fields)


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


def stored_column(column: Any, rows: int, field: SchemaField, arrow_field: pa.Field[Any], where: str) -> Any:
    """Return a stored column as the topic's type; nulls if the file is older than the column.

    Raises CorruptRecordError.
    """
    if column is None:
        if not field.nullable:
            raise CorruptRecordError(
                f"{where}: column {field.name!r} (id {field.id}) is not in it, and it is not nullable"
            )
        return pa.nulls(rows, arrow_field.type)
    if not column.type.equals(arrow_field.type, check_metadata=True):
        try:
            column = _cast(column, field, field.name, where)
        except (pa.ArrowException, SchemaMismatchError) as error:
            raise CorruptRecordError(
                f"{where}: column {field.name!r} (id {field.id}): expected {arrow_field.type}, found {column.type}: {error}"
            ) from error
    if not field.nullable and column.null_count:
        raise CorruptRecordError(
            f"{where}: column {field.name!r} (id {field.id}) is not nullable and has {column.null_count} nulls"
        )
    return column


# -- helpers: types ---------------------------------------------------------------------------------------------------


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
    instead = next((f"; use {better}" for matches, better in _INSTEAD if matches(arrow)), "")
    raise SchemaMismatchError(f"{where}: column {path!r}: Arrow's {arrow} is not a type of a topic{instead}")


def _to_arrow_field(field: SchemaField, *, loose: bool = False) -> pa.Field[Any]:
    nullable = field.nullable or loose
    return pa.field(field.name, _to_arrow_type(field, loose=loose), nullable, {FIELD_ID_KEY: str(field.id).encode()})


def _to_arrow_type(field: SchemaField, *, loose: bool = False) -> Any:
    """Return the Arrow type; with `loose`, one that allows nulls at all levels below."""
    scalar = _SCALARS.get(field.type)
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
    children: tuple[SchemaField, ...] = ()
    if field.fields:
        children = tuple(
            _with_stored_id(child, own) for child, own in zip(field.fields, _children(arrow.type), strict=True)
        )
    return SchemaField(id=found, name=field.name, type=field.type, nullable=field.nullable, fields=children)


def _children(arrow: pa.DataType) -> list[pa.Field[Any]]:
    if pa.types.is_map(arrow):
        return [arrow.key_field, arrow.item_field]
    return [arrow.field(number) for number in range(arrow.num_fields)]


# -- helpers: rows that speak Arrow -----------------------------------------------------------------------------------


def _to_table(data: object, where: str) -> pa.Table:
    try:
        if isinstance(data, pa.Table):
            return data
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data).read_all()
        if hasattr(data, "__arrow_c_array__"):
            return pa.Table.from_batches([pa.record_batch(data)])
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaMismatchError(
            f"{where}: {type(data).__name__} could not be read as rows in Arrow's form: {error}"
        ) from error
    raise SchemaMismatchError(
        f"{where}: rows must be a pyarrow Table or RecordBatch, anything with __arrow_c_stream__ (pandas, polars, …) or a list of "
        f"dictionaries, found {type(data).__name__}"
    )


def _check_columns(found: Sequence[str], fields: Sequence[SchemaField], where: str) -> None:
    known = [field.name for field in fields]
    for name in found:
        if name not in known:
            raise _unknown_column(name, known, where)
    if len(set(found)) != len(found):
        twice = next(name for name in found if list(found).count(name) > 1)
        raise SchemaMismatchError(f"{where}: column {twice!r} is there more than once")


def _unknown_column(name: object, known: Sequence[str], where: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{where}: column {name!r} is unknown; the topic has {', '.join(known)}.{_hint(str(name), known)}"
    )


def _hint(name: str, known: Sequence[str]) -> str:
    if name.lower().startswith(RESERVED_PREFIXES):
        return f" {name!r} belongs to txlog and is added when rows are read; drop it before sending"
    if name.startswith("__index_level_"):
        return " It is the index of a pandas frame; drop it with reset_index(drop=True)"
    return nearest(name, known)


def _cast_column(column: pa.ChunkedArray[Any], field: SchemaField, target: pa.Field[Any], where: str) -> Any:
    if not _is_lossless(column.type, target.type):
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {_expected(field)}, found {_found(column.type)}; cast it before sending"
        )
    _check_nulls(column, field, field.name, where)
    if column.type.equals(target.type, check_metadata=True):
        return column
    try:
        return _cast(column, field, field.name, where)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {_expected(field)}, found {_found(column.type)} with values that do not fit: {error}"
        ) from error


def _check_values(column: pa.ChunkedArray[Any], field: SchemaField, where: str) -> None:
    """Raise SchemaMismatchError for values that their type does not allow.

    Examples are string bytes that are not UTF-8, and decimals with too many digits. Arrow accepts such values without a
    check, but readers of inline rows refuse them, which is too late.
    """
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {describe(field)}, found values that are not valid: {error}. Decode text of another "
            "encoding before sending it, or use a binary column"
        ) from error


def _expected(field: SchemaField) -> str:
    """Return the type of a column for a message, with its SQL or Arrow name if it has one."""
    return describe(field).removesuffix(" not null") + (
        f" ({_OTHER_NAMES[field.type]})" if field.type in _OTHER_NAMES else ""
    )


def _found(arrow: pa.DataType) -> str:
    """Return a type as pyarrow's constructors name it.

    pyarrow.double() does not exist, and Python's float is a double.
    """
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(arrow), str(arrow))


def _exactly(values: Any, target: Any) -> Any:
    """Return `values` cast without changing any value. Raises ArrowException.

    Arrow's own safe cast refuses every integer beyond 2**53 in a float64, even an exact one.
    """
    try:
        return values.cast(target)
    except pa.ArrowInvalid as refused:
        changed = values.cast(options=pc.CastOptions(target_type=target, allow_float_truncate=True))
        try:
            is_exact = changed.cast(values.type).equals(values)
        except pa.ArrowInvalid:
            is_exact = False
        if not is_exact:
            raise refused
        return changed


def _is_lossless(source: Any, target: Any) -> bool:
    """Return whether Arrow's safe cast keeps every value or fails."""
    if source.equals(target) or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return _is_lossless(source.value_type, target)
    if pa.types.is_struct(target):
        return (
            pa.types.is_struct(source)
            and sorted(child.name for child in source) == sorted(child.name for child in target)
            and all(_is_lossless(source.field(child.name).type, child.type) for child in target)
        )
    if pa.types.is_list(target):
        # List views are not included: pyarrow's cast loses their values.
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        return any(is_one(source) for is_one in lists) and _is_lossless(source.value_type, target.value_type)
    if pa.types.is_map(target):
        return (
            pa.types.is_map(source)
            and _is_lossless(source.key_type, target.key_type)
            and _is_lossless(source.item_type, target.item_type)
        )
    if pa.types.is_timestamp(target):
        return pa.types.is_timestamp(source) and (source.tz is None) == (target.tz is None)
    return any(from_this(source) and to_that(target) for from_this, to_that in _LOSSLESS)


def _is_text(arrow: pa.DataType) -> bool:
    return pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow)


def _is_bytes(arrow: pa.DataType) -> bool:
    others = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return _is_text(arrow) or any(is_one(arrow) for is_one in others)


def _is_short_integer(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) and arrow.bit_width <= 16


def _is_half_or_float(arrow: pa.DataType) -> bool:
    return pa.types.is_float16(arrow) or pa.types.is_float32(arrow)


_LOSSLESS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_float64),
    (_is_short_integer, pa.types.is_float32),
    (_is_half_or_float, pa.types.is_float64),
    (pa.types.is_float16, pa.types.is_float32),
    (_is_text, pa.types.is_string),
    (_is_bytes, pa.types.is_binary),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_date64, pa.types.is_date32),
)


def _check_nulls(column: pa.ChunkedArray[Any], field: SchemaField, path: str, where: str) -> None:
    """Raise SchemaMismatchError for a null where the schema does not allow it, nested fields included."""
    if not field.nullable and column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise SchemaMismatchError(
            f"{where}: column {path!r} is not nullable, and {column.null_count} values are null, the first in row {row}"
        )
    if all(_allows_nulls(child) for child in field.fields) or pa.types.is_null(column.type):
        return
    for chunk in column.chunks:
        for child, values in zip(field.fields, _child_values(chunk, field), strict=True):
            _check_nulls(pa.chunked_array([values]), child, f"{path}.{child.name}", where)


def _cast(column: Any, field: SchemaField, path: str, where: str) -> Any:
    """Return the column as the topic's type.

    The children of a null struct hold arbitrary values. Spark writes nulls there, also in fields that do not allow
    nulls. Such hidden nulls are accepted; Arrow's own cast would refuse them. Raises SchemaMismatchError for other
    nulls, ArrowException.
    """
    target = _to_arrow_type(field)
    if all(_allows_nulls(child) for child in field.fields) or pa.types.is_null(column.type):
        return _exactly(column, target)
    loose = _exactly(column, _to_arrow_type(field, loose=True))
    whole = loose if isinstance(loose, pa.ChunkedArray) else pa.chunked_array([loose])
    _check_nulls(whole, field, path, where)
    if whole is not loose:
        return _tightened(loose, field)
    return pa.chunked_array([_tightened(chunk, field) for chunk in whole.chunks], target)


def _tightened(array: Any, field: SchemaField) -> Any:
    """Return `array` as the topic's type, with a value in place of each hidden null.

    The type of `array` allows nulls everywhere.
    """
    target = _to_arrow_type(field)
    if all(_allows_nulls(child) for child in field.fields):
        return array.cast(target)
    missing = array.is_null() if array.null_count else None
    if field.type == "struct":
        fields = [_tightened(_filled(array.field(child.name), child), child) for child in field.fields]
        return pa.StructArray.from_arrays(fields, fields=list(target), mask=missing)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.zeros(len(array), np.int32)
    lengths[present] = np.diff(array.drop_null().offsets.to_numpy())
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    below = [
        _tightened(_filled(values, child), child)
        for values, child in zip(_child_values(array, field), field.fields, strict=True)
    ]
    if field.type == "map":
        # The type stubs do not know `type` together with `mask`.
        return cast(Any, pa.MapArray).from_arrays(offsets, below[0], below[1], type=target, mask=missing)
    return pa.ListArray.from_arrays(offsets, below[0], type=target, mask=missing)


def _filled(array: Any, field: SchemaField) -> Any:
    if field.nullable or not array.null_count:
        return array
    places = np.arange(len(array))
    places[array.is_null().to_numpy(zero_copy_only=False)] = len(array)
    return pa.concat_arrays([array, pa.array([_blank(field)], array.type)]).take(pa.array(places))


def _blank(field: SchemaField) -> Any:
    """Return any value of the type."""
    if field.nullable:
        return None
    if field.type == "struct":
        return {child.name: _blank(child) for child in field.fields}
    if field.type in ("list", "map"):
        return []
    kind = _to_arrow_type(field)
    if field.type in ("string", "binary"):
        return pa.scalar("", kind).as_py()
    if pa.types.is_decimal(kind):
        return decimal.Decimal(0)
    # Arrow cannot cast a wider integer to a date.
    return pa.scalar(0, pa.int32() if field.type == "date" else pa.int64()).cast(kind).as_py()


def _allows_nulls(field: SchemaField) -> bool:
    return field.nullable and all(_allows_nulls(child) for child in field.fields)


def _child_values(array: Any, field: SchemaField) -> list[pa.Array[Any]]:
    """Return the values of a nested array's children that belong to a value.

    Values below a null or outside a slice are left out.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    present = array.drop_null()
    if field.type == "struct":
        return [present.field(child.name) for child in field.fields]
    if field.type == "map":
        # Unlike a list's flatten, keys and items ignore a slice.
        first, last = present.offsets[0].as_py(), present.offsets[len(present)].as_py()
        return [present.keys.slice(first, last - first), present.items.slice(first, last - first)]
    return [present.flatten()]


# -- helpers: rows as dictionaries ------------------------------------------------------------------------------------


def _from_rows(rows: Sequence[object], fields: Sequence[SchemaField], where: str) -> pa.Table:
    columns: list[list[object]] = [[] for _ in fields]
    names = {field.name for field in fields}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(f"{where}: row {number}: expected a dictionary, found {type(row).__name__}")
        if not names.issuperset(row):
            unknown = next(name for name in row if name not in names)
            raise _unknown_column(unknown, [field.name for field in fields], f"{where}: row {number}")
        for field, values in zip(fields, columns, strict=True):
            values.append(_checked(row.get(field.name), field, field.name, number, where))
    arrays = []
    for field, arrow_field, values in zip(fields, to_arrow(fields), columns, strict=True):
        try:
            arrays.append(pa.array(values, arrow_field.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise SchemaMismatchError(
                f"{where}: column {field.name!r}: expected {_expected(field)}: {error}"
            ) from error
    return pa.Table.from_arrays(arrays, schema=to_arrow(fields))


def _checked(value: object, field: SchemaField, path: str, row: int, where: str) -> object:
    """Return `value` if Arrow stores it in this field without changing it. (Arrow itself turns 1.5 into 1 if asked.)"""
    if value is None:
        if field.nullable:
            return None
        raise SchemaMismatchError(
            f"{where}: row {row}: column {path!r} is not nullable, and its value is missing or None"
        )
    if field.type == "struct" and isinstance(value, Mapping):
        children = {child.name: child for child in field.fields}
        for name in value:
            if name not in children:
                raise SchemaMismatchError(
                    f"{where}: row {row}: {path!r} has no field {name!r}, only {', '.join(children)}"
                )
        return {
            name: _checked(value.get(name), child, f"{path}.{name}", row, where) for name, child in children.items()
        }
    if field.type == "list" and isinstance(value, list | tuple | np.ndarray):
        return [_checked(item, field.fields[0], f"{path}.element", row, where) for item in value]
    if field.type == "map" and isinstance(value, Mapping | list | tuple):
        key, item = field.fields
        pairs = value.items() if isinstance(value, Mapping) else value
        return [
            (_checked(k, key, f"{path}.key", row, where), _checked(v, item, f"{path}.value", row, where))
            for k, v in _pairs(pairs, path, row, where)
        ]
    if field.type in _ACCEPTS and _ACCEPTS[field.type](value):
        range_ = range_left(field.type, value) if field.type in NUMBERS else None  # type: ignore[arg-type]
        if range_ is not None:
            raise SchemaMismatchError(
                f"{where}: row {row}: column {path!r}: {value!r:.50} does not fit into {field.type}, which holds {range_}"
            )
        # Arrow refuses all integers beyond 2**24 or 2**53 as rounded, also exact ones.
        return float(value) if field.type.startswith("float") else value  # type: ignore[arg-type]
    if field.type.startswith("decimal") and isinstance(value, decimal.Decimal | int) and not isinstance(value, bool):
        return value
    raise SchemaMismatchError(
        f"{where}: row {row}: column {path!r}: expected {describe(field)}, found {_kind(value)} {value!r:.100}"
    )


def _pairs(pairs: Any, path: str, row: int, where: str) -> list[tuple[object, object]]:
    found = list(pairs)
    for pair in found:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise SchemaMismatchError(
                f"{where}: row {row}: column {path!r}: expected pairs of key and value, found {pair!r:.100}"
            )
    return [(pair[0], pair[1]) for pair in found]


def _kind(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return "datetime with a time zone" if value.tzinfo else "datetime without a time zone"
    return type(value).__name__


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_integer(value) or isinstance(value, float | np.floating)


def _is_datetime(value: object) -> bool:
    # pandas' own may count nanoseconds, or be NaT, whose year is not an integer.
    return isinstance(value, datetime.datetime) and not getattr(value, "nanosecond", 0) and isinstance(value.year, int)


_ACCEPTS: dict[str, Callable[[object], bool]] = {
    "bool": lambda value: isinstance(value, bool | np.bool_),
    "int8": _is_integer,
    "int16": _is_integer,
    "int32": _is_integer,
    "int64": _is_integer,
    "float32": _is_number,
    "float64": _is_number,
    "string": lambda value: isinstance(value, str),
    "binary": lambda value: isinstance(value, bytes | bytearray | memoryview | str),
    "date": lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime),
    "timestamp": lambda value: _is_datetime(value) and getattr(value, "tzinfo", None) is not None,
    "timestamp_ntz": lambda value: _is_datetime(value) and getattr(value, "tzinfo", None) is None,
}

KAFKA_SHAPE: pa.Schema = to_arrow(KAFKA_FIELDS)
"""The schema of a topic that is created without one: key, value, headers, timestamp (the user's own)."""
