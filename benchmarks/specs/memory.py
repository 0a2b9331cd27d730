"""Row memory: how much memory do the ways of bulk data take, whatever the size of the data?

The sizes are those of lineitem at TPC-H's scale factors 1 and 10. The rows of the first part are random bytes, which
compression cannot make smaller.

A JVM fills the heap that it is given before it collects garbage, so its size on a large heap says nothing. Here it has
a heap of 1 GB, which it fills at the start. The rows of scale factor 10 take several times as much: a write or a scan
that keeps them fails. If memory outside of the heap grows with the rows, the ratio shows it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, NotAvailable, Place, Samples, Spec
from benchmarks.specs.p14_merge import merge_here
from benchmarks.timing import PROCESSES, peaks
from txlog.core.cleaning import MergePolicy

BATCH_ROWS = 480_000
"""48 MB."""
BATCHES = (12, 120)
"""The sizes that are compared."""
FLAT = 1.15
HEAP = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch"}
MOST_S = 1800
"""Until a separate process has done its work."""
SCAN_MIB = 600
"""Several threads of a scan hold a row group each."""


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


def scan(store: Path, batches: int, seed: int) -> None:
    """Read all rows as a table."""
    with log.opened(store) as (opened, _):
        if sum(batch.num_rows for batch in opened.table(log.TOPIC).scan()) != batches * BATCH_ROWS:
            raise RuntimeError("rows are missing")


def merge(store: Path, batches: int, seed: int) -> None:
    """Merge the files of each segment."""
    merge_here(store, MergePolicy(target_bytes=2**40))


WORKS = (write, read, scan, merge)


@contextmanager
def one_after_the_other(place: Place, *, batches: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of all works on a new store, each in its own process."""
    batches = place.sized(batches, least=4)
    store = place.folder / "store"

    def turn() -> Samples:
        with log.opened(store) as (opened, _):
            # Only sealed segments are merged. Four batches are one.
            opened.create_topic(log.TOPIC, inputs.RECORDS, config={"segment.batches": 4, "segment.bytes": 2**31 - 1})
        found = {f"{work.__name__} MiB": _apart(_peak, work, store, batches, place.seed) for work in WORKS}
        shutil.rmtree(store)
        return found

    yield turn


def _peak(work: Callable[[Path, int, int], None], store: Path, batches: int, seed: int) -> list[float]:
    """Do the work, and return the highest resident memory of this process in MiB."""
    with peaks() as found:
        work(store, batches, seed)
    return [sum(found.values())]


@contextmanager
def through_spark(place: Place, *, table: str) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that writes and reads a table in a separate Spark with a small heap."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise NotAvailable("needs the package pyspark") from error
    file = place.resources.table(table)
    yield lambda: _apart(_peaks_of_spark, place.folder, str(file))


def _peaks_of_spark(folder: Path, file: str) -> Samples:
    from benchmarks.spark_log import Native
    from benchmarks.spark_works import Work, running
    from pyspark_txlog import session

    spark = session("txlog benchmark", config=HEAP)
    try:
        with running(Native(spark, folder), Work(name="bulk_peak", file=file)) as turn:
            return turn()
    finally:
        spark.stop()


def _apart(work: Callable[..., Any], *given: Any) -> Any:
    """Return what the work returns in a separate process. Raises RuntimeError if it fails there."""
    here, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_answer, args=(there, work, *given))
    process.start()
    there.close()
    try:
        answer = here.recv() if here.poll(MOST_S) else RuntimeError(f"no answer within {MOST_S} s")
    except EOFError:
        answer = RuntimeError("the process died")
    finally:
        process.join(60)
        if process.is_alive():
            process.kill()
    if isinstance(answer, RuntimeError):
        answer.add_note(f"{work.__name__}{given}")
        raise answer
    return answer


def _answer(pipe: Connection, work: Callable[..., Any], *given: Any) -> None:
    try:
        pipe.send(work(*given))
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


SMALL, LARGE = (f"{batches * BATCH_ROWS * inputs.RECORD_BYTES / 1e6:,.0f} MB" for batches in BATCHES)
SPECS = (
    Spec(
        row="memory",
        title="rows of 100 random bytes from Python",
        contestants=tuple(
            Contestant(name=name, start=partial(one_after_the_other, batches=batches))
            for name, batches in zip((SMALL, LARGE), BATCHES, strict=True)
        ),
        goals=(
            *(Goal(of=LARGE, figure=f"{work.__name__} MiB", versus=SMALL, at_most=FLAT) for work in WORKS),
            Goal(of=LARGE, figure="scan MiB", at_most=SCAN_MIB),
        ),
        once=True,
        floor=(
            "a scan keeps at most 64 MiB of decoded rows waiting, and four threads each hold a row group. 576 MB do "
            "not fill that, so ten times the rows need 80 MiB more. It stays below 600 MiB. Not tried: fewer threads."
        ),
    ),
    Spec(
        row="memory",
        title="lineitem through Spark with a heap of 1 GB, at scale factors 1 and 10",
        contestants=(
            Contestant(name="txlog, native, SF 1", start=partial(through_spark, table="lineitem")),
            Contestant(name="txlog, native, SF 10", start=partial(through_spark, table="lineitem x10")),
        ),
        goals=tuple(
            Goal(of="txlog, native, SF 10", figure=f"{program} MiB", versus="txlog, native, SF 1", at_most=FLAT)
            for program in ("java", "python")
        ),
        once=True,
    ),
)
