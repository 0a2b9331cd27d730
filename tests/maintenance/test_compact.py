"""A compaction keeps the latest committed row of each key and moves no row, at any time and after a crash at any
point."""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World
from tests.maintenance.retain import retain
from txlog.client import reading
from txlog.client.offsets import offsets_for_times
from txlog.client.store import Store
from txlog.client.tables import positions
from txlog.core.cleaning import PLAIN, FileLayout, MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TopicPartition
from txlog.core.records import IndexEntry
from txlog.errors import InvalidConfigurationError, InvalidRequestError, MissingObjectError, OutcomeUnknownError
from txlog.maintenance.compact import Compacted, cleanable_part, compact_partition, compaction_policy
from txlog.maintenance.fsck import check_store
from txlog.maintenance.merge import merge_partition
from txlog.protocol.context import Views
from txlog.protocol.read import read_indexes
from txlog.testing.failing_store import Fault, Moment, SimulatedCrash

SCHEMA = pa.schema((pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("city", pa.string())))
TP = TopicPartition("orders", 0)
LARGE = MergePolicy(target_bytes=2**30)
DAY_MS = 86_400_000
CONFIG: dict[str, Any] = {
    "segment.batches": 4,
    "inline.max.bytes": 4096,
    "cleanup.policy": "compact",
    "key.columns": "id",
}
WRITES = "^(put|write)"
MOMENTS: tuple[Moment, ...] = ("before", "after")
Row = tuple[Any, ...]


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config=CONFIG)
    return opened


def rows_of(pairs: list[tuple[int | None, str | None]]) -> pa.Table:
    """Return a table of (key, value) pairs. A pair without a value is a tombstone."""
    return pa.table(
        {
            "id": [key for key, _ in pairs],
            "name": [value for _, value in pairs],
            "city": [None if value is None or key == 3 else "x" for key, value in pairs],
        },
        SCHEMA,
    )


def send(store: Store, *pairs: tuple[int | None, str | None]) -> None:
    """Send each pair in a separate batch. Finished segments are then sealed."""
    with store.producer() as producer:
        for pair in pairs:
            producer.send("orders", rows_of([pair]), partition=0).result()


def fill(
    store: Store, seed: int, transactions: int = 24, keys: int = 12, sizes: tuple[int, ...] = (1, 2, 5, 400)
) -> None:
    """Fill the log with random transactions: some aborted, inline and files, eager and staged, and plain batches
    between."""
    dice = random.Random(seed)
    number = 0

    def some() -> pa.Table:
        nonlocal number
        pairs: list[tuple[int | None, str | None]] = []
        for _ in range(dice.choice(sizes)):
            number += 1
            pairs.append((dice.randrange(keys), None if dice.random() < 0.2 else f"{seed}.{number}"))
        return rows_of(pairs)

    with (
        store.producer(transactional_id="eager", staged=False) as eager,
        store.producer(transactional_id="staged", staged=True) as staged,
        store.producer() as plain,
    ):
        for _ in range(transactions):
            which = dice.choice([eager, staged, plain])
            if which is plain:
                plain.send("orders", some(), partition=0).result()
                continue
            which.begin_transaction()
            for _ in range(dice.randrange(1, 4)):
                which.send("orders", some(), partition=0)
            which.flush()
            if dice.random() < 0.4:
                plain.send("orders", some(), partition=0).result()
            if dice.random() < 0.3:
                which.abort_transaction()
            else:
                which.commit_transaction()


def read(store: Store, start: int = 0, end: int | None = None, isolation: str = "read_committed") -> list[Row]:
    plan = reading.plan(store.runtime, "orders", 0, start, end, isolation)
    (task,) = reading.tasks(store.runtime, [plan])
    found: list[Row] = []
    for batch in reading.read_task(task, store.runtime.store):
        found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def latest(rows: list[Row]) -> dict[Any, Row]:
    """Return the latest row by key, without keys whose latest row is a tombstone."""
    newest = {row[0]: row for row in rows}
    return {key: row for key, row in newest.items() if row[1:3] != (None, None)}


def policy_of(store: Store, **changes: Any) -> CompactionPolicy:
    found = compaction_policy(store.runtime, store.runtime.topic("orders"))
    assert found is not None
    return replace(found, **changes)


def compact(store: Store, **changes: Any) -> tuple[Compacted, ...]:
    session = reading.read_session(store.runtime)
    return compact_partition(store.runtime, session, TP, policy_of(store, **changes))


def merge(store: Store, layout: FileLayout = PLAIN) -> None:
    merge_partition(store.runtime, reading.read_session(store.runtime), TP, LARGE, layout=layout)


