"""How does a Delta table say which rows of a file are not in it?

A deletion vector is a set of row numbers, a 64-bit Roaring bitmap. It is in the log itself as Z85 text, or in an object
beside the log (Delta's specification, "Deletion Vector Format"). A `remove` action names a file by its path and the
text of its deletion vector. So the bytes for the same rows MUST NOT change from one version of txlog to the next:
readers would keep a removed file. A test compares them with stored ones.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from txlog.core.partitioning import Offsets

MAX_INLINE_BYTES = 1024
"""A larger bitmap is an object. One that is inline is repeated in each checkpoint of the table."""
VECTOR_FOLDER = "publication"
"""Below the topic's folder. Delta allows any prefix before the name of the object."""

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1_681_511_377
_ONLY_ARRAYS_AND_BITMAPS = 12_346
_WITH_RUNS = 12_347
_MOST_IN_AN_ARRAY = 4_096
_BITMAP_BYTES = 8_192
_LEAST_WITH_PLACES = 4
"""A bitmap with runs states where its containers are only from this many containers on."""
_FILE_VERSION = b"\x01"
_FILE_START = len(_FILE_VERSION)

_Rows: TypeAlias = NDArray[np.uint16]
"""The lower 16 bits of the rows of one container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Rows that are not in a table, as a Delta log names them."""

    descriptor: dict[str, Any]
    """`deletionVector` of an action on the file."""
    path: str = ""
    """The object that holds the rows, relative to the table. Empty: the descriptor holds them itself."""
    content: bytes = b""
    """What that object contains. It is a function of the rows, of the file and of the table, and so is the path."""


def deletion_vector(removed: Offsets, *, table_id: str, path: str) -> DeletionVector | None:
    """Return the deletion vector of a file at `path` without the rows `removed`, in order; None if there are none."""
    if not len(removed):
        return None
    bitmap = roaring(removed)
    sizes = {"sizeInBytes": len(bitmap), "cardinality": len(removed)}
    if len(bitmap) <= MAX_INLINE_BYTES:
        return DeletionVector(descriptor={"storageType": "i", "pathOrInlineDv": z85(bitmap), **sizes})
    named = hashlib.sha256(b"\0".join((table_id.encode(), path.encode(), bitmap))).hexdigest()[:32]
    uuid = "-".join((named[:8], named[8:12], named[12:16], named[16:20], named[20:]))
    return DeletionVector(
        descriptor={
            "storageType": "u",
            "pathOrInlineDv": VECTOR_FOLDER + z85(bytes.fromhex(named)),
            "offset": _FILE_START,
            **sizes,
        },
        path=f"{VECTOR_FOLDER}/deletion_vector_{uuid}.bin",
        content=_FILE_VERSION + struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap)),
    )


def roaring(rows: Offsets) -> bytes:
    """Return a `RoaringBitmapArray` in the portable format. `rows` are in order."""
    chunks = np.split(rows, np.flatnonzero(np.diff(rows >> 16)) + 1) if len(rows) else []
    bitmaps = [(key, list(parts)) for key, parts in groupby(chunks, key=lambda chunk: int(chunk[0]) >> 32)]
    head = struct.pack("<IQ", _MAGIC, len(bitmaps))
    return head + b"".join(struct.pack("<I", key) + _bitmap(parts) for key, parts in bitmaps)


def z85(data: bytes) -> str:
    """Return `data` as text of 85 different characters, with zero bytes at its end up to a multiple of 4."""
    text: list[str] = []
    for (number,) in struct.iter_unpack(">I", data + bytes(-len(data) % 4)):
        digits = ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = _Z85[digit] + digits
        text.append(digits)
    return "".join(text)


# -- details ----------------------------------------------------------------------------------------------------------


def _bitmap(chunks: Sequence[Offsets]) -> bytes:
    """Return one bitmap of numbers of 32 bits, from the rows of each of its containers."""
    containers = [(int(chunk[0]) >> 16 & 0xFFFF, (chunk & 0xFFFF).astype("<u2")) for chunk in chunks]
    bodies, is_run = [], []
    for _, rows in containers:
        body = _run_container(rows)
        # Whether runs take fewer bytes than what else the container would be.
        is_run.append(len(body) < (2 * len(rows) if len(rows) <= _MOST_IN_AN_ARRAY else _BITMAP_BYTES))
        bodies.append(body if is_run[-1] else _plain_container(rows))
    number = len(containers)
    if any(is_run):
        flags = sum(1 << at for at, is_one in enumerate(is_run) if is_one)
        head = struct.pack("<I", _WITH_RUNS | (number - 1) << 16) + flags.to_bytes((number + 7) // 8, "little")
    else:
        head = struct.pack("<II", _ONLY_ARRAYS_AND_BITMAPS, number)
    for key, rows in containers:
        head += struct.pack("<HH", key, len(rows) - 1)
    if not any(is_run) or number >= _LEAST_WITH_PLACES:
        at = len(head) + 4 * number
        for body in bodies:
            head += struct.pack("<I", at)
            at += len(body)
    return head + b"".join(bodies)


def _run_container(rows: _Rows) -> bytes:
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    first = np.concatenate(([0], breaks))
    lengths = np.diff(np.append(first, len(rows))) - 1
    pairs = np.column_stack((rows[first], lengths)).astype("<u2")
    return struct.pack("<H", len(first)) + pairs.tobytes()


def _plain_container(rows: _Rows) -> bytes:
    if len(rows) <= _MOST_IN_AN_ARRAY:
        return rows.tobytes()
    flags = np.zeros(8 * _BITMAP_BYTES, dtype=np.uint8)
    flags[rows] = 1
    return np.packbits(flags, bitorder="little").tobytes()
