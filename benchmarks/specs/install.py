"""Row install: `format("txlog")` after `pyspark_txlog.install()`, beside the same work through `TxLog`.

Both use Spark's own Parquet reader and writer. The difference is what `load` and `save` do around them.
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
        title="load() beside to_dfs()",
        contestants=spark_sides("scans", (FORMAT, NATIVE), table="lineitem"),
        goals=_goals("count s", "sum s", "all columns s"),
        rounds=ROUNDS,
        warm_up=2,
        floor=(
            "the plans are the same. A load() also reads its options and opens the store, and an open TxLog does not: "
            "about 3 ms, which a count of 53 ms shows and the other scans do not."
        ),
    ),
    Spec(
        row="install",
        title="save() of 100 rows beside a transaction",
        contestants=spark_sides("appends", (FORMAT, NATIVE), rows=100, times=40),
        goals=_goals("ms"),
        rounds=ROUNDS,
        warm_up=2,
        floor=(
            "each save() is a new writer. It opens the store, reads the tails of the logs and fences the writer "
            "before it. A TxLog does this once, and stays open. In 150 pairs a save() took 13 ms longer. The writer "
            "begins after 4.6 ms. Its commit takes 6.0 ms more, because it reads the tails of its partitions. The "
            "options in Spark's object take 1.2 ms. Tried: those options in 8 calls into Java, where a look at each "
            "option took about 15 ms in all. Tried: no numbers of tasks for a frame of one task, which took more "
            "than half of the time above a transaction. Not tried: one open store for all writes of a process. A store "
            "that was created again between two writes would then be an error."
        ),
    ),
    Spec(
        row="install",
        title="save() of lineitem beside a transaction",
        contestants=spark_sides("bulk_write", (FORMAT, NATIVE), table="lineitem"),
        goals=_goals("s"),
        rounds=ROUNDS,
    ),
)
