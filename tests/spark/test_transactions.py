"""Several DataFrames, several topics and offsets in one transaction: all or nothing, wherever the program dies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F

from lab.invariants import check_store
from pyspark_txlog import TxLog
from pyspark_txlog.native.write import Road
from pyspark_txlog.sink.checkpoint import Checkpoint
from pyspark_txlog.sink.micro_batch import MicroBatch, check_scope
from tests.spark.conftest import Console, Log, append
from txlog.client.offsets import committed_offsets
from txlog.client.reading import read_session
from txlog.core.names import TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.engine import TxnVersion
from txlog.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidRequestError,
    ProducerFencedError,
    SchemaMismatchError,
    TxnVersionScopeError,
)
from txlog.storage.open import open_object_store
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

pytestmark = pytest.mark.spark
TOPICS = ("orders", "items", "audit")
CLICKS = TopicPartition("clicks", 0)
GROUP = "nightly"


@pytest.fixture
def three(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    """Yield the log through TxLog, with three topics."""
    for topic in TOPICS:
        log.create(topic)
    with TxLog(spark, log.url, {"fsync": False}) as opened:
        yield opened


def write_three(opened: TxLog, log: Log, *, version: int | None = None, count: int = 6, **more: Any) -> Any:
    """Write one transaction over three topics with offsets under a condition, as a job would."""
    with opened.transaction("nightly", version, **more) as txn:
        txn.write(log.frame(0, count), "orders", key="order_id")
        txn.write(log.frame(0, count), "items", road="executors" if count > 6 else "auto")
        txn.write(log.frame(0, count), "audit")
        txn.send_offsets({CLICKS: 17}, GROUP, expected={CLICKS: None})
    return txn


def committed(log: Log) -> int | None:
    found = committed_offsets(read_session(log.store.runtime), GROUP, [CLICKS])[CLICKS]
    return None if found is None else found.offset


def assert_whole(log: Log, opened: TxLog, count: int) -> None:
    """Check that each topic has `count` orders once, in a snapshot and in plain reads, and that the offsets match."""
    cut = opened.snapshot(*TOPICS)
    for topic in TOPICS:
        ids = sorted(row.order_id for row in cut.to_df(topic, ["order_id"]).collect())
        assert ids == log.ids(topic) == list(range(count))
    assert committed(log) == (17 if count else None)


@pytest.mark.smoke
def test_all_of_it_or_nothing(log: Log, three: TxLog) -> None:
    class OutOfLuckError(Exception):
        pass

    def fails() -> None:
        with three.transaction("nightly") as txn:
            txn.write(log.frame(0, 6), "orders")
            txn.write(log.frame(0, 6), "items", road="executors")
            txn.send_offsets({CLICKS: 17}, GROUP)
            raise OutOfLuckError

    with pytest.raises(OutOfLuckError):
        fails()
    assert_whole(log, three, 0)
    txn = write_three(three, log, count=12)
    assert not txn.repeated
    assert not txn.result.skipped
    assert_whole(log, three, 12)
    check_store(open_object_store(log.url))


def test_a_repeated_version_computes_nothing(log: Log, three: TxLog, console: Console, capfd: Any) -> None:
    assert not write_three(three, log, version=7).repeated
    computed = log.spark.sparkContext.accumulator(0)

    def count(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            computed.add(batch.num_rows)
            yield batch

    frame = log.frame(0, 6)
    counting = frame.mapInArrow(count, frame.schema)
    for version in (7, 3):
        with three.transaction("nightly", version) as txn:
            assert txn.repeated
            for road in ("auto", "driver", "executors"):
                txn.write(counting, "orders", road=road)
            # The condition does not hold any more, but a skipped transaction does not check it.
            txn.send_offsets({CLICKS: 17}, GROUP, expected={CLICKS: None})
        assert txn.result is not None
        assert txn.result.skipped
    assert computed.value == 0
    assert "version 3 is not above 7" in capfd.readouterr().err
    assert_whole(log, three, 6)
    # A skipped transaction still reports a wrong schema.
    with pytest.raises(SchemaMismatchError), three.transaction("nightly", 7) as txn:
        txn.write(frame.withColumn("strange", F.lit(1)), "orders")
    append(three.table("orders"), log.frame(6, 1), transactional_id="nightly", version=8)
    assert log.ids() == list(range(7))


def test_one_version_is_not_two_appends_to_two_topics(log: Log, three: TxLog) -> None:
    clean, audit = TOPICS[:2]
    for _ in range(2):
        append(three.table(clean), log.frame(0, 5), transactional_id="nightly", version=1)
    with pytest.raises(InvalidRequestError, match=rf"was committed for {clean}, so the rows for {audit} would be"):
        append(three.table(audit), log.frame(0, 5), transactional_id="nightly", version=1)
    # Another instance detects it, too.
    with (
        TxLog(log.spark, log.url) as other,
        pytest.raises(InvalidRequestError, match="would be skipped"),
        other.transaction("nightly", version=1) as txn,
    ):
        txn.write(log.frame(0, 5), audit)
    assert (len(log.ids(clean)), len(log.ids(audit))) == (5, 0)
    with three.transaction("nightly", version=2):
        pass
    with pytest.raises(InvalidRequestError, match="it was committed for no topic, so the rows for"):
        append(three.table(clean), log.frame(5, 5), transactional_id="nightly", version=2)


def test_a_write_that_is_done_after_the_end_of_its_transaction_is_an_error(
    log: Log, three: TxLog, tmp_path: Path
) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"

    def wait(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        started.touch()
        while not ended.exists():
            time.sleep(0.02)
        yield from rows

    frame = log.frame(0, 5)
    slow = frame.mapInArrow(wait, frame.schema)
    with ThreadPoolExecutor(1) as pool:
        with three.transaction("nightly", version=1) as txn:
            write = inheritable_thread_target(log.spark)(txn.write)
            late = pool.submit(write, slow, "orders", road="driver")
            while not started.exists():
                time.sleep(0.02)
        ended.touch()
        with pytest.raises(IllegalStateError, match=r"write\(\) after the end of its transaction"):
            late.result(timeout=60)
    assert log.ids() == []


def test_versions_of_another_scope_are_refused_before_anything_runs(log: Log, three: TxLog) -> None:
    write_three(three, log, version=7)
    with pytest.raises(TxnVersionScopeError, match=r"'nightly' holds txn.version 7 of scope ''"):
        append(three.table("orders"), log.frame(6, 1), transactional_id="nightly", version=8, scope="a query")
    with pytest.raises(InvalidRequestError, match="name one"):
        append(three.table("orders"), log.frame(6, 1), version=8)
    with pytest.raises(InvalidRequestError, match="without a version"):
        append(three.table("orders"), log.frame(6, 1), transactional_id="nightly", scope="a query")
    assert_whole(log, three, 6)


def test_two_jobs_that_took_one_range(spark: SparkSession, log: Log, three: TxLog) -> None:
    """Two jobs have different ids and one range.

    The offsets' condition lets one of them commit; the rows of the other stay invisible.
    """
    write_three(three, log)
    with pytest.raises(CommitFailedError), three.transaction("other") as txn:  # noqa: PT012
        txn.write(log.frame(0, 6), "orders")
        txn.send_offsets('{"clicks": {"0": 17}}', GROUP, expected={CLICKS: None})
    assert_whole(log, three, 6)
    with three.transaction("other") as txn:
        txn.write(log.frame(6, 1), "orders")
        txn.send_offsets('{"clicks": {"0": 18}}', GROUP, expected='{"clicks": {"0": 17}}')
    assert committed(log) == 18
    check_store(open_object_store(log.url))


def test_two_runs_of_one_job(spark: SparkSession, log: Log, three: TxLog) -> None:
    """The later run fences the earlier one, also in the middle of its writes. The earlier one stays fenced."""
    with TxLog(spark, log.url, {"fsync": False}) as later:
        with pytest.raises(ProducerFencedError, match="'nightly'"), three.transaction("nightly") as txn:  # noqa: PT012
            txn.write(log.frame(100, 6), "orders", road="executors")
            write_three(later, log)
            txn.write(log.frame(100, 6), "items")
        assert_whole(log, later, 6)
        with later.transaction("nightly") as txn:
            txn.write(log.frame(6, 1), "orders")
        # A new transaction of the earlier instance makes it the newest one.
        with three.transaction("nightly") as txn:
            txn.write(log.frame(7, 1), "orders")
        with pytest.raises(ProducerFencedError), later.transaction("nightly") as txn:
            txn.write(log.frame(8, 1), "orders")
    assert log.ids() == list(range(8))
    check_store(open_object_store(log.url))


def test_a_write_that_failed_cannot_be_forgotten(log: Log, three: TxLog) -> None:
    with pytest.raises(IllegalStateError, match=r"a write of this transaction failed .*SchemaMismatchError"):  # noqa: PT012, SIM117
        with three.transaction("nightly") as txn:
            txn.write(log.frame(0, 6), "orders")
            with pytest.raises(SchemaMismatchError):
                txn.write(log.frame(0, 6).withColumn("strange", F.lit(1)), "items")
    assert_whole(log, three, 0)
    with pytest.raises(IllegalStateError, match="after the end"):
        txn.write(log.frame(0, 6), "orders")
    with three.transaction("nightly"), pytest.raises(IllegalStateError, match="open already"):
        append(three.table("orders"), log.frame(0, 6), transactional_id="nightly")
    write_three(three, log)
    assert_whole(log, three, 6)


def test_writes_of_several_threads(log: Log, three: TxLog) -> None:
    failed: list[BaseException] = []
    with three.transaction() as txn:

        def write(topic: str, road: Road) -> None:
            try:
                txn.write(log.frame(0, 20), topic, road=road)
            except BaseException as error:
                failed.append(error)

        threads = [
            threading.Thread(target=write, args=(topic, road))
            for topic, road in zip(TOPICS, ("driver", "executors", "executors"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert all(log.ids(topic) == list(range(20)) for topic in TOPICS)
    # A drawn id is forgotten.
    assert log.transactions() == {}


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_driver_that_dies_at_any_write(
    spark: SparkSession, log: Log, three: TxLog, tmp_path: Path, step: int
) -> None:
    """Kill the driver before and after each write of the transaction, from the init on.

    The next run with the same version completes it, and no reader sees a part of it in between. The store before a
    write is the one after the write before it, so every second write has each state. (Real kills are in
    test_transaction_killed.py.)
    """

    def run(url: str, *faults: Fault) -> tuple[FailingStore, SimulatedCrash | None]:
        store = FailingStore(open_object_store(url, {"fsync": False}), *faults)
        opened = TxLog(spark, url, {"fsync": False}, object_store=store)
        try:
            write_three(opened, log, version=1)
        except SimulatedCrash as crash:
            return store, crash
        finally:
            opened.runtime.close()
        return store, None

    writes = r"^(put_if_absent|put|write_file) (?!__probe)"
    store, crash = run(log.url)
    assert crash is None
    points = sum(each.startswith(("put", "write_file")) and "__probe" not in each for each in store.operations)
    assert points >= 10, store.operations
    outcomes = set()
    for number in sorted({*range(1, points + 1, step), points}):
        for moment in ("before", "after"):
            again = Log(str(tmp_path / f"{number}-{moment}"), spark)
            for topic in TOPICS:
                again.create(topic)
            _, crash = run(again.url, Fault(action="crash", moment=moment, match=writes, number=number))
            with TxLog(spark, again.url, {"fsync": False}) as opened:
                seen = whole(opened)
                assert seen in (0, 6), (number, moment, seen)
                txn = write_three(opened, again, version=1)
                outcomes.add((crash is not None, seen, txn.repeated))
                assert whole(opened) == 6, (number, moment)
            assert [len(ids(again, topic)) for topic in TOPICS] == [6, 6, 6]
            assert committed(again) == 17
            check_store(open_object_store(again.url))
            again.store.close()
    # It died before the decision, after the decision with nothing visible yet, and with all rows visible.
    assert outcomes >= {(True, 0, False), (True, 0, True), (True, 6, True)}, outcomes


def whole(opened: TxLog) -> int:
    """Return the rows of each topic in a snapshot. All topics have the same number."""
    cut = opened.snapshot(*TOPICS)
    counts = {
        sum(task.rows for task in cut._tasks(opened.runtime.topic(topic), opened.table(topic).schema))
        for topic in TOPICS
    }
    assert len(counts) == 1, counts
    return counts.pop()


def ids(log: Log, topic: str) -> list[int]:
    found: list[Any] = []
    for batch in log.store.consumer(topic, auto_offset_reset="earliest").iterate():
        found += batch["order_id"].to_pylist()
    return found


# -- streams ----------------------------------------------------------------------------------------------------------


class Source:
    """A folder of files, each of them a micro-batch of a stream of orders."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.checkpoint = str(folder / "checkpoint")
        (folder / "in").mkdir(parents=True)

    def add(self, *numbers: int) -> None:
        name = self.folder / "in" / f"{numbers[0]:05}.json"
        name.write_text("".join(f'{{"order_id": {number}}}\n' for number in numbers))
        # Spark takes the oldest file first, and two files of the same millisecond in any order.
        os.utime(name, (1_700_000_000 + numbers[0],) * 2)

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema("order_id bigint").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "in"))

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as if the driver had died between the end of the batch and Spark's own commit log."""
        commits = Path(self.checkpoint) / "commits"
        newest = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
        for name in (str(newest), f".{newest}.crc"):
            (commits / name).unlink(missing_ok=True)


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    made = Source(spark, tmp_path / "stream")
    made.add(0, 1, 2)
    made.add(3, 4)
    return made


