"""Maintenance and checks as Spark jobs: executors copy and read, the driver decides and compares."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TxLog
from pyspark_txlog.jobs import command_line
from tests.spark.conftest import Log
from tests.spark.faulty import failing_driver
from tests.spark.test_merge_job import told
from tests.spark.test_spark_ui import jobs, last_job
from tests.spark.verbs import on_spark, run_job
from txlog.errors import TxlogTimeoutError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy

pytestmark = pytest.mark.spark


@pytest.fixture
def used(log: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return two partitions with four sealed segments and a tail, and a compacted topic; jobs use this session."""
    log.create(segment_batches="2")
    log.create("latest", partitions=1, segment_batches="2", key_columns="carrier", cleanup_policy="compact")
    with log.store.producer(linger_ms=0) as producer:
        for number in range(18):
            row = {"order_id": number, "amount": number / 2, "carrier": "c"}
            producer.send("orders", [row], partition=number % 2).result()
        for number in range(5):
            producer.send("latest", [{"order_id": number, "amount": 0.5, "carrier": "c"}], partition=0).result()
    monkeypatch.setattr(command_line, "job_session", lambda name, conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    return log


def rows(log: Log) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in log.read("orders").collect())


def test_a_round_merges_on_executors(used: Log, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    before, seen = rows(used), last_job(spark)
    assert run_job("maintain", used, "--merge-min-segments", 3, "-o", "json") == 0
    report = msgspec.json.decode(capsys.readouterr().out)
    counts = {step["step"]: step["counts"] for step in report["steps"]}
    assert counts["merge"]["merged_segments"] == 8
    assert counts["compact"]["superseded_rows"] == 3
    said = [words for words, _ in jobs(spark, seen)]
    assert any(words.startswith("txlog merge: orders-1, offsets 0 to") for words in said)
    assert any(words.startswith("txlog compact: latest-0, offsets 0 to") for words in said)
    assert rows(used) == before
    assert check_store(used.store.runtime.store).is_clean
    history = spark.read.format("txlog").option("metadata", "history").load(used.url)
    assert sorted((row.job, row.partition, row.outcome) for row in history.collect()) == [
        ("compact", 0, "published"),
        ("merge", 0, "published"),
        ("merge", 1, "published"),
    ]
    assert run_job("maintain", used, "--once", "--merge-min-segments", 3, "-o", "json") == 0
    again = msgspec.json.decode(capsys.readouterr().out)
    assert not any(step["done"] or step["failed"] for step in again["steps"])


def test_a_round_tells_of_what_it_could_not_publish(used: Log, spark: SparkSession) -> None:
    with failing_driver(used.url, r"put_if_absent (orders/0|latest/0)/\S+\.clean") as store:
        maintainer = Maintainer(store.runtime, MaintainPolicy(merge_min_segments=3), workers=on_spark(spark, store))
        report = maintainer.run()
    assert isinstance(maintainer.first_error, TxlogTimeoutError)
    counts = {step.step: step.counts for step in report.steps}
    assert (counts["merge"]["done"], counts["merge"]["failed"], counts["compact"]["failed"]) == (1, 1, 1)
    assert told(used, "merge") == [(0, "failed"), (1, "published")]
    assert told(used, "compact") == [(0, "failed")]


def test_a_check_is_a_frame_and_executors_take_part(
    used: Log, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = last_job(spark)
    store = used.store.runtime.store
    path = next(f"orders/1/{name}" for name in store.list("orders/1/") if name.endswith(".parquet"))
    data = bytearray(store.get(path) or b"")
    data[len(data) // 2] ^= 1
    store.delete(path)
    store.write_file(path, [bytes(data)])
    with TxLog(spark, used.url) as log:
        (row,) = log.fsck().where("kind <> 'note'").collect()
    assert (row.kind, row.path, row["count"]) == ("damaged", path, 1)
    assert {f"txlog fsck: orders-{number}" for number in range(2)} <= {said for said, _ in jobs(spark, seen)}
    assert run_job("fsck", used, "-o", "json") == 4
    found = msgspec.json.decode(capsys.readouterr().out)
    here = check_store(store)  # one process finds the same
    assert found["findings"] == list(msgspec.to_builtins(here.findings))
    assert (found["objects"], found["bytes"]) == (here.objects, here.bytes)
    assert run_job("fsck", used, "order") == 2
    assert "there is no topic 'order'" in capsys.readouterr().err
