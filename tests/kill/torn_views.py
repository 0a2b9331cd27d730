"""`python -m tests.kill.torn_views`: does a reader that polls three tables see only a part of a write to all three?

A writer puts a row with the commit's number into each of three tables, again and again, in one transaction if the
format has one. Meanwhile a reader makes a frame of each table and then reads the rows. If the three show different
commits, the reader saw a part of one: a torn view.

Delta commits one table at a time, and three reads of txlog's topics end where each topic ends. A snapshot is one cut.
Only the snapshot decides the exit status: it is 1 if one of its views is torn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import txlog
from pyspark_txlog import TxLog, session
from tests.kill.rivals import DeltaSink

TABLES = ("orders", "items", "audit")
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
COLUMNS = "n BIGINT"

Write = Callable[[int], None]
"""Commits the row of that number to all tables."""
Look = Callable[[], Sequence[DataFrame]]
"""Returns a frame of each table, as they are now."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """The counts of the reader."""

    looks: int = 0
    torn: int = 0
    midway: int = 0
    """Looks that saw some commits, and not all. The other looks prove nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill.torn_views", description=__doc__, allow_abbrev=False)
    parser.add_argument("--commits", type=int, default=40, help="over three tables each")
    commits = parser.parse_args().commits
    spark = session("txlog torn views", config={"spark.driver.memory": "1g", **DeltaSink().config})
    ways: dict[str, Callable[[SparkSession, str], AbstractContextManager[tuple[Write, Look]]]] = {
        "delta, three tables": delta_tables,
        "txlog, three reads": partial(txlog_topics, snapshot=False),
        "txlog, a snapshot": partial(txlog_topics, snapshot=True),
    }
    print(f"{'':<22} {'commits':>8} {'looks':>6} {'midway':>7} {'torn':>5}", "─" * 52, sep="\n", flush=True)
    found = {}
    for name, way in ways.items():
        with tempfile.TemporaryDirectory(prefix="txlog-torn-") as folder, way(spark, folder) as (write, look):
            seen = found[name] = poll(write, look, commits)
        print(f"{name:<22} {commits:>8} {seen.looks:>6} {seen.midway:>7} {seen.torn:>5}", flush=True)
    spark.stop()
    judged = found["txlog, a snapshot"]
    return 1 if judged.torn or not judged.midway else 0


def poll(write: Write, look: Look, commits: int) -> Seen:
    """Read again and again while another thread commits. Raise what the writer raised."""
    failed: list[BaseException] = []

    def commit() -> None:
        try:
            for number in range(1, commits):
                write(number)
        except BaseException as error:
            failed.append(error)

    # The tables exist, with a first commit.
    write(0)
    writer = threading.Thread(target=commit)
    writer.start()
    seen = Seen()
    while writer.is_alive():
        views = [frozenset(row.n for row in frame.collect()) for frame in look()]
        seen.looks += 1
        seen.torn += len(set(views)) > 1
        seen.midway += 0 < min(map(len, views)) < commits
    if failed:
        raise failed[0]
    assert [len(frame.collect()) for frame in look()] == [commits] * len(TABLES)
    return seen


@contextmanager
def delta_tables(spark: SparkSession, place: str) -> Iterator[tuple[Write, Look]]:
    """Make three Delta tables, each with its own log. A frame shows the version that existed when it was made."""
    paths = [str(Path(place) / table) for table in TABLES]

    def write(number: int) -> None:
        for path in paths:
            row(spark, number).write.format("delta").mode("append").save(path)

    yield write, lambda: [spark.read.format("delta").load(path) for path in paths]


@contextmanager
def txlog_topics(spark: SparkSession, place: str, *, snapshot: bool) -> Iterator[tuple[Write, Look]]:
    """Make three topics of one store, with a transaction over all of them."""
    with txlog.open(place) as store:
        for topic in TABLES:
            store.create_topic(topic, SCHEMA, partitions=2)
    with TxLog(spark, place) as log:

        def write(number: int) -> None:
            with log.transaction("writer", version=number) as txn:
                for topic in TABLES:
                    txn.write(row(spark, number), topic)

        def look() -> Sequence[DataFrame]:
            if snapshot:
                return list(log.snapshot(*TABLES).to_dfs().values())
            return [log.to_dfs(topic)[topic] for topic in TABLES]

        yield write, look


def row(spark: SparkSession, number: int) -> DataFrame:
    """Return the row that is committed to each table."""
    return spark.createDataFrame([(number,)], COLUMNS)


if __name__ == "__main__":
    sys.exit(main())
