"""Plans and tasks as another process receives them."""

from __future__ import annotations

import pickle
import subprocess
import sys

import msgspec
import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, many, orders, tp
from txlog.client import reading, rows
from txlog.client.store import Store
from txlog.core import envelope
from txlog.core.fetch_plan import FilePiece
from txlog.core.records import Clean, CleanedRun, IndexedFile, IndexEntry, SegmentIndex
from txlog.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    InvalidRequestError,
    MissingObjectError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_writer import write_rows_file


@pytest.fixture
def filled(world, store):
    """Fill orders-0 with a sealed segment of inline rows and a file, and with a tail of both."""
    store.create_topic("mixed", ORDERS, config={"segment.batches": 3})
    with store.producer() as producer:
        producer.send("mixed", orders(0, 1)).result()
        producer.send("mixed", many(5000, 2)).result()
        producer.send("mixed", orders(5002)).result()
        producer.send("mixed", orders(5003)).result()
        producer.send("mixed", many(5000, 5004)).result()
        producer.flush()
    return store


def task_of(store, start=0, end=None, **more):
    plan = reading.plan(store.runtime, "mixed", 0, start, end)
    (task,) = reading.tasks(store.runtime, [plan], **more)
    return task


def ids(task, store, **more):
    return [i for batch in reading.read_task(task, store, **more) for i in batch.column("id").to_pylist()]


def test_task_crosses_processes(world, filled):
    task = pickle.loads(pickle.dumps(task_of(filled)))
    assert task.rows == 10_004
    assert ids(task, world.memory) == list(range(10_004))


@pytest.mark.parametrize(("start", "end"), [(0, 3), (1, 2), (1999, 5003), (5001, 5005), (10_003, None), (10_004, None)])
def test_ranges(world, filled, start, end):
    assert ids(task_of(filled, start, end), world.memory) == list(range(start, 10_004 if end is None else end))


def test_a_task_has_the_level_and_the_cut_of_its_plan(filled):
    session = reading.read_session(filled.runtime)
    (tp,) = filled.runtime.partitions("mixed")
    cut = reading.take_cut(session, ["mixed"])
    plans = [
        reading.plan_reads(session, {tp: (start, None)}, isolation, cut=at)[tp]
        for start in (0, 10_004)
        for isolation, at in (("read_committed", None), ("read_uncommitted", None), ("read_committed", cut))
    ]
    tasks = reading.tasks(filled.runtime, plans)
    expected = [("read_committed", None), ("read_uncommitted", None), ("read_committed", cut)] * 2
    assert [(task.isolation, task.cut) for task in tasks] == expected
    assert reading.tasks(filled.runtime, plans[2:3], cut=cut) == tasks[2:3]
    with pytest.raises(InvalidRequestError, match=r"not of this cut\. hint: give the cut to plan_reads"):
        reading.tasks(filled.runtime, plans, cut=cut)


def test_columns_and_where_the_rows_lie(world, filled):
    task = task_of(filled, 4999, 5004, columns=["name"], metadata_columns=["_partition", "_offset", "_topic"])
    table = pa.Table.from_batches(reading.read_task(task, world.memory))
    assert table.column_names == ["name", "_partition", "_offset", "_topic"]
    assert table.column("_offset").to_pylist() == list(range(4999, 5004))
    assert set(table.column("_topic").to_pylist()) == {"mixed"}
    assert table.schema.field("_partition").type == pa.int32()


def test_columns_in_the_order_asked_for(world, filled):
    task = task_of(filled, 0, 1, columns=["name", "id"], metadata_columns=[])
    (batch,) = reading.read_task(task, world.memory)
    assert batch.to_pylist() == [{"name": "n0", "id": 0}]


def test_no_column_at_all(world, filled):
    task = task_of(filled, columns=[], metadata_columns=["_offset"])
    assert sum(batch.num_rows for batch in reading.read_task(task, world.memory)) == 10_004


