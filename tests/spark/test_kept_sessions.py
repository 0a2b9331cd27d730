"""A process that commits one micro-batch after the other keeps what it knows of the store, and is wrong about nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import txlog
from pyspark_txlog import kept_sessions
from pyspark_txlog.stream_writer import StreamFiles, TxlogStreamWriter
from tests.spark.conftest import ORDERS
from txlog.client.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.client.staged_files import StagedFiles
from txlog.errors import ProducerFencedError
from txlog.storage.arrow_schema import conform
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore
from txlog.testing.invariants import check_store

SCHEMA = StructType([StructField("order_id", LongType())])


class Query:
    """A streaming query's sink as Spark calls it, in this process: a micro-batch of one row a partition."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "log")
        self.checkpoint = folder / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id":"query"}')
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
        assert begun._txn is not None
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{number}")
        runtime = Runtime.open(self.url, storage_options={"fsync": False})
        files = StagedFiles(runtime, begun._txn)
        topic = runtime.topic("orders")
        for partition in (0, 1):
            rows = pa.table({"order_id": [number * 2 + partition]})
            files.add(topic, conform(rows, topic.schema, topic="orders"), partition)
        message = StreamFiles(parts=files.finish(), txn=begun._txn, query_id="query")
        runtime.close()
        TxlogStreamWriter.settling(self.options, SCHEMA).commit([message], number)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CountingStore]]:
    """Every store that is opened from here on; nothing is kept from before, and nothing after."""
    stores: list[CountingStore] = []
    original = Runtime.open

    def opened(url: str, *, storage_options: Any = None, **others: Any) -> Runtime:
        stores.append(CountingStore(open_object_store(url, storage_options)))
        return original(url, storage_options=storage_options, **{**others, "object_store": stores[-1]})

    monkeypatch.setattr(kept_sessions, "_KEPT", type(kept_sessions._KEPT)())
    monkeypatch.setattr(Runtime, "open", opened)
    yield stores
    for session in kept_sessions._KEPT.values():
        session.runtime.close()


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path)
    with txlog.open(made.url, storage_options={"fsync": False}) as store:
        store.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": "3"})
    return made


def ids(url: str) -> list[int]:
    with txlog.open(url) as store:
        consumer = store.consumer("orders", auto_offset_reset="earliest")
        return sorted(one for batch in consumer.iterate() for one in batch["order_id"].to_pylist())


def test_the_next_micro_batch_opens_nothing_anew(query: Query, counted: list[CountingStore]) -> None:
    begun = query.begin()
    query.commit(begun, 0)
    session = next(iter(kept_sessions._KEPT.values()))
    store = session.runtime.store
    assert isinstance(store, CountingStore)
    for number in (1, 2):
        before = store.requests()
        begun = query.begin()
        began = store.requests() - before
        before = store.requests()
        query.commit(begun, number)
        committed = store.requests() - before
    # The id's record and the topic's metadata are looked at anew, and the id is taken over.
    assert (began.list, began.put_if_absent, began.get <= 4) == (0, 1, True), began
    # ONGOING, the offsets, the decision, three markers, the end.
    assert (committed.list, committed.put_if_absent) == (0, 7), committed
    assert committed.get <= 4, committed
    assert len(kept_sessions._KEPT) == 1
    assert ids(query.url) == list(range(6))


def test_others_come_between_two_micro_batches(query: Query, counted: list[CountingStore]) -> None:
    """Rows of others, segments that they seal, another instance of the id: what is kept is stale each time."""
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
    assert not kept_sessions._KEPT, "a session that met an error is not kept"
    query.commit(query.begin(), 8)
    assert ids(query.url)[:18] == list(range(18))
    check_store(open_object_store(query.url))


def test_so_many_are_kept_and_the_oldest_goes(query: Query, counted: list[CountingStore]) -> None:
    for number in range(kept_sessions.MAX_SESSIONS + 2):
        query.options["transactional.id"] = f"cleaner-{number}"
        query.begin()
    assert len(kept_sessions._KEPT) == kept_sessions.MAX_SESSIONS
    names = [json_key for _, json_key in kept_sessions._KEPT]
    assert "cleaner-0" not in names[0]
    assert f"cleaner-{kept_sessions.MAX_SESSIONS + 1}" in names[-1]
