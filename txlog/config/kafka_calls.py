"""What does a program call here in the place of a call of Kafka's Python clients? `kafka_calls.toml` is the table."""

from __future__ import annotations

import pkgutil
import tomllib


def in_place_of(*endings: str) -> str:
    """Return the hint for the first call whose name, such as `Consumer.poll`, has such an end; empty if none has."""
    data = pkgutil.get_data("txlog.config", "kafka_calls.toml")
    assert data is not None, "a loader of Python reads the files of its packages"
    table = tomllib.loads(data.decode())
    return next((f". hint: {table[name]}" for end in endings for name in table if name.endswith(end)), "")
