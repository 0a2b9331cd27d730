"""How do rows become a Parquet file with a CRC in every page, and digests and statistics for the log (W9)?"""

from __future__ import annotations

import hashlib
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txlog.core.effects import WriteRows
from txlog.core.records import DataFile, SchemaField
from txlog.errors import UnsupportedStoreError
from txlog.storage.arrow_cast import filled, no_values
from txlog.storage.arrow_evolution import project
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, stored_fields, to_arrow
from txlog.storage.inline_rows import read_ipc, select_fields, with_offsets
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_file import TRAILER_BYTES
from txlog.storage.parquet_statistics import file_statistics, row_groups

ROW_GROUP_ROWS = 131_072
MAX_ROW_GROUP_BYTES = 128 * 2**20
"""A row group ends at this many bytes in memory, however few its rows are; Spark's default is the same."""
_BLOOM_FALSE_POSITIVES = 0.01
_PART_BYTES = 4 * 2**20
"""Bytes written at once where Arrow writes smaller parts, and of inline rows that are joined."""


def write_rows_file(
    store: ObjectStore,
    topic: str,
    file_path: str,
    batches: Iterable[pa.RecordBatch],
    fields: Sequence[SchemaField],
    *,
    compression: str = "zstd",
    row_group_rows: int = ROW_GROUP_ROWS,
    offset_column: bool = False,
    bloom: Sequence[str] = (),
    sorted_batches: bool = False,
) -> DataFile:
    """Write rows to `<topic>/<file_path>`, a name never used before, in one pass.

    Return what a record needs to name the file. `batches` have the columns of `to_arrow(fields)`, and `_offset` and
    `_timestamp` after them with `offset_column`. `bloom` names columns with a Bloom filter in each row group.
    `sorted_batches`: each batch is in one row group, and pages have bounds. Raises StorageError; then the file does not
    exist. Raises UnsupportedStoreError if this pyarrow cannot write Bloom filters.
    """
    schema = to_arrow(fields)
    if offset_column:
        schema = schema.append(OFFSET_FIELD).append(TIMESTAMP_FIELD)
    extra: dict[str, Any] = {"write_page_index": True} if sorted_batches else {}
    if bloom:
        extra["bloom_filter_options"] = _bloom_options(bloom, row_group_rows)
    floats = [each.name for each in fields if each.type in {"float32", "float64"}]
    encoder = _Encoder(schema, floats, compression, row_group_rows, extra, sorted_batches)
    written = store.write_file(f"{topic}/{file_path}", encoder.chunks(batches))
    metadata = encoder.metadata
    return DataFile(
        path=file_path,
        rows=metadata.num_rows,
        bytes=written,
        digest=encoder.whole.hexdigest(),
        footer_digest=encoder.footer_digest,
        row_groups=row_groups(metadata),
        statistics=file_statistics(metadata, schema, fields, encoder.has_odd_floats),
    )


def write_inline_rows(store: ObjectStore, effect: WriteRows) -> DataFile:
    """Perform a WriteRows effect: write the rows of several batches to one file.

    Their schemas may be different versions of the topic's. The file has the newest of them. Rows of a deleted topic
    have no values in it.
    """
    where = f"inline rows of {effect.topic!r} for {effect.file_path!r}"
    tables = [read_ipc(rows.payload, where) for rows in effect.rows]
    ids = [rows.schema_id for rows in effect.rows]
    written = dict(effect.written)
    # The newest schema can hold the rows of all others.
    newest = ids.index(max(ids))
    own = written.get(ids[newest])
    fields = stored_fields(tables[newest].schema, where) if own is None else own.fields

    def batches() -> Iterator[pa.RecordBatch]:
        for run in _runs(tables, ids):
            # Arrow takes as long for the call as for a thousand rows, and a batch is often smaller.
            joined = pa.concat_tables(tables[number] for number in run).combine_chunks()
            own = written.get(ids[run[0]])
            if effect.rows[run[0]].is_deleted:
                own, selected = None, _without_values(joined.num_rows, fields)
            else:
                selected = select_fields(joined, fields if own is None else own.fields, where)
            places = [(tables[n].num_rows, effect.rows[n].base_offset, effect.rows[n].timestamp) for n in run]
            for batch in with_offsets(selected, places).to_batches():
                if own is None or own.fields == fields:
                    yield batch
                else:
                    yield from project(batch, own, fields)

    return write_rows_file(store, effect.topic, effect.file_path, batches(), fields, offset_column=True)


