"""A real Spark cluster on one machine: a master and two workers, each a process, on two addresses of loopback.

Spark's `local-cluster` has executors that are JVMs of their own, but on one host; and Spark runs no second attempt of a task
on the host of the first. Speculation needs two.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

HOSTS = ("127.0.0.1", "127.0.0.2")
_PATIENCE_S = 120


@contextmanager
def spark_cluster(folder: Path) -> Iterator[str]:
    """A running cluster, as a master's URL; it ends with the block. `folder` takes its logs and its executors' files."""
    folder.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(folder, "master.Master", HOSTS[0], "--port", "0", "--webui-port", "0"))
        master = _await(folder / "master.Master-127.0.0.1.log", r"Starting Spark master at (spark://\S+)", started[0])
        for host in HOSTS:
            arguments = ("--cores", "1", "--memory", "600m", "--webui-port", "0", "--work-dir", str(folder), master)
            started.append(_start(folder, "worker.Worker", host, *arguments))
        for host, process in zip(HOSTS, started[1:], strict=True):
            _await(folder / f"worker.Worker-{host}.log", r"(Successfully registered) with master", process)
        yield master
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


def _start(folder: Path, daemon: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", "--host", host, *arguments]
    # Spark's own default log configuration is what says that a daemon is up.
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        # Executors find modules where this program does.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with (folder / f"{daemon}-{host}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def _await(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(pattern, log.read_text(errors="replace")):
            return match[1]
        time.sleep(0.05)
    raise AssertionError(f"{log.name}: no {pattern!r}\n{log.read_text(errors='replace')[-3000:]}")
