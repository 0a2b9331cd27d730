"""Packing: no row is lost, duplicated or moved; little data gets few tasks, and much data gets many."""

from __future__ import annotations

from hypothesis import given, strategies as st

from txlog.client.reading import piece_rows
from txlog.client.tables import packing
from txlog.core.fetch_plan import BY_COLUMN, FilePiece, InlinePiece, Piece, RowRange
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile

TP = TopicPartition("orders", 0)
MIB = 2**20


def file_piece(
    number: int, row_groups: list[int], *, size: int, ranges: list[tuple[int, int]] | None = None
) -> FilePiece:
    rows = sum(row_groups)
    file = DataFile(
        path=f"0/rows/{number}-0-00000000.parquet",
        rows=rows,
        bytes=size,
        digest=None,
        footer_digest="",
        row_groups=tuple(row_groups),
    )
    return FilePiece(
        topic_partition=TP,
        file=file,
        schema_id=0,
        ranges=tuple(
            RowRange(first_row=first, rows=count, base_offset=number * 10**6 + first, timestamp=1)
            for first, count in (ranges or [(0, rows)])
        ),
        offset_column=False,
        start=0,
        end=10**9,
    )


def inline_piece(number: int, rows: int, size: int = 100) -> InlinePiece:
    row_range = RowRange(first_row=0, rows=rows, base_offset=number * 10**6, timestamp=1)
    return InlinePiece(topic_partition=TP, payload=b"x" * size, schema_id=0, range=row_range, rows=rows)


def offsets(pieces: list[Piece]) -> list[int]:
    ranges = [part for piece in pieces for part in ([piece.range] if isinstance(piece, InlinePiece) else piece.ranges)]
    return [part.base_offset + at for part in ranges for at in range(part.rows)]


def test_nothing_to_read_needs_no_task() -> None:
    assert packing.pack([]) == []
    assert packing.pack([], 10) == []


def test_many_small_batches_share_a_task() -> None:
    pieces = [inline_piece(number, 10) for number in range(500)]
    assert packing.pack(pieces) == [tuple(pieces)]


def test_min_partitions_splits_what_would_share_a_task() -> None:
    pieces = [inline_piece(number, 10) for number in range(500)]
    packed = packing.pack(pieces, 7)
    assert len(packed) == 7
    assert [len(run) for run in packed] == [71, 72, 71, 72, 71, 72, 71]


def test_min_partitions_cuts_a_single_batch_by_rows() -> None:
    packed = packing.pack([inline_piece(0, 10)], 4)
    assert [piece_rows(run[:1]) for run in packed] == [2, 3, 2, 3]
    assert [piece_rows(run[:1]) for run in packing.pack([inline_piece(0, 3)], 10)] == [1, 1, 1]


def test_a_large_file_is_cut_at_its_row_groups() -> None:
    piece = file_piece(0, [1000] * 32, size=64 * MIB)
    packed = packing.pack([piece])
    assert len(packed) == 8
    assert all(part.ranges[0].first_row % 1000 == 0 for run in packed for part in run if isinstance(part, FilePiece))
    assert offsets([part for run in packed for part in run]) == list(range(32_000))


def test_much_data_makes_tasks_larger_before_it_makes_more() -> None:
    pieces = [file_piece(number, [1000] * 8, size=128 * MIB) for number in range(128)]
    assert len(packing.pack(pieces)) == 256
    pieces = [file_piece(number, [1000] * 8, size=1024 * MIB) for number in range(512)]
    assert 4096 <= len(packing.pack(pieces)) <= 4200


def test_rows_found_by_column_stay_so() -> None:
    row_range = RowRange(first_row=5, rows=10, base_offset=BY_COLUMN, timestamp=BY_COLUMN)
    piece = file_piece(0, [100], size=10)
    by_column = FilePiece(
        topic_partition=TP, file=piece.file, schema_id=0, ranges=(row_range,), offset_column=True, start=3, end=90
    )
    packed = packing.pack([by_column], 2)
    assert [part.ranges[0] for run in packed for part in run if isinstance(part, FilePiece)] == [
        RowRange(first_row=5, rows=5, base_offset=BY_COLUMN, timestamp=BY_COLUMN),
        RowRange(first_row=10, rows=5, base_offset=BY_COLUMN, timestamp=BY_COLUMN),
    ]


@st.composite
def some_pieces(draw: st.DrawFn) -> list[Piece]:
    pieces: list[Piece] = []
    for number in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            pieces.append(inline_piece(number, draw(st.integers(1, 20)), draw(st.integers(0, 2000))))
            continue
        groups = draw(st.lists(st.integers(1, 30), min_size=1, max_size=6))
        starts = sorted(draw(st.sets(st.integers(0, sum(groups) - 1), min_size=1, max_size=4)))
        ranges = [
            (first, draw(st.integers(1, end - first)))
            for first, end in zip(starts, [*starts[1:], sum(groups)], strict=True)
        ]
        pieces.append(file_piece(number, groups, size=draw(st.integers(1, 60 * MIB)), ranges=ranges))
    return pieces


@given(pieces=some_pieces(), min_partitions=st.none() | st.integers(1, 40))
def test_every_row_once_in_order_and_no_empty_task(pieces: list[Piece], min_partitions: int | None) -> None:
    packed = packing.pack(pieces, min_partitions)
    assert all(run and all(piece_rows([piece]) for piece in run) for run in packed)
    assert offsets([piece for run in packed for piece in run]) == offsets(pieces)
    assert len(packed) >= min(min_partitions or 1, len(offsets(pieces)))
