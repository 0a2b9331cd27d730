"""Which rows of several partitions belong to one cut in which every transaction is whole?

A cut is a vector of log ends, read after the table of transactions was folded, and what that fold (t0) showed of each
producer. A transaction is in it if it was decided to commit at t0 and has all its markers below the ends; one that came
later, or hangs, is in it nowhere (PROTOCOL.md, "Reading", invariant 17). This module answers for a batch; which batches
were aborted the logs say themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from txlog.core.moments import Moment
from txlog.core.names import TopicPartition
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, CommitRecord, IndexEntry, SegmentIndex, TransactionMetadata
from txlog.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCut:
    """One cut over partitions. A value: it may be pickled, and reads the same for as long as its rows are there."""

    ends: Mapping[TopicPartition, int]
    """The log end of each partition in it, its own offset not included."""
    settled: Mapping[int, int] = field(repr=False)
    """Producer id -> the highest epoch of a marker that t0 shows decided, and that is everywhere below `ends` if it is a
    COMMIT."""
    table_ends: tuple[int, ...] = field(repr=False)
    """Where each partition of the table of transactions ended at t0."""
    taken_at: Moment
    """Before t0."""

    def shows(self, producer_id: int, marker_epoch: int) -> bool:
        """Whether a transaction is settled in this cut; if it is, only an abort in the log hides its rows."""
        settled = self.settled.get(producer_id)
        if settled is not None:
            return marker_epoch <= settled
        # An id that the table lacks was either removed, which takes an ended transaction, or is younger than t0: a
        # producer id says in which slot of which partition it was first written.
        partitions = len(self.table_ends)
        return (
            producer_id >= FIRST_DRAWN_PRODUCER_ID
            or producer_id // partitions < self.table_ends[producer_id % partitions]
        )

    def hides(self, batch: CommitRecord | IndexEntry) -> bool:
        """Whether the rows of a batch below `ends` belong to a transaction that is not in this cut."""
        if batch.kind == "commit":
            return not self.shows(batch.producer_id, batch.producer_epoch)
        # A transaction of epoch e ends by a marker of epoch e + 1.
        return batch.transactional and not self.shows(batch.producer_id, batch.producer_epoch + 1)

    def check_compacted(self, tp: TopicPartition, index: SegmentIndex) -> None:
        """Raises InvalidRequestError if a compaction may have taken a row of this cut for one that is not in it (R19).

        A run says up to where it was compacted, and keeps whose every batch was, also of those it emptied (C2b, C3). A
        compaction that ended before the cut was taken went by transactions that the cut shows (C2c).
        """
        compacted = index.compacted
        if compacted is msgspec.UNSET:
            return
        if compacted.end_offset > self.ends[tp] or any(
            self.hides(entry) for entry in index.entries if entry.base_offset < compacted.end_offset
        ):
            raise InvalidRequestError(
                f"{tp}: this snapshot is older than a compaction by key of offsets below {compacted.end_offset}, which may have "
                "removed rows that it shows; take another one"
            )

    def check_age(self, now: Moment | int, grace_ms: int) -> None:
        """Raises InvalidRequestError beyond the grace: a merge need not keep what older cuts are told by (C3).

        `now` is both clocks of this process, or what its wall clock says where that is all that is known.
        To be called with a moment after the indexes were read that tell the rows of this cut apart.
        """
        age_ms = (Moment(now) if isinstance(now, int) else now).ms_since(self.taken_at)
        if age_ms >= grace_ms:
            raise InvalidRequestError(
                f"this snapshot is {age_ms // 1000} s old, and one holds for delete.grace.ms = {grace_ms} ms; take another one"
            )


def complete_at(table: Iterable[TransactionMetadata], table_ends: tuple[int, ...], taken_at: Moment) -> SnapshotCut:
    """What every snapshot shows that begins after this fold of the table: a cut without ends.

    A transaction that is prepared to commit may still be in some partitions only. One that is prepared to abort has rows
    that no snapshot shows, whatever the cut says of it.
    """
    settled = {txn.producer_id: txn.producer_epoch - (txn.state == "PREPARE_COMMIT") for txn in table}
    return SnapshotCut(ends={}, settled=settled, table_ends=table_ends, taken_at=taken_at)
