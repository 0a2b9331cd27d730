"""A watch of a folder ends a pause as soon as an object comes, never lasts longer than the pause, and leaks nothing."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from txlog.metrics import Registry
from txlog.storage.folder_watch import FolderWatch
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.metered import MeteredStore
from txlog.storage.object_store import Watch, watch
from txlog.testing.counting_store import CountingStore

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
LONG_MS, SHORT_MS = 10_000, 60
FOLDERS = ("t/0/", "t/1/")


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    made = LocalObjectStore(str(tmp_path), fsync=False)
    for folder in FOLDERS:
        made.put_if_absent(f"{folder}first", b"")
    return made


@pytest.fixture
def watched(store: LocalObjectStore) -> Iterator[Watch]:
    made = watch(store)
    assert made is not None
    made.wait(FOLDERS, LONG_MS)  # the first wait for a folder returns at once
    yield made
    made.close()


@contextmanager
def soon(store: LocalObjectStore, path: str) -> Iterator[None]:
    """Write an object while the block waits."""
    timer = threading.Timer(0.05, lambda: store.put_if_absent(path, b"x"))
    timer.start()
    yield
    timer.join()


def waited_ms(watched: Watch, folders: tuple[str, ...] = FOLDERS, ms: int = SHORT_MS) -> float:
    began = time.monotonic()
    watched.wait(folders, ms)
    return (time.monotonic() - began) * 1000


def descriptors() -> list[str]:
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.islink(link) and "inotify" in os.readlink(link)]


@pytest.mark.parametrize("path", ["t/0/next", "t/1/next"])
def test_a_wait_ends_when_an_object_comes(store: LocalObjectStore, watched: Watch, path: str) -> None:
    for number in range(3):
        with soon(store, f"{path}{number}"):
            assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2


def test_an_object_that_came_before_the_wait_ends_it(store: LocalObjectStore, watched: Watch) -> None:
    store.put_if_absent("t/1/next", b"x")
    assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2
    assert waited_ms(watched) >= SHORT_MS


def test_a_wait_without_objects_lasts_as_long_as_it_may_and_an_overdue_one_does_not_wait(watched: Watch) -> None:
    assert waited_ms(watched) >= SHORT_MS
    assert waited_ms(watched, ms=-5) < SHORT_MS


def test_a_folder_that_comes_later_or_again_is_watched(store: LocalObjectStore, watched: Watch) -> None:
    later = ("t/2/",)
    watched.wait(later, LONG_MS)  # it returns at once, although only the folder above exists
    assert waited_ms(watched, later) >= SHORT_MS
    for turn in range(2):
        for number in range(2):
            with soon(store, f"t/2/{turn}{number}"):
                assert waited_ms(watched, later, LONG_MS) < LONG_MS / 2
        for number in range(2):
            store.delete(f"t/2/{turn}{number}")  # the folder too
        assert not os.path.exists(os.path.join(store.root, "t/2"))
        watched.wait(later, SHORT_MS)
    assert waited_ms(watched, ("u/0/",)) >= SHORT_MS  # nor the one above


def test_many_objects_leave_few_events(store: LocalObjectStore) -> None:
    made = FolderWatch.of(store.root, store._clock)
    assert made is not None
    made.wait(FOLDERS, 0)
    for number in range(200):
        store.put_if_absent(f"t/0/many{number}", b"")
    assert len(made._inotify.read(0)) <= 2
    made.close()


def test_two_watches_both_see_an_object(store: LocalObjectStore, watched: Watch) -> None:
    other = watch(store)
    assert other is not None
    other.wait(FOLDERS, 0)
    store.put_if_absent("t/0/next", b"x")
    assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2
    assert waited_ms(other, ms=LONG_MS) < LONG_MS / 2
    other.close()


def test_a_watch_that_fails_waits_as_long_as_it_may(watched: FolderWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr(watched._inotify, "read", fail)
    assert waited_ms(watched) >= SHORT_MS


def test_a_folder_that_the_system_does_not_watch_costs_only_the_pause(
    watched: FolderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "no watches left")

    monkeypatch.setattr(watched._inotify, "add_watch", refuse)
    assert waited_ms(watched, ("t/", *FOLDERS)) >= SHORT_MS


def test_a_closed_watch_holds_nothing_and_still_waits(store: LocalObjectStore) -> None:
    before = descriptors()
    made, forgotten = watch(store), watch(store)
    assert made is not None
    assert forgotten is not None
    made.wait(FOLDERS, 0)
    assert len(descriptors()) == len(before) + 2
    made.close()
    made.close()
    assert len(descriptors()) == len(before) + 1
    del forgotten
    gc.collect()
    assert descriptors() == before
    assert waited_ms(made) >= SHORT_MS


def test_without_the_package_or_the_system_call_there_is_no_watch(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "inotify_simple", None)
        assert watch(store) is None

    def failing(error: OSError) -> Callable[[], None]:
        def fail() -> None:
            raise error

        return fail

    for error in (OSError(24, "Too many open files"), OSError("libc.so.6: cannot open shared object file")):
        monkeypatch.setattr("inotify_simple.INotify", failing(error))
        assert watch(store) is None
    monkeypatch.setattr("inotify_simple.INotify", failing(TimeoutError("of a signal's handler")))
    with pytest.raises(TimeoutError):
        watch(store)


def test_a_child_does_not_take_the_events_of_its_parent(store: LocalObjectStore, watched: Watch) -> None:
    child = os.fork()
    if not child:
        own = watch(store)
        assert own is not None
        own.wait(FOLDERS, 0)
        store.put_if_absent("t/0/child", b"x")
        os._exit(0 if waited_ms(own, ms=LONG_MS) < LONG_MS / 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2
    with soon(store, "t/0/parent"):
        assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2


def test_stores_that_pass_calls_on_pass_this_one_on(store: LocalObjectStore) -> None:
    for outer in (CountingStore(store), MeteredStore(store, Registry())):
        made = watch(outer)
        assert made is not None
        made.close()
    assert watch(CountingStore(MemoryObjectStore())) is None
    assert watch(MemoryObjectStore()) is None


ALARMS = [TimeoutError("alarm"), ValueError("alarm"), KeyboardInterrupt("alarm")]


@pytest.mark.parametrize("name", ["read", "add_watch", "__init__"])
@pytest.mark.parametrize("error", ALARMS, ids=repr)
def test_the_error_of_a_signal_handler_ends_each_call_of_the_system(
    store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch, error: BaseException, name: str
) -> None:
    def ring(*_: object) -> None:
        raise error

    made = FolderWatch.of(store.root, store._clock)
    assert made is not None
    if name == "read":
        made.wait(FOLDERS, 0)
    call = partial(FolderWatch.of, store.root, store._clock) if name == "__init__" else partial(made.wait, FOLDERS, 9)
    monkeypatch.setattr(f"inotify_simple.INotify.{name}", ring)
    with pytest.raises(type(error), match="alarm"):
        call()
    made.close()


@pytest.mark.parametrize("error", ALARMS, ids=repr)
def test_the_error_of_a_signal_handler_ends_a_wait(watched: Watch, error: BaseException) -> None:
    def ring(*_: object) -> None:
        raise error

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(type(error), match="alarm"):
            waited_ms(watched, ms=LONG_MS // 10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("lost", ["interrupt", "full queue"])
def test_a_folder_whose_event_was_lost_is_watched_again(
    store: LocalObjectStore, watched: FolderWatch, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    read = watched._inotify.read

    def lose(ms: int) -> list[object]:
        event = next(iter(read(ms)))
        if lost == "interrupt":
            raise KeyboardInterrupt
        return [event._replace(wd=-1)]

    store.put_if_absent("t/0/lost", b"x")
    monkeypatch.setattr(watched._inotify, "read", lose)
    with suppress(KeyboardInterrupt):
        watched.wait(FOLDERS, LONG_MS)
    monkeypatch.undo()
    watched.wait(FOLDERS, 0)
    waited_ms(watched)  # the kernel tells that the watch of the lost event has ended
    with soon(store, "t/0/next"):
        assert waited_ms(watched, ms=LONG_MS) < LONG_MS / 2
