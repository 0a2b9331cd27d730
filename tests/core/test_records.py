"""Every kind of object survives its own encoding, and the sums in a commit record are right."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, strategies as st

from txlog.core import envelope, names, records
from txlog.core.names import TopicPartition
from txlog.core.records import (
    AbortedTxn,
    BatchMetadata,
    Boundary,
    Clean,
    CleanedRun,
    CommitRecord,
    DataFile,
    GroupEntry,
    GroupMember,
    GroupRow,
    GroupValue,
    Heartbeat,
    HeartbeatEntry,
    IndexedFile,
    IndexEntry,
    OffsetEntry,
    OffsetRow,
    OffsetValue,
    PendingOffsets,
    ProducerStateEntry,
    SchemaField,
    SegmentIndex,
    Snapshot,
    StagedList,
    StagedObject,
    StagedPart,
    StoreConstants,
    StoreDescriptor,
    Superseded,
    TopicMetadata,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
    TxnIndex,
)
from txlog.errors import CorruptRecordError

int64 = st.integers(-(2**63), 2**63 - 1)
offsets = st.integers(0, 2**63 - 1)
counts = st.integers(0, 2**48)
texts = st.text(max_size=12)
signed = st.integers(-1, 2**63 - 1)
times = st.integers(-1, 253_402_300_799_999)
field_ids = st.integers(1, 2**31 - 1)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
scalars = st.none() | st.booleans() | int64 | st.floats(allow_nan=False, allow_infinity=False) | texts


def tuples(of: st.SearchStrategy[object], max_size: int = 3) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(of, max_size=max_size).map(tuple)


file_fields: dict[str, st.SearchStrategy[Any]] = {
    "path": texts,
    "rows": counts,
    "bytes": counts,
    "digest": st.none() | digests,
    "footer_digest": digests,
    "row_groups": tuples(counts),
    "statistics": st.dictionaries(texts, st.tuples(scalars, scalars, counts), max_size=2),
}
data_files = st.builds(DataFile, **file_fields)
offset_values = st.builds(OffsetValue, offset=offsets, metadata=texts, timestamp=times, conditional=st.booleans())
offset_entries = st.builds(OffsetEntry, group=texts, topic=texts, partition=offsets, value=st.none() | offset_values)
numbers = st.dictionaries(texts, tuples(offsets), max_size=2)
members = st.builds(
    GroupMember,
    member_id=texts,
    client_id=texts,
    instance_id=texts,
    topics=tuples(texts),
    assignors=tuples(texts),
    session_timeout_ms=offsets,
    generation=offsets,
    assigned=numbers,
    owned=numbers,
)
group_values = st.builds(
    GroupValue,
    generation=offsets,
    member_id=texts,
    client_id=texts,
    topics=tuples(texts),
    updated_at=times,
    assignor=texts,
    partitions=st.dictionaries(texts, counts, max_size=2),
    members=tuples(members, 2),
)
group_entries = st.builds(GroupEntry, group=texts, value=st.none() | group_values)
staged_parts = st.builds(
    StagedPart,
    topic=texts,
    partition=offsets,
    schema_id=offsets,
    files=tuples(data_files),
    entries=tuples(offset_entries),
)
transactions = st.builds(
    TransactionMetadata,
    transactional_id=texts,
    producer_id=offsets,
    producer_epoch=offsets,
    last_epoch=signed,
    last_outcome=st.sampled_from([None, "commit", "abort"]),
    state=st.sampled_from(get_args(records.TransactionState)),
    timeout_ms=offsets,
    partitions=tuples(st.builds(TopicPartition, texts, offsets)),
    staged=tuples(staged_parts, 2),
    staged_object=st.none() | st.builds(StagedObject, name=texts, bytes=counts, digest=digests),
    started_at=times,
    updated_at=times,
    txn_scope=texts,
    txn_version=signed,
    write_id=ids,
)
heartbeats = st.builds(HeartbeatEntry, group=texts, member_id=texts)
entries = (
    offset_entries | group_entries | heartbeats | st.builds(TransactionEntry, key=texts, value=st.none() | transactions)
)
batch_fields: dict[str, st.SearchStrategy[Any]] = {
    "base_offset": offsets,
    "records": counts,
    "kind": st.sampled_from(get_args(records.BatchKind)),
    "producer_id": signed,
    "producer_epoch": signed,
    "base_sequence": signed,
    "transactional": st.booleans(),
    "timestamp": times,
}
commits = st.builds(
    CommitRecord,
    **batch_fields,
    segment_base=offsets,
    schema_id=offsets,
    files=tuples(data_files),
    entries=tuples(entries),
    write_id=ids,
    previous=digests,
    coordinator_epoch=signed,
    first_offset=signed,
    last_stable_offset=signed,
    log_start_offset=signed,
    deleted_version=offsets,
    expired=tuples(offsets),
)
indexes = st.builds(
    SegmentIndex,
    base_offset=offsets,
    end_offset=offsets,
    generation=counts,
    files=tuples(st.builds(IndexedFile, **file_fields, schema_id=offsets, offset_column=st.booleans())),
    entries=tuples(st.builds(IndexEntry, **batch_fields, file=st.none() | offsets, first_row=counts)),
    compacted=st.just(msgspec.UNSET)
    | st.builds(
        records.Compaction,
        key=tuples(field_ids),
        end_offset=offsets,
        tombstones=tuples(
            st.builds(records.Tombstones, end_offset=offsets, rows=st.integers(1, 2**48), delete_at=times)
        ),
    ),
    aborted_txns=counts,
    last_digest=digests | st.just(""),
    last_stable_offset=offsets,
)
txn_indexes = st.builds(
    TxnIndex,
    aborted=tuples(
        st.builds(
            AbortedTxn,
            version=st.just(0),
            producer_id=offsets,
            first_offset=offsets,
            last_offset=offsets,
            last_stable_offset=offsets,
        )
    ),
)
cleans = st.builds(
    Clean,
    number=offsets,
    runs=tuples(
        st.builds(CleanedRun, base_offset=offsets, end_offset=offsets, generation=st.integers(1, 2**48), unique=texts)
    ),
    superseded=tuples(st.builds(Superseded, name=texts, since=times)),
    created_at=times,
)
offset_rows = st.builds(OffsetRow, position=offsets, write_id=ids, entry=offset_entries)
snapshots = st.builds(
    Snapshot,
    offset=offsets,
    log_start_offset=offsets,
    deleted_version=offsets,
    last_timestamp=times,
    last_digest=digests,
    producers=tuples(
        st.builds(
            ProducerStateEntry,
            producer_id=offsets,
            producer_epoch=offsets,
            last_sequence=signed,
            last_offset=signed,
            timestamp=times,
            coordinator_epoch=signed,
            txn_first_offset=signed,
            batches=tuples(
                st.builds(
                    BatchMetadata, base_sequence=signed, last_sequence=signed, base_offset=offsets, timestamp=times
                )
            ),
        )
    ),
    transactions=tuples(st.builds(TransactionRow, offset=offsets, value=transactions), 2),
    committed=tuples(offset_rows),
    pending=tuples(st.builds(PendingOffsets, producer_id=offsets, rows=tuples(offset_rows))),
    groups=tuples(
        st.builds(
            GroupRow,
            position=offsets,
            write_id=ids,
            entry=group_entries,
            beats=tuples(st.builds(Heartbeat, member_id=texts, timestamp=times)),
        )
    ),
)
fields = st.recursive(
    st.builds(
        SchemaField,
        id=st.integers(1, 2**31 - 1),
        name=texts,
        type=texts,
        nullable=st.booleans(),
        default=st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts | st.just(0.5) | st.just(msgspec.UNSET),
    ),
    lambda inner: st.builds(
        SchemaField, id=st.just(1), name=texts, type=texts, nullable=st.booleans(), fields=tuples(inner)
    ),
    max_leaves=5,
)
topics = st.builds(
    TopicMetadata,
    number=offsets,
    topic=texts,
    topic_id=ids,
    partitions=st.integers(1, 100_000),
    config=st.dictionaries(texts, texts, max_size=3),
    schema=tuples(fields),
    schema_id=offsets,
    created_at=times,
    deleted=st.booleans(),
    write_id=ids,
    last_field_id=st.integers(1, 2**31 - 1) | st.just(msgspec.UNSET),
)
stores = st.builds(
    StoreDescriptor, features=tuples(texts), store_id=ids, created_at=times, constants=st.just(StoreConstants())
)
objects = st.one_of(
    commits,
    indexes,
    txn_indexes,
    cleans,
    st.builds(Boundary, offset=offsets, created_at=times),
    snapshots,
    topics,
    stores,
    st.builds(StagedList, staged=tuples(staged_parts)),
)


@given(objects)
def test_every_object_comes_back(value: msgspec.Struct) -> None:
    assert envelope.decode(envelope.encode(value), type(value), "x") == (value, b"")


@given(objects)
def test_equal_values_have_equal_bytes(value: msgspec.Struct) -> None:
    data = envelope.encode(value)
    again, _ = envelope.decode(data, type(value), "x")
    assert envelope.encode(again) == data


@given(objects, st.data())
def test_a_flipped_bit_anywhere_is_refused(value: msgspec.Struct, data: st.DataObject) -> None:
    stored = bytearray(envelope.encode(value))
    position = data.draw(st.integers(0, len(stored) - 1))
    stored[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecordError, match=r"^a/b: "):
        envelope.decode(bytes(stored), type(value), "a/b")


@given(objects)
def test_a_later_field_changes_nothing(value: msgspec.Struct) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(value))
    later = msgspec.json.encode({"zz_later": [{"a": None}], **plain})
    assert msgspec.json.decode(later, type=type(value)) == value


RECORD = CommitRecord(
    base_offset=10, records=3, kind="data", base_sequence=7, timestamp=0, segment_base=0, write_id="", previous=""
)


class TestCommitRecord:
    def test_a_row_takes_an_offset_and_a_sequence(self) -> None:
        assert (RECORD.span, RECORD.end_offset, RECORD.last_offset, RECORD.last_sequence) == (3, 13, 12, 9)

    @pytest.mark.parametrize("kind", ["commit", "abort", "log_start", "expire"])
    def test_a_control_batch_without_rows_takes_one_offset(self, kind: records.BatchKind) -> None:
        marker = msgspec.structs.replace(RECORD, kind=kind, records=0, base_sequence=-1)
        assert (marker.span, marker.end_offset, marker.last_offset, marker.last_sequence) == (1, 11, 10, -1)

    def test_a_commit_with_rows_takes_none_for_itself(self) -> None:
        commit = msgspec.structs.replace(RECORD, kind="commit", base_sequence=-1)
        assert (commit.span, commit.end_offset, commit.last_sequence) == (3, 13, -1)

    @pytest.mark.parametrize(
        "change",
        [
            {"base_offset": -1},
            {"base_offset": 2**63},
            {"records": -1},
            {"records": 2**48 + 1},
            {"kind": "other"},
            {"producer_id": 2**63},
            {"producer_id": -(2**63) - 1},
            {"timestamp": None},
            {"timestamp": 1.5},
            {"transactional": 1},
            {"entries": [{"type": "unknown"}]},
            {"files": [{"path": "x"}]},
            {"files": None},
        ],
    )
    def test_values_out_of_range_are_refused(self, change: dict[str, object]) -> None:
        plain = msgspec.json.decode(msgspec.json.encode(RECORD))
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode({**plain, **change}), type=CommitRecord)


def test_tombstones_are_at_least_one() -> None:
    item = msgspec.json.encode(records.Tombstones(end_offset=1, rows=1, delete_at=0))
    assert msgspec.json.decode(item, type=records.Tombstones).rows == 1
    with pytest.raises(msgspec.ValidationError, match="rows"):
        msgspec.json.decode(item.replace(b'"rows":1', b'"rows":0'), type=records.Tombstones)


def test_run_names() -> None:
    run = CleanedRun(base_offset=0, end_offset=9, generation=2, unique="abcdef12")
    assert names.parse_partition_object(run.name.index) == names.SegmentObject(run.name, "index")


def test_index_entries_span_their_rows() -> None:
    entry = IndexEntry(
        base_offset=4,
        records=0,
        kind="abort",
        producer_id=1,
        producer_epoch=0,
        base_sequence=-1,
        transactional=True,
        timestamp=0,
        file=None,
    )
    assert entry.end_offset == 5
    assert msgspec.structs.replace(entry, records=6).end_offset == 10


def test_objects_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        RECORD.records = 4  # type: ignore[misc]


def test_types_are_made_before_threads_can_race_for_them() -> None:
    """msgspec prepares a struct type at its first decode, without a lock.

    A second thread would find the type half prepared, and the process would die of SIGSEGV. A new process opens many
    partitions at once, so its first decodes run in threads.
    """
    code = """
        import threading, time
        import msgspec._utils
        from txlog.core import envelope, records
        from txlog.core.records import *

        original = msgspec._utils._forward_ref

        def slow(*arguments):
            time.sleep(0.001)
            return original(*arguments)

        msgspec._utils._forward_ref = slow
        txn = TransactionMetadata(
            transactional_id="x", producer_id=1, producer_epoch=0, state="EMPTY", timeout_ms=1, write_id="a"
        )
        snapshot = Snapshot(
            partition="orders-0", offset=0, log_start_offset=0, last_timestamp=0, last_digest="",
            transactions=(TransactionRow(offset=0, value=txn),),
        )
        data = envelope.encode(snapshot)

        def decode(number):
            time.sleep(number * 0.004)
            assert envelope.decode(data, Snapshot, "a snapshot")[0] == snapshot

        threads = [threading.Thread(target=decode, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        def made_late(*arguments):
            raise AssertionError(f"made at its first decode: {arguments}")

        msgspec._utils._forward_ref = made_late
        for name, kind in vars(records).items():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and not name.startswith("_"):
                msgspec.json.Decoder(kind)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
