"""Keys as Kafka's serializers write them."""

from __future__ import annotations

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.support import partition_for
from txlog.core.partitioning import murmur2
from txlog.errors import SchemaMismatchError
from txlog.storage.keys import NO_KEY, partition_table


def expected(keys, partitions=7):
    return [NO_KEY if key is None else partition_for(murmur2(key), partitions) for key in keys]


@pytest.mark.parametrize(
    ("values", "arrow", "write"),
    [
        (["foobar", "", None, "é€😀"], pa.string(), lambda value: value.encode()),
        ([b"foobar", b"", None, b"\x00\xff"], pa.binary(), bytes),
        ([1, -1, None, 32767], pa.int16(), lambda value: struct.pack(">h", value)),
        ([1, -1, None, 2**31 - 1], pa.int32(), lambda value: struct.pack(">i", value)),
        ([1, -1, None, 2**63 - 1, -(2**63)], pa.int64(), lambda value: struct.pack(">q", value)),
        ([1.5, -0.0, None, math.inf], pa.float64(), lambda value: struct.pack(">d", value)),
    ],
    ids=["string", "binary", "int16", "int32", "int64", "float64"],
)
def test_one_column(values, arrow, write):
    keys = [None if value is None else write(value) for value in values]
    table = pa.table({"other": list(range(len(values))), "k": pa.array(values, arrow)})
    found = partition_table(table, ["k"], 7)
    assert found.dtype == np.int32
    assert found.tolist() == expected(keys)
    for first in range(len(values)):
        assert partition_table(table.slice(first), ["k"], 7).tolist() == expected(keys[first:])
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert partition_table(chunked, ["k"], 7).tolist() == expected(keys)


def test_every_nan_is_javas():
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    table = pa.table({"k": pa.array([math.nan, odd])})
    assert partition_table(table, ["k"], 1000).tolist() == expected([bytes.fromhex("7ff8000000000000")] * 2, 1000)


def test_kafkas_own_vectors():
    table = pa.table({"k": ["foobar", "abc", "key"]})
    assert [partition_table(table, ["k"], n).tolist() for n in (3, 6, 10, 50)] == [
        [0, 0, 1],
        [0, 3, 1],
        [6, 7, 1],
        [16, 7, 31],
    ]


def part(value):
    if value is None:
        return struct.pack(">i", -1)
    raw = value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else struct.pack(">q", value)
    return struct.pack(">i", len(raw)) + raw


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=5),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.binary(max_size=9),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(0, 3),
)  # fmt: skip
def test_several_columns(rows, skip):
    names = ["a", "b", "c"]
    types = [pa.string(), pa.int64(), pa.binary()]
    table = pa.table({name: pa.array([row[n] for row in rows], types[n]) for n, name in enumerate(names)})
    keys = [None if all(value is None for value in row) else b"".join(part(value) for value in row) for row in rows]
    assert partition_table(table.slice(skip), names, 7).tolist() == expected(keys[skip:])


def test_no_key_at_all():
    table = pa.table({"k": ["a", "b"]})
    assert partition_table(table, [], 7).tolist() == [NO_KEY, NO_KEY]
    assert partition_table(table.slice(2), ["k"], 7).tolist() == []


def test_nulls_with_bytes_of_their_own():
    array = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"foobar")],  # type: ignore[arg-type]
    )
    assert partition_table(pa.table({"k": array}), ["k"], 7).tolist() == expected([None, b"bar"])
    table = pa.table({"k": array, "n": pa.array([1, 2])})
    assert partition_table(table, ["k", "n"], 7).tolist() == expected([part(None) + part(1), part("bar") + part(2)])


def test_columns_that_cannot_be_keys():
    table = pa.table({"f": pa.array([1.0], pa.float32()), "k": ["a"]})
    with pytest.raises(SchemaMismatchError, match="key column 'f': float cannot be a key; use string"):
        partition_table(table, ["f"], 7)
    with pytest.raises(SchemaMismatchError, match="key column 'f'"):
        partition_table(table, ["k", "f"], 7)
    with pytest.raises(SchemaMismatchError, match="key column 'x' is unknown; the table has f, k"):
        partition_table(table, ["x"], 7)
