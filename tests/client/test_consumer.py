"""Consumers: isolation levels, positions, auto.offset.reset, tailing, membership, commits."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, many, orders, rows_of, tp
from txlog.client.consumer.fetcher import CREATED_AGAIN_MS
from txlog.client.groups import OffsetAndMetadata, OffsetAndTimestamp
from txlog.errors import (
    CommitFailedError,
    CorruptRecordError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRequestError,
    InvalidTopicError,
    MissingObjectError,
    NoOffsetForPartitionError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)

ORDERS_0, ORDERS_1 = tp("orders", 0), tp("orders", 1)


def send(world: World, *ids: int, partition: int = 0) -> None:
    with world.open().producer() as producer:
        producer.send("orders", orders(*ids), partition=partition)


def ids_of(rows: Any) -> list[int]:
    return [row["id"] for row in rows]


# -- rows -------------------------------------------------------------------------------------------------------------


def test_batch_has_the_columns_and_where_they_lie(world, store):
    send(world, 1, 2)
    batch = store.consumer("orders", auto_offset_reset="earliest").poll(0)
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == ["id", "name", "_offset", "_timestamp", "_topic", "_partition"]
    assert batch.schema.field("_timestamp").type == pa.timestamp("us", "UTC")
    assert batch.column("_offset").to_pylist() == [0, 1]
    assert batch.column("_timestamp").cast(pa.int64()).to_pylist() == [world.clock.now_ms() * 1000] * 2


def test_poll_returns_rows_of_one_partition_partitions_taking_turns(world, store):
    for partition in range(4):
        send(world, partition, partition=partition)
        send(world, 10 + partition, partition=partition)
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    batches = list(consumer.iterate())
    assert all(len(set(batch.column("_partition").to_pylist())) == 1 for batch in batches)
    assert [batch.column("_partition")[0].as_py() for batch in batches][:4] == [0, 1, 2, 3]
    assert sorted(ids_of(rows_of(batches))) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_max_poll_records(world, store):
    with store.producer() as producer:
        producer.send("orders", many(1000), partition=0)
    consumer = store.consumer("orders", auto_offset_reset="earliest", max_poll_records=300)
    assert [batch.num_rows for batch in consumer.iterate()] == [300, 300, 300, 100]
    assert consumer.position(ORDERS_0) == 1000


def test_rows_of_sealed_segments_and_of_the_tail(world, store):
    store.create_topic("small", ORDERS, config={"segment.batches": 2})
    with store.producer() as producer:
        for number in range(7):
            producer.send("small", orders(number)).result()
    assert ids_of(rows_of(world.open().consumer("small", auto_offset_reset="earliest"))) == list(range(7))


def test_tailing(world, store):
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    assert consumer.poll(0) is None
    for number in range(5):
        send(world, number)
        assert ids_of(rows_of(consumer)) == [number]
        assert consumer.poll(0) is None


def test_poll_waits_by_the_clock(world, store):
    consumer = store.consumer("orders")
    before = world.clock.monotonic_ms()
    assert consumer.poll(2000) is None
    assert 2000 <= world.clock.monotonic_ms() - before < 2600


def looks(world, consumer, timeout_ms):
    """Return how many looks at the log a poll without rows makes, with their pauses as asked of the clock."""
    slept: list[int] = []
    sleep_ms = world.clock.sleep_ms

    def sleep(ms: int) -> None:
        if ms > 0:
            slept.append(ms)
        sleep_ms(ms)

    world.clock.sleep_ms = sleep
    try:
        with world.counting.counting() as cost:
            assert consumer.poll(timeout_ms) is None
    finally:
        world.clock.sleep_ms = sleep_ms
    return cost.get, slept


def one_partition(world):
    consumer = world.open().consumer(auto_offset_reset="earliest")
    consumer.assign([ORDERS_0])
    return consumer


def test_pauses_double_after_every_16_looks_until_rows_come(world, store):
    consumer = one_partition(world)
    for number in range(2):
        send(world, number)
        assert ids_of(rows_of([consumer.poll()])) == [number]
        # The world's clock sleeps 3 ms longer than asked: 16 looks of 4 ms, of 5 ms, of 7 ms, then 9 of 11 ms.
        assert looks(world, consumer, 16 * (4 + 5 + 7) + 9 * 11)[1] == [1] * 16 + [2] * 16 + [4] * 16 + [8] * 9
        assert consumer.poll(20_000) is None
        assert looks(world, consumer, 1003)[1] == [500, 500]


def test_pauses_begin_at_the_time_that_a_look_takes(world, store):
    consumer = one_partition(world)
    send(world, 1)
    assert consumer.poll() is not None
    get = world.memory.get
    world.memory.get = lambda path: (world.clock.advance_ms(60), get(path))[1]
    assert looks(world, consumer, 5 * (60 + 63))[1] == [60] * 5


def test_an_idle_consumer_looks_once_in_fetch_max_wait_ms(world, store):
    consumer = one_partition(world)
    consumer.poll(20_000)
    for timeout_ms in (500, 1500, 100):
        made, slept = looks(world, consumer, timeout_ms)
        assert made <= len(slept) + timeout_ms // 1000 + 1, "one GET for each pause, and the proof of each second"
        assert sum(slept) <= timeout_ms


def test_a_new_position_is_looked_at_without_a_pause(world, store):
    consumer = one_partition(world)
    consumer.poll(20_000)
    send(world, 1)
    consumer.assign([ORDERS_0, ORDERS_1])
    before = world.clock.monotonic_ms()
    assert consumer.poll(500) is not None
    assert world.clock.monotonic_ms() == before
    consumer.poll(20_000)
    send(world, 2)
    consumer.seek(ORDERS_0, 1)
    before = world.clock.monotonic_ms()
    assert ids_of(rows_of([consumer.poll(500)])) == [2]
    assert world.clock.monotonic_ms() == before


def test_a_poll_without_time_looks_at_once(world, store):
    consumer = one_partition(world)
    consumer.poll(20_000)
    send(world, 1)
    before = world.clock.monotonic_ms()
    assert consumer.poll(0) is not None
    assert world.clock.monotonic_ms() == before


def test_iterating_goes_on_for_ever(world, store):
    send(world, 0)
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    seen = []
    for batch in consumer:
        seen += ids_of(batch.to_pylist())
        if len(seen) == 3:
            break
        send(world, len(seen))
    else:
        raise AssertionError
    assert seen == [0, 1, 2]


# -- isolation, markers, aborted rows -----------------------------------------------------------------------------


def test_open_transaction_is_a_barrier_for_read_committed_only(world, store):
    with store.producer("loader") as producer:
        send(world, 1)
        producer.begin_transaction()
        producer.send("orders", orders(2), partition=0).result()
        send(world, 3)
        committed = world.open().consumer("orders", auto_offset_reset="earliest")
        raw = world.open().consumer("orders", auto_offset_reset="earliest", isolation_level="read_uncommitted")
        assert ids_of(rows_of(committed)) == [1]
        assert ids_of(rows_of(raw)) == [1, 2, 3]
        assert (committed.position(ORDERS_0), raw.position(ORDERS_0)) == (1, 3)
        assert committed.end_offsets([ORDERS_0]) == {ORDERS_0: 1}
        assert raw.end_offsets([ORDERS_0]) == {ORDERS_0: 3}
        producer.commit_transaction()
        assert ids_of(rows_of(committed)) == [2, 3]
        assert rows_of(raw) == []
        assert (committed.position(ORDERS_0), raw.position(ORDERS_0)) == (4, 4)


def test_position_moves_past_markers_and_aborted_rows(world, store):
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1, 2), partition=0).result()
        producer.abort_transaction()
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    assert consumer.poll(0) is None
    assert consumer.position(ORDERS_0) == 3
    assert consumer.lag(ORDERS_0) == 0


def test_default_isolation_is_read_committed(store):
    assert store.consumer().isolation_level == "read_committed"


# -- where to begin -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "seen"), [("earliest", [1, 2, 3]), ("latest", [3])])
def test_auto_offset_reset_without_a_committed_offset(world, store, reset, seen):
    send(world, 1, 2)
    consumer = store.consumer("orders", auto_offset_reset=reset)
    first = ids_of(rows_of(consumer))
    send(world, 3)
    assert first + ids_of(rows_of(consumer)) == seen


def test_auto_offset_reset_none_is_an_error(world, store):
    send(world, 1)
    consumer = store.consumer("orders", group_id="g", auto_offset_reset="none")
    with pytest.raises(
        NoOffsetForPartitionError, match=r"\(group 'g'\): no committed offset for orders-0.*auto.offset.reset is none"
    ):
        consumer.poll(0)
    for partition in range(4):
        consumer.seek(tp("orders", partition), 0)
    assert ids_of(rows_of(consumer)) == [1]


@pytest.mark.parametrize(("reset", "seen"), [("earliest", [1, 2]), ("latest", [])])
def test_position_out_of_range_is_reset(world, store, reset, seen):
    send(world, 1, 2)
    consumer = store.consumer(auto_offset_reset=reset)
    consumer.assign([ORDERS_0])
    consumer.seek(ORDERS_0, 77)
    assert ids_of(rows_of(consumer)) == seen
    assert consumer.position(ORDERS_0) == 2


def test_position_out_of_range_without_reset_says_what_is_there(world, store):
    send(world, 1, 2)
    consumer = store.consumer(auto_offset_reset="none")
    consumer.assign([ORDERS_0])
    consumer.seek(ORDERS_0, 77)
    with pytest.raises(
        OffsetOutOfRangeError, match=r"orders-0: offset 77 is out of range, the log holds 0 to 2\..*auto.offset.reset"
    ):
        consumer.poll(0)


def test_position_below_the_log_start(world, store):
    send(world, 1, 2, 3)
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    consumer.seek(ORDERS_0, 0)
    store.admin().delete_records("orders", 0, 2)
    rows = rows_of(consumer)
    assert ids_of(rows) == [3]
    assert consumer.beginning_offsets([ORDERS_0]) == {ORDERS_0: 2}


@pytest.mark.parametrize("how", ["assign", "assign_topics"])
def test_every_poll_says_that_a_topic_was_deleted(world, store, how):
    store.create_topic("other", ORDERS)
    send(world, 1, 2)
    consumer = world.open().consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    getattr(consumer, how)([ORDERS_0, tp("other", 0)] if how == "assign" else ["orders", "other"])
    assert ids_of(rows_of(consumer)) == [1, 2]
    store.delete_topic("orders")
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders'"):
            consumer.poll(0)
        world.clock.advance_ms(200_000)
    assert consumer.position(ORDERS_0) == 2
    store.create_topic("orders", ORDERS, partitions=4)
    send(world, 3)
    assert ids_of(rows_of(consumer)) == [3]
    store.delete_topic("orders")
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.poll(0)
    consumer.assign_topics("other")
    assert consumer.poll(0) is None


@pytest.mark.parametrize("how", ["subscribe", "assign", "assign_topics"])
def test_a_deleted_topic_does_not_hold_back_the_rows_of_others(world, store, how):
    store.create_topic("other", ORDERS)
    consumer = world.open().consumer(
        group_id="g", auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=1
    )
    getattr(consumer, how)([ORDERS_0, tp("other", 0)] if how == "assign" else ["orders", "other"])
    send(world, 1, 2, 3)
    assert ids_of(consumer.poll(0).to_pylist()) == [1]
    with store.producer() as producer:
        producer.send("other", orders(11, 12, 13))
    store.delete_topic("orders")

    def polled() -> object:
        try:
            batch = consumer.poll(0)
        except UnknownTopicOrPartitionError as error:
            return str(error).partition(" (version")[0]
        return batch and batch.column("id").to_pylist()

    # The error comes as soon as a poll reads the log, and again instead of an end if the partitions stay assigned.
    gone = "topic 'orders' was deleted"
    at_end = None if how == "subscribe" else gone
    expected = [[2], [3], gone, [11], [12], [13], at_end, at_end]
    assert [polled() for _ in expected] == expected
    with world.counting.counting() as cost:
        assert polled() == at_end
    assert cost.total <= 2, "a deleted topic is looked for once a second, and not in each poll"
    store.delete_topic("other")
    named = r"^topic 'other'" if how == "subscribe" else r"topic 'orders' was deleted.*topic 'other'"
    with pytest.raises(UnknownTopicOrPartitionError, match=f"{named} was deleted"):
        consumer.poll(10_000)
    store.create_topic("other", ORDERS)
    with store.producer() as producer:
        producer.send("other", orders(14))
    world.clock.advance_ms(CREATED_AGAIN_MS)
    assert polled() == [14]


def test_a_deleted_topic_keeps_its_place_while_another_gets_partitions(world, store):
    store.create_topic("other", ORDERS)
    consumer = world.open().consumer(auto_offset_reset="earliest", metadata_max_age_ms=1000)
    consumer.assign_topics(["orders", "other"])
    send(world, 1, 2)
    assert ids_of(rows_of(consumer)) == [1, 2]
    store.delete_topic("orders")
    store.alter_topic("other", partitions=2)
    with store.producer() as producer:
        producer.send("other", orders(11), partition=1)
    world.clock.advance_ms(1001)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
        consumer.poll(0)
    assert ids_of(consumer.poll(0).to_pylist()) == [11]
    assert consumer.position(ORDERS_0) == 2


def test_a_topic_that_was_created_again_is_not_looked_up_by_every_poll(world, store):
    send(world, 1)
    store.delete_topic("orders")
    store.create_topic("orders", ORDERS, partitions=4)
    consumer = world.open().consumer(auto_offset_reset="earliest")
    consumer.assign([ORDERS_0])
    assert consumer.poll(0) is None
    with world.counting.counting() as cost:
        assert consumer.poll(0) is None
    # The next slot of the partition.
    assert (cost.get, cost.list) == (1, 0)


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_rows_of_a_deleted_topic_are_not_read_from_an_earlier_plan(world, store, reset):
    store.create_topic("other", ORDERS)
    consumer = world.open().consumer(auto_offset_reset=reset, max_poll_records=1, metadata_max_age_ms=1000)
    consumer.assign_topics(["orders", "other"])
    consumer.seek_to_beginning()
    send(world, 1, 2, 3)
    assert ids_of(consumer.poll(0).to_pylist()) == [1]
    store.delete_topic("orders")
    with store.producer() as producer:
        producer.send("other", orders(11))
    world.clock.advance_ms(1001)
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
        consumer.poll(0)
    assert ids_of(consumer.poll(0).to_pylist()) == [11]


def test_seek(world, store):
    send(world, *range(10))
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([ORDERS_0])
    consumer.seek(ORDERS_0, 7)
    assert ids_of(rows_of(consumer)) == [7, 8, 9]
    consumer.seek(ORDERS_0, OffsetAndMetadata(offset=9))
    assert ids_of(rows_of(consumer)) == [9]
    consumer.seek_to_beginning()
    assert consumer.position(ORDERS_0) == 0
    consumer.seek_to_end(ORDERS_0)
    assert rows_of(consumer) == []
    assert consumer.position(ORDERS_0) == 10


def test_seek_in_the_middle_of_a_read(world, store):
    send(world, *range(10))
    consumer = store.consumer(auto_offset_reset="earliest", max_poll_records=3)
    consumer.assign([ORDERS_0])
    assert ids_of(consumer.poll(0).to_pylist()) == [0, 1, 2]
    consumer.seek(ORDERS_0, 1)
    assert ids_of(consumer.poll(0).to_pylist()) == [1, 2, 3]
    assert ids_of(consumer.poll(0).to_pylist()) == [4, 5, 6]


def test_offsets_for_times(world, store):
    send(world, 1, 2)
    first = world.clock.now_ms()
    world.clock.advance_ms(1000)
    send(world, 3)
    consumer = store.consumer("orders")
    ask = {ORDERS_0: first + 1, ORDERS_1: 0}
    assert consumer.offsets_for_times(ask) == {
        ORDERS_0: OffsetAndTimestamp(offset=2, timestamp=first + 1000),
        ORDERS_1: None,
    }
    assert consumer.offsets_for_times({ORDERS_0: first + 1001}) == {ORDERS_0: None}
    with pytest.raises(InvalidRequestError, match="orders-0: -5 is not a time"):
        consumer.offsets_for_times({ORDERS_0: -5})


def test_times_are_datetimes_or_milliseconds(world, store):
    send(world, 1)
    at_ms = world.clock.now_ms()
    zone = datetime.timezone(datetime.timedelta(hours=5))
    at = (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=at_ms)).astimezone(zone)
    consumer = store.consumer("orders")
    found = consumer.offsets_for_times({ORDERS_0: at})
    assert found == consumer.offsets_for_times({ORDERS_0: at_ms})
    assert found[ORDERS_0].offset == 0
    # Append times are whole milliseconds: the row is older than this time.
    assert consumer.offsets_for_times({ORDERS_0: at + datetime.timedelta(microseconds=1)}) == {ORDERS_0: None}
    for wrong in (datetime.datetime(2024, 1, 1), "2024-01-01", True):
        with pytest.raises(
            InvalidRequestError, match=r"orders-0: .* is not a time: expected a datetime with a time zone"
        ):
            consumer.offsets_for_times({ORDERS_0: wrong})


def test_without_partitions_the_assignment_is_meant(world, store):
    send(world, 1, 2, 3)
    consumer = world.open().consumer(auto_offset_reset="earliest", max_poll_records=2)
    assert (consumer.end_offsets(), consumer.beginning_offsets(), consumer.lag()) == ({}, {}, {})
    consumer.assign([ORDERS_0, ORDERS_1])
    assert consumer.end_offsets() == {ORDERS_0: 3, ORDERS_1: 0}
    assert consumer.beginning_offsets() == {ORDERS_0: 0, ORDERS_1: 0}
    assert consumer.lag() == {ORDERS_0: 3, ORDERS_1: 0}
    consumer.poll(0)
    assert consumer.lag() == {ORDERS_0: 1, ORDERS_1: 0}
    assert consumer.lag(ORDERS_0) == 1


# -- one schema in one iterate() --------------------------------------------------------------------------------------

WIDER = pa.schema([("note", pa.string())])


def test_a_column_that_is_added_meanwhile_comes_with_the_next_iterate(world, store):
    send(world, 1, 2)
    consumer = world.open().consumer("orders", auto_offset_reset="earliest")
    batches = consumer.iterate()
    first = next(batches)
    store.alter_topic("orders", add_columns=WIDER)
    with store.producer() as producer:
        producer.send("orders", [{"id": 3, "note": "new"}], partition=0)
    rest = list(batches)
    assert [batch.schema.names for batch in (first, *rest)] == [first.schema.names] * 2
    assert ids_of(pa.Table.from_batches([first, *rest]).to_pylist()) == [1, 2, 3]
    consumer.seek_to_beginning(ORDERS_0)
    again = pa.Table.from_batches(list(consumer.iterate()))
    assert again.column("note").to_pylist() == [None, None, "new"]


def test_a_read_that_began_before_gets_the_new_column_as_null(world, store):
    send(world, *range(4))
    reader = world.open()
    consumer = reader.consumer("orders", auto_offset_reset="earliest", max_poll_records=2)
    assert consumer.poll(0).num_rows == 2
    store.alter_topic("orders", add_columns=WIDER)
    with store.producer() as producer:
        producer.send("orders", [{"id": 4, "note": "new"}], partition=0)
    assert "note" in reader.topic("orders").schema.names  # this process knows the column now
    table = pa.Table.from_batches(list(consumer.iterate()))
    assert table.column("note").to_pylist() == [None, None, "new"]


def test_a_read_of_a_deleted_topic_keeps_its_columns(world, store):
    send(world, *range(4))
    reader = world.open()
    consumer = reader.consumer("orders", auto_offset_reset="earliest", max_poll_records=2)
    assert consumer.poll(0).num_rows == 2
    store.delete_topic("orders")
    renamed = pa.schema((pa.field("amount", pa.int64(), nullable=False), pa.field("city", pa.string())))
    store.create_topic("orders", renamed, partitions=4)
    with pytest.raises(UnknownTopicOrPartitionError):
        reader.topic("orders")
    assert reader.topic("orders").schema.names == ["amount", "city"]  # this process knows the new topic now
    batch = next(consumer.iterate())
    assert batch.schema.names[:2] == ["id", "name"]
    assert batch.column("id").to_pylist() == [2, 3]


def test_topics_keep_their_own_columns(world, store):
    store.create_topic("notes", WIDER)
    send(world, 1)
    with store.producer() as producer:
        producer.send("notes", {"note": "x"})
    consumer = world.open().consumer("orders", "notes", auto_offset_reset="earliest")
    assert {batch.schema.names[0] for batch in consumer.iterate()} == {"id", "note"}


def test_rows_that_do_not_fit_the_first_ones_are_not_lost(world, store):
    send(world, 1)
    consumer = world.open().consumer("orders", auto_offset_reset="earliest")
    batches = consumer.iterate()
    assert ids_of(next(batches).to_pylist()) == [1]
    store.delete_topic("orders")
    store.create_topic("orders", pa.schema([pa.field("key", pa.string(), nullable=False)]), partitions=4)
    with store.producer() as producer:
        producer.send("orders", {"key": "a"}, partition=0)
    world.clock.advance_ms(10**6)
    with pytest.raises(SchemaMismatchError, match="column 'id' has changed while the topic was read"):
        list(batches)
    assert [row["key"] for batch in consumer.iterate() for row in batch.to_pylist()] == ["a"]


def test_offsets_for_times_see_no_further_than_the_isolation_level(world, store):
    with store.producer("loader") as producer:
        send(world, 1)
        producer.begin_transaction()
        world.clock.advance_ms(10)
        producer.send("orders", orders(2), partition=0).result()
        time = world.clock.now_ms()
        assert world.open().consumer("orders").offsets_for_times({ORDERS_0: time}) == {ORDERS_0: None}
        raw = world.open().consumer("orders", isolation_level="read_uncommitted")
        assert raw.offsets_for_times({ORDERS_0: time})[ORDERS_0].offset == 1


# -- assignment -------------------------------------------------------------------------------------------------------


def test_assign_replaces_and_pause_leaves_alone(world, store):
    send(world, 1, partition=0)
    send(world, 2, partition=1)
    consumer = store.consumer(auto_offset_reset="earliest")
    consumer.assign([("orders", 0), ("orders", 1)])
    assert consumer.assignment() == (ORDERS_0, ORDERS_1)
    consumer.pause(ORDERS_0)
    assert consumer.paused() == (ORDERS_0,)
    assert ids_of(rows_of(consumer)) == [2]
    consumer.resume(ORDERS_0)
    assert ids_of(rows_of(consumer)) == [1]
    consumer.assign([ORDERS_1])
    with pytest.raises(IllegalStateError, match="orders-0 is not assigned; assigned are orders-1"):
        consumer.position(ORDERS_0)


def test_an_added_partition_is_read_from_its_start_also_if_its_offset_was_undecided(world, store):
    consumer = world.open().consumer(group_id="g", auto_offset_reset="latest", metadata_max_age_ms=1000)
    consumer.subscribe("orders")
    assert rows_of(consumer) == []
    store.alter_topic("orders", partitions=5)
    send(world, 2, partition=4)
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp("orders", 4): 1}, "g")
        world.clock.advance_ms(1001)
        # This partition waits, and the others continue.
        send(world, 3, partition=0)
        assert ids_of(rows_of(consumer)) == [3]
        producer.abort_transaction()
    assert ids_of(rows_of(consumer)) == [2]


def test_partitions_added_later_are_read_from_their_start(world, store):
    send(world, 1)
    consumer = store.consumer("orders", auto_offset_reset="latest")
    assert rows_of(consumer) == []
    world.open().alter_topic("orders", partitions=5)
    send(world, 2, partition=4)
    assert rows_of(consumer) == []
    world.clock.advance_ms(300_000)
    assert ids_of(rows_of(consumer)) == [2]


def test_topics_that_match_a_pattern_are_read_once_they_exist(world, store):
    consumer = world.open().consumer(auto_offset_reset="latest", metadata_max_age_ms=1000)
    with pytest.raises(
        InvalidTopicError, match=r"'\^new-\.\*' is not valid.*hint: subscribe to re\.compile\('new-\.\*'\)"
    ):
        consumer.assign_topics(["orders", "^new-.*"])
    consumer.assign_topics(re.compile("orders|new-.*"))
    assert consumer.poll(0) is None
    store.create_topic("new-1", ORDERS)
    with store.producer() as producer:
        producer.send("new-1", orders(7))
    assert consumer.poll(0) is None
    world.clock.advance_ms(1001)
    assert ids_of(consumer.poll(0).to_pylist()) == [7]
    consumer.assign_topics("orders")
    world.clock.advance_ms(1001)
    assert consumer.poll(0) is None
    assert {each.topic for each in consumer.assignment()} == {"orders"}


def test_column_added_later_shows(world, store):
    send(world, 1)
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    assert ids_of(rows_of(consumer)) == [1]
    other = world.open()
    other.alter_topic("orders", add_columns=pa.schema([("price", pa.float64())]))
    with other.producer() as producer:
        producer.send("orders", [{"id": 2, "price": 0.5}], partition=0)
    (row,) = rows_of(consumer)
    assert (row["id"], row["price"]) == (2, 0.5)


def test_calls_that_lack_something(store):
    consumer = store.consumer()
    with pytest.raises(IllegalStateError, match=r"poll\(\) without subscribe\(\) or assign\(\)"):
        consumer.poll(0)
    for name, call in {
        "subscribe": lambda: consumer.subscribe("orders"),
        "commit": consumer.commit,
        "committed": consumer.committed,
        "group_metadata": consumer.group_metadata,
    }.items():
        with pytest.raises(IllegalStateError, match=rf"{name}\(\) needs a group.id\. hint: name it with group_id"):
            call()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'orders' has no partition 4: it has 4, numbered 0 to 3"):
        consumer.assign([("orders", 4)])
    for one in (["orders"], "orders", ORDERS_0):
        with pytest.raises(
            InvalidRequestError, match=r"'o.*' is not a partition: expected TopicPartition.* give \[tp\]"
        ):
            consumer.assign(one)
    for several in ([ORDERS_0], {ORDERS_0}, (ORDERS_0, ORDERS_1)):
        with pytest.raises(InvalidRequestError, match=r"is not a partition.*hint: give one TopicPartition, or several"):
            consumer.pause(several)
    with pytest.raises(InvalidRequestError, match=r"\(topic, number\)$"):
        consumer.pause(("orders", -1))
    with pytest.raises(UnknownTopicOrPartitionError, match=r"'order' does not exist. Did you mean 'orders'\?"):
        store.consumer("order")
    with pytest.raises(InvalidTopicError, match="reserved"):
        store.consumer("__consumer_offsets")
    with pytest.raises(InvalidConfigurationError, match=r"isolation.level = 'dirty': expected one of read_committed"):
        store.consumer("orders", isolation_level="dirty")
    consumer.close()
    consumer.close()
    with pytest.raises(IllegalStateError, match="closed; make a new one"):
        consumer.poll(0)


def test_damaged_record_is_named(world, store):
    send(world, 1)
    path = "orders/0/00000000000000000000.batch"
    data = bytearray(world.memory.get(path))
    data[-3] ^= 1
    overwrite(world.memory, path, bytes(data))
    with pytest.raises(CorruptRecordError, match=path):
        world.open().consumer("orders", auto_offset_reset="earliest").poll(0)


def test_file_that_is_gone_is_looked_for_again_and_named(world, store):
    with store.producer(inline_max_bytes=0) as producer:
        producer.send("orders", orders(1), partition=0)
    (name,) = world.memory.list("orders/0/rows/")
    world.memory.delete(f"orders/0/rows/{name}")
    with pytest.raises(MissingObjectError, match=name):
        world.open().consumer("orders", auto_offset_reset="earliest").poll(0)


# -- groups -----------------------------------------------------------------------------------------------------------


def test_committed_offsets_are_where_the_next_one_begins(world, store):
    send(world, 1, 2, 3)
    with store.consumer("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        assert ids_of(rows_of(one)) == [1, 2, 3]
        one.commit({ORDERS_0: OffsetAndMetadata(offset=2, metadata="half")})
        assert one.committed(ORDERS_0, ORDERS_1) == {
            ORDERS_0: OffsetAndMetadata(offset=2, metadata="half"),
            ORDERS_1: None,
        }
    with world.open().consumer("orders", group_id="g", auto_offset_reset="earliest") as two:
        assert ids_of(rows_of(two)) == [3]


def test_commit_of_positions(world, store):
    send(world, 1, 2, 3)
    with store.consumer("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as one:
        rows_of(one)
        one.commit()
    with world.open().consumer("orders", group_id="g") as two:
        assert two.committed(ORDERS_0) == {ORDERS_0: OffsetAndMetadata(offset=3)}


def test_auto_commit_commits_what_earlier_polls_handed_out(world, store):
    send(world, 1, 2, 3)
    consumer = store.consumer(
        "orders", group_id="g", auto_offset_reset="earliest", max_poll_records=1, auto_commit_interval_ms=1000
    )
    peek = world.open().consumer(group_id="g")

    def committed():
        found = peek.committed(ORDERS_0)[ORDERS_0]
        return None if found is None else found.offset

    assert ids_of(consumer.poll(0).to_pylist()) == [1]
    world.clock.advance_ms(999)
    assert ids_of(consumer.poll(0).to_pylist()) == [2]
    assert committed() is None
    world.clock.advance_ms(1)
    assert ids_of(consumer.poll(0).to_pylist()) == [3]
    assert committed() == 2, "what the last poll handed out is still being worked on"
    consumer.close()
    assert committed() == 3


def test_block_that_raises_does_not_commit_what_it_was_working_on(world, store):
    send(world, 1, 2)

    def work():
        with store.consumer("orders", group_id="g", auto_offset_reset="earliest", max_poll_records=1) as consumer:
            consumer.poll(0)
            consumer.poll(0)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()
    with world.open().consumer(group_id="g") as peek:
        assert peek.committed(ORDERS_0)[ORDERS_0].offset == 1


@pytest.fixture
def alone(monkeypatch):
    """The consumers' stores were made without the feature `group-members`: a group has one member."""
    monkeypatch.setattr("txlog.client.consumer.consumer.GROUP_MEMBERS", "none-of-this-store")


