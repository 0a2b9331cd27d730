"""`format("txlog")` in a real Spark: found by its name, every type written and read, rows with their place in the
log."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_txlog
from pyspark_txlog import TxLog
from tests.spark.conftest import ORDERS, Log, append, rows, to_df
from tests.spark.scalars import SCALARS
from txlog.core.schema import KAFKA_FIELDS

pytestmark = pytest.mark.spark

UTC = datetime.UTC
EVERY_TYPE = pa.schema(
    (
        *SCALARS,
        pa.field("a_list", pa.list_(pa.field("element", pa.int64()))),
        pa.field("a_map", pa.map_(pa.string(), pa.field("value", pa.float64()))),  # type: ignore[call-overload]
        pa.field(
            "nested",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [pa.field("key", pa.string(), nullable=False), pa.field("when", pa.timestamp("us", "UTC"))]
                    ),
                    nullable=False,
                )
            ),
        ),
    )
)
FULL: tuple[Any, ...] = (
    1,
    True,
    -128,
    32767,
    -(2**63),
    1.5,
    -0.1,
    "naïve ☃ \U0001f680",
    b"\x00\xff",
    datetime.date(1582, 10, 15),
    datetime.datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    Decimal("12345678901234567890123456789.123456789"),
    [1, None, 2**63 - 1],
    {"a": 1.0, "b": None},
    [("k", datetime.datetime(2000, 2, 29, tzinfo=UTC)), ("l", None)],
)
EMPTY = (2, *[None] * 15)
ZERO: tuple[Any, ...] = (
    3,
    False,
    0,
    0,
    0,
    0.0,
    0.0,
    "",
    b"",
    datetime.date(1970, 1, 1),
    None,
    None,
    Decimal(0),
    [],
    {},
    [],
)


@pytest.mark.smoke
@pytest.mark.python_source
def test_spark_finds_the_source_by_its_name_alone(spark: SparkSession, log: Log) -> None:
    log.create()
    for name in ("txlog", "TxLog"):
        frame = spark.read.format(name).option("subscribe", "orders").load(log.url)
        assert frame.columns == ORDERS.names
        assert frame.count() == 0
    assert pyspark_txlog.DefaultSource is pyspark_txlog.TxlogDataSource


@pytest.mark.smoke
def test_every_type_there_and_back(log: Log) -> None:
    log.create("everything", EVERY_TYPE, 1)
    spark = log.spark
    wanted = log.read("everything").schema
    frame = spark.createDataFrame([FULL, EMPTY, ZERO], wanted, verifySchema=False)
    log.write(frame, "everything")
    found = log.read("everything")
    assert found.schema == wanted
    assert found.orderBy("row").collect() == frame.orderBy("row").collect()


def test_what_spark_wrote_is_what_python_reads(log: Log) -> None:
    log.create("everything", EVERY_TYPE, 1)
    log.write(log.spark.createDataFrame([FULL], log.read("everything").schema, verifySchema=False), "everything")
    with log.store.consumer("everything", auto_offset_reset="earliest") as consumer:
        batch = consumer.poll(1000)
    assert batch is not None
    (row,) = batch.select(EVERY_TYPE.names).to_pylist()
    assert row["an_instant"] == FULL[10]
    assert row["a_wall_clock"] == FULL[11]
    assert row["a_decimal"] == FULL[12]
    assert row["nested"][0] == {"key": "k", "when": datetime.datetime(2000, 2, 29, tzinfo=UTC)}


def test_what_python_wrote_is_what_spark_reads(log: Log) -> None:
    log.create()
    with log.store.producer() as producer:
        future = producer.send("orders", [{"order_id": 7, "amount": 1.5, "carrier": None}], partition=1)
        written = future.result()
    found = log.read(columns="*,_topic,_partition,_offset,_timestamp").collect()
    assert [tuple(row)[:6] for row in found] == [(7, 1.5, None, "orders", 1, written.base_offset)]
    assert int(found[0]._timestamp.timestamp() * 1000) == written.timestamp


def test_a_topic_of_kafkas_shape(log: Log) -> None:
    log.create("events", None, 3)
    frame = log.spark.sql(
        "SELECT CAST(CAST(id AS STRING) AS BINARY) AS key, CAST('v' AS BINARY) AS value FROM range(30)"
    )
    log.write(frame, "events")
    log.write(frame, "events")
    found = log.read("events", columns="key,value,headers,timestamp,_partition").collect()
    assert len(found) == 60
    assert {bytes(row.value) for row in found} == {b"v"}
    assert all(row.headers is None and row.timestamp is None for row in found)
    # Each key is in one partition, and the hash is Kafka's.
    places = {bytes(row.key): row._partition for row in found}
    assert len({(bytes(row.key), row._partition) for row in found}) == 30
    assert set(places.values()) == {0, 1, 2}
    assert log.read("events").columns == [field.name for field in KAFKA_FIELDS]


def test_offsets_are_dense_and_each_row_has_one(log: Log) -> None:
    log.create(partitions=3)
    log.write(log.frame(0, 1000, tasks=4))
    log.write(log.frame(1000, 10))
    found = rows(log.read(columns="_partition,_offset,order_id"), ["_partition", "_offset"])
    by_partition: dict[int, list[int]] = {}
    for partition, offset in found:
        by_partition.setdefault(partition, []).append(offset)
    assert sum(map(len, by_partition.values())) == 1010
    assert all(offsets == list(range(len(offsets))) for offsets in by_partition.values())
    assert log.ids() == list(range(1010))


def test_a_frame_may_be_narrower_and_in_any_order(log: Log) -> None:
    log.create()
    log.write(log.spark.sql("SELECT 'x' AS carrier, CAST(5 AS SMALLINT) AS order_id, CAST(2 AS FLOAT) AS amount"))
    log.write(log.spark.sql("SELECT CAST(6 AS TINYINT) AS order_id"))
    assert rows(log.read(), ORDERS.names[:1]) == [(5,), (6,)]
    assert [tuple(row) for row in log.read().orderBy("order_id").collect()] == [(5, 2.0, "x"), (6, None, None)]


def test_sessions_in_other_time_zones_write_the_same_instant(log: Log) -> None:
    log.create("times", pa.schema((pa.field("at", pa.timestamp("us", "UTC")), pa.field("wall", pa.timestamp("us")))), 1)
    spark = log.spark
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql("SELECT TIMESTAMP_MILLIS(1357016400000) AS at, TIMESTAMP_NTZ'2013-01-01 05:00:00' AS wall")
        log.write(frame, "times")
        assert log.read("times").exceptAll(frame).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = log.read("times").selectExpr("CAST(at AS STRING)", "CAST(wall AS STRING)").collect()
    assert [tuple(row) for row in found] == [("2013-01-01 05:00:00", "2013-01-01 05:00:00")]


def test_foreach_batch_with_the_number_as_version_writes_a_batch_once(log: Log, tmp_path: Path) -> None:
    log.create()
    numbers = tmp_path / "numbers"
    log.spark.range(5).selectExpr("id AS order_id").write.parquet(str(numbers))

    def write(frame: DataFrame, number: int) -> None:
        for _ in range(2):
            log.write(frame, transactional_id="stream", txn_version=number)

    stream = log.spark.readStream.schema("order_id BIGINT").parquet(str(numbers)).writeStream.foreachBatch(write)
    stream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "to")).start().awaitTermination(60)
    assert log.ids() == [0, 1, 2, 3, 4]


def test_sql_sees_a_topic_as_a_table(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 10))
    log.read().createOrReplaceTempView("orders")
    assert log.spark.sql("SELECT sum(amount) AS total FROM orders WHERE order_id < 4").collect()[0].total == 3.0


def test_without_pyspark_the_import_says_which_extra_is_missing() -> None:
    # Python treats a module that is None in sys.modules as not installed.
    for hidden in ("pyspark", "pyspark.sql.datasource"):
        program = f"import sys; sys.modules[{hidden!r}] = None\nimport pyspark_txlog"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.stderr.rstrip().endswith(
            "ModuleNotFoundError: pyspark_txlog needs PySpark 4.0 or newer: pip install 'pyspark-txlog[spark]'"
        )
    broken = "import sys; sys.modules['pyspark_txlog.datasource'] = None\nimport pyspark_txlog"
    done = subprocess.run([sys.executable, "-c", broken], capture_output=True, text=True)
    assert "needs PySpark" not in done.stderr


# -- the user's own threads, as a scheduler has them ------------------------------------------------------------------


def in_a_thread(work: Callable[[], object]) -> None:
    """Run `work` in a new thread, whose JVM thread has no session yet. Raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def stream(log: Log, tmp_path: Path, name: str) -> Any:
    source = log.spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", "earliest")
    made = source.load(log.url).writeStream.format("txlog").option("topic", "copy").option("storage.fsync", "false")
    return made.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)


@pytest.mark.python_source
def test_every_road_from_a_thread_that_was_activated(log: Log, tmp_path: Path) -> None:
    log.create(partitions=1)
    log.create("copy", partitions=1)

    def work() -> None:
        pyspark_txlog.activate(log.spark)
        log.write(log.frame(0, 5))
        assert log.ids() == list(range(5))
        stream(log, tmp_path, "checkpoint").start(log.url).awaitTermination()
        assert log.ids("copy") == list(range(5))
        assert log.read(None, metadata="partitions").count() == 2

    in_a_thread(work)


def test_txlogs_own_calls_need_no_activation_in_a_thread(log: Log) -> None:
    log.create(partitions=1)
    with TxLog(log.spark, log.url, {"fsync": False}) as opened:
        orders = opened.table("orders")

        def appended() -> None:
            append(orders, log.frame(0, 5))
            assert sorted(row.order_id for row in to_df(orders).collect()) == list(range(5))
            assert log.ids() == list(range(5))

        in_a_thread(appended)

        def opened_there() -> None:
            with TxLog(log.spark, log.url):
                log.write(log.frame(5, 1))

        in_a_thread(opened_there)
        assert log.ids() == list(range(6))
