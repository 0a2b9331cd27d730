"""How does a column get the topic's type without a change of any value?"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from txlog.core.records import SchemaField
from txlog.errors import CorruptRecordError, SchemaMismatchError
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow_type


def own_columns(offsets: NDArray[np.int64], stamps_us: NDArray[np.int64]) -> list[pa.Array[Any]]:
    """Return the columns `_offset` and `_timestamp` with these values, whose memory they share.

    `pa.array` would copy the values, and would import pandas first, which takes 0.3 s.
    """
    return [
        pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(cast(Any, values))])
        for field, values in ((OFFSET_FIELD, offsets), (TIMESTAMP_FIELD, stamps_us))
    ]


def stored_column(column: Any, rows: int, field: SchemaField, arrow_field: pa.Field[Any], where: str) -> Any:
    """Return a stored column as the topic's type; nulls if the file is older than the column.

    Raises CorruptRecordError.
    """
    if column is None:
        if not field.nullable:
            raise CorruptRecordError(
                f"{where}: column {field.name!r} (id {field.id}) is not in it, and it is not nullable"
            )
        return no_values(rows, field)
    if column.type.equals(arrow_field.type, check_metadata=True):
        column = without_hidden_nulls(column, field)
    else:
        try:
            column = cast_column(column, field, field.name, where)
        except (pa.ArrowException, SchemaMismatchError) as error:
            raise CorruptRecordError(
                f"{where}: column {field.name!r} (id {field.id}): expected {arrow_field.type}, "
                f"found {column.type}: {error}"
            ) from error
    if not field.nullable and column.null_count:
        raise CorruptRecordError(
            f"{where}: column {field.name!r} (id {field.id}) is not nullable and has {column.null_count} nulls"
        )
    return column


def is_lossless(source: Any, target: Any) -> bool:
    """Return whether Arrow's safe cast keeps every value or fails."""
    if source.equals(target) or pa.types.is_null(source):
        return True
    if pa.types.is_dictionary(source):
        return is_lossless(source.value_type, target)
    if pa.types.is_struct(target):
        return (
            pa.types.is_struct(source)
            and sorted(child.name for child in source) == sorted(child.name for child in target)
            and all(is_lossless(source.field(child.name).type, child.type) for child in target)
        )
    if pa.types.is_list(target):
        # List views are not included: pyarrow's cast loses their values.
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        return any(is_one(source) for is_one in lists) and is_lossless(source.value_type, target.value_type)
    if pa.types.is_map(target):
        return (
            pa.types.is_map(source)
            and is_lossless(source.key_type, target.key_type)
            and is_lossless(source.item_type, target.item_type)
        )
    if pa.types.is_timestamp(target):
        return pa.types.is_timestamp(source) and (source.tz is None) == (target.tz is None)
    kinds = next((kinds for is_target, kinds in _LOSSLESS if is_target(target)), ())
    return any(is_one(source) for is_one in kinds)


_Kinds: TypeAlias = tuple[Callable[[pa.DataType], bool], ...]
_SHORT: _Kinds = (pa.types.is_int8, pa.types.is_uint8, pa.types.is_int16, pa.types.is_uint16)
_TEXT: _Kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES: _Kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_LOSSLESS: tuple[tuple[Callable[[pa.DataType], bool], _Kinds], ...] = (
    (pa.types.is_integer, (pa.types.is_integer,)),
    (pa.types.is_float32, (*_SHORT, pa.types.is_float16)),
    (pa.types.is_float64, (pa.types.is_integer, pa.types.is_float16, pa.types.is_float32)),
    (pa.types.is_string, _TEXT),
    (pa.types.is_binary, (*_TEXT, *_BYTES)),
    (pa.types.is_decimal, (pa.types.is_decimal,)),
    (pa.types.is_date32, (pa.types.is_date64,)),
)
"""Each target with the types whose values it can hold, or refuses."""


def check_nulls(column: pa.ChunkedArray[Any], field: SchemaField, path: str, where: str) -> None:
    """Raise SchemaMismatchError for a null where the schema does not allow it, nested fields included."""
    if not field.nullable and column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise SchemaMismatchError(
            f"{where}: column {path!r} is not nullable, and {column.null_count} values are null, the first in row {row}"
        )
    if all(_allows_nulls(child) for child in field.fields) or pa.types.is_null(column.type):
        return
    for chunk in column.chunks:
        for child, values in zip(field.fields, child_values(chunk, field), strict=True):
            check_nulls(pa.chunked_array([values]), child, f"{path}.{child.name}", where)


