"""How does a test run a driver on a cluster, and what must be in the store afterwards?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from lab import invariants
from tests.cluster import job
from tests.spark_cluster import SparkCluster
from txlog.client.store import Store
from txlog.maintenance import fsck
from txlog.storage.open import open_object_store

SCHEMA = pa.schema((pa.field("order_id", pa.int64(), nullable=False), pa.field("country", pa.string())))
EVERYTHING = list(range(job.ROWS))
JOB_S = 250

_OURS = {"PYTHONPATH", "PYTHONHOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
_OURS |= {"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_LOCAL_IP"}
ENVIRONMENT: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in _OURS}
"""Processes have only the installed packages: no path of the tests, and no setting of their shell."""


class Place:
    """A store below a test's folder, with the topics of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = str(folder / "log")
        with txlog.open(self.url) as store:
            for topic in job.TOPICS:
                store.create_topic(topic, SCHEMA, partitions=2)

    def fill(self) -> None:
        """Write all rows to `orders`, without Spark."""
        rows = pa.table({"order_id": EVERYTHING, "country": [f"c{one % 3}" for one in EVERYTHING]}, SCHEMA)
        with txlog.open(self.url) as store, store.producer() as producer:
            producer.send("orders", rows)

    def check(self, **expected: Sequence[int]) -> None:
        """Raise AssertionError unless each topic has exactly these order ids, all visible.

        A topic that is not named must be empty. Nothing may be damaged, open or undecided.
        """
        bytes_there = open_object_store(self.url)
        report = fsck.check_store(bytes_there)
        assert report.is_clean, report
        invariants.check_store(bytes_there)
        with txlog.open(self.url) as store:
            for topic in job.TOPICS:
                for info in store.admin().list_offsets(topic).values():
                    assert info.last_stable_offset == info.log_end_offset
                assert self._ids(store, topic) == list(expected.get(topic, ())), topic

    def order_of_keys(self, topic: str) -> dict[str, bool]:
        """Return whether the order ids of each country increase."""
        found: dict[str, list[int]] = {}
        with txlog.open(self.url) as store:
            for batch in store.consumer(topic, auto_offset_reset="earliest").iterate():
                for row in batch.select(["country", "order_id"]).to_pylist():
                    found.setdefault(row["country"], []).append(row["order_id"])
        return {country: ids == sorted(ids) for country, ids in sorted(found.items())}

    def _ids(self, store: Store, topic: str) -> list[int]:
        consumer = store.consumer(topic, auto_offset_reset="earliest")
        found: list[Any] = [one for batch in consumer.iterate() for one in batch["order_id"].to_pylist()]
        return sorted(found)


@contextmanager
def running(
    command: Sequence[str | Path], console: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, in the folder of its console, during the block.

    At its end, kill the process and its whole session.
    """
    with console.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, cwd=console.parent, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(kw_only=True)
class Job:
    """One driver of `job.py`: these steps, at this master, in this place."""

    master: str
    place: Place
    steps: Sequence[str]
    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    register: bool = False
    """Whether the job registers the format itself. Otherwise Spark finds it."""
    command: Sequence[str | Path] = (sys.executable,)
    """The command that runs `job.py`."""

    def run(self) -> dict[str, Any]:
        """Return the results of the steps. If the job fails, raise AssertionError with its output."""
        with self._running() as process:
            return self._end(process)

    def run_and_lose_a_worker(self, cluster: SparkCluster) -> dict[str, Any]:
        """Run the job, and kill a worker as soon as a task reports that half of its rows are done."""
        mark = self.place.folder / "held-up"
        deadline = time.monotonic() + JOB_S
        with self._running() as process:
            while not (mark.exists() and mark.read_text().endswith("\n")):
                assert process.poll() is None, self.said()
                assert time.monotonic() < deadline, self.said()
                time.sleep(0.02)
            cluster.kill_worker_of(int(mark.read_text()))
            return self._end(process)

    def said(self) -> str:
        """Return the end of its console."""
        return self._console.read_text(errors="replace")[-20000:]

    def _running(self) -> Any:
        folder = self.place.folder
        spec = {
            "master": self.master,
            "url": self.place.url,
            "folder": str(folder),
            "steps": list(self.steps),
            "config": dict(self.config),
            "register": self.register,
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        (folder / job.FOUND).unlink(missing_ok=True)
        return running(
            [*self.command, job.__file__, folder / "spec.json"], self._console, {**ENVIRONMENT, **self.environment}
        )

    def _end(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        status = process.wait(JOB_S)
        assert status == 0, f"it ended with {status}\n{self.said()}"
        found: dict[str, Any] = json.loads((self.place.folder / job.FOUND).read_text())
        return found

    @property
    def _console(self) -> Path:
        return self.place.folder / "console.txt"
