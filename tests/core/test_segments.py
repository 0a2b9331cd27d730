"""What does sealing write? Entries, files, look-ups; a damaged index is refused with its name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.core.chains import TP, Chain, chains, data_file, inline_file_of
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import (
    AbortedTxn,
    CommitRecord,
    IndexedFile,
    IndexEntry,
    OffsetEntry,
    SegmentIndex,
)
from txlog.core.segments import (
    build_index,
    check_index,
    check_rows,
    check_txn_index,
    first_at_or_after_timestamp,
    floor_entry,
)
from txlog.errors import CorruptLogError, CorruptRecordError

change = msgspec.structs.replace


def name_of(index: SegmentIndex) -> SegmentName:
    return SegmentName(index.base_offset, index.end_offset, index.generation, "abcdef12" if index.generation else "")


def check(index: SegmentIndex) -> None:
    check_index(index, name_of(index), TP.folder + name_of(index).index)


def mixed() -> Chain:
    """Return files, inline rows, markers with and without rows, in one segment that begins at offset 5."""
    chain = Chain()
    chain.append("data", 1, [5])
    chain.append("data", 1, [2, 3], roll=True)  # 5..9
    chain.append("data", 2, [4], inline=True)  # 10..13
    chain.append("abort", 1)  # 14
    chain.append("commit", 3, [6, 1])  # 15..21: staged rows
    chain.append("data", 2, [2], inline=True)  # 22..23
    chain.append("commit", 2)  # 24
    chain.append("log_start", transactional=False)  # 25
    return chain


class TestBuildIndex:
    def test_worked_example(self) -> None:
        chain = mixed()
        records = chain.segments()[1]
        inline = inline_file_of(records)
        index, txn_index = build_index(TP, records, "last", inline)
        assert (index.base_offset, index.end_offset, index.generation, index.last_digest) == (5, 26, 0, "last")
        assert [(e.base_offset, e.records, e.kind, e.file, e.first_row) for e in index.entries] == [
            (5, 5, "data", 0, 0),
            (10, 4, "data", 4, 0),
            (14, 0, "abort", None, 0),
            (15, 7, "commit", 2, 0),
            (22, 2, "data", 4, 4),
            (24, 0, "commit", None, 0),
            (25, 0, "log_start", None, 0),
        ]
        assert [(f.rows, f.offset_column) for f in index.files] == [
            (2, False),
            (3, False),
            (6, False),
            (1, False),
            (6, True),
        ]
        assert inline is not None
        assert index.files[4].path == inline.path
        assert txn_index is not None
        assert txn_index.aborted == (AbortedTxn(producer_id=1, first_offset=0, last_offset=14, last_stable_offset=10),)
        assert index.aborted_txns == 1
        check(index)

    def test_an_internal_segment_has_entries_and_no_files(self) -> None:
        entry = OffsetEntry(group="g", topic="t", partition=0, value=None)
        record = CommitRecord(
            base_offset=0,
            records=2,
            kind="data",
            timestamp=0,
            segment_base=0,
            entries=(entry, entry),
            write_id="",
            previous="",
        )
        tp = TopicPartition("__consumer_offsets", 0)
        index, txn_index = build_index(tp, [record], "x", None)
        assert (index.files, index.entries[0].file, index.entries[0].records, txn_index) == ((), None, 2, None)
        check_index(index, SegmentName(0, 2, 0), "__consumer_offsets/0/x.index")
        with pytest.raises(CorruptRecordError, match="entry 0 has 2 rows and names no file"):
            check_index(change(index, partition="orders-0"), SegmentName(0, 2, 0), "orders/0/x.index")

    def test_the_inline_file_has_the_newest_schema_of_its_rows(self) -> None:
        chain = Chain()
        for schema_id in (3, 7, 7):
            chain.append("data", 1, [2], inline=True)
            chain.records[-1] = change(chain.records[-1], schema_id=schema_id)
        index, _ = build_index(TP, chain.records, "d" * 64, inline_file_of(chain.records))
        assert [file.schema_id for file in index.files] == [7]

    def test_files_keep_the_schema_they_were_written_in(self) -> None:
        chain = Chain()
        for schema_id in (3, 7):
            chain.append("data", 1, [2, 1])
            chain.records[-1] = change(chain.records[-1], schema_id=schema_id)
        index, _ = build_index(TP, chain.records, "d" * 64, None)
        assert [file.schema_id for file in index.files] == [3, 3, 7, 7]

    def test_what_is_no_segment_is_refused(self) -> None:
        records = mixed().segments()[1]
        inline = inline_file_of(records)
        with pytest.raises(CorruptLogError, match="cannot be empty"):
            build_index(TP, [], "d" * 64, None)
        with pytest.raises(CorruptLogError, match="where offset 10 was expected"):
            build_index(TP, [records[0], *records[2:]], "d" * 64, data_file("3/x", 2))
        with pytest.raises(CorruptLogError, match="in segment 5 where offset 10 was expected"):
            build_index(TP, records[1:], "d" * 64, inline)
        with pytest.raises(CorruptLogError, match="6 rows rode inline, and the file for them is none"):
            build_index(TP, records, "d" * 64, None)
        with pytest.raises(CorruptLogError, match="6 rows rode inline, and the file for them is 3/x with 5"):
            build_index(TP, records, "d" * 64, data_file("3/x", 5))
        with pytest.raises(CorruptLogError, match="0 rows rode inline, and the file for them is 3/x with 5"):
            build_index(TP, records[:1], "d" * 64, data_file("3/x", 5))

    @given(chains())
    def test_any_segment_passes_its_own_check(self, chain: Chain) -> None:
        for number, records in enumerate(chain.segments()):
            index, txn_index = build_index(TP, records, "d" * 64, inline_file_of(records))
            check(index)
            aborted = [t for t in chain.aborted if index.base_offset <= t.last_offset < index.end_offset]
            assert list(txn_index.aborted if txn_index else ()) == aborted
            if txn_index is not None:
                check_txn_index(txn_index, name_of(index), TP.folder, expected=index.aborted_txns)
            assert sum(entry.records for entry in index.entries) == sum(file.rows for file in index.files)
            assert number == 0 or records[0].segment_base == index.base_offset


class TestCheckRows:
    RECORD = mixed().records[1]
    INLINE = mixed().records[2]
    ENTRY = OffsetEntry(group="g", topic="t", partition=0, value=None)

    def test_right_ones(self) -> None:
        for record in mixed().records:
            check_rows(record, "x")
        check_rows(change(self.RECORD, files=(), entries=(self.ENTRY,) * 5), "x")
        check_rows(change(self.RECORD, kind="commit", files=(), entries=(self.ENTRY,) * 5), "x")

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            (change(RECORD, payload_bytes=1), "more than one place"),
            (change(RECORD, entries=(ENTRY,)), "more than one place"),
            (change(INLINE, entries=(ENTRY,)), "more than one place"),
            (change(RECORD, records=0, files=()), "says that it has no rows"),
            (change(RECORD, records=0), "says that it has no rows"),
            (change(RECORD, kind="abort", records=0), "says that it has no rows"),
            (change(RECORD, files=()), "cannot have 5 rows"),
            (change(RECORD, kind="abort"), "cannot have 5 rows"),
            (change(RECORD, kind="log_start"), "cannot have 5 rows"),
            (change(RECORD, records=4), "has 4 rows, and what it names holds 5"),
            (change(RECORD, files=(), entries=(ENTRY,)), "has 5 rows, and what it names holds 1"),
        ],
    )
    def test_wrong_ones_are_refused(self, record: CommitRecord, message: str) -> None:
        with pytest.raises(CorruptLogError, match=message) as caught:
            check_rows(record, "orders-3")
        assert str(caught.value).startswith("orders-3: the ")
        assert f"at offset {record.base_offset}" in str(caught.value)


class TestLookUp:
    INDEX, _ = build_index(TP, mixed().segments()[1], "d" * 64, inline_file_of(mixed().segments()[1]))

    @pytest.mark.parametrize(
        ("offset", "entry"),
        [(0, -1), (4, -1), (5, 0), (9, 0), (10, 1), (13, 1), (14, 2), (15, 3), (21, 3), (25, 6), (26, 6), (999, 6)],
    )
    def test_floor_of_an_offset(self, offset: int, entry: int) -> None:
        assert floor_entry(self.INDEX, offset) == entry

    @pytest.mark.parametrize(
        # Timestamps of the entries: 1002 … 1008. Control batches without rows contain nothing to find.
        ("timestamp", "entry"),
        [(0, 0), (1002, 0), (1003, 1), (1004, 3), (1005, 3), (1006, 4), (1007, None), (1009, None)],
    )
    def test_first_at_or_after_a_timestamp(self, timestamp: int, entry: int | None) -> None:
        assert first_at_or_after_timestamp(self.INDEX, timestamp) == entry

    @given(chains(), st.integers(0, 200), st.integers(990, 1100))
    def test_against_a_scan(self, chain: Chain, offset: int, timestamp: int) -> None:
        for records in chain.segments():
            index, _ = build_index(TP, records, "d" * 64, inline_file_of(records))
            below = [number for number, entry in enumerate(index.entries) if entry.base_offset <= offset]
            assert floor_entry(index, offset) == (below[-1] if below else -1)
            later = [n for n, entry in enumerate(index.entries) if entry.records and entry.timestamp >= timestamp]
            assert first_at_or_after_timestamp(index, timestamp) == (later[0] if later else None)


Damage = Callable[[SegmentIndex], SegmentIndex]


def entry_at(number: int, **changes: object) -> Damage:
    def damage(index: SegmentIndex) -> SegmentIndex:
        entries = list(index.entries)
        entries[number] = change(entries[number], **changes)
        return change(index, entries=tuple(entries))

    return damage


def file_at(number: int, **changes: object) -> Damage:
    def damage(index: SegmentIndex) -> SegmentIndex:
        files = list(index.files)
        files[number] = change(files[number], **changes)
        return change(index, files=tuple(files))

    return damage


class TestCheckIndex:
    INDEX = TestLookUp.INDEX
    PATH = TP.folder + SegmentName(5, 26, 0).index

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda i: change(i, base_offset=4), "holds segment 4 to 26"),
            (lambda i: change(i, end_offset=27), "holds segment 5 to 27"),
            (lambda i: change(i, generation=1), "of generation 1, and its name says 5 to 26 of generation 0"),
            (lambda i: change(i, entries=i.entries[:-1]), "the entries end at offset 25, the segment at 26"),
            (lambda i: change(i, entries=()), "the entries end at offset 5"),
            (lambda i: change(i, entries=i.entries[1:]), "entry 0 begins at offset 10, expected 5"),
            (lambda i: change(i, entries=(*i.entries, i.entries[-1])), "entry 7 begins at offset 25, expected 26"),
            (lambda i: change(i, last_stable_offset=27), "last stable offset 27, beyond the end at 26"),
            (entry_at(0, base_offset=4), "entry 0 begins at offset 4, expected 5"),
            (entry_at(1, base_offset=11), "entry 1 begins at offset 11, expected 10"),
            (entry_at(1, records=5), "entry 2 begins at offset 14, expected 15"),
            (entry_at(0, file=5), "entry 0 names file 5 of a table of 5"),
            (entry_at(0, file=-1), "entry 0 names file -1"),
            (entry_at(0, file=None), "entry 0 has 5 rows and names no file"),
            (entry_at(0, file=1), "in part"),
            (entry_at(0, first_row=1), "in part"),
            (entry_at(0, first_row=2), "begins at row 2 of a file of 2"),
            (entry_at(4, first_row=5), "names 1 rows more than its files hold"),
            (entry_at(4, first_row=6), "begins at row 6 of a file of 6"),
            (entry_at(4, first_row=1), r"entry 4 begins at row 1 of file 4, -3 rows from the end"),
            (entry_at(1, timestamp=1), "entry 1 has timestamp 1, the one before it 1002"),
            (lambda i: change(i, last_digest=""), "generation 0 with last_digest ''"),
            (lambda i: change(i, aborted_txns=9), "it announces 9 aborted transactions"),
            (file_at(4, offset_column=False), "in part|offset_column"),
            (file_at(0, offset_column=True), "`offset_column` of "),
            (file_at(0, sorted_by=(1,)), "a file has `sorted_by`, which only files of a run have"),
            (file_at(4, sorted_by=(1,)), "a file has `sorted_by`, which only files of a run have"),
            (entry_at(0, kind="abort"), "a batch of kind abort cannot have 5 rows"),
            (file_at(0, rows=3), "3 rows, and its row groups hold 2"),
            (file_at(0, rows=3, row_groups=(3,)), "in part"),
            (file_at(4, rows=5, row_groups=(5,)), "names 1 rows more than its files hold"),
            (file_at(0, path="4/rows/1-0-abcdef12.parquet"), "cannot belong to this partition"),
            (file_at(0, path="../../etc/passwd"), "cannot belong to this partition"),
        ],
    )
    def test_damage_is_refused_by_name(self, damage: Damage, message: str) -> None:
        with pytest.raises(CorruptRecordError, match=message) as caught:
            check_index(damage(self.INDEX), SegmentName(5, 26, 0), self.PATH)
        assert str(caught.value).startswith(self.PATH + ": ")

    @pytest.mark.parametrize("path", ["", "x.index", "orders/x.index", "orders/-1/x.index"])
    def test_a_path_outside_of_a_partition(self, path: str) -> None:
        with pytest.raises(CorruptRecordError):
            check_index(self.INDEX, SegmentName(5, 26, 0), path)


def run_index(*entries: tuple[int, int, int, int], rows: tuple[int, ...] = (4, 6)) -> SegmentIndex:
    """Return a cleaned run over [100, 200): entries (base_offset, records, file, first_row)."""
    name = SegmentName(100, 200, 1, "abcdef12")
    return SegmentIndex(
        partition=str(TP),
        base_offset=100,
        end_offset=200,
        generation=1,
        files=tuple(
            IndexedFile(
                path=f"{TP.partition}/{name.parquet}",
                rows=each,
                bytes=1,
                digest=None,
                footer_digest="",
                row_groups=(each,),
                schema_id=0,
                offset_column=True,
            )
            for each in rows
        ),
        entries=tuple(
            IndexEntry(
                base_offset=base,
                records=records,
                kind="data",
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                transactional=False,
                timestamp=0,
                file=file,
                first_row=first_row,
            )
            for base, records, file, first_row in entries
        ),
        aborted_txns=0,
        last_digest="",
    )


class TestCheckRun:
    def test_gaps_are_legal(self) -> None:
        check(run_index(rows=()))
        check(run_index((100, 4, 0, 0), (150, 6, 1, 0)))
        check(run_index((120, 10, 0, 0)))
        check(run_index((100, 2, 0, 0), (110, 7, 0, 2), (199, 1, 1, 5)))

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            (run_index((99, 4, 0, 0)), "entry 0 begins at offset 99, expected 100"),
            (run_index((100, 4, 0, 0), (103, 1, 1, 0)), "entry 1 begins at offset 103, expected 104"),
            (run_index((195, 6, 1, 0)), "the entries end at offset 201, the segment at 200"),
            (run_index((100, 3, 0, 0), (110, 7, 1, 0), rows=(4, 7)), r"entry 1 begins at row 0 of file 1, \+1 rows"),
            (run_index((100, 4, 0, 0), (110, 5, 1, 0)), "its files have 10 rows, and its entries do not take them all"),
            (run_index((100, 11, 0, 0)), "names 1 rows more than its files hold"),
        ],
    )
    def test_disorder_is_not(self, index: SegmentIndex, message: str) -> None:
        with pytest.raises(CorruptRecordError, match=message):
            check(index)
