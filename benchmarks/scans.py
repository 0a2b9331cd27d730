"""What does a scan of a topic cost on either road, next to Spark reading the same Parquet files without a log?

`make bench-scans` (or `python -m benchmarks.scans --help`). Every figure includes the creation of the DataFrame,
because planning is a part of the read. The roads alternate round by round, so that a change of the machine's speed
affects them equally. Compare the columns of one row, never two runs. Plain Parquet has no transactions, no offsets and
no conditions on files, so some of its fields are empty.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyspark
import typer
from pyspark.sql import DataFrame, functions
from rich.console import Console
from rich.progress import track
from rich.table import Table

import pyspark_txlog
import txlog
from pyspark_txlog import TxLog

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("country", pa.string()),
        pa.field("customer", pa.string()),
        pa.field("note", pa.string()),
    ]
)
ROADS = ("format", "to_df", "parquet")


def main(
    rows: Annotated[int, typer.Option(help="Rows in the topic.")] = 4_000_000,
    files: Annotated[int, typer.Option(help="Files, of equal size, one transaction each.")] = 16,
    rounds: Annotated[int, typer.Option(help="Measurements of each case, after one that does not count.")] = 5,
    master: Annotated[str, typer.Option(help="Spark's master.")] = "local[2]",
    output: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Measure scans in seconds: format("txlog"), to_df, and plain Parquet of the same files."""
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "log")
        _write(url, rows, files)
        spark = pyspark_txlog.session("txlog bench", master=master)
        with TxLog(spark, url) as log:
            works = _works(log, rows)
            seconds: dict[tuple[str, str], list[float]] = {}
            answers: dict[str, set[Any]] = {}
            for number in track(range(rounds + 1), "measuring", console=Console(stderr=True)):
                for work, roads in works.items():
                    for road, run in roads.items():
                        start = time.perf_counter()
                        answer = run()
                        taken = time.perf_counter() - start
                        answers.setdefault(work, set()).add(answer)
                        if number:
                            seconds.setdefault((work, road), []).append(taken)
        spark.stop()
    medians = {case: statistics.median(taken) for case, taken in seconds.items()}
    _show(medians, works, rows, files, rounds)
    if output is not None:
        about = {"python": platform.python_version(), "pyspark": pyspark.__version__, "cpus": os.cpu_count()}
        figures = [{"work": work, "road": road, "seconds": value} for (work, road), value in medians.items()]
        output.write_text(
            json.dumps({"about": about, "rows": rows, "files": files, "median": figures}, indent=2) + "\n"
        )
    if any(len(found) != 1 for found in answers.values()):
        print(f"the roads do not agree: {answers}", file=sys.stderr)
        raise typer.Exit(1)


def _works(log: TxLog, rows: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return the measured calls by road. Each answer is compared with the other roads' answers."""
    spark = log.spark
    paths = [f"file://{path}" for path in sorted(Path(log.url.removeprefix("file://")).glob("orders/*/rows/*.parquet"))]
    ddl = "order_id long, amount double, country string, customer string, note string"

    def load(**options: str) -> DataFrame:
        return spark.read.format("txlog").option("subscribe", "orders").options(**options).load(log.url)

    def native(**options: object) -> DataFrame:
        return log.table("orders").to_df(**options)

    def plain() -> DataFrame:
        return spark.read.schema(ddl).parquet(*paths)

    def all_columns(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def total(frame: DataFrame, column: str) -> float:
        return float(frame.agg(functions.sum(column)).first()[0])

    few = f"order_id >= {rows - rows // 100}"
    return {
        "count": {
            "format": lambda: load(columns="order_id").count(),
            "to_df": lambda: native().count(),
            "parquet": lambda: plain().count(),
        },
        "sum of one column": {
            "format": lambda: total(load(columns="order_id"), "order_id"),
            "to_df": lambda: total(native(), "order_id"),
            "parquet": lambda: total(plain(), "order_id"),
        },
        "all columns": {
            "format": lambda: all_columns(load()),
            "to_df": lambda: all_columns(native()),
            "parquet": lambda: all_columns(plain()),
        },
        "all columns and the place in the log": {
            "format": lambda: all_columns(load(columns="*,_partition,_offset,_timestamp")),
            "to_df": lambda: all_columns(native(columns="*,_partition,_offset,_timestamp")),
        },
        "one row in a hundred, by filter": {
            "format": lambda: load(columns="order_id").where(few).count(),
            "to_df": lambda: native().where(few).count(),
            "parquet": lambda: plain().where(few).count(),
        },
        "one row in a hundred, by where=": {
            "format": lambda: load(columns="order_id", where=few).count(),
            "to_df": lambda: native(where=few).count(),
        },
    }


def _write(url: str, rows: int, files: int) -> None:
    random = np.random.default_rng(7)
    each = rows // files
    with txlog.open(url, storage_options={"fsync": False}) as store:
        store.create_topic("orders", SCHEMA, 2)
        with store.producer("bench", batch_size=2**31 - 1) as producer:
            for number in track(range(files), "writing", console=Console(stderr=True)):
                ids = np.arange(number * each, (number + 1) * each)
                table = pa.table(
                    {
                        "order_id": ids,
                        "amount": random.normal(100, 30, each).round(2),
                        "country": pa.array(["FR", "DE", "US", "JP"]).take(pa.array(random.integers(0, 4, each))),
                        "customer": pa.array([f"customer {value}" for value in random.integers(0, 100_000, each)]),
                        "note": pa.array([f"{value:x}" for value in random.integers(0, 2**62, each)]),
                    },
                    schema=SCHEMA,
                )
                with producer.transaction():
                    producer.send("orders", table, partition=number % 2)


def _show(medians: dict[tuple[str, str], float], works: dict[str, Any], rows: int, files: int, rounds: int) -> None:
    table = Table(title=f"{rows:,} rows in {files} files, median seconds of {rounds}", title_justify="left")
    table.add_column("")
    for road in ('format("txlog")', "to_df", "spark.read.parquet"):
        table.add_column(road, justify="right")
    for work in works:
        table.add_row(work, *(f"{medians[work, road]:.2f}" if (work, road) in medians else "" for road in ROADS))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
