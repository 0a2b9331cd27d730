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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from txlog.core.records.publications import RowRun
from txlog.core.row_runs import count_rows

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

_Run: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Rows that are not in a table, as a Delta log names them."""

    descriptor: dict[str, Any]
    """`deletionVector` of an action on the file."""
    path: str = ""
    """The object that holds the rows, relative to the table. Empty: the descriptor holds them itself."""
    content: bytes = b""
    """What that object contains. It is a function of the rows, of the file and of the table, and so is the path."""


def deletion_vector(removed: Sequence[RowRun], *, table_id: str, path: str) -> DeletionVector | None:
    """Return the deletion vector of a file at `path` without the rows `removed`; None if there are none.

    `removed` is in order and joined.
    """
    if not removed:
        return None
    bitmap = roaring(removed)
    sizes = {"sizeInBytes": len(bitmap), "cardinality": count_rows(removed)}
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


def roaring(rows: Iterable[RowRun]) -> bytes:
    """Return a `RoaringBitmapArray` in the portable format. `rows` are in order and joined."""
    bitmaps = [
        (key, [(chunk & 0xFFFF, run) for _, chunk, run in parts])
        for key, parts in groupby(_split(rows), key=itemgetter(0))
    ]
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


def _split(rows: Iterable[RowRun]) -> Iterator[tuple[int, int, _Run]]:
    """Yield runs with their upper 32 bits, the upper 48 bits, and `[first, end)` of the lower 16 bits."""
    for run in rows:
        first = run.first_row
        while first < run.end_row:
            chunk = first >> 16
            end = min(run.end_row, (chunk + 1) << 16)
            yield chunk >> 16, chunk, (first & 0xFFFF, end - (chunk << 16))
            first = end


def _bitmap(parts: Iterable[tuple[int, _Run]]) -> bytes:
    """Return one bitmap of numbers of 32 bits, from the runs of each of its containers."""
    containers = [(key, [run for _, run in runs]) for key, runs in groupby(parts, key=itemgetter(0))]
    counts = [sum(end - first for first, end in runs) for _, runs in containers]
    has_runs = [_is_run(runs, count) for (_, runs), count in zip(containers, counts, strict=True)]
    bodies = [
        _run_container(runs) if is_run else _plain_container(runs, count)
        for (_, runs), count, is_run in zip(containers, counts, has_runs, strict=True)
    ]
    number = len(containers)
    if any(has_runs):
        flags = sum(1 << at for at, is_run in enumerate(has_runs) if is_run)
        head = struct.pack("<I", _WITH_RUNS | (number - 1) << 16) + flags.to_bytes((number + 7) // 8, "little")
    else:
        head = struct.pack("<II", _ONLY_ARRAYS_AND_BITMAPS, number)
    for (key, _), count in zip(containers, counts, strict=True):
        head += struct.pack("<HH", key, count - 1)
    if not any(has_runs) or number >= _LEAST_WITH_PLACES:
        at = len(head) + 4 * number
        for body in bodies:
            head += struct.pack("<I", at)
            at += len(body)
    return head + b"".join(bodies)


def _is_run(runs: Sequence[_Run], count: int) -> bool:
    """Return whether runs take fewer bytes than what else the container would be."""
    return 2 + 4 * len(runs) < (2 * count if count <= _MOST_IN_AN_ARRAY else _BITMAP_BYTES)


def _run_container(runs: Sequence[_Run]) -> bytes:
    pairs = (struct.pack("<HH", first, end - first - 1) for first, end in runs)
    return struct.pack("<H", len(runs)) + b"".join(pairs)


def _plain_container(runs: Sequence[_Run], count: int) -> bytes:
    if count <= _MOST_IN_AN_ARRAY:
        return struct.pack(f"<{count}H", *(number for first, end in runs for number in range(first, end)))
    flags = np.zeros(8 * _BITMAP_BYTES, dtype=np.uint8)
    for first, end in runs:
        flags[first:end] = 1
    return np.packbits(flags, bitorder="little").tobytes()
