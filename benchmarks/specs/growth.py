"""Row growth: does anything cost more per commit because a store has many groups, ids, segments or partitions?

A store with n of each kind of thing runs beside a store that has 4 n. Both are in memory, with the benchmark's own
clock and without threads.

A figure *per commit* must not grow: it allows the same requests, and less than `PER_COMMIT` times the time. A figure
over all things may grow in step with their number, so by less than `LINEAR` times. After 4 n transactions a process
must hold as much as after n, while maintenance keeps the log short.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.worlds import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock
from txlog.testing.counting_store import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
ROWS = pa.table({"id": [1]}, SCHEMA)
TOPIC = "orders"
FIRST = TopicPartition(TOPIC, 0)
HOUR_MS = 3_600_000
TIMES = 4
REPEATS = 15
"""The number of measurements of a figure per commit; the median counts."""
PER_COMMIT, LINEAR, FLAT = 2.0, 7.0, 1.25
"""The allowed factor of a figure from n to 4 n. Milliseconds depend on other work of the machine; held bytes do not."""


class Bench:
    """Collects the figures of one store."""

    def __init__(self, place: World) -> None:
        self._place = place
        self.figures: dict[str, list[float]] = {}

    def per_commit(self, what: str, call: Callable[[], object]) -> None:
        """Measure `call`, after a first call that warms it up."""
        call()
        took = []
        with self._place.counting.counting() as cost:
            for _ in range(REPEATS):
                began = time.process_time()
                call()
                took.append(time.process_time() - began)
        # Below half a millisecond, caches and the garbage collector decide.
        self._add(what, max(statistics.median(took) * 1000, 0.5), cost.total // REPEATS)

    def linear(self, what: str, call: Callable[[], object]) -> None:
        """Measure `call`, made once."""
        with self._place.counting.counting() as cost:
            began = time.process_time()
            call()
            took = time.process_time() - began
        self._add(what, max(took * 1000, 10), max(cost.total, 1))

    def held(self, what: str, sampled: list[int]) -> None:
        """Take the most bytes of the later half: the held bytes fall each time a segment is sealed."""
        self.figures[f"{what}, bytes"] = [max(sampled[len(sampled) // 2 :])]

    def _add(self, what: str, ms: float, requests: int) -> None:
        self.figures[f"{what}, ms"] = [ms]
        self.figures[f"{what}, requests"] = [requests]


def groups(size: int) -> Bench:
    """Consumer groups, all in one partition of `__consumer_offsets`."""
    place = World({"offsets.topic.num.partitions": 1})
    bench = Bench(place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA)
        admin = store.admin()
        for number in range(size):
            admin.reset_offsets(f"group-{number}", {FIRST: 0})
        bench.per_commit("commit an offset", lambda: admin.reset_offsets("group-0", {FIRST: 0}))
        bench.linear("list them", admin.list_groups)
        bench.linear("describe one, cold", lambda: _once(place, lambda each: each.admin().describe_group("group-1")))
        place.clock.advance_ms(24 * HOUR_MS)
        policy = MaintainPolicy(offsets_retention_ms=HOUR_MS)
        bench.linear("remove them", lambda: _once(place, lambda each: Maintainer(each.runtime, policy).run()))
    return bench


def ids(size: int) -> Bench:
    """Transactional ids, all in one partition of `__transaction_state`; each commits once to one partition."""
    place = World({"transaction.state.log.num.partitions": 1})
    bench = Bench(place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA)
        for number in range(size):
            with store.producer(f"id-{number}") as producer, producer.transaction():
                producer.send(TOPIC, ROWS, partition=0)
        with store.producer("mine") as producer:
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.producer() as plain:
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        bench.linear("list them", lambda: store.admin().list_transactions())
        bench.linear("begin a new one, cold", lambda: _once(place, _first_commit))
        bench.linear("take a snapshot, cold", lambda: _once(place, _cut))
        place.clock.advance_ms(30 * 24 * HOUR_MS)
        bench.linear("remove them", lambda: _once(place, lambda each: each.admin().expire()))
    return bench


def segments(size: int) -> Bench:
    """Sealed segments of one partition."""
    place = World()
    bench = Bench(place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA, config={"segment.batches": 2})
        with store.producer() as plain:
            for _ in range(2 * size + 1):
                plain.send(TOPIC, ROWS, partition=0).result()
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        with store.producer("mine") as producer:
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=1) as consumer:
            bench.per_commit("poll one row", lambda: consumer.poll(0))
        bench.linear("read one row, cold", lambda: _once(place, _first_row))
        bench.linear("read all, cold", lambda: _once(place, _all_rows))
        place.clock.advance_ms(25 * HOUR_MS)
        bench.linear("maintain, merging all", lambda: _once(place, lambda each: Maintainer(each.runtime).run()))
    return bench


def partitions(size: int) -> Bench:
    """Partitions of one topic, all of which the processes have used."""
    place = World()
    bench = Bench(place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA, partitions=size)
        with store.producer() as plain:
            bench.linear("append to each", lambda: [plain.send(TOPIC, ROWS, partition=n).result() for n in range(size)])
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        with store.producer("mine") as producer:
            with producer.transaction():
                for number in range(size):
                    producer.send(TOPIC, ROWS, partition=number)
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            bench.linear("read all", lambda: list(consumer.iterate()))
            bench.linear("poll", lambda: consumer.poll(0))
        bench.linear("take a snapshot, cold", lambda: _once(place, _cut))
        bench.linear("maintain", lambda: _once(place, lambda each: Maintainer(each.runtime).run()))
    return bench


def running(size: int) -> Bench:
    """Processes that run over many transactions of one id and as many drawn ids, with maintenance and retention."""
    place = World(
        dict.fromkeys(("delete.grace.ms", "producer.id.expiration.ms", "transactional.id.expiration.ms"), HOUR_MS)
    )
    bench = Bench(place)
    with closing(place.open()) as store, closing(place.open()) as reads, closing(place.open()) as keeps:
        store.create_topic(
            TOPIC,
            SCHEMA,
            partitions=2,
            config={"segment.batches": 10, "retention.ms": HOUR_MS, "cleanup.policy": "delete"},
        )
        maintainer = Maintainer(keeps.runtime)
        with store.producer("mine") as producer, reads.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            roots = {"producer": producer, "consumer": consumer, "maintainer": maintainer}
            sampled: dict[str, list[int]] = {name: [] for name in roots}
            for number in range(size):
                _transaction(producer, number % 2)
                with store.producer() as other:
                    other.send(TOPIC, ROWS, partition=number % 2).result()
                place.clock.advance_ms(60_000)
                if number % 15 == 14:
                    for _ in consumer.iterate():
                        pass
                    if maintainer.run().failures:
                        raise RuntimeError("maintenance failed")
                    for name, root in roots.items():
                        sampled[name].append(deep_bytes(root))
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
            for name, sizes in sampled.items():
                bench.held(f"held by a {name}", sizes)
    return bench


def deep_bytes(root: object) -> int:
    """Return the bytes of all objects that are reachable from `root`, without code, stores and clocks."""
    skipped = (
        type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType,
        CountingStore, MemoryObjectStore, ManualClock,
    )  # fmt: skip
    seen: set[int] = set()
    left, total = [root], 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, skipped):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        left += gc.get_referents(each.__self__ if isinstance(each, types.MethodType) else each)
    return total


def _transaction(producer: Any, partition: int) -> None:
    with producer.transaction():
        producer.send(TOPIC, ROWS, partition=partition)


def _once(place: World, call: Callable[[Store], object]) -> None:
    with closing(place.open()) as store:
        call(store)


def _first_commit(store: Store) -> None:
    with store.producer("another") as producer:
        _transaction(producer, 0)


def _cut(store: Store) -> None:
    reading.take_cut(reading.read_session(store.runtime), [TOPIC])


def _first_row(store: Store) -> None:
    with store.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=1) as consumer:
        assert consumer.poll(0) is not None


def _all_rows(store: Store) -> None:
    with store.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        for _ in consumer.iterate():
            pass


@contextmanager
def at_size(place: Place, *, build: Callable[[int], Bench], size: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that makes a store of that size and measures it."""
    yield lambda: build(max(place.sized(size), 30 * size // SIZES[build.__name__])).figures


SIZES = {"groups": 500, "ids": 500, "segments": 500, "partitions": 50, "running": 240}
"""The smaller size of each. An internal topic has one partition here and 50 by default: 2,000 ids stand for 100,000."""
PER_COMMIT_FIGURES = {
    "groups": ("commit an offset",),
    "ids": ("commit a transaction", "append a batch"),
    "segments": ("append a batch", "commit a transaction", "poll one row"),
    "partitions": ("append a batch", "commit a transaction"),
    "running": ("commit a transaction",),
}
LINEAR_FIGURES = {
    "groups": ("list them", "describe one, cold", "remove them"),
    "ids": ("list them", "begin a new one, cold", "take a snapshot, cold", "remove them"),
    "segments": ("read one row, cold", "read all, cold", "maintain, merging all"),
    "partitions": ("append to each", "read all", "poll", "take a snapshot, cold", "maintain"),
    "running": (),
}
HELD_BY = ("producer", "consumer", "maintainer")
FLOOR = {
    "partitions": "one turn at each size, so one slow moment decides. Another run of `maintain` took 24 and 91 ms. Its "
    "requests are 3.2 times as many for four times the partitions."
}


def _spec(build: Callable[[int], Bench]) -> Spec:
    name = build.__name__
    size = SIZES[name]
    small, large = f"{size:,}", f"{TIMES * size:,}"
    bounds = {f"{what}, ms": PER_COMMIT for what in PER_COMMIT_FIGURES[name]}
    bounds |= {f"{what}, requests": 1 for what in PER_COMMIT_FIGURES[name]}
    bounds |= {f"{what}, {unit}": LINEAR for what in LINEAR_FIGURES[name] for unit in ("ms", "requests")}
    bounds |= {f"held by a {what}, bytes": FLAT for what in HELD_BY if name == "running"}
    return Spec(
        row="growth",
        title=f"{(build.__doc__ or '').partition(',')[0].partition('.')[0].lower()}: {small} and {large}",
        contestants=(
            Contestant(name=small, start=partial(at_size, build=build, size=size)),
            Contestant(name=large, start=partial(at_size, build=build, size=TIMES * size)),
        ),
        goals=tuple(Goal(of=large, figure=figure, versus=small, at_most=most) for figure, most in bounds.items()),
        floor=FLOOR.get(name, ""),
        once=True,
    )


SPECS = tuple(_spec(build) for build in (groups, ids, segments, partitions, running))
