"""`python -m tests.kill.lost_checkpoint <sink>`: a query reads four files, its checkpoint is deleted, two files more come, it starts again.

What is there afterwards, and what did the start say? The second run finds more at once, so it cuts its micro-batches otherwise:
two files each, and one before. txlog's sink knows the query that wrote last, and refuses another one. Delta takes the new query
for another one, and writes everything again; Spark's file sink knows numbers of batches only, and takes new ones for old.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from pyspark_txlog import session
from tests.kill.sinks import SINKS

ROWS, BEFORE, AFTER = 100, 4, 2


def main(name: str) -> None:
    sink = SINKS[name]()
    with tempfile.TemporaryDirectory(prefix="txlog-lost-") as place:
        folder = Path(place)
        files, target, checkpoint, strikes = (folder / part for part in ("files", "sink", "checkpoint", "strikes"))
        files.mkdir()
        strikes.mkdir()
        sink.prepare(target)
        spark = session("txlog lost checkpoint", config={"spark.driver.memory": "1g", **sink.config})
        said = "goes on"
        for count, at_once in ((BEFORE, 1), (AFTER, 2)):
            add(files, count)
            stream = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", at_once).parquet(str(files))
            writer = sink.writer(stream, target, strikes).trigger(availableNow=True)
            try:
                writer.option("transactional.id", "lost").option(
                    "checkpointLocation", str(checkpoint)
                ).start().awaitTermination()
            except StreamingQueryException as error:
                said = next((line for line in str(error).splitlines() if "Error: " in line), str(error))
            shutil.rmtree(checkpoint)
        found = Counter(row.id for row in sink.read(spark, target).collect())
        spark.stop()
    asked = range((BEFORE + AFTER) * ROWS)
    print(
        json.dumps(
            {
                "sink": name,
                "start": said[:160],
                "lost": sum(found[one] == 0 for one in asked),
                "doubled": sum(max(found[one] - 1, 0) for one in asked),
            }
        )
    )


def add(files: Path, count: int) -> None:
    """So many files more, each of them newer than those before it."""
    first = len(list(files.iterdir()))
    for number in range(first, first + count):
        path = files / f"{number:03}.parquet"
        pq.write_table(pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}), path)
        os.utime(path, (1_700_000_000 + number,) * 2)


if __name__ == "__main__":
    main(sys.argv[1])