def cast_column(column: Any, field: SchemaField, path: str, where: str) -> Any:
    """Return the column as the topic's type.

    The children of a null struct hold arbitrary values. Spark writes nulls there, also in fields that do not allow
    nulls. Such hidden nulls are accepted; Arrow's own cast would refuse them. Raises SchemaMismatchError for other
    nulls, ArrowException.
    """
    target = to_arrow_type(field)
    if pa.types.is_null(column.type):
        return no_values(len(column), field)
    if all(_allows_nulls(child) for child in field.fields):
        return exactly(column, target)
    loose = exactly(column, to_arrow_type(field, loose=True))
    whole = loose if isinstance(loose, pa.ChunkedArray) else pa.chunked_array([loose])
    check_nulls(whole, field, path, where)
    if whole is not loose:
        return _tightened(loose, field)
    return pa.chunked_array([_tightened(chunk, field) for chunk in whole.chunks], target)


def no_values(rows: int, field: SchemaField) -> Any:
    """Return a column of nulls, which a file can have: it may be a struct with fields that do not allow nulls."""
    return without_hidden_nulls(pa.nulls(rows, to_arrow_type(field)), field)


def without_hidden_nulls(column: Any, field: SchemaField) -> Any:
    """Return the column, which has the topic's type, with a value in place of each hidden null; see `cast_column`.

    Arrow's own functions make such nulls, also in fields that do not allow them, and its Parquet writer refuses them.
    """
    if isinstance(column, pa.ChunkedArray):
        if not any(_has_hidden_nulls(chunk, field) for chunk in column.chunks):
            return column
        return pa.chunked_array([_tightened(chunk, field) for chunk in column.chunks], column.type)
    return _tightened(column, field) if _has_hidden_nulls(column, field) else column


def _has_hidden_nulls(array: Any, field: SchemaField) -> bool:
    if all(_allows_nulls(child) for child in field.fields):
        return False
    if field.type != "struct":
        return any(
            _has_hidden_nulls(values, child)
            for values, child in zip(child_values(array, field), field.fields, strict=True)
        )
    below = [(array.field(at), child) for at, child in enumerate(field.fields)]
    return any(
        (not child.nullable and values.null_count) or _has_hidden_nulls(values, child) for values, child in below
    )


def exactly(values: Any, target: Any) -> Any:
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


def _tightened(array: Any, field: SchemaField) -> Any:
    """Return `array` as the topic's type, with a value in place of each hidden null.

    `array` has this type already, or one that allows nulls everywhere.
    """
    target = to_arrow_type(field)
    if all(_allows_nulls(child) for child in field.fields):
        return array.cast(target)
    values = (
        [array.field(child.name) for child in field.fields] if field.type == "struct" else child_values(array, field)
    )
    below = [_tightened(filled(each, child), child) for each, child in zip(values, field.fields, strict=True)]
    return with_children(array, field, target, below)


def with_children(array: Any, field: SchemaField, target: Any, below: list[Any]) -> Any:
    """Return `array`, a struct, list or map, as type `target` with other children.

    For a struct `below` has values for each row; otherwise it is in the form of `child_values`.
    """
    missing = array.is_null() if array.null_count else None
    if field.type == "struct":
        return pa.StructArray.from_arrays(below, fields=list(target), mask=missing)
    present = array.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.zeros(len(array), np.int32)
    lengths[present] = np.diff(array.drop_null().offsets.to_numpy())
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    if field.type == "map":
        # The type stubs do not know `type` together with `mask`.
        return cast(Any, pa.MapArray).from_arrays(offsets, below[0], below[1], type=target, mask=missing)
    return pa.ListArray.from_arrays(offsets, below[0], type=target, mask=missing)


def filled(array: Any, field: SchemaField) -> Any:
    """Return `array` with a value in place of each null, if the field allows none: they are below a null parent."""
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
    kind = to_arrow_type(field)
    if field.type in ("string", "binary"):
        return pa.scalar("", kind).as_py()
    if pa.types.is_decimal(kind):
        return decimal.Decimal(0)
    # Arrow cannot cast a wider integer to a date.
    return pa.scalar(0, pa.int32() if field.type == "date" else pa.int64()).cast(kind).as_py()


def _allows_nulls(field: SchemaField) -> bool:
    return field.nullable and all(_allows_nulls(child) for child in field.fields)


def child_values(array: Any, field: SchemaField) -> list[pa.Array[Any]]:
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
