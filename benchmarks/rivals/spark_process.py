"""A rival's Spark in another process, so that it has none of txlog's settings and methods.

`python -m benchmarks.rivals.spark_process` is the other side: it reads a line of JSON for each step, and answers with
one. Iceberg's runs in another environment, which `make` creates, because Iceberg has no build for txlog's Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import NotAvailable, Samples

ROOT = Path(__file__).parents[2]
ICEBERG = ROOT / ".venv-iceberg" / "bin" / "python"
SHARED: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalogImplementation": "in-memory",
}
"""What txlog's session also has, and what makes none of them faster than another. All else is Spark's default."""


def delta() -> dict[str, str]:
    """Return the settings of Delta; none if its package (extra `bench`) is not installed."""
    try:
        from delta import configure_spark_with_delta_pip
        from pyspark.sql import SparkSession
    except ImportError:
        return {}
    # The package knows its JARs' names. It only hands them over in a builder.
    packages = configure_spark_with_delta_pip(SparkSession.builder)._options["spark.jars.packages"]
    return {
        "spark.jars.packages": packages,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


@contextmanager
def start(python: Path, config: Mapping[str, str]) -> Iterator[SparkProcess]:
    """Run the other side in that Python with these settings of Spark."""
    if not python.exists():
        raise NotAvailable(f"needs {python.relative_to(ROOT).parts[0]}; make bench creates it")
    process = subprocess.Popen(
        [str(python), "-m", "benchmarks.rivals.spark_process"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        other = SparkProcess(process)
        try:
            other.ask({"config": dict(config)})
            yield other
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class SparkProcess:
    """The process that has a rival's Spark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @contextmanager
    def running(self, format_name: str, folder: Path, work: Any) -> Iterator[Callable[[], Samples]]:
        """Yield the turn of a work of benchmarks/spark_works.py, in one of the formats of `table_formats.FORMATS`."""
        key = str(folder)
        self.ask({"start": key, "format": format_name, "work": asdict(work)})
        try:
            yield lambda: self.ask({"turn": key})
        finally:
            self.ask({"stop": key})

    def ask(self, step: dict[str, Any]) -> Samples:
        """Send a step and return its answer. Raises RuntimeError with the error of the other side."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(step) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the rival's Spark has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the rival's Spark: {answer['error']}")
        return answer["samples"]  # type: ignore[no-any-return]


def serve() -> None:
    """Answer one step after the other, until the input ends."""
    # Spark and Java must not write between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    works: dict[str, tuple[ExitStack, Callable[[], Samples]]] = {}
    spark: Any = None
    for line in sys.stdin:
        step = json.loads(line)
        samples: Samples = {}
        try:
            if "config" in step:
                spark = _session(step["config"])
            elif "start" in step:
                works[step["start"]] = _start(spark, step["format"], Path(step["start"]), step["work"])
            elif "turn" in step:
                samples = works[step["turn"]][1]()
            else:
                works.pop(step["stop"])[0].close()
            answer: dict[str, Any] = {"samples": samples}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if spark is not None:
        spark.stop()


def _session(config: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("txlog benchmark: a rival").master("local[2]")
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _start(spark: Any, name: str, folder: Path, work: Mapping[str, Any]) -> tuple[ExitStack, Callable[[], Samples]]:
    from benchmarks.rivals.table_formats import FORMATS
    from benchmarks.spark_works import Work, running

    stack = ExitStack()
    return stack, stack.enter_context(running(FORMATS[name](spark, folder), Work(**work)))


if __name__ == "__main__":
    serve()
