"""The compaction of many partitions as a Spark job, and Spark's own readers over the holes that it leaves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import TxLog
from pyspark_txlog.jobs import command_line
from tests.spark.conftest import Log, to_df
from tests.spark.faulty import failing_driver
from tests.spark.limits import at_most
from tests.spark.test_merge_job import told
from tests.spark.test_spark_ui import jobs, last_job
from tests.spark.verbs import compact, run_job
from txlog.cli.compact import compaction_policies
from txlog.client.session.session import Session
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TopicPartition
from txlog.errors import MissingObjectError, TxlogTimeoutError
from txlog.maintenance import compact as verb
from txlog.maintenance.compact import Compacted, Copied, publish_compaction
from txlog.protocol.compact import CompactionPlan

pytestmark = pytest.mark.spark
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
COLUMNS = "order_id,amount,_offset,_partition"


@pytest.fixture
def keyed(log: Log) -> Log:
    """Return two partitions with five keys each: six sealed segments and a tail. Each has one aborted transaction."""
    log.create(segment_batches="2", cleanup_policy="compact", key_columns="order_id")
    with log.store.producer("loader", linger_ms=0, staged=False) as producer:
        for number in range(8):
            producer.begin_transaction()
            for tp in PARTITIONS:
                some = [{"order_id": 10 * tp.partition + key, "amount": number / 2, "carrier": "c"} for key in range(5)]
                producer.send(tp.topic, some[number % 2 :], partition=tp.partition)
            if number == 5:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return log


def policies(log: Log) -> dict[TopicPartition, CompactionPolicy]:
    return compaction_policies(log.store.runtime, PARTITIONS, are_named=True)


def newest(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the newest row of each key, from rows of `ordered`. A key has one partition."""
    return sorted({row[1]: row for row in rows}.values())


def rows(log: Log) -> list[tuple[Any, ...]]:
    return ordered(log.read("orders", columns=COLUMNS))


def ordered(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return (partition, key, offset, amount), in order."""
    return sorted((row._partition, row.order_id, row._offset, row.amount) for row in frame.collect())


def test_partitions_are_compacted_by_executors_and_every_reader_copes(keyed: Log, spark: SparkSession) -> None:
    before, seen = rows(keyed), last_job(spark)
    made, failed = compact(spark, keyed.store, policies(keyed))
    assert not failed
    assert [(each.topic_partition, each.took_effect, each.rows) for each in made] == [
        (tp, True, 5) for tp in PARTITIONS
    ]
    after = rows(keyed)
    assert newest(after) == newest(before)
    assert set(after) < set(before)
    named = {said for said, _ in jobs(spark, seen)}
    assert {f"txlog compact: {m.topic_partition}, offsets 0 to {m.end_offset - 1}" for m in made} <= named
    assert compact(spark, keyed.store, policies(keyed)) == ([], [])
    # Spark's own Parquet reader, from the beginning and from the middle of a hole.
    table = TxLog(spark, keyed.url).table("orders")
    start = '{"orders": {"0": 7, "1": 7}}'
    later = [row for row in after if row[2] >= 7]
    assert ordered(to_df(table, columns=COLUMNS)) == after
    assert ordered(to_df(table, columns=COLUMNS, starting_offsets=start)) == later
    reader = spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", start)
    streamed = reader.option("columns", COLUMNS).options(**at_most(40)).load(keyed.url)
    query = streamed.writeStream.format("memory").queryName("compacted").trigger(availableNow=True).start()
    query.awaitTermination()
    assert ordered(spark.table("compacted")) == later


@pytest.mark.parametrize("request_", ["list orders/0/", r"put_if_absent orders/0/\S+\.clean"])
def test_a_partition_that_cannot_be_planned_or_published_spoils_no_other(
    keyed: Log, spark: SparkSession, request_: str
) -> None:
    before = newest(rows(keyed))
    with failing_driver(keyed.url, request_) as store:
        made, (error,) = compact(spark, store, policies(keyed))
    assert isinstance(error, TxlogTimeoutError)
    assert [each.topic_partition.partition for each in made] == [1]
    assert told(keyed, "compact") == [(0, "failed"), (1, "published")]
    assert newest(rows(keyed)) == before


def test_a_store_that_fails_again_and_again_ends_the_job(keyed: Log, spark: SparkSession) -> None:
    # The call that opens the store reads the descriptor for the first time.
    with failing_driver(keyed.url, r"(list orders/|get txlog\.json)", number=2) as store:
        made, failed = compact(
            spark, store, dict.fromkeys([*PARTITIONS, TopicPartition("orders", 2)], policies(keyed)[PARTITIONS[0]])
        )
    assert not made
    assert [type(error) for error in failed] == [TxlogTimeoutError] * 2
    assert told(keyed, "compact") == [(0, "failed"), (1, "failed")]


def test_what_vacuum_took_from_a_publication_is_planned_anew(
    keyed: Log, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [TopicPartition("orders", 0)]

    def publish(session: Session, plan: CompactionPlan, copied: Copied) -> Compacted:
        if plan.topic_partition in gone:
            gone.remove(plan.topic_partition)
            raise MissingObjectError("orders/0/0.clean is gone")
        return publish_compaction(session, plan, copied)

    monkeypatch.setattr(verb, "publish_compaction", publish)
    made, failed = compact(spark, keyed.store, policies(keyed))
    assert not failed
    assert [each.topic_partition for each in made] == PARTITIONS
    assert not gone


def test_the_command_line(
    keyed: Log, spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "job_session", lambda name, conf: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    assert run_job("compact", keyed, "orders") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Would compact 2 partitions. Add --execute to do it."
    store = keyed.store.runtime.store
    path = next(f"orders/0/{name}" for name in store.list("orders/0/") if name.endswith(".parquet"))
    data = store.get(path) or b""
    store.delete(path)
    store.write_file(path, [data[:-40] + b"x" * 40])
    assert run_job("compact", keyed, "orders", "--execute", "-o", "json") == 4
    said = capsys.readouterr()
    assert path in said.err
    found = msgspec.json.decode(said.out)
    assert [(each["partition"], each["outcome"]) for each in found] == [(1, "compacted")]
    assert run_job("compact", keyed, "__transaction_state") == 2
    assert "are its compaction" in capsys.readouterr().err
