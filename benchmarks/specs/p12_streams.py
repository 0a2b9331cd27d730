"""Rows P12 and P13: micro-batches of Spark into txlog, and out of it."""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

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

SPECS = (
    Spec(
        row="P12",
        title="micro-batch of 10,000 rows into a sink",
        contestants=spark_sides("micro_batches", SINKS, rows=10_000, times=10, warm_up=3),
        goals=(Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=0.85),),
        rounds=3,
        warm_up=0,
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
