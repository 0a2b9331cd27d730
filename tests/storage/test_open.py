"""Which store does a URL name, and what does the probe find?"""

from __future__ import annotations

import functools
import os
from pathlib import Path, PurePosixPath

import pytest

from tests.lines.at_line import at_line, lines_of
from txlog.core.ages import MAX_CLOCK_STEP_MS
from txlog.errors import ClockSkewError, InvalidRequestError, StorageError, UnknownOptionError, UnsupportedStoreError
from txlog.storage import open as opening
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import PutOutcome
from txlog.storage.open import open_object_store, probe
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore
from txlog.testing.failing_store import FailingStore, Fault


@pytest.fixture(autouse=True)
def _nothing_probed_yet(monkeypatch):
    monkeypatch.setattr(opening, "_PROBED", {})


def fresh(clock=None):
    return MemoryObjectStore("probed", clock or ManualClock())


# -- URLs -------------------------------------------------------------------------------------------------------------


def test_local_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (
        f"{tmp_path}/log",
        f"file://{tmp_path}/log",
        f"file:{tmp_path}/log",
        f"file://localhost{tmp_path}/log/",
        "log",
        "./x/../log",
        "~/log",
        Path("log"),
        Path("~/log"),
        PurePosixPath(f"{tmp_path}/log"),
    ):
        store = open_object_store(url)
        assert isinstance(store, LocalObjectStore)
        assert store.url == f"file://{tmp_path}/log"
    assert open_object_store("./~/log").url == f"file://{tmp_path}/~/log"
    assert sorted(os.listdir(tmp_path)) == []


def test_a_path_object_is_no_url():
    for path in (Path("s3://bucket/log"), Path("memory://x")):
        with pytest.raises(
            InvalidRequestError, match=r"is a PosixPath, which drops a slash of a URL; give a URL as a str"
        ):
            open_object_store(path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(False, False), ("false", False), ("FALSE", False), ("0", False), (True, True), ("true", True)],
)
def test_the_fsync_option(tmp_path, given, expected):
    store = open_object_store(str(tmp_path), {"fsync": given})
    assert isinstance(store, LocalObjectStore)
    assert store._fsync is expected


def test_bad_options(tmp_path):
    with pytest.raises(UnknownOptionError, match="'fsync' must be true or false, found 'maybe'"):
        open_object_store(str(tmp_path), {"fsync": "maybe"})
    with pytest.raises(UnknownOptionError, match=r"'fsinc' is unknown: a local store has fsync. Did you mean 'fsync'"):
        open_object_store(str(tmp_path), {"fsinc": "true"})
    with pytest.raises(UnknownOptionError, match="a store in memory has none"):
        open_object_store("memory://x", {"fsync": "true"})


def test_stores_in_memory():
    store = open_object_store("memory://jar")
    assert store.url == "memory://jar"
    assert open_object_store("memory://jar/") is store
    assert open_object_store("memory://jar/two") is not store


@pytest.mark.parametrize(
    "url",
    ["", None, 7, "a\0b", "file://host/path", "file:relative", "memory://a?b", "memory://a b", "memory://", "memory:"],
)
def test_malformed_urls(url):
    with pytest.raises(InvalidRequestError):
        open_object_store(url)


def test_unknown_schemes():
    with pytest.raises(UnsupportedStoreError, match=r"hdfs: .*a log needs objects that are created atomically"):
        open_object_store("hdfs://host/log")
    with pytest.raises(
        UnsupportedStoreError, match=r"localhost: .*: this is the address of a server.*use a local path"
    ):
        open_object_store("localhost:9092")


# -- the probe --------------------------------------------------------------------------------------------------------


def test_a_good_store_passes_and_keeps_nothing():
    store, clock, ids = fresh(), ManualClock(), SeededIds()
    probe(store, clock, ids)
    assert store.list("") == []


def test_once_per_process_and_url():
    counting = CountingStore(fresh())
    probe(counting, ManualClock(), SeededIds())
    with counting.counting() as cost:
        probe(counting, ManualClock(), SeededIds())
    assert cost.total == 0
    other = CountingStore(MemoryObjectStore("another", ManualClock()))
    probe(other, ManualClock(), SeededIds())
    assert other.requests().put_if_absent == 3


class Overwriting(MemoryObjectStore):
    """A server that ignores the condition; with `only_empty`, only for empty objects (as s3fs' open("xb"))."""

    only_empty = False

    def put_if_absent(self, path, data):
        if self.only_empty and data:
            return super().put_if_absent(path, data)
        self.delete(path)
        return super().put_if_absent(path, data)


class Lying(MemoryObjectStore):
    """A server that overwrites and answers that it did not."""

    def put_if_absent(self, path, data):
        outcome = super().put_if_absent(path, data)
        self.delete(path)
        super().put_if_absent(path, data)
        return outcome


