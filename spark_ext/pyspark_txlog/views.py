"""How do a store's topics become tables of Spark's SQL?

As temporary views over native scans, one a topic. A view shows what its topic held when it was made: SQL over several
views sees one planning, and does not change under a query; `create_views` again shows what came since. Views live in the
session and are named as the topics are; names with dots and hyphens are quoted in SQL with backticks, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from pyspark_txlog.predicate import quoted
from txlog.errors import InvalidRequestError


def create_views(frames: Mapping[str, DataFrame], prefix: str = "") -> dict[str, str]:
    """A temporary view for each frame, replacing one of its name; topic by view's name as it is written in SQL.

    Raises InvalidRequestError, and makes none, if two names differ in case alone: to Spark they are one.
    """
    named = {topic: f"{prefix}{topic}" for topic in frames}
    _check_distinct(named.values())
    for topic, frame in frames.items():
        frame.createOrReplaceTempView(quoted(named[topic]))
    return {topic: quoted(name) for topic, name in named.items()}


def _check_distinct(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidRequestError(
                f"the views {other!r} and {name!r} would be one, for Spark does not tell them apart; name the topics one by one, with a prefix "
                "for one of them"
            )
