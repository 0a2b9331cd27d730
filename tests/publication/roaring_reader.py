"""A second reader of deletion vectors, written from Delta's PROTOCOL.md and Roaring's format specification."""

from __future__ import annotations

import struct
import zlib

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def from_z85(text: str) -> bytes:
    data = b""
    for at in range(0, len(text), 5):
        number = 0
        for char in text[at : at + 5]:
            number = number * 85 + _Z85.index(char)
        data += number.to_bytes(4, "big")
    return data


def from_object(content: bytes, offset: int, size: int) -> bytes:
    """Return the bitmap in the object of a deletion vector, with all checks."""
    assert content[0] == 1
    assert struct.unpack_from(">I", content, offset) == (size,)
    bitmap = content[offset + 4 : offset + 4 + size]
    assert struct.unpack_from(">I", content, offset + 4 + size) == (zlib.crc32(bitmap),)
    return bitmap


def rows_of(data: bytes) -> tuple[list[int], list[str]]:
    """Return the rows, and the kind of each container."""
    magic, bitmaps = struct.unpack_from("<IQ", data)
    assert magic == 1681511377
    at, rows, kinds = 12, [], []
    for _ in range(bitmaps):
        (upper,) = struct.unpack_from("<I", data, at)
        at += 4
        start = at
        (cookie,) = struct.unpack_from("<I", data, at)
        at += 4
        flags = 0
        if cookie & 0xFFFF == 12347:
            number = (cookie >> 16) + 1
            flags = int.from_bytes(data[at : at + (number + 7) // 8], "little")
            at += (number + 7) // 8
        else:
            assert cookie == 12346
            (number,) = struct.unpack_from("<I", data, at)
            at += 4
        heads = [struct.unpack_from("<HH", data, at + 4 * each) for each in range(number)]
        at += 4 * number
        places = []
        if cookie == 12346 or number >= 4:
            places = [struct.unpack_from("<I", data, at + 4 * each)[0] for each in range(number)]
            at += 4 * number
        for each, (key, less) in enumerate(heads):
            assert not places or places[each] == at - start
            first = (upper << 32) + (key << 16)
            if flags >> each & 1:
                kinds.append("runs")
                (runs,) = struct.unpack_from("<H", data, at)
                at += 2
                found: list[int] = []
                for _ in range(runs):
                    low, more = struct.unpack_from("<HH", data, at)
                    found += range(low, low + more + 1)
                    at += 4
            elif less < 4096:
                kinds.append("array")
                found = list(struct.unpack_from(f"<{less + 1}H", data, at))
                at += 2 * (less + 1)
            else:
                kinds.append("bitmap")
                bits = int.from_bytes(data[at : at + 8192], "little")
                found = [low for low in range(65536) if bits >> low & 1]
                at += 8192
            assert len(found) == less + 1
            rows += [first + low for low in found]
    assert at == len(data)
    return rows, kinds
