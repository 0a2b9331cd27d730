"""The works that benchmarks do on Spark, small, with txlog's two ways: they end, and give the figures that goals
name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.rivals import spark_process
from benchmarks.spark_log import FormatWithId, Native, PythonSink
from benchmarks.spark_works import Work, running
from pyspark_txlog.spark_session import DEFAULTS

WORKS = {
    "appends_of_a_file": {"ms"},
    "bytes_after": {"MB", "files"},
    "micro_batches": {"ms"},
    "stream_source": {"ms"},
}


@pytest.mark.spark
@pytest.mark.parametrize("way", [Native, FormatWithId])
@pytest.mark.parametrize("name", WORKS)
def test_a_work_gives_its_figures(spark: SparkSession, tmp_path: Path, way: type[Native], name: str) -> None:
    work = Work(name=name, rows=10, times=2, commits=2, warm_up=1)
    with running(way(spark, tmp_path), work) as turn:
        found = turn()
    assert WORKS[name] <= set(found)
    assert all(value > 0 for samples in found.values() for value in samples)


@pytest.mark.spark
def test_the_requests_of_a_stream_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    with running(PythonSink(spark, tmp_path), Work(name="micro_batches", rows=10, times=2, warm_up=1)) as turn:
        found = turn()
    # Each batch creates at least its decision.
    assert found["requests"][0] >= 1


def test_the_session_of_rivals_has_none_of_txlog_s_tuning() -> None:
    assert spark_process.SHARED.items() <= DEFAULTS.items()
    assert not [name for name in spark_process.SHARED if "parquet" in name or "arrow" in name or "partition" in name]
