"""How do the explorer and the random worlds use every core?

Each scenario, mutant and world is a task for one process of a pool.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from lab.testing.fork_server import fork_server

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


def spread(work: Callable[[_Task], _Found], tasks: Sequence[_Task], processes: int) -> Iterator[tuple[_Task, _Found]]:
    """Run `work` on each task; yield (task, result) in the order in which they end.

    work: a function of a module, because the processes import it; with one process or one task it runs here. Raises
    what `work` raises, and gives up the tasks that have not begun.
    """
    if min(processes, len(tasks)) <= 1:
        for task in tasks:
            yield task, work(task)
        return
    with ProcessPoolExecutor(min(processes, len(tasks)), fork_server()) as pool:
        try:
            running = {pool.submit(work, task): task for task in tasks}
            for future in as_completed(running):
                yield running.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the option `--processes`."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        default=os.cpu_count() or 1,
        help="how many at once (default: one per core)",
    )
