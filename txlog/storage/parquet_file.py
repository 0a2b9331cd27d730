"""How is a Parquet file opened, so that damage is always detected?

A written file has a CRC in every page. Its DataFile, which a commit record or an index names, has the digests of the
footer and of the whole object, and statistics by field id.

Opening checks length and footer digest. Decoding checks the CRC of every decoded page. If the whole file is fetched,
the whole digest is checked too (PROTOCOL.md, W9, R13). Damage is a CorruptRecordError that names the object.

Parquet has no CRC over page headers. A damaged header almost always makes the page unreadable or gives a wrong number
of rows, and is then detected. The exception is the number of values in a page of a repeated column: only the digest of
the whole object shows it.

A hostile writer can write digests and CRCs that fit. pyarrow ends the process if it is asked for the metadata of a
column that Arrow finds invalid, so `check_columns` comes before every such call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.core.records import DataFile, SchemaField
from txlog.errors import CorruptRecordError, SchemaMismatchError, TxlogError
from txlog.storage.arrow_schema import field_id, find_columns, is_same, to_arrow
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_statistics import file_statistics, first_leaves, leaf_count, row_groups
from txlog.text import digest_text

BATCH_ROWS = 65_536
"""Rows of a record batch that a read returns. It is also the default of max.poll.records here."""
BATCH_BYTES = 32 * 2**20
"""Approximate largest size of a batch that a read returns, if its rows have similar sizes."""
TRAILER_BYTES = 8
_DAMAGED = "hint: restore this file from a copy; `txlog fsck` lists all that are damaged"
_MAGIC = b"PAR1"
_TAIL_BYTES = 64 * 1024
"""Bytes fetched at once from the end of a file: most footers fit."""
_WHOLE_BYTES = 1024 * 1024
"""A file up to this size is fetched whole: one request instead of two."""
_HASH_BYTES = 8 * 2**20
"""Bytes read at once from a file that is read only for its digest."""
_GAP_BYTES = 512 * 1024
"""Unwanted columns up to this size are fetched too, because that costs less than another request."""


def describe_file(
    store: ObjectStore,
    topic: str,
    file_path: str,
    fields: Sequence[SchemaField],
    *,
    exact: bool = False,
) -> DataFile:
    """Return what a record needs to name a Parquet file of another writer (Spark's own) at `<topic>/<file_path>`.

    Reads only the footer. With `exact` its columns must have the topic's ids and types,
    as in a file written for the topic; otherwise columns that can be cast are accepted. Raises SchemaMismatchError if
    its columns are not the topic's, CorruptRecordError if it is not a Parquet file, MissingObjectError.
    """
    path = f"{topic}/{file_path}"
    size = store.size(path)
    opened = OpenedFile(store, path, size, None)
    metadata = opened.parquet.metadata
    schema = opened.schema
    _check_described(schema, fields, path, exact)
    for group in range(metadata.num_row_groups):
        opened.check_columns(group, None)
    try:
        writer = metadata.created_by
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"{path}: its footer cannot be read: the name of its writer: {error}") from error
    # Arrow's writer leaves NaN out of its bounds, so bounds of floats are valid only from parquet-java.
    odd = set() if writer.startswith("parquet-mr") else {field.name for field in fields}
    return DataFile(
        path=file_path,
        rows=metadata.num_rows,
        bytes=size,
        digest=None,
        footer_digest=opened.digest,
        row_groups=row_groups(metadata),
        statistics=file_statistics(metadata, schema, fields, odd),
    )


def verify_file(store: ObjectStore, topic: str, file: DataFile) -> str:
    """Read and check all of a file: length, digest if known, footer, every page, the number of rows. Return its digest.

    Raises CorruptRecordError naming the object, MissingObjectError, StorageError.
    """
    path = f"{topic}/{file.path}"
    found = _digest_of(store, path, file.bytes)
    if file.digest is not None:
        _check_digest(path, found, file.digest)
    opened = OpenedFile(store, path, file.bytes, file)
    for group in range(len(file.row_groups)):
        opened.fetch(group, None)
        for _ in opened.decode(group, None, min(BATCH_ROWS, opened.rows_of_bytes(group, BATCH_BYTES))):
            pass
    return found


class OpenedFile:
    """A Parquet file whose footer was read and checked, and whose row groups are fetched one by one."""

    def __init__(self, store: ObjectStore, path: str, size: int, expected: DataFile | None) -> None:
        self.path = path
        self._reader = _RangeReader(store, path, size)
        self._expected_digest = None if expected is None else expected.digest
        self._unread_file: Any = None
        self._hash: Any = None
        self._hashed = 0
        """How many bytes of the file are in `_hash`."""
        tail = self._read_tail(expected)
        footer = self._footer(tail)
        self.digest = hashlib.sha256(footer).hexdigest()
        # The CRCs of pages do not cover the footer (R13).
        if expected is not None and self.digest != expected.footer_digest:
            raise CorruptRecordError(
                f"{path}: the digest of its footer is {digest_text(self.digest)}, and the log says "
                f"{digest_text(expected.footer_digest)}; the file is damaged or was replaced"
            )
        # Arrow reads from memory faster than it calls a reader in Python.
        whole = len(tail) == size
        self._source = pa.BufferReader(tail) if whole else pa.PythonFile(cast(Any, self._reader), mode="r")
        try:
            self.parquet: Any = pq.ParquetFile(self._source, page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            self._reader.raise_failure()
            raise CorruptRecordError(f"{path}: its footer cannot be read: {error}") from error
        if expected is not None:
            found = row_groups(self.parquet.metadata)
            if found != expected.row_groups or sum(found) != expected.rows:
                raise CorruptRecordError(
                    f"{path}: it has row groups of {found} rows, and the log says {expected.row_groups}"
                )
        self.schema: pa.Schema = self.parquet.schema_arrow
        if whole:
            self._unread_file = self.parquet

    def check_columns(self, group: int, names: set[str] | None) -> None:
        """Raise CorruptRecordError if the footer describes columns of a row group wrongly. None: all columns.

        Reads only the footer. After this pyarrow's `column` returns, and its `statistics` does unless a bound is
        shorter than its type.
        """
        metadata = self.parquet.metadata
        leaves = self._leaves(names)
        if not leaves:
            return
        try:
            # Arrow checks the columns when it begins to read them, and raises errors. A batch of no rows ends there.
            for _ in self._unread.reader.iter_batches(0, [group], column_indices=leaves, use_threads=False):
                pass
        except (pa.ArrowException, OSError, ValueError) as error:
            self._reader.raise_failure()
            raise CorruptRecordError(f"{self.path}: row group {group} cannot be read: {error}. {_DAMAGED}") from error
        row_group = metadata.row_group(group)
        for leaf in leaves:
            found, expected = row_group.column(leaf).physical_type, metadata.schema.column(leaf).physical_type
            if found != expected:
                raise CorruptRecordError(
                    f"{self.path}: row group {group} has {found} in column {leaf}, and the schema says {expected}"
                )

    @property
    def _unread(self) -> Any:
        # Not a cached_property: in Python 3.11 all its instances share one lock, which stays held in a forked child.
        if self._unread_file is None:
            # Without a small buffer Arrow would read the columns at once. From memory that costs nothing.
            self._unread_file = pq.ParquetFile(
                self._source, metadata=self.parquet.metadata, buffer_size=1, pre_buffer=False
            )
        return self._unread_file

    def _leaves(self, names: set[str] | None) -> list[int]:
        schema = self.schema
        if self.parquet.metadata.num_columns == len(schema) and (names is None or names >= set(schema.names)):
            return list(range(len(schema)))
        return [
            leaf
            for first, field in zip(first_leaves(schema), schema, strict=True)
            if names is None or field.name in names
            for leaf in range(first, first + leaf_count(field.type))
        ]

    def fetch(self, group: int, names: set[str] | None) -> None:
        """Fetch the bytes of a row group's columns, in few requests. None: all columns."""
        self.check_columns(group, names)
        row_group = self.parquet.metadata.row_group(group)
        spans = []
        for leaf in self._leaves(names):
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
        _check_digest(self.path, self._hash.hexdigest(), self._expected_digest)

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
        try:
            for batch in self.parquet.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=False):
                decoded += batch.num_rows
                yield batch
        except (pa.ArrowException, OSError, ValueError, IndexError, MemoryError) as error:
            self._reader.raise_failure()
            raise CorruptRecordError(f"{self.path}: row group {group} cannot be read: {error}. {_DAMAGED}") from error
        # Page headers have no CRC. After one changed bit, Arrow may return no rows and treat that as the end.
        if decoded != expected:
            raise CorruptRecordError(f"{self.path}: row group {group} yields {decoded} rows of {expected}")

    def _read_tail(self, expected: DataFile | None) -> bytes:
        size = self._reader.length
        if size < TRAILER_BYTES + 4:
            raise CorruptRecordError(f"{self.path}: {size} bytes are too few for a Parquet file")
        first = 0 if size <= _WHOLE_BYTES else size - _TAIL_BYTES
        # Ask for one byte more than expected: the length of the answer then proves the file's length without another
        # request.
        tail = self._reader.get(first, size + 1)
        if len(tail) != size - first:
            raise CorruptRecordError(
                f"{self.path}: it should have {size} bytes, and has "
                f"{'more' if len(tail) > size - first else first + len(tail)}; it was cut off or replaced"
            )
        if not first and expected is not None and expected.digest is not None:
            _check_digest(self.path, hashlib.sha256(tail).hexdigest(), expected.digest)
        self._reader.tail = (first, tail)
        return tail

    def _footer(self, tail: bytes) -> bytes:
        size = self._reader.length
        length = int.from_bytes(tail[-TRAILER_BYTES:-4], "little") + TRAILER_BYTES
        if tail[-4:] != _MAGIC or length > size - 4:
            raise CorruptRecordError(f"{self.path}: it does not end as a Parquet file does")
        if length <= len(tail):
            return tail[-length:]
        footer = self._reader.get(size - length, size)
        if len(footer) != length:
            raise CorruptRecordError(f"{self.path}: {len(footer)} of {length} bytes of the footer could be read")
        self._reader.tail = (size - length, footer)
        return footer


