"""Do given rows fit the topic, and how do they get exactly its schema?

Rows come in as anything with Arrow's C interface, or as dictionaries. Columns are found by name, types are cast only if
no value can change, and missing nullable columns become null. Everything else is refused; the error names the column,
the expected and the found type.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from txlog.core.records import SchemaField
from txlog.core.schema import NUMBERS, RESERVED_PREFIXES, describe, is_headers, range_left
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_cast import cast_column, check_nulls, is_lossless, no_values, without_hidden_nulls
from txlog.storage.arrow_schema import SCALARS, to_arrow
from txlog.text import nearest


def conform(
    data: object,
    fields: Sequence[SchemaField],
    *,
    topic: str,
    check: Callable[[pa.Schema], None] = lambda _: None,
    former: Callable[[str], str] = lambda _: "",
) -> pa.Table:
    """Return `data` with exactly the topic's schema.

    `check` gets the schema of rows in Arrow's form, and may refuse them. `former` returns a sentence on what became of
    a column, for the error of an unknown one.

    `data` is a pyarrow Table or RecordBatch, anything else with `__arrow_c_stream__` or `__arrow_c_array__` (pandas,
    polars, duckdb), a dictionary (one row) or a list of dictionaries. Raises SchemaMismatchError naming topic and
    column in these cases.

    * A column is unknown or repeated.
    * A column or value is missing where nulls are not allowed.
    * The column cannot hold a type or value, for example a string that is not UTF-8.
    """
    where = f"topic {topic!r}"
    if (row := single_row(data)) is not None:
        return _from_rows([row], fields, where, former)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_rows(data, fields, where, former)
    table = _to_table(data, fields, where)
    _check_columns(table.column_names, fields, where, former)
    check(table.schema)
    columns = []
    for field, arrow_field in zip(fields, to_arrow(fields), strict=True):
        if field.name in table.column_names:
            column = _conformed_column(table.column(field.name), field, arrow_field, where)
            _check_values(column, field, where)
        elif field.nullable:
            column = pa.chunked_array([no_values(table.num_rows, field)])
        else:
            raise SchemaMismatchError(
                f"{where}: column {field.name!r} ({describe(field)}) is missing, and only "
                "nullable columns may be left out"
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=to_arrow(fields))


def single_row(data: object) -> Mapping[Any, object] | None:
    """Return the row if `data` is a dictionary, or a list of one dictionary. Otherwise return None."""
    row = data[0] if isinstance(data, list) and len(data) == 1 else data
    return row if isinstance(row, Mapping) and not hasattr(row, "__arrow_c_stream__") else None


# -- rows that speak Arrow --------------------------------------------------------------------------------------------


def _to_table(data: object, fields: Sequence[SchemaField], where: str) -> pa.Table:
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
        _check_once(list(getattr(data, "columns", ())), where)
        _check_objects(data, fields, where)
        raise SchemaMismatchError(
            f"{where}: {type(data).__name__} could not be read as rows in Arrow's form: {error}"
        ) from error
    raise SchemaMismatchError(
        f"{where}: rows must be a pyarrow Table or RecordBatch, anything with __arrow_c_stream__ (pandas, polars, …), "
        f"a dictionary, or a list of dictionaries, found {type(data).__name__}"
    )


def _check_objects(frame: Any, fields: Sequence[SchemaField], where: str) -> None:
    """Raise SchemaMismatchError for the first Python object in a frame of pandas that its column cannot hold."""
    if type(frame).__module__.partition(".")[0] != "pandas":
        return
    for field in fields:
        column = frame[field.name] if list(frame.columns).count(field.name) == 1 else None
        if column is not None and column.dtype == object:
            for number, (value, is_null) in enumerate(zip(column, column.isna(), strict=True)):
                checked_value(None if is_null else value, field, field.name, number, where)


def _check_columns(
    found: Sequence[str], fields: Sequence[SchemaField], where: str, former: Callable[[str], str]
) -> None:
    known = [field.name for field in fields]
    for name in found:
        if name not in known:
            raise _unknown_column(name, known, where, former)
    _check_once(found, where)


def _check_once(found: Sequence[str], where: str) -> None:
    if len(set(found)) != len(found):
        twice = next(name for name in found if list(found).count(name) > 1)
        raise SchemaMismatchError(
            f"{where}: column {twice!r} is there more than once. hint: drop or rename one of them"
        )


def _unknown_column(
    name: object, known: Sequence[str], where: str, former: Callable[[str], str]
) -> SchemaMismatchError:
    what = former(str(name)) or _hint(str(name), known)
    return SchemaMismatchError(f"{where}: column {name!r} is unknown; the topic has {', '.join(known)}.{what}")


def is_frame_index(name: str) -> bool:
    """Return whether a column is the unnamed index of a pandas frame."""
    return name.startswith("__index_level_")


def _hint(name: str, known: Sequence[str]) -> str:
    if name.lower().startswith(RESERVED_PREFIXES):
        return f" {name!r} belongs to txlog and is added when rows are read; drop it before sending"
    if is_frame_index(name):
        return " It is the index of a pandas frame; drop it with reset_index(drop=True)"
    return nearest(name, known)


def _conformed_column(column: pa.ChunkedArray[Any], field: SchemaField, target: pa.Field[Any], where: str) -> Any:
    if not is_lossless(column.type, target.type):
        # pandas makes floats of integers as soon as one is missing.
        how = " (pandas: .astype('Int64'))" if pa.types.is_floating(column.type) and field.type[:3] == "int" else ""
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {_expected(field)}, found "
            f"{_found(column.type)}; cast it before sending{how}"
        )
    check_nulls(column, field, field.name, where)
    if column.type.equals(target.type, check_metadata=True):
        return without_hidden_nulls(column, field)
    try:
        return cast_column(column, field, field.name, where)
    except pa.ArrowException as error:
        below = str(column.type).startswith("timestamp[ns")
        hint = ". hint: cut it to microseconds, in pandas with .dt.floor('us')" if below else ""
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {_expected(field)}, found {_found(column.type)} with values "
            f"that do not fit: {error}{hint}"
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
            f"{where}: column {field.name!r}: expected {describe(field)}, found values that are not valid: {error}. "
            "hint: decode text of another encoding before sending it, or use a binary column"
        ) from error


_OTHER_NAMES = {
    "bool": "SQL BOOLEAN",
    "int8": "SQL TINYINT",
    "int16": "SQL SMALLINT",
    "int32": "SQL INT",
    "int64": "SQL BIGINT",
    "float32": "SQL FLOAT",
    "float64": "SQL DOUBLE",
    **{name: f"Arrow {SCALARS[name]}" for name in ("date", "timestamp", "timestamp_ntz")},
}


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


# -- rows as dictionaries ---------------------------------------------------------------------------------------------


def _from_rows(
    rows: Sequence[object], fields: Sequence[SchemaField], where: str, former: Callable[[str], str]
) -> pa.Table:
    columns: list[list[object]] = [[] for _ in fields]
    names = {field.name for field in fields}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(f"{where}: row {number}: expected a dictionary, found {type(row).__name__}")
        if not names.issuperset(row):
            unknown = next(name for name in row if name not in names)
            raise _unknown_column(unknown, [field.name for field in fields], f"{where}: row {number}", former)
        for field, values in zip(fields, columns, strict=True):
            values.append(checked_value(row.get(field.name), field, field.name, number, where))
    schema = to_arrow(fields)
    arrays = [array_of(*each, where) for each in zip(columns, fields, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def array_of(
    values: Sequence[object], field: SchemaField, arrow_field: pa.Field[Any], where: str
) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Return values that `checked_value` has returned as a column. Raises SchemaMismatchError."""
    try:
        array: pa.Array[Any] | pa.ChunkedArray[Any] = pa.array(values, arrow_field.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise SchemaMismatchError(f"{where}: column {field.name!r}: expected {_expected(field)}: {error}") from error
    return array


def checked_value(value: object, field: SchemaField, path: str, row: int, where: str) -> object:
    """Return `value`, or a copy if it can change, if Arrow stores it in this field without changing it.

    Arrow itself turns 1.5 into 1 if asked.
    """
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
            name: checked_value(value.get(name), child, f"{path}.{name}", row, where)
            for name, child in children.items()
        }
    if is_headers(field):
        value = _as_headers(value)
    if field.type == "list" and isinstance(value, list | tuple | np.ndarray):
        return [checked_value(item, field.fields[0], f"{path}.element", row, where) for item in value]
    if field.type == "map" and isinstance(value, Mapping | list | tuple):
        key, item = field.fields
        pairs = value.items() if isinstance(value, Mapping) else value
        return [
            (checked_value(k, key, f"{path}.key", row, where), checked_value(v, item, f"{path}.value", row, where))
            for k, v in _pairs(pairs, path, row, where)
        ]
    if field.type in _ACCEPTS and _ACCEPTS[field.type](value):
        range_ = range_left(field.type, value) if field.type in NUMBERS else None  # type: ignore[arg-type]
        if range_ is not None:
            raise SchemaMismatchError(
                f"{where}: row {row}: column {path!r}: {value!r:.50} does not fit into "
                f"{field.type}, which holds {range_}"
            )
        # Arrow refuses all integers beyond 2**24 or 2**53 as rounded, also exact ones.
        if field.type.startswith("float"):
            return float(value)  # type: ignore[arg-type]
        return bytes(value) if isinstance(value, bytearray | memoryview) else value
    if field.type.startswith("decimal") and isinstance(value, decimal.Decimal | int) and not isinstance(value, bool):
        return value
    raise SchemaMismatchError(
        f"{where}: row {row}: column {path!r}: expected {describe(field)}, found {_kind(value)} "
        f"{value!r:.100}{_columns_hint(value, field)}"
    )


