"""A stream's source, called as Spark calls it but without Spark: begin and end of batches, new partitions, loss, the
group."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from pyspark_txlog.source import read_limits
from tests.spark.limits import HAS_LIMITS
from tests.spark.streaming import Checkpoint, Query
from txlog.client import offsets as client_offsets
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.clock import SystemClock
from txlog.core.names import TopicPartition
from txlog.errors import (
    InvalidRequestError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txlog.storage.open import open_object_store
from txlog.testing.clock import ManualClock
from txlog.testing.counting_store import CountingStore

ORDERS = pa.schema((pa.field("order_id", pa.int64(), nullable=False), pa.field("carrier", pa.string())))
AT_ONCE: dict[str, Any] = {"metadata.max.age.ms": "0"}
BEHIND_FIVE = '{"orders": {"0": 5, "1": 0}}'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield an empty topic of two partitions."""
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as made:
        made.create_topic("orders", ORDERS, 2)
        yield made


@pytest.fixture(autouse=True, params=["4.2", "4.0"])
def spark_version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ask the source as this Spark does, and return its version."""
    version: str = request.param
    if version == "4.2" and not HAS_LIMITS:
        pytest.skip("these tests give limits, and this Spark has none")
    monkeypatch.setattr(Query, "passes_start", version == "4.2")
    return version


with_limits = pytest.mark.parametrize("spark_version", ["4.2"], indirect=True)


def send(store: Store, first: int, count: int = 1, *, partition: int = 0, topic: str = "orders") -> None:
    """Send `count` rows in one batch that belongs to no transaction."""
    with store.producer() as producer:
        put(producer, first, count, partition=partition, topic=topic)


def put(producer: Producer, first: int, count: int = 1, *, partition: int = 0, topic: str = "orders") -> None:
    producer.send(topic, [{"order_id": first + at} for at in range(count)], partition=partition)
    producer.flush()


def ids(first: int, count: int) -> list[int]:
    return list(range(first, first + count))


# -- where a query begins ---------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_unless_told_otherwise(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store, startingOffsets="latest")
    assert query.batch() == []
    send(store, 5, 5)
    assert query.drain() == ids(5, 5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, ids(0, 10)),
        ({"startingOffsets": '{"orders":{"0":3,"1":-1}}'}, [3, 4]),
        ({"startingOffsets": '{"orders":{"0":-1,"1":-2}}'}, ids(5, 5)),
        ({"startingTimestamp": "0"}, ids(0, 10)),
        ({"startingTimestamp": "99999999999999", "startingOffsetsByTimestampStrategy": "latest"}, []),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":0,"1":99999999999999}}', "startingOffsetsByTimestampStrategy": "latest"}, ids(0, 5)),
        ({"startingOffsets": "committed", "group.id": "audit"}, [4, 8, 9]),
        ({"startingOffsets": "committed", "group.id": "new", "auto.offset.reset": "earliest"}, ids(0, 10)),
    ],
)  # fmt: skip
def test_where_a_query_begins(store: Store, options: dict[str, Any], expected: list[int]) -> None:
    send(store, 0, 5)
    send(store, 5, 5, partition=1)
    with store.consumer(group_id="audit") as consumer:
        consumer.commit({("orders", 0): 4, ("orders", 1): 3})
    assert Query(store, **options).drain() == expected


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "committed", "group.id": "new"},
        {"startingTimestamp": "99999999999999"},
    ],
)
def test_nothing_to_begin_at_names_the_option_that_helps(store: Store, options: dict[str, Any]) -> None:
    query = Query(store, **options)
    with pytest.raises(
        NoOffsetForPartitionError, match=r"the option '(auto.offset.reset|startingOffsetsByTimestampStrategy)' does"
    ):
        query.batch()


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_crash_in_the_first_batch_does_not_move_where_the_query_begins(store: Store, start: str) -> None:
    send(store, 0, 5)
    first = Query(store, startingOffsets=start)
    assert first.next()
    assert len(first.plan()) == (start == "earliest")
    send(store, 5, 5)
    again = Query(store, first.checkpoint, startingOffsets=start)
    assert again.drain() == (ids(0, 10) if start == "earliest" else ids(5, 5))


def test_a_batch_that_was_planned_is_planned_the_same_again(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store)
    query.batch()
    send(store, 5, 5)
    assert query.next()
    send(store, 10, 5)
    again = Query(store, query.checkpoint)
    assert again.batch() == ids(5, 5)
    assert again.drain() == ids(10, 5)


def test_a_checkpoint_of_another_store_is_refused(store: Store, tmp_path: Path) -> None:
    send(store, 0, 5)
    query = Query(store)
    query.batch()
    with txlog.open(str(tmp_path / "other"), storage_options={"fsync": False}) as other:
        other.create_topic("orders", ORDERS, 2)
        send(other, 0, 5)
        send(other, 5, 5)
        with pytest.raises(
            InvalidRequestError,
            match=r"the checkpoint of this query is of the store .* startingOffsets behind the rows",
        ):
            Query(other, query.checkpoint).batch()
        # The other store is a copy of the first, and the sink has five rows.
        assert Query(other, Checkpoint(), startingOffsets=BEHIND_FIVE).drain() == ids(5, 5)


# -- limits -----------------------------------------------------------------------------------------------------------


@with_limits
def test_a_batch_takes_at_most_max_offsets_in_proportion(store: Store) -> None:
    send(store, 0, 90)
    send(store, 90, 10, partition=1)
    query = Query(store, maxOffsetsPerTrigger="20")
    sizes = []
    while (found := query.batch()) is not None:
        sizes.append((len([i for i in found if i < 90]), len([i for i in found if i >= 90])))
    assert sizes == [(18, 2)] * 5
    assert query.batch(limited=False) is None


@with_limits
def test_no_partition_starves_and_everything_is_read_once(store: Store) -> None:
    send(store, 0, 100)
    send(store, 100, 1, partition=1)
    query = Query(store, maxOffsetsPerTrigger="7")
    assert query.batch() == [*ids(0, 6), 100]
    assert query.drain() == ids(6, 94)


@with_limits
def test_everything_at_once_knows_no_limit(store: Store) -> None:
    send(store, 0, 50)
    assert Query(store, maxOffsetsPerTrigger="7").batch(limited=False) == ids(0, 50)


@with_limits
def test_few_offsets_wait_for_more_or_for_the_delay(store: Store) -> None:
    clock = ManualClock()
    query = Query(store, clock=clock, minOffsetsPerTrigger="10", maxTriggerDelay="15m")
    assert query.batch() == []
    send(store, 0, 9)
    # The rows that exist at the first request have waited long enough.
    assert query.batch() == ids(0, 9)
    send(store, 9, 9)
    assert query.batch() is None
    send(store, 18, 1, partition=1)
    assert query.batch() == ids(9, 10)
    send(store, 19, 1)
    assert query.batch() is None
    clock.advance_ms(15 * 60_000 - 1)
    assert query.batch() is None
    clock.advance_ms(1)
    assert query.batch() == [19]
    assert query.batch() is None


@with_limits
def test_available_now_reads_what_was_there_and_no_more(store: Store) -> None:
    send(store, 0, 20)
    query = Query(store, maxOffsetsPerTrigger="8", minOffsetsPerTrigger="8", **AT_ONCE)
    query.source.stop_at_what_is_there()
    send(store, 20, 20)
    send(store, 40, 20, partition=1)
    store.alter_topic("orders", partitions=3)
    send(store, 60, 5, partition=2)
    assert query.drain() == ids(0, 20)
    again = Query(store, query.checkpoint, **AT_ONCE)
    again.source.stop_at_what_is_there()
    assert again.drain() == ids(20, 45)


def test_available_now_from_latest_reads_nothing(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store, startingOffsets="latest")
    query.source.stop_at_what_is_there()
    send(store, 5, 5)
    assert query.drain() == []
    assert Query(store, query.checkpoint).drain() == []


# -- new partitions and topics ----------------------------------------------------------------------------------------


def test_new_partitions_join_a_running_query_from_their_first_row(store: Store) -> None:
    query = Query(store, startingOffsets="latest", **AT_ONCE)
    assert query.batch() == []
    store.alter_topic("orders", partitions=4)
    send(store, 0, 5, partition=3)
    assert query.batch() == []
    assert query.ends()["orders"] == {"0": 0, "1": 0, "2": 0, "3": 0}
    assert query.batch() == ids(0, 5)


def test_new_topics_of_a_pattern_join_and_others_do_not(store: Store) -> None:
    query = Query(store, subscribePattern="orders.*", **AT_ONCE)
    send(store, 0, 5)
    assert query.drain() == ids(0, 5)
    for topic in ("orders-eu", "more-orders"):
        store.create_topic(topic, ORDERS, 1)
        send(store, 5, 5, topic=topic)
    assert query.drain() == ids(5, 5)
    assert set(query.ends()) == {"orders", "orders-eu", "txlog:source"}


def test_a_pattern_may_match_nothing_yet_if_the_schema_is_given(store: Store) -> None:
    schema = Query(store).schema
    query = Query(store, subscribePattern="returns", schema=schema, **AT_ONCE)
    assert query.batch() == []
    assert query.batch() is None
    store.create_topic("returns", ORDERS, 1)
    send(store, 0, 5, topic="returns")
    assert query.drain() == ids(0, 5)


def test_assigned_partitions_stay_the_only_ones(store: Store) -> None:
    query = Query(store, assign='{"orders":[1]}', **AT_ONCE)
    send(store, 0, 5)
    send(store, 5, 5, partition=1)
    store.alter_topic("orders", partitions=3)
    send(store, 10, 5, partition=2)
    assert query.drain() == ids(5, 5)


def test_new_partitions_are_found_after_metadata_max_age(store: Store) -> None:
    clock = ManualClock()
    query = Query(store, clock=clock)
    query.drain()
    store.alter_topic("orders", partitions=3)
    send(store, 0, 5, partition=2)
    assert query.drain() == []
    clock.advance_ms(300_000)
    assert query.drain() == ids(0, 5)


# -- Kafka's corner cases: offsets without a row ----------------------------------------------------------------------


@pytest.fixture
def aborting(store: Store) -> Iterator[Producer]:
    with store.producer("aborting") as producer:
        yield producer


def abort(producer: Producer, first: int, count: int = 3) -> None:
    producer.begin_transaction()
    put(producer, first, count)
    producer.abort_transaction()


def commit(producer: Producer, first: int, count: int = 3) -> None:
    producer.begin_transaction()
    put(producer, first, count)
    producer.commit_transaction()


def test_a_batch_whose_rows_were_all_aborted_is_read_and_left_behind(store: Store, aborting: Producer) -> None:
    query = Query(store)
    query.drain()
    abort(aborting, 0)
    assert query.batch() == []
    assert query.ends()["orders"]["0"] == 4
    assert query.batch() is None
    assert query.progress()["lag"] == {"rows": 0, "seconds": 0}


@pytest.mark.parametrize("limit", ["1", "2", "3", "1000"])
def test_batches_that_begin_or_end_without_a_row_or_have_a_hole(store: Store, aborting: Producer, limit: str) -> None:
    """Offsets 0-2 aborted, 3 marker, 4-6 rows, 7 marker, 8-10 aborted, 11 marker, 12-14 rows, 15 marker."""
    abort(aborting, 0)
    commit(aborting, 10)
    abort(aborting, 20)
    commit(aborting, 30)
    limits: dict[str, Any] = {"maxOffsetsPerTrigger": limit} if Query.passes_start else {}
    query = Query(store, **limits)
    assert query.drain() == [10, 11, 12, 30, 31, 32]
    assert query.ends()["orders"]["0"] == 16
    uncommitted = Query(store, isolation_level="read_uncommitted", **limits)
    assert uncommitted.drain() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]


def test_a_read_ends_at_the_last_stable_offset(store: Store, aborting: Producer) -> None:
    send(store, 0)
    aborting.begin_transaction()
    put(aborting, 1)
    send(store, 2)
    query, uncommitted = Query(store), Query(store, isolation_level="read_uncommitted")
    assert (query.drain(), uncommitted.drain()) == ([0], [0, 1, 2])
    # Rows behind an open transaction cannot be read yet, so they are not lag.
    assert query.progress()["lag"] == {"rows": 0, "seconds": 0}
    aborting.commit_transaction()
    assert (query.drain(), uncommitted.drain()) == ([1, 2], [])


def test_a_batch_planned_with_read_uncommitted_is_not_cut_short_by_read_committed(
    store: Store, aborting: Producer
) -> None:
    uncommitted = Query(store, isolation_level="read_uncommitted")
    uncommitted.drain()
    aborting.begin_transaction()
    put(aborting, 0)
    assert uncommitted.next()
    with pytest.raises(OffsetOutOfRangeError, match="it was planned with read_uncommitted"):
        Query(store, uncommitted.checkpoint).batch()
    aborting.commit_transaction()
    assert Query(store, uncommitted.checkpoint).drain() == [0]


# -- loss -------------------------------------------------------------------------------------------------------------


def test_retention_that_overtakes_a_query_ends_it(store: Store) -> None:
    query = Query(store)
    query.drain()
    for first in (0, 5):
        send(store, first, 5)
    store.admin().delete_records("orders", 0, 5)
    assert query.next()
    with pytest.raises(
        OffsetOutOfRangeError, match=r"read up to offset 0, and the log begins at 5: 5 offsets .* failOnDataLoss=false"
    ):
        query.plan()
    # Every start fails until the user allows the loss.
    with pytest.raises(OffsetOutOfRangeError, match="the log begins at 5"):
        Query(store, query.checkpoint).batch()
    assert Query(store, query.checkpoint, failOnDataLoss="false").drain() == ids(5, 5)


def test_what_retention_took_is_counted_and_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(store, failOnDataLoss="false")
    query.drain()
    send(store, 0, 5)
    send(store, 5, 5)
    store.admin().delete_records("orders", 0, 5)
    assert query.next()
    # Spark takes the progress of a batch before it plans the batch.
    assert query.progress()["lost"] == 5
    assert query.drain() == ids(5, 5)
    assert "failOnDataLoss=false, orders-0: 5 offsets from 0 on were removed" in caplog.text
    assert query.batch() is None
    assert query.progress()["lost"] == 5


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_log_that_was_emptied_is_noticed_though_nothing_is_left_to_read(store: Store, fails: str) -> None:
    query = Query(store, failOnDataLoss=fails)
    query.drain()
    send(store, 0, 5)
    store.admin().delete_records("orders", 0)
    if fails == "true":
        with pytest.raises(OffsetOutOfRangeError, match="5 offsets of this batch"):
            query.drain()
        return
    assert query.drain() == []
    assert query.progress()["lost"] == 5


@pytest.mark.parametrize("restarted", [False, True])
def test_a_query_that_has_read_everything_loses_nothing_when_the_log_is_emptied(store: Store, restarted: bool) -> None:
    send(store, 0, 5)
    query = Query(store)
    assert query.drain() == ids(0, 5)
    for _ in range(2):
        store.admin().delete_records("orders", 0)
    if restarted:
        query = Query(store, query.checkpoint)
    assert query.drain() == []
    send(store, 5, 5)
    assert query.drain() == ids(5, 5)
    assert query.progress()["lost"] == 0


def test_retention_between_the_planning_and_the_reading_of_a_batch(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan names a file of rows. Before a task opens it, retention moves the log start and the file is deleted."""
    for first in (0, 20_000):
        send(store, first, 20_000)
    query, lossy = Query(store), Query(store, failOnDataLoss="false")
    planned, planned_lossy = [each.plan() if each.next() else [] for each in (query, lossy)]
    store.admin().delete_records("orders", 0, 20_000)
    min((tmp_path / "log" / "orders" / "0" / "rows").iterdir(), key=lambda file: file.stat().st_mtime_ns).unlink()
    with pytest.raises(OffsetOutOfRangeError, match="offset 0 is out of range, the log holds 20000 to"):
        query.read(planned)
    assert [row["order_id"] for row in lossy.read(planned_lossy)] == ids(20_000, 20_000)
    assert "orders-0: 20000 offsets, 0 to 20000, were removed during the read" in caplog.text


