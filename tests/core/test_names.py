"""Every name that is made parses back to its parts, and nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from txlog.core import names
from txlog.core.names import NumberedName, RowsFile, SegmentName, SegmentObject, TopicPartition
from txlog.errors import CorruptRecordError, InvalidTopicError

offsets = st.integers(0, names.MAX_OFFSET)
uniques = st.from_regex(r"[0-9a-f]{8,64}", fullmatch=True)
partitions = st.integers(0, 2**31 - 1)
topic_names = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
Z = "0" * 20
ONE = "0" * 19 + "1"


@st.composite
def segments(draw: st.DrawFn) -> SegmentName:
    base, end = sorted(draw(st.lists(offsets, min_size=2, max_size=2, unique=True)))
    number = draw(st.integers(0, 10**9 - 1))
    return SegmentName(base, end, number, draw(uniques) if number else "")


class TestTopics:
    @pytest.mark.parametrize("name", ["a", "A.b_c-9", "_one", ".hidden", "...", "0", "x" * 249])
    def test_valid(self, name: str) -> None:
        assert names.check_topic_name(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "é",
            "a\n",
            "x" * 250,
            "__x",
            "__transaction_state",
            "txlog.json",
            "a\0",
            "١",
            "a:b",
            None,
            7,
        ],
    )
    def test_refused(self, name: str) -> None:
        with pytest.raises(InvalidTopicError):
            names.check_topic_name(name)

    @given(topic_names)
    def test_pattern(self, name: str) -> None:
        assert names.is_topic_name(name)

    def test_internal_names_are_topics_too(self) -> None:
        assert all(names.is_topic_name(name) for name in names.INTERNAL_TOPICS)

    def test_topic_partition(self) -> None:
        tp = TopicPartition("orders", 7)
        assert (str(tp), tp.folder) == ("orders-7", "orders/7/")

    @given(topic_names, offsets)
    def test_metadata(self, topic: str, number: int) -> None:
        folder, _, name = names.topic_metadata_path(topic, number).rpartition("/")
        assert folder == topic
        assert names.parse_topic_metadata_name(name) == number
        # A LIST after `topic.` returns it, but no partition and no staged folder.
        assert name > "topic."

    @pytest.mark.parametrize(
        "name",
        ["topic.json", "topic.1.json", f"topic.{Z}.json.tmp", f"Topic.{Z}.json", "topic.99999999999999999999.json"],
    )
    def test_no_metadata(self, name: str) -> None:
        assert names.parse_topic_metadata_name(name) is None

    @given(partitions)
    def test_partition_folder(self, partition: int) -> None:
        folder = TopicPartition("t", partition).folder.removeprefix("t/")
        assert names.parse_partition_folder(folder) == partition
        assert folder < "topic."

    @pytest.mark.parametrize("name", ["", "/", "01/", "+1/", "-1/", "1", "1/2/", "staged/", "1 /", "٣/"])
    def test_no_partition_folder(self, name: str) -> None:
        assert names.parse_partition_folder(name) is None


class TestPartitionObjects:
    @given(offsets)
    def test_numbered(self, number: int) -> None:
        for kind, name in (
            ("batch", names.batch_name(number)),
            ("snapshot", names.snapshot_name(number)),
            ("boundary", names.boundary_name(number)),
            ("clean", names.clean_name(number)),
        ):
            assert names.parse_partition_object(name) == NumberedName(kind, number)
            assert NumberedName(kind, number).name == name

    @given(offsets, offsets)
    def test_byte_order_is_offset_order(self, one: int, other: int) -> None:
        assert (names.batch_name(one) < names.batch_name(other)) == (one < other)

    @given(segments())
    def test_segments(self, segment: SegmentName) -> None:
        assert names.parse_partition_object(segment.index) == SegmentObject(segment, "index")
        assert names.parse_partition_object(segment.txnindex) == SegmentObject(segment, "txnindex")

    @given(segments(), uniques)
    def test_segment_files_always_have_a_unique_name(self, segment: SegmentName, unique: str) -> None:
        named = SegmentName(segment.base_offset, segment.end_offset, segment.generation, unique)
        assert names.parse_partition_object(named.parquet) == SegmentObject(named, "parquet")

    def test_literals(self) -> None:
        assert names.batch_name(4096) == "00000000000000004096.batch"
        assert SegmentName(0, 4096, 0).index == f"{Z}-00000000000000004096-0.index"
        assert SegmentName(0, 4096, 3, "9f3aabcd").parquet == f"{Z}-00000000000000004096-3-9f3aabcd.parquet"

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "0.batch",
            f"{Z}.batch.tmp",
            f"{Z}.BATCH",
            f"{Z}.batch\n",
            f" {Z}.batch",
            f"{Z}.parquet",
            "99999999999999999999.batch",  # more than int64
            f"{'٠' * 20}.batch",  # digits, but not ASCII
            f"{Z}-{Z}-0.index",  # empty
            f"{ONE}-{Z}-0.index",  # ends before it begins
            f"{Z}-{ONE}-0.parquet",  # no unique part
            f"{Z}-{ONE}-1.index",
            f"{Z}-{ONE}-0-abcdef12.index",  # generation 0 has one index only
            f"{Z}-{ONE}-00.index",  # a second spelling
            f"{Z}-{ONE}-01-abcdef12.index",
            f"{Z}-{ONE}-1-ABCDEF12.index",
            f"{Z}-{ONE}-1-abc.index",
            f"{Z}-{ONE}-1-{'a' * 65}.index",
            f"{Z}-{ONE}--1-abcdef12.index",
            f"{Z}-99999999999999999999-0.index",
        ],
    )
    def test_not_ours(self, name: str) -> None:
        assert names.parse_partition_object(name) is None

    @given(
        st.text(max_size=80)
        | st.from_regex(r"\d{20}(-\d{20}-\d{1,2}(-[0-9a-f]{8})?)?\.(batch|clean|index|txnindex|parquet)\n?")
    )
    def test_whatever_parses_has_no_other_spelling(self, name: str) -> None:
        match names.parse_partition_object(name):
            case NumberedName() as numbered:
                assert numbered.name == name
            case SegmentObject(segment, kind):
                assert getattr(segment, kind) == name


class TestRowFiles:
    @given(partitions, offsets, offsets, uniques)
    def test_rows(self, partition: int, producer_id: int, epoch: int, unique: str) -> None:
        path = names.rows_file_path(partition, producer_id, epoch, unique)
        assert names.parse_rows_path(path) == RowsFile(partition, producer_id, epoch, unique)
        assert names.check_data_path("orders", partition, path) == path

    @given(partitions, offsets, offsets, uniques)
    def test_staged(self, partition: int, producer_id: int, epoch: int, unique: str) -> None:
        file = "part-00000-1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed.c000.zstd.parquet"
        path = f"{names.staged_folder(producer_id, epoch, unique)}_partition={partition}/{file}"
        assert names.parse_rows_path(path) == RowsFile(partition, producer_id, epoch, unique, staged=True)
        assert names.check_data_path("orders", partition, path) == path

    @given(segments(), uniques, partitions)
    def test_segment_files(self, segment: SegmentName, unique: str, partition: int) -> None:
        named = SegmentName(segment.base_offset, segment.end_offset, segment.generation, unique)
        path = names.segment_file_path(partition, named)
        assert names.check_data_path("orders", partition, path) == path

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/etc/passwd",
            "../other/0/rows/1-0-abcdef12.parquet",
            "0/rows/../../1-0-abcdef12.parquet",
            "0/rows/01-0-abcdef12.parquet",
            "0/rows/1-0-abcdef12.parquet\n",
            "00/rows/1-0-abcdef12.parquet",
            "0/rows/1-0-abcdef12.index",
            "0/rows/99999999999999999999-0-abcdef12.parquet",
            "0/rows/9223372036854775808-0-abcdef12.parquet",
            "0/rows/1--1-abcdef12.parquet",
            "1/rows/1-0-abcdef12.parquet",  # a file of another partition
            "staged/1-0-abcdef12/_partition=1/part-0.parquet",
            "staged/1-0-abcdef12/_partition=0/../x.parquet",
            "staged/1-0-abcdef12/_partition=0/.hidden.parquet",
            "staged/1-0-abcdef12/part-0.parquet",
            f"0/{Z}.batch",
            f"0/{Z}-{ONE}-0.index",
            f"1/{Z}-{ONE}-0-abcdef12.parquet",
        ],
    )
    def test_no_file_of_the_partition(self, path: str) -> None:
        with pytest.raises(CorruptRecordError, match=r"orders-0: the log names a file"):
            names.check_data_path("orders", 0, path)

    @given(offsets, offsets, uniques)
    def test_staged_lists(self, producer_id: int, epoch: int, unique: str) -> None:
        assert names.parse_staged_list_name(names.staged_list_name(producer_id, epoch, unique)) == (
            producer_id,
            epoch,
            unique,
        )

    @pytest.mark.parametrize(
        "name",
        ["", "1-0.staged", "01-0-abcdef12.staged", "9223372036854775808-0-abcdef12.staged", "1-0-abcdef12.staged.x"],
    )
    def test_no_staged_list(self, name: str) -> None:
        assert names.parse_staged_list_name(name) is None
