"""Where does a simulated world keep its objects, its time and its ids, and how does a request fail?

Objects are a dictionary. Time passes only when the world advances it. Each machine has its own wall clock, with an
error that the world chooses; all monotonic clocks run alike. Rows are stored in JSON files instead of Parquet: the
simulation is about the protocol, and Parquet has its own tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from lab.histories.events import Row
from txlog.core import envelope
from txlog.core.ages import ClockReading
from txlog.core.effects import (
    Delete,
    Effect,
    Get,
    List,
    Modified,
    NewId,
    NewProducerId,
    Now,
    PutIfAbsent,
    PutOutcome,
    ReadClocks,
    Size,
    StoreNow,
    WriteRows,
)
from txlog.core.records import DataFile
from txlog.errors import StorageError

START_MS = 1_700_000_000_000

Fault: TypeAlias = Literal[
    "crash",  # the process dies before the request
    "crash after",
    "crash in flight",  # the process dies before the request, and the write lands later, or never
    "applied",  # UNKNOWN, and it was applied
    "lost",  # UNKNOWN, and the write never lands
    "late",  # UNKNOWN, and the write lands when the world decides
    "hidden retry",  # applied, but the answer is CONFLICT: the adapter's own retry lost to its first try
    "error",  # StorageError: not applied
]
FAULTS_OF_WRITES: tuple[Fault, ...] = (
    "crash",
    "crash after",
    "crash in flight",
    "error",
    *("applied", "lost", "late", "hidden retry") * 3,
)
FAULTS_OF_FILES: tuple[Fault, ...] = ("crash", "crash after", "error", "error")
FAULTS_OF_READS: tuple[Fault, ...] = ("crash", "error", "error")


class DiedError(BaseException):
    """Kills the simulated process. It is a BaseException so that no `except Exception` catches it."""


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A request of the simulation's own clients: write rows of a batch to a name that was never used before."""

    path: str
    data: bytes


Request: TypeAlias = Get | List | PutIfAbsent | Delete | Modified | Size | StoreNow | WriteRows | WriteFile
REQUESTS = (Get, List, PutIfAbsent, Delete, Modified, Size, StoreNow, WriteRows, WriteFile)


@dataclass(slots=True, eq=False)
class Machine:
    """A wall clock that may be wrong, and a monotonic one with its own start."""

    name: str
    skew_ms: int = 0
    monotonic_base_ms: int = 0
    stopped_ms: int = 0
    """The time that the monotonic clock did not count, because the machine slept."""


