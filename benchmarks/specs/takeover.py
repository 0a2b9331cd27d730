"""Row take-over: a producer was killed in a transaction over ten partitions, and a new one takes over its id.

The killed producer had sent its rows, so they block every read_committed reader. Another producer has then sent a row
to each partition. `init ms` is the time until another producer, with a new store or connection, has called
init_transactions and is closed. `seen ms` is the time until a read_committed consumer has those ten rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import kafka
from benchmarks.timing import PROCESSES

ROWS, PARTITIONS, TIMES = 100, 10, 5
ANSWER_S = 60
ID = "taken-over"


def turn(
    leave_open: Callable[[Connection], None],
    block: Callable[[], None],
    take_over: Callable[[], None],
    seen: Callable[[], int],
    times: int,
) -> Samples:
    """Kill a producer that many times, and take over from it. `seen` returns the rows of a poll."""
    init_ms, seen_ms = [], []
    for _ in range(times):
        _kill_one(leave_open)
        block()
        began = time.perf_counter()
        take_over()
        init_ms.append((time.perf_counter() - began) * 1000)
        rows = 0
        while rows < PARTITIONS:
            rows += seen()
            if time.perf_counter() - began > ANSWER_S:
                raise TimeoutError(f"a consumer had {rows} of {PARTITIONS} rows after {ANSWER_S} s")
        seen_ms.append((time.perf_counter() - began) * 1000)
    return {"init ms": init_ms, "seen ms": seen_ms}


def _kill_one(leave_open: Callable[[Connection], None]) -> None:
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=leave_open, args=(there,), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(ANSWER_S):
            raise TimeoutError(f"the producer to be killed did not open its transaction within {ANSWER_S} s")
        here.recv()
    finally:
        process.kill()
        process.join()
        here.close()


@contextmanager
def txlog_side(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog."""
    log.create(place.folder, inputs.RECORDS, PARTITIONS)
    row = inputs.records(1, place.seed)
    with (
        log.opened(place.folder) as (store, _),
        store.producer(linger_ms=0) as plain,
        store.consumer(log.TOPIC, auto_offset_reset="earliest") as consumer,
    ):

        def block() -> None:
            for partition in range(PARTITIONS):
                plain.send(log.TOPIC, row, partition=partition).result()

        def take_over() -> None:
            with log.opened(place.folder) as (new, _), new.producer(ID, staged=False):
                pass

        def seen() -> int:
            batch = consumer.poll()
            return 0 if batch is None else batch.num_rows

        leave_open = partial(_leave_txlog_open, place.folder, inputs.records(ROWS, place.seed))
        yield partial(turn, leave_open, block, take_over, seen, place.sized(TIMES, least=2))


def _leave_txlog_open(folder: Path, rows: pa.Table, pipe: Connection) -> None:
    with log.opened(folder) as (store, _), store.producer(ID, staged=False) as producer:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send(log.TOPIC, rows, partition=partition)
        producer.flush()
        _wait_for_the_end(pipe)


@contextmanager
def kafka_side(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of Kafka."""
    with kafka.topic(place, PARTITIONS) as topic:
        client = kafka.package()
        plain = kafka.idempotent_producer(topic.address)
        consumer: Any = client.Consumer(
            {"bootstrap.servers": topic.address, "group.id": topic.name, "enable.auto.commit": False, **kafka.QUIET}
        )
        consumer.assign([client.TopicPartition(topic.name, number, 0) for number in range(PARTITIONS)])

        def block() -> None:
            for partition in range(PARTITIONS):
                plain.produce(topic.name, b"x" * inputs.RECORD_BYTES, partition=partition)
            plain.flush(kafka.TIMEOUT_S)

        def take_over() -> None:
            with kafka.producer(topic.address, topic.name):
                pass

        def seen() -> int:
            message = consumer.poll(0.5)
            return 0 if message is None or message.error() else 1

        values: list[Any] = inputs.records(ROWS, place.seed)["value"].to_pylist()
        try:
            leave_open = partial(_leave_kafka_open, topic, values)
            yield partial(turn, leave_open, block, take_over, seen, place.sized(TIMES, least=2))
        finally:
            consumer.close()


def _leave_kafka_open(topic: kafka.Topic, values: list[bytes], pipe: Connection) -> None:
    with kafka.producer(topic.address, topic.name) as producer:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for value in values:
                producer.produce(topic.name, value, partition=partition)
        producer.flush(kafka.TIMEOUT_S)
        _wait_for_the_end(pipe)


def _wait_for_the_end(pipe: Connection) -> None:
    pipe.send(None)
    # The other side sends nothing. It kills this process.
    pipe.recv()


SPECS = (
    Spec(
        row="take-over",
        title="a killed producer's transaction over 10 partitions",
        contestants=(Contestant(name="txlog", start=txlog_side), Contestant(name="Kafka", start=kafka_side)),
        goals=(
            Goal(of="txlog", figure="init ms", versus="Kafka", at_most=0.05),
            Goal(of="txlog", figure="seen ms", versus="Kafka", at_most=0.05),
        ),
        floor=(
            "A broker answers CONCURRENT_TRANSACTIONS until the markers are written, and its client waits before it "
            "asks again, half a second or a whole one. txlog needs no such wait, but its clock includes a new store: "
            "the descriptor, the topic, the table of transactions, then an ABORT marker in each of ten partitions."
        ),
        rounds=3,
    ),
)
