"""Which settings of Kafka does txlog not have, and why? `kafka_settings.toml` is the table."""

from __future__ import annotations

import pkgutil
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

_FILE = "kafka_settings.toml"


@cache
def read_table(file: str) -> dict[str, Any]:
    """Return the content of a TOML file of this package."""
    data = pkgutil.get_data("txlog.config", file)
    assert data is not None, "a loader of Python reads the files of its packages"
    return tomllib.loads(data.decode())


def not_needed() -> dict[str, str]:
    """Return the settings of Kafka that txlog does not have, each with the reason. In a name `*` is any text."""
    return {name: each["because"] for each in read_table(_FILE)["not_needed"] for name in each["settings"]}


def other_names() -> dict[str, str]:
    """Return Kafka's other names for settings that txlog has, each with the name that txlog knows."""
    return dict(read_table(_FILE)["other_names"])


def other_name(name: str) -> str | None:
    """Return the name that txlog knows for a setting with another name; None if there is none."""
    return other_names().get(_dotted(name))


def other_value(value: object, known: Iterable[str]) -> str:
    """Return ". Did you mean 'x'?" with the word of `known` that means the same in txlog, or "" if there is none."""
    meant = read_table(_FILE)["other_values"].get(str(value).strip().lower())
    return f". Did you mean '{meant}'?" if meant in known else ""


def why_not(name: str) -> str | None:
    """Return why txlog does not need a setting of Kafka; None if Kafka does not have it."""
    dotted = _dotted(name)
    return next((why for known, why in not_needed().items() if fnmatchcase(dotted, _dotted(known))), None)


def _dotted(name: str) -> str:
    return name.lower().replace("_", ".")
