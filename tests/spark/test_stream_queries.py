"""Streaming reads in a real Spark: triggers, restarts, new partitions, loss, the group and the query's progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import ORDERS, Console, Log, dotted
from tests.spark.limits import HAS_LIMITS, at_most, needs_limits
from txlog.client.consumer import Consumer
from txlog.core.names import TopicPartition

pytestmark = pytest.mark.spark

WAIT_S = 60


class Sink:
    """The rows that a query has read, by batch.

    Spark's own checkpoint makes it exactly-once unless a batch fails midway.
    """

    def __init__(self, log: Log, folder: Path) -> None:
        self.log = log
        self.checkpoint = folder / "checkpoint"
        self.batches: list[list[int]] = []
        self.fail_at: int | None = None

    @property
    def ids(self) -> list[int]:
        return sorted(number for batch in self.batches for number in batch)

    def stream(self, **options: Any) -> DataFrame:
        reader = self.log.spark.readStream.format("txlog")
        given = {"storage.fsync": "false", "startingOffsets": "earliest"} | dotted(options)
        if "subscribePattern" not in given and "assign" not in given:
            given.setdefault("subscribe", "orders")
        for name, value in given.items():
            reader = reader.option(name, str(value))
        return reader.load(self.log.url)

    def start(self, *, trigger: dict[str, Any] | None = None, **options: Any) -> StreamingQuery:
        def write(frame: DataFrame, number: int) -> None:
            if self.fail_at == number:
                raise RuntimeError("the sink is out of order")
            self.batches.append(sorted(row.order_id for row in frame.select("order_id").collect()))

        writer = self.stream(**options).writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "100 milliseconds"})).start()

    def run(self, **options: Any) -> StreamingQuery:
        """Run a query over what the log has now."""
        query = self.start(trigger={"availableNow": True}, **options)
        assert query.awaitTermination(WAIT_S)
        return query


@pytest.fixture
def sink(log: Log, tmp_path: Path) -> Sink:
    log.create()
    return Sink(log, tmp_path)


def send(log: Log, first: int, count: int, *, partition: int = 0, topic: str = "orders") -> None:
    with log.store.producer() as producer:
        producer.send(topic, [{"order_id": first + at} for at in range(count)], partition=partition)


def wait_for(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


def source_of(query: StreamingQuery, number: int = -1) -> dict[str, Any]:
    """Return what the query's progress reports about the source, with parsed offsets."""
    found: dict[str, Any] = query.recentProgress[number]["sources"][0]
    # An older Spark may render them as something else than JSON.
    is_offset = [name for name in found if name.endswith("Offset") and HAS_LIMITS]
    return {name: json.loads(value) if name in is_offset and value else value for name, value in found.items()}


@pytest.mark.smoke
def test_available_now_reads_the_backlog_in_batches_and_goes_on_after_a_restart(sink: Sink) -> None:
    log = sink.log
    log.write(log.frame(0, 100))
    sink.run(**at_most(40))
    assert [len(batch) for batch in sink.batches] == ([40, 40, 20] if HAS_LIMITS else [100])
    assert sink.run(**at_most(40)).recentProgress[-1]["numInputRows"] == 0
    log.write(log.frame(100, 10))
    query = sink.run(**at_most(40))
    assert sink.ids == list(range(110))
    source = source_of(query)
    assert source["numInputRows"] == 10
    # The batches' ends are in the checkpoint, as Kafka's JSON and our key.
    kept = [
        json.loads(file.read_text().splitlines()[2]) for file in sorted((sink.checkpoint / "offsets").glob("[0-9]*"))
    ]
    assert sum(kept[-1]["orders"].values()) == 110
    if HAS_LIMITS:
        assert kept[-1] == source["endOffset"]
    starts = [("start" in each["txlog:source"]) for each in kept]
    assert starts == [True, *[False] * (3 if HAS_LIMITS else 1)]


def test_a_query_that_meets_members_of_its_group_names_both(sink: Sink) -> None:
    log = sink.log
    with log.store.consumer(group_id="audit", client_id="python", enable_auto_commit=False) as member:
        member.subscribe("orders")
        send(log, 0, 5)
        query = sink.start(group_id="audit")
        try:
            with pytest.raises(StreamingQueryException) as raised:
                query.awaitTermination(WAIT_S)
        finally:
            query.stop()
        said = str(raised.value)
        assert "CommitFailedError: group 'audit': the streaming query over orders may not commit" in said
        assert "member 'python-" in said
        query = sink.start(group_id="audit", allow_mixed_groups="true")
        try:
            send(log, 5, 5)
            wait_for(lambda: sink.ids[-1:] == [9], query)
            wait_for(lambda: [each and each.offset for each in member.committed().values()] == [10, 0], query)
        finally:
            query.stop()


