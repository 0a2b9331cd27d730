"""What does each command print with `--output json`? These structs, and the descriptions of `txlog.client.admin`.

    topics create, alter         TopicDocument
    topics list, describe        list of TopicSummary, of TopicDocument
    topics delete                DeletionDocument
    get-offsets                  list of client.admin.OffsetInfo
    transactions list            list of client.admin.TransactionDescription
    transactions describe        client.admin.TransactionDescription
    transactions find-hanging    list of client.admin.HangingTransaction
    transactions abort           AbortDocument
    transactions expire          ExpireDocument
    consumer-groups list         list of client.admin.GroupInfo
    consumer-groups describe     client.admin.GroupInfo
    consumer-groups reset-offsets ResetDocument
    consumer-groups delete       GroupDeletionDocument
    dump-log                     client.dump.DumpedObject, client.dump.PartitionChain
    fsck                         maintenance.fsck.FsckReport
    history                      list of maintenance.history.HistoryRow
    merge                        list of MergeDocument
    compact                      list of CompactDocument
    maintain --once              maintenance.maintain.MaintainReport
    maintain --daemon            the same, a round a line
    produce                      ProduceDocument
    consume                      a row a line (see txlog.cli.rows)
    an error                     ErrorDocument, on the standard error

Times are milliseconds since 1970, sizes bytes. Fields are added, never renamed or removed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from txlog.core.records import SchemaField


class ErrorDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command failed."""

    error: str
    """The class, of `txlog.errors`; or `Interrupted`, by a signal."""
    message: str
    status: int
    """The exit status."""
    notes: tuple[str, ...] = ()
    """What else happened."""


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    topic: str
    topic_id: str
    version: int
    """Of its metadata; each change makes one."""
    partitions: int
    columns: int
    config: dict[str, str]
    """What was set for this topic."""
    changed_at: int


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """Where a partition begins and ends."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int


class TopicDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, whole. `columns` is what `--schema` reads."""

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
    """With --size: a maintenance.size.PartitionSize for each partition."""


class DeletionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was deleted, or would be."""

    kind: Literal["topic", "group"]
    name: str
    executed: bool
    """False for a dry run: nothing was changed."""


class GroupDeletionDocument(DeletionDocument, frozen=True, kw_only=True):
    """A consumer group that was deleted, or would be."""

    removed_members: tuple[str, ...]
    """Its members, which --force removes."""
    refusal: str | None
    """Of a dry run: why it would be refused, if it would be."""


class AbortDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator's abort did."""

    transactional_id: str
    result: Literal["aborted", "committed", "nothing open"]
    """`committed`: the decision to commit had been made, so it was finished."""
    producer_id: int
    producer_epoch: int
    """Afterwards; what an older epoch sends or commits is refused."""


class ExpireDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep over transactions did, or would do; by transactional.id."""

    executed: bool
    aborted: tuple[str, ...] = ()
    rolled_forward: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class ResetOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a group's offset."""

    topic: str
    partition: int
    before: int | None
    after: int
    asked: int | None
    """What was asked for, where the log does not hold it: `after` is its nearer end."""


class ResetDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A group's offsets that were changed, or would be."""

    group: str
    executed: bool
    offsets: tuple[ResetOffset, ...]
    removed_members: tuple[str, ...]
    """Members of the group, which --force removes first."""
    refusal: str | None
    """Of a dry run: why it would be refused, if it would be."""


class ProducedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that went to one partition; rows of others may lie between them."""

    partition: int
    records: int
    first_offset: int | None
    """None if the rows are staged: they get their offsets with the commit."""
    last_offset: int | None


class ProduceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `produce` wrote."""

    topic: str
    records: int
    transactional_id: str | None
    skipped: bool
    """This `txn.version` or a higher one had been committed before: nothing of it is visible."""
    partitions: tuple[ProducedRows, ...]


class RetentionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What retention removed from a partition, or would."""

    topic: str
    partition: int
    executed: bool
    log_start_before: int
    log_start_after: int
    segments: int
    rows: int
    bytes: int
    setting: str
    """`retention.ms` or `retention.bytes`; empty if a group holds back all that would go."""
    held_by: str | None
    """The consumer group of `retention.hold.groups` for which more would go, but stays."""
    held_until: int | None
    """When its hold ends, if it commits nothing more."""


class VacuumedKind(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one kind that go for one reason."""

    kind: str
    why: str
    objects: int
    bytes: int


class VacuumedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was deleted, or would be."""

    path: str
    kind: str
    why: str
    bytes: int | None


class WaitingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An object that nothing needs, and that stays until paused readers and writers have looked again."""

    path: str
    kind: str
    why: str
    until: int | None
    """None: the time begins with the first vacuum that deletes."""


class VacuumFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A damaged topic, of which nothing more was deleted."""

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


class MergeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A run of segments that became one, or would."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    generation: int
    outcome: Literal["merged", "lost", "planned"]
    """lost: another clean-up of the same offsets was faster; what this one wrote is left to vacuum."""
    segments_before: int
    files_before: int
    bytes_before: int
    rows: int | None = None
    files: int | None = None
    """1, or 0 if no committed row was left."""
    bytes: int | None = None


class CompactDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A pass over the compacted part of a partition, or how much there is to do."""

    topic: str
    partition: int
    outcome: Literal["compacted", "lost", "planned", "not due"]
    """lost: another clean-up of the same offsets was faster; what this one wrote is left to vacuum."""
    base_offset: int
    end_offset: int
    segments_before: int
    bytes_before: int
    expired_tombstones: int
    """Whose time had come: they went, or would."""
    dirty_bytes: int | None = None
    """Not compacted yet; of a plan."""
    dirty_ratio: float | None = None
    waits_for: str | None = None
    """Of a plan that is not due: why."""
    generation: int | None = None
    compacted_to: int | None = None
    """Below this offset no two rows have the same key."""
    files_before: int | None = None
    rows_before: int | None = None
    superseded: int | None = None
    """Rows that went because a newer one has their key."""
    tombstones: int | None = None
    """Those that are left."""
    keyless: int | None = None
    """Rows without a key, which all stay."""
    keys: int | None = None
    """Distinct ones in the part that had not been compacted yet."""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
