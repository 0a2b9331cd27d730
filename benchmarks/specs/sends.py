"""Row sends: rows that are sent one by one, and rows in batches, beside Kafka's Python client. One process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import kafka

TRANSACTIONS, A_TRANSACTION, A_BATCH = 20, 5_000, 1_000


@contextmanager
def txlog_side(place: Place, *, transactional: bool = True, alone: bool = True) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog. `alone`: each send has one dictionary, else a table of 1,000 rows."""
    log.create(place.folder, inputs.RECORDS)
    table = inputs.records(A_TRANSACTION, place.seed)
    rows: list[object] = (
        list(table.to_pylist()) if alone else [table.slice(at, A_BATCH) for at in range(0, A_TRANSACTION, A_BATCH)]
    )
    with log.opened(place.folder) as (store, _), store.producer("bench" if transactional else None) as producer:

        def call() -> None:
            if transactional:
                producer.begin_transaction()
            for row in rows:
                producer.send(log.TOPIC, row, partition=0)
            if transactional:
                producer.commit_transaction()
            else:
                producer.flush()

        yield partial(_rates, call, place.sized(TRANSACTIONS, least=2))


@contextmanager
def kafka_side(place: Place, *, transactional: bool = True) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of Kafka's Python client, which has no call for several rows."""
    values: list[Any] = inputs.records(A_TRANSACTION, place.seed)["value"].to_pylist()
    times = place.sized(TRANSACTIONS, least=2)
    with kafka.topic(place, 1) as topic:
        if transactional:
            with kafka.producer(topic.address, topic.name) as opened:
                yield partial(_rates, kafka.transaction(opened, values, range(1), topic.name), times)
            return
        idempotent = kafka.idempotent_producer(topic.address)

        def call() -> None:
            for value in values:
                idempotent.produce(topic.name, value, partition=0)
            idempotent.flush(kafka.TIMEOUT_S)

        yield partial(_rates, call, times)


def _rates(call: Callable[[], None], times: int) -> Samples:
    """Return rows per second, and the microseconds of CPU time that this process takes for a row."""
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(times):
        call()
    rows = times * A_TRANSACTION
    cpu_s = time.process_time() - cpu_began
    return {"rows per s": [rows / (time.perf_counter() - began)], "µs of CPU a row": [cpu_s * 1e6 / rows]}


def _spec(title: str, *, transactional: bool) -> Spec:
    return Spec(
        row="sends",
        title=title,
        contestants=(
            Contestant(name="txlog", start=partial(txlog_side, transactional=transactional)),
            Contestant(name="txlog, batches", start=partial(txlog_side, transactional=transactional, alone=False)),
            Contestant(name="Kafka", start=partial(kafka_side, transactional=transactional)),
        ),
        goals=(
            Goal(of="txlog", figure="µs of CPU a row", at_most=100),
            Goal(of="txlog, batches", figure="rows per s", versus="Kafka", at_least=1.0),
        ),
    )


SPECS = (
    _spec("rows of 100 bytes sent one by one, in transactions of 5,000", transactional=True),
    _spec("rows of 100 bytes sent one by one, a flush after 5,000", transactional=False),
)
