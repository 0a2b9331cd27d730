"""Row publish: does a publication cost more because the log behind it is longer?

A topic is published as a Delta and as an Iceberg table, beside maintenance, as `txlog maintain --daemon` does it: after
each 200 transactions. Then publications are measured, with 10 transactions before each. A store with n transactions
stands beside one with 4 n. Both are in memory, with the benchmark's own clock and without threads.

Another store has no maintenance, so its log has a file for each transaction and partition. There a publication may
cost more, because it lists all files at times: each 50th publication, and each 10th version of the Delta table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Contestant, Goal, NotAvailable, Place, Samples, Spec
from benchmarks.worlds import World
from txlog.client import reading
from txlog.client.session.session import Session
from txlog.client.store import Store
from txlog.errors import TxlogError
from txlog.maintenance.maintain import Maintainer
from txlog.maintenance.publish import publish_topics
from txlog.publication.cache import PublicationCache

_FIELDS: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]
SCHEMA = pa.schema(_FIELDS)
TOPIC, PARTITIONS = "orders", 2
TRANSACTIONS = 2_500
"""The smaller number; the larger one is 10,000."""
TIMES = 4
EVERY = 200
"""Transactions between two maintenance rounds, each of which publishes."""
BETWEEN = 10
"""Transactions between two publications that are measured."""
PUBLICATIONS = 50
"""Measured publications: five checkpoints of the Delta table, and one list of all files."""
ROWS = 10
TRANSACTION_MS = 3_000
SETTINGS = {
    "delete.grace.ms": 3_600_000,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}
CONFIG = {
    "segment.batches": 100,
    "inline.max.bytes": 0,
    "publish.formats": "delta,iceberg",
    "publish.max.lag.ms": 0,
    "publish.retention.ms": 3_600_000,
}
SLOWER, MORE, OTHER_PHASE = 2.0, 1.1, 1.5
"""The allowed factors from n to 4 n. Milliseconds depend on other work of the machine.

A publication also costs a GET for each record of the tails, and for each publication since the last that lists all
files. Both numbers are bounded, but are not the same at n and at 4 n.
"""


def measure(transactions: int, *, is_maintained: bool) -> Samples:
    """Write that many transactions, then measure publications."""
    world = World(SETTINGS)
    with closing(world.open()) as store, closing(world.open()) as keeps, closing(world.open()) as publishes:
        store.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS, config=CONFIG)
        maintainer = Maintainer(keeps.runtime)
        session = reading.read_session(publishes.runtime)
        cache = PublicationCache()
        with store.producer("mine") as producer:

            def commit(number: int) -> None:
                with producer.transaction():
                    for partition in range(PARTITIONS):
                        first = (number * PARTITIONS + partition) * ROWS
                        rows = pa.table({"id": range(first, first + ROWS), "note": ["x" * 20] * ROWS}, SCHEMA)
                        producer.send(TOPIC, rows, partition=partition)
                world.clock.advance_ms(TRANSACTION_MS)

            for number in range(transactions):
                commit(number)
                if number % EVERY == EVERY - 1:
                    if not is_maintained:
                        _publish(session, publishes, cache)
                    elif maintainer.run().failures:
                        raise RuntimeError("maintenance failed")
            _publish(session, publishes, cache)
            took, requests = [], []
            for number in range(PUBLICATIONS * BETWEEN):
                commit(transactions + number)
                if number % BETWEEN == BETWEEN - 1:
                    with world.counting.counting() as cost:
                        began = time.process_time()
                        _publish(session, publishes, cache)
                        took.append((time.process_time() - began) * 1000)
                    requests.append(cost.total)
            with world.counting.counting() as idle:
                _publish(session, publishes, cache)
            commit(transactions + PUBLICATIONS * BETWEEN)
        with closing(world.open()) as cold, world.counting.counting() as cost:
            _publish(reading.read_session(cold.runtime), cold, PublicationCache())
    return {
        "ms": took,
        "requests": requests,
        "requests, the most": [max(requests)],
        "requests without new rows": [idle.total],
        "requests of a new process": [cost.total],
        "ms, the mean": [statistics.mean(took)],
    }


def _publish(session: Session, store: Store, cache: PublicationCache) -> None:
    ((_, made),) = publish_topics(session, [store.runtime.topic(TOPIC, 0)], cache=cache)
    if isinstance(made, TxlogError):
        raise made
    if made.number < 0 or made.must_rewrite:
        raise RuntimeError(f"nothing was published: {made}")


@contextmanager
def at_size(place: Place, *, transactions: int, is_maintained: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that makes a store of that size and measures it."""
    try:
        import pyiceberg  # noqa: F401
    except ModuleNotFoundError:
        raise NotAvailable("pyiceberg is not installed") from None
    yield lambda: measure(place.sized(transactions, least=EVERY), is_maintained=is_maintained)


def _spec(title: str, goals: dict[str, float], *, is_maintained: bool, floor: str = "") -> Spec:
    small, large = f"{TRANSACTIONS:,}", f"{TIMES * TRANSACTIONS:,}"
    return Spec(
        row="publish",
        title=f"{title}: {small} and {large}",
        contestants=tuple(
            Contestant(
                name=name, start=partial(at_size, transactions=times * TRANSACTIONS, is_maintained=is_maintained)
            )
            for name, times in ((small, 1), (large, TIMES))
        ),
        goals=tuple(Goal(of=large, figure=figure, versus=small, at_most=most) for figure, most in goals.items()),
        floor=floor,
        once=True,
    )


SPECS = (
    _spec(
        "a publication after that many transactions",
        {
            "ms": SLOWER,
            "requests": MORE,
            "requests, the most": MORE,
            "requests without new rows": OTHER_PHASE,
            "requests of a new process": OTHER_PHASE,
        },
        is_maintained=True,
    ),
    _spec(
        "a publication after that many transactions, without maintenance",
        {"requests": MORE, "requests, the most": MORE},
        is_maintained=False,
        floor=(
            "without maintenance the log has a file for each transaction and partition, and a publication that lists "
            "files again lists them all. It also reads each record of the tails, and each publication since the last "
            "one that lists all files. These numbers are bounded, but not the same at both sizes: another run needed "
            "306 and 333 requests, 1.09 times as many."
        ),
    ),
)
