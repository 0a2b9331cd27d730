"""Views that are planned again for each statement that names them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TxLog, activate, create_views, uninstall
from pyspark_txlog.api import fresh_views
from pyspark_txlog.api.log import register
from tests.spark.conftest import Log
from txlog.errors import InvalidRequestError


@pytest.fixture(autouse=True)
def _no_view_of_another_test(spark: SparkSession) -> Iterator[None]:
    yield
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


def count(spark: SparkSession, view: str = "txlog_orders") -> int:
    return int(spark.sql(f"SELECT count(*) AS n FROM {view}").collect()[0].n)


@pytest.mark.smoke
def test_each_statement_sees_the_rows_of_its_moment(log: Log, spark: SparkSession) -> None:
    log.create()
    assert create_views(spark, log.url) == {"orders": "`txlog_orders`"}
    assert count(spark) == 0
    for number in range(3):
        log.write(log.frame(number * 5, 5))
        assert count(spark) == (number + 1) * 5
        assert count(spark, "TXLOG_Orders o") == (number + 1) * 5
        assert spark.table("txlog_orders").count() == (number + 1) * 5
    frame = spark.table("txlog_orders")
    log.write(log.frame(15, 5))
    assert frame.count() == 15
    assert spark.sql("SELECT * FROM IDENTIFIER(:view)", {"view": "txlog_orders"}).count() == 20
    # Another object of Python for the same session.
    active = SparkSession.getActiveSession()
    assert active is not None
    assert count(active) == 20


def test_a_view_has_the_columns_of_the_moment(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    log.store.alter_topic("orders", add_columns={"note": "string"})
    assert "note" in spark.sql("SELECT * FROM txlog_orders").columns


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM txlog_orders",
        "select * from TXLOG_ORDERS o",
        "SELECT * FROM `txlog_orders` -- the newest",
        "WITH o AS (SELECT * FROM txlog_orders) SELECT * FROM o",
        "SELECT order_id AS `it's` FROM txlog_orders WHERE carrier <> 'x'",
        "SELECT order_id AS `a--b` FROM txlog_orders",
        "SELECT * FROM IDENTIFIER('txlog_orders')",
        "EXECUTE IMMEDIATE 'SELECT * FROM txlog_orders'",
    ],
)
def test_a_statement_names_a_view(log: Log, spark: SparkSession, statement: str) -> None:
    log.create()
    create_views(spark, log.url)
    log.write(log.frame(0, 5))
    assert spark.sql(statement).count() == 5


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'txlog_orders'",
        'SELECT "txlog_orders"',
        "SELECT 1 -- txlog_orders",
        "SELECT /* txlog_orders */ 1",
        "SELECT 1 AS txlog_orders_eu",
        "SELECT 1 AS my_txlog_orders",
        "DROP VIEW IF EXISTS txlog_orders",
        "/* x */ DROP VIEW IF EXISTS txlog_orders",
        "CREATE OR REPLACE TEMPORARY VIEW txlog_orders AS SELECT 1",
    ],
)
def test_a_deleted_topic_hinders_no_statement_that_does_not_need_its_view(
    log: Log, spark: SparkSession, statement: str
) -> None:
    log.create()
    create_views(spark, log.url)
    log.store.delete_topic("orders")
    spark.sql(statement).collect()
    spark.catalog.dropTempView("txlog_orders")


def test_a_view_of_the_user_stays(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    spark.range(7).createOrReplaceTempView("txlog_orders")
    assert count(spark) == 7
    with TxLog(spark, log.url) as native:
        create_views(spark, log.url)
        native.create_views(prefix="txlog_")
        log.write(log.frame(0, 5))
        assert count(spark) == 0


def test_all_ways_to_name_a_table(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    log.write(log.frame(0, 5))
    assert spark.read.table("txlog_orders").count() == 5
    log.write(log.frame(5, 5))
    assert spark.table("txlog_orders").count() == 10
    log.write(log.frame(10, 5))
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        assert count(spark) == 15
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_threads_of_a_session_see_whole_transactions(log: Log, spark: SparkSession) -> None:
    for topic in ("left", "right"):
        log.create(topic)
    create_views(spark, log.url)
    difference = "SELECT (SELECT count(*) FROM txlog_left) - (SELECT count(*) FROM txlog_right) AS n"
    stopping, wrong = threading.Event(), list[int]()

    def ask() -> None:
        activate(spark)
        while not stopping.is_set():
            wrong.extend(row.n for row in spark.sql(difference).collect() if row.n)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    with log.store.producer("both") as producer:
        for number in range(30):
            with producer.transaction():
                for topic in ("left", "right"):
                    producer.send(topic, [{"order_id": number}])
    stopping.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_stores_without_a_view_are_closed(log: Log, spark: SparkSession) -> None:
    log.create()
    for _ in range(3):
        create_views(spark, log.url)
    session = fresh_views._SESSIONS[spark._jsparkSession.sessionUUID()]
    assert len(session.views) == 1
    spark.catalog.dropTempView("txlog_orders")
    with TxLog(spark, log.url) as native:
        native.create_views(prefix="txlog_")
        assert count(spark) == 0
    assert session.views == []


def test_a_view_that_is_dropped_stays_away(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    spark.sql("DROP VIEW txlog_orders")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        count(spark)
    create_views(spark, log.url)
    assert count(spark) == 0


def test_a_second_call_takes_the_views_over(log: Log, spark: SparkSession, tmp_path: Path) -> None:
    log.create()
    log.write(log.frame(0, 3))
    other = Log(str(tmp_path / "other"), spark)
    other.create()
    create_views(spark, log.url)
    assert count(spark) == 3
    create_views(spark, other.url)
    assert count(spark) == 0
    other.write(other.frame(0, 1))
    assert count(spark) == 1
    other.store.close()


def test_the_view_of_a_deleted_topic_goes(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    log.store.delete_topic("orders")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        count(spark)
    log.create("orders", pa.schema([("order_id", pa.int64())]))
    assert create_views(spark, log.url)
    assert count(spark) == 0


def test_an_interrupt_leaves_no_view_that_stays_old(
    log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("orders", "a--b"):
        log.create(topic)
    create_views(spark, log.url)
    real = register

    def interrupt(frames: Any, prefix: str) -> None:
        real(frames, prefix)
        raise KeyboardInterrupt

    for topic in ("orders", "a--b"):
        log.write(log.frame(0, 5), topic)
        view = f"`txlog_{topic}`"
        with monkeypatch.context() as patch:
            patch.setattr(fresh_views, "register", interrupt)
            with pytest.raises(KeyboardInterrupt):
                count(spark, view)
        assert count(spark, view) == 5
        log.write(log.frame(5, 5), topic)
        assert count(spark, view) == 10


def test_a_view_that_was_being_made_does_not_replace_that_of_another_store(
    log: Log, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create()
    create_views(spark, log.url)

    def interrupt(frames: Any, prefix: str) -> None:
        register(frames, prefix)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fresh_views, "register", interrupt)
        with pytest.raises(KeyboardInterrupt):
            count(spark)
    other = Log(str(tmp_path / "other"), spark)
    other.create()
    other.write(other.frame(0, 3))
    create_views(spark, other.url)
    assert count(spark) == 3
    assert len(fresh_views._SESSIONS[spark._jsparkSession.sessionUUID()].views) == 1
    other.store.close()


def test_without_install_a_view_is_as_old_as_its_creation(log: Log, spark: SparkSession) -> None:
    log.create()
    create_views(spark, log.url)
    uninstall()
    log.write(log.frame(0, 5))
    assert count(spark) == 0


def test_connect_is_refused(log: Log) -> None:
    with pytest.raises(InvalidRequestError, match="over Spark Connect views cannot be kept fresh"):
        create_views(object(), log.url)  # type: ignore[arg-type]
