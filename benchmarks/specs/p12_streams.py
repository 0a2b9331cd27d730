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
FLOOR = (
    "Spark's own part is what the contestant noop takes. Above that, tasks pass the rows through Python, because only "
    "they know how many there are. Tried: Unix sockets instead of TCP, where each task waited 40 ms (190 to 140 ms for "
    "10,000 rows). Tried: up to 131,072 rows that the driver stores, where 10,000 were the limit (130 to 70 ms for a "
    "write of 100,000 rows)."
)

SPECS = (
    *(
        Spec(
            row="P12",
            title=f"micro-batch of {rows:,} rows into a sink",
            contestants=spark_sides("micro_batches", sinks, rows=rows, times=10, warm_up=3),
            goals=(Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=0.85),),
            floor=FLOOR,
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
            "source without Java code. Tried: Unix sockets instead of TCP, where each task waited 40 ms (152 to 127 "
            "ms), and no garbage collection of modules in the workers."
        ),
        goals=(Goal(of="txlog, native", figure="ms", versus="Iceberg", at_most=1.0),),
    ),
)
