"""Spark runs a task twice at the same time, on two workers: its rows are in the log once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.spark import speculation_driver as driver
from tests.spark_cluster import running_cluster
from txlog.maintenance.fsck import check_store
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.storm]
SCHEMA = pa.schema([pa.field("order_id", pa.int64(), nullable=False)])


@pytest.mark.parametrize("road", ["executors", "native", "python"])
def test_a_task_that_runs_twice_at_once(tmp_path: Path, road: str) -> None:
    url = str(tmp_path / "log")
    marks = tmp_path / "marks"
    marks.mkdir()
    console = tmp_path / "console.txt"
    with txlog.open(url) as store, running_cluster(tmp_path / "cluster") as cluster:
        store.create_topic("orders", SCHEMA, partitions=2)
        with console.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, driver.__file__, url, str(marks), cluster.master, road],
                stderr=output,
                stdout=output,
                start_new_session=True,
            )
        try:
            assert process.wait(250) == 0, console.read_text()[-4000:]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert {mark.name for mark in marks.iterdir()} >= {"0-0", "0-1"}
        consumer = store.consumer("orders", auto_offset_reset="earliest")
        found: list[Any] = [one for batch in consumer.iterate() for one in batch["order_id"].to_pylist()]
        assert sorted(found) == list(range(driver.ROWS))
    assert check_store(open_object_store(url)).is_clean
