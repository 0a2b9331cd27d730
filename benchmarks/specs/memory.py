"""Row memory: how much memory do the ways of bulk data take, whatever the size of the data?

The sizes are those of lineitem at TPC-H's scale factors 1 and 10. The rows of the first part are random bytes, which
compression cannot make smaller.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.sides import spark_sides
from benchmarks.specs.p14_merge import merge_here
from benchmarks.timing import PROCESSES, peaks

BATCH_ROWS = 480_000
"""48 MB."""
BATCHES = (12, 120)
"""The sizes that are compared."""
FLAT = 1.15


def write(store: Path, batches: int, seed: int) -> None:
    """Write the rows in one transaction."""
    with log.opened(store) as (opened, _), opened.producer("bench") as producer, producer.transaction():
        for number in range(batches):
            producer.send(log.TOPIC, inputs.records(BATCH_ROWS, seed + number), partition=0)
            producer.flush()


def read(store: Path, batches: int, seed: int) -> None:
    """Read all rows."""
    with log.opened(store) as (opened, _), opened.consumer(log.TOPIC, auto_offset_reset="earliest") as consumer:
        if sum(batch.num_rows for batch in consumer.iterate()) != batches * BATCH_ROWS:
            raise RuntimeError("rows are missing")


def merge(store: Path, batches: int, seed: int) -> None:
    """Merge the files of each segment."""
    merge_here(store)


WORKS = (write, read, merge)


@contextmanager
def one_after_the_other(place: Place, *, batches: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of all works on a new store, each in a process of its own."""
    batches = place.sized(batches, least=4)
    store = place.folder / "store"

    def turn() -> Samples:
        with log.opened(store) as (opened, _):
            # Only sealed segments are merged. Four batches are one.
            opened.create_topic(log.TOPIC, inputs.RECORDS, config={"segment.batches": 4, "segment.bytes": 2**31 - 1})
        found = {f"{work.__name__} MiB": [_apart(work, store, batches, place.seed)] for work in WORKS}
        shutil.rmtree(store)
        return found

    yield turn


def _apart(work: Callable[[Path, int, int], None], store: Path, batches: int, seed: int) -> float:
    """Run the work in a process of its own, and return its highest resident memory in MiB."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_measured, args=(work, store, batches, seed, there))
    process.start()
    there.close()
    try:
        return float(here.recv())
    finally:
        process.join()


def _measured(work: Callable[[Path, int, int], None], store: Path, batches: int, seed: int, pipe: object) -> None:
    with peaks() as found:
        work(store, batches, seed)
    pipe.send(sum(found.values()))  # type: ignore[attr-defined]


SMALL, LARGE = (f"{batches * BATCH_ROWS * inputs.RECORD_BYTES / 1e6:,.0f} MB" for batches in BATCHES)
SPECS = (
    Spec(
        row="memory",
        title="rows of 100 random bytes from Python",
        contestants=tuple(
            Contestant(name=name, start=partial(one_after_the_other, batches=batches))
            for name, batches in zip((SMALL, LARGE), BATCHES, strict=True)
        ),
        goals=tuple(Goal(of=LARGE, figure=f"{work.__name__} MiB", versus=SMALL, at_most=FLAT) for work in WORKS),
        once=True,
    ),
    Spec(
        row="memory",
        title="lineitem through Spark, at scale factors 1 and 10",
        contestants=tuple(
            replace(contestant, name=f"txlog, native, {name}")
            for name, table in (("SF 1", "lineitem"), ("SF 10", "lineitem x10"))
            for contestant in spark_sides("bulk_peak", ("txlog, native",), table=table)
        ),
        goals=(
            Goal(of="txlog, native, SF 10", figure="java MiB", versus="txlog, native, SF 1", at_most=FLAT),
            Goal(of="txlog, native, SF 10", figure="python MiB", versus="txlog, native, SF 1", at_most=FLAT),
        ),
        once=True,
    ),
)
