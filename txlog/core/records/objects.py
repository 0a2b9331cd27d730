"""Which fields do the other objects have: topics, the store, segments, runs, snapshots and the history of jobs?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from txlog.core import names
from txlog.core.records.commit import (
    NO_OFFSET,
    NO_SEQUENCE,
    BatchKind,
    Count,
    Digest,
    FieldId,
    GroupEntry,
    Id,
    IndexedFile,
    Int64,
    Offset,
    OffsetEntry,
    Signed,
    Text,
    Time,
    TransactionMetadata,
    _Object,
)

# -- topics and the store ---------------------------------------------------------------------------------------------


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its id is written to Parquet and never reused."""

    id: FieldId
    name: Text
    type: str
    """One of the types in PROTOCOL.md, "Types"; list, struct and map have `fields`."""
    nullable: bool = True
    fields: tuple[SchemaField, ...] = ()
    default: bool | int | float | str | msgspec.UnsetType = msgspec.UNSET
    """What rows have that were written before the column was added; see `schema.check_default`. UNSET: null."""


class TopicMetadata(_Object, frozen=True, kw_only=True):
    """`topic.<number>.json`: one version of a topic's metadata; the highest counts."""

    number: Offset
    topic: str
    topic_id: Id
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    config: dict[str, str] = msgspec.field(default_factory=dict)
    """Only settings that were set: Kafka's keys, values as text."""
    schema: tuple[SchemaField, ...]
    schema_id: Offset
    """The number of the version that introduced `schema`."""
    created_at: Time
    deleted: bool = False
    write_id: Id
    last_field_id: FieldId | msgspec.UnsetType = msgspec.UNSET
    """The highest field id of all versions. UNSET: columns were only added, so it is the highest of `schema`."""
    deleting: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the topic is being deleted: it takes no staged rows any more, and a later version ends it. UNSET: no."""


class StoreConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Constants that the fold depends on. They never change after the store was made."""

    delete_grace_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 86_400_000
    producer_id_expiration_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 86_400_000
    transactional_id_expiration_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 604_800_000
    transaction_state_partitions: Annotated[int, Meta(ge=1, le=10_000)] = 50
    consumer_offsets_partitions: Annotated[int, Meta(ge=1, le=10_000)] = 50
    hash: Literal["java_string"] = "java_string"
    """The hash that maps a transactional.id or group.id to its partition: abs(javaStringHash) mod N."""
    key_hash: Literal["murmur2"] = "murmur2"


class StoreDescriptor(_Object, frozen=True, kw_only=True):
    """`txlog.json`: what this store is. It is created once and never changed."""

    STATED: ClassVar[tuple[str, ...]] = (
        "version",
        "format",
        "features",
        *(f"constants.{name}" for name in StoreConstants.__struct_fields__),
    )

    format: Literal["txlog"] = "txlog"
    features: tuple[str, ...] = ()
    """Features that readers and writers must know; they refuse a store with an unknown one."""
    store_id: Id
    created_at: Time
    constants: StoreConstants


# -- segments and runs ------------------------------------------------------------------------------------------------


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


# -- snapshots of a partition's state ---------------------------------------------------------------------------------


class BatchMetadata(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One of a producer's last five batches (Kafka's BatchMetadata)."""

    base_sequence: Signed
    last_sequence: Signed
    base_offset: Offset
    timestamp: Time


class ProducerStateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A producer's last batches and open transaction in a partition (Kafka's ProducerStateEntry)."""

    producer_id: Offset
    producer_epoch: Offset
    last_sequence: Signed = NO_SEQUENCE
    last_offset: Signed = NO_OFFSET
    timestamp: Time
    coordinator_epoch: Signed = -1
    batches: tuple[BatchMetadata, ...] = ()
    txn_first_offset: Signed = NO_OFFSET
    """First offset of the open transaction; -1 if there is no open transaction."""


class TransactionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the folded transaction-state table: the id's last record, and its offset."""

    offset: Offset
    value: TransactionMetadata


class OffsetRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the folded offsets table, committed or pending; `position` is the offset of the entry itself."""

    position: Offset
    write_id: Id
    entry: OffsetEntry


class PendingOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one open transaction."""

    producer_id: Offset
    rows: tuple[OffsetRow, ...]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """The last heartbeat of a member."""

    member_id: str
    timestamp: Time
    """Of the record that holds it."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of the folded table of groups."""

    position: Offset
    write_id: Id
    entry: GroupEntry
    beats: tuple[Heartbeat, ...] = ()
    """By member id. Every member has one."""


class Snapshot(_Object, frozen=True, kw_only=True):
    """`<offset>.snapshot`: the fold of a partition's chain up to `offset`, a pure function of the chain."""

    partition: Text
    """Its partition, `<topic>-<number>`: the other fields may fit another partition, too."""
    offset: Offset
    log_start_offset: Offset
    deleted_version: Offset = 0
    last_timestamp: Time
    last_digest: Digest
    producers: tuple[ProducerStateEntry, ...] = ()
    transactions: tuple[TransactionRow, ...] = ()
    committed: tuple[OffsetRow, ...] = ()
    pending: tuple[PendingOffsets, ...] = ()
    groups: tuple[GroupRow, ...] = ()


# -- erasures and the history of maintenance jobs ---------------------------------------------------------------------


class Erasure(_Object, frozen=True, kw_only=True):
    """`__erasures/<erasure_id>.json`: an erasure of rows that has begun. It is deleted when the erasure has ended."""

    erasure_id: Id
    """As in the name."""
    topic: Text
    topic_id: Id
    schema_id: Offset
    """The version of the topic whose columns `where` names."""
    where: Text
    """The condition. Rows for which it is true are erased."""
    ends: tuple[Offset, ...]
    """By partition: rows below this offset are erased, and later ones stay."""
    created_at: Time


class CleanupStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did to one partition: one run that it made, one move of the log start, or one round of deletions."""

    job: Text
    """merge, compact, retention, vacuum or repair. A reader also shows a name that it does not know."""
    topic: Text
    partition: Int64
    started_at: Time
    ended_at: Time
    outcome: Text
    """published, discarded (another job was first), deleted or failed."""
    base_offset: Signed = NO_OFFSET
    """The first offset that the job worked on; -1 if there is no such offset."""
    end_offset: Signed = NO_OFFSET
    generation: Signed = -1
    """Generation of the run that the job made; -1 if it made no run."""
    input_files: Count = 0
    output_files: Count = 0
    rows_read: Count = 0
    rows_written: Count = 0
    bytes_read: Count = 0
    bytes_written: Count = 0
    deleted_objects: Count = 0
    deleted_bytes: Count = 0
    message: Text = ""
    """Why the step failed."""


class CleanupRun(_Object, frozen=True, kw_only=True):
    """`<started>-<unique>.json`: one run of a job, written when it has ended. No other object depends on it."""

    run_id: Text
    """As in the name."""
    job: Text
    """The job that was called; maintain stands for all of them."""
    by: Text
    """The process that ran it, and its host."""
    started_at: Time
    """As in the name."""
    ended_at: Time
    steps: tuple[CleanupStep, ...]
