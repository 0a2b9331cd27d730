"""The whole library on object stores: the probe, transactions of both kinds, sealing, and writers during faults."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import txlog
from lab.testing.fork_server import fork_server
from tests.servers import azure, gcs, s3
from tests.servers.fault_proxy import Fault, FaultProxy
from tests.servers.http import Response
from tests.servers.start import Server, start
from txlog.clock import SystemClock, SystemIds
from txlog.core.envelope import MAX_OBJECT_BYTES
from txlog.core.names import TopicPartition
from txlog.errors import NotAStoreError, OutcomeUnknownError, UnsupportedStoreError
from txlog.storage import fsspec_store, open as opening
from txlog.storage.object_store import PutOutcome
from txlog.storage.open import open_object_store, probe

SCHEMA = pa.schema([("id", pa.int64())])
KINDS = ("s3", "gcs", "azure")
ERRORS: dict[str, Callable[..., Response]] = {"s3": s3.error, "gcs": gcs.error, "azure": azure.error}
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start(request.param) as started:
        yield started


@pytest.fixture
def url(server: Server) -> str:
    return server.store_url(f"logs/{next(_NUMBERS)}")


@pytest.fixture(autouse=True)
def _nothing_probed_yet(monkeypatch):
    monkeypatch.setattr(opening, "_PROBED", {})


# -- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_refuses_a_server_that_ignores_the_condition(kind):
    """Such a server lets two writers create one name (W2)."""
    with start(kind, "--ignore-conditions") as server:
        url = server.store_url("x")
        store = open_object_store(url, server.storage_options)
        with pytest.raises(UnsupportedStoreError, match="ignores the condition of a create"):
            probe(store, SystemClock(), SystemIds())
        with (
            txlog.open(url, storage_options=server.storage_options) as opened,
            pytest.raises(UnsupportedStoreError, match="ignores the condition of a create"),
        ):
            opened.create_topic("t", SCHEMA)
        assert store.list("") == []


def test_a_good_server_elsewhere_says_nothing_of_a_bad_one_here():
    """Two places can have the same URL; only their storage options differ."""
    with start("s3") as good, start("s3", "--ignore-conditions") as bad:
        probe(open_object_store(good.store_url("x"), good.storage_options), SystemClock(), SystemIds())
        with pytest.raises(UnsupportedStoreError, match="ignores the condition"):
            probe(open_object_store(bad.store_url("x"), bad.storage_options), SystemClock(), SystemIds())


def test_a_bucket_that_does_not_exist(server):
    url = server.store_url("x").replace("://bucket", "://nowhere")
    with (
        pytest.raises(NotAStoreError, match=r"bucket or container does not exist"),
        txlog.open(url, storage_options=server.storage_options) as store,
    ):
        store.create_topic("t", SCHEMA)


# -- transactions -----------------------------------------------------------------------------------------------------


def test_transactions_a_consumer_and_a_sealed_segment(server, url):
    with txlog.open(url, storage_options=server.storage_options, config={"linger.ms": 0}) as store:
        store.create_topic("t", SCHEMA, partitions=2, config={"segment.batches": 3})
        with store.producer("eager", staged=False) as eager, store.producer("staged", staged=True) as staged:
            for turn in range(6):
                producer = (eager, staged)[turn % 2]
                producer.begin_transaction()
                # In the last turns the rows are too many to be inline.
                rows = pa.table({"id": pa.array(range(turn * 100_000, turn * 100_000 + (5, 20_000)[turn > 3]))})
                for partition in range(2):
                    producer.send("t", rows, partition=partition)
                if turn == 2:
                    producer.abort_transaction()
                else:
                    producer.send_offsets_to_transaction({("t", 0): turn}, "g")
                    producer.commit_transaction()
        names = store.runtime.store.list("t/0/")
        assert any(name.endswith(".index") for name in names)
    # Another process would see this, too.
    with txlog.open(url, storage_options=server.storage_options) as store:
        found = sorted(ids_of(store, "t"))
        turns = {0: 5, 1: 5, 3: 5, 4: 20_000, 5: 20_000}
        assert found == sorted(
            turn * 100_000 + n for turn, rows in turns.items() for n in range(rows) for _ in range(2)
        )
        (committed,) = store.consumer("t", group_id="g").committed(TopicPartition("t", 0)).values()
        assert committed is not None
        assert committed.offset == 5


def ids_of(store: txlog.Store, topic: str) -> list[int]:
    with store.consumer(topic, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        found: list[Any] = [row for batch in consumer.iterate(0) for row in batch.column("id").to_pylist()]
        return found


# -- faults -----------------------------------------------------------------------------------------------------------

SHARE = 0.05
TURNS = 10
WRITERS = 4


def weather_of(kind: str) -> list[Fault]:
    """Return the faults for requests, without stalls, because tests would wait for them."""
    answer = ERRORS[kind]
    return [
        *(Fault(action="answer", answer=answer(status, f"Code{status}")) for status in (409, 429, 500, 503, 503)),
        *(Fault(action="answer", moment="after", answer=answer(status, f"Code{status}")) for status in (500, 503)),
        Fault(action="reset"),
        Fault(action="reset", moment="after"),
        Fault(action="cut"),
        Fault(action="late"),
    ]


def test_writers_of_many_processes_in_bad_weather(server, url):
    """For each of the writers one request in twenty fails: no row is lost, and no row is duplicated."""
    with txlog.open(url, storage_options=server.storage_options) as store:
        store.create_topic("t", SCHEMA, partitions=3, config={"segment.batches": 8})
    with FaultProxy(server.url) as proxy, ProcessPoolExecutor(WRITERS, fork_server()) as pool:
        proxy.bad_weather(11, SHARE, weather_of(server.kind))
        options = server.at(proxy.url).storage_options
        committed = list(pool.map(functools.partial(write, url, options), range(WRITERS)))
        assert proxy.struck > 20, "that was good weather"
    with txlog.open(url, storage_options=server.storage_options) as store:
        assert sorted(ids_of(store, "t")) == sorted(itertools.chain.from_iterable(committed))
        for info in store.admin().list_offsets("t").values():
            assert info.last_stable_offset == info.log_end_offset


def write(url: str, options: dict[str, object], number: int) -> list[int]:
    """Run ten transactions in a separate process. Return the ids that were committed."""
    chance = random.Random(number)
    committed: list[int] = []
    settings = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, "linger.ms": 1}
    with (
        txlog.open(url, storage_options=options, config=settings) as store,
        store.producer(f"w{number}", staged=number % 2 == 1) as producer,
    ):
        for turn in range(TURNS):
            ids = [number * 10_000 + turn * 100 + n for n in range(chance.randrange(1, 5))]
            producer.begin_transaction()
            for n in ids:
                producer.send("t", [{"id": n}], partition=chance.randrange(3))
            if chance.random() < 0.25:
                producer.abort_transaction()
                continue
            try:
                producer.commit_transaction()
            except OutcomeUnknownError:
                producer.commit_transaction()
            committed += ids
    return committed


# -- large objects ----------------------------------------------------------------------------------------------------


# from aiohttp, about the bodies that drivers send
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_large_objects(server, monkeypatch):
    """A large file goes through the disk, in parts if the driver makes parts.

    A created object is always one request.
    """
    monkeypatch.setattr(fsspec_store, "SPOOL_BYTES", 2**20)
    body = bytes(range(256)) * (6 * 2**12)
    with FaultProxy(server.url) as proxy:
        store = open_object_store(server.at(proxy.url).store_url("large"), server.at(proxy.url).storage_options)
        assert store.write_file("file", (body[n : n + 2**16] for n in range(0, len(body), 2**16))) == len(body)
        assert store.get("file") == body
        assert store.get_range("file", 5 * 2**20, 5 * 2**20 + 10) == body[:10]
        largest = bytes(MAX_OBJECT_BYTES)
        proxy.strike()
        assert store.put_if_absent("largest", largest) is PutOutcome.WRITTEN
        assert store.put_if_absent("largest", b"") is PutOutcome.CONFLICT
        assert len(proxy.requests) == 2
        assert store.size("largest") == MAX_OBJECT_BYTES
