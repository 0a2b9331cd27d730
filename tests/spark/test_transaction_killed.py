"""A driver is killed at a named point of a transaction over three topics: all of it is there, or nothing.

A snapshot shows this at once, and every reader after the next instance's init. After the job ran again, its rows are
there once.
"""

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
from tests.spark import transaction_driver as driver
from txlog.client.offsets import committed_offsets
from txlog.client.reading import plan_reads, read_session, read_task, take_cut, tasks
from txlog.client.store import Store
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = pa.schema([pa.field("order_id", pa.int64(), nullable=False)])
SHORT = {"Spark's own writer works", "the first batch is done, Spark's commit log is not"}
"""Every run of the tests has these. The others take minutes and are storms."""


def points(named: dict[str, str]) -> list[object]:
    return [
        pytest.param(fault, id=name.replace(" ", "-"), marks=() if name in SHORT else pytest.mark.storm)
        for name, fault in named.items()
    ]


def drive(url: str, mode: str, fault: str, folder: Path) -> int:
    with (folder / "stderr.txt").open("ab") as console:
        process = subprocess.Popen(
            [sys.executable, driver.__file__, url, mode, fault, str(folder)], stderr=console, start_new_session=True
        )
    try:
        return process.wait(200)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def made(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    with txlog.open(url) as store:
        for topic in driver.TOPICS:
            store.create_topic(topic, SCHEMA, partitions=2, config=driver.CONFIG.get(topic))
    return url


def in_snapshot(store: Store) -> list[int]:
    """Return the sorted rows of a topic in one cut. They are the same in all topics."""
    session = read_session(store.runtime)
    cut = take_cut(session, driver.TOPICS)
    found: dict[str, list[Any]] = {topic: [] for topic in driver.TOPICS}
    plans = plan_reads(session, {tp: (0, end) for tp, end in cut.ends.items()}, cut=cut)
    for task in tasks(store.runtime, list(plans.values())):
        for batch in read_task(task):
            found[task.topic_partition.topic] += batch["order_id"].to_pylist()
    first, *others = (sorted(each) for each in found.values())
    assert all(each == first for each in others), found
    return first


def plainly(store: Store, topic: str) -> list[int]:
    consumer = store.consumer(topic, auto_offset_reset="earliest")
    found: list[Any] = [one for batch in consumer.iterate() for one in batch["order_id"].to_pylist()]
    return sorted(found)


def offset(store: Store) -> int | None:
    found = committed_offsets(read_session(store.runtime), driver.GROUP, [driver.CLICKS])[driver.CLICKS]
    return None if found is None else found.offset


@pytest.mark.parametrize("fault", points(driver.POINTS))
def test_a_killed_job(tmp_path: Path, fault: str) -> None:
    url = made(tmp_path)
    assert drive(url, "batch", fault, tmp_path) == -signal.SIGKILL, (tmp_path / "stderr.txt").read_text()
    everything = list(range(driver.ROWS))
    with txlog.open(url) as store:
        assert in_snapshot(store) in ([], everything)
        # The next run of the job takes the id over, which ends the dead run's transaction.
        with store.producer(driver.ID, staged=True) as producer:
            version = store.admin().describe_transaction(driver.ID).txn_version
            done = everything if version == 7 else []
            assert in_snapshot(store) == done
            assert all(plainly(store, topic) == done for topic in driver.TOPICS)
            assert offset(store) == (1 if done else None)
            with producer.transaction(version=7) as again:
                for topic in driver.TOPICS:
                    producer.send(topic, [{"order_id": one} for one in everything], partition=0)
            assert again.result is not None
            assert again.result.skipped == bool(done)
        assert in_snapshot(store) == everything
    check_store(open_object_store(url))


@pytest.mark.parametrize("fault", points(driver.STREAM_POINTS))
def test_a_killed_stream(tmp_path: Path, fault: str) -> None:
    """The query restarts from its checkpoint: each row is in each topic once, and the offsets match the last batch."""
    url = made(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(3):
        lines = "".join(f'{{"order_id": {number * 20 + one}}}\n' for one in range(20))
        (tmp_path / "in" / f"{number}.json").write_text(lines)
        os.utime(tmp_path / "in" / f"{number}.json", (1_700_000_000 + number,) * 2)
    assert drive(url, "stream", fault, tmp_path) == -signal.SIGKILL, (tmp_path / "stderr.txt").read_text()
    with txlog.open(url) as store:
        assert in_snapshot(store) in [list(range(rows)) for rows in (0, 20, 40)]
        assert drive(url, "stream", "none", tmp_path) == 0, (tmp_path / "stderr.txt").read_text()
        assert in_snapshot(store) == list(range(driver.ROWS))
        assert all(plainly(store, topic) == list(range(driver.ROWS)) for topic in driver.TOPICS)
        assert offset(store) == 3
    check_store(open_object_store(url))
