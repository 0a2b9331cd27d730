"""Kafka's own test vectors, and the vectorised hash against the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.support import partition_for
from txlog.core.internal_partitions import internal_partition, java_string_hash
from txlog.core.partitioning import (
    murmur2,
    murmur2_many,
    partitions_for,
)

MURMUR2 = {
    # Kafka's UtilsTest
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
    # the results of org.apache.kafka.common.utils.Utils.murmur2
    "": 275646681,
    "a": -1563381124,
    "ab": 316155434,
    "key": -1079937367,
}
JAVA = {
    "": (0, 0),
    "a": (97, 47),
    "my-txn": (-1061187895, 45),
    "foobar": (-1268878963, 13),
    "transactional-id": (510590431, 31),
    "txn-0": (110810509, 9),
    "txn-1": (110810510, 10),
    "order-service-1": (-229043366, 16),
    "polygenelubricants": (-2147483648, 0),
    "é€😀": (16752006, 6),
}


def concatenated(keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(len(keys) + 1, dtype=np.int64)
    offsets[1:] = np.cumsum([len(key) for key in keys])
    return np.frombuffer(b"".join(keys), dtype=np.uint8), offsets


@pytest.mark.parametrize(("key", "expected"), MURMUR2.items())
def test_murmur2(key, expected):
    assert murmur2(key.encode()) == expected


def test_murmur2_of_all_vectors_at_once():
    assert murmur2_many(*concatenated([key.encode() for key in MURMUR2])).tolist() == list(MURMUR2.values())


@pytest.mark.parametrize(
    ("key", "expected"), [("foobar", (0, 0, 6, 16)), ("abc", (0, 3, 7, 7)), ("key", (1, 1, 1, 31))]
)
def test_partition_of_a_key(key, expected):
    assert tuple(partition_for(murmur2(key.encode()), n) for n in (3, 6, 10, 50)) == expected


@pytest.mark.parametrize(("name", "expected"), JAVA.items())
def test_internal_partition(name, expected):
    assert (java_string_hash(name), internal_partition(name, 50)) == expected


@given(st.lists(st.binary(max_size=40), max_size=50))
def test_many_equals_one_by_one(keys):
    hashes = murmur2_many(*concatenated(keys))
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [murmur2(key) for key in keys]
    assert partitions_for(hashes, 7).tolist() == [partition_for(murmur2(key), 7) for key in keys]


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=50))
def test_keys_of_one_length(keys):
    assert murmur2_many(*concatenated(keys)).tolist() == [murmur2(key) for key in keys]


def test_keys_that_do_not_begin_at_zero():
    data, offsets = concatenated([b"skipped", b"foobar", b"abc"])
    assert murmur2_many(data, offsets[1:]).tolist() == [MURMUR2["foobar"], MURMUR2["abc"]]


@given(st.text(), st.integers(1, 10_000))
def test_internal_partition_is_in_range(name, partitions):
    assert 0 <= internal_partition(name, partitions) < partitions


def test_more_keys_than_are_hashed_together():
    keys = [b"%d" % (number * number) for number in range(40_000)]
    assert murmur2_many(*concatenated(keys)).tolist() == [murmur2(key) for key in keys]
