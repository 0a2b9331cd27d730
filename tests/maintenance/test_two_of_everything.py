"""Two of each job and admin call, switched at the requests of the first: a healthy store stays so, and no job says
otherwise.

Before one request of the first job, the second one runs from beginning to end; so do a third and a fourth job within
the second. Each request of the first job takes its turn. Then readers and `fsck` judge the store.

In a part of the runs the first job's process sleeps there, for longer than `delete.grace.ms`: others write, the second
job runs, and maintenance deletes what is superseded. A job that a process repeats has run before, and so has old views.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import pytest

import txlog
from tests.effort import cases
from tests.second_reader import reader as second_reader
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import (
    CommitFailedError,
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidPartitionsError,
    InvalidRequestError,
    OutcomeUnknownError,
    TopicExistsError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.exporter.exporter import Exporter
from txlog.inspection.chain import dump_partition
from txlog.inspection.overview import look as overview
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.size import measure_partition
from txlog.maintenance.vacuum import vacuum
from txlog.metrics.registry import Registry
from txlog.protocol.repair import repair_partition
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

T = TypeVar("T")

HOUR_MS = 3_600_000
GRACE_MS = 600_000
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
            config={
                "linger.ms": 0,
                "delete.grace.ms": GRACE_MS,
                "metadata.max.age.ms": 0,
                "default.api.timeout.ms": 24 * HOUR_MS,
            },
        )


@cache
def prepared() -> tuple[dict[str, Any], int]:
    """Return the objects of a store in which every job has something to do, and the time."""
    world = World()
    store = world.open()
    store.create_topic("logs", SCHEMA, 1, {**SETTINGS, "retention.ms": str(HOUR_MS)})
    store.create_topic("keys", SCHEMA, 1, {**SETTINGS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    store.create_topic("facts", SCHEMA, 2, SETTINGS)
    store.create_topic("shown", SCHEMA, 1, {**SETTINGS, "publish.formats": "delta,iceberg", "publish.max.lag.ms": "0"})
    store.create_topic("gone", SCHEMA, 1, SETTINGS)
    with store.producer() as producer:
        for number in range(5):
            producer.send("gone", [{"id": number}]).result()
    number = 0
    for turn in range(3):
        for topic in ("logs", "keys", "facts", "shown"):
            with store.producer(f"p{topic}") as producer:
                for _ in range(5):
                    with producer.transaction():
                        producer.send(topic, [{"id": number % 7 if topic == "keys" else number}], partition=0)
                    number += 1
        with store.consumer("facts", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            list(consumer.iterate())
            consumer.commit()
        if turn == 2:
            store.delete_topic("gone")
        maintain(world.open())
        world.clock.advance_ms(2 * HOUR_MS)
    dead = store.producer("dead", staged=False)
    dead.init_transactions()
    dead.begin_transaction()
    dead.send("facts", [{"id": -1}], partition=1)
    dead.flush()
    world.clock.advance_ms(HOUR_MS // 4)
    return dict(world.memory._objects), world.clock.now_ms()


HELD: WeakKeyDictionary[Store, Any] = WeakKeyDictionary()
"""What a job keeps until it runs again in the same process."""


def held(store: Store, make: Callable[[], T]) -> T:
    return cast(T, HELD.setdefault(store, make()))


def maintain(store: Store) -> None:
    policy = MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)
    report = held(store, lambda: Maintainer(store.runtime, policy)).run()
    failed = [action for step in report.steps for action in step.failed]
    assert not failed, failed


def clean(store: Store) -> None:
    session = held(store, lambda: reading.read_session(store.runtime))
    report = vacuum(store.runtime, session, dry_run=False)
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
    registry, exporter = held(store, lambda: exporting(store))
    exporter.refresh()
    assert registry.values("txlog_exporter_looks_total").get(("failed",), 0) == 0
    assert not any(registry.values("txlog_exporter_errors_total").values())


def exporting(store: Store) -> tuple[Registry, Exporter]:
    registry = Registry()
    return registry, Exporter(lambda: store.runtime, registry, clock=store.runtime.clock, min_interval_ms=0)


def partitions_of(store: Store) -> Iterator[TopicPartition]:
    for topic in store.topics():
        yield from (TopicPartition(topic.name, number) for number in range(topic.partitions))


def inspect(store: Store) -> None:
    assert not overview(store.runtime).warnings


def describe(store: Store) -> None:
    admin = held(store, store.admin)
    for tp in partitions_of(store):
        admin.describe_partition(tp.topic, tp.partition)


def dump(store: Store) -> None:
    for tp in (*partitions_of(store), TopicPartition("gone", 0)):
        dump_partition(store.runtime, tp)


def measure(store: Store) -> None:
    session = held(store, lambda: reading.read_session(store.runtime))
    for tp in partitions_of(store):
        measure_partition(session, tp)


def repair(store: Store) -> None:
    """Look at every partition, as after a finding of `fsck` in it."""
    for tp in partitions_of(store):
        done = store.runtime.run(repair_partition(store.runtime.context(), tp))
        assert not done, done


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
    "inspect": (inspect, (UnknownTopicOrPartitionError,)),
    "describe": (describe, (UnknownTopicOrPartitionError,)),
    "dump": (dump, (UnknownTopicOrPartitionError,)),
    "measure": (measure, (UnknownTopicOrPartitionError,)),
    "repair": (repair, ()),
    "read": (
        lambda store: store.snapshot("logs", "keys").tables()["logs"].count("id >= 0"),
        (UnknownTopicOrPartitionError,),
    ),
}
"""Each job with the errors that it may raise beside another one."""
ASLEEP: dict[str, tuple[type[TxlogError], ...]] = {"produce": (OutcomeUnknownError,), "read": (InvalidRequestError,)}
"""More errors of a job whose process sleeps for longer than `delivery.timeout.ms`, or than a snapshot holds."""


class Switch:
    """A store whose `at`-th request waits until `other` has run."""

    def __init__(self, inner: Any, at: int, other: Callable[[], None]) -> None:
        self._inner, self.at, self._other = inner, at, other
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
                if self.requests == self.at:
                    self._other()
            return found(*arguments, **named)

        return request


def play(
    world: World, name: str, at: int, other: Callable[[], None], wrong: list[str], *, repeated: bool = False
) -> int:
    """Run a job, and `other` before its request number `at`. Return its number of requests.

    `repeated`: the same process has run the job before, and others have written since.
    """
    job, allowed = JOBS[name]
    if repeated:
        allowed += ASLEEP.get(name, ())
    switch = Switch(world.memory, 0, other)
    try:
        store = world.open(switch)
        if repeated:
            job(store)
            write(world)
        switch.requests, switch.at = 0, at
        job(store)
    except allowed:
        pass
    except (TxlogError, AssertionError) as error:
        wrong.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return switch.requests


def write(world: World) -> None:
    """Append two segments to the topics that exist."""
    store = world.open()
    topics = {topic.name for topic in store.topics()} & {"logs", "keys", "facts", "shown"}
    with store.producer() as producer:
        for topic in sorted(topics):
            for number in range(4):
                producer.send(topic, [{"id": number}], partition=0).result()


def run(chain: tuple[str, ...], ats: tuple[int, ...], folder: Path, *, sleeps: bool = False) -> tuple[list[str], int]:
    """Run each job of `chain` before request `ats` of the job before it. Return what is wrong, and the first one's
    requests.

    `sleeps`: the first job has run before. Its process sleeps while the others run, until everything is deleted that is
    superseded then.
    """
    objects, now_ms = prepared()
    world = World(objects, now_ms)
    wrong: list[str] = []

    def start(number: int) -> int:
        if number == len(chain):
            return 0
        at = ats[number] if number < len(ats) else 0
        return play(world, chain[number], at, lambda: between(number + 1), wrong, repeated=sleeps and not number)

    def between(number: int) -> None:
        if not sleeps or number > 1:
            start(number)
            return
        # Less than an hour in all: longer ones end every step of a job by its time limit.
        world.clock.advance_ms(3 * GRACE_MS // 2)
        write(world)
        start(number)
        # The first round supersedes, and the next ones delete. Each state between them can be what the sleeper finds.
        for _ in range((3, 1, 3, 2)[(ats[0] + list(JOBS).index(chain[1])) % 4]):
            maintain(world.open())
            world.clock.advance_ms(3 * GRACE_MS // 2)

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
            lost = {each for turn in range(3) for each in range(turn * 20 + 10, turn * 20 + 15)} - ids
            if lost:
                wrong.append(f"facts: {lost} are lost")
        others = sum(len(second.read(topic.name, number, "read_committed")) for number in range(topic.partitions))
        if others != len(rows):
            wrong.append(f"{topic.name}: the client reads {len(rows)} rows, the second reader {others}")
    return wrong


PAIRS = [(first, second) for first in JOBS for second in JOBS]
SAMPLE = 24


def requests_of(first: str, tmp_path: Path, *, sleeps: bool) -> int:
    """Return how many requests a job makes alone."""
    wrong, requests = run((first,), (0,), tmp_path / f"alone-{sleeps}", sleeps=sleeps)
    assert not wrong, wrong
    return requests


@pytest.mark.parametrize("number", cases(range(SAMPLE)))
def test_some_pairs_at_one_request(number: int, tmp_path: Path) -> None:
    dice = random.Random(number)
    first, second = dice.choice(PAIRS)
    sleeps = number % 2 == 1
    at = dice.randint(1, requests_of(first, tmp_path, sleeps=sleeps))
    wrong, _ = run((first, second), (at,), tmp_path / "pair", sleeps=sleeps)
    assert not wrong, (first, second, at, sleeps, wrong)


@pytest.mark.parametrize("job", ["measure", "repair"])
def test_a_look_at_each_partition_beside_maintenance_that_deletes(job: str, tmp_path: Path) -> None:
    requests = requests_of(job, tmp_path, sleeps=True)
    for at in range(requests // 2, requests, 7):
        wrong, _ = run((job, "create"), (at,), tmp_path / str(at), sleeps=True)
        assert not wrong, (at, wrong)


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
    """Also asleep, and with a third and a fourth job within the second one, at drawn requests."""
    dice = random.Random(zlib.crc32(f"{first} {second}".encode()))
    found: list[Any] = []
    total = 0
    for sleeps in (False, True):
        requests = requests_of(first, tmp_path, sleeps=sleeps)
        total += requests
        for at in range(1, requests + 1):
            chain: tuple[str, ...] = (first, second)
            ats: tuple[int, ...] = (at,)
            if not at % 4:
                chain = (*chain, dice.choice(list(JOBS)), dice.choice(list(JOBS)))
                ats = (at, dice.randint(1, 60), dice.randint(1, 60))
            for some in {chain[:2], chain}:
                wrong, _ = run(some, ats, tmp_path / f"{at}-{sleeps}-{len(some)}", sleeps=sleeps)
                found += [(some, ats, sleeps, each) for each in wrong]
    print(f"{first} {second}: {total} requests, {len(found)} findings")
    assert not found, found[:5]
