"""The chain rule: every walk is complete after any maintenance, or names what is missing."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, strategies as st

from txlog.core import names
from txlog.core.chain import PartitionListing, check_clean, parse_listing, sealed_end, walk
from txlog.core.names import SegmentName
from txlog.core.records import Clean, CleanedRun, Superseded
from txlog.errors import CorruptLogError, CorruptRecordError, MissingObjectError

FOLDER = "orders/0/"


def seg(base: int, end: int) -> SegmentName:
    return SegmentName(base, end, 0)


def run_of(base: int, end: int, generation: int = 1, unique: str = "abcdef12") -> SegmentName:
    return SegmentName(base, end, generation, unique)


def clean_of(number: int, *runs: SegmentName) -> Clean:
    return Clean(
        number=number,
        created_at=0,
        runs=tuple(
            CleanedRun(base_offset=r.base_offset, end_offset=r.end_offset, generation=r.generation, unique=r.unique)
            for r in runs
        ),
    )


def listing_of(*objects: str | SegmentName) -> PartitionListing:
    return parse_listing([each.index if isinstance(each, SegmentName) else each for each in objects], FOLDER)


class TestListing:
    def test_empty(self) -> None:
        listing = parse_listing([], FOLDER)
        assert listing == PartitionListing(
            folder=FOLDER, batches=(), segments=(), runs=(), snapshots=(), boundary=0, clean=None
        )
        assert sealed_end(listing, None) == 0
        assert walk(listing, None, 0) == ()

    def test_everything_finds_its_place_and_the_rest_is_skipped(self) -> None:
        """Other software's names do not parse, and are ignored (R3)."""
        listing = listing_of(
            "rows/",
            "notes.txt",
            ".tmp-00000000000000000010.batch",
            names.batch_name(30),
            names.batch_name(10),
            names.batch_name(20),
            names.snapshot_name(20),
            names.snapshot_name(10),
            names.boundary_name(20),
            names.boundary_name(10),
            names.clean_name(9),
            names.clean_name(10),
            seg(10, 20),
            seg(0, 10),
            run_of(0, 20),
            seg(0, 10).txnindex,
            run_of(0, 20).parquet,
        )
        assert listing == PartitionListing(
            folder=FOLDER,
            batches=(20, 30),  # below the boundary a slot may be from a stale writer
            segments=(seg(0, 10), seg(10, 20)),
            runs=(run_of(0, 20),),
            snapshots=(10, 20),
            boundary=20,
            clean=10,
        )


A, B, C, D = seg(0, 10), seg(10, 25), seg(25, 30), seg(30, 50)
AB, BC, ABC = run_of(0, 25), run_of(10, 30), run_of(0, 30, 2)