def test_columns_that_cannot_be(filled):
    with pytest.raises(
        SchemaMismatchError, match=r"'mixed' has no column 'nam'. Did you mean 'name'\? Its columns are id, name"
    ):
        task_of(filled, columns=["nam"])
    with pytest.raises(InvalidConfigurationError, match="'_size' is not a column that txlog adds"):
        task_of(filled, metadata_columns=["_size"])
    with pytest.raises(InvalidConfigurationError, match=r"isolation.level = 'chaos'"):
        reading.plan(filled.runtime, "mixed", 0, 0, None, "chaos")
    with pytest.raises(OffsetOutOfRangeError, match="mixed-0: offset 10005 is out of range, the log holds 0 to 10004"):
        reading.plan(filled.runtime, "mixed", 0, 10_005, None)
    with pytest.raises(UnknownTopicOrPartitionError, match="'mixed' has no partition 1: it has 1, numbered 0 to 0"):
        reading.plan(filled.runtime, "mixed", 1, 0, None)


def test_batches_are_cut(world, filled):
    sizes = [batch.num_rows for batch in reading.read_task(task_of(filled), world.memory, max_rows=1000)]
    assert max(sizes) == 1000
    assert sum(sizes) == 10_004


def test_small_batches_are_joined(world, store):
    with store.producer() as producer:
        for number in range(30):
            producer.send("orders", orders(number), partition=0).result()
        producer.send("orders", many(5000, 30), partition=0).result()
        producer.send("orders", orders(5030), partition=0).result()
    plan = reading.plan(store.runtime, "orders", 0, 0, None)
    (task,) = reading.tasks(store.runtime, [plan])
    assert [batch.num_rows for batch in reading.read_task(task, world.memory)] == [30, 5000, 1]


def test_joining_keeps_rows_order_and_bounds(monkeypatch):
    sizes = [1, 2, 3, 50, 4, 1, 1, 1]
    batches = [pa.record_batch({"n": pa.array([i] * size)}) for i, size in enumerate(sizes)]
    monkeypatch.setattr("txlog.client.rows.SMALL_ROWS", 10)
    monkeypatch.setattr("txlog.client.rows.JOINED_ROWS", 5)
    joined = list(rows.joined(iter(batches)))
    assert [batch.num_rows for batch in joined] == [3, 3, 50, 5, 2]
    assert pa.Table.from_batches(joined).equals(pa.Table.from_batches(batches).combine_chunks())


def test_rows_before_the_damage_are_returned_first():
    def damaged():
        yield pa.record_batch({"n": [1]})
        yield pa.record_batch({"n": [2]})
        raise CorruptRecordError("here")

    read = rows.joined(damaged())
    assert next(read).column("n").to_pylist() == [1, 2]
    with pytest.raises(CorruptRecordError, match="here"):
        next(read)


def test_plans_of_several_partitions_in_one_go(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(*range(40)), key="id")
    session = reading.read_session(world.open().runtime)
    ranges = {tp("orders", n): (0, None) for n in range(4)}
    plans = reading.plan_reads(session, ranges)
    tasks = reading.tasks(session.runtime, list(plans.values()))
    assert sorted(i for task in tasks for i in ids(task, world.memory)) == list(range(40))
    assert reading.plan_reads(session, {}) == {}


