"""How is a partition checked while other processes write to the store?

A partition that seems damaged and has changed during its check is checked again, because that may be a race.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from txlog.client.session import Session
from txlog.maintenance.fsck.findings import Findings, Reader
from txlog.maintenance.fsck.partition_check import Checked, PartitionTask, check_partition
from txlog.maintenance.workers import Progress

_ROUNDS = 5
"""How often a partition is checked that seems damaged and changes during each check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the check saw of one partition. Picklable."""

    checked: Checked
    findings: Findings
    objects: int
    bytes: int


def look_at(reader: Reader, task: Callable[[], PartitionTask]) -> Looked:
    """Check a partition, more than once if need be. `task` is asked again for each check."""
    for round_ in range(_ROUNDS):
        own = Findings()
        wanted = task()
        folder = wanted.topic_partition.folder
        before = reader.list(folder)
        mine = reader.with_findings(own)
        checked = check_partition(mine, wanted)
        if own.is_clean or round_ == _ROUNDS - 1 or reader.list(folder) == before:
            break
    return Looked(checked=checked, findings=own, objects=mine.objects, bytes=mine.bytes)


def look_elsewhere(task: PartitionTask, threads: int, session: Session, progress: Progress | None) -> Looked:
    """Check the partition of a worker's task, with this number of threads."""
    numbers = itertools.count(1)
    shown = None if progress is None else lambda: progress(task.topic_partition, next(numbers), 0)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads, "txlog-fsck")) if threads else None
        return look_at(Reader(session.runtime.store, session.clock, Findings(), pool, shown), lambda: task)
