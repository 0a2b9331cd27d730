"""Which fields does each metadata object have? One frozen struct per kind of object; `envelope` turns them into bytes.

See PROTOCOL.md, "Objects", for all fields in tables. Integers are int64; unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from txlog.core import names
from txlog.core.features import FORMAT_VERSION
from txlog.core.names import TopicPartition

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**48)]
Text = Annotated[str, Meta(max_length=32_768)]
Signed = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""An offset, or the id, epoch or sequence of a producer; -1: none."""
Time = Annotated[int, Meta(ge=-1, le=253_402_300_799_999)]
"""Milliseconds since 1970, up to the end of the year 9999; -1: never."""
FieldId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
FIRST_DRAWN_PRODUCER_ID = 2**62
"""Producer ids from here on are drawn by producers without transactional.id, not assigned by a coordinator (W18)."""

BatchKind: TypeAlias = Literal["data", "commit", "abort", "log_start", "expire"]
TransactionState: TypeAlias = Literal[
    "EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"
]
Outcome: TypeAlias = Literal["commit", "abort"]


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    """A stored object."""

    STATED: ClassVar[tuple[str, ...]] = ("version",)
    """Fields with a default only in Python: an object that does not state them is damaged."""

    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] = FORMAT_VERSION


# -- rows in files ----------------------------------------------------------------------------------------------------


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file that a commit record or an index names."""

    path: Text
    """Relative to the topic's folder; see names.check_data_path."""
    rows: Count
    bytes: Count
    digest: Digest | None
    """SHA-256 of the whole object; None for a file from Spark's own writer."""
    footer_digest: Digest
    """SHA-256 of the Parquet footer (thrift bytes, its length and the magic)."""
    row_groups: tuple[Count, ...]
    """Rows of each row group, in order."""
    statistics: dict[str, tuple[Any, Any, Count]] = {}
    """Field id -> (min, max, nulls) as JSON scalars; strings cut at 32 bytes."""


