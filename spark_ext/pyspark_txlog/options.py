"""How are the options of one call checked and parsed by the table?

Names are not case-sensitive, as in Spark; values are. An unknown option is an error that names the nearest known one,
because a misspelled `endingOffsets` must not read everything. `source.options` and `sink.options` make typed values of
them. `storage.<name>` is one option of the store's driver; `storageOptions` is one JSON object with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import Option, calls_text, find_option, kafka_option
from pyspark_txlog.option_values import STORAGE_VALUE
from txlog.engine import Runtime
from txlog.errors import InvalidRequestError, UnknownOptionError
from txlog.text import nearest

CATALOG_HINT = (
    "Tables of Spark's catalog (CREATE TABLE ... USING txlog, saveAsTable) are not supported: Spark drops their options. hint: use "
    "CREATE TEMPORARY VIEW name USING txlog OPTIONS (path '...', subscribe '...'), TxLog.create_views(), or .save(path)"
)
_STORAGE_PREFIX = "storage."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where the store is. Its repr leaves out `storage`, which may hold credentials."""

    path: str
    storage: Mapping[str, object] = field(repr=False)

    def open(self) -> Runtime:
        """Open the store. Raises what `txlog.open` raises for a store that exists."""
        return Runtime.open(self.path, storage_options=self.storage)


class Given:
    """The options of one call. `given[name]` is an option's value: what was given, else the table's default, else None."""

    def __init__(self, options: Mapping[str, str], known: Sequence[str], call: str, *, stream: bool = False) -> None:
        """Check the names of `options`; `call` is what takes `known`, for messages. Raises UnknownOptionError."""
        self._options = {name.lower(): value for name, value in options.items()}
        self._stream = stream
        lowered = {name.lower() for name in known}
        for name in self._options:
            if name in lowered or (name.startswith(_STORAGE_PREFIX) and name != _STORAGE_PREFIX):
                continue
            option, kafka = find_option(name), kafka_option(name)
            hint = (
                f" It is an option of {calls_text(option)}."
                if option
                else f" Spark's Kafka {'source and sink have' if kafka.side == 'both' else f'{kafka.side} has'} it; here: {kafka.here}."
                if kafka
                else nearest(name, known)
            )
            raise UnknownOptionError(
                f"option {option.name if option else name!r} is unknown: {call} has {', '.join(known)}, storage.<name>.{hint}"
            )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._options

    def __getitem__(self, name: str) -> Any:
        option = find_option(name)
        assert option is not None, name
        default, parse = (self._stream and option.stream) or (option.default, option.value.parse)
        text = self._text(option) or default
        return parse(option.name, text) if text else None

    def _text(self, option: Option) -> str | None:
        value = self._options.get(option.name.lower())
        if value is not None and not value.strip():
            raise InvalidRequestError(f"option {option.name!r} is empty; leave it out, or give it a value")
        return None if value is None else value.strip()

    def store(self, call: str) -> StoreOptions:
        """Return where the store is; `call` is Spark's method that takes the path. Raises UnsupportedStoreError for memory."""
        path = self["path"]
        if path is None:
            raise InvalidRequestError(f"where is the store? Name its folder or URL in .{call}(...). {CATALOG_HINT}")
        single = {
            name.removeprefix(_STORAGE_PREFIX): STORAGE_VALUE.parse(name, value)
            for name, value in self._options.items()
            if name.startswith(_STORAGE_PREFIX)
        }
        return StoreOptions(path=path, storage={**self["storageOptions"], **single})


@plain_errors
def refuse_catalog(options: Mapping[str, str]) -> None:
    """Raise InvalidRequestError if Spark asks for the schema of a new catalog table, because Spark drops its options
    afterwards."""
    if any(name.lower() == "provider" for name in options):
        raise InvalidRequestError(CATALOG_HINT)