class TestWalk:
    @pytest.mark.parametrize(
        ("objects", "current", "start", "expected"),
        [
            pytest.param([A, B, C], [], 0, [A, B, C], id="sealed segments"),
            pytest.param([A, B, C], [], 10, [B, C], id="from a base offset"),
            pytest.param([A, B, C], [], 24, [B, C], id="from inside a segment"),
            pytest.param([A, B, C], [], 29, [C], id="from the last sealed offset"),
            pytest.param([A, B, C], [], 30, [], id="from the tail"),
            pytest.param([A, B, C], [], 31, [], id="from beyond"),
            pytest.param([A, B, C, AB], [AB], 0, [AB, C], id="a run takes the place of what it covers"),
            pytest.param([A, B, C, AB], [], 0, [A, B, C], id="a run that no clean names does not exist"),
            pytest.param([C, AB], [AB], 12, [AB, C], id="from inside a run, its inputs gone"),
            pytest.param([A, B, C, AB], [AB], 12, [AB, C], id="from inside a run, its inputs still there"),
            pytest.param([A, B, C, D, BC], [BC], 0, [A, BC, D], id="a run in the middle"),
            pytest.param([A, B, C, AB, BC], [BC], 0, [A, BC], id="of overlapping runs the named one"),
            pytest.param([AB, ABC, C, D], [ABC], 3, [ABC, D], id="a second generation"),
            pytest.param([ABC], [ABC], 0, [ABC], id="runs alone"),
            pytest.param(
                [run_of(0, 10, 1), run_of(10, 25, 3), C],
                [run_of(0, 10, 1), run_of(10, 25, 3)],
                0,
                [run_of(0, 10, 1), run_of(10, 25, 3), C],
                id="neighbouring runs",
            ),
            pytest.param([C, D], [], 25, [C, D], id="log start above segments that are gone"),
            pytest.param([A, C, D], [], 26, [C, D], id="one of them still there"),
        ],
    )
    def test_walks(
        self, objects: list[SegmentName], current: list[SegmentName], start: int, expected: list[SegmentName]
    ) -> None:
        clean = clean_of(4, *current) if current else None
        listing = listing_of(*objects, *([names.clean_name(4), names.clean_name(3)] if current else []))
        assert walk(listing, clean, start) == tuple(expected)

    def test_internal_chain_begins_at_the_boundary(self) -> None:
        # The snapshot contains what is below and replaces it, so that only a part of it may still exist.
        listing = listing_of(A, C, D, names.boundary_name(25))
        assert walk(listing, None, 25) == (C, D)
        assert walk(listing_of(names.boundary_name(50)), None, 50) == ()
        assert sealed_end(listing_of(names.boundary_name(50)), None) == 50

    @pytest.mark.parametrize(
        ("objects", "current", "end"),
        [
            ([A], [], 10),
            ([A, B], [], 25),
            ([A, B, AB], [AB], 25),
            ([ABC], [ABC], 30),
            ([C, AB], [AB], 30),
            ([A, ABC], [], 10),
        ],
    )
    def test_sealed_end(self, objects: list[SegmentName], current: list[SegmentName], end: int) -> None:
        clean = clean_of(0, *current) if current else None
        assert sealed_end(listing_of(*objects, *([names.clean_name(0)] if current else [])), clean) == end

    @pytest.mark.parametrize(
        ("objects", "start", "missing"), [([A, C], 0, 10), ([B, C], 0, 0), ([A, C], 12, 12), ([A, AB, C], 0, 10)]
    )
    def test_a_hole_is_an_error_not_an_end(self, objects: list[SegmentName], start: int, missing: int) -> None:
        with pytest.raises(MissingObjectError, match=rf"orders/0/: .* begins at offset {missing}, .*sealed up to 30"):
            walk(listing_of(*objects), None, start)

    def test_a_current_run_that_no_walk_reaches_is_damage(self) -> None:
        """Its rows, or those of the segments that it overlaps, would be left out without a word (R21)."""
        run = run_of(5, 15)
        listing = listing_of(seg(0, 10), seg(10, 20), run, names.clean_name(1))
        with pytest.raises(CorruptRecordError, match=rf"no segment or run ends where its run {run.index} begins"):
            walk(listing, clean_of(1, run), 0)
        assert walk(listing, clean_of(1, run), 15) == (seg(10, 20),)

    def test_a_superseded_segment_that_a_walk_needs_is_damage(self) -> None:
        """The run that replaced it was lost from the list, and rows that a compaction removed would come back (R21)."""
        listing = listing_of(seg(0, 10), seg(10, 20), names.clean_name(1))
        gone = Superseded(name=seg(0, 10).index, since=0)
        clean = msgspec.structs.replace(clean_of(1), superseded=(gone,))
        with pytest.raises(CorruptRecordError, match=rf"it says that {gone.name} is superseded, and no run"):
            walk(listing, clean, 0)
        assert walk(listing, clean, 10) == (seg(10, 20),)

    def test_two_segments_at_one_offset_are_named(self) -> None:
        with pytest.raises(CorruptLogError) as caught:
            walk(listing_of(A, seg(0, 11), B), None, 0)
        assert A.index in str(caught.value)
        assert seg(0, 11).index in str(caught.value)

    def test_under_a_current_run_they_do_not_matter(self) -> None:
        assert walk(listing_of(A, seg(0, 11), AB, names.clean_name(0)), clean_of(0, AB), 0) == (AB,)

    @pytest.mark.parametrize("clean", [None, clean_of(3), clean_of(5)])
    def test_only_the_highest_clean_of_the_listing_counts(self, clean: Clean | None) -> None:
        listing = listing_of(A, names.clean_name(4))
        with pytest.raises(ValueError, match=r"the highest \.clean of this listing is 4"):
            walk(listing, clean, 0)
        with pytest.raises(ValueError, match=r"the highest \.clean of this listing is 4"):
            sealed_end(listing, clean)

    @given(st.data())
    def test_every_walk_is_complete(self, data: st.DataObject) -> None:
        """Draw bounds, runs over random stretches, current or stale, and covered inputs that are deleted or not."""
        bounds = [0, *sorted(data.draw(st.sets(st.integers(1, 10_000), min_size=1, max_size=12)))]
        segments = [seg(base, end) for base, end in pairwise(bounds)]
        cuts = sorted(data.draw(st.sets(st.sampled_from(bounds), max_size=6)))
        current = []
        for number, (base, end) in enumerate(pairwise(cuts)):
            if data.draw(st.booleans()):
                current.append(run_of(base, end, 1 + number, f"{number:08x}"))
        stale = [
            run_of(base, end, 1, "ffffffff")
            for base, end in data.draw(
                st.lists(
                    st.tuples(st.sampled_from(bounds), st.sampled_from(bounds)).filter(lambda pair: pair[0] < pair[1]),
                    max_size=3,
                )
            )
        ]
        covered = {
            s for s in segments for r in current if r.base_offset <= s.base_offset and s.end_offset <= r.end_offset
        }
        kept = [s for s in segments if s not in covered or data.draw(st.booleans())]
        highest = data.draw(st.integers(0, 99)) if current else None
        objects: list[str | SegmentName] = [*kept, *current, *stale]
        if highest is not None:
            objects += [names.clean_name(older) for older in range(highest + 1)]
        listing = listing_of(*data.draw(st.permutations(objects)))
        clean = clean_of(highest, *current) if highest is not None else None

        start = data.draw(st.integers(0, bounds[-1] + 5))
        found = walk(listing, clean, start)
        assert sealed_end(listing, clean) == bounds[-1]
        assert not set(found) & set(stale)
        assert not set(found) & covered
        if start >= bounds[-1]:
            assert found == ()
        else:
            assert found[0].base_offset <= start < found[0].end_offset
            assert found[-1].end_offset == bounds[-1]
            assert all(left.end_offset == right.base_offset for left, right in pairwise(found))


