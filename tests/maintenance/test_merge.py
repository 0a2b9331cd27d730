"""A merge changes nothing that a reader sees, at any time, and leaves one file for each run."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.test_staged import staged
from tests.client.world import World
from txlog.client import reading
from txlog.client.groups import OffsetAndTimestamp
from txlog.client.offsets import offsets_for_times
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.core import envelope, names
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.records import SegmentIndex, TxnIndex
from txlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    MissingObjectError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
)
from txlog.maintenance.fsck import check_store
from txlog.maintenance.merge import Merged, copy_rows, merge_partition, plan_partition, publish_merge
from txlog.testing.failing_store import Fault, SimulatedCrash

SCHEMA = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
TP = TopicPartition("orders", 0)
LARGE = MergePolicy(target_bytes=2**30)


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 4})
    return opened


def fill(world: World, store: Store, seed: int, transactions: int = 30) -> int:
    """Append random transactions, some aborted, inline and as files, eager and staged, and plain batches.

    Return the row count.
    """
    dice = random.Random(seed)
    number = 0
    if dice.random() < 0.5:
        store.alter_topic("orders", add_columns=pa.schema([pa.field(f"later{seed}", pa.float64())]))

    def some() -> pa.Table:
        nonlocal number
        count = dice.choice([1, 2, 5, 5, 5, 3000])
        number += count
        return pa.table({"id": range(number - count, number), "name": ["n" * dice.randrange(5)] * count}, SCHEMA)

    with (
        store.producer(transactional_id="eager", staged=False) as eager,
        store.producer(transactional_id="staged", staged=True) as staged,
        store.producer() as plain,
    ):
        for _ in range(transactions):
            world.clock.advance_ms(dice.choice([0, 1, 1000]))
            which = dice.choice([eager, staged, plain])
            if which is plain:
                plain.send("orders", some()).result()
                continue
            which.begin_transaction()
            for _ in range(dice.randrange(1, 4)):
                which.send("orders", some())
            which.flush()
            if dice.random() < 0.4:
                plain.send("orders", some()).result()
            if dice.random() < 0.3:
                which.abort_transaction()
            else:
                which.commit_transaction()
    return number


def read(store: Store, start: int = 0, end: int | None = None, isolation: str = "read_committed") -> pa.Table:
    plan = reading.plan(store.runtime, "orders", 0, start, end, isolation)
    (task,) = reading.tasks(store.runtime, [plan])
    return table_of(reading.read_task(task, store.runtime.store))


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    made = list(batches)
    return pa.Table.from_batches(made).combine_chunks() if made else pa.table({})


def ids(table: pa.Table) -> list[int]:
    found: list[Any] = table["id"].to_pylist() if table.num_rows else []
    return found


def between(table: pa.Table, start: int, end: int) -> pa.Table:
    offsets = table["_offset"].to_numpy()
    return table.slice(int(np.searchsorted(offsets, start)), int(((offsets >= start) & (offsets < end)).sum()))


def merge(store: Store, policy: MergePolicy = LARGE) -> tuple[Merged, ...]:
    return merge_partition(store.runtime, reading.read_session(store.runtime), TP, policy)


def look(store: Store) -> dict[str, Any]:
    """Return all that readers of every kind can see of the partition."""
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([TP])
    ends = store.admin().list_offsets("orders")[TP]
    start = ends.log_start_offset
    rows = read(store, start)
    check_times(store, rows)
    return {
        "read": rows,
        "consumer": table_of(consumer.iterate(0)).select(rows.column_names),
        "snapshot": snapshot(store, start),
        "ends": ends,
    }


def check_times(store: Store, rows: pa.Table) -> None:
    """Check that the offset of a time separates older rows from newer ones, whatever aborted rows are between them."""
    times = rows["_timestamp"].cast(pa.int64()).to_numpy() // 1000
    offsets = rows["_offset"].to_numpy()
    session = reading.read_session(store.runtime)
    for time in sorted(
        {int(each) + delta for each in np.unique(times)[:: max(len(np.unique(times)) // 8, 1)] for delta in (-1, 0, 1)}
    ):
        found = offsets_for_times(session, {TP: time}, "read_committed")[TP]
        older = int((times < time).sum())
        assert older == (len(offsets) if found is None else int((offsets < found.offset).sum())), time


def snapshot(store: Store, start: int) -> pa.Table:
    session = reading.read_session(store.runtime)
    cut = reading.take_cut(session, ["orders"])
    plans = reading.plan_reads(session, {TP: (start, None)}, cut=cut)
    (task,) = reading.tasks(store.runtime, list(plans.values()))
    return table_of(reading.read_task(task, store.runtime.store))


def check(store: Store) -> None:
    report = check_store(store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"]


def objects(store: Store, suffix: str) -> list[str]:
    return [name for name in store.runtime.store.list(TP.folder) if name.endswith(suffix)]


@pytest.mark.parametrize(("seed", "age_ms"), [(0, 0), (1, 90_000_000)], ids=["young", "old"])
def test_a_merge_changes_no_row_no_offset_no_time(world: World, store: Store, seed: int, age_ms: int) -> None:
    """Young transactions have separate entries in the run's index, for snapshots; old ones share entries.

    Then merge again.
    """
    fill(world, store, seed)
    world.clock.advance_ms(age_ms)
    generations = []
    for attempt in range(2):
        before = look(store)
        for done in merge(store):
            assert done.took_effect
            assert done.files <= 1 <= done.files_before
            generations.append(done.generation)
        assert look(store) == before
        assert look(world.open()) == before
        dice = random.Random(seed)
        last = before["read"]["_offset"][-1].as_py()
        for _ in range(10):
            start, end = sorted((dice.randrange(last), dice.randrange(last)))
            found, expected = read(store, start, end), between(before["read"], start, end)
            assert found.equals(expected) if expected.num_rows else not found.num_rows
        check(store)
        fill(world, store, 100 * (attempt + 1) + seed, transactions=12)
    assert generations == [1, 2]


def test_the_log_start_may_lie_in_a_run(world: World, store: Store) -> None:
    fill(world, store, 3)
    world.clock.advance_ms(90_000_000)
    merge(store)
    before = look(store)
    offsets = before["read"]["_offset"].to_pylist()
    for start in sorted(random.Random(3).sample(offsets, 8)):
        store.admin().delete_records("orders", 0, start)
        after = look(store)
        assert after["read"].equals(between(before["read"], start, offsets[-1] + 1))
        first = after["read"].slice(0, 1).to_pylist()[0]
        found = offsets_for_times(reading.read_session(store.runtime), {TP: 0}, "read_committed")[TP]
        append_ms = round(first["_timestamp"].timestamp() * 1000)
        assert found == OffsetAndTimestamp(offset=first["_offset"], timestamp=append_ms)
        with pytest.raises(OffsetOutOfRangeError):
            read(store, start - 1)
    merge(store)
    assert look(store) == after
    check(store)


def test_aborted_rows_go_and_their_ranges_stay(world: World, store: Store) -> None:
    producer = store.producer(transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", [{"id": 1, "name": "gone"}])
    producer.flush()
    with store.producer() as plain:
        for number in range(2, 10):
            plain.send("orders", [{"id": number, "name": "kept"}]).result()
        producer.abort_transaction()
        for number in range(10, 20):
            plain.send("orders", [{"id": number, "name": "kept"}]).result()
    before = read(store)
    assert ids(before) == list(range(2, 20))
    (done,) = merge(store)
    assert done.rows == done.end_offset - done.base_offset - 2
    assert read(store) == before
    assert ids(read(store, isolation="read_uncommitted")) == ids(before)
    path = TP.folder + names.SegmentName(done.base_offset, done.end_offset, 1, unique_of(store)).txnindex
    kept, _ = envelope.decode(store.runtime.store.get(path) or b"", TxnIndex, path)
    assert [(txn.first_offset, txn.last_offset) for txn in kept.aborted] == [(0, 9)]


def unique_of(store: Store) -> str:
    (name,) = [each for each in objects(store, ".index") if "-0.index" not in each]
    return name.removesuffix(".index").split("-")[3]


def test_a_later_segment_is_merged_before_the_aborted_rows(world: World, store: Store) -> None:
    """The rows are in a segment that stays, and their marker is in the run: only the run's .txnindex hides the rows."""
    store.alter_topic("orders", config={"segment.batches": 1})
    producer = store.producer(transactional_id="t")
    producer.init_transactions()
    with store.producer() as plain:
        producer.begin_transaction()
        # This file is large enough, so that no merge copies it.
        producer.send("orders", pa.table({"id": range(60_000), "name": ["gone" * 9] * 60_000}, SCHEMA))
        producer.flush()
        plain.send("orders", [{"id": 1, "name": "a"}]).result()
        producer.abort_transaction()
        for number in range(2, 20):
            plain.send("orders", [{"id": number, "name": "kept"}]).result()
    before = read(store)
    assert ids(before) == list(range(1, 20))
    (aborted,) = next(index.files for index in indexes(store).values() if index.base_offset == 0)
    (done,) = merge(store, MergePolicy(target_bytes=aborted.bytes))
    assert done.base_offset > 0
    assert read(store) == before
    check(store)


