"""Tasks fail and are retried, jobs fail, commits fail midway: all rows are there or none, and none twice.

In a real Spark, processes raise and are killed on purpose. The test kit's failing store chooses the points.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tests.spark import faulty
from tests.spark.conftest import Console, Log

pytestmark = pytest.mark.spark

PREPARED = "put_if_absent __transaction_state/"
FAULTY = "txlog-faulty"
KILLED = "Python worker exited unexpectedly"


@pytest.fixture(scope="session", autouse=True)
def faulty_source(spark: SparkSession) -> None:
    """Register `format("txlog-faulty")`.

    Spark's Python processes do not find this folder, so the class is pickled by value.
    """
    cloudpickle.register_pickle_by_value(faulty)
    spark.dataSource.register(faulty.FaultyDataSource)


def failing_tasks(frame: DataFrame, attempts: int, *, kill: bool = False) -> DataFrame:
    """Return the same rows, but odd tasks fail after half of them in their first `attempts` attempts."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if task.partitionId() % 2 and task.attemptNumber() < attempts:
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError(f"task {task.partitionId()} fails on purpose")
            yield batch.slice(half)

    return frame.mapInArrow(rows, frame.schema)


def nothing_visible(log: Log) -> None:
    assert log.ids() == []
    assert log.ids(isolation_level="read_uncommitted") == []
    assert log.ends() == [(0, 0), (0, 0)]
    assert "ONGOING" not in log.transactions().values()


@pytest.mark.parametrize("kill", [False, True], ids=["raise", "SIGKILL"])
def test_retried_tasks_write_each_row_once(log: Log, kill: bool) -> None:
    log.create(key_columns="order_id")
    log.write(failing_tasks(log.frame(0, 1000, tasks=4), attempts=2, kill=kill), transactional_id="nightly")
    assert log.ids() == list(range(1000))


def test_attempts_that_wrote_files_and_died_leave_no_rows(log: Log) -> None:
    log.create(key_columns="order_id")

    def after_the_files(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    # The writer's own process dies after its files are on disk and before Spark has its message. Each attempt does so,
    # until the job fails.
    frame = log.frame(0, 100, tasks=1).mapInArrow(after_the_files, log.frame(0, 1).schema)
    with pytest.raises(Exception, match=KILLED):
        log.write(frame, source=FAULTY, transactional_id="nightly", fault_write="kill after 2 write_file orders/")
    assert len(log.files()) >= 4
    nothing_visible(log)


def test_a_failed_job_leaves_nothing_visible(log: Log) -> None:
    log.create()
    with pytest.raises(Exception, match="task 1 fails on purpose"):
        log.write(failing_tasks(log.frame(0, 1000, tasks=2), attempts=9), transactional_id="nightly")
    nothing_visible(log)
    log.write(log.frame(0, 10), transactional_id="nightly")
    assert log.ids() == list(range(10))


def test_a_null_where_none_may_be_fails_the_job_by_name(log: Log) -> None:
    log.create()
    frame = log.spark.sql("SELECT IF(id = 70, NULL, id) AS order_id FROM range(100)")
    with pytest.raises(Exception, match="topic 'orders': column 'order_id' is not nullable, and 1 values are null"):
        log.write(frame)
    nothing_visible(log)
    # The drawn id is removed, whatever the result of its write was.
    assert log.transactions() == {}


def test_a_commit_that_fails_before_the_decision_is_aborted(log: Log) -> None:
    log.create()
    with pytest.raises(Exception, match="SimulatedCrash: before put_if_absent '__transaction_state"):
        log.write(log.frame(0, 100), source=FAULTY, fault_commit=f"crash before 1 {PREPARED}")
    nothing_visible(log)
    assert log.transactions() == {}


@pytest.mark.parametrize(
    "point",
    [f"after 1 {PREPARED}", "before 1 put_if_absent orders/", "after 1 put_if_absent orders/", f"before 2 {PREPARED}"],
    ids=["decided", "before the rows", "between the partitions", "before COMPLETE"],
)
@pytest.mark.parametrize("how", ["crash", "kill"])
def test_abort_after_a_commit_that_won_keeps_it(log: Log, point: str, how: str, console: Console) -> None:
    log.create()
    with pytest.raises(Exception, match="SimulatedCrash: " if how == "crash" else KILLED):
        log.write(
            log.frame(0, 100), source=FAULTY, transactional_id="nightly", txn_version=7, fault_commit=f"{how} {point}"
        )
    assert "'nightly': the write is reported as failed, but its transaction was already committed" in console.text()
    assert log.ids() == list(range(100))
    assert all(stable == end for stable, end in log.ends())
    # The job runs again, as after any failure: no row is duplicated.
    log.write(log.frame(0, 100), transactional_id="nightly", txn_version=7)
    assert log.ids() == list(range(100))


def test_trouble_with_the_store_during_commit_is_ridden_out(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 100), source=FAULTY, fault_commit="lose_reply after 1 put_if_absent orders/")
    log.write(log.frame(100, 100), source=FAULTY, fault_commit=f"fail before 1 {PREPARED}")
    assert log.ids() == list(range(200))


def test_what_a_dying_abort_leaves_is_settled_by_the_next_run(log: Log) -> None:
    log.create()
    with pytest.raises(Exception, match="SimulatedCrash: after put_if_absent '__transaction_state"):
        log.write(
            log.frame(0, 100),
            source=FAULTY,
            transactional_id="nightly",
            fault_commit=f"crash after 1 {PREPARED}",
            fault_abort="kill before 1 put_if_absent",
        )
    # The commit is decided but incomplete. Readers see nothing until the next run of the job rolls it forward.
    assert log.transactions() == {"nightly": "PREPARE_COMMIT"}
    log.write(log.frame(100, 10), transactional_id="nightly")
    assert log.ids() == list(range(110))


def test_a_begin_that_fails_writes_nothing(log: Log) -> None:
    log.create()
    with pytest.raises(Exception, match="SimulatedCrash: before put_if_absent '__transaction_state"):
        log.write(log.frame(0, 10), source=FAULTY, fault_begin=f"crash before 1 {PREPARED}")
    nothing_visible(log)
    assert log.files() == []


def test_a_second_run_of_a_job_fences_the_first(log: Log, console: Console) -> None:
    log.create()
    url = log.url

    def overtaken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # While this task runs, another instance of the same id starts.
        from txlog.client.session.runtime import Runtime
        from txlog.client.staged import StagedTransaction

        runtime = Runtime.open(url)
        StagedTransaction.begin(runtime, "nightly")
        runtime.close()
        yield from batches

    frame = log.frame(0, 10, tasks=1)
    with pytest.raises(Exception) as caught:
        log.write(frame.mapInArrow(overtaken, frame.schema), transactional_id="nightly")
    assert re.search(r"ProducerFencedError: .*'nightly'", f"{type(caught.value).__name__}: {caught.value}")
    nothing_visible(log)
    assert "could not be aborted" not in console.text()