def test_a_log_that_went_back_is_an_error_whatever_the_options_say(store: Store, tmp_path: Path) -> None:
    send(store, 0, 5)
    query = Query(store, failOnDataLoss="false")
    query.drain()
    send(store, 5, 5)
    query.drain()
    slots = sorted((tmp_path / "log" / "orders" / "0").glob("*.batch"))
    slots[-1].unlink()
    with pytest.raises(OffsetOutOfRangeError, match=r"put back to an older state.* startingOffsets behind the rows"):
        Query(store, query.checkpoint, failOnDataLoss="false").drain()
    with txlog.open(store.runtime.url, storage_options={"fsync": False}) as anew:
        send(anew, 10, 5)
        # Its new rows took the offsets of rows that the sink has.
        assert Query(anew, Checkpoint(), startingOffsets=BEHIND_FIVE).drain() == ids(10, 5)


def test_a_deleted_topic_of_a_pattern_is_a_loss_only_if_rows_were_unread(store: Store) -> None:
    for topic in ("returns-read", "returns-unread"):
        store.create_topic(topic, ORDERS, 1)
        send(store, 0, 5, topic=topic)
    strict, lax = (
        Query(store, subscribePattern="orders|returns.*", failOnDataLoss=fails, **AT_ONCE)
        for fails in ("true", "false")
    )
    for query in (strict, lax):
        assert len(query.drain()) == 10
    store.delete_topic("returns-read")
    assert (strict.drain(), lax.drain()) == ([], [])
    send(store, 5, 5, topic="returns-unread")
    store.delete_topic("returns-unread")
    with pytest.raises(
        OffsetOutOfRangeError,
        match="its topic was deleted; this query has read it up to offset 5, 5 offsets are unread",
    ):
        strict.drain()
    assert lax.drain() == []
    assert lax.progress()["lost"] == 5
    # The offsets of the new topic continue, so the query continues, too.
    store.create_topic("returns-read", ORDERS, 1)
    send(store, 20, 5, topic="returns-read")
    assert lax.drain() == ids(20, 5)
    assert lax.progress()["lost"] == 5


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("named", ["subscribe", "subscribePattern"])
def test_a_topic_that_was_made_anew_between_two_looks_is_read_on(store: Store, named: str, fails: str) -> None:
    store.create_topic("returns", ORDERS, 1)
    send(store, 0, 5, topic="returns")
    topics = {"subscribe": "orders,returns", "subscribePattern": "orders|returns"}[named]
    options: dict[str, Any] = {named: topics, **AT_ONCE}
    query = Query(store, failOnDataLoss=fails, **options)
    assert query.drain() == ids(0, 5)
    store.delete_topic("returns")
    store.create_topic("returns", ORDERS, 1)
    send(store, 5, 5, topic="returns")
    assert query.drain() == ids(5, 5)
    assert query.progress()["lost"] == 0


