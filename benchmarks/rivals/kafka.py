"""A real Kafka: one KRaft node on loopback from Kafka's own JARs, and its Python client `confluent-kafka`."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import inputs
from benchmarks.harness import NotAvailable, Place, Samples
from benchmarks.timing import Call, crew, no_requests, timed

TOPIC = "rows"
WARM_UP, WARM_UP_S = "warm-up", 5
TIMEOUT_S = 60
JAVA = (
    "-Xms1G", "-Xmx1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
)  # fmt: skip
"""What Kafka's own start script gives to Java."""
QUIET = {"log_level": 2}
"""The client logs each connection that ends with the broker."""


def package() -> Any:
    """Return the package `confluent_kafka`; raise NotAvailable if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise NotAvailable("needs the package confluent-kafka") from error
    return confluent_kafka


@contextmanager
def broker(place: Place, partitions: int) -> Iterator[str]:
    """Run a broker that has the topic, and yield its address."""
    client = package()
    from tests.kafka.broker import running_broker

    with running_broker(place.folder, JAVA) as address:
        topics = [client.admin.NewTopic(TOPIC, partitions, 1), client.admin.NewTopic(WARM_UP, 1, 1)]
        admin = client.admin.AdminClient({"bootstrap.servers": address, **QUIET})
        for future in admin.create_topics(topics, operation_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
        _warm_up(address)
        yield address


def _warm_up(address: str) -> None:
    """Let Java compile what transactions need."""
    with producer(address, WARM_UP) as opened:
        call = transaction(opened, [b"x" * inputs.RECORD_BYTES] * 100, range(1), WARM_UP)
        began = time.perf_counter()
        while time.perf_counter() - began < WARM_UP_S:
            call()


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


def transaction(producer: Any, values: list[bytes], partitions: range, topic: str = TOPIC) -> Callable[[], None]:
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
def transactions(place: Place, *, rows: int, partitions: int, times: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of transactions in this process."""
    values: list[Any] = inputs.records(rows, place.seed)["value"].to_pylist()
    with broker(place, partitions) as address, producer(address, "bench") as opened:
        yield partial(timed, transaction(opened, values, range(partitions)), place.sized(times, least=3))


@contextmanager
def crew_of_transactions(
    place: Place, *, processes: int, rows: int, partitions: int, seconds: float
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes. Process i writes to partition i modulo `partitions`."""
    with broker(place, partitions) as address:
        prepare = partial(_member, address, rows=rows, partitions=partitions, seed=place.seed)
        with crew(prepare, processes, max(seconds * place.scale, 0.5)) as turn:
            yield turn


@contextmanager
def _member(
    address: str, number: int, *, rows: int, partitions: int, seed: int
) -> Iterator[tuple[Call, Callable[[], int]]]:
    values: list[Any] = inputs.records(rows, seed + number)["value"].to_pylist()
    mine = range(number % partitions, number % partitions + 1)
    with producer(address, f"bench-{number}") as opened:
        yield transaction(opened, values, mine), no_requests


def producer_performance(address: str, rows: int, row_bytes: int) -> float:
    """Return the rows per second that Kafka's own tool reports, in transactions of a tenth of a second."""
    from tests import jars
    from tests.kafka.broker import class_path

    classes = os.pathsep.join((class_path(), *map(str, jars.fetch(jars.TOOLS))))
    command = ["java", "-cp", classes, "org.apache.kafka.tools.ProducerPerformance", "--topic", TOPIC]
    command += ["--num-records", str(rows), "--record-size", str(row_bytes), "--throughput", "-1"]
    command += ["--transaction-duration-ms", "100", "--producer-props", f"bootstrap.servers={address}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rates = re.findall(r"([\d.]+) records/sec", done.stdout)
    if not rates:
        raise RuntimeError(f"ProducerPerformance reported no rate: {done.stdout[-500:]} {done.stderr[-500:]}")
    return float(rates[-1])
