"""How are txlog's own jobs named in Spark's UI?

A job has a description, and its stages have the names of the call site. Both are local properties of the thread that
starts the job; `described` sets them for one call and then restores them. An existing description stays, because it is
the user's, or names the micro-batch of a stream. pyspark itself names the stages of what it fetches as Arrow. Jobs that
a user starts on a txlog frame keep the user's names. A Python data source such as `format("txlog")` cannot name jobs at
all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

DESCRIPTION = "spark.job.description"
STAGE_NAME, STAGE_DETAILS = "callSite.short", "callSite.long"


@contextmanager
def described(session: SparkSession, text: str) -> Iterator[None]:
    """Name the jobs that this thread starts, and their stages. Over Spark Connect this does nothing."""
    context = getattr(session, "_sc", None)
    if context is None:
        yield
        return
    before = {name: context.getLocalProperty(name) for name in (DESCRIPTION, STAGE_NAME, STAGE_DETAILS)}
    for name, value in before.items():
        if name != DESCRIPTION or not value:
            context.setLocalProperty(name, text)
    try:
        yield
    finally:
        for name, value in before.items():
            context.setLocalProperty(name, value)
