"""A store for which Spark has no driver: all of txlog works, and Spark's own parts report the missing driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

import txlog
from pyspark_txlog import TxLog
from tests.servers.start import Server, start
from tests.spark.conftest import ORDERS, append, to_df
from txlog.errors import UnsupportedStoreError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start("s3") as started:
        yield started


@pytest.fixture
def opened(spark: SparkSession, server: Server) -> Iterator[TxLog]:
    url = server.store_url("without-hadoop-aws")
    with TxLog(spark, url, server.storage_options) as made:
        yield made


def frame(spark: SparkSession, first: int, count: int) -> DataFrame:
    return spark.range(first, first + count).selectExpr("id AS order_id", "id * 0.5D AS amount", "'c' AS carrier")


def test_spark_without_hadoops_driver(spark: SparkSession, server: Server, opened: TxLog) -> None:
    with txlog.open(opened.url, storage_options=server.storage_options) as store:
        store.create_topic("orders", ORDERS, partitions=2)
    table = opened.table("orders")
    append(table, frame(spark, 0, 10))
    for native in (
        lambda: to_df(table),
        lambda: opened.to_dfs("orders"),
        lambda: opened.create_views("orders"),
        lambda: append(table, frame(spark, 10, 10), road="executors"),
    ):
        with pytest.raises(UnsupportedStoreError) as caught:
            native()
        said = str(caught.value)
        assert said.startswith("s3://"), said
        assert "this Spark has no driver for s3a://" in said
        assert "S3AFileSystem" in said
        assert "spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in said
        assert 'or use format("txlog")' in said
        assert "secret" not in said
    # Snapshots need no driver, and the refused write left nothing.
    assert sorted(row.order_id for row in opened.snapshot("orders").to_df("orders").collect()) == list(range(10))
    reader = spark.read.format("txlog").option("subscribe", "orders")
    for name, value in server.storage_options.items():
        if isinstance(value, str):
            reader = reader.option(f"storage.{name}", value)
    assert sorted(row.order_id for row in reader.load(opened.url).collect()) == list(range(10))