class IndexedFile(DataFile, frozen=True, kw_only=True):
    """A file in the table of a segment's index."""

    schema_id: Offset
    offset_column: bool = False
    """Whether the file has `_offset` and `_timestamp` columns (sealed inline rows, cleaned runs)."""
    sorted_by: tuple[FieldId, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the columns by which the rows of an index entry are sorted within a row group. Absent: rows are in the
    order of offsets. Only in stores with the feature `sorted-runs`."""


# -- entries of internal topics ---------------------------------------------------------------------------------------


class OffsetValue(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset for one partition: the next offset to read."""

    offset: Offset
    metadata: Annotated[str, Meta(max_length=4096)] = ""
    timestamp: Time = NO_TIMESTAMP
    conditional: bool = False
    """Committed under a condition (generation or starting offset): another commit must not overtake it while it is
    pending."""


class GroupValue(msgspec.Struct, frozen=True, kw_only=True):
    """Membership of a consumer group. A group has one member; its generation fences older members."""

    generation: Offset
    member_id: str
    client_id: str = ""
    topics: tuple[str, ...] = ()
    updated_at: Time = NO_TIMESTAMP


class StagedRows(msgspec.Struct, frozen=True, kw_only=True):
    """A few rows of a staged part. They are stored in the PREPARE_COMMIT itself and later in the commit record."""

    rows: Count
    payload: bytes
    """An Arrow IPC stream; base64 in JSON."""


class StagedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a staged transaction appends to one partition once it is decided.

    These are rows in files, inline rows, or committed offsets.
    """

    topic: str
    partition: Offset
    schema_id: Offset = 0
    files: tuple[DataFile, ...] = ()
    entries: tuple[OffsetEntry, ...] = ()
    inline: StagedRows | msgspec.UnsetType = msgspec.UNSET
    """Present only for inline rows, and only in stores with the feature `staged-inline`."""

    @property
    def rows(self) -> int:
        """Return how many rows or entries the part appends."""
        inline = self.inline.rows if self.inline is not msgspec.UNSET else 0
        return sum(file.rows for file in self.files) + inline + len(self.entries)

    @property
    def payload(self) -> bytes:
        """Return the inline rows; empty if there are none."""
        return self.inline.payload if self.inline is not msgspec.UNSET else b""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class StagedObject(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a large list of staged parts, beside the state partition's records."""

    name: Text
    bytes: Count
    digest: Digest


class TransactionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the transaction-state table: the whole state of one transactional.id (Kafka's TransactionMetadata)."""

    transactional_id: str
    producer_id: Offset
    producer_epoch: Offset
    last_epoch: Signed = NO_PRODUCER_EPOCH
    """Epoch of the transaction that this PREPARE_*/COMPLETE_* ends; -1 after an init."""
    last_outcome: Outcome | None = None
    """How the id's last transaction ended, or is about to end; None: the id had no transaction yet."""
    state: TransactionState
    timeout_ms: Offset
    partitions: tuple[TopicPartition, ...] = ()
    staged: tuple[StagedPart, ...] = ()
    staged_object: StagedObject | None = None
    started_at: Time = NO_TIMESTAMP
    updated_at: Time = NO_TIMESTAMP
    txn_scope: str = ""
    txn_version: Signed = -1
    """The highest committed `txn.version` of `txn_scope`; -1 if no version was committed."""
    txn_topics: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The topics that this version was committed for. Absent if they are not known."""
    write_id: Id


class TransactionEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="transaction"):
    """Key and value in `__transaction_state`; a None value is a tombstone."""

    key: str
    value: TransactionMetadata | None


class OffsetEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="offset"):
    """Key (group, topic, partition) and value in `__consumer_offsets`."""

    group: str
    topic: str
    partition: Offset
    value: OffsetValue | None

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.group, self.topic, self.partition)


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="group"):
    """Key (group) and value of a group's membership in `__consumer_offsets`."""

    group: str
    value: GroupValue | None


Entry: TypeAlias = TransactionEntry | OffsetEntry | GroupEntry


class StagedList(_Object, frozen=True, kw_only=True):
    """`<pid>-<epoch>-<unique>.staged`: the staged parts of one transaction."""

    staged: tuple[StagedPart, ...]


# -- the commit record ------------------------------------------------------------------------------------------------


class CommitRecord(_Object, frozen=True, kw_only=True):
    """One batch: `<base_offset>.batch`. Creating it is the append (PROTOCOL.md, "Appending")."""

    STATED: ClassVar[tuple[str, ...]] = ("version", "transactional")

    base_offset: Offset
    records: Count
    """Number of rows. A control batch without rows has 0 and takes one offset."""
    kind: BatchKind
    producer_id: Signed = NO_PRODUCER_ID
    producer_epoch: Signed = NO_PRODUCER_EPOCH
    base_sequence: Signed = NO_SEQUENCE
    transactional: bool = False
    timestamp: Time
    segment_base: Offset
    schema_id: Offset = 0
    files: tuple[DataFile, ...] = ()
    payload_bytes: Count = 0
    """Length of the inline rows (an Arrow IPC stream) that follow the line."""
    entries: tuple[Entry, ...] = ()
    write_id: Id
    previous: Digest
    """Digest of the record before. In a partition's first record it is the digest of its name
    (`PartitionState.empty`)."""
    coordinator_epoch: Signed = -1
    """In markers: offset of the PREPARE_* record that this marker rolls forward, in its state partition."""
    first_offset: Signed = NO_OFFSET
    """In an ABORT: first offset of the transaction here, -1 if it had no rows here."""
    last_stable_offset: Signed = NO_OFFSET
    """In an ABORT: the LSO just after this marker."""
    log_start_offset: Signed = NO_OFFSET
    """In a log_start: the new first offset."""
    deleted_version: Offset = 0
    """In the log_start of a deletion: the `deleted` version of the topic's metadata."""
    expired: tuple[Offset, ...] = ()
    """In an expire: producer ids whose state ends here."""

    @property
    def span(self) -> int:
        """Return how many offsets the batch takes: one per row, or one for a control batch without rows."""
        return self.records or 1

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.span - 1

    @property
    def last_sequence(self) -> int:
        return self.base_sequence + self.records - 1 if self.base_sequence >= 0 else NO_SEQUENCE


# -- sealed segments --------------------------------------------------------------------------------------------------


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
    rows: Count
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


# -- partition state --------------------------------------------------------------------------------------------------


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
    """A row of the folded offsets table, committed or pending; `position` is the offset of the record that wrote it."""

    position: Offset
    write_id: Id
    entry: OffsetEntry


class PendingOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets of one open transaction."""

    producer_id: Offset
    rows: tuple[OffsetRow, ...]


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the folded table of groups."""

    position: Offset
    write_id: Id
    entry: GroupEntry


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


# -- topics and the store ---------------------------------------------------------------------------------------------


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its id is written to Parquet and never reused."""

    id: FieldId
    name: Text
    type: str
    """One of the types in PROTOCOL.md, "Types"; list, struct and map have `fields`."""
    nullable: bool = True
    fields: tuple[SchemaField, ...] = ()


class TopicMetadata(_Object, frozen=True, kw_only=True):
    """`topic.<number>.json`: one version of a topic's metadata; the highest counts."""

    number: Offset
    topic: str
    topic_id: Id
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    config: dict[str, str] = {}
    """Only settings that were set: Kafka's keys, values as text."""
    schema: tuple[SchemaField, ...]
    schema_id: Offset
    """The number of the version that introduced `schema`."""
    created_at: Time
    deleted: bool = False
    write_id: Id


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


# -- the history of maintenance jobs ----------------------------------------------------------------------------------


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


STORED_OBJECTS = (
    StoreDescriptor,
    TopicMetadata,
    CommitRecord,
    SegmentIndex,
    TxnIndex,
    Snapshot,
    Boundary,
    Clean,
    StagedList,
    CleanupRun,
)
for _kind in STORED_OBJECTS:
    # msgspec builds its description of a struct when it first decodes one, and takes no lock. A second thread can then
    # use a half-made description, and the process dies of SIGSEGV. Only one thread imports a module, so this is done
    # here.
    msgspec.json.Decoder(_kind)
