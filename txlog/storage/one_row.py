"""How is a single row kept until its batch is written?

Arrow takes about as long to make a table of one row as one of a thousand. So a row that is sent alone stays a tuple of
values. They are checked at once, as `conform` does, and become Arrow together with the other rows of the batch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import pyarrow as pa

from txlog.core.records import SchemaField
from txlog.core.schema import NUMBERS
from txlog.storage.arrow_schema import to_arrow
from txlog.storage.conform import array_of, checked_value, conform
from txlog.storage.keys import partition_table

_BYTES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


class OneRow:
    """The values of one row in the order of the topic's columns. They cannot change any more."""

    __slots__ = ("form", "nbytes", "values")
    num_rows = 1

    def __init__(self, form: RowForm, values: tuple[Any, ...], nbytes: int) -> None:
        self.form = form
        self.values = values
        self.nbytes = nbytes
        """About the size of the row as a table."""

    def key(self, columns: Sequence[str]) -> bytes | None:
        """Return the key as `partition_table` hashes it; None for a row without a key. Raises as that."""
        parts = [self._serialized(name, columns) for name in columns]
        if len(parts) == 1:
            return parts[0]
        if all(part is None for part in parts):
            return None
        return b"".join(
            struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part for part in parts
        )

    def _serialized(self, name: str, columns: Sequence[str]) -> bytes | None:
        at = self.form.places.get(name)
        serialize = None if at is None else _SERIALIZED.get(self.form.fields[at].type)
        if at is None or serialize is None:
            partition_table(table_of([self]), columns, 1)
            raise AssertionError(f"{name!r} is a key for a table, and not for a row")
        value = self.values[at]
        return None if value is None else serialize(value)


class RowForm:
    """Makes rows of one version of a topic."""

    def __init__(self, fields: Sequence[SchemaField], topic: str, former: Callable[[str], str] = lambda _: "") -> None:
        """`former` is that of `conform`."""
        self._former = former
        self.fields = tuple(fields)
        self.schema = to_arrow(fields)
        self.places = {field.name: at for at, field in enumerate(self.fields)}
        self._topic = topic
        self._names = frozenset(self.places)
        self._columns = [
            (field.name, field.nullable, _PLAIN.get(field.type), field, arrow)
            for field, arrow in zip(self.fields, self.schema, strict=True)
        ]
        # Arrow imports pandas with its first array. That must not happen in the thread of a producer: if Ctrl-C ends
        # the program meanwhile, the import hides it from Python 3.11, whose exit status is then 1 and not that of a
        # signal.
        pa.array((), pa.null())

    def take(self, row: Mapping[Any, object]) -> OneRow:
        """Return a dictionary as a row of the topic. Raises SchemaMismatchError as `conform` does for a list of it."""
        if not self._names.issuperset(row):
            conform([row], self.fields, topic=self._topic, former=self._former)
        values: list[object] = []
        size = 0
        for name, nullable, plain, field, arrow in self._columns:
            value = row.get(name)
            width = 1 if value is None and nullable else None if plain is None else plain(value)
            if width is None:
                where = f"topic {self._topic!r}"
                value = checked_value(value, field, name, 0, where)
                # What Arrow takes here it takes later, too: it converts each value by itself.
                width = array_of([value], field, arrow, where).nbytes
            values.append(value)
            size += width
        return OneRow(self, tuple(values), size)


Rows: TypeAlias = pa.Table | OneRow


def joined_table(parts: Sequence[Rows]) -> pa.Table:
    """Return all rows of parts with one schema as one table, in their order."""
    tables: list[pa.Table] = []
    for alone, group in groupby(parts, key=lambda part: isinstance(part, OneRow)):
        run: list[Any] = list(group)
        tables += [table_of(run)] if alone else run
    return pa.concat_tables(tables)


def table_of(rows: Sequence[OneRow]) -> pa.Table:
    """Return rows of one schema as a table."""
    schema = rows[0].form.schema
    columns = zip(*(row.values for row in rows), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


# -- values that need no further check: Python's own types ------------------------------------------------------------


def _plain_integer(type_name: str) -> Callable[[Any], int | None]:
    (low, high), width = NUMBERS[type_name], _BYTES[type_name]
    return lambda value: width if type(value) is int and low <= value <= high else None


def _plain_text(value: Any) -> int | None:
    if type(value) is not str:
        return None
    if value.isascii():
        return len(value) + 4
    try:
        return len(value.encode()) + 4
    except UnicodeEncodeError:
        return None


_PLAIN: dict[str, Callable[[Any], int | None]] = {
    "bool": lambda value: 1 if type(value) is bool else None,
    **{name: _plain_integer(name) for name in _BYTES},
    "float64": lambda value: 8 if type(value) is float else None,
    "string": _plain_text,
    "binary": lambda value: len(value) + 4 if type(value) is bytes else None,
}
"""Type -> the size of a value that Arrow takes as it is, None for any other value."""


# -- keys, as Kafka's serializers write them --------------------------------------------------------------------------


def _integer_key(width: int) -> Callable[[Any], bytes]:
    return lambda value: int(value).to_bytes(width, "big", signed=True)


_SERIALIZED: dict[str, Callable[[Any], bytes]] = {
    "string": lambda value: value.encode(),
    "binary": lambda value: value.encode() if isinstance(value, str) else bytes(value),
    **{name: _integer_key(width) for name, width in _BYTES.items() if name != "int8"},
    # Java writes one bit pattern for every NaN (Double.doubleToLongBits).
    "float64": lambda value: struct.pack(">d", math.nan if math.isnan(value) else value),
}
