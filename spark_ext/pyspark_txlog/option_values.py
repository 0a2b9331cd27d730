"""Which values may an option of `format("txlog")` have, and how is its text parsed?

A `Value` has the range as a phrase beside the function that checks it, so that documents and parsers cannot differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from txlog.engine import KEYS, TxnVersion, txn_version
from txlog.engine.offsets import OffsetSpec, parse_assign, parse_spec, parse_timestamp, parse_timestamps
from txlog.engine.schemas import check_topic_name
from txlog.errors import InvalidConfigurationError, InvalidRequestError, TxlogError, UnsupportedStoreError
from txlog.text import nearest, parse_storage_value, parse_time, shorten

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Parse: TypeAlias = Callable[[str, str], T]
"""Return the value of an option from its name and text. Raises InvalidRequestError with name, expected and found."""

_INT64_MAX = 2**63 - 1
_DELAY_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_OFFSETS_JSON = '{"topic": {"0": 23, "1": -2}}'
_TIMES_JSON = '{"topic": {"0": 1700000000000}}'


@dataclass(frozen=True, slots=True)
class Value(Generic[T_co]):
    """What the value of an option may be."""

    range: str
    """The values that are allowed, as a phrase."""
    parse: Parse[T_co]


def integer(minimum: int, at_most: str = "") -> Value[int]:
    """Return the integers from `minimum`; `at_most` is the upper bound that another option sets, as a phrase."""
    expected = f"an integer of at least {minimum}"

    def parse(name: str, text: str) -> int:
        value = int(text) if re.fullmatch(r"\d{1,19}", text, re.ASCII) else -1
        if not minimum <= value <= _INT64_MAX:
            is_above = value > _INT64_MAX or re.fullmatch(r"\d{20,}", text, re.ASCII)
            found = f"an integer from {minimum} to {_INT64_MAX}" if is_above else expected
            raise InvalidRequestError(f"option {name!r}: expected {found}, found {shorten(repr(text), 80)}")
        return value

    return Value(f"{expected}{at_most}", parse)


def choice(*choices: str) -> Value[str]:
    """Return the words `choices`, in any case."""

    def parse(name: str, text: str) -> str:
        if text.lower() in choices:
            return text.lower()
        similar = nearest(text, choices)
        raise InvalidRequestError(
            f"option {name!r}: expected one of {', '.join(choices)}, found {text!r}{similar and '.'}{similar}"
        )

    return Value(", ".join(choices), parse)


def offsets(*words: str) -> Parse[OffsetSpec]:
    """Return the parser of offsets: one of `words`, or JSON."""
    return lambda name, text: parse_spec(text, name, words=words)


def setting(name: str) -> Value[Any]:
    """Return the values of a client's setting."""
    key = KEYS[name]
    return Value(
        ", ".join(key.choices) or ("text" if key.kind == "str" else key.expected), lambda _, text: key.parse(text)
    )


def storage_settings(options: Mapping[str, object]) -> dict[str, str]:
    """Return options of the store's driver as options of the sink: text unchanged, other values as JSON."""
    texts = {f"storage.{name}": value for name, value in options.items() if isinstance(value, str)}
    others = {name: value for name, value in options.items() if not isinstance(value, str)}
    return {**texts, "storageOptions": json.dumps(others)} if others else texts


def _checked(read: Callable[[str], T], expected: str) -> Parse[T]:
    """Return the parser that says what was expected if `read` raises ValueError."""

    def parse(name: str, text: str) -> T:
        try:
            return read(text)
        except TxlogError:
            raise
        except ValueError:
            raise InvalidRequestError(f"option {name!r}: expected {expected}, found {text!r}") from None

    return parse


def _boolean(text: str) -> bool:
    return ("false", "true").index(text.lower()) == 1


