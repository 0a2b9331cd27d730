"""A forked child takes no lock that a thread of its parent held, wherever that thread was."""

from __future__ import annotations

import ast
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import duckdb
import pytest

import pyspark_txlog
import txlog
from tests.lines.at_line import Line, before_each_line
from tests.storage.processes import in_fork
from txlog.client.store import Store
from txlog.storage import forks

PACKAGES = [Path(str(each.__file__)).parent for each in (txlog, pyspark_txlog)]
STRIDE = 240
CHILD_S = 20


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for package in PACKAGES for path in sorted(package.rglob("*.py"))}


def test_no_class_has_a_cached_property() -> None:
    """In Python 3.11 all instances of a class share its lock, also for slow work, and no forked child can free it."""
    found = [
        str(path)
        for path, tree in sources().items()
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Name | ast.alias)
            and "cached_property" in (getattr(node, "id", ""), getattr(node, "name", ""))
        )
        or (isinstance(node, ast.Attribute) and node.attr == "cached_property")
    ]
    assert found == []


def test_every_module_that_is_imported_late_is_one_that_a_fork_waits_for() -> None:
    late = {
        (name.partition(".")[0], str(path))
        for path, tree in sources().items()
        if not {"cli", "testing"} & set(path.parts)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert late
    assert {each for each in late if each[0] not in forks.PACKAGES} == set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with txlog.open(tmp_path, storage_options={"fsync": "false"}, config={"linger.ms": 0}) as made:
        made.create_topic("t", {"id": "int64"}, config={"inline.max.bytes": "0"})
        with made.producer() as producer:
            producer.send("t", [{"id": 1}, {"id": 2}])
        yield made


def work(store: Store) -> int:
    """Write, commit and read in each way that a child may use."""
    with store.producer(f"p{os.getpid()}") as producer, producer.transaction():
        producer.send("t", [{"id": 3}])
    with store.consumer("t", auto_offset_reset="earliest") as consumer:
        rows = sum(batch.num_rows for batch in consumer.iterate())
    # Children write at the same time.
    assert store.snapshot("t").table("t").count("id >= 1") <= store.table("t").to_arrow().num_rows
    return rows


def child_works(store: Store) -> bool:
    """Work in a child, which SIGALRM ends if it hangs."""

    def check() -> bool:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        return work(store) >= 3

    return in_fork(check)


def fork_at_lines(store: Store, wanted: set[Line] | None) -> tuple[list[Line], list[Line]]:
    """Work in a thread that stops before each of the `wanted` lines (None: before no line) while this thread forks.

    Return the lines that the thread ran, and those at which the child did not work.
    """
    ran: list[Line] = []
    failed: list[Line] = []
    stopped, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def act(line: Line) -> None:
        ran.append(line)
        if wanted is not None and line in wanted:
            go_on.clear()
            stopped.set()
            go_on.wait()

    def play() -> None:
        try:
            with before_each_line(act):
                work(store)
        finally:
            ended.set()
            stopped.set()

    thread = threading.Thread(target=play)
    thread.start()
    while True:
        stopped.wait()
        stopped.clear()
        if ended.is_set():
            break
        if not child_works(store):
            failed.append(ran[-1])
        go_on.set()
    thread.join()
    return ran, failed


def chosen(ran: list[Line], stride: int) -> set[Line]:
    """Return every `stride`-th of the lines, each at its first time."""
    return set(sorted({line for line in ran if line.nth == 1})[::stride])


def test_a_child_works_at_some_lines_of_its_parent(store: Store) -> None:
    work(store)
    ran, _ = fork_at_lines(store, None)
    _, failed = fork_at_lines(store, chosen(ran, STRIDE))
    assert failed == []


@pytest.mark.exhaustive
def test_a_child_works_at_each_line_of_its_parent(store: Store) -> None:
    work(store)
    ran, _ = fork_at_lines(store, None)
    lines = chosen(ran, 1)
    print(f"{len(lines)} lines")
    _, failed = fork_at_lines(store, lines)
    assert failed == []


@pytest.mark.parametrize("begins", ["before the fork", "after the look"])
def test_a_child_imports_what_other_threads_were_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """The fork waits for an import that has begun. The child repeats one that begins in the last moment."""
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.3)\nANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(forks, "PACKAGES", forks.PACKAGES | {"slow_module"})
    thread = threading.Thread(target=__import__, args=("slow_module",))
    thread.start()
    while "slow_module" not in sys.modules:
        time.sleep(0.001)

    if begins == "after the look":
        look, answers = forks._imported_elsewhere, [list[str]()]
        monkeypatch.setattr(forks, "_imported_elsewhere", lambda: answers.pop() if answers else look())

    def check() -> bool:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)
        return bool(__import__("slow_module").ANSWER == 42)

    assert in_fork(check)
    thread.join()


def test_a_child_of_the_tests_collects_no_garbage_of_its_parent() -> None:
    """Another test may have left a connection of DuckDB. Without its threads, to close it ends the process."""
    garbage: list[object] = [duckdb.connect()]
    garbage[0].execute("SELECT count(*) FROM range(1000000)")  # type: ignore[attr-defined]
    garbage.append(garbage)
    gc.disable()
    try:
        del garbage
        assert in_fork(lambda: gc.collect() >= 0)
    finally:
        gc.enable()
    gc.collect()


FORK_BESIDE_AN_IMPORT = """
import logging, os, signal, threading, time
import txlog.storage.forks

signal.alarm(20)
inside = threading.Event()

def configure():
    with logging._lock:  # as logging.config does. A fork takes it, too
        inside.set()
        time.sleep(0.3)
        import colorsys

thread = threading.Thread(target=configure)
thread.start()
inside.wait()
if not (child := os.fork()):
    os._exit(0)
os.waitpid(child, 0)
thread.join()
"""


def test_a_fork_lets_a_thread_import_that_holds_a_lock_of_another_library() -> None:
    subprocess.run([sys.executable, "-c", FORK_BESIDE_AN_IMPORT], check=True)


def test_a_fork_does_not_wait_for_a_programs_own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text("import own_end\nown_end.wait()\n")
    (tmp_path / "own_end.py").write_text("import threading\nwait, go = (e := threading.Event()).wait, e.set\n")
    monkeypatch.syspath_prepend(tmp_path)
    thread = threading.Thread(target=__import__, args=("own_module",))
    thread.start()
    while "own_end" not in sys.modules or not hasattr(sys.modules["own_end"], "go"):
        time.sleep(0.001)
    assert in_fork(lambda: os.getpid() > 0)
    sys.modules["own_end"].go()
    thread.join()
