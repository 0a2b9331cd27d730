"""Rows P9 and P10: scans of lineitem through Spark, natively and by `format("txlog")`."""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

PLANNED = (
    "a frame is planned when it is made: a look at the log's end, a plan in Python, and 20 to 60 calls into Java. "
    "Tried: no expression for each column, where 600 calls were made before. Parquet's side lists the files and "
    "reads a footer instead. The scan itself is Spark's own, and checks the checksums of pages, which Parquet's side "
    "does not by default."
)
SIDES = ("txlog, native", "Iceberg", "Delta", "Parquet")

SPECS = (
    Spec(
        row="P9",
        title="scans of lineitem through Spark",
        contestants=spark_sides("scans", SIDES, table="lineitem"),
        goals=tuple(
            Goal(of="txlog, native", figure=f"{name} s", versus="Parquet", at_most=1.05)
            for name in ("count", "sum", "filter", "all columns")
        ),
        floor=PLANNED,
        rounds=5,
    ),
    Spec(
        row="P9",
        title="scans of 336,776 flights through Spark",
        contestants=spark_sides("scans", SIDES, table="flights"),
        rounds=3,
    ),
    Spec(
        row="P10",
        title='scans of lineitem by format("txlog")',
        contestants=spark_sides("scans", ('format("txlog")', "Parquet"), table="lineitem"),
        floor=PLANNED,
        goals=tuple(
            Goal(of='format("txlog")', figure=f"{name} s", versus="Parquet", at_most=1.05)
            for name in ("all columns", "count")
        ),
        rounds=5,
    ),
)
