"""Which fields have the objects of sealed segments and cleaned runs?"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from txlog.core import names
from txlog.core.records.base import BatchKind, Count, FieldId, Int64, Offset, Signed, Text, Time, _Object
from txlog.core.records.commit import IndexedFile


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a sealed segment, control batches included."""

    base_offset: Offset
    records: Count
    kind: BatchKind
    producer_id: Signed
    producer_epoch: Signed
    base_sequence: Signed
    transactional: bool
    timestamp: Time
    file: Offset | None
    """Position in the table of the file that holds the batch's first row. Further rows are in the next files of the
    table."""
    first_row: Count = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + (self.records or 1)


class Tombstones(msgspec.Struct, frozen=True, kw_only=True):
    """Tombstones of a compacted run that were first seen by the same compaction."""

    end_offset: Offset
    """Their offsets are below this, and at or above the `end_offset` of the item before."""
    rows: Annotated[int, Meta(ge=1, le=2**48)]
    delete_at: Int64
    """Kafka's delete horizon (ms): from then on a compaction may remove them. Many years ahead if delete.retention.ms
    is large."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition was compacted when a run was made."""

    key: tuple[FieldId, ...]
    """Ids of the key's columns, in order. The other fields hold only for this key."""
    end_offset: Offset
    """Below this offset no two rows of the log have the same key. It is at most the run's end."""
    tombstones: tuple[Tombstones, ...] = ()
    """The tombstones left in the run, in order. A compaction has not seen a tombstone after the last item yet."""


class SegmentIndex(_Object, frozen=True, kw_only=True):
    """`<base>-<end>-<generation>[-<unique>].index`: its existence declares the segment sealed (generation 0)."""

    partition: Text
    """Its partition, `<topic>-<number>`: the other fields may fit another partition, too."""
    base_offset: Offset
    end_offset: Offset
    generation: Count
    files: tuple[IndexedFile, ...]
    entries: tuple[IndexEntry, ...]
    aborted_txns: Count
    """Entries of the `.txnindex`. If this is above 0, a missing `.txnindex` is an error."""
    last_digest: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$", max_length=64)]
    """Digest of the segment's last record; empty in a cleaned run."""
    last_stable_offset: Offset = 0
    """The LSO at the segment's end: a fetch that ends at or below it needs no later `.txnindex`."""
    compacted: Compaction | msgspec.UnsetType = msgspec.UNSET
    """Present only in runs of a compaction, and in merges of such runs."""


class AbortedTxn(msgspec.Struct, frozen=True, kw_only=True):
    """One aborted transaction, in the index of the segment that holds its marker (Kafka's fields)."""

    version: Annotated[int, Meta(ge=0, le=0)] = 0
    producer_id: Offset
    first_offset: Offset
    """Offset of the first row of the transaction, inclusive."""
    last_offset: Offset
    """Offset of the ABORT marker, inclusive."""
    last_stable_offset: Offset
    """The LSO just after the marker."""


class TxnIndex(_Object, frozen=True, kw_only=True):
    """`….txnindex`: the aborted transactions of a segment, in the order of their markers."""

    partition: Text
    """As in the segment's index."""
    aborted: tuple[AbortedTxn, ...]


class CleanedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A current cleaned run; `unique` completes its name."""

    base_offset: Offset
    end_offset: Offset
    generation: Annotated[int, Meta(ge=1, le=2**48)]
    unique: str

    @property
    def name(self) -> names.SegmentName:
        return names.SegmentName(self.base_offset, self.end_offset, self.generation, self.unique)


class Superseded(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a maintenance job superseded, and since when."""

    name: Text
    since: Time


class Clean(_Object, frozen=True, kw_only=True):
    """`<n>.clean`: the complete current set of cleaned runs of a partition (C4)."""

    number: Offset
    runs: tuple[CleanedRun, ...]
    superseded: tuple[Superseded, ...] = ()
    created_at: Time


class Boundary(_Object, frozen=True, kw_only=True):
    """`<offset>.boundary`: slots below `offset` may have been deleted; the highest counts."""

    offset: Offset
    created_at: Time
