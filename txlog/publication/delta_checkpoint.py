"""How is the whole state of a Delta table written as one Parquet file, a checkpoint?

It has no `remove` actions. Only VACUUM needs them, and only txlog deletes files of these tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import pyarrow as pa

from txlog.storage.parquet_exchange import parquet_rows, parquet_writer

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_SCHEMA = pa.schema(
    {
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("tags", _TEXTS),
                ("deletionVector", _VECTOR),
            ]
        ),
        "remove": pa.struct(
            [
                ("path", pa.string()),
                ("deletionTimestamp", pa.int64()),
                ("dataChange", pa.bool_()),
                ("extendedFileMetadata", pa.bool_()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("deletionVector", _VECTOR),
            ]
        ),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("name", pa.string()),
                ("description", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", _TEXTS),
                ("createdTime", pa.int64()),
            ]
        ),
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        ),
    }
)
_BATCH = 10_000


def checkpoint(actions: Sequence[dict[str, Any]]) -> bytes:
    """Return the file with these actions, one a row."""
    sink = BytesIO()
    with parquet_writer(sink, _SCHEMA) as writer:
        for first in range(0, len(actions), _BATCH):
            rows = [_row(action) for action in actions[first : first + _BATCH]]
            writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
    return sink.getvalue()


def is_same_table(data: bytes, actions: Sequence[dict[str, Any]]) -> bool:
    """Return whether a checkpoint has the same table, columns, files and removed rows.

    Other versions of txlog write other bytes.
    """
    try:
        return _named(parquet_rows(data, ["add", "metaData"])) == _named(actions)
    except Exception:
        # Another program may have written anything there.
        return False


def _named(actions: Sequence[dict[str, Any]]) -> list[str]:
    adds = (action.get("add") for action in actions)
    vectors = {each["path"]: (each.get("deletionVector") or {}).get("pathOrInlineDv") for each in adds if each}
    tables = [action["metaData"] for action in actions if action.get("metaData")]
    columns = [f"{table['id']} {json.loads(table['schemaString'])}" for table in tables]
    return [*columns, *(f"{path} {vectors[path]}" for path in sorted(vectors))]


def _row(action: dict[str, Any]) -> dict[str, Any]:
    """Return an action with its maps as Arrow takes them: as pairs."""
    return {kind: _arrow(fields, _SCHEMA.field(kind).type) for kind, fields in action.items()}


def _arrow(value: Any, kind: Any) -> Any:
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {name: _arrow(each, kind.field(name).type) for name, each in value.items()}
    return value
