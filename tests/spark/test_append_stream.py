"""`append_stream`: its sources' offsets are part of each micro-batch's transaction, as in the sink of `writeStream`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import TxLog, committed_source_offsets, install, uninstall
from tests.spark.conftest import Log, dotted
from txlog.client.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, TxlogError, TxnVersionScopeError, UnsupportedStoreError

pytestmark = pytest.mark.spark


@pytest.fixture
def native(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    log.create()
    log.create("clean")
    log.write(log.frame(0, 100))
    with TxLog(spark, log.url, {"fsync": False}) as opened:
        yield opened


def orders(log: Log, **options: Any) -> DataFrame:
    reader = log.spark.readStream.format("txlog").option("subscribe", "orders").option("columns", "order_id")
    for name, value in dotted(options).items():
        reader = reader.option(name, str(value))
    return reader.load(log.url)


def run(native: TxLog, frame: DataFrame, checkpoint: Path, **options: Any) -> None:
    query = native.table("clean").append_stream(
        frame,
        transactional_id="cleaner",
        checkpoint_location=str(checkpoint),
        trigger={"availableNow": True},
        **options,
    )
    assert query.awaitTermination(120)


def failure(native: TxLog, frame: DataFrame, checkpoint: Path, **options: Any) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        run(native, frame, checkpoint, **options)
    return str(caught.value)


def committed(log: Log, group: str = "cleaner") -> dict[int, int | None]:
    return {each.partition: each.committed for each in log.store.admin().describe_group(group).offsets}


def ends(log: Log) -> dict[int, int]:
    return {number: end for number, (end, _) in enumerate(log.ends())}


def test_a_query_that_lost_its_checkpoint_goes_on_where_its_last_commit_was(
    log: Log, native: TxLog, tmp_path: Path
) -> None:
    run(native, orders(log, startingOffsets="earliest", maxOffsetsPerTrigger=40), tmp_path / "one")
    assert log.ids("clean") == list(range(100))
    assert committed(log) == ends(log)
    log.write(log.frame(100, 50))
    resumed = orders(log, startingOffsets="committed", group_id="cleaner")
    with (
        TxLog(log.spark, log.url, {"fsync": False}) as other,
        pytest.raises(
            TxnVersionScopeError, match=r"'cleaner' holds micro-batch .* a query with a new checkpoint"
        ) as refused,
    ):
        run(other, resumed, tmp_path / "two")
    assert "`txlog transactions expire --transactional-id cleaner --force --execute`" in str(refused.value)
    # The first query is not fenced: it owns the id and continues.
    run(native, orders(log, startingOffsets="earliest", maxOffsetsPerTrigger=40), tmp_path / "one")
    assert log.ids("clean") == list(range(150))
    log.write(log.frame(150, 50))
    log.store.admin().expire_id("cleaner", force=True)
    native = TxLog(log.spark, log.url, {"fsync": False})
    said = failure(native, orders(log, startingOffsets="earliest"), tmp_path / "three")
    assert "at offset 0, but group 'cleaner' has committed" in said
    run(native, resumed, tmp_path / "four")
    assert log.ids("clean") == list(range(200))
    assert committed(log) == ends(log)
    native.close()


@pytest.mark.parametrize("way", ["append_stream", "python", "installed"])
def test_small_micro_batches_rotate_and_look_at_the_id_once(
    log: Log, native: TxLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    looks: list[str] = []
    inits: list[str | None] = []

    def look(instance: StagedTransaction) -> TxlogError | None:
        looks.append(instance.txn.transactional_id)
        return looked(instance)

    def begin(runtime: Runtime, name: str | None, **options: Any) -> StagedTransaction:
        inits.append(name)
        return began(runtime, name, **options)

    looked, began = StagedTransaction.look_again, StagedTransaction.begin
    monkeypatch.setattr(StagedTransaction, "look_again", look)
    monkeypatch.setattr(StagedTransaction, "begin", begin)
    log.create("spread", partitions=3)
    frame = orders(log, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    if way == "python":
        # The driver writes small micro-batches to one partition, whatever their tasks are. The sink in Python has tasks.
        frame = frame.coalesce(1)
    checkpoint = tmp_path / "checkpoint"
    if way == "append_stream":
        query = native.table("spread").append_stream(
            frame, transactional_id="spreader", checkpoint_location=str(checkpoint), trigger={"availableNow": True}
        )
    else:
        (install if way == "installed" else uninstall)()
        sink = frame.writeStream.format("txlog").option("topic", "spread").option("storage.fsync", "false")
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(log.url)
    assert query.awaitTermination(120)
    batches = query.lastProgress["batchId"] + 1
    assert batches == 3
    found = log.read("spread", columns="_partition,order_id").groupBy("_partition").count().collect()
    assert {row._partition: row["count"] for row in found} == {0: 40, 1: 40, 2: 20}
    if way == "append_stream":
        assert inits == ["spreader"]
        assert looks == ["spreader"] * batches


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_repeated_micro_batch_may_choose_other_partitions(
    log: Log, native: TxLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """Its rows are in the partitions of the try that committed, once."""

    def commit(transaction: StagedTransaction, *args: Any, **options: Any) -> Any:
        if is_committed:
            committing(transaction, *args, **options)
        raise RuntimeError("the program dies")

    committing = StagedTransaction.commit
    log.store.alter_topic("clean", partitions=3)
    frame = orders(log, startingOffsets="earliest")
    with monkeypatch.context() as patch:
        patch.setattr(StagedTransaction, "commit", commit)
        assert "the program dies" in failure(native, frame.repartition(3), tmp_path / "checkpoint", road="executors")
    assert log.ids("clean") == (list(range(100)) if is_committed else [])
    run(native, frame, tmp_path / "checkpoint", road="driver")
    found = log.read("clean", columns="_partition,order_id").collect()
    assert sorted(row.order_id for row in found) == list(range(100))
    assert {row._partition for row in found} == ({0, 1, 2} if is_committed else {0})


def test_a_checkpoint_from_a_copy_is_refused_and_loses_nothing(log: Log, native: TxLog, tmp_path: Path) -> None:
    frame = orders(log, startingOffsets="earliest")
    run(native, frame, tmp_path / "checkpoint")
    log.write(log.frame(100, 50))
    run(native, frame, tmp_path / "checkpoint")
    # A copy from before the last batch was planned looks like this. Spark plans that batch again, up to other offsets.
    for folder in ("commits", "offsets"):
        for name in ("1", ".1.crc"):
            (tmp_path / "checkpoint" / folder / name).unlink()
    log.write(log.frame(150, 50))
    said = failure(native, frame, tmp_path / "checkpoint")
    assert "micro-batch 1: group 'cleaner' has committed orders-" in said
    assert "The checkpoint is older than the log" in said
    assert log.ids("clean") == list(range(150))


def test_a_foreign_source_rides_as_its_own_json(spark: SparkSession, log: Log, native: TxLog, tmp_path: Path) -> None:
    files = tmp_path / "files"
    log.frame(0, 10).select("order_id").write.parquet(str(files))
    run(native, spark.readStream.schema("order_id BIGINT").parquet(str(files)), tmp_path / "checkpoint")
    (source,) = committed_source_offsets(log.url, "cleaner").values()
    assert (source.batch_id, source.json) == (0, '{"logOffset":0}')
    shutil.rmtree(tmp_path / "checkpoint")
    log.store.admin().expire_id("cleaner", force=True)
    with TxLog(spark, log.url, {"fsync": False}) as again:
        said = failure(again, spark.readStream.schema("order_id BIGINT").parquet(str(files)), tmp_path / "checkpoint")
    assert "CommitFailedError: query" in said
    assert log.ids("clean") == list(range(10))


def test_offsets_that_moved_end_it_and_nothing_is_taken_twice(log: Log, native: TxLog, tmp_path: Path) -> None:
    frame = orders(log, startingOffsets="earliest")
    run(native, frame, tmp_path / "checkpoint")
    log.store.admin().reset_offsets("cleaner", {TopicPartition("orders", number): 0 for number in range(2)})
    log.write(log.frame(100, 50))
    assert "CommitFailedError: group 'cleaner', orders-" in failure(native, frame, tmp_path / "checkpoint")
    assert log.ids("clean", isolation_level="read_uncommitted") == list(range(100))
    assert "ONGOING" not in log.transactions().values()


def test_without_source_offsets_the_checkpoint_is_left_alone(log: Log, native: TxLog, tmp_path: Path) -> None:
    frame = orders(log, startingOffsets="earliest")
    with pytest.raises(UnsupportedStoreError, match="commit_source_offsets=False"):
        run(native, frame, Path("hdfs://name/checkpoint"))
    run(native, frame, tmp_path / "checkpoint", commit_source_offsets=False)
    assert log.store.admin().list_groups() == ()
    # An offset that no transaction committed is no reason to refuse: the source's own group may have this name.
    log.store.admin().reset_offsets("cleaner", {TopicPartition("orders", 0): ends(log)[0]})
    log.write(log.frame(100, 50))
    run(native, frame, tmp_path / "checkpoint", commit_source_offsets=False)
    log.store.admin().reset_offsets("cleaner", {TopicPartition("orders", n): end for n, end in ends(log).items()})
    log.write(log.frame(150, 50))
    run(native, frame, tmp_path / "checkpoint")
    with pytest.raises(InvalidRequestError, match="has committed where its sources end"):
        run(native, frame, tmp_path / "checkpoint", commit_source_offsets=False)
    assert log.ids("clean") == list(range(200))