def run_batches(source: Source, write: Callable[[DataFrame, int], None]) -> None:
    writer = source.frame().writeStream.foreachBatch(write).option("checkpointLocation", source.checkpoint)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)


@pytest.mark.smoke
def test_foreach_batch_to_three_topics_exactly_once(log: Log, three: TxLog, source: Source) -> None:
    """A repeated batch is recognised by its number. A batch that failed midway left nothing."""
    repeated: list[bool] = []
    fail_at: list[int] = [1]

    def write(batch: DataFrame, number: int) -> None:
        with three.transaction("clean", version=number) as txn:
            repeated.append(txn.repeated)
            txn.write(batch, "orders")
            if number in fail_at:
                raise RuntimeError("the driver's luck is out")
            txn.write(batch, "items")
            txn.write(batch, "audit", road="executors")

    with pytest.raises(StreamingQueryException, match="luck is out"):
        run_batches(source, write)
    assert all(log.ids(topic) == [0, 1, 2] for topic in TOPICS)
    fail_at.clear()
    run_batches(source, write)
    source.forget_last_commit()
    source.add(5)
    run_batches(source, write)
    assert all(log.ids(topic) == list(range(6)) for topic in TOPICS)
    assert repeated == [False, False, False, True, False]
    # The scope was the query's id.
    last = log.store.admin().describe_transaction("clean")
    assert (last.txn_version, len(last.txn_scope)) == (2, 36)
    # A query with a lost checkpoint counts from 0 again, under another query id. It fails; it does not skip batches.
    source.checkpoint += "-2"
    with pytest.raises(StreamingQueryException, match="lost checkpoint"):
        run_batches(source, write)
    assert all(log.ids(topic) == list(range(6)) for topic in TOPICS)
    check_store(open_object_store(log.url))