def test_a_deleted_topic_that_is_named_ends_the_query(store: Store) -> None:
    store.create_topic("returns", ORDERS, 1)
    strict, lax = (
        Query(store, subscribe="orders,returns", failOnDataLoss=fails, **AT_ONCE) for fails in ("true", "false")
    )
    for query in (strict, lax):
        query.drain()
    store.delete_topic("returns")
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"'returns' .* failOnDataLoss=false continues with the other topics"
    ):
        strict.drain()
    send(store, 0, 5)
    assert lax.drain() == ids(0, 5)
    again = Query(store, lax.checkpoint, schema=lax.schema, subscribe="orders,returns", failOnDataLoss="false")
    again.source.stop_at_what_is_there()
    assert again.drain() == []
    first = Query(store, schema=lax.schema, subscribe="orders,returns", failOnDataLoss="false")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 'returns'"):
        first.drain()


def test_options_that_name_less_than_the_checkpoint_are_noticed(store: Store) -> None:
    store.create_topic("returns", ORDERS, 1)
    query = Query(store, subscribe="orders,returns")
    query.drain()
    send(store, 0, 5)
    send(store, 50, 2, topic="returns")
    with pytest.raises(OffsetOutOfRangeError, match=r"returns-0: the options of this query no .*hint: name it again"):
        Query(store, query.checkpoint).drain()
    named = Query(store, copy.deepcopy(query.checkpoint), subscribe="orders,returns")
    assert named.drain() == ids(0, 5) + ids(50, 2)
    assert Query(store, query.checkpoint, failOnDataLoss="false").drain() == ids(0, 5)


