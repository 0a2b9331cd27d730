"""What may a protocol generator ask its driver for, and what does it get back?

Each effect is a value. Its docstring begins with the type of the answer that the driver sends into the generator. The
driver throws a failed read, list, put or delete into it as `StorageError`. Paths are relative to the store's root, with
`/`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from txlog.core.evolution import WrittenSchema

T = TypeVar("T")


class PutOutcome(Enum):
    """The three outcomes of a conditional write.

    The adapter never reads back; the protocol settles the outcome (W12).
    """

    WRITTEN = "written"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Get:
    """-> bytes | None: the whole object; None if it does not exist."""

    path: str


@dataclass(frozen=True, slots=True)
class PutIfAbsent:
    """-> PutOutcome: all of `data` becomes visible at once, or nothing."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class List:
    """-> tuple[str, ...]: names (without the prefix) in one folder, sorted, after `start_after`; folders end in `/`.

    `prefix` is a folder: empty for the root, otherwise ending in `/`.
    """

    prefix: str
    start_after: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """-> None. Deleting an object that does not exist is not an error."""

    path: str
    others: tuple[str, ...] = ()
    """More objects, deleted by the same request where the store can do that."""


@dataclass(frozen=True, slots=True)
class Modified:
    """-> int | None: when the object was written (ms), by the store's clock.

    None if the object does not exist, or if the store has no clock.
    """

    path: str


@dataclass(frozen=True, slots=True)
class Size:
    """-> int | None: the object's length in bytes; None if it does not exist."""

    path: str


@dataclass(frozen=True, slots=True)
class StoreNow:
    """-> int | None: a time of the store's own clock that is not later than now; None if the store has no times.

    It is the time of an object that the driver creates below `__probe/` and deletes again. An age is the difference of
    two times of one clock: `Now` is not the clock of `Modified`.
    """


@dataclass(frozen=True, slots=True)
class Now:
    """-> int: wall clock, milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ReadClocks:
    """-> txlog.core.ages.ClockReading: both clocks of this process. Only differences have a meaning."""


@dataclass(frozen=True, slots=True)
class NewId:
    """-> str: 32 lower-case hex digits, never used before (W4)."""


@dataclass(frozen=True, slots=True)
class NewProducerId:
    """-> int: a producer id for a producer without transactional.id, drawn from [2^62, 2^63)."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """-> None: back off about `ms` milliseconds (the driver adds jitter).

    With `full_jitter` any time up to `ms` is possible: writers that compete for one slot then seldom meet again.
    """

    ms: int
    full_jitter: bool = False


@dataclass(frozen=True, slots=True)
class InlineRows:
    """Inline rows of one batch: an Arrow IPC stream, its first offset and its timestamp."""

    payload: bytes
    base_offset: int
    timestamp: int
    schema_id: int
    is_deleted: bool = False
    """Whether the rows are of a topic that was deleted before the newest of the rows were written. The file then has
    rows without values in their place."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """-> txlog.core.records.DataFile: write inline rows of a topic to one Parquet file.

    The file has the newest columns of `rows`, and `_offset` and `_timestamp`. `file_path` is relative to the topic's
    folder; the name was never used before.
    """

    topic: str
    file_path: str
    rows: tuple[InlineRows, ...]
    written: tuple[tuple[int, WrittenSchema], ...] = ()
    """The columns of each `schema_id` of the rows. It may be empty if columns were only added from one to the next."""


@dataclass(frozen=True, slots=True)
class Gather:
    """-> tuple of the programs' results, in order. The programs run concurrently.

    If one raises, the driver first runs all of them to their end. Then it throws the first error (in order).
    """

    programs: tuple[Generator[Any, Any, Any], ...]


Effect: TypeAlias = (
    Get
    | PutIfAbsent
    | List
    | Delete
    | Modified
    | Size
    | StoreNow
    | Now
    | ReadClocks
    | NewId
    | NewProducerId
    | Sleep
    | WriteRows
    | Gather
)

Program: TypeAlias = Generator[Effect, Any, T]


def gathered(programs: Iterable[Program[T]]) -> Program[tuple[T, ...]]:
    """Return the results of the programs, in their order. They run as `Gather` says."""
    results: tuple[T, ...] = yield Gather(tuple(programs))
    return results
