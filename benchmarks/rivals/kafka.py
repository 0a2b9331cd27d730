"""A real Kafka: one KRaft node on loopback from Kafka's own JARs, and its Python client `confluent-kafka`."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs
from benchmarks.harness import NotAvailable, Place, Samples
from benchmarks.timing import Call, crew, no_requests, timed

TIMEOUT_S = 60
WARM_UP: dict[str, Any] = {"processes": 8, "rows": 100, "partitions": 8, "seconds": 10.0}
FEWEST_TURNS, LONGEST_WARM_UP_S = 6, 480
SAME = 0.1
"""A broker is warm if the rates of two turns in a row differ by less. Two of the first turns may do so by chance."""
JAVA = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip
"""What Kafka's own start script gives to Java."""
SETTINGS = {"transaction.state.log.num.partitions": "50", "offsets.topic.num.partitions": "50"}
"""Kafka's defaults, where the broker of the tests is smaller."""
QUIET = {"log_level": 2}
"""The client logs each connection that ends with the broker."""
_numbers = itertools.count()


def package() -> Any:
    """Return the package `confluent_kafka`; raise NotAvailable if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise NotAvailable("needs the package confluent-kafka") from error
    return confluent_kafka


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the broker."""

    address: str
    name: str


@dataclass(frozen=True, slots=True)
class Broker:
    """A warm broker."""

    address: str
    per_s: list[float]
    """Transactions a second of each turn of the warm-up."""
    warm_up_s: float

    def about(self) -> dict[str, Any]:
        """Return how it was warmed, as JSON's types: results keep it."""
        return {"warm-up s": round(self.warm_up_s, 1), "per s": [round(rate, 1) for rate in self.per_s]}


@contextmanager
def running(folder: Path, scale: float) -> Iterator[Broker]:
    """Run a broker, and yield it when it is warm.

    Java compiles what a broker does often, and a broker that has just started does a third of its later transactions
    a second. So eight processes commit transactions until two turns in a row have nearly the same rate.
    """
    package()
    from tests.kafka.broker import running_broker

    with running_broker(folder, JAVA, SETTINGS) as address:
        began = time.monotonic()
        per_s: list[float] = []
        with _topic(address, WARM_UP["partitions"]) as warm_up, _crew(warm_up, scale=scale, seed=0, **WARM_UP) as turn:
            while not _is_warm(per_s) and time.monotonic() - began < LONGEST_WARM_UP_S:
                per_s += turn()["per s"]
        yield Broker(address, per_s, time.monotonic() - began)


def _is_warm(per_s: list[float]) -> bool:
    if len(per_s) < FEWEST_TURNS:
        return False
    before, last = per_s[-2:]
    return abs(last - before) < SAME * max(last, before)


@contextmanager
def topic(place: Place, partitions: int) -> Iterator[Topic]:
    """Yield a new topic of the broker that all contestants share, and delete it at the end."""
    package()
    with _topic(place.resources.kafka(place.scale).address, partitions) as made:
        yield made


@contextmanager
def _topic(address: str, partitions: int) -> Iterator[Topic]:
    client = package()
    made = Topic(address, f"rows-{next(_numbers)}")
    admin = client.admin.AdminClient({"bootstrap.servers": address, **QUIET})
    new = [client.admin.NewTopic(made.name, partitions, 1)]
    for future in admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
        future.result(TIMEOUT_S)
    try:
        yield made
    finally:
        # The broker may have died. The row then fails with its own error.
        with suppress(client.KafkaException):
            for future in admin.delete_topics([made.name], operation_timeout=TIMEOUT_S).values():
                future.result(TIMEOUT_S)


@contextmanager
def producer(address: str, transactional_id: str) -> Iterator[Any]:
    """Yield a producer of that id, which has fenced the one before."""
    made = package().Producer({"bootstrap.servers": address, "transactional.id": transactional_id, **QUIET})
    made.init_transactions(TIMEOUT_S)
    yield made
    made.flush(TIMEOUT_S)


def idempotent_producer(address: str) -> Any:
    """Return a producer without transactions, whose retries double no row."""
    return package().Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUIET})


def transaction(producer: Any, values: list[bytes], partitions: range, topic: str) -> Callable[[], None]:
    """Return a call that commits one transaction with the values spread evenly over the partitions."""
    each = len(values) // len(partitions)
    parts = [(number, values[place * each : (place + 1) * each]) for place, number in enumerate(partitions)]

    def call() -> None:
        producer.begin_transaction()
        for partition, mine in parts:
            for value in mine:
                producer.produce(topic, value, partition=partition)
        producer.commit_transaction(TIMEOUT_S)

    return call


@contextmanager
def transactions(
    place: Place, *, rows: int, partitions: int, times: int, pause_s: float = 0
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of transactions in this process."""
    values: list[Any] = inputs.records(rows, place.seed)["value"].to_pylist()
    with topic(place, partitions) as made, producer(made.address, made.name) as opened:
        call = transaction(opened, values, range(partitions), made.name)
        yield partial(timed, call, place.sized(times, least=3), pause_s=place.paused(pause_s))


@contextmanager
def crew_of_transactions(
    place: Place, *, processes: int, rows: int, partitions: int, seconds: float
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes. Process i writes to partition i modulo `partitions`."""
    with topic(place, partitions) as made:
        shape: dict[str, Any] = {"processes": processes, "rows": rows, "partitions": partitions, "seconds": seconds}
        with _crew(made, scale=place.scale, seed=place.seed, **shape) as turn:
            yield turn


@contextmanager
def _crew(
    topic: Topic, *, processes: int, rows: int, partitions: int, seconds: float, scale: float, seed: int
) -> Iterator[Callable[[], Samples]]:
    prepare = partial(_member, topic, rows=rows, partitions=partitions, seed=seed)
    with crew(prepare, processes, max(seconds * scale, 0.5)) as turn:
        yield turn


@contextmanager
def _member(
    topic: Topic, number: int, *, rows: int, partitions: int, seed: int
) -> Iterator[tuple[Call, Callable[[], int]]]:
    values: list[Any] = inputs.records(rows, seed + number)["value"].to_pylist()
    mine = range(number % partitions, number % partitions + 1)
    with producer(topic.address, f"{topic.name}-{number}") as opened:
        yield transaction(opened, values, mine, topic.name), no_requests


def producer_performance(topic: Topic, rows: int, row_bytes: int) -> float:
    """Return the rows per second that Kafka's own tool reports, in transactions of a tenth of a second."""
    from tests import jars
    from tests.kafka.broker import class_path

    classes = os.pathsep.join((class_path(), *map(str, jars.fetch(jars.TOOLS))))
    command = ["java", "-cp", classes, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic.name]
    command += ["--num-records", str(rows), "--record-size", str(row_bytes), "--throughput", "-1"]
    command += ["--transaction-duration-ms", "100", "--producer-props", f"bootstrap.servers={topic.address}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rates = re.findall(r"([\d.]+) records/sec", done.stdout)
    if not rates:
        raise RuntimeError(f"ProducerPerformance reported no rate: {done.stdout[-500:]} {done.stderr[-500:]}")
    return float(rates[-1])