def test_rows_of_a_new_topic_that_went_before_the_query_saw_it_are_a_loss(store: Store) -> None:
    strict, lax = (Query(store, subscribePattern=".*", failOnDataLoss=fails, **AT_ONCE) for fails in ("true", "false"))
    for query in (strict, lax):
        query.drain()
    store.create_topic("returns", ORDERS, 1)
    send(store, 0, 5, topic="returns")
    send(store, 5, 5, topic="returns")
    store.admin().delete_records("returns", 0, 5)
    with pytest.raises(OffsetOutOfRangeError, match="returns-0 is new to this query, and its log begins at offset 5"):
        strict.drain()
    assert lax.drain() == ids(5, 5)
    assert lax.progress()["lost"] == 5


def test_offsets_before_the_first_of_a_topic_made_anew_are_no_loss(store: Store) -> None:
    store.create_topic("returns", ORDERS, 1)
    send(store, 0, 5, topic="returns")
    store.delete_topic("returns")
    query = Query(store, subscribePattern=".*", **AT_ONCE)
    query.drain()
    store.create_topic("returns", ORDERS, 1)
    send(store, 5, 5, topic="returns")
    assert query.drain() == ids(5, 5)
    assert query.progress()["lost"] == 0


# -- the group --------------------------------------------------------------------------------------------------------


