"""One cluster and one Spark Connect server for the whole run."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyspark
import pytest

from tests.cluster.jobs import ENVIRONMENT, Place, running
from tests.spark_cluster import SparkCluster, running_cluster

PATIENCE_S = 120
SPARK_BIN = Path(pyspark.__file__).parent / "bin"


@pytest.fixture(scope="session")
def running_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), ENVIRONMENT) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_workers: SparkCluster) -> SparkCluster:
    """Return the cluster, with both of its workers."""
    running_workers.start_workers()
    return running_workers


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a Spark Connect server on a free port of loopback."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.catalogImplementation": "in-memory",
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command: list[str | Path] = [
        SPARK_BIN / "spark-submit",
        "--class",
        server,
        "--master",
        "local[2]",
        "--driver-memory",
        "1g",
    ]
    for name, value in config.items():
        command += ["--conf", f"{name}={value}"]
    console = tmp_path_factory.mktemp("connect") / "console.txt"
    with running(command, console, {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable}) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not _listens(port):
            assert process.poll() is None, console.read_text()[-3000:]
            assert time.monotonic() < deadline, console.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
