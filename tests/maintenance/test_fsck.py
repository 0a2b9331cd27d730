"""What does fsck compare? Objects that are whole but disagree with others, and stores that change during the check."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders, tp
from tests.golden.make_golden import HOUR_MS, START_MS
from tests.maintenance import damage as d
from txlog.core import envelope, names, records, state
from txlog.core.fetch_plan import BY_COLUMN, RowRange
from txlog.core.records import IndexedFile
from txlog.errors import StorageError, UnknownTopicOrPartitionError
from txlog.maintenance.fsck import FsckReport, check_store
from txlog.maintenance.fsck.findings import Finding
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_reader import read_ranges
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.clock import ManualClock
from txlog.testing.counting_store import CountingStore
from txlog.testing.failing_store import FailingStore, Fault

INDEX = "orders/1/00000000000000000000-00000000000000000005-0.index"
TXN_INDEX = "orders/1/00000000000000000000-00000000000000000005-0.txnindex"
SNAPSHOT = "orders/1/00000000000000000005.snapshot"
RUN = "orders/0/00000000000000000000-00000000000000000014-1-00000001000000000000000000000039"
CLEAN = "orders/0/00000000000000000000.clean"
TOPIC = "orders/topic.00000000000000000001.json"


def check(store: ObjectStore, **more: Any) -> FsckReport:
    return check_store(store, threads=0, clock=ManualClock(START_MS + 26 * HOUR_MS), **more)


def of(report: FsckReport, path: str, kind: str = "damaged") -> Finding:
    found = [each for each in report.findings if each.path == path and each.kind == kind]
    assert found, report.findings
    return found[0]


def rewritten(path: str, kind: type[Any], change: Callable[[Any], Any]) -> MemoryObjectStore:
    """Return the golden store with one object that has other fields, under a right checksum."""
    store = d.memory_store(d.golden())
    value, payload = envelope.decode(d.golden()[path], kind, path)
    overwrite(store, path, envelope.encode(change(value), payload))
    return store


def replace(**changes: Any) -> Callable[[Any], Any]:
    return lambda value: msgspec.structs.replace(value, **changes)


@pytest.mark.parametrize(
    ("path", "kind", "change", "found"),
    [
        (INDEX, records.SegmentIndex, replace(last_stable_offset=4), "last_stable_offset is 4 and should be 5"),
        (INDEX, records.SegmentIndex, replace(last_digest="0" * 64), "last_digest is"),
        (
            INDEX,
            records.SegmentIndex,
            lambda index: replace(entries=(replace(producer_id=36)(index.entries[0]), *index.entries[1:]))(index),
            "entries is",
        ),
        (
            INDEX,
            records.SegmentIndex,
            replace(aborted_txns=0),
            "it announces 0 aborted transactions, and its entries show 1 to 1",
        ),
        (TXN_INDEX, records.TxnIndex, replace(aborted=()), "holds no aborted transactions, and the index announces 1"),
        (
            TXN_INDEX,
            records.TxnIndex,
            lambda found: replace(aborted=(replace(last_stable_offset=3)(found.aborted[0]),))(found),
            "aborted is",
        ),
        (SNAPSHOT, records.Snapshot, replace(log_start_offset=1), "log_start_offset is 1 and should be 0"),
        (SNAPSHOT, records.Snapshot, replace(producers=()), "producers is [] and should be"),
        (SNAPSHOT, records.Snapshot, replace(offset=6), "offset 6"),
        ("orders/0/00000000000000000014.boundary", records.Boundary, replace(offset=8), "offset 8"),
        (CLEAN, records.Clean, replace(number=1), "holds version 1, and its name says 0"),
        (TOPIC, records.TopicMetadata, replace(partitions=1), "1"),
        (TOPIC, records.TopicMetadata, replace(topic="audit"), "version 1 of 'audit'"),
        (TOPIC, records.TopicMetadata, replace(topic_id="f" * 32), "f" * 32),
        (TOPIC, records.TopicMetadata, replace(schema_id=2), "2"),
        (TOPIC, records.TopicMetadata, replace(last_field_id=7), "7"),
    ],
)
def test_what_is_there_twice_is_compared(path: str, kind: type[Any], change: Any, found: str) -> None:
    report = check(rewritten(path, kind, change))
    assert of(report, path)
    assert any(found in each.found for each in report.findings if each.path == path)


def test_a_run_that_the_clean_names_must_be_there() -> None:
    def another(clean: records.Clean) -> records.Clean:
        return msgspec.structs.replace(clean, runs=(msgspec.structs.replace(clean.runs[0], unique="ab" * 8),))

    report = check(rewritten(CLEAN, records.Clean, another))
    assert of(report, RUN.rpartition("-")[0] + "-" + "ab" * 8 + ".index", "missing")


@pytest.mark.parametrize(
    ("stem", "change"),
    [
        (RUN, lambda offsets: [*offsets[:-1], offsets[-1] - 3]),
        (RUN, lambda offsets: [offsets[0] + 20, *offsets[1:]]),
        (INDEX.removesuffix("-0.index") + "-0", lambda offsets: [offset + 1 for offset in offsets]),
    ],
    ids=["falls", "outside", "shifted"],
)
def test_the_offset_column_is_what_the_index_says(stem: str, change: Callable[[list[int]], list[int]]) -> None:
    """The file has other offsets, and the index has its true digest: only the column itself shows the damage."""
    store = d.memory_store(d.golden())
    index_path = f"{stem}.index"
    index, _ = envelope.decode(d.golden()[index_path], records.SegmentIndex, index_path)
    number, file = next((number, file) for number, file in enumerate(index.files) if file.offset_column)
    topic, _ = envelope.decode(d.golden()[TOPIC], records.TopicMetadata, TOPIC)
    fields = tuple(field for field in topic.schema if file.schema_id or field.name != "note")
    ranges = [RowRange(first_row=0, rows=file.rows, base_offset=BY_COLUMN, timestamp=0)]
    rows = [row for batch in read_ranges(store, "orders", file, ranges, fields) for row in batch.to_pylist()]
    for row, offset in zip(rows, change([row["_offset"] for row in rows]), strict=True):
        row["_offset"] = offset
    schema = to_arrow(fields).append(OFFSET_FIELD).append(TIMESTAMP_FIELD)
    table = pa.Table.from_pylist(rows, schema=schema)
    store.delete(f"orders/{file.path}")
    made = write_rows_file(store, "orders", file.path, table.to_batches(), fields, offset_column=True)
    own = {name: getattr(made, name) for name in made.__struct_fields__}
    changed = IndexedFile(**own, schema_id=file.schema_id, offset_column=True)
    files = (*index.files[:number], changed, *index.files[number + 1 :])
    overwrite(store, index_path, envelope.encode(msgspec.structs.replace(index, files=files)))
    assert of(check(store), f"orders/{file.path}")


def test_a_marker_of_the_other_kind() -> None:
    world = World()
    store = world.open(**{"transaction.state.log.num.partitions": 1})
    store.create_topic("orders", ORDERS)
    with store.producer("loader", staged=False) as producer, producer.transaction():
        producer.send("orders", orders(1))
    path = "orders/0/" + names.batch_name(1)
    data = world.memory.get(path)
    assert data is not None
    marker, _ = envelope.decode(data, records.CommitRecord, path)
    assert marker.kind == "commit"
    overwrite(world.memory, path, envelope.encode(replace(kind="abort", first_offset=0, last_stable_offset=2)(marker)))
    found = of(check_store(world.memory, clock=world.clock), path)
    assert "COMMIT of producer 0, epoch 1" in found.expected
    assert found.found == "a marker of kind abort"


def test_the_descriptor_of_another_store() -> None:
    """Only the time of a younger store's descriptor shows that it is another one."""
    later = START_MS + 2 * HOUR_MS
    assert of(check(rewritten("txlog.json", records.StoreDescriptor, replace(created_at=later))), "txlog.json")
    assert check(rewritten("txlog.json", records.StoreDescriptor, replace(store_id="f" * 32))).is_clean


