"""Rows P12 and P13: micro-batches of Spark into txlog, and out of it."""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

FEW = ("txlog, native", 'format("txlog")', "Iceberg", "Delta, tuned", "Parquet")
SINKS = (
    "txlog, native",
    'format("txlog")',
    "txlog, Python sink",
    "txlog, native, fsync",
    "Iceberg",
    "Delta",
    "Delta, tuned",
    "Parquet",
    "noop",
)

SIZES = {1_000: FEW, 10_000: SINKS, 12_000: FEW, 100_000: FEW}
"""Rows of a micro-batch: a sink may do small ones in another way. Not all sinks are needed to see that."""

SPECS = (
    *(
        Spec(
            row="P12",
            title=f"micro-batch of {rows:,} rows into a sink",
            contestants=spark_sides("micro_batches", sinks, rows=rows, times=10, warm_up=3),
            goals=(Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=0.85),),
            rounds=3,
            warm_up=0,
        )
        for rows, sinks in SIZES.items()
    ),
    Spec(
        row="P13",
        title="micro-batch of a stream that follows small commits",
        contestants=spark_sides("stream_source", ("txlog, native", "Iceberg", "Delta"), rows=100, times=10),
        floor=(
            "a stream out of txlog goes through Spark's Python data source. A micro-batch costs two calls "
            "into a Python process, and a Python worker reads its rows. Spark has no hook for a native "
            "source without Java code."
        ),
        goals=(Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=1.0),),
    ),
)
