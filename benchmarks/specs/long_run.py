"""Row long-run: does a store that gets writes for months still open as quickly as on its first day?

10,000 transactions of four producers, eager and staged, some aborted. One run has `txlog maintain` at intervals, the
other one has no maintenance. The store is in memory and the clock is the benchmark's, so that hours of
`delete.grace.ms` pass in minutes. Sealing, merging, boundaries and vacuum are the shipped ones.

A run has twenty samples of objects, bytes of metadata, and requests of a new process: until it has planned a read of
everything, and until it has committed.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.worlds import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.maintenance.maintain import Maintainer
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.counting_store import CountingStore

_FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]
SCHEMA = pa.schema(_FIELDS)
TOPIC, PARTITIONS = "orders", 2
SEGMENT_BATCHES = 100
ROWS = 10
"""Rows of a batch."""
PRODUCERS = 4
ABORTED = 0.1
GRACE_MS = 3_600_000
TRANSACTION_MS = 3_000
"""Simulated time of a transaction: 1,200 of them in a grace."""
MAINTAIN_EVERY = 200
"""Transactions between two maintenance rounds."""
TRANSACTIONS = 10_000
SAMPLES = 20
PLANS = 3
"""Cold plans that are timed at each sample; the median counts."""
FLAT = 1.5
"""The allowed growth of a maintained store from the second quarter to the last one."""
SETTINGS = {
    "delete.grace.ms": GRACE_MS,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of one run."""

    maintained: bool
    transactions: int
    objects: int
    metadata_objects: int
    """All except files of rows."""
    metadata_bytes: int
    open_requests: int
    """Requests of a new process, until it has planned a read of all committed rows."""
    commit_requests: int
    """Requests of a new process, until its first transaction is committed."""
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All samples of one run."""

    samples: tuple[Sample, ...]
    rows: int
    """Rows that read_committed returns at the end."""

    def is_flat(self, field: str) -> bool:
        """Return whether a figure has stopped growing, long after the first grace."""
        return self.growth(field) <= FLAT

    def growth(self, field: str) -> float:
        """Return the largest figure of the last quarter over the largest of the second one."""
        quarter = len(self.samples) // 4
        early = max(getattr(each, field) for each in self.samples[quarter : 2 * quarter])
        late = max(getattr(each, field) for each in self.samples[-quarter:])
        return float(late / early)


FIGURES = ("objects", "metadata_bytes", "open_requests", "commit_requests")
"""The figures that must stay flat. Milliseconds depend on other work of the machine."""


def run(transactions: int, *, maintained: bool) -> Run:
    """Write that many transactions, the same ones with and without maintenance, and take samples."""
    place = _Sampled(SETTINGS)
    samples = []
    with ExitStack() as stack:
        store = stack.enter_context(closing(place.open()))
        store.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS, config={"segment.batches": SEGMENT_BATCHES})
        maintainer = Maintainer(stack.enter_context(closing(place.open())).runtime)
        work = _transactions(stack, store)
        for done in range(1, transactions + 1):
            next(work)
            place.clock.advance_ms(TRANSACTION_MS)
            if maintained and done % MAINTAIN_EVERY == 0:
                report = maintainer.run()
                if report.failures:
                    raise RuntimeError(f"maintenance failed: {report}")
            if done % max(transactions // SAMPLES, 1) == 0:
                samples.append(place.sample(done, maintained=maintained))
        rows = place.count_rows()
    return Run(samples=tuple(samples), rows=rows)


class _Sampled(World):
    """The store of a run."""

    def sample(self, transactions: int, *, maintained: bool) -> Sample:
        objects = dict(_objects(self.memory))
        metadata = [path for path in objects if not path.endswith(".parquet")]
        took = []
        for _ in range(PLANS):
            counting = CountingStore(self.memory)
            with closing(self.open(counting)) as reader:
                began = time.perf_counter()
                _plan_all(reader)
                took.append((time.perf_counter() - began) * 1000)
                opened = counting.requests().total
        counting = CountingStore(self.memory)
        with closing(self.open(counting)) as writer, writer.producer("sample") as producer, producer.transaction():
            producer.send(TOPIC, _rows(0, "sample"), partition=0)
        return Sample(
            maintained=maintained,
            transactions=transactions,
            objects=len(objects),
            metadata_objects=len(metadata),
            metadata_bytes=sum(objects[path] for path in metadata),
            open_requests=opened,
            commit_requests=counting.requests().total,
            plan_ms=round(statistics.median(took), 2),
        )

    def count_rows(self) -> int:
        """Return how many rows read_committed returns now."""
        with closing(self.open()) as reader, reader.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            return sum(batch.num_rows for batch in consumer.iterate())


def _transactions(stack: ExitStack, store: Store) -> Iterator[None]:
    """Run one transaction after the other with producers that stay open.

    A seed decides the kind and the end of each.
    """
    dice = random.Random(20_000)
    producers = [
        stack.enter_context(store.producer(f"producer-{number}", staged=number % 2 == 1)) for number in range(PRODUCERS)
    ]
    number = 0
    while True:
        producer = dice.choice(producers)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            number += 1
            producer.send(TOPIC, _rows(number, "x" * dice.randrange(40)), partition=partition)
        producer.flush()
        if dice.random() < ABORTED:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        yield


def _plan_all(store: Store) -> None:
    session = reading.read_session(store.runtime)
    reading.plan_reads(session, {TopicPartition(TOPIC, number): (0, None) for number in range(PARTITIONS)})


def _rows(number: int, note: str) -> pa.Table:
    return pa.table({"id": range(number * ROWS, (number + 1) * ROWS), "note": [note] * ROWS}, SCHEMA)


def _objects(store: MemoryObjectStore, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of every object."""
    for name in store.list(prefix):
        if name.endswith("/"):
            yield from _objects(store, prefix + name)
        else:
            yield prefix + name, store.size(prefix + name)


@contextmanager
def one_run(place: Place, *, maintained: bool, transactions: int = TRANSACTIONS) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of a whole run: the figures at its end, and how much they grew."""

    def turn() -> Samples:
        done = run(place.sized(transactions, least=SAMPLES), maintained=maintained)
        last = done.samples[-1]
        found: dict[str, list[float]] = {"rows": [done.rows], "ms until planned": [last.plan_ms]}
        for name in FIGURES:
            found[name.replace("_", " ")] = [getattr(last, name)]
            found[f"{name.replace('_', ' ')}, growth"] = [done.growth(name)]
        return found

    yield turn


GOALS = tuple(Goal(of="maintained", figure=f"{name.replace('_', ' ')}, growth", at_most=FLAT) for name in FIGURES)
SPECS = (
    Spec(
        row="long-run",
        title="10,000 transactions, 1,200 of them in a grace",
        contestants=(
            Contestant(name="maintained", start=partial(one_run, maintained=True)),
            Contestant(name="not maintained", start=partial(one_run, maintained=False)),
        ),
        goals=(
            *GOALS,
            Goal(of="maintained", figure="rows", versus="not maintained", at_most=1, at_least=1),
        ),
        once=True,
    ),
    Spec(
        row="longest-run",
        title="100,000 transactions, 1,200 of them in a grace",
        contestants=(
            Contestant(name="maintained", start=partial(one_run, maintained=True, transactions=10 * TRANSACTIONS)),
        ),
        goals=GOALS,
        once=True,
        apart=True,
    ),
)
