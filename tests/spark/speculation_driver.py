"""A Spark job on two workers: its first task hangs at its end until Spark has run a second attempt beside the first.

`python speculation_driver.py <url> <folder> <master> <road>`: each attempt that has returned all its rows creates a
file in the folder. The road is `executors` for `Transaction.write`, or `native` or `python` for `format("txlog")`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from pyspark_txlog import TxLog, session, uninstall

ROWS = 40
PATIENCE_S = 200


def main(url: str, folder: str, master: str, road: str) -> None:
    spark = session(
        "txlog speculation",
        master=master,
        config={
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.efficiency.enabled": False,
        },
    )

    def slow_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        yield from batches
        Path(folder, f"{task.partitionId()}-{task.attemptNumber()}").touch()
        if task.partitionId() == 0 and task.attemptNumber() == 0:
            # Wait until the other attempt is also here, so that both end at the same time.
            deadline_s = time.monotonic() + PATIENCE_S
            while not Path(folder, "0-1").exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)

    frame = spark.range(0, ROWS, 1, 4).selectExpr("id AS order_id")
    slow = frame.mapInArrow(slow_at_the_end, frame.schema)
    if road == "executors":
        with TxLog(spark, url) as log, log.transaction("nightly") as txn:
            txn.write(slow, "orders", road="executors")
        return
    if road == "python":
        uninstall()
    slow.write.format("txlog").mode("append").options(**{"topic": "orders", "transactional.id": "nightly"}).save(url)


if __name__ == "__main__":
    main(*sys.argv[1:])
