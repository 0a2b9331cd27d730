"""The parts of a partition as plain values for operators.

Times are milliseconds since 1970; -1 means that there is no value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from txlog.core.records import AbortedTxn
from txlog.protocol.context import PartitionView
from txlog.protocol.read import ReadIndexes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """What a partition knows about a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int | None
    """First offset of its open transaction."""

    @classmethod
    def of(cls, view: PartitionView, producer_id: int) -> Self:
        """Return the description of a producer that the partition knows."""
        entry = view.state.producers[producer_id]
        return cls(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            last_sequence=entry.last_sequence,
            last_offset=entry.last_offset,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            txn_first_offset=entry.txn_first_offset if entry.txn_first_offset >= 0 else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDescription:
    """A sealed segment or cleaned run."""

    name: str
    """Name of its `.index`."""
    base_offset: int
    end_offset: int
    generation: int
    batches: int
    records: int
    files: int
    bytes: int
    aborted_txns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition: its ends, segments, active tail, open and aborted transactions."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    sealed_end: int
    """Below this offset the log is in segments; from here on it is in `.batch` objects, the tail."""
    boundary: int
    segments: tuple[SegmentDescription, ...]
    tail_batches: int
    tail_records: int
    tail_bytes: int
    """Size of the tail's commit records and of the files that they name."""
    last_timestamp: int
    open_transactions: tuple[ProducerDescription, ...]
    """Transactions without a marker here. The first of them holds the last stable offset back."""
    aborted: tuple[AbortedTxn, ...]
    """Transactions that were aborted after they had written rows here."""

    @classmethod
    def of(cls, view: PartitionView, indexes: ReadIndexes, aborted: tuple[AbortedTxn, ...], **more: Any) -> Self:
        """Return what `view` and the indexes of its segments show. `more` are fields of a subclass."""
        state, tail = view.state, [stored.record for stored in view.tail]
        read = [(name, indexes[name].index) for name in view.walk if name in indexes]
        return cls(
            topic=view.topic_partition.topic,
            partition=view.topic_partition.partition,
            log_start_offset=state.log_start_offset,
            last_stable_offset=state.last_stable_offset,
            log_end_offset=state.next_offset,
            sealed_end=view.sealed_end,
            boundary=view.boundary,
            segments=tuple(
                SegmentDescription(
                    name=name.index,
                    base_offset=name.base_offset,
                    end_offset=name.end_offset,
                    generation=name.generation,
                    batches=len(index.entries),
                    records=sum(entry.records for entry in index.entries),
                    files=len(index.files),
                    bytes=sum(file.bytes for file in index.files),
                    aborted_txns=index.aborted_txns,
                )
                for name, index in read
            ),
            tail_batches=len(tail),
            tail_records=sum(record.records for record in tail),
            tail_bytes=sum(len(stored.data) for stored in view.tail)
            + sum(file.bytes for record in tail for file in record.files),
            last_timestamp=state.last_timestamp,
            open_transactions=tuple(
                ProducerDescription.of(view, entry.producer_id) for entry in state.open_transactions
            ),
            aborted=aborted,
            **more,
        )
