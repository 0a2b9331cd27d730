"""Which schemas may a topic have, and how may one change?

A schema is a tuple of fields over a closed list of types that Arrow, Parquet and Spark agree on bit by bit
(PROTOCOL.md, "Types"). Readers find fields in files by id, not by name or position, so an id is never reused. A schema
changes by adding nullable columns at its end; `txlog.core.evolution` has the other changes. Arrow's view of the same
list is `txlog.storage.arrow_schema`.
"""

from __future__ import annotations

import math
import numbers
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError

NUMBERS = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    "float32": (-(2**24), 2**24),
    "float64": (-(2**53), 2**53),
}
"""Types of numbers, each with the range in which it holds every integer."""

SCALAR_TYPES = frozenset(NUMBERS) | {
    "bool",
    "string",
    "binary",
    "date",  # days since 1970-01-01
    "timestamp",  # microseconds, UTC
    "timestamp_ntz",  # microseconds of a wall clock without a zone
}
"""Further types are `decimal(p,s)` with 1 <= p <= 38 and 0 <= s <= p, and the nested `list`, `map`, `struct`."""

_WHOLE_NUMBERS = {
    **{name: name for name in ("int8", "int16", "int32", "int64")},
    "date": "int32",
    "timestamp": "int64",
    "timestamp_ntz": "int64",
}
"""Types whose values are whole numbers, each with the integer type of the same range."""

KEY_TYPES = ("string", "binary", "int16", "int32", "int64", "float64")
"""Types that Kafka's serializers write, so that they can be keys."""

TOPIC_COLUMN, PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN = "_topic", "_partition", "_offset", "_timestamp"
OWN_COLUMNS = {TOPIC_COLUMN: "string", PARTITION_COLUMN: "int32", OFFSET_COLUMN: "int64", TIMESTAMP_COLUMN: "timestamp"}
"""Columns that txlog adds to the rows that it returns, with their types."""
RESERVED_PREFIXES = tuple(OWN_COLUMNS)
"""The name of a topic's column must not begin with one of these, in upper or lower case."""

MAX_NESTING = 8
"""Types must not nest deeper: this is far below the depth limit of a metadata object."""
MAX_FIELD_ID = 2**31 - 1

MAX_DEFAULT_BYTES = 32_768
"""Size of the default of a string (in UTF-8) or binary column. Readers repeat it for each older row."""
_DECIMAL_TEXT = re.compile(r"-?(\d{1,38})(?:\.(\d{1,38}))?", re.ASCII)
_UTF8 = re.compile(r"[^\ud800-\udfff]*", re.DOTALL)
_HEX = re.compile(r"(?:[0-9a-f]{2})*", re.ASCII)
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)", re.ASCII)
_CHILDREN = {"list": (1, 1), "map": (2, 2), "struct": (1, 10_000)}
CHILD_NAMES = {"list": ("element",), "map": ("key", "value")}
"""Names of the children of a list and of a map. The children of a struct have names chosen by the user."""


def parse_decimal(type_name: str) -> tuple[int, int] | None:
    """Return (precision, scale) of `decimal(p,s)` within the limits; None for any other text."""
    match = _DECIMAL.fullmatch(type_name)
    if match is None or decimal_type(precision := int(match[1]), scale := int(match[2])) != type_name:
        return None
    return (precision, scale) if 1 <= precision <= 38 and scale <= precision else None


def decimal_type(precision: int, scale: int) -> str:
    """Return the name of a decimal type."""
    return f"decimal({precision},{scale})"


def range_left(type_name: str, value: float) -> str | None:
    """Return the range of a type of NUMBERS as text if `value` is not in it; None if it is.

    An integer is stored exactly, or not at all. A float is stored as the nearest value of the column, as IEEE 754
    rounds it, but a finite one must not become infinite (PROTOCOL.md, "Types").
    """
    least, greatest = NUMBERS[type_name]
    is_integer = isinstance(value, numbers.Integral)  # true for numpy's integers, too
    if type_name.startswith("int"):
        return None if least <= value <= greatest else f"{least} to {greatest}"
    form = "<f" if type_name == "float32" else "<d"
    try:
        stored = struct.unpack(form, struct.pack(form, value))[0]
    except (OverflowError, struct.error):
        return "finite numbers up to 3.4028235e+38" if form == "<f" else "finite numbers up to 1.7976931348623157e+308"
    if is_integer and stored != int(value):
        return f"{least} to {greatest} without rounding, and only some larger integers"
    return None


