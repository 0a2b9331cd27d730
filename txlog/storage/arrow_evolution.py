"""How do rows that were written for one version of a topic's columns become rows of another version?

Their file or stream was read with the columns of their own version. Here each of these columns is found by its field
id, and a narrower type becomes the wider one (PROTOCOL.md, "Changed columns").
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, cast

import pyarrow as pa

from txlog.core.evolution import WrittenSchema, has_default, why_unreadable
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_cast import child_values, exactly, filled, no_values, with_children
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, field_id, to_arrow, to_arrow_type
from txlog.storage.inline_rows import select_fields, with_offsets

MAX_ADDED_BYTES = 64 * 2**20
"""Bytes of defaults that one batch gets, unless a single row has more."""
_NO_FIELD = SchemaField(id=1, name="", type="")


def columns_to_read(written: WrittenSchema, wanted: Sequence[SchemaField], where: str) -> tuple[str, ...]:
    """Return the names that the columns `wanted` have in the version that rows were written for.

    Columns that this version lacks are left out. Raises SchemaMismatchError, beginning with `where`, if rows of this
    version can have values that `wanted` cannot hold.
    """
    why = why_unreadable(wanted, written)
    if why is not None:
        raise SchemaMismatchError(
            f"{where}: the topic's columns changed after this read began: {why}. hint: restart the query or the reader"
        )
    ids = {field.id for field in wanted}
    return tuple(field.name for field in written.fields if field.id in ids)


def select_as(table: pa.Table, written: WrittenSchema, wanted: Sequence[SchemaField], where: str) -> pa.Table:
    """Return stored inline rows that were written for `written` with the columns `wanted`.

    Raises as `columns_to_read` and `select_fields`.
    """
    names = columns_to_read(written, wanted, where)
    chosen = select_fields(table, written.fields, where, [field for field in written.fields if field.name in names])
    stored = with_offsets(chosen, [(table.num_rows, 0, 0)]).to_batches()
    batches = [part for batch in stored for part in project(batch, written, wanted)]
    schema = to_arrow(wanted).append(OFFSET_FIELD).append(TIMESTAMP_FIELD)
    return pa.Table.from_batches(batches, schema).drop_columns([OFFSET_FIELD.name, TIMESTAMP_FIELD.name])


def project(batch: pa.RecordBatch, written: WrittenSchema, wanted: Sequence[SchemaField]) -> Iterator[pa.RecordBatch]:
    """Yield `batch`, which has columns of `written`, with the columns `wanted`, `_offset` and `_timestamp`.

    Both have passed `columns_to_read`. Columns are found by id. Rows that would get too many bytes of defaults are
    several batches: a column of Arrow holds less than 2 GiB of text.
    """
    places = {number: at for at, field in enumerate(batch.schema) if (number := field_id(field)) is not None}
    own = {field.id: field for field in written.fields}
    last_id = written.last_field_id
    pairs = [
        (None if field.id not in places else batch.column(places[field.id]), own.get(field.id), field)
        for field in wanted
    ]
    added = sum(_default_bytes(array, batch.num_rows, old, field, last_id) for array, old, field in pairs)
    if added > MAX_ADDED_BYTES and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from project(batch.slice(0, half), written, wanted)
        yield from project(batch.slice(half), written, wanted)
        return
    arrays = [_converted(array, batch.num_rows, old, field, last_id) for array, old, field in pairs]
    arrays += [batch.column(OFFSET_FIELD.name), batch.column(TIMESTAMP_FIELD.name)]
    fields = [*to_arrow(wanted), OFFSET_FIELD, TIMESTAMP_FIELD]
    yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def older_rows(rows: int, field: SchemaField, last_id: int) -> Any:
    """Return a field for rows that were written without it, when `last_id` was the highest id."""
    return pa.repeat(_default(field), rows) if has_default(field, last_id) else no_values(rows, field)


def _default_bytes(array: Any, rows: int, written: SchemaField | None, wanted: SchemaField, last_id: int) -> int:
    """Return how many bytes of text `_converted` would add as defaults."""
    if not _has_text_default(wanted):
        return 0
    if array is None or written is None:
        text = wanted.default if has_default(wanted, last_id) else None
        return rows * len(text.encode()) if isinstance(text, str) else 0
    if not wanted.fields:
        return 0
    return sum(_default_bytes(*each, last_id) for each in _children(array, written, wanted))


@lru_cache(maxsize=256)
def _has_text_default(field: SchemaField) -> bool:
    return isinstance(field.default, str) or any(map(_has_text_default, field.fields))


def _converted(array: Any, rows: int, written: SchemaField | None, wanted: SchemaField, last_id: int) -> Any:
    """Return a column, or a field inside of one, as the wanted field."""
    target = to_arrow_type(wanted)
    if array is None or written is None:
        return older_rows(rows, wanted, last_id)
    if _is_same(written, wanted):
        return array
    if not wanted.fields:
        return exactly(array, target)
    below = [_converted(*each, last_id) for each in _children(array, written, wanted)]
    if wanted.type == "struct":
        below = [filled(values, child) for values, child in zip(below, wanted.fields, strict=True)]
    return with_children(array, wanted, target, below)


def _children(
    array: Any, written: SchemaField, wanted: SchemaField
) -> Iterator[tuple[Any, int, SchemaField | None, SchemaField]]:
    """Yield the values, their number, the written field and the wanted field of each child of `wanted`.

    A child that a struct was written without has no values and no written field.
    """
    if wanted.type != "struct":
        for part, field, child in zip(child_values(array, written), written.fields, wanted.fields, strict=True):
            yield part, len(part), field, child
        return
    own = {field.id: (array.field(at), field) for at, field in enumerate(written.fields)}
    for child in wanted.fields:
        values, old = own.get(child.id, (None, None))
        yield values, len(array), old, child


def _is_same(written: SchemaField, wanted: SchemaField) -> bool:
    """Return whether values of both have one type. Ids of children count, names of the two fields do not."""
    return written.type == wanted.type and all(
        (old.id, old.name, old.nullable) == (new.id, new.name, new.nullable) and _is_same(old, new)
        for old, new in zip_longest(written.fields, wanted.fields, fillvalue=_NO_FIELD)
    )


@lru_cache(maxsize=256)
def _default(field: SchemaField) -> Any:
    """Return the default of a field as a value of its type."""
    value, target = field.default, to_arrow_type(field)
    if pa.types.is_decimal(target):
        return pa.scalar(decimal.Decimal(cast(str, value)), target)
    if pa.types.is_binary(target):
        return pa.scalar(bytes.fromhex(cast(str, value)), target)
    if pa.types.is_date(target) or pa.types.is_timestamp(target):
        return pa.scalar(cast(int, value), pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)
    return pa.scalar(value, target)