def test_take_over(spark: SparkSession, log: Log, three: TxLog) -> None:
    """It fences others and finishes what they left, unless its check refuses; a second call changes nothing (W42)."""
    with TxLog(spark, log.url, {"fsync": False}) as other:
        first = other.take_over("clean")
        assert (first.transactional_id, first.state, first.timeout_ms) == ("clean", "EMPTY", 60_000)
        assert other.take_over("clean") == first
        with other.transaction("clean", 1):
            pass

        def refuse(current: TransactionMetadata | None) -> None:
            assert current is not None
            raise InvalidRequestError(f"version {current.txn_version} is there")

        with pytest.raises(InvalidRequestError, match="version 1 is there"):
            three.take_over("clean", check=refuse)
        with other.transaction("clean", 2):
            pass
        left = other.transaction("clean", 3)
        txn = left.__enter__()
        txn.write(log.frame(0, 2), "orders")
        second = three.take_over("clean", transaction_timeout_ms=30_000)
        assert (second.producer_id, second.txn_version, second.timeout_ms) == (first.producer_id, 2, 30_000)
        assert second.producer_epoch > first.producer_epoch
        with pytest.raises(ProducerFencedError, match="'clean'"):
            left.__exit__(None, None, None)
        with three.transaction("clean", 3, transaction_timeout_ms=30_000):
            pass
    assert log.ids() == []


