"""How are the options of one call checked and parsed by the table, and how is a value read?

Names are not case-sensitive, as in Spark; values are. An unknown option is an error that names the nearest known one,
because a misspelled `endingOffsets` must not read everything. `storage.<name>` is one option of the store's driver;
`storageOptions` is one JSON object with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, overload

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import (
    CATALOG_HINT,
    DELTA_OPTIONS,
    PATH,
    STORAGE_OPTION,
    STORAGE_OPTIONS,
    Always,
    Call,
    Option,
    calls_text,
    find_option,
    kafka_option,
    names_of,
)
from pyspark_txlog.option_values import Parse, T
from txlog.engine import KEYS, Runtime
from txlog.errors import InvalidRequestError, UnknownOptionError
from txlog.text import nearest

_STORAGE_PREFIX = "storage."
_TEXTS: Mapping[Call, str] = {
    "read": "a read",
    "readStream": "a stream",
    "write": "a write",
    "writeStream": "a streaming write",
}
"""What takes the options, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one call, checked as far as possible without the store.

    `options[WHERE]` is the given value of that option, else the table's default, else None. `WHERE in options` tells
    whether it was given. The repr leaves the values out, because they may hold credentials.
    """

    call: Call
    storage: Mapping[str, object] = field(repr=False)
    """All options of the store's driver."""
    values: Mapping[str, Any] = field(repr=False)
    """What was given and counts, by the option's name."""

    @classmethod
    def parse(cls, given: Mapping[str, str], call: Call, known: Sequence[str] = (), what: str = "") -> Self:
        """Parse the options that `call` takes; `known` and `what` are for calls that take only some of them.

        Raises UnknownOptionError, and InvalidRequestError with option, expected and found.
        """
        known, what = known or names_of(call), what or _TEXTS[call]
        check_names(given, known, what)
        texts = {name.lower(): text for name, text in given.items()}
        values: dict[str, Any] = {}
        for option in filter(None, map(find_option, known)):
            text = texts.get(option.name.lower())
            if text is None:
                if option.missing:
                    method = {"write": "save", "writeStream": "start"}.get(call, "load")
                    raise InvalidRequestError(option.missing.format(method))
            elif not any(name.lower() in texts for name in option.overridden_by):
                if not text.strip():
                    raise InvalidRequestError(f"option {option.name!r} is empty; leave it out, or give it a value")
                values[option.name] = _parser(option, call)[1](option.name, text.strip())
        single = {
            name.removeprefix(_STORAGE_PREFIX): STORAGE_OPTION.value.parse(name, text)
            for name, text in texts.items()
            if name.startswith(_STORAGE_PREFIX)
        }
        return cls(call=call, storage={**values.pop(STORAGE_OPTIONS.name, {}), **single}, values=values)

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name in self.values

    @overload
    def __getitem__(self, option: Always[T]) -> T: ...
    @overload
    def __getitem__(self, option: Option[T]) -> T | None: ...
    def __getitem__(self, option: Option[Any]) -> Any:
        for name in (*option.overridden_by, option.name):
            if name in self.values:
                return self.values[name]
        default, parse = _parser(option, self.call)
        return parse(option.name, default) if default else None

    def having(self, option: Option[str], value: str) -> Self:
        """Return these options as if the call had given `option` that value."""
        return replace(self, values={**self.values, option.name: value})

    @property
    def settings(self) -> dict[str, object]:
        """The settings of a client that were given. Lower layers decide the others."""
        return {name: value for name, value in self.values.items() if name in KEYS}

    def open(self) -> Runtime:
        """Open the store. Raises what `txlog.open` raises for a store that exists."""
        return Runtime.open(self[PATH], storage_options=self.storage)


def check_names(given: Mapping[str, str], known: Sequence[str], what: str) -> None:
    """Raise UnknownOptionError unless all options are among `known`, or options of the store's driver."""
    lowered = {name.lower() for name in known}
    for name in map(str.lower, given):
        if name in lowered or (name.startswith(_STORAGE_PREFIX) and name != _STORAGE_PREFIX):
            continue
        option, kafka = find_option(name), kafka_option(name)
        hint = (
            f" It is an option of {calls_text(option)}."
            if option
            else f" Spark's Kafka {'source and sink have' if kafka.side == 'both' else f'{kafka.side} has'} "
            f"it; here: {kafka.here}."
            if kafka
            else f" Delta has it; here: {DELTA_OPTIONS[name]}."
            if name in DELTA_OPTIONS
            else nearest(name, known)
        )
        has = "no such option" if hint else f"{', '.join(known)}, storage.<name>"
        raise UnknownOptionError(f"option {option.name if option else name!r} is unknown: {what} has {has}.{hint}")


@plain_errors
def refuse_catalog(options: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if Spark asks for the schema of a new catalog table, because Spark drops its options
    afterwards."""
    if any(name.lower() == "provider" for name in options):
        raise InvalidRequestError(CATALOG_HINT)


def _parser(option: Option[T], call: Call) -> tuple[str, Parse[T]]:
    """Return the option's default and parser in `call`."""
    return (option.stream if call == "readStream" else None) or (option.default, option.value.parse)