def test_what_a_decided_transaction_will_append_must_be_there() -> None:
    path = "orders/1/rows/110-0-00000001000000000000000000000049.parquet"
    objects = d.golden()
    del objects[path]
    assert "__transaction_state/10/" in of(check(d.memory_store(objects)), path, "missing").expected
    assert of(check(d.memory_store(objects), rows=False), path, "missing")
    objects[path] = d.golden()[path][:-1]
    assert of(check(d.memory_store(objects)), path)
    assert of(check(d.memory_store(objects), rows=False), path)


def test_notes_are_no_damage() -> None:
    objects = d.golden()
    objects["orders/0/rows/7-0-0123456789abcdef.parquet"] = b"left by a writer that died"
    objects["orders/staged/7-0-0123456789abcdef/_partition=1/part-0.parquet"] = b"left by a job that died"
    objects["__transaction_state/10/7-0-0123456789abcdef.staged"] = d.golden()[
        "__transaction_state/10/110-0-0000000100000000000000000000004a.staged"
    ]
    objects["orders/0/00000000000000000014-00000000000000000016-0-0123456789abcdef.parquet"] = (
        b"of an unfinished sealing"
    )
    objects["orders/0/notes.txt"] = objects["orders/notes.txt"] = objects["notes.txt"] = b"not ours"
    objects["backup/txlog.json"] = b"not ours either"
    report = check(d.memory_store(objects))
    assert report.is_clean
    notes = {(each.path, each.found) for each in report.findings}
    for path, found in (
        ("orders/0/rows/", "no record names 7-0-0123456789abcdef.parquet"),
        ("orders/staged/", "no record names staged/7-0-0123456789abcdef/_partition=1/part-0.parquet"),
        ("__transaction_state/10/", "no record names 7-0-0123456789abcdef.staged"),
        ("orders/0/", "other names: notes.txt"),
        ("orders/", "other names: notes.txt"),
        ("", "other names: notes.txt"),
        ("backup/", "not a topic: it has no versions"),
    ):
        assert (path, found) in notes
    assert any(each.path == "orders/0/" and "-0-0123456789abcdef.parquet" in each.found for each in report.findings)


