"""Which types do the fields of metadata objects share, and which fields do commit records, files and entries have?"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

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
# A value that is not listed is damage, and no entry with it is skipped (R22). A later one needs a feature.


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    """A stored object."""

    STATED: ClassVar[tuple[str, ...]] = ("version",)
    """Fields with a default only in Python: an object that does not state them is damaged."""

    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] = FORMAT_VERSION


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

    @property
    def file_fields(self) -> dict[str, Any]:
        """Return the fields that a file has in every record that names it."""
        return {name: getattr(self, name) for name in DataFile.__struct_fields__}


class IndexedFile(DataFile, frozen=True, kw_only=True):
    """A file in the table of a segment's index."""

    schema_id: Offset
    offset_column: bool = False
    """Whether the file has `_offset` and `_timestamp` columns (sealed inline rows, cleaned runs)."""
    sorted_by: tuple[FieldId, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the columns by which the rows of an index entry are sorted within a row group. Absent: rows are in the
    order of offsets. Only in stores with the feature `sorted-runs`."""


class OffsetValue(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset for one partition: the next offset to read."""

    offset: Offset
    metadata: Annotated[str, Meta(max_length=4096)] = ""
    timestamp: Time = NO_TIMESTAMP
    conditional: bool = False
    """Committed under a condition (generation or starting offset): another commit must not overtake it while it is
    pending."""


Numbers: TypeAlias = dict[str, tuple[Offset, ...]]
"""Partitions: the numbers of each topic, in order."""


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a group that shares its partitions."""

    member_id: str
    client_id: str = ""
    instance_id: str = ""
    """`group.instance.id`; empty for a dynamic member."""
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    """`partition.assignment.strategy`, the preferred one first."""
    session_timeout_ms: Offset
    generation: Offset
    """The newest generation that the member has seen. Its commits name this one."""
    assigned: Numbers = {}
    """What the group's generation gives to it."""
    owned: Numbers = {}
    """What it may read. No two members own one partition."""

    @property
    def assigned_partitions(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(topic, each) for topic, numbers in self.assigned.items() for each in numbers)


class GroupValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Membership of a consumer group.

    In a store with the feature `group-members` a group has `members`, and `member_id` is empty. In a store without it a
    group has one member, and its generation fences older members.
    """

    generation: Offset
    member_id: str
    client_id: str = ""
    topics: tuple[str, ...] = ()
    updated_at: Time = NO_TIMESTAMP
    assignor: str = ""
    """The assignor of this generation."""
    partitions: dict[str, Count] = {}
    """The numbers of partitions from which the assignment was computed."""
    members: tuple[GroupMember, ...] = ()
    """By member id."""


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
    """A record of the transaction-state table: the state of one transactional.id (Kafka's TransactionMetadata)."""

    transactional_id: str
    producer_id: Offset
    producer_epoch: Offset
    last_epoch: Signed = NO_PRODUCER_EPOCH
    """Epoch of the transaction that this `PREPARE_*` or `COMPLETE_*` ends; -1 after an init."""
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
    attached: tuple[TopicPartition, ...] | msgspec.UnsetType = msgspec.UNSET
    """Partitions where this instance may commit in one phase. Absent: none. Only in stores with the feature
    `combined-records`."""
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


class HeartbeatEntry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="heartbeat"):
    """Shows that a member of a group lives. Only in stores with the feature `group-members`."""

    group: str
    member_id: str


Entry: TypeAlias = TransactionEntry | OffsetEntry | GroupEntry | HeartbeatEntry


class StagedList(_Object, frozen=True, kw_only=True):
    """`<pid>-<epoch>-<unique>.staged`: the staged parts of one transaction."""

    staged: tuple[StagedPart, ...]


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
    more: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """The object holds the next record, too. Only in stores with the feature `combined-records`."""

    @property
    def span(self) -> int:
        """Return how many offsets the batch takes: one per row, or one for a control batch without rows."""
        return self.records or 1

    @property
    def asks_for_a_list(self) -> bool:
        """Return whether a reader that follows the tail lists the partition again: runs may have replaced what it
        knows, and rows in them may be erased (R23)."""
        return self.kind == "expire" and not self.expired

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.span - 1

    @property
    def last_sequence(self) -> int:
        return self.base_sequence + self.records - 1 if self.base_sequence >= 0 else NO_SEQUENCE
