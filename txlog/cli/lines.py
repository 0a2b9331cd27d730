"""How are lines read from a stream in chunks, and how are lines written?

A chunk is complete when it is full, or when its first line has waited long enough. So lines that arrive slowly, by hand
or from a program, are not held back. A signal ends the lines in the same way as the end of the stream, so that no line
that was read is lost. A signal does not interrupt writing in the middle of a line, unless the reader has stopped
reading.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, BinaryIO, TextIO

from txlog.cli.interrupts import Interrupted, Interrupts

if TYPE_CHECKING:
    from txlog.clock import Clock

_READ_BYTES = 1 << 16
_WRITE_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
"""The number of bytes that a pipe takes without waiting, if it takes any."""


class Lines:
    """Read lines of bytes, without their line ends."""

    def __init__(self, stream: BinaryIO, *, chunk: int, linger_ms: int, clock: Clock, interrupts: Interrupts) -> None:
        """Yield at most `chunk` lines at a time. No line waits longer than `linger_ms` for the lines after it."""
        self._stream = stream
        self.chunk = chunk
        self._linger_ms = linger_ms
        self._clock = clock
        self._interrupts = interrupts
        self.cut_off = False
        """Whether a signal came in the middle of a line."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """Yield the lines, a chunk at a time."""
        descriptor = descriptor_of(self._stream)
        return self._whole() if descriptor is None else self._timed(descriptor)

    def _whole(self) -> Iterator[list[bytes]]:
        """Yield the lines of a stream that `select` cannot wait for."""
        while not self._interrupts.received and (lines := list(itertools.islice(self._stream, self.chunk))):
            yield lines

    def _timed(self, descriptor: int) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        begun: list[bytes] = []  # start of a line that is not complete
        due_ms = 0
        data: bytes | None = None
        while data != b"" and not self._interrupts.received:
            wait_ms = due_ms - self._clock.monotonic_ms() if lines else None
            data = self._read(descriptor, wait_ms) if wait_ms is None or wait_ms > 0 else None
            if data:
                first, *others = data.split(b"\n")
                begun.append(first)
                if not others:
                    continue
                if not lines:
                    due_ms = self._clock.monotonic_ms() + self._linger_ms
                lines += [b"".join(begun), *others[:-1]]
                begun = [others[-1]] if others[-1] else []
                full = len(lines) - len(lines) % self.chunk
                for at in range(0, full, self.chunk):
                    yield lines[at : at + self.chunk]
                if full:
                    lines = lines[full:]
                    due_ms = self._clock.monotonic_ms() + self._linger_ms
            elif data is None and lines:
                yield lines
                lines = []
        if data == b"" and begun:
            lines.append(b"".join(begun))
        if lines:
            yield lines
        self.cut_off = data != b"" and bool(begun)

    def _read(self, descriptor: int, wait_ms: int | None) -> bytes | None:
        """Return the bytes that are there, b"" at the end, or None if nothing came in time or a signal came."""
        try:
            with self._interrupts.at_once():
                ready, _, _ = select.select([descriptor], [], [], None if wait_ms is None else wait_ms / 1000)
        except Interrupted as error:
            if error.torn:
                raise
            return None
        return os.read(descriptor, _READ_BYTES) if ready else None


def write_lines(lines: list[str], stream: TextIO, interrupts: Interrupts) -> None:
    """Write lines, which include their line ends, and flush them. Raises Interrupted if the reader takes nothing."""
    if descriptor_of(stream) is None:
        stream.writelines(lines)
        stream.flush()
    else:
        write_bytes("".join(lines).encode(), stream, interrupts)


def write_bytes(data: bytes, stream: TextIO, interrupts: Interrupts) -> None:
    """Write bytes to the file below `stream` at once. Raises Interrupted if the reader takes nothing."""
    descriptor = descriptor_of(stream)
    stream.flush()
    if descriptor is None:
        stream.buffer.write(data)
        stream.buffer.flush()
        return
    rest = memoryview(data)
    while rest:
        _, ready, _ = select.select([], [descriptor], [], 0)
        if not ready:
            with interrupts.at_once():
                select.select([], [descriptor], [])
        rest = rest[os.write(descriptor, rest[:_WRITE_BYTES]) :]


def descriptor_of(stream: IO[bytes] | IO[str]) -> int | None:
    """Return a descriptor that `select` can wait for.

    Returns None for a stream in memory, and on systems where `select` takes only sockets.
    """
    if sys.platform == "win32":
        return None
    try:
        return stream.fileno()
    except OSError:
        return None
