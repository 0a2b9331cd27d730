"""The works on Spark, each written once for all table formats.

A work is a context manager, like a contestant's start. It takes the format, and yields its turn. This module imports
neither txlog nor a rival's package, because Iceberg's Spark runs in a separate environment.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions

from benchmarks.harness import Samples
from benchmarks.rivals.table_formats import TableFormat
from benchmarks.timing import peaks, repeated, seconds, timed

STREAM_S = 600
WARM_READS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a work needs, as plain values that travel to another process."""

    name: str
    table: str = ""
    """The input's name, and its Parquet file."""
    file: str = ""
    rows: int = 0
    times: int = 0
    commits: int = 0
    warm_up: int = 0


@contextmanager
def appends(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Small appends, one commit each."""
    few = _few(form.spark, work.rows)
    form.create("small", few)
    yield partial(timed, lambda: form.append(few, "small"), work.times, form.requests)


@contextmanager
def appends_of_a_file(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """The same of a file behind a filter: the plan does not show how many rows it has."""
    file = str(form.folder / "few.parquet")
    _few(form.spark, work.rows).write.parquet(file)
    filtered = form.spark.read.parquet(file).where("amount >= 0")
    form.create("small", filtered)
    yield partial(timed, lambda: form.append(filtered, "small"), work.times, form.requests)


@contextmanager
def bulk_write(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """All rows of the input in one commit, to a new table each time."""
    rows = form.spark.read.parquet(work.file)
    numbers = itertools.count()

    def turn() -> Samples:
        name = f"bulk-{next(numbers)}"
        form.create(name, rows)
        before = form.requests()
        found = seconds(lambda: form.append(rows, name))
        made = form.requests() - before
        form.drop(name)
        return {**found, "requests": [made]} if made else found

    yield turn


@contextmanager
def bulk_peak(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """The highest memory while all rows of the input are written in one commit and read again."""
    rows = form.spark.read.parquet(work.file)

    def turn() -> Samples:
        form.create("peak", rows)
        with peaks() as found:
            form.append(rows, "peak")
            form.read("peak").write.format("noop").mode("overwrite").save()
        form.drop("peak")
        return {f"{program} MiB": [peak] for program, peak in found.items()}

    yield turn


@contextmanager
def scans(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Scans of the input, short ones several times. The time includes the creation of the frame."""
    rows = form.spark.read.parquet(work.file)
    form.create(work.table, rows)
    form.append(rows, work.table)

    def turn() -> Samples:
        return {
            f"{name} s": repeated(partial(lambda scan: scan(form.read(work.table)), scan))["s"]
            for name, scan in SCANS[work.table].items()
        }

    yield turn


@contextmanager
def many_commits(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Count the rows of many small commits."""
    few = _few(form.spark, work.rows)
    form.create("many", few)
    for _ in range(work.commits):
        form.append(few, "many")

    def turn() -> Samples:
        found: set[int] = set()
        taken = repeated(lambda: found.add(form.read("many").count()))
        if found != {work.rows * work.commits}:
            raise RuntimeError(f"{form.name} has {found} rows")
        return taken

    yield turn


@contextmanager
def bytes_after(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Bytes and files of many small commits, without Hadoop's checksums, which an object store does not have."""
    with many_commits(form, work):

        def turn() -> Samples:
            files = _files(form)
            return {"MB": [sum(path.stat().st_size for path in files) / 1e6], "files": [len(files)]}

        yield turn


@contextmanager
def changes(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Rounds that change a hundredth of a table's rows each, and then reads of all newest rows."""
    numbers = itertools.count()

    def turn() -> Samples:
        name = f"changed-{next(numbers)}"
        found = {**changed(form, work, name), "read s": _read_warm(lambda: form.newest(name))}
        form.drop(name)
        return found

    yield turn


@contextmanager
def reads(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Reads of a table that another program made."""
    yield lambda: {"read s": _read_warm(lambda: form.read(work.file))}


def changed(form: TableFormat, work: Work, name: str) -> dict[str, list[float]]:
    """Make a table, and change it. Return the seconds of all changes and the megabytes that they wrote."""
    made = form.spark.range(100 * work.rows)
    every = made.selectExpr("id", "cast(id AS DOUBLE) AS amount", "concat('note ', id) AS note")

    def change(number: int) -> DataFrame:
        # Another key of each hundred, in no order.
        found = every.where(f"(id * 7919 + {number}) % 100 = 0").withColumn("amount", functions.lit(float(number)))
        return form.spark.createDataFrame(found.toArrow())

    form.create_keyed(name, every, "id")
    form.append(every, name)
    form.settle(name)
    form.change(change(work.times), name, "id")
    frames = [change(number) for number in range(work.times)]
    before = _bytes(form)
    taken = [seconds(partial(form.change, frame, name, "id"))["s"][0] for frame in frames]
    taken += seconds(partial(form.settle, name))["s"]
    written = _bytes(form) - before
    rows = form.newest(name).count()
    if rows != 100 * work.rows:
        raise RuntimeError(f"{form.name} has {rows} rows")
    return {"write s": [sum(taken)], "MB written": [written / 1e6]}


@contextmanager
def micro_batches(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Micro-batches into a sink. The figure is Spark's own, of the whole trigger."""
    source = form.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", work.rows)
    stream = source.option("numPartitions", 2).load()
    form.create("stream", _typed(form.spark, stream))

    def turn() -> Samples:
        before = form.requests()
        # The query resumes its checkpoint.
        query = form.stream_into(stream, "stream", form.folder / "checkpoint")
        try:
            wanted = work.warm_up + work.times
            _wait(query, lambda: sum(p.numInputRows == work.rows for p in query.recentProgress) >= wanted)
            done = [p for p in query.recentProgress if p.numInputRows == work.rows]
        finally:
            query.stop()
        taken = [float(p.durationMs["triggerExecution"]) for p in done[work.warm_up : wanted]]
        made = form.requests() - before
        return {"ms": taken, "requests": [made / len(done)]} if made else {"ms": taken}

    yield turn


@contextmanager
def stream_source(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """A stream that follows small commits, one in a micro-batch."""
    few = _few(form.spark, work.rows)
    form.create("followed", few)
    form.append(few, "followed")
    writer = form.stream_from("followed").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(form.folder / "checkpoint")).start()
    try:
        query.processAllAvailable()

        def turn() -> Samples:
            taken = []
            for _ in range(work.times):
                form.append(few, "followed")
                query.processAllAvailable()
                done = [p for p in query.recentProgress if p.numInputRows]
                taken.append(float(done[-1].durationMs["triggerExecution"]))
            return {"ms": taken}

        yield turn
    finally:
        query.stop()


WORKS: dict[str, Callable[[TableFormat, Work], AbstractContextManager[Callable[[], Samples]]]] = {
    work.__name__: work
    for work in (
        appends,
        appends_of_a_file,
        bulk_write,
        bulk_peak,
        scans,
        many_commits,
        bytes_after,
        changes,
        reads,
        micro_batches,
        stream_source,
    )
}


def _scans(column: str, condition: str) -> dict[str, Callable[[DataFrame], Any]]:
    return {
        "count": lambda frame: frame.count(),
        "sum": lambda frame: frame.agg(functions.sum(column)).first(),
        "filter": lambda frame: frame.where(condition).agg(functions.sum(column)).first(),
        "all columns": lambda frame: frame.write.format("noop").mode("overwrite").save(),
    }


SCANS = {"lineitem": _scans("l_quantity", "l_orderkey < 60000"), "flights": _scans("distance", "month = 1")}


@contextmanager
def running(form: TableFormat, work: Work) -> Iterator[Callable[[], Samples]]:
    """Yield the turn of a work by its name, with the format's settings in the session during each turn."""
    spark = form.spark
    before = {name: spark.conf.get(name, None) for name in form.settings}

    def set_all(values: dict[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)

    try:
        set_all(dict(form.settings))
        with WORKS[work.name](form, work) as turn:
            set_all(before)

            def set_up() -> Samples:
                set_all(dict(form.settings))
                try:
                    return turn()
                finally:
                    set_all(before)

            yield set_up
    finally:
        set_all(before)
        form.close()


def _files(form: TableFormat) -> list[Path]:
    return [path for path in form.stored_in().rglob("*") if path.is_file() and not path.name.endswith(".crc")]


def _bytes(form: TableFormat) -> int:
    return sum(path.stat().st_size for path in _files(form))


def _read_warm(frame: Callable[[], DataFrame]) -> Sequence[float]:
    """Return the seconds of reads after some that do not count: a process may have read nothing before."""
    for _ in range(WARM_READS):
        _read_all(frame())
    return repeated(lambda: _read_all(frame()))["s"]


def _read_all(frame: DataFrame) -> None:
    # Delta 4.4 does not write a frame to `noop` that it reads from files with deletion vectors.
    frame.agg(functions.sum(functions.xxhash64(*frame.columns) % 1000)).first()


def _few(spark: SparkSession, rows: int) -> DataFrame:
    """Return a small frame of one task, so that each format writes one file."""
    made = spark.range(rows).selectExpr("id", "cast(id AS DOUBLE) / 2 AS amount", "concat('note ', id) AS note")
    return spark.createDataFrame(made.toArrow()).coalesce(1)


def _typed(spark: SparkSession, stream: DataFrame) -> DataFrame:
    return spark.createDataFrame([], stream.schema)


def _wait(query: Any, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STREAM_S
    while not done():
        if (failed := query.exception()) is not None:
            raise failed
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query made {len(query.recentProgress)} micro-batches in {STREAM_S} s")
        time.sleep(0.05)
