"""Retention removes whole segments from the oldest on, keeps what a living group has not read, and readers get a clear
error."""

from __future__ import annotations

from typing import Any

import pytest

import txlog
from tests.client.world import World, tp
from tests.maintenance.retain import retain
from txlog.client import reading
from txlog.client.store import Store
from txlog.errors import ClockSkewError, InvalidRequestError, OffsetOutOfRangeError, UnknownTopicOrPartitionError
from txlog.maintenance.vacuum import vacuum
from txlog.testing.clock import ManualClock, SeededIds

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TP = tp("orders", 0)


def topic(world: World, **config: Any) -> Store:
    """Create a topic for ten segments of two rows, each sealed an hour after the one before, except the last."""
    store = world.open()
    settings = {name.replace("_", "."): value for name, value in config.items()}
    store.create_topic("orders", partitions=1, schema=None, config={"segment.batches": 2, **settings})
    return store


def fill(world: World, store: Store, batches: int = 20) -> None:
    with store.producer() as producer:
        for n in range(batches):
            producer.send("orders", [{"key": None, "value": b"%d" % n, "headers": [], "timestamp": None}]).result()
            if n % 2:
                world.clock.advance_ms(HOUR_MS)


def test_nothing_is_kept_for_ever_unless_it_was_asked_for(world: World) -> None:
    store = topic(world)
    fill(world, store)
    assert retain(store, TP) is None
    assert world.ends() == (0, 20, 20)


def test_by_time(world: World) -> None:
    store = topic(world, retention_ms=5 * HOUR_MS)
    fill(world, store)
    said = retain(store, TP, dry_run=True)
    assert world.ends()[0] == 0
    done = retain(store, TP)
    assert done == said
    assert done is not None
    # The rows were written at 0 to 4 hours, and 10 hours have passed. A row that is exactly as old as the limit stays.
    assert (done.log_start_before, done.log_start_after, done.segments, done.rows) == (0, 10, 5, 10)
    assert done.setting == "retention.ms"
    assert done.bytes > 0
    assert world.ends()[0] == 10
    with world.counting.counting() as cost:
        assert retain(store, TP) is None
    assert not cost.put_if_absent
    world.clock.advance_ms(100 * HOUR_MS)
    last = retain(store, TP)
    assert last is not None
    # Retention keeps the active segment.
    assert last.log_start_after == 20
    assert retain(store, TP) is None


def test_by_bytes(world: World) -> None:
    store = topic(world, retention_bytes=1)
    fill(world, store)
    done = retain(store, TP)
    assert done is not None
    assert done.setting == "retention.bytes"
    assert world.ends()[0] == done.log_start_after == 18
    # The move appended the record that finished the active segment. This segment has no row, but no more bytes may be
    # removed.
    assert retain(store, TP) is None
    assert world.ends()[0] == 18


def test_compacted_topics_are_left_alone(world: World) -> None:
    store = topic(world, retention_ms=1)
    fill(world, store)
    store.alter_topic("orders", config={"cleanup.policy": "compact", "key.columns": "key"})
    assert retain(store, TP) is None
    store.alter_topic("orders", config={"cleanup.policy": "compact,delete"})
    assert retain(store, TP) is not None


def test_an_open_transaction_keeps_its_rows(world: World) -> None:
    store = topic(world, retention_ms=1)
    fill(world, store, 4)
    producer = store.producer("hangs", transaction_timeout_ms=DAY_MS * 7, transaction_max_timeout_ms=DAY_MS * 7)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", [{"key": None, "value": b"open", "headers": [], "timestamp": None}])
    producer.flush()
    fill(world, store, 6)
    done = retain(store, TP)
    assert done is not None
    assert done.log_start_after == 4
    producer.abort_transaction()
    producer.close()


