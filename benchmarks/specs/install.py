"""Row install: `format("txlog")` after `pyspark_txlog.install()`, beside the same work through `TxLog`.

Both use Spark's own Parquet reader and writer. The difference is what `load`, `save` and `start` do around them.
"""

from __future__ import annotations

from benchmarks.harness import Goal, Spec
from benchmarks.sides import spark_sides

MOST = 1.05
FORMAT, NATIVE = 'format("txlog"), same id', "txlog, native"
"""Writes have the same transactional.id on both sides."""


def _goals(*figures: str) -> tuple[Goal, ...]:
    return tuple(Goal(of=FORMAT, figure=figure, versus=NATIVE, at_most=MOST) for figure in figures)


# Rounds that are the same whatever the run has: the bound is 5 %.
ROUNDS = 5

SPECS = (
    Spec(
        row="install",
        title="load() beside to_df()",
        contestants=spark_sides("scans", (FORMAT, NATIVE), table="lineitem"),
        goals=_goals("count s", "sum s", "all columns s"),
        rounds=ROUNDS,
        warm_up=2,
    ),
    Spec(
        row="install",
        title="save() of 100 rows beside append()",
        contestants=spark_sides("appends", (FORMAT, NATIVE), rows=100, times=40),
        goals=_goals("ms"),
        rounds=ROUNDS,
        warm_up=2,
        floor=(
            "each save() is a new writer. It opens the store, reads the log's tail (about 50 records) and fences the writer before it. A TxLog does this "
            "once, and stays open. Its append also sends 25 calls into Java, and a save() 75: 24 of them number the rows' tasks. Tried: the options of a writer "
            "in 8 calls, where a look at each option took about 15 ms in all."
        ),
    ),
    Spec(
        row="install",
        title="save() of lineitem beside append()",
        contestants=spark_sides("bulk_write", (FORMAT, NATIVE), table="lineitem"),
        goals=_goals("s"),
        rounds=ROUNDS,
    ),
    Spec(
        row="install",
        title="start(), a micro-batch of 10,000 rows, beside append_stream()",
        contestants=spark_sides("micro_batches", (FORMAT, NATIVE), rows=10_000, times=20, warm_up=3),
        goals=_goals("ms"),
        rounds=ROUNDS,
        floor=(
            "both take the same road to the log, and start() is 18 ms slower a micro-batch. Not yet measured: where those 18 ms go. A likely place is the "
            "batch that Spark gives to the sink, which is looked at again for each micro-batch."
        ),
    ),
)
