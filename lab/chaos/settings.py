"""Which settings does a storm have?"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txlog.errors import InvalidRequestError

SPARK_WORKER = "lab.chaos.spark_job"
"""The program of the Spark role. A process of its own and known by name only: nothing here imports Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One storm."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    histories: str
    seconds: float
    """At least; see `Storm.run`."""
    seed: int = 1
    spark: bool = True
    maintain: bool = False
    """Whether two `txlog maintain --daemon` run beside everybody, on a store with a short grace."""
    grace_ms: int = 20_000
    """`delete.grace.ms` of the store then."""
    clock_skew_ms: int = 0
    """By how much the wall clock of one of the two is ahead, and that of the other one behind."""


def parse_options(given: Iterable[str]) -> dict[str, object]:
    """Parse options of a store's driver from `KEY=VALUE`: text, or JSON if the value is valid JSON.

    Raises InvalidRequestError.
    """
    options: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidRequestError(f"{name!r} is not a storage option: expected KEY=VALUE")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def has_spark() -> bool:
    """Return whether the Spark role can run here."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyspark_txlog"))
