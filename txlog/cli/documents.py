"""The structs that each command prints with `--output json`. Some are in `txlog.client.admin.descriptions`.

    topics create, alter         TopicDocument
    topics list, describe        list of TopicSummary, of TopicDocument
    topics delete                DeletionDocument
    get-offsets                  list of client.admin.descriptions.OffsetInfo
    transactions list            list of client.admin.descriptions.TransactionDescription
    transactions describe        client.admin.descriptions.TransactionDescription
    transactions find-hanging    list of client.admin.descriptions.HangingTransaction
    transactions abort           AbortDocument
    transactions expire          ExpireDocument
    erasures list                list of core.records.Erasure
    erasures cancel              CancelDocument
    consumer-groups list         list of client.admin.descriptions.GroupInfo
    consumer-groups describe     client.admin.descriptions.GroupInfo
    consumer-groups reset-offsets ResetDocument
    consumer-groups delete       GroupDeletionDocument
    dump-log                     inspection.objects.DumpedObject, inspection.chain.PartitionChain
    fsck                         maintenance.fsck.FsckReport
    history                      list of maintenance.history.HistoryRow
    doctor                       list of Finding
    top --once                   TopDocument
    top                          the same, one line for each look
    merge                        list of MergeDocument
    compact                      list of CompactDocument
    maintain --once              maintenance.maintain.MaintainReport
    maintain --daemon            the same, one line for each round
    produce                      ProduceDocument
    consume                      one line for each row (see txlog.cli.rows), unless --format is given
    an error                     ErrorDocument, on the standard error

Times are milliseconds since 1970, sizes bytes. Fields may be added, but are never renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from txlog.core.records import SchemaField

if TYPE_CHECKING:
    from txlog.client.admin.descriptions import OffsetReset

D = TypeVar("D", bound=msgspec.Struct)


def document_of(kind: type[D], *sources: object, **more: Any) -> D:
    """Return a struct whose fields are `more`, and otherwise the attributes of the same name of the first source with
    one."""
    for source in sources:
        for name in kind.__struct_fields__:
            if name not in more and hasattr(source, name):
                more[name] = getattr(source, name)
    return kind(**more)


class _OfPartition(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command failed."""

    error: str
    """The class of `txlog.errors`, or `Interrupted` after a signal."""
    message: str
    """What is wrong."""
    hint: str | None = None
    """What to do, if the error knows it."""
    status: int
    """The exit status."""
    notes: tuple[str, ...] = ()
    """Further facts about the failure."""


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    topic: str
    topic_id: str
    version: int
    """Version of the topic's metadata. Each change makes a new one."""
    partitions: int
    columns: int
    config: dict[str, str]
    """Settings of this topic."""
    changed_at: int


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Begin and end of a partition."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a topic's metadata that introduced columns."""

    schema_id: int
    changed_at: int
    changes: tuple[str, ...]
    """What is different from the columns before."""
    columns: tuple[SchemaField, ...]


class PublishedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """How far the tables of a topic in other formats are."""

    formats: dict[str, int]
    """Each format, and the version of its table."""
    publication: int
    cut_at: int
    """When the cut was taken that the tables show."""
    ends: tuple[int, ...]
    """The tables show rows below these offsets, by number of the partition."""
    behind_ms: int
    """How old the cut is, if committed rows follow it; else 0."""


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A topic with all details. `--schema` reads its `columns`."""

    topic: str
    topic_id: str
    version: int
    partitions: int
    config: dict[str, str]
    schema_id: int
    """The version that introduced the columns."""
    columns: tuple[SchemaField, ...]
    changed_at: int
    ends: tuple[PartitionEnds, ...]
    sizes: tuple[msgspec.Struct, ...] = ()
    """With --size: one maintenance.size.PartitionSize for each partition."""
    schema_history: tuple[SchemaVersion, ...] = ()
    """With --schema-history: each version that had new columns, oldest first."""
    published: PublishedDocument | None = None
    """None: the topic is not published."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What `doctor` found out about one thing."""

    check: str
    state: Literal["ok", "note", "problem"]
    """note: something lacks, or is slow, that not every program needs."""
    found: str
    advice: str | None = None
    """What to do."""


