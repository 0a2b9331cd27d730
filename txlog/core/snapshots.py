"""Which rows of several partitions belong to one cut in which every transaction is whole?

A cut is a vector of log ends, read after the table of transactions was folded, and each producer's state in that fold
(t0). A transaction is in the cut if t0 shows it decided to commit and all its markers are below the ends. Otherwise,
because it is newer or hangs, the cut hides it in every partition (PROTOCOL.md, "Reading", invariant 17). This module
answers for one batch; the logs themselves show which batches were aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from txlog.core.ages import ClockReading
from txlog.core.names import TopicPartition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    CommitRecord,
    IndexEntry,
    SegmentIndex,
    TopicMetadata,
    TransactionMetadata,
)
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCut:
    """One cut over partitions. It is a value that may be pickled, and reads the same as long as its rows exist."""

    ends: Mapping[TopicPartition, int]
    """The log end of each partition in the cut (exclusive)."""
    settled: Mapping[int, int] = field(repr=False)
    """Producer id -> the highest marker epoch that t0 shows decided. If the marker is a COMMIT, it is below `ends` in
    all partitions."""
    table_ends: tuple[int, ...] = field(repr=False)
    """The end of each partition of the table of transactions at t0."""
    taken_at: ClockReading
    """A moment before t0."""
    topic_ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The ids of the topics that the cut was taken of, by name, as far as its taker knew them."""

    def check_topic(self, topic: TopicMetadata) -> None:
        """Raise UnknownTopicOrPartitionError if `topic` is another one of this name than the cut was taken of."""
        if self.topic_ids.get(topic.topic, topic.topic_id) != topic.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {topic.topic!r} was deleted and created again (version {topic.number}): this snapshot "
                "is of the deleted topic. "
                "hint: take a new snapshot"
            )

    def shows(self, producer_id: int, marker_epoch: int) -> bool:
        """Return whether a transaction is settled in this cut. If it is, only an abort in the log hides its rows."""
        settled = self.settled.get(producer_id)
        if settled is not None:
            return marker_epoch <= settled
        # The table lacks an id in two cases: the id was removed after its transaction ended, or it is newer than t0. A
        # producer id shows the partition and slot in which it was first written.
        partitions = len(self.table_ends)
        return (
            producer_id >= FIRST_DRAWN_PRODUCER_ID
            or producer_id // partitions < self.table_ends[producer_id % partitions]
        )

    def hides(self, batch: CommitRecord | IndexEntry) -> bool:
        """Return whether the rows of a batch below `ends` belong to a transaction that is not in this cut."""
        epoch = epoch_shown_with(batch)
        return epoch is not None and not self.shows(batch.producer_id, epoch)

    def check_compacted(self, tp: TopicPartition, index: SegmentIndex) -> None:
        """Raise InvalidRequestError if a compaction may have removed a row of this cut (R19).

        It may have removed it because of a newer row that is not in the cut. A run states how far it was compacted, and
        keeps the producer of every batch, also of those without rows (C2b, C3). A compaction that ended before the cut
        was taken used only transactions that the cut shows (C2c).
        """
        compacted = index.compacted
        if compacted is msgspec.UNSET:
            return
        if compacted.end_offset > self.ends[tp] or any(
            self.hides(entry) for entry in index.entries if entry.base_offset < compacted.end_offset
        ):
            raise InvalidRequestError(
                f"{tp}: this snapshot is older than a compaction by key of offsets below {compacted.end_offset}, "
                "which may have removed rows that it shows; take a newer one"
            )

    def check_age(self, now: ClockReading | int, grace_ms: int) -> None:
        """Raise InvalidRequestError if the cut is older than the grace.

        A merge need not keep what an older cut needs (C3). `now` is both clocks of this process, or only its wall clock
        if nothing else is known. Take it after the indexes were read that show which rows are in this cut.
        """
        age_ms = (ClockReading(now) if isinstance(now, int) else now).ms_since(self.taken_at)
        if age_ms >= grace_ms:
            raise InvalidRequestError(
                f"this snapshot is {age_ms // 1000} s old, and one holds for delete.grace.ms = "
                f"{grace_ms} ms; take another one"
            )


def epoch_shown_with(batch: CommitRecord | IndexEntry) -> int | None:
    """Return the epoch that a cut must show so that it shows a batch; None if the batch is of no transaction.

    The marker of a transaction of epoch e has epoch e + 1. A COMMIT that carries rows is its own marker. A commit in
    one phase has no marker: a cut shows it if it shows the end of the transaction before its epoch (W61). Otherwise it
    could show the second transaction of an id without the first.
    """
    if batch.kind == "commit":
        return batch.producer_epoch
    if batch.transactional:
        return batch.producer_epoch + 1
    is_one_phase = batch.kind == "data" and 0 <= batch.producer_id < FIRST_DRAWN_PRODUCER_ID
    return batch.producer_epoch if is_one_phase else None


def complete_at(
    table: Iterable[TransactionMetadata], table_ends: tuple[int, ...], taken_at: ClockReading
) -> SnapshotCut:
    """Return what every snapshot shows that begins after this fold of the table: a cut without ends.

    A transaction that is prepared to commit may still lack markers in some partitions. A transaction that is prepared
    to abort has rows that no snapshot shows, so the cut may show it as settled or not.
    """
    settled = {txn.producer_id: txn.producer_epoch - (txn.state == "PREPARE_COMMIT") for txn in table}
    return SnapshotCut(ends={}, settled=settled, table_ends=table_ends, taken_at=taken_at)
