"""Which partition does the key of a record belong to?

The answer is Kafka's murmur2, bit for bit, so that a log loaded from Kafka keeps its keys in their partitions.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Offsets: TypeAlias = NDArray[np.int64]
Hashes: TypeAlias = NDArray[np.int32]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_U32 = 0xFFFFFFFF
_BLOCK = 16_384
"""Keys that are hashed together, so that their intermediate arrays stay in the processor's cache."""


def murmur2(key: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `key`, signed."""
    length = len(key)
    h = _SEED ^ (length & _U32)
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _U32
        k = (k ^ (k >> _R)) * _M & _U32
        h = (h * _M & _U32) ^ k
    if length > whole:
        h = (h ^ int.from_bytes(key[whole:], "little")) * _M & _U32
    h = (h ^ (h >> 13)) * _M & _U32
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def murmur2_many(data: Bytes, offsets: Offsets) -> Hashes:
    """Return the murmur2 of each `data[offsets[i]:offsets[i + 1]]`."""
    flat = np.ascontiguousarray(data, dtype=np.uint8)
    bounds = np.asarray(offsets, dtype=np.int64)
    hashes = np.empty(len(bounds) - 1, dtype=np.int32)
    for first in range(0, len(hashes), _BLOCK):
        hashes[first : first + _BLOCK] = _murmur2_block(flat, bounds[first : first + _BLOCK + 1])
    return hashes


def partition_for(key: bytes, partitions: int) -> int:
    """Return the partition of one record key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for(hashes: Hashes, partitions: int) -> Hashes:
    """Return the partition of the record keys with these murmur2 hashes: Kafka's `toPositive(hash) % n`."""
    return (hashes & np.int32(0x7FFFFFFF)) % np.int32(partitions)


def _murmur2_block(data: Bytes, offsets: Offsets) -> Hashes:
    starts = offsets[:-1]
    lengths = offsets[1:] - starts
    # Longest first: then the keys that still have a word to mix are always a prefix.
    order = np.argsort(-lengths, kind="stable") if lengths.min() != lengths.max() else None
    if order is not None:
        starts, lengths = starts[order], lengths[order]
    m = np.uint32(_M)
    h = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    at_byte = _words(data)
    for word in range(int(words[0])):
        mixing = int(np.searchsorted(-words, -word, side="left"))
        k = at_byte[starts[:mixing] + 4 * word] * m
        k = (k ^ (k >> np.uint32(_R))) * m
        h[:mixing] = (h[:mixing] * m) ^ k
    _mix_tails(h, data, starts, lengths)
    h = (h ^ (h >> np.uint32(13))) * m
    h ^= h >> np.uint32(15)
    if order is None:
        return h.view(np.int32)
    hashes = np.empty_like(h)
    hashes[order] = h
    return hashes.view(np.int32)


def _words(data: Bytes) -> NDArray[np.uint32]:
    """Return the little-endian word at each byte: one gather then reads a word of every key, aligned or not."""
    if data.size < 4:
        return np.zeros(0, dtype=np.uint32)
    return np.ndarray(shape=(data.size - 3,), dtype="<u4", buffer=data.data, strides=(1,))


def _mix_tails(h: NDArray[np.uint32], data: Bytes, starts: Offsets, lengths: Offsets) -> None:
    """Mix the last one to three bytes of the keys whose length is not a multiple of four."""
    tails = lengths & 3
    (some,) = np.nonzero(tails)
    if not some.size:
        return
    ends, rest = starts[some] + (lengths[some] & ~3), tails[some]
    mixed = h[some]
    for byte in range(3):
        (having,) = np.nonzero(rest > byte)
        mixed[having] ^= data[ends[having] + byte].astype(np.uint32) << np.uint32(8 * byte)
    h[some] = mixed * np.uint32(_M)
