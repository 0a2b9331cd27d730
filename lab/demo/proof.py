"""Did every row arrive exactly once, and is every transaction visible as a whole or not at all?

For each topic, Spark reads the rows back and compares their multiset with the source's: a SHA-256 over the names and
values of all columns of a row, counted. A missing row is lost, an extra row is doubled, so a row with one changed value
is both. A month that is visible only in part is torn. If rows contain the place that they came from, their order is
compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JSON = {
    # A null differs from a missing column, and the default format of timestamps ends at milliseconds.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The figures of one topic, in rows; `torn` in transactions (months)."""

    topic: str
    source: int
    read_committed: int
    lost: int
    doubled: int
    torn: int
    read_uncommitted: int
    aborted: int
    """Rows of aborted transactions that no merge has removed yet, by the topic's own indexes."""
    out_of_order: int | None = None
    """Rows that lie behind a later one of their partition; None if rows do not contain where they came from."""

    @property
    def hidden(self) -> int:
        """Rows in the log that read_committed does not show."""
        return self.read_uncommitted - self.read_committed

    @property
    def holds(self) -> bool:
        """Whether every row arrived once, and exactly the aborted rows are hidden."""
        return (
            not (self.lost or self.doubled or self.torn or self.out_of_order)
            and self.source == self.read_committed
            and self.hidden == self.aborted
        )


def prove(
    topic: str,
    source: DataFrame,
    committed: DataFrame,
    uncommitted: DataFrame,
    month: str,
    *,
    aborted: int = 0,
    out_of_order: int | None = None,
) -> Proof:
    """Compares what was written with what is read; `month` is an expression that gives a row's transaction."""
    expected = _counted(source, month, "expected")
    found = _counted(committed, month, "found")
    both = expected.join(found, ["month", "row"], "full_outer").na.fill(0, ["expected", "found"])
    months = both.groupBy("month").agg(
        sf.sum("expected").alias("expected"),
        sf.sum("found").alias("found"),
        sf.sum(sf.greatest(sf.col("expected") - sf.col("found"), sf.lit(0))).alias("lost"),
        sf.sum(sf.greatest(sf.col("found") - sf.col("expected"), sf.lit(0))).alias("doubled"),
    )
    sums = {name: sf.sum(name) for name in ("expected", "found", "lost", "doubled")}
    sums["torn"] = sf.count_if((sf.col("lost") > 0) & (sf.col("found") > 0))
    # Without any row a sum is null.
    total = months.agg(*(sf.coalesce(value, sf.lit(0)).alias(name) for name, value in sums.items())).first()
    assert total is not None
    return Proof(
        topic=topic,
        source=total["expected"],
        read_committed=total["found"],
        lost=total["lost"],
        doubled=total["doubled"],
        torn=total["torn"],
        read_uncommitted=uncommitted.count(),
        aborted=aborted,
        out_of_order=out_of_order,
    )


def count_out_of_order(rows: DataFrame, place: str) -> int:
    """Return how many rows are not in the order of the column `place`; rows have `_partition` and `_offset`."""
    before = sf.lag(place).over(Window.partitionBy("_partition").orderBy("_offset"))
    return rows.select((sf.col(place) <= before).alias("is_behind")).where("is_behind").count()


def _counted(rows: DataFrame, month: str, name: str) -> DataFrame:
    digest = sf.sha2(sf.to_json(sf.struct(*sorted(rows.columns)), _JSON), 256)
    return (
        rows.select(sf.expr(month).alias("month"), digest.alias("row"))
        .groupBy("month", "row")
        .agg(sf.count("*").alias(name))
    )