def test_take_over_takes_back_what_another_program_took(spark: SparkSession, log: Log, three: TxLog) -> None:
    """Without it a program that was fenced stays fenced, also between its transactions, and the error shows it."""
    with TxLog(spark, log.url, {"fsync": False}) as other:
        for number in range(3):
            with three.transaction("clean", number):
                pass
        other.take_over("clean")
        for number in range(3, 6):
            with other.transaction("clean", number):
                pass
        ran = False
        with pytest.raises(ProducerFencedError, match=r"'clean'.* took over"), three.transaction("clean", 6):
            ran = True
        assert not ran
        with other.transaction("clean", 6):
            pass
        taken = three.take_over("clean")
        assert taken.txn_version == 6
        with pytest.raises(ProducerFencedError), other.transaction("clean", 7):
            pass
        with three.transaction("clean", 7):
            pass
        # Also from a TxLog that had the id before, and has not noticed its loss. A second call changes nothing.
        epochs = [each.take_over("clean").producer_epoch for each in (three, other, three, three)]
        assert epochs == [epochs[0], epochs[0] + 1, epochs[0] + 2, epochs[0] + 2]


def test_take_over_goes_on_with_a_querys_micro_batches(
    spark: SparkSession, log: Log, three: TxLog, tmp_path: Path
) -> None:
    """Another process that takes a query over may have committed several micro-batches since this TxLog lost it."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    for number in range(8):
        (tmp_path / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
    kept = Checkpoint.open(str(tmp_path), {})

    def commit(by: TxLog, number: int) -> TransactionMetadata:
        version = TxnVersion(version=number, scope="q")
        with by._transactions.begin("query", version, {}, lambda now: check_scope(now, "q")) as txn:
            txn.carry_sources(MicroBatch(query_id="q", number=number, checkpoint=kept))
        assert txn.result is not None
        return txn.result.txn

    with TxLog(spark, log.url, {"fsync": False}) as other:
        for by, numbers in ((three, range(3)), (other, range(3, 6)), (three, range(6, 8))):
            by.take_over("query")
            assert [commit(by, number).txn_version for number in numbers] == list(numbers)
        other.take_over("query")
        with pytest.raises(InvalidRequestError, match="has committed micro-batch 7 of it"):
            commit(other, 6)
        assert commit(other, 7).txn_version == 7
