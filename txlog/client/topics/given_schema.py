"""Which columns does a user mean? A schema of Arrow, names with types, or a frame with the columns.

It is a separate module, so that calls which need no schema load no pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_schema import nearest_schema, to_fields
from txlog.storage.conform import is_frame_index
from txlog.text import shorten


def fields_of(given: object, topic: str, what: str = "") -> tuple[SchemaField, ...]:
    """Return the columns that a caller gives for a topic. An error says `what` they are.

    Raises SchemaMismatchError.
    """
    return to_fields(_schema(given, topic), where=f"topic {topic!r}{what}")


def _schema(given: object, topic: str) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    try:
        rows: Any = given
        if isinstance(rows, pa.RecordBatchReader):
            return nearest_schema(rows.schema)
        if hasattr(rows, "__arrow_c_stream__"):
            found = pa.RecordBatchReader.from_stream(rows).schema
            return nearest_schema(pa.schema([each for each in found if not is_frame_index(each.name)]))
        return pa.schema(rows)
    except (TypeError, ValueError, pa.ArrowException) as error:
        if isinstance(given, Mapping):
            for name, kind in given.items():
                if not _is_type(kind):
                    raise SchemaMismatchError(
                        f"topic {topic!r}: column {name!r}: {shorten(repr(kind), 80)} is not a type. hint: name one of "
                        "int64, double, bool, string, binary and date32, or a type of Arrow, such as "
                        "pyarrow.timestamp('us', 'UTC') or pyarrow.decimal128(10, 2)"
                    ) from None
        raise SchemaMismatchError(
            f"topic {topic!r}: {type(given).__name__} is not a schema: expected a pyarrow.Schema, names with types "
            f"as in {{'id': 'int64'}}, or a frame with the columns ({error!s:.100})"
        ) from None


def _is_type(kind: Any) -> bool:
    try:
        pa.field("", kind)
    except (TypeError, ValueError):
        return False
    return True
