"""What a process counts: requests, rows, transactions, retries. And how Prometheus and OpenTelemetry get it."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import txlog
from lab.testing.store_contract import StoreContract
from tests.client.world import World, many, orders, rows_of
from tests.metrics.world import commit, exporter_of, filled
from txlog import metrics
from txlog.client.reading import plan
from txlog.core.effects import PutOutcome
from txlog.engine import StagedTransaction, read_task, tasks as read_tasks
from txlog.engine.arrow import StagedFiles
from txlog.errors import MissingObjectError, OutcomeUnknownError, ProducerFencedError, StorageError
from txlog.metrics import Registry
from txlog.metrics.registry import MAX_SERIES, OTHER
from txlog.metrics.table import METRICS, SECONDS
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.metered import MeteredStore, metered, topic_of
from txlog.storage.object_store import ObjectStore, make_durable
from txlog.testing.failing_store import FailingStore, Fault


def value(registry: Registry, name: str, *labels: str) -> float:
    return registry.values(f"txlog_{name}").get(labels, 0)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Parse Prometheus text."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- requests ---------------------------------------------------------------------------------------------------------


class TestMeteredStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _enabled(self, registry: Registry) -> None: ...

    def make_store(self, tmp_path: Path) -> ObjectStore:
        store = metered(MemoryObjectStore("contract"))
        assert isinstance(store, MeteredStore)
        return store


def test_a_folder_stays_a_folder(registry: Registry, tmp_path: Path) -> None:
    store = metered(LocalObjectStore(str(tmp_path)))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x").write_bytes(b"1")
    make_durable(store, "t/x")
    with pytest.raises(MissingObjectError):
        make_durable(store, "t/y")
    make_durable(metered(MemoryObjectStore()), "t/y")  # no file that could be lost
    assert metered(store) is store
    assert (store.url, store.place) == (cast(MeteredStore, store).inner.url, cast(MeteredStore, store).inner.place)


def test_requests_by_verb_outcome_and_topic(registry: Registry) -> None:
    failing = FailingStore(
        MemoryObjectStore(),
        Fault(action="fail", match=r"list u/"),
        Fault(action="lose_reply", moment="after", match=r"put_if_absent t/9"),
    )
    store = metered(failing)
    store.put_if_absent("t/1", b"12345")
    store.put_if_absent("t/1", b"x")
    assert store.put_if_absent("t/9", b"x") is PutOutcome.UNKNOWN
    store.write_file("t/f", [b"abc", b"de"])
    assert store.get("t/1") == b"12345"
    assert store.get("t/2") is None
    assert store.get_range("t/f", 1, 3) == b"bc"
    with pytest.raises(MissingObjectError):
        store.size("u/1")
    with pytest.raises(StorageError):
        store.list("u/")
    store.list("")
    store.modified_ms("t/1")
    store.delete("t/1")
    assert registry.values("txlog_storage_requests_total") == {
        ("put_if_absent", "ok", "t"): 1,
        ("put_if_absent", "conflict", "t"): 1,
        ("put_if_absent", "unknown", "t"): 1,
        ("write_file", "ok", "t"): 1,
        ("get", "ok", "t"): 1,
        ("get", "missing", "t"): 1,
        ("get_range", "ok", "t"): 1,
        ("size", "missing", "u"): 1,
        ("list", "error", "u"): 1,
        ("list", "ok", ""): 1,
        ("modified_ms", "ok", "t"): 1,
        ("delete", "ok", "t"): 1,
    }
    assert registry.values("txlog_storage_read_bytes_total") == {("t",): 7}
    assert registry.values("txlog_storage_written_bytes_total") == {("t",): 12}
    found = registry.histograms("txlog_storage_request_duration_seconds")
    assert sum(found["get",].counts) == 2
    assert found["get",].sum > 0


def test_a_write_of_unknown_outcome_is_counted_as_such(registry: Registry) -> None:
    class Unsure(MemoryObjectStore):
        def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
            raise OutcomeUnknownError("no answer")

    with pytest.raises(OutcomeUnknownError):
        metered(Unsure()).put_if_absent("t/1", b"")
    assert value(registry, "storage_requests_total", "put_if_absent", "unknown", "t") == 1


@pytest.mark.parametrize(
    ("path", "topic"),
    [
        ("orders/0/00000000000000000000.batch", "orders"),
        ("__transaction_state/3/", "__transaction_state"),
        ("__consumer_offsets/0/x", "__consumer_offsets"),
        ("__probe/abc", ""),
        ("__maintenance/", ""),
        ("txlog.json", ""),
        ("", ""),
        ("bad name\n/x", ""),
    ],
)
def test_the_topic_of_an_object(path: str, topic: str) -> None:
    assert topic_of(path) == topic


# -- rows and transactions --------------------------------------------------------------------------------------------


def test_rows_of_every_kind_of_producer(world: World, registry: Registry) -> None:
    store = filled(world, 2, 1)
    assert value(registry, "produced_rows_total", "t0") == 1
    for number, staged in enumerate((None, False, True), 1):
        with store.producer(f"p{staged}", staged=staged) as producer:
            with producer.transaction(version=1):
                producer.send("t1", orders(1, 2), partition=0)
            with producer.transaction(version=1):
                producer.send("t1", orders(1, 2), partition=0)  # skipped
        assert value(registry, "produced_rows_total", "t1") == 1 + 2 * number
        assert value(registry, "transactions_total", "skipped") == number
    with store.producer("p") as producer:
        for flush in (False, True):
            producer.begin_transaction()
            producer.send("t1", orders(1), partition=0)
            if flush:
                producer.flush()
            producer.abort_transaction()
    assert value(registry, "transactions_total", "committed") == 3
    assert value(registry, "transactions_total", "aborted") == 2
    assert value(registry, "produced_rows_total", "t1") == 8  # the flushed row is in the log, although aborted
    assert value(registry, "produced_bytes_total", "t1") > 8 * 8
    ends = registry.histograms("txlog_transaction_end_duration_seconds")
    assert sum(ends["commit",].counts) == 6
    assert sum(ends["abort",].counts) == 1


def test_rows_of_an_engine(world: World, registry: Registry) -> None:
    store = filled(world, 1, 1)
    runtime = store.runtime
    transaction = StagedTransaction.begin(runtime, "job")
    files = StagedFiles(runtime, transaction.txn)
    files.add(runtime.topic("t0"), many(5), 0)
    parts = files.finish()
    transaction.commit(parts)
    transaction.abort()
    assert value(registry, "produced_rows_total", "t0") == 6
    assert value(registry, "transactions_total", "committed") == 1
    assert value(registry, "transactions_total", "aborted") == 1
    older = StagedTransaction.begin(runtime, "job")
    files = StagedFiles(runtime, older.txn)
    files.add(runtime.topic("t0"), many(5), 0)
    parts = files.finish()
    StagedTransaction.begin(runtime, "job")
    with pytest.raises(ProducerFencedError):
        older.commit(parts)
    with pytest.raises(ProducerFencedError):
        older.abort()
    assert value(registry, "fenced_producers_total") == 1
    (task,) = read_tasks(runtime, [plan(runtime, "t0", 0, 0, None)])
    assert sum(batch.num_rows for batch in read_task(task, runtime.store)) == 6
    assert value(registry, "consumed_rows_total", "t0") == 6
    assert value(registry, "consumed_bytes_total", "t0") > 6 * 8


def test_a_consumer_counts_what_it_returns(world: World, registry: Registry) -> None:
    store = filled(world, 1, 2)
    consumer = store.consumer("t0", auto_offset_reset="earliest")
    assert len(rows_of(consumer)) == 2
    assert value(registry, "consumed_rows_total", "t0") == 2


def test_a_fenced_producer_is_counted_once(world: World, registry: Registry) -> None:
    store = filled(world)
    older = store.producer("id")
    older.init_transactions()
    older.begin_transaction()
    older.send("t0", orders(1), partition=0)
    store.producer("id").init_transactions()
    for _ in range(2):
        with pytest.raises(ProducerFencedError):
            older.commit_transaction()
    assert value(registry, "fenced_producers_total") == 1
    assert value(registry, "transactions_total", "failed") == 1


def test_retries_of_requests_calls_and_batches(world: World, registry: Registry) -> None:
    outage, store = world.outage()
    store.create_topic("t0", partitions=1)
    outage.fails("get t0/topic", 1)
    store.topic("t0")
    assert value(registry, "retries_total", "request") == 1
    outage.fails("get t0/topic", 5)
    store.topic("t0")
    assert value(registry, "retries_total", "call") == 1
    with store.producer(inline_max_bytes=0) as producer:
        outage.fails("write_file", 1)
        producer.send("t0", [{"value": b"x"}], partition=0).result()
    assert value(registry, "retries_total", "batch") == 1


# -- the registry -----------------------------------------------------------------------------------------------------


def test_threads_lose_no_count(registry: Registry) -> None:
    def work() -> None:
        for number in range(2000):
            registry.add("txlog_produced_rows_total", 1, f"t{number % 3}")
            registry.observe("txlog_storage_request_duration_seconds", 0.001, "get")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        metrics.text()
    for thread in threads:
        thread.join()
    assert sum(registry.values("txlog_produced_rows_total").values()) == 16_000
    assert sum(registry.histograms("txlog_storage_request_duration_seconds")["get",].counts) == 16_000


def test_sets_of_labels_are_bounded(registry: Registry) -> None:
    for number in range(MAX_SERIES + 5):
        registry.add("txlog_consumed_rows_total", 1, f"t{number}")
    found = registry.values("txlog_consumed_rows_total")
    assert len(found) == MAX_SERIES + 1
    assert found[OTHER,] == 5


def test_a_bucket_holds_its_upper_bound(registry: Registry) -> None:
    for seconds in (SECONDS[0], SECONDS[0] * 1.01, SECONDS[-1] + 1):
        registry.observe("txlog_storage_request_duration_seconds", seconds, "get")
    found = samples(metrics.text())

    def bucket(bound: str) -> float:
        return found["txlog_storage_request_duration_seconds_bucket", frozenset({("verb", "get"), ("le", bound)})]

    assert (bucket("0.0005"), bucket("0.001"), bucket("30.0"), bucket("+Inf")) == (1, 2, 2, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_begins_at_zero(registry: Registry) -> None:
    metrics.count("txlog_retries_total", 3, "call")
    reader, writer = os.pipe()
    with registry._lock:  # as if another thread counted at the fork
        child = os.fork()
        if not child:
            metrics.count("txlog_retries_total", 1, "call")
            os.write(writer, str(registry.values("txlog_retries_total")).encode())
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1000) == b"{('call',): 1}"
    assert value(registry, "retries_total", "call") == 3


# -- Prometheus and OpenTelemetry -------------------------------------------------------------------------------------


def test_serving_over_http(world: World, registry: Registry) -> None:
    filled(world)
    with metrics.serve(port=0) as server, urllib.request.urlopen(server.url, timeout=10) as answer:
        found = samples(answer.read().decode())
    assert found["txlog_produced_rows_total", frozenset({("topic", "t0")})] == 2
    assert found["txlog_build_info", frozenset({("version", txlog.__version__)})] == 1


def test_a_collector_in_a_registry_of_the_program(world: World, registry: Registry) -> None:
    filled(world)
    own = CollectorRegistry()
    own.register(metrics.collector())
    assert generate_latest(own).decode() == metrics.text()
    with pytest.raises(ValueError, match="Duplicated"):
        own.register(metrics.collector())


HOSTILE = 'a"b\\c\nd{}#,=é\u2028'


def test_hostile_names_in_labels(world: World, registry: Registry) -> None:
    store = world.open()
    names = ["a.b-c_D", "-", "0", "x" * 249, "{}"]
    for name in names[:-1]:
        store.create_topic(name)
    commit(store, HOSTILE, 0, "-")
    registry.add("txlog_consumed_rows_total", 1, HOSTILE)
    exporter_of(world, registry).refresh()
    found = samples(metrics.text())
    for name in names[:-1]:
        assert found["txlog_log_end_offset", frozenset({("topic", name), ("partition", "0")})] == 0
    assert found["txlog_consumed_rows_total", frozenset({("topic", HOSTILE)})] == 1
    lag = frozenset({("group", HOSTILE), ("topic", "-"), ("partition", "0")})
    assert found["txlog_group_lag_offsets", lag] == 0


@pytest.fixture
def otel() -> Iterator[tuple[InMemoryMetricReader, MeterProvider]]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    yield reader, provider
    provider.shutdown()


def test_opentelemetry_gets_the_same_numbers(
    world: World, registry: Registry, otel: tuple[InMemoryMetricReader, MeterProvider]
) -> None:
    reader, provider = otel
    metrics.opentelemetry(provider)
    store = filled(world, 2, 2)
    with store.producer("id") as producer, producer.transaction():
        producer.send("t0", orders(1), partition=0)
    exporter_of(world, registry).refresh()
    data: Any = reader.get_metrics_data()
    found = {each.name: each for each in data.resource_metrics[0].scope_metrics[0].metrics}
    with_numbers = {name for name in METRICS if registry.values(name) or registry.histograms(name)}
    assert set(found) == {METRICS[name].instrument for name in with_numbers}
    for name in with_numbers:
        metric = METRICS[name]
        points = found[metric.instrument].data.data_points
        by_labels = {tuple(point.attributes[label] for label in metric.labels): point for point in points}
        if metric.kind == "histogram":
            for labels, histogram in registry.histograms(name).items():
                assert list(by_labels[labels].bucket_counts) == histogram.counts
                assert list(by_labels[labels].explicit_bounds) == list(SECONDS)
                assert by_labels[labels].sum == pytest.approx(histogram.sum)
        else:
            assert {labels: point.value for labels, point in by_labels.items()} == registry.values(name)
        if metric.kind == "counter":
            assert found[metric.instrument].data.is_monotonic


def test_the_environment_asks_for_opentelemetry(
    monkeypatch: pytest.MonkeyPatch, otel: tuple[InMemoryMetricReader, MeterProvider]
) -> None:
    reader, provider = otel
    monkeypatch.setenv("TXLOG_METRICS", "opentelemetry")
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", provider)
    with metrics.enabled():
        metrics.disable()  # as in a new process
        with txlog.open("memory://from-the-environment") as store:
            store.create_topic("t0")
        data: Any = reader.get_metrics_data()
        found = {each.name: each.data for each in data.resource_metrics[0].scope_metrics[0].metrics}
        assert sum(point.value for point in found["txlog.storage_requests"].data_points) > 3
    assert metrics.active() is None


def test_threads_that_open_stores_at_once_export_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLOG_METRICS", "opentelemetry")
    both = threading.Barrier(2)
    exports = []

    def export(*_: object) -> None:
        exports.append(1)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        metrics.enable()

    monkeypatch.setattr(metrics, "opentelemetry", export)
    with metrics.enabled():
        metrics.disable()  # as in a new process
        threads = [threading.Thread(target=metrics.from_environment) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(exports) == 1
