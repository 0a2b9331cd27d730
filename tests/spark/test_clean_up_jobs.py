"""Retention and vacuum as Spark jobs: the driver decides, executors do the work, and the results equal the commands'."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog.jobs import command_line
from pyspark_txlog.jobs import retention as retention_job
from pyspark_txlog.jobs import vacuum as vacuum_job
from pyspark_txlog.jobs.retention import retain_partitions
from pyspark_txlog.jobs.vacuum import vacuum_store
from tests.spark.conftest import Log
from tests.spark.test_merge_job import PARTITIONS, rows, small_files
from tests.spark.test_spark_ui import jobs, last_job
from txlog.maintenance.history import read_history

pytestmark = pytest.mark.spark
__all__ = ["small_files"]


def test_what_a_dead_writer_left_is_deleted_by_executors(small_files: Log, spark: SparkSession) -> None:
    store = small_files.store
    dies = store.producer("dies", staged=True, inline_max_bytes=0)
    dies.init_transactions()
    dies.begin_transaction()
    dies.send("orders", [{"order_id": 1, "amount": 1.0, "carrier": "c"}], partition=1)
    dies.flush()
    store._clients.discard(dies)
    store.producer("dies").init_transactions()
    before, seen = rows(small_files), last_job(spark)
    report = vacuum_store(spark, store, ["orders"])
    assert [each.path.startswith("orders/1/rows/") for each in report.deleted] == [True]
    assert report.bytes > 0
    assert rows(small_files) == before
    assert "txlog vacuum: orders-1, 1 object" in {said for said, _ in jobs(spark, seen)}
    assert vacuum_store(spark, store, ["orders"]).deleted == ()
    (row,) = read_history(store.runtime, topics=["orders"], jobs=["vacuum"])
    assert (row.step.partition, row.step.deleted_objects) == (1, 1)


def test_retention_goes_through_partitions_on_executors(small_files: Log, spark: SparkSession) -> None:
    store = small_files.store
    assert retain_partitions(spark, store, PARTITIONS, delete=True) == ((), ())
    store.alter_topic("orders", config={"retention.bytes": 0})
    said, _ = retain_partitions(spark, store, PARTITIONS)
    before = rows(small_files)
    done, failed = retain_partitions(spark, store, PARTITIONS, delete=True)
    assert not failed
    assert [each.topic_partition for each in done] == PARTITIONS
    assert done == said
    assert 0 < len(rows(small_files)) < len(before)


def test_their_command_lines(
    small_files: Log, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "job_session", lambda name, conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    small_files.store.alter_topic("orders", config={"retention.bytes": 0})
    arguments = {"store": small_files.url, "topic": ["orders"], "storage_option": ["fsync=false"]}
    vacuum_job.main(**arguments)
    assert capsys.readouterr().out.startswith("Nothing to delete in 1 topic with 2 partitions.")
    retention_job.main(**arguments)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Would remove ")
    retention_job.main(**arguments, delete=True, output=retention_job.OutputFormat.JSON)
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [(each["partition"], each["executed"]) for each in found] == [(0, True), (1, True)]
    vacuum_job.main(**arguments, delete=True, output=vacuum_job.OutputFormat.JSON)
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["executed"] is True
    assert {each["why"] for each in document["waiting"]} == {"it lies wholly below the log start"}
    with pytest.raises(SystemExit) as ended:
        vacuum_job.main(**{**arguments, "topic": ["order"]})
    assert ended.value.code == 2
    assert "has no topic 'order'" in capsys.readouterr().err
