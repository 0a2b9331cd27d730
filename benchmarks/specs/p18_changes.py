"""Row P18: 20 times a hundredth of a million keys changes; the table of newest rows is published, and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.harness import Contestant, Goal, NotAvailable, Place, Samples, Spec
from benchmarks.sides import spark_sides

ROWS, TIMES = 10_000, 20


@contextmanager
def published(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that changes a topic, and reads its published table with Delta's Spark."""
    try:
        from benchmarks.spark_log import Native
        from benchmarks.spark_works import Work, changed
    except ImportError as error:
        raise NotAvailable("needs the package pyspark") from error
    form = Native(place.resources.spark(), place.folder)
    work = Work(name="changes", rows=ROWS, times=place.sized(TIMES, least=3))

    def turn() -> Samples:
        changed(form, work, "changed")
        given = Work(name="reads", file=str(form.stored_in() / "changed"))
        with place.resources.rivals().running("Delta, tuned", place.folder / "reader", given) as read:
            return read()

    try:
        yield turn
    finally:
        form.close()


SPECS = (
    Spec(
        row="P18",
        title="a table of 1 million keys, of which 1 % changes 20 times",
        contestants=(
            *spark_sides("changes", ("txlog, native", "Delta", "Delta, tuned", "Iceberg"), rows=ROWS, times=TIMES),
            Contestant(name="txlog, published", start=published),
        ),
        goals=tuple(
            Goal(of=side, figure=figure, versus=rival, at_most=most)
            for side, figure, most in (
                ("txlog, native", "write s", 0.2),
                ("txlog, native", "MB written", 0.3),
                ("txlog, native", "read s", 1.2),
                ("txlog, published", "read s", 1.2),
            )
            for rival in ("Delta, tuned", "Iceberg")
        ),
        once=True,
        floor="The sum has all maintenance. A round takes 0.35 s, most of it for the publication in two formats, "
        "and the compaction of all keys at the end 2.7 s. Without that the sum is 0.17 × Iceberg, and a read "
        "takes 1.4 s. A MERGE makes a new table in each round, and its readers pay nothing. A read of the "
        "newest rows of a compacted log is a scan that also looks up the partition of each file, and drops "
        "tombstones. Tried: a window over all rows, where now only keys of newer rows are joined with what "
        "was compacted (3.4 s before the compaction). The published table is read by Delta in the time of its "
        "own table without tuning; its files have the columns of the log, too.",
    ),
)
