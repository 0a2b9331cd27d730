"""What became of each batch: every fate, sealed and in the tail, and no hole is passed over."""

from __future__ import annotations

import msgspec
import pytest

from tests.core.chains import TP, Chain
from tests.core.test_fetch_plan import index_of
from txlog.core.ages import ClockReading
from txlog.core.fates import LogBatch, walk_batches
from txlog.core.records import NO_PRODUCER_ID, IndexEntry
from txlog.core.snapshots import SnapshotCut
from txlog.errors import CorruptLogError

CUT = SnapshotCut(ends={TP: 99}, settled={1: 9, 2: 9, 4: -1, 5: 9}, table_ends=(1,), taken_at=ClockReading(0))
"""It shows all producers but 4."""


def chain() -> Chain:
    made = Chain()
    made.append("data", 1, [2])  # 0
    made.append("commit", 1)  # 2
    made.append("data", 2, [1])  # 3
    made.append("abort", 2)  # 4
    made.append("data", 4, [3], inline=True)  # 5
    made.append("commit", 4)  # 8
    made.append("expire")  # 9
    made.append("data", NO_PRODUCER_ID, [2, 1], transactional=False)  # 10
    made.append("commit", 1, [1])  # 13
    made.append("data", 5, [1])  # 14
    return made


FATES = {
    0: "removed",
    2: "removed",
    3: "aborted",
    4: "control",
    5: "hidden",
    8: "control",
    9: "control",
    10: "committed",
    13: "committed",
    14: "open",
}


def walk(made: Chain, sealed: bool, **given: object) -> list[LogBatch]:
    indexes, tail = ([index_of(made.records)], []) if sealed else ([], made.records)
    return list(walk_batches(tp=TP, indexes=indexes, tail=tail, **given))  # type: ignore[arg-type]


@pytest.mark.parametrize("sealed", [False, True])
def test_every_fate(sealed: bool) -> None:
    made = chain()
    found = walk(made, sealed, aborted=made.aborted, log_start_offset=3, cut=CUT, first_open={5: 14})
    assert {batch.entry.base_offset: batch.fate for batch in found} == FATES
    assert [batch.end_offset for batch in found] == [record.end_offset for record in made.records]


@pytest.mark.parametrize("sealed", [False, True])
def test_without_aborted_ranges_cut_and_open_producers_all_rows_are_committed(sealed: bool) -> None:
    assert {batch.fate for batch in walk(chain(), sealed) if batch.entry.records} == {"committed"}


@pytest.mark.parametrize("sealed", [False, True])
def test_a_range_has_the_batches_that_reach_into_it(sealed: bool) -> None:
    assert [batch.entry.base_offset for batch in walk(chain(), sealed, start=6, end=10)] == [5, 8, 9]


def test_a_cleaned_run_has_only_committed_batches_and_their_ends_include_gaps() -> None:
    made = chain()
    index = msgspec.structs.replace(index_of(made.records), generation=1)
    entries = tuple(entry for entry in index.entries if entry.base_offset in (0, 3, 10))
    run = msgspec.structs.replace(
        index, entries=(*entries[:1], msgspec.structs.replace(entries[1], records=0), entries[2])
    )
    found = list(walk_batches(tp=TP, indexes=[run], aborted=made.aborted))
    assert [(batch.fate, batch.end_offset, batch.has_gaps) for batch in found] == [
        ("committed", 3, True),
        ("committed", 10, True),
        ("committed", made.end, True),
    ]


@pytest.mark.parametrize("sealed", [False, True])
def test_the_rows_of_a_batch_are_cut_over_its_files(sealed: bool) -> None:
    (batch,) = walk(chain(), sealed, start=10, end=13)
    assert isinstance(batch.entry, IndexEntry) == sealed
    assert [(part.first_row, part.rows) for part in batch.rows_in_files()] == [(0, 2), (0, 1)]
    assert [(part.first_row, part.rows) for part in batch.rows_in_files(1)] == [(1, 1), (0, 1)]
    assert [(part.first_row, part.rows) for part in batch.rows_in_files(1, 1)] == [(1, 1)]
    assert [(part.first_row, part.rows) for part in batch.rows_in_files(2, 1)] == [(0, 1)]


def test_rows_inside_a_record_are_in_no_file() -> None:
    (batch,) = walk(chain(), sealed=False, start=5, end=8)
    assert list(batch.rows_in_files()) == []


@pytest.mark.parametrize("missing", [2, 9, 14])
def test_a_hole_is_refused(missing: int) -> None:
    made = chain()
    made.records[:] = [record for record in made.records if record.base_offset != missing]
    with pytest.raises(CorruptLogError, match=f"finds nothing at offset {missing}"):
        walk(made, sealed=False, start=0, end=15)


def test_records_that_an_index_covers_are_ignored() -> None:
    made = chain()
    walked = list(walk_batches(tp=TP, indexes=[index_of(made.records)], tail=made.records))
    assert [batch.entry.base_offset for batch in walked] == list(FATES)
