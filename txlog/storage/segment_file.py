"""How do rows become a Parquet file, and a Parquet file rows, so that damage is always detected?

Only this module reads and writes Parquet. A written file has a CRC in every page. Its DataFile, which a commit record
or an index names, has the digests of the footer and of the whole object, and statistics by field id.

A read checks length and footer digest first, then the CRC of every page that it decodes. If it fetches the whole file,
it also checks the whole digest. It fetches only row groups with wanted rows, and finds each column by its field id
(PROTOCOL.md, W9, R13, R14). Damage is a CorruptRecordError that names the object.

Parquet has no CRC over page headers. A damaged header almost always makes the page unreadable or gives a wrong number
of rows, and is then detected. The exception is the number of values in a page of a repeated column: only the digest of
the whole object shows it.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from txlog.config import nearest
from txlog.core.effects import WriteRows
from txlog.core.fetch_plan import BY_COLUMN, RowRange
from txlog.core.names import MAX_OFFSET
from txlog.core.records import DataFile, IndexedFile, SchemaField
from txlog.core.schema import OFFSET_COLUMN, TIMESTAMP_COLUMN
from txlog.core.words import digest_text
from txlog.errors import CorruptRecordError, SchemaMismatchError, TxlogError, UnsupportedStoreError
from txlog.storage.arrow_schema import (
    OFFSET_FIELD,
    TIMESTAMP_FIELD,
    check_stored,
    field_id,
    find_columns,
    is_same,
    read_ipc,
    select_fields,
    stored_column,
    stored_fields,
    to_arrow,
)
from txlog.storage.object_store import ObjectStore

ROW_GROUP_ROWS = 131_072
MAX_ROW_GROUP_BYTES = 128 * 2**20
"""A row group ends at this many bytes in memory, however few its rows are; Spark's default is the same."""
BATCH_ROWS = 65_536
"""Rows of a record batch that a read returns. It is also the default of max.poll.records here."""
BATCH_BYTES = 32 * 2**20
"""Approximate largest size of a batch that a read returns, if its rows have similar sizes."""
STATISTICS_BYTES = 32
"""Strings are cut at this many bytes in statistics."""

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
_TAIL_BYTES = 64 * 1024
"""Bytes fetched at once from the end of a file: most footers fit."""
_WHOLE_BYTES = 1024 * 1024
"""A file up to this size is fetched whole: one request instead of two."""
_BLOOM_FALSE_POSITIVES = 0.01
_PART_BYTES = 4 * 2**20
"""Bytes written at once where Arrow writes smaller parts."""
_HASH_BYTES = 8 * 2**20
"""Bytes read at once from a file that is read only for its digest."""
_GAP_BYTES = 512 * 1024
"""Unwanted columns up to this size are fetched too, because that costs less than another request."""

Bounds: TypeAlias = tuple[Any, Any, int]


# -- writing ----------------------------------------------------------------------------------------------------------


def write_rows_file(
    store: ObjectStore,
    topic: str,
    file_path: str,
    batches: Iterable[pa.RecordBatch],
    fields: Sequence[SchemaField],
    *,
    compression: str = "zstd",
    row_group_rows: int = ROW_GROUP_ROWS,
    digest: bool = True,
    offset_column: bool = False,
    bloom: Sequence[str] = (),
    sorted_batches: bool = False,
) -> DataFile:
    """Write rows to `<topic>/<file_path>`, a name never used before, in one pass.

    Return what a record needs to name the file. `batches` have the columns of `to_arrow(fields)`, and `_offset` and
    `_timestamp` after them with `offset_column`. `digest=False` leaves out the digest of the whole object. `bloom`
    names columns with a Bloom filter in each row group. `sorted_batches`: each batch is in one row group, and pages
    have bounds. Raises StorageError; then the file does not exist. Raises UnsupportedStoreError if this pyarrow cannot
    write Bloom filters.
    """
    schema = to_arrow(fields)
    if offset_column:
        schema = schema.append(OFFSET_FIELD).append(TIMESTAMP_FIELD)
    extra: dict[str, Any] = {"write_page_index": True} if sorted_batches else {}
    if bloom:
        extra["bloom_filter_options"] = _bloom_options(bloom, row_group_rows)
    encoder = _Encoder(schema, fields, compression, row_group_rows, digest, extra, whole_batches=sorted_batches)
    written = store.write_file(f"{topic}/{file_path}", encoder.chunks(batches))
    metadata = encoder.metadata
    return DataFile(
        path=file_path,
        rows=metadata.num_rows,
        bytes=written,
        digest=encoder.digest,
        footer_digest=encoder.footer_digest,
        row_groups=_row_groups(metadata),
        statistics=_statistics(metadata, schema, fields, encoder.has_odd_floats),
    )


