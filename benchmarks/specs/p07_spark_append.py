"""Row P7: appends of 100 rows through Spark, one commit each; also of a frame whose plan does not show its size."""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

GOALS = (
    Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=0.4),
    Goal(of='format("txlog")', figure="ms", versus="Iceberg", at_most=1.0),
)

SPECS = (
    Spec(
        row="P7",
        title="append of 100 rows through Spark",
        contestants=spark_sides(
            "appends",
            ("txlog, native", 'format("txlog")', "txlog, native, fsync", "Iceberg", "Delta", "Delta, tuned", "Parquet"),
            rows=100,
            times=20,
        ),
        goals=GOALS,
        rounds=3,
        warm_up=2,
    ),
    Spec(
        row="P7",
        title="append of 100 rows of a filtered file through Spark",
        contestants=spark_sides(
            "appends_of_a_file",
            ("txlog, native", 'format("txlog")', "Iceberg", "Delta, tuned", "Parquet"),
            rows=100,
            times=20,
        ),
        goals=GOALS,
        rounds=3,
        warm_up=2,
        floor=(
            "Spark's plan does not show how many rows there are, and it must run once. So a task passes the rows "
            "through Python, which can still write files. Of 67 ms the job takes 50: 20 to 30 for the frame alone, "
            "the rest until Spark has planned the step in Python and sent the rows there and back. The worker itself "
            "computes for 2 ms. Tried: Unix sockets instead of TCP, where each task waited 40 ms (111 to 73 ms), and "
            "no new names for columns that Spark finds anyway. Tried: Spark's own writer, which needs twice as long."
        ),
    ),
)