class TestCheckClean:
    def test_a_right_one(self) -> None:
        check_clean(clean_of(7, AB, run_of(25, 30), run_of(50, 60)), 7, "p")
        check_clean(clean_of(0), 0, "p")

    @pytest.mark.parametrize(
        ("clean", "message"),
        [
            (clean_of(6, AB), "holds version 6, and its name says 7"),
            (clean_of(7, AB, BC), "overlaps the one before it"),
            (clean_of(7, run_of(25, 30), AB), "overlaps the one before it"),
            (clean_of(7, run_of(5, 5)), "or is empty"),
            (clean_of(7, run_of(5, 6, 1, "../../x")), "cannot be the name of a cleaned run"),
            (clean_of(7, run_of(5, 6, 1, "")), "cannot be the name of a cleaned run"),
        ],
    )
    def test_wrong_ones_are_refused_by_name(self, clean: Clean, message: str) -> None:
        path = FOLDER + names.clean_name(7)
        with pytest.raises(CorruptRecordError, match=message) as caught:
            check_clean(clean, 7, path)
        assert str(caught.value).startswith(path)

    def test_generation_0_cannot_be_a_run(self) -> None:
        line = msgspec.json.encode(CleanedRun(base_offset=0, end_offset=1, generation=0, unique="abcdef12"))
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(line, type=CleanedRun)
