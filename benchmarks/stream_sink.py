"""How many milliseconds does a micro-batch take through the streaming sink?

`make bench-stream` (or `python -m benchmarks.stream_sink --help`). The same query runs into `noop`, into Spark's
Parquet file sink and into txlog. They alternate round by round, so that a change of the machine's speed affects all
equally. Compare the rows of one run with each other, never two runs. The results are medians of Spark's own reports of
micro-batches, without those at the start of a round. At the end the query runs once more with a store that counts the
requests of a micro-batch.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.table import Table

import txlog
from benchmarks import counted_sink
from pyspark_txlog import session

SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
SINKS = ("noop", "parquet", "txlog")
COUNTED, COUNTS = "txlog-counting", "counts.jsonl"
WARM_UP = 3
LIMIT_S = 600


def main(
    rows: Annotated[int, typer.Option(help="Rows per micro-batch.")] = 10_000,
    batches: Annotated[int, typer.Option(help="Measured micro-batches per sink and round.")] = 15,
    rounds: int = 3,
    output: Annotated[Path | None, typer.Option(help="Write the figures as JSON, too.")] = None,
) -> None:
    """Measure and print a table."""
    spark = session("txlog stream benchmark")
    # A query is always stopped in the middle of a micro-batch, which Spark logs as an error.
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, dict[str, list[int]]] = {sink: defaultdict(list) for sink in SINKS}
    with tempfile.TemporaryDirectory(prefix="txlog-bench-stream-") as folder:
        with txlog.open(f"{folder}/txlog") as store:
            store.create_topic("out", SCHEMA, partitions=2)
        for _ in range(rounds):
            for sink in SINKS:
                measure(spark, partial(start, sink=sink, folder=Path(folder)), rows, batches, found[sink])
        counted_sink.register(spark)
        measure(spark, partial(start, sink=COUNTED, folder=Path(folder)), rows, batches, defaultdict(list))
        counts = counted_sink.medians(Path(folder) / COUNTS)
    table = Table(title=f"a micro-batch of {rows:,} rows, p50 ms of {rounds * batches}")
    for column in ("sink", "trigger", "addBatch", "p95 of trigger"):
        table.add_column(column, justify="left" if column == "sink" else "right")
    for sink, seen in found.items():
        p95 = statistics.quantiles(seen["triggerExecution"], n=20)[-1]
        medians = (statistics.median(seen[key]) for key in ("triggerExecution", "addBatch"))
        table.add_row(sink, *(f"{value:.0f}" for value in (*medians, p95)))
    console = Console(file=sys.stdout)
    console.print(table)
    for step, seen_requests in counts.items():
        asked = ", ".join(f"{value:.0f} {name}" for name, value in seen_requests.items() if name != "ms")
        console.print(f"{step}: {seen_requests['ms']:.1f} ms; {asked}")
    if output is not None:
        output.write_text(json.dumps({"rows": rows, "durations_ms": found, "requests": counts}, indent=1) + "\n")
    spark.stop()


def measure(
    spark: SparkSession,
    start: Callable[[DataFrame], StreamingQuery],
    rows: int,
    batches: int,
    found: dict[str, list[int]],
) -> None:
    """Run one round of one sink, with Spark's milliseconds of each micro-batch in `found`; the query resumes its checkpoint."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    query = start(source)
    deadline = time.monotonic() + LIMIT_S
    try:
        while len(query.recentProgress) < WARM_UP + batches:
            if (failed := query.exception()) is not None:
                raise failed
            if time.monotonic() > deadline:
                raise TimeoutError(f"{query.id}: {len(query.recentProgress)} micro-batches in {LIMIT_S} s")
            time.sleep(0.05)
        measured = [p for p in query.recentProgress if p.numInputRows == rows][WARM_UP : WARM_UP + batches]
    finally:
        query.stop()
    for progress in measured:
        for key, duration_ms in progress.durationMs.items():
            found[key].append(duration_ms)


def start(source: DataFrame, *, sink: str, folder: Path) -> StreamingQuery:
    """Start the query into that sink."""
    return writer(source, sink, folder).option("checkpointLocation", f"{folder}/checkpoint-{sink}").start()


def writer(source: DataFrame, sink: str, folder: Path) -> DataStreamWriter:
    """Return the write, without its checkpoint."""
    if sink == "txlog":
        return source.writeStream.format("txlog").option("topic", "out").option("path", f"{folder}/txlog")
    if sink == COUNTED:
        counted = source.writeStream.format(COUNTED).option("topic", "out").option("path", f"{folder}/txlog")
        return counted.option("counts.file", f"{folder}/{COUNTS}")
    return source.writeStream.format(sink).option("path", f"{folder}/{sink}")


if __name__ == "__main__":
    typer.run(main)
