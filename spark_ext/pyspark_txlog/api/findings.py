"""How does the report of a check become a DataFrame?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types as spark_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txlog.maintenance.fsck import FsckReport

SCHEMA = spark_types.StructType(
    [
        spark_types.StructField(name, kind, nullable, {"comment": doc})
        for name, kind, nullable, doc in (
            ("kind", spark_types.StringType(), False, "damaged, missing or note: what a crash may leave behind"),
            ("path", spark_types.StringType(), False, "the object, relative to the store's root; a folder ends in /"),
            ("expected", spark_types.StringType(), False, "what should be there"),
            ("found", spark_types.StringType(), False, "what is there"),
            ("advice", spark_types.StringType(), False, "what to do"),
            ("count", spark_types.IntegerType(), False, "how much speaks of it"),
        )
    ]
)
"""The columns of a report: name, type, nullable, description."""


def to_frame(spark: SparkSession, report: FsckReport) -> DataFrame:
    """Return the findings of a report as a frame, worst first; empty if there are no findings."""
    return spark.createDataFrame(
        [tuple(getattr(finding, name) for name in SCHEMA.names) for finding in report.findings], SCHEMA
    )