def _without_values(rows: int, fields: Sequence[SchemaField]) -> pa.Table:
    """Return rows of nulls. A column that does not allow nulls has any value of its type."""
    columns = [filled(no_values(rows, field), field) for field in fields]
    return pa.Table.from_arrays(columns, schema=to_arrow(fields))


def _runs(tables: Sequence[pa.Table], ids: Sequence[int]) -> Iterator[range]:
    """Yield the positions of neighbours with one schema and one of `ids`, up to _PART_BYTES together."""
    first = size = 0
    for number, table in enumerate(tables):
        more = table.nbytes
        if number > first and (
            size + more > _PART_BYTES
            or ids[number] != ids[first]
            or not table.schema.equals(tables[first].schema, check_metadata=True)
        ):
            yield range(first, number)
            first, size = number, 0
        size += more
    yield range(first, len(tables))


@dataclass(slots=True)
class _Encoder:
    """Turns record batches into the bytes of a Parquet file, one row group at a time.

    Its results are complete at the end.
    """

    schema: pa.Schema
    floats: Sequence[str]
    """The columns of floats."""
    compression: str
    row_group_rows: int
    extra: Mapping[str, Any]
    whole_batches: bool
    whole: Any = field(default_factory=hashlib.sha256)
    metadata: Any = None
    footer_digest: str = ""
    has_odd_floats: set[str] = field(default_factory=set)
    """Columns whose bounds are unknown or cannot be written in JSON: they have NaN or infinite values."""

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        sink = _Sink()
        writer = pq.ParquetWriter(
            cast(Any, sink),
            self.schema,
            version="2.6",
            compression=cast(Any, self.compression),
            # Readers check the CRC of every page that they decode (W9, R13).
            write_page_checksum=True,
            # The Arrow schema would only repeat Parquet's: the list of types was chosen that way.
            store_schema=False,
            **self.extra,
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
        footer_bytes = int.from_bytes(last[-TRAILER_BYTES:-4], "little") + TRAILER_BYTES
        self.footer_digest = hashlib.sha256(last[-footer_bytes:]).hexdigest()
        yield self._passed(last)

    def _groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            self._note_floats(batch)
            if self.whole_batches and rows + batch.num_rows > self.row_group_rows:
                yield pa.Table.from_batches(waiting, self.schema)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= self.row_group_rows or size >= MAX_ROW_GROUP_BYTES:
                table = pa.Table.from_batches(waiting, self.schema)
                whole = rows if size >= MAX_ROW_GROUP_BYTES else rows // self.row_group_rows * self.row_group_rows
                for first in range(0, whole, self.row_group_rows):
                    yield table.slice(first, min(self.row_group_rows, whole - first))
                waiting = table.slice(whole).to_batches()
                rows, size = rows - whole, sum(rest.nbytes for rest in waiting)
                del table
        if rows:
            yield pa.Table.from_batches(waiting, self.schema)

    def _note_floats(self, batch: pa.RecordBatch) -> None:
        for name in self.floats:
            if name not in self.has_odd_floats and pc.any(pc.invert(pc.is_finite(batch.column(name)))).as_py():
                self.has_odd_floats.add(name)

    def _passed(self, data: bytes) -> bytes:
        self.whole.update(data)
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
            f"this pyarrow, {pa.__version__}, writes no Bloom filters, which were asked for of "
            f"{', '.join(columns)}; upgrade pyarrow"
        )
    return {name: {"ndv": rows, "fpp": _BLOOM_FALSE_POSITIVES} for name in columns}
