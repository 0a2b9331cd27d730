"""A streaming query into txlog: each micro-batch once, with its sources' offsets, one run at a time."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lab.invariants import check_store
from pyspark_txlog import committed_source_offsets, install, uninstall
from pyspark_txlog.native import write
from pyspark_txlog.sink.checkpoint import default_transactional_id
from tests.cli.support import run as command
from tests.spark.conftest import Console, Log, dotted
from tests.spark.limits import HAS_LIMITS, at_most, needs_limits
from txlog.client.session.session import Session
from txlog.client.staged import StagedTransaction
from txlog.client.transactions.coordinator import Coordinator
from txlog.core.names import TopicPartition
from txlog.storage.open import open_object_store

pytestmark = pytest.mark.spark

ROWS = 20


class Files:
    """A folder that a file source reads, one file in each micro-batch: orders 0 to 19, 20 to 39, and so on."""

    def __init__(self, log: Log, folder: Path) -> None:
        self._log = log
        self.folder = folder
        self._count = 0
        folder.mkdir()

    def add(self, count: int = 1) -> list[int]:
        """Add files, and return all ids that are there now."""
        for _ in range(count):
            first = self._count * ROWS
            rows = pa.table({"order_id": pa.array(range(first, first + ROWS), pa.int64())})
            path = self.folder / f"{self._count:03}.parquet"
            pq.write_table(rows, path)
            # The file source orders files by modification time, in milliseconds.
            os.utime(path, (1_700_000_000 + self._count,) * 2)
            self._count += 1
        return list(range(self._count * ROWS))

    def stream(self) -> DataFrame:
        reader = self._log.spark.readStream.schema("order_id BIGINT").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder)).repartition(2)


@pytest.fixture
def files(log: Log, tmp_path: Path) -> Files:
    log.create()
    return Files(log, tmp_path / "files")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def start(
    log: Log,
    frame: DataFrame,
    checkpoint: Path | None,
    *,
    topic: str | None = "orders",
    mode: str = "append",
    **options: Any,
) -> StreamingQuery:
    writer = (
        frame.writeStream.format("txlog").outputMode(mode).trigger(availableNow=True).option("storage.fsync", "false")
    )
    given = {"topic": topic} if topic else {}
    if checkpoint is not None:
        given["checkpointLocation"] = str(checkpoint)
    for name, value in (given | dotted(options)).items():
        writer = writer.option(name, str(value))
    return writer.start(log.url)


def run(log: Log, frame: DataFrame, checkpoint: Path, **options: Any) -> None:
    """Run the query to the end of what is there now."""
    assert start(log, frame, checkpoint, **options).awaitTermination(120)


def failure(log: Log, frame: DataFrame, checkpoint: Path | None, **options: Any) -> str:
    """Return the error with which the query ends."""
    with pytest.raises(StreamingQueryException) as caught:
        start(log, frame, checkpoint, **options).awaitTermination(120)
    return str(caught.value)


def query_id(checkpoint: Path) -> str:
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def forget_last_commit(checkpoint: Path) -> int:
    """Leave the checkpoint as a crash between the sink's commit and Spark's own commit log does."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()
    return last


# -- micro-batches ----------------------------------------------------------------------------------------------------


def test_a_micro_batch_is_a_transaction_of_the_checkpoints_id(log: Log, files: Files, checkpoint: Path) -> None:
    expected = files.add(3)
    run(log, files.stream(), checkpoint)
    assert log.ids() == expected
    name = default_transactional_id(str(checkpoint))
    assert name == f"spark-stream:{checkpoint}"
    txn = log.store.admin().describe_transaction(name)
    assert (txn.state, txn.txn_version, txn.txn_scope) == ("COMPLETE_COMMIT", 2, query_id(checkpoint))
    # Each of the three batches is one record in every partition that got rows.
    assert len(log.files()) == len(list((Path(log.url) / "orders").glob("*/rows/*.parquet")))
    expected = files.add(2)
    run(log, files.stream(), checkpoint)
    assert log.ids() == expected
    check_store(open_object_store(log.url))


@pytest.mark.smoke
def test_a_batch_that_spark_runs_again_is_skipped_and_said(
    log: Log, files: Files, checkpoint: Path, console: Console
) -> None:
    expected = files.add(2)
    run(log, files.stream(), checkpoint)
    ends = log.ends()
    written = log.files()
    for times in (1, 2):
        assert forget_last_commit(checkpoint) == 1
        run(log, files.stream(), checkpoint)
        assert (log.ids(), log.ends(), log.files()) == (expected, ends, written)
        said = console.text()
        assert (
            f"micro-batch 1 of query {query_id(checkpoint)} was committed before Spark recorded it, and is skipped"
            in said
        )
        assert f"(micro-batches skipped by this process for this id: {times})" in said
    expected = files.add()
    run(log, files.stream(), checkpoint)
    assert log.ids() == expected


