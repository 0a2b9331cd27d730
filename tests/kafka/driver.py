"""Run the ingest job, which kills itself at a chosen point of its second micro-batch.

`python driver.py <moment> <store> <checkpoint> <job's arguments>`

A thread watches the store and the checkpoint independently until the expected object exists. Then it sends SIGKILL to
its own process or to the whole group. In the first case the JVM continues for a short time, as on a cluster.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import typer

from pyspark_txlog import spark_session
from pyspark_txlog.jobs import ingest_kafka

KILLED_BATCH = 1


def planned(store: Path, checkpoint: Path) -> bool:
    """Spark has written the end of the batch."""
    return (checkpoint / "offsets" / str(KILLED_BATCH)).exists()


def rows_written(store: Path, checkpoint: Path) -> bool:
    """Tasks of a second epoch have left files."""
    epochs = {path.name.split("-")[1] for path in store.glob("*/*/rows/*.parquet")}
    return len(epochs) > KILLED_BATCH


def offsets_pending(store: Path, checkpoint: Path) -> bool:
    """Kafka's offsets are in the log, and their transaction is undecided."""
    return _in_records(store, "__consumer_offsets", rf'__source\.0.*\\"batch\\": ?{KILLED_BATCH}\b')


def decided(store: Path, checkpoint: Path) -> bool:
    """PREPARE_COMMIT is in the log."""
    return _in_records(store, "__transaction_state", rf'"state":"PREPARE_COMMIT".*"txn_version":{KILLED_BATCH},')


def complete(store: Path, checkpoint: Path) -> bool:
    """The transaction is over; Spark does not know yet."""
    return _in_records(store, "__transaction_state", rf'"state":"COMPLETE_COMMIT".*"txn_version":{KILLED_BATCH},')


def noted(store: Path, checkpoint: Path) -> bool:
    """Spark's own commit log has the batch."""
    return (checkpoint / "commits" / str(KILLED_BATCH)).exists()


MOMENTS = {look.__name__: look for look in (planned, rows_written, offsets_pending, decided, complete, noted)}
"""In the order in which they happen."""


def kill_when(moment: str, store: Path, checkpoint: Path, *, whole_group: bool) -> None:
    """Send SIGKILL at that point, to this process or to all of its group."""
    while not _has_come(moment, store, checkpoint):
        time.sleep(0.001)
    if whole_group:
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _has_come(moment: str, store: Path, checkpoint: Path) -> bool:
    try:
        return MOMENTS[moment](store, checkpoint)
    except FileNotFoundError:
        # The store's probe deleted its folder while this process listed it.
        return False


def _in_records(store: Path, topic: str, pattern: str) -> bool:
    records = (store / topic).glob("*/*.batch")
    return any(re.search(pattern, path.read_bytes().decode("latin-1")) for path in records)


def main() -> None:
    moment, whom, store, checkpoint, *arguments = sys.argv[1:]
    if moment != "never":
        threading.Thread(
            target=kill_when,
            args=(moment, Path(store), Path(checkpoint)),
            kwargs={"whole_group": whom == "all"},
            daemon=True,
        ).start()
    sys.argv[1:] = ["--store", store, "--checkpoint", checkpoint, *arguments]
    # The moments are those of the Python sink: a native write keeps few rows in the commit, without files.
    with mock.patch.object(spark_session, "install"):
        typer.run(ingest_kafka.main)


if __name__ == "__main__":
    main()
