"""Which settings does a storm have?"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txlog.errors import InvalidRequestError

SPARK_WORKER = "lab.chaos.spark_job"
"""The program of the Spark role. It is a separate process with only a name here: nothing in this module imports
Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One storm."""

    url: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    histories: str
    seconds: float
    """The minimum; see `Storm.run`."""
    seed: int = 1
    spark: bool = True
    maintain: bool = False
    """Whether two `txlog maintain --daemon` run beside the other processes, on a store with a short grace."""
    grace_ms: int = 20_000
    """`delete.grace.ms` of the store in that case."""
    engines: str | None = None
    """The Python of an environment with other engines. They poll published tables of a storm with maintenance."""
    clock_skew_ms: int = 0
    """The wall clock of one of the two is ahead by this, and that of the other one is behind by it."""


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
