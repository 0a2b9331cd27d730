"""Row P5: from the call of commit until a read_committed consumer of another process has the rows, by default."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import kafka
from benchmarks.timing import PROCESSES

ROWS, TIMES = 100, 40
ANSWER_S = 60
Follow = Callable[[], Iterator[int]]
"""In the other process: yields the number of rows of each poll, also 0."""


@contextmanager
def follower(follow: Follow) -> Iterator[Connection]:
    """Start the process that follows, and yield its pipe: it sends the time of each `ROWS` rows that it has."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_follow, args=(follow, there), daemon=True)
    process.start()
    there.close()
    try:
        _receive(here)
        yield here
    finally:
        here.close()
        process.kill()
        process.join()


def turn(pipe: Connection, write: Callable[[], None], commit: Callable[[], object], times: int, seed: int) -> Samples:
    """Commit with random pauses, which are long enough for a follower to become idle."""
    dice = random.Random(seed)
    taken_ms = []
    for _ in range(times):
        write()
        time.sleep(dice.uniform(0.02, 0.12))
        called = time.perf_counter()
        commit()
        # Linux has one monotonic clock for all processes.
        taken_ms.append((_receive(pipe) - called) * 1000)
    return {"ms": taken_ms}


@contextmanager
def txlog_side(
    place: Place, *, fsync: bool = False, staged: bool | None = None, is_woken: bool = True
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog. `is_woken`: the follower has the extra `inotify`, so the kernel ends its pauses."""
    log.create(place.folder, inputs.RECORDS)
    rows = inputs.records(ROWS, place.seed)
    with (
        follower(partial(_follow_txlog, place.folder, fsync, is_woken)) as pipe,
        log.opened(place.folder, fsync=fsync) as (store, _),
        store.producer("bench", staged=staged) as producer,
    ):

        def write() -> None:
            producer.begin_transaction()
            producer.send(log.TOPIC, rows, partition=0)

        yield partial(turn, pipe, write, producer.commit_transaction, place.sized(TIMES, least=3), place.seed)


@contextmanager
def kafka_side(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of Kafka."""
    values = inputs.records(ROWS, place.seed)["value"].to_pylist()
    with (
        kafka.topic(place, 1) as topic,
        follower(partial(_follow_kafka, topic)) as pipe,
        kafka.producer(topic.address, topic.name) as producer,
    ):

        def write() -> None:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic.name, value, partition=0)

        yield partial(turn, pipe, write, producer.commit_transaction, place.sized(TIMES, least=3), place.seed)


def _receive(pipe: Connection) -> float:
    if not pipe.poll(ANSWER_S):
        raise TimeoutError(f"the follower saw nothing for {ANSWER_S} s")
    return float(pipe.recv())


def _follow(follow: Follow, pipe: Connection) -> None:
    seen = 0
    try:
        pipe.send(0.0)
        for rows in follow():
            seen += rows
            if seen >= ROWS:
                seen -= ROWS
                pipe.send(time.perf_counter())
    except (BrokenPipeError, KeyboardInterrupt):
        return


def _follow_txlog(folder: Path, fsync: bool, is_woken: bool) -> Iterator[int]:
    if not is_woken:
        # Its import fails in this process.
        sys.modules["inotify_simple"] = None  # type: ignore[assignment]
    with (
        log.opened(folder, fsync=fsync) as (store, _),
        store.consumer(log.TOPIC, auto_offset_reset="earliest") as consumer,
    ):
        while True:
            batch = consumer.poll()
            yield 0 if batch is None else batch.num_rows


def _follow_kafka(topic: kafka.Topic) -> Iterator[int]:
    consumer: Any = kafka.package().Consumer(
        {"bootstrap.servers": topic.address, "group.id": topic.name, "auto.offset.reset": "earliest", **kafka.QUIET}
    )
    consumer.subscribe([topic.name])
    while True:
        message = consumer.poll(0.5)
        yield 0 if message is None or message.error() else 1


SPECS = (
    Spec(
        row="P5",
        title="commit called until seen by another process",
        contestants=(
            Contestant(name="txlog", start=txlog_side),
            Contestant(name="txlog, polling", start=partial(txlog_side, is_woken=False)),
            Contestant(name="txlog, eager", start=partial(txlog_side, staged=False)),
            Contestant(name="txlog, fsync", start=partial(txlog_side, fsync=True)),
            Contestant(name="Kafka", start=kafka_side),
        ),
        goals=(
            Goal(of="txlog", figure="ms", versus="Kafka", at_most=1.2),
            Goal(of="txlog", figure="ms", at_most=4),
            Goal(of="txlog", figure="ms", statistic="p99", at_most=30),
        ),
        floor=(
            "a commit costs 2 PUTs. The kernel then wakes the follower, which makes one GET, plans and decodes: about "
            "2 ms of Python in all. Both processes want a core at that moment. Tried before the extra inotify: one "
            "pause of 500 ms (347 ms until seen), and pauses that double each time (30 ms). Shorter pauses would cost "
            "an idle consumer of another store more requests than it had before (docs/settings.md). Both processes "
            "were idle before, so each step takes two or three times as long as without pauses. A broker sends "
            "the rows instead."
        ),
    ),
)
