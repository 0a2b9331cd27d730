"""Which fields has the snapshot of a partition's state?"""

from __future__ import annotations

import msgspec

from txlog.core.records.base import NO_OFFSET, NO_SEQUENCE, Digest, Id, Offset, Signed, Text, Time, _Object
from txlog.core.records.commit import GroupEntry, OffsetEntry, TransactionMetadata


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
