"""TxLog and its tables: a store that the driver's own process opens, and errors that name the remedy."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import TxLog, install, uninstall
from tests.spark.conftest import Log
from txlog.client.reading import read_session
from txlog.core.cleaning import MergePolicy
from txlog.errors import (
    InvalidRequestError,
    NotAStoreError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition

pytestmark = pytest.mark.spark


def test_a_table_knows_its_columns(spark: SparkSession, log: Log) -> None:
    log.create()
    with TxLog(spark, log.url) as txlog:
        table = txlog.table("orders")
        assert table.schema.simpleString() == "struct<order_id:bigint,amount:double,carrier:string>"
        assert "orders" in repr(table)
        assert log.url in repr(table)


def test_a_misspelled_topic_is_refused_at_once(spark: SparkSession, log: Log) -> None:
    log.create()
    with TxLog(spark, log.url) as txlog, pytest.raises(UnknownTopicOrPartitionError, match="orders"):
        txlog.table("ordres")


def test_only_a_store_is_opened(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("not a store")
    with pytest.raises(NotAStoreError):
        TxLog(spark, tmp_path)
    with pytest.raises(UnsupportedStoreError, match="one process"):
        TxLog(spark, "memory://log")


def test_what_is_refused_fences_nobody(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    """Neither a write nor a query whose first micro-batch is refused."""
    log.create()
    with TxLog(spark, log.url, {"fsync": False}) as ours:
        with ours.transaction("nightly", 1, scope="query") as txn:
            txn.write(log.frame(0, 1), "orders")
        refused: tuple[tuple[DataFrame, dict[str, Any], str], ...] = (
            (log.frame(0, 1), {"key": "nowhere"}, "nowhere"),
            (log.frame(0, 1), {"compression_type": "zip"}, "zip"),
            (spark.range(1), {}, "no column 'id'"),
            (log.frame(0, 1), {"txn_version": 2}, "TxnVersionScopeError"),
        )
        for frame, options, words in refused:
            with pytest.raises(Exception, match=words):
                log.write(frame, transactional_id="nightly", **options)
        stream = spark.readStream.format("rate").load().writeStream.format("txlog")
        stream = stream.options(**{"topic": "orders", "transactional.id": "nightly", "commitSourceOffsets": "false"})
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(log.url)
        with pytest.raises(StreamingQueryException, match="no column 'timestamp'"):
            query.awaitTermination(60)
        with ours.transaction("nightly", 2, scope="query") as txn:
            txn.write(log.frame(1, 1), "orders")
    assert log.ids() == [0, 1]


def test_the_newest_row_of_each_key_is_that_of_the_client(spark: SparkSession, log: Log) -> None:
    """A key of two columns, one of floats: both zeros are keys of their own, and so is NaN, of any bits."""
    schema = pa.schema((("x", pa.float64()), ("kind", pa.string()), ("name", pa.string()), ("amount", pa.int64())))
    config = {"key.columns": "x,kind", "segment.batches": 4}
    log.store.create_topic("prices", schema, partitions=2, config=config)
    dice = random.Random(1)

    def write() -> None:
        for number in range(30):
            rows = [
                {
                    "x": dice.choice([None, 0.0, -0.0, math.nan, 1.5]),
                    "kind": dice.choice([None, "a", "b"]),
                    "name": None if gone else f"n{number}",
                    "amount": None if gone else number,
                }
                for gone in (dice.random() < 0.3 for _ in range(5))
            ]
            producer.send("prices", rows).result()

    def merge() -> None:
        for tp in log.store.runtime.partitions("prices"):
            merge_partition(log.store.runtime, read_session(log.store.runtime), tp, MergePolicy())

    def compact() -> None:
        log.store.admin().seal("prices")
        log.store.alter_topic("prices", config={"cleanup.policy": "compact"})
        for tp in log.store.runtime.partitions("prices"):
            policy = compaction_policy(log.store.runtime, log.store.runtime.topic("prices"))
            assert policy is not None
            compact_partition(log.store.runtime, read_session(log.store.runtime), tp, policy)
        # A compacted topic takes no rows without a key.
        log.store.alter_topic("prices", config={"cleanup.policy": "delete"})

    with log.store.producer() as producer, TxLog(spark, log.url) as txlog:
        table = txlog.table("prices")
        for step in (write, merge, compact, write):
            step()
            found = table.latest(["*", "_partition", "_offset"]).orderBy("_partition", "_offset").collect()
            expected = log.store.table("prices").latest(["*", "_partition", "_offset"]).read_all().to_pylist()
            assert repr([row.asDict() for row in found]) == repr(expected)
        assert table.latest().columns == schema.names
        for where in ("amount > 20", "kind = 'a'", "kind = 'a' and amount > 20", "x is null or _offset < 40"):
            expected = log.store.table("prices").latest(["_partition", "_offset"], where).read_all().to_pylist()
            for road in (install, uninstall):
                road()
                newest = log.read("prices", rows="latest", columns="_partition,_offset", where=where)
                assert [row.asDict() for row in newest.orderBy("_partition", "_offset").collect()] == expected
        with pytest.raises(Exception, match="rows': latest takes all committed rows of a partition, in one task, and "):
            log.read("prices", rows="latest", endingOffsets="latest")
        log.create()
        with pytest.raises(InvalidRequestError, match=r"topic 'orders' has no key, .*hint: set key\.columns"):
            txlog.table("orders").latest()
