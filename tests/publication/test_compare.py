"""What changes in the tables: a partition with many files and many hidden batches takes linear time."""

from __future__ import annotations

from typing import Any

import pytest

from txlog.core import publication as deciding
from txlog.core.publication import ShownFile, ShownPartition, Span, Tables, compare, fold, unclear_files
from txlog.core.records import DataFile, Publication
from txlog.core.records.publications import OffsetRun, PublishedPartition, RowRun

SPANS = 500


def _tables(*hidden: tuple[int, int]) -> Tables:
    partition = PublishedPartition(end_offset=1_000_000, hidden=tuple(OffsetRun(*run) for run in hidden))
    publication = Publication(
        number=0,
        topic="orders",
        topic_id="0" * 32,
        topic_version=0,
        formats={"delta": 0},
        operation="append",
        partitions=(partition,),
        cut_at=0,
        whole=True,
        created_at=0,
        write_id="0" * 32,
        previous="0" * 64,
    )
    return fold(None, publication, "0" * 64)


def _shown(*spans: Span, log_start_offset: int = 0) -> list[ShownPartition]:
    rows = sum(span.rows for span in spans)
    file = DataFile(path="a", rows=rows, bytes=1, digest=None, footer_digest="0" * 64, row_groups=(rows,))
    shown = ShownFile(partition=0, file=file, schema_id=0, spans=spans, batch=None)
    cut = PublishedPartition(end_offset=1_000_000)
    return [ShownPartition(log_start_offset=log_start_offset, cut=cut, files=(shown,))]


def test_the_edges_of_a_partition_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    edges = deciding._edges

    def counted(*args: Any) -> list[int]:
        asked.append(1)
        return edges(*args)

    monkeypatch.setattr(deciding, "_edges", counted)
    spans = [
        Span(first_row=2 * n, rows=2, first_offset=10 * n, end_offset=10 * n + 9, is_exact=False) for n in range(SPANS)
    ]
    partitions = _shown(*spans)
    assert unclear_files(_tables((900_000, 900_001)), partitions) == []
    assert asked == [1]
    compare(_tables(), partitions, {})
    assert asked == [1, 1]


def test_rows_in_any_order_are_told_apart_by_their_offsets() -> None:
    partitions = _shown(Span(first_row=0, rows=6, first_offset=2, end_offset=50, is_exact=False), log_start_offset=5)
    tables = _tables((10, 20))
    assert [each.file.path for each in unclear_files(tables, partitions)] == ["a"]
    changes = compare(tables, partitions, {"a": [12, 2, 7, 30, 10, 19]})
    assert [copy.rows for copy in changes.copies] == [(RowRun(0, 1), RowRun(4, 6))]
    # Rows 0, 4 and 5 are new, and row 1 lies below the log start.
    assert [file.removed for file in changes.replaced] == [(RowRun(0, 2), RowRun(4, 6))]
