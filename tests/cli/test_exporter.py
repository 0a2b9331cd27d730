"""`txlog exporter` as a process, and what it refuses."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import order_rows
from tests.cli.support import Cli
from tests.cli.test_main import EXECUTABLE
from txlog.client import Store


def scrape(url: str) -> dict[str, float]:
    """Return the samples that have at most the labels of one topic, by their name and the labels' values."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@contextmanager
def exporter(cli: Cli, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run an exporter, and yield it with the address that it prints."""
    line = [str(EXECUTABLE), "exporter", "--store", str(cli.root), "--port", "0", *args]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            first = process.stderr.readline()
            assert first.startswith("Metrics at http://127.0.0.1:"), first + process.stderr.read()
            yield process, first.split()[-1]
        finally:
            process.kill()


def test_an_exporter_follows_a_store_and_ends_in_peace(cli: Cli, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", order_rows(0, 3), partition=0).result()
        with exporter(cli, "--min-interval-ms", "0") as (process, url):
            found = scrape(url)
            assert found["txlog_up"] == 1
            assert found["txlog_log_end_offset 0 orders"] == 3
            assert found["txlog_exporter_look_requests"] > 5
            producer.send("orders", order_rows(0, 2), partition=0).result()
            found = scrape(url)
            assert found["txlog_log_end_offset 0 orders"] == 5
            assert found["txlog_exporter_looks_total ok"] == 2
            away = cli.root.with_name("away")
            cli.root.rename(away)
            found = scrape(url)
            assert found["txlog_up"] == 0
            assert "txlog_log_end_offset 0 orders" not in found
            if cli.root.exists():
                shutil.rmtree(cli.root)
            away.rename(cli.root)
            assert scrape(url)["txlog_up"] == 1
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Ended by SIGTERM." in err
    assert "Traceback" not in err


def test_what_an_exporter_refuses(cli: Cli, store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = cli.fails("exporter", "--port", port)
        assert f"metrics cannot be served at 127.0.0.1:{port}" in said
        assert "hint: choose another port" in said
    assert "cannot be served" in cli.fails("exporter", "--port", 70_000)
    shutil.rmtree(cli.root)
    assert "holds no txlog store" in cli.fails("exporter")
