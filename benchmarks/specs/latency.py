"""Row latency: transactions at 60 and at 600 ms a request."""

from __future__ import annotations

from functools import partial

from benchmarks import log
from benchmarks.harness import Contestant, Spec

SPECS = tuple(
    Spec(
        row="latency",
        title=f"transaction of {partitions} × 100 rows at {latency_ms} ms a request",
        contestants=tuple(
            Contestant(
                name=name,
                start=partial(
                    log.transactions,
                    rows=100 * partitions,
                    partitions=partitions,
                    times=5,
                    latency_ms=latency_ms,
                    staged=staged,
                ),
            )
            for name, staged in (("txlog", None), ("txlog, eager", False))
        ),
        rounds=3,
    )
    for latency_ms in (60, 600)
    for partitions in (1, 4)
)
