"""Spark's documented switch PYSPARK_PIN_THREAD=false: streams commit, and no version is stored without its query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.spark import unpinned_driver as driver
from txlog.maintenance.fsck import check_store
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = pa.schema([pa.field("order_id", pa.int64(), nullable=False)])


@pytest.mark.parametrize(
    "roads", [("native",), pytest.param(("python", "native"), marks=pytest.mark.exhaustive)], ids="+".join
)
def test_threads_that_are_not_pinned(tmp_path: Path, roads: tuple[str, ...]) -> None:
    url = str(tmp_path / "log")
    with txlog.open(url) as store:
        store.create_topic("orders", SCHEMA, partitions=2)
    ran = subprocess.run(
        [sys.executable, driver.__file__, url, str(tmp_path), *roads],
        env={**os.environ, "PYSPARK_PIN_THREAD": "false"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-4000:]
    steps = [json.loads(line) for line in ran.stdout.decode().splitlines() if line.startswith("{")]
    refused = {"foreachBatch": "version=0 without a scope"}
    assert len(steps) == 2 * len(roads) + 2
    for step in steps:
        words = refused.get(step["step"])
        assert (
            (step["rows"] == 5 and not step["error"])
            if words is None
            else (not step["rows"] and words in step["error"])
        ), step
    with txlog.open(url) as store:
        scopes = {txn.transactional_id: txn.txn_scope for txn in store.admin().list_transactions()}
    # All but one are the id of a query.
    assert scopes.pop("each-2") == "its id"
    assert len(scopes) == 2 * len(roads)
    assert all(len(scope) == 36 for scope in scopes.values())
    assert check_store(open_object_store(url)).is_clean
