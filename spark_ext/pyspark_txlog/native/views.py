"""How do a store's topics become tables of Spark's SQL?

They become temporary views over native scans, one for each topic. A view shows the rows that its topic had when the
view was made. SQL over several views sees one plan, which does not change under a query. Call `create_views` again to
see newer rows. Views live in the session and have the names of the topics; SQL quotes names with dots and hyphens with
backticks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from pyspark_txlog.source.predicate import quoted
from txlog.errors import InvalidRequestError


def create_views(frames: Mapping[str, DataFrame], prefix: str = "") -> dict[str, str]:
    """Create or replace a temporary view for each frame, and return the topic for each view, whose name is quoted for SQL.

    Raises InvalidRequestError, and creates no view, if two names differ only in case: Spark treats them as one.
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
                f"the views {other!r} and {name!r} would be one, because Spark ignores case. hint: name the topics one by one, with a prefix "
                "for one of them"
            )
