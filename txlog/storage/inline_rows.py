"""How are rows stored inside a commit record, as one Arrow IPC stream that may be compressed, and read from it?"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from txlog.core.fetch_plan import RowRange
from txlog.core.records import SchemaField
from txlog.errors import CorruptRecordError
from txlog.storage.arrow_cast import own_columns, stored_column
from txlog.storage.arrow_schema import (
    OFFSET_FIELD,
    TIMESTAMP_FIELD,
    check_stored,
    find_columns,
    to_arrow,
    wanted_fields,
)

MAX_STREAM_BYTES, MAX_STREAM_ROWS = 3 * 2**20, 65_536
"""To how many bytes and rows compressed inline rows may expand (PROTOCOL.md, R14). A column that was added later takes
memory for each row, and none in the stream."""
USUAL_STREAM_BYTES = 64 * 2**10
"""What an expansion asks for first. Nearly all streams are shorter."""
_ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
"""How a zstd frame begins. An Arrow stream begins with four bytes 0xFF."""

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def compressed(stream: bytes, rows: int) -> bytes:
    """Return an Arrow IPC stream of so many rows compressed, or itself if that is not smaller or not possible."""
    if len(stream) > MAX_STREAM_BYTES or rows > MAX_STREAM_ROWS:
        return stream
    frame: bytes = pa.compress(stream, codec="zstd", asbytes=True)
    return frame if len(frame) < len(stream) else stream


def encode_ipc(table: pa.Table) -> bytes:
    """Return `table` as one Arrow IPC stream of one batch: the form of inline rows."""
    batches = table.combine_chunks().to_batches()
    # A stream writer does the same in four times the time.
    return b"".join((table.schema.serialize(), *(batch.serialize() for batch in batches), _END_OF_STREAM))


def read_ipc(payload: bytes, where: str) -> pa.Table:
    """Return the rows of `payload` with their own schema. Raises CorruptRecordError, beginning with `where`.

    This takes no more memory than the payload has, or than a zstd frame may expand to, whatever they claim. Compressed
    buffers and dictionaries, which txlog never writes, are refused before they are opened. So are more rows than the
    stream has bits.
    """
    most_rows = 8 * len(payload)
    if payload.startswith(_ZSTD_FRAME):
        payload, most_rows = _expanded(payload, where), MAX_STREAM_ROWS
    try:
        _check_messages(payload, where)
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise CorruptRecordError(f"{where}: {len(payload)} bytes are not an Arrow stream: {error}") from error
    if table.num_rows > min(most_rows, 8 * len(payload)):
        raise CorruptRecordError(f"{where}: {len(payload)} bytes cannot hold {table.num_rows} rows")
    return table


def select_fields(
    table: pa.Table, fields: Sequence[SchemaField], where: str, wanted: Sequence[SchemaField] | None = None
) -> pa.Table:
    """Return the columns of `fields` from stored inline rows, by id, in that order.

    Columns that were added since are null. `wanted` are those of `fields` to return (None: all). Stored columns without
    any id (another writer's) are found by name. Types must be exactly the topic's: a cast could change values, or make
    gigabytes of nulls. Raises CorruptRecordError, beginning with `where`, also as `check_stored`.
    """
    check_stored(table.schema, fields, where)
    fields = fields if wanted is None else wanted
    positions = find_columns(table.schema, fields)
    columns = []
    for at, field, arrow_field in zip(positions, fields, to_arrow(fields), strict=True):
        column = None if at is None else table.column(at)
        if column is not None and not column.type.equals(arrow_field.type):
            raise CorruptRecordError(
                f"{where}: column {field.name!r} (id {field.id}): expected {arrow_field.type}, found {column.type}"
            )
        columns.append(stored_column(column, table.num_rows, field, arrow_field, where))
    return pa.Table.from_arrays(columns, schema=to_arrow(fields))


def read_inline_rows(
    payload: bytes,
    row_range: RowRange,
    fields: Sequence[SchemaField],
    columns: Sequence[str] | None = None,
    *,
    where: str = "inline rows",
    rows: int | None = None,
) -> pa.RecordBatch:
    """Return inline rows of a commit record, in the form of `read_ranges`.

    `rows` is the number of rows that the record states. Raises CorruptRecordError, beginning with `where`.
    """
    wanted = wanted_fields(fields, columns)
    stored = read_ipc(payload, where)
    first, last = row_range.first_row, row_range.first_row + row_range.rows
    # Count before columns are chosen: a table without columns has no rows.
    if rows is not None and rows != stored.num_rows:
        raise CorruptRecordError(f"{where}: it states {rows} rows, and its payload has {stored.num_rows}")
    if last > stored.num_rows:
        raise CorruptRecordError(f"{where}: rows up to {last} are referenced, and there are {stored.num_rows}")
    table = select_fields(stored, fields, where, wanted).slice(first, row_range.rows)
    placed = with_offsets(table, [(row_range.rows, row_range.base_offset, row_range.timestamp)])
    batches = placed.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=placed.schema)


def with_offsets(table: pa.Table, batches: Sequence[tuple[int, int, int]]) -> pa.Table:
    """Return `table`, the rows of these batches in order, with `_offset` and `_timestamp` after its columns.

    A batch is its number of rows, its base offset, and its timestamp in milliseconds.
    """
    in_us = [(rows, base_offset, timestamp_ms * 1000) for rows, base_offset, timestamp_ms in batches]
    rows, base_offsets, timestamps = np.array(in_us, dtype=np.int64).reshape(-1, 3).T
    first_rows = np.cumsum(rows) - rows
    offsets, stamps = own_columns(
        np.arange(rows.sum(), dtype=np.int64) + np.repeat(base_offsets - first_rows, rows),
        np.repeat(timestamps, rows),
    )
    if not table.num_columns:
        return pa.table([offsets, stamps], schema=pa.schema([OFFSET_FIELD, TIMESTAMP_FIELD]))
    return table.append_column(OFFSET_FIELD, offsets).append_column(TIMESTAMP_FIELD, stamps)


def _expanded(frame: bytes, where: str) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(frame), "zstd") as source:
            # A read takes the memory that it asks for, even if the stream is short.
            stream: bytes = source.read(USUAL_STREAM_BYTES)
            if len(stream) == USUAL_STREAM_BYTES:
                stream += source.read(MAX_STREAM_BYTES + 1 - USUAL_STREAM_BYTES)
    except OSError as error:
        raise CorruptRecordError(f"{where}: {len(frame)} bytes are not a zstd frame: {error}") from error
    if len(stream) > MAX_STREAM_BYTES:
        raise CorruptRecordError(f"{where}: {len(frame)} compressed bytes expand to more than {MAX_STREAM_BYTES}")
    return stream


def _check_messages(payload: bytes, where: str) -> None:
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(payload)):
        if message.type not in ("schema", "record batch"):
            raise CorruptRecordError(f"{where}: its Arrow stream has a message of type {message.type!r}")
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise CorruptRecordError(f"{where}: its Arrow stream is compressed, and inline rows never are")


def _is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's message is compressed.

    In Arrow's Message.fbs the header is field 2, and its compression is field 3. Arrow has verified the flatbuffer when
    it read the message.
    """
    root = struct.unpack_from("<I", metadata, 0)[0]
    header = _field_of(metadata, root, 2)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field_of(metadata, batch, 3) is not None


def _field_of(metadata: bytes, table: int, number: int) -> int | None:
    """Return the position of field `number` of a flatbuffer's table; None if it is not set."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if struct.unpack_from("<H", metadata, vtable)[0] < 6 + 2 * number:
        return None
    offset = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
    return table + offset if offset else None
