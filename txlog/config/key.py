"""Which values may a setting have, and how is a value read from Python, TOML or text?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, get_args

from txlog.config.kafka_settings import other_value
from txlog.errors import InvalidConfigurationError, InvalidRequestError
from txlog.text import any_text

Scope: TypeAlias = Literal["client", "producer", "consumer", "topic", "store"]
Kind: TypeAlias = Literal["int", "bool", "str", "float", "choice", "list"]
Value: TypeAlias = int | bool | str | float | tuple[str, ...] | None
Layer: TypeAlias = Mapping[str, object]
IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]

SCOPES: tuple[Scope, ...] = get_args(Scope)

_DURATION = re.compile(r"\s*(\d{1,9})\s*([smhd])\s*", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"\s*\+?\d+\s*", re.ASCII)
_LONGEST_WHOLE = 100
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One setting. It has no default if `default` is empty (None); `minimum` of text is its least length."""

    name: str
    kind: Kind
    scopes: frozenset[Scope]
    default: Value
    _: KW_ONLY
    doc: str
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    items: str = "column names"
    """What the items of a list without choices are, as text."""
    kafka_default: str | None = None
    """Kafka's default and why txlog's differs; None if they are the same or Kafka has no such key."""
    error: type[InvalidRequestError] = InvalidConfigurationError

    @property
    def field(self) -> str:
        """Return the name of the attribute in the `...Config` classes."""
        return self.name.replace(".", "_")

    @property
    def expected(self) -> str:
        """Return what a value must be, as text."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "list":
            return "a comma-separated list of " + (", ".join(self.choices) if self.choices else self.items)
        if self.kind == "bool":
            return "true or false"
        if self.kind == "str":
            return "text that is not empty" if self.minimum else "text"
        if self.maximum is None or self.maximum in (INT32_MAX, INT64_MAX):
            return f"{self._noun} of at least {self.minimum}"
        return self._range

    @property
    def default_text(self) -> str:
        """Return the default as text."""
        return "none" if self.default is None else self.text(self.default) or "empty"

    def parse(self, value: object) -> Value:
        """Return `value` from Python, TOML or text as this key's type. Raises `error`, naming key, value and range."""
        parsed = _PARSERS[self.kind](self, value)
        if parsed is None:
            raise self.error(
                f"{self.name} = {any_text(value)}: expected "
                f"{self._range if self._is_above(value) else self.expected} (default "
                f"{self.default_text}){other_value(value, self.choices)}{self._hint(value)}"
            )
        return parsed

    @property
    def _noun(self) -> str:
        return "an integer" if self.kind == "int" else "a number"

    @property
    def _range(self) -> str:
        return f"{self._noun} from {self.minimum} to {self.maximum}"

    def _is_above(self, value: object) -> bool:
        """Return whether `value` is a whole number above the maximum.

        `expected` leaves out a maximum that few values exceed.
        """
        if self.maximum is None or not _WHOLE.fullmatch(text := str(value)):
            return False
        # Python refuses to parse thousands of digits.
        return len(text) > _LONGEST_WHOLE or int(text) > self.maximum

    def _hint(self, value: object) -> str:
        if self.name.endswith(".ms") and isinstance(value, float) and 0 < value < 3600:
            return f". hint: {value} seconds are {self.name}={round(value * 1000)}"
        given = _DURATION.fullmatch(str(value)) if self.name.endswith(".ms") else None
        return "" if given is None else f". hint: {self.name}={int(given[1]) * _UNIT_MS[given[2].lower()]}"

    def text(self, value: Value) -> str:
        """Return a `value` from `parse` as text that `parse` reads back."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return "" if value is None else str(value)


def _parse_int(key: ConfigKey, value: object) -> Value:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if _in_range(key, value) else None


def _parse_float(key: ConfigKey, value: object) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and _in_range(key, number) else None


def _parse_bool(key: ConfigKey, value: object) -> Value:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else None


def _parse_str(key: ConfigKey, value: object) -> Value:
    return value if isinstance(value, str) and len(value) >= (key.minimum or 0) else None


def _parse_choice(key: ConfigKey, value: object) -> Value:
    text = value.strip().lower() if isinstance(value, str) else None
    return text if text in key.choices else None


def _parse_list(key: ConfigKey, value: object) -> Value:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        return None
    items = tuple(item.strip() for item in value)
    if not all(items) or len(set(items)) != len(items) or any("," in item for item in items):
        return None
    if key.choices:
        # The order of choices has no meaning, so they have one spelling. Only a setting that is empty by default may be
        # empty.
        return tuple(sorted(items)) if (items or not key.default) and set(items) <= set(key.choices) else None
    return items


def _in_range(key: ConfigKey, value: float) -> bool:
    return (key.minimum is None or value >= key.minimum) and (key.maximum is None or value <= key.maximum)


_PARSERS = {
    "int": _parse_int,
    "bool": _parse_bool,
    "str": _parse_str,
    "float": _parse_float,
    "choice": _parse_choice,
    "list": _parse_list,
}