def committed(store: Store, group: str = "audit") -> list[int | None]:
    with store.consumer(group_id=group) as consumer:
        found = consumer.committed(TopicPartition("orders", 0), TopicPartition("orders", 1))
    return [None if value is None else value.offset for _, value in sorted(found.items())]


def test_the_group_follows_the_query_and_is_never_ahead(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store, group_id="audit")
    assert query.next()
    query.read(query.plan())
    assert committed(store) == [None, None]
    query.done()
    assert committed(store) == [None, None]
    # Spark asks for the next batch, so the batch before has been processed.
    assert not query.next()
    assert committed(store) == [5, 0]
    send(store, 5, 5, partition=1)
    assert query.next()
    assert committed(store) == [5, 0]
    query.read(query.plan())
    again = Query(store, query.checkpoint, group_id="audit")
    assert committed(store) == [5, 0]
    assert again.drain() == ids(5, 5)
    assert committed(store) == [5, 5]


@with_limits
def test_the_group_never_goes_backwards(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store, group_id="audit", maxOffsetsPerTrigger="2")
    with store.consumer(group_id="audit") as consumer:
        consumer.commit({("orders", 0): 3})
    for expected in ([3, None], [3, None], [3, 0], [4, 0]):
        assert committed(store) == expected
        query.batch()
    assert query.batch() is None
    assert committed(store) == [5, 0]


