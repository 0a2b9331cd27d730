"""Rows P9 and P10: scans of lineitem through Spark, natively and by `format("txlog")`."""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

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
    ),
    Spec(
        row="P9",
        title="scans of 336,776 flights through Spark",
        contestants=spark_sides("scans", SIDES, table="flights"),
    ),
    Spec(
        row="P10",
        title='scans of lineitem by format("txlog")',
        contestants=spark_sides("scans", ('format("txlog")', "Parquet"), table="lineitem"),
        floor=(
            "a frame is planned when it is made: a look at the log's end, and a plan in Python. By the difference to Parquet that is 0.01 to "
            "0.04 s, a third of a count. The scan of all columns is Spark's own."
        ),
        goals=tuple(
            Goal(of='format("txlog")', figure=f"{name} s", versus="Parquet", at_most=1.05)
            for name in ("all columns", "count")
        ),
        rounds=3,
    ),
)
