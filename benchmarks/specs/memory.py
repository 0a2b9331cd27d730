"""Row memory: how much memory do the ways of bulk data take, whatever the size of the data?

Each work runs in a process of its own, whose highest resident memory is the figure. The rows are random bytes, which
compression cannot make smaller.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.specs.p14_merge import merge_here
from benchmarks.timing import PROCESSES

BATCH_ROWS = 480_000
"""48 MB."""
BATCHES = (4, 16)
"""The sizes that are compared."""
FLAT = 1.15
Work = Callable[[Path, int, int], object]


def peak_bytes() -> int:
    """Return the highest resident memory of this process so far. (`getrusage` would count that of the parent process.)"""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def write(store: Path, batches: int, seed: int) -> None:
    """Write the rows in one transaction."""
    with log.opened(store) as (opened, _), opened.producer("bench") as producer, producer.transaction():
        for number in range(batches):
            producer.send(log.TOPIC, inputs.records(BATCH_ROWS, seed + number), partition=0)
            producer.flush()


def read(store: Path, batches: int, seed: int) -> None:
    """Read all rows."""
    with log.opened(store) as (opened, _), opened.consumer(log.TOPIC, auto_offset_reset="earliest") as consumer:
        if sum(batch.num_rows for batch in consumer.iterate()) != batches * BATCH_ROWS + 1:
            raise RuntimeError("rows are missing")


def merge(store: Path, batches: int, seed: int) -> None:
    """Merge all files into one."""
    merge_here(store)


@contextmanager
def peaks(place: Place, *, batches: int, work: Work) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of the work on a store of that size."""
    made = place.folder / "made"
    with log.opened(made) as (store, _):
        store.create_topic(log.TOPIC, inputs.RECORDS, config={"segment.batches": batches, "segment.bytes": 2**31 - 1})
    if work is not write:
        _apart(write, made, batches, place.seed)
        with log.opened(made) as (store, _), store.producer(linger_ms=0) as producer:
            # It seals the segment before.
            producer.send(log.TOPIC, pa.table({"value": [b"end"]}, inputs.RECORDS), partition=0).result()
    numbers = itertools.count()

    def turn() -> Samples:
        copy = place.folder / f"copy-{next(numbers)}"
        shutil.copytree(made, copy)
        peak = _apart(work, copy, batches, place.seed)
        shutil.rmtree(copy)
        return {"MiB": [peak / 2**20]}

    yield turn


def _apart(work: Work, store: Path, batches: int, seed: int) -> int:
    """Run the work in a process of its own, and return its highest resident memory."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_measured, args=(work, store, batches, seed, there))
    process.start()
    there.close()
    try:
        return int(here.recv())
    finally:
        process.join()


def _measured(work: Work, store: Path, batches: int, seed: int, pipe: object) -> None:
    work(store, batches, seed)
    pipe.send(peak_bytes())  # type: ignore[attr-defined]


def _spec(work: Work) -> Spec:
    small, large = (f"{batches * BATCH_ROWS * inputs.RECORD_BYTES / 1e6:,.0f} MB" for batches in BATCHES)
    return Spec(
        row="memory",
        title=f"{work.__name__} of rows of 100 random bytes",
        contestants=tuple(
            Contestant(name=name, start=partial(peaks, batches=batches, work=work))
            for name, batches in zip((small, large), BATCHES, strict=True)
        ),
        goals=(Goal(of=large, figure="MiB", versus=small, at_most=FLAT),),
        once=True,
    )


SPECS = tuple(_spec(work) for work in (write, read, merge))
