"""How does txlog take part? Stores that count their requests, and calls on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from benchmarks import inputs
from benchmarks.harness import Contestant, Place, Samples
from benchmarks.timing import Call, Prepare, crew, timed
from lab.testing.latency_store import LatencyStore
from txlog.client.store import Store
from txlog.clock import SystemClock
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore

TOPIC = "rows"
PACES = ((0.5, 10), (2.0, 5))
"""Seconds before each commit, and the commits of a turn: the producer is idle before each of them."""


@contextmanager
def opened(folder: Path | str, *, fsync: bool = False, latency_ms: int = 0) -> Iterator[tuple[Store, CountingStore]]:
    """Yield the store in that folder, and the counter of its requests."""
    inner: Any = open_object_store(str(folder), {"fsync": fsync})
    if latency_ms:
        inner = LatencyStore(inner, latency_ms, SystemClock())
    counting = CountingStore(inner)
    with txlog.open(str(folder), object_store=counting) as store:
        yield store, counting


def create(folder: Path, schema: pa.Schema, partitions: int = 1) -> None:
    """Make the store with its topic."""
    with opened(folder) as (store, _):
        store.create_topic(TOPIC, schema, partitions)


def transaction(producer: Any, rows: pa.Table, partitions: range) -> Callable[[], None]:
    """Return a call that commits one transaction with the rows spread evenly over the partitions."""
    each = rows.num_rows // len(partitions)
    parts = [(number, rows.slice(place * each, each)) for place, number in enumerate(partitions)]

    def call() -> None:
        with producer.transaction():
            for partition, table in parts:
                producer.send(TOPIC, table, partition=partition)

    return call


@contextmanager
def transactions(
    place: Place,
    *,
    rows: int,
    partitions: int,
    times: int,
    fsync: bool = False,
    latency_ms: int = 0,
    pause_s: float = 0,
    **settings: Any,
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of transactions in this process."""
    create(place.folder, inputs.RECORDS, partitions)
    with opened(place.folder, fsync=fsync, latency_ms=latency_ms) as (store, counting):  # noqa: SIM117  three lines read better
        with store.producer("bench", **settings) as producer:
            call = transaction(producer, inputs.records(rows, place.seed), range(partitions))
            yield partial(
                timed,
                call,
                place.sized(times, least=3),
                lambda: counting.requests().total,
                pause_s=place.paused(pause_s),
            )


@contextmanager
def crew_of_transactions(
    place: Place,
    *,
    processes: int,
    rows: int,
    partitions: int,
    seconds: float,
    fsync: bool = False,
    latency_ms: int = 0,
    **settings: Any,
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes. Process i writes to partition i modulo `partitions`."""
    create(place.folder, inputs.RECORDS, partitions)
    open_store = partial(opened, place.folder, fsync=fsync, latency_ms=latency_ms)
    prepare: Prepare = partial(
        _member, open_store, rows=rows, partitions=partitions, seed=place.seed, settings=settings
    )
    with crew(prepare, processes, max(seconds * place.scale, 0.5)) as turn:
        yield turn


@contextmanager
def _member(
    open_store: Callable[[], AbstractContextManager[tuple[Store, CountingStore]]],
    number: int,
    *,
    rows: int,
    partitions: int,
    seed: int,
    settings: dict[str, Any],
) -> Iterator[tuple[Call, Callable[[], int]]]:
    with open_store() as (store, counting):
        table = inputs.records(rows, seed + number)
        mine = range(number % partitions, number % partitions + 1)
        if settings.pop("plain", False):
            with store.producer(linger_ms=0) as plain:
                yield lambda: plain.send(TOPIC, table, partition=mine[0]).result(), lambda: counting.requests().total
        else:
            with store.producer(f"bench-{number}", **settings) as producer:
                yield transaction(producer, table, mine), lambda: counting.requests().total


def contestants(start: Callable[..., Any], **settings: Any) -> tuple[Contestant, ...]:
    """Return txlog with its defaults but without fsync as the rivals, eager, and with fsync."""
    return (
        Contestant(name="txlog", start=partial(start, **settings)),
        Contestant(name="txlog, eager", start=partial(start, staged=False, **settings)),
        Contestant(name="txlog, fsync", start=partial(start, fsync=True, **settings)),
    )