def test_transactions_that_are_not_finished_are_noted() -> None:
    report = check(d.memory_store(d.golden()))
    found = {each.found.partition(":")[0].partition(",")[0] for each in report.findings}
    assert found == {
        "transactional.id 'decided' is PREPARE_COMMIT",
        "transactional.id 'bulk' is PREPARE_COMMIT",
        "transactional.id 'hanging' is ONGOING",
    }
    assert report.is_clean


def test_a_topic_that_is_gone_is_missed_by_its_transactions() -> None:
    objects = {path: data for path, data in d.golden().items() if not path.startswith("orders/")}
    report = check(d.memory_store(objects))
    assert of(report, "orders/", "missing")


def test_topics_limit_the_check() -> None:
    objects = d.golden()
    objects["audit/0/" + names.batch_name(0)] = b""
    assert not check(d.memory_store(objects)).is_clean
    report = check(d.memory_store(objects), topics=["orders", "scratch"])
    assert report.is_clean
    assert report.topics == ("orders", "scratch")
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'order'"):
        check(d.memory_store(objects), topics=["order"])


def test_nothing_is_written() -> None:
    counting = CountingStore(d.memory_store(d.golden()))
    check(counting)
    assert {verb for verb, _ in counting.calls()} == {"get", "get_range", "list"}


