"""Pipes that pyarrow reads: where rows of CSV end, and what a signal leaves."""

from __future__ import annotations

import csv
import io
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.cli.support import Cli
from tests.cli.test_interrupts import ids, program, unread, until
from txlog.cli import csv_rows, pipes
from txlog.cli.inputs import Inputs
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.pipes import Pipe, RowPipe
from txlog.client import Store
from txlog.clock import SystemClock


@contextmanager
def piped(data: bytes, *, ends: bool = True) -> Iterator[int]:
    """Yield the descriptor of a pipe with these bytes."""
    reader, writer = os.pipe()
    try:
        os.write(writer, data)
        if ends:
            os.close(writer)
        yield reader
    finally:
        os.close(reader)
        if not ends:
            os.close(writer)


def csv_of(rows: list[list[str]]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows(rows)
    return out.getvalue().encode()


ROWS = st.lists(st.lists(st.text('a",\r\n', max_size=5), min_size=2, max_size=2), min_size=1, max_size=6)


@given(ROWS, st.integers(1, 60))
def test_parts_end_with_rows(rows: list[list[str]], size: int) -> None:
    data = csv_of(rows)
    # The end of a pipe waits so long for a signal.
    with piped(data) as descriptor, patch.object(pipes, "_POLL_S", 0.001):
        pipe = RowPipe(descriptor, Interrupts())
        parts = list(iter(lambda: pipe.read(size), b""))
    assert b"".join(parts) == data
    assert all(len(part) <= size for part in parts)
    if size >= len(data):
        assert parts == [data]


@given(ROWS, st.integers(0, 200))
def test_a_signal_ends_after_a_complete_row(rows: list[list[str]], length: int) -> None:
    data = csv_of(rows)[:length]
    interrupts = Interrupts()
    with piped(data, ends=False) as descriptor:
        pipe = RowPipe(descriptor, interrupts)
        read = b""
        whole = [csv_of(rows[:count]) for count in range(len(rows) + 1)]
        expected = max((each for each in whole if len(each) <= length), key=len)
        while read != expected:
            read += pipe.read(1000)
        interrupts.received = signal.SIGTERM
        # Without a complete row the signal comes before the pipe has taken a byte.
        with nullcontext() if expected else pytest.raises(Interrupted):
            assert pipe.read(1000) == b""
    assert pipe.cut_off == (data != expected and expected != b"")


def test_a_quote_in_the_middle_of_a_cell_opens_nothing() -> None:
    with piped(b'1,5"\n2,"b"\n3') as descriptor:
        pipe = RowPipe(descriptor, Interrupts())
        assert (pipe.read(100), pipe.read(100)) == (b'1,5"\n2,"b"\n', b"3")


def test_a_long_cell_is_not_searched_again_after_each_part_of_it() -> None:
    """64 KiB reads of one cell of 2 MiB would otherwise search 33 MiB."""
    data = b'1,"' + b"x" * 2**21 + b'"\r\n2,y\r\n'
    searched: list[int] = []
    search = csv_rows.end_of_rows

    def counted(begun: bytes) -> tuple[int, bool]:
        searched.append(len(begun))
        return search(begun)

    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as out:
            out.write(data)

    writing = threading.Thread(target=write)
    writing.start()
    pipe = RowPipe(reader, Interrupts())
    with patch.object(csv_rows, "end_of_rows", counted):
        read = b"".join(iter(lambda: pipe.read(2**24), b""))
    writing.join()
    os.close(reader)
    assert read == data
    assert sum(searched) < 3 * len(data)


def test_a_signal_that_comes_with_the_end() -> None:
    interrupts = Interrupts()
    for data, expected in ((b"1,x\n2", [b"1,x\n", b""]), (b"1,x\n2,y\n", [b"1,x\n2,y\n", b""])):
        interrupts.received = None
        with piped(data) as descriptor:
            pipe = RowPipe(descriptor, interrupts)
            read = [pipe.read(100)]
            interrupts.received = signal.SIGINT
            read.append(pipe.read(100))
        assert read == expected
    with piped(b"1,x\n2") as descriptor:
        interrupts.received = None
        pipe = RowPipe(descriptor, interrupts)
        assert pipe.read(100) == b"1,x\n"
        threading.Timer(0.02, lambda: setattr(interrupts, "received", signal.SIGINT)).start()
        assert pipe.read(100) == b""
        assert pipe.cut_off


def test_a_signal_before_the_first_row() -> None:
    interrupts = Interrupts()
    interrupts.received = signal.SIGINT
    with piped(b"i", ends=False) as descriptor, pytest.raises(Interrupted):
        RowPipe(descriptor, interrupts).read(100)


def test_the_bytes_of_other_formats() -> None:
    with piped(b"abcdef") as descriptor:
        pipe = Pipe(descriptor, Interrupts())
        assert (pipe.read(2), pipe.read(), pipe.read(1)) == (b"ab", b"cdef", b"")
    interrupts = Interrupts()
    with piped(b"abcdef", ends=False) as descriptor:
        pipe = Pipe(descriptor, interrupts)
        pipe.read(6)
        interrupts.received = signal.SIGINT
        with pytest.raises(Interrupted):
            pipe.read(1)
        assert pipe.cut_off
        pipe.used()
        with pytest.raises(Interrupted):
            pipe.read(1)
        assert not pipe.cut_off


def test_a_read_of_another_thread_ends() -> None:
    with piped(b"", ends=False) as descriptor:
        pipe = Pipe(descriptor, Interrupts())
        found: list[bytes] = []
        thread = threading.Thread(target=lambda: found.append(pipe.read(1)))
        thread.start()
        pipe.end()
        thread.join(10)
    assert found == [b""]


# -- programs ---------------------------------------------------------------------------------------------------------


def arrow_of(rows: list[int]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("id", pa.int64())])) as writer:
        for row in rows:
            writer.write_table(pa.table({"id": [row]}))
    return sink.getvalue()


