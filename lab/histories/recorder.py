"""How do one or many processes write a history, and how is it read again?

A `Recorder` keeps its events, appends them to a file, or both. It passes a line to the operating system before it makes
the call in that line. So a killed process leaves every event; only its last line may be incomplete, and is not read.
Several processes each write a file into one folder; `read_history` merges them. Their monotonic clocks must be on the
same machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from lab.histories.events import Event, Kind, What
from txlog.clock import Clock
from txlog.errors import OutcomeUnknownError, TxlogError, TxlogTimeoutError

W = TypeVar("W", bound=What)
_DECODER = msgspec.json.Decoder(Event)
_ENCODER = msgspec.json.Encoder()


class Recorder:
    """Writes one source's events. Thread-safe."""

    def __init__(self, source: str, clock: Clock, path: str | os.PathLike[str] | None = None) -> None:
        self.source = source
        self.events: list[Event] = []
        self._clock = clock
        self._lock = threading.Lock()
        self._operations = 0
        # The file is unbuffered: each event is one write, and the kernel has all of it when the write returns. Each
        # process has its own file, because a killed process may leave half a line.
        self._file = None if path is None else Path(path).open("xb", buffering=0)  # noqa: SIM115

    def invoke(self, process: str, what: What) -> int:
        """Record that an operation begins; return its number, which the completion repeats."""
        with self._lock:
            self._operations += 1
            number = self._operations
            self._write(process, number, "invoke", what, "")
        return number

    def ok(self, process: str, operation: int, what: What) -> None:
        """Record that the operation took effect; `what` has the answer."""
        self._complete(process, operation, "ok", what, "")

    def fail(self, process: str, operation: int, what: What, error: BaseException | str = "") -> None:
        """Record that the operation did not take effect, and never will."""
        self._complete(process, operation, "fail", what, _text(error))

    def info(self, process: str, operation: int, what: What, error: BaseException | str = "") -> None:
        """Record that the outcome is unknown."""
        self._complete(process, operation, "info", what, _text(error))

    def failed(self, process: str, operation: int, what: What, error: TxlogError) -> None:
        """Record the outcome after an error of the client: `fail`, or `info` if the error leaves the outcome open."""
        (self.info if leaves_open(error) else self.fail)(process, operation, what, error)

    def single(self, process: str, what: What) -> None:
        """Record a fact."""
        with self._lock:
            self._operations += 1
            self._write(process, self._operations, "ok", what, "")

    def call(self, process: str, what: What, attempt: Callable[[], W]) -> W:
        """Record a call of the client: `attempt` makes it and returns `what` with the answer in it.

        An error of txlog's is recorded and raised. Any other error (a crash) leaves the operation open.
        """
        operation = self.invoke(process, what)
        try:
            answer = attempt()
        except TxlogError as error:
            self.failed(process, operation, what, error)
            raise
        self.ok(process, operation, answer)
        return answer

    def close(self) -> None:
        """Close the file; the events stay."""
        if self._file is not None:
            self._file.close()

    def _complete(self, process: str, operation: int, kind: Kind, what: What, error: str) -> None:
        with self._lock:
            self._write(process, operation, kind, what, error)

    def _write(self, process: str, operation: int, kind: Kind, what: What, error: str) -> None:
        event = Event(
            source=self.source,
            number=len(self.events),
            process=process,
            operation=operation,
            type=kind,
            wall_ms=self._clock.now_ms(),
            monotonic_ms=self._clock.monotonic_ms(),
            what=what,
            error=error,
        )
        self.events.append(event)
        if self._file is not None:
            self._file.write(_ENCODER.encode(event) + b"\n")


def leaves_open(error: BaseException) -> bool:
    """Return whether a call that raised this may have taken effect
    (PROTOCOL.md, "What is promised, and what is not")."""
    return isinstance(error, OutcomeUnknownError | TxlogTimeoutError) or not isinstance(error, TxlogError)


def encode_history(events: Iterable[Event]) -> bytes:
    """Return the events as JSON lines."""
    return b"".join(_ENCODER.encode(event) + b"\n" for event in events)


def decode_history(data: bytes) -> list[Event]:
    """Return the events of one file. An incomplete last line is a write that a kill interrupted, and is ignored."""
    whole, _, _ = data.rpartition(b"\n")
    return [_DECODER.decode(line) for line in whole.split(b"\n") if line]


def merge(*histories: Iterable[Event]) -> list[Event]:
    """Merge several sources into one history, in an order that agrees with each source and with the shared clock."""
    return sorted(
        (event for events in histories for event in events),
        key=lambda event: (event.monotonic_ms, event.source, event.number),
    )


def read_history(*paths: str | os.PathLike[str]) -> list[Event]:
    """Return the merged history of files, and of all `*.jsonl` in folders."""
    files: list[Path] = []
    for path in map(Path, paths):
        files.extend(sorted(path.glob("*.jsonl")) if path.is_dir() else [path])
    return merge(*(decode_history(file.read_bytes()) for file in files))


def _text(error: BaseException | str) -> str:
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"
