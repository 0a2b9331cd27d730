"""The driver of the demo's streaming query: feed -> flown and cancelled, both topics in one transaction for each
micro-batch.

It runs in its own process, with its own JVM, until it gets SIGTERM or dies. At a fault the whole driver is killed with
SIGKILL, the JVM first. The micro-batch's number is the transaction's version. If Spark repeats a micro-batch after a
restart, txlog skips a committed one and writes one that is not committed.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from lab.demo import data, worker
from lab.demo.dying_store import DyingStore
from pyspark_txlog import TxLog, session
from pyspark_txlog.option_values import storage_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from txlog.storage.object_store import ObjectStore

GROUP = "cleaning"
LOOK_S = 0.05
"""How often the query's progress is read."""

_CANCELLED = [
    f"_offset AS {data.FEED_OFFSET}",
    # Each row goes to the partition that it had in the feed, so that the orders can be compared.
    "_partition AS partition",
    "make_date(year, month, day) AS date",
    *("carrier", "flight", "tailnum", "origin", "dest"),
    "timestampadd(MINUTE, minute, time_hour) AS scheduled",
]
_FLOWN = [
    *_CANCELLED,
    "timestampadd(MINUTE, minute + dep_delay, time_hour) AS departed",
    *("arr_delay", "air_time", "distance"),
]


def clean(
    url: str,
    storage_options: Mapping[str, object],
    object_store: ObjectStore,
    checkpoint: str,
    say: Callable[..., None],
) -> None:
    """Run the query until SIGTERM; call `say` for every micro-batch and for the query's progress. Raises the error that
    ends it."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    spark = session("txlog-demo-cleaning", config={"spark.driver.memory": "1g"})
    if isinstance(object_store, DyingStore):
        object_store.kill = killer(spark)
    with TxLog(spark, url, storage_options, object_store=object_store) as log:

        def write(rows: DataFrame, number: int) -> None:
            say("batch", number=number, repeated=write_both(log, rows, number))

        feed = spark.readStream.format("txlog").options(**storage_settings(storage_options))
        feed = feed.option("subscribe", "feed").option("startingOffsets", "earliest").option("group.id", GROUP)
        rows = feed.option("columns", "*,_partition,_offset").load(url)
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
        seen = None
        while not told.wait(LOOK_S):
            if (failed := query.exception()) is not None:
                raise failed
            progress: Any = query.lastProgress
            if progress is not None and progress["batchId"] != seen:
                seen = progress["batchId"]
                # In the dictionary it is text whose form depends on the version of Spark.
                say("progress", ends=json.loads(progress.json)["sources"][0]["endOffset"]["feed"])
        query.stop()
    spark.stop()


def write_both(log: TxLog, rows: DataFrame, number: int) -> bool:
    """Write one micro-batch as one transaction; return whether it was committed before, and so skipped."""
    # Two topics are written from it, but it is read once.
    rows.persist()
    try:
        with log.transaction(worker.CLEANER_ID, version=number) as txn:
            # The driver's road keeps the order of the feed.
            txn.write(rows.where("dep_time IS NOT NULL").selectExpr(*_FLOWN), "flown", road="driver")
            txn.write(rows.where("dep_time IS NULL").selectExpr(*_CANCELLED), "cancelled", road="driver")
        return bool(txn.repeated)
    finally:
        rows.unpersist()


def killer(spark: SparkSession) -> Callable[[], None]:
    """Return what sends SIGKILL to the driver: its JVM, and this program."""
    jvm: Any = spark._jvm
    pids = (int(jvm.java.lang.ProcessHandle.current().pid()), os.getpid())

    def kill() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    return kill
