"""`txlog maintain`: output and status. tests/maintenance tests what a round does."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import order_rows
from tests.cli.support import Cli
from tests.cli.test_main import EXECUTABLE
from txlog import client
from txlog.client import Store
from txlog.maintenance.maintain import Maintainer, MaintainReport
from txlog.storage.local import LocalObjectStore
from txlog.testing.failing_store import FailingStore, Fault


def fill(store: Store) -> None:
    store.alter_topic("orders", config={"segment.batches": 2})
    with store.producer() as producer:
        for number in range(9):
            producer.send("orders", order_rows(number, 1), partition=0).result()
    hanging = store.producer("hanging", transaction_timeout_ms=1)
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.send("orders", order_rows(90, 2), partition=1)
    hanging.flush()
    store._clients.discard(hanging)


def test_one_round(cli: Cli, store: Store, tmp_path: Path) -> None:
    fill(store)
    metrics = tmp_path / "txlog.prom"
    lines = cli("maintain", "--once", "--merge-min-segments", 2, "--metrics-file", str(metrics)).lines
    text = "\n".join(lines)
    assert "aborted the transaction of 'hanging', which was past its time-out" in text
    assert "merged 4 segments, 4 files" in text
    assert "Failed" not in text
    assert 'txlog_maintain_work_total{step="transactions",what="aborted"} 1.0' in metrics.read_text().splitlines()
    again = cli("maintain", "--once", "--merge-min-segments", 2, "--output", "json").json
    assert set(again) == set(MaintainReport.__struct_fields__)
    assert not any(step["done"] or step["failed"] for step in again["steps"])
    waits = cli("maintain", "--once").lines
    assert "Nothing was done." in waits
    assert "Nothing was due." not in waits
    assert "Nothing was due." in cli("maintain", "--once", "--skip", "vacuum").lines
    assert "published" in cli("history").out


def test_a_failure_has_its_status_and_the_rest_is_done(cli: Cli, store: Store) -> None:
    fill(store)
    (cli.root / "orders/0/00000000000000000008.batch").write_bytes(b"damaged\n")
    done = cli("maintain", "--once", status=4)
    assert "aborted the transaction of 'hanging'" in done.out
    assert "Failed" in done.lines
    assert "00000000000000000008.batch" in done.out
    failed = cli("maintain", "--once", status=4).lines
    assert "Nothing was done." in failed
    assert "Nothing was due." not in failed
    again = subprocess.run(
        [EXECUTABLE, "maintain", "--once", "--store", cli.root], capture_output=True, text=True, check=False
    )
    assert again.returncode == 4
    assert "00000000000000000008.batch" not in again.stderr
    assert "00000000000000000008.batch" in again.stdout


def test_calls_that_make_no_sense(cli: Cli, store: Store) -> None:
    assert "--once for one round or --daemon" in cli.fails("maintain")
    assert "--once for one round or --daemon" in cli.fails("maintain", "--once", "--daemon")
    assert "--interval-ms -1: expected milliseconds" in cli.fails("maintain", "--daemon", "--interval-ms", -1)
    assert "--metrics-port needs --daemon" in cli.fails("maintain", "--once", "--metrics-port", 0)
    assert "'sweep' is not a step" in cli.fails("maintain", "--once", "--skip", "sweep")


def test_a_daemon_goes_round_until_a_signal_ends_it_in_peace(cli: Cli, store: Store) -> None:
    fill(store)
    line = [str(EXECUTABLE), "maintain", "--daemon", "--store", str(cli.root), "--output", "json", "--interval-ms", "1"]
    line += ["--jitter-ms", "2", "--merge-min-segments", "2", "--metrics-port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert any(step["done"] for step in first["steps"])
    assert not any(step["done"] or step["failed"] for step in second["steps"])
    assert "Metrics at http://127.0.0.1:" in err
    assert "Ended by SIGTERM after " in err


def test_a_round_that_does_not_reach_the_store_counts(
    cli: Cli, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_run = client.open, Maintainer.run
    outage = Fault(action="fail", match="^get txlog.json", number=2, times=10**6)
    failing = FailingStore(LocalObjectStore(str(cli.root), fsync=False), outage)
    config = {"default.api.timeout.ms": 50, "retries": 0}
    monkeypatch.setattr(
        client, "open", lambda url, **options: real_open(url, **options, object_store=failing, config=config)
    )
    rounds = 0

    def run(maintainer: Maintainer) -> MaintainReport:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            signal.raise_signal(signal.SIGTERM)  # it ends the daemon after this round
        maintainer.runtime.check_store(now=True)
        return real_run(maintainer)

    monkeypatch.setattr(Maintainer, "run", run)
    metrics = tmp_path / "txlog.prom"
    done = cli("maintain", "--daemon", "--interval-ms", 0, "--jitter-ms", 0, "--metrics-file", str(metrics))
    assert failing.struck
    assert done.err.count("the next round tries again") == 2
    samples = metrics.read_text().splitlines()
    assert "txlog_maintain_rounds_total 2.0" in samples
    assert "txlog_maintain_last_round_failures 1.0" in samples
    assert not any(line.startswith("txlog_maintain_last_round_timestamp_seconds ") for line in samples)
