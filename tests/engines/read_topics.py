"""Read every topic with one engine, in this engine's own Python:
`python -m tests.engines.read_topics <engine> <folder>`.

The folder is that of `topics`. Prints a line of JSON for each topic: its name, and what is wrong, or nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from lab.engines import READERS, Rows, plain

ICEBERG_JARS = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


def main(engine: str, folder: Path) -> None:
    read = spark(engine.rpartition(" ")[2]) if engine.startswith("spark") else READERS[engine]
    for path in sorted(folder.glob("*.json")):
        print(json.dumps([path.stem, check(read, folder / "store" / path.stem, json.loads(path.read_text()))]))


def check(read: Callable[[str, None], Rows], topic: Path, expected: list[str]) -> str:
    """Return how what the engine reads differs from the expected rows; "" if it does not."""
    try:
        found = [json.dumps(plain(row), sort_keys=True) for row in read(str(topic), None)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:1000]
    missing, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not missing and not more:
        return "" if expected else "no rows"
    return (
        f"{len(found)} rows; missing {missing.total()}: {list(missing)[:2]}; too many {more.total()}: {list(more)[:2]}"
    )


def spark(form: str) -> Callable[[str, None], Rows]:
    """Return a reader with Delta's or Iceberg's Spark."""
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    if form == "iceberg":
        builder = builder.config("spark.jars.packages", ICEBERG_JARS)
    else:
        from tests import jars

        builder = (
            builder.config("spark.jars", ",".join(map(str, jars.fetch(jars.DELTA_LAKE))))
            .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
            .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
            .config("spark.databricks.delta.snapshotPartitions", "2")
        )
    session = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )

    def read(topic: str, _: None) -> Rows:
        # Python's own types of a row lack some of the values.
        with tempfile.TemporaryDirectory() as folder:
            session.read.format(form).load(topic).write.mode("overwrite").parquet(folder)
            return list(pq.read_table(folder).to_pylist())

    return read


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
