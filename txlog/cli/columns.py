"""How is a schema written on the command line?

A column is `name:type` or `name:type:not-null`. A type is written as tables show it: `int64`, `decimal(10,2)`,
`list<string>`, `map<string, int64 not null>`, `struct<city string, zip int32 not null>`. A file holds a JSON list of
`{"name", "type", "nullable", "fields"}`, as `topics describe --output json` writes it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from txlog.core.records import SchemaField
from txlog.core.schema import CHILD_NAMES, MAX_NESTING, SCALAR_TYPES, assign_ids, check_fields, parse_decimal
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.text import nearest

if TYPE_CHECKING:
    import pyarrow as pa

_NESTED = ("list", "map", "struct")
_TOKEN = re.compile(r"\s*(decimal\(\s*\d+\s*,\s*\d+\s*\)|not\s+null\b|[^\s<>,]+|[<>,])")
_ELSEWHERE = {
    **dict.fromkeys(("int", "integer"), ("int32", "int64")),
    **dict.fromkeys(("bigint", "long"), ("int64",)),
    **dict.fromkeys(("smallint", "short"), ("int16",)),
    **dict.fromkeys(("tinyint", "byte"), ("int8",)),
    "float": ("float32", "float64"),
    "real": ("float32",),
    "double": ("float64",),
    "boolean": ("bool",),
    "bytes": ("binary",),
    **dict.fromkeys(("str", "text", "varchar"), ("string",)),
    "datetime": ("timestamp",),
    **dict.fromkeys(("decimal", "numeric"), ("decimal(p,s)",)),
    "array": ("list",),
}
"""Names that SQL, Spark and others give to types, and txlog's names for them. Similar spelling alone would mislead."""


_DEFAULTS: Mapping[str, Callable[[str], object]] = {
    "bool": {"true": True, "false": False}.__getitem__,
    **dict.fromkeys(("int8", "int16", "int32", "int64"), int),
    **dict.fromkeys(("float32", "float64"), float),
    "decimal": Decimal,
    "string": str,
    "binary": bytes.fromhex,
    "date": datetime.date.fromisoformat,
    **dict.fromkeys(("timestamp", "timestamp_ntz"), datetime.datetime.fromisoformat),
}


