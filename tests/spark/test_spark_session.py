"""The session helper reports what is wrong with Java, and finds the quiet log4j file wherever the package is
installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import spark_session
from tests.spark.limits import HAS_LIMITS, IS_4_0
from txlog.errors import InvalidRequestError

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19 LTS', 21),
        ('java version "1.8.0_402"', 8),
        ("no java here", None),
    ],
)
def test_versions_of_java(banner: str, version: int | None) -> None:
    assert spark_session.parse_java_version(banner) == version


def test_a_missing_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidRequestError, match=r"Java 17 or newer, and '.*bin/java' does not run"):
        spark_session.check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidRequestError, match=r"there is no 'java' on PATH. hint: install Java 17"):
        spark_session.check_java()


def test_an_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'java version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidRequestError, match=r"Java 17 or newer, and .* is Java 11"):
        spark_session.check_java()


def test_the_package_carries_the_quiet_log4j() -> None:
    shipped = (files("pyspark_txlog") / "log4j2.properties").read_text()
    assert shipped == (REPOSITORY / "conf" / "log4j2.properties").read_text()


def fail(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_sockets_lie_in_a_folder_of_their_own_where_that_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    enabled, folder = spark_session._sockets("local[2]").values()
    assert (enabled, Path(folder).stat().st_mode & 0o777) == ("true", 0o700)
    monkeypatch.setattr(spark_session, "_FOLDERS", [(folder, 0)])
    spark_session._remove_folders()
    assert Path(folder).exists(), "a forked child leaves it"
    monkeypatch.setattr(spark_session, "_FOLDERS", [(folder, os.getpid())])
    spark_session._remove_folders()
    assert not Path(folder).exists()
    assert spark_session._sockets("spark://host:7077") == {}
    with monkeypatch.context() as patch:
        patch.setattr("os.mkdir", fail)
        assert spark_session._sockets("local[2]") == {}
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", object())
    assert spark_session._sockets("local[2]") == {}


@pytest.mark.skipif(IS_4_0, reason="Spark reaches its workers by Unix sockets from 4.1 on")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_task_in_python_is_reached_by_a_unix_socket(spark: SparkSession) -> None:
    def kinds(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        tcp = {line.split()[9] for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]}
        sockets = {link[8:-1] for link in found if link.startswith("socket:")}
        yield pa.record_batch({"unix": [len(sockets - tcp)], "tcp": [len(sockets & tcp)]})

    (row,) = spark.range(1, numPartitions=1).mapInArrow(kinds, "unix long, tcp long").collect()
    assert row.unix >= 1
    assert row.tcp == 0


IDLE_WORKER = """
import os, socket, sys, traceback
from importlib import import_module
from pyspark import daemon

sys.modules["__main__"] = daemon  # as in the process that Spark starts
os.environ |= {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true"}
for module in sys.argv.pop().split():
    import_module(module)
ours, theirs = socket.socketpair()
theirs.close()
try:
    daemon.worker(ours, True)
except BaseException:
    traceback.print_exc()
"""


@pytest.mark.skipif(not HAS_LIMITS, reason="it imitates the worker of Spark 4.2")
@pytest.mark.parametrize(("imported", "said"), [("pyspark_txlog", ""), ("pyspark", "BrokenPipeError")])
def test_a_worker_whose_socket_spark_has_closed_ends_without_a_traceback(imported: str, said: str) -> None:
    """Spark closes it after a minute without a task, so a program that is idle would print a traceback."""
    process = run_alone(IDLE_WORKER, imported)
    # The error reaches the end of the program only if it was not quiet.
    assert process.returncode == (0 if said else 1)
    assert (said in process.stderr) if said else (process.stderr == "")


AT_EXIT = """
import atexit, os
from pyspark_txlog import spark_session

made = []
atexit.register(lambda: print(os.path.isdir(made[0]), flush=True))
made += [folder for folder in spark_session._sockets("local[2]").values() if folder != "true"]
print(*made)
"""


def test_a_program_can_use_spark_while_it_ends() -> None:
    folder, there = run_alone(AT_EXIT).stdout.split()
    assert there == "True"
    assert not os.path.exists(folder)


def run_alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_settings_are_those_of_conf() -> None:
    lines = (REPOSITORY / "conf" / "spark-defaults.conf").read_text().splitlines()
    conf = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    conf.pop("spark.master")
    conf["spark.sql.shuffle.partitions"] = spark_session.DEFAULTS["spark.sql.shuffle.partitions"]
    assert conf == dict(spark_session.DEFAULTS)
