"""Which sides take part in a work on Spark? Specs name the sides, and need no Spark until one of them starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

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
    from benchmarks.rivals.table_formats import FORMATS
    from benchmarks.spark_works import Work, running

    # Rows of a commit are a part of what is measured. Only the number of commits follows the scale.
    scaled = {size: number if size == "rows" else place.sized(number, least=3) for size, number in sizes.items()}
    file = str(place.resources.table(table)) if table else ""
    given = Work(name=work, table=table, file=file, warm_up=warm_up, **scaled)
    if name in FORMATS:
        if name.startswith("Delta") and find_spec("delta") is None:
            raise NotAvailable("needs the package delta-spark")
        rival = place.resources.iceberg() if name == "Iceberg" else place.resources.rivals()
        with rival.running(name, place.folder, given) as turn:
            yield turn
        return
    from benchmarks.spark_log import WAYS

    with running(WAYS[name](place.resources.spark(), place.folder), given) as turn:
        yield turn
