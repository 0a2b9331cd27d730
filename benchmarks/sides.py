"""Which sides take part in a work on Spark? Specs name the sides, and need no Spark until one of them starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.harness import Contestant, NotAvailable, Place, Samples


def spark_sides(
    work: str, names: Sequence[str], *, table: str = "", warm_up: int = 0, **sizes: int
) -> tuple[Contestant, ...]:
    """Return contestants of a work of benchmarks/spark_works.py. `table` is its input; `sizes` are those at scale 1."""
    return tuple(
        Contestant(name=name, start=partial(_start, name, work, table=table, warm_up=warm_up, sizes=sizes))
        for name in names
    )


@contextmanager
def _start(
    name: str, work: str, place: Place, *, table: str, warm_up: int, sizes: dict[str, int]
) -> Iterator[Callable[[], Samples]]:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise NotAvailable("needs the package pyspark") from error
    from benchmarks.spark_log import formats
    from benchmarks.spark_works import Work, running

    # Rows of a commit are a part of what is measured. Only the number of commits follows the scale.
    scaled = {size: number if size == "rows" else place.sized(number, least=3) for size, number in sizes.items()}
    file = str(place.resources.table(table)) if table else ""
    given = Work(name=work, table=table, file=file, warm_up=warm_up, **scaled)
    if name == "Iceberg":
        with place.resources.iceberg().running(place.folder, given) as turn:
            yield turn
        return
    spark = place.resources.spark()
    if name.startswith("Delta") and not spark.conf.get("spark.sql.extensions", ""):
        raise NotAvailable("needs the package delta-spark")
    with running(formats()[name](spark, place.folder), given) as turn:
        yield turn
