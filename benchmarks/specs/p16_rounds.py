"""Row P16: a transaction over four partitions or one at 60 ms a request, beside two rounds of conditional PUTs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from benchmarks import log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.timing import timed
from lab.testing.latency_store import LatencyStore
from txlog.clock import SystemClock
from txlog.storage.open import open_object_store

LATENCY_MS, TIMES = 60, 10
MOST = 1.15
"""How many times two rounds a commit may take."""
REQUESTS = 7
"""The most of a commit over four partitions, when the producer was idle before it."""


@contextmanager
def two_rounds(place: Place, *, partitions: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that creates one object, and then one for each partition at the same time: the floor."""
    store = LatencyStore(open_object_store(str(place.folder), {"fsync": False}), LATENCY_MS, SystemClock())
    numbers = itertools.count()

    def call() -> None:
        number = next(numbers)
        store.put_if_absent(f"decision-{number}", b"decision")
        names = [f"marker-{number}-{partition}" for partition in range(partitions)]
        list(pool.map(lambda name: store.put_if_absent(name, b"marker"), names))

    with ThreadPoolExecutor(partitions) as pool:
        yield partial(timed, call, place.sized(TIMES, least=3))


def _spec(partitions: int, pause_s: float = 0, times: int = TIMES) -> Spec:
    """Return the spec of transactions back to back, or with that pause before each. The floor needs no pause."""
    what = "1 partition" if partitions == 1 else f"{partitions} partitions"
    pace = f", one each {pause_s:g} s" if pause_s else ""
    start = partial(
        log.transactions,
        rows=100 * partitions,
        partitions=partitions,
        times=times,
        latency_ms=LATENCY_MS,
        pause_s=pause_s,
    )
    goals = [
        Goal(of="txlog, staged", figure="ms", versus="two rounds", at_most=MOST),
        Goal(of="txlog, staged", figure="ms", at_most=MOST * 2 * LATENCY_MS),
    ]
    if (partitions, pause_s) == (4, 0.5):
        goals.append(Goal(of="txlog, staged", figure="requests", at_most=REQUESTS))
    return Spec(
        row="P16",
        title=f"transaction over {what} at {LATENCY_MS} ms a request{pace}",
        contestants=(
            *(() if pause_s else (Contestant(name="txlog", start=start),)),
            Contestant(name="txlog, staged", start=partial(start, staged=True)),
            Contestant(name="two rounds", start=partial(two_rounds, partitions=partitions)),
        ),
        goals=tuple(goals),
        rounds=3 if pause_s else None,
        floor=FLOOR,
    )


FLOOR = (
    "a commit itself is P + 1 requests. At a pace the producer also looks between two commits, about once a second, "
    "whether the log is the one that it knows (W47). That is two GETs for each partition and for the table, because "
    "one GET does not show both its own last record and the record before it."
)

SPECS = tuple(_spec(partitions, *pace) for partitions in (4, 1) for pace in ((0, TIMES), *log.PACES))
