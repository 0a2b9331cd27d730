"""A Spark driver on a cluster: `python job.py <spec.json>`.

It runs the steps that the spec names, in turn, and writes the result of each step.

`{"master": ..., "url": ..., "folder": ..., "steps": [...], "config": {...}, "register": ...}`: the store exists, with
the topics of `TOPICS`. The folder takes checkpoints, marks and results. A master `sc://...` is a Spark Connect server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import txlog
from pyspark_txlog import TxLog, TxlogDataSource, install, session, uninstall
from pyspark_txlog.native.write import Road, is_over_connect
from txlog.errors import TxlogError

TOPICS = ("orders", "streamed", "native", "audit", "batches")
FOUND = "found.json"
ROWS, TASKS = 400, 4
PATIENCE_S = 200


def main(spec_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    if spec["master"].startswith("sc://"):
        spark = SparkSession.builder.remote(spec["master"]).getOrCreate()
    else:
        # Both executors must exist before the first task starts.
        config = {
            "spark.executor.memory": "512m",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            **spec["config"],
        }
        spark = session("txlog on a cluster", master=spec["master"], config={"spark.driver.memory": "1g", **config})
    # Each step names how it reads or writes: `format("txlog")` by Python tasks on the executors, or natively.
    uninstall()
    if spec["register"]:
        spark.dataSource.register(TxlogDataSource)
    found = {step: STEPS[step](spark, spec["url"], Path(spec["folder"])) for step in spec["steps"]}
    Path(spec["folder"], FOUND).write_text(json.dumps(found))
    spark.stop()


def frame(spark: SparkSession, tasks: int = TASKS) -> DataFrame:
    return spark.range(0, ROWS, 1, tasks).selectExpr("id AS order_id", "concat('c', id % 3) AS country")


def ids(rows: DataFrame) -> list[int]:
    """Return the order ids, sorted, with duplicates."""
    return sorted(row.order_id for row in rows.select("order_id").collect())


# -- the steps --------------------------------------------------------------------------------------------------------


def executors(spark: SparkSession, url: str, folder: Path) -> object:
    """Return (working folder, place of txlog) of each executor that has tasks."""

    def here(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"cwd": [os.getcwd()], "txlog": [txlog.__file__]})

    found = spark.range(0, TASKS, 1, TASKS).mapInArrow(here, "cwd string, txlog string").distinct()
    return sorted([row.cwd, row.txlog] for row in found.collect())


def write(spark: SparkSession, url: str, folder: Path, rows: DataFrame | None = None) -> object:
    writer = (rows or frame(spark)).write.format("txlog").mode("append").option("topic", "orders")
    writer.option("transactional.id", "nightly").option("txn.version", "1").save(url)
    return None


def read(spark: SparkSession, url: str, folder: Path) -> object:
    return ids(spark.read.format("txlog").option("subscribe", "orders").load(url))


def installed_read(spark: SparkSession, url: str, folder: Path) -> object:
    """Return whether a scan reads files itself, first of a nullable column, then also of one that is not nullable."""
    install()
    rows = spark.read.format("txlog").option("subscribe", "orders")
    found = [rows.option("columns", columns).load(url) for columns in ("country", "country,order_id")]
    uninstall()
    return [[frame.count(), bool(frame.inputFiles())] for frame in found]


def orders(spark: SparkSession, url: str) -> DataFrame:
    """Return the topic `orders` as a stream of two micro-batches."""
    reader = spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", str(ROWS // 2)).load(url)


def stream(
    spark: SparkSession, url: str, folder: Path, through: Callable[[DataFrame], DataFrame] | None = None
) -> object:
    rows = orders(spark, url)
    writer = (through(rows) if through else rows).writeStream.format("txlog").option("topic", "streamed")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start(url).awaitTermination()
    return None


def native_scan(spark: SparkSession, url: str, folder: Path) -> object:
    with TxLog(spark, url) as log:
        return {topic: ids(rows) for topic, rows in log.to_dfs(*TOPICS).items()}


def native_write(spark: SparkSession, url: str, folder: Path, rows: DataFrame | None = None) -> object:
    chosen = frame(spark) if rows is None else rows
    # Spark Connect supports only one road.
    road: Road = "driver" if is_over_connect(chosen) else "executors"
    with TxLog(spark, url) as log:
        with log.transaction("native", version=1) as txn:
            txn.write(chosen, "native", road=road)
            txn.write(frame(spark), "audit", road="driver")
        with log.transaction("native", version=1) as txn:
            txn.write(chosen, "native", road=road)
    return "skipped" if txn.result is not None and txn.result.skipped else "written again"


def snapshot(spark: SparkSession, url: str, folder: Path) -> object:
    with TxLog(spark, url) as log:
        return {topic: ids(rows) for topic, rows in log.snapshot("orders", "native").to_dfs().items()}


def views(spark: SparkSession, url: str, folder: Path) -> object:
    with TxLog(spark, url) as log:
        log.create_views("orders", prefix="v_")
    return ids(spark.sql("SELECT order_id FROM v_orders"))


def foreach_batch(spark: SparkSession, url: str, folder: Path) -> object:
    def append(batch: DataFrame, number: int) -> None:
        with (
            TxLog(batch.sparkSession, url) as log,
            log.transaction("batches", version=number, scope="batches") as txn,
        ):
            txn.write(batch, "batches")

    writer = orders(spark, url).writeStream.foreachBatch(append).trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "batches-checkpoint")).start().awaitTermination()
    return None


def native_write_by_executors(spark: SparkSession, url: str, folder: Path) -> object:
    """Return the error message of the call."""
    with TxLog(spark, url) as log:
        try:
            with log.transaction() as txn:
                txn.write(frame(spark), "native", small_rows=1)
        except TxlogError as error:
            return f"{type(error).__name__}: {error}"
    return "it works"


def ordered_writes(spark: SparkSession, url: str, folder: Path) -> object:
    """Write frames of many tasks by both roads, small and large.

    Ids increase with the tasks. Return the number of rows.
    """
    first = 0
    for switch, sizes in ((uninstall, (2_000, 12_000)), (install, (2_000, 2_000, 2_000, 12_000))):
        switch()
        for size in sizes:
            rows = spark.range(first, first + size, 1, 8)
            # Spark does not know how many rows this has.
            rows = rows.mapInArrow(lambda batches: batches, rows.schema).selectExpr(
                "id AS order_id", "concat('c', id % 3) AS country"
            )
            writer = rows.write.format("txlog").mode("append").option("topic", "batches").option("key", "country")
            writer.save(url)
            first += size
    uninstall()
    return first


def held_up_write(spark: SparkSession, url: str, folder: Path) -> object:
    return write(spark, url, folder, held_up(frame(spark), folder))


def held_up_stream(spark: SparkSession, url: str, folder: Path) -> object:
    return stream(spark, url, folder, lambda rows: held_up(rows.repartition(2), folder))


def held_up_native_write(spark: SparkSession, url: str, folder: Path) -> object:
    return native_write(spark, url, folder, held_up(frame(spark), folder))


def held_up(rows: DataFrame, folder: Path) -> DataFrame:
    """Return the same rows, but hold up one task after half of its rows.

    The first task that gets there writes its process id to `held-up`, and waits for its kill.
    """
    mark = folder / "held-up"

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        assert TaskContext.get() is not None
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            try:
                held = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                held = None
            if held is not None:
                os.write(held, f"{os.getpid()}\n".encode())
                os.close(held)
                time.sleep(PATIENCE_S)
                raise AssertionError("nobody killed this task")
            yield batch.slice(half)

    return rows.mapInArrow(through, rows.schema)


STEPS: Mapping[str, Callable[[SparkSession, str, Path], Any]] = {
    step.__name__: step
    for step in (
        executors,
        write,
        read,
        installed_read,
        stream,
        native_scan,
        native_write,
        snapshot,
        views,
        foreach_batch,
        native_write_by_executors,
        ordered_writes,
        held_up_write,
        held_up_stream,
        held_up_native_write,
    )
}

if __name__ == "__main__":
    main(sys.argv[1])
