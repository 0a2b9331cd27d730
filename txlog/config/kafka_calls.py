"""What does a program call here in the place of a call of Kafka's Python clients? `kafka_calls.toml` is the table."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache


def in_place_of(*endings: str) -> str:
    """Return the hint for the first call whose name, such as `Consumer.poll`, has such an end; empty if none has."""
    return next((f". hint: {text}" for end in endings for name, text in _table().items() if name.endswith(end)), "")


@cache
def _table() -> dict[str, str]:
    data = pkgutil.get_data("txlog.config", "kafka_calls.toml")
    assert data is not None, "a loader of Python reads the files of its packages"
    return tomllib.loads(data.decode())
