"""Iceberg's Spark, in a separate Python, reads a topic's table through a REST catalog, and then purges it.

`python catalog_spark.py <uri of the catalog> <name of the table>`. Prints the rows at the newest version and those of
each batch of a stream as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession

from tests.engines.iceberg_spark import JARS

REFUSED = (
    "INSERT INTO {table} SELECT * FROM {table} LIMIT 1",
    "UPDATE {table} SET name = 'x' WHERE id = 3",
    "DELETE FROM {table} WHERE id = 3",
)


def main(uri: str, name: str) -> None:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars.packages": JARS,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.prod": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.prod.type": "rest",
        "spark.sql.catalog.prod.uri": uri,
        "spark.sql.catalog.prod.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in config.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    table = f"prod.{name}"
    for statement in REFUSED:
        try:
            spark.sql(statement.format(table=table))
        except Exception as error:
            if "txlog.is.the.only.writer" in str(error):
                continue
            raise
        raise AssertionError(f"not refused: {statement}")
    rows = [row.asDict() for row in spark.table(table).collect()]
    batches: list[list[int]] = []

    def keep(frame: DataFrame, number: int) -> None:
        batches.append(sorted(row["id"] for row in frame.collect()))

    stream = (
        spark.readStream.format("iceberg")
        .option("streaming-skip-overwrite-snapshots", "true")
        .option("streaming-max-files-per-micro-batch", "1")
        .load(table)
    )
    query = (
        stream.writeStream.foreachBatch(keep)
        .option("checkpointLocation", tempfile.mkdtemp())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.sql(f"DROP TABLE {table} PURGE")
    spark.stop()
    print(json.dumps({"rows": rows, "batches": batches}))


if __name__ == "__main__":
    main(*sys.argv[1:])
