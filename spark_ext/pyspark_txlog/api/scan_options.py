"""Which options does a native scan take as keyword arguments, and how are they spelled?"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence

from pyspark_txlog import option_table as table
from pyspark_txlog.source.options import ReadOptions, parse_read_options, settled
from txlog.engine import Runtime, TopicPartition
from txlog.engine.offsets import format_offsets
from txlog.errors import InvalidRequestError, UnknownOptionError
from txlog.text import any_text, nearest


def scan_options(runtime: Runtime, topics: Sequence[str], given: Mapping[str, object]) -> ReadOptions:
    """Return the options of `spark.read.format("txlog")`, given as keyword arguments: `starting_offsets` or
    `startingOffsets`, `isolation_level`.

    None means not given. Offsets may be a mapping (from TopicPartition, or from topic to partition to offset), times a
    `datetime` with a time zone, columns a list. If `topics` is not empty, they are subscribed; else `given` has
    `assign` or `subscribePattern`. Raises UnknownOptionError, InvalidRequestError, InvalidConfigurationError.
    """
    known = {_plain(option.name): option for option in table.OPTIONS if option.name in table.names_of("read")}
    options = {"path": runtime.where}
    for name, value in given.items():
        option = known.get(_plain(name))
        if option is None:
            spelled = [_snake(each.name) for each in known.values() if not each.native]
            similar = nearest(name, spelled)
            has = "no such option" if similar else ", ".join(spelled)
            raise UnknownOptionError(f"option {name!r} is unknown: a native scan has {has}.{similar}")
        if option.native:
            raise InvalidRequestError(
                f"option {option.name!r} is not supported by a native scan. hint: {option.native}"
            )
        if option.name in options:
            raise InvalidRequestError(f"option {option.name!r} is given twice, once as {name!r}; give it once")
        if value is not None:
            try:
                options[option.name] = _text(option.name, value)
            except TypeError as error:
                raise InvalidRequestError(f"option {option.name!r}: {any_text(value)} is not JSON: {error}") from None
    if topics:
        options["subscribe"] = ",".join(topics)
    return settled(parse_read_options(options), runtime.settings)


def _plain(name: str) -> str:
    return re.sub(r"[._]", "", name).lower()


def _snake(option: str) -> str:
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", option).replace(".", "_").lower()


def _text(option: str, value: object) -> str:
    """Return the value as the text that `.option(...)` would take."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            raise InvalidRequestError(
                f"option {option!r}: {value!r} has no time zone. hint: use a datetime with a time zone"
            )
        return str((value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(milliseconds=1))
    if isinstance(value, Mapping):
        if value and all(isinstance(key, TopicPartition) for key in value):
            return format_offsets(value)
        return json.dumps(value)
    if isinstance(value, list | tuple | set | frozenset):
        return json.dumps(list(value))
    return str(value)