def write_inline_rows(store: ObjectStore, effect: WriteRows, compression: str) -> DataFile:
    """Perform a WriteRows effect: write the rows of several batches to one file.

    Their schemas may be different versions of the topic's.
    """
    where = f"inline rows of {effect.topic!r} for {effect.file_path!r}"
    tables = [read_ipc(rows.payload, where) for rows in effect.rows]
    # Schemas only gain columns, so the newest has all of them.
    newest = max(range(len(tables)), key=lambda number: effect.rows[number].schema_id)
    fields = stored_fields(tables[newest].schema, where)

    def batches() -> Iterator[pa.RecordBatch]:
        for rows, table in zip(effect.rows, tables, strict=True):
            selected = select_fields(table, fields, where)
            yield from _with_offsets(selected, table.num_rows, rows.base_offset, rows.timestamp).to_batches()

    return write_rows_file(
        store, effect.topic, effect.file_path, batches(), fields, compression=compression, offset_column=True
    )


def describe_file(
    store: ObjectStore,
    topic: str,
    file_path: str,
    fields: Sequence[SchemaField],
    *,
    digest: bool = False,
    exact: bool = False,
) -> DataFile:
    """Return what a record needs to name a Parquet file of another writer (Spark's own) at `<topic>/<file_path>`.

    Reads only the footer; with `digest` the whole file. With `exact` its columns must have the topic's ids and types,
    as in a file written for the topic; otherwise columns that can be cast are accepted. Raises SchemaMismatchError if
    its columns are not the topic's, CorruptRecordError if it is not a Parquet file, MissingObjectError.
    """
    path = f"{topic}/{file_path}"
    size = store.size(path)
    opened = _Opened(store, path, size, None)
    metadata = opened.parquet.metadata
    schema = opened.parquet.schema_arrow
    _check_described(schema, fields, path, exact)
    # Arrow's writer leaves NaN out of its bounds, so bounds of floats are valid only from parquet-java.
    odd = set() if metadata.created_by.startswith("parquet-mr") else {field.name for field in fields}
    return DataFile(
        path=file_path,
        rows=metadata.num_rows,
        bytes=size,
        digest=_digest_of(store, path, size) if digest else None,
        footer_digest=opened.digest,
        row_groups=_row_groups(metadata),
        statistics=_statistics(metadata, schema, fields, odd),
    )


# -- reading ----------------------------------------------------------------------------------------------------------


