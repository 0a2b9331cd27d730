"""Do engines that know nothing of txlog read a published topic as an Iceberg table, and can none of them change it?"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.engines.environments import run
from tests.publication import story, story_rows

pytestmark = pytest.mark.engines


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
    run(".venv-engines", "iceberg_duckdb", str(story.tell(tmp_path).path))


def test_a_catalog_of_pyiceberg(tmp_path: Path) -> None:
    run(".venv-engines", "iceberg_catalog", str(story.tell(tmp_path).path))


def test_spark(tmp_path: Path) -> None:
    # Metadata have absolute names. So each store is written at the path where Spark reads it.
    now = tmp_path / "now"
    for version in range(1, story.VERSIONS + 1):
        now.mkdir()
        story.tell(now, version)
        now.rename(tmp_path / f"v{version}")
    run(".venv-iceberg", "iceberg_spark", str(tmp_path))