class _Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column in a schema file. Further members, such as ids, are ignored."""

    name: str
    type: Annotated[str, msgspec.Meta(max_length=100)]
    nullable: bool = True
    fields: tuple[_Column, ...] = ()


def parse_columns(given: list[str] | None, schema_file: str | None) -> tuple[SchemaField, ...] | None:
    """Return the schema that `--column` or `--schema` gives, or None if neither is given.

    Raises InvalidRequestError if both are given, or the file cannot be read. Raises SchemaMismatchError for an invalid
    column.
    """
    if given and schema_file:
        raise InvalidRequestError("--column and --schema are given; name the columns in one way")
    if schema_file:
        return _read(schema_file)
    if not given:
        return None
    fields = assign_ids([_parse_column(text) for text in given])
    check_fields(fields, "--column")
    return fields


def parse_added(given: Sequence[str]) -> tuple[tuple[SchemaField, ...], dict[str, object]]:
    """Return the new columns of `--add-column NAME:TYPE[=DEFAULT]`, and the defaults by name.

    Raises SchemaMismatchError.
    """
    fields = []
    defaults: dict[str, object] = {}
    for text in given:
        # No type contains "=", and a name that contains it cannot be given here.
        column, found, default = text.partition("=")
        field = _parse_column(column)
        fields.append(field)
        if found:
            defaults[field.name] = _parse_default(field, default)
    made = assign_ids(fields)
    if made:
        check_fields(made, "--add-column")
    return made, defaults


def _parse_default(field: SchemaField, text: str) -> object:
    read = _DEFAULTS.get("decimal" if parse_decimal(field.type) else field.type)
    try:
        if read is None:
            raise ValueError("a column of this type cannot have a default")
        return read(text)
    except (ValueError, ArithmeticError, KeyError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise SchemaMismatchError(
            f"--add-column {field.name!r}: {text!r} is not a default for {field.type}{why}"
        ) from None


def columns_of_file(name: str) -> tuple[SchemaField, ...]:
    """Return the columns of a Parquet file, with the nearest type of a topic for each type.

    Raises InvalidRequestError for a file that cannot be read, SchemaMismatchError for columns that a topic cannot have.
    """
    # Local imports, because they load pyarrow.
    from txlog.storage.arrow_schema import nearest_schema, to_fields
    from txlog.storage.parquet_exchange import parquet_schema

    try:
        found = parquet_schema(name)
    except OSError as error:
        raise InvalidRequestError(f"--from {name}: {error.strerror or error}") from None
    return to_fields(nearest_schema(found), where=f"--from {name}")


def to_schema(fields: Sequence[SchemaField]) -> pa.Schema:
    """Return the schema as an Arrow schema, as `Store.create_topic` takes it."""
    # A local import, because it loads pyarrow.
    from txlog.storage.arrow_schema import to_arrow

    return to_arrow(fields)


def _read(schema_file: str) -> tuple[SchemaField, ...]:
    try:
        data = Path(schema_file).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"--schema {schema_file}: {error.strerror or error}") from None
    try:
        columns = msgspec.json.decode(data, type=tuple[_Column, ...])
        fields = assign_ids([_field(column) for column in columns])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaMismatchError(
            f"--schema {schema_file}: expected a JSON list of {{name, type, nullable, fields}}: {error}"
        ) from None
    check_fields(fields, f"--schema {schema_file}")
    return fields


def _field(column: _Column) -> SchemaField:
    children = tuple(_field(child) for child in column.fields)
    return SchemaField(id=1, name=column.name, type=column.type, nullable=column.nullable, fields=children)


def _parse_column(text: str) -> SchemaField:
    name, found, rest = text.partition(":")
    if not found or not name:
        raise SchemaMismatchError(f"--column {text!r}: expected name:type, as in qty:int32 or id:int64:not-null")
    type_text, _, flag = rest.partition(":")
    if flag not in ("", "not-null"):
        raise SchemaMismatchError(f"--column {text!r}: expected :not-null or nothing after the type, found {flag!r}")
    parser = _TypeParser(type_text, text)
    field = parser.field(name)
    parser.expect_end()
    return msgspec.structs.replace(field, nullable=False) if flag else field


def _meant(type_name: str, known: Sequence[str]) -> str:
    names = _ELSEWHERE.get(type_name.lower())
    return nearest(type_name, known) if names is None else f" Did you mean {' or '.join(map(repr, names))}?"


class _TypeParser:
    """A recursive-descent parser for the text of a type."""

    def __init__(self, text: str, whole: str) -> None:
        self._whole = whole
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0

    def field(self, name: str, depth: int = 1) -> SchemaField:
        """Parse `type [not null]` from here on, as a field of that name."""
        if depth > MAX_NESTING:
            raise SchemaMismatchError(f"--column {self._whole[:80]!r}: types nest at most {MAX_NESTING} levels deep")
        type_name = self._next("a type")
        children: tuple[SchemaField, ...] = ()
        if type_name in _NESTED:
            children = self._children(type_name, depth)
        elif type_name.startswith("decimal("):
            type_name = re.sub(r"\s+", "", type_name)
        if type_name not in SCALAR_TYPES and type_name not in _NESTED and parse_decimal(type_name) is None:
            if type_name.startswith("decimal("):
                raise SchemaMismatchError(
                    f"--column {self._whole!r}: type {type_name!r} is not supported; expected decimal(p,s) with p "
                    "from 1 to 38 and s from 0 to p"
                )
            known = [*sorted(SCALAR_TYPES), "decimal(p,s)", *_NESTED]
            raise SchemaMismatchError(
                f"--column {self._whole!r}: type {type_name!r} is not supported; use one of "
                f"{', '.join(known)}.{_meant(type_name, known)}"
            )
        nullable = not (self._peek().startswith("not") and self._next("not null"))
        return SchemaField(id=1, name=name, type=type_name, nullable=nullable, fields=children)

    def expect_end(self) -> None:
        """Raise an error if text is left."""
        if self._at < len(self._tokens):
            raise SchemaMismatchError(f"--column {self._whole!r}: {self._peek()!r} was not expected after the type")

    def _children(self, type_name: str, depth: int) -> tuple[SchemaField, ...]:
        self._take("<")
        children: list[SchemaField] = []
        names = CHILD_NAMES.get(type_name)
        while True:
            at = len(children)
            if names is None:
                name = self._next("a field's name")
            elif at < len(names):
                name = names[at]
            else:
                break
            field = self.field(name, depth + 1)
            if type_name == "map" and at == 0:
                # A map's key is never null, with or without "not null".
                field = msgspec.structs.replace(field, nullable=False)
            children.append(field)
            if self._peek() != ",":
                break
            self._at += 1
        self._take(">")
        return tuple(children)

    def _take(self, token: str) -> None:
        if self._next(repr(token)) != token:
            raise SchemaMismatchError(
                f"--column {self._whole!r}: expected {token!r}, found {self._tokens[self._at - 1]!r}"
            )

    def _next(self, what: str) -> str:
        if self._at >= len(self._tokens):
            raise SchemaMismatchError(f"--column {self._whole!r}: it ends where {what} is expected")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""
