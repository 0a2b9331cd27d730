"""How does a check of a whole store become a DataFrame, and how do executors share the work?

The driver reads what concerns all partitions (the root, the table of transactions, committed offsets). Executors read
the partitions of users' topics, one for each task. The driver compares what they saw. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as spark_types

from pyspark_txlog.jobs.partition_jobs import run_tasks
from txlog.client.runtime import Runtime
from txlog.errors import TxlogError
from txlog.maintenance.findings import Findings, Reader
from txlog.maintenance.fsck import FsckReport, Looked, Progress, check_store, look_at
from txlog.maintenance.partition_check import PartitionTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = spark_types.StructType(
    [
        spark_types.StructField(name, kind, nullable, {"comment": doc})
        for name, kind, nullable, doc in (
            ("kind", spark_types.StringType(), False, "damaged, missing or note: what a crash may leave behind"),
            ("path", spark_types.StringType(), False, "the object, relative to the store's root; a folder ends in /"),
            ("expected", spark_types.StringType(), False, "what should be there"),
            ("found", spark_types.StringType(), False, "what is there"),
            ("advice", spark_types.StringType(), False, "what to do"),
            ("count", spark_types.IntegerType(), False, "how much speaks of it"),
        )
    ]
)
"""The columns of a report: name, type, nullable, description."""


def check(
    spark: SparkSession,
    runtime: Runtime,
    topics: Collection[str] = (),
    *,
    rows: bool = True,
    progress: Progress | None = None,
) -> FsckReport:
    """Run `txlog.maintenance.fsck.check_store`, with the partitions of users' topics on executors.

    Raises what that raises, and InvalidRequestError over Spark Connect.
    """

    def spread(tasks: Sequence[PartitionTask]) -> Iterator[Looked]:
        for _, looked in run_tasks(spark, runtime, tasks, _look, title=_title):
            if isinstance(looked, TxlogError):
                raise looked
            yield looked

    return check_store(runtime.store, topics=topics, rows=rows, clock=runtime.clock, progress=progress, spread=spread)


def to_frame(spark: SparkSession, report: FsckReport) -> DataFrame:
    """Return the findings of a report as a frame, worst first; empty if there are no findings."""
    return spark.createDataFrame(
        [tuple(getattr(finding, name) for name in SCHEMA.names) for finding in report.findings], SCHEMA
    )


def _look(runtime: Runtime, task: PartitionTask) -> Looked:
    return look_at(Reader(runtime.store, runtime.clock, Findings(), None), lambda: task)


def _title(task: PartitionTask) -> str:
    return f"txlog fsck: {task.topic_partition}"
