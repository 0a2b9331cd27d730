"""How much does a store cost on S3? Requests counted by `txlog.testing`, times stated prices.

The requests are those of the shipped client on a store in memory, with a clock that only the program moves. So the
figures do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import txlog
from txlog.client.consumer import Consumer
from txlog.client.groups.members import LOOK_MS, SharedMembership
from txlog.client.producer import Producer
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.exporter.exporter import Exporter
from txlog.maintenance.maintain import Maintainer
from txlog.metrics import Registry
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore, Requests

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("order_id", pa.int64()),
    pa.field("country", pa.string()),
    pa.field("amount", pa.float64()),
]
SCHEMA = pa.schema(_COLUMNS)
TOPIC, GROUP = "orders", "report"
HOUR_MS, MONTH_S = 3_600_000, 30 * 86_400
READ_COMMITS = 2050
"""Transactions before the reads: enough for maintenance to merge."""
WARM = 3
"""Commits before those that are counted. They open what later ones have open."""
COMMITS = 160
"""Commits that are counted: enough for segments of the table of transactions and of the topic to be sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars. DELETE is free. A program in the same region pays no transfer."""

    region: str = "us-east-1"
    asked: str = "November 2026"
    put_1000: float = 0.005
    """1,000 requests of PUT, COPY, POST or LIST."""
    get_1000: float = 0.0004
    """1,000 requests of GET or HEAD."""
    gb_month: float = 0.023

    def of(self, puts: float, gets: float) -> float:
        """Return the dollars for that many requests."""
        return (puts * self.put_1000 + gets * self.get_1000) / 1000


@dataclass(frozen=True, slots=True)
class Bill:
    """Requests by their price: PUT and LIST, GET and HEAD."""

    puts: float
    gets: float

    @staticmethod
    def of(made: Requests) -> Bill:
        return Bill(
            made.put_if_absent + made.write_file + made.list, made.get + made.get_range + made.size + made.modified_ms
        )

    def __add__(self, other: Bill) -> Bill:
        return Bill(self.puts + other.puts, self.gets + other.gets)

    def __truediv__(self, times: float) -> Bill:
        return Bill(self.puts / times, self.gets / times)

    def __mul__(self, times: float) -> Bill:
        return Bill(self.puts * times, self.gets * times)

    def usd(self, prices: Prices) -> float:
        """Return the price."""
        return prices.of(self.puts, self.gets)


class World:
    """A store, and processes that open it."""

    def __init__(self, partitions: int = 1, topics: Sequence[str] = (TOPIC,)) -> None:
        self.clock = ManualClock(oversleeps_ms=3)
        self.counting = CountingStore(MemoryObjectStore(clock=self.clock))
        self.partitions = partitions
        self._opened = 0
        with self.open() as store:
            for topic in topics:
                store.create_topic(topic, SCHEMA, partitions=partitions)

    @contextmanager
    def open(self) -> Iterator[Store]:
        """Open the store in another process."""
        self._opened += 1
        opened = txlog.open("memory://", clock=self.clock, ids=SeededIds(self._opened), object_store=self.counting)
        with opened as store:
            yield store

    def cost(self, work: Callable[[], object]) -> Bill:
        """Return the requests of some work."""
        with self.counting.counting() as cost:
            work()
        return Bill.of(cost.requests())

    def write(
        self,
        commits: int,
        rows: int = 100,
        *,
        wait_ms: int = 0,
        transactional: bool = True,
        staged: bool | None = None,
        offsets: bool = False,
    ) -> Bill:
        """Commit that often; return the requests of one commit. See `writer`."""
        writing = writer(self, rows, transactional=transactional, staged=staged, offsets=offsets)
        with writing as commit:
            for _ in range(WARM):
                commit()

            def all_commits() -> None:
                for _ in range(commits):
                    self.clock.advance_ms(wait_ms)
                    commit()

            return self.cost(all_commits) / commits


@contextmanager
def writer(
    world: World, rows: int, *, transactional: bool, staged: bool | None, offsets: bool
) -> Iterator[Callable[[], None]]:
    """Yield a function that commits `rows` rows, spread over the partitions."""
    count = world.partitions
    shares = [_rows(rows // count + (number < rows % count)) for number in range(count)]
    done = 0
    name = "loader" if transactional else None
    with world.open() as store, store.producer(name, staged=staged, linger_ms=10**6) as producer:

        def send() -> None:
            for partition, share in enumerate(shares):
                if share.num_rows:
                    producer.send(TOPIC, share, partition=partition)

        def commit() -> None:
            nonlocal done
            if not transactional:
                send()
                producer.flush()
                return
            with producer.transaction():
                send()
                if offsets:
                    done += 1
                    producer.send_offsets_to_transaction({TopicPartition("source", 0): done}, GROUP)

        yield commit


def _rows(count: int) -> pa.Table:
    ids = pa.array(range(count), pa.int64())
    countries = pa.array([("FR", "DE", "IT", "ES")[each % 4] for each in range(count)], pa.string())
    amounts = pa.array([each * 0.25 for each in range(count)], pa.float64())
    return pa.table([ids, countries, amounts], schema=SCHEMA)


# -- the figures of the page ------------------------------------------------------------------------------------------


def writes() -> dict[str, Bill]:
    """Return the requests of one commit of 100 rows, by the way of writing."""
    return {
        "append without a transaction, 1 partition": World().write(COMMITS, transactional=False),
        "transaction, 1 partition": World().write(COMMITS),
        "transaction, 4 partitions": World(4).write(COMMITS),
        "transaction, 4 partitions and the offsets of a group": World(4).write(COMMITS, offsets=True),
        "transaction with `staged=False`, 1 partition": World().write(COMMITS, staged=False),
        "transaction with `staged=False`, 4 partitions": World(4).write(COMMITS, staged=False),
    }


def rows_a_commit() -> dict[int, Bill]:
    """Return the requests of one transaction in one partition, by its rows."""
    commits = {1: COMMITS, 100: COMMITS, 10_000: COMMITS, 100_000: 16, 1_000_000: 2}
    return {rows: World().write(count, rows) for rows, count in commits.items()}


def reads(commits: int = READ_COMMITS) -> dict[str, Bill]:
    """Return the requests of readers after that many transactions in one partition, before and after maintenance."""
    world = World()
    world.write(commits - WARM)

    def count() -> None:
        with world.open() as store:
            store.table(TOPIC).count()

    def read_all() -> None:
        with world.open() as store:
            store.table(TOPIC).to_arrow()

    def maintain() -> None:
        with world.open() as store:
            Maintainer(store.runtime).run()

    found = {"a new process counts the rows": world.cost(count), "a new process reads all rows": world.cost(read_all)}
    found["maintenance merges them"] = world.cost(maintain)
    found["then a new process counts the rows"] = world.cost(count)
    found["then a new process reads all rows"] = world.cost(read_all)
    return found


def idle_hours() -> dict[str, Bill]:
    """Return the requests of an hour in which nothing is written."""
    world = World()
    world.write(COMMITS)
    found = {}
    with world.open() as store:
        consumer = store.consumer(TOPIC)
        consumer.poll(0)
        found["a consumer of 1 partition that waits in `iterate`"] = world.cost(lambda: list(consumer.iterate(HOUR_MS)))

        def polls() -> None:
            for _ in range(HOUR_MS // 10_000):
                world.clock.advance_ms(10_000)
                consumer.poll(0)

        found["a consumer of 1 partition that polls every 10 s"] = world.cost(polls)
    for count in (1, 4):
        found[f"a member of a group of {count}, without its polls"] = _member(count)
    with world.open() as store:
        maintainer = Maintainer(store.runtime)
        maintainer.run()

        def rounds() -> None:
            for _ in range(HOUR_MS // 60_000):
                world.clock.advance_ms(60_000)
                maintainer.run()

        found["`txlog maintain --daemon` over 1 topic of 1 partition"] = world.cost(rounds)
    return found


def _member(count: int) -> Bill:
    """Return what the group costs each of its members: heartbeats, and looks at the group."""
    world = World(count)
    with ExitStack() as processes:
        members = [
            processes.enter_context(world.open()).consumer(TOPIC, group_id=GROUP, enable_auto_commit=False)
            for _ in range(count)
        ]

        def look() -> None:
            world.clock.advance_ms(LOOK_MS)
            for member in members:
                member.poll(0)
                _membership(member).tick()

        for _ in range(4):
            look()
        for member in members:
            _membership(member)._stop.set()  # its thread goes by real time
            member.pause(*member.assignment())

        def hour() -> None:
            for _ in range(HOUR_MS // LOOK_MS):
                look()

        return world.cost(hour) / count


def _membership(member: Consumer) -> SharedMembership:
    assert isinstance(member._membership, SharedMembership)
    return member._membership


# -- the worked example -----------------------------------------------------------------------------------------------

EXAMPLE_TOPICS, EXAMPLE_PARTITIONS, EXAMPLE_WRITERS, EXAMPLE_READERS = 10, 4, 5, 3
LOOK_EVERY_MS, SCRAPE_EVERY_MS, ROUND_EVERY_MS = 10_000, 30_000, 60_000
EXAMPLE_BEFORE = 480
"""Commits before the hour: 48 in each partition, and `segment.batches` is 100."""


def example_hour() -> dict[str, Bill]:
    """Return the requests of an hour of a small store, by what makes them.

    Each minute one of the writers, a job that a scheduler starts, commits 100 rows to all partitions of one topic. They
    have done so for hours, so that the partitions have half of the records that a new process reads one by one.
    """
    topics = [f"topic-{number}" for number in range(EXAMPLE_TOPICS)]
    world = World(EXAMPLE_PARTITIONS, topics)
    nothing = Bill(0, 0)
    jobs = looks = rounds = scrapes = nothing
    share = _rows(100 // EXAMPLE_PARTITIONS)

    def send(producer: Producer, turn: int) -> None:
        with producer.transaction():
            for partition in range(EXAMPLE_PARTITIONS):
                producer.send(topics[turn % EXAMPLE_TOPICS], share, partition=partition)

    def job(turn: int) -> None:
        with world.open() as store, store.producer(f"job-{turn % EXAMPLE_WRITERS}") as producer:
            send(producer, turn)

    def open_store() -> Runtime:
        return Runtime.open("memory://", clock=world.clock, ids=SeededIds(10**6), object_store=world.counting)

    with world.open() as store, store.producer("job-0") as producer:
        for turn in range(EXAMPLE_BEFORE):
            send(producer, turn)
    with world.open() as reading, world.open() as maintaining, ExitStack() as stack:
        consumer = stack.enter_context(reading.consumer(*topics))
        maintainer = Maintainer(maintaining.runtime)
        exporter = Exporter(open_store, Registry(), clock=world.clock)
        stack.callback(exporter.close)
        for at_ms in range(-ROUND_EVERY_MS, HOUR_MS, LOOK_EVERY_MS):
            if at_ms == 0:  # all have opened the store
                jobs = looks = rounds = scrapes = nothing
            world.clock.advance_ms(LOOK_EVERY_MS)
            if at_ms % ROUND_EVERY_MS == 0:
                turn = EXAMPLE_BEFORE + at_ms // ROUND_EVERY_MS
                jobs += world.cost(lambda turn=turn: job(turn))  # type: ignore[misc]
                rounds += world.cost(maintainer.run)
            if at_ms % SCRAPE_EVERY_MS == 0:
                scrapes += world.cost(exporter.refresh)
            looks += world.cost(lambda: consumer.poll(0))
    return {
        f"{EXAMPLE_WRITERS} writers: a job each minute commits to {EXAMPLE_PARTITIONS} partitions": jobs,
        f"{EXAMPLE_READERS} readers: each polls all partitions every 10 s": looks * EXAMPLE_READERS,
        "`txlog maintain --daemon`, a round each minute": rounds,
        "`txlog exporter`, a scrape each 30 s": scrapes,
    }
