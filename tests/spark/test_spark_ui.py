"""Jobs and stages of native writes have names in Spark's UI, and the user's own names are restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TxLog
from pyspark_txlog.spark_ui import DESCRIPTION, STAGE_DETAILS, STAGE_NAME
from tests.spark.conftest import Log, append

pytestmark = pytest.mark.spark
NAMES = (DESCRIPTION, STAGE_NAME, STAGE_DETAILS)


@pytest.fixture
def native(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    log.create()
    with TxLog(spark, log.url, {"fsync": False}) as opened:
        yield opened


def jobs(spark: SparkSession, after: int) -> list[tuple[str, set[str]]]:
    """Return what Spark's UI store holds of each job after job `after`, oldest first: its description and its stages'
    names.

    Spark forgets the stages of older jobs.
    """
    store = spark._jsc.sc().statusStore()
    listed = []
    for job in all_jobs(spark):
        if job.jobId() <= after:
            continue
        stages = job.stageIds()
        names = {str(store.lastStageAttempt(stages.apply(number)).name()) for number in range(stages.size())}
        said = job.description()
        listed.append((int(job.jobId()), str(said.get()) if said.isDefined() else "", names))
    return [(said, names) for _, said, names in sorted(listed)]


def last_job(spark: SparkSession) -> int:
    """Return the number of the newest job, or -1 if there is none."""
    return max((job.jobId() for job in all_jobs(spark)), default=-1)


def all_jobs(spark: SparkSession) -> list[Any]:
    """Return Java's objects, after Spark's store has received all earlier events."""
    context, jvm = spark._jsc.sc(), spark._jvm
    assert jvm is not None
    context.listenerBus().waitUntilEmpty()
    found = context.statusStore().jobsList(jvm.java.util.ArrayList())
    return [found.apply(at) for at in range(found.size())]


def properties(spark: SparkSession) -> list[str | None]:
    return [spark.sparkContext.getLocalProperty(name) for name in NAMES]


def test_native_writes_are_named(spark: SparkSession, log: Log, native: TxLog) -> None:
    before = properties(spark)
    seen = last_job(spark)
    append(native.table("orders"), log.frame(0, 10), transactional_id="nightly")
    append(native.table("orders"), log.frame(10, 90).select("order_id"), transactional_id="nightly")
    append(native.table("orders"), log.frame(100, 90), transactional_id="nightly", road="executors")
    made = jobs(spark, seen)
    what = "txlog: rows of 'orders' for transactional.id 'nightly'"
    assert {said for said, _ in made} == {
        what,
        f"{what}, by the driver if they are few",
        f"{what}, by Spark's own writer",
    }
    assert [names for said, names in made if said.endswith("writer")] == [{f"{what}, by Spark's own writer"}]
    # pyspark itself names the stages of what it fetches as Arrow.
    assert all("_as_arrow at " in name for said, names in made if not said.endswith("writer") for name in names), made
    assert properties(spark) == before


def test_a_name_of_the_users_stays_and_is_put_back(spark: SparkSession, log: Log, native: TxLog) -> None:
    spark.sparkContext.setJobDescription("the nightly job")
    try:
        before = properties(spark)
        seen = last_job(spark)
        append(native.table("orders"), log.frame(0, 10), road="executors")
        bad = log.frame(0, 10).selectExpr("order_id", "raise_error('the job dies') AS carrier")
        with pytest.raises(Exception, match="the job dies"):
            append(native.table("orders"), bad, road="executors")
        assert properties(spark) == before
        made = jobs(spark, seen)
    finally:
        spark.sparkContext.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]
    assert {said for said, _ in made} == {"the nightly job"}
    assert all(name.startswith("txlog: rows of 'orders'") for _, names in made for name in names)
