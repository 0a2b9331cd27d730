"""A Spark driver is killed in the middle of a write. After the next instance's init its rows are all there, or none."""

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
from lab.invariants import check_store
from tests.spark import driver
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = pa.schema([pa.field("order_id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, marks=[] if each == "decided" else [pytest.mark.exhaustive]) for each in driver.MOMENTS],
)
def test_a_killed_driver(tmp_path: Path, moment: str) -> None:
    url = str(tmp_path / "log")
    with txlog.open(url) as store:
        store.create_topic("orders", SCHEMA, partitions=2)
    process = subprocess.Popen(
        [sys.executable, driver.__file__, url, moment], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        assert process.wait(200) == -signal.SIGKILL
        with txlog.open(url) as store:
            # This is the next run of the job. The orphaned JVM may still be at work beside it.
            with store.producer("nightly", staged=True) as producer:
                version = store.admin().describe_transaction("nightly").txn_version
                if moment == "decided":
                    assert version == 7
                with producer.transaction(version=7) as again:
                    producer.send("orders", [{"order_id": one} for one in range(driver.ROWS)], partition=0)
                assert again.result is not None
                assert again.result.skipped == (version == 7)
            found: list[Any] = [
                one
                for batch in store.consumer("orders", auto_offset_reset="earliest").iterate()
                for one in batch["order_id"].to_pylist()
            ]
            assert sorted(found) == list(range(driver.ROWS))
        check_store(open_object_store(url))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
