"""The Spark session of all contestants on Spark, except Iceberg's: txlog's defaults, and Delta of `delta-spark`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from pyspark_txlog import session


@contextmanager
def start_spark() -> Iterator[SparkSession]:
    """Start the session, with Delta if the package (extra `bench`) is installed."""
    spark = session("txlog benchmark", config=_delta())
    # A query is always stopped in the middle of a micro-batch, which Spark logs as an error.
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        try:
            spark.stop()
        except Exception:
            # Its JVM has died. Without this, pyspark would look for it again.
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None


def _delta() -> dict[str, str]:
    try:
        from delta import configure_spark_with_delta_pip
    except ImportError:
        return {}
    # The package knows its JARs' names. It only hands them over in a builder.
    packages = configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]
    return {
        "spark.jars.packages": packages,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
