"""Does a process that commits many micro-batches keep what it knows about the store, without being wrong?"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import txlog
from lab.invariants import check_store
from pyspark_txlog.options import Options
from pyspark_txlog.sink import session_cache
from pyspark_txlog.sink.options import parse_stream_write_options
from pyspark_txlog.sink.stream_writer import StreamFiles, TxlogStreamWriter
from tests.spark.conftest import ORDERS
from txlog.client.session.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.records import StagedPart, TopicMetadata, TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import (
    InvalidRequestError,
    ProducerFencedError,
    StoreChangedError,
    UnknownTopicOrPartitionError,
)
from txlog.storage.conform import conform
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore

SCHEMA = StructType([StructField("order_id", LongType())])


class Query:
    """The sink of a streaming query, called as Spark calls it, in this process.

    A micro-batch has one row for each partition.
    """

    def __init__(self, folder: Path, name: str = "query") -> None:
        self.url = str(folder / "log")
        self.name = name
        self.checkpoint = folder / f"checkpoint-{name}"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": name}))
        self.options = {
            "path": self.url,
            "topic": "orders",
            "transactional.id": "cleaner",
            "checkpointLocation": str(self.checkpoint),
            "storage.fsync": "false",
        }

    def begin(self) -> TxlogStreamWriter:
        return TxlogStreamWriter.begin(self.options, SCHEMA, overwrite=False)

    def commit(self, begun: TxlogStreamWriter, number: int) -> None:
        assert begun.txn is not None
        self.plan(number)
        runtime = Runtime.open(self.url, storage_options={"fsync": False})
        parts = stage(runtime, begun.txn, number)
        message = StreamFiles(parts=parts, txn=begun.txn, query_id=self.name, store_id=begun.store_id)
        runtime.close()
        TxlogStreamWriter.settling(self.options, SCHEMA).commit([message], number)

    def run(self, number: int, between: Callable[[], None] = lambda: None) -> TransactionMetadata:
        """Do the whole micro-batch, as after `install`. Return the record with which it began."""
        self.plan(number)
        begun: list[TransactionMetadata] = []

        def write(
            runtime: Runtime, _: Options, txn: TransactionMetadata, topic: TopicMetadata | None
        ) -> tuple[StagedPart, ...]:
            begun.append(txn)
            between()
            return stage(runtime, txn, number)

        def skip() -> None:
            raise AssertionError("no micro-batch of these tests is repeated")

        TxlogStreamWriter.run(parse_stream_write_options(self.options), SCHEMA, write, self.name, number, skip)
        return begun[0]

    def plan(self, number: int) -> None:
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")


def stage(runtime: Runtime, txn: TransactionMetadata, number: int) -> tuple[StagedPart, ...]:
    files = StagedFiles(runtime, txn)
    topic = runtime.topic("orders")
    for partition in (0, 1):
        rows = pa.table({"order_id": [number * 2 + partition]})
        files.add(topic, conform(rows, topic.schema, topic="orders"), partition)
    return files.finish()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CountingStore]]:
    """Collect every store that is opened in the test, and clear the kept sessions before and after."""
    stores: list[CountingStore] = []
    original = Runtime.open

    def opened(url: str, *, storage_options: Any = None, **others: Any) -> Runtime:
        stores.append(CountingStore(open_object_store(url, storage_options)))
        return original(url, storage_options=storage_options, **{**others, "object_store": stores[-1]})

    monkeypatch.setattr(session_cache, "_CACHE", type(session_cache._CACHE)())
    monkeypatch.setattr(Runtime, "open", opened)
    yield stores
    for session in session_cache._CACHE.values():
        session.runtime.close()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path)
    make_store(made.url)
    return made


def make_store(url: str) -> None:
    with txlog.open(url, storage_options={"fsync": False}) as store:
        store.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": "3"})


def ids(url: str) -> list[int]:
    with txlog.open(url) as store:
        consumer = store.consumer("orders", auto_offset_reset="earliest")
        found: list[Any] = [one for batch in consumer.iterate() for one in batch["order_id"].to_pylist()]
        return sorted(found)


def test_the_next_micro_batch_opens_nothing_anew(query: Query, counted: list[CountingStore]) -> None:
    begun = query.begin()
    query.commit(begun, 0)
    session = next(iter(session_cache._CACHE.values()))
    store = session.runtime.store
    assert isinstance(store, CountingStore)
    for number in (1, 2):
        before = store.requests()
        begun = query.begin()
        began = store.requests() - before
        before = store.requests()
        query.commit(begun, number)
        committed = store.requests() - before
    # The store's descriptor, the topic's metadata and the id's record are read again. The last records of the id's
    # partition must still exist. The init is one write.
    assert (began.list, began.put_if_absent, began.get <= 5) == (0, 1, True), began
    # ONGOING, the offsets, the decision, three markers and the end.
    assert (committed.list, committed.put_if_absent) == (0, 7), committed
    # The descriptor, the records in which four partitions ended before, and those in which they end now.
    assert committed.get <= 11, committed
    assert len(session_cache._CACHE) == 1
    assert ids(query.url) == list(range(6))


def test_a_micro_batch_in_one_process_needs_one_session_and_no_init(query: Query, counted: list[CountingStore]) -> None:
    assert query.run(0).state == "EMPTY"
    session = next(iter(session_cache._CACHE.values()))
    store = session.runtime.store
    assert isinstance(store, CountingStore)
    for number in (1, 2):
        before = store.requests()
        assert query.run(number).state == "COMPLETE_COMMIT"
        made = store.requests() - before
    # ONGOING, the offsets, the decision, three markers and the end. The calls alone, each with a session, have 16 GETs.
    assert (made.list, made.put_if_absent) == (0, 7), made
    assert made.get <= 12, made
    assert ids(query.url) == list(range(6))


def test_another_instance_is_fenced_also_if_it_comes_between(query: Query, counted: list[CountingStore]) -> None:
    """An init must follow each one of another process, and of a run in this process that goes on after it was
    stopped."""
    query.run(0)
    with txlog.open(query.url) as store:
        other = StagedTransaction.begin(store.runtime, "cleaner")
        assert query.run(1).producer_epoch == other.producer_epoch + 1
        with pytest.raises(ProducerFencedError):
            other.commit(version=TxnVersion(version=2, scope="query"))
    begun: list[TransactionMetadata] = []
    with pytest.raises(ProducerFencedError, match="micro-batch 2: another run of this query"):
        query.run(2, lambda: begun.append(query.run(2)))
    assert begun[0].state == "EMPTY", "the second run fences the first one, whose micro-batch is still open"
    query.run(3)
    assert ids(query.url) == list(range(8))
    check_store(open_object_store(query.url))


def test_others_come_between_two_micro_batches(query: Query, counted: list[CountingStore]) -> None:
    """Other writers append rows and seal segments, and another instance takes the id: each time the kept state is
    stale."""
    for number in range(8):
        begun = query.begin()
        with txlog.open(query.url) as store, store.producer("other") as producer:
            for one in range(3):
                with producer.transaction():
                    producer.send("orders", [{"order_id": 1000 + number * 3 + one}], partition=one % 2)
        query.commit(begun, number)
        assert ids(query.url) == [*range(number * 2 + 2), *range(1000, 1003 + number * 3)]
    begun = query.begin()
    with txlog.open(query.url) as store:
        StagedTransaction.begin(store.runtime, "cleaner")
    with pytest.raises(ProducerFencedError, match="micro-batch 8: another run of this query"):
        query.commit(begun, 8)
    assert not session_cache._CACHE, "a session that met an error is not kept"
    query.commit(query.begin(), 8)
    assert ids(query.url)[:18] == list(range(18))
    check_store(open_object_store(query.url))


def test_a_topic_that_is_created_again_between_the_tasks_and_the_commit_fails_the_micro_batch(
    query: Query, counted: list[CountingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    query.commit(query.begin(), 0)
    finish = StagedFiles.finish

    def late(files: StagedFiles) -> Any:
        parts = finish(files)
        with txlog.open(query.url) as store:
            store.delete_topic("orders")
            store.create_topic("orders", ORDERS, partitions=2)
        return parts

    begun = query.begin()
    with monkeypatch.context() as patched:
        patched.setattr(StagedFiles, "finish", late)
        with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
            query.commit(begun, 1)
    # Spark runs the micro-batch again, and its tasks read the topic's metadata again.
    query.commit(query.begin(), 1)
    assert ids(query.url) == [2, 3]


def test_a_query_without_a_topic_reads_no_checkpoint_and_no_store(query: Query, counted: list[CountingStore]) -> None:
    (query.checkpoint / "metadata").write_text("{}")
    del query.options["topic"]
    with pytest.raises(InvalidRequestError, match="to which topic"):
        query.begin()
    assert not counted


def test_so_many_are_kept_and_the_oldest_goes(query: Query, counted: list[CountingStore]) -> None:
    for number in range(session_cache.MAX_SESSIONS + 2):
        query.options["transactional.id"] = f"cleaner-{number}"
        query.begin()
    assert len(session_cache._CACHE) == session_cache.MAX_SESSIONS
    names = [json_key for _, json_key in session_cache._CACHE]
    assert "cleaner-0" not in names[0]
    assert f"cleaner-{session_cache.MAX_SESSIONS + 1}" in names[-1]


def test_the_store_is_made_anew_between_two_micro_batches(query: Query, counted: list[CountingStore]) -> None:
    for number in range(2):
        query.commit(query.begin(), number)
    shutil.rmtree(query.url)
    make_store(query.url)
    with pytest.raises(StoreChangedError, match="another store lies here now") as raised:
        query.begin()
    assert "start with a new checkpoint" in "".join(raised.value.__notes__)
    assert ids(query.url) == []
    check_store(open_object_store(query.url))


def test_a_new_query_begins_in_a_store_that_was_made_anew(
    query: Query, tmp_path: Path, counted: list[CountingStore]
) -> None:
    for number in range(2):
        query.commit(query.begin(), number)
    shutil.rmtree(query.url)
    make_store(query.url)
    later = Query(tmp_path, "later")
    for number in range(3):
        later.commit(later.begin(), number)
    assert ids(query.url) == list(range(6))
    check_store(open_object_store(query.url))


def test_the_store_is_made_anew_within_a_micro_batch(query: Query, counted: list[CountingStore]) -> None:
    """The store is created again while the commit runs in another process. The new store gives out the same ids."""
    begun = query.begin()
    shutil.rmtree(query.url)
    make_store(query.url)
    session_cache._CACHE.clear()
    again = query.begin().txn
    assert again is not None
    assert begun.txn is not None
    assert again.producer_id == begun.txn.producer_id
    with pytest.raises(StoreChangedError, match="was begun in the store with store_id"):
        query.commit(begun, 0)
    assert ids(query.url) == []


@pytest.mark.parametrize("at", ["begin", "commit"])
def test_the_store_is_put_back_to_an_older_state(
    query: Query, tmp_path: Path, counted: list[CountingStore], at: str
) -> None:
    copy = str(tmp_path / "copy")
    for number in range(4):
        if number == 2:
            shutil.copytree(query.url, copy)
        query.commit(query.begin(), number)
    begun = query.begin()
    shutil.rmtree(query.url)
    shutil.copytree(copy, query.url)
    with pytest.raises(StoreChangedError, match=r"this process has seen it up to .* put back to an older state"):
        query.begin() if at == "begin" else query.commit(begun, 4)
    # The next start of the query reports the missing batches.
    with pytest.raises(
        InvalidRequestError, match=r"micro-batch 4: the last one .* is 1, .* the log was put back to an older state"
    ):
        query.commit(query.begin(), 4)
    assert ids(query.url) == list(range(4))
    check_store(open_object_store(query.url))
