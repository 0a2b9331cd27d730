"""How do Java processes start quickly when each lives only for seconds?

`python -m tests.jvm` makes an archive of Spark's classes, and later processes start with it. So the classes are parsed
and verified once, not in each of fifty processes (Java calls this class data sharing).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark adds these options to the command of a driver, without a message on the console."""
DAEMON_OPTIONS = "SPARK_DAEMON_JAVA_OPTS"
"""... and of a master and a worker."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def begin_quickly() -> None:
    """Let every driver, executor and daemon of this process and its children start with the first compiler only.

    They also use a collector with one thread. This saves two fifths of the CPU time, and the archive, if it exists, two
    fifths of the rest. Options in the caller's shell stay.
    """
    options = PLAIN
    # Spaces separate Java's options, here in quotes within quotes. Java silently ignores an archive of another Java.
    if ARCHIVE.exists() and " " not in str(ARCHIVE):
        options += f" -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={ARCHIVE}"
    os.environ.setdefault(DAEMON_OPTIONS, options)
    os.environ.setdefault(SUBMIT_OPTIONS, f'{options} "-Dspark.executor.extraJavaOptions={options}"')


def make_archive() -> None:
    """Do what most tests do, and let Java write down the classes that this needed."""
    # Programs without Spark use the other half of this module.
    import pyarrow as pa
    from pyspark import SparkContext

    import pyspark_txlog
    import txlog

    fresh = ARCHIVE.with_suffix(".new")
    os.environ[SUBMIT_OPTIONS] = f'{PLAIN} -Xlog:disable "-XX:ArchiveClassesAtExit={fresh}"'
    spark = pyspark_txlog.session("classes")
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        with txlog.open(store) as opened:
            for topic in ("rows", "copies"):
                opened.create_topic(topic, pa.schema((("id", pa.int64()), ("text", pa.string()))))
        rows = spark.range(100).selectExpr("id", "CAST(id AS STRING) AS text")
        rows.write.format("txlog").mode("append").option("topic", "rows").save(store)
        log = pyspark_txlog.TxLog(spark, store)
        with log.transaction("classes", version=0) as txn:
            txn.write(rows, "rows")
        log.to_dfs("rows")["rows"].orderBy("id").collect()
        stream = (
            spark.readStream.format("txlog")
            .option("subscribe", "rows")
            .option("startingOffsets", "earliest")
            .load(store)
        )
        query = stream.select("id", "text").writeStream.format("txlog").option("topic", "copies")
        query = query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        query.start(store).awaitTermination()
        spark.stop()
        java = SparkContext._gateway.proc  # type: ignore[union-attr]
        java.stdin.close()
        java.wait()
    fresh.replace(ARCHIVE)


if __name__ == "__main__":
    make_archive()
