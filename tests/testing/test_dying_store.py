"""Does the demo's store kill the process at the create that a fault names? These tests need no Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lab.demo.dying_store import DyingStore
from txlog.errors import InvalidRequestError
from txlog.storage.memory import MemoryObjectStore


class KilledError(Exception):
    pass


def kill() -> None:
    raise KilledError


@pytest.mark.parametrize(("moment", "is_written"), [("before", False), ("after", True)])
def test_the_create_of_that_number_kills(moment: str, is_written: bool) -> None:
    inner = MemoryObjectStore()
    store = DyingStore(inner, f'kill {moment} 2 put_if_absent a/.*"state":"DONE"')
    store.kill = kill
    for path, data in (("a/0", b"{}"), ("a/1", b'{"state":"DONE"}\npayload'), ("b/0", b'{"state":"DONE"}')):
        store.put_if_absent(path, data)
    store.put_if_absent("a/2", b'{}\n"state":"DONE"')  # Only the first line counts.
    with pytest.raises(KilledError):
        store.put_if_absent("a/3", b'{"state":"DONE"}')
    assert (inner.get("a/3") is not None) is is_written
    store.put_if_absent("a/4", b'{"state":"DONE"}')
    assert inner.get("a/4") is not None


def test_without_another_way_it_kills_its_own_process() -> None:
    program = (
        "from lab.demo.dying_store import DyingStore\n"
        "from txlog.storage.memory import MemoryObjectStore\n"
        "DyingStore(MemoryObjectStore(), 'kill before 1 put_if_absent a').put_if_absent('a', b'')\n"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ).returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "fault", ["crash before 1 put_if_absent a", "kill before 1 get a", "kill before one put_if_absent a"]
)
def test_a_fault_that_cannot_be_parsed(fault: str) -> None:
    with pytest.raises(InvalidRequestError, match="is not a fault: expected"):
        DyingStore(MemoryObjectStore(), fault)