def test_a_group_holds_what_it_has_not_read_until_it_is_dead(world: World) -> None:
    store = topic(world, retention_ms=HOUR_MS, retention_hold_groups="audit,other", retention_hold_max_ms=2 * DAY_MS)
    fill(world, store)
    world.clock.advance_ms(2 * HOUR_MS)
    with store.consumer("orders", group_id="audit", enable_auto_commit=False) as consumer:
        consumer.commit({TP: 7})
    done = retain(store, TP)
    assert done is not None
    assert (done.log_start_after, done.held_by) == (6, "audit")
    assert done.held_until_ms == world.clock.now_ms() + 2 * DAY_MS
    held = retain(store, TP)
    assert held is not None
    assert (held.moves, held.rows, held.held_by) == (False, 0, "audit")
    with store.consumer("orders", group_id="audit", enable_auto_commit=False) as consumer:
        consumer.commit({TP: 12})
    done = retain(store, TP)
    assert done is not None
    assert done.log_start_after == 12
    world.clock.advance_ms(2 * DAY_MS)
    held = retain(store, TP)
    assert held is not None
    assert not held.moves
    world.clock.advance_ms(1)
    done = retain(store, TP)
    assert done is not None
    assert (done.log_start_after, done.held_by) == (20, None)


def test_readers_that_fall_behind_are_told_what_to_set(world: World) -> None:
    store = topic(world, retention_ms=HOUR_MS)
    fill(world, store)
    consumer = store.consumer("orders", auto_offset_reset="none", max_poll_records=2)
    consumer.seek(TP, 0)
    retain(store, TP)
    message = r"orders-0: offset 0 is out of range, the log holds 18 to 21\. It lies below the log start: " + (
        r"retention \(retention\.ms and .*retention\.hold\.groups"
    )
    with pytest.raises(OffsetOutOfRangeError, match=message):
        consumer.poll(0)
    with pytest.raises(OffsetOutOfRangeError, match=message):
        reading.plan(store.runtime, "orders", 0, 0, None, "read_committed")
    earliest = store.consumer("orders", auto_offset_reset="earliest")
    assert sum(batch.num_rows for batch in earliest.iterate(0)) == 2


def test_what_is_no_users_topic_is_refused(world: World) -> None:
    store = topic(world)
    with pytest.raises(InvalidRequestError, match="has no retention"):
        retain(store, tp("__consumer_offsets", 0))
    with pytest.raises(UnknownTopicOrPartitionError):
        retain(store, tp("order", 0))


def test_after_vacuum_only_the_rest_is_left(world: World) -> None:
    store = topic(world, retention_ms=HOUR_MS)
    fill(world, store)
    retain(store, TP)
    fill(world, store, 2)
    for _ in range(4):
        world.clock.advance_ms(DAY_MS + 1)
        report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        assert report.failed == ()
        assert len(world.read(column="value")) == 4
    left = [path for path in world.memory._objects if path.startswith("orders/0/") and ".parquet" in path]
    assert len(left) == 2
    last = retain(store, TP)
    assert last is not None
    assert world.read(column="value") == [b"1"]
    for _ in range(4):
        world.clock.advance_ms(DAY_MS + 1)
        vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
    assert not [path for path in world.memory._objects if path.startswith("orders/0/") and ".parquet" in path]


def test_a_log_of_markers_alone_is_left_alone(world: World) -> None:
    """Each move is a record. With one batch in each segment, every move would cause the next one, for ever."""
    store = topic(world, retention_ms=HOUR_MS, segment_batches=1)
    fill(world, store, 4)
    world.clock.advance_ms(DAY_MS)
    assert retain(store, TP) is not None
    moves = []
    for _ in range(5):
        world.clock.advance_ms(DAY_MS)
        moves.append(retain(store, TP))
    assert [each is None for each in moves[2:]] == [True, True, True]


def test_a_clock_far_from_the_stores_removes_nothing(world: World) -> None:
    """Retention compares the clocks before it moves a log start (W45)."""
    fill(world, topic(world, retention_ms=DAY_MS))
    ahead = ManualClock(world.clock.now_ms() + 365 * DAY_MS)
    store = txlog.open("memory://", clock=ahead, ids=SeededIds(99), object_store=world.counting)
    assert retain(store, TP, dry_run=True) is not None
    with pytest.raises(ClockSkewError, match="ahead of the store's"):
        retain(store, TP)
    assert world.ends()[0] == 0
    store.runtime.close()
