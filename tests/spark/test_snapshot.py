"""A snapshot over three topics shows each transaction whole to a reader that polls while the transactions commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TxLog
from tests.spark.conftest import Log, rows
from txlog.client import reading
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError

pytestmark = pytest.mark.spark
TOPICS = ("orders", "items", "audit")
COMMITS = 25
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])


@pytest.fixture
def opened(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    for topic in TOPICS:
        log.create(topic, SCHEMA, partitions=2)
    with TxLog(spark, log.url, {"fsync": False}) as made:
        yield made


def commit(log: Log, number: int, *, staged: bool, rows: int = 1) -> None:
    settings = {"staged": True, "inline_max_bytes": 0} if staged else {"staged": False}
    with log.store.producer(f"writer-{staged}", **settings) as producer, producer.transaction():
        for topic in TOPICS:
            for partition in (0, 1):
                producer.send(topic, [{"n": number}] * rows, partition=partition)


@pytest.mark.smoke
def test_frames_of_one_cut(log: Log, opened: TxLog) -> None:
    """The frames include sealed rows, inline and in files, and do not change after later commits."""
    with log.store.producer("hangs") as hanging:
        hanging.begin_transaction()
        hanging.send("orders", [{"n": -1}], partition=0).result()
        for number in range(4):
            commit(log, number, staged=bool(number % 2))
        cut = opened.snapshot(*TOPICS)
        commit(log, 4, staged=True)
        assert log.read("orders", columns="n,_partition").where("_partition = 0").count() == 0, "the LSO stands"
        for topic, frame in cut.to_dfs().items():
            assert rows(frame, ["n"]) == [(number,) for number in range(4) for _ in (0, 1)], topic
            assert frame.count() == 8
        assert cut.ends[TopicPartition("orders", 0)] > 4
        places = cut.to_df("items", ["_topic", "_partition", "_offset", "n"])
        assert [row._offset for row in places.where("_partition = 1").orderBy("_offset").collect()] == [0, 2, 3, 5]
        hanging.commit_transaction()
    assert cut.to_df("orders").count() == 8
    # Spark's own reader reads the rows, not a Python function over tasks.
    plan = cut.to_df("orders")._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet" in plan
    assert "MapInArrow" not in plan
    assert opened.snapshot("orders").to_df("orders").count() == 11


def test_what_is_refused(opened: TxLog) -> None:
    with pytest.raises(InvalidRequestError, match="of which topics"):
        opened.snapshot()
    with pytest.raises(UnknownTopicOrPartitionError, match="orders"):
        opened.snapshot("ordres")
    cut = opened.snapshot("orders", "items")
    assert cut.to_df("orders").collect() == []
    assert cut.to_df("orders", "n, _offset").columns == ["n", "_offset"]
    with pytest.raises(UnknownTopicOrPartitionError, match="not in this snapshot of orders, items"):
        cut.to_df("audit")


@pytest.mark.slow
def test_a_reader_that_polls_never_sees_a_part(log: Log, opened: TxLog) -> None:
    """Two writers commit to three topics of two partitions, staged and eager. The reader counts the rows of each."""
    failed: list[BaseException] = []

    def write(staged: bool) -> None:
        try:
            with log.store.producer(f"writer-{staged}", staged=staged) as producer:
                for _ in range(COMMITS):
                    with producer.transaction():
                        for topic in TOPICS:
                            for partition in (0, 1):
                                producer.send(topic, [{"n": int(staged)}], partition=partition)
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(staged,)) for staged in (True, False)]
    for writer in writers:
        writer.start()
    looks = torn = between = 0
    while any(writer.is_alive() for writer in writers):
        found = counts(opened, spark=looks % 8 == 4)
        torn += len(set(found)) > 1
        between += 0 < sum(found[0]) < 2 * COMMITS
        looks += 1
    assert not failed
    assert torn == 0
    assert between, f"none of {looks} looks fell between two commits"
    assert counts(opened, spark=True) == [(COMMITS, COMMITS)] * 6


def counts(opened: TxLog, *, spark: bool) -> list[tuple[int, int]]:
    """Return the rows of each writer in each partition of each topic, in one snapshot.

    Equal counts mean no torn transaction.
    """
    cut = opened.snapshot(*TOPICS)
    if spark:
        tally = {
            (topic, row._partition, row.n): row["count"]
            for topic in TOPICS
            for row in cut.to_df(topic, ["_partition", "n"]).groupBy("_partition", "n").count().collect()
        }
    else:
        tally = {}
        for topic in TOPICS:
            for task in cut._tasks(opened.runtime.topic(topic), opened.table(topic).schema):
                for batch in reading.read_task(task):
                    for n in batch["n"].to_pylist():
                        place = (topic, task.topic_partition.partition, n)
                        tally[place] = tally.get(place, 0) + 1
    return [
        (tally.get((topic, partition, 0), 0), tally.get((topic, partition, 1), 0))
        for topic in TOPICS
        for partition in (0, 1)
    ]
