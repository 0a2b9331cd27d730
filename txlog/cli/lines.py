"""Which lines has a stream, and when is it time to do something with those that have come? And how are lines written?

A chunk is full, or its first line has waited long enough for others: input by hand, or from a program that writes now and
then, is not held back. A signal ends the lines as the end of the stream does, so that what was read is not lost. What is
written is not torn by one, unless its reader takes nothing.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
from collections.abc import Iterator
from typing import IO, BinaryIO, TextIO

from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.clock import Clock

_READ_BYTES = 1 << 16
_WRITE_BYTES = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512
"""What a pipe takes without waiting, if it takes anything."""


class Lines:
    """Lines of bytes, without their ends."""

    def __init__(self, stream: BinaryIO, *, chunk: int, linger_ms: int, clock: Clock, interrupts: Interrupts) -> None:
        """At most `chunk` lines are given at a time, and no line waits longer than `linger_ms` for those after it."""
        self._stream = stream
        self.chunk = chunk
        self._linger_ms = linger_ms
        self._clock = clock
        self._interrupts = interrupts
        self.cut_off = False
        """Whether a signal came in the midst of a line."""

    def __iter__(self) -> Iterator[list[bytes]]:
        """The lines, a chunk at a time."""
        descriptor = _descriptor(self._stream)
        return self._whole() if descriptor is None else self._timed(descriptor)

    def _whole(self) -> Iterator[list[bytes]]:
        """Of a stream that cannot be waited for."""
        while not self._interrupts.received and (lines := list(itertools.islice(self._stream, self.chunk))):
            yield lines

    def _timed(self, descriptor: int) -> Iterator[list[bytes]]:
        lines: list[bytes] = []
        begun: list[bytes] = []  # of the line that has no end yet
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
        """What is there; b"" at the end; None if nothing came in time, or a signal did."""
        try:
            with self._interrupts.at_once():
                ready, _, _ = select.select([descriptor], [], [], None if wait_ms is None else wait_ms / 1000)
        except Interrupted as error:
            if error.torn:
                raise
            return None
        return os.read(descriptor, _READ_BYTES) if ready else None


def write_lines(lines: list[str], stream: TextIO, interrupts: Interrupts) -> None:
    """Writes lines, which have their ends; they are out when it returns. Raises Interrupted while nothing is taken."""
    descriptor = _descriptor(stream)
    if descriptor is None:
        stream.writelines(lines)
        stream.flush()
        return
    stream.flush()
    rest = memoryview("".join(lines).encode())
    while rest:
        _, ready, _ = select.select([], [descriptor], [], 0)
        if not ready:
            with interrupts.at_once():
                select.select([], [descriptor], [])
        rest = rest[os.write(descriptor, rest[:_WRITE_BYTES]) :]


def _descriptor(stream: IO[bytes] | IO[str]) -> int | None:
    """What `select` can wait for; None for a stream in memory, and where it takes nothing but sockets."""
    if sys.platform == "win32":
        return None
    try:
        return stream.fileno()
    except OSError:
        return None
