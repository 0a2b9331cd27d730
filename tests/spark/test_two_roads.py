"""Both roads of Spark are one machine: after `install()` and without it, the same rows, offsets, counts and errors.

The harness is `two_roads`. What may differ is a table of docs/spark.md, which the harness reads.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_txlog import TxLog, install, uninstall
from pyspark_txlog.native.write import SMALL_ROWS
from tests.spark import road_lives
from tests.spark.conftest import Log
from tests.spark.limits import IS_4_0
from tests.spark.road_frames import Frame, topic_schema
from tests.spark.road_lives import Life
from tests.spark.test_clean_up_jobs import leave_a_dead_file
from tests.spark.test_merge_job import PARTITIONS, small_files
from tests.spark.test_stream_sink import Files, files, forget_last_commit, run
from tests.spark.two_roads import DIFFERENCES, Judge, Road, Twin, differences, on, switch
from tests.spark.verbs import merge, retain, vacuum_topics
from txlog.errors import SchemaMismatchError
from txlog.maintenance.fsck import check_store

pytestmark = pytest.mark.spark
__all__ = ["files", "small_files"]
ROADS: tuple[Road, ...] = ("native", "python")
LIVES = 60
WAIT_S = 60


@pytest.fixture(autouse=True)
def uninstalled(format_used: None) -> Iterator[None]:
    """Begin and end without `install()`, whatever the run's --spark-format is."""
    uninstall()
    yield
    uninstall()


@pytest.fixture
def twins(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Twin, Twin]]:
    """Yield a store for each road, with a topic of one key and another without."""
    made = Twin("native", spark, tmp_path), Twin("python", spark, tmp_path)
    for twin in made:
        schema = topic_schema(("a_double", "nested")).append(pa.field("text", pa.string()))
        twin.log.create("keyed", schema, 3, key_columns="order_id")
        twin.log.create("keyless", schema, 3)
    yield made
    for twin in made:
        twin.close()


def sink_of(query: StreamingQuery) -> str:
    progress: Any = query.lastProgress
    return str(progress["sink"]["description"])


def written(twins: tuple[Twin, Twin], frame: Frame, folder: Path, topic: str = "keyless", **options: Any) -> Any:
    """Write the frame on both roads, compare everything, and return Spark's counts."""
    found: list[Any] = []
    for twin, road in zip(twins, ROADS, strict=True):
        with on(road):
            found.append(twin.save(frame, folder, topic, options, observed=True))
    judge = Judge()
    native, python = found
    judge.outcomes(native, python, frame)
    judge.rows(*twins, topic, frame, keyless=lambda _: False)
    assert not judge.used
    return found[1]


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_page_and_the_harness_know_the_same_differences() -> None:
    assert differences() == DIFFERENCES


def test_a_difference_that_the_page_does_not_name_fails() -> None:
    judge = Judge(allowed=frozenset())
    with pytest.raises(AssertionError):
        judge.outcomes({"n": 20_001}, {"n": 30_000}, "counts")


# -- writes at the bounds ---------------------------------------------------------------------------------------------


def test_spark_counts_each_row_of_a_write_once(twins: tuple[Twin, Twin], tmp_path: Path) -> None:
    """An Observation and an accumulator of a frame whose size Spark does not know, just above the bound of a small
    one."""
    count = SMALL_ROWS + 1
    frame = Frame(count=count, tasks=1, shape="counted", columns=("a_double",), nulls=True)
    total = count * (count - 1) // 2
    assert written(twins, frame, tmp_path) == {"n": count, "total": total, "accumulator": count}


@contextmanager
def largest_result(spark: SparkSession, size: str) -> Iterator[None]:
    """Limit what a job may send to the driver, as the setting at the start of a program does."""
    conf = spark._jsc.sc().conf()
    before = conf.get("spark.driver.maxResultSize", "1g")
    conf.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        conf.set("spark.driver.maxResultSize", before)