def test_second_member_is_warned_of_and_the_first_one_closes_without_an_error(world, store, caplog, alone):
    send(world, 1, 2)
    settings = {"group_id": "g", "enable_auto_commit": True, "auto_offset_reset": "earliest"}
    one = store.consumer("orders", client_id="a", **settings)
    one.subscribe("orders")
    assert caplog.text == "", "its own older membership is no other member"
    assert sorted(ids_of(rows_of(one))) == [1, 2]
    elsewhere = world.open()
    two = elsewhere.consumer("orders", client_id="b", **settings)
    assert one.group_metadata().member_id in caplog.text
    assert "consumer 'b' (group 'g'): took the group over from member 'a-" in caplog.text
    caplog.clear()
    store.close()
    assert "consumer 'a' (group 'g'): closed without committing its positions: group 'g': member 'a-" in caplog.text
    assert sorted(ids_of(rows_of(two))) == [1, 2], "the second member reads what the first one could not commit"
    caplog.clear()
    elsewhere.close()
    world.open().consumer("orders", client_id="c", **settings)
    assert caplog.text == "", "a member that left is not taken over from"


def test_newer_member_fences_the_commits_of_the_older(world, store, alone):
    send(world, 1)
    one = store.consumer("orders", group_id="g", enable_auto_commit=False, auto_offset_reset="earliest", client_id="a")
    assert ids_of(rows_of(one)) == [1]
    two = world.open().consumer("orders", group_id="g", enable_auto_commit=False, client_id="b")
    assert (one.group_metadata().generation_id, two.group_metadata().generation_id) == (1, 2)
    message = (
        r"group 'g': member 'a-\w+' of generation 1 may not commit, because the group has generation 2 of member 'b-"
    )
    with pytest.raises(CommitFailedError, match=message) as refused:
        one.commit()
    # A plain consumer has no transaction to abort, so the message begins with what the user must do.
    assert "hint: call subscribe() again" in str(refused.value)
    assert len(str(refused.value)) <= 300
    two.commit({ORDERS_0: 1})
    one.close()
    assert two.group_metadata().member_id in str(store.admin().describe_group("g")), (
        "an older member cannot leave for it"
    )
    two.close()
    assert store.admin().describe_group("g").state == "EMPTY"


def test_assigned_consumer_is_nobodys_member(world, store):
    consumer = store.consumer(group_id="g")
    consumer.assign([ORDERS_0])
    assert consumer.group_metadata().generation_id == -1
    consumer.commit({ORDERS_0: 0})
    assert store.admin().describe_group("g").generation == -1


def test_metadata_of_an_offset_has_a_limit(world, store):
    consumer = store.consumer(group_id="g")
    with pytest.raises(OffsetMetadataTooLargeError, match="orders-0: offset metadata of 4097 characters, at most 4096"):
        consumer.commit({ORDERS_0: OffsetAndMetadata(offset=1, metadata="x" * 4097)})
    with pytest.raises(InvalidRequestError, match="orders-0: -1 is not an offset"):
        consumer.commit({ORDERS_0: -1})
    with pytest.raises(InvalidRequestError, match=r"\('orders', -1\) is not a partition"):
        consumer.commit({("orders", -1): 1})


def test_group_id_that_cannot_be(store):
    with pytest.raises(InvalidConfigurationError, match=r"group.id = ''"):
        store.consumer(group_id="")
