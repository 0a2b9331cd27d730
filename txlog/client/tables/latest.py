"""Which row of each key is the newest? The table that a changelog describes, whether or not compaction ran.

The rule is the one of compaction (PROTOCOL.md, C2, C2a). The newest row of a key counts in its partition. A key whose
newest row is a tombstone is not in the table. Rows without a key equal no other row, so all of them are in it.

Each partition is read twice. First only the key is read, to find the newest offset of each key. Then the rows at these
offsets are read. Memory holds 24 bytes for each key of one partition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.core.compaction import OffsetMap, Rows, digest_keys
from txlog.core.schema import OFFSET_COLUMN
from txlog.storage.keys import serialized_keys


class Newest:
    """The offsets of the rows of one partition that are in the table, unless they are tombstones."""

    def __init__(self, batches: Iterator[pa.RecordBatch], key_columns: Sequence[str]) -> None:
        """`batches` are all rows, in the order of offsets, with the columns of the key and `_offset`."""
        newest = OffsetMap(sys.maxsize)
        keyless = [np.zeros(0, dtype=np.int64)]
        for batch in batches:
            rows = keyed_rows(batch, key_columns, ())
            newest.put(rows.digests[rows.keyed], rows.offsets[rows.keyed])
            keyless.append(rows.offsets[~rows.keyed])
        self._keyed = newest.offsets()
        self._keyless = np.concatenate(keyless)

    def keep(self, batch: pa.RecordBatch, values: Sequence[str]) -> pa.RecordBatch:
        """Return the rows that are in the table, of a batch that has the columns `values` and `_offset`."""
        offsets = batch.column(OFFSET_COLUMN).to_numpy()
        stays = _holds(self._keyed, offsets) & ~tombstones_of(batch, values) | _holds(self._keyless, offsets)
        return batch if stays.all() else batch.filter(pa.array(stays))


def keyed_rows(batch: pa.RecordBatch, key_columns: Sequence[str], values: Sequence[str]) -> Rows:
    """Return what decides which row of a key is the newest, and whether it is a tombstone (C2, C2a).

    `values` come from `value_columns`. Without all of them in the batch no row counts as a tombstone.
    """
    data, bounds, keyed = serialized_keys(pa.Table.from_batches([batch]), key_columns)
    offsets: NDArray[np.int64] = batch.column(OFFSET_COLUMN).cast(pa.int64()).to_numpy()
    return Rows(
        offsets=offsets, digests=digest_keys(data, bounds), keyed=keyed, tombstones=tombstones_of(batch, values)
    )


def tombstones_of(batch: pa.RecordBatch, values: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have no value: all of the columns `values` are null (C2a)."""
    if not values or not set(values) <= set(batch.schema.names):
        return np.zeros(batch.num_rows, dtype=np.bool_)
    nulls = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in values]
    found: NDArray[np.bool_] = np.logical_and.reduce(nulls)
    return found


def _holds(known: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(offsets), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
    found: NDArray[np.bool_] = known[at] == offsets
    return found
