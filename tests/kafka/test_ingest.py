"""Kafka's records arrive once: a first run, later runs, a lost checkpoint, and refused runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import txlog
from lab.invariants import check_store
from pyspark_txlog.jobs.ingest_kafka import Ingest, start
from pyspark_txlog.jobs.kafka_resume import KafkaCluster
from tests.kafka.broker import KafkaClient, Record
from tests.kafka.records import Expected, values
from txlog.errors import InvalidRequestError, OffsetOutOfRangeError
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Bench:
    """A Kafka topic, and the job that ingests it."""

    def __init__(self, spark: SparkSession, kafka: KafkaClient, folder: Path) -> None:
        self.spark = spark
        self.kafka = kafka
        self.topic = f"t-{folder.name}"
        self.url = str(folder / "log")
        self.checkpoint = folder / "checkpoint"
        self.expected = Expected(self.topic, 2)
        self.ingest = Ingest(
            bootstrap_servers=kafka.bootstrap,
            subscribe=self.topic,
            store=self.url,
            checkpoint=str(self.checkpoint),
            transactional_id="ingest",
            max_offsets_per_trigger=20,
        )
        kafka.create_topic(self.topic, 2)

    def run(self, **changes: Any) -> None:
        """Run the job once, to the current end of the topic."""
        query = start(self.spark, replace(self.ingest, **changes))
        try:
            query.awaitTermination(120)
            assert query.exception() is None
        finally:
            query.stop()

    def fail(self, **changes: Any) -> str:
        """Return the error message of a run that must fail."""
        with pytest.raises(StreamingQueryException) as caught:
            start(self.spark, replace(self.ingest, **changes)).awaitTermination(120)
        return str(caught.value)

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint)


@pytest.fixture
def bench(spark: SparkSession, kafka: KafkaClient, tmp_path: Path) -> Bench:
    return Bench(spark, kafka, tmp_path)


def test_records_arrive_once_and_aborted_ones_never(bench: Bench) -> None:
    bench.expected.fill(bench.kafka, 40)
    bench.run()
    bench.expected.check(bench.url)
    bench.run()
    bench.expected.check(bench.url)
    bench.expected.fill(bench.kafka, 20)
    bench.run()
    bench.expected.check(bench.url)
    check_store(open_object_store(bench.url))


def test_the_whole_record_arrives(bench: Bench) -> None:
    headers = (("source", "test"), ("empty", ""))
    bench.kafka.send(
        [
            Record(bench.topic, "v", key="k", partition=1, headers=headers),
            Record(bench.topic, None, key="gone", partition=1),
        ]
    )
    bench.run()
    with txlog.open(bench.url) as store, store.consumer(bench.topic, auto_offset_reset="earliest") as consumer:
        found = [row for batch in consumer.iterate() for row in batch.to_pylist()]
    in_kafka = bench.spark.read.format("kafka").options(
        **{"kafka.bootstrap.servers": bench.kafka.bootstrap, "subscribe": bench.topic, "includeHeaders": "true"}
    )
    there = in_kafka.load().selectExpr("key", "value", "unix_millis(timestamp) AS at").orderBy("offset").collect()
    assert [(row["key"], row["value"], int(row["timestamp"].timestamp() * 1000)) for row in found] == [
        (bytes(row.key), None if row.value is None else bytes(row.value), row["at"]) for row in there
    ]
    assert found[0]["headers"] == [{"key": "source", "value": b"test"}, {"key": "empty", "value": b""}]
    assert (found[1]["value"], [row["_partition"] for row in found]) == (None, [1, 1])


def test_a_lost_checkpoint_and_partitions_that_came_meanwhile(bench: Bench) -> None:
    bench.expected.fill(bench.kafka, 40)
    bench.run()
    bench.lose_checkpoint()
    bench.kafka.add_partitions(bench.topic, 3)
    bench.expected.partitions = 3
    bench.expected.fill(bench.kafka, 40)
    bench.run(starting_offsets="latest")
    bench.expected.check(bench.url)
    bench.lose_checkpoint()
    bench.run()
    bench.expected.fill(bench.kafka, 10)
    bench.run()
    bench.expected.check(bench.url)


def test_a_checkpoint_from_a_copy_is_refused(bench: Bench, tmp_path: Path) -> None:
    bench.expected.fill(bench.kafka, 20)
    bench.run()
    shutil.copytree(bench.checkpoint, tmp_path / "copy")
    bench.expected.fill(bench.kafka, 20)
    bench.run()
    bench.lose_checkpoint()
    (tmp_path / "copy").rename(bench.checkpoint)
    bench.expected.fill(bench.kafka, 20)
    with pytest.raises(InvalidRequestError, match=r"does not follow on the log.*restored from a copy"):
        bench.run()
    bench.lose_checkpoint()
    bench.run()
    bench.expected.check(bench.url)


def test_a_second_checkpoint_cannot_take_a_range_again(bench: Bench, tmp_path: Path) -> None:
    """Two runs have different checkpoints: the one that resumed continues, the other one is refused with its
    checkpoint."""
    bench.expected.fill(bench.kafka, 20)
    bench.run()
    other = str(tmp_path / "other")
    bench.expected.fill(bench.kafka, 10)
    bench.run(checkpoint=other)
    bench.expected.fill(bench.kafka, 10)
    with pytest.raises(InvalidRequestError, match="does not follow on the log"):
        bench.run()
    bench.run(checkpoint=other)
    bench.expected.check(bench.url)


def test_a_typed_topic_by_a_query(bench: Bench) -> None:
    schema = pa.schema((("order_id", pa.int64()), ("country", pa.string())))
    with txlog.open(bench.url) as store:
        store.create_topic("orders", schema, partitions=2, config={"key.columns": "order_id"})
    bench.kafka.send([Record(bench.topic, json.dumps({"order_id": one, "country": "FR"})) for one in range(30)])
    query = (
        "SELECT o.* FROM (SELECT from_json(CAST(value AS STRING), 'order_id BIGINT, country STRING') AS o FROM kafka)"
    )
    bench.run(topic="orders", sql=query)
    with txlog.open(bench.url) as store, store.consumer("orders", auto_offset_reset="earliest") as consumer:
        found = [row["order_id"] for batch in consumer.iterate() for row in batch.to_pylist()]
    assert sorted(found) == list(range(30))


def test_topics_by_a_pattern_and_partitions_by_assignment(bench: Bench) -> None:
    second = f"{bench.topic}-b"
    bench.kafka.create_topic(second, 1)
    bench.kafka.send([Record(bench.topic, "a", partition=1), Record(second, "b", partition=0)])
    bench.run(subscribe=None, subscribe_pattern=f"{bench.topic}.*")
    assert (values(bench.url, bench.topic), values(bench.url, second)) == ({1: ["a"]}, {0: ["b"]})
    other = {"transactional_id": "other", "checkpoint": f"{bench.checkpoint}-other", "topic": "all"}
    bench.run(subscribe=None, assign=json.dumps({bench.topic: [1], second: [0]}), keep_partitions=False, **other)
    assert sorted(value for found in values(bench.url, "all").values() for value in found) == ["a", "b"]


def test_a_topic_made_anew_is_refused(bench: Bench) -> None:
    bench.expected.fill(bench.kafka, 10)
    bench.run()
    bench.lose_checkpoint()
    with pytest.raises(OffsetOutOfRangeError, match="no longer has partition 1"):
        bench.run(subscribe=None, assign=json.dumps({bench.topic: [0]}))


def test_what_contradicts_itself(bench: Bench) -> None:
    with pytest.raises(InvalidRequestError, match=r"Expected one of .*found subscribe and assign"):
        bench.run(assign="{}")
    with pytest.raises(InvalidRequestError, match="startingOffsets must be set with the job's own parameter"):
        bench.run(kafka_options={"startingOffsets": "latest"})
    with pytest.raises(InvalidRequestError, match="UnknownTopicOrPartition"):
        bench.run(subscribe="nowhere")


def test_an_id_of_another_query_is_refused(bench: Bench) -> None:
    """Its last transaction is from a rate source. The run forgets nothing and writes nothing."""
    with txlog.open(bench.url) as store:
        store.create_topic("ticks", pa.schema([("value", pa.int64())]))
    ticks = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "3").load().select("value")
    sink = ticks.writeStream.format("txlog").option("topic", "ticks").option("transactional.id", "ingest")
    query = sink.option("checkpointLocation", f"{bench.checkpoint}-ticks").trigger(once=True).start(bench.url)
    query.awaitTermination(120)
    with pytest.raises(InvalidRequestError, match="something else than one Kafka source"):
        bench.run()


def test_a_cluster_without_an_address(spark: SparkSession) -> None:
    with pytest.raises(InvalidRequestError, match=r"Kafka at broker\.invalid:9092: cannot connect: .*hint: check that"):
        KafkaCluster.connect(spark, "broker.invalid:9092", {})


def test_a_cluster_that_does_not_answer(spark: SparkSession) -> None:
    options = {"kafka.default.api.timeout.ms": "1500", "kafka.request.timeout.ms": "1000"}
    with (
        KafkaCluster.connect(spark, "127.0.0.1:1", options) as cluster,
        pytest.raises(
            InvalidRequestError, match=r"Kafka at \S+: cannot list topics, subscribe 'x': .*Timeout.*hint: check"
        ),
    ):
        cluster.partitions("subscribe", "x")
