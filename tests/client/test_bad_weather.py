"""Many writers over a store that loses requests and replies: no row is lost, duplicated or torn."""

from __future__ import annotations

import random
import threading
from typing import Any, cast

import pyarrow as pa
import pytest

import txlog
from tests.client.world import rows_of
from txlog.core.effects import PutOutcome
from txlog.errors import OutcomeUnknownError, StorageError
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore

SCHEMA = pa.schema([("id", pa.int64())])
# The machine's clock and short pauses: a clock that moves with every pause would reach the timeouts.
QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "linger.ms": 1}


class BadWeather:
    """A store where of a hundred requests three fail before they are applied and three after it."""

    def __init__(self, inner: ObjectStore, seed: int) -> None:
        self._inner = inner
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(path: str, *args: Any) -> Any:
            with self._lock:
                luck = self._random.random()
            if luck < 0.03:
                raise StorageError(f"{verb} {path!r} was not sent")
            answer = found(path, *args)
            if luck < 0.06 and verb == "put_if_absent":
                return PutOutcome.UNKNOWN
            if luck < 0.06 and verb != "write_file":
                raise StorageError(f"the reply to {verb} {path!r} was lost")
            return answer

        return request


@pytest.fixture
def memory() -> MemoryObjectStore:
    memory = MemoryObjectStore()
    with txlog.open("memory://", object_store=memory) as store:
        store.create_topic("t", SCHEMA, partitions=3, config={"segment.batches": 10})
    return memory


def open_badly(memory: MemoryObjectStore, seed: int) -> txlog.Store:
    return txlog.open("memory://", config=QUICK, object_store=cast(ObjectStore, BadWeather(memory, seed)))


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def read(memory: MemoryObjectStore) -> list[int]:
    with txlog.open("memory://", object_store=memory) as store:
        for info in store.admin().list_offsets("t").values():
            assert info.last_stable_offset == info.log_end_offset
        return sorted(row["id"] for row in rows_of(store.consumer("t", auto_offset_reset="earliest")))


def test_sends_of_many_threads_through_one_producer(memory):
    with open_badly(memory, 1) as store, store.producer() as producer:

        def work(number: int) -> None:
            for n in range(100):
                producer.send("t", [{"id": number * 1000 + n}], partition=n % 3)

        in_threads(4, work)
    assert read(memory) == sorted(number * 1000 + n for number in range(4) for n in range(100))


@pytest.mark.parametrize("seed", range(3))
def test_transactions_of_many_writers(memory, seed):
    committed: list[int] = []

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        store = open_badly(memory, seed * 100 + number)
        with store, store.producer(f"w{number}", staged=number % 2 == 1) as producer:
            for turn in range(12):
                ids = [number * 10_000 + turn * 100 + n for n in range(chance.randrange(1, 5))]
                producer.begin_transaction()
                for n in ids:
                    producer.send("t", [{"id": n}], partition=chance.randrange(3))
                producer.send_offsets_to_transaction({("t", 0): turn}, f"g{number}")
                if chance.random() < 0.25:
                    producer.abort_transaction()
                    continue
                try:
                    producer.commit_transaction()
                except OutcomeUnknownError:
                    producer.commit_transaction()
                committed.extend(ids)

    in_threads(4, work)
    assert read(memory) == sorted(committed)
