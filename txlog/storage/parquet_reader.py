"""Which rows of a Parquet file does a read return, and with which offsets?

A read fetches only row groups with wanted rows, and finds each column by its field id (PROTOCOL.md, R14). Offsets come
from the ranges of a plan, or from the file's own columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.core.fetch_plan import BY_COLUMN, RowRange
from txlog.core.names import MAX_OFFSET
from txlog.core.records import DataFile, IndexedFile, SchemaField
from txlog.core.schema import OFFSET_COLUMN, TIMESTAMP_COLUMN
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
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_file import BATCH_BYTES, BATCH_ROWS, OpenedFile
from txlog.storage.parquet_statistics import Bounds, file_statistics


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
    judged: Sequence[SchemaField] = (),
    may_match: Callable[[Mapping[str, Bounds], int], bool] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `ranges`, in the order of rows.

    The columns are the topic's (or `columns`), then `_offset` and `_timestamp`. Offsets and timestamps come from the
    ranges. For a range by column they come from the file's own columns, and only rows with an offset in `[start, end)`
    are returned. With `whole` every byte of the file is read, once, and compared with its digest, if known, before the
    call ends. Row groups are skipped for which `may_match` returns False; it gets the statistics of the columns
    `judged`, by field id, and the number of rows.

    Raises CorruptRecordError naming the object for any mismatch of length, footer, page, column or digest. Raises
    MissingObjectError, StorageError, and SchemaMismatchError for a column the topic lacks.
    """
    wanted = wanted_fields(fields, columns)
    plan = _Ranges(ranges, start, end)
    path = f"{topic}/{file.path}"
    if plan.last_row > file.rows:
        raise CorruptRecordError(f"{path}: rows up to {plan.last_row} are referenced, and it has {file.rows}")
    # Rows of a row group that are sorted by other columns are put back into the order of offsets.
    is_sorted = isinstance(file, IndexedFile) and bool(file.sorted_by) and plan.by_column
    opened = OpenedFile(store, path, file.bytes, file)
    if whole:
        opened.hash_on_the_way()
    schema = opened.schema
    if fields:
        check_stored(schema, fields, path)
    positions = find_columns(schema, wanted)
    names = [schema.field(at).name for at in positions if at is not None]
    # If a file holds the offsets of its rows, they are compared with those of the index (PROTOCOL.md, R21).
    told = isinstance(file, IndexedFile) and file.offset_column
    if plan.by_column or told:
        _check_offset_columns(schema, path)
        names += [OFFSET_COLUMN, TIMESTAMP_COLUMN]
    # A file's record has no bounds for a column with NaN. Then those of its row groups may ignore NaN.
    odd = {each.name for each in judged if each.type.startswith("float") and str(each.id) not in file.statistics}
    judged_names = {schema.field(at).name for at in find_columns(schema, judged) if at is not None}
    first_row = 0
    before = -1
    for group, rows in enumerate(file.row_groups):
        wanted_group = plan.overlaps(first_row, first_row + rows)
        if wanted_group and may_match is not None:
            opened.check_columns(group, judged_names)
            wanted_group = may_match(file_statistics(opened.parquet.metadata, schema, judged, odd, group), rows)
        if wanted_group:
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
        if stop - begin == 1:  # as nearly always
            base, own = self._base[begin], self._first[begin]
            one = np.arange(max(own, first), min(self._last[begin], last), dtype=np.int64)
            own_offsets = np.full(len(one), base) if base == BY_COLUMN else one + (base - own)
            return one, own_offsets, np.full(len(one), self._timestamp[begin])
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
    local, stamps = rows - first_row, timestamps * 1000
    if plan.by_column:
        mine = offsets == BY_COLUMN
        offsets = np.where(mine, _integers(batch, OFFSET_COLUMN, path)[local], offsets)
        stamps = np.where(mine, _integers(batch, TIMESTAMP_COLUMN, path)[local], stamps)
        kept = ~mine | ((offsets >= plan.start) & (offsets < plan.end))
        local, offsets, stamps = local[kept], offsets[kept], stamps[kept]
    elif told:
        for name, expected in ((OFFSET_COLUMN, offsets), (TIMESTAMP_COLUMN, stamps)):
            own = _integers(batch, name, path)[local]
            if not np.array_equal(own, expected):
                at = int(np.argmax(own != expected))
                raise CorruptRecordError(
                    f"{path}: row {rows[at]} has {name} {own[at]}, and the index of its segment says {expected[at]}; "
                    "one of the two was replaced. "
                    "hint: look at them with `txlog fsck`"
                )
    selected = _take(batch, local)
    arrow_fields = list(to_arrow(fields)) if fields else []
    columns = [
        stored_column(
            None if at is None else selected.column(selected.schema.get_field_index(schema.field(at).name)),
            len(local), field, arrow_field, path,
        )
        for field, arrow_field, at in zip(fields, arrow_fields, positions, strict=True)
    ]  # fmt: skip
    columns += own_columns(offsets, stamps)
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
