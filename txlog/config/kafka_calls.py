"""What does a program call here in the place of a call of Kafka's Python clients? `kafka_calls.toml` is the table."""

from __future__ import annotations

from txlog.config.kafka_settings import read_table


def in_place_of(*endings: str) -> str:
    """Return the hint for the first call whose name, such as `Consumer.poll`, has such an end; empty if none has."""
    table = read_table("kafka_calls.toml")
    return next((f". hint: {table[name]}" for end in endings for name in table if name.endswith(end)), "")
