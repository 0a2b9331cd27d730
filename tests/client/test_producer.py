"""Sends without transactions: results, partitions, batches, inline and file, idempotence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

import txlog
from tests.client.world import ORDERS, World, many, orders, rows_of, tp
from tests.support import partition_for
from txlog.client.producer import batches
from txlog.client.producer.batches import SEND_BYTES, RecordMetadata
from txlog.client.store import Store
from txlog.core import envelope, names
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.partitioning import murmur2
from txlog.core.records import CommitRecord
from txlog.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    InvalidRequestError,
    OutcomeUnknownError,
    RetriableError,
    SchemaMismatchError,
    TxlogError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import Context
from txlog.protocol.expiry import expire_producers
from txlog.storage.local import LocalObjectStore
from txlog.storage.one_row import OneRow, joined_table
from txlog.testing.failing_store import Fault, SimulatedCrash

# -- results ----------------------------------------------------------------------------------------------------------


def test_result_tells_where_the_rows_lie(world: World, store: Store) -> None:
    with store.producer() as producer:
        first = producer.send("orders", orders(1, 2, 3), partition=2).result()
        second = producer.send("orders", orders(4), partition=2).result()
    assert (first.topic, first.partition, first.base_offset, first.records) == ("orders", 2, 0, 3)
    assert (second.base_offset, second.records, second.parts) == (3, 1, ())
    assert first.timestamp == world.clock.now_ms()
    assert world.read() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"id": [7], "name": ["x"]}),
        pa.record_batch({"name": ["x"], "id": [7]}),
        [{"id": 7, "name": "x"}],
        {"id": 7, "name": "x"},
        pa.table({"id": pa.array([7], pa.int32()), "name": pa.array(["x"], pa.large_string())}),
    ],
    ids=["table", "batch, columns in another order", "dictionaries", "a dictionary", "types that widen"],
)
def test_what_can_be_sent(world, store, data):
    with store.producer() as producer:
        producer.send("orders", data, partition=0)
    assert world.read(column="name") == ["x"]


def test_anything_with_an_arrow_stream_can_be_sent(world, store):
    class Stream:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"id": [9], "name": ["s"]}).__arrow_c_stream__(requested_schema)

    with store.producer() as producer:
        producer.send("orders", Stream(), partition=0)
    assert world.read() == [9]


def test_single_rows_become_one_table(world: World, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[int] = []
    woken: list[int] = []

    def join(parts: Sequence[pa.Table | OneRow]) -> pa.Table:
        joined.append(len(parts))
        return joined_table(parts)

    monkeypatch.setattr(batches, "joined_table", join)
    with store.producer(linger_ms=60_000) as producer:
        notify = producer._sender.condition.notify_all

        def wake() -> None:
            woken.append(1)
            notify()

        monkeypatch.setattr(producer._sender.condition, "notify_all", wake)
        sent = [producer.send("orders", {"id": number, "name": f"n{number}"}, partition=0) for number in range(500)]
        assert len(woken) == 1  # the first row: the batch of the others is due at the same time
        producer.flush()
    assert joined == [500]
    assert [future.result().base_offset for future in sent] == list(range(500))
    assert world.read() == list(range(500))


def test_the_keys_of_single_rows(world: World, store: Store) -> None:
    with store.producer() as producer:
        alone = [producer.send("orders", {"id": number}, key="id").result().partition for number in range(20)]
        together = producer.send("orders", [{"id": number} for number in range(20)], key="id").result()
    assert {part.partition: part.records for part in together.parts} == Counter(alone)


def test_single_rows_of_a_compacted_topic_need_a_key(store: Store) -> None:
    store.create_topic("latest", ORDERS, config={"cleanup.policy": "compact", "key.columns": "name"})
    with store.producer() as producer:
        assert producer.send("latest", {"id": 1, "name": "a"}).result().records == 1
        with pytest.raises(SchemaMismatchError, match=r"is compacted: row 0 has no key \(name is null\), 1 row in all"):
            producer.send("latest", {"id": 1})


def test_a_delivery_callback_gets_the_result_or_the_error(world: World, store: Store) -> None:
    told: list[tuple[BaseException | None, RecordMetadata | None]] = []
    with store.producer() as producer:
        future = producer.send("orders", orders(1, 2), partition=1, on_delivery=lambda *each: told.append(each))
        producer.send("orders", [], on_delivery=lambda *each: told.append(each))
        producer.flush()
    results = [result for error, result in told if error is None]
    assert sorted(result.records for result in results if result is not None) == [0, 2]
    assert future.result() in results
    _, broken = world.failing(Fault(action="fail", match=r"put_if_absent orders/.*batch", times=10**6))
    told.clear()
    producer = broken.producer(delivery_timeout_ms=3000)
    producer.send("orders", {"id": 1}, on_delivery=lambda *each: told.append(each))
    with pytest.raises(TxlogError):
        producer.close()
    ((error, result),) = told
    assert isinstance(error, TxlogError)
    assert result is None


def test_missing_nullable_column_is_null(world, store):
    with store.producer() as producer:
        producer.send("orders", [{"id": 1}], partition=0)
    assert world.read(column="name") == [None]


def test_no_rows_is_no_batch(world, store):
    with store.producer() as producer:
        result = producer.send("orders", []).result()
    assert (result.records, result.partition, result.base_offset) == (0, -1, -1)
    assert world.ends() == (0, 0, 0)


def test_kafka_shape_without_a_schema(world, store):
    store.create_topic("events")
    with store.producer() as producer:
        producer.send("events", [{"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"1"}]}], partition=0)
    (row,) = rows_of(store.consumer("events", auto_offset_reset="earliest"))
    assert row["key"] == b"k"
    assert row["headers"] == [{"key": "h", "value": b"1"}]
    assert (row["_topic"], row["_partition"], row["_offset"]) == ("events", 0, 0)


# -- partitions -------------------------------------------------------------------------------------------------------


def test_rows_of_a_key_go_where_kafka_sends_them(world, store):
    with store.producer() as producer:
        result = producer.send("orders", orders(*range(40)), key="name").result()
    assert result.partition == -1
    assert result.records == 40
    assert sorted(part.partition for part in result.parts) == [0, 1, 2, 3]
    rows = rows_of(store.consumer("orders", auto_offset_reset="earliest"))
    assert len(rows) == 40
    for row in rows:
        assert row["_partition"] == partition_for(murmur2(row["name"].encode()), 4)
    for partition in range(4):
        ids = [row["id"] for row in sorted(rows, key=lambda r: r["_offset"]) if row["_partition"] == partition]
        assert ids == sorted(ids), "the order of a partition is the order of the send"


def test_key_columns_of_the_topic_are_the_default_key(store):
    store.create_topic("keyed", ORDERS, partitions=8, config={"key.columns": "name"})
    with store.producer() as producer:
        result = producer.send("keyed", [{"id": 1, "name": "foobar"}]).result()
        assert result.partition == partition_for(murmur2(b"foobar"), 8)
        assert producer.send("keyed", [{"id": 1, "name": "foobar"}], partition=5).result().partition == 5


def test_rows_without_key_stay_together(store):
    with store.producer() as producer:
        result = producer.send("orders", orders(*range(100))).result()
        assert result.partition in range(4)
        assert producer.send("orders", orders(100)).result().partition == result.partition
        nulls = producer.send("orders", [{"id": 1}, {"id": 2}], key="name").result()
        assert nulls.parts == ()


def test_sticky_partition_moves_on_after_batch_size(store):
    with store.producer(batch_size=1) as producer:
        seen = [producer.send("orders", orders(n)).result().partition for n in range(8)]
    assert sorted(set(seen)) == [0, 1, 2, 3]


def test_partition_added_meanwhile_is_found(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        world.open().alter_topic("orders", partitions=6)
        assert producer.send("orders", orders(2), partition=5).result().partition == 5


def test_column_added_meanwhile_is_found(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        world.open().alter_topic("orders", add_columns=pa.schema([("price", pa.float64())]))
        producer.send("orders", [{"id": 2, "price": 1.5}], partition=0).result()
    assert world.read(column="price") == [None, 1.5]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_lingering_sends_become_one_batch(world, store):
    with store.producer(linger_ms=60_000) as producer:
        futures = [producer.send("orders", orders(n, n + 100), partition=0) for n in range(5)]
        assert not any(future.done() for future in futures)
        with world.counting.counting() as cost:
            producer.flush()
        assert [future.result().base_offset for future in futures] == [0, 2, 4, 6, 8]
    assert cost.put_if_absent == 1


def test_linger_ends_by_the_clock(world, store):
    with store.producer(linger_ms=1000) as producer:
        future = producer.send("orders", orders(1), partition=0)
        world.clock.advance_ms(1000)
        assert future.result(timeout=10).base_offset == 0


def test_longest_linger_there_is(world, store):
    with store.producer(linger_ms=2**63 - 1) as producer:
        future = producer.send("orders", orders(1), partition=0)
        producer.send("orders", orders(2), partition=0)
        assert not future.done()
    assert world.read() == [1, 2]


def test_rows_linger_no_more_when_there_is_no_room(world, store, monkeypatch):
    monkeypatch.setattr("txlog.client.producer.producer.MAX_BUFFER_BYTES", 100)
    with store.producer(linger_ms=10**9) as producer:
        for number in range(20):
            producer.send("orders", orders(number), partition=0)
    assert world.read() == list(range(20))


def test_small_rows_take_the_memory_of_their_sends(world, store, monkeypatch):
    monkeypatch.setattr("txlog.client.producer.producer.MAX_BUFFER_BYTES", 10 * SEND_BYTES)
    with store.producer("loader") as producer, producer.transaction():
        for number in range(30):
            producer.send("orders", {"id": number}, partition=0)
            assert producer._sender.waiting.memory < 12 * SEND_BYTES
        producer.flush()
        assert producer._sender.waiting.memory == 0
    assert world.read() == list(range(30))


def test_a_callback_does_not_wait_for_room(world, store, monkeypatch):
    monkeypatch.setattr("txlog.client.producer.producer.MAX_BUFFER_BYTES", 100)
    errors: list[TxlogTimeoutError] = []

    def again(error, metadata):
        with pytest.raises(TxlogTimeoutError, match="no room came free in a callback; nothing of this send") as caught:
            producer.send("orders", {"id": 2}, partition=0)
        errors.append(caught.value)

    with store.producer(linger_ms=10**6) as producer:
        producer.send("orders", {"id": 1}, partition=0, on_delivery=again)
        producer.flush()
    assert len(errors) == 1
    assert world.read() == [1]


def test_full_batch_does_not_wait(store):
    with store.producer(linger_ms=60_000, batch_size=200) as producer:
        future = producer.send("orders", orders(*range(50)), partition=0)
        assert future.result(timeout=10).records == 50


def test_small_batch_rides_inline_and_a_large_one_is_a_file(world, store):
    with store.producer() as producer:
        with world.counting.counting() as small:
            producer.send("orders", orders(1), partition=0).result()
        with world.counting.counting() as large:
            producer.send("orders", many(5000), partition=0).result()
    assert small.write_file == 0
    assert (large.write_file, large.put_if_absent) == (1, 1)
    (path,) = [path for verb, path in large.calls() if verb == "write_file"]
    assert path.startswith("orders/0/rows/")
    assert world.read() == [1, *range(5000)]


@pytest.mark.parametrize(("where", "files"), [("call", 1), ("client", 1), ("topic", 1), ("nowhere", 0)], ids=str)
def test_inline_limit_comes_from_call_client_or_topic(world, where, files):
    setting = {"inline.max.bytes": 0}
    store = world.open(**(setting if where == "client" else {}))
    store.create_topic("t", ORDERS, config=setting if where == "topic" else None)
    with store.producer(config=setting if where == "call" else None) as producer, world.counting.counting() as cost:
        producer.send("t", orders(1)).result()
    assert cost.write_file == files


def test_full_segments_are_sealed_by_the_writer(world, store):
    store.create_topic("small", ORDERS, config={"segment.batches": 3})
    with store.producer() as producer:
        for number in range(10):
            producer.send("small", orders(number)).result()
        producer.flush()
    described = store.admin().describe_partition("small", 0)
    assert [(s.base_offset, s.end_offset, s.batches) for s in described.segments] == [(0, 3, 3), (3, 6, 3), (6, 9, 3)]
    assert (described.tail_batches, described.sealed_end, described.log_end_offset) == (1, 9, 10)
    assert world.read("small") == list(range(10))


def test_two_writers_share_a_partition(world, store):
    with store.producer() as one, world.open().producer() as two:
        for number in range(5):
            one.send("orders", orders(number), partition=0).result()
            two.send("orders", orders(100 + number), partition=0).result()
    assert sorted(world.read()) == [*range(5), *range(100, 105)]


# -- idempotence, and what goes wrong ---------------------------------------------------------------------------------


def test_lost_reply_does_not_double_a_row(world, store):
    _, other = world.failing(Fault(action="lose_reply", moment="after", match=r"put_if_absent orders/0/.*batch"))
    with other.producer() as producer:
        assert producer.send("orders", orders(1), partition=0).result().base_offset == 0
        assert producer.send("orders", orders(2), partition=0).result().base_offset == 1
    assert world.read() == [1, 2]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_failing_store_is_tried_again(world, store, moment):
    _, other = world.failing(Fault(action="fail", moment=moment, match=r"put_if_absent orders/0/.*batch", times=3))
    with other.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        producer.send("orders", orders(2), partition=0).result()
    assert world.read() == [1, 2]


def test_file_that_cannot_be_written_is_written_again(world, store):
    _, other = world.failing(Fault(action="fail", match="write_file", times=2))
    with other.producer() as producer:
        producer.send("orders", many(5000), partition=0).result()
    assert world.read() == list(range(5000))


def test_a_file_that_vacuum_might_take_is_written_anew(world):
    """W8: for files of a drawn producer id, vacuum decides by the age of the file."""
    world.open(delete_grace_ms=10_000).create_topic("orders", ORDERS)
    failing, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/0/.*batch", times=20))
    with other.producer() as producer:
        producer.send("orders", many(5000), partition=0).result()
    written = [op.split()[1] for op in failing.operations if op.startswith("write_file orders/0/rows/")]
    assert len(written) > 1
    data = world.memory.get("orders/0/" + names.batch_name(0))
    assert data is not None
    assert ["orders/" + file.path for file in envelope.decode(data, CommitRecord, "")[0].files] == written[-1:]


def test_a_producer_that_slept_between_its_file_and_its_commit_writes_it_anew(world, monkeypatch):
    """This also holds within one try: vacuum may have deleted the file meanwhile."""
    world.open(delete_grace_ms=10_000).create_topic("orders", ORDERS)
    failing, other = world.failing()
    listing, nights = failing.list, iter([11_000])

    def slow(prefix, start_after=""):
        if prefix == "orders/0/":
            world.clock.advance_ms(next(nights, 0))
        return listing(prefix, start_after)

    monkeypatch.setattr(failing, "list", slow)
    with other.producer() as producer:
        producer.send("orders", many(5000), partition=0).result()
    written = [op.split()[1] for op in failing.operations if op.startswith("write_file orders/0/rows/")]
    assert len(written) == 2
    data = world.memory.get("orders/0/" + names.batch_name(0))
    assert data is not None
    assert ["orders/" + file.path for file in envelope.decode(data, CommitRecord, "")[0].files] == written[-1:]
    assert world.read() == list(range(5000))


def test_an_unknown_outcome_of_a_drawn_id_is_not_tried_again(world, store):
    """If the partition has forgotten the id, a first batch would look new, and the rows could be there twice."""
    settles = Fault(action="lose_reply", match=r"put_if_absent orders/0/.*batch", times=Context().max_settles)
    _, other = world.failing(settles)
    producer = other.producer()
    assert isinstance(producer.send("orders", orders(1), partition=0).exception(timeout=30), OutcomeUnknownError)
    with pytest.raises(OutcomeUnknownError):
        producer.close()
    assert world.read() == []


def test_other_partitions_go_on_while_one_is_tried_again(world, store):
    _, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/0/.*batch", times=4))
    with other.producer() as producer:
        late = producer.send("orders", orders(1), partition=0)
        assert producer.send("orders", orders(2), partition=1).result().base_offset == 0
        assert late.result().base_offset == 0


def test_delivery_timeout_ends_the_tries_and_says_that_nothing_was_written(world, store):
    """The store refused every create, so the sender may send the rows again without a check."""
    _, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/0/.*batch", times=10**6))
    producer = other.producer(delivery_timeout_ms=3000)
    future = producer.send("orders", orders(1), partition=0)
    error = future.exception(timeout=30)
    assert isinstance(error, RetriableError)
    assert "1 row for orders-0 could not be written, and nothing of it was: " in str(error)
    assert "may have been written" not in str(error)
    with pytest.raises(RetriableError, match="orders-0"):
        producer.close()
    assert world.read() == []


def test_delivery_timeout_after_a_lost_reply_says_that_nobody_knows(world, store):
    """The first create was not refused, and all later requests were, so the outcome stays unknown."""
    _, other = world.failing(
        Fault(action="lose_reply", match=r"put_if_absent orders/0/.*batch"),
        Fault(action="fail", match=r"(put_if_absent|get) orders/0/.*batch", number=2, times=10**6),
    )
    producer = other.producer(delivery_timeout_ms=3000)
    error = producer.send("orders", orders(1), partition=0).exception(timeout=30)
    assert isinstance(error, OutcomeUnknownError)
    with pytest.raises(OutcomeUnknownError, match="orders/0"):
        producer.close()


def test_batch_that_was_never_tried_timed_out_for_certain(world, store):
    producer = store.producer(linger_ms=1000, delivery_timeout_ms=500)
    future = producer.send("orders", orders(1), partition=0)
    world.clock.advance_ms(1000)
    error = future.exception(timeout=30)
    assert isinstance(error, TxlogTimeoutError)
    assert "delivery.timeout.ms = 500" in str(error)
    with pytest.raises(TxlogTimeoutError):
        producer.close()
    assert world.read() == []


def test_after_an_unknown_outcome_the_producer_goes_on_with_a_new_id(world, store):
    lost = Fault(action="lose_reply", match=r"put_if_absent orders/0/.*batch", number=2, times=Context().max_settles)
    _, other = world.failing(lost)
    producer = other.producer()
    producer.send("orders", orders(1), partition=0).result()
    assert isinstance(producer.send("orders", orders(2), partition=0).exception(timeout=30), OutcomeUnknownError)
    assert producer.send("orders", orders(4), partition=0).result().records == 1
    with pytest.raises(OutcomeUnknownError):
        producer.close()
    producers = world.open().admin().describe_producers("orders", 0)
    assert len(producers) == 2
    assert all(entry.producer_id >= 2**62 for entry in producers)


@pytest.mark.parametrize("retries", [0, 1, None])
@pytest.mark.parametrize("failures", [0, 6])
def test_forgotten_producer_starts_afresh(world, store, failures, retries):
    """Also after a try that failed without an effect."""
    outage, other = world.outage(**({} if retries is None else {"retries": retries}))
    with other.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        world.clock.advance_ms(store.runtime.constants.producer_id_expiration_ms + 2 * MAX_CLOCK_ERROR_MS)
        janitor = world.open()
        _, gone = janitor.runtime.run(expire_producers(janitor.runtime.context(), {}, tp("orders", 0)))
        assert len(gone) == 1
        outage.fails("orders/0", failures if retries is None else min(failures, 2 * retries))
        producer.send("orders", orders(2), partition=0).result()
        producer.send("orders", orders(3), partition=0).result()
    assert world.read() == [1, 2, 3]


def test_flush_raises_what_no_future_was_asked_for(world, store):
    _, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/", times=10**6))
    producer = other.producer(delivery_timeout_ms=1000)
    producer.send("orders", orders(1), partition=0)
    with pytest.raises(RetriableError, match="orders-0"):
        producer.flush()
    producer.flush()
    producer.close()


def test_dead_thread_is_not_silent(world, store):
    _, other = world.failing(Fault(action="crash", match=r"put_if_absent orders/0/"))
    producer = other.producer()
    future = producer.send("orders", orders(1), partition=0)
    with pytest.raises(SimulatedCrash):
        future.result(timeout=30)
    with pytest.raises(SimulatedCrash):
        producer.send("orders", orders(2), partition=0)


def test_topic_deleted_and_made_anew_meanwhile(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        other = world.open()
        other.delete_topic("orders")
        other.create_topic("orders", ORDERS, partitions=4)
        with pytest.raises(UnknownTopicOrPartitionError) as refused:
            producer.send("orders", orders(2), partition=0).result()
        assert str(refused.value) == (
            "orders-0: topic 'orders' was deleted after this producer looked it up, and may have been created again; "
            "the rows were not written. "
            "hint: abort the transaction if one is open, then send them again: the producer looks the topic up"
        )
        with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
            producer.flush()
        # By then the producer reads the topic's metadata again.
        assert producer.send("orders", orders(3), partition=0).result().base_offset == 2
    assert world.read() == [3]


def test_a_send_waits_for_room_no_longer_than_max_block(world, store, monkeypatch):
    monkeypatch.setattr("txlog.client.producer.producer.MAX_BUFFER_BYTES", 1)
    with store.producer(linger_ms=10**6, max_block_ms=0) as producer:
        producer.send("orders", orders(1), partition=0)
        with pytest.raises(TxlogTimeoutError, match=r"max.block.ms = 0; nothing of this send was taken"):
            producer.send("orders", orders(2), partition=0)
    assert world.read() == [1]


# -- bad calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "more", "error", "message"),
    [
        ([{"id": 1, "nmae": "x"}], {}, SchemaMismatchError, r"topic 'orders': row 0: column 'nmae' is unknown.*Did you mean 'name'\?"),
        ([{"id": "one"}], {}, SchemaMismatchError, "topic 'orders': row 0: column 'id': expected int64 not null, found str 'one'"),
        ([{"id": 1}, {"name": "x"}], {}, SchemaMismatchError, "topic 'orders': row 1: column 'id' is not nullable"),
        (pa.table({"id": [1.5]}), {}, SchemaMismatchError, "topic 'orders': column 'id': expected int64 \\(SQL BIGINT\\), found float64; cast it before sending \\(pandas: .astype\\('Int64'\\)\\)"),
        (pa.table({"id": pa.array([1, None])}), {}, SchemaMismatchError, "column 'id' is not nullable, and 1 values are null, the first in row 1"),
        (pa.table({"name": ["x"]}), {}, SchemaMismatchError, r"column 'id' \(int64 not null\) is missing"),
        (pa.table({"id": [1], "_offset": [7]}), {}, SchemaMismatchError, "'_offset' belongs to txlog"),
        ("rows", {}, SchemaMismatchError, "rows must be a pyarrow Table.*found str"),
        (orders(1), {"partition": 4}, UnknownTopicOrPartitionError, "'orders' has no partition 4: it has 4, numbered 0 to 3"),
        (orders(1), {"partition": -1}, UnknownTopicOrPartitionError, "no partition -1"),
        (orders(1), {"partition": True}, UnknownTopicOrPartitionError, "no partition True"),
        (orders(1), {"key": "nam"}, SchemaMismatchError, r"key column 'nam' is unknown.*Did you mean 'name'\?"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be(world, store, rows, more, error, message):
    with store.producer() as producer:
        with world.counting.counting() as cost, pytest.raises(error, match=message):
            producer.send("orders", rows, **more)
        assert cost.put_if_absent == 0
        producer.send("orders", orders(7), partition=0).result()
    assert world.read() == [7]


def test_topic_that_is_not_there(store):
    with store.producer() as producer:
        for topic, message in (("order", r"'order' does not exist. Did you mean 'orders'\?"), ("__mine", "reserved")):
            with pytest.raises(InvalidRequestError, match=message):
                producer.send(topic, orders(1))


def test_transaction_calls_need_a_transactional_id(store):
    with store.producer() as producer:
        for call in (
            producer.init_transactions,
            producer.begin_transaction,
            producer.commit_transaction,
            producer.abort_transaction,
        ):
            with pytest.raises(IllegalStateError, match=r"needs a transactional.id\. hint: name it"):
                call()


def test_staged_needs_a_transactional_id(store):
    with pytest.raises(InvalidConfigurationError, match=r"staged = true needs a transactional.id"):
        store.producer(staged=True)


def test_closed_producer_refuses(store):
    producer = store.producer()
    producer.close()
    producer.close()
    with pytest.raises(IllegalStateError, match=r"send\(\) on a closed producer; make a new one"):
        producer.send("orders", orders(1))
    with pytest.raises(IllegalStateError, match=r"flush\(\) on a closed producer"):
        producer.flush()


def test_compacted_topic_wants_a_key_in_every_row(store):
    store.create_topic("latest", ORDERS, config={"cleanup.policy": "compact", "key.columns": "name"})
    missing = r"'latest' is compacted: row 1 has no key \(name is null\), 1 row in all"
    with store.producer() as producer, pytest.raises(SchemaMismatchError, match=missing):
        producer.send("latest", [{"id": 1, "name": "a"}, {"id": 2}])


def test_compression_none(world, store):
    with store.producer(compression_type="none", inline_max_bytes=0) as producer:
        producer.send("orders", orders(1, 2), partition=0)
    assert world.read() == [1, 2]


def test_local_directory(tmp_path):
    root = tmp_path / "log"
    with txlog.open(str(root), config={"linger.ms": 0}) as store:
        store.create_topic("orders", ORDERS, config={"segment.batches": 2})
        with store.producer("loader") as producer:
            for number in range(3):
                with producer.transaction():
                    producer.send("orders", orders(number))
            with producer.transaction():
                producer.send("orders", many(5000, 10))
        assert isinstance(store.runtime.store, LocalObjectStore)
    with txlog.open(f"file://{root}") as store:
        consumer = store.consumer("orders", auto_offset_reset="earliest")
        assert [row["id"] for row in rows_of(consumer)] == [0, 1, 2, *range(10, 5010)]
    names = {path.suffix for path in root.rglob("*") if path.is_file()}
    assert {".batch", ".index", ".snapshot", ".parquet", ".json"} <= names


# -- the thread -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional_id", [None, "loader"])
def test_nothing_waits_for_a_thread_that_has_ended(store, monkeypatch, transactional_id):
    producer = store.producer(transactional_id)
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()

    def broken(batches):
        raise RuntimeError("a bug")

    monkeypatch.setattr(producer._sender, "_send", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        producer.send("orders", orders(1), partition=0).result(20)
    with pytest.raises(TxlogError, match="a bug"):
        producer.send("orders", orders(2), partition=0)


def test_what_goes_wrong_after_the_rows_are_in_does_not_end_the_thread(world, store, monkeypatch, caplog):
    producer = store.producer()

    def broken(partitions, own):
        raise RuntimeError("a bug")

    monkeypatch.setattr(producer._session, "end_overdue", broken)
    for number in range(3):
        assert producer.send("orders", orders(number), partition=0).result(20).base_offset == number
    producer.close()
    assert world.read() == [0, 1, 2]
    assert "the rows are in" in caplog.text


def test_a_writer_forgets_whose_dead_transactions_it_looked_at(world, store):
    with store.producer() as plain:
        for number in range(4):
            dead = world.open().producer(f"dead-{number}", transaction_timeout_ms=1000)
            dead.init_transactions()
            dead.begin_transaction()
            dead.send("orders", orders(number), partition=0).result()
            plain.send("orders", orders(10 + number), partition=0).result()
            world.clock.advance_ms(11_000)
            # The first send completes before the writer looks; the second one waits for the look.
            plain.send("orders", orders(20 + number), partition=0).result()
            plain.send("orders", orders(30 + number), partition=0).result()
            assert len(plain._session._looked_at_ms) == 1
    assert [row for row in world.read() if row < 20] == [10, 11, 12, 13]