def index_entries(store: Store) -> list[IndexEntry]:
    """Return the entries of the sealed part, as readers see it."""
    view = reading.read_session(store.runtime).fresh_views([TP], "looking")[TP]
    read = store.runtime.run(read_indexes(view, list(view.walk), {}))
    return [entry for name in view.walk for entry in read[name].index.entries]


def sealed_end(store: Store) -> int:
    return cleanable_part(reading.read_session(store.runtime), TP, policy_of(store)).end_offset


def check(store: Store) -> None:
    report = check_store(store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"]


@pytest.mark.parametrize("seed", range(2))
def test_the_latest_row_of_each_key_stays_where_it_was(store: Store, seed: int) -> None:
    fill(store, seed)
    before = read(store)
    (done,) = compact(store)
    assert done.took_effect
    assert done.files == 1
    assert done.bytes < done.bytes_before
    after = read(store)
    assert latest(after) == latest(before)
    assert set(after) <= set(before)
    assert [row[-2] for row in after] == sorted(row[-2] for row in after)
    compacted = [row for row in after if row[-2] < done.end_offset]
    assert len(compacted) == len({row[0] for row in compacted}) == done.rows <= 12
    assert [row for row in before if row[-2] >= done.end_offset] == [row for row in after if row[-2] >= done.end_offset]
    assert done.rows_before - done.superseded == done.rows
    check(store)
    # Read random parts of it, with all their gaps.
    dice = random.Random(seed)
    for _ in range(20):
        start, end = sorted(dice.randrange(before[-1][-2]) for _ in range(2))
        assert read(store, start, end) == [row for row in after if start <= row[-2] < end]
    assert set(after) <= set(read(store, isolation="read_uncommitted"))
    # A second compaction finds nothing to do, whatever the ratio.
    assert compact(store, min_cleanable_dirty_ratio=0.0) == ()


@pytest.mark.parametrize("seed", range(2))
def test_in_several_passes_and_with_merges_between(store: Store, seed: int) -> None:
    last: list[Row] = []
    for part in range(3):
        fill(store, seed * 10 + part, 12, sizes=(1, 2, 5))
        before = read(store)
        if seed:
            merge(store, FileLayout(sort=("name",)))
        assert read(store) == before
        passes = compact(store, max_keys=9, min_cleanable_dirty_ratio=0.0)
        assert len(passes) > 1
        ends = [each.compacted_to for each in passes]
        assert ends == sorted(set(ends))
        after = read(store)
        assert latest(after) == latest(before)
        if part != 1:
            merge(store)
            assert read(store) == after
        last = after
    end = sealed_end(store)
    assert len([row for row in last if row[-2] < end]) <= 12
    assert compact(store, min_cleanable_dirty_ratio=0.0) == ()
    check(store)


def test_a_tombstone_goes_its_time_after_the_first_compaction_that_saw_it(world: World, store: Store) -> None:
    send(store, (1, "a"), (2, "b"), (1, None), (3, None), (9, "z"), (9, "y"), (9, "x"), (9, "w"), (8, ""))
    world.clock.advance_ms(10 * DAY_MS)
    (first,) = compact(store)
    assert (first.rows, first.tombstones, first.superseded) == (4, 2, 4)
    assert [row[:2] for row in read(store)] == [(2, "b"), (1, None), (3, None), (9, "w"), (8, "")]
    world.clock.advance_ms(DAY_MS // 2)
    # A merge keeps the compacted range and the time since which a tombstone waits.
    send(store, *((100 + number, "new") for number in range(4)))
    assert compact(store, min_cleanable_dirty_ratio=0.7) == ()
    merge(store)
    assert compact(store, min_cleanable_dirty_ratio=0.7) == ()
    world.clock.advance_ms(DAY_MS // 2 - 1)
    send(store, (2, None))
    (second,) = compact(store, min_cleanable_dirty_ratio=0.1)
    assert (second.superseded, second.expired_tombstones, second.tombstones) == (0, 0, 2)
    world.clock.advance_ms(1)
    (third,) = compact(store, min_cleanable_dirty_ratio=0.0)
    assert (third.superseded, third.expired_tombstones, third.tombstones) == (0, 2, 0)
    assert (1, None) not in [row[:2] for row in read(store)]
    check(store)


def test_rows_without_a_key_stay(world: World, store: Store) -> None:
    store.alter_topic("orders", config={"cleanup.policy": "delete"})
    with world.open().producer() as producer:
        for _ in range(5):
            producer.send("orders", rows_of([(None, "a"), (1, "b"), (None, None)]), partition=0).result()
    store.alter_topic("orders", config={"cleanup.policy": "compact"})
    (done,) = compact(store)
    assert (done.keyless, done.rows, done.superseded) == (8, 9, 3)
    check(store)


def test_young_rows_open_transactions_and_the_active_segment_stay(world: World, store: Store) -> None:
    with store.producer(transactional_id="slow") as slow, store.producer() as producer:
        for number in range(4):
            producer.send("orders", rows_of([(1, str(number))]), partition=0).result()
        world.clock.advance_ms(1000)
        slow.begin_transaction()
        slow.send("orders", rows_of([(1, "open")]), partition=0).result()
        for number in range(10):
            producer.send("orders", rows_of([(1, f"late {number}")]), partition=0).result()
        assert compact(store, min_compaction_lag_ms=5000) == ()
        (done,) = compact(store)
        assert (done.end_offset, done.rows) == (4, 1)
        slow.abort_transaction()
        (done,) = compact(store)
        assert done.end_offset == 12
        assert [row[1] for row in read(store)] == ["late 6", "late 7", "late 8", "late 9"]
    check(store)


def test_what_the_log_start_cut_off_is_not_copied(store: Store) -> None:
    fill(store, 7, 20)
    before = read(store)
    cut = before[len(before) // 2][-2]
    store.admin().delete_records("orders", 0, cut)
    (done,) = compact(store)
    assert latest(read(store, cut)) == latest([row for row in before if row[-2] >= cut])
    assert done.rows_before <= len([row for row in before if row[-2] >= cut])
    check(store)


def test_producers_lose_nothing(world: World, store: Store) -> None:
    producer = store.producer()
    for number in range(9):
        producer.send("orders", rows_of([(1, str(number))]), partition=0).result()
    compact(store)
    state = {entry.producer_id: entry for entry in store.admin().describe_producers("orders", 0)}
    producer.send("orders", rows_of([(1, "more")]), partition=0).result()
    after = {entry.producer_id: entry for entry in store.admin().describe_producers("orders", 0)}
    assert set(state) == set(after)
    assert read(store)[-1][1] == "more"


def test_a_snapshot_tells_what_a_compaction_left_of_each_transaction(store: Store) -> None:
    fill(store, 3, 10)
    merge(store)
    (done,) = compact(store)
    entries = index_entries(store)
    told = [entry for entry in entries if entry.transactional]
    assert told
    assert sum(entry.records for entry in entries) == done.rows
    assert any(not entry.records for entry in told), "batches of young transactions are told where no row is left"
    merge(store)
    assert [entry for entry in index_entries(store) if entry.transactional] == told


def test_killed_at_any_request_it_changes_nothing_or_everything(world: World, store: Store) -> None:
    fill(store, 11, 8, sizes=(1, 2, 5))
    before = read(store)
    kept = dict(world.memory._objects)
    counting, other = world.failing()
    (done,) = compact(other)
    # A crash at a read leaves the same store as a crash after the write before it.
    writes = [each for each in counting.operations if re.match(WRITES, each)]
    after = read(store)
    assert latest(after) == latest(before)
    seen = set()
    for number in range(1, len(writes) + 1):
        for moment in MOMENTS:
            world.memory._objects.clear()
            world.memory._objects.update(kept)
            _, dying = world.failing(Fault(action="crash", moment=moment, match=WRITES, number=number))
            with pytest.raises(SimulatedCrash):
                compact(dying)
            fresh = world.open()
            found = read(fresh)
            assert found in (before, after)
            seen.add(found == after)
            again = compact(fresh)
            assert len(again) == (found == before)
            assert read(fresh) == after
    assert seen == {True, False}
    assert done.took_effect


def test_of_two_at_once_one_wins(world: World, store: Store) -> None:
    fill(store, 5, 10)
    before = read(store)
    session = reading.read_session(store.runtime)
    other = world.open()
    calls: list[Compacted] = []

    def interfere(*_: Any) -> None:
        if not calls:
            calls.append(compact(other)[0])

    found = compact_partition(store.runtime, session, TP, policy_of(store), interfere)
    assert [each.took_effect for each in found] == [False]
    assert calls[0].took_effect
    assert latest(read(store)) == latest(before)
    check(store)


def test_columns_whose_schema_is_gone_are_not_left_out(world: World, store: Store) -> None:
    fill(store, 3, transactions=3)
    store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    with store.producer() as producer:
        for number in range(8):
            producer.send("orders", [{"id": number, "note": "kept"}], partition=0).result()
    path = "orders/" + max(name for name in world.memory.list("orders/") if name.startswith("topic."))
    world.memory.delete(path)
    with pytest.raises(MissingObjectError, match=path):
        compact(world.open())
    assert not [name for name in world.memory.list(TP.folder) if name.endswith(".clean")]


def test_what_cannot_be_compacted_is_refused(store: Store) -> None:
    session = reading.read_session(store.runtime)
    with pytest.raises(InvalidRequestError, match="snapshots of an internal topic are its compaction"):
        compact_partition(store.runtime, session, TopicPartition("__consumer_offsets", 0), policy_of(store))
    store.create_topic("plain", SCHEMA)
    assert compaction_policy(store.runtime, store.runtime.topic("plain")) is None
    with pytest.raises(InvalidConfigurationError, match=r"needs key\.columns"):
        store.create_topic("keyless", SCHEMA, config={"cleanup.policy": "compact,delete"})


def test_a_consumer_passes_over_holes_wherever_it_begins(store: Store) -> None:
    fill(store, 2, 14, sizes=(1, 2, 5))
    compact(store)
    rows = read(store)
    with store.consumer(enable_auto_commit=False) as consumer:
        consumer.assign([TP])
        for start in range(0, rows[-1][-2] + 1, 3):
            consumer.seek(TP, start)
            batch = None
            while batch is None:
                batch = consumer.poll(0)
            expected = next(row for row in rows if row[-2] >= start)
            assert batch.to_pylist()[0]["_offset"] == expected[-2]
            assert consumer.position(TP) > expected[-2]


@pytest.mark.parametrize("by", ["time", "bytes"])
def test_retention_takes_batches_of_a_compacted_run_and_the_next_compaction_their_bytes(world: World, by: str) -> None:
    hour_ms = 3_600_000
    store = world.open()
    limits = {"retention.ms": 5 * hour_ms} if by == "time" else {"retention.bytes": 16_000}
    store.create_topic("orders", SCHEMA, config={**CONFIG, "cleanup.policy": "compact,delete"} | limits)
    with store.producer() as producer:
        for number in range(41):
            text = random.Random(number).randbytes(1000).hex()
            producer.send("orders", rows_of([(number % 30, text)]), partition=0).result()
            world.clock.advance_ms(hour_ms // 2)
    (done,) = compact(store)
    assert (done.end_offset, done.rows) == (40, 30)
    before = read(store)
    planned = retain(store, TP, dry_run=True)
    moved = retain(store, TP)
    assert moved is not None
    assert planned == moved
    start = moved.log_start_after
    left = read(store, start)
    assert left == [row for row in before if row[-2] >= start]
    if by == "time":
        now = store.runtime.clock.now_ms() / 1000
        assert all(now - row[-1].timestamp() <= 6 * hour_ms / 1000 for row in left)
        assert moved.rows == len(before) - len(left) == 20
        assert retain(store, TP) is None
    else:
        # Retention keeps as many batches as the limit allows, and its own record of 1 KB counts too.
        assert 10 < len(left) < 20
    (again,) = compact(store, min_cleanable_dirty_ratio=0.1)
    assert again.rows_before <= len(left)
    assert again.bytes < again.bytes_before
    assert read(store, start)[: len(left)] == left
    assert compact(store, min_cleanable_dirty_ratio=0.0) == ()
    check(store)


def test_a_snapshot_that_began_before_shows_what_it_showed_or_says_that_it_is_too_old(
    world: World, store: Store
) -> None:
    with store.producer(transactional_id="late") as late, store.producer() as plain:
        for number in range(4):
            plain.send("orders", rows_of([(number, "old")]), partition=0).result()
        late.begin_transaction()
        late.send("orders", rows_of([(7, "late"), (8, "late"), (7, "later")]), partition=0).result()
        plain.send("orders", rows_of([(5, "old")]), partition=0).result()
        session = reading.read_session(store.runtime)
        cut = reading.take_cut(session, ["orders"])
        held = dict(session.views)
        late.send("orders", rows_of([(9, "late")]), partition=0).result()
        late.commit_transaction()
        for number in range(8):
            plain.send("orders", rows_of([(number, "new")]), partition=0).result()

    def snapshot(views: Views | None = None) -> list[Row]:
        fresh = reading.read_session(world.open().runtime)
        (plan,) = reading.plan_reads(fresh, {TP: (0, None)}, cut=cut, views=views).values()
        (task,) = reading.tasks(store.runtime, [plan])
        batches = reading.read_task(task, store.runtime.store)
        return [row[:2] for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]

    before = snapshot()
    assert before == [(0, "old"), (1, "old"), (2, "old"), (3, "old"), (5, "old")]
    (done,) = compact(store)
    assert done.compacted_to > cut.ends[TP]
    # The run lacks the superseded rows. For the grace they stay where the snapshot found them.
    assert snapshot(held) == before
    with pytest.raises(
        InvalidRequestError, match=f"older than a compaction by key of offsets below {done.compacted_to}"
    ):
        snapshot()
    assert {(7, "new"), (8, "late"), (9, "late"), (0, "new")} <= {row[:2] for row in read(store)}
    merge(store)
    assert snapshot(held) == before
    with pytest.raises(InvalidRequestError, match="take a newer one"):
        snapshot()


def test_a_snapshot_of_the_past_hides_a_transaction_whose_later_row_was_compacted(world: World, store: Store) -> None:
    store.create_topic("pairs", SCHEMA)
    with store.producer(transactional_id="late", staged=False) as late:
        late.begin_transaction()
        late.send("pairs", rows_of([(1, "late")]), partition=0)
        late.flush()
        as_of = datetime.datetime.fromtimestamp(world.clock.now_ms() / 1000, datetime.UTC)
        world.clock.advance_ms(1000)
        late.send("orders", rows_of([(1, "late")]), partition=0)
        late.flush()
        late.commit_transaction()
    send(store, *((number, "new") for number in range(1, 9)))
    assert store.snapshot("orders", "pairs", as_of=as_of).table("pairs").count() == 0
    (done,) = compact(store)
    assert done.superseded == 1
    past = store.snapshot("orders", "pairs", as_of=as_of)
    assert past.table("pairs").count() == 0
    with pytest.raises(InvalidRequestError, match="take a newer one"):
        past.table("orders").count()
    assert store.snapshot("orders", "pairs").table("pairs").count() == 1


def test_a_time_is_refused_of_which_tombstones_may_be_gone(world: World, store: Store) -> None:
    store.alter_topic("orders", config={"delete.retention.ms": 60_000})
    as_of = datetime.datetime.fromtimestamp(world.clock.now_ms() / 1000, datetime.UTC)
    world.clock.advance_ms(60_000)
    assert store.snapshot("orders", as_of=as_of).table("orders").count() == 0
    world.clock.advance_ms(1)
    with pytest.raises(
        InvalidRequestError, match=r"after delete\.retention\.ms = 60000 ms\. hint: choose a later time"
    ):
        store.snapshot("orders", as_of=as_of)


def test_tombstones_that_may_go_during_the_look_count(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.alter_topic("orders", config={"delete.retention.ms": 60_000})
    as_of = datetime.datetime.fromtimestamp(world.clock.now_ms() / 1000, datetime.UTC)

    def slow_look(*args: Any) -> Any:
        world.clock.advance_ms(60_001)
        return offsets_for_times(*args)

    monkeypatch.setattr(positions, "offsets_for_times", slow_look)
    with pytest.raises(InvalidRequestError, match=r"after delete\.retention\.ms = 60000 ms"):
        store.snapshot("orders", as_of=as_of)


def test_a_commit_that_hangs_ends_what_is_compacted(world: World, store: Store) -> None:
    """Its marker is in one partition only. Its rows are below the last stable offset, and no snapshot shows them."""
    store.create_topic("pairs", SCHEMA)
    send(store, (1, "old"), (2, "old"), (1, "older"), (1, "newest"))
    outage, slow = world.outage(delivery_timeout_ms=1000, max_block_ms=1000)
    hung = slow.producer(transactional_id="hung")
    hung.init_transactions()
    hung.begin_transaction()
    for topic in ("orders", "pairs"):
        hung.send(topic, rows_of([(1, "hung")]), partition=0).result()
    outage.pattern = r"put_if_absent pairs/0/.*batch"
    with pytest.raises(OutcomeUnknownError):
        hung.commit_transaction()
    send(store, *((number, "new") for number in range(3, 12)))

    def snapshot() -> list[Row]:
        session = reading.read_session(world.open().runtime)
        cut = reading.take_cut(session, ["orders"])
        (plan,) = reading.plan_reads(session, {TP: (0, None)}, cut=cut).values()
        (task,) = reading.tasks(store.runtime, [plan])
        batches = reading.read_task(task, store.runtime.store)
        return [row[:2] for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]

    hung_row = next(row for row in read(store) if row[1] == "hung")
    assert (1, "newest") in snapshot()
    (done,) = compact(store)
    assert done.compacted_to == 4 <= hung_row[-2]
    assert snapshot()[:2] == [(2, "old"), (1, "newest")]
    assert compact(store) == ()
    outage.pattern = None
    store.admin().expire()
    (done,) = compact(store)
    assert done.compacted_to == sealed_end(store)
    assert snapshot()[:2] == [(2, "old"), (1, "hung")]
    check(store)
