"""Rows P11 and P17: 1,000 commits of 100 rows through Spark: a warm count, and the bytes that they left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks import inputs
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import delta_rs
from benchmarks.sides import spark_sides

COMMITS, ROWS = 1000, 100


@contextmanager
def bytes_of_delta_rs(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that measures what as many commits of delta-rs left."""
    rows = inputs.sales(ROWS, place.seed)
    for _ in range(place.sized(COMMITS, least=3)):
        delta_rs.append(str(place.folder / "table"), rows)

    def turn() -> Samples:
        files = [path for path in place.folder.rglob("*") if path.is_file()]
        return {"MB": [sum(path.stat().st_size for path in files) / 1e6], "files": [len(files)]}

    yield turn


SPECS = (
    Spec(
        row="P11",
        title="count after 1,000 small commits through Spark, warm",
        contestants=spark_sides("many_commits", ("txlog, native", "Iceberg"), rows=ROWS, commits=COMMITS),
        goals=(Goal(of="txlog, native", figure="s", versus="Iceberg", at_most=1.0),),
        floor=(
            "Iceberg counts from its metadata, in a plan without a task. txlog plans in Python and gives Spark a "
            "file a sealed segment and the rows of the tail. Spark has no hook by which a frame could answer a count "
            "from the indexes, which store.table('t').count() does. Tried: inline rows in one task, and plans kept "
            "for an unchanged end (0.51 to 0.16 s); few rows in one task, so that Spark needs no shuffle."
        ),
        warm_up=2,
    ),
    Spec(
        row="P17",
        title="bytes after 1,000 native appends of 100 rows",
        contestants=(
            *spark_sides("bytes_after", ("txlog, native",), rows=ROWS, commits=COMMITS),
            Contestant(name="delta-rs", start=bytes_of_delta_rs),
        ),
        goals=(Goal(of="txlog, native", figure="MB", versus="delta-rs", at_most=1.0),),
        floor=(
            "a commit stores its rows twice, in the decision and in the marker, until maintenance removes both. "
            "Tried: compression of the rows as a whole (13.6 to 5.8 MB). With inline.max.bytes = 0 the rows are "
            "stored once, in a file, and this costs one PUT more. Considered, not built: a marker that names the "
            "decision instead of repeating its rows. A reader would then need a second request for each batch, and "
            "the decision's record would have to stay until the partition's segment is sealed."
        ),
        once=True,
    ),
)
