"""Which segments are worth a run, as tables of sizes."""

from __future__ import annotations

import pytest

from txlog.core.cleaning import MergePolicy, choose_merges
from txlog.core.names import SegmentName
from txlog.core.records import IndexedFile, SegmentIndex


def groups(sizes: list[int], *, target_bytes: int = 1000, max_ratio: int = 0) -> list[list[int]]:
    """Return the sizes of the members of each run that would be made. Every segment is one file of that size."""
    walk = [SegmentName(at, at + 1, 0) for at in range(len(sizes))]
    indexes = {name: index(name, size) for name, size in zip(walk, sizes, strict=True)}
    found = choose_merges(
        walk,
        indexes,
        log_start_offset=0,
        last_stable_offset=len(sizes),
        policy=MergePolicy(target_bytes=target_bytes, max_ratio=max_ratio),
    )
    return [[sizes[name.base_offset] for name in group] for group in found]


def index(name: SegmentName, size: int) -> SegmentIndex:
    file = IndexedFile(
        path=f"0/{name.parquet}", rows=1, bytes=size, digest=None, footer_digest="", row_groups=(1,), schema_id=0
    )
    return SegmentIndex(
        partition="orders-0",
        base_offset=name.base_offset,
        end_offset=name.end_offset,
        generation=0,
        files=(file,),
        entries=(),
        aborted_txns=0,
        last_digest="",
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([10, 10, 10], [[10, 10, 10]]),
        ([400, 10, 10], [[400, 10, 10]]),
        ([500, 10, 10], [[10, 10]]),
        ([400, 400, 400], [[400, 400]]),
        ([10], []),
        ([], []),
    ],
)
def test_neighbours_up_to_the_target(sizes: list[int], expected: list[list[int]]) -> None:
    assert groups(sizes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([400, 10, 10], [[10, 10]]),
        ([400, 80, 20], [[400, 80, 20]]),
        ([10, 10, 400, 10, 10], [[10, 10], [10, 10]]),
        ([70, 10, 400, 5, 5], [[5, 5]]),
        ([400, 1], []),
        ([400, 60, 1], []),
        ([300, 60, 10, 10, 10], [[300, 60, 10, 10, 10]]),
    ],
)
def test_a_large_one_waits_for_a_fourth_of_its_bytes(sizes: list[int], expected: list[list[int]]) -> None:
    assert groups(sizes, max_ratio=4) == expected


def test_who_merges_at_every_chance_writes_a_row_a_few_times() -> None:
    """Merge 2,000 equal segments whenever ten more exist: without the ratio, each would be written a hundred times."""
    for max_ratio, most in ((0, 200), (4, 15)):
        sizes: list[int] = []
        written = 0
        for number in range(1, 2001):
            sizes.append(1)
            if number % 10:
                continue
            for group in groups(sizes, target_bytes=10**6, max_ratio=max_ratio):
                at = next(at for at in range(len(sizes)) if sizes[at : at + len(group)] == group)
                sizes[at : at + len(group)] = [sum(group)]
                written += sum(group)
        assert sum(sizes) == 2000
        assert len(sizes) <= 15
        assert written / 2000 <= most
        assert max_ratio or written / 2000 > 50
