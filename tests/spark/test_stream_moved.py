"""A streaming query keeps its checkpoint while its store moves to another folder, as docs/move-store.md promises."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.conftest import Log

pytestmark = pytest.mark.spark


def copy(log: Log, checkpoint: Path) -> None:
    """Copy the new rows of `orders` to `copies`, under the default transactional.id."""
    orders = log.spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", "earliest")
    query = orders.load(log.url).writeStream.format("txlog").option("topic", "copies")
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert query.start(log.url).awaitTermination(120)


def test_a_query_goes_on_where_its_store_is_now(log: Log, tmp_path: Path) -> None:
    log.create()
    log.create("copies")
    log.write(log.frame(0, 20))
    copy(log, tmp_path / "checkpoint")
    log.store.close()
    shutil.move(log.url, tmp_path / "moved")
    moved = Log(str(tmp_path / "moved"), log.spark)
    with closing(moved.store):
        moved.write(moved.frame(20, 10))
        copy(moved, tmp_path / "checkpoint")
        assert moved.ids("copies") == list(range(30))
    assert not Path(log.url).exists()
