"""Does this Spark have limits for streams of Python sources? From 4.2 on it passes a batch's beginning and a limit.

An older one only asks for the newest offset. It has none of the classes that are imported here, so others stand for
them. They are never used.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_txlog import option_table as table
from txlog.errors import InvalidRequestError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
except ModuleNotFoundError:
    HAS_LIMITS = False
    ReadAllAvailable = ReadLimit = ReadMaxRows = ReadMinRows = object  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for Spark's class."""


__all__ = [
    "HAS_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "refuse_limits",
]

_LIMITS = (table.MAX_OFFSETS_PER_TRIGGER, table.MIN_OFFSETS_PER_TRIGGER, table.MAX_TRIGGER_DELAY)


def refuse_limits(options: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if a query with an older Spark has a limit."""
    lowered = {name.lower() for name in options}
    if not HAS_LIMITS and (found := [option.name for option in _LIMITS if option.name.lower() in lowered]):
        raise InvalidRequestError(
            f"option {found[0]!r} needs Spark 4.2, because an older one has no limits for streams of "
            "Python sources. hint: leave it out; each batch then has all rows that are there"
        )
