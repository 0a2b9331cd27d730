"""Row P6: 2 million rows of 100 random bytes in transactions of 100,000, beside Kafka's own Java producer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import kafka

ROWS, A_TRANSACTION = 2_000_000, 100_000


@contextmanager
def txlog_side(place: Place, *, fsync: bool = False) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog, with one table for each transaction."""
    log.create(place.folder, inputs.RECORDS)
    transactions = place.sized(ROWS // A_TRANSACTION, least=2)
    rows = inputs.records(A_TRANSACTION, place.seed)
    with log.opened(place.folder, fsync=fsync) as (store, counting), store.producer("bench") as producer:
        call = log.transaction(producer, rows, range(1))

        def turn() -> Samples:
            before = counting.requests().total
            started = time.perf_counter()
            for _ in range(transactions):
                call()
            rate = transactions * A_TRANSACTION / (time.perf_counter() - started)
            return {"rows per s": [rate], "requests": [(counting.requests().total - before) / transactions]}

        yield turn


@contextmanager
def kafka_java(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of Kafka's ProducerPerformance, which reports its own rate."""
    rows = place.sized(ROWS // A_TRANSACTION, least=2) * A_TRANSACTION
    with kafka.topic(place, 1) as topic:
        yield lambda: {"rows per s": [kafka.producer_performance(topic, rows, inputs.RECORD_BYTES)]}


SPECS = (
    Spec(
        row="P6",
        title="bulk write of rows of 100 random bytes",
        contestants=(
            Contestant(name="txlog", start=txlog_side),
            Contestant(name="txlog, fsync", start=partial(txlog_side, fsync=True)),
            Contestant(name="Kafka, Java", start=kafka_java),
        ),
        goals=(Goal(of="txlog", figure="rows per s", versus="Kafka, Java", at_least=2.0),),
    ),
)
