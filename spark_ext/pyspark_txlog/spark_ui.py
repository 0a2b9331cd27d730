"""Under which names do txlog's own jobs stand in Spark's UI?

A job has a description, its stages the names of the call site: both are local properties of the thread that starts it, set
for the time of the call, and put back. A description that is there already stays: it is the user's, or says which
micro-batch of a stream this is; and pyspark itself names the stages of what it fetches as Arrow. Jobs that a user starts on a frame of txlog's are the user's to name; and a data source in
Python, `format("txlog")`, has no hand in the names of jobs at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

DESCRIPTION = "spark.job.description"
STAGE_NAME, STAGE_DETAILS = "callSite.short", "callSite.long"


@contextmanager
def described(session: SparkSession, text: str) -> Iterator[None]:
    """Names the jobs that this thread starts, and their stages. Over Spark Connect it does nothing."""
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
