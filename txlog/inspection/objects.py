"""What does an object of a store contain?

`dump_object` decodes any metadata object by its name and explains it. See PROTOCOL.md, "Layout" and "Objects".
"""

from __future__ import annotations

from typing import Any

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core import envelope, names
from txlog.core.records import CommitRecord
from txlog.core.schema import OFFSET_COLUMN
from txlog.errors import InvalidRequestError, MissingObjectError
from txlog.inspection.chain import check_has_rows, read_rows
from txlog.inspection.explain import EXPLAIN, explain_rows
from txlog.inspection.object_names import ObjectKind, ObjectName, RowsFileName, parse_object_name, relative_path
from txlog.storage.inline_rows import read_ipc
from txlog.storage.object_store import ObjectStore


class DumpedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the store: its kind, an explanation, and all its fields."""

    path: str
    """Path relative to the store's root."""
    kind: ObjectKind
    bytes: int
    explanation: tuple[str, ...]
    """Sentences. The first one says what kind of object it is."""
    value: msgspec.Struct
    """What it holds; of several commit records in one object the first."""
    following: tuple[msgspec.Struct, ...] = ()
    """The other commit records of the object."""
    rows: list[dict[str, Any]] | None = None
    """The rows of its batches, if they were asked for."""


def dump_object(runtime: Runtime, path: str, *, rows: bool = False) -> DumpedObject:
    """Return the object at `path`, which is relative to the store's root or begins with the store's URL.

    `rows` also reads the rows of a batch. Raises InvalidRequestError if the name is not a name of txlog's, the object
    does not exist, or it has no rows. Raises CorruptRecordError with the name of a damaged object,
    UnsupportedStoreError for a newer format.
    """
    store = runtime.store
    path = relative_path(store, path)
    name = parse_object_name(path)
    if name is None:
        raise InvalidRequestError(
            f"{path!r} is not the name of an object of a txlog store; name one relative to the store's root, as in "
            f"{'orders/0/' + names.batch_name(0)!r}, or a partition, as in 'orders/0', to see its whole chain"
        )
    if rows and name.kind != "batch":
        raise InvalidRequestError(f"{path!r} has no rows to show: expected a partition, as in 'orders/0', or a .batch")
    if name.kind == "rows":
        try:
            size_bytes = store.size(path)
        except MissingObjectError:
            raise _nothing_there(store, path) from None
        assert isinstance(name.value, RowsFileName)
        return DumpedObject(
            path=path, kind="rows", bytes=size_bytes, explanation=explain_rows(name.value, size_bytes), value=name.value
        )
    data = store.get(path)
    if data is None:
        raise _nothing_there(store, path)
    struct, explain = EXPLAIN[name.kind]
    parts = envelope.split(data, path) if name.kind == "batch" else (data,)
    values = [envelope.decode(part, struct, path) for part in parts]
    shown = [row for value, payload in values for row in _rows_of(runtime, name, value, payload)] if rows else None
    return DumpedObject(
        path=path,
        kind=name.kind,
        bytes=len(data),
        explanation=tuple(text for value, _ in values for text in explain(name, value)),
        value=values[0][0],
        following=tuple(value for value, _ in values[1:]),
        rows=shown,
    )


def _nothing_there(store: ObjectStore, path: str) -> InvalidRequestError:
    folder, _, _ = path.rpartition("/")
    listed = store.list(f"{folder}/" if folder else "")
    if not listed:
        return InvalidRequestError(f"{store.url}: there is no {path!r}, and its folder is empty or missing")
    shown = ", ".join(repr(name) for name in listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
    return InvalidRequestError(f"{store.url}: there is no {path!r}; its folder holds {shown}")


def _rows_of(runtime: Runtime, name: ObjectName, record: CommitRecord, payload: bytes) -> list[dict[str, Any]]:
    assert name.topic_partition is not None
    check_has_rows(name.topic_partition)
    rows: list[dict[str, Any]] = read_ipc(payload, name.path).to_pylist() if payload else []
    if record.files:
        written = read_rows(runtime, name.topic_partition, record.base_offset, record.end_offset)
        rows = [{column: value for column, value in row.items() if column != OFFSET_COLUMN} for row in written]
    return rows
