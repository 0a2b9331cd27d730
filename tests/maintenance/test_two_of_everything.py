"""Two of each job and admin call, switched at the requests of the first: a healthy store stays so, and no job says otherwise.

Before one request of the first job, the second one runs from beginning to end; so do a third and a fourth job within the second.
Each request of the first job takes its turn. Then readers and `fsck` judge the store.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.effort import cases
from tests.second_reader import reader as second_reader
from txlog.client import reading
from txlog.client.store import Store
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidPartitionsError,
    TopicExistsError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.exporter.exporter import Exporter
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.vacuum import vacuum
from txlog.metrics.registry import Registry
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

HOUR_MS = 3_600_000
SCHEMA = {"id": "int64"}
SETTINGS = {"segment.batches": "2", "key.columns": "id"}
GROUP_ERRORS = (CommitFailedError, ConcurrentTransactionsError, GroupIdNotFoundError)


class World:
    """One store in memory that jobs of several processes use."""

    def __init__(self, objects: dict[str, Any] | None = None, now_ms: int | None = None) -> None:
        self.clock = ManualClock() if now_ms is None else ManualClock(now_ms)
        self.memory = MemoryObjectStore(clock=self.clock)
        self.memory._objects.update(objects or {})
        self.opened = 0

    def open(self, store: Any = None) -> Store:
        self.opened += 1
        return txlog.open(
            "memory://",
            object_store=store or self.memory,
            clock=self.clock,
            ids=SeededIds(self.opened * 1000 + len(self.memory._objects)),
            config={"linger.ms": 0, "delete.grace.ms": HOUR_MS, "metadata.max.age.ms": 0},
        )


@cache
def prepared() -> tuple[dict[str, Any], int]:
    """Return the objects of a store in which every job has something to do, and the time."""
    world = World()
    store = world.open()
    store.create_topic("logs", SCHEMA, 1, {**SETTINGS, "retention.ms": str(4 * HOUR_MS)})
    store.create_topic("keys", SCHEMA, 1, {**SETTINGS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    store.create_topic("facts", SCHEMA, 2, SETTINGS)
    number = 0
    for _ in range(3):
        for topic in ("logs", "keys", "facts"):
            with store.producer(f"p{topic}") as producer:
                for _ in range(5):
                    with producer.transaction():
                        producer.send(topic, [{"id": number % 7 if topic == "keys" else number}], partition=0)
                    number += 1
        with store.consumer("facts", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            list(consumer.iterate())
            consumer.commit()
        maintain(world.open())
        world.clock.advance_ms(2 * HOUR_MS)
    dead = store.producer("dead", staged=False)
    dead.init_transactions()
    dead.begin_transaction()
    dead.send("facts", [{"id": -1}], partition=1)
    dead.flush()
    world.clock.advance_ms(HOUR_MS // 4)
    return dict(world.memory._objects), world.clock.now_ms()


def maintain(store: Store) -> None:
    report = Maintainer(store.runtime, MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)).run()
    failed = [action for step in report.steps for action in step.failed]
    assert not failed, failed


def clean(store: Store) -> None:
    report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
    assert not report.failed, report.failed


def check(store: Store) -> None:
    found = [
        each for each in check_store(store.runtime.store, clock=store.runtime.clock).findings if each.kind != "note"
    ]
    assert not found, found


def produce(store: Store) -> None:
    with store.producer() as producer:
        producer.send("facts", [{"id": 10_000 + store.runtime.clock.now_ms() % 7}]).result()


def export(store: Store) -> None:
    registry = Registry()
    Exporter(lambda: store.runtime, registry, clock=store.runtime.clock).refresh()
    assert registry.values("txlog_exporter_looks_total").get(("failed",), 0) == 0
    assert not any(registry.values("txlog_exporter_errors_total").values())


def create(store: Store) -> None:
    store.create_topic("new", SCHEMA, 1)


def delete(store: Store) -> None:
    store.delete_topic("facts")


def remake(store: Store) -> None:
    store.delete_topic("logs")
    store.create_topic("logs", SCHEMA, 1, SETTINGS)


JOBS: dict[str, tuple[Callable[[Store], object], tuple[type[TxlogError], ...]]] = {
    "maintain": (maintain, ()),
    "vacuum": (clean, ()),
    "fsck": (check, ()),
    "export": (export, ()),
    "produce": (produce, (UnknownTopicOrPartitionError,)),
    "expire": (lambda store: store.admin().expire(), ()),
    "create": (create, (TopicExistsError,)),
    "delete": (delete, (UnknownTopicOrPartitionError,)),
    "remake": (remake, (UnknownTopicOrPartitionError, TopicExistsError)),
    "alter": (
        lambda store: store.alter_topic("facts", config={"segment.batches": "3"}),
        (UnknownTopicOrPartitionError,),
    ),
    "partitions": (
        lambda store: store.alter_topic("facts", partitions=4, allow_key_movement=True),
        (UnknownTopicOrPartitionError, InvalidPartitionsError),
    ),
    "records": (lambda store: store.admin().delete_records("logs", 0), (UnknownTopicOrPartitionError,)),
    "group": (lambda store: store.admin().delete_group("g"), GROUP_ERRORS),
    "read": (
        lambda store: store.snapshot("logs", "keys").tables()["logs"].count("id >= 0"),
        (UnknownTopicOrPartitionError,),
    ),
}
"""Each job with the errors that it may raise beside another one."""


class Switch:
    """A store whose `at`-th request waits until `other` has run."""

    def __init__(self, inner: Any, at: int, other: Callable[[], None]) -> None:
        self._inner, self._at, self._other = inner, at, other
        self._lock = threading.RLock()
        self.requests = 0
        self.url, self.place = inner.url, inner.place

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self.requests += 1
                if self.requests == self._at:
                    self._other()
            return found(*arguments, **named)

        return request


def play(world: World, name: str, at: int, other: Callable[[], None], wrong: list[str]) -> int:
    """Run a job, and `other` before its request number `at`. Return its number of requests."""
    job, allowed = JOBS[name]
    switch = Switch(world.memory, at, other)
    try:
        job(world.open(switch))
    except allowed:
        pass
    except (TxlogError, AssertionError) as error:
        wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return switch.requests


def run(chain: tuple[str, ...], ats: tuple[int, ...], folder: Path) -> tuple[list[str], int]:
    """Run each job of `chain` before request `ats` of the job before it. Return what is wrong, and the first one's requests."""
    objects, now_ms = prepared()
    world = World(objects, now_ms)
    wrong: list[str] = []

    def start(number: int) -> int:
        if number == len(chain):
            return 0
        return play(
            world, chain[number], ats[number] if number < len(ats) else 0, lambda: void(start(number + 1)), wrong
        )

    def void(_: int) -> None:
        pass

    requests = start(0)
    wrong += judged(world, folder)
    return wrong, requests


