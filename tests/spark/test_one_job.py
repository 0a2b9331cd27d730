"""A frame of unknown size is stored with one run of its plan, and what the driver gets of it is bounded in rows and
bytes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from lab.invariants import check_store
from pyspark_txlog import TxLog, install
from pyspark_txlog.native import one_job, write
from pyspark_txlog.native.one_job import MAX_BYTES, share_of
from pyspark_txlog.worker import spare_modules
from tests.spark.conftest import Console, Log, append
from tests.spark.test_stream_sink import start
from txlog.errors import SchemaMismatchError, TxlogError, UnknownTopicOrPartitionError
from txlog.storage.open import open_object_store

pytestmark = pytest.mark.spark
SMALL = 100


@pytest.fixture(autouse=True)
def installed(format_used: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install, whatever the run's --spark-format is, with a bound of a few rows also for save() and start()."""
    install()
    defaults: Any = write.write_frame.__kwdefaults__
    monkeypatch.setitem(defaults, "small_rows", SMALL)


@pytest.fixture
def native(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    with TxLog(spark, log.url, {"fsync": False}) as opened:
        yield opened


def counting(frame: DataFrame, counted: Accumulator[int]) -> DataFrame:
    """Return the frame, and let its plan add the rows that pass through it."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counted.add(batch.num_rows)
            yield batch

    return frame.mapInArrow(count, frame.schema)


def ids_in_order(log: Log, topic: str = "orders") -> list[int]:
    found = log.read(topic, columns="_partition,_offset,order_id").orderBy("_partition", "_offset").collect()
    return [row.order_id for row in found]


def assert_sound(log: Log) -> None:
    check_store(open_object_store(log.url))


@pytest.mark.parametrize("limit", [1, 1000, MAX_BYTES])
@pytest.mark.parametrize("tasks", [1, 7, 200, 100_000])
def test_the_shares_of_all_tasks_stay_below_the_bound(limit: int, tasks: int) -> None:
    shares = [share_of(task, limit, tasks) for task in range(3 * tasks)]
    assert sum(shares) <= limit
    assert shares == sorted(shares, reverse=True)
    assert shares[tasks - 1] >= limit // (2 * tasks)
    assert shares[0] >= limit // 4


@pytest.mark.parametrize("count", [SMALL, SMALL + 1, 3 * SMALL, 0])
def test_the_plan_of_a_write_runs_once(spark: SparkSession, log: Log, native: TxLog, count: int) -> None:
    """save(), and transactions of a TxLog with one frame and with two. Spark's own counts show a second run."""
    log.create(partitions=1)
    log.create("second", partitions=1)

    def checked(action: Any, times: int = 1) -> None:
        counted, seen = spark.sparkContext.accumulator(0), Observation()
        frame = counting(log.frame(0, count, tasks=3), counted)
        action(frame.observe(seen, F.count(F.lit(1)).alias("n"), F.max("order_id").alias("most")))
        assert counted.value == count * times
        assert seen.get == {"n": count, "most": count - 1 if count else None}

    def two(frame: DataFrame) -> None:
        with native.transaction() as txn:
            txn.write(frame, "orders", small_rows=SMALL)
            txn.write(log.frame(0, count), "second", small_rows=SMALL)

    checked(log.write)
    checked(lambda frame: append(native.table("orders"), frame, small_rows=SMALL))
    checked(two)
    assert log.ids() == sorted([*range(count)] * 3)
    assert log.ids("second") == [*range(count)]
    assert_sound(log)


@pytest.mark.parametrize("road", ["driver", "executors"])
def test_a_chosen_road_runs_the_plan_once(spark: SparkSession, log: Log, native: TxLog, road: Any) -> None:
    log.create()
    counted, seen = spark.sparkContext.accumulator(0), Observation()
    frame = counting(log.frame(0, 30, tasks=3), counted).observe(seen, F.count(F.lit(1)).alias("n"))
    append(native.table("orders"), frame, road=road)
    assert (counted.value, seen.get) == (30, {"n": 30})


@pytest.mark.parametrize("count", [SMALL, 3 * SMALL])
def test_a_micro_batch_counts_its_rows_once(log: Log, tmp_path: Path, count: int) -> None:
    log.create()
    log.frame(0, count, tasks=3).write.parquet(str(tmp_path / "files"))
    counted = log.spark.sparkContext.accumulator(0)
    stream = log.spark.readStream.schema(log.frame(0, 0).schema).parquet(str(tmp_path / "files"))
    query = start(log, counting(stream, counted), tmp_path / "start")
    query.awaitTermination()
    assert sum(progress.numInputRows for progress in query.recentProgress) == count
    assert counted.value == count
    assert log.ids() == [*range(count)]
    assert_sound(log)


@contextmanager
def results_of(spark: SparkSession, size: str) -> Iterator[None]:
    """Let Spark fail a job whose results are larger than `size`. It looks when the job's tasks begin."""
    configuration = spark._jsc.sc().conf()
    before = configuration.get("spark.driver.maxResultSize", "1g")
    configuration.set("spark.driver.maxResultSize", size)
    try:
        yield
    finally:
        configuration.set("spark.driver.maxResultSize", before)


def test_rows_too_wide_for_the_driver_are_stored_by_the_tasks(
    spark: SparkSession, log: Log, native: TxLog, tmp_path: Path
) -> None:
    """The number of rows says nothing of their size, also if the plan or a cache knows it."""
    log.create(partitions=1)
    made = spark.range(0, 300, 1, 3).selectExpr("id AS order_id", "repeat(string(rand()), 3000) AS carrier")
    made.write.parquet(str(tmp_path / "files"))
    scanned = spark.read.parquet(str(tmp_path / "files"))
    stream = spark.readStream.schema(scanned.schema).parquet(str(tmp_path / "files"))
    cached = scanned.where(f"order_id < {SMALL}").cache()
    try:
        assert cached.count() == SMALL
        with results_of(spark, "2m"):
            with pytest.raises(Exception, match="maxResultSize"):
                cached.toArrow()
            for frame in (scanned, scanned.limit(SMALL), cached):
                log.write(frame)
            append(native.table("orders"), scanned)
            start(log, stream, tmp_path / "checkpoint").awaitTermination()
    finally:
        cached.unpersist()
    assert len(log.ids()) == 3 * 300 + 2 * SMALL
    assert set(log.ids()) == {*range(300)}
    assert_sound(log)


def test_rows_that_the_topic_cannot_take(spark: SparkSession, log: Log, native: TxLog) -> None:
    """The error is the same in the driver and in a task, and no task is repeated because of it."""
    log.create()
    tried = spark.sparkContext.accumulator(0)
    base = counting(spark.range(0, 90, 1, 3).toDF("order_id"), tried)
    cases: list[tuple[DataFrame, type[TxlogError]]] = [
        (base.selectExpr("nullif(order_id, 7) AS order_id"), SchemaMismatchError),
        (base.selectExpr("order_id", "if(order_id = 7, 5, 0) AS partition"), UnknownTopicOrPartitionError),
    ]
    for frame, kind in cases:
        said = set()
        for small_rows in (SMALL, 10):
            tried.value = 0
            with pytest.raises(kind) as caught:
                append(native.table("orders"), frame, small_rows=small_rows)
            said.add(str(caught.value))
            assert tried.value == 90
        assert len(said) == 1, said
    assert log.ends() == [(0, 0), (0, 0)]
    assert_sound(log)


def test_the_order_of_the_tasks_is_kept(spark: SparkSession, log: Log, native: TxLog) -> None:
    """Tasks 1 and 3 of six have too many rows for the driver, and task 4 has none."""
    log.create(partitions=1)
    log.create("three", partitions=3)
    frame = (
        spark.range(0, 600, 1, 6)
        .toDF("order_id")
        .where(
            "order_id % 100 < 20 AND (order_id < 400 OR order_id >= 500) AND (order_id DIV 100 IN (1, "
            "3) OR order_id % 100 < 5)"
        )
    )
    expected = [*range(5), *range(100, 120), *range(200, 205), *range(300, 320), *range(500, 505)]
    append(native.table("orders"), frame, small_rows=10)
    assert ids_in_order(log) == expected
    # In a micro-batch, rows without a key go to the partitions of their tasks and of its number.
    append(native.table("three"), frame, small_rows=10, transactional_id="query", version=2, scope="its id")
    by_task = [[number for number in expected if number // 100 % 3 == task] for task in range(3)]
    assert ids_in_order(log, "three") == [*by_task[1], *by_task[2], *by_task[0]]
    assert_sound(log)


def test_attempts_that_fail_leave_no_rows(spark: SparkSession, log: Log, native: TxLog, monkeypatch: Any) -> None:
    log.create(partitions=1)
    original = one_job.run_task

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        yield from batches
        # The end of the task's rows: with small_rows=10, most of them are in its memory, and no file has them.
        if task.attemptNumber() < 2:
            raise RuntimeError("this attempt dies")

    frame = log.frame(0, 1000, tasks=4)
    append(native.table("orders"), frame.mapInArrow(fail_first, frame.schema), small_rows=10)

    def fail_last(writer: one_job.TaskWriter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # By its files: the attempt fails after it has written them.
        task = TaskContext.get()
        assert task is not None
        yield from original(writer, batches)
        if task.attemptNumber() < 1:
            raise RuntimeError("this attempt dies with files")

    monkeypatch.setattr(one_job, "run_task", fail_last)
    append(native.table("orders"), log.frame(1000, 400, tasks=4), small_rows=10)
    assert log.ids() == [*range(1400)]
    assert len(log.files()) == 12, "the first attempts' files are there, and no record names them"
    assert_sound(log)


def test_the_collector_skips_modules_in_the_workers_only(log: Log, native: TxLog, monkeypatch: Any) -> None:
    """Spark collects garbage after each task."""
    log.create()
    spared = log.spark.sparkContext.accumulator(0)
    original = one_job.run_task

    def counted(writer: one_job.TaskWriter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from original(writer, batches)
        spared.add(gc.get_freeze_count())

    monkeypatch.setattr(one_job, "run_task", counted)
    append(native.table("orders"), log.frame(0, 10, tasks=1))
    assert spared.value > 10_000
    spare_modules()
    assert gc.get_freeze_count() == 0


def test_a_stop_inside_a_micro_batch_is_no_error(log: Log, tmp_path: Path, console: Console) -> None:
    """Spark looks for the interrupt in the text of Python's error, with an expression that recurses for each
    character."""
    log.create()
    log.frame(0, 10, tasks=1).write.parquet(str(tmp_path / "files"))
    began = tmp_path / "began"

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began.touch()
        time.sleep(60)
        yield from batches

    stream = log.spark.readStream.schema(log.frame(0, 0).schema).parquet(str(tmp_path / "files"))
    held = stream.mapInArrow(hold, stream.schema)
    query = start(log, held, tmp_path / "start")
    while not began.exists():
        assert query.isActive, query.exception()
        time.sleep(0.02)
    query.stop()
    assert query.exception() is None
    time.sleep(1)
    assert "StackOverflowError" not in console.text()
    assert log.ids() == []
