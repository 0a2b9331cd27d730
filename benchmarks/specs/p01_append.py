"""Row P1: one process appends 100 rows, one commit each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import delta_rs
from benchmarks.timing import timed

ROWS, TIMES = 100, 60


@contextmanager
def appends(place: Place, *, fsync: bool = False, inline: bool = True) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of appends, with the rows in the commit or in a file."""
    log.create(place.folder, inputs.SALES)
    rows = inputs.sales(ROWS, place.seed)
    settings: dict[str, Any] = {} if inline else {"inline_max_bytes": 0}
    with (
        log.opened(place.folder, fsync=fsync) as (store, counting),
        store.producer(linger_ms=0, **settings) as producer,
    ):
        yield partial(
            timed,
            lambda: producer.send(log.TOPIC, rows, partition=0).result(),
            place.sized(TIMES, least=3),
            lambda: counting.requests().total,
        )


@contextmanager
def rival(place: Place, *, handle: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs."""
    with delta_rs.appends(place, inputs.sales(ROWS, place.seed), times=TIMES, handle=handle) as turn:
        yield turn


SPECS = (
    Spec(
        row="P1",
        title="append of 100 rows, one process",
        contestants=(
            Contestant(name="txlog", start=appends),
            Contestant(name="txlog, rows in files", start=partial(appends, inline=False)),
            Contestant(name="txlog, fsync", start=partial(appends, fsync=True)),
            Contestant(name="delta-rs", start=partial(rival, handle=False)),
            Contestant(name="delta-rs, handle", start=partial(rival, handle=True)),
        ),
        goals=tuple(
            Goal(of="txlog", figure="ms", versus=versus, at_most=0.5) for versus in ("delta-rs", "delta-rs, handle")
        ),
    ),
)