def check_fields(fields: Sequence[SchemaField], where: str = "schema") -> None:
    """Raise SchemaMismatchError, beginning with `where`, unless `fields` can be the schema of a topic.

    The conditions are:

    * The topic has at least one column, and all types are known and have the right number of children.
    * Names are not empty and not reserved. Within one struct they differ by more than case.
    * Ids are distinct and positive.
    * Map keys are not nullable.
    * A default is a value of its column's type, and the column is nullable.
    """
    if not fields:
        raise SchemaMismatchError(f"{where}: a topic needs at least one column")
    _check_names(fields, where)
    for field in fields:
        if field.name.lower().startswith(RESERVED_PREFIXES):
            raise SchemaMismatchError(
                f"{where}: column {field.name!r}: names that begin with {', '.join(RESERVED_PREFIXES)} "
                "belong to txlog; rename it"
            )
        _check_type(field, field.name, 1, where)
    ids = [field.id for field in all_fields(fields)]
    if len(set(ids)) != len(ids) or min(ids) < 1 or max(ids) > MAX_FIELD_ID:
        raise SchemaMismatchError(
            f"{where}: field ids must be distinct and in [1, {MAX_FIELD_ID}], found {sorted(ids)}"
        )


def check_new_names(added: Sequence[SchemaField], old: Sequence[SchemaField] = (), where: str = "schema") -> None:
    """Raise SchemaMismatchError, beginning with `where`, if Spark would confuse two columns (PROTOCOL.md, "Types").

    One of them is in `added`, the other in `added` or `old`. Only code that makes columns calls this, not code that
    reads them: older topics may have such columns.
    """
    seen = {_spark_key(field.name): field.name for field in old}
    for field in added:
        other = seen.setdefault(_spark_key(field.name), field.name)
        if other != field.name:
            raise SchemaMismatchError(
                f"{where}: columns {other!r} and {field.name!r} differ, but Spark compares names without regard to "
                "case and takes them for one; rename one"
            )
        check_new_names(field.fields, (), f"{where}: in {field.name!r}")


def assign_ids(fields: Sequence[SchemaField], first_id: int = 1) -> tuple[SchemaField, ...]:
    """Return the same fields with ids from `first_id` on, depth first, a parent before its children."""
    ids = iter(range(first_id, MAX_FIELD_ID + 1))
    return tuple(_with_ids(field, ids) for field in fields)


def max_field_id(fields: Sequence[SchemaField]) -> int:
    """Return the highest id, 0 without fields.

    Dropped columns may have had higher ids: see `evolution.last_field_id`.
    """
    return max((field.id for field in all_fields(fields)), default=0)


def evolve(
    old: Sequence[SchemaField], new: Sequence[SchemaField], where: str = "schema", last_id: int | None = None
) -> tuple[SchemaField, ...]:
    """Return the schema that follows `old` when the user asks for `new`. Ids in `new` are ignored.

    Columns of `old` are found by name, and keep their ids and places. The others come after them, in their order, with
    new ids above `last_id` (None: the highest of `old`). The result equals `old` if `new` adds nothing. Raises
    SchemaMismatchError, beginning with `where`, if a column is missing or has changed, or if a new one is not nullable.
    """
    wanted = {field.name: field for field in new}
    kept = {field.name for field in old}
    for field in old:
        found = wanted.get(field.name)
        if found is None:
            raise SchemaMismatchError(
                f"{where}: column {field.name!r} is missing; columns can be added, not dropped or renamed"
            )
        if _shape(found) != _shape(field):
            raise SchemaMismatchError(
                f"{where}: column {field.name!r}: expected {describe(field)}, found {describe(found)}"
            )
    return add_columns(old, [field for field in new if field.name not in kept], where, last_id)


def add_columns(
    old: Sequence[SchemaField], added: Sequence[SchemaField], where: str = "schema", last_id: int | None = None
) -> tuple[SchemaField, ...]:
    """Return `old` followed by further columns with new ids above `last_id` (None: the highest of `old`).

    Raises SchemaMismatchError unless those are new and nullable.
    """
    for field in added:
        if not field.nullable:
            raise SchemaMismatchError(
                f"{where}: new column {field.name!r} must be nullable: rows written before it have no value"
            )
    fields = (*old, *assign_ids(added, (max_field_id(old) if last_id is None else last_id) + 1))
    check_fields(fields, where)
    check_new_names(added, old, where)
    return fields


