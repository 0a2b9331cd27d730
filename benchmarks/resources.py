"""What do contestants share? The input, one Spark session, and the folder that keeps inputs between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.rivals.iceberg import Iceberg


class Resources:
    """Made at first use, and closed with the run."""

    def __init__(self, cache: Path, *, scale_factor: float = 1.0) -> None:
        self._cache = cache
        self._scale_factor = scale_factor
        self._open = ExitStack()
        self._spark: SparkSession | None = None
        self._iceberg: Iceberg | None = None

    def __enter__(self) -> Resources:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def restart(self) -> None:
        """End Spark and Iceberg's process, which may have died. Each starts again when it is needed."""
        with suppress(Exception):
            self._open.close()
        self._spark = self._iceberg = None

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
        """Return the session of all contestants on Spark, with Delta if its package is installed."""
        if self._spark is None:
            from benchmarks.rivals.spark_session import start_spark

            self._spark = self._open.enter_context(start_spark())
        return self._spark

    def iceberg(self) -> Iceberg:
        """Return the process that has Iceberg's Spark, with the same settings as the other session."""
        if self._iceberg is None:
            from benchmarks.rivals import iceberg, table_formats
            from pyspark_txlog.spark_session import DEFAULTS

            warehouse = self._open.enter_context(tempfile.TemporaryDirectory(prefix="txlog-bench-iceberg-"))
            config = {**DEFAULTS, **table_formats.Iceberg.config(Path(warehouse))}
            self._iceberg = self._open.enter_context(iceberg.start(config))
        return self._iceberg


def _generate(folder: Path, table: str, factor: str) -> None:
    """Let TPC-H's generator (`tpchgen-cli`, extra `bench`) write a table."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(program), "parquet", "-s", factor, "--tables", table, "--output-dir", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def _write_flights(folder: Path) -> None:
    """Write the 336,776 flights of the demo."""
    from lab.demo.data import flights

    parquet.write_table(flights(), folder / "flights.parquet")
