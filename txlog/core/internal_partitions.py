"""Which partition of an internal topic does a transactional.id or a group.id belong to?

The answer is Kafka's, by Java's String.hashCode. It is a separate module, because `txlog.core.partitioning` loads
numpy.
"""

from __future__ import annotations

from functools import lru_cache

_U32 = 0xFFFFFFFF
_INT32_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 code units, signed."""
    units = text.encode("utf-16-le", "surrogatepass")
    h = 0
    for at in range(0, len(units), 2):
        h = (31 * h + units[at] + (units[at + 1] << 8)) & _U32
    return h - 2**32 if h >= 2**31 else h


@lru_cache(maxsize=1024)
def internal_partition(name: str, partitions: int) -> int:
    """Return the partition of a transactional.id or group.id.

    It is Kafka's `Utils.abs(name.hashCode) % n`, whose abs of -2^31 is 0.
    """
    h = java_string_hash(name)
    return (0 if h == _INT32_MIN else abs(h)) % partitions
