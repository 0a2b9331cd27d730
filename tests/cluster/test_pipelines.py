"""txlog in Spark Declarative Pipelines: a topic as the source of a flow, and as a sink."""

from __future__ import annotations

import shutil
import sys
import textwrap

import pytest

from tests.cluster.conftest import SPARK_BIN
from tests.cluster.jobs import ENVIRONMENT, EVERYTHING, Place, running

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
PIPELINE = """
    import pyspark_txlog
    from pyspark import pipelines as dp
    from pyspark.sql import SparkSession

    pyspark_txlog.{switch}()
    URL = {url!r}
    spark = SparkSession.active()

    dp.create_sink("copies", "txlog", {{"path": URL, "topic": "streamed", "transactional.id": "copies"}})

    @dp.append_flow(target="copies", name="copy")
    def copy():
        rows = spark.readStream.format("txlog").option("subscribe", "orders")
        return rows.option("startingOffsets", "earliest").load(URL)

    @dp.materialized_view(name="by_country")
    def by_country():
        return spark.read.format("txlog").option("subscribe", "orders").load(URL).groupBy("country").count()
"""
SPEC = """
    name: txlog
    storage: file://{folder}/storage
    configuration:
      spark.sql.shuffle.partitions: "2"
    libraries:
      - glob:
          include: pipeline/**
"""
PIPELINE_S = 250


def run(place: Place, switch: str) -> tuple[int, str]:
    """Return (the status of `spark-pipelines run`, its output). `switch` is install or uninstall."""
    folder = place.folder / "project"
    (folder / "pipeline").mkdir(parents=True, exist_ok=True)
    (folder / "spark-pipeline.yml").write_text(textwrap.dedent(SPEC.format(folder=folder)))
    (folder / "pipeline" / "copies.py").write_text(textwrap.dedent(PIPELINE.format(url=place.url, switch=switch)))
    console = folder / "console.txt"
    environment = {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK_BIN.parent)}
    with running([SPARK_BIN / "spark-pipelines", "run"], console, environment) as process:
        return process.wait(PIPELINE_S), console.read_text()


@pytest.mark.parametrize(("first", "second"), [("uninstall", "install"), ("install", "uninstall")])
def test_a_topic_is_source_and_sink(place: Place, first: str, second: str) -> None:
    """By each road, and the second run goes on with the checkpoint of the other one."""
    place.fill()
    status, said = run(place, first)
    assert status == 0, said[-6000:]
    # The folder of the pipeline's own tables. Their catalog ended with the process.
    shutil.rmtree(place.folder / "project" / "spark-warehouse")
    status, said = run(place, second)
    assert status == 0, said[-6000:]
    place.check(orders=EVERYTHING, streamed=EVERYTHING)
