"""Is every row that went in there, once, and is no part of a transaction visible without the rest?

Per topic, the multiset of rows read back by Spark is compared with the source's: a SHA-256 over every column of a row,
counted. A row missing is lost, a row too many is doubled; a month of which a part is visible, and a part is not, is torn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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

    @property
    def hidden(self) -> int:
        """Rows in the log that read_committed hides: those of aborted transactions."""
        return self.read_uncommitted - self.read_committed

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.torn) and self.source == self.read_committed


def prove(topic: str, source: DataFrame, committed: DataFrame, uncommitted: DataFrame, month: str) -> Proof:
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
    total = months.agg(
        sf.sum("expected").alias("expected"),
        sf.sum("found").alias("found"),
        sf.sum("lost").alias("lost"),
        sf.sum("doubled").alias("doubled"),
        sf.sum(sf.when((sf.col("lost") > 0) & (sf.col("found") > 0), 1).otherwise(0)).alias("torn"),
    ).first()
    assert total is not None
    return Proof(
        topic=topic,
        source=total["expected"],
        read_committed=total["found"],
        lost=total["lost"],
        doubled=total["doubled"],
        torn=total["torn"],
        read_uncommitted=uncommitted.count(),
    )


def _counted(rows: DataFrame, month: str, name: str) -> DataFrame:
    digest = sf.sha2(sf.to_json(sf.struct(*sorted(rows.columns)), {"ignoreNullFields": "false"}), 256)
    return (
        rows.select(sf.expr(month).alias("month"), digest.alias("row"))
        .groupBy("month", "row")
        .agg(sf.count("*").alias(name))
    )