class TopPartition(_OfPartition, frozen=True, kw_only=True):
    """A partition in `top`."""

    log_end_offset: int
    waiting: int
    """Offsets that an open transaction hides from readers of committed rows."""
    rate: float | None
    """Offsets for each second since the look before; None at the first look."""


class TopGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in `top`."""

    group: str
    state: str
    lag: int | None
    """None: a partition of the group is damaged."""
    rate: float | None
    """Offsets that it committed for each second since the look before."""


class TopHold(msgspec.Struct, frozen=True, kw_only=True):
    """An open transaction in a partition."""

    transactional_id: str | None
    producer_id: int
    topic: str
    partition: int
    first_offset: int
    waiting: int
    """Offsets from its first one to the log end."""
    holds_lso: bool
    """Whether it is the one that holds the last stable offset back."""
    open_ms: int
    """Time since the transaction registered its first partition; if that is not known, `quiet_ms`."""
    quiet_ms: int
    """Time since its last row there."""
    advice: str


class TopDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What happens in a store now."""

    store: str
    at: int
    interval_ms: int | None
    """Time between the two looks that the rates are of."""
    partitions: tuple[TopPartition, ...]
    groups: tuple[TopGroup, ...]
    open_transactions: tuple[TopHold, ...]
    """The oldest first."""
    oldest_hold: TopHold | None
    """The oldest one that holds a last stable offset back."""
    damaged: tuple[str, ...] = ()
    """Damage that hides a partition."""


class DeletionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was deleted, or would be."""

    kind: Literal["topic", "group"]
    name: str
    executed: bool
    """False for a dry run: nothing was changed."""


class GroupDeletionDocument(DeletionDocument, frozen=True, kw_only=True):
    """A consumer group that was deleted, or would be."""

    removed_members: tuple[str, ...]
    """Its members, which --force removes."""
    refusal: str | None
    """In a dry run: the reason why the deletion would be refused, if it would be."""


class AbortDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operator's abort."""

    transactional_id: str
    result: Literal["aborted", "committed", "nothing open"]
    """`committed`: the decision to commit existed already, so the transaction was finished."""
    producer_id: int
    producer_epoch: int
    """The epoch after the abort. Requests with an older epoch are refused."""


class ExpireDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep over transactions did, or would do, by transactional.id."""

    executed: bool
    aborted: tuple[str, ...] = ()
    rolled_forward: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class ResetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A group's offsets that were changed, or would be."""

    group: str
    executed: bool
    offsets: tuple[OffsetReset, ...]
    removed_members: tuple[str, ...]
    """Members of the group, which --force removes first."""
    refusal: str | None
    """In a dry run: the reason why the change would be refused, if it would be."""


class ProducedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that were written to one partition. Rows of other writers may be between them."""

    partition: int
    records: int
    first_offset: int | None
    """None if the rows are staged, because they get their offsets at the commit."""
    last_offset: int | None


class ProduceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `produce` wrote."""

    topic: str
    records: int
    transactional_id: str | None
    skipped: bool
    """This `txn.version` or a higher one was committed before, so no row of this run is visible."""
    partitions: tuple[ProducedRows, ...]


class PublishDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest publication of a topic."""

    topic: str
    formats: tuple[str, ...]
    publication: int
    """The number of the newest publication; -1 if there is none."""
    publications: int
    """How many were made."""
    files_added: int
    files_removed: int
    rows_added: int
    rows_copied: int
    """Rows among those added that had to be copied to a new file."""
    catalog_commits: int | None
    """How many commits the table in a catalog got; None: the topic has none there."""
    must_rewrite: int
    """Files that other formats would misread and that could not be rewritten yet. The tables wait for them."""
    error: str | None = None
    """Why the topic could not be published. Then the numbers are 0, and `publication` is -1."""


class PublishedFileDocument(_OfPartition, frozen=True, kw_only=True):
    """A file of a published table."""

    url: str
    rows: int
    bytes: int
    removed: tuple[tuple[int, int], ...]
    """Rows of the file that are not in the table: first, and end."""


class SealedDocument(_OfPartition, frozen=True, kw_only=True):
    """Where the sealed part of a partition ends."""

    sealed_end: int
    """All rows below this offset are in sealed segments."""


class EraseDocument(_OfPartition, frozen=True, kw_only=True):
    """The rows that an erasure removed from a partition, or would."""

    rows: int
    segments: int | None = None
    """Segments and runs that were rewritten; None in a dry run."""
    bytes: int | None = None
    """Their bytes before."""
    executed: bool
    """False for a dry run: nothing was changed."""


class CancelDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure that was cancelled."""

    erasure_id: str


class RemainsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An object that still holds rows that match the condition of an erasure, or names a file that does."""

    path: str
    rows: int
    """0: it only names such a file."""
    is_current: bool
    """Whether a read that begins now may return the rows."""
    gone_at_ms: int | None
    """When vacuum may delete it, by the store's clock; 0: now. None: that is not known yet."""


class RetentionDocument(_OfPartition, frozen=True, kw_only=True):
    """What retention removed from a partition, or would."""

    executed: bool
    log_start_before: int
    log_start_after: int
    segments: int
    rows: int
    bytes: int
    setting: str
    """`retention.ms` or `retention.bytes`. Empty if nothing is removed."""
    held_by: str | None
    """The consumer group of `retention.hold.groups` that holds further rows back."""
    held_until: int | None
    """When the hold ends, if the group commits nothing more."""
    active_rows: int
    """Further rows beyond the limits, which stay because they are in the active segment."""


class VacuumedKind(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one kind that are deleted for the same reason."""

    kind: str
    why: str
    objects: int
    bytes: int


class _DeadObject(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str
    why: str


class VacuumedEntry(_DeadObject, frozen=True, kw_only=True):
    """An object that was deleted, or would be."""

    bytes: int | None


class WaitingEntry(_DeadObject, frozen=True, kw_only=True):
    """An object that nothing needs, but that stays until paused readers and writers have read the store again."""

    until: int | None
    """None: the time begins with the first vacuum that deletes."""


class VacuumFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in which nothing more was deleted, because it is damaged or its tables cannot go on."""

    topic: str
    error: str


class VacuumDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a vacuum deleted, or would."""

    store: str
    executed: bool
    topics: tuple[str, ...]
    partitions: int
    objects: int
    bytes: int
    kinds: tuple[VacuumedKind, ...]
    deleted: tuple[VacuumedEntry, ...]
    waiting: tuple[WaitingEntry, ...]
    failed: tuple[VacuumFailure, ...]


class MergeDocument(_OfPartition, frozen=True, kw_only=True):
    """A run of segments that was merged, or would be."""

    base_offset: int
    end_offset: int
    generation: int
    outcome: Literal["merged", "lost", "planned"]
    """lost: another job published a run of the same offsets first; vacuum deletes the files of this one."""
    segments_before: int
    files_before: int
    bytes_before: int
    rows: int | None = None
    files: int | None = None
    """1, or 0 if no committed row was left."""
    bytes: int | None = None


class CompactDocument(_OfPartition, frozen=True, kw_only=True):
    """A pass over the compacted part of a partition, or the work that is left in it."""

    outcome: Literal["compacted", "lost", "planned", "not due"]
    """lost: another job published a run of the same offsets first; vacuum deletes the files of this one."""
    base_offset: int
    end_offset: int
    segments_before: int
    bytes_before: int
    expired_tombstones: int
    """Tombstones past their `delete.retention.ms`, which were removed, or would be."""
    dirty_bytes: int | None = None
    """In a plan: bytes that no compaction has seen yet, of expired tombstones, and of rows below the log start."""
    dirty_ratio: float | None = None
    waits_for: str | None = None
    """In a plan that is not due: the reason."""
    generation: int | None = None
    compacted_to: int | None = None
    """Below this offset no two rows have the same key."""
    files_before: int | None = None
    rows_before: int | None = None
    superseded: int | None = None
    """Rows that were removed because a newer row has their key."""
    tombstones: int | None = None
    """Tombstones that are left."""
    keyless: int | None = None
    """Rows without a key. A compaction keeps all of them."""
    keys: int | None = None
    """Distinct keys in the part that no compaction had seen."""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