@pytest.mark.parametrize(("kind", "only_empty"), [(Overwriting, False), (Overwriting, True), (Lying, False)])
def test_a_store_that_overwrites_is_refused(kind, only_empty):
    store = kind("bad", ManualClock())
    store.only_empty = only_empty
    for _ in range(2):
        with pytest.raises(
            UnsupportedStoreError, match=r"memory://bad: the backend ignores the condition of a create.*If-None-Match"
        ):
            probe(store, ManualClock(), SeededIds())
    assert store.list("") == []


def test_a_store_that_never_lets_create_is_refused():
    class Full(MemoryObjectStore):
        def put_if_absent(self, path, data):
            return PutOutcome.CONFLICT

    with pytest.raises(UnsupportedStoreError, match="reported as taken"):
        probe(Full("full", ManualClock()), ManualClock(), SeededIds())


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_unknown_outcomes_are_tried_again(moment, number):
    store = FailingStore(fresh(), Fault(action="lose_reply", moment=moment, match="^put_if_absent", number=number))
    probe(store, ManualClock(), SeededIds())
    assert store.list("") == []


def test_a_store_that_never_answers():
    store = FailingStore(fresh(), Fault(action="lose_reply", match="^put_if_absent", times=99))
    with pytest.raises(StorageError, match="did not answer 5 attempts"):
        probe(store, ManualClock(), SeededIds())


@pytest.mark.parametrize(("ahead_ms", "words"), [(16 * 60_000, "960 s ahead of"), (-16 * 60_000, "960 s behind")])
def test_clocks_that_differ_too_much(ahead_ms, words):
    """A writer whose clock is wrong does not write (W2)."""
    theirs = ManualClock()
    ours = ManualClock(now_ms=theirs.now_ms() + ahead_ms)
    store = fresh(theirs)
    with pytest.raises(
        ClockSkewError, match=f"memory://probed: this machine's clock is {words} the store's, and at most 900 s"
    ):
        probe(store, ours, SeededIds())
    assert store.list("") == []


@pytest.mark.parametrize("ahead_ms", [15 * 60_000, -15 * 60_000, 0])
def test_clocks_that_differ_a_little(ahead_ms):
    theirs = ManualClock()
    probe(fresh(theirs), ManualClock(now_ms=theirs.now_ms() + ahead_ms), SeededIds())


def test_a_pause_anywhere_in_the_probe_is_not_the_clock_s_fault(monkeypatch):
    """The time that the probe itself takes is not a difference of the clocks (W2)."""

    def probing(clock):
        monkeypatch.setattr(opening, "_PROBED", {})
        probe(fresh(clock), clock, SeededIds())

    lines = lines_of(lambda: probing(ManualClock()), times=3)
    assert len(lines) > 40
    for line in lines:
        clock = ManualClock()
        with at_line(line, functools.partial(clock.advance_ms, 20 * 60_000)):
            probing(clock)


@pytest.mark.parametrize("ahead_ms", [-16 * 60_000, 16 * 60_000])
def test_a_pause_does_not_hide_a_wrong_clock(monkeypatch, ahead_ms):
    """A clock that is 16 minutes behind looks right after a pause of 16 minutes."""
    for line in lines_of(lambda: probe(fresh(), ManualClock(), SeededIds()), times=3):
        monkeypatch.setattr(opening, "_PROBED", {})
        theirs = ManualClock()
        ours = ManualClock(now_ms=theirs.now_ms() + ahead_ms)

        def pause(clocks=(theirs, ours)):
            for clock in clocks:
                clock.advance_ms(16 * 60_000)

        with at_line(line, pause), pytest.raises(ClockSkewError):
            probe(fresh(theirs), ours, SeededIds())


def test_a_store_in_which_each_probe_takes_too_long_is_refused():
    clock = ManualClock()

    class Slow(MemoryObjectStore):
        def put_if_absent(self, path, data):
            outcome = super().put_if_absent(path, data)
            clock.advance_ms(20 * 60_000)
            return outcome

    store = Slow("slow", clock)
    with pytest.raises(ClockSkewError, match="1200 s ahead"):
        probe(store, clock, SeededIds())
    assert store.list("") == []


def test_a_store_without_a_clock():
    class Timeless(MemoryObjectStore):
        def modified_ms(self, path):
            return None

    probe(Timeless("timeless", ManualClock(now_ms=1)), ManualClock(), SeededIds())


def test_a_clock_that_was_set_is_compared_again():
    theirs = ManualClock()
    store, ours = fresh(theirs), ManualClock(now_ms=theirs.now_ms())
    counted = CountingStore(store)
    probe(counted, ours, SeededIds())
    requests = counted.requests().total
    ours.step_wall_ms(MAX_CLOCK_STEP_MS)
    probe(counted, ours, SeededIds())
    assert counted.requests().total == requests
    ours.step_wall_ms(86_400_000)
    with pytest.raises(ClockSkewError, match="86460 s ahead of the store's"):
        probe(counted, ours, SeededIds())
    ours.step_wall_ms(-86_400_000 - 10 * 60_000)
    probe(counted, ours, SeededIds())
    assert store.list("") == []
