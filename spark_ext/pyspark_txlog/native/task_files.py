"""To which partition do the files of a Spark task go, if its rows have no key and no partition of their own?

Spark's writer for several partitions copies each row once more. A task without keys has one partition, so it does not
need that writer. Spark writes the files of all tasks to the folder of one partition. After the job, the driver moves
the files of the other tasks to the folders of their partitions. The number of the task is in the name that Spark's
committer gives each file, and it is the same for each attempt. So the rows of a task stay together and in their order.

A move must be cheap and atomic, so it is used in folders of a file system only. In an object store it would be a copy.
There, rows for several partitions need Spark's writer for several partitions. No record names a file before the moves
have ended. A driver that dies before leaves a staged folder of a transaction that was never decided, which vacuum
deletes.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import SparkSession

from txlog.engine.schemas import PARTITION_COLUMN
from txlog.errors import StorageError

_MOVING = "file:"
"""Beginning of URLs where a move does not copy."""
_TASK = re.compile(r"part-(\d{5,})-.*\.parquet\Z", re.ASCII)
"""Spark's name of a file. A task has several files with `spark.sql.files.maxRecordsPerFile`."""


def partition_folder(partition: int) -> str:
    """Return the folder of a partition, as Spark's writer for several partitions names it."""
    return f"{PARTITION_COLUMN}={partition}"


def can_move(url: str, partitions: int) -> bool:
    """Return whether files below `url` can be moved at no cost. One partition needs no moves."""
    return partitions == 1 or url.startswith(_MOVING)


def move_to_partitions(spark: SparkSession, url: str, first: int, partitions: int) -> None:
    """Move each file in the folder of partition `first` to the partition of its task, which is `first` plus the task's
    number, modulo `partitions`. `url` is the staged folder, with a trailing slash.

    Raises StorageError if a file cannot be moved.
    """
    if partitions == 1:
        return
    # Imported here because py4j does not exist without a JVM.
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    here = path(f"{url}{partition_folder(first % partitions)}")
    made = set()
    try:
        files = here.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        for status in files.listStatus(here) if files.exists(here) else ():
            name = status.getPath().getName()
            match = _TASK.match(name)
            # Another committer may use other names. Those files stay where they are, which is correct but not fair.
            # `read_staged_folder` refuses what a finished job cannot have left.
            partition = (first + (int(match[1]) if match else 0)) % partitions
            if partition == first % partitions:
                continue
            there = path(f"{url}{partition_folder(partition)}")
            if partition not in made:
                files.mkdirs(there)
                made.add(partition)
            if not files.rename(status.getPath(), path(there, name)):
                raise StorageError(f"{status.getPath()}: cannot be moved to {there}. Nothing was published")
    except Py4JJavaError as error:
        raise StorageError(
            f"{url}: cannot move files to the folders of their partitions: "
            f"{error.java_exception}. Nothing was published"
        ) from error
