"""Which rows does a reader get?

Kafka's cases as tables, and random chains, sealed and cleaned, against the naive model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.core.chains import TP, Chain, Row, chains, data_file, inline_file_of, payload_of
from txlog.core.fates import AbortedRanges
from txlog.core.fetch_plan import BY_COLUMN, FilePiece, InlinePiece, Piece, RowRange, plan_fetch
from txlog.core.names import SegmentName
from txlog.core.records import AbortedTxn, CommitRecord, IndexedFile, IndexEntry, OffsetEntry, SegmentIndex
from txlog.core.segments import build_index, check_index
from txlog.errors import CorruptLogError

Tail = list[tuple[CommitRecord, bytes]]


def tail_of(records: Iterable[CommitRecord]) -> Tail:
    return [(record, payload_of(record.base_offset) if record.payload_bytes else b"") for record in records]


def index_of(records: Sequence[CommitRecord]) -> SegmentIndex:
    return build_index(TP, records, "", inline_file_of(records))[0]


def aborted(*ranges: tuple[int, int, int]) -> list[AbortedTxn]:
    return [
        AbortedTxn(producer_id=pid, first_offset=first, last_offset=last, last_stable_offset=0)
        for pid, first, last in ranges
    ]


def offsets_of(pieces: Iterable[Piece], columns: dict[str, list[int]] | None = None) -> list[int]:
    """Return all offsets of the pieces, in their order; `columns` are the `_offset` columns of files."""
    found: list[int] = []
    for piece in pieces:
        if isinstance(piece, InlinePiece):
            found += range(piece.range.base_offset, piece.range.base_offset + piece.range.rows)
            continue
        for each in piece.ranges:
            if each.by_column:
                column = (columns or {})[piece.file.path][each.first_row : each.first_row + each.rows]
                found += [offset for offset in column if piece.start <= offset < piece.end]
            else:
                found += range(each.base_offset, each.base_offset + each.rows)
    return found


# -- Kafka's cases ----------------------------------------------------------------------------------------------------

D, C, A = "data", "commit", "abort"
Step = tuple[str, int, int]


def chain_of(*steps: Step) -> list[CommitRecord]:
    """Return batches from (kind, producer, base offset), one row or marker each; offsets may jump, as after
    compaction."""
    records = []
    for kind, producer_id, base in steps:
        chain = Chain()
        chain.append(kind, producer_id, [1] if kind == D else ())  # type: ignore[arg-type]
        records.append(msgspec.structs.replace(chain.records[0], base_offset=base))
    return records


def rows(producer_id: int, *offsets: int) -> list[Step]:
    return [(D, producer_id, offset) for offset in offsets]


def filled(steps: Sequence[Step], end: int) -> list[CommitRecord]:
    """Return the steps with plain control batches in the holes of compaction: the plan needs a chain without holes."""
    at = {base: (kind, producer_id, base) for kind, producer_id, base in steps}
    return chain_of(*(at.get(base, ("expire", -1, base)) for base in range(end)))


CASES = [
    pytest.param([*rows(1, 0, 1), (A, 1, 2)], 0, 3, [(1, 0, 2)], [], id="113 all aborted"),
    pytest.param([*rows(1, 0, 1), (C, 1, 2)], 0, 3, [], [0, 1], id="114 committed"),
    pytest.param(
        [*rows(1, 0, 1), *rows(2, 2), (C, 1, 3), *rows(2, 4), (A, 2, 5), *rows(1, 6), *rows(2, 7), *rows(1, 8), (A, 1, 9), (C, 2, 10)],
        0, 11, [(2, 2, 5), (1, 6, 9)], [0, 1, 7],
        id="115 interleaved: a producer leaves the aborted set at its marker",
    ),
    pytest.param([*rows(1, 0), (A, 1, 1), (A, 1, 2), *rows(1, 3), (C, 1, 4)], 0, 5, [(1, 0, 1)], [3], id="116 two ABORT markers"),
    pytest.param([(A, 1, 5), *rows(1, 6, 7, 8), (C, 1, 9)], 0, 10, [(1, 0, 5)], [6, 7, 8], id="117 marker whose data is compacted"),
    pytest.param(
        [*rows(3, 3, 4), *rows(2, 15, 16, 17), *rows(1, 22, 23), (A, 2, 28), *rows(3, 30, 31, 32), (C, 3, 35), *rows(1, 39, 40)],
        0, 41, [(2, 6, 28), (1, 0, 45)], [3, 4, 30, 31, 32],
        id="118 list begins below the log, marker beyond the response",
    ),
    pytest.param([*rows(1, 0, 1), (A, 1, 2), *rows(2, 3)], 0, 4, [], [0, 1, 3], id="119 read_uncommitted: no list, never markers"),
    pytest.param([*rows(1, 54)], 37, 55, [], [54], id="120 holes are nothing"),
    pytest.param([("expire", -1, 0), ("log_start", -1, 1), *rows(1, 2)], 0, 3, [(1, 0, 1)], [2], id="120 other control batches end nothing"),
    pytest.param([*rows(1, 0), (A, 1, 1), *rows(1, 2)], 1, 3, [(1, 0, 1)], [2], id="121 from the marker, listed"),
    pytest.param([*rows(1, 0), (A, 1, 1), *rows(1, 2)], 1, 3, [], [2], id="121 from the marker, not listed"),
    pytest.param([*rows(2, 0), *rows(1, 1, 2), *rows(2, 3), (C, 2, 4)], 0, 1, [], [0], id="122 undecided: up to the LSO"),
    pytest.param([*rows(2, 0), *rows(1, 1, 2), *rows(2, 3), (C, 2, 4)], 0, 5, [], [0, 1, 2, 3], id="122 undecided: read_uncommitted"),
    pytest.param([*rows(2, 0), *rows(1, 1, 2), *rows(2, 3), (A, 1, 4), (C, 2, 5)], 0, 6, [(1, 1, 4)], [0, 3], id="123 aborted meanwhile"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "start", "end", "hidden", "expected"), CASES)
@pytest.mark.parametrize("sealed", [False, True])
def test_kafka(
    steps: list[Step], start: int, end: int, hidden: list[tuple[int, int, int]], expected: list[int], sealed: bool
) -> None:
    records = filled(steps, max(base for _, _, base in steps) + 1)
    plan = plan_fetch(
        tp=TP,
        indexes=[index_of(records)] if sealed else [],
        tail=[] if sealed else tail_of(records),
        aborted=aborted(*reversed(hidden)),
        start=start,
        end=end,
    )
    assert offsets_of(plan) == expected


def test_lso_and_the_aborted_ranges_of_a_worked_log() -> None:
    chain = Chain()
    for producer_id, count in ((1, 5), (None, 3), (2, 2), (1, 4), (None, 2), (1, 10)):
        chain.append("data", producer_id or 9, [count], transactional=producer_id is not None)
    assert (chain.lso, chain.end) == (0, 26)
    chain.append("commit", 1)
    assert chain.lso == 8
    chain.append("abort", 2)
    assert chain.lso == 28
    plan = plan_fetch(tp=TP, indexes=[], tail=tail_of(chain.records), aborted=chain.aborted, start=0, end=chain.lso)
    assert offsets_of(plan) == [*range(8), *range(10, 26)]


# -- pieces -----------------------------------------------------------------------------------------------------------


def build(*batches: tuple[str, int, list[int], bool]) -> Chain:
    chain = Chain()
    for kind, producer_id, counts, inline in batches:
        chain.append(kind, producer_id, counts, inline=inline)  # type: ignore[arg-type]
    return chain


def shape(pieces: Iterable[Piece]) -> list[tuple[str, list[tuple[int, int, int]]]]:
    """Return (last letters of the file or payload, [(first_row, rows, base_offset)])."""
    found = []
    for piece in pieces:
        if isinstance(piece, InlinePiece):
            found.append((piece.payload.decode(), [(piece.range.first_row, piece.range.rows, piece.range.base_offset)]))
        else:
            found.append((piece.file.path[-18:-8], [(r.first_row, r.rows, r.base_offset) for r in piece.ranges]))
    return found


class TestPieces:
    CHAIN = build((D, 1, [3, 4], False), (D, 2, [5], True), (C, 1, [2], False), (D, 2, [2], True), (A, 2, [], False))

    def plan(self, start: int, end: int, *, sealed: bool, hidden: Iterable[AbortedTxn] = ()) -> tuple[Piece, ...]:
        records = self.CHAIN.records
        return plan_fetch(
            tp=TP,
            indexes=[index_of(records)] if sealed else [],
            tail=tail_of(records),
            aborted=hidden,
            start=start,
            end=end,
        )

    def test_tail(self) -> None:
        plan = self.plan(0, 17, sealed=False)
        assert shape(plan) == [
            ("0000000000", [(0, 3, 0)]),
            ("0000000001", [(0, 4, 3)]),
            ("rows of 7", [(0, 5, 7)]),
            ("0000000c00", [(0, 2, 12)]),
            ("rows of 14", [(0, 2, 14)]),
        ]
        assert [piece.topic_partition for piece in plan] == [TP] * 5

    def test_sealed(self) -> None:
        plan = self.plan(0, 17, sealed=True)
        assert shape(plan) == [
            ("0000000000", [(0, 3, 0)]),
            ("0000000001", [(0, 4, 3)]),
            ("0-abcdef12", [(0, 5, 7)]),
            ("0000000c00", [(0, 2, 12)]),
            ("0-abcdef12", [(5, 2, 14)]),
        ]
        assert [piece.offset_column for piece in plan if isinstance(piece, FilePiece)] == [
            False,
            False,
            True,
            False,
            True,
        ]

    @pytest.mark.parametrize("sealed", [False, True])
    @pytest.mark.parametrize(
        ("start", "end", "ranges"),
        [
            (0, 1, [(0, 1, 0)]),
            (2, 3, [(2, 1, 2)]),
            (2, 4, [(2, 1, 2), (0, 1, 3)]),
            (3, 4, [(0, 1, 3)]),
            (4, 6, [(1, 2, 4)]),
            (6, 9, [(3, 1, 6), (0, 2, 7)]),
            (11, 13, [(4, 1, 11), (0, 1, 12)]),
        ],
    )
    def test_first_and_last_batch_are_trimmed(
        self, start: int, end: int, ranges: list[tuple[int, int, int]], sealed: bool
    ) -> None:
        assert [each for _, of_piece in shape(self.plan(start, end, sealed=sealed)) for each in of_piece] == ranges

    @pytest.mark.parametrize("sealed", [False, True])
    @pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (9, 3), (16, 17), (17, 17)])
    def test_nothing_to_read(self, start: int, end: int, sealed: bool) -> None:
        assert self.plan(start, end, sealed=sealed) == ()

    @pytest.mark.parametrize("sealed", [False, True])
    def test_a_file_of_an_aborted_batch_is_never_opened(self, sealed: bool) -> None:
        plan = self.plan(0, 17, sealed=sealed, hidden=aborted((1, 0, 11)))
        assert not [name for name, _ in shape(plan) if name in {"0000000000", "0000000001"}]
        assert offsets_of(plan) == list(range(7, 16))

    @pytest.mark.parametrize("sealed", [False, True])
    def test_rows_of_a_commit_are_never_hidden(self, sealed: bool) -> None:
        # Even if a damaged list named them: these rows exist because the transaction committed.
        assert 12 in offsets_of(self.plan(0, 17, sealed=sealed, hidden=aborted((1, 0, 16))))

    def test_schema_ids_are_the_files_own(self) -> None:
        chain = build((D, 1, [1], False), (D, 1, [1], True))
        records = [msgspec.structs.replace(record, schema_id=4 + number) for number, record in enumerate(chain.records)]
        for indexes in ([], [index_of(records)]):
            plan = plan_fetch(tp=TP, indexes=indexes, tail=tail_of(records), aborted=(), start=0, end=2)
            assert [piece.schema_id for piece in plan] == [4, 5]

    def test_neighbouring_ranges_join_only_if_offsets_and_timestamps_go_on(self) -> None:
        chain = Chain()
        for producer_id, later_ms in ((1, 1), (1, 0), (2, 0), (1, 0), (1, 1)):
            chain.append("data", producer_id, [2], inline=True, later_ms=later_ms)
        index = index_of(chain.records)
        plan = plan_fetch(tp=TP, indexes=[index], tail=[], aborted=aborted((2, 4, 99)), start=0, end=10)
        (piece,) = plan
        assert isinstance(piece, FilePiece)
        assert piece.ranges == (
            RowRange(first_row=0, rows=4, base_offset=0, timestamp=1001),
            RowRange(first_row=6, rows=2, base_offset=6, timestamp=1001),
            RowRange(first_row=8, rows=2, base_offset=8, timestamp=1002),
        )


class TestHoles:
    CHAIN = build(*[(D, 1, [2], False)] * 4)

    @pytest.mark.parametrize(
        ("indexed", "tail", "message"),
        [
            ([], [], "finds nothing at offset 0"),
            ([], [1, 2, 3], "finds nothing at offset 0; the next batch begins at 2"),
            ([], [0, 2, 3], "finds nothing at offset 2; the next batch begins at 4"),
            ([], [0, 1, 2], "finds nothing at offset 6"),
            ([[0], [2]], [], "finds nothing at offset 2; the next batch begins at 4"),
            ([[0]], [2, 3], "finds nothing at offset 2; the next batch begins at 4"),
            ([[0, 1]], [2], "finds nothing at offset 6"),
        ],
    )
    def test_a_hole_is_an_error(self, indexed: list[list[int]], tail: list[int], message: str) -> None:
        records = self.CHAIN.records
        bounds = [(records[numbers[0]].base_offset, [records[number] for number in numbers]) for numbers in indexed]
        indexes = [
            index_of([msgspec.structs.replace(record, segment_base=base) for record in listed])
            for base, listed in bounds
        ]
        with pytest.raises(CorruptLogError, match=message):
            plan_fetch(tp=TP, indexes=indexes, tail=tail_of(records[n] for n in tail), aborted=(), start=0, end=8)

    def test_outside_of_the_range_there_may_be_holes(self) -> None:
        records = self.CHAIN.records
        plan = plan_fetch(tp=TP, indexes=[], tail=tail_of([records[1], records[3]]), aborted=(), start=3, end=4)
        assert offsets_of(plan) == [3]

    def test_internal_topics_cannot_be_read(self) -> None:
        entry = OffsetEntry(group="g", topic="t", partition=0, value=None)
        record = msgspec.structs.replace(self.CHAIN.records[0], files=(), entries=(entry, entry))
        index, _ = build_index(TP, [record], "", None)
        for indexes in ([], [index]):
            with pytest.raises(CorruptLogError, match="an internal topic cannot be read"):
                plan_fetch(tp=TP, indexes=indexes, tail=tail_of([record]), aborted=(), start=0, end=2)

    def test_a_record_that_contradicts_itself_is_refused(self) -> None:
        record = msgspec.structs.replace(self.CHAIN.records[0], records=3)
        with pytest.raises(CorruptLogError, match="has 3 rows, and what it names holds 2"):
            plan_fetch(tp=TP, indexes=[], tail=tail_of([record]), aborted=(), start=0, end=3)


@pytest.mark.parametrize(
    ("producer_id", "offset", "kind", "hidden"),
    [
        (1, 9, D, False),
        (1, 10, D, True),
        (1, 20, D, True),
        (1, 21, D, False),
        (1, 30, D, True),
        (2, 10, D, False),
        (1, 10, C, False),
    ],
)
def test_aborted_ranges(producer_id: int, offset: int, kind: str, hidden: bool) -> None:
    assert AbortedRanges(aborted((1, 30, 40), (1, 10, 20), (3, 0, 99))).hides(producer_id, offset, kind) == hidden


# -- against the model ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@given(chain=chains(), data=st.data())
def test_any_plan_returns_what_the_model_does(isolation: str, chain: Chain, data: st.DataObject) -> None:
    """Seal the first segments, keep the rest as tail, and read a slice at both levels: offsets, places and timestamps
    agree."""
    segments = chain.segments()
    sealed = data.draw(st.integers(0, len(segments)))
    indexes = [index_of(records) for records in segments[:sealed]]
    # A tail may still contain records that were sealed meanwhile.
    overlap = data.draw(st.integers(0, sealed))
    tail = tail_of(record for records in segments[overlap:] for record in records)
    bound = chain.lso if isolation == "read_committed" else chain.end
    start = data.draw(st.integers(0, chain.end))
    end = data.draw(st.integers(0, bound))
    plan = plan_fetch(
        tp=TP,
        indexes=indexes,
        tail=tail,
        aborted=chain.aborted if isolation == "read_committed" else (),
        start=start,
        end=end,
    )
    expected = chain.visible(start, end, isolation)
    assert offsets_of(plan) == [row.offset for row in expected]

    sealed_rows = {
        (file.path, number): offset
        for records in segments[:sealed]
        if (file := inline_file_of(records)) is not None
        for number, offset in enumerate(
            offset
            for record in records
            if record.payload_bytes
            for offset in range(record.base_offset, record.end_offset)
        )
    }
    by_offset = {row.offset: row for row in expected}
    for place, offset, timestamp in placed(plan):
        row = by_offset[offset]
        assert timestamp == row.timestamp
        assert place == row.place or sealed_rows[place] == offset
    for piece in plan:
        if isinstance(piece, FilePiece):
            ends = [each.first_row + each.rows for each in piece.ranges]
            assert all(end <= after.first_row for end, after in zip(ends, piece.ranges[1:], strict=False))
            assert ends[-1] <= piece.file.rows


def placed(pieces: Iterable[Piece]) -> list[tuple[tuple[str, int], int, int]]:
    found = []
    for piece in pieces:
        ranges = (piece.range,) if isinstance(piece, InlinePiece) else piece.ranges
        for each in ranges:
            for number in range(each.rows):
                row, offset = each.first_row + number, each.base_offset + number
                place = ("inline", offset) if isinstance(piece, InlinePiece) else (piece.file.path, row)
                if isinstance(piece, InlinePiece):
                    assert piece.payload == payload_of(offset - row)
                found.append((place, offset, each.timestamp))
    return found


def cleaned_run(
    base: int, end: int, kept: list[Row], entry_sizes: Sequence[int], file_rows: int
) -> tuple[SegmentIndex, dict[str, list[int]]]:
    """Return a run as a cleaner would write it: rows in files of `file_rows`, entries that cover `entry_sizes` rows
    each."""
    columns: dict[str, list[int]] = {}
    files = []
    for number, first in enumerate(range(0, len(kept), file_rows)):
        part = kept[first : first + file_rows]
        path = f"{TP.partition}/{SegmentName(base, end, 1, f'{number:08x}').parquet}"
        columns[path] = [row.offset for row in part]
        plain = data_file(path, len(part))
        files.append(
            IndexedFile(
                **{name: getattr(plain, name) for name in plain.__struct_fields__}, schema_id=0, offset_column=True
            )
        )
    entries = []
    at = 0
    for size in entry_sizes:
        size = min(size, len(kept) - at)
        if size <= 0:
            break
        entries.append(
            IndexEntry(
                base_offset=kept[at].offset,
                records=size,
                kind="data",
                producer_id=kept[at].producer_id,
                producer_epoch=0,
                base_sequence=-1,
                transactional=True,
                timestamp=kept[at + size - 1].timestamp,
                file=at // file_rows,
                first_row=at % file_rows,
            )
        )
        at += size
    index = SegmentIndex(
        partition=str(TP),
        base_offset=base,
        end_offset=end,
        generation=1,
        files=tuple(files),
        entries=tuple(entries),
        aborted_txns=0,
        last_digest="",
    )
    return index, columns


@given(chain=chains(), data=st.data())
def test_cleaned_runs_return_the_same_committed_rows(chain: Chain, data: st.DataObject) -> None:
    """Merge neighbouring segments below the LSO at random and compact some rows away: each row that is left is read
    once."""
    segments = chain.segments()
    below = [records for records in segments if records[-1].end_offset <= chain.lso]
    indexes: list[SegmentIndex] = []
    columns: dict[str, list[int]] = {}
    gone: set[int] = set()
    at = 0
    while at < len(segments):
        merged = data.draw(st.integers(0, len(below) - at)) if at < len(below) else 0
        if not merged:
            indexes.append(index_of(segments[at]))
            at += 1
            continue
        base, end = segments[at][0].base_offset, segments[at + merged - 1][-1].end_offset
        compacted = data.draw(st.sets(st.integers(base, end - 1), max_size=3))
        kept = [
            row for row in chain.rows if base <= row.offset < end and not row.aborted and row.offset not in compacted
        ]
        index, found = cleaned_run(
            base,
            end,
            kept,
            data.draw(st.lists(st.integers(1, 9), min_size=len(kept), max_size=len(kept))),
            data.draw(st.integers(1, 8)),
        )
        name = SegmentName(base, end, 1, "abcdef12")
        check_index(index, name, TP.folder + name.index)
        indexes.append(index)
        columns |= found
        gone |= compacted
        at += merged
    start = data.draw(st.integers(0, chain.end))
    end = data.draw(st.integers(0, chain.lso))
    containing = [index for index in indexes if index.end_offset > start]
    plan = plan_fetch(tp=TP, indexes=containing, tail=[], aborted=chain.aborted, start=start, end=end)
    expected = [row.offset for row in chain.visible(start, end, "read_committed")]
    found_offsets = offsets_of(plan, columns)
    assert [offset for offset in found_offsets if offset not in gone] == [o for o in expected if o not in gone]
    assert set(found_offsets) <= set(expected)


def test_rows_of_a_run_are_read_by_column_and_neighbours_join() -> None:
    chain = build(*[(D, 1, [2], False)] * 3)
    index, columns = cleaned_run(0, 10, [chain.rows[n] for n in (0, 2, 3, 5)], [1, 2, 1], 3)
    plan = plan_fetch(tp=TP, indexes=[index], tail=[], aborted=aborted((1, 0, 9)), start=2, end=10)
    assert [piece.ranges for piece in plan if isinstance(piece, FilePiece)] == [
        (RowRange(first_row=1, rows=2, base_offset=BY_COLUMN, timestamp=BY_COLUMN),),
        (RowRange(first_row=0, rows=1, base_offset=BY_COLUMN, timestamp=BY_COLUMN),),
    ]
    assert offsets_of(plan, columns) == [2, 3, 5]
    assert [(piece.start, piece.end) for piece in plan if isinstance(piece, FilePiece)] == [(2, 10), (2, 10)]


def test_entries_of_a_run_beyond_the_end_are_not_read() -> None:
    chain = build(*[(D, 1, [2], False)] * 3)
    index, columns = cleaned_run(0, 10, chain.rows, [2, 2, 2], 6)
    (piece,) = plan_fetch(tp=TP, indexes=[index], tail=[], aborted=(), start=3, end=4)
    assert isinstance(piece, FilePiece)
    assert [(each.first_row, each.rows) for each in piece.ranges] == [(2, 2)]
    assert offsets_of([piece], columns) == [3]


def test_rows_of_a_file_in_another_order_than_offsets_are_read_in_the_order_of_offsets() -> None:
    index = index_of(build((D, 1, [2], True), (D, 1, [2], True)).records)
    first, second = index.entries
    swapped = (msgspec.structs.replace(first, first_row=2), msgspec.structs.replace(second, first_row=0))
    plan = plan_fetch(
        tp=TP, indexes=[msgspec.structs.replace(index, entries=swapped)], tail=[], aborted=(), start=0, end=4
    )
    assert shape(plan) == [("0-abcdef12", [(2, 2, 0)]), ("0-abcdef12", [(0, 2, 2)])]
