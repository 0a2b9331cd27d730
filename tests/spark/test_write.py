"""Writing in a real Spark: one write is one transaction, whatever its topics, partitions and tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import ORDERS, Console, Log, rows
from txlog.client.producer import Producer

pytestmark = pytest.mark.spark


@pytest.mark.python_source
def test_a_write_is_one_batch_a_partition_however_many_tasks(log: Log) -> None:
    log.create(key_columns="order_id")
    log.write(log.frame(0, 100, tasks=6))
    for partition in range(2):
        found = log.store.admin().describe_partition("orders", partition)
        assert (found.tail_batches, found.tail_records) == (1, found.log_end_offset)
        assert found.last_stable_offset == found.log_end_offset
    assert len(log.files()) == 12


def test_segments_roll_and_are_sealed_as_the_topic_says(log: Log) -> None:
    """The process that commits has opened no topic."""
    log.create(partitions=1, segment_batches="2")
    for number in range(5):
        log.write(log.frame(number, 1, tasks=1))
    found = log.store.admin().describe_partition("orders", 0)
    assert ([segment.batches for segment in found.segments], found.tail_batches) == ([2, 2], 1)
    assert log.ids() == list(range(5))


def test_a_write_without_id_leaves_no_id_behind(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 10))
    assert log.transactions() == {}
    log.write(log.frame(0, 10), transactional_id="nightly")
    assert log.transactions() == {"nightly": "COMPLETE_COMMIT"}


@pytest.mark.smoke
def test_a_repeated_version_is_skipped_and_said_so(log: Log, console: Console) -> None:
    log.create()
    once: dict[str, Any] = {"transactional_id": "monthly", "txn_version": 3}
    log.write(log.frame(0, 10), **once)
    files = log.files()
    log.write(log.frame(0, 10), **once)
    said = "'monthly': txn.version 3 is not above 3, the last one committed: this write was done before, and is skipped"
    assert console.says(said)
    assert "never written" not in console.text()
    # A version below the last one may have been another write: after a lost checkpoint its rows are missing.
    log.write(log.frame(100, 10), transactional_id="monthly", txn_version=2)
    assert console.says(
        "'monthly': txn.version 2 is not above 3, the last one committed: this write is skipped. hint: if its rows "
        'were never written, see the page "After a lost checkpoint"'
    )
    assert log.ids() == list(range(10))
    # The skipped writes computed no rows and wrote no files.
    assert log.files() == files
    log.write(log.frame(10, 10), transactional_id="monthly", txn_version=4)
    assert log.ids() == list(range(20))


def test_keys_go_where_a_producer_sends_them(log: Log) -> None:
    log.create(partitions=4, key_columns="carrier")
    log.write(log.frame(0, 200, tasks=3))
    by_spark = dict(rows(log.read(columns="carrier,_partition").distinct(), ["carrier", "_partition"]))
    log.create("other", partitions=4, key_columns="carrier")
    with log.store.producer() as producer:
        producer.send("other", pa.table({"order_id": [1, 2, 3], "carrier": ["c0", "c1", "c2"]}))
    by_producer = dict(rows(log.read("other", columns="carrier,_partition"), ["carrier", "_partition"]))
    assert by_spark == by_producer


def test_the_key_option_comes_before_the_topics_key(log: Log) -> None:
    log.create(partitions=4, key_columns="carrier")
    log.write(log.frame(0, 100), key="order_id")
    assert log.read(columns="carrier,_partition").distinct().count() > 3


def test_a_partition_column_chooses_and_null_leaves_it_to_the_task(log: Log) -> None:
    log.create(partitions=3)
    log.write(log.spark.sql("SELECT id AS order_id, IF(id < 4, 2, NULL) AS partition FROM range(6)").coalesce(1))
    found = rows(log.read(columns="_partition,order_id"), ["_partition", "order_id"])
    assert found == [(0, 4), (0, 5), (2, 0), (2, 1), (2, 2), (2, 3)]


def test_without_a_key_each_task_has_its_partition(log: Log) -> None:
    log.create(partitions=2)
    log.write(log.frame(0, 9, tasks=3))
    found = rows(log.read(columns="_partition,order_id"), ["_partition", "order_id"])
    assert found == [(0, 0), (0, 1), (0, 2), (0, 6), (0, 7), (0, 8), (1, 3), (1, 4), (1, 5)]


@pytest.mark.smoke
def test_several_topics_are_one_transaction(log: Log) -> None:
    log.create("eu")
    log.create(
        "us",
        pa.schema([ORDERS.field("order_id"), pa.field("amount", pa.float64()), pa.field("carrier", pa.string())]),
        3,
    )
    frame = log.frame(0, 100).selectExpr("*", "IF(order_id % 4 = 0, 'eu', 'us') AS topic")
    log.write(frame, None, transactional_id="split")
    assert log.ids("eu") == list(range(0, 100, 4))
    assert len(log.ids("us")) == 75
    assert log.store.admin().describe_transaction("split").state == "COMPLETE_COMMIT"
    # A missing topic fails the whole write.
    with pytest.raises(Exception, match=r"topic 'euu' does not exist. Did you mean 'eu'"):
        log.write(frame.replace("us", "euu"), None, transactional_id="split")
    assert len(log.ids("eu")) == 25


def test_one_version_is_not_two_writes_to_two_topics(log: Log, console: Console) -> None:
    """Users of Delta's `txnAppId` and `txnVersion` write to each topic separately, with one id and one version."""
    for topic in ("eu", "us"):
        log.create(topic)
    once: dict[str, Any] = {"transactional_id": "nightly", "txn_version": 1}
    log.write(log.frame(0, 5), "eu", **once)
    with pytest.raises(
        Exception, match=r"was committed for eu, so the rows for us would be skipped. hint: .*TxLog.transaction"
    ):
        log.write(log.frame(0, 5), "us", **once)
    # A repeated first write is skipped, and the id keeps the topics of that write.
    log.write(log.frame(0, 5), "eu", **once)
    with pytest.raises(Exception, match="the rows for us would be skipped"):
        log.write(log.frame(0, 5), "us", **once)
    assert (log.ids("eu"), log.ids("us")) == (list(range(5)), [])
    assert "could not be aborted" not in console.text()


