"""What may a protocol generator ask of the world, and what does it get back?

Each effect is a value; the comment beside it is the type of the answer that is sent into the generator. A failed
read, list, put or delete is thrown into it as `StorageError`. Paths are relative to the store's root, with `/`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


class PutOutcome(Enum):
    """The three outcomes of a conditional write. The adapter never reads back; the protocol settles (W12)."""

    WRITTEN = "written"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Get:
    """-> bytes | None: the whole object, None if there is none."""

    path: str


@dataclass(frozen=True, slots=True)
class PutIfAbsent:
    """-> PutOutcome: all of `data` becomes visible at once, or nothing does."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class List:
    """-> tuple[str, ...]: names (without the prefix) in one folder, sorted, after `start_after`; folders end in `/`.

    `prefix` is a folder, empty for the root, else ending in `/`.
    """

    prefix: str
    start_after: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """-> None. Deleting what is not there is no error."""

    path: str


@dataclass(frozen=True, slots=True)
class Modified:
    """-> int | None: when the object was written, in milliseconds by the store's own clock; None if there is none, or no clock."""

    path: str


@dataclass(frozen=True, slots=True)
class Size:
    """-> int | None: the object's length in bytes, None if there is none."""

    path: str


@dataclass(frozen=True, slots=True)
class StoreNow:
    """-> int | None: a time of the store's own clock that is not later than now; None if the store has no times.

    It is the time of an object that is created for this purpose below `__probe/` and deleted again. Only times of one clock
    make an age: `Now` is another clock than that of `Modified`.
    """


@dataclass(frozen=True, slots=True)
class Now:
    """-> int: wall clock, milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ReadClocks:
    """-> txlog.core.moments.Moment: both clocks of this process; only differences mean something."""


@dataclass(frozen=True, slots=True)
class NewId:
    """-> str: 32 lower-case hex digits, never used before (W4)."""


@dataclass(frozen=True, slots=True)
class NewProducerId:
    """-> int: a producer id for a producer without transactional.id, drawn from [2^62, 2^63)."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """-> None: back off about `ms` milliseconds (the driver adds jitter)."""

    ms: int


@dataclass(frozen=True, slots=True)
class InlineRows:
    """Rows of one batch as they rode inline: an Arrow IPC stream, its first offset and its timestamp."""

    payload: bytes
    base_offset: int
    timestamp: int
    schema_id: int


@dataclass(frozen=True, slots=True)
class WriteRows:
    """-> txlog.core.records.DataFile: inline rows of a topic as one Parquet file with `_offset` and `_timestamp` columns.

    `file_path` is relative to the topic's folder; the name was never used before.
    """

    topic: str
    file_path: str
    rows: tuple[InlineRows, ...]


@dataclass(frozen=True, slots=True)
class Gather:
    """-> tuple of the programs' results, in order; they run concurrently.

    If any raised, all are run to their end first, then the first error (in order) is thrown.
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