def test_two_that_commit_for_one_group_never_take_it_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client commits a later offset after this query read the group. The query's condition detects that."""
    looks = 0
    look = client_offsets.committed_offsets

    def look_and_be_overtaken(*args: Any, **kwargs: Any) -> Any:
        nonlocal looks
        looks += 1
        found = look(*args, **kwargs)
        if looks == 1:
            with store.consumer(group_id="audit") as consumer:
                consumer.commit({("orders", 0): 4})
        return found

    send(store, 0, 3)
    query = Query(store, group_id="audit")
    assert query.batch() == ids(0, 3)
    monkeypatch.setattr(client_offsets, "committed_offsets", look_and_be_overtaken)
    assert query.batch() is None
    monkeypatch.undo()
    assert looks == 2
    assert committed(store) == [4, 0]


def test_a_group_with_undecided_offsets_does_not_hold_the_query_up(store: Store, aborting: Producer) -> None:
    send(store, 0, 5)
    query = Query(store, group_id="audit")
    aborting.begin_transaction()
    aborting.send_offsets_to_transaction({("orders", 0): 3}, "audit")
    assert query.drain() == ids(0, 5)
    aborting.commit_transaction()
    assert committed(store) == [3, None]
    send(store, 5, 5)
    assert query.drain() == ids(5, 5)
    assert committed(store) == [10, 0]