def read_ranges(
    store: ObjectStore,
    topic: str,
    file: DataFile,
    ranges: Sequence[RowRange],
    fields: Sequence[SchemaField],
    columns: Sequence[str] | None = None,
    *,
    start: int = 0,
    end: int = MAX_OFFSET,
    batch_rows: int = BATCH_ROWS,
    whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `ranges`, in the order of rows.

    The columns are the topic's (or `columns`), then `_offset` and `_timestamp`. Offsets and timestamps come from the
    ranges. For a range by column they come from the file's own columns, and only rows with an offset in `[start, end)`
    are returned. With `whole` every byte of the file is read, once, and compared with its digest, if known, before the
    call ends.

    Raises CorruptRecordError naming the object for any mismatch of length, footer, page, column or digest. Raises
    MissingObjectError, StorageError, and SchemaMismatchError for a column the topic lacks.
    """
    wanted = _wanted_fields(fields, columns)
    plan = _Ranges(ranges, start, end)
    path = f"{topic}/{file.path}"
    if plan.last_row > file.rows:
        raise CorruptRecordError(f"{path}: rows up to {plan.last_row} are referenced, and it has {file.rows}")
    # Rows of a row group that are sorted by other columns are put back into the order of offsets.
    is_sorted = isinstance(file, IndexedFile) and bool(file.sorted_by) and plan.by_column
    opened = _Opened(store, path, file.bytes, file)
    if whole:
        opened.hash_on_the_way()
    schema = opened.parquet.schema_arrow
    if fields:
        check_stored(schema, fields, path)
    positions = find_columns(schema, wanted)
    names = [schema.field(at).name for at in positions if at is not None]
    # If a file holds the offsets of its rows, they are compared with those of the index (PROTOCOL.md, R21).
    told = isinstance(file, IndexedFile) and file.offset_column
    if plan.by_column or told:
        _check_offset_columns(schema, path)
        names += [OFFSET_COLUMN, TIMESTAMP_COLUMN]
    first_row = 0
    before = -1
    for group, rows in enumerate(file.row_groups):
        if plan.overlaps(first_row, first_row + rows):
            held: list[pa.RecordBatch] = []
            opened.fetch(group, set(names))
            for batch in opened.decode(group, names, min(batch_rows, opened.rows_of_bytes(group, BATCH_BYTES))):
                found = _trim(batch, first_row, wanted, positions, schema, plan, path, told=told)
                first_row += batch.num_rows
                if told and not is_sorted:
                    before = _check_rising(found, before, path)
                if found.num_rows and is_sorted:
                    held.append(found)
                elif found.num_rows:
                    yield found
            if held:
                for found in _in_order(held, batch_rows):
                    before = _check_rising(found, before, path)
                    yield found
        else:
            first_row += rows
    opened.check_digest()


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
    wanted = _wanted_fields(fields, columns)
    stored = read_ipc(payload, where)
    first, last = row_range.first_row, row_range.first_row + row_range.rows
    # Count before columns are chosen: a table without columns has no rows.
    if rows is not None and rows != stored.num_rows:
        raise CorruptRecordError(f"{where}: it states {rows} rows, and its payload has {stored.num_rows}")
    if last > stored.num_rows:
        raise CorruptRecordError(f"{where}: rows up to {last} are referenced, and there are {stored.num_rows}")
    table = select_fields(stored, fields, where, wanted).slice(first, row_range.rows)
    return _one_batch(_with_offsets(table, row_range.rows, row_range.base_offset, row_range.timestamp))


def verify_file(store: ObjectStore, topic: str, file: DataFile) -> str:
    """Read and check all of a file: length, digest if known, footer, every page, the number of rows. Return its digest.

    Raises CorruptRecordError naming the object, MissingObjectError, StorageError.
    """
    path = f"{topic}/{file.path}"
    found = _digest_of(store, path, file.bytes)
    if file.digest is not None and found != file.digest:
        raise CorruptRecordError(
            f"{path}: its digest is {digest_text(found)}, and the log says {digest_text(file.digest)}"
        )
    opened = _Opened(store, path, file.bytes, file)
    for group in range(len(file.row_groups)):
        opened.fetch(group, None)
        for _ in opened.decode(group, None, min(BATCH_ROWS, opened.rows_of_bytes(group, BATCH_BYTES))):
            pass
    return found


# -- helpers: writing -------------------------------------------------------------------------------------------------


class _Encoder:
    """Turns record batches into the bytes of a Parquet file, one row group at a time.

    Its results are complete at the end.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fields: Sequence[SchemaField],
        compression: str,
        row_group_rows: int,
        digest: bool,
        extra: Mapping[str, Any],
        *,
        whole_batches: bool,
    ) -> None:
        self._extra = extra
        self._whole_batches = whole_batches
        self._schema = schema
        self._compression = compression
        self._row_group_rows = row_group_rows
        self._floats = [field.name for field in fields if field.type in {"float32", "float64"}]
        self._whole = hashlib.sha256() if digest else None
        self.metadata: Any = None
        self.footer_digest = ""
        self.has_odd_floats: set[str] = set()
        """Columns whose bounds are unknown or cannot be written in JSON: they have NaN or infinite values."""

    @property
    def digest(self) -> str | None:
        return self._whole.hexdigest() if self._whole else None

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        sink = _Sink()
        writer = pq.ParquetWriter(
            cast(Any, sink),
            self._schema,
            version="2.6",
            compression=cast(Any, self._compression),
            # Readers check the CRC of every page that they decode (W9, R13).
            write_page_checksum=True,
            # The Arrow schema would only repeat Parquet's: the list of types was chosen that way.
            store_schema=False,
            **self._extra,
        )
        try:
            for group in self._groups(batches):
                writer.write_table(group, row_group_size=max(1, group.num_rows))
                # Free its rows before the rows of the next group are collected.
                del group
                # Parts are not joined, and each is released once it is passed on: a row group is in memory only once.
                while part := sink.take():
                    yield self._passed(part)
        finally:
            writer.close()
        self.metadata = writer.writer.metadata
        last = b"".join(iter(sink.take, b""))
        self.footer_digest = hashlib.sha256(_footer_of(last)).hexdigest()
        yield self._passed(last)

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            self._note_floats(batch)
            if self._whole_batches and rows + batch.num_rows > self._row_group_rows:
                yield pa.Table.from_batches(waiting, self._schema)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= self._row_group_rows or size >= MAX_ROW_GROUP_BYTES:
                table = pa.Table.from_batches(waiting, self._schema)
                whole = rows if size >= MAX_ROW_GROUP_BYTES else rows // self._row_group_rows * self._row_group_rows
                for first in range(0, whole, self._row_group_rows):
                    yield table.slice(first, min(self._row_group_rows, whole - first))
                waiting = table.slice(whole).to_batches()
                rows, size = rows - whole, sum(rest.nbytes for rest in waiting)
                del table
        if rows:
            yield pa.Table.from_batches(waiting, self._schema)

    def _note_floats(self, batch: pa.RecordBatch) -> None:
        for name in self._floats:
            if name not in self.has_odd_floats and pc.any(pc.invert(pc.is_finite(batch.column(name)))).as_py():
                self.has_odd_floats.add(name)

    def _passed(self, data: bytes) -> bytes:
        if self._whole:
            self._whole.update(data)
        return data


