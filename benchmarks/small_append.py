"""How much does a small append with inline rows cost, beside one that writes a file for each partition?

`make bench-append` (or `python -m benchmarks.small_append --help`). It runs `log.table(t).append(frame, ...)` for two
topics in turn, one of them with `inline.max.bytes` 0. Compare the rows of one run with each other. The results are
medians, and the requests of one append.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

import txlog
from pyspark_txlog import TxLog, session
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore, Requests

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64())])
TOPICS = {"in the commit": None, "in files": "0"}
WARM_UP = 3


def main(
    rows: Annotated[int, typer.Option(help="Rows per append.")] = 100,
    partitions: Annotated[int, typer.Option(help="Partitions that get rows, by key.")] = 2,
    appends: Annotated[int, typer.Option(help="Measured appends per topic.")] = 30,
) -> None:
    """Measure and print a table."""
    spark = session("txlog append benchmark")
    frame = spark.range(rows).selectExpr("id", "id * 0.5D AS value")
    took: dict[str, list[float]] = {name: [] for name in TOPICS}
    cost: dict[str, Requests] = {}
    with tempfile.TemporaryDirectory(prefix="txlog-bench-append-") as url:
        with txlog.open(url) as store:
            for name, limit in TOPICS.items():
                config = {"key.columns": "id"} | ({} if limit is None else {"inline.max.bytes": limit})
                store.create_topic(name.replace(" ", "-"), SCHEMA, partitions=partitions, config=config)
        counting = CountingStore(open_object_store(url))
        with TxLog(spark, url, object_store=counting) as log:
            for _ in range(WARM_UP + appends):
                for name in TOPICS:
                    before, started = counting.requests(), time.perf_counter()
                    log.table(name.replace(" ", "-")).append(frame, transactional_id=name)
                    took[name].append((time.perf_counter() - started) * 1000)
                    cost[name] = counting.requests() - before
    table = Table(title=f"an append of {rows:,} rows to {partitions} partitions, p50 ms of {appends}")
    for column in ("rows", "ms", "p95", "requests"):
        table.add_column(column, justify="left" if column in ("rows", "requests") else "right")
    for name, seen in took.items():
        settled = seen[WARM_UP:]
        p95 = statistics.quantiles(settled, n=20)[-1]
        table.add_row(name, f"{statistics.median(settled):.0f}", f"{p95:.0f}", str(cost[name]))
    Console(file=sys.stdout, width=120).print(table)
    spark.stop()


if __name__ == "__main__":
    typer.run(main)
