"""The Spark job of `python -m lab.chaos`: batch writes, version after version, in a driver that may be killed.

It is a separate program, because only this package imports Spark. The supervisor starts it by name and passes
`lab.chaos.plan.Assignment` as JSON in the environment variable TXLOG_CHAOS_JOB. It writes a history as the other roles
do. If it is killed, its JVM may still commit. Then txlog must tell the next driver that the version is already
committed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import Any

import txlog
from lab.chaos import plan
from lab.chaos.plan import JOBS, PARTITIONS
from lab.chaos.workers import die_with_parent
from lab.histories.events import Assign, Begin, End, Poll, Row, Send
from lab.histories.recorder import Recorder
from pyspark_txlog.spark_session import session
from txlog.client.store import Store
from txlog.clock import SystemClock
from txlog.errors import TransactionalIdNotFoundError, TxlogError

VARIABLE = "TXLOG_CHAOS_JOB"
WRITES_A_READ = 3
"""The number of writes after which it reads everything."""


class Job:
    """One driver process."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.name: str = given["name"]
        self.process = f"{self.name}-{given['instance']}"
        self.url: str = given["url"]
        self.options: dict[str, object] = given["storage_options"]
        self.stopping = False
        self.recorder = Recorder(self.process, SystemClock(), f"{given['histories']}/{self.process}.jsonl")
        self._next_id = given["instance"] << plan.INSTANCE_BITS
        self._spark: Any = None

    def finish(self, number: int, frame: FrameType | None) -> None:
        """End after the current write: the handler of SIGTERM."""
        self.stopping = True

    def run(self) -> int:
        """Write until SIGTERM or a kill; return the exit status."""
        with txlog.open(self.url, storage_options=self.options) as store:
            self._spark = session("txlog-chaos", config={"spark.driver.memory": "1g"})
            try:
                writes = 0
                while not self.stopping:
                    # The first write repeats a version that the driver before may have committed, and txlog must skip
                    # it then.
                    self.write(max(_version_of(store, self.name) + (writes > 0), 0))
                    writes += 1
                    if writes % WRITES_A_READ == 0:
                        self.read()
            except TxlogError as error:
                print(f"{self.process}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                return plan.FAILED
            finally:
                self._spark.stop()
        return 0

    def write(self, version: int) -> None:
        """Write one version: some rows in each partition, all of them or none."""
        first, partitions = self._next_id, PARTITIONS[JOBS]
        self._next_id += plan.JOB_ROWS
        label, content = f"{self.process}-{first}", plan.job_content(self.name, version)
        self.recorder.single(self.process, Begin(txn=label, transactional_id=self.name))
        for partition in range(partitions):
            values = tuple(range(first + partition, first + plan.JOB_ROWS, partitions))
            contents = (content,) * len(values)
            sent = Send(topic=JOBS, partition=partition, values=values, txn=label, contents=contents)
            self.recorder.single(self.process, sent)
        frame = self._spark.range(first, first + plan.JOB_ROWS, numPartitions=2).selectExpr(
            "id",
            f"'{content}' AS content",
            "CAST(NULL AS STRING) AS pad",
            f"CAST((id - {first}) % {partitions} AS INT) AS partition",
        )
        asked = End(txn=label, commit=True)
        operation = self.recorder.invoke(self.process, asked)
        try:
            (
                frame.write.format("txlog")
                .mode("append")
                .option("topic", JOBS)
                .option("transactional.id", self.name)
                .option("txn.version", version)
                .option("storageOptions", json.dumps(self.options))
                .save(self.url)
            )
        except Exception as error:
            # Spark reports txlog's errors only as text. The next look at the version shows the result of the write.
            self.recorder.info(self.process, operation, asked, error)
            return
        # A version that another driver had committed is skipped without an error, so the writer of these rows is
        # unknown.
        self.recorder.info(self.process, operation, asked)

    def read(self) -> None:
        """Read everything that the topic shows, through Spark."""
        self.recorder.single(self.process, Assign())
        asked = [Poll(topic=JOBS, partition=partition, start=0) for partition in range(PARTITIONS[JOBS])]
        operations = [self.recorder.invoke(self.process, poll) for poll in asked]
        found = (
            self._spark.read.format("txlog")
            .option("subscribe", JOBS)
            .option("columns", "id,content,_partition,_offset")
            .option("storageOptions", json.dumps(self.options))
            .load(self.url)
            .collect()
        )
        for poll, operation in zip(asked, operations, strict=True):
            rows = tuple(
                Row(offset=offset, value=value, content=content)
                for offset, value, content in sorted(
                    (row["_offset"], row["id"], row["content"]) for row in found if row["_partition"] == poll.partition
                )
            )
            end = rows[-1].offset + 1 if rows else 0
            read = Poll(topic=JOBS, partition=poll.partition, start=0, end=end, rows=rows)
            self.recorder.ok(self.process, operation, read)


def main() -> int:
    """Run the assignment in the environment variable."""
    die_with_parent()
    job = Job(json.loads(os.environ[VARIABLE]))
    signal.signal(signal.SIGTERM, job.finish)
    return job.run()


def _version_of(store: Store, name: str) -> int:
    try:
        return store.admin().describe_transaction(name).txn_version
    except TransactionalIdNotFoundError:
        return -1


if __name__ == "__main__":
    sys.exit(main())
