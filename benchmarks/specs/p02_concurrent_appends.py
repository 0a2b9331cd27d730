"""Row P2: eight processes append 100 rows to one partition, one commit each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import delta_rs

PROCESSES, ROWS, SECONDS = 8, 100, 4.0
_start = partial(log.crew_of_transactions, processes=PROCESSES, rows=ROWS, partitions=1, seconds=SECONDS, plain=True)


@contextmanager
def rival(place: Place, *, handle: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs."""
    rows = inputs.records(ROWS, place.seed)
    with delta_rs.crew_of_appends(place, rows, processes=PROCESSES, seconds=SECONDS, handle=handle) as turn:
        yield turn


SPECS = (
    Spec(
        row="P2",
        title="8 processes append to one partition",
        contestants=(
            Contestant(name="txlog", start=_start),
            Contestant(name="txlog, fsync", start=partial(_start, fsync=True)),
            Contestant(name="delta-rs", start=partial(rival, handle=False)),
            Contestant(name="delta-rs, handle", start=partial(rival, handle=True)),
        ),
        goals=(
            Goal(of="txlog", figure="per s", versus="delta-rs", at_least=15),
            Goal(of="txlog", figure="per s", versus="delta-rs, handle", at_least=15),
            Goal(of="txlog", figure="ms", statistic="p99", at_most=60),
        ),
        floor=(
            "the slowest one in a hundred seal a segment, with about 10 ms of CPU time. Or they read about 100 "
            "records of other processes then, with about 8 ms. Eight processes share two cores, so each takes four "
            "times as long. Tried: joined batches before they are encoded, a fifth less CPU time. Tried: sealing "
            "after the rows are acknowledged, by the process that began the segment. The next send of that "
            "producer still waits for it."
        ),
    ),
)