def test_planning_goes_without_pyarrow():
    code = (
        "import sys; import txlog.client.reading, txlog.client.offsets; "
        "import txlog.client.staged, txlog.client.session.runtime; "
        "sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- while maintenance runs -----------------------------------------------------------------------------------------


def clean_up(memory: MemoryObjectStore, store: Store) -> None:
    """Replace the sealed segment by a cleaned run of the same rows and delete the old files, as vacuum does later."""
    names = memory.list("mixed/0/")
    (old,) = (name for name in names if name.endswith("-0.index"))
    data = memory.get(f"mixed/0/{old}")
    assert data is not None
    index, _ = envelope.decode(data, SegmentIndex, old)
    topic = store.runtime.topic("mixed")
    plan = reading.plan(store.runtime, "mixed", 0, index.base_offset, index.end_offset)
    (task,) = reading.tasks(store.runtime, [plan])
    unique = "ab" * 16
    run = CleanedRun(base_offset=index.base_offset, end_offset=index.end_offset, generation=1, unique=unique)
    batches = list(reading.read_task(task, memory))
    file = write_rows_file(memory, "mixed", f"0/{run.name.parquet}", batches, topic.schema, offset_column=True)
    merged = msgspec.structs.replace(
        index,
        generation=1,
        last_digest="",
        files=(IndexedFile(**msgspec.structs.asdict(file), schema_id=0, offset_column=True),),
        entries=(
            IndexEntry(
                base_offset=index.base_offset,
                records=file.rows,
                kind="data",
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                transactional=False,
                timestamp=index.entries[-1].timestamp,
                file=0,
            ),
        ),
    )
    overwrite(memory, f"mixed/0/{run.name.index}", envelope.encode(merged))
    clean = Clean(number=0, runs=(run,), created_at=1)
    overwrite(memory, "mixed/0/00000000000000000000.clean", envelope.encode(clean))
    memory.delete(f"mixed/0/{old}")
    for file in index.files:
        memory.delete(f"mixed/{file.path}")


@pytest.mark.parametrize("read_before", [0, 1, 3])
def test_reader_that_finds_its_files_gone_goes_on_from_its_offset(world, filled, read_before):
    batches = reading.read_task(task_of(filled), world.memory, max_rows=1000)
    seen = [i for _ in range(read_before) for i in next(batches).column("id").to_pylist()]
    clean_up(world.memory, world.open())
    seen += [i for batch in batches for i in batch.column("id").to_pylist()]
    assert seen == list(range(10_004))


def test_reader_that_plans_again_keeps_its_columns(world, filled):
    task = task_of(filled)
    first = next(reading.read_task(task, world.memory))
    filled.alter_topic("mixed", add_columns=pa.schema([pa.field("note", pa.string())]))
    # The files of the run have the new column.
    clean_up(world.memory, world.open())
    batches = list(reading.read_task(task, world.memory))
    assert [batch.schema for batch in batches] == [first.schema] * len(batches)


def test_consumer_goes_on_too(world, filled):
    consumer = filled.consumer("mixed", auto_offset_reset="earliest", max_poll_records=1)
    seen = [consumer.poll(0).column("id")[0].as_py()]
    clean_up(world.memory, world.open())
    seen += [i for batch in consumer.iterate() for i in batch.column("id").to_pylist()]
    assert seen == list(range(10_004))


def test_what_stays_gone_is_an_error_that_names_it(world, filled):
    task = task_of(filled)
    (name, *_) = world.memory.list("mixed/0/rows/")
    world.memory.delete(f"mixed/0/rows/{name}")
    with pytest.raises(MissingObjectError, match=name):
        ids(task, world.memory)


@pytest.mark.parametrize(("small_bytes", "at_once"), [(2**20, 2), (2**20, 32), (0, 32)])
def test_files_that_are_read_at_once_come_in_their_order(world, store, monkeypatch, small_bytes, at_once):
    monkeypatch.setattr(rows, "SMALL_FILE_BYTES", small_bytes)
    monkeypatch.setattr(rows, "FILES_AT_ONCE", at_once)
    store.create_topic("files", pa.schema([("id", pa.int64())]), config={"inline.max.bytes": 200})
    with store.producer() as producer:
        for number in range(40):
            # Every seventh batch rides inline, between files.
            ids = [number] if number % 7 == 0 else list(range(number * 100, number * 100 + 100))
            producer.send("files", [{"id": each} for each in ids]).result()
    plan = reading.plan(store.runtime, "files", 0, 0, None)
    schema = store.runtime.topic("files").schema
    one, many = (
        list(rows.read_pieces(world.memory, plan.pieces, schema, None, digests=True, run=run))
        for run in (None, store.runtime.run)
    )
    assert len(one) == 40
    assert [batch.to_pylist() for batch in many] == [batch.to_pylist() for batch in one]


def test_files_of_many_rows_are_not_read_at_once(world, store):
    """A small file can hold many rows that repeat a value. In memory they are large."""
    store.create_topic("files", pa.schema([("text", pa.string())]), config={"inline.max.bytes": 0})
    with store.producer() as producer:
        for _ in range(3):
            producer.send("files", pa.table({"text": ["x" * 1000] * (rows.SMALL_ROWS + 1)})).result()
    plan = reading.plan(store.runtime, "files", 0, 0, None)
    assert all(isinstance(piece, FilePiece) and piece.file.bytes < rows.SMALL_FILE_BYTES for piece in plan.pieces)

    def run(program):
        raise AssertionError("several files are read at once")

    schema = store.runtime.topic("files").schema
    read = rows.read_pieces(world.memory, plan.pieces, schema, None, run=run)
    assert sum(batch.num_rows for batch in read) == 3 * (rows.SMALL_ROWS + 1)
