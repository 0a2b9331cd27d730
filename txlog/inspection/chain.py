"""Which batches are in a partition, and what became of each of them?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from txlog.client import reading
from txlog.client.admin.descriptions import PartitionDescription
from txlog.client.session.runtime import Runtime
from txlog.core import names
from txlog.core.effects import Program
from txlog.core.fates import Fate, LogBatch, walk_batches
from txlog.core.names import TopicPartition
from txlog.core.records import AbortedTxn, BatchKind
from txlog.core.schema import OFFSET_COLUMN
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import load, relisting
from txlog.protocol.read import ReadIndexes, read_partition

BatchFate: TypeAlias = Fate | Literal["plain"]
"""Fate of a batch: `plain` without a transaction, else what became of its transaction so far; `control` has no rows."""


class ChainBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a partition, as the log describes it now."""

    base_offset: int
    last_offset: int
    records: int
    kind: BatchKind
    fate: BatchFate
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp: int
    object: str
    """The `.batch` or `.index` that names the batch."""
    rows_in: tuple[str, ...]
    """Files of its rows, relative to the topic's folder; `inline` for rows inside the record."""
    rows: list[dict[str, Any]] | None = None
    """Its rows with their `_offset`, if they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChain(PartitionDescription):
    """A partition, and its chain of batches from the log start to the end."""

    batches: tuple[ChainBatch, ...]


def dump_partition(runtime: Runtime, tp: TopicPartition) -> PartitionChain:
    """Return the chain of `tp` from its log start on, with the fate of each batch.

    Costs one LIST, and one GET for each object of the tail and each index. Deleted topics and txlog's own topics work
    too. Raises UnknownTopicOrPartitionError if there is no such partition, CorruptLogError with the name of a damaged
    or missing object.
    """
    chain = runtime.run(_partition(runtime.context(), tp))
    if not chain.log_end_offset:
        _check_exists(runtime, tp)
    return chain


def read_rows(runtime: Runtime, tp: TopicPartition, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield the stored rows of `[start, end)` in order, rows of open and aborted transactions included.

    Each row has its `_offset`, then its columns. Offsets outside of the log are left out. Raises InvalidRequestError
    for one of txlog's own topics, CorruptLogError with the name of a damaged or missing object.
    """
    check_has_rows(tp)
    view = runtime.run(load(runtime.context(), tp))
    start, end = max(start, view.state.log_start_offset), min(end, view.state.next_offset)
    if start >= end:
        return iter(())
    planned = reading.plan(runtime, tp.topic, tp.partition, start, end, "read_uncommitted")
    (task,) = reading.tasks(runtime, [planned], metadata_columns=(OFFSET_COLUMN,))
    rows = (row for batch in reading.read_task(task, runtime.store) for row in batch.to_pylist())
    return ({OFFSET_COLUMN: row.pop(OFFSET_COLUMN), **row} for row in rows)


def check_has_rows(tp: TopicPartition) -> None:
    """Raise InvalidRequestError for one of txlog's own topics."""
    if tp.topic in names.INTERNAL_TOPICS:
        raise InvalidRequestError(
            f"{tp.topic} has no rows but entries; its .batch and .snapshot objects tell them, and a "
            "partition of it its batches"
        )


def _check_exists(runtime: Runtime, tp: TopicPartition) -> None:
    if tp.topic not in names.INTERNAL_TOPICS:
        runtime.partition(tp.topic, tp.partition, 0)
        return
    constants = runtime.constants
    is_state = tp.topic == names.TRANSACTION_STATE_TOPIC
    partitions = constants.transaction_state_partitions if is_state else constants.consumer_offsets_partitions
    if tp.partition >= partitions:
        raise UnknownTopicOrPartitionError(
            f"{tp.topic} has no partition {tp.partition}: it has {partitions}, numbered 0 to {partitions - 1}"
        )


def _partition(ctx: Context, tp: TopicPartition) -> Program[PartitionChain]:
    view = yield from load(ctx, tp)
    view, (indexes, aborted) = yield from relisting(ctx, view, read_partition)
    return PartitionChain.of(view, indexes, aborted, batches=tuple(_batches(view, indexes, aborted)))


def _batches(view: PartitionView, indexes: ReadIndexes, aborted: Iterable[AbortedTxn]) -> Iterable[ChainBatch]:
    objects = {name.base_offset: name.index for name in indexes}
    slots = {stored.record.base_offset: names.batch_name(stored.slot) for stored in view.tail}
    for batch in walk_batches(
        tp=view.topic_partition,
        indexes=[read.index for read in indexes.values()],
        tail=[stored.record for stored in view.tail],
        aborted=aborted,
        log_start_offset=view.state.log_start_offset,
        first_open={entry.producer_id: entry.txn_first_offset for entry in view.state.open_transactions},
    ):
        entry, segment = batch.entry, batch.segment
        if batch.fate == "removed":
            continue
        rows_in = tuple(part.file.path for part in batch.rows_in_files())
        yield ChainBatch(
            base_offset=entry.base_offset,
            last_offset=batch.end_offset - 1,
            records=entry.records,
            kind=entry.kind,
            fate=_fate_of(batch),
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=entry.base_sequence,
            timestamp=entry.timestamp,
            object=slots[entry.base_offset] if segment is None else objects[segment.base_offset],
            rows_in=rows_in or (("inline",) if entry.records and segment is None else ()),
        )


def _fate_of(batch: LogBatch) -> BatchFate:
    is_plain = batch.fate == "committed" and batch.entry.kind == "data" and not batch.entry.transactional
    return "plain" if is_plain else batch.fate
