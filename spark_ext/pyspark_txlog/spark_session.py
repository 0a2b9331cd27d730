"""How does one get a Spark session in which txlog just works?

For tests, the demo and notebooks: local, quiet, UTC, with the driver's own interpreter for the workers. Production
sessions are made elsewhere; what they need of this is `PYSPARK_PYTHON` and txlog installed on every node.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

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
    # The default of 200 tasks is for clusters; here each costs tens of milliseconds and carries nothing.
    "spark.sql.shuffle.partitions": "2",
    # Larger Arrow batches: fewer crossings between Java and Python, whole row groups in the files.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    # Spark's own Parquet reader checks page checksums only when told to (PROTOCOL.md, "Integrity").
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Planned files are given by name; above this number Spark would start a job to list them.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # No metastore, no derby.log.
    "spark.sql.catalogImplementation": "in-memory",
}


def session(
    app_name: str = "txlog", *, master: str = "local[2]", config: Mapping[str, object] | None = None
) -> SparkSession:
    """The running session, or a new one with `DEFAULTS` and, over them, `config`.

    Settings that need a new JVM (memory, `master`) count only for the first session of a process. Without
    `PYSPARK_PYTHON` the workers use this interpreter: Spark would take the first `python3` on PATH. Raises
    InvalidRequestError if there is no Java, or one older than 17, or a Spark older than 4.2. The calling thread may use
    `format("txlog")` then (`activate`).
    """
    check_spark()
    # The session that runs may be another thread's: this one has none of its own yet.
    if SparkContext._active_spark_context is None:
        check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**DEFAULTS, **{key: _text(value) for key, value in (config or {}).items()}}
    with as_file(files("pyspark_txlog") / "log4j2.properties") as log4j:
        quiet = f"-Dlog4j2.configurationFile={log4j.as_uri()}"
        key = "spark.driver.extraJavaOptions"
        settings[key] = f"{quiet} {settings[key]}" if key in settings else quiet
        builder = SparkSession.builder.appName(app_name).master(master)
        for name, value in settings.items():
            builder = builder.config(name, value)
        made = builder.getOrCreate()
    activate(made)
    return made


def activate(spark: SparkSession) -> None:
    """Makes `spark` the session of the calling thread, if that has none: call it in each thread that you start yourself.

    Spark looks for `format("txlog")` of a write in the active session of the thread, and a thread of Python's other than
    the main one has none: `save` and `start` fail there with DATA_SOURCE_NOT_FOUND. Does nothing over Spark Connect, where
    the server's threads have a session.
    """
    # Spark Connect has no JVM here.
    if getattr(spark, "_jvm", None) is not None and SparkSession.getActiveSession() is None:
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def check_java() -> int:
    """The major version of the Java that Spark will start; raises InvalidRequestError if it is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = f"install Java {MINIMUM_JAVA} or newer (a JRE will do), and set JAVA_HOME to it or put it on PATH"
    if java is None:
        raise InvalidRequestError(f"Spark needs Java {MINIMUM_JAVA} or newer, and there is no 'java' on PATH; {advice}")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise InvalidRequestError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, and {java!r} does not run ({error}); {advice}"
        ) from error
    version = parse_java_version(printed.stderr + printed.stdout)
    if version is None or version < MINIMUM_JAVA:
        raise InvalidRequestError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, and {java!r} is {f'Java {version}' if version else 'of an unknown version'}; {advice}"
        )
    return version


def parse_java_version(banner: str) -> int | None:
    """The major version in what `java -version` prints: 17 of `"17.0.15"`, 8 of `"1.8.0_402"`; None if there is none."""
    match = re.search(r' version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
