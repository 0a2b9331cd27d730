"""How are several objects created by one request? A stand-in for the one object that a combined record will be."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_MAGIC = b"together\n"


def together(objects: Sequence[tuple[str, bytes]]) -> bytes:
    """Return what a conditional write of the first path creates: all of these (path, data), or nothing."""
    return _MAGIC + msgspec.msgpack.encode(tuple(objects))


def taken_apart(path: str, data: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the objects that a conditional write creates."""
    if not data.startswith(_MAGIC):
        return ((path, data),)
    return msgspec.msgpack.decode(data[len(_MAGIC) :], type=tuple[tuple[str, bytes], ...])
