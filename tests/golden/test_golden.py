"""Current code reads, finishes and protects a store that an old program left.

The expected contents are literals here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from lab.testing.damage import overwrite
from tests.aborted import aborted_transactions
from tests.golden.make_golden import AUDIT_0, FORMAT_FOLDER, HOUR_MS, ORDERS_0, ORDERS_1, SCRATCH_0, START_MS, make
from txlog.config import IsolationLevel
from txlog.core import names
from txlog.core.fetch_plan import InlinePiece
from txlog.core.names import TopicPartition
from txlog.core.records import StoreConstants, TopicMetadata
from txlog.errors import CorruptLogError
from txlog.protocol import expiry, groups, load, read, stores, table, topics, transactions
from txlog.protocol.context import Context, PartitionView
from txlog.storage.driver import Driver
from txlog.storage.inline_rows import read_inline_rows
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_reader import read_ranges
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore

MAX_STORE_BYTES = 300_000
LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
PARTITIONS = (ORDERS_0, ORDERS_1, AUDIT_0, SCRATCH_0)

# (offset, key column, last column) of every row that a reader gets.
COMMITTED: dict[TopicPartition, list[tuple[int, object, object]]] = {
    ORDERS_0: [
        (0, 1, None),
        (1, 2, None),
        (2, 3, None),
        (3, 4, None),
        (4, 5, None),
        (5, 6, None),
        (6, 7, None),
        (10, 10, None),
        (12, 11, "gift"),
        (13, 12, None),
        (14, 14, "by phone"),
        (16, 15, None),
    ],
    ORDERS_1: [(5, 13, "late")],
    AUDIT_0: [(0, b"1", "2025-11-24T16:00:00+00:00")],
    SCRATCH_0: [(3, 3, "ned")],
}
UNCOMMITTED = {
    **COMMITTED,  # the cleaned run of orders-0 has lost its aborted rows
    ORDERS_1: [(3, 908, None), (5, 13, "late"), (7, 16, None)],
    AUDIT_0: [*COMMITTED[AUDIT_0], (1, b"2", None)],
}
FINISHED = {
    **COMMITTED,
    ORDERS_1: [*COMMITTED[ORDERS_1], (8, 17, None), (9, 18, None)],
    AUDIT_0: UNCOMMITTED[AUDIT_0],
}


class Opened:
    """A copy of the golden store in memory, and its readers."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        inner = MemoryObjectStore()
        for path, data in objects.items():
            overwrite(inner, path, data)
        self.store = CountingStore(inner)
        self.driver = Driver(self.store, ManualClock(START_MS + 26 * HOUR_MS), SeededIds(7), threads=0)
        self.ctx = Context(constants=StoreConstants())

    def run(self, program: Any) -> Any:
        return self.driver.run(program)

    def topic(self, name: str) -> TopicMetadata:
        found: TopicMetadata = self.run(topics.describe_topic(name))
        return found

    def view(self, tp: TopicPartition) -> PartitionView:
        found: PartitionView = self.run(load.load(self.ctx, tp))
        return found

    def rows(self, tp: TopicPartition, isolation: IsolationLevel) -> list[dict[str, Any]]:
        view = self.view(tp)
        plan = read.plan_read(self.ctx, view, view.state.log_start_offset, None, isolation)
        view, planned = self.run(plan)
        fields = self.topic(tp.topic).schema
        found: list[dict[str, Any]] = []
        for piece in planned.pieces:
            if isinstance(piece, InlinePiece):
                found.extend(read_inline_rows(piece.payload, piece.range, fields, rows=piece.rows).to_pylist())
                continue
            for batch in read_ranges(
                self.store, tp.topic, piece.file, piece.ranges, fields, start=piece.start, end=piece.end
            ):
                found.extend(batch.to_pylist())
        return found

    def short_rows(self, tp: TopicPartition, isolation: IsolationLevel) -> list[tuple[int, object, object]]:
        columns = [field.name for field in self.topic(tp.topic).schema]
        return [
            (row["_offset"], row[columns[0]], _text(row[columns[-1]]) if len(columns) > 1 else None)
            for row in self.rows(tp, isolation)
        ]

    def everything(self) -> object:
        """Return all that a reader can learn of the store."""
        descriptor = self.run(stores.read_store())
        listed = self.run(topics.list_topics(deleted=True))
        rows = {tp: self.rows(tp, level) for tp in PARTITIONS for level in LEVELS}
        _, ids = self.run(table.list_transactions(self.ctx, {}))
        _, described = self.run(groups.list_groups(self.ctx, {}))
        return descriptor, listed, rows, ids, described