INPUTS = {
    "csv": (b'id,item\n1,x\n2,"a\nb"\n3,"', "2 rows written, input that had not ended was dropped"),
    "arrow": (arrow_of([1, 2])[:-8], "2 rows written, nothing was dropped"),
    "parquet": (b"PAR1", "no rows written, input that had not ended was dropped"),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_signal_ends_a_quiet_pipe(cli: Cli, store: Store, kind: str) -> None:
    data, words = INPUTS[kind]
    with program(cli, "produce", "orders", "--format", kind) as process:
        assert isinstance(process.stdin, io.TextIOWrapper)
        process.stdin.buffer.write(data)
        process.stdin.buffer.flush()
        until(lambda: not unread(process))
        process.send_signal(signal.SIGTERM)
        # The pipe stays open: its end must not come before a busy machine has delivered the signal.
        process.wait(timeout=60)
        _, err = process.communicate()
    assert (process.returncode, err) == (143, f"Ended by SIGTERM: {words}.\n")
    assert ids(store) == ([] if kind == "parquet" else [1, 2])


def test_a_signal_aborts_the_transaction_of_a_quiet_pipe(cli: Cli, store: Store) -> None:
    with program(cli, "produce", "orders", "--format", "csv", "--transaction") as process:
        assert process.stdin is not None
        process.stdin.write("id\n1\n2\n")
        process.stdin.flush()
        until(lambda: not unread(process))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.startswith("Ended by SIGINT: 2 rows dropped. The transaction of 'txlog-produce-")
    assert ids(store) == []


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_signal_ends_a_named_pipe_that_no_program_writes_to(store: Store, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"pipe.{kind}"
    os.mkfifo(path)
    with Interrupts() as interrupts:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        found = Inputs(
            [str(path)], None, store.topic("orders"), batch=2, clock=SystemClock(), interrupts=interrupts, show=None
        )
        assert list(found) == []
    assert (interrupts.received, found.cut_off) == (signal.SIGTERM, "")
