"""Do engines that know nothing of txlog read a published topic as an Iceberg table, and can none of them change it?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import polars as pl
import pytest

from tests.publication import story, story_rows

pytestmark = pytest.mark.engines

ROOT = Path(__file__).parents[2]


def run(environment: str, module: str, argument: Path) -> None:
    """Run a module of this folder in an environment that `make test-engines` creates. It fails if a row differs."""
    python = Path(os.environ.get("TXLOG_TEST_ENGINES", ROOT)) / environment / "bin" / "python"
    command = [str(python), "-m", f"tests.engines.{module}", str(argument)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.mark.parametrize("reader", ["native", "pyiceberg"])
def test_polars(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without a package of its own it says that pyiceberg plans its scans.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    topic = story.tell(tmp_path)
    for place in (str(topic.path), f"{topic.url}/orders", f"{topic.path}/metadata/v7.metadata.json"):
        frame = pl.scan_iceberg(place, reader_override=reader)  # type: ignore[arg-type]
        story_rows.check(frame.collect().to_dicts())
        assert frame.filter(pl.col("small") == 26).collect().height == 1


def test_duckdb(tmp_path: Path) -> None:
    run(".venv-engines", "iceberg_duckdb", story.tell(tmp_path).path)


def test_a_catalog_of_pyiceberg(tmp_path: Path) -> None:
    run(".venv-engines", "iceberg_catalog", story.tell(tmp_path).path)


def test_spark(tmp_path: Path) -> None:
    # Metadata have absolute names. So each store is written at the path where Spark reads it.
    now = tmp_path / "now"
    for version in range(1, story.VERSIONS + 1):
        now.mkdir()
        story.tell(now, version)
        now.rename(tmp_path / f"v{version}")
    run(".venv-iceberg", "iceberg_spark", tmp_path)
