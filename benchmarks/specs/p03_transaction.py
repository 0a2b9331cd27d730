"""Row P3: transactions of one process, beside a real Kafka's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import kafka

SMALL: dict[str, Any] = {"rows": 100, "partitions": 1, "times": 100}
WIDE: dict[str, Any] = {"rows": 1000, "partitions": 10, "times": 100}
SHAPES = (("100 rows, 1 partition", SMALL), ("1,000 rows, 10 partitions", WIDE))
IDLE_S = 0.1
WIDE_FLOOR = (
    "eleven objects at about 0.7 ms of Python's CPU time each: encode, read back as a reader does (W5), digest, link. "
    "A new file in a folder costs 0.02 to 0.3 ms more, by the state of the file system, and a broker appends to files "
    "that exist. Tried: rows that wait for the commit (15.5 to 10.8 ms), and markers in parallel, which share the "
    "interpreter's lock. Tried, and not kept: no helper threads in a folder (1 ms less without fsync, no less with it)."
)
PACED_FLOOR = (
    "after a pause each step of a commit takes longer, because the processor and its caches are idle: 3.8 ms, not 1.3. "
    "A broker has fewer steps, and few of them in the client. Tried: a look at the log between two commits instead of "
    "in the commit (W47)."
)


@contextmanager
def puts(place: Place, *, staged: bool | None = None) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that counts the conditional PUTs of one transaction, from its begin to the return of commit."""
    log.create(place.folder, inputs.RECORDS)
    with log.opened(place.folder) as (store, counting), store.producer("bench", staged=staged) as producer:
        call = log.transaction(producer, inputs.records(SMALL["rows"], place.seed), range(1))

        def turn() -> Samples:
            counts = []
            for _ in range(place.sized(20, least=3)):
                # What the transaction before left to do later is over by then.
                time.sleep(IDLE_S)
                before = counting.requests().put_if_absent
                call()
                counts.append(counting.requests().put_if_absent - before)
            return {"PUTs": counts}

        yield turn


def _paced(what: str, shape: dict[str, Any], pause_s: float, times: int) -> Spec:
    shape = shape | {"times": times, "pause_s": pause_s}
    return Spec(
        row="P3",
        title=f"transaction of {what}, one each {pause_s:g} s",
        contestants=(
            Contestant(name="txlog", start=partial(log.transactions, **shape)),
            Contestant(name="Kafka", start=partial(kafka.transactions, **shape)),
        ),
        goals=(Goal(of="txlog", figure="ms", versus="Kafka", at_most=1.0),),
        floor=WIDE_FLOOR if shape["partitions"] > 1 else PACED_FLOOR,
        rounds=3,
    )


SPECS = (
    Spec(
        row="P3",
        title="transaction of 100 rows, 1 partition",
        contestants=(
            *log.contestants(log.transactions, **SMALL),
            Contestant(name="Kafka", start=partial(kafka.transactions, **SMALL)),
        ),
        goals=(Goal(of="txlog", figure="ms", versus="Kafka", at_most=1.0),),
    ),
    Spec(
        row="P3",
        title="transaction of 1,000 rows, 10 partitions",
        contestants=(
            *log.contestants(log.transactions, **WIDE),
            Contestant(name="Kafka", start=partial(kafka.transactions, **WIDE)),
        ),
        goals=(
            Goal(of="txlog", figure="ms", versus="Kafka", at_most=1.0),
            Goal(of="txlog", figure="ms", versus="Kafka", at_most=1.0, statistic="p99"),
        ),
        floor=WIDE_FLOOR,
    ),
    *(_paced(what, shape, pause_s, times) for what, shape in SHAPES for pause_s, times in log.PACES),
    Spec(
        row="P3",
        title="conditional PUTs before commit returns",
        once=True,
        contestants=(
            Contestant(name="txlog", start=puts),
            Contestant(name="txlog, eager", start=partial(puts, staged=False)),
        ),
        goals=(Goal(of="txlog", figure="PUTs", at_most=2),),
    ),
)
