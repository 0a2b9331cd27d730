"""Row scaling: transactions per second of 1 to 32 processes, and the time of a transaction over 1 to 64 partitions."""

from __future__ import annotations

from functools import partial

from benchmarks import log
from benchmarks.harness import Contestant, Spec

SPECS = (
    *(
        Spec(
            row="scaling",
            title=f"transactions of 100 rows by 1 to 32 processes, {which}",
            contestants=tuple(
                Contestant(
                    name=f"{processes} processes",
                    start=partial(
                        log.crew_of_transactions,
                        processes=processes,
                        rows=100,
                        partitions=1 if shared else processes,
                        seconds=4.0,
                    ),
                )
                for processes in (1, 2, 4, 8, 16, 32)
            ),
            rounds=3,
        )
        for which, shared in (("own partitions", False), ("one partition", True))
    ),
    Spec(
        row="scaling",
        title="transaction of 100 rows in each of 1 to 64 partitions",
        contestants=tuple(
            Contestant(
                name=f"{partitions} partitions",
                start=partial(log.transactions, rows=100 * partitions, partitions=partitions, times=20),
            )
            for partitions in (1, 4, 16, 64)
        ),
        rounds=3,
    ),
)
