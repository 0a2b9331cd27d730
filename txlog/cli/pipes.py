"""How does pyarrow read a pipe, so that Ctrl-C and SIGTERM end the input?

pyarrow waits for bytes where Python does not notice a signal, and its CSV reader waits in its own threads. So a pipe
waits for bytes itself and looks for a signal from time to time.
"""

from __future__ import annotations

import io
import os
import re
import select
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from txlog.cli.interrupts import Interrupted, Interrupts

T = TypeVar("T")

_READ_BYTES = 1 << 16
_LINE_END = re.compile(rb"[\r\n]")
_POLL_S = 0.1
"""How often a pipe without bytes looks for a signal."""


class Pipe(io.RawIOBase):
    """The bytes of a pipe. After a signal `read` raises Interrupted."""

    def __init__(self, descriptor: int, interrupts: Interrupts) -> None:
        super().__init__()
        self.cut_off = False
        """Whether a signal came in the middle of rows."""
        self._descriptor = descriptor
        self._interrupts = interrupts
        self._is_over = False
        self._unused = 0
        self._reading = threading.Lock()

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return that many bytes, or all that are left. Raises Interrupted."""
        parts: list[bytes] = []
        try:
            while size and (data := self._some(_READ_BYTES if size < 0 else min(size, _READ_BYTES))):
                parts.append(data)
                self._unused += len(data)
                size -= len(data) if size > 0 else 0
        except Interrupted:
            self.cut_off = self._unused > 0
            raise
        return b"".join(parts)

    def used(self) -> None:
        """Take note that the rows of all bytes so far have been sent."""
        self._unused = 0

    def end(self) -> None:
        """Let a `read` of another thread return, because no more bytes are wanted, and wait for that."""
        self._is_over = True
        with self._reading:
            pass

    def _some(self, size: int) -> bytes:
        """Return the next bytes, or b"" at the end. Raises Interrupted."""
        with self._reading:
            while not self._is_over:
                self._interrupts.check()
                if select.select([self._descriptor], [], [], _POLL_S)[0]:
                    data = os.read(self._descriptor, size)
                    if not data:
                        # Ctrl-C ends the program that writes, too. Then this end may come before the signal.
                        self._is_over = True
                        select.select([], [], [], _POLL_S)
                        self._interrupts.check()
                    return data
        return b""


class RowPipe(Pipe):
    """The bytes of CSV, in parts that end with a row. A signal ends them after the last complete row."""

    _begun = b""
    """The start of a row."""
    _is_torn = False
    """Whether a part had to end in the middle of a row, because the row is too long."""
    _has_rows = False
    """Whether a part has been read."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most that many bytes. Raises Interrupted before the first row, or if the last one is not whole."""
        # A local import, because it loads pyarrow.
        from txlog.cli.csv_rows import end_of_rows

        size = _READ_BYTES if size < 0 else size
        try:
            while not (cut := end_of_rows(self._begun[:size])[0]):
                if len(self._begun) >= size:
                    cut, self._is_torn = size, True
                elif self._read_line(size):
                    continue
                else:
                    cut = len(self._begun)
                break
        except Interrupted:
            self.cut_off = bool(self._begun) or self._is_torn
            self._begun, self._is_over = b"", True
            if self._is_torn or not self._has_rows:
                raise
            return b""
        taken, self._begun = self._begun[:cut], self._begun[cut:]
        self._has_rows = True
        return taken

    def _read_line(self, size: int) -> bool:
        """Read until a line may have ended, or about `size` bytes are there, and return whether any were read.

        So a long cell is not searched again after each part of it.
        """
        before = len(self._begun)
        while len(self._begun) < size and (data := self._some(_READ_BYTES)):
            self._begun += data
            # A carriage return ends a line if another byte than a line feed follows.
            if _LINE_END.search(self._begun, max(len(self._begun) - len(data) - 1, 0)):
                break
        return len(self._begun) > before


def beside(values: Iterator[T], pipe: Pipe) -> Iterator[T]:
    """Yield values that another thread gets, so that this one notices signals meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        try:
            while (value := pool.submit(next, values, None).result()) is not None:
                yield value
        finally:
            pipe.end()