def _delay_ms(text: str) -> int:
    """Parse Spark's notation of a duration: `15m`, `90s`, `500ms`; a bare number is milliseconds."""
    match = re.fullmatch(r"(\d{1,15})\s*([a-z]*)", text.lower(), re.ASCII)
    unit_ms = _DELAY_UNITS_MS.get(match[2] or "ms") if match else None
    if match is None or unit_ms is None:
        raise ValueError(text)
    return int(match[1]) * unit_ms


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(check_topic_name(part.strip()) for part in text.split(",") if part.strip())
    if not topics:
        raise ValueError(text)
    return tuple(dict.fromkeys(topics))


def _columns(text: str) -> tuple[str, ...]:
    # Column names may contain commas; the JSON list is unambiguous.
    columns = json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",")]
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise ValueError(text)
    return tuple(columns)


def _pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequestError(f"option {name!r}: {text!r} is not a valid regular expression: {error}") from error
    return text


def _assignment(name: str, text: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for tp in parse_assign(text, name):
        found[check_topic_name(tp.topic)] = (*found.get(tp.topic, ()), tp.partition)
    return found


def _store(_: str, text: str) -> str:
    if text.lower().startswith("memory:"):
        raise UnsupportedStoreError(
            f"{text!r}: a store in memory lives in one process, but Spark reads and writes from many. "
            "hint: use a folder or an object store"
        )
    return text


def _storage(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(
            f"option {name!r}: expected a JSON object, found something else (not shown: it may hold credentials)"
        )
    return parsed


def _time(name: str, text: str) -> OffsetSpec:
    moment = None if text.isdigit() else parse_time(text)
    if moment is not None and moment >= 0:
        raise InvalidConfigurationError(
            f"{name} = {text!r}: expected milliseconds since 1970. hint: {name}={moment} (a time without zone is UTC)"
        )
    return parse_timestamp(text, name)


def _version(name: str, text: str) -> int:
    number: Any = int(text) if re.fullmatch(r"-?\d{1,99}", text, re.ASCII) else text
    try:
        return cast(TxnVersion, txn_version(number)).version
    except InvalidRequestError as error:
        raise InvalidRequestError(f"option '{name}': {error}") from None


def _text(_: str, text: str) -> str:
    return text


TEXT = Value("text", _text)
CONDITION = Value(
    "a condition in Spark's SQL: columns against literals, `IN`, `BETWEEN`, `IS NULL`, `AND`, `OR`, `NOT`", _text
)
FOLDER = Value("a folder, or a URL such as s3://bucket/log", _text)
STORE = Value(FOLDER.range, _store)
STORAGE = Value("a JSON object", _storage)
STORAGE_VALUE = Value("text, true, false or a JSON object", lambda _, text: parse_storage_value(text))
"""Numbers and lists are only possible in `storageOptions`."""
TOPIC = Value("a topic's name", lambda _, text: check_topic_name(text))
TOPICS = Value("topics, separated by commas", _checked(_topics, "topics, separated by commas"))
PATTERN = Value("a Python regular expression", _pattern)
ASSIGNMENT = Value('{"topic": [0, 1]}', _assignment)
STARTS = Value(
    f"earliest, latest (a stream), committed, or JSON: {_OFFSETS_JSON}, -2 earliest, -1 latest (a stream)",
    offsets("earliest", "committed"),
)
ENDS = Value(f"latest, or JSON: {_OFFSETS_JSON}, -1 latest", offsets("latest"))
TIME = Value("milliseconds since 1970", _time)
VERSION = Value(integer(0).range, _version)
TIMES = Value(f"JSON: {_TIMES_JSON}", lambda name, text: parse_timestamps(text, name))
BOOLEAN = Value("true, false", _checked(_boolean, "true or false"))
COLUMNS = Value(
    "column names, separated by commas or as a JSON list",
    _checked(_columns, "column names, separated by commas or as a JSON list"),
)
DELAY = Value(
    "a number and ms, s, m, h or d", _checked(_delay_ms, f"a number and one of {', '.join(_DELAY_UNITS_MS)}, as 15m")
)
