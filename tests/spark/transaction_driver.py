"""A Spark driver that writes three topics and offsets in one transaction and is killed at a named point.

`python transaction_driver.py <url> batch|stream <fault> <folder>`: the fault has the syntax of
`txlog.testing.failing_store.Fault.parse`, or is one of SELF, or "none".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import TxLog, session
from txlog.core.names import TopicPartition
from txlog.storage.open import open_object_store
from txlog.testing.failing_store import FailingStore, Fault

TOPICS = ("orders", "items", "audit")
CONFIG = {"orders": {"inline.max.bytes": "0"}}
"""Small frames of the other topics are inline in the commit."""
ROWS = 60
CLICKS = TopicPartition("clicks", 0)
GROUP = "readers"
ID = "nightly"

_JOB, _BATCH_DONE = "while Spark's own writer works", "after a batch, before Spark's commit log"
SELF = (_JOB, _BATCH_DONE)

POINTS = {
    "the id is taken over": "kill after 1 put_if_absent __transaction_state/",
    "the driver has written a file": "kill after 1 write_file orders/",
    "Spark's own writer works": _JOB,
    "Spark's files lie there": "kill before 1 list items/staged/",
    "they are adopted": "kill after 1 make_durable items/staged/",
    "all rows are beside the log": "kill before 1 put_if_absent __transaction_state/.*ONGOING",
    "offsets are registered": "kill after 1 put_if_absent __transaction_state/.*ONGOING",
    "offsets are pending": "kill after 1 put_if_absent __consumer_offsets/",
    "the decision is about to be written": "kill before 1 put_if_absent __transaction_state/.*PREPARE_COMMIT",
    "it is decided": "kill after 1 put_if_absent __transaction_state/.*PREPARE_COMMIT",
    "a marker is about to be written": "kill before 1 put_if_absent (orders|items|audit)/",
    "one marker is there": "kill after 1 put_if_absent (orders|items|audit)/",
    "three markers are there": "kill after 3 put_if_absent (orders|items|audit)/",
    "all markers are there": "kill before 1 put_if_absent __transaction_state/.*COMPLETE_COMMIT",
    "it is complete": "kill after 1 put_if_absent __transaction_state/.*COMPLETE_COMMIT",
}
STREAM_POINTS = {
    "the first batch's rows are beside the log": "kill before 1 put_if_absent __transaction_state/.*ONGOING",
    "the first batch is about to be decided": "kill before 1 put_if_absent __transaction_state/.*PREPARE_COMMIT",
    "the first batch is decided": "kill after 1 put_if_absent __transaction_state/.*PREPARE_COMMIT",
    "the first batch is done, Spark's commit log is not": _BATCH_DONE,
    "the second batch is about to be decided": "kill before 2 put_if_absent __transaction_state/.*PREPARE_COMMIT",
    "the second batch's first marker is there": "kill after 7 put_if_absent (orders|items|audit)/",
}


SLOWLY = "reflect('java.lang.Thread', 'sleep', 50L) IS NOT NULL"
"""A filter that keeps each row and takes time for it, so that a file is open long enough to be seen."""


def write(log: TxLog, frame: DataFrame, version: int, expected: int | None, slowly: bool = False) -> None:
    """Write three topics, with rows inline and in files of the driver and of executors, and the offsets of the
    range."""
    with log.transaction(ID, version) as txn:
        txn.write(frame, "orders", key="order_id", road="driver")
        txn.write(frame.where(SLOWLY) if slowly else frame, "items", road="executors")
        txn.write(frame, "audit", road="driver")
        txn.send_offsets({CLICKS: (expected or 0) + 1}, GROUP, expected={CLICKS: expected})


def batch(spark: SparkSession, log: TxLog, fault: str) -> None:
    write(log, spark.range(ROWS).selectExpr("id AS order_id"), 7, None, slowly=fault == _JOB)


def stream(spark: SparkSession, log: TxLog, folder: Path, fault: str) -> None:
    frame = spark.readStream.schema("order_id bigint").option("maxFilesPerTrigger", 1).json(str(folder / "in"))

    def one(rows: DataFrame, number: int) -> None:
        write(log, rows, number, number or None)
        if fault == _BATCH_DONE:
            os.kill(os.getpid(), signal.SIGKILL)

    writer = frame.writeStream.foreachBatch(one).option("checkpointLocation", str(folder / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def kill_in_job(items: Path) -> None:
    """Send SIGKILL as soon as a task of Spark's writer has a file open."""
    while not list(items.glob("staged/**/_temporary/**/*.parquet")):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, mode: str, fault: str, folder: str) -> None:
    spark = session("txlog killed driver", config={"spark.driver.memory": "1g"})
    if fault == _JOB:
        threading.Thread(target=kill_in_job, args=(Path(url) / "items",), daemon=True).start()
    faults = [] if fault in ("none", *SELF) else [Fault.parse(fault)]
    store = FailingStore(open_object_store(url, {"fsync": False}), *faults)
    with TxLog(spark, url, {"fsync": False}, object_store=store) as log:
        if mode == "batch":
            batch(spark, log, fault)
        else:
            stream(spark, log, Path(folder), fault)


if __name__ == "__main__":
    main(*sys.argv[1:])
