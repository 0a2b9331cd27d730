"""Iceberg's Spark in an environment of its own, which `make` creates: no build of Iceberg is for txlog's Spark.

`python -m benchmarks.rivals.iceberg`, run by that environment, is the other side: it reads a line of JSON for each
step, and answers with one.
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
PYTHON = ROOT / ".venv-iceberg" / "bin" / "python"


@contextmanager
def start(config: Mapping[str, str]) -> Iterator[Iceberg]:
    """Run the other side with these settings of Spark."""
    if not PYTHON.exists():
        raise NotAvailable("needs .venv-iceberg; make bench creates it")
    process = subprocess.Popen(
        [str(PYTHON), "-m", "benchmarks.rivals.iceberg"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(PYTHON)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        other = Iceberg(process)
        try:
            other.ask({"config": dict(config)})
            yield other
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


class Iceberg:
    """The process that has Iceberg's Spark."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @contextmanager
    def running(self, folder: Path, work: Any) -> Iterator[Callable[[], Samples]]:
        """Yield the turn of a work of benchmarks/spark_works.py."""
        key = str(folder)
        self.ask({"start": key, "work": asdict(work)})
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
            raise RuntimeError(f"Iceberg's process has ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"Iceberg: {answer['error']}")
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
                works[step["start"]] = _start(spark, Path(step["start"]), step["work"])
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

    builder = SparkSession.builder.appName("txlog benchmark: Iceberg").master("local[2]")
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _start(spark: Any, folder: Path, work: Mapping[str, Any]) -> tuple[ExitStack, Callable[[], Samples]]:
    from benchmarks.rivals.table_formats import Iceberg as Format
    from benchmarks.spark_works import Work, running

    stack = ExitStack()
    return stack, stack.enter_context(running(Format(spark, folder), Work(**work)))


if __name__ == "__main__":
    serve()
