"""Rows that are not in a Delta table: the bytes are Delta's, and never change."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.publication.delta_topic import TOPIC_ID, runs
from tests.publication.roaring_reader import from_object, from_z85, rows_of
from txlog.core.row_runs import rows_in
from txlog.publication.deletion_vectors import MAX_INLINE_BYTES, deletion_vector, roaring, z85

EVERY_OTHER = [(row, row + 1) for row in range(0, 131_072, 2)]


def vector(removed):
    return deletion_vector(rows_in(runs(removed)), table_id=TOPIC_ID, path="0/rows/a.parquet")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        # The example of Z85's specification, and that of Delta's PROTOCOL.md.
        ("864fd26fb559f75b", "HelloWorld"),
        ("d2c639aa8816431aaaf6d3fe2512ff61", "^-aqEH.-t@S}K{vb[*k^"),
        ("", ""),
        ("ff", "@@r30"),
    ],
)
def test_z85(data: str, text: str) -> None:
    assert z85(bytes.fromhex(data)) == text
    assert from_z85(text)[: len(data) // 2].hex() == data


@pytest.mark.parametrize(
    ("removed", "kinds"),
    [
        ([(3, 5)], ["array"]),
        ([(3, 6)], ["array"]),
        ([(3, 7)], ["runs"]),
        ([(0, 65_536)], ["runs"]),
        ([(65_535, 65_537)], ["array", "array"]),
        ([(10, 300_000)], ["runs"] * 5),
        ([(row, row + 1) for row in range(0, 2 * 4_096, 2)], ["array"]),
        ([(row, row + 1) for row in range(0, 2 * 4_097, 2)], ["bitmap"]),
        ([(0, 65_536), (65_537, 65_538), *[(row, row + 1) for row in range(131_072, 196_608, 3)]], ["runs", "array", "bitmap"]),
        ([(2**32 - 1, 2**32 + 2), (2**34, 2**34 + 70_000)], ["array", "array", "runs", "runs"]),
    ],
)  # fmt: skip
def test_every_kind_of_container(removed: list[tuple[int, int]], kinds: list[str]) -> None:
    rows, found = rows_of(roaring(rows_in(runs(removed))))
    assert rows == [row for first, end in removed for row in range(first, end)]
    assert found == kinds


@given(st.sets(st.integers(0, 300_000), min_size=1, max_size=200), st.sets(st.integers(0, 2**40), max_size=20))
def test_any_rows(some: set[int], others: set[int]) -> None:
    rows = sorted(some | others)
    assert rows_of(roaring(np.array(rows)))[0] == rows


def test_a_small_one_is_in_the_log() -> None:
    found = vector([(0, 5), (50, 60)])
    assert found is not None
    assert found.descriptor == {
        "storageType": "i",
        "pathOrInlineDv": "^Bg9^0rr910000000000j1{Tm0rr9f00ic200AoS00@S9",
        "sizeInBytes": 35,
        "cardinality": 15,
    }
    assert (found.path, found.content) == ("", b"")
    bitmap = from_z85(found.descriptor["pathOrInlineDv"])[:35]
    assert rows_of(bitmap)[0] == [*range(5), *range(50, 60)]


def test_a_large_one_is_an_object() -> None:
    found = vector(EVERY_OTHER)
    assert found is not None
    text = found.descriptor["pathOrInlineDv"]
    named = from_z85(text[-20:]).hex()
    uuid = f"{named[:8]}-{named[8:12]}-{named[12:16]}-{named[16:20]}-{named[20:]}"
    assert found.path == f"{text[:-20]}/deletion_vector_{uuid}.bin"
    assert {**found.descriptor, "pathOrInlineDv": ""} == {
        "storageType": "u",
        "pathOrInlineDv": "",
        "offset": 1,
        "sizeInBytes": len(found.content) - 9,
        "cardinality": 65_536,
    }
    bitmap = from_object(found.content, 1, found.descriptor["sizeInBytes"])
    assert rows_of(bitmap) == (list(range(0, 131_072, 2)), ["bitmap", "bitmap"])


def test_the_largest_that_is_in_the_log() -> None:
    rows = (MAX_INLINE_BYTES - len(roaring(np.array([0]))) + 2) // 2
    for more, kind in ((0, "i"), (1, "u")):
        found = vector([(row, row + 1) for row in range(0, 2 * (rows + more), 2)])
        assert found is not None
        assert found.descriptor["storageType"] == kind
        assert (found.descriptor["sizeInBytes"] <= MAX_INLINE_BYTES) == (kind == "i")


def test_the_object_is_named_after_the_rows_the_file_and_the_table() -> None:
    made = [
        deletion_vector(rows_in(runs(rows)), table_id=table, path=path)
        for rows in (EVERY_OTHER, EVERY_OTHER[1:])
        for table in ("a" * 32, "b" * 32)
        for path in ("a.parquet", "b.parquet")
    ]
    assert len({each.path for each in made if each is not None}) == 8
    assert vector(EVERY_OTHER) == vector(EVERY_OTHER)


def test_a_file_with_all_rows_has_none() -> None:
    assert vector([]) is None


def test_the_bytes_never_change() -> None:
    """A later version of txlog removes a file by the text of its deletion vector, so other bytes would leave the file
    in the table."""
    every_kind = [(1, 4), (70_000, 90_000), *[(row, row + 1) for row in range(131_072, 196_608, 3)], (2**33, 2**33 + 9)]
    assert (
        hashlib.sha256(roaring(rows_in(runs(every_kind)))).hexdigest()
        == "c8750d942d7a54fdd33dca29f0933f3be7b22afd5154f80aeb0e28e1ed00136b"
    )
    found = vector(every_kind)
    assert found is not None
    assert found.path == "publication/deletion_vector_75a3c762-c178-07da-fbab-e67c7de89a93.bin"