def _columns_hint(value: object, field: SchemaField) -> str:
    if getattr(value, "nanosecond", 0):
        return ". hint: cut it to microseconds, in pandas with .floor('us')"
    if field.type == "binary" and isinstance(value, int):
        return f". hint: give text or bytes, as in str({value!r:.50})"
    if not isinstance(value, list | tuple | np.ndarray):
        return ""
    return ". hint: a dictionary is one row; for lists of values send pyarrow.table({...}), or a frame"


def _as_headers(value: object) -> object:
    """Return headers as Kafka's columns have them.

    They may be a dictionary, or pairs as Kafka's Python clients have.
    """
    if isinstance(value, Mapping):
        return [{"key": key, "value": item} for key, item in value.items()]
    if not isinstance(value, list | tuple):
        return value
    return [
        {"key": each[0], "value": each[1]} if isinstance(each, list | tuple) and len(each) == 2 else each
        for each in value
    ]


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
    **dict.fromkeys(("int8", "int16", "int32", "int64"), _is_integer),
    **dict.fromkeys(("float32", "float64"), _is_number),
    "string": lambda value: isinstance(value, str),
    "binary": lambda value: isinstance(value, bytes | bytearray | memoryview | str),
    "date": lambda value: isinstance(value, datetime.date) and not isinstance(value, datetime.datetime),
    "timestamp": lambda value: _is_datetime(value) and getattr(value, "tzinfo", None) is not None,
    "timestamp_ntz": lambda value: _is_datetime(value) and getattr(value, "tzinfo", None) is None,
}
