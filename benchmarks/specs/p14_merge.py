"""Row P14: merge 1,000 small commits, each with a file, in the process and as the program `txlog merge`."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.rivals import delta_rs
from benchmarks.timing import seconds
from txlog.client.reading import read_session
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partitions
from txlog.maintenance.partition_loop import gather

COMMITS, ROWS = 1000, 100
START_S = 0.25
"""Of the program, until it has seen that there is nothing to do."""


@contextmanager
def merges(
    place: Place, *, merge: Callable[[Path], Samples], commits: int = COMMITS, one_segment: bool = False
) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that merges a copy of the store. Its topic has the default segments, or one segment for all."""
    made = place.folder / "made"
    rows = inputs.sales(ROWS, place.seed)
    with log.opened(made) as (store, _):
        commits = commits and place.sized(commits, least=10)
        store.create_topic(log.TOPIC, inputs.SALES, config={"segment.batches": commits} if one_segment else {})
        with store.producer(linger_ms=0, inline_max_bytes=0) as producer:
            # One more, because only sealed segments are merged.
            for _ in range(commits and commits + 1):
                producer.send(log.TOPIC, rows, partition=0).result()
    yield from _on_copies(made, place.folder, merge)


def merge_here(store: Path, policy: MergePolicy | None = None) -> Samples:
    """Open the store and merge in this process, and count the requests."""
    requests = []

    def merge() -> None:
        with log.opened(store) as (opened, counting):
            session = read_session(opened.runtime)
            merging = merge_partitions(session, [TopicPartition(log.TOPIC, 0)], policy or MergePolicy(), FileLayout())
            (done,), _ = gather(merging)
            if not done.took_effect:
                raise RuntimeError("the merge had no effect")
            requests.append(counting.requests().total)

    return {**seconds(merge), "requests": requests}


def merge_by_program(store: Path) -> Samples:
    """Run `txlog merge`."""
    program = Path(sys.executable).with_name("txlog")
    command = [str(program), "merge", log.TOPIC, "--execute", "--store", str(store), "--storage-option", "fsync=false"]
    return seconds(lambda: subprocess.run(command, check=True, capture_output=True))


@contextmanager
def rival(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs's compaction of a copy, which it opens."""
    deltalake = delta_rs.package()
    made = place.folder / "made"
    rows = inputs.sales(ROWS, place.seed)
    for _ in range(place.sized(COMMITS, least=10)):
        delta_rs.append(str(made), rows)

    def compact(copy: Path) -> None:
        deltalake.DeltaTable(str(copy)).optimize.compact()

    yield from _on_copies(made, place.folder, lambda copy: seconds(partial(compact, copy)))


def _on_copies(made: Path, folder: Path, work: Callable[[Path], Samples]) -> Iterator[Callable[[], Samples]]:
    numbers = itertools.count()

    def turn() -> Samples:
        copy = folder / f"copy-{next(numbers)}"
        shutil.copytree(made, copy)
        found = work(copy)
        shutil.rmtree(copy)
        return found

    yield turn


SPECS = (
    Spec(
        row="P14",
        title="merge of 1,000 commits of a file each",
        contestants=(
            Contestant(name="txlog", start=partial(merges, merge=merge_here)),
            Contestant(name="txlog, one segment", start=partial(merges, merge=merge_here, one_segment=True)),
            Contestant(name="txlog merge, program", start=partial(merges, merge=merge_by_program)),
            Contestant(name="txlog merge, no rows", start=partial(merges, merge=merge_by_program, commits=0)),
            Contestant(name="delta-rs", start=rival),
        ),
        goals=(
            Goal(of="txlog", figure="s", versus="delta-rs", at_most=1.0),
            Goal(of="txlog, one segment", figure="s", versus="delta-rs", at_most=1.0),
            Goal(of="txlog, one segment", figure="s", at_most=0.33),
            Goal(of="txlog merge, program", figure="s", at_most=0.6),
            Goal(of="txlog merge, no rows", figure="s", at_most=START_S),
        ),
        floor=(
            "pyarrow alone opens and reads these 1,000 files in 0.16 s of CPU time, one after the other. The rest is "
            "Python, about 0.4 ms a file: digests, the checks of each column, offsets. Tried: files from memory "
            "instead of through a reader in Python, and no import of pandas (0.76 to 0.55 s). Also tried: several "
            "files at once, which is slower in a folder (0.75 s), because threads of Python wait for each other. The "
            "program needs 0.5 s more, most of it until numpy and pyarrow are imported. With nothing to do it loads "
            "no pyarrow. About a fifth of its time is the import of the parser of its arguments, and a sixth that of "
            "numpy. Tried: the called command alone is imported. Not tried: a compaction's module without numpy."
        ),
    ),
)
