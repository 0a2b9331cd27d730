"""When does the reader pass lines on? Chunks, pauses, ends and signals."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from txlog.cli import lines as module
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.lines import Lines, write_lines
from txlog.testing.clock import ManualClock

LONG_MS = 60_000


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield the end that a program reads, and the end that another one writes."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "wb", buffering=0) as writer:
        yield reader, writer


def lines_of(
    stream: BinaryIO, chunk: int = 10_000, linger_ms: int = LONG_MS, interrupts: Interrupts | None = None
) -> Lines:
    return Lines(stream, chunk=chunk, linger_ms=linger_ms, clock=ManualClock(), interrupts=interrupts or Interrupts())


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        (b"", []),
        (b"a", [["a"]]),
        (b"a\nb\n", [["a", "b"]]),
        (b"a\nb\n\n", [["a", "b"], [""]]),
        (b"a\nb\nc", [["a", "b"], ["c"]]),
        (b"a\nb\nc\nd\n", [["a", "b"], ["c", "d"]]),
    ],
)
def test_a_stream_to_its_end(
    pipe: tuple[BinaryIO, BinaryIO], data: bytes, chunks: list[list[str]], in_memory: bool
) -> None:
    reader, writer = pipe
    writer.write(data)
    writer.close()
    found = list(lines_of(io.BytesIO(data) if in_memory else reader, chunk=2))
    assert [[line.decode().rstrip("\n") for line in chunk] for chunk in found] == chunks


@pytest.mark.parametrize("read_bytes", [1, 2, 5])
def test_however_little_is_read_at_a_time(
    pipe: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr(module, "_READ_BYTES", read_bytes)
    reader, writer = pipe
    writer.write(b"one\n\ntwo three\nfour")
    writer.close()
    assert list(lines_of(reader, chunk=3)) == [[b"one", b"", b"two three"], [b"four"]]


def test_a_pause_hands_on_what_there_is(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    chunks = iter(lines_of(reader, linger_ms=10))
    writer.write(b"a\nb\nc")
    assert next(chunks) == [b"a", b"b"]
    writer.write(b"d\n")
    assert next(chunks) == [b"cd"]
    writer.close()
    assert list(chunks) == []


def test_a_line_waits_no_longer_because_others_follow_it(
    pipe: tuple[BinaryIO, BinaryIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a stream without long pauses would hold its first line back for ever."""

    class Passing(ManualClock):
        def monotonic_ms(self) -> int:
            self.advance_ms(100)
            return super().monotonic_ms()

    monkeypatch.setattr(module, "_READ_BYTES", 2)
    reader, writer = pipe
    writer.write(b"x\n" * 100)
    lines = Lines(reader, chunk=10_000, linger_ms=1000, clock=Passing(), interrupts=Interrupts())
    assert 5 <= len(next(iter(lines))) <= 15


def test_a_signal_ends_the_lines_and_loses_none(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    writer.write(b"a\nb\nc")
    with Interrupts() as interrupts:
        lines = lines_of(reader, interrupts=interrupts)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        assert list(lines) == [[b"a", b"b"]]
        timer.join()
    assert lines.cut_off
    assert interrupts.received is signal.SIGINT


def test_a_signal_between_two_chunks(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    writer.write(b"a\nb\nc\n")
    with Interrupts() as interrupts:
        lines = lines_of(reader, chunk=2, interrupts=interrupts)
        chunks = iter(lines)
        assert next(chunks) == [b"a", b"b"]
        os.kill(os.getpid(), signal.SIGTERM)
        assert list(chunks) == [[b"c"]], "it had been read"
    assert not lines.cut_off


# -- writing ----------------------------------------------------------------------------------------------------------


def test_lines_are_out_when_they_are_written(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    with Interrupts() as interrupts, os.fdopen(os.dup(writer.fileno()), "w") as text:
        text.write("before\n")
        os.kill(os.getpid(), signal.SIGTERM)  # the signal is noted: the reader still gets whole lines
        write_lines(["a\n", "ä" * 8000 + "\n"], text, interrupts)
        assert reader.read(1 << 16) == b"before\na\n" + b"\xc3\xa4" * 8000 + b"\n"
    memory = io.StringIO()
    write_lines(["a\n", "b\n"], memory, Interrupts())
    assert memory.getvalue() == "a\nb\n"


def test_a_signal_while_nothing_is_taken(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    _, writer = pipe
    with Interrupts() as interrupts, os.fdopen(os.dup(writer.fileno()), "w") as text:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        with pytest.raises(Interrupted):
            write_lines(["x" * 10_000_000], text, interrupts)
        timer.join()


def test_a_reader_that_left(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    reader, writer = pipe
    reader.close()
    with os.fdopen(os.dup(writer.fileno()), "w") as text, pytest.raises(BrokenPipeError):
        write_lines(["x\n"], text, Interrupts())
