"""What do contestants share? The input, one Spark session, and the folder that keeps inputs between runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

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

    def lineitem(self) -> Path:
        """Return the Parquet file of TPC-H's table lineitem; `tpchgen-cli` (extra `bench`) makes it once."""
        folder = self._cache / f"tpch-{self._scale_factor:g}"
        file = folder / "lineitem.parquet"
        if not file.exists():
            program = Path(sys.executable).with_name("tpchgen-cli")
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [str(program), "parquet", "-s", f"{self._scale_factor:g}", "--tables", "lineitem"]
            subprocess.run([*command, "--output-dir", str(partial)], check=True, capture_output=True)
            folder.parent.mkdir(parents=True, exist_ok=True)
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