def test_a_topic_column_of_the_topics_own_is_data(log: Log) -> None:
    log.create("notes", pa.schema((pa.field("topic", pa.string()), pa.field("partition", pa.int32()))), 2)
    log.write(log.spark.sql("SELECT 'weather' AS topic, 9 AS partition"), "notes")
    assert rows(log.read("notes"), ["topic", "partition"]) == [("weather", 9)]


def test_empty_frames(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 0))
    log.write(log.frame(0, 100).where("order_id < 0"), transactional_id="nightly", txn_version=1)
    assert log.ids() == []
    assert log.ends() == [(0, 0), (0, 0)]
    assert log.files() == []
    # An empty write still stores its version, so this night is done.
    assert log.store.admin().describe_transaction("nightly").txn_version == 1


def test_a_spark_write_takes_over_a_producers_id(log: Log) -> None:
    log.create(partitions=1)
    older: Producer = log.store.producer("loader")
    older.init_transactions()
    older.begin_transaction()
    older.send("orders", pa.table({"order_id": [1]}), partition=0)
    older.flush()
    log.write(log.frame(10, 3), transactional_id="loader")
    assert log.ids() == [10, 11, 12]
    with pytest.raises(Exception, match=r"'loader'.*newer instance|fenced|epoch"):
        older.commit_transaction()
    assert log.ids() == [10, 11, 12]
    assert [stable == end for stable, end in log.ends()] == [True]


def test_large_tasks_write_whole_row_groups(log: Log) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 300_000, tasks=1))
    index = log.store.admin().describe_partition("orders", 0)
    assert (index.tail_batches, index.tail_records) == (1, 300_000)
    assert len(log.files()) == 1
    assert log.read().selectExpr("count(*)", "sum(order_id)").collect()[0][1] == 300_000 * 299_999 // 2


def test_compression_as_the_option_says(log: Log) -> None:
    log.create(partitions=1)
    for name in ("none", "snappy"):
        log.write(log.frame(0, 20_000, tasks=1), compression_type=name)
    first, second = sorted(path.stat().st_size for path in log.files())
    assert first < second


def test_a_compacted_topic_wants_a_key_in_every_row(log: Log) -> None:
    log.create("latest", cleanup_policy="compact", key_columns="carrier")
    log.write(log.frame(0, 10), "latest")
    with pytest.raises(Exception, match=r"topic 'latest' is compacted: row 0 has no key \(carrier is null\)"):
        log.write(log.spark.sql("SELECT 1L AS order_id"), "latest")
    assert log.ids("latest") == list(range(10))
