"""The table formats of Spark. All works on Spark (benchmarks/spark_works.py) use a format through this interface.

This module imports neither txlog nor a rival's package, because Iceberg's Spark runs in a separate environment.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


class TableFormat:
    """A format that Spark knows by its name, with one folder for each table."""

    settings: Mapping[str, str] = {}
    """Of the session, while this format has its turn."""

    def __init__(self, spark: SparkSession, folder: Path, name: str) -> None:
        self.spark = spark
        self.folder = folder
        self.name = name

    def table(self, name: str) -> str:
        """Return what Spark is given as the table's name or path."""
        return str(self.folder / name)

    def create(self, name: str, like: DataFrame) -> None:
        """Make an empty table, if the format needs that before a write."""

    def append(self, frame: DataFrame, name: str) -> None:
        """Append in one commit."""
        frame.write.format(self.name).mode("append").save(self.table(name))

    def read(self, name: str) -> DataFrame:
        """Return the table as it is now."""
        return self.spark.read.format(self.name).load(self.table(name))

    def create_keyed(self, name: str, like: DataFrame, key: str) -> None:
        """Make an empty table of the newest row of each key."""
        self.create(name, like)

    def change(self, frame: DataFrame, name: str, key: str) -> None:
        """Replace the rows of the frame's keys, and add those of new keys. It includes the maintenance for that."""
        frame.createOrReplaceTempView("changed")
        self.spark.sql(
            f"MERGE INTO {self.sql_name(name)} t USING changed s ON t.{key} = s.{key} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def settle(self, name: str) -> None:
        """Do what maintenance does to a table that was written a day ago."""

    def newest(self, name: str) -> DataFrame:
        """Return the newest row of each key."""
        return self.read(name)

    def sql_name(self, name: str) -> str:
        """Return how SQL names the table."""
        return f"{self.name}.`{self.table(name)}`"

    def stream_into(self, source: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
        """Start a query that appends each micro-batch."""
        writer = source.writeStream.format(self.name).option("checkpointLocation", str(checkpoint))
        return writer.option("path", self.table(name)).start()

    def stream_from(self, name: str) -> DataFrame:
        """Return the table as a stream."""
        return self.spark.readStream.format(self.name).load(self.table(name))

    def drop(self, name: str) -> None:
        """Delete the table."""
        shutil.rmtree(self.table(name), ignore_errors=True)

    def stored_in(self) -> Path:
        """Return the folder of all tables."""
        return self.folder

    def requests(self) -> int:
        """Return the number of requests so far; 0 if they cannot be counted."""
        return 0

    def close(self) -> None:
        """End what the format has opened."""


class Parquet(TableFormat):
    """Plain Parquet files: no commit, and no promise about failures."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, "parquet")


class ZstdParquet(Parquet):
    """The same, compressed as txlog and Iceberg compress by default; Spark's default is snappy."""

    settings: Mapping[str, str] = {"spark.sql.parquet.compression.codec": "zstd"}


class Noop(TableFormat):
    """Spark's sink that drops all rows: the floor of a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, "noop")


class Delta(TableFormat):
    """Delta Lake with its defaults."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, "delta")


class TunedDelta(Delta):
    """Delta Lake with its numbers of tasks set for two cores; the defaults are 50 and 200."""

    settings: Mapping[str, str] = {
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }


class Iceberg(TableFormat):
    """Apache Iceberg with its defaults, in a catalog of folders."""

    CATALOG = "iceberg"
    JARS = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder, "iceberg")
        # A catalog keeps its first folder. So each contestant has its own namespace.
        self._namespace = f"{self.CATALOG}.n{zlib.crc32(str(folder).encode())}"
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._namespace}")

    def table(self, name: str) -> str:
        return f"{self._namespace}.{name.replace('-', '_')}"

    def sql_name(self, name: str) -> str:
        return self.table(name)

    def create(self, name: str, like: DataFrame) -> None:
        like.limit(0).writeTo(self.table(name)).using("iceberg").create()

    def append(self, frame: DataFrame, name: str) -> None:
        frame.writeTo(self.table(name)).append()

    def read(self, name: str) -> DataFrame:
        return self.spark.read.table(self.table(name))

    def stream_into(self, source: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
        writer = source.writeStream.format("iceberg").option("checkpointLocation", str(checkpoint))
        return writer.toTable(self.table(name))

    def drop(self, name: str) -> None:
        self.spark.sql(f"DROP TABLE {self.table(name)} PURGE")

    def stored_in(self) -> Path:
        warehouse = self.spark.conf.get(f"spark.sql.catalog.{self.CATALOG}.warehouse")
        assert warehouse is not None
        return Path(warehouse) / self._namespace.partition(".")[2]

    @classmethod
    def config(cls, warehouse: Path) -> dict[str, str]:
        """Return the session's settings."""
        return {
            "spark.jars.packages": cls.JARS,
            f"spark.sql.catalog.{cls.CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
            f"spark.sql.catalog.{cls.CATALOG}.type": "hadoop",
            f"spark.sql.catalog.{cls.CATALOG}.warehouse": str(warehouse),
        }


FORMATS = {
    "Parquet": Parquet,
    "Parquet, zstd": ZstdParquet,
    "Delta": Delta,
    "Delta, tuned": TunedDelta,
    "Iceberg": Iceberg,
    "noop": Noop,
}
"""By the name that the table of results shows."""