def indexes(store: Store) -> dict[str, SegmentIndex]:
    found = {}
    for name in objects(store, ".index"):
        data = store.runtime.store.get(TP.folder + name) or b""
        found[name] = envelope.decode(data, SegmentIndex, name)[0]
    return found


# -- others at work ---------------------------------------------------------------------------------------------------


def test_of_two_merges_at_once_one_takes_effect(world: World, store: Store) -> None:
    fill(world, store, 1)
    before = look(store)
    other = world.open()
    session, theirs = reading.read_session(store.runtime), reading.read_session(other.runtime)
    mine, others = plan_partition(session, TP, LARGE), plan_partition(theirs, TP, LARGE)
    files = [copy_rows(store.runtime, each) for each in mine], [copy_rows(other.runtime, each) for each in others]
    assert all(publish_merge(theirs, *each).took_effect for each in zip(others, files[1], strict=True))
    assert not any(publish_merge(session, *each).took_effect for each in zip(mine, files[0], strict=True))
    assert look(store) == before
    assert look(world.open()) == before
    assert not merge(store)
    check(store)


def test_runs_of_one_plan_are_published_in_any_order(world: World, store: Store) -> None:
    fill(world, store, 2)
    before = look(store)
    session = reading.read_session(store.runtime)
    planned = plan_partition(session, TP, MergePolicy(target_bytes=2**30, max_inputs=3))
    assert len(planned) > 2
    for each in reversed(planned):
        assert publish_merge(session, each, copy_rows(store.runtime, each)).took_effect
        assert look(store) == before
    check(store)


