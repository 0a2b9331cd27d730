"""Do the names follow Prometheus, does the page list every metric, and is every metric really emitted?"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, cast

import pytest

import txlog
from conf.site import metrics as site_metrics
from conf.site.markdown import escape
from tests.client.world import Outage, World, orders
from tests.metrics.world import commit, emitted, exporter_of, filled, hang
from txlog import metrics
from txlog.errors import InvalidConfigurationError, ProducerFencedError
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.metrics import RoundMetrics
from txlog.metrics import Registry
from txlog.metrics.table import METRICS
from txlog.storage.object_store import ObjectStore

UNBOUNDED = {"transactional_id", "producer_id", "offset", "member", "path"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: Any) -> None:
    assert re.fullmatch(r"txlog(_[a-z]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert (metric.kind == "histogram") <= metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|millis|kb|mb|count|sum|bucket|created)(_|$)", metric.name)
    assert re.search(r"bytes|duration|_seconds", metric.name) is None or metric.unit in ("bytes", "seconds")
    assert metric.help.endswith(".")
    assert not UNBOUNDED & set(metric.labels)
    assert "partition" not in metric.labels or metric.source == "store"
    assert re.fullmatch(r"txlog\.[a-z]+(_[a-z]+)*", metric.instrument)


def test_instruments_of_opentelemetry_have_units() -> None:
    names = {metric.instrument: metric.instrument_unit for metric in METRICS.values()}
    assert len(names) == len(METRICS)
    assert names["txlog.storage_request_duration_seconds"] == "s"
    assert names["txlog.produced_bytes"] == "By"
    assert names["txlog.produced_rows"] == "1"


def test_every_metric_is_emitted(world: World, registry: Registry) -> None:
    rounds = RoundMetrics(registry)
    outage = Outage(world.memory)
    world.counting.inner = cast(ObjectStore, outage)
    store = filled(world, 2, 2, segment_batches=1, publish_formats="delta", publish_max_lag_ms=0)
    with store.producer("twice") as producer, producer.transaction():
        producer.send("t0", orders(1), partition=0)
        producer.flush()
        outage.fails("get t1", 1)
        store.topic("t1")
    with store.producer("old") as old:
        old.begin_transaction()
        store.producer("old").init_transactions()
        with pytest.raises(ProducerFencedError):
            old.send("t0", orders(1), partition=0).result()
    with store.producer() as producer:
        for number in range(6):
            producer.send("t1", orders(number), partition=1).result()
    with store.consumer("t1", group_id="g", auto_offset_reset="earliest") as consumer:
        assert sum(batch.num_rows for batch in consumer.iterate(0))
    commit(store, "slow", 1, "t1", 1)
    hang(store)
    rounds.add(Maintainer(store.runtime, MaintainPolicy(merge_min_segments=2)).run())
    exporter_of(world, registry).refresh()
    # Those of Spark are tested with a query: tests/spark/test_monitoring.py.
    ours = {name: metric for name, metric in METRICS.items() if metric.source != "spark"}
    assert emitted(registry) == set(ours)
    for metric in ours.values():
        series = registry.values(metric.name) or registry.histograms(metric.name)
        assert {len(labels) for labels in series} == {len(metric.labels)}, metric.name


def test_the_page_lists_every_metric() -> None:
    page = site_metrics.page()
    for metric in METRICS.values():
        assert page.count(f"### `{metric.name}`\n") == 1
        section = page.partition(f"### `{metric.name}`\n")[2].partition("\n##")[0]
        assert escape(metric.help) in section
        assert f"**Kind:** {metric.kind}." in section
        assert all(f"`{label}`" in section for label in metric.labels)
    assert all(escape(text) in page for text in site_metrics.SOURCES.values())


def test_importing_txlog_loads_neither_prometheus_nor_opentelemetry() -> None:
    program = (
        "import sys, tempfile, txlog, txlog.metrics\n"
        "txlog.metrics.enable()\n"
        "store = txlog.open(tempfile.mkdtemp() + '/s')\n"
        "print([name for name in sys.modules if name.startswith(('prometheus_client', 'opentelemetry'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("module", "call", "extra"), [
    ("prometheus_client", "text()", "metrics"), ("opentelemetry", "opentelemetry()", "otel"),
])  # fmt: skip
def test_a_missing_extra_says_how_to_install_it(module: str, call: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import txlog, txlog.metrics\n"
        f"try: txlog.metrics.{call}\n"
        "except txlog.InvalidRequestError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "is not installed. hint: pip install" in done.stdout
    assert f"[{extra}]" in done.stdout


def test_nothing_is_counted_unless_somebody_asks(world: World) -> None:
    assert metrics.active() is None
    store = filled(world)
    assert store.runtime.store is world.counting
    metrics.count("txlog_retries_total", 1, "call")
    assert metrics.active() is None


def test_a_wrong_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLOG_METRICS", "prometheus")
    with pytest.raises(InvalidConfigurationError, match="TXLOG_METRICS='prometheus' is not known"):
        txlog.open("memory://wrong-environment")