def judged(world: World, folder: Path) -> list[str]:
    """Return what is wrong with the store at the end: the rows of both readers, and what fsck finds."""
    store = world.open()
    report = check_store(world.memory, clock=world.clock)
    wrong = [f"fsck: {each}" for each in report.findings if each.kind != "note"]
    for path, found in world.memory._objects.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found.data)
    second = second_reader.Store(str(folder))
    for topic in store.topics():
        with store.consumer(topic.name, auto_offset_reset="earliest") as consumer:
            rows = [row for batch in consumer.iterate() for row in batch.to_pylist()]
        places = [(row["_partition"], row["_offset"]) for row in rows]
        if len(set(places)) != len(places):
            wrong.append(f"{topic.name}: rows twice")
        if topic.name == "facts":
            ids = {row["id"] for row in rows}
            lost = {each for turn in range(3) for each in range(turn * 15 + 10, turn * 15 + 15)} - ids
            if lost:
                wrong.append(f"facts: {lost} are lost")
        others = sum(len(second.read(topic.name, number, "read_committed")) for number in range(topic.partitions))
        if others != len(rows):
            wrong.append(f"{topic.name}: the client reads {len(rows)} rows, the second reader {others}")
    return wrong


PAIRS = [(first, second) for first in JOBS for second in JOBS]
SAMPLE = 24


def schedules(pair: tuple[str, str], tmp_path: Path) -> tuple[list[int], int]:
    """Return each request of the pair's first job, alone."""
    wrong, requests = run((pair[0],), (0,), tmp_path / "alone")
    assert not wrong, wrong
    return list(range(1, requests + 1)), requests


@pytest.mark.parametrize("number", cases(range(SAMPLE)))
def test_some_pairs_at_one_request(number: int, tmp_path: Path) -> None:
    dice = random.Random(number)
    first, second = dice.choice(PAIRS)
    points, _ = schedules((first, second), tmp_path)
    at = dice.choice(points)
    wrong, _ = run((first, second), (at,), tmp_path / "pair")
    assert not wrong, (first, second, at, wrong)


def test_maintenance_between_the_view_of_a_vacuum_and_its_list() -> None:
    world = World()
    store = world.open()
    store.create_topic("r", SCHEMA, 1, {"segment.batches": "2", "retention.ms": "100000"})

    def send(rows: int) -> None:
        with store.producer() as producer:
            for number in range(rows):
                producer.send("r", [{"id": number}]).result()

    def other() -> None:
        world.clock.advance_ms(197_000)
        maintain(world.open())

    class Late(Switch):
        """Before the LIST of the partition that follows a look at its next slot."""

        looked, armed = False, False

        def get(self, path: str) -> Any:
            self.looked |= self.armed and path.startswith("r/0/") and path.endswith(".batch")
            return self._inner.get(path)

        def list(self, path: str, *more: Any) -> Any:
            if self.looked and path == "r/0/":
                self.looked = self.armed = False
                self._other()
            return self._inner.list(path, *more)

    send(8)
    late = Late(world.memory, 0, other)
    runtime = world.open(late).runtime
    session = reading.read_session(runtime)
    vacuum(runtime, session, dry_run=False)
    world.clock.advance_ms(3000)
    send(4)
    late.armed = True
    assert not vacuum(runtime, session, dry_run=False).failed
    assert not late.armed


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_pair_at_each_request(first: str, second: str, tmp_path: Path) -> None:
    """Also with a third and a fourth job within the second one, at drawn requests."""
    points, _ = schedules((first, second), tmp_path)
    dice = random.Random(zlib.crc32(f"{first} {second}".encode()))
    found: list[Any] = []
    for at in points:
        wrong, _ = run((first, second), (at,), tmp_path / str(at))
        found += [(at, each) for each in wrong]
        chain = (first, second, dice.choice(list(JOBS)), dice.choice(list(JOBS)))
        ats = (at, dice.randint(1, 60), dice.randint(1, 60))
        if at % 4 == 0:
            wrong, _ = run(chain, ats, tmp_path / f"{at}-more")
            found += [(chain, ats, each) for each in wrong]
    print(f"{first} {second}: {len(points)} requests, {len(found)} findings")
    assert not found, found[:5]