def test_an_object_that_cannot_be_read_is_a_finding_and_the_rest_is_checked() -> None:
    path = "orders/1/" + names.batch_name(2)
    failing = FailingStore(d.memory_store(d.golden()), Fault(action="fail", match=f"get {path}", times=99))
    report = check(failing)
    assert of(report, path).expected == "an object that can be read"
    assert report.objects >= 70


def test_a_request_that_fails_now_and_then_is_tried_again() -> None:
    failing = FailingStore(d.memory_store(d.golden()), Fault(action="fail", match="get", number=20, times=3))
    assert check(failing).is_clean


def test_a_store_that_cannot_be_listed_is_an_error() -> None:
    failing = FailingStore(d.memory_store(d.golden()), Fault(action="fail", match="list orders/0/", times=99))
    with pytest.raises(StorageError):
        check(failing)


def test_a_store_in_use_is_whole() -> None:
    """Records, sealings and transactions arrive during the check: no race looks like damage."""
    world = World()
    store = world.open(**{"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 1})
    store.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": 3})
    ended = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with store.producer("loader") as producer:
                number = 0
                while not ended.is_set():
                    producer.begin_transaction()
                    producer.send("orders", orders(number), partition=number % 2)
                    producer.send_offsets_to_transaction({tp("orders", 0): number}, "g")
                    if number % 4:
                        producer.commit_transaction()
                    else:
                        producer.abort_transaction()
                    number += 1
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(6):
            report = check_store(world.memory, clock=world.clock)
            assert report.is_clean, report.findings
    finally:
        ended.set()
        writer.join()
        world.close()
    assert not failures


def test_memory_is_bounded_by_a_segment() -> None:
    """The store has a thousand records with inline rows. fsck has only a few at a time in memory."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={"segment.batches": 10_000})
    with store.producer(compression_type="none") as producer:
        for number in range(600):
            producer.send("orders", [{"id": number, "name": "x" * 40_000}]).result()
    world.close()
    whole = sum(map(len, d.objects_of(world.memory).values()))
    tracemalloc.start()
    try:
        assert check_store(world.memory, clock=world.clock, threads=2).is_clean
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole > 20 * 2**20
    assert peak < whole / 2


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_what_an_older_writer_folded_over_an_open_transaction_is_no_damage(
    world: World, monkeypatch: pytest.MonkeyPatch, ends: bool, more: bool
) -> None:
    """This writer let a transaction hold the LSO although all its rows were below the log start, and did not open it
    again."""
    with monkeypatch.context() as older:
        older.setattr(state, "_holds_back", lambda entry, _: entry.txn_first_offset >= 0)
        store = world.open()
        store.create_topic("orders", ORDERS, partitions=1, config={"segment.batches": 3})
        producer = store.producer(transactional_id="t")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", orders(1, 2)).result()
        store.admin().delete_records("orders", 0)
        plain = store.producer()
        for number in (10, 11, 12, 13):
            plain.send("orders", orders(number)).result()
        if more:
            producer.send("orders", orders(3)).result()
        for number in (20, 21, 22, 23):
            plain.send("orders", orders(number)).result()
        if ends:
            producer.abort_transaction()
        for number in (30, 31, 32, 33):
            plain.send("orders", orders(number)).result()
    before, after = [10, 11, 12, 13], [20, 21, 22, 23, 30, 31, 32, 33]
    assert world.read(isolation="read_uncommitted") == [*before, *([3] if more else []), *after]
    report = check_store(world.memory, threads=0, clock=world.clock)
    assert [each for each in report.findings if each.kind != "note"] == []
    if ends:
        assert world.read() == [*before, *after]
    world.open().producer().send("orders", orders(9)).result()


def test_an_index_whose_lso_is_lower_for_no_reason_is_damage() -> None:
    report = check(rewritten(INDEX, records.SegmentIndex, replace(last_stable_offset=0)))
    assert "last stable offset" in of(report, INDEX).expected
