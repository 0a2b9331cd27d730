"""Ctrl-C and SIGTERM: when they take effect, and what real programs leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.cli.support import Cli
from tests.cli.test_main import EXECUTABLE
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.client import Store

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])


def strike(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


# -- when -------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_signal_is_noted_and_strikes_between_steps(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        interrupts.check()
        strike(number)
        assert interrupts.received is number
        with pytest.raises(Interrupted) as caught:
            interrupts.check()
        with pytest.raises(Interrupted), interrupts.at_once():
            raise AssertionError("not reached")
    assert (caught.value.received, caught.value.status, caught.value.torn) == (number, 128 + number, False)
    assert signal.getsignal(number) is before


def test_at_once() -> None:
    with Interrupts() as interrupts:
        with interrupts.at_once():
            pass
        strike(signal.SIGTERM)
        assert interrupts.received is signal.SIGTERM
    with Interrupts() as interrupts, pytest.raises(Interrupted, match=r"^$"), interrupts.at_once():
        strike(signal.SIGTERM)


def test_the_second_one_strikes_anywhere() -> None:
    with Interrupts():
        strike(signal.SIGTERM)
        with pytest.raises(Interrupted, match="Ended by a second signal, SIGINT") as caught:
            strike(signal.SIGINT)
    assert caught.value.torn
    assert caught.value.status == 130


def test_what_is_ignored_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            strike(signal.SIGINT)
        assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def run() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


# -- real programs ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(cli: Cli, *args: str, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Yield `txlog ARGS`, which ends with the test."""
    line = [str(EXECUTABLE), *args, "--store", str(cli.root), "--storage-option", "fsync=false"]
    with subprocess.Popen(
        line, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def until(found: Callable[[], Any]) -> Any:
    """Return the result of `found` as soon as it is true."""
    for _ in range(600):
        if answer := found():
            return answer
        time.sleep(0.05)
    raise AssertionError("it did not come to pass within 30 s")


def ids(store: Store) -> list[int]:
    with store.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("orders")
        return sorted(row["id"] for batch in consumer.iterate() for row in batch.to_pylist())


def say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()


def unread(process: subprocess.Popen[str]) -> int:
    """Return how many bytes of its input a program has not read yet."""
    assert process.stdin is not None
    (length,) = struct.unpack("i", fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, bytes(4)))
    return int(length)


def test_what_produce_has_read_is_written(cli: Cli, store: Store) -> None:
    with program(cli, "produce", "orders") as process:
        say(process, '{"id": 1}\n{"id": 2}\n')
        assert until(lambda: ids(store)) == [1, 2], "a pipe that pauses holds nothing back"
        say(process, '{"id": 3}\n{"id": 4')
        until(lambda: not unread(process))  # it waits for more input now
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.endswith("Wrote 3 rows to 'orders'.\n")
    assert err == "Ended by SIGINT: 3 rows written, a line that had not ended was dropped.\n"
    assert ids(store) == [1, 2, 3]


def test_a_transaction_is_aborted_in_order(cli: Cli, store: Store) -> None:
    with program(cli, "produce", "orders", "--transactional-id", "loader", "-o", "json") as process:
        say(process, '{"id": 1}\n{"id": 2}\n')
        until(lambda: store.admin().list_transactions(["ONGOING"]))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert msgspec.json.decode(err) == {
        "error": "Interrupted",
        "message": "Ended by SIGTERM: 2 rows dropped. The transaction of 'loader' was aborted: nothing of it is "
        "visible.",
        "hint": None,
        "status": 143,
        "notes": [],
    }
    assert [each.state for each in store.admin().list_transactions()] == ["COMPLETE_ABORT"]
    assert ids(store) == []


def test_a_consumer_commits_what_it_printed_and_leaves_its_group(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--partition", 0, stdin='{"id": 1}\n{"id": 2}\n')
    with program(cli, "consume", "orders", "--group", "audit", "--from-beginning") as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [
            '{"id":1,"item":null}\n',
            '{"id":2,"item":null}\n',
        ]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (143, "", "")
    group = store.admin().describe_group("audit")
    assert (group.state, [each.committed for each in group.offsets]) == ("EMPTY", [2, 0])


def test_a_consumer_whose_reader_takes_nothing_can_be_ended(cli: Cli, store: Store) -> None:
    """The consumer waits in a write. It must not commit rows that the reader did not take."""
    rows = "".join(f'{{"id": {number}, "item": "{number:0>100}"}}\n' for number in range(5000))
    cli("produce", "orders", "--partition", 0, stdin=rows)
    with program(cli, "consume", "orders", "--group", "audit", "--from-beginning") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith('{"id":0,')
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    group = store.admin().describe_group("audit")
    assert group.state == "EMPTY"
    assert [each.committed for each in group.offsets if each.committed] in ([], [1000])


def test_a_typed_line_is_sent_at_once(cli: Cli, store: Store) -> None:
    controller, terminal = pty.openpty()
    try:
        with program(cli, "produce", "orders", stdin=terminal) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "One JSON object a line; Ctrl-D ends the input.\n"
            os.write(controller, b'{"id": 1}\n')
            assert until(lambda: ids(store)) == [1]
            os.write(controller, b'{"id": 2}\n\x04')
            out, err = process.communicate(timeout=60)
    finally:
        os.close(controller)
        os.close(terminal)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("Wrote 2 rows to 'orders'.\n")