def test_a_lost_checkpoint_is_made_good_by_the_group(store: Store) -> None:
    send(store, 0, 5)
    options: dict[str, Any] = {"startingOffsets": "committed", "auto.offset.reset": "earliest", "group.id": "audit"}
    assert Query(store, **options).drain() == ids(0, 5)
    send(store, 5, 5)
    assert Query(store, Checkpoint(), **options).drain() == ids(5, 5)


# -- schema -----------------------------------------------------------------------------------------------------------


def test_a_running_query_keeps_its_columns_when_the_topic_gets_more(store: Store) -> None:
    query = Query(store)
    query.drain()
    store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    with store.producer() as producer:
        producer.send("orders", [{"order_id": 0, "note": "new"}], partition=0)
    assert query.next()
    assert query.read(query.plan()) == [{"order_id": 0, "carrier": None}]
    query.done()
    # The next start sees the new column. It is null in earlier rows.
    send(store, 1)
    again = Query(store, query.checkpoint)
    assert again.next()
    assert again.read(again.plan()) == [{"order_id": 1, "carrier": None, "note": None}]


def test_a_topic_that_joins_must_have_the_columns_of_the_query(store: Store) -> None:
    query = Query(store, subscribePattern=".*", **AT_ONCE)
    query.drain()
    store.create_topic("returns", pa.schema([pa.field("order_id", pa.int64(), nullable=False)]), 1)
    send(store, 0, topic="returns")
    with pytest.raises(SchemaMismatchError, match="topic 'returns' has no column 'carrier'"):
        query.drain()


# -- what it costs and reports ----------------------------------------------------------------------------------------


def test_an_idle_partition_costs_one_request(store: Store) -> None:
    send(store, 0, 5)
    counting = CountingStore(open_object_store(store.runtime.url, {"fsync": False}))
    query = Query(store, object_store=counting, group_id="audit")
    query.drain()
    with counting.counting() as cost:
        for _ in range(10):
            assert query.batch() is None
            assert query.progress()["lag"]["rows"] == 0
    assert (cost.get, cost.total) == (20, 20)
    send(store, 5)
    with counting.counting() as cost:
        assert query.next()
        query.plan()
    # A GET for the new record, and one for the next free slot of each partition. Planning needs no further request.
    assert (cost.get, cost.total) == (3, 3)


@with_limits
def test_lag_in_rows_and_seconds_down_to_zero(store: Store) -> None:
    # A folder has the machine's time.
    clock = ManualClock(SystemClock().now_ms())
    writer = txlog.open(store.runtime.url, storage_options={"fsync": False}, clock=clock)
    query = Query(store, clock=clock, maxOffsetsPerTrigger="4")
    query.drain()
    send(writer, 0, 4)
    clock.advance_ms(7000)
    send(writer, 4, 4)
    clock.advance_ms(3000)
    assert query.batch() == ids(0, 4)
    assert query.progress()["lag"] == {"rows": 4, "seconds": 3}
    report = query.source.report()
    assert report is not None
    assert report["orders"] == {"0": 8, "1": 0}
    assert query.batch() == ids(4, 4)
    assert query.progress()["lag"] == {"rows": 0, "seconds": 0}
    writer.close()


