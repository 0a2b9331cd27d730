"""TxLog and its tables: a store opened in the driver's own process, errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TxLog
from tests.spark.conftest import Log
from txlog.errors import NotAStoreError, UnknownTopicOrPartitionError, UnsupportedStoreError

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
