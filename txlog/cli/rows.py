"""How is a row written as a line of JSON, and read from one?

A row is an object with one member for each column. Values that JSON does not have are written so that they can be read
back.

* Binary is text if it is UTF-8, otherwise `{"base64": "…"}`.
* A date, timestamp or decimal is text.
* A float without a numeric value is "NaN", "Infinity" or "-Infinity".
* A map with text keys is an object, any other map is a list of pairs.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from txlog.core.records import SchemaField
from txlog.core.schema import describe, parse_decimal, range_left
from txlog.errors import SchemaMismatchError
from txlog.text import count_text, nearest, shorten

_BASE64 = "base64"
BASE64_CELL = b'{"base64":'
"""How a cell of CSV begins that holds bytes which are not UTF-8."""
BOM = b"\xef\xbb\xbf"
"""What some programs write before text in UTF-8."""
_BELOW_MICROSECONDS = re.compile(r"[.,]\d{6}\d*[1-9]")
_NO_ARRAY = ". hint: write one object a line, without [ and ], as `jq -c '.[]'` does"
_MEMBER = re.compile(rb'"\s*:')
_NOT_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


# -- out --------------------------------------------------------------------------------------------------------------


def encode_row(row: Mapping[str, Any]) -> str:
    """Return a row, as pyarrow gives it, as a line of JSON."""
    return msgspec.json.encode({name: json_value(value) for name, value in row.items()}).decode()


def json_value(value: Any) -> Any:
    """Return a value, as pyarrow gives it, in the form for JSON."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64_value(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _spell(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and all(isinstance(item, tuple) for item in value):
            return _json_map(value)
        return [json_value(item) for item in value]
    return value


def base64_value(value: bytes) -> dict[str, str]:
    """Return bytes in the form for those that are not UTF-8."""
    return {_BASE64: base64.b64encode(value).decode()}


def _json_map(pairs: Sequence[tuple[Any, Any]]) -> Any:
    keys = [key for key, _ in pairs]
    if all(isinstance(key, str) for key in keys) and len(set(keys)) == len(keys):
        return {key: json_value(item) for key, item in pairs}
    return [[json_value(key), json_value(item)] for key, item in pairs]


