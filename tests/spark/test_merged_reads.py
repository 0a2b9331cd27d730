"""Every way in which Spark reads a topic gives the same rows before and after a merge, sorted or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from pyspark_txlog import TxLog
from tests.spark.conftest import ORDERS, Log, to_df
from tests.spark.limits import at_most
from tests.spark.streaming import Query
from txlog.client.reading import read_session
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partition

pytestmark = pytest.mark.spark
COLUMNS = ["order_id", "amount", "carrier", "_partition", "_offset", "_timestamp"]
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
SORTED = FileLayout(sort=("carrier", "order_id"), bloom=("order_id",))
Rows = list[tuple[Any, ...]]


def fill(log: Log, seed: int) -> None:
    """Commit and abort transactions of both kinds, with few rows and with thousands."""
    dice = random.Random(seed)
    with (
        log.store.producer(f"eager{seed}", linger_ms=0, staged=False) as eager,
        log.store.producer(f"staged{seed}", staged=True) as staged,
    ):
        for _ in range(14):
            producer = dice.choice([eager, staged])
            producer.begin_transaction()
            for _ in range(dice.randrange(1, 3)):
                count = dice.choice([1, 3, 3000])
                ids = [dice.randrange(10**6) for _ in range(count)]
                rows: dict[str, list[Any]] = {
                    "order_id": ids,
                    "amount": [each / 2 for each in ids],
                    "carrier": [f"c{each % 9}" for each in ids],
                }
                producer.send("orders", pa.table(rows, ORDERS), partition=dice.randrange(2))
            producer.flush()
            if dice.random() < 0.3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def collected(frame: DataFrame) -> Rows:
    return sorted(tuple(row) for row in frame.select(*COLUMNS).collect())


def merge(log: Log) -> None:
    """Merge one partition in the order of offsets, and the other one sorted within its row groups."""
    session = read_session(log.store.runtime)
    for tp, layout in zip(PARTITIONS, (FileLayout(), SORTED), strict=True):
        assert merge_partition(log.store.runtime, session, tp, MergePolicy(), layout=layout)


def test_all_roads(log: Log) -> None:
    log.create(segment_batches="3")
    fill(log, 1)
    rows = collected(log.read("orders", columns=",".join(COLUMNS)))
    by_time = sorted({row[-1] for row in rows})
    moments = [int(by_time[len(by_time) // 2].timestamp() * 1000)]
    dice = random.Random(1)
    ends = {tp: max(row[4] for row in rows if row[3] == tp.partition) for tp in PARTITIONS}
    starts = {str(tp.partition): dice.randrange(ends[tp]) for tp in PARTITIONS}
    stops = {key: dice.randrange(start, ends[TopicPartition("orders", int(key))] + 1) for key, start in starts.items()}
    roads: dict[str, Callable[[], Rows]] = {
        "all": lambda: collected(log.read("orders", columns=",".join(COLUMNS))),
        "few tasks": lambda: collected(log.read("orders", columns=",".join(COLUMNS), minPartitions=7)),
        "offsets": lambda: collected(
            log.read(
                "orders",
                columns=",".join(COLUMNS),
                startingOffsets=_json(starts),
                endingOffsets=_json(stops),
            )
        ),
        "where": lambda: collected(
            log.read("orders", columns=",".join(COLUMNS), where="carrier = 'c3' AND amount < 100000")
        ),
        "stream": lambda: _streamed(log),
    }
    for number, moment in enumerate(moments):
        roads[f"from time {number}"] = lambda moment=moment: collected(  # type: ignore[misc]
            log.read(
                "orders",
                columns=",".join(COLUMNS),
                startingTimestamp=moment,
                startingOffsetsByTimestampStrategy="latest",
            )
        )
        roads[f"until time {number}"] = lambda moment=moment: collected(  # type: ignore[misc]
            log.read("orders", columns=",".join(COLUMNS), endingTimestamp=moment)
        )
    with TxLog(log.spark, log.url, {"fsync": False}) as native:
        table = native.table("orders")
        roads["native"] = lambda: collected(to_df(table, columns=COLUMNS))
        roads["native offsets"] = lambda: collected(
            to_df(table, columns=COLUMNS, starting_offsets={"orders": starts}, ending_offsets={"orders": stops})
        )
        roads["native where"] = lambda: collected(
            to_df(table, columns=COLUMNS).where("carrier = 'c3' AND order_id < 200000")
        )
        before = {name: read() for name, read in roads.items()}
        for number, moment in enumerate(moments):
            millis = [(int(row[-1].timestamp() * 1000) >= moment, row) for row in rows]
            assert before[f"from time {number}"] == [row for newer, row in millis if newer]
            assert before[f"until time {number}"] == [row for newer, row in millis if not newer]
        merge(log)
        after = {name: read() for name, read in roads.items()}
    assert [name for name in roads if after[name] != before[name]] == []
    assert before["all"] == before["native"] == before["few tasks"] == before["stream"] == rows


def test_spark_skips_row_groups_by_their_bloom_filters(log: Log) -> None:
    """Use a column whose bounds do not help, with more distinct values than a dictionary holds, in a topic without
    floats."""
    log.create("codes", pa.schema([pa.field("code", pa.string())]), segment_batches="1")
    numbers = list(range(0, 300_000, 2))
    random.Random(1).shuffle(numbers)
    plain, filtered = (TopicPartition("codes", number) for number in range(2))
    with log.store.producer(linger_ms=0) as producer:
        for first in range(0, len(numbers), 30_000):
            codes = pa.table({"code": [f"{each:020}" for each in numbers[first : first + 30_000]]})
            for tp in (plain, filtered):
                producer.send("codes", codes, partition=tp.partition).result()
    session = read_session(log.store.runtime)
    for tp, layout in ((plain, FileLayout()), (filtered, FileLayout(bloom=("code",)))):
        assert merge_partition(log.store.runtime, session, tp, MergePolicy(), layout=layout)
    with TxLog(log.spark, log.url, {"fsync": False}) as native:

        def scanned(tp: TopicPartition, number: int) -> tuple[int, int]:
            """Return how many rows Spark's scans of one partition returned, and how many of them match."""
            starts = {str(each.partition): 0 if each == tp else len(numbers) for each in (plain, filtered)}
            frame = to_df(native.table("codes"), starting_offsets={"codes": starts}).where(f"code = '{number:020}'")
            found = len(frame.collect())
            leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
            scans = [leaves.apply(at).metrics() for at in range(leaves.size())]
            return sum(each.apply("numOutputRows").value() for each in scans), found

        # The last batch is not sealed yet, and its file is small enough for a dictionary.
        assert scanned(plain, 70_001) == (120_000, 0)
        assert scanned(filtered, 70_001) == (0, 0)
        assert scanned(filtered, numbers[0]) == (120_000, 1)


def _json(offsets: dict[str, int]) -> str:
    return str({"orders": offsets}).replace("'", '"')


def _streamed(log: Log) -> Rows:
    limits: dict[str, Any] = {name: str(limit) for name, limit in at_most(2500).items()}
    query = Query(log.store, columns=",".join(COLUMNS), **limits)
    found: Rows = []
    while query.next():
        for row in query.read(query.plan()):
            # Spark returns local times without a zone.
            local = row["_timestamp"].astimezone().replace(tzinfo=None)
            found.append((*(row[name] for name in COLUMNS[:-1]), local))
        query.done()
    return sorted(found)
