"""How large is a partition, how small are its files, and what would a merge gain?

Only indexes and the tail are read. No data file is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txlog.client.session.session import Session
from txlog.core.cleaning import MergePolicy, choose_merges, count_small
from txlog.core.effects import List, Program
from txlog.core.fates import walk_batches
from txlog.core.names import TopicPartition
from txlog.core.records import AbortedTxn, DataFile
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, relisting
from txlog.protocol.read import ReadIndexes, read_partition


class PartitionSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition consists of, from its log start on."""

    topic: str
    partition: int
    objects: int
    """Names in the partition's folder and in `rows/`. Each thousand costs one more request to open the partition."""
    segments: int
    """Sealed segments and cleaned runs."""
    tail_batches: int
    """Batches that are in no segment yet. Opening the partition costs one request for each."""
    files: int
    bytes: int
    """Size of the data files, and of rows inside the tail's commit records."""
    small_files: int
    """Files of less than half the size that a merge aims at."""
    rows: int
    """Rows, aborted ones included."""
    aborted_rows: int
    """Aborted rows in files. No reader of committed rows sees them, and a merge leaves them out."""
    merge_runs: int
    """Files that a merge would write now ..."""
    merge_files: int
    """... to replace this many files ..."""
    merge_bytes: int
    """... with this many bytes in all."""


def measure_partition(session: Session, tp: TopicPartition) -> PartitionSize:
    """Measure one partition, and what a merge would do now. Costs one GET for each segment, and two LISTs."""

    def program(ctx: Context, views: Views) -> Program[tuple[Views, PartitionSize]]:
        views, view = yield from get_fresh_view(ctx, views, tp)
        view, (indexes, aborted) = yield from relisting(ctx, view, read_partition)
        listed: Sequence[str] = yield List(tp.folder)
        rows: Sequence[str] = yield List(f"{tp.folder}rows/")
        size = _measured(view, indexes, aborted, len(listed) + len(rows))
        return with_view(views, view), size

    return session.call(f"measuring {tp}", program)


def _measured(view: PartitionView, indexes: ReadIndexes, aborted: Sequence[AbortedTxn], objects: int) -> PartitionSize:
    tp, state = view.topic_partition, view.state
    walk = [name for name in view.walk if name in indexes]
    tail = [stored.record for stored in view.tail]
    inline_bytes = sum(record.payload_bytes for record in tail)
    sealed = [indexes[name].index for name in walk]
    named: list[DataFile] = [
        *(file for index in sealed for file in index.files),
        *(file for each in tail for file in each.files),
    ]
    files = {file.path: file for file in named}
    batches = list(walk_batches(tp=tp, indexes=sealed, tail=tail, aborted=aborted))
    groups = choose_merges(
        walk,
        {name: indexes[name].index for name in walk},
        log_start_offset=state.log_start_offset,
        last_stable_offset=state.last_stable_offset,
        policy=MergePolicy(),
    )
    merged = {file.path: file for group in groups for name in group for file in indexes[name].index.files}
    return PartitionSize(
        topic=tp.topic,
        partition=tp.partition,
        objects=objects,
        segments=len(walk),
        tail_batches=len(tail),
        files=len(files),
        bytes=sum(file.bytes for file in files.values()) + inline_bytes,
        small_files=count_small(files.values()),
        rows=sum(batch.entry.records for batch in batches),
        aborted_rows=sum(batch.entry.records for batch in batches if batch.fate == "aborted"),
        merge_runs=len(groups),
        merge_files=len(merged),
        merge_bytes=sum(file.bytes for file in merged.values()),
    )