def test_wide_rows_are_not_fetched(spark: SparkSession, twins: tuple[Twin, Twin], tmp_path: Path) -> None:
    with largest_result(spark, "16m"):
        found = written(twins, Frame(count=600, tasks=2, shape="files", width=50_000), tmp_path, "keyed")
    assert found == {"n": 600, "total": 600 * 599 // 2}


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", ["files", "shuffled", "retried", "cached", "counted", "range"])
@pytest.mark.parametrize("count", [0, 1, SMALL_ROWS - 1, SMALL_ROWS, SMALL_ROWS + 1, 2 * SMALL_ROWS])
def test_bounds(spark: SparkSession, twins: tuple[Twin, Twin], tmp_path: Path, count: int, shape: Any) -> None:
    for number, tasks in enumerate((1, 2, 5)):
        frame = Frame(first=number * 10**6, count=count, tasks=tasks, shape=shape, columns=("a_double", "nested"))
        for topic in ("keyed", "keyless"):
            written(twins, frame, tmp_path, topic)


# -- lives ------------------------------------------------------------------------------------------------------------


def test_a_short_life(spark: SparkSession, tmp_path: Path) -> None:
    Life(7, spark, tmp_path / "life", Judge()).run(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(LIVES))
def test_lives(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    Life(seed, spark, tmp_path / "life", Judge()).run()


@pytest.mark.exhaustive
def test_lives_with_threads_that_are_not_pinned(tmp_path: Path) -> None:
    seeds = [str(seed) for seed in range(1000, 1008)]
    ran = subprocess.run(
        [sys.executable, "-m", road_lives.__name__, str(tmp_path), *seeds],
        env={**os.environ, "PYSPARK_PIN_THREAD": "false"},
        capture_output=True,
        text=True,
    )
    assert [line.partition(" {")[0] for line in ran.stdout.splitlines() if line.startswith("life ")] == [
        f"life {seed} ok" for seed in seeds
    ], ran.stdout[-6000:] + ran.stderr[-3000:]


# -- what a program does beside them ----------------------------------------------------------------------------------


@pytest.mark.skipif(IS_4_0, reason="an Observation of such a write by a Python source never ends there")
def test_an_observation_of_a_version_that_is_skipped_ends(twins: tuple[Twin, Twin], tmp_path: Path) -> None:
    """Otherwise `Observation.get` waits for ever."""
    frame = Frame(count=10, tasks=2, shape="files")
    for _ in range(2):
        found = written(twins, frame, tmp_path, transactional_id="once", txn_version=1)
        assert found == {"n": 10, "total": 45}


@pytest.mark.exhaustive
def test_two_sessions(log: Log, spark: SparkSession) -> None:
    """Settings and views of one session do not count in the other, and both use the road of the program."""
    log.create()
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    for road in ROADS:
        with on(road):
            before = len(log.ids())
            log.write(other.range(before, before + 10).selectExpr("id AS order_id"))
            log.write(spark.range(before + 10, before + 20).selectExpr("id AS order_id"))
            reader = other.read.format("txlog").option("subscribe", "orders")
            assert reader.load(log.url).count() == len(log.ids()) == before + 20
            assert reader.load(log.url).sparkSession is other
    assert log.ids() == list(range(40))


@pytest.mark.parametrize("road", ["native", pytest.param("python", marks=pytest.mark.exhaustive)])
def test_a_frame_that_fails_after_another_one_of_its_transaction(log: Log, spark: SparkSession, road: Road) -> None:
    """Nothing of both is visible, and the id goes on."""
    log.create()
    log.create("items")
    bad = spark.sql("SELECT IF(id = 70, NULL, id) AS order_id FROM range(0, 100, 1, 2)")

    def both(opened: TxLog) -> None:
        with opened.transaction("nightly", 1) as txn:
            txn.write(log.frame(0, 6), "orders", road="executors")
            txn.write(log.frame(6, 6), "orders")
            txn.write(bad, "items", road="executors")

    with on(road), TxLog(spark, log.url, {"fsync": False}) as opened:
        with pytest.raises(SchemaMismatchError, match="column 'order_id' is not nullable"):
            both(opened)
        for topic in ("orders", "items"):
            assert log.ids(topic) == log.ids(topic, isolation_level="read_uncommitted") == []
        assert "ONGOING" not in log.transactions().values()
        log.write(log.frame(0, 6), transactional_id="nightly", txn_version=1)
        assert log.ids() == list(range(6))


@pytest.mark.exhaustive
@pytest.mark.parametrize("road", ROADS)
def test_uninstall_in_the_middle_of_a_stream(
    log: Log, spark: SparkSession, files: Files, tmp_path: Path, road: Road
) -> None:
    """The query stays as it was started. The next one goes on by the other road."""
    other: Road = "python" if road == "native" else "native"
    files.add(2)
    with on(road):
        writer = files.stream().writeStream.format("txlog").option("topic", "orders")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(log.url)
        query.processAllAvailable()
        before = sink_of(query)
        switch(other)
        expected = files.add(2)
        query.processAllAvailable()
        assert sink_of(query) == before
        query.stop()
        assert log.ids() == expected
        forget_last_commit(tmp_path / "checkpoint")
        expected = files.add(2)
        run(log, files.stream(), tmp_path / "checkpoint")
    assert log.ids() == expected
    txn = log.store.admin().describe_transaction(f"spark-stream:{tmp_path / 'checkpoint'}")
    assert (txn.state, txn.txn_version) == ("COMPLETE_COMMIT", 5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("road", ROADS)
def test_maintenance_under_a_long_read(small_files: Log, spark: SparkSession, tmp_path: Path, road: Road) -> None:
    """A read that began before a merge, retention and vacuum gets each of its rows."""
    log = small_files
    leave_a_dead_file(log)
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            begun.touch()
            deadline = time.monotonic() + WAIT_S
            while not go_on.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield batch

    expected = log.ids()
    with on(road):
        # One task, so that maintenance has a core, and reads most of its files afterwards.
        frame = log.read(columns="order_id").coalesce(1)
        found: list[list[Any]] = []
        slow = frame.mapInArrow(wait, frame.schema)
        thread = threading.Thread(target=lambda: found.append(slow.collect()))
        thread.start()
        try:
            deadline = time.monotonic() + WAIT_S
            while not begun.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            made, failed = merge(spark, log.store, PARTITIONS)
            assert made
            assert not failed
            log.store.alter_topic("orders", config={"retention.bytes": 0})
            assert not retain(spark, log.store, PARTITIONS)[1]
            assert vacuum_topics(spark, log.store, ["orders"]).deleted
        finally:
            go_on.touch()
            thread.join()
    assert sorted(row.order_id for row in found[0]) == expected
    assert set(log.ids()) < set(expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("road", ROADS)
def test_the_second_format_of_state(log: Log, spark: SparkSession, tmp_path: Path, road: Road) -> None:
    """A stateful query from a topic into a topic, with a crash between the two commits and a change of the road."""
    log.create()
    log.create("clean")
    other: Road = "python" if road == "native" else "native"
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    try:
        for number, own in enumerate((road, other, road)):
            # Half of the rows are there already.
            log.write(log.frame(number * 10, 20))
            with on(own):
                reader = spark.readStream.format("txlog").option("subscribe", "orders")
                rows = reader.option("startingOffsets", "earliest").load(log.url).dropDuplicates(["order_id"])
                run(log, rows, tmp_path / "checkpoint", topic="clean", transactional_id="clean")
            assert log.ids("clean") == list(range(number * 10 + 20))
            if number == 0:
                forget_last_commit(tmp_path / "checkpoint")
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.checkpointFormatVersion")
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    assert '"stateUniqueIds":{' in "".join(
        path.read_text() for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")
    )
    assert check_store(log.store.runtime.store).is_clean


# -- growth -----------------------------------------------------------------------------------------------------------


def kept(spark: SparkSession) -> dict[str, int]:
    """Return what a program keeps: objects that py4j holds on both sides, bytes of the JVM's heap."""
    gc.collect()
    gateway: Any = spark.sparkContext._gateway
    jvm: Any = spark._jvm
    jvm.System.gc()
    server: Any = gateway.java_gateway_server
    runtime = jvm.Runtime.getRuntime()
    return {
        "objects in Java": server.getGateway().getBindings().size(),
        "objects in Python": len(gateway.gateway_property.pool),
        "heap": runtime.totalMemory() - runtime.freeMemory(),
    }


def grow(log: Log, spark: SparkSession, folder: Path, times: int) -> Iterator[dict[str, int]]:
    """Save, read and stream so many times; yield what is kept in the middle and at the end."""
    for half in range(2):
        for _ in range(times // 2):
            log.write(log.frame(0, 1), "orders", transactional_id="grows")
        assert log.read("orders", columns="order_id").count() == (half + 1) * (times // 2)
        reader = spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", 1).load(log.url)
        run(log, rows, folder / "checkpoint", topic="copies", transactional_id="copies")
        yield kept(spark)


def grown(log: Log, spark: SparkSession, folder: Path, times: int) -> tuple[dict[str, int], dict[str, int]]:
    log.create("orders", partitions=1)
    log.create("copies", partitions=1)
    install()
    middle, end = grow(log, spark, folder, times)
    return middle, end


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("times", [20, 1_000])
def test_growth(log: Log, spark: SparkSession, tmp_path: Path, times: int) -> None:
    """Saves and micro-batches leave no objects of py4j behind, and the heap does not grow with them."""
    middle, end = grown(log, spark, tmp_path, times)
    # The second query is one object on each side.
    for name in ("objects in Java", "objects in Python"):
        assert end[name] <= middle[name] + 5, (middle, end)
    # Spark itself keeps the plans of its last 1,000 queries and jobs.
    assert end["heap"] <= middle["heap"] + 30 * 2**20, (middle, end)