def test_writers_go_on_beside_a_merge(world: World, store: Store) -> None:
    """A run that took long to copy is published anyway; it lacks rows that came meanwhile."""
    fill(world, store, 4)
    session = reading.read_session(store.runtime)
    (planned,) = plan_partition(session, TP, LARGE)
    file = copy_rows(store.runtime, planned)
    fill(world, store, 5)
    before = look(store)
    assert publish_merge(session, planned, file).took_effect
    assert look(store) == before
    check(store)


# -- faults -----------------------------------------------------------------------------------------------------------


def every_crash(world: World) -> Iterator[int]:
    """Yield the partition after a merge that died at each of its requests, in turn."""
    whole = dict(objects_of(world))
    for number in range(1, 1000):
        world.memory = type(world.memory)(clock=world.clock)
        for path, data in whole.items():
            overwrite(world.memory, path, data)
        try:
            merge(world.failing(Fault(action="crash", moment="after", number=number))[1])
        except SimulatedCrash:
            yield number
        else:
            assert number > 20
            return


def objects_of(world: World, folder: str = "") -> Iterator[tuple[str, bytes]]:
    for name in world.memory.list(folder):
        if name.endswith("/"):
            yield from objects_of(world, folder + name)
        else:
            data = world.memory.get(folder + name)
            assert data is not None
            yield folder + name, data


def test_a_crash_at_every_request(world: World, store: Store) -> None:
    """A crash before a request leaves the same store as a crash after the previous request."""
    fill(world, store, 7, transactions=8)
    before = look(store)
    seen = set()
    for number in every_crash(world):
        left = frozenset(path for path, _ in objects_of(world))
        if left in seen:
            continue
        seen.add(left)
        after = world.open(world.memory)
        assert look(after) == before, number
        check(after)
        assert all(each.took_effect for each in merge(after))
        assert look(after) == before, number
        assert not merge(after)
        check(after)
    assert len(seen) >= 4


