"""How do the pieces of a read plan become Arrow batches? (This module loads pyarrow, so that planning need not.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txlog.core.effects import Program, gathered
from txlog.core.evolution import WrittenSchema
from txlog.core.fetch_plan import FilePiece, InlinePiece, Piece
from txlog.core.names import TopicPartition, batch_name
from txlog.core.records import SchemaField
from txlog.core.schema import OFFSET_COLUMN, PARTITION_COLUMN, TIMESTAMP_COLUMN, TOPIC_COLUMN
from txlog.errors import MissingObjectError, TxlogError
from txlog.storage.arrow_evolution import columns_to_read, project
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow, wanted_fields
from txlog.storage.inline_rows import read_inline_rows
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_reader import read_ranges
from txlog.storage.parquet_statistics import Bounds
from txlog.storage.parquet_writer import ROW_GROUP_ROWS

if TYPE_CHECKING:
    from txlog.client.reading import RowFilter

SMALL_ROWS = 4096
SMALL_BYTES = 2**20
"""A batch with fewer than SMALL_ROWS rows, and below this size, is joined with its neighbours."""
MAX_SORTED_BYTES = 64 * 2**20
"""Rows of at most this many bytes are sorted together, because sorting holds them in memory twice."""
JOINED_ROWS = 65_536
JOINED_BATCHES = 512
"""Joining stops after JOINED_ROWS rows or this many batches, so that the first rows do not wait for the last."""

SMALL_FILE_BYTES = 256 * 2**10
FILES_AT_ONCE = 8
"""So many neighbouring files are read at once, if each has at most SMALL_FILE_BYTES and SMALL_ROWS. A small file can
hold many rows that repeat a value, which are large in memory."""
Batches: TypeAlias = Iterator[pa.RecordBatch]

METADATA_FIELDS: dict[str, pa.Field[pa.DataType]] = {
    OFFSET_COLUMN: OFFSET_FIELD,
    TIMESTAMP_COLUMN: TIMESTAMP_FIELD,
    TOPIC_COLUMN: pa.field(TOPIC_COLUMN, pa.string(), nullable=False),
    PARTITION_COLUMN: pa.field(PARTITION_COLUMN, pa.int32(), nullable=False),
}
"""The columns that txlog adds to the rows."""


def read_pieces(
    store: ObjectStore,
    pieces: Sequence[Piece],
    fields: Sequence[SchemaField],
    columns: Sequence[str] | None,
    *,
    digests: bool = False,
    run: Callable[[Program[tuple[Batches, ...]]], tuple[Batches, ...]] | None = None,
    keep: RowFilter | None = None,
    written: Mapping[int, WrittenSchema] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `pieces` in order: the columns asked for (None: all), then `_offset` and `_timestamp`.

    `written` has the columns of each version that the pieces name (R14, R21). It may be empty for a topic whose columns
    were only added: then `fields` are at least as new as those of every piece. Raises SchemaMismatchError if rows can
    have values that `fields` cannot hold.

    With `digests` every byte of the files is read and compared with its digest in the log. With `run`, a driver's,
    several small files are read at once. Row groups without a row that `keep` keeps are skipped; the
    caller filters the rows. Raises MissingObjectError if maintenance has deleted a file, CorruptRecordError
    with the name of the object.
    """
    checked: set[str] = set()
    judged_ids = {field.id for field in fields if keep is not None and field.name in keep.columns}

    def older(piece: Piece) -> WrittenSchema | None:
        own = written.get(piece.schema_id)
        return None if own is None or own.fields == tuple(fields) else own

    def read(piece: Piece) -> Batches:
        own = older(piece)
        if own is None:
            return read_own(piece, fields, columns)
        # The rows are read and judged as their own version describes them, and get the wanted columns afterwards.
        names = columns_to_read(own, wanted_fields(fields, columns), str(piece.topic_partition))
        return read_own(piece, own.fields, names)

    def shown(piece: Piece, batches: Batches) -> Batches:
        own = older(piece)
        if own is None:
            return batches
        wanted = wanted_fields(fields, columns)
        return (part for batch in batches for part in project(batch, own, wanted))

    def read_own(piece: Piece, fields: Sequence[SchemaField], columns: Sequence[str] | None) -> Batches:
        if isinstance(piece, InlinePiece):
            where = piece.topic_partition.folder + batch_name(piece.range.base_offset - piece.range.first_row)
            return iter([read_inline_rows(piece.payload, piece.range, fields, columns, where=where, rows=piece.rows)])
        # A file whose rows lie between those of other files is opened several times, but compared only once.
        whole = digests and piece.file.path not in checked
        checked.add(piece.file.path)
        judged = [field for field in fields if field.id in judged_ids]
        may_match = None if keep is None else keep.may_match_rows
        return _read_file(store, piece, fields, columns, whole=whole, judged=judged, may_match=may_match)

    for group in _at_once(pieces) if run is not None else ([piece] for piece in pieces):
        if run is None or len(group) == 1:
            yield from shown(group[0], read(group[0]))
        else:
            held = run(gathered(_held(read(piece)) for piece in group))
            for piece, batches in zip(group, held, strict=True):
                yield from shown(piece, batches)