def check_default(field: SchemaField, where: str) -> None:
    """Raise SchemaMismatchError, beginning with `where`, unless the default is a value of the column's type.

    Its JSON form is that of statistics. A decimal is text such as `-1.50`, and binary is text of lower-case hex digits.
    A `float32` holds the default exactly, so that a wider type does not change it. A value has at most
    MAX_DEFAULT_BYTES.
    """
    value = field.default
    size = _default_bytes(field.type, value)
    if size > MAX_DEFAULT_BYTES:
        raise SchemaMismatchError(
            f"{where}: a default of {size} bytes, more than the {MAX_DEFAULT_BYTES} that it may have. "
            "hint: add the column without a default"
        )
    if not field.nullable:
        raise SchemaMismatchError(f"{where}: a column with a default must be nullable")
    digits = parse_decimal(field.type)
    if field.type == "bool":
        is_valid = isinstance(value, bool)
    elif field.type in ("string", "binary"):
        form = _UTF8 if field.type == "string" else _HEX
        is_valid = isinstance(value, str) and form.fullmatch(value) is not None
    elif digits is not None:
        match = _DECIMAL_TEXT.fullmatch(value) if isinstance(value, str) else None
        is_valid = match is not None and len(match[1].lstrip("0")) <= digits[0] - digits[1]
        is_valid = is_valid and match is not None and len(match[2] or "") <= digits[1]
    elif isinstance(value, bool) or not isinstance(value, int | float):
        is_valid = False
    elif field.type.startswith("float"):
        # The range comes first: an integer may be too large for any float.
        is_valid = range_left(field.type, value) is None and math.isfinite(value)
        is_valid = is_valid and nearest_float(field.type, value) == value
    else:
        bits = _WHOLE_NUMBERS.get(field.type)
        is_valid = bits is not None and isinstance(value, int) and range_left(bits, value) is None
    if not is_valid:
        raise SchemaMismatchError(f"{where}: {value!r:.100} is not a default for {field.type}")


def _default_bytes(type_name: str, value: object) -> int:
    """Return the size of a text default as a value of its type."""
    if not isinstance(value, str):
        return 0
    # Half of a surrogate pair counts here, and is refused because it is not UTF-8.
    return len(value) // 2 if type_name == "binary" else len(value.encode("utf-8", "surrogatepass"))


def nearest_float(type_name: str, value: float) -> float:
    """Return the value of `float32` or `float64` that is nearest to a finite `value` in its range."""
    form = "<f" if type_name == "float32" else "<d"
    return float(struct.unpack(form, struct.pack(form, value))[0])


def describe(field: SchemaField) -> str:
    """Return the type of a field as text for people, e.g. `list<struct<key string, value binary>> not null`."""
    return _type_text(field) + ("" if field.nullable else " not null")