class _Sink:
    """A file that only grows, and whose new bytes can be removed."""

    closed = False

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._position = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: there is no buffer to write."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        """Return the oldest bytes that were not returned yet, up to about _PART_BYTES; empty if there are none left."""
        taken: list[bytes] = []
        size = 0
        while self._parts and (not taken or size + len(self._parts[0]) <= _PART_BYTES):
            taken.append(self._parts.popleft())
            size += len(taken[-1])
        return taken[0] if len(taken) == 1 else b"".join(taken)


def _bloom_options(columns: Sequence[str], rows: int) -> dict[str, dict[str, float]]:
    if "bloom_filter_options" not in inspect.signature(pq.ParquetWriter.__init__).parameters:
        raise UnsupportedStoreError(
            f"this pyarrow, {pa.__version__}, writes no Bloom filters, which were asked for of {', '.join(columns)}; upgrade pyarrow"
        )
    return {name: {"ndv": rows, "fpp": _BLOOM_FALSE_POSITIVES} for name in columns}


def _footer_of(tail: bytes) -> bytes:
    length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little")
    return tail[-length - _TRAILER_BYTES :]


def _row_groups(metadata: Any) -> tuple[int, ...]:
    return tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))


def _with_offsets(table: pa.Table, rows: int, base_offset: int, timestamp_ms: int) -> pa.Table:
    """Return `table` with `_offset` and `_timestamp` after its columns.

    `rows` is its length, also if it has no columns.
    """
    offsets = pa.array(np.arange(base_offset, base_offset + rows, dtype=np.int64), pa.int64())
    stamps = pa.array(np.full(rows, timestamp_ms, dtype=np.int64) * 1000, pa.int64()).cast(TIMESTAMP_FIELD.type)
    if not table.num_columns:
        return pa.table([offsets, stamps], schema=pa.schema([OFFSET_FIELD, TIMESTAMP_FIELD]))
    return table.append_column(OFFSET_FIELD, offsets).append_column(TIMESTAMP_FIELD, stamps)


# -- helpers: statistics ----------------------------------------------------------------------------------------------


def _statistics(metadata: Any, schema: pa.Schema, fields: Sequence[SchemaField], odd: set[str]) -> dict[str, Bounds]:
    """Return bounds of the top-level columns that have useful ones, by field id, from those of the row groups."""
    leaves = _first_leaves(schema)
    targets = to_arrow(fields)
    bounds: dict[str, Bounds] = {}
    for number, at in enumerate(find_columns(schema, fields)):
        field = fields[number]
        plain = _PLAIN.get(field.type)
        if at is None or plain is None or schema.field(at).type != targets.field(number).type:
            continue
        if field.type.startswith("float") and field.name in odd:
            continue
        found = _column_bounds(metadata, leaves[at], plain)
        if found is not None:
            bounds[str(field.id)] = found
    return bounds


def _column_bounds(metadata: Any, leaf: int, plain: Callable[[Any, bool], Any]) -> Bounds | None:
    low = high = None
    nulls = 0
    for number in range(metadata.num_row_groups):
        chunk = metadata.row_group(number).column(leaf)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        nulls += statistics.null_count
        if statistics.null_count == chunk.num_values:
            continue
        if not statistics.has_min_max:
            return None
        least, greatest = plain(statistics.min_raw, False), plain(statistics.max_raw, True)
        if least is None or greatest is None:
            return None
        low = least if low is None else min(low, least)
        high = greatest if high is None else max(high, greatest)
    return (low, high, nulls)


def _plain_integer(value: Any, upper: bool) -> int:
    return int(value)


def _plain_float(value: Any, upper: bool) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plain_string(value: Any, upper: bool) -> str | None:
    # Another writer's string may not be UTF-8. Its place in the order of bytes cannot be written as text.
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return None
    return cut_above(text) if upper else cut_below(text)


_PLAIN: dict[str, Callable[[Any, bool], Any]] = {
    "bool": lambda value, upper: bool(value),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "date", "timestamp", "timestamp_ntz"), _plain_integer),
    **dict.fromkeys(("float32", "float64"), _plain_float),
    "string": _plain_string,
}


def cut_below(text: str) -> str:
    """Return the longest beginning of `text` of at most STATISTICS_BYTES bytes. It is not greater than `text`."""
    return text.encode()[:STATISTICS_BYTES].decode("utf-8", "ignore")


def cut_above(text: str) -> str | None:
    """Return a string of at most STATISTICS_BYTES bytes that is not less than `text`; None if impossible.

    Strings are compared by code points.
    """
    head = cut_below(text)
    if head == text:
        return text
    while head:
        last = ord(head[-1])
        # The next code point must skip the surrogates, and must fit into the remaining bytes.
        following = 0xE000 if last == 0xD7FF else last + 1
        if following <= 0x10FFFF:
            raised = head[:-1] + chr(following)
            if len(raised.encode()) <= STATISTICS_BYTES:
                return raised
        head = head[:-1]
    return None


def _first_leaves(schema: pa.Schema) -> list[int]:
    """Return the number of each column's first leaf: Parquet's metadata counts leaves."""
    firsts, leaf = [], 0
    for field in schema:
        firsts.append(leaf)
        leaf += _leaves(field.type)
    return firsts


def _leaves(arrow: Any) -> int:
    if pa.types.is_map(arrow):
        return _leaves(arrow.key_type) + _leaves(arrow.item_type)
    if arrow.num_fields:
        return sum(_leaves(arrow.field(number).type) for number in range(arrow.num_fields))
    return 1


# -- helpers: reading -------------------------------------------------------------------------------------------------


class _Opened:
    """A Parquet file whose footer was read and checked, and whose row groups are fetched one by one."""

    def __init__(self, store: ObjectStore, path: str, size: int, expected: DataFile | None) -> None:
        self.path = path
        self._reader = _RangeReader(store, path, size)
        self._expected_digest = None if expected is None else expected.digest
        self._hash: Any = None
        self._hashed = 0
        """How many bytes of the file are in `_hash`."""
        tail = self._read_tail(expected)
        footer = self._footer(tail)
        self.digest = hashlib.sha256(footer).hexdigest()
        # The CRCs of pages do not cover the footer (R13).
        if expected is not None and self.digest != expected.footer_digest:
            raise CorruptRecordError(
                f"{path}: the digest of its footer is {digest_text(self.digest)}, and the log says {digest_text(expected.footer_digest)}; the file is "
                f"damaged or was replaced"
            )
        try:
            self.parquet: Any = pq.ParquetFile(
                pa.PythonFile(cast(Any, self._reader), mode="r"), page_checksum_verification=True
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            self._reader.raise_failure()
            raise CorruptRecordError(f"{path}: its footer cannot be read: {error}") from error
        if expected is not None:
            found = _row_groups(self.parquet.metadata)
            if found != expected.row_groups or sum(found) != expected.rows:
                raise CorruptRecordError(
                    f"{path}: it has row groups of {found} rows, and the log says {expected.row_groups}"
                )

    def fetch(self, group: int, names: set[str] | None) -> None:
        """Fetch the bytes of a row group's columns, in few requests. None: all columns."""
        row_group = self.parquet.metadata.row_group(group)
        schema = self.parquet.schema_arrow
        leaves = _first_leaves(schema)
        spans = []
        for at, field in enumerate(schema):
            if names is None or field.name in names:
                for leaf in range(leaves[at], leaves[at] + _leaves(field.type)):
                    chunk = row_group.column(leaf)
                    first = chunk.data_page_offset
                    if chunk.has_dictionary_page:
                        first = min(first, chunk.dictionary_page_offset)
                    spans.append((first, first + chunk.total_compressed_size))
        if self._hash is None:
            self._reader.fetch(spans)
        elif spans:
            self._hash_up_to(min(first for first, _ in spans))
            self._reader.fetch([(self._hashed, max(last for _, last in spans))], self._hash_span)

    def hash_on_the_way(self) -> None:
        """Fetch all bytes in their order from now on, for `check_digest`.

        Does nothing if this was done or is not possible.
        """
        if self._reader.length > _WHOLE_BYTES and self._expected_digest is not None:
            self._hash = hashlib.sha256()

    def check_digest(self) -> None:
        """Read the rest of the file after `hash_on_the_way`. Raise CorruptRecordError if its digest differs."""
        if self._hash is None or self._expected_digest is None:
            return
        self._hash_up_to(self._reader.length)
        if self._hash.hexdigest() != self._expected_digest:
            raise CorruptRecordError(
                f"{self.path}: its digest is {digest_text(self._hash.hexdigest())}, and the log says {digest_text(self._expected_digest)}"
            )

    def _hash_up_to(self, end: int) -> None:
        while self._hashed < end:
            last = min(self._hashed + _HASH_BYTES, end)
            data = self._reader.get(self._hashed, last)
            if len(data) != last - self._hashed:
                raise CorruptRecordError(f"{self.path}: {self._hashed + len(data)} bytes could be read of {end}")
            self._hash_span(self._hashed, data)

    def _hash_span(self, first: int, data: bytes) -> None:
        if first <= self._hashed < first + len(data):
            self._hash.update(memoryview(data)[self._hashed - first :])
            self._hashed = first + len(data)

    def rows_of_bytes(self, group: int, size: int) -> int:
        """Return how many rows of a row group have about `size` bytes, all columns counted; at least 1."""
        row_group = self.parquet.metadata.row_group(group)
        rows: int = row_group.num_rows
        return max(size * rows // max(int(row_group.total_byte_size), 1), 1)

    def decode(self, group: int, names: list[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a fetched row group, in these columns. None: all columns."""
        expected = self.parquet.metadata.row_group(group).num_rows
        if names == []:
            # Only offsets are wanted, and the ranges have them.
            for first in range(0, expected, batch_rows):
                yield pa.record_batch([pa.nulls(min(batch_rows, expected - first))], names=[""])
            return
        decoded = 0
        for batch in self._batches(group, names, batch_rows):
            decoded += batch.num_rows
            yield batch
        # Page headers have no CRC. After one changed bit, Arrow may return no rows and treat that as the end.
        if decoded != expected:
            raise CorruptRecordError(f"{self.path}: row group {group} yields {decoded} rows of {expected}")

    def _batches(self, group: int, names: list[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.parquet.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False)
        except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError) as error:
            self._reader.raise_failure()
            raise CorruptRecordError(f"{self.path}: row group {group} cannot be read: {error}") from error

    def _read_tail(self, expected: DataFile | None) -> bytes:
        size = self._reader.length
        if size < _TRAILER_BYTES + 4:
            raise CorruptRecordError(f"{self.path}: {size} bytes are too few for a Parquet file")
        first = 0 if size <= _WHOLE_BYTES else size - _TAIL_BYTES
        # Ask for one byte more than expected: the length of the answer then proves the file's length without another
        # request.
        tail = self._reader.get(first, size + 1)
        if len(tail) != size - first:
            raise CorruptRecordError(
                f"{self.path}: it should have {size} bytes, and has {'more' if len(tail) > size - first else first + len(tail)}; it was cut "
                f"off or replaced"
            )
        if not first and expected is not None and expected.digest is not None:
            found = hashlib.sha256(tail).hexdigest()
            if found != expected.digest:
                raise CorruptRecordError(
                    f"{self.path}: its digest is {digest_text(found)}, and the log says {digest_text(expected.digest)}"
                )
        self._reader.keep(first, tail)
        return tail

    def _footer(self, tail: bytes) -> bytes:
        size = self._reader.length
        length = int.from_bytes(tail[-_TRAILER_BYTES:-4], "little") + _TRAILER_BYTES
        if tail[-4:] != _MAGIC or length > size - 4:
            raise CorruptRecordError(f"{self.path}: it does not end as a Parquet file does")
        if length <= len(tail):
            return tail[-length:]
        footer = self._reader.get(size - length, size)
        if len(footer) != length:
            raise CorruptRecordError(f"{self.path}: {len(footer)} of {length} bytes of the footer could be read")
        self._reader.keep(size - length, footer)
        return footer


class _RangeReader:
    """A file for Arrow whose bytes were fetched before. Other bytes are fetched when Arrow asks for them."""

    closed = False

    def __init__(self, store: ObjectStore, path: str, length: int) -> None:
        self.length = length
        self._store = store
        self._path = path
        self._position = 0
        self._tail: tuple[int, bytes] = (length, b"")
        self._spans: list[tuple[int, bytes]] = []
        self._failure: TxlogError | None = None

    def get(self, start: int, end: int) -> bytes:
        return self._store.get_range(self._path, start, end)

    def keep(self, start: int, data: bytes) -> None:
        self._tail = (start, data)

    def fetch(self, spans: list[tuple[int, int]], on_span: Callable[[int, bytes], None] | None = None) -> None:
        """Fetch these spans, neighbours together, and pass each to `on_span`. Earlier spans are released."""
        self._spans = []
        for first, last in _joined(spans):
            if first < self._tail[0] and 0 <= first < last <= self.length:
                data = self.get(first, last)
                self._spans.append((first, data))
                if on_span is not None:
                    on_span(first, data)

    def raise_failure(self) -> None:
        """Raise the store's own error, if it caused Arrow's error."""
        if self._failure is not None:
            raise self._failure

    def read(self, count: int = -1) -> bytes:
        end = self.length if count < 0 else min(self.length, self._position + count)
        data = self._bytes(self._position, end)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.length)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self.length

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Do nothing: this file is only read."""

    def close(self) -> None:
        self.closed = True

    def _bytes(self, start: int, end: int) -> bytes:
        for first, data in (self._tail, *self._spans):
            if first <= start and end <= first + len(data):
                return data[start - first : end - first]
        try:
            return self.get(start, end)
        except TxlogError as error:
            # Arrow would wrap it in its own error.
            self._failure = error
            raise


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first - joined[-1][1] <= _GAP_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined


class _Ranges:
    """Row ranges as arrays: which rows of `[first, last)` are wanted, and their offsets and timestamps."""

    def __init__(self, ranges: Sequence[RowRange], start: int, end: int) -> None:
        kept = [one for one in ranges if one.rows]
        self.start, self.end = start, end
        self._first = np.array([one.first_row for one in kept], dtype=np.int64)
        self._last = self._first + np.array([one.rows for one in kept], dtype=np.int64)
        self._base = np.array([one.base_offset for one in kept], dtype=np.int64)
        self._timestamp = np.array([one.timestamp for one in kept], dtype=np.int64)
        self.by_column = bool((self._base == BY_COLUMN).any())
        self.last_row = int(self._last[-1]) if kept else 0

    def overlaps(self, first: int, last: int) -> bool:
        begin, stop = self._within(first, last)
        return begin < stop

    def rows(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return (row, offset, timestamp in ms) of each wanted row in `[first, last)`.

        The offset is BY_COLUMN if the file has it.
        """
        begin, stop = self._within(first, last)
        low = np.maximum(self._first[begin:stop], first)
        counts = np.minimum(self._last[begin:stop], last) - low
        # Compute the row numbers of all ranges at once: a running number, shifted to where each range begins.
        shifts = np.repeat(low - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) if len(counts) else low
        rows = np.arange(int(counts.sum()), dtype=np.int64) + shifts
        base = np.repeat(self._base[begin:stop], counts)
        firsts = np.repeat(self._first[begin:stop], counts)
        offsets = np.where(base == BY_COLUMN, BY_COLUMN, base + rows - firsts)
        return rows, offsets, np.repeat(self._timestamp[begin:stop], counts)

    def _within(self, first: int, last: int) -> tuple[int, int]:
        return int(np.searchsorted(self._last, first, "right")), int(np.searchsorted(self._first, last, "left"))


def _trim(
    batch: pa.RecordBatch,
    first_row: int,
    fields: Sequence[SchemaField],
    positions: Sequence[int | None],
    schema: pa.Schema,
    plan: _Ranges,
    path: str,
    *,
    told: bool,
) -> pa.RecordBatch:
    """Return the wanted rows of a decoded batch, as the topic's columns with `_offset` and `_timestamp`."""
    rows, offsets, timestamps = plan.rows(first_row, first_row + batch.num_rows)
    stamps = timestamps * 1000
    if plan.by_column:
        local = rows - first_row
        mine = offsets == BY_COLUMN
        offsets = np.where(mine, _integers(batch, OFFSET_COLUMN, path)[local], offsets)
        stamps = np.where(mine, _integers(batch, TIMESTAMP_COLUMN, path)[local], stamps)
        kept = ~mine | ((offsets >= plan.start) & (offsets < plan.end))
        rows, offsets, stamps = rows[kept], offsets[kept], stamps[kept]
    elif told:
        local = rows - first_row
        for name, expected in ((OFFSET_COLUMN, offsets), (TIMESTAMP_COLUMN, stamps)):
            own = _integers(batch, name, path)[local]
            if not np.array_equal(own, expected):
                at = int(np.argmax(own != expected))
                raise CorruptRecordError(
                    f"{path}: row {rows[at]} has {name} {own[at]}, and the index of its segment says {expected[at]}; one of the two was "
                    "replaced, look at them with `txlog fsck`"
                )
    selected = _take(batch, rows - first_row)
    arrow_fields = list(to_arrow(fields)) if fields else []
    columns = [
        stored_column(
            None if at is None else selected.column(selected.schema.get_field_index(schema.field(at).name)),
            len(rows), field, arrow_field, path,
        )
        for field, arrow_field, at in zip(fields, arrow_fields, positions, strict=True)
    ]  # fmt: skip
    columns += [pa.array(offsets, pa.int64()), pa.array(stamps, pa.int64()).cast(TIMESTAMP_FIELD.type)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*arrow_fields, OFFSET_FIELD, TIMESTAMP_FIELD]))


def _check_rising(batch: pa.RecordBatch, before: int, path: str) -> int:
    """Return the last offset of `batch`, or `before` if it is empty.

    Raise CorruptRecordError unless offsets rise from `before` on.
    """
    offsets: NDArray[np.int64] = batch.column(OFFSET_COLUMN).to_numpy()
    if not len(offsets):
        return before
    if offsets[0] <= before or bool((np.diff(offsets) <= 0).any()):
        raise CorruptRecordError(f"{path}: its column {OFFSET_COLUMN!r} does not rise from row to row")
    return int(offsets[-1])


def _in_order(batches: Sequence[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows by `_offset`."""
    table = pa.Table.from_batches(batches)
    order = np.argsort(table.column(OFFSET_COLUMN).to_numpy(), kind="stable")
    yield from table.take(pa.array(order, pa.int64())).combine_chunks().to_batches(batch_rows)


def _take(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    if not len(rows):
        return batch.slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.slice(first, len(rows))
    return batch.take(pa.array(rows, pa.int64()))


def _integers(batch: pa.RecordBatch, name: str, path: str) -> NDArray[np.int64]:
    column = batch.column(batch.schema.get_field_index(name))
    if column.null_count:
        raise CorruptRecordError(f"{path}: its column {name!r} has {column.null_count} nulls")
    numbers: NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return numbers


def _check_offset_columns(schema: pa.Schema, path: str) -> None:
    for expected in (OFFSET_FIELD, TIMESTAMP_FIELD):
        at = schema.get_field_index(expected.name)
        if at < 0 or schema.field(at).type != expected.type:
            raise CorruptRecordError(
                f"{path}: the log says that it has a column {expected.name!r} of {expected.type}, but the file lacks it"
            )


def _wanted_fields(fields: Sequence[SchemaField], columns: Sequence[str] | None) -> tuple[SchemaField, ...]:
    if columns is None:
        return tuple(fields)
    known = [field.name for field in fields]
    for name in columns:
        if name not in known:
            raise SchemaMismatchError(
                f"column {name!r} is unknown; the topic has {', '.join(known)}.{nearest(name, known)}"
            )
    return tuple(field for field in fields if field.name in set(columns))


def _check_described(schema: pa.Schema, fields: Sequence[SchemaField], path: str, exact: bool) -> None:
    known = {at for at in find_columns(schema, fields) if at is not None}
    for at, found in enumerate(schema):
        if at not in known:
            raise SchemaMismatchError(f"{path}: its column {found.name!r} is not a column of the topic")
    for field, target, position in zip(fields, to_arrow(fields), find_columns(schema, fields), strict=True):
        if position is None:
            if not field.nullable:
                raise SchemaMismatchError(f"{path}: column {field.name!r} is missing, and it is not nullable")
            continue
        if exact and not is_same(schema.field(position), target):
            raise SchemaMismatchError(
                f"{path}: column {field.name!r} (id {field.id}): expected {target.type}, found "
                f"{schema.field(position).name!r} (id {field_id(schema.field(position))}): {schema.field(position).type}"
            )
        try:
            pa.nulls(0, schema.field(position).type).cast(target.type)
        except pa.ArrowException:
            raise SchemaMismatchError(
                f"{path}: column {field.name!r}: expected {target.type}, found {schema.field(position).type}"
            ) from None


def _digest_of(store: ObjectStore, path: str, size: int) -> str:
    whole = hashlib.sha256()
    for first in range(0, size + 1, _HASH_BYTES):
        # Read past the end, as in _read_tail, to detect a longer file.
        wanted = min(_HASH_BYTES, size - first) + (first + _HASH_BYTES > size)
        data = store.get_range(path, first, first + wanted)
        if len(data) != min(_HASH_BYTES, size - first):
            raise CorruptRecordError(
                f"{path}: it should have {size} bytes, and {first + len(data)} were read up to {first + wanted}"
            )
        whole.update(data)
    return whole.hexdigest()


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    combined = table.combine_chunks().to_batches()
    return (
        combined[0]
        if combined
        else pa.RecordBatch.from_arrays([pa.array([], field.type) for field in table.schema], schema=table.schema)
    )
