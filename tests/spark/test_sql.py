"""SQL over topics: views of native scans, views USING txlog, INSERT INTO, and clear errors for what Spark withholds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_txlog import TxLog
from tests.spark.conftest import Log
from tests.spark.limits import IS_4_0
from txlog.core.effects import Program
from txlog.errors import InvalidRequestError, UnknownOptionError

pytestmark = pytest.mark.spark


@pytest.fixture
def sql(log: Log) -> Iterator[Log]:
    """Fill topic orders with 20 rows. The views and tables of a test are dropped at its end."""
    log.create()
    log.write(log.frame(0, 20))
    yield log
    for table in log.spark.catalog.listTables():
        log.spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} `{table.name}`")


def no_check(_: object) -> Program[None]:
    yield from ()


def answer(log: Log, query: str) -> object:
    (row,) = log.spark.sql(query).collect()
    return row[0]


def test_a_view_for_each_topic(sql: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    sql.create("orders.eu-1")
    sql.write(sql.frame(100, 5), "orders.eu-1")
    with TxLog(sql.spark, sql.url) as native:
        assert native.create_views() == {"orders": "`orders`", "orders.eu-1": "`orders.eu-1`"}
        joined = "SELECT count(*) FROM (SELECT * FROM orders UNION ALL SELECT * FROM `orders.eu-1`)"
        assert answer(sql, joined) == 25
        sql.write(sql.frame(20, 5))
        assert answer(sql, joined) == 25
        views = native.create_views("orders", prefix="log_", columns="*,_offset", where="order_id >= 10")
        assert views == {"orders": "`log_orders`"}
        assert answer(sql, "SELECT count(_offset) FROM log_orders") == 15
        assert answer(sql, "SELECT count(*) FROM orders") == 20
        # On an object store the two names are different topics.
        monkeypatch.setattr("txlog.protocol.topic_changes.check_case", no_check)
        sql.create("Orders")
        with pytest.raises(InvalidRequestError, match="the views 'Orders' and 'orders' would be one"):
            native.create_views()
        with pytest.raises(UnknownOptionError, match="option 'wher' is unknown"):
            native.create_views(wher="order_id > 1")


def test_a_view_using_txlog_shows_what_was_there_at_its_first_query(sql: Log) -> None:
    """It behaves like a DataFrame of `load()`: Spark plans a Python source once and keeps the plan. Spark 4.0 plans it
    again."""
    view = (
        f"CREATE OR REPLACE TEMPORARY VIEW v USING txlog OPTIONS (path '{sql.url}', subscribe 'orders', columns "
        "'*,_partition', where 'order_id > 4')"
    )
    sql.spark.sql(view)
    assert answer(sql, "SELECT count(*) FROM v WHERE order_id < 10") == 5
    sql.write(sql.frame(20, 5))
    assert answer(sql, "SELECT count(*) FROM v") == (20 if IS_4_0 else 15)
    sql.spark.sql(view)
    assert answer(sql, "SELECT count(*) FROM v") == 20
    sql.spark.sql(f"CREATE TEMPORARY VIEW state USING txlog OPTIONS (path '{sql.url}', metadata 'partitions')")
    assert answer(sql, "SELECT sum(log_end_offset - log_start_offset) FROM state") == 25


def test_insert_into_a_view_is_one_transaction(sql: Log) -> None:
    sql.spark.sql(
        "CREATE TEMPORARY VIEW sink (order_id BIGINT, amount DOUBLE, carrier STRING) USING txlog "
        f"OPTIONS (path '{sql.url}', topic 'orders', `transactional.id` 'nightly', `txn.version` 1, "
        "`storage.fsync` 'false')"
    )
    sql.spark.sql("INSERT INTO sink VALUES (100, 1.5, 'x'), (101, NULL, 'y')")
    assert sql.ids()[-2:] == [100, 101]
    # The version is part of the view: a second insert with it is skipped.
    sql.spark.sql("INSERT INTO sink VALUES (102, 1.5, 'x')")
    assert sql.ids()[-1] == 101
    assert sql.store.admin().describe_transaction("nightly").txn_version == 1
    with pytest.raises(Exception, match="a log is append-only"):
        sql.spark.sql("INSERT OVERWRITE sink VALUES (1, 1.5, 'x')")


def test_a_view_to_read_is_none_to_write(sql: Log) -> None:
    sql.spark.sql(f"CREATE TEMPORARY VIEW v USING txlog OPTIONS (path '{sql.url}', subscribe 'orders')")
    with pytest.raises(Exception, match=r"option 'subscribe' is unknown: a write has .*It is an option of a read"):
        sql.spark.sql("INSERT INTO v VALUES (100, 1.5, 'x')")
    for statement in ("DELETE FROM v WHERE order_id = 1", "UPDATE v SET order_id = 1"):
        with pytest.raises(Exception, match=r"does not support|not supported|SQL cannot change"):
            sql.spark.sql(statement)
    with pytest.raises(Exception, match=r"option 'subscripe' is unknown.*Did you mean 'subscribe'"):
        sql.spark.sql(f"CREATE TEMPORARY VIEW w USING txlog OPTIONS (path '{sql.url}', subscripe 'orders')")


def test_tables_of_the_catalog_lose_their_options_and_say_so(sql: Log) -> None:
    options = f"OPTIONS (path '{sql.url}', subscribe 'orders')"
    hint = r"CREATE TABLE \.\.\. USING txlog, saveAsTable\) are not supported.*CREATE TEMPORARY VIEW"
    with pytest.raises(Exception, match=hint):
        sql.spark.sql(f"CREATE TABLE t USING txlog {options}")
    # If the statement has columns, Spark does not call the source.
    sql.spark.sql(f"CREATE TABLE t (order_id BIGINT) USING txlog {options}")
    with pytest.raises(Exception, match=hint):
        sql.spark.sql("SELECT * FROM t").collect()
    with pytest.raises(Exception, match=hint):
        sql.spark.sql("INSERT INTO t VALUES (1)")
    with pytest.raises(Exception, match=hint):
        sql.frame(0, 1).write.format("txlog").option("topic", "orders").mode("append").saveAsTable("another")
    # Options in the statement itself reach the source.
    there = f"WITH (path = '{sql.url}', subscribe = 'orders')"
    assert answer(sql, f"SELECT count(*) FROM t {there}") == 20
    sql.spark.sql("DROP TABLE t")
    assert len(sql.ids()) == 20
