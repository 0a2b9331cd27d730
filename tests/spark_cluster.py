"""A real Spark cluster on one machine: a master and two workers, each a process, on two addresses of loopback.

Spark's `local-cluster` has executors in separate JVMs, but on one host. Spark never runs a second attempt of a task on
the host of the first. So speculation needs two hosts, and so does a test that kills a worker with all its processes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

HOSTS = ("127.0.0.1", "127.0.0.2")
WORKER_MEMORY = "600m"
_PATIENCE_S = 120


class SparkCluster:
    """A master and its workers, one for each host of HOSTS, with one core each."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = 0
        self._master, log = self._start("master.Master", HOSTS[0], "--port", "0", "--webui-port", "0")
        try:
            self.master = _await(log, r"Starting Spark master at (spark://\S+)", self._master)
            self.start_workers()
        except BaseException:
            self.stop()
            raise

    def start_workers(self) -> None:
        """Start a worker on each host that has none; return when the master knows them."""
        logs: dict[str, Path] = {}
        for host in HOSTS:
            if host in self._workers:
                continue
            arguments = (
                "--cores",
                "1",
                "--memory",
                WORKER_MEMORY,
                "--webui-port",
                "0",
                "--work-dir",
                str(self._folder),
            )
            self._workers[host], logs[host] = self._start("worker.Worker", host, *arguments, self.master)
        for host, log in logs.items():
            _await(log, r"(Successfully registered) with master", self._workers[host])

    def kill_worker_of(self, pid: int) -> str:
        """Kill the worker above the process `pid` with all its processes, as if its machine had died.

        Return its host.
        """
        host = next(host for host, worker in self._workers.items() if pid in descendants(worker.pid))
        _kill(self._workers.pop(host))
        return host

    def stop(self) -> None:
        for worker in self._workers.values():
            _kill(worker)
        self._workers.clear()
        _kill(self._master)

    def _start(self, daemon: str, host: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", "--host", host, *arguments]
        # Only Spark's default log configuration reports that a daemon has started.
        environment = {
            **self._environment,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        log = self._folder / f"{self._starts}-{daemon}.log"
        self._starts += 1
        with log.open("wb") as console:
            return subprocess.Popen(command, stdout=console, stderr=console, env=environment), log


@contextmanager
def running_cluster(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[SparkCluster]:
    """Run a cluster during the block; all of its processes end with it. `folder` takes logs and executors' files.

    `environment` is the environment of its processes. By default it is this program's, and executors find modules where
    this program does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if environment is None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    cluster = SparkCluster(folder, environment)
    try:
        yield cluster
    finally:
        cluster.stop()


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and their descendants; parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = stat.read_text()
            parent = int(text[text.rindex(")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants: an executor that lost its worker would continue for a while."""
    if process.poll() is None:
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def _await(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.05)
    raise AssertionError(f"{log.name}: no {pattern!r}\n{log.read_text(errors='replace')[-3000:]}")
