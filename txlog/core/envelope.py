"""How does a metadata object become bytes, and bytes a metadata object?

An object is one line of JSON that ends in `"crc32c":"xxxxxxxx"}` and a newline, then `payload_bytes` raw bytes. The CRC
covers the whole object with its own eight digits as zeros. See PROTOCOL.md, "Metadata objects". Size and nesting are
checked before anything is parsed. Damage is a CorruptRecordError that names the object.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, TypeVar

import google_crc32c
import msgspec

from txlog.core.features import FORMAT_VERSION
from txlog.errors import CorruptRecordError, UnsupportedStoreError

MAX_OBJECT_BYTES = 64 * 2**20
"""Largest metadata object; indexes and snapshots of very busy segments stay far below."""
MAX_COMMIT_BYTES = 4 * 2**20
"""A commit object must fit into one request, never a multipart upload (W1, W5)."""
MAX_DEPTH = 24

S = TypeVar("S", bound=msgspec.Struct)


class _Head(msgspec.Struct):
    """What shows where a commit record ends in its object."""

    payload_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_COMMIT_BYTES)] = 0
    more: bool = False


_TAIL = re.compile(rb',"crc32c":"([0-9a-f]{8})"\}\Z')
_TAIL_BYTES = len(b',"crc32c":"00000000"}')
# The expression is possessive and accepts a string that never ends: any bytes take linear time and no stack.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_LONG_STRING = 64
"""Bytes a quote from which a line is split at its quotes. A line of only quotes would take 30 times its memory."""
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_ENCODER = msgspec.json.Encoder()
_RAW_FIELDS = msgspec.json.Decoder(type=dict[str, msgspec.Raw])


def encode(value: msgspec.Struct, payload: bytes = b"") -> bytes:
    """Return the stored form of `value`. If there is a payload, `value.payload_bytes` must be its length."""
    announced = getattr(value, "payload_bytes", 0)
    if announced != len(payload):
        raise ValueError(f"{type(value).__name__}: {announced} payload bytes announced, {len(payload)} given")
    line = _ENCODER.encode(value)
    head, zeros = line[:-1] + b',"crc32c":"', b'00000000"}\n'
    crc = google_crc32c.value(head + zeros + payload)
    return b"".join((head, b"%08x" % crc, b'"}\n', payload))


def decode(data: bytes, kind: type[S], path: str) -> tuple[S, bytes]:
    """Return (value, payload) of a stored object.

    Raises CorruptRecordError naming `path` for any damage (R2), UnsupportedStoreError for a newer version (R1).
    """
    if len(data) > MAX_OBJECT_BYTES:
        raise CorruptRecordError(
            f"{path}: {len(data)} bytes, more than the {MAX_OBJECT_BYTES} that a metadata object may have"
        )
    end = data.find(b"\n")
    if end < 0:
        raise CorruptRecordError(
            f"{path}: no end of line in {len(data)} bytes; the object is cut off or not one of txlog's"
        )
    line, payload = data[:end], data[end + 1 :]
    tail = _TAIL.match(line, len(line) - _TAIL_BYTES)
    if tail is None:
        raise CorruptRecordError(f"{path}: its line does not end in a crc32c field")
    stored = tail[1].decode()
    zeroed = b"".join((line[:-10], b'00000000"}\n', payload))
    computed = f"{google_crc32c.value(zeroed):08x}"
    if computed != stored:
        raise CorruptRecordError(
            f"{path}: checksum {stored} is stored, {computed} computed over {len(data)} bytes; the object is damaged"
        )
    check_depth(line, path)
    try:
        line.decode()  # the parser skips unknown fields without checking that they are UTF-8
        value = msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse_newer(line, path)
        raise CorruptRecordError(f"{path}: not a valid {kind.__name__.strip('_')}: {error}") from None
    _check_stated(_refuse_newer(line, path), kind, path)
    announced = getattr(value, "payload_bytes", 0)
    if announced != len(payload):
        raise CorruptRecordError(f"{path}: {announced} payload bytes announced, {len(payload)} found")
    return value, payload


def split(data: bytes, path: str) -> tuple[bytes, ...]:
    """Return the commit records of an object, each with its inline rows (PROTOCOL.md, "Combined records").

    Raises CorruptRecordError, beginning with `path`, if a record says that one more follows and none does.
    """
    parts: list[bytes] = []
    while True:
        end = data.find(b"\n")
        line = data[:end]
        # As a rule no record follows, and the line is parsed only once.
        if end < 0 or (b'"more"' not in line and b"\\u" not in line):
            return (*parts, data)
        check_depth(line, path)
        try:
            head = msgspec.json.decode(line, type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return (*parts, data)  # decoding it says what is wrong
        if not head.more:
            return (*parts, data)
        end += 1 + head.payload_bytes
        if end >= len(data):
            raise CorruptRecordError(f"{path}: one more record should follow in the object; it is cut off")
        parts.append(data[:end])
        data = data[end:]


def digest(data: bytes) -> str:
    """Return the SHA-256 of stored bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


def check_depth(line: bytes, path: str) -> None:
    """Raise CorruptRecordError if JSON in `line` nests deeper than MAX_DEPTH."""
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return  # so few cannot nest deeper, and the parser refuses what is not balanced
    if b"\\" not in line and line.count(b'"') * _LONG_STRING < len(line):
        # Without escapes every second part between quotes is a string. For the long ones of inline rows this is faster.
        outside = b"".join(line.split(b'"')[::2])
    else:
        outside = _STRING.sub(b"", line)
    # Each pass removes the innermost level. The parser finds a [ that is closed by a }.
    brackets = outside.translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        raise CorruptRecordError(f"{path}: JSON nested deeper than {MAX_DEPTH} levels, or unbalanced")


def _check_stated(fields: Mapping[str, msgspec.Raw], kind: type[msgspec.Struct], path: str) -> None:
    """Raise CorruptRecordError if a required field is missing (PROTOCOL.md, R21).

    Such a field has a default in the struct, which must not be used.
    """
    for name in getattr(kind, "STATED", ()):
        outer, _, inner = name.partition(".")
        if outer not in fields or (inner and inner not in _RAW_FIELDS.decode(fields[outer])):
            raise CorruptRecordError(f"{path}: not a valid {kind.__name__.strip('_')}: it does not state `{name}`")


def _refuse_newer(line: bytes, path: str) -> Mapping[str, msgspec.Raw]:
    """Return the fields of the object; empty if the line is not a JSON object.

    Raises UnsupportedStoreError for a later version.
    """
    try:
        fields = _RAW_FIELDS.decode(line)
        version = msgspec.json.decode(fields.get("version", msgspec.Raw(b"0")), type=int)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if version > FORMAT_VERSION:
        raise UnsupportedStoreError(
            f"{path}: format version {version}, and this txlog reads up to {FORMAT_VERSION}; upgrade "
            "pyspark-txlog to read this store"
        )
    return fields
