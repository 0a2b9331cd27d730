"""The merge of many partitions as a Spark job: executors copy rows, and the driver publishes runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog.jobs import command_line
from tests.spark.conftest import Log
from tests.spark.faulty import failing_driver
from tests.spark.test_spark_ui import jobs, last_job
from tests.spark.verbs import merge, run_job
from txlog.client.session.session import Session
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.records import IndexedFile
from txlog.errors import (
    CorruptRecordError,
    InvalidRequestError,
    MissingObjectError,
    SchemaMismatchError,
    TxlogTimeoutError,
)
from txlog.maintenance import merge as verb
from txlog.maintenance.fsck import check_store
from txlog.maintenance.history import read_history
from txlog.maintenance.merge import Merged, publish_merge
from txlog.protocol.clean import Merge

pytestmark = pytest.mark.spark
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@pytest.fixture
def small_files(log: Log) -> Log:
    """Return two partitions with six sealed segments and a tail; each has one aborted transaction."""
    log.create(segment_batches="2")
    with log.store.producer("loader", linger_ms=0, staged=False) as producer:
        for number in range(8):
            producer.begin_transaction()
            for tp in PARTITIONS:
                row = {"order_id": 2 * number + tp.partition, "amount": number / 2, "carrier": "c"}
                producer.send(tp.topic, [row], partition=tp.partition)
            if number == 3:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return log


def rows(log: Log) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in log.read("orders").collect())


def told(log: Log, *jobs: str) -> list[tuple[int, str]]:
    """Return (partition, outcome) of every step of `jobs` in the history."""
    return sorted((row.step.partition, row.step.outcome) for row in read_history(log.store.runtime, jobs=jobs))


def test_runs_are_copied_by_executors_and_have_names(small_files: Log, spark: SparkSession) -> None:
    before, seen = rows(small_files), last_job(spark)
    # Each partition has two runs: the ranges of a partition are separate tasks.
    made, failed = merge(spark, small_files.store, PARTITIONS, MergePolicy(target_bytes=2**30, max_inputs=4))
    assert not failed
    assert all(each.took_effect and each.segments_before > 1 for each in made)
    assert sorted({each.topic_partition for each in made}) == PARTITIONS
    assert len(made) > len(PARTITIONS)
    assert rows(small_files) == before
    named = {said for said, _ in jobs(spark, seen)}
    assert {f"txlog merge: {m.topic_partition}, offsets {m.base_offset} to {m.end_offset - 1}" for m in made} <= named
    report = check_store(small_files.store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"]
    again, failed = merge(spark, small_files.store, PARTITIONS)
    assert [each.generation for each in again] == [2] * len(again)
    assert not failed
    assert rows(small_files) == before


def test_a_damaged_input_spoils_its_run_alone(small_files: Log, spark: SparkSession) -> None:
    store = small_files.store.runtime.store
    path = next(f"orders/0/{name}" for name in store.list("orders/0/") if name.endswith(".parquet"))
    data = bytearray(store.get(path) or b"")
    data[len(data) // 2] ^= 1
    store.delete(path)
    store.write_file(path, [bytes(data)])
    made, (error,) = merge(spark, small_files.store, PARTITIONS)
    assert isinstance(error, CorruptRecordError)
    assert path in str(error)
    assert {each.topic_partition.partition for each in made} == {1}
    assert not [name for name in store.list("orders/0/") if name.endswith(".clean")]
    assert told(small_files, "merge") == [(0, "failed"), (1, "published")]


@pytest.mark.parametrize("request_", ["list orders/0/", r"put_if_absent orders/0/\S+\.clean"])
def test_a_partition_that_cannot_be_planned_or_published_spoils_no_other(
    small_files: Log, spark: SparkSession, request_: str
) -> None:
    before = rows(small_files)
    with failing_driver(small_files.url, request_) as store:
        made, (error,) = merge(spark, store, PARTITIONS)
    assert isinstance(error, TxlogTimeoutError)
    assert [each.topic_partition.partition for each in made] == [1]
    assert told(small_files, "merge") == [(0, "failed"), (1, "published")]
    assert rows(small_files) == before


def test_two_sick_neighbours_spoil_no_other_either(small_files: Log, spark: SparkSession) -> None:
    """The rest of the store works. Otherwise the two failing partitions would end the job before the others run."""
    small_files.create("more", partitions=1, segment_batches="2")
    with small_files.store.producer(linger_ms=0) as producer:
        for number in range(8):
            producer.send("more", [{"order_id": number, "amount": 0.5, "carrier": "c"}]).result()
    healthy = TopicPartition("more", 0)
    with failing_driver(small_files.url, r"list orders/\d") as store:
        made, failed = merge(spark, store, [*PARTITIONS, healthy])
    assert [each.topic_partition for each in made] == [healthy]
    assert [type(error) for error in failed] == [TxlogTimeoutError] * 2
    assert told(small_files, "merge") == [(0, "failed"), (0, "published"), (1, "failed")]


def test_a_store_that_fails_again_and_again_ends_the_job(small_files: Log, spark: SparkSession) -> None:
    policy = MergePolicy(target_bytes=2**30, max_inputs=3)
    with failing_driver(small_files.url, r"put_if_absent orders/\S+\.clean", number=2) as store:
        made, failed = merge(spark, store, PARTITIONS, policy)
        failing: Any = store.runtime.store
        tried = {line for line in failing.operations if line.startswith("put") and line.endswith(".index")}
    assert len(made) == 1
    assert len(tried) == 3
    assert [type(error) for error in failed] == [TxlogTimeoutError] * 2
    assert sorted(outcome for _, outcome in told(small_files, "merge")) == ["failed", "failed", "published"]
    rest, failed = merge(spark, small_files.store, PARTITIONS, policy)
    assert not failed
    assert len(rest) > 2


def test_what_vacuum_took_from_a_publication_is_planned_anew(
    small_files: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [TopicPartition("orders", 0)]

    def publish(session: Session, merge: Merge, file: IndexedFile | None) -> Merged:
        if merge.topic_partition in gone:
            gone.remove(merge.topic_partition)
            raise MissingObjectError("orders/0/0.clean is gone")
        return publish_merge(session, merge, file)

    monkeypatch.setattr(verb, "publish_merge", publish)
    made, failed = merge(spark, small_files.store, PARTITIONS)
    assert not failed
    assert [each.topic_partition for each in made] == PARTITIONS
    assert not gone


def test_the_command_line(
    small_files: Log, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "job_session", lambda name, conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    before = rows(small_files)
    assert run_job("merge", small_files, "orders") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Would merge ")
    assert run_job("merge", small_files, "orders", "--execute", "-o", "json") == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [(each["partition"], each["outcome"]) for each in found] == [(0, "merged"), (1, "merged")]
    assert rows(small_files) == before
    assert run_job("merge", small_files, "orders", "--sort", "carriers", "-o", "json") == 2
    assert "has no column 'carriers'" in msgspec.json.decode(capsys.readouterr().err)["message"]


def test_what_is_refused(small_files: Log, spark: SparkSession) -> None:
    made, failed = merge(spark, small_files.store, PARTITIONS, layout=FileLayout(bloom=("name",)))
    assert not made
    assert [(type(error), "has no column 'name'" in str(error)) for error in failed] == [
        (SchemaMismatchError, True)
    ] * 2
    made, (error,) = merge(spark, small_files.store, [TopicPartition("__consumer_offsets", 0)])
    assert not made
    assert isinstance(error, InvalidRequestError)
