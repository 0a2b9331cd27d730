"""What becomes of a streaming query whose checkpoint is deleted? `python -m tests.kill.lost_checkpoint <sink>`

A query reads four files, one in each micro-batch. Its checkpoint is deleted, two more files come, and the query starts
again. It runs once with the same micro-batches, and once with two files in each, since all six wait now. txlog's sink
knows the query that wrote last, and refuses a different one until the user names where to continue. Delta treats the
new query as a different one, and writes everything again. Spark's file sink knows only batch numbers, and treats new
batches as old ones.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from pyspark_txlog import session
from tests.kill.sinks import SINKS, Sink

ROWS, BEFORE, AFTER = 100, 4, 2
CUTS = {"the same": 1, "other": 2}
"""Files in a micro-batch of the second run; the first run has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The error of the second run, and the rows after it."""

    said: str
    lost: int
    doubled: int


def main(name: str) -> None:
    print(f"{'checkpoint deleted':<20} {'cuts':<9} {'lost':>5} {'doubled':>8}  the second run", "─" * 77, sep="\n")
    for cuts, at_once in CUTS.items():
        seen = run_twice(SINKS[name](), at_once)
        print(f"{name:<20} {cuts:<9} {seen.lost:>5} {seen.doubled:>8}  {seen.said}", flush=True)
    print()


def run_twice(sink: Sink, at_once: int) -> Outcome:
    """Run the query, delete its checkpoint, and run it again with that many files in a micro-batch."""
    with tempfile.TemporaryDirectory(prefix="txlog-lost-") as place:
        folder = Path(place)
        files, target, checkpoint, strikes = (folder / part for part in ("files", "sink", "checkpoint", "strikes"))
        files.mkdir()
        strikes.mkdir()
        sink.prepare(target)
        spark = session("txlog lost checkpoint", config={"spark.driver.memory": "1g", **sink.config})
        said = "goes on"
        for count, files_a_batch in ((BEFORE, 1), (AFTER, at_once)):
            add(files, count)
            stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", files_a_batch)
            writer = sink.writer(stream.parquet(str(files)), target, strikes).trigger(availableNow=True)
            writer.option("transactional.id", "lost").option("checkpointLocation", str(checkpoint))
            try:
                writer.start().awaitTermination()
            except StreamingQueryException as error:
                # The line of txlog's own error, with its class first, as Spark passes it on.
                said = next((line for line in str(error).splitlines() if "Error: " in line), str(error))
            shutil.rmtree(checkpoint)
        found = Counter(row.id for row in sink.read(spark, target).collect())
        spark.stop()
    asked = range((BEFORE + AFTER) * ROWS)
    return Outcome(
        said=said, lost=sum(found[one] == 0 for one in asked), doubled=sum(max(found[one] - 1, 0) for one in asked)
    )


def add(files: Path, count: int) -> None:
    """Add that many files, each newer than the files before it."""
    first = len(list(files.iterdir()))
    for number in range(first, first + count):
        path = files / f"{number:03}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


if __name__ == "__main__":
    main(sys.argv[1])
