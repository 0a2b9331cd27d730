"""Which partition does each row of a table belong to?

Keys are written as Kafka's serializers write them and hashed as Kafka's partitioner does. So the rows of a key get the
partition that a Kafka producer would choose.

* A key of one column: string as UTF-8, binary as it is, int16, int32, int64 and float64 big-endian.
* A key of several columns: each as an int32 length and its bytes, a null one as length -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.core.partitioning import Bytes, Offsets, murmur2_many, partitions_for
from txlog.core.schema import KEY_TYPES
from txlog.errors import SchemaMismatchError
from txlog.text import nearest

NO_KEY = -1
"""The partition of a row without a key: the caller chooses one for all of them."""

_BIG_ENDIAN = {pa.int16(): ">i2", pa.int32(): ">i4", pa.int64(): ">i8", pa.float64(): ">f8"}


_MOST_ROWS = 4_000_000
"""So many rows are looked at before older ones of their keys are forgotten."""

Serialized: TypeAlias = tuple[Bytes, Offsets, NDArray[np.bool_]]


def partition_table(table: pa.Table, key_columns: Sequence[str], partitions: int) -> NDArray[np.int32]:
    """Return the partition of each row; NO_KEY for a row without a key.

    A row has no key if its key is null (with several columns: if all are), or if there are no key columns. Raises
    SchemaMismatchError for a column that the table lacks or whose type cannot be a key.
    """
    if not key_columns or not table.num_rows:
        return np.full(table.num_rows, NO_KEY, dtype=np.int32)
    data, offsets, present = serialized_keys(table, key_columns)
    found = partitions_for(murmur2_many(data, offsets), partitions)
    return np.where(present, found, np.int32(NO_KEY))


def serialized_keys(table: pa.Table, key_columns: Sequence[str]) -> Serialized:
    """Return the bytes of all rows' keys, their bounds, and which rows have a key.

    All keys are in one array. The bounds are where each key begins and where the last one ends. Raises
    SchemaMismatchError as `partition_table` does.
    """
    keys = [_column(table, name) for name in key_columns]
    if len(keys) == 1:
        return _serialized(keys[0], key_columns[0])
    return _composed([_serialized(key, name) for key, name in zip(keys, key_columns, strict=True)])


def key_values(table: pa.Table, key_columns: Sequence[str]) -> pa.Array[Any]:
    """Return the same keys as an array; null for a row without one. Raises SchemaMismatchError as above.

    Keys of one number are integers with the same bytes, because these are compared faster.
    """
    data, bounds, present = serialized_keys(table, key_columns)
    layout = _BIG_ENDIAN.get(table.column(key_columns[0]).type) if len(key_columns) == 1 else None
    if layout is not None:
        return pa.array(data.view(layout.replace("f", "i")).astype(np.int64), mask=~present)
    buffers = [pa.py_buffer(each) for each in (np.packbits(present, bitorder="little"), bounds, data)]  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.large_binary(), table.num_rows, list(buffers))


class NewestOffsets:
    """The newest offset of each key. Memory holds the bytes of each key and 16 more, and twice as much for a moment."""

    def __init__(self) -> None:
        self._keys: list[pa.Array[Any]] = []
        self._offsets: list[Offsets] = []
        self._most = _MOST_ROWS

    def add(self, keys: pa.Array[Any], offsets: Offsets) -> None:
        """Take rows, in any order. `keys` come from `key_values`; rows without a key are passed over."""
        self._keys.append(keys.drop_null())
        self._offsets.append(offsets[keys.is_valid().to_numpy(zero_copy_only=False)] if keys.null_count else offsets)
        if sum(map(len, self._offsets)) > self._most:
            self._most = _MOST_ROWS + 2 * len(self.found()[1])

    def found(self) -> tuple[pa.Array[Any], Offsets]:
        """Return each key once, and its newest offset."""
        if not self._keys:
            return pa.array([], pa.large_binary()), np.zeros(0, dtype=np.int64)
        encoded = pa.concat_arrays(self._keys).dictionary_encode()
        newest = np.zeros(len(encoded.dictionary), dtype=np.int64)
        np.maximum.at(newest, encoded.indices.to_numpy(), np.concatenate(self._offsets))
        self._keys, self._offsets = [encoded.dictionary], [newest]
        return encoded.dictionary, newest


def _column(table: pa.Table, name: str) -> Any:
    known = table.column_names
    if name not in known:
        raise SchemaMismatchError(
            f"key column {name!r} is unknown; the table has {', '.join(known)}.{nearest(name, known)}"
        )
    column = table.column(name).combine_chunks()
    # Older versions of pyarrow return a single chunk as a ChunkedArray.
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _serialized(array: Any, name: str) -> Serialized:
    """Return the bytes of all keys one after the other, where each begins, and which are present."""
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if array.type in _BIG_ENDIAN:
        return _fixed(array, present)
    if not pa.types.is_string(array.type) and not pa.types.is_binary(array.type):
        raise SchemaMismatchError(f"key column {name!r}: {array.type} cannot be a key; use {', '.join(KEY_TYPES)}")
    # A null may have bytes; its hash is never used.
    _, starts, values = array.buffers()
    bounds = np.frombuffer(starts, dtype=np.int32, count=array.offset + len(array) + 1)[array.offset :].astype(np.int64)
    data = np.zeros(0, dtype=np.uint8) if values is None else np.frombuffer(values, dtype=np.uint8)
    return data, bounds, present


def _fixed(array: Any, present: NDArray[np.bool_]) -> Serialized:
    layout = np.dtype(_BIG_ENDIAN[array.type])
    numbers = array.fill_null(0).to_numpy(zero_copy_only=False)
    if layout.kind == "f":
        # Java writes one bit pattern for every NaN (Double.doubleToLongBits).
        numbers = np.where(np.isnan(numbers), np.float64("nan"), numbers)
    data = numbers.astype(layout).view(np.uint8)
    return data, np.arange(len(array) + 1, dtype=np.int64) * layout.itemsize, present


def _composed(parts: list[Serialized]) -> Serialized:
    """Return several columns as one key: int32 length and bytes of each."""
    rows = len(parts[0][2])
    lengths = [np.where(present, np.diff(offsets), 0) for _, offsets, present in parts]
    total = np.sum(lengths, axis=0) + 4 * len(parts)
    bounds = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(total, out=bounds[1:])
    joined = np.zeros(int(bounds[-1]), dtype=np.uint8)
    at = bounds[:-1].copy()
    for (data, offsets, present), length in zip(parts, lengths, strict=True):
        heads = np.where(present, length, -1).astype(">i4").view(np.uint8).reshape(rows, 4)
        joined[at[:, None] + np.arange(4)] = heads
        at += 4
        # Copy all bytes of the column at once: byte i of row r moves from offsets[r] + i to at[r] + i.
        within = np.arange(int(length.sum()), dtype=np.int64) - np.repeat(np.cumsum(length) - length, length)
        joined[np.repeat(at, length) + within] = data[np.repeat(offsets[:-1], length) + within]
        at += length
    anything = np.logical_or.reduce([present for _, _, present in parts])
    return joined, bounds, anything