def test_a_checkpoint_from_a_copy_is_refused_and_loses_nothing(
    log: Log, files: Files, checkpoint: Path, tmp_path: Path
) -> None:
    """The next batches of the copy have committed numbers and other rows.

    Skipping them would lose rows without an error.
    """
    files.add(2)
    run(log, files.stream(), checkpoint)
    shutil.copytree(checkpoint, tmp_path / "copy")
    expected = files.add(2)
    run(log, files.stream(), checkpoint)
    ends = log.ends()
    for batches in (1, 2):
        # The copy's next batch is planned again. With both files it reaches the log's last batch; with one file,
        # another one.
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "copy", checkpoint)
        stream = log.spark.readStream.schema("order_id BIGINT").option("maxFilesPerTrigger", 3 - batches)
        said = failure(log, stream.parquet(str(files.folder)).repartition(2), checkpoint)
        assert "The checkpoint is older than the log, as after a restore from a copy" in said
        assert (log.ids(), log.ends()) == (expected, ends)
    # As the page "After a lost checkpoint" says for files: the new query sees only those whose rows are not in the log.
    shutil.rmtree(checkpoint)
    name, admin = default_transactional_id(str(checkpoint)), log.store.admin()
    assert admin.expire_id(name, force=True)
    admin.delete_group(name, force=True)
    for path in files.folder.glob("*.parquet"):
        path.unlink()
    expected = files.add()
    run(log, files.stream(), checkpoint)
    assert log.ids() == expected


def test_a_last_batch_that_is_planned_anew_is_refused(log: Log, files: Files, checkpoint: Path) -> None:
    files.add(2)
    run(log, files.stream(), checkpoint)
    # A copy from before the last batch was planned looks like this.
    last = forget_last_commit(checkpoint)
    for name in (f"{last}", f".{last}.crc"):
        (checkpoint / "offsets" / name).unlink()
    files.add()
    stream = log.spark.readStream.schema("order_id BIGINT").option("maxFilesPerTrigger", 2)
    said = failure(log, stream.parquet(str(files.folder)).repartition(2), checkpoint)
    assert f"micro-batch {last}: committed up to" in said


def test_rows_name_their_topics_and_all_topics_are_one_transaction(log: Log, files: Files, checkpoint: Path) -> None:
    log.create("refunds", partitions=1)
    expected = files.add(2)
    frame = files.stream().selectExpr("order_id", "if(order_id % 4 = 0, 'refunds', 'orders') AS topic")
    run(log, frame, checkpoint, topic=None, transactional_id="split")
    assert sorted(log.ids("orders") + log.ids("refunds")) == expected
    assert log.ids("refunds") == expected[::4]
    assert log.transactions() == {"split": "COMPLETE_COMMIT"}


@pytest.mark.parametrize("kill", [False, True], ids=["raise", "SIGKILL"])
def test_tasks_that_die_are_run_again_and_double_nothing(log: Log, files: Files, checkpoint: Path, kill: bool) -> None:
    def dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            yield batch.slice(0, 3)
            if task.partitionId() == 1 and task.attemptNumber() < 2:
                if kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("fails on purpose")
            yield batch.slice(3)

    expected = files.add(2)
    frame = files.stream()
    run(log, frame.mapInArrow(dying, frame.schema), checkpoint)
    assert log.ids() == expected


def test_a_batch_whose_tasks_fail_for_good_is_not_there_and_comes_with_the_next_run(
    log: Log, files: Files, checkpoint: Path, console: Console
) -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise RuntimeError("this job always fails")

    expected = files.add()
    frame = files.stream()
    assert "this job always fails" in failure(log, frame.mapInArrow(failing, frame.schema), checkpoint)
    assert log.ids() == []
    assert set(log.transactions().values()) == {"EMPTY"}
    assert "could not be aborted" not in console.text()
    run(log, frame, checkpoint)
    assert log.ids() == expected


