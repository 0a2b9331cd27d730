"""What can a hostile writer who knows the format put into a store? Every object here has a right checksum."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import google_crc32c

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**48, 2**48 + 1, 2**53 + 1, 2**60, 2**62, 2**63 - 1, -(2**63), 2**63, 10**40, -1.5,
    1e308,
    "", "x", "0" * 64, "f" * 32, "../../etc/passwd", "\0", "\ud83d", "ﬀ" * 40, "a" * 40_000, [], [[]], [0], {},
    {"": {}},
    [2**60] * 3, "orders", "__transaction_state", "int64", "list", "decimal(38,39)",
)  # fmt: skip
"""Values that a hostile writer may put into a field."""

Path = tuple[Any, ...]


def sealed(line: bytes, payload: bytes = b"") -> bytes:
    """Return an object from a JSON object that is not validated, with its right checksum."""
    head, zeros = line[:-1] + b',"crc32c":"', b'00000000"}\n'
    crc = google_crc32c.value(head + zeros + payload)
    return b"".join((head, b"%08x" % crc, b'"}\n', payload))


def opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the fields of an object, and its payload."""
    line, _, payload = data.partition(b"\n")
    fields = json.loads(line)
    del fields["crc32c"]
    return fields, payload


def closed(fields: Any, payload: bytes = b"") -> bytes:
    """Return an object with `fields`."""
    return sealed(json.dumps(fields).encode(), payload)


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield every place in a JSON value."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


def changed(value: Any, path: Path, new: Any, how: str) -> Any:
    """Return `value` with a change at `path`: `put`, `drop`, or `twice` (in a list)."""
    if len(path) > 1:
        inner = changed(value[path[0]], path[1:], new, how)
        return _with(value, path[0], inner)
    if how == "drop":
        if isinstance(value, dict):
            return {name: each for name, each in value.items() if name != path[0]}
        return [each for number, each in enumerate(value) if number != path[0]]
    if how == "twice" and isinstance(value, list):
        return [*value, value[path[0]]]
    return _with(value, path[0], new)


def _with(value: Any, key: Any, new: Any) -> Any:
    if isinstance(value, dict):
        return {**value, key: new}
    return [new if number == key else each for number, each in enumerate(value)]
