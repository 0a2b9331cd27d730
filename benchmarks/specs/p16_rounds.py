"""Row P16: a transaction over four partitions at 60 ms a request, beside two rounds of conditional PUTs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.timing import timed
from lab.testing.latency_store import LatencyStore
from txlog.clock import SystemClock
from txlog.storage.open import open_object_store

LATENCY_MS, PARTITIONS, TIMES = 60, 4, 10
SHAPE: dict[str, Any] = {"rows": 400, "partitions": PARTITIONS, "times": TIMES, "latency_ms": LATENCY_MS}


@contextmanager
def two_rounds(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that creates one object, and then one for each partition at the same time: the floor."""
    store = LatencyStore(open_object_store(str(place.folder), {"fsync": False}), LATENCY_MS, SystemClock())
    numbers = itertools.count()

    def call() -> None:
        number = next(numbers)
        store.put_if_absent(f"decision-{number}", b"decision")
        names = [f"marker-{number}-{partition}" for partition in range(PARTITIONS)]
        list(pool.map(lambda name: store.put_if_absent(name, b"marker"), names))

    with ThreadPoolExecutor(PARTITIONS) as pool:
        yield partial(timed, call, place.sized(TIMES, least=3))


SPECS = (
    Spec(
        row="P16",
        title="transaction over 4 partitions at 60 ms a request",
        contestants=(
            Contestant(name="txlog", start=partial(log.transactions, **SHAPE)),
            Contestant(name="txlog, staged", start=partial(log.transactions, staged=True, **SHAPE)),
            Contestant(name="two rounds", start=two_rounds),
        ),
        goals=(
            Goal(of="txlog, staged", figure="ms", versus="two rounds", at_most=1.15),
            Goal(of="txlog, staged", figure="ms", at_most=1.15 * 2 * LATENCY_MS),
        ),
        floor=(
            "three rounds are the floor. Before its decision the producer looks whether the topics of its rows were "
            "deleted (W46). The look must come after the last row was handed over, and a decision cannot be taken "
            "back, so the look is beside neither. Until it existed, rows for a deleted topic were committed and lost."
        ),
    ),
)