def test_another_run_fences_this_one_with_one_clear_error(
    log: Log, files: Files, checkpoint: Path, console: Console
) -> None:
    url = log.url

    def overtaken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # While this task runs, another driver starts the query, which is an init of its id.
        from txlog.client.session.runtime import Runtime
        from txlog.client.staged import StagedTransaction

        runtime = Runtime.open(url)
        StagedTransaction.begin(runtime, "cleaner")
        runtime.close()
        yield from batches

    expected = files.add()
    frame = files.stream().coalesce(1)
    said = failure(log, frame.mapInArrow(overtaken, frame.schema), checkpoint, transactional_id="cleaner")
    assert f"ProducerFencedError: query {query_id(checkpoint)}, micro-batch 0: another run of this query" in said
    assert log.ids(isolation_level="read_uncommitted") == []
    assert "could not be aborted" not in console.text()
    run(log, frame, checkpoint, transactional_id="cleaner")
    assert log.ids() == expected


@needs_limits
@pytest.mark.parametrize("is_native", [True, False], ids=["native", "python"])
def test_small_micro_batches_rotate_over_the_partitions(
    log: Log, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, is_native: bool
) -> None:
    """After `install()` the query inits its id once: nothing has changed the record since the last commit."""
    fill(log)
    log.create("spread", partitions=3)
    inits: list[str] = []

    def init(session: Session, name: str, *given: Any) -> Coordinator:
        inits.append(name)
        return begun(session, name, *given)

    begun = Coordinator.init
    monkeypatch.setattr(Coordinator, "init", init)
    (install if is_native else uninstall)()
    frame = orders(log, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    if not is_native:
        # The driver writes a small micro-batch to one partition, whatever its tasks are. The Python sink has tasks.
        frame = frame.coalesce(1)
    run(log, frame, checkpoint, topic="spread", transactional_id="spreader")
    found = log.read("spread", columns="_partition,order_id").groupBy("_partition").count().collect()
    assert {row._partition: row["count"] for row in found} == {0: 40, 1: 40, 2: 20}
    # Spark's own processes run the sink in Python.
    assert inits == ["spreader"] * is_native


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_repeated_micro_batch_may_choose_other_partitions(
    log: Log, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """Its rows are in the partitions of the try that committed, once."""

    def commit(transaction: StagedTransaction, *args: Any, **options: Any) -> Any:
        if is_committed:
            committing(transaction, *args, **options)
        raise RuntimeError("the program dies")

    committing = StagedTransaction.commit
    install()
    fill(log)
    log.store.alter_topic("clean", partitions=3)
    frame = orders(log, startingOffsets="earliest")
    with monkeypatch.context() as patch:
        patch.setattr(StagedTransaction, "commit", commit)
        patch.setattr(write, "_known_road", lambda frame, small_rows: "executors")
        assert "the program dies" in failure(log, frame.repartition(3), checkpoint, topic="clean")
    assert log.ids("clean") == (list(range(100)) if is_committed else [])
    run(log, frame, checkpoint, topic="clean")
    found = log.read("clean", columns="_partition,order_id").collect()
    assert sorted(row.order_id for row in found) == list(range(100))
    assert {row._partition for row in found} == ({0, 1, 2} if is_committed else {0})


# -- offsets of the sources -------------------------------------------------------------------------------------------


def test_offsets_of_a_foreign_source_are_in_the_same_commit(log: Log, files: Files, checkpoint: Path) -> None:
    files.add(3)
    run(log, files.stream(), checkpoint, transactional_id="cleaner")
    found = committed_source_offsets(log.url, "cleaner")
    assert {source: (each.query_id, each.batch_id) for source, each in found.items()} == {
        "0": (query_id(checkpoint), 2)
    }
    # The text is the same as in the checkpoint, where the source wrote it.
    assert found["0"].json == (checkpoint / "offsets" / "2").read_text().splitlines()[2]
    assert json.loads(found["0"].json) == {"logOffset": 2}


def orders(log: Log, **options: Any) -> DataFrame:
    reader = log.spark.readStream.format("txlog").option("subscribe", "orders").option("columns", "order_id")
    for name, value in dotted(options).items():
        reader = reader.option(name, str(value))
    return reader.load(log.url)


def committed(log: Log, group: str) -> dict[int, int | None]:
    return {each.partition: each.committed for each in log.store.admin().describe_group(group).offsets}


def fill(log: Log) -> None:
    log.create()
    log.create("clean")
    log.write(log.frame(0, 100))


@pytest.mark.smoke
def test_offsets_of_a_topic_ride_in_the_same_commit_as_those_of_the_sinks_id(log: Log, checkpoint: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest", **at_most(40))
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert log.ids("clean") == list(range(100))
    assert committed(log, "cleaner") == {number: end for number, (end, _) in enumerate(log.ends())}
    log.write(log.frame(100, 50))
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert log.ids("clean") == list(range(150))
    assert committed(log, "cleaner") == {number: end for number, (end, _) in enumerate(log.ends())}
    check_store(open_object_store(log.url))


def test_after_a_lost_checkpoint_it_goes_on_where_the_last_commit_was(log: Log, checkpoint: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    first = query_id(checkpoint)
    shutil.rmtree(checkpoint)
    log.write(log.frame(100, 50))
    frame = orders(log, startingOffsets="committed", group_id="cleaner")
    said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert (
        f"TxnVersionScopeError: transactional.id 'cleaner' holds micro-batch 0 of query {first}, but this is query"
        in said
    )
    # The first advice is followed. Another id, which it warns of, would write the 100 rows again.
    advice = (
        r"hint: after a lost checkpoint run `txlog (.*?)`, remove the new checkpoint, and start with "
        r"startingOffsets=(\w+) and group.id=(\w+) \(or the source's own\): see the page"
    )
    found = re.search(advice, said)
    assert found is not None, said
    assert found.groups()[1:] == ("committed", "cleaner")
    command("--store", log.url, *shlex.split(found[1]))
    # A start from the beginning is refused, with the committed offset in the message.
    shutil.rmtree(checkpoint)
    said = failure(log, orders(log, startingOffsets="earliest"), checkpoint, topic="clean", transactional_id="cleaner")
    assert "CommitFailedError" in said
    assert "at offset 0, but group 'cleaner' has committed" in said
    assert log.ids("clean", isolation_level="read_uncommitted") == list(range(100))
    assert "ONGOING" not in log.transactions().values()
    shutil.rmtree(checkpoint)
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert log.ids("clean") == list(range(150))


def test_two_queries_of_one_group_cannot_both_take_a_range(log: Log, tmp_path: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest", group_id="shared")
    run(log, frame, tmp_path / "one", topic="clean")
    said = failure(log, frame, tmp_path / "two", topic="clean")
    assert "CommitFailedError" in said
    assert "at offset 0, but group 'shared' has committed" in said
    assert log.ids("clean", isolation_level="read_uncommitted") == list(range(100))
    assert committed(log, "shared") == {number: end for number, (end, _) in enumerate(log.ends())}


def test_a_query_commits_beside_members_only_if_it_is_told_so(log: Log, checkpoint: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest", group_id="shared")
    mixed = {"allow_mixed_groups": "true"}
    with log.store.consumer(group_id="shared", client_id="python", enable_auto_commit=False) as member:
        member.subscribe("orders")
        said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
        assert "CommitFailedError: group 'shared': transactional.id 'cleaner' may not commit" in said
        assert "member 'python-" in said
        assert log.ids("clean", isolation_level="read_uncommitted") == []
        assert set(committed(log, "shared").values()) <= {None}
        frame = orders(log, startingOffsets="earliest", group_id="shared", **mixed)
        run(log, frame, checkpoint, topic="clean", transactional_id="cleaner", **mixed)
        assert log.ids("clean") == list(range(100))
        ends = {number: end for number, (end, _) in enumerate(log.ends())}
        assert {tp.partition: member.position(tp) for tp in member.assignment()} == ends
    assert committed(log, "shared") == ends


def test_offsets_moved_under_a_running_query_end_it(log: Log, checkpoint: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    log.store.admin().reset_offsets("cleaner", {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 0})
    log.write(log.frame(100, 50))
    said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert "CommitFailedError: group 'cleaner', orders-" in said
    assert log.ids("clean", isolation_level="read_uncommitted") == list(range(100))


def test_a_replayed_batch_is_recognised_before_any_condition_is_looked_at(
    log: Log, checkpoint: Path, console: Console
) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    before = committed(log, "cleaner")
    forget_last_commit(checkpoint)
    log.write(log.frame(100, 50))
    # An older Spark runs the batch again, and nothing else.
    for _ in range(1 if HAS_LIMITS else 2):
        run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert "micro-batch 0 of query" in console.text()
    assert log.ids("clean") == list(range(150))
    assert committed(log, "cleaner") != before


def test_a_last_batch_of_a_topic_that_is_planned_anew_is_refused(log: Log, checkpoint: Path) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    forget_last_commit(checkpoint)
    for name in ("0", ".0.crc"):
        (checkpoint / "offsets" / name).unlink()
    log.write(log.frame(100, 50))
    said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert "micro-batch 0: group 'cleaner' has committed orders-" in said
    assert "The checkpoint is older than the log" in said
    assert log.ids("clean") == list(range(100))


def test_without_source_offsets_the_checkpoint_is_left_alone(log: Log, files: Files, checkpoint: Path) -> None:
    expected = files.add()
    run(log, files.stream(), checkpoint, transactional_id="cleaner", commitSourceOffsets="false")
    assert log.ids() == expected
    assert log.store.admin().list_groups() == ()
    assert log.store.admin().describe_transaction("cleaner").txn_scope == query_id(checkpoint)


def test_commit_source_offsets_cannot_be_switched_off_under_offsets(log: Log, checkpoint: Path) -> None:
    """The offsets would stay behind, and a query that resumes from them would read rows again."""
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    log.write(log.frame(100, 50))
    said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner", commitSourceOffsets="false")
    assert "commitSourceOffsets=false, but transactional.id 'cleaner' has committed where its sources end" in said
    log.store.admin().delete_group("cleaner", force=True)
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner", commitSourceOffsets="false")
    assert log.ids("clean") == list(range(150))


def test_commit_source_offsets_switched_on_needs_the_offset_that_the_query_stands_at(
    log: Log, checkpoint: Path
) -> None:
    fill(log)
    frame = orders(log, startingOffsets="earliest")
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner", commitSourceOffsets="false")
    ends = {TopicPartition("orders", number): end for number, (end, _) in enumerate(log.ends())}
    log.write(log.frame(100, 50))
    said = failure(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert "CommitFailedError: group 'cleaner', orders-" in said
    assert "Or earlier micro-batches of this query committed no offsets (commitSourceOffsets=false)" in said
    assert log.ids("clean") == list(range(100))
    log.store.admin().reset_offsets("cleaner", ends)
    run(log, frame, checkpoint, topic="clean", transactional_id="cleaner")
    assert log.ids("clean") == list(range(150))


def test_a_new_query_does_not_take_a_foreign_source_again(log: Log, files: Files, checkpoint: Path) -> None:
    """The id is forgotten, its offsets are not: a source that cannot begin there must be forgotten, too."""
    expected = files.add(2)
    run(log, files.stream(), checkpoint, transactional_id="cleaner")
    shutil.rmtree(checkpoint)
    log.store.admin().expire_id("cleaner", force=True)
    said = failure(log, files.stream(), checkpoint, transactional_id="cleaner")
    assert "CommitFailedError: query" in said
    assert "transactional.id 'cleaner' has committed it up to {\"logOffset\":1}" in said
    assert (
        'hint: start with a new checkpoint at committed_source_offsets(...); see the page "After a lost checkpoint"'
        in said
    )
    assert log.ids(isolation_level="read_uncommitted") == expected
    log.store.admin().delete_group("cleaner", force=True)
    shutil.rmtree(checkpoint)
    run(log, files.stream(), checkpoint, transactional_id="cleaner")
    assert log.ids() == sorted(expected * 2)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_output_modes_other_than_append_are_refused_with_the_reason(log: Log, files: Files, tmp_path: Path) -> None:
    files.add()
    counts = files.stream().groupBy("order_id").count().select("order_id")
    said = failure(log, counts, tmp_path / "complete", mode="complete")
    assert 'InvalidRequestError: outputMode("complete") rewrites the whole result in each micro-batch' in said
    # Spark's own words: it asks no Python sink.
    assert "txlog does not support Update mode" in failure(log, counts, tmp_path / "update", mode="update")
    assert log.transactions() == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"txn.version": "3"}, "option 'txn.version': in a stream the version is the micro-batch's number"),
        ({"commitSourceOffsets": "yes"}, "option 'commitSourceOffsets': expected true or false, found 'yes'"),
        ({"topik": "orders"}, "option 'topik' is unknown"),
        ({"topic": "order"}, "topic 'order' does not exist"),
    ],
)
def test_wrong_options_end_the_query_before_it_writes(
    log: Log, files: Files, checkpoint: Path, options: dict[str, str], said: str
) -> None:
    files.add()
    assert said in failure(log, files.stream(), checkpoint, **options)
    assert log.transactions() == {}


def test_a_checkpoint_that_only_spark_knows_is_asked_for(log: Log, files: Files, tmp_path: Path) -> None:
    files.add()
    log.spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "all"))
    try:
        said = failure(log, files.stream(), None)
    finally:
        log.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert "InvalidRequestError: where is the query's checkpoint? Name it in .option('checkpointLocation', …)" in said
