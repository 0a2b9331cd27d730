"""How are many requests made in parallel, with a limit?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Delete, Gather, Get, List, Modified, Now, Program, Size, StoreNow
from txlog.core.names import TopicPartition, parse_partition_folder

T = TypeVar("T")

AT_ONCE = 64
"""Requests of one round. Only the results of one round arrive at the same time."""


def many(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """Return the results of all programs, in their order."""
    found: list[T] = []
    for first in range(0, len(programs), AT_ONCE):
        found += yield Gather(tuple(programs[first : first + AT_ONCE]))
    return found


def get(path: str) -> Program[bytes | None]:
    found: bytes | None = yield Get(path)
    return found


def size(path: str) -> Program[int | None]:
    found: int | None = yield Size(path)
    return found


def modified(path: str) -> Program[int | None]:
    found: int | None = yield Modified(path)
    return found


def names_in(folder: str) -> Program[tuple[str, ...]]:
    found: tuple[str, ...] = yield List(folder)
    return found


def partitions_in_use(topic: str) -> Program[list[TopicPartition]]:
    """Return the partitions of a topic whose folders hold anything. Costs one LIST.

    An internal topic has many partitions. A small store uses few of them, and to open an empty one costs a LIST, too.
    """
    listed = yield from names_in(f"{topic}/")
    numbers = sorted(number for name in listed if (number := parse_partition_folder(name)) is not None)
    return [TopicPartition(topic, number) for number in numbers]


def store_now() -> Program[int]:
    """Return a time of the store's own clock that is not later than now (PROTOCOL.md, W48).

    For a store without times, return this machine's time less the largest error that it may have.
    """
    found: int | None = yield StoreNow()
    if found is not None:
        return found
    own_ms: int = yield Now()
    return own_ms - MAX_CLOCK_ERROR_MS


def delete(path: str) -> Program[None]:
    yield Delete(path)