class _RangeReader:
    """A file for Arrow whose bytes were fetched before. Other bytes are fetched when Arrow asks for them."""

    closed = False

    def __init__(self, store: ObjectStore, path: str, length: int) -> None:
        self.length = length
        self._store = store
        self._path = path
        self._position = 0
        self.tail: tuple[int, bytes] = (length, b"")
        """The end of the file as it was fetched last: where it begins, and its bytes."""
        self._spans: list[tuple[int, bytes]] = []
        self._failure: TxlogError | None = None

    def get(self, start: int, end: int) -> bytes:
        return self._store.get_range(self._path, start, end)

    def fetch(self, spans: list[tuple[int, int]], on_span: Callable[[int, bytes], None] | None = None) -> None:
        """Fetch these spans, neighbours together, and pass each to `on_span`. Earlier spans are released."""
        self._spans = []
        for first, last in _joined(spans):
            if first < self.tail[0] and 0 <= first < last <= self.length:
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

    def close(self) -> None:
        self.closed = True

    def _bytes(self, start: int, end: int) -> bytes:
        for first, data in (self.tail, *self._spans):
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


def _check_described(schema: pa.Schema, fields: Sequence[SchemaField], path: str, exact: bool) -> None:
    positions = find_columns(schema, fields)
    known = set(positions)
    for at, found in enumerate(schema):
        if at not in known:
            raise SchemaMismatchError(f"{path}: its column {found.name!r} is not a column of the topic")
    for field, target, position in zip(fields, to_arrow(fields), positions, strict=True):
        if position is None:
            if not field.nullable:
                raise SchemaMismatchError(f"{path}: column {field.name!r} is missing, and it is not nullable")
            continue
        found = schema.field(position)
        # Rows name the version whose names their file has (PROTOCOL.md, R21).
        if (exact and not is_same(found, target)) or found.name != field.name:
            raise SchemaMismatchError(
                f"{path}: column {field.name!r} (id {field.id}): expected {target.type}, found "
                f"{found.name!r} (id {field_id(found)}): {found.type}"
            )
        try:
            pa.nulls(0, found.type).cast(target.type)
        except pa.ArrowException:
            raise SchemaMismatchError(
                f"{path}: column {field.name!r}: expected {target.type}, found {found.type}"
            ) from None


def _check_digest(path: str, found: str, expected: str) -> None:
    if found != expected:
        raise CorruptRecordError(
            f"{path}: its digest is {digest_text(found)}, and the log says {digest_text(expected)}. {_DAMAGED}"
        )


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