@with_limits
def test_lag_behind_sealed_segments(store: Store) -> None:
    """The oldest unread row is in a sealed segment, and the segment's index has its time."""
    # A folder has the machine's time.
    clock = ManualClock(SystemClock().now_ms())
    with txlog.open(store.runtime.url, storage_options={"fsync": False}, clock=clock) as writer:
        writer.create_topic("sealed", ORDERS, 1, config={"segment.batches": 2})
        for first in range(0, 20, 2):
            send(writer, first, 2, topic="sealed")
            clock.advance_ms(1000)
    query = Query(store, clock=clock, subscribe="sealed", maxOffsetsPerTrigger="5")
    assert query.batch() == ids(0, 5)
    assert query.progress()["lag"] == {"rows": 15, "seconds": 8}
    assert query.drain() == ids(5, 15)


def test_the_checkpoint_holds_kafkas_json(store: Store) -> None:
    send(store, 0, 5)
    query = Query(store)
    query.drain()
    source = {"group.id": None, "store": store.runtime.require_store().store_id}
    assert json.loads(query.checkpoint.ends[0]) == {
        "orders": {"0": 5, "1": 0},
        "txlog:source": {**source, "start": {"orders": {"0": 0, "1": 0}}},
    }
    send(store, 5, 1)
    query.drain()
    assert query.ends() == {"orders": {"0": 6, "1": 0}, "txlog:source": source}


# -- before Spark 4.2 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"])
def test_limits_are_refused_at_load_by_an_older_spark(
    store: Store, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(read_limits, "HAS_LIMITS", False)
    options: dict[str, Any] = {option: "5"}
    with pytest.raises(InvalidRequestError, match=f"^option '{option}' needs Spark 4.2, .* hint: leave it out"):
        Query(store, **options)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_another_spark_goes_on_with_a_checkpoint(
    store: Store, monkeypatch: pytest.MonkeyPatch, spark_version: str, start: str
) -> None:
    """Also in the middle of the first batch."""
    send(store, 0, 5)
    checkpoint, found, passes_start = Checkpoint(), list[int](), spark_version == "4.2"
    for first in range(5, 30, 5):
        monkeypatch.setattr(Query, "passes_start", passes_start)
        query = Query(store, checkpoint, startingOffsets=start)
        found += query.drain()
        send(store, first, 5)
        assert query.next()
        query.plan()
        passes_start = not passes_start
    assert Query(store, checkpoint, startingOffsets=start).drain() == ids(25, 5)
    assert found == (ids(0, 25) if start == "earliest" else ids(5, 20))


def test_a_batch_that_would_read_rows_twice_is_refused(store: Store) -> None:
    """Such an end is in the checkpoint if Spark asked for it before it let the newest offset be planned."""
    store.create_topic("returns", ORDERS, 1)
    send(store, 0, 5)
    send(store, 50, 2, topic="returns")
    query = Query(store, subscribe="orders,returns")
    query.drain()
    query.checkpoint.ends.append(json.dumps(Query(store).source.latest_after_plan()))
    with pytest.raises(InvalidRequestError, match=r"^returns-0: this query has read up to offset 2, .* is None\. It"):
        Query(store, query.checkpoint).batch()


def test_rows_that_go_between_a_crash_and_the_restart_are_a_loss(store: Store) -> None:
    """In the first batch, and of a partition that joins."""
    send(store, 0, 5)
    first = Query(store)
    assert first.next()
    store.admin().delete_records("orders", 0, 3)
    with pytest.raises(OffsetOutOfRangeError):
        Query(store, first.checkpoint).batch()
    query = Query(store, **AT_ONCE)
    query.drain()
    store.alter_topic("orders", partitions=3)
    send(store, 5, 5, partition=2)
    assert query.next()
    store.admin().delete_records("orders", 2, 5)
    with pytest.raises(OffsetOutOfRangeError):
        Query(store, query.checkpoint, **AT_ONCE).drain()


def test_a_start_behind_the_last_stable_offset_stays(store: Store, aborting: Producer) -> None:
    send(store, 0, 5)
    aborting.begin_transaction()
    put(aborting, 5)
    send(store, 6, 4)
    query = Query(store, startingOffsets='{"orders":{"0":8,"1":0}}')
    assert query.drain() == []
    aborting.commit_transaction()
    assert query.drain() == [8, 9]
