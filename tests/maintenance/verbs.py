"""Verbs over one partition, in this process: what was done, or the first error, raised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from txlog.client.session import Session
from txlog.core.cleaning import PLAIN, FileLayout, MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.compact import Compacted, compact_partitions
from txlog.maintenance.merge import Merged, merge_partitions
from txlog.maintenance.partition_loop import Outcome
from txlog.maintenance.workers import Progress

D = TypeVar("D")


def merge_partition(
    session: Session, tp: TopicPartition, policy: MergePolicy, layout: FileLayout = PLAIN
) -> tuple[Merged, ...]:
    return results(merge_partitions(session, [tp], policy, layout))


def compact_partition(
    session: Session, tp: TopicPartition, policy: CompactionPolicy, progress: Progress | None = None
) -> tuple[Compacted, ...]:
    return results(compact_partitions(session, {tp: policy}, progress=progress))


def results(outcomes: Iterable[Outcome[D | None]]) -> tuple[D, ...]:
    """What was done, in this order."""
    done = []
    for _, outcome in outcomes:
        if isinstance(outcome, TxlogError):
            raise outcome
        if outcome is not None:
            done.append(outcome)
    return tuple(done)
