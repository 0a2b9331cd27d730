"""One life of a streaming query's driver: `python driver.py <spec.json>`.

It starts the query and arms one strike after another, each after a further micro-batch was committed. If a strike kills
the sink's own process, the query ends, and the driver starts it again. The driver ends with the input, or a strike
kills it. With `"read": true` it writes at the end what a reader finds.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import session, uninstall
from tests.kill import sinks, strikes
from tests.kill.points import FIRST_ROW, HALF, LAST_ROW
from tests.kill.strikes import ARMED, PIDS, Striker

POLL_S = 0.001
STRAGGLER_S = 20


def main(spec_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    folder = Path(spec["strikes_folder"])
    sink = sinks.SINKS[spec["sink"]]()
    config: dict[str, Any] = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", **sink.config}
    if spec["speculation"]:
        config |= {
            "spark.speculation": "true",
            "spark.speculation.interval": "50ms",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.01",
            "spark.speculation.minTaskRuntime": "0ms",
        }
    spark = session("txlog killed stream", master=spec["master"], config=config)
    # `txlog` is the Python sink; `txlog-native` installs again.
    uninstall()
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (folder / PIDS).write_text(json.dumps({"driver": os.getpid(), "jvm": int(jvm)}))
    threading.Thread(target=arm, args=(spec, folder), daemon=True).start()
    stream = rows(spark, spec)
    while True:
        writer = sink.writer(stream, Path(spec["place"]), folder).trigger(availableNow=True)
        try:
            writer.option("checkpointLocation", spec["checkpoint"]).start().awaitTermination()
            break
        except StreamingQueryException as error:
            with (folder / "failures.txt").open("a") as failures:
                print(json.dumps(str(error)), file=failures)
            if not struck(folder) > spec.setdefault("excused", 0):
                raise
            # Spark does not retry a sink's commit: the query ends, and its operator starts it again.
            spec["excused"] += 1
    if spec["read"]:
        found = sink.read(spark, Path(spec["place"])).toArrow()["id"].to_pylist()
        (folder / "read.json").write_text(json.dumps(sorted(found)))
    spark.stop()


def rows(spark: SparkSession, spec: dict[str, Any]) -> DataFrame:
    """Return the input, one file for each micro-batch, through a function in which strikes can happen."""
    for module in (sys.modules[__name__], strikes):
        cloudpickle.register_pickle_by_value(module)
    striker, speculative, marks = Striker(spec["strikes_folder"]), spec["speculation"], spec["strikes_folder"]

    def through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        striker.at_task(FIRST_ROW.name)
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            striker.at_task(HALF.name)
            if speculative and task.partitionId() == 1:
                _straggle(task, Path(marks))
            yield batch.slice(half)
        striker.at_task(LAST_ROW.name)

    files = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(spec["files"])
    return files.repartition(2).mapInArrow(through, "id BIGINT")


def arm(spec: dict[str, Any], folder: Path) -> None:
    """Arm the strikes in turn, and watch for the files for which some of them wait."""
    checkpoint, roots = Path(spec["checkpoint"]), {"checkpoint": spec["checkpoint"], "sink": spec["place"]}
    for number, strike in enumerate(spec["strikes"], struck(folder)):
        before = commits(checkpoint)
        while commits(checkpoint) == before:
            time.sleep(POLL_S)
        there = set(_paths(roots)) if strike["hook"] == "file" else set()
        armed = {**strike, "number": number, "batch": len(commits(checkpoint))}
        partial = folder / "armed.partial"
        partial.write_text(json.dumps(armed))
        partial.rename(folder / ARMED)
        striker = Striker(str(folder))
        while struck(folder) <= number:
            if strike["hook"] == "file":
                for path in _paths(roots):
                    if path not in there:
                        there.add(path)
                        striker.at_file(path)
            time.sleep(POLL_S)


def commits(checkpoint: Path) -> frozenset[str]:
    """Return the micro-batches in Spark's commit log."""
    folder = checkpoint / "commits"
    return frozenset(name for name in os.listdir(folder) if name.isdigit()) if folder.is_dir() else frozenset()


def struck(folder: Path) -> int:
    """Return how many strikes happened."""
    return sum(name.startswith("struck-") for name in os.listdir(folder))


def _paths(roots: dict[str, str]) -> Iterator[str]:
    for name, root in roots.items():
        for parent, _, files in os.walk(root):
            for file in files:
                yield f"{name}/{os.path.relpath(os.path.join(parent, file), root)}"


def _straggle(task: TaskContext, marks: Path) -> None:
    """Let the first attempt wait until Spark has started a second one, which is then faster."""
    mark = marks / f"speculated-{task.stageId()}"
    if task.attemptNumber() > 0:
        mark.touch()
        return
    deadline = time.monotonic() + STRAGGLER_S
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
