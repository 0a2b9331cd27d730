"""The stores of the test kit: what they count, delay and break, and nothing else."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from lab.testing.latency_store import LatencyStore
from lab.testing.store_contract import StoreContract
from tests.storage.processes import start
from txlog.errors import InvalidRequestError, NotAStoreError, StorageError, StoreAccessError, UnsupportedStoreError
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore, PutOutcome
from txlog.testing.clock import ManualClock
from txlog.testing.counting_store import CountingStore, Requests
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash


class TestCountingStore(StoreContract):
    def make_store(self, tmp_path: Path) -> ObjectStore:
        return CountingStore(MemoryObjectStore("x"))


class TestFailingStore(StoreContract):
    def make_store(self, tmp_path: Path) -> ObjectStore:
        return FailingStore(MemoryObjectStore("x"), Fault(action="crash", match="^never"))


class TestLatencyStore(StoreContract):
    def make_store(self, tmp_path: Path) -> ObjectStore:
        return LatencyStore(MemoryObjectStore("x"), 5, ManualClock())


def calls_of(store):
    return {
        "get": lambda: store.get("t/a"),
        "get_range": lambda: store.get_range("t/a", 0, 2),
        "size": lambda: store.size("t/a"),
        "put_if_absent": lambda: store.put_if_absent("t/new", b"1234"),
        "write_file": lambda: store.write_file("t/c", [b"12", b"34"]),
        "list": lambda: store.list("t/"),
        "delete": lambda: store.delete("t/a"),
        "modified_ms": lambda: store.modified_ms("t/a"),
    }


def filled():
    store = MemoryObjectStore("x")
    store.put_if_absent("t/a", b"123")
    return store


# -- counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", calls_of(None))
def test_each_verb_counts_one(verb):
    store = CountingStore(filled())
    calls_of(store)[verb]()
    read = {"get": 3, "get_range": 2}.get(verb, 0)
    written = 4 if verb in {"put_if_absent", "write_file"} else 0
    assert store.requests() == Requests(**{verb: 1}, read_bytes=read, written_bytes=written)
    assert store.requests().total == 1
    assert [name for name, _ in store.calls()] == [verb]


@pytest.mark.parametrize(("names", "requests"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (2000, 2), (2001, 3)])
def test_a_list_costs_a_request_per_thousand_names(names, requests):
    inner = MemoryObjectStore("x")
    for number in range(names):
        inner.put_if_absent(f"t/{number:05d}", b"")
    store = CountingStore(inner)
    store.list("t/")
    assert store.requests().list == store.requests().total == requests
    assert store.calls() == (("list", "t/"),)


def test_the_cost_of_a_block():
    store = CountingStore(filled())
    store.get("t/a")
    with store.counting() as cost:
        assert cost.total == 0
        store.put_if_absent("t/b", b"12")
        assert cost.put_if_absent == 1
        store.list("t/")
    store.get("t/a")
    assert (cost.put_if_absent, cost.list, cost.get, cost.total, cost.written_bytes) == (1, 1, 0, 2, 2)
    assert cost.calls() == (("put_if_absent", "t/b"), ("list", "t/"))
    assert repr(cost) == "Cost(1 put_if_absent, 1 list, 2 written_bytes)"
    assert str(cost.requests() - cost.requests()) == "no request"
    with pytest.raises(AttributeError):
        _ = cost.nonsense


def test_failed_requests_count():
    store = CountingStore(FailingStore(filled(), Fault(action="fail")))
    with pytest.raises(StorageError):
        store.get("t/a")
    assert store.requests().get == 1


def test_many_threads_are_counted_right():
    store = CountingStore(filled())
    threads = [threading.Thread(target=lambda: [store.get("t/a") for _ in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.requests().get == len(store.calls()) == 1600
    assert store.requests().read_bytes == 4800


# -- latency ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", calls_of(None))
def test_each_request_takes_its_time(verb):
    clock = ManualClock()
    calls_of(LatencyStore(filled(), 30, clock))[verb]()
    assert clock.monotonic_ms() == 30


def test_each_page_of_a_list_takes_its_time():
    inner, clock = MemoryObjectStore("x"), ManualClock()
    for number in range(2001):
        inner.put_if_absent(f"t/{number:05d}", b"")
    LatencyStore(inner, 30, clock).list("t/")
    assert clock.monotonic_ms() == 90


# -- failing ----------------------------------------------------------------------------------------------------------

APPLIED = {
    "put_if_absent": lambda store: store.get("t/new") == b"1234",
    "write_file": lambda store: store.get("t/c") == b"1234",
    "delete": lambda store: store.get("t/a") is None,
}


@pytest.mark.parametrize("verb", calls_of(None))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_fail(verb, moment):
    inner = filled()
    store = FailingStore(inner, Fault(action="fail", moment=moment))
    with pytest.raises(StorageError, match=f"memory://x: injected failure {moment} {verb}"):
        calls_of(store)[verb]()
    assert APPLIED.get(verb, lambda _: moment == "after")(inner) == (moment == "after")
    assert store.get("t/other") is None


@pytest.mark.parametrize("moment", ["before", "after"])
def test_lose_reply(moment):
    inner = filled()
    store = FailingStore(inner, Fault(action="lose_reply", moment=moment, match="put_if_absent|delete", times=2))
    assert store.put_if_absent("t/new", b"1234") is PutOutcome.UNKNOWN
    assert APPLIED["put_if_absent"](inner) == (moment == "after")
    with pytest.raises(StorageError):
        store.delete("t/a")
    assert APPLIED["delete"](inner) == (moment == "after")


@pytest.mark.parametrize(
    ("action", "error"), [("403", StoreAccessError), ("404", NotAStoreError), ("501", UnsupportedStoreError)]
)
def test_refusals(action, error):
    inner = filled()
    store = FailingStore(inner, Fault(action=action, match="put_if_absent"))
    with pytest.raises(error, match="injected refusal"):
        store.put_if_absent("t/new", b"1234")
    assert inner.get("t/new") is None
    assert store.put_if_absent("t/new", b"1234") is PutOutcome.WRITTEN


def test_damage_on_the_way():
    inner = filled()
    store = FailingStore(inner, Fault(action="damage", match="^get "))
    assert store.get("t/nothing") is None
    store = FailingStore(inner, Fault(action="damage", match="^get "))
    damaged = store.get("t/a")
    whole = store.get("t/a")
    assert whole == inner.get("t/a")
    assert damaged is not None
    assert whole is not None
    assert sum(one != other for one, other in zip(damaged, whole, strict=True)) == 1


@pytest.mark.parametrize("verb", APPLIED)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_crash(verb, moment):
    inner = filled()
    store = FailingStore(inner, Fault(action="crash", moment=moment))
    with pytest.raises(SimulatedCrash, match=f"{moment} {verb}"):
        calls_of(store)[verb]()
    assert APPLIED[verb](inner) == (moment == "after")
    assert store.dead
    for again in calls_of(store).values():
        with pytest.raises(SimulatedCrash, match="dead"):
            again()
    assert not issubclass(SimulatedCrash, Exception)


def test_which_operation():
    faults = (Fault(action="fail", match=r"^get t/b$", number=2), Fault(action="fail", match="", number=5, times=2))
    store = FailingStore(filled(), *faults)
    outcomes = []
    for path in ("t/a", "t/b", "t/b", "t/b", "t/a", "t/a", "t/a"):
        try:
            store.get(path)
            outcomes.append(True)
        except StorageError:
            outcomes.append(False)
    assert outcomes == [True, True, False, True, False, False, True]
    assert store.operations == tuple(f"get {path}" for path in ("t/a", "t/b", "t/b", "t/b", "t/a", "t/a", "t/a"))


def test_a_conditional_write_is_chosen_by_what_it_says():
    store = FailingStore(filled(), Fault(action="fail", match='put_if_absent .*"state":"PREPARE_COMMIT"'))
    assert store.put_if_absent("s/1", b'{"state":"ONGOING"}\nPREPARE_COMMIT') is PutOutcome.WRITTEN
    with pytest.raises(StorageError):
        store.put_if_absent("s/2", b'{"state":"PREPARE_COMMIT"}\n')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill before", Fault(action="kill")),
        ("kill after put_if_absent orders/0/", Fault(action="kill", moment="after", match="put_if_absent orders/0/")),
        ("stop before 3 get a b", Fault(action="stop", number=3, match="get a b")),
        ("crash after 7", Fault(action="crash", moment="after", number=7)),
        ("fail after 2nd", Fault(action="fail", moment="after", match="2nd")),
    ],
)
def test_faults_from_a_command_line(text, expected):
    assert Fault.parse(text) == expected


@pytest.mark.parametrize("text", ["", "kill", "kill now", "explode before", "before kill"])
def test_what_is_no_fault(text):
    with pytest.raises(InvalidRequestError, match="is not a fault: expected"):
        Fault.parse(text)


def test_a_thread_whose_process_died_meanwhile_sees_no_answer():
    inner, at_store, go_on = filled(), threading.Event(), threading.Event()

    class Waiting(MemoryObjectStore):
        def get(self, path):
            at_store.set()
            go_on.wait(20)
            return inner.get(path)

    store = FailingStore(Waiting("w"))
    seen: list[Any] = []

    def read():
        try:
            seen.append(store.get("t/a"))
        except SimulatedCrash as crash:
            seen.append(crash)

    reader = threading.Thread(target=read)
    reader.start()
    assert at_store.wait(20)
    store.crash()
    go_on.set()
    reader.join()
    assert isinstance(seen[0], SimulatedCrash)


SCRIPT = """
    import sys
    from txlog.storage.open import open_object_store
    from txlog.testing.failing_store import FailingStore, Fault
    store = FailingStore(open_object_store(sys.argv[1]), Fault.parse(sys.argv[2]))
    for number in range(5):
        print(store.put_if_absent(f"t/{number}", b"1").value, flush=True)
"""


@pytest.mark.parametrize(("moment", "left"), [("before", 2), ("after", 3)])
def test_a_real_kill(tmp_path, moment, left):
    child = start(SCRIPT, tmp_path, f"kill {moment} put_if_absent t/2")
    lines = child.communicate(timeout=60)[0].split()
    assert child.returncode == -signal.SIGKILL
    assert lines == ["written"] * 2
    assert LocalObjectStore(str(tmp_path)).list("t/") == [str(number) for number in range(left)]


@pytest.mark.parametrize(("moment", "there"), [("before", 2), ("after", 3)])
def test_a_real_stop(tmp_path, moment, there):
    import os

    child = start(SCRIPT, tmp_path, f"stop {moment} 3")
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert len(LocalObjectStore(str(tmp_path)).list("t/")) == there
    child.send_signal(signal.SIGCONT)
    assert child.communicate(timeout=60)[0].split() == ["written"] * 5
    assert child.returncode == 0
