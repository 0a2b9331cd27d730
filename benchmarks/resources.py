"""What do contestants share? The input, Spark sessions, Kafka's broker, and the folder that keeps inputs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.rivals.kafka import Broker
    from benchmarks.rivals.spark_process import SparkProcess


class Resources:
    """Made at first use, and closed with the run."""

    def __init__(self, cache: Path, *, scale_factor: float = 1.0) -> None:
        self._cache = cache
        self._scale_factor = scale_factor
        self._open = ExitStack()
        self._spark: SparkSession | None = None
        self._rivals: SparkProcess | None = None
        self._iceberg: SparkProcess | None = None
        self._open_kafka = ExitStack()
        self._kafka: Broker | None = None

    def __enter__(self) -> Resources:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_kafka()
        self._open.close()

    def restart(self) -> None:
        """End each Spark and Kafka's broker, which may have died. Each starts again when it is needed."""
        with suppress(Exception):
            self._open.close()
        with suppress(Exception):
            self.end_kafka()
        self._spark = self._rivals = self._iceberg = None

    def table(self, name: str) -> Path:
        """Return the Parquet file of an input, which is made once: `lineitem`, `lineitem x10` or `flights`."""
        if name == "flights":
            return self._made("flights", name, _write_flights)
        name, _, times = name.partition(" x")
        factor = f"{self._scale_factor * int(times or 1):g}"
        return self._made(f"tpch-{factor}", name, lambda folder: _generate(folder, name, factor))

    def _made(self, key: str, name: str, make: Callable[[Path], None]) -> Path:
        folder = self._cache / key
        file = folder / f"{name}.parquet"
        if not file.exists():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            make(partial)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        return file

    def spark(self) -> SparkSession:
        """Return the session of txlog's contestants, which has txlog's settings."""
        if self._spark is None:
            from benchmarks.spark_log import start_spark

            self._spark = self._open.enter_context(start_spark())
        return self._spark

    def rivals(self) -> SparkProcess:
        """Return the process that has the rivals' Spark, of the same version, with Delta if it is installed."""
        if self._rivals is None:
            from benchmarks.rivals import spark_process

            config = {**spark_process.SHARED, **spark_process.delta()}
            self._rivals = self._open.enter_context(spark_process.start(Path(sys.executable), config))
        return self._rivals

    def iceberg(self) -> SparkProcess:
        """Return the process that has Iceberg's Spark."""
        if self._iceberg is None:
            from benchmarks.rivals import spark_process, table_formats

            warehouse = self._open.enter_context(tempfile.TemporaryDirectory(prefix="txlog-bench-iceberg-"))
            config = {**spark_process.SHARED, **table_formats.Iceberg.config(Path(warehouse))}
            self._iceberg = self._open.enter_context(spark_process.start(spark_process.ICEBERG, config))
        return self._iceberg

    def kafka(self, scale: float) -> Broker:
        """Return the broker of all contestants, which is warm. The first call warms it with work of that scale."""
        if self._kafka is None:
            from benchmarks.rivals import kafka

            folder = self._open_kafka.enter_context(tempfile.TemporaryDirectory(prefix="txlog-bench-kafka-"))
            self._kafka = self._open_kafka.enter_context(kafka.running(Path(folder), scale))
        return self._kafka

    def about_kafka(self) -> dict[str, Any] | None:
        """Return how the broker was warmed; None if it does not run."""
        return None if self._kafka is None else self._kafka.about()

    def end_kafka(self) -> None:
        """End the broker, which would take memory and a little time beside the other rows."""
        self._kafka = None
        self._open_kafka.close()


def _generate(folder: Path, table: str, factor: str) -> None:
    """Let TPC-H's generator (`tpchgen-cli`, extra `bench`) write a table."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(program), "parquet", "-s", factor, "--tables", table, "--output-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def _write_flights(folder: Path) -> None:
    """Write the 336,776 flights of the demo."""
    from lab.demo.data import flights

    parquet.write_table(flights(), folder / "flights.parquet")
