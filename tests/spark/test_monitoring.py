"""What Spark lets through to people who watch it: metrics of queries, and the log records of its Python processes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pyspark_txlog
import txlog
from tests.cli.support import run as command
from tests.spark.conftest import Console, Log
from tests.spark.limits import IS_4_0, needs_limits
from tests.spark.test_stream_queries import WAIT_S, Sink, send, sink
from txlog import metrics
from txlog.metrics import Registry
from txlog.metrics.table import METRICS

__all__ = ["sink"]

pytestmark = pytest.mark.spark


@pytest.fixture
def registry(spark: SparkSession) -> Iterator[Registry]:
    """Return the registry into which a listener of the session counts during the test."""
    with metrics.enabled() as registry:
        listener = pyspark_txlog.ProgressMetrics()
        spark.streams.addListener(listener)
        yield registry
        spark.streams.removeListener(listener)


def eventually(registry: Registry, name: str, expected: dict[tuple[str, ...], float]) -> None:
    """Spark calls listeners from another thread."""
    deadline = time.monotonic() + WAIT_S
    while registry.values(f"txlog_query_{name}") != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    assert registry.values(f"txlog_query_{name}") == expected


@needs_limits
def test_the_metrics_of_a_query(sink: Sink, registry: Registry) -> None:
    log = sink.log
    log.create("copy")
    send(log, 0, 7)

    def start(**options: Any) -> Any:
        frame = sink.stream(maxOffsetsPerTrigger=2, **options)
        writer = frame.writeStream.format("txlog").queryName("copier").option("topic", "copy")
        writer = writer.option("transactional.id", "copier").option("checkpointLocation", str(sink.checkpoint))
        return writer.trigger(processingTime="1 hour").start(log.url)

    query = start()
    try:
        deadline = time.monotonic() + WAIT_S
        while not query.recentProgress:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        eventually(registry, "batches_total", {("copier",): 1})
        eventually(registry, "input_rows_total", {("copier",): 2})
        eventually(registry, "lag_offsets", {("copier",): 5})
        eventually(registry, "lost_offsets", {("copier",): 0})
        (waited,) = registry.values("txlog_query_lag_seconds").values()
        assert 0 < waited < WAIT_S
        (last,) = registry.values("txlog_query_last_batch").values()
        assert last == log.store.admin().describe_transaction("copier").txn_version == 0
        (at,) = registry.values("txlog_query_last_batch_timestamp_seconds").values()
        assert abs(time.time() - at) < 2 * WAIT_S
        (durations,) = registry.histograms("txlog_query_batch_duration_seconds").values()
        assert (sum(durations.counts), durations.sum > 0.01) == (1, True)
        counted = {name for name in METRICS if registry.values(name) or registry.histograms(name)}
        assert {name for name, metric in METRICS.items() if metric.source == "spark"} <= counted
    finally:
        query.stop()
    eventually(registry, "ended_total", {("copier", "stopped"): 1, ("copier", "failed"): 0})
    eventually(registry, "lag_offsets", {})
    assert registry.values("txlog_query_batches_total") == {("copier",): 1}


def test_a_query_that_fails(sink: Sink, registry: Registry) -> None:
    send(sink.log, 0, 3)
    sink.fail_at = 0
    query = sink.start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(WAIT_S)
    eventually(registry, "ended_total", {(str(query.id), "stopped"): 0, (str(query.id), "failed"): 1})


@pytest.mark.python_source
def test_the_log_of_the_python_processes(log: Log, console: Console, spark: SparkSession) -> None:
    log.create()
    for _ in range(2):
        log.write(log.frame(0, 4), transactional_id="nightly", txn_version=1)
    line = (
        "transactional.id 'nightly': txn.version 1 is not above 1, the last one committed: this write was "
        "done before, and is skipped"
    )
    assert console.says(f"txlog: {line}\n")
    # Events below a warning are quiet.
    assert "initialized" not in console.text()
    if IS_4_0:
        return  # it keeps no logs of its Python processes
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        log.write(log.frame(0, 4), transactional_id="nightly", txn_version=1)
        (row,) = [row for row in spark.tvf.python_worker_logs().collect() if row.logger.startswith("pyspark_txlog.")]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    assert (row.level, row.msg) == ("WARNING", line)
    fields = {name: value for name, value in row.context.items() if name.startswith("txlog_")}
    assert fields == {
        "txlog_event": "transaction_skipped",
        "txlog_transactional_id": "nightly",
        "txlog_producer_id": str(log.store.admin().describe_transaction("nightly").producer_id),
        "txlog_producer_epoch": fields["txlog_producer_epoch"],
        "txlog_txn_version": "1",
    }


PAGE = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
CLIENT = [code for code in PYTHON if "pyspark" not in code]


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.skipif(IS_4_0, reason="it keeps no logs of its Python processes")
def test_the_programs_of_the_page(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting, exporting, logging_json = CLIENT
    shown, warned = (code for language, code in BLOCKS if language == "text")
    assert [run(tmp_path, counting).stdout for _ in range(2)] == [shown, shown]
    exported = run(tmp_path, exporting).stdout
    assert '"name": "txlog.consumed_rows"' in exported
    # The second run has the same version, so its transaction is skipped.
    first, again = (run(tmp_path, logging_json).stderr.splitlines() for _ in range(2))
    (record,) = (json.loads(code) for language, code in BLOCKS if language == "json")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", json.loads(first[1])["time"])
    assert {**json.loads(first[1]), "time": record["time"]} == record
    assert [json.loads(line)["txlog_event"] for line in again] == ["producer_initialized", "transaction_skipped"]

    monkeypatch.chdir(tmp_path)
    exporter, commands = (code for language, code in BLOCKS if language == "sh")
    for line in commands.splitlines():
        assert command(*line.split()[1:]).status == 0, line
    assert set(re.findall(r"--[a-z-]+", exporter)) <= set(re.findall(r"--[a-z-]+", command("exporter", "--help").out))

    log_table, streaming = (code for code in PYTHON if code not in CLIENT)
    with metrics.enabled() as registry:
        for code in (log_table, streaming):
            # Spark's JVM keeps the folder in which it was started.
            here = re.sub(r'"(my-log|copier-checkpoint)"', lambda name: repr(str(tmp_path / name[1])), code)
            exec(compile(here, "docs/monitor.md", "exec"), {"__name__": "__main__"})
        eventually(registry, "input_rows_total", {("copier",): 5})
    assert warned in capsys.readouterr().out
    spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")
    with txlog.open("my-log") as store, store.consumer("copy", auto_offset_reset="earliest") as consumer:
        assert sum(batch.num_rows for batch in consumer.iterate()) == 5


def test_the_page_lists_every_event() -> None:
    root = Path(__file__).parents[2]
    modules = [module for folder in ("txlog", "spark_ext") for module in (root / folder).rglob("*.py")]
    calls = [
        node for module in modules for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)
    ]
    # `self._log` is the call of a class that names its logger once.
    places = {"log": 2, "logs.log": 2, "self._log": 1}
    named = {
        str(name.value)
        for call in calls
        if (at := places.get(ast.unparse(call.func))) is not None
        and len(call.args) > at
        and isinstance(name := call.args[at], ast.Constant)
    }
    assert len(named) > 20
    table = "\n".join(line for line in PAGE.splitlines() if re.match(r"\| (DEBUG|INFO|WARNING|ERROR) ", line))
    assert {name for name in named if f"`{name}`" not in table} == set()
    # No listener, logger or module prints beside the logs, except commands.
    prints = [
        module for module in modules if re.search(r"^\s+(print\(|warnings\.warn)", module.read_text(), re.MULTILINE)
    ]
    names = {str(module.relative_to(root)) for module in prints if "/cli/" not in str(module)}
    assert names <= {"txlog/logs.py", "txlog/client/producer/at_exit.py", "spark_ext/pyspark_txlog/messages.py"}
