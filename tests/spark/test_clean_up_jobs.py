"""Retention and vacuum as Spark jobs: the driver decides, executors do the work, and the results equal the
commands'."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog.jobs import command_line
from tests.spark.conftest import Log
from tests.spark.test_merge_job import PARTITIONS, rows, small_files
from tests.spark.test_spark_ui import jobs, last_job
from tests.spark.verbs import retain, run_job, vacuum_topics
from txlog.maintenance.history import read_history

pytestmark = pytest.mark.spark
__all__ = ["small_files"]


def leave_a_dead_file(log: Log) -> None:
    """A file of orders-1 whose transaction can never commit."""
    store = log.store
    dies = store.producer("dies", staged=True, inline_max_bytes=0)
    dies.init_transactions()
    dies.begin_transaction()
    dies.send("orders", [{"order_id": 1, "amount": 1.0, "carrier": "c"}], partition=1)
    dies.flush()
    store._clients.discard(dies)
    store.producer("dies").init_transactions()


def test_what_a_dead_writer_left_is_deleted_by_executors(small_files: Log, spark: SparkSession) -> None:
    store = small_files.store
    leave_a_dead_file(small_files)
    before, seen = rows(small_files), last_job(spark)
    report = vacuum_topics(spark, store, ["orders"])
    assert [each.dead.path.startswith("orders/1/rows/") for each in report.deleted] == [True]
    assert report.bytes > 0
    assert rows(small_files) == before
    assert "txlog vacuum: orders-1, 1 object" in {said for said, _ in jobs(spark, seen)}
    assert vacuum_topics(spark, store, ["orders"]).deleted == ()


def test_retention_goes_through_partitions_on_executors(small_files: Log, spark: SparkSession) -> None:
    store = small_files.store
    assert retain(spark, store, PARTITIONS) == ([], [])
    store.alter_topic("orders", config={"retention.bytes": 0})
    said, _ = retain(spark, store, PARTITIONS, dry_run=True)
    before = rows(small_files)
    done, failed = retain(spark, store, PARTITIONS)
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
    leave_a_dead_file(small_files)
    assert run_job("vacuum", small_files, "orders") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Would delete 1 object, ")
    assert run_job("retention", small_files, "orders") == 0
    removed, *kept = capsys.readouterr().out.splitlines()[-3:]
    assert removed.startswith("Would remove ")
    stay = "2 rows beyond retention.ms or retention.bytes stay, in the active segment."
    assert [each.split(" It ends ")[0] for each in kept] == [f"orders-{partition}: {stay}" for partition in (0, 1)]
    assert run_job("retention", small_files, "orders", "--execute", "-o", "json") == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [(each["partition"], each["executed"]) for each in found] == [(0, True), (1, True)]
    assert run_job("vacuum", small_files, "orders", "--execute", "-o", "json") == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["executed"] is True
    assert {each["why"] for each in document["waiting"]} == {"it lies wholly below the log start"}
    (row,) = read_history(small_files.store.runtime, topics=["orders"], jobs=["vacuum"])
    assert (row.step.partition, row.step.deleted_objects) == (1, 1)
    assert run_job("vacuum", small_files, "order") == 2
    assert "has no topic 'order'" in capsys.readouterr().err