def _read_file(
    store: ObjectStore,
    piece: FilePiece,
    fields: Sequence[SchemaField],
    columns: Sequence[str] | None,
    *,
    whole: bool,
    judged: Sequence[SchemaField],
    may_match: Callable[[Mapping[str, Bounds], int], bool] | None,
) -> Batches:
    tp = piece.topic_partition
    try:
        yield from read_ranges(
            store,
            tp.topic,
            piece.file,
            piece.ranges,
            fields,
            columns,
            start=piece.start,
            end=piece.end,
            whole=whole,
            judged=judged,
            may_match=may_match,
        )
    except MissingObjectError as error:
        raise MissingObjectError(
            f"{tp.topic}/{piece.file.path}: this file, with the rows of {tp} at offsets {_offsets(piece)}, is missing "
            f"({error.problem}). A read that takes longer than delete.grace.ms must begin again. Otherwise another "
            "program than txlog deleted it. "
            "hint: run `txlog fsck`, which lists the missing objects; restore the file from a copy, or start to "
            "read after these offsets"
        ) from error


def _at_once(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces in groups: neighbours that are small files are together."""
    group: list[Piece] = []
    for piece in pieces:
        small = isinstance(piece, FilePiece) and piece.file.bytes <= SMALL_FILE_BYTES and piece.file.rows <= SMALL_ROWS
        if group and (not small or len(group) == FILES_AT_ONCE):
            yield group
            group = []
        group.append(piece)
        if not small:
            yield group
            group = []
    if group:
        yield group


def _held(batches: Batches) -> Program[Batches]:
    yield from ()
    return iter(list(batches))


def sorted_within(
    batches: Iterable[pa.RecordBatch], lengths: Iterable[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, sorted in parts by `columns` (nulls last) and then by `_offset`.

    `lengths` are the lengths of the runs of rows, and cover all rows. A part is as many rows of a run as fit in a row
    group.
    """
    keys: list[tuple[str, Literal["ascending", "descending"]]] = [
        (name, "ascending") for name in (*columns, OFFSET_COLUMN)
    ]
    waiting = iter(batches)
    batch: pa.RecordBatch | None = None
    for length in lengths:
        left, held, size = length, list[pa.RecordBatch](), 0
        while left:
            batch = next(waiting) if batch is None else batch
            part = batch.slice(0, min(left, batch.num_rows, ROW_GROUP_ROWS - sum(each.num_rows for each in held)))
            batch = batch.slice(part.num_rows) if part.num_rows < batch.num_rows else None
            held.append(part)
            left, size = left - part.num_rows, size + part.nbytes
            if not left or size >= MAX_SORTED_BYTES or sum(each.num_rows for each in held) == ROW_GROUP_ROWS:
                table = pa.Table.from_batches(held)
                order = pc.sort_indices(table, sort_keys=keys)
                yield from table.take(order).combine_chunks().to_batches()
                held, size = [], 0


def first_at_or_after(store: ObjectStore, pieces: Sequence[Piece], timestamp_ms: int) -> tuple[int, int] | None:
    """Return offset and time (ms) of the first row of `pieces` whose `_timestamp` is at or after a time.

    Only that column is read. Raises as `read_pieces` does.
    """
    for batch in read_pieces(store, pieces, (), None):
        times = batch.column(TIMESTAMP_COLUMN).cast(pa.int64()).to_numpy() // 1000
        # Timestamps of a partition never decrease.
        at = int(np.searchsorted(times, timestamp_ms, "left"))
        if at < batch.num_rows:
            return batch.column(OFFSET_COLUMN)[at].as_py(), int(times[at])
    return None


def _offsets(piece: FilePiece) -> str:
    first, last = piece.ranges[0], piece.ranges[-1]
    if first.by_column:
        return f"{piece.start} to {piece.end - 1}"
    return f"{first.base_offset} to {last.base_offset + last.rows - 1}"


def joined(batches: Iterable[pa.RecordBatch], enough: int = JOINED_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches: small neighbours become one.

    Each batch costs its reader more than its rows do. Joining stops at `enough` rows: these are returned before any
    further row is read. Rows before an error are returned before the error is raised.
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    try:
        for batch in batches:
            small = batch.num_rows < SMALL_ROWS and batch.nbytes < SMALL_BYTES
            if not small or rows + batch.num_rows > JOINED_ROWS or len(held) == JOINED_BATCHES:
                if held:
                    yield _join(held)
                held, rows = [], 0
            if small:
                held.append(batch)
                rows += batch.num_rows
                if rows >= enough:
                    yield _join(held)
                    held, rows = [], 0
            else:
                yield batch
    except TxlogError:
        if held:
            yield _join(held)
        raise
    if held:
        yield _join(held)


def schema_of(
    fields: Sequence[SchemaField], columns: Sequence[str] | None, metadata_columns: Sequence[str]
) -> pa.Schema:
    """Return the Arrow schema of the result."""
    schema = to_arrow(fields)
    chosen = list(schema) if columns is None else [schema.field(name) for name in columns]
    return pa.schema([*chosen, *(METADATA_FIELDS[name] for name in metadata_columns)])


def with_metadata(batch: pa.RecordBatch, tp: TopicPartition, schema: pa.Schema) -> pa.RecordBatch:
    """Return a `batch` of `read_pieces` in the form of `schema`, which comes from `schema_of`."""
    rows = batch.num_rows
    arrays: list[pa.Array[Any]] = []
    for name in schema.names:
        if name == TOPIC_COLUMN:
            arrays.append(pa.repeat(pa.scalar(tp.topic, pa.string()), rows))
        elif name == PARTITION_COLUMN:
            arrays.append(pa.repeat(pa.scalar(tp.partition, pa.int32()), rows))
        else:
            arrays.append(batch.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def last_offset(batch: pa.RecordBatch) -> int:
    """Return the offset of the last row of a batch of `read_pieces`."""
    offset: int = batch.column(OFFSET_COLUMN)[batch.num_rows - 1].as_py()
    return offset


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