def test_a_running_query_takes_new_rows_partitions_and_topics_and_reports_its_lag(sink: Sink) -> None:
    log = sink.log
    query = sink.start(subscribePattern="orders.*", group_id="audit", metadata_max_age_ms=0)
    try:
        send(log, 0, 5)
        wait_for(lambda: sink.ids == list(range(5)), query)
        log.store.alter_topic("orders", partitions=3)
        send(log, 5, 5, partition=2)
        wait_for(lambda: sink.ids == list(range(10)), query)
        log.create("orders-eu", partitions=1)
        send(log, 10, 5, topic="orders-eu")
        wait_for(lambda: sink.ids == list(range(15)), query)
        # A nullable column that is added does not disturb the query: it keeps the columns that it began with.
        log.store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
        with log.store.producer() as producer:
            producer.send("orders", [{"order_id": 15, "note": "new"}], partition=0)
        wait_for(lambda: sink.ids == list(range(16)), query)
        if HAS_LIMITS:
            wait_for(lambda: source_of(query)["latestOffset"]["orders"].get("0") == 6, query)
            latest = source_of(query)["latestOffset"]
            assert latest["orders"] == {"0": 6, "1": 0, "2": 5}
            assert latest["txlog:source"]["lag"] == {"rows": 0, "seconds": 0}

        with log.store.consumer(group_id="audit") as consumer:
            wait_for(lambda: _committed(consumer) == [6, 0, 5], query)
    finally:
        query.stop()
    assert sink.stream().columns == [*ORDERS.names, "note"]


def _committed(consumer: Consumer) -> list[int | None]:
    found = consumer.committed(*(TopicPartition("orders", number) for number in range(3)))
    return [None if value is None else value.offset for _, value in sorted(found.items())]


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_a_query_that_failed_in_its_first_batch_begins_where_it_began(sink: Sink, start: str) -> None:
    log = sink.log
    log.write(log.frame(0, 10))
    sink.fail_at = 0
    with pytest.raises(StreamingQueryException, match="out of order"):
        sink.run(startingOffsets=start)
    log.write(log.frame(10, 10))
    sink.fail_at = None
    # An older Spark runs the batch that failed, and nothing else.
    for _ in range(1 if HAS_LIMITS else 2):
        sink.run(startingOffsets=start)
    assert sink.ids == (list(range(20)) if start == "earliest" else list(range(10, 20)))
    assert len(sink.batches) == 2


def test_retention_that_overtakes_a_query(sink: Sink, console: Console) -> None:
    log = sink.log
    send(log, 0, 5)
    sink.run()
    for first in (5, 10):
        send(log, first, 5)
    log.store.admin().delete_records("orders", 0, 10)
    with pytest.raises(StreamingQueryException) as caught:
        sink.run()
    message = str(caught.value)
    assert "orders-0: this query has read up to offset 5, and the log begins at 10: 5 offsets" in message
    assert "Traceback" not in message.split("OffsetOutOfRangeError", 1)[1]
    sink.run(failOnDataLoss="false")
    assert sink.ids == [*range(5), *range(10, 15)]
    assert "txlog: failOnDataLoss=false, orders-0: 5 offsets from 5 on were removed" in console.text()


def test_isolation_levels_and_offsets_without_rows(sink: Sink, tmp_path: Path) -> None:
    log = sink.log
    with log.store.producer("aborting") as producer:
        for number, commits in enumerate([False, True, False, True, False]):
            producer.begin_transaction()
            producer.send("orders", [{"order_id": number}], partition=0)
            producer.flush()
            producer.commit_transaction() if commits else producer.abort_transaction()
    sink.run(**at_most(1))
    assert sink.ids == [1, 3]
    uncommitted = Sink(log, tmp_path / "uncommitted")
    uncommitted.run(isolation_level="read_uncommitted", **at_most(3))
    assert uncommitted.ids == [0, 1, 2, 3, 4]


def test_columns_of_the_log_and_a_schema_that_prunes(sink: Sink) -> None:
    log = sink.log
    send(log, 0, 3)
    query = (
        sink.stream(columns="order_id,_topic,_partition,_offset")
        .writeStream.format("memory")
        .queryName("pruned")
        .option("checkpointLocation", str(sink.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    found = sorted(tuple(row) for row in log.spark.table("pruned").collect())
    assert found == [(0, "orders", 0, 0), (1, "orders", 0, 1), (2, "orders", 0, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "InvalidRequestError: option 'endingOffsets' belongs to a batch read, because a stream has no end"),
        pytest.param({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 3}, "'minOffsetsPerTrigger': expected at most maxOffsetsPerTrigger, 3, found 9", marks=needs_limits),
        ({"startingOffsets": "committed", "group_id": "new"}, "NoOffsetForPartitionError: .* the option 'auto.offset.reset' does"),
    ],
)  # fmt: skip
def test_wrong_options_are_told_when_the_query_starts(sink: Sink, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        sink.run(**options)
    assert "UnboundLocalError" not in str(caught.value)


def test_a_misspelled_option_is_told_at_load(sink: Sink) -> None:
    with pytest.raises(Exception, match=r"'maxoffsetpertrigger' is unknown: .* Did you mean 'maxOffsetsPerTrigger'"):
        sink.stream(maxOffsetPerTrigger=3)
