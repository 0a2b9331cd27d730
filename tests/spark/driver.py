"""A Spark driver that kills itself at a chosen point of a write: `python driver.py <store> <moment>`.

A thread watches the store independently until the expected object exists, and then sends SIGKILL to its own process.
The JVM is not killed: it continues alone for a short time, as on a real cluster.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from pyspark_txlog import session, uninstall

MOMENTS = {
    "begun": ("__transaction_state", '"state":"EMPTY"'),
    "rows written": ("orders", ".parquet"),
    "decided": ("__transaction_state", '"state":"PREPARE_COMMIT"'),
}
"""The objects that the driver waits for, by folder: the end of a name, or text in a commit record."""
ROWS = 60


def lies_there(store: Path, moment: str) -> bool:
    folder, text = MOMENTS[moment]
    for path in (store / folder).rglob("*"):
        if path.name.endswith(text) or (path.suffix == ".batch" and text in path.read_bytes().decode("latin-1")):
            return True
    return False


def kill_when(store: Path, moment: str) -> None:
    while not lies_there(store, moment):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, moment: str) -> None:
    spark = session("txlog killed driver", config={"spark.driver.memory": "1g"})
    # Its moments are those of the Python sink; `transaction_driver` has those of a native write.
    uninstall()
    threading.Thread(target=kill_when, args=(Path(url), moment), daemon=True).start()
    (
        spark.range(ROWS)
        .selectExpr("id AS order_id", "CAST(id % 2 AS INT) AS partition")
        .write.format("txlog")
        .mode("append")
        .option("topic", "orders")
        .option("transactional.id", "nightly")
        .option("txn.version", "7")
        .save(url)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
