"""What have the command lines of all jobs in common: pairs of settings, and a Spark session, here or under spark-submit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def job_session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of a job called `name`. Under spark-submit it is the cluster's, and `conf` an InvalidRequestError."""
    from pyspark.sql import SparkSession

    from pyspark_txlog.spark_session import session

    # Under spark-submit the session is the cluster's: its master and settings stand.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        if conf:
            raise InvalidRequestError(
                f"--conf {', '.join(conf)}: under spark-submit, give it there, before the program's name"
            )
        builder: Any = SparkSession.builder
        found: SparkSession = builder.appName(name).getOrCreate()
        return found
    return session(name, config=conf)


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` of a repeated option. Raises InvalidRequestError, which does not show what may be a secret."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequestError(
                f"{option}: expected NAME=VALUE, found a text without '=' (not shown: it may be a secret)"
            )
        found[name] = value
    return found
