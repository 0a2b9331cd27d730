"""Reading in a real Spark: where a read begins and ends, what each isolation level returns, how much is planned."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import ORDERS, Console, Log, rows
from txlog.client.producer import Producer

pytestmark = pytest.mark.spark


def orders(*ids: int) -> pa.Table:
    return pa.Table.from_pylist([{"order_id": number, "amount": None, "carrier": None} for number in ids], ORDERS)


@pytest.fixture
def undecided(log: Log) -> Log:
    """Partition 0: 0 committed, 1 aborted, 2 committed, 3 open, 4 not transactional. Partition 1: 5 committed."""
    log.create()
    store = log.store

    def send(producer: Producer, number: int, partition: int = 0) -> None:
        producer.send("orders", orders(number), partition=partition)
        producer.flush()

    with store.producer("done") as done:
        with done.transaction():
            send(done, 0)
        done.begin_transaction()
        send(done, 1)
        done.abort_transaction()
        with done.transaction():
            send(done, 2)
            send(done, 5, partition=1)
    hanging = store.producer("open")
    hanging.init_transactions()
    hanging.begin_transaction()
    send(hanging, 3)
    with store.producer() as plain:
        send(plain, 4)
    return log


@pytest.mark.smoke
def test_isolation_levels(undecided: Log) -> None:
    assert undecided.ids() == [0, 2, 5]
    assert undecided.ids(isolation_level="read_committed") == [0, 2, 5]
    assert undecided.ids(isolation_level="read_uncommitted") == [0, 1, 2, 3, 4, 5]


def test_an_end_beyond_the_last_stable_offset_ends_there(undecided: Log) -> None:
    (stable, end), _ = undecided.ends()
    assert stable < end
    ending = json.dumps({"orders": {"0": end, "1": -1}})
    assert undecided.ids(endingOffsets=ending) == [0, 2, 5]
    assert undecided.ids(endingOffsets=ending, isolation_level="read_uncommitted") == [0, 1, 2, 3, 4, 5]


@pytest.mark.smoke
def test_offsets_as_json(log: Log) -> None:
    log.create()
    log.write(log.spark.sql("SELECT id AS order_id, CAST(id % 2 AS INT) AS partition FROM range(20)").coalesce(1))
    assert log.ids(startingOffsets='{"orders":{"0":7,"1":-2}}', endingOffsets='{"orders":{"0":9,"1":2}}') == [
        1,
        3,
        14,
        16,
    ]
    assert log.ids(startingOffsets='{"orders":{"0":10,"1":9}}') == [19]
    assert log.ids(startingOffsets='{"orders":{"0":10,"1":10}}') == []
    # A start behind the end reads nothing, as in the Kafka source.
    assert log.ids(startingOffsets='{"orders":{"0":8,"1":8}}', endingOffsets='{"orders":{"0":2,"1":2}}') == []


def test_timestamps(log: Log) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 10, tasks=1))
    log.write(log.frame(10, 10, tasks=1))
    times = sorted({row._timestamp for row in log.read(columns="_timestamp").collect()})
    first, second = (int(time.timestamp() * 1000) for time in times)
    assert log.ids(startingTimestamp=second) == list(range(10, 20))
    assert log.ids(endingTimestamp=second) == list(range(10))
    assert log.ids(startingTimestamp=first, endingTimestamp=second + 1) == list(range(20))
    by_partition = json.dumps({"orders": {"0": second}})
    assert log.ids(startingOffsetsByTimestamp=by_partition) == list(range(10, 20))
    assert log.ids(endingOffsetsByTimestamp=by_partition) == list(range(10))
    later: dict[str, Any] = {"startingTimestamp": second + 1, "startingOffsetsByTimestampStrategy": "latest"}
    assert log.ids(**later) == []


def test_on_from_a_groups_committed_offsets(log: Log) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 10, tasks=1))
    with log.store.consumer("orders", group_id="audit", auto_offset_reset="earliest", max_poll_records=4) as consumer:
        assert consumer.poll(1000) is not None
        consumer.commit()
    assert log.ids(startingOffsets="committed", group_id="audit") == list(range(4, 10))
    fallback = {"startingOffsets": "committed", "group_id": "other", "auto_offset_reset": "earliest"}
    assert log.ids(**fallback) == list(range(10))


def test_several_topics_of_one_schema(log: Log) -> None:
    for number, topic in enumerate(["orders-eu", "orders-us", "audit"]):
        log.create(topic)
        log.write(log.frame(number * 10, 10), topic)
    found = log.read("orders-eu, audit", columns="order_id,_topic").collect()
    assert sorted((row._topic, row.order_id) for row in found) == [
        *(("audit", number) for number in range(20, 30)),
        *(("orders-eu", number) for number in range(10)),
    ]
    matched = log.read(None, subscribePattern="orders-.*").count()
    assert matched == 20
    assert log.read(None, assign='{"orders-us": [0, 1]}').count() == 10
    one = log.read(None, assign='{"orders-us": [1]}', columns="_partition").distinct().collect()
    assert [row._partition for row in one] == [1]


def test_columns_and_a_user_schema_give_the_same(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 100))
    by_option = log.read(columns="amount,_offset")
    by_schema = log.read(schema="amount double, _offset long")
    assert by_option.columns == by_schema.columns == ["amount", "_offset"]
    assert rows(by_option, by_option.columns) == rows(by_schema, by_schema.columns)
    assert log.read(columns="_partition").groupBy("_partition").count().count() == 2
    assert log.read(schema="_offset long").count() == 100


def test_columns_that_came_later_are_null_in_older_rows(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 2))
    log.store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    log.write(log.spark.sql("SELECT 2L AS order_id, 'new' AS note"))
    assert rows(log.read(columns="order_id,note").na.fill("-"), ["order_id", "note"]) == [
        (0, "-"),
        (1, "-"),
        (2, "new"),
    ]


def test_rows_below_the_log_start(log: Log, console: Console) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 10, tasks=1))
    log.store.admin().delete_records("orders", 0, 6)
    assert log.ids() == [6, 7, 8, 9]
    strict = {"startingOffsets": '{"orders":{"0":2}}'}
    with pytest.raises(
        Exception, match=r"orders-0: startingOffsets asks for offset 2, but the log holds 6 to 11.*failOnDataLoss"
    ):
        log.ids(**strict)
    assert log.ids(**strict, failOnDataLoss="false") == [6, 7, 8, 9]
    assert (
        "failOnDataLoss=false, reading the rows that remain. orders-0: startingOffsets asks for offset 2"
        in console.text()
    )


@pytest.mark.python_source
def test_small_batches_share_a_task_and_min_partitions_spreads_them(log: Log) -> None:
    log.create(partitions=3)
    with log.store.producer() as producer:
        for number in range(60):
            producer.send("orders", orders(number), partition=number % 3)
            producer.flush()
    assert log.read().rdd.getNumPartitions() == 1
    assert log.read(minPartitions=5).rdd.getNumPartitions() == 5
    assert log.ids(minPartitions=5) == log.ids() == list(range(60))


@pytest.mark.python_source
def test_a_damaged_file_is_named(log: Log) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 1000, tasks=1))
    (path,) = log.files()
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Exception, match=rf"CorruptRecordError.*orders/0/rows/{path.name}"):
        log.ids()
