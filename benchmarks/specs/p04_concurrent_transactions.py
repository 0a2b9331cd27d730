"""Row P4: eight processes commit transactions of 100 rows, beside a real Kafka's."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import log
from benchmarks.harness import Contestant, Goal, Spec
from benchmarks.rivals import kafka

SHAPE: dict[str, Any] = {"processes": 8, "rows": 100, "seconds": 4.0}
OWN, SHARED = SHAPE | {"partitions": 8}, SHAPE | {"partitions": 1}

SPECS = (
    Spec(
        row="P4",
        title="8 processes, transactions on own partitions",
        contestants=(
            *log.contestants(log.crew_of_transactions, **OWN),
            Contestant(name="Kafka", start=partial(kafka.crew_of_transactions, **OWN)),
        ),
        goals=(Goal(of="txlog", figure="per s", versus="Kafka", at_least=1.0),),
        floor=(
            "a transaction costs 1.2 ms of Python's CPU time in the process that makes it, and 8 processes share two "
            "cores. Tried: less work to read a record back before it is written, fewer steps without a request, a "
            "view that is built once (1.45 to 1.2 ms). The rest is the two records: encode, check as a reader does "
            "(W5), digest and create."
        ),
        rounds=3,
    ),
    Spec(
        row="P4",
        title="8 processes, transactions on one partition",
        contestants=(
            *log.contestants(log.crew_of_transactions, **SHARED),
            Contestant(name="Kafka", start=partial(kafka.crew_of_transactions, **SHARED)),
        ),
        goals=(
            Goal(of="txlog", figure="per s", versus="Kafka", at_least=0.5),
            Goal(of="txlog", figure="ms", statistic="p99", at_most=60),
        ),
        floor=(
            "writers of one partition take turns, and each process reads the records of the 7 others, because it must "
            "know the end of the log to write the next record. A PUT that came second is made again. The same work on "
            "own partitions needs neither. Not built: one record for the waiting batches of several writers. The "
            "slowest one in a hundred are the commits that seal a segment. That takes about 10 ms of CPU time, "
            "beside 7 other processes on two cores. Tried: at most one partition a commit, after its markers. Tried: "
            "only the producer whose record begins the next segment seals. That is one file of rows for each "
            "segment, where up to 7 processes wrote one. The return still waits for it."
        ),
        rounds=3,
    ),
)