class Bucket:
    """Objects, requests to them, and what becomes of a write that fails."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.in_flight: list[tuple[str, bytes]] = []
        self.written_at_ms: dict[str, int] = {}
        """Path -> when the object appeared, by the store's clock. What a test put there itself has no time, and counts
        as old."""
        self._ids = 0

    def store_ms(self) -> int:
        """Return the time of the store's clock."""
        raise NotImplementedError

    def unique(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def new_producer_id(self) -> int:
        self._ids += 1
        return 2**62 + self._ids

    def _put(self, path: str, data: bytes, fault: Fault | None) -> PutOutcome:
        if fault in ("late", "crash in flight"):
            self.in_flight.append((path, data))
        elif fault != "lost":
            won = self._create(path, data)
        if fault is not None and fault.startswith("crash"):
            raise DiedError
        if fault in ("late", "lost", "applied"):
            return PutOutcome.UNKNOWN
        return PutOutcome.WRITTEN if won and fault != "hidden retry" else PutOutcome.CONFLICT

    def _create(self, path: str, data: bytes) -> bool:
        won = path not in self.objects
        if won:
            self.objects[path] = data
            self.written_at_ms[path] = self.store_ms()
        return won

    def _answer(self, effect: Any) -> Any:
        match effect:
            case Get(path):
                return self.objects.get(path)
            case List(prefix, start_after):
                return self._list(prefix, start_after)
            case Delete(path, others):
                for each in (path, *others):
                    self.objects.pop(each, None)
            case Modified(path):
                return self.written_at_ms.get(path, 0) if path in self.objects else None
            case Size(path):
                return len(self.objects[path]) if path in self.objects else None
            case StoreNow():
                return self.store_ms()
            case _:
                raise NotImplementedError(f"{effect!r} is not known to the simulation")
        return None

    def _list(self, prefix: str, start_after: str) -> tuple[str, ...]:
        found = set()
        for path in self.objects:
            if path.startswith(prefix):
                head, slash, _ = path[len(prefix) :].partition("/")
                found.add(head + slash)
        return tuple(sorted((name for name in found if name > start_after), key=str.encode))


class Cluster(Bucket):
    """One store, and all requests to it."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_ms = 0
        """The true time."""
        self.store_skew_ms = 0
        """The offset of the store's clock."""
        self.requests = 0
        self.faults = 0

    # -- the clock of the history -------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return START_MS + self.passed_ms

    def monotonic_ms(self) -> int:
        return self.passed_ms

    def sleep_ms(self, ms: int) -> None:
        self.passed_ms += ms

    def store_ms(self) -> int:
        """Return the time of the store's clock."""
        return START_MS + self.passed_ms + self.store_skew_ms

    # -- requests -----------------------------------------------------------------------------------------------------

    def perform(self, effect: Request, fault: Fault | None) -> Any:
        """Return the answer; raises StorageError, or DiedError into the world."""
        self.requests += 1
        self.faults += fault is not None
        if fault == "crash":
            raise DiedError
        if fault == "error":
            raise StorageError(f"planned failure of {type(effect).__name__} {getattr(effect, 'path', '')}")
        if isinstance(effect, PutIfAbsent):
            return self._put(effect.path, effect.data, fault)
        answer = self._answer(effect)
        if fault == "crash after":
            raise DiedError
        return answer

    def ask(self, effect: Effect, machine: Machine) -> Any:
        """Return what a process knows without the store: time and identity."""
        match effect:
            case Now():
                return START_MS + self.passed_ms + machine.skew_ms
            case ReadClocks():
                wall_ms = START_MS + self.passed_ms + machine.skew_ms
                return ClockReading(wall_ms, machine.monotonic_base_ms + self.passed_ms - machine.stopped_ms)
            case NewId():
                return self.unique()
            case NewProducerId():
                return self.new_producer_id()
            case _:
                raise NotImplementedError(f"{effect!r} is not known to the simulation")

    def land(self, number: int) -> str:
        """Let a write that was in flight land. Return its path."""
        path, data = self.in_flight.pop(number)
        self._create(path, data)
        return path

    def _answer(self, effect: Request) -> Any:
        match effect:
            case WriteFile(path, data):
                self._create(path, data)
            case WriteRows(topic, file_path, batches):
                rows = [
                    msgspec.structs.replace(row, offset=batch.base_offset + number)
                    for batch in batches
                    for number, row in enumerate(decode_rows(batch.payload))
                ]
                data = encode_rows(rows)
                self._create(f"{topic}/{file_path}", data)
                return data_file(file_path, data, len(rows))
            case _:
                return super()._answer(effect)
        return None


def encode_rows(rows: Sequence[Row]) -> bytes:
    """Return a file of rows, or the payload of an inline batch."""
    return msgspec.json.encode([(row.offset, row.value, row.content) for row in rows])


def decode_rows(data: bytes) -> list[Row]:
    """Return the rows again; offset -1 in a file, because its writer cannot know the offsets."""
    return [Row(offset=offset, value=value, content=content) for offset, value, content in msgspec.json.decode(data)]


def data_file(path: str, data: bytes, rows: int) -> DataFile:
    """Return the description of a file in a record."""
    digest = envelope.digest(data)
    return DataFile(path=path, rows=rows, bytes=len(data), digest=digest, footer_digest=digest, row_groups=(rows,))
