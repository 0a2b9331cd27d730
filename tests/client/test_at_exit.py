"""Programs that end without closing their producer: the log afterwards, and the message that the user gets."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import txlog
from tests.client.world import ORDERS, rows_of
from txlog.client.store import Store

OPEN = """
import os, sys, threading, time
import txlog
from txlog.client.producer import at_exit
from txlog.errors import StorageError
from txlog.storage.local import LocalObjectStore

def misbehave(how):
    # The store's appends are as `how` does from now on.
    put = LocalObjectStore.put_if_absent
    def other(self, path, data):
        return how() if path.endswith(".batch") else put(self, path, data)
    LocalObjectStore.put_if_absent = other

def fail():
    raise StorageError("the disk is full")

store = txlog.open(sys.argv[1])
rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
"""
PLAIN = OPEN + "producer = store.producer(linger_ms=600_000)\n"
LOADER = OPEN + "producer = store.producer('loader')\nproducer.init_transactions()\nproducer.begin_transaction()\n"
MAY_FORK = ("-W", "ignore:This process:DeprecationWarning")
"""From 3.12 on, Python warns of a fork beside threads. These programs do not use the threads in the child."""


@pytest.fixture
def log(tmp_path: Path) -> Store:
    store = txlog.open(tmp_path / "log", storage_options={"fsync": False})
    store.create_topic("orders", ORDERS, partitions=3)
    return store


def end_of(program: str, log: Store, *flags: str) -> str:
    """Run a program that must exit with status 0. Return what it prints to standard error."""
    done = subprocess.run([sys.executable, *flags, "-c", program, log.url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    return done.stderr


def ids(log: Store) -> list[int]:
    with log.consumer("orders", auto_offset_reset="earliest") as consumer:
        return sorted(row["id"] for row in rows_of(consumer))


def test_rows_that_wait_go_out_at_the_end(log: Store) -> None:
    many = "for at in range(3):\n    producer.send('orders', rows, partition=at)\n"
    assert end_of(PLAIN + many, log, "-W", "default::ResourceWarning:txlog") == ""
    assert ids(log) == [1, 1, 1, 2, 2, 2]


def test_rows_that_a_failing_program_had_sent_go_out_too(log: Store) -> None:
    program = PLAIN + "producer.send('orders', rows)\nraise SystemExit('the input is broken')\n"
    done = subprocess.run([sys.executable, "-c", program, log.url], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the input is broken\n")
    assert ids(log) == [1, 2]


def test_a_store_that_hangs_does_not_hang_the_program(log: Store) -> None:
    hang = "at_exit.FLUSH_MS = 300\nmisbehave(lambda: time.sleep(600))\nproducer.send('orders', rows)\n"
    started = time.monotonic()
    printed = end_of(PLAIN + hang, log)
    assert time.monotonic() - started < 30
    assert printed == (
        f"txlog: producer of {log.url}: the program ends without close(), and 2 rows did not get in within "
        "300 ms: they may be lost\n"
    )
    assert ids(log) == []


def test_a_send_that_failed_unseen_is_named(log: Store) -> None:
    program = PLAIN.replace("600_000", "600_000, retries=0") + "misbehave(fail)\nproducer.send('orders', rows)\n"
    printed = end_of(program, log)
    assert printed.startswith(
        f"txlog: producer of {log.url}: the program ends without close(). It had failed: producer: 2 rows "
    )
    assert "the disk is full" in printed
    assert printed.count("\n") == 1


def test_an_open_transaction_is_left_to_time_out(log: Store) -> None:
    printed = end_of(LOADER + "producer.send('orders', rows).result()\n", log)
    assert printed == (
        f"txlog: producer (transactional.id 'loader') of {log.url}: the program ends without close(), "
        "and its transaction was not committed: nothing of it will be visible. It is left to time out "
        "(transaction.timeout.ms = 60000), and holds readers back until it is ended; close() would "
        "have aborted it at once\n"
    )
    assert log.admin().describe_transaction("loader").state == "ONGOING"
    assert ids(log) == []


def test_rows_of_a_transaction_are_not_sent_at_the_end(log: Store) -> None:
    program = LOADER.replace("'loader'", "'loader', linger_ms=600_000") + "producer.send('orders', rows)\n"
    printed = end_of(program, log)
    assert printed.endswith(
        "and its transaction was not committed: nothing of it will be visible (2 rows of it had yet to be written)\n"
    )
    assert log.admin().list_offsets("orders")[txlog.TopicPartition("orders", 0)].log_end_offset == 0
    assert ids(log) == []


def test_a_commit_of_unknown_outcome_is_named(log: Store) -> None:
    program = LOADER.replace("'loader'", "'loader', max_block_ms=200") + (
        "producer.send('orders', rows).result()\nmisbehave(fail)\n"
        "try:\n    producer.commit_transaction()\nexcept txlog.OutcomeUnknownError:\n    pass\n"
    )
    assert "nobody knows whether its commit was decided: `txlog transactions describe` tells" in end_of(program, log)


def test_a_fenced_producer_is_named(log: Store) -> None:
    program = LOADER + (
        "producer.send('orders', rows).result()\nstore.producer('loader').init_transactions()\n"
        "try:\n    producer.commit_transaction()\nexcept txlog.ProducerFencedError:\n    pass\n"
    )
    printed = end_of(program, log)
    assert "ends without close(). It had failed: transactional.id 'loader' (producer " in printed
    assert "holds readers back" not in printed


def test_it_is_a_resource_warning_too(log: Store) -> None:
    program = LOADER + "producer.send('orders', rows).result()\n"
    for flags in (["-X", "dev"], ["-W", "error"]):
        printed = end_of(program, log, *flags)
        assert printed.count("its transaction was not committed") == (2 if flags[0] == "-X" else 1)
        assert "Traceback" not in printed


@pytest.mark.parametrize(
    "program",
    [
        PLAIN,
        PLAIN + "producer.send('orders', rows)\nproducer.close()\n",
        PLAIN + "producer.send('orders', rows)\nstore.close()\n",
        PLAIN + "import atexit\nproducer.send('orders', rows)\natexit.register(producer.close)\n",
        LOADER,
        LOADER + "producer.send('orders', rows).result()\nproducer.commit_transaction()\n",
        LOADER + "producer.send('orders', rows).result()\nproducer.abort_transaction()\n",
        LOADER + "import atexit\natexit.register(producer.close)\nproducer.send('orders', rows).result()\n",
        LOADER + "producer.send('orders', rows).result()\nif os.fork():\n    os.wait()\n    producer.close()\n",
    ],
)
def test_nothing_is_said_where_nothing_is_lost(log: Store, program: str) -> None:
    assert end_of(program, log, *MAY_FORK) == ""


def test_a_forked_child_leaves_its_parents_rows_alone(log: Store) -> None:
    program = PLAIN + "producer.send('orders', rows)\nif os.fork():\n    os.wait()\n"
    assert end_of(program, log, *MAY_FORK) == ""
    assert ids(log) == [1, 2]