def _spark_key(name: str) -> str:
    """Return what Java's `equalsIgnoreCase` compares.

    Each character is put in upper case, then in lower case. The dotless i also becomes i.
    """
    upper = "".join(raised if len(raised := char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


def _check_names(fields: Sequence[SchemaField], where: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        if not 1 <= len(field.name) <= 1000 or any(char == "\0" or "\ud800" <= char <= "\udfff" for char in field.name):
            raise SchemaMismatchError(
                f"{where}: column name {field.name!r} must have 1 to 1000 characters, no NUL, no "
                "half of a surrogate pair"
            )
        folded = field.name.lower()
        if folded in seen:
            both = f"columns {seen[folded]!r} and {field.name!r} differ in case only, and Spark confuses them"
            if seen[folded] == field.name:
                both = f"two columns have the name {field.name!r}"
            raise SchemaMismatchError(f"{where}: {both}. hint: choose another name for one of them")
        seen[folded] = field.name


def _check_type(field: SchemaField, path: str, depth: int, where: str) -> None:
    bounds = _CHILDREN.get(field.type)
    if bounds is None:
        if field.type not in SCALAR_TYPES and parse_decimal(field.type) is None:
            known = ", ".join([*sorted(SCALAR_TYPES), "decimal(p,s)", *_CHILDREN])
            raise SchemaMismatchError(
                f"{where}: column {path!r}: type {field.type!r} is not supported; use one of {known}"
            )
        bounds = (0, 0)
    if not bounds[0] <= len(field.fields) <= bounds[1]:
        raise SchemaMismatchError(
            f"{where}: column {path!r}: a {field.type} cannot have {len(field.fields)} child fields"
        )
    children = tuple(child.name for child in field.fields)
    if children != CHILD_NAMES.get(field.type, children):
        raise SchemaMismatchError(
            f"{where}: column {path!r}: child fields of a {field.type} are named "
            f"{', '.join(CHILD_NAMES[field.type])}, found {', '.join(children)}"
        )
    if depth > MAX_NESTING:
        raise SchemaMismatchError(f"{where}: column {path!r}: types nest deeper than {MAX_NESTING} levels")
    if field.default is not msgspec.UNSET:
        check_default(field, f"{where}: column {path!r}")
    if field.type == "map" and field.fields[0].nullable:
        raise SchemaMismatchError(f"{where}: column {path!r}: the key of a map cannot be null")
    _check_names(field.fields, f"{where}: in {path!r}")
    for child in field.fields:
        _check_type(child, f"{path}.{child.name}", depth + 1, where)


def all_fields(fields: Iterable[SchemaField]) -> Iterator[SchemaField]:
    """Yield all fields, depth first, a parent before its children."""
    for field in fields:
        yield field
        yield from all_fields(field.fields)


def _with_ids(field: SchemaField, ids: Iterator[int]) -> SchemaField:
    own = next(ids)
    return msgspec.structs.replace(field, id=own, fields=tuple(_with_ids(child, ids) for child in field.fields))


def _shape(field: SchemaField) -> tuple[object, ...]:
    """Return what must not change in a field.

    Ids may change. So may the names of a list's or map's children, because they differ between engines.
    """
    named = field.type == "struct"
    children = tuple((child.name if named else "", _shape(child)) for child in field.fields)
    return (field.type, field.nullable, children)


def _type_text(field: SchemaField) -> str:
    if field.type == "struct":
        return f"struct<{', '.join(f'{child.name} {describe(child)}' for child in field.fields)}>"
    if field.fields:
        return f"{field.type}<{', '.join(describe(child) for child in field.fields)}>"
    return field.type


def _column(name: str, type_name: str, *children: SchemaField) -> SchemaField:
    return SchemaField(id=1, name=name, type=type_name, fields=children)


_HEADER = _column("element", "struct", _column("key", "string"), _column("value", "binary"))
_HEADER_TYPES = [(child.name, child.type) for child in _HEADER.fields]
KAFKA_FIELDS = assign_ids(
    [
        _column("key", "binary"),
        _column("value", "binary"),
        _column("headers", "list", _HEADER),
        _column("timestamp", "timestamp"),
    ]
)
"""The schema of a topic that is created without one: Kafka's record. Its `timestamp` is the user's own."""


def kafka_key(schema: Sequence[SchemaField]) -> tuple[str, ...]:
    """Return the default key of a topic without `key.columns`.

    It is `key` if the topic has Kafka's columns, otherwise no column.
    """
    return ("key",) if len(schema) == len(KAFKA_FIELDS) and begins_as_kafka(schema) else ()


def is_headers(field: SchemaField) -> bool:
    """Return whether a column has the type of Kafka's headers: a list of text keys with binary values."""
    if field.type != "list" or field.fields[0].type != "struct":
        return False
    return [(child.name, child.type) for child in field.fields[0].fields] == _HEADER_TYPES


def begins_as_kafka(schema: Sequence[SchemaField]) -> bool:
    """Return whether the first columns of `schema` are Kafka's."""
    kafkas = [(field.name, field.type) for field in KAFKA_FIELDS]
    return [(field.name, field.type) for field in schema[: len(kafkas)]] == kafkas


def value_columns(fields: Sequence[SchemaField], key_columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are all null in a tombstone (C2a).

    In a topic of Kafka's record shape this is `value`, otherwise all columns that are not in the key. Without such a
    column the result is empty, and no row is a tombstone.
    """
    if tuple(key_columns) == ("key",) and begins_as_kafka(fields):
        return ("value",)
    return tuple(field.name for field in fields if field.name not in key_columns)


def tombstone_change(
    before: Sequence[SchemaField], after: Sequence[SchemaField], key: Collection[int | str]
) -> str | None:
    """Return a column by whose change a row of `before` becomes a tombstone in `after`, or a tombstone a row (C2a).

    `key` has the ids of the key's columns. The result is None if both versions have the same tombstones. Rows are
    judged by the columns of now, because a merge rewrites them without a dropped column, and with the default of a new
    one.
    """
    old, new = _value_ids(before, key), _value_ids(after, key)
    known = {field.id for field in before}
    added = {field.id: field for field in after if field.id not in known}
    names = {field.id: field.name for field in (*before, *after)}
    # A new column without a default is null in older rows, so it changes nothing.
    changed = [number for number in sorted(new) if number in added and added[number].default is not msgspec.UNSET]
    changed += sorted((old - new) | {number for number in new - old if number not in added})
    return names[changed[0]] if changed else None


def _value_ids(fields: Sequence[SchemaField], key: Collection[int | str]) -> set[int]:
    names = value_columns(fields, [field.name for field in fields if field.id in key])
    return {field.id for field in fields if field.name in names}
