"""What does a process need that comes back after others have written? (PROTOCOL.md, "Opening a partition", invariant
15)

`make bench-growth` measures the same operations at other sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from benchmarks.specs.backlog import (
    FIRST,
    HOOKED,
    LONGEST_MS,
    OPERATIONS,
    REQUEST_MS,
    ROWS,
    TOPIC,
    Begin,
    Beside,
    Process,
    measure,
)
from lab.baton import BatonThread, hooked
from lab.testing.latency_store import LatencyStore
from txlog.client.store import Store
from txlog.errors import OutcomeUnknownError, TxlogError, TxlogTimeoutError
from txlog.protocol.context import INTERNAL_ROLL
from txlog.protocol.load import MAX_SLOTS_BY_NAME
from txlog.storage.object_store import Names


def check(written: int) -> None:
    found = measure(written)
    assert found.keys() == OPERATIONS.keys()
    allowed = {name: OPERATIONS[name].at_most(written) for name in found}
    assert {name: each[0] for name, each in found.items() if each[0] > allowed[name]} == {}
    longest_ms = {name: OPERATIONS[name].longest_ms(written) for name in found}
    assert {name: each[2] for name, each in found.items() if each[2] > longest_ms[name]} == {}


def test_no_operation_follows_what_others_have_written():
    check(300)


@pytest.mark.exhaustive
@pytest.mark.parametrize("written", [40, 100, 400, 1600, 6400])
def test_no_operation_follows_what_others_have_written_at_any_size(written: int) -> None:
    check(written)


def _offset(store: Store) -> Callable[[], object]:
    consumer, position = store.consumer(group_id="mine", enable_auto_commit=False), iter(range(100))
    consumer.assign([FIRST])
    return lambda: consumer.commit({FIRST: next(position)})


def _flush(store: Store) -> Callable[[], object]:
    producer = store.producer(delivery_timeout_ms=LONGEST_MS)
    return lambda: producer.send(TOPIC, ROWS, partition=0).result()


def _commit(store: Store) -> Callable[[], object]:
    producer = store.producer("mine")
    producer.init_transactions()

    def call() -> None:
        if producer._transactions._state.state == "READY":
            producer.begin_transaction()
            producer.send(TOPIC, ROWS, partition=0)
        producer.commit_transaction()

    return call


def _init(store: Store) -> Callable[[], object]:
    return lambda: store.producer("mine").init_transactions()


def _fetch(store: Store) -> Callable[[], object]:
    consumer = store.consumer(group_id="mine")
    return lambda: consumer.committed(FIRST)


CALLS = [_offset, _flush, _commit, _init, _fetch]


def calls_until_done(process: Process, most: int) -> int:
    """Repeat the call of `process` until it succeeds. Return how often it failed."""
    for failed in range(most):
        try:
            process.call()
        except (TxlogTimeoutError, OutcomeUnknownError):
            continue
        return failed
    pytest.fail(f"the call did not succeed in {most} tries")


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Return a store whose tails are short, so that one call can open them."""
    with hooked(*HOOKED) as hook:
        beside = Beside(hook, segment_batches=INTERNAL_ROLL.batches)
        yield beside
        with contextlib.suppress(TxlogError):  # the error of a failed call once more
            beside.close()


@pytest.mark.parametrize("begin", CALLS)
def test_a_call_on_a_slow_store_has_time_for_a_list(beside: Beside, begin: Begin) -> None:
    """Each request takes 1.2 seconds, so the new records take longer by name than a call may take."""
    process = Process(beside, begin)
    beside.others_write(200)
    process.latency.latency_ms = 1200
    # A transaction looks at two partitions one after the other.
    assert calls_until_done(process, 3) <= (begin is _commit)


@pytest.mark.parametrize("begin", [_offset, _flush, _commit, _fetch])
def test_a_call_that_fails_keeps_what_it_has_read(beside: Beside, begin: Begin) -> None:
    """No call reads all new records before its time is up. Its repetition goes on from there."""
    process = Process(beside, begin)
    beside.others_write(3 * MAX_SLOTS_BY_NAME)
    answers = 0

    class Tired(LatencyStore):
        """A store that answers only 20 requests of each call in time."""

        def _wait(self) -> None:
            nonlocal answers
            answers += 1
            self._clock.sleep_ms(REQUEST_MS if answers % 20 else 2 * LONGEST_MS)

    process.counting.inner = Tired(beside.memory, 0, beside)
    assert calls_until_done(process, 20) > 0


def test_requests_of_two_threads_take_the_time_of_one(beside: Beside) -> None:
    """Otherwise a producer's thread would use up the time of the calls beside it."""
    store = LatencyStore(beside.memory, REQUEST_MS, beside)
    threads = [BatonThread(beside.baton, target=store.get, args=("none",)) for _ in range(2)]
    began = beside.monotonic_ms()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert beside.monotonic_ms() - began == REQUEST_MS


@pytest.mark.parametrize("begin", [_flush, _commit])
def test_a_call_ends_although_others_write_more_in_the_time_of_a_list_than_it_reads_by_name(
    beside: Beside, begin: Begin
) -> None:
    """A folder of 500,000 names: its LIST takes 10 s, and others write 100 times meanwhile."""
    times = 130
    process = Process(beside, begin)
    process.counting.inner = store = LongList(beside.memory, REQUEST_MS, beside)
    beside.others_write(times)
    with beside.busy():
        # A transaction looks at several partitions one after the other.
        assert calls_until_done(process, 3) <= (begin is _commit)
    # The producer's thread completes no transaction while the next one is committed.
    assert store.most == 1


class LongList(LatencyStore):
    """A store with many names in each partition."""

    running = most = 0
    """How many requests run now, and how many ran at once at most."""

    def list(self, prefix: str, start_after: str = "") -> Names:
        found = self.inner.list(prefix, start_after)
        for _ in range(500 if found else 1):
            self._wait()
        return found

    def _wait(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        super()._wait()
        self.running -= 1