def _spell(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# -- in ---------------------------------------------------------------------------------------------------------------


def decode_rows(
    lines: Iterable[bytes], fields: Sequence[SchemaField], topic: str, *, first: int = 1, source: str = ""
) -> Iterator[dict[str, Any]]:
    """Parse lines of JSON, counted from `first`, as rows of the topic. Empty lines are skipped. Errors begin with
    `source`.

    Raises SchemaMismatchError with the line and the column, the expected and the found value.
    """
    known = {field.name: field for field in fields}
    decode = _DECODER.decode if not any(map(_has_decimals, fields)) else _SPELLING_DECODER.decode
    expected = f"expected a JSON object with the columns of topic {topic!r}"
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        where = f"{source}line {number}"
        try:
            given = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            text = line.strip()
            hint = _NO_ARRAY if text[:1] == b"[" else ". hint: name the format of other rows, as in --format csv"
            if text[:1] == b"{":
                hint = "" if text[-1:] == b"}" else ". hint: write each object in one line, as `jq -c .` does"
            raise SchemaMismatchError(
                f"{where}: {expected}, found {_line_text(line)} (not JSON: {error}){hint}"
            ) from None
        if not isinstance(given, dict):
            raise SchemaMismatchError(
                f"{where}: {expected}, found {_shown(given)}{_NO_ARRAY * isinstance(given, list)}"
            )
        _check_members(line, given, where)
        for name in given:
            if name not in known:
                raise SchemaMismatchError(
                    f"{where}: column {name!r} is unknown; topic {topic!r} has "
                    f"{', '.join(known)}.{nearest(name, known)}"
                )
        yield {name: _value(given.get(name), field, name, where) for name, field in known.items()}


def decode_value(text: str | bytes, field: SchemaField, where: str) -> Any:
    """Parse the JSON of one value. Raises SchemaMismatchError, beginning with `where` and the column."""
    decode = _SPELLING_DECODER.decode if _has_decimals(field) else _DECODER.decode
    try:
        given = decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaMismatchError(
            f"{where}: column {field.name!r}: expected {describe(field)} as JSON, found {_line_text(text)} ({error})"
        ) from None
    return _value(given, field, field.name, where)


def _check_members(line: bytes, given: dict[str, Any], where: str) -> None:
    """Raise SchemaMismatchError if an object has two members with the same name, because one of them would be lost."""
    # The pattern finds at least as many members as the line has. If the numbers are equal, the slow check is not
    # needed.
    if len(_MEMBER.findall(line)) == len(given):
        return

    def members(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for number, name in enumerate(names) if name in names[:number])
            raise SchemaMismatchError(f"{where}: {twice!r} is there twice in one object")

    json.loads(line, object_pairs_hook=members, parse_int=str, parse_float=str)


def _value(given: Any, field: SchemaField, path: str, where: str) -> Any:
    if given is None:
        if field.nullable:
            return None
        raise SchemaMismatchError(f"{where}: column {path!r} is not nullable, and its value is missing or null")
    if field.type in _NESTED:
        return _NESTED[field.type](given, field, path, where)
    try:
        if field.type in _INTEGER_BITS:
            return _integer(given, _INTEGER_BITS[field.type])
        if (size := parse_decimal(field.type)) is not None:
            return _decimal(given, *size)
        return _SCALARS[field.type](given)
    except (ValueError, TypeError, KeyError, OverflowError, decimal.InvalidOperation) as error:
        raise _mismatch(given, field, path, where, str(error) if isinstance(error, _WrongFormError) else "") from None


class _WrongFormError(ValueError):
    """A text that the type does not accept. Its message is what the type needs."""


def _mismatch(given: Any, field: SchemaField, path: str, where: str, needs: str = "") -> SchemaMismatchError:
    hint = f" ({needs})" if needs else ""
    return SchemaMismatchError(f"{where}: column {path!r}: expected {describe(field)}{hint}, found {_shown(given)}")


def _shown(given: Any) -> str:
    return shorten(msgspec.json.encode(given, enc_hook=_as_spelled).decode(), 100)


def _integer(given: Any, bits: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError
    if not -(2 ** (bits - 1)) <= given < 2 ** (bits - 1):
        raise _WrongFormError(f"{-(2 ** (bits - 1))} to {2 ** (bits - 1) - 1}")
    return given


def _float(given: Any, type_name: str) -> float:
    if isinstance(given, str):
        return _NOT_NUMBERS[given]
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise TypeError
    if math.isinf(given):
        raise OverflowError
    range_ = range_left(type_name, given)
    if range_ is not None:
        raise _WrongFormError(range_)
    return float(given)


class _Spelled(float):
    """A number with a fraction, and its spelling in the line. A decimal may have more digits than a float."""

    spelling: str

    @classmethod
    def of(cls, spelling: str) -> _Spelled:
        found = cls(spelling)
        found.spelling = spelling
        return found


def _as_spelled(given: Any) -> msgspec.Raw:
    if not isinstance(given, _Spelled):
        raise NotImplementedError
    return msgspec.Raw(given.spelling.encode())


def _has_decimals(field: SchemaField) -> bool:
    return parse_decimal(field.type) is not None or any(map(_has_decimals, field.fields))


def _decimal(given: Any, precision: int, scale: int) -> decimal.Decimal:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TypeError
    found = decimal.Decimal(given.spelling if isinstance(given, _Spelled) else given)
    if not found.is_finite():
        raise ValueError
    _, digits, exponent = found.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    assert isinstance(exponent, int)
    # Trailing zeros carry no information.
    exponent += len(digits) - len(text)
    if text and exponent < -scale:
        raise _WrongFormError(f"at most {count_text(scale, 'digit')} after the point")
    if text and len(text) + exponent > precision - scale:
        raise _WrongFormError(f"at most {count_text(precision - scale, 'digit')} before the point")
    return found if text else decimal.Decimal(0)


def _of_kind(given: Any, kind: type) -> Any:
    if not isinstance(given, kind):
        raise TypeError
    return given


def _binary(given: Any) -> bytes:
    if isinstance(given, dict) and set(given) == {_BASE64} and isinstance(given[_BASE64], str):
        try:
            return base64.b64decode(given[_BASE64], validate=True)
        except binascii.Error as error:
            raise _WrongFormError(f"no base64: {error}") from None
    if not isinstance(given, str):
        raise _WrongFormError('text, or {"base64": "…"}')
    return given.encode()


def _date(given: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(_of_kind(given, str))
    except ValueError:
        raise _WrongFormError("as in 2013-01-31") from None


def _timestamp(given: Any, *, zoned: bool) -> datetime.datetime:
    example = "2013-01-31T05:17:00Z" if zoned else "2013-01-31T05:17:00"
    try:
        found = datetime.datetime.fromisoformat(_of_kind(given, str))
    except ValueError:
        raise _WrongFormError(f"as in {example}") from None
    if _BELOW_MICROSECONDS.search(given):
        raise _WrongFormError("at most 6 digits after the point: microseconds")
    if (found.tzinfo is not None) is not zoned:
        raise _WrongFormError(f"{'with its' if zoned else 'without a'} zone, as in {example}")
    return found.astimezone(datetime.UTC) if zoned else found


def _list(given: Any, field: SchemaField, path: str, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise _mismatch(given, field, path, where)
    return [_value(item, field.fields[0], f"{path}.element", where) for item in given]


def _struct(given: Any, field: SchemaField, path: str, where: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _mismatch(given, field, path, where)
    known = {child.name: child for child in field.fields}
    for name in given:
        if name not in known:
            raise SchemaMismatchError(f"{where}: {path!r} has no field {name!r}, only {', '.join(known)}")
    return {name: _value(given.get(name), child, f"{path}.{name}", where) for name, child in known.items()}


def _map(given: Any, field: SchemaField, path: str, where: str) -> list[tuple[Any, Any]]:
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise _mismatch(given, field, path, where, "an object, or a list of pairs")
    key, item = field.fields
    return [(_value(k, key, f"{path}.key", where), _value(v, item, f"{path}.value", where)) for k, v in pairs]


def _line_text(line: bytes | str) -> str:
    """Return the beginning of a line that is not JSON, to show it in a message."""
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(shorten(text.strip(), 40))


_DECODER = msgspec.json.Decoder()
_SPELLING_DECODER = msgspec.json.Decoder(float_hook=_Spelled.of)
"""The slower decoder, for topics with decimals."""
_SCALARS: dict[str, Callable[[Any], Any]] = {
    "bool": lambda given: _of_kind(given, bool),
    "float32": lambda given: _float(given, "float32"),
    "float64": lambda given: _float(given, "float64"),
    "string": lambda given: _of_kind(given, str),
    "binary": _binary,
    "date": _date,
    "timestamp": lambda given: _timestamp(given, zoned=True),
    "timestamp_ntz": lambda given: _timestamp(given, zoned=False),
}
_NESTED: dict[str, Callable[[Any, SchemaField, str, str], Any]] = {"list": _list, "struct": _struct, "map": _map}
