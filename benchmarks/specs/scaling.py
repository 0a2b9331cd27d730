"""Row scaling: 1 to 32 processes, and transactions over 1 to 64 partitions, also at 60 and 600 ms a request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks import log
from benchmarks.harness import Contestant, Spec

ROWS = 100
"""Of a transaction, in each of its partitions."""


def _processes(counts: Sequence[int], *, shared: bool, seconds: float, latency_ms: int = 0) -> tuple[Contestant, ...]:
    return tuple(
        Contestant(
            name=f"{processes} processes",
            start=partial(
                log.crew_of_transactions,
                processes=processes,
                rows=ROWS,
                partitions=1 if shared else processes,
                seconds=seconds,
                latency_ms=latency_ms,
            ),
        )
        for processes in counts
    )


def _partitions(
    counts: Sequence[int], *, times: int, latency_ms: int = 0, staged: bool | None = None
) -> tuple[Contestant, ...]:
    return tuple(
        Contestant(
            name=f"{partitions} partitions{', eager' if staged is False else ''}",
            start=partial(
                log.transactions,
                rows=ROWS * partitions,
                partitions=partitions,
                times=times,
                latency_ms=latency_ms,
                staged=staged,
            ),
        )
        for partitions in counts
    )


WHICH = (("own partitions", False), ("one partition", True))

SPECS = (
    *(
        Spec(
            row="scaling",
            title=f"transactions of 100 rows by 1 to 32 processes, {which}",
            contestants=_processes((1, 2, 4, 8, 16, 32), shared=shared, seconds=2.5),
            rounds=3,
        )
        for which, shared in WHICH
    ),
    Spec(
        row="scaling",
        title="transaction of 100 rows in each of 1 to 64 partitions",
        contestants=_partitions((1, 4, 16, 64), times=20),
        rounds=3,
    ),
    # A request that takes this long leaves the processor idle, so one round says as much as three.
    *(
        Spec(
            row="scaling",
            title=f"transactions by 1 to 32 processes, {which}, {latency_ms} ms a request",
            contestants=_processes((1, 8, 32), shared=shared, seconds=seconds, latency_ms=latency_ms),
            once=True,
        )
        for latency_ms, seconds in ((60, 6.0), (600, 10.0))
        for which, shared in WHICH
    ),
    *(
        Spec(
            row="scaling",
            title=f"transaction over 1 to 64 partitions, {latency_ms} ms a request",
            contestants=(
                *_partitions((1, 4, 16, 64), times=3, latency_ms=latency_ms),
                *_partitions((4,), times=3, latency_ms=latency_ms, staged=False),
            ),
            once=True,
        )
        for latency_ms in (60, 600)
    ),
)
