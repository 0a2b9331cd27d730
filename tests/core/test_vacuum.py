"""What may vacuum delete, and why? Each reason, and similar objects that must stay."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from txlog.core import names, vacuum
from txlog.core.names import SegmentName, SegmentObject
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, Clean, CleanedRun, Superseded, TransactionMetadata
from txlog.core.vacuum import Why

GRACE_MS = 1000
U1, U2 = "aaaaaaaa", "bbbbbbbb"


def txn(state: str, epoch: int, last_epoch: int = -1) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="x",
        producer_id=7,
        producer_epoch=epoch,
        last_epoch=last_epoch,
        state=state,  # type: ignore[arg-type]
        timeout_ms=1,
        write_id="w",
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (None, Why.NO_PRODUCER),
        (txn("EMPTY", 3), None),
        (txn("ONGOING", 3), None),
        (txn("COMPLETE_COMMIT", 3, 2), None),
        (txn("PREPARE_COMMIT", 4, 3), None),
        (txn("PREPARE_ABORT", 4, 3), None),
        (txn("COMPLETE_COMMIT", 4, 3), Why.LATER_EPOCH),
        (txn("COMPLETE_ABORT", 4, 3), Why.LATER_EPOCH),
        (txn("EMPTY", 5), Why.LATER_EPOCH),
        (txn("ONGOING", 5), Why.LATER_EPOCH),
        (txn("PREPARE_COMMIT", 5, 4), Why.LATER_EPOCH),
        (txn("EMPTY", 2), None),
    ],
)
def test_files_of_epoch_3(row: TransactionMetadata | None, why: Why | None) -> None:
    assert vacuum.judge_producer(7, 3, {} if row is None else {7: row}) is why


def test_the_table_says_nothing_of_a_drawn_producer() -> None:
    assert vacuum.judge_producer(FIRST_DRAWN_PRODUCER_ID, 0, {}) is None


@pytest.mark.parametrize(
    ("written_ms", "last_ms", "why"),
    [
        (None, 10_000, None),
        (9_500, 10_000, None),
        (9_000, 10_000, None),
        (8_999, 9_499, Why.DRAWN_AFTER_RECORD),
        (8_999, 9_500, Why.DRAWN),
        (8_999, 8_000, Why.DRAWN_AFTER_RECORD),
        (8_999, None, Why.DRAWN_AFTER_RECORD),
    ],
)
def test_files_of_a_drawn_producer(written_ms: int | None, last_ms: int | None, why: Why | None) -> None:
    assert vacuum.judge_drawn(written_ms, last_ms, now_ms=10_000, grace_ms=GRACE_MS) is why


# -- segments and runs ------------------------------------------------------------------------------------------------


def segment(base: int, end: int, *uniques: str) -> list[str]:
    name = SegmentName(base, end, 0)
    return [name.index, name.txnindex, *(SegmentName(base, end, 0, unique).parquet for unique in uniques)]


def run(base: int, end: int, generation: int = 1, unique: str = U1) -> CleanedRun:
    return CleanedRun(base_offset=base, end_offset=end, generation=generation, unique=unique)


def objects_of(made: CleanedRun) -> list[str]:
    return [made.name.index, made.name.txnindex, made.name.parquet]


def superseded(
    listed: Iterable[str], *runs: CleanedRun, gone_below: int = 0, named: Iterable[str] = ()
) -> dict[str, Why]:
    folder = vacuum.sort_out(sorted(listed), "orders/0/")
    found = vacuum.superseded_parts(folder, runs, gone_below, set(named))
    return {vacuum.part_name(part): why for part, why in found.items()}


def test_what_is_current_stays() -> None:
    made = run(0, 8)
    listed = [*segment(8, 16, U1), *objects_of(made)]
    named = [SegmentName(8, 16, 0, U1).parquet, made.name.parquet]
    assert superseded(listed, made, named=named) == {}


def test_a_segment_that_a_current_run_covers_goes_its_file_after_its_index() -> None:
    made = run(0, 8)
    listed = [*segment(0, 8, U2), *objects_of(made)]
    mine = SegmentName(0, 8, 0, U2).parquet
    found = superseded(listed, made, named=[mine, made.name.parquet])
    assert found == dict.fromkeys(segment(0, 8), Why.COVERED)
    left = [mine, *objects_of(made)]
    assert superseded(left, made, named=[made.name.parquet]) == {mine: Why.COVERED}


def test_a_transaction_index_that_is_left_alone_goes_too() -> None:
    made = run(0, 8)
    alone = SegmentName(0, 8, 0).txnindex
    assert superseded([alone, *objects_of(made)], made, named=[made.name.parquet]) == {alone: Why.COVERED}


def test_what_a_sealing_under_way_has_written_stays() -> None:
    assert superseded([SegmentName(0, 8, 0).txnindex, SegmentName(0, 8, 0, U1).parquet]) == {}


def test_the_losers_file_of_two_sealings_goes() -> None:
    won, lost = (SegmentName(0, 8, 0, unique).parquet for unique in (U1, U2))
    assert superseded(segment(0, 8, U1, U2), named=[won]) == {lost: Why.LOST_SEALING}


def test_a_run_that_another_one_replaced_goes() -> None:
    old, new = run(0, 8), run(0, 16, 2, U2)
    found = superseded([*objects_of(old), *objects_of(new)], new, named=[old.name.parquet, new.name.parquet])
    assert found == {old.name.index: Why.COVERED, old.name.txnindex: Why.COVERED}


def test_a_run_that_overlaps_a_current_one_of_its_generation_can_never_be_published() -> None:
    current, lost = run(0, 8), run(4, 12, 1, U2)
    found = superseded([*objects_of(current), *objects_of(lost)], current, named=[current.name.parquet])
    assert found == dict.fromkeys(objects_of(lost), Why.LOST_RUN)


@pytest.mark.parametrize("other", [run(0, 4), run(12, 16), run(4, 8, 1)])
def test_a_run_that_is_not_published_yet_stays(other: CleanedRun) -> None:
    """Disjoint runs do not matter for it, and a run of a lower generation may be one of its inputs."""
    waiting = run(4, 12, 2, U2)
    assert superseded([*objects_of(waiting), *objects_of(other)], other, named=[other.name.parquet]) == {}


def test_what_lies_wholly_below_the_log_start_goes_current_or_not() -> None:
    current, waiting = run(0, 8), run(8, 16, 1, U2)
    listed = [*objects_of(current), *objects_of(waiting), *segment(16, 20, U1), *segment(20, 24, U1)]
    named = [SegmentName(20, 24, 0, U1).parquet]
    found = superseded(listed, current, gone_below=20, named=named)
    assert set(found) == {*objects_of(current), *objects_of(waiting), *segment(16, 20, U1)}
    assert found[current.name.index] is Why.BELOW_LOG_START
    assert not superseded(segment(16, 24, U1), gone_below=20, named=[SegmentName(16, 24, 0, U1).parquet])


# -- since when -------------------------------------------------------------------------------------------------------


def clean(number: int, created_at: int, *superseded: tuple[str, int], runs: tuple[CleanedRun, ...] = ()) -> Clean:
    return Clean(
        number=number,
        runs=runs,
        superseded=tuple(Superseded(name=name, since=since) for name, since in superseded),
        created_at=created_at,
    )


def test_since_when_is_what_the_highest_list_says() -> None:
    """The grace counts from the time in the highest `.clean` (C5)."""
    old, new = clean(3, 50, ("a", 20)), clean(4, 90, ("a", 20), ("b", 90))
    assert vacuum.collect_notes([(old, 51), (new, 91)]) == {"a": 20, "b": 91}
    assert vacuum.collect_notes([(new, 91)]) == {"a": 20, "b": 91}
    assert vacuum.collect_notes([(clean(3, 50, ("gone", 50)), 51), (clean(4, 90), 91)]) == {}
    assert vacuum.collect_notes([]) == {}


def test_a_list_that_came_late_counts_from_when_it_came() -> None:
    """The author read the clock, slept, and then created the list.

    For other processes its inputs were current until then.
    """
    late, next_one = clean(3, 50, ("a", 50)), clean(4, 5_001, ("a", 50))
    assert vacuum.collect_notes([(late, 5_000)]) == {"a": 5_000}
    assert vacuum.collect_notes([(late, 5_000), (next_one, 5_001)]) == {"a": 5_000}
    assert vacuum.collect_notes([(late, None)]) == {"a": vacuum.NOT_KNOWN_YET}


def test_one_note_stands_for_all_objects_of_a_segment() -> None:
    part = SegmentObject(SegmentName(0, 8, 0, U1), "parquet")
    index = SegmentName(0, 8, 0).index
    assert vacuum.noted_since(part, {index: 5}) == 5
    assert vacuum.noted_since(part, {vacuum.part_name(part): 4, index: 5}) == 4
    assert vacuum.noted_since(part, {SegmentName(8, 16, 0).index: 5}) is None
    assert vacuum.note_of(part, Why.COVERED) == index
    assert vacuum.note_of(part, Why.LOST_SEALING) == vacuum.part_name(part)


# -- numbered objects -------------------------------------------------------------------------------------------------


def numbered(kind: str, *numbers: int) -> list[str]:
    return [names.NumberedName(kind, number).name for number in numbers]


def test_a_boundary_may_rise_to_the_end_of_a_sealed_segment_with_a_snapshot() -> None:
    listed = [*segment(0, 8), *segment(8, 16), *segment(16, 24), *numbered("snapshot", 8, 24), *numbered("batch", 24)]
    folder = vacuum.sort_out(sorted(listed), "orders/0/")
    assert [name.end_offset for name in vacuum.bounds(folder)] == [8, 24]
    folder = vacuum.sort_out(sorted([*listed, *numbered("boundary", 8)]), "orders/0/")
    assert [name.end_offset for name in vacuum.bounds(folder)] == [24]


def test_a_snapshot_goes_once_a_later_one_lies_at_or_below_the_boundary() -> None:
    folder = vacuum.sort_out(sorted([*numbered("snapshot", 8, 16, 24), *numbered("boundary", 8, 16)]), "orders/0/")
    assert vacuum.old_snapshots(folder) == {8: 16}
    folder = vacuum.sort_out(sorted([*numbered("snapshot", 8, 16, 24), *numbered("boundary", 8)]), "orders/0/")
    assert vacuum.old_snapshots(folder) == {}
    folder = vacuum.sort_out(sorted([*numbered("snapshot", 8, 16, 24), *numbered("boundary", 16, 24)]), "orders/0/")
    assert vacuum.old_snapshots(folder) == {8: 16, 16: 24}


def test_of_numbers_the_highest_stays() -> None:
    assert vacuum.old_numbers((1, 4, 9)) == {1: 4, 4: 9}
    assert vacuum.old_numbers(()) == vacuum.old_numbers((4,)) == {}


# -- the next list ----------------------------------------------------------------------------------------------------


def left(*listed: str) -> list[SegmentObject]:
    return list(vacuum.sort_out(sorted(listed), "orders/0/").parts)


def test_nothing_to_say_no_list() -> None:
    index = SegmentName(0, 8, 0).index
    assert vacuum.next_notes(None, [], (), 0, 1) is None
    assert vacuum.next_notes(clean(0, 1, (index, 1)), left(index), (), 0, 2) is None
    assert vacuum.next_notes(clean(0, 1, (index, 1)), left(index), (index,), 0, 2) is None


def test_what_is_deleted_is_forgotten_and_what_is_found_noted() -> None:
    first, second = SegmentName(0, 8, 0), SegmentName(8, 16, 0)
    made = vacuum.next_notes(
        clean(4, 1, (first.index, 1), (second.index, 1)), left(*segment(8, 16)), (U1,), log_start_offset=0, now_ms=9
    )
    assert made == clean(5, 9, (second.index, 1), (U1, 9))
    # A later list names the segment as long as any of its objects is left.
    rows = SegmentName(0, 8, 0, U1).parquet
    assert vacuum.next_notes(clean(4, 1, (first.index, 1)), left(rows), (), 0, 9) is None


def test_runs_below_the_log_start_become_one_when_nothing_is_left_of_them() -> None:
    runs = (run(0, 8), run(8, 16, 3), run(20, 24, 2, U2), run(24, 32))
    before = clean(4, 1, *[(each.name.index, 1) for each in runs[:3]], runs=runs)
    kept = [name for each in runs[2:] for name in objects_of(each)]
    made = vacuum.next_notes(before, left(*kept), (), 24, 9)
    assert made is not None
    assert made.runs == (run(0, 16, 3), *runs[2:])
    made = vacuum.next_notes(before, left(*objects_of(runs[3])), (), 24, 9)
    assert made is not None
    assert made.runs == (run(0, 24, 3, U2), runs[3])
    made = vacuum.next_notes(before, left(*objects_of(runs[3])), (), 23, 9)
    assert made is not None
    assert made.runs[0] == run(0, 16, 3)
