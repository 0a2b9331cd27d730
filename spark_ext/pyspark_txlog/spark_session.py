"""How does one get a local Spark session that works with txlog?

For tests, the demo and notebooks: a small local session with log output reduced to warnings, in UTC, whose workers use
the driver's own interpreter. Production sessions are made elsewhere; they need `PYSPARK_PYTHON`, and txlog installed on
every node.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_txlog.patch import install
from pyspark_txlog.spark_version import check_spark
from txlog.errors import InvalidRequestError

MINIMUM_JAVA = 17

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    # Offsets and `_timestamp` are UTC; a session in another zone would show them shifted.
    "spark.sql.session.timeZone": "UTC",
    # The default of 200 tasks is for clusters; here each task costs tens of milliseconds and has almost no data.
    "spark.sql.shuffle.partitions": "2",
    # Larger Arrow batches mean fewer transfers between Java and Python, and whole row groups in the files.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    # Spark's own Parquet reader checks page checksums only if this is set (PROTOCOL.md, "Integrity").
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Planned files are given by name; for more paths than this Spark would start a job to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # No metastore, no derby.log.
    "spark.sql.catalogImplementation": "in-memory",
}

_FOLDERS: list[tuple[str, int]] = []
"""Folders of sockets, and the process that made each."""


def session(
    app_name: str = "txlog", *, master: str = "local[2]", config: Mapping[str, object] | None = None
) -> SparkSession:
    """Return the running session, or a new one with `DEFAULTS`, overridden by `config`.

    Settings that need a new JVM (memory, `master`) only work for the first session of a process. Without
    `PYSPARK_PYTHON` the workers use this interpreter; Spark would use the first `python3` on PATH. Afterwards the
    calling thread can use `format("txlog")` (`activate`), natively where that is possible (`install`). Raises
    InvalidRequestError if Java is missing or older than 17, or Spark older than 4.0.
    """
    check_spark()
    # The running session may belong to another thread; this thread has no session yet.
    if SparkContext._active_spark_context is None:
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    own = {key: _text(value) for key, value in (config or {}).items()}
    settings = {**DEFAULTS, **_sockets(own.get("spark.master", master)), **own}
    with as_file(files("pyspark_txlog") / "log4j2.properties") as log4j:
        quiet = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        key = "spark.driver.extraJavaOptions"
        settings[key] = f"{quiet} {settings[key]}" if key in settings else quiet
        builder = SparkSession.builder.appName(app_name).master(master)
        for name, value in settings.items():
            builder = builder.config(name, value)
        made = builder.getOrCreate()
    activate(made)
    install()
    return made


def _sockets(master: str) -> dict[str, str]:
    """Return the settings with which Python workers are reached by Unix sockets, where that is possible.

    Over TCP the first rows of a task wait 40 ms for an acknowledgement (Nagle's algorithm).
    """
    if os.name != "posix" or not master.startswith("local") or SparkContext._active_spark_context is not None:
        return {}
    try:
        # A new folder, because Spark leaves files in it, and the sockets have no secret. Its path must be short.
        folder = tempfile.mkdtemp(prefix="txlog-", dir="/tmp")
    except OSError:
        return {}
    _FOLDERS.append((folder, os.getpid()))
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": folder}


def _remove_folders() -> None:
    for folder, process in _FOLDERS:
        # A child that was forked ends earlier.
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


def activate(spark: SparkSession) -> None:
    """Make `spark` the session of the calling thread, if that has none. Call it in each thread that you start yourself.

    When a write starts, Spark looks `format("txlog")` up in the active session of the thread. A Python thread other
    than the main one has no active session, so `save` and `start` fail there with DATA_SOURCE_NOT_FOUND. Does nothing
    over Spark Connect, where the server's threads have a session.
    """
    # Spark Connect has no JVM here.
    if getattr(spark, "_jvm", None) is not None and SparkSession.getActiveSession() is None:
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def check_java() -> int:
    """Return the major version of the Java that Spark will start.

    Raises InvalidRequestError if it is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise _no_java("there is no 'java' on PATH")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise _no_java(f"{java!r} does not run ({error})") from error
    version = parse_java_version(printed.stderr + printed.stdout)
    if version is None or version < MINIMUM_JAVA:
        raise _no_java(f"{java!r} is {f'Java {version}' if version else 'a Java without a known version'}")
    return version


def parse_java_version(banner: str) -> int | None:
    """Return the major version from the output of `java -version`: 17 for `"17.0.15"`, 8 for `"1.8.0_402"`; None if
    there is none."""
    match = re.search(r' version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None


def _no_java(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Spark needs Java {MINIMUM_JAVA} or newer, and {why}. "
        f"hint: install Java {MINIMUM_JAVA} or newer (a JRE is enough), and set JAVA_HOME to it or put it on PATH"
    )


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Functions that are registered later run earlier, so those of a program may still use Spark.
atexit.register(_remove_folders)
