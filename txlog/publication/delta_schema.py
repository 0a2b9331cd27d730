"""How are a topic's columns written in a Delta log, and which features do their types need?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txlog.core.records import SchemaField

_TYPES = {
    "bool": "boolean",
    "int8": "byte",
    "int16": "short",
    "int32": "integer",
    "int64": "long",
    "float32": "float",
    "float64": "double",
}
"""Delta's names of types that have another one in txlog."""
_FEATURES = {"timestamp_ntz": "timestampNtz"}


def delta_schema(fields: Sequence[SchemaField]) -> dict[str, Any]:
    """Return the value of `schemaString`, or the type of a struct."""
    return {
        "type": "struct",
        "fields": [
            {"name": field.name, "type": _type(field), "nullable": field.nullable, "metadata": {}} for field in fields
        ],
    }


def needed_features(fields: Sequence[SchemaField]) -> set[str]:
    """Return the features that a reader of these columns must have."""
    found = {_FEATURES[field.type] for field in fields if field.type in _FEATURES}
    return found.union(*(needed_features(field.fields) for field in fields))


def _type(field: SchemaField) -> Any:
    if field.type == "struct":
        return delta_schema(field.fields)
    if field.type == "list":
        (element,) = field.fields
        return {"type": "array", "elementType": _type(element), "containsNull": element.nullable}
    if field.type == "map":
        key, value = field.fields
        return {
            "type": "map",
            "keyType": _type(key),
            "valueType": _type(value),
            "valueContainsNull": value.nullable,
        }
    return _TYPES.get(field.type, field.type)