def _text(value: object) -> object:
    return value.isoformat() if hasattr(value, "isoformat") else value


def objects_of(folder: Path) -> dict[str, bytes]:
    """Return every object of a store in a folder, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


GOLDEN = objects_of(FORMAT_FOLDER)


@pytest.fixture
def golden() -> Opened:
    return Opened(GOLDEN)


@pytest.mark.parametrize("tp", PARTITIONS, ids=str)
def test_both_isolation_levels_return_the_rows_that_were_written(golden: Opened, tp: TopicPartition) -> None:
    assert golden.short_rows(tp, "read_committed") == COMMITTED[tp]
    assert golden.short_rows(tp, "read_uncommitted") == UNCOMMITTED[tp]


def test_rows_come_back_with_every_column(golden: Opened) -> None:
    first = golden.rows(ORDERS_0, "read_committed")[0]
    assert {name: str(value) for name, value in first.items()} == {
        "order_id": "1",
        "customer": "ada",
        "amount": "10.00",
        "placed": "2025-11-24 15:59:00+00:00",
        "tags": "['new']",
        "note": "None",
        "_offset": "0",
        "_timestamp": "2025-11-24 16:00:01.500000+00:00",
    }
    shaped = golden.rows(AUDIT_0, "read_committed")[0]
    assert shaped["headers"] == [{"key": "source", "value": b"clerk"}]


@pytest.mark.parametrize(
    ("tp", "log_start", "lso", "leo"),
    [(ORDERS_0, 0, 18, 18), (ORDERS_1, 2, 7, 8), (AUDIT_0, 0, 1, 2), (SCRATCH_0, 3, 4, 4)],
    ids=str,
)
def test_the_ends_of_each_partition(golden: Opened, tp: TopicPartition, log_start: int, lso: int, leo: int) -> None:
    state = golden.view(tp).state
    assert (state.log_start_offset, state.last_stable_offset, state.next_offset) == (log_start, lso, leo)


def test_producers_are_remembered_and_the_expired_are_not(golden: Opened) -> None:
    assert {pid: entry.producer_epoch for pid, entry in golden.view(ORDERS_0).state.producers.items()} == {35: 4}
    remembered = golden.view(ORDERS_1).state.producers
    assert {pid: (entry.producer_epoch, entry.txn_first_offset) for pid, entry in remembered.items()} == {
        35: (2, -1),
        29: (1, -1),
        10: (0, 7),
    }


def test_the_cleaned_run_and_the_boundary_take_the_place_of_deleted_slots(golden: Opened) -> None:
    view = golden.view(ORDERS_0)
    assert [(name.base_offset, name.end_offset, name.generation) for name in view.walk] == [(0, 14, 1)]
    assert (view.boundary, view.sealed_end) == (14, 14)
    assert golden.store.get(ORDERS_0.folder + names.batch_name(0)) is None


def test_aborted_ranges_are_known(golden: Opened) -> None:
    found = {}
    for tp in (ORDERS_0, ORDERS_1):
        view = golden.view(tp)
        _, aborted = golden.run(aborted_transactions(golden.ctx, view, 0, view.state.next_offset))
        found[tp] = [(txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset) for txn in aborted]
    assert found == {ORDERS_0: [(35, 8, 11, 12)], ORDERS_1: [(35, 3, 4, 5)]}


def test_timestamps_find_offsets(golden: Opened) -> None:
    def find(timestamp_ms: int) -> object:
        look_up = read.offset_for_timestamp(golden.ctx, golden.view(ORDERS_0), timestamp_ms, "read_committed")
        _, hits = golden.run(look_up)
        return hits[0][:2] if hits else None

    assert find(0) == (0, START_MS + 1_500)
    assert find(START_MS + 1_501) == (3, START_MS + 2_000)
    assert find(START_MS + 20 * HOUR_MS) == (16, START_MS + 25 * HOUR_MS + 11_250)
    assert find(START_MS + 30 * HOUR_MS) is None


def test_the_table_of_transactions(golden: Opened) -> None:
    _, rows = golden.run(table.list_transactions(golden.ctx, {}))
    assert [
        (row.value.transactional_id, row.value.state, row.value.producer_id, row.value.producer_epoch) for row in rows
    ] == [
        ("bulk", "PREPARE_COMMIT", 110, 1),
        ("decided", "PREPARE_COMMIT", 0, 1),
        ("hanging", "ONGOING", 10, 0),
        ("loader", "COMPLETE_COMMIT", 35, 4),
        ("nightly", "COMPLETE_COMMIT", 29, 1),
    ]
    assert {row.value.transactional_id: row.value.txn_version for row in rows}["nightly"] == 20251124


def test_committed_offsets_and_members(golden: Opened) -> None:
    _, described = golden.run(groups.list_groups(golden.ctx, {}))
    assert [
        (group.group, {str(tp): (value.offset, value.metadata) for tp, value in group.offsets.items()})
        for group in described
    ] == [
        ("audit", {"orders-0": (12, "")}),
        ("billing", {"audit-0": (1, "first")}),
        ("nightly-etl", {"audit-0": (1, "")}),
    ]
    member = described[0].member
    assert (member.generation, member.member_id, member.topics) == (1, "audit-member-1", ("orders",))
    assert all(not group.pending for group in described)


def test_topics_and_their_versions(golden: Opened) -> None:
    orders, scratch = golden.topic("orders"), golden.topic("scratch")
    assert [(field.id, field.name) for field in orders.schema] == [
        (1, "order_id"),
        (2, "customer"),
        (3, "amount"),
        (4, "placed"),
        (5, "tags"),
        (7, "note"),
    ]
    assert orders.config == {"key.columns": "order_id", "segment.batches": "4", "retention.ms": "1000000000"}
    assert (scratch.number, [field.id for field in scratch.schema]) == (2, [2, 3])
    assert golden.view(SCRATCH_0).state.deleted_version == 1


def test_one_sweep_finishes_what_the_old_program_left(golden: Opened) -> None:
    _, swept = golden.run(expiry.expire(golden.ctx, {}))
    assert (swept.aborted, swept.rolled_forward) == (("hanging",), ("bulk", "decided"))
    for tp in PARTITIONS:
        state = golden.view(tp).state
        assert state.last_stable_offset == state.next_offset
        assert golden.short_rows(tp, "read_committed") == FINISHED[tp]


def test_an_old_producer_is_fenced_and_its_successor_goes_on(golden: Opened) -> None:
    _, txn = golden.run(transactions.init_producer(golden.ctx, {}, "hanging", 60_000))
    assert (txn.producer_id, txn.producer_epoch, txn.state) == (10, 2, "EMPTY")
    assert golden.short_rows(ORDERS_1, "read_committed") == COMMITTED[ORDERS_1]
    assert golden.view(ORDERS_1).state.last_stable_offset == 9


@pytest.fixture
def client(tmp_path: Path) -> Iterator[txlog.Store]:
    """Yield the client that users open, on a copy in a folder, with the current time: the folder's clock is compared
    with it."""
    shutil.copytree(FORMAT_FOLDER, tmp_path / "store")
    with txlog.open(str(tmp_path / "store"), storage_options={"fsync": False}) as opened:
        yield opened


@pytest.mark.parametrize(("level", "expected"), [("read_committed", COMMITTED), ("read_uncommitted", UNCOMMITTED)])
def test_consumers_return_the_same_rows(
    client: txlog.Store, level: str, expected: dict[TopicPartition, list[tuple[int, object, object]]]
) -> None:
    for tp in PARTITIONS:
        with client.consumer(isolation_level=level) as consumer:
            consumer.assign([tp])
            consumer.seek_to_beginning()
            found = [row for batch in consumer.iterate() for row in batch.to_pylist()]
        assert [row["_offset"] for row in found] == [offset for offset, _, _ in expected[tp]]


def test_a_new_producer_takes_an_old_id_over_and_goes_on(client: txlog.Store) -> None:
    with client.producer(transactional_id="hanging") as producer:
        assert (producer.producer_id, producer.producer_epoch) == (10, 2)
        with producer.transaction():
            producer.send("orders", [{"order_id": 99, "customer": "quin"}], partition=1)
    with client.consumer(group_id="audit", auto_offset_reset="none") as consumer:
        consumer.assign([ORDERS_1])
        consumer.seek_to_beginning()
        rows = [row["order_id"] for batch in consumer.iterate() for row in batch.to_pylist()]
        assert rows == [13, 99]
        committed = consumer.committed(ORDERS_0)[ORDERS_0]
        assert committed is not None
        assert committed.offset == 12


def read_and_finish(opened: Opened) -> object:
    """Return all that a reader learns, before and after everything is finished: staged rows are read, too."""
    before = opened.everything()
    opened.run(expiry.expire(opened.ctx, {}))
    return before, opened.everything()


def objects_that_are_read() -> list[str]:
    """Return the objects of GOLDEN that `read_and_finish` reads."""
    opened = Opened(GOLDEN)
    with opened.store.counting() as cost:
        read_and_finish(opened)
    return sorted({path for _, path in cost.calls()} & set(GOLDEN))


def test_a_flipped_bit_in_any_object_is_an_error_that_names_it() -> None:
    for name in objects_that_are_read():
        data = bytearray(GOLDEN[name])
        data[len(data) // 2] ^= 1
        with pytest.raises(CorruptLogError, match=re.escape(name)):
            read_and_finish(Opened({**GOLDEN, name: bytes(data)}))


def test_a_missing_object_is_an_error_that_names_it() -> None:
    # If an index of generation 0 is missing and its slots exist, nothing is lost: the segment is not sealed then.
    needed = [name for name in objects_that_are_read() if name.endswith((".parquet", ".txnindex", ".staged"))]
    run = next(
        name for name in GOLDEN if name.startswith(ORDERS_0.folder) and "-1-" in name and name.endswith(".index")
    )
    for name in (*needed, run):
        with pytest.raises(CorruptLogError, match=re.escape(name)):
            read_and_finish(Opened({path: data for path, data in GOLDEN.items() if path != name}))


def test_what_is_superseded_or_sealed_is_not_read(golden: Opened) -> None:
    read_objects = objects_that_are_read()
    expected = read_and_finish(golden)
    damaged = {name: data if name in read_objects else b"damaged" for name, data in GOLDEN.items()}
    assert read_and_finish(Opened(damaged)) == expected
    clean = json.loads(GOLDEN[ORDERS_0.folder + names.clean_name(0)])
    superseded = {ORDERS_0.folder + item["name"] for item in clean["superseded"]}
    assert superseded
    assert not superseded & set(read_objects)


def test_the_script_writes_the_same_store_again(tmp_path: Path) -> None:
    make(tmp_path / "again")
    again = objects_of(tmp_path / "again")
    assert set(again) == set(GOLDEN)
    if _pyarrow_that_wrote() == pa.__version__:
        assert [name for name in GOLDEN if again[name] != GOLDEN[name]] == []
        return
    # Another pyarrow writes other Parquet bytes, so digests and lengths of them differ; all else is the same.
    for name, data in GOLDEN.items():
        if not name.endswith(".parquet"):
            assert _without_digests(data) == _without_digests(again[name]), name
    for tp in PARTITIONS:
        for level in LEVELS:
            assert Opened(again).rows(tp, level) == Opened(GOLDEN).rows(tp, level)


def test_the_store_stays_small() -> None:
    assert sum(len(data) for data in GOLDEN.values()) < MAX_STORE_BYTES


def _pyarrow_that_wrote() -> str:
    data = next(data for name, data in GOLDEN.items() if name.endswith(".parquet"))
    created_by: str = pq.read_metadata(pa.BufferReader(data)).created_by
    return created_by.rpartition(" ")[2]


def _without_digests(data: bytes) -> Any:
    masked = {"digest", "footer_digest", "last_digest", "previous", "bytes", "payload_bytes", "crc32c", "statistics"}

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in masked}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(json.loads(data.split(b"\n")[0]))
