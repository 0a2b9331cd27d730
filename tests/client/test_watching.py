"""A consumer of a local folder sees rows when they come, sees them all without events, and leaks nothing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txlog
from tests.client.world import ORDERS
from txlog.client.consumer import Consumer
from txlog.client.consumer.fetcher import Pace
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.storage.folder_watch import FolderWatch
from txlog.testing.clock import ManualClock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
LONG_MS, SHORT_MS = 20_000, 100
PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Store]:
    with txlog.open(str(tmp_path / "store"), storage_options={"fsync": False}) as opened:
        opened.create_topic("orders", ORDERS, partitions=2)
        yield opened


def idle(store: Store, longest_ms: int) -> Consumer:
    """Return a consumer whose next pause is that long."""
    consumer = store.consumer(fetch_max_wait_ms=longest_ms, auto_offset_reset="earliest")
    consumer.assign(PARTITIONS)
    assert consumer.poll(0) is None
    consumer._fetcher.pace._looks = 16 * 30
    assert consumer.poll(0) is None
    return consumer


@contextmanager
def soon(store: Store, number: int = 0) -> Iterator[None]:
    """Send a row while the block polls."""

    def send() -> None:
        with store.producer() as producer:
            producer.send("orders", [{"id": number, "name": "x"}], partition=number % 2)

    timer = threading.Timer(0.1, send)
    timer.start()
    yield
    timer.join()


def inotifies() -> int:
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(link) and "inotify" in os.readlink(link) for link in links)


def polled_ms(consumer: Consumer, ms: int = LONG_MS) -> float:
    began = time.monotonic()
    batch = consumer.poll(ms)
    assert batch is not None
    assert batch.num_rows == 1
    return (time.monotonic() - began) * 1000


def test_a_busy_writer_costs_a_look_every_few_milliseconds_at_most(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows belong to an open transaction, so no look finds any."""
    looks: list[float] = []
    with idle(local, LONG_MS) as consumer, local.producer("busy", staged=False) as producer:
        look = consumer._fetcher.look

        def noted() -> None:
            looks.append(time.monotonic())
            look()

        monkeypatch.setattr(consumer._fetcher, "look", noted)
        producer.begin_transaction()
        poller = threading.Thread(target=consumer.poll, args=(1000,))
        poller.start()
        while poller.is_alive():
            producer.send("orders", [{"id": 1, "name": "x"}], partition=0).result()
        producer.abort_transaction()
    pauses = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert len(looks) > 3, "the events end the pauses"
    assert min(pauses[:-1]) > 0.004, "5 ms by a clock of whole milliseconds"


def test_pauses_that_objects_end_do_not_make_later_ones_longer() -> None:
    clock = ManualClock()
    pace, last = Pace(clock, 500), 0
    for number in range(1, 200):
        last = max(last, pace.left_ms(LONG_MS))
        clock.advance_ms(min(pace.left_ms(LONG_MS), 5))
        pace.looked(clock.monotonic_ms())
        assert pace.left_ms(LONG_MS) <= 8, number
    assert last == 8, "16 looks each after 1, 2 and 4 ms, and then none that is due"
    clock.advance_ms(8)
    began_ms = clock.monotonic_ms()
    clock.advance_ms(20)
    pace.looked(began_ms)
    assert pace.left_ms(LONG_MS, early=True) == 20, "as long as the look took"


def test_rows_end_the_pause_of_each_consumer(local: Store) -> None:
    with idle(local, LONG_MS) as one, idle(local, LONG_MS) as other:
        for number in range(2):
            with soon(local, number):
                assert polled_ms(one) < LONG_MS / 2
            assert polled_ms(other) < LONG_MS / 2
            for each in (one, other):
                each._fetcher.pace._looks = 16 * 30
                assert each.poll(0) is None


@pytest.mark.parametrize("read", [[], OSError(5, "Input/output error")])
def test_rows_come_without_events(local: Store, monkeypatch: pytest.MonkeyPatch, read: list[object] | OSError) -> None:
    def miss(_: object, ms: int) -> list[object]:
        if isinstance(read, OSError):
            raise read
        time.sleep(ms / 1000)
        return read

    monkeypatch.setattr("inotify_simple.INotify.read", miss)
    with idle(local, SHORT_MS) as consumer, soon(local):
        assert polled_ms(consumer) < LONG_MS / 2


def test_rows_come_without_the_package(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    before = inotifies()
    with idle(local, SHORT_MS) as consumer, soon(local):
        assert polled_ms(consumer) < LONG_MS / 2
        assert inotifies() == before


def test_a_poll_without_rows_ends_at_its_timeout(local: Store) -> None:
    with idle(local, LONG_MS) as consumer:
        began = time.monotonic()
        assert consumer.poll(SHORT_MS) is None
        assert SHORT_MS <= (time.monotonic() - began) * 1000 < LONG_MS / 2


def test_a_closed_consumer_holds_no_descriptor_and_a_watch_has_no_thread(local: Store) -> None:
    before = inotifies()
    consumer = idle(local, SHORT_MS)
    assert inotifies() == before + 1
    assert not [each for each in threading.enumerate() if "inotify" in f"{each.name} {type(each).__module__}"]
    consumer.close()
    assert inotifies() == before


def test_a_consumer_that_is_closed_in_a_wait_watches_no_more(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before, wait = inotifies(), FolderWatch.wait

    def close_and_wait(self: FolderWatch, folders: Iterable[str], ms: int) -> None:
        consumer.close()  # as the handler of a signal does
        wait(self, folders, ms)

    consumer = idle(local, SHORT_MS)
    monkeypatch.setattr(FolderWatch, "wait", close_and_wait)
    assert consumer.poll(3 * SHORT_MS) is None
    assert inotifies() == before


def test_a_poll_that_was_interrupted_before_it_had_a_watch_asks_again(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = inotifies()
    with local.consumer() as consumer:
        consumer.assign(PARTITIONS)
        with monkeypatch.context() as patch:
            patch.setattr(FolderWatch, "of", interrupt)
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(0)
        assert consumer.poll(0) is None
        assert inotifies() == before + 1


def test_a_consumer_with_another_clock_waits_by_that_clock(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderWatch, "of", lambda *_: pytest.fail("a watch"))
    with txlog.open(local.url, storage_options={"fsync": False}, clock=ManualClock()) as store:
        idle(store, LONG_MS).close()


PROGRAM = """
import os, sys
import txlog
from tests.client.test_watching import LONG_MS, idle, polled_ms, soon

def opened():
    return txlog.open(sys.argv[1], storage_options={"fsync": False})

with opened() as store, idle(store, LONG_MS) as consumer:
    child = os.fork()
    if not child:
        with opened() as own, idle(own, LONG_MS) as mine, soon(own):
            ms = polled_ms(mine)
        consumer.close()
        os._exit(0 if ms < LONG_MS / 2 else 1)
    print(polled_ms(consumer) < LONG_MS / 2, os.waitpid(child, 0)[1])
"""


def test_a_child_reads_by_its_own_watch_and_leaves_its_parents_alone(local: Store) -> None:
    with idle(local, LONG_MS) as consumer:
        command = [sys.executable, "-c", PROGRAM, local.url]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=100)
        assert done.stdout.split() == ["True", "0"], done.stderr
        assert polled_ms(consumer) < LONG_MS / 2
