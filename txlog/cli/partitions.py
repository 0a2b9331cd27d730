"""Which partitions shall a job go through, and how far is it?"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from txlog.cli.offsets import parse_partitions
from txlog.cli.options import Session
from txlog.core.names import TopicPartition
from txlog.errors import UnknownTopicOrPartitionError


def choose_partitions(session: Session, topics: Sequence[str], partitions: str | None) -> list[TopicPartition]:
    """The partitions of `topics` (empty: of all topics of users) whose numbers `partitions` names, or all.

    Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic or a text that names no numbers.
    """
    numbers = None if partitions is None else parse_partitions(partitions, "--partitions")
    store = session.store
    found = [store.topic(name) for name in topics] if topics else list(store.topics())
    chosen = [
        TopicPartition(each.name, number)
        for each in found
        for number in range(each.partitions)
        if numbers is None or number in numbers
    ]
    for each in found if numbers is not None else ():
        if missing := [number for number in sorted(numbers or ()) if number >= each.partitions]:
            raise UnknownTopicOrPartitionError(
                f"topic {each.name!r} has no partition {missing[0]}: it has {each.partitions}, numbered 0 to {each.partitions - 1}"
            )
    return chosen


@contextlib.contextmanager
def row_progress(at_first: str) -> Iterator[Callable[[TopicPartition, int, int], None] | None]:
    """A bar on the standard error, if that is a terminal, for (partition, rows so far, rows in all); None else."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(at_first, total=None)

        def show(tp: TopicPartition, done: int, total: int) -> None:
            bar.update(task, description=f"{tp}, rows", completed=done, total=total or None)

        yield show
