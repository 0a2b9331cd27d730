"""TxLog and its tables: a store that the driver's own process opens, and errors that name the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import TxLog
from tests.spark.conftest import Log
from txlog.errors import (
    NotAStoreError,
    SchemaMismatchError,
    TxlogError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)

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
    log.create()
    with TxLog(spark, log.url, {"fsync": False}) as ours, TxLog(spark, log.url, {"fsync": False}) as theirs:
        with ours.transaction("nightly", 1, scope="query") as txn:
            txn.write(log.frame(0, 1), "orders")
        table = theirs.table("orders")
        refused: tuple[tuple[DataFrame, dict[str, Any]], ...] = (
            (log.frame(0, 1), {"road": "by air"}),
            (log.frame(0, 1), {"key": "nowhere"}),
            (log.frame(0, 1), {"compression_type": "zip"}),
            (spark.range(1), {}),
        )
        for frame, how in refused:
            with pytest.raises(TxlogError):
                table.append(frame, transactional_id="nightly", **how)
        stream = spark.readStream.format("rate").load()
        run: dict[str, Any] = {
            "transactional_id": "nightly",
            "checkpoint_location": str(tmp_path / "checkpoint"),
            "commit_source_offsets": False,
        }
        with pytest.raises(SchemaMismatchError, match="no column 'timestamp'"):
            table.append_stream(stream, **run)
        with pytest.raises(TypeError, match="availableNo"):
            table.append_stream(stream.selectExpr("value AS order_id"), trigger={"availableNo": True}, **run)
        with pytest.raises(Exception, match="TxnVersionScopeError"):
            log.write(log.frame(0, 1), transactional_id="nightly", txn_version=2)
        with ours.transaction("nightly", 2, scope="query") as txn:
            txn.write(log.frame(1, 1), "orders")
    assert log.ids() == [0, 1]
