"""Ctrl-C in the middle of a commit: each transaction is in the log as a whole or not at all, and the next one
succeeds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.disk import interrupted
from txlog.maintenance.fsck import check_store
from txlog.storage.local import LocalObjectStore


def start(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.disk.interrupted", str(root), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def rows_in(root: Path) -> Counter[int]:
    """Return how often each transaction's id is there, for read_committed."""
    _, store = interrupted.opened(str(root))
    with store, store.consumer("orders", auto_offset_reset="earliest") as consumer:
        return Counter(row["id"] for batch in consumer.iterate(0) for row in batch.to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    _, store = interrupted.opened(str(tmp_path / "store"))
    with store:
        store.create_topic("orders", interrupted.ROWS, partitions=2, config={"segment.batches": 7})
    return tmp_path / "store"


@pytest.mark.parametrize("mode", ["eager", "staged"])
def test_ctrl_c_at_many_points(root: Path, mode: str) -> None:
    done = start(root, mode, "1", "1")
    assert done.returncode == 0, done.stderr
    outcomes = {end["number"]: end["outcome"] for end in map(json.loads, done.stdout.splitlines())}
    assert set(outcomes.values()) <= {"committed", "interrupted"}, outcomes
    assert sum(outcome == "interrupted" for outcome in outcomes.values()) > 5
    found = rows_in(root)
    assert set(found.values()) == {2}  # a row in each partition, or none
    for number, outcome in outcomes.items():
        assert found[number] == 2 or outcome == "interrupted", (number, outcome)
    report = check_store(LocalObjectStore(str(root)))
    assert report.is_clean, report.findings


@pytest.mark.parametrize("at", ["4", "9", "14"])
def test_ctrl_c_ends_the_program(root: Path, at: str) -> None:
    done = start(root, "eager", at, "die")
    assert done.returncode in (-signal.SIGINT, 130), done
    assert "KeyboardInterrupt" in done.stderr
    report = check_store(LocalObjectStore(str(root)))
    assert report.is_clean, report.findings
    _, store = interrupted.opened(str(root))
    with store:
        producer = interrupted.new_producer(store, staged=False)
        interrupted.transaction(producer, 200_000)
        producer.close()
    found = rows_in(root)
    assert found[200_000] == 2
    assert found[int(at)] in (0, 2)
    assert check_store(LocalObjectStore(str(root))).is_clean
