"""The sinks with which txlog is compared: Delta's, and Spark's own Parquet file sink, each as Spark's users run it.

Their code cannot be changed, so their own points are files that appear. Delta needs a pyspark for which it was built,
and its JARs (`tests.jars`); `make test-rivals` has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests import jars
from tests.kill.points import Point

FILE = Point(name="a file of rows is there", hook="file", match=r"^sink/[^_.][^/]*\.parquet$")


class DeltaSink:
    """`format("delta")`: exactly once, by the query's id and the batch's number in each commit."""

    name = "delta"
    points: Sequence[Point] = (
        FILE,
        Point(name="the commit is in the log", hook="file", match=r"^sink/_delta_log/\d+\.json$"),
    )

    @property
    def config(self) -> Mapping[str, str]:
        return {
            "spark.jars": ",".join(map(str, jars.fetch(jars.DELTA_LAKE))),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # This is for two cores; by default each look at the log has 50 tasks.
            "spark.databricks.delta.snapshotPartitions": "2",
        }

    def prepare(self, place: Path) -> None:
        pass

    def writer(self, stream: DataFrame, place: Path, strikes: Path) -> DataStreamWriter:
        return stream.writeStream.format("delta").option("path", str(place))

    def read(self, spark: SparkSession, place: Path) -> DataFrame:
        return spark.read.format("delta").load(str(place)).select("id")

    def check(self, place: Path) -> None:
        pass


class ParquetSink:
    """`format("parquet")`: exactly once for a reader that uses the folder's own list of files, as Spark does.

    A reader of all files in the folder also sees files of batches that died, some of them torn.
    """

    name = "parquet"
    points: Sequence[Point] = (
        FILE,
        Point(name="the batch is in the list of files", hook="file", match=r"^sink/_spark_metadata/\d+$"),
    )
    config: Mapping[str, str] = {}

    def prepare(self, place: Path) -> None:
        pass

    def writer(self, stream: DataFrame, place: Path, strikes: Path) -> DataStreamWriter:
        return stream.writeStream.format("parquet").option("path", str(place))

    def read(self, spark: SparkSession, place: Path) -> DataFrame:
        return spark.read.schema("id BIGINT").parquet(str(place))

    def check(self, place: Path) -> None:
        pass
