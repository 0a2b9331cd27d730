"""Do the rows that a record or an index names exist, complete, and at the offsets that it gives?

A file is verified as in PROTOCOL.md, "Integrity": its length, the digest of the whole file, the footer, every page, and
the number of rows of each row group. Then its columns are compared with the topic's schema, and its `_offset` column
with the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.core import names
from txlog.core.fetch_plan import BY_COLUMN, RowRange
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import CommitRecord, DataFile, IndexEntry, SchemaField
from txlog.core.schema import OFFSET_COLUMN, TIMESTAMP_COLUMN
from txlog.errors import CorruptLogError, MissingObjectError, StorageError, StoreAccessError, TxlogError
from txlog.maintenance.fsck.findings import Findings, Reader, reason
from txlog.storage.inline_rows import read_inline_rows, read_ipc
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_file import verify_file
from txlog.storage.parquet_reader import read_ranges

Placed: TypeAlias = tuple[int, IndexEntry]
"""A batch, and the row of the file where its rows begin. Negative if they begin in an earlier file."""
PlacedIn: TypeAlias = tuple[SegmentName, Sequence[Placed]]
"""The segment of an index, and its batches whose rows are in one file."""

_KEPT_BYTES = 64 * 2**20
"""A file up to this size is fetched once and kept while it is checked. A larger file is read three times."""


def check_rows_file(
    reader: Reader,
    tp: TopicPartition,
    file: DataFile,
    fields: Sequence[SchemaField],
    named_by: str,
    *,
    needed: bool = True,
    rows: bool = True,
    placed: PlacedIn | None = None,
) -> None:
    """Read all of a file, or without `rows` only check its length, and report each error as a finding.

    `placed` is given if the file has an `_offset` column. A file that is not `needed`, because only a superseded index
    names it, may be missing.
    """
    topic = tp.topic
    path = f"{topic}/{file.path}"
    try:
        names.check_data_path(topic, tp.partition, file.path)
    except CorruptLogError as error:
        reader.findings.damaged(named_by, "files of its own partition", reason(error, named_by))
        return
    try:
        if not rows:
            found = reader.store.size(path)
            if found != file.bytes:
                reader.findings.damaged(path, f"{file.bytes} bytes, as {named_by} says", f"{found} bytes")
            return
        store = cast(ObjectStore, _Kept(reader.store, path, file.bytes))
        verify_file(store, topic, file)
        reader.count(file.bytes)
        for _ in read_ranges(store, topic, file, [_all_rows(file, 0 if placed is None else BY_COLUMN)], fields):
            pass
        if placed is not None:
            _check_offsets(reader.findings, store, topic, file, placed)
    except MissingObjectError:
        if needed:
            reader.findings.missing(path, f"{file.rows} rows: {named_by} names it")
        else:
            reader.findings.note(
                path, f"{file.rows} rows: {named_by} names it, which is superseded", "it is not there", "nothing"
            )
    except (StorageError, StoreAccessError) as error:
        reader.findings.unreadable(path, error)
    except TxlogError as error:
        reader.findings.damaged(path, f"the rows that {named_by} names", reason(error, path))


def check_inline_rows(
    findings: Findings, path: str, record: CommitRecord, payload: bytes, fields: Sequence[SchemaField]
) -> None:
    """Decode the rows inside a commit record, and report each error as a finding."""
    try:
        found = read_ipc(payload, path).num_rows
        if found != record.records:
            findings.damaged(path, f"{record.records} inline rows", f"{found}")
            return
        rows = RowRange(first_row=0, rows=found, base_offset=record.base_offset, timestamp=record.timestamp)
        read_inline_rows(payload, rows, fields, where=path)
    except TxlogError as error:
        findings.damaged(path, "inline rows of the topic's schema", reason(error, path))


class _Kept:
    """One object of a store, fetched once if it is small enough."""

    def __init__(self, store: ObjectStore, path: str, expected_bytes: int) -> None:
        self.url = store.url
        self._store = store
        self._path = path
        # One byte more than expected, to see a file that is too long.
        self._data = store.get_range(path, 0, expected_bytes + 1) if expected_bytes <= _KEPT_BYTES else None

    def get_range(self, path: str, start: int, end: int) -> bytes:
        if self._data is None or path != self._path:
            return self._store.get_range(path, start, end)
        return self._data[start:end]


def _check_offsets(
    findings: Findings,
    store: ObjectStore,
    topic: str,
    file: DataFile,
    placed: PlacedIn,
) -> None:
    """Compare the `_offset` and `_timestamp` columns with the index, for each batch of the file."""
    path = f"{topic}/{file.path}"
    segment, batches = placed
    starts = np.array([start for start, _ in batches], dtype=np.int64)
    bases = np.array([entry.base_offset for _, entry in batches], dtype=np.int64)
    times = np.array([entry.timestamp * 1000 for _, entry in batches], dtype=np.int64)
    ends = np.append(bases[1:], segment.end_offset)
    first = 0
    before = -1
    for batch in read_ranges(store, topic, file, [_all_rows(file, BY_COLUMN)], ()):
        offsets: NDArray[np.int64] = batch.column(OFFSET_COLUMN).to_numpy()
        stamps: NDArray[np.int64] = batch.column(TIMESTAMP_COLUMN).cast(pa.int64()).to_numpy()
        rows = np.arange(first, first + batch.num_rows)
        if len(offsets) and (offsets[0] <= before or bool((np.diff(offsets) <= 0).any())):
            findings.damaged(path, "rising offsets in the column _offset", f"a step back near row {first}")
            return
        at = np.searchsorted(starts, rows, "right") - 1
        if len(rows) and (not len(starts) or at[0] < 0):
            findings.damaged(path, "rows of the index's batches only", f"row {first} is of none")
            return
        if segment.generation:
            good = (offsets >= bases[at]) & (offsets < ends[at])
        else:
            good = (offsets == bases[at] + rows - starts[at]) & (stamps == times[at])
        if not good.all():
            row = int(np.argmin(good))
            findings.damaged(
                path,
                f"row {first + row} in the batch at offset {bases[at[row]]}, as {segment.index} says",
                f"offset {offsets[row]} and time {stamps[row]} µs",
            )
            return
        first += batch.num_rows
        before = int(offsets[-1]) if len(offsets) else before
    if first != file.rows:
        findings.damaged(path, f"{file.rows} rows with an offset in [{segment.base_offset}, 2^63)", f"{first}")


def _all_rows(file: DataFile, base_offset: int) -> RowRange:
    return RowRange(first_row=0, rows=file.rows, base_offset=base_offset, timestamp=0)
