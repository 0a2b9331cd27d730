"""How do Java's processes begin quickly, where each lives for seconds only?

`python -m tests.jvm` makes the archive of Spark's classes that the others begin with: these are parsed and verified once, and
not by each of fifty processes (Java calls it class data sharing).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""What Spark adds to the command of a driver, without a word on the console."""
DAEMON_OPTIONS = "SPARK_DAEMON_JAVA_OPTS"
"""... and of a master and a worker."""
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
PLAIN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def begin_quickly() -> None:
    """Has every driver, executor and daemon that this process or its children start do with the first compiler alone and a
    collector of one thread: two fifths of the CPU are spared; with the archive, where it is made, two fifths of what is left.
    Options that the caller's shell names stay."""
    options = PLAIN
    # Java's options are parted by spaces, here in quotes within quotes. An archive of another Java is passed over in silence.
    if ARCHIVE.exists() and " " not in str(ARCHIVE):
        options += f" -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={ARCHIVE}"
    os.environ.setdefault(DAEMON_OPTIONS, options)
    os.environ.setdefault(SUBMIT_OPTIONS, f'{options} "-Dspark.executor.extraJavaOptions={options}"')


def make_archive() -> None:
    """Does what most tests do, and has Java write down which classes that took."""
    # The other half of this module is for programs without Spark, too.
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
                opened.create_topic(topic, pa.schema([("id", pa.int64()), ("text", pa.string())]))
        rows = spark.range(100).selectExpr("id", "CAST(id AS STRING) AS text")
        rows.write.format("txlog").mode("append").option("topic", "rows").save(store)
        table = pyspark_txlog.TxLog(spark, store).table("rows")
        table.append(rows, transactional_id="classes", version=0)
        table.to_df().orderBy("id").collect()
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