@pytest.mark.parametrize("suffix", [".parquet", ".index", ".txnindex"])
def test_a_damaged_input_is_named_and_nothing_is_published(world: World, store: Store, suffix: str) -> None:
    fill(world, store, 8)
    path = TP.folder + objects(store, suffix)[0]
    data = bytearray(world.memory.get(path) or b"")
    data[len(data) // 2] ^= 4
    overwrite(world.memory, path, bytes(data))
    with pytest.raises(CorruptRecordError, match=path):
        merge(world.open())
    assert not objects(store, ".clean")


def test_columns_whose_schema_is_gone_are_not_left_out(world: World, store: Store) -> None:
    fill(world, store, 9, transactions=3)
    store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    with store.producer() as producer:
        for number in range(8):
            producer.send("orders", [{"id": number, "note": "kept"}]).result()
    path = "orders/" + max(name for name in world.memory.list("orders/") if name.startswith("topic."))
    world.memory.delete(path)
    with pytest.raises(MissingObjectError, match=path):
        merge(world.open())
    assert not objects(store, ".clean")


def test_every_byte_of_a_large_input_is_compared(world: World, store: Store) -> None:
    """Also bytes between pages, which no CRC covers, and rows that the merge leaves out."""
    ids = list(range(500_000))
    random.Random(1).shuffle(ids)
    with store.producer() as producer:
        for _ in range(5):
            producer.send("orders", pa.table({"id": ids, "name": pa.nulls(len(ids), pa.string())}, SCHEMA)).result()
    with_rows = [f"rows/{name}" for name in world.memory.list(TP.folder + "rows/")]
    sizes = {name: world.memory.size(TP.folder + name) for name in with_rows}
    assert min(sizes.values()) > 2**20
    path = TP.folder + min(sizes)
    data = world.memory.get(path) or b""
    damaged = bytearray(data)
    # This is the first page's header. Readers use its compressed size, but need not use its CRC and statistics.
    position = next(at for at in range(4, 200) if at and not _breaks(world, path, data, at, store))
    damaged[position] ^= 1
    overwrite(world.memory, path, bytes(damaged))
    with pytest.raises(CorruptRecordError, match=f"{path}: its digest is"):
        merge(store)
    assert not objects(store, ".clean")


def _breaks(world: World, path: str, data: bytes, at: int, store: Store) -> bool:
    """Return whether a reader notices one flipped bit."""
    changed = bytearray(data)
    changed[at] ^= 1
    overwrite(world.memory, path, bytes(changed))
    try:
        read(store, 0, 10)
    except CorruptRecordError:
        return True
    return False


def test_internal_topics_are_refused(store: Store) -> None:
    session = reading.read_session(store.runtime)
    with pytest.raises(InvalidRequestError, match="snapshots"):
        plan_partition(session, TopicPartition("__transaction_state", 0), LARGE)


def test_nothing_to_do_writes_nothing(world: World, store: Store) -> None:
    fill(world, store, 9)
    merge(store)
    before = dict(objects_of(world))
    assert merge(world.open()) == ()
    assert dict(objects_of(world)) == before


def test_a_snapshot_stays_whole_where_a_drawn_id_hung_and_was_forgotten(world: World) -> None:
    """Its rows are old and its id is forgotten.

    A merge keeps no producer of such a commit, so the id must stay for the grace.
    """
    day_ms = 86_400_000
    world.open().create_topic("pairs", SCHEMA, partitions=2, config={"segment.batches": 2})
    outage, slow = world.outage()
    txn = StagedTransaction.begin(slow.runtime, max_block_ms=1000)
    parts = [part for partition in (0, 1) for part in staged(slow, txn, 7, partition=partition, topic="pairs")]
    outage.pattern = r"put_if_absent pairs/1/.*batch"
    with pytest.raises(OutcomeUnknownError):
        txn.commit(parts)
    with world.open().producer() as producer:
        for number in range(6):
            producer.send("pairs", [{"id": number, "name": "n"}], partition=0).result()
    world.clock.advance_ms(3 * day_ms)
    reader = reading.read_session(world.open().runtime)
    cut = reading.take_cut(reader, ["pairs"])
    outage.pattern = None
    txn.commit(parts)
    assert not txn.forget()
    first, second = TopicPartition("pairs", 0), TopicPartition("pairs", 1)
    cleaner = world.open().runtime
    (merged,) = merge_partition(cleaner, reading.read_session(cleaner), first, LARGE)
    assert merged.took_effect
    plans = reading.plan_reads(reader, {first: (0, None), second: (0, None)}, cut=cut)
    tasks = reading.tasks(reader.runtime, list(plans.values()))
    batches = [batch for task in tasks for batch in reading.read_task(task, world.counting)]
    assert sorted(row["id"] for batch in batches for row in batch.to_pylist()) == list(range(6))
    world.clock.advance_ms(day_ms)
    assert not txn.forget(), "four clocks may be wrong"
    world.clock.advance_ms(4 * MAX_CLOCK_ERROR_MS)
    assert txn.forget()
