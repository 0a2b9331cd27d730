"""How does each record change a partition's state?

`replay` is the only fold: live appends, loading and recovery use it. It is lenient: it applies every record that is in
the chain, and `append_rules` judges. A state is immutable; `replay` returns a new one. See
PROTOCOL.md, "Partition state".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeAlias

import msgspec

from txlog.core import envelope, names
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import (
    NO_OFFSET,
    NO_SEQUENCE,
    BatchMetadata,
    CommitRecord,
    GroupEntry,
    GroupRow,
    Heartbeat,
    HeartbeatEntry,
    OffsetRow,
    ProducerStateEntry,
    Snapshot,
    TransactionEntry,
    TransactionRow,
)
from txlog.errors import CorruptRecordError

BATCHES_TO_RETAIN = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: a duplicate of one of these batches is detected."""


OffsetKey: TypeAlias = tuple[str, str, int]
"""(group, topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The fold of a partition's chain up to `next_offset`."""

    topic_partition: TopicPartition
    last_digest: str
    """The `previous` of the next record."""
    log_start_offset: int = 0
    next_offset: int = 0
    """The log end offset. It equals the high watermark, because a published batch is as durable as the store."""
    segment_base: int = 0
    segment_batches: int = 0
    segment_bytes: int = 0
    segment_record_bytes: int = 0
    """Size of the active segment's records without their inline rows; its index will repeat this."""
    segment_started_at: int = -1
    last_timestamp: int = -1
    deleted_version: int = 0
    """The topic version whose deletion emptied this partition. Rows with a lower schema_id are refused."""
    producers: Mapping[int, ProducerStateEntry] = field(default_factory=dict)
    transactions: Mapping[str, TransactionRow] = field(default_factory=dict)
    committed: Mapping[OffsetKey, OffsetRow] = field(default_factory=dict)
    pending: Mapping[int, Mapping[OffsetKey, OffsetRow]] = field(default_factory=dict)
    groups: Mapping[str, GroupRow] = field(default_factory=dict)
    opened: Mapping[int, ProducerStateEntry] | None = field(default=None, repr=False, compare=False)
    """Those of `producers` with an open transaction, as a fold found them; None: not computed yet. A partition may have
    100,000 producers, and each append needs its LSO."""

    @classmethod
    def empty(cls, tp: TopicPartition) -> Self:
        """Return the state before a partition's first record.

        The first record names the digest of the partition's name where others name the record before, so it does not
        fit into another partition.
        """
        return cls(topic_partition=tp, last_digest=envelope.digest(str(tp).encode()))

    @property
    def last_stable_offset(self) -> int:
        """Return the last stable offset.

        It is the first offset of the earliest open transaction with rows at or above the log start, else the log end.
        """
        return lso_of(self.open_producers, self.next_offset, self.log_start_offset)

    @property
    def open_producers(self) -> Mapping[int, ProducerStateEntry]:
        """Return the producers with an open transaction here, by id."""
        if self.opened is not None:
            return self.opened
        return {pid: entry for pid, entry in self.producers.items() if entry.txn_first_offset >= 0}

    @property
    def open_transactions(self) -> tuple[ProducerStateEntry, ...]:
        """Return the producers with an open transaction here, earliest first."""
        return tuple(sorted(self.open_producers.values(), key=lambda entry: entry.txn_first_offset))


def lso_of(
    producers: Mapping[int, ProducerStateEntry], next_offset: int, log_start_offset: int, but: int | None = None
) -> int:
    """Return the last stable offset without the transaction of producer `but` (invariant 7)."""
    first = min(
        (e.txn_first_offset for pid, e in producers.items() if pid != but and _holds_back(e, log_start_offset)),
        default=next_offset,
    )
    return max(first, log_start_offset)


def _holds_back(entry: ProducerStateEntry, log_start_offset: int) -> bool:
    """Return whether a producer has an open transaction with rows at or above the log start.

    A deletion of the topic leaves no row of the transaction, so rows that are written later need not wait for its end.
    """
    return entry.txn_first_offset >= 0 and entry.last_offset >= log_start_offset


def kept_lso(state: PartitionState, found: int) -> int:
    """Return the LSO at `state`, compared with an index that states `found`.

    The result is `found` if that is the log start and a transaction is open. Older writers let an open transaction
    without remaining rows hold the LSO there.
    """
    lso = state.last_stable_offset
    return found if found == state.log_start_offset < lso and state.open_producers else lso


def kept_snapshot(expected: Snapshot, found: Snapshot) -> Snapshot:
    """Return `expected` with those first offsets of `found` that are lower and lie below the log start.

    Older writers kept the old first offset of a transaction that had lost all its rows.
    """
    firsts = {entry.producer_id: entry.txn_first_offset for entry in found.producers}
    kept = []
    for entry in expected.producers:
        first = firsts.get(entry.producer_id, NO_OFFSET)
        if 0 <= first < min(entry.txn_first_offset, expected.log_start_offset):
            entry = msgspec.structs.replace(entry, txn_first_offset=first)
        kept.append(entry)
    return msgspec.structs.replace(expected, producers=tuple(kept))


def replay(state: PartitionState, records: Iterable[StoredRecord]) -> PartitionState:
    """Return `state` after `records`, which must follow it in the chain; raise CorruptRecordError if they do not."""
    fold: _Fold | None = None
    for stored in records:
        fold = fold or _Fold(state)
        fold.apply(stored)
    return fold.state() if fold else state


class _Fold:
    """The mutable inside of `replay`: dictionaries are copied once for a run of records."""

    def __init__(self, state: PartitionState) -> None:
        self.base = state
        self.producers = dict(state.producers)
        self.opened = dict(state.open_producers)
        self.transactions = dict(state.transactions)
        self.committed = dict(state.committed)
        self.pending = {pid: dict(rows) for pid, rows in state.pending.items()}
        self.groups = dict(state.groups)
        self.log_start_offset = state.log_start_offset
        self.next_offset = state.next_offset
        self.segment_base = state.segment_base
        self.segment_batches = state.segment_batches
        self.segment_bytes = state.segment_bytes
        self.segment_started_at = state.segment_started_at
        self.segment_record_bytes = state.segment_record_bytes
        self.last_timestamp = state.last_timestamp
        self.last_digest = state.last_digest
        self.last_base: int | None = None
        """Base offset of the last record that this fold took."""
        self.deleted_version = state.deleted_version

    def state(self) -> PartitionState:
        changed = {name: value for name, value in vars(self).items() if name not in ("base", "last_base")}
        return PartitionState(topic_partition=self.base.topic_partition, **changed)

    def apply(self, stored: StoredRecord) -> None:
        record = stored.record
        self._check_link(record)
        self._count_segment(stored)
        if record.kind == "data":
            self._apply_data(record)
        elif record.kind in ("commit", "abort"):
            self._apply_marker(record)
        elif record.kind == "log_start":
            self.log_start_offset = max(self.log_start_offset, min(record.log_start_offset, record.end_offset))
            self.deleted_version = max(self.deleted_version, record.deleted_version)
        elif record.kind == "expire":
            for pid in record.expired:
                self.producers.pop(pid, None)
                self.opened.pop(pid, None)
                self.pending.pop(pid, None)
        self.next_offset = record.end_offset
        self.last_timestamp = record.timestamp
        self.last_digest = stored.digest
        self.last_base = record.base_offset

    def _check_link(self, record: CommitRecord) -> None:
        """Raise unless the record follows the one before it (R6, invariant 1)."""
        path = self.base.topic_partition.folder + names.batch_name(record.base_offset)
        if record.base_offset != self.next_offset:
            raise CorruptRecordError(f"{path}: expected a batch at offset {self.next_offset}; the chain has a hole")
        if record.previous != self.last_digest:
            if not record.base_offset:
                raise CorruptRecordError(
                    f"{path}: as the first record of {self.base.topic_partition} it names {self.last_digest[:12]}… as "
                    f"the one before it, and it says {record.previous[:12] or 'nothing'}…; it is another partition's"
                )
            before = f"what ends at offset {record.base_offset}"
            if self.last_base is not None:
                before = self.base.topic_partition.folder + names.batch_name(self.last_base)
            raise CorruptRecordError(
                f"{path}: it follows a record with digest {record.previous[:12] or 'none'}…, the one before it "
                f"({before}) has {self.last_digest[:12]}…; one of the two was replaced"
            )
        if record.segment_base not in (record.base_offset, self.segment_base):
            raise CorruptRecordError(
                f"{path}: segment_base {record.segment_base}, the active segment begins at {self.segment_base}"
            )
        if record.timestamp < self.last_timestamp:
            raise CorruptRecordError(
                f"{path}: its timestamp {record.timestamp} is before {self.last_timestamp}, "
                "that of the record before it"
            )
        if record.kind == "abort":
            self._check_abort(record, path)

    def _check_abort(self, record: CommitRecord, path: str) -> None:
        """Raise CorruptRecordError unless an ABORT agrees with the chain (PROTOCOL.md, R21).

        Readers hide rows by what the ABORT says.
        """
        old = self.producers.get(record.producer_id)
        first = old.txn_first_offset if old is not None else NO_OFFSET
        lso = lso_of(self.opened, record.end_offset, self.log_start_offset, but=record.producer_id)
        # Older writers kept the transaction's old first offset, which lies below the log start.
        fits = record.first_offset == first or 0 <= record.first_offset < min(first, self.log_start_offset)
        # If the last stable offset is too low, readers only read more transaction indexes.
        if not fits or record.last_stable_offset > lso:
            raise CorruptRecordError(
                f"{path}: the ABORT of producer {record.producer_id} says first offset {record.first_offset} and last "
                f"stable offset {record.last_stable_offset}; by the records before it these are {first} and {lso}"
            )

    def _count_segment(self, stored: StoredRecord) -> None:
        record = stored.record
        if record.segment_base != self.segment_base:
            self.segment_base, self.segment_started_at = record.segment_base, -1
            self.segment_batches = self.segment_bytes = self.segment_record_bytes = 0
        # An object of several records counts once: it is one to read, however many writers share it.
        self.segment_batches += stored.slot == record.base_offset
        self.segment_bytes += len(stored.data) + sum(file.bytes for file in record.files)
        self.segment_record_bytes += len(stored.data) - record.payload_bytes
        if self.segment_started_at < 0:
            self.segment_started_at = record.timestamp

    def _apply_data(self, record: CommitRecord) -> None:
        pid = record.producer_id
        if pid >= 0:
            old = self.producers.get(pid)
            batches = old.batches if old and old.producer_epoch == record.producer_epoch else ()
            last_sequence = old.last_sequence if old and old.producer_epoch == record.producer_epoch else NO_SEQUENCE
            if record.base_sequence >= 0:
                batch = BatchMetadata(
                    base_sequence=record.base_sequence,
                    last_sequence=record.last_sequence,
                    base_offset=record.base_offset,
                    timestamp=record.timestamp,
                )
                batches = (*batches, batch)[-BATCHES_TO_RETAIN:]
                last_sequence = record.last_sequence
            was_open = old is not None and old.txn_first_offset >= 0
            first = old.txn_first_offset if old and _holds_back(old, self.log_start_offset) else NO_OFFSET
            if first < 0 and (record.transactional or was_open):
                # An open transaction without remaining rows begins at its next rows: the LSO must not fall to the
                # removed ones.
                first = record.base_offset
            entry = self.producers[pid] = ProducerStateEntry(
                producer_id=pid,
                producer_epoch=record.producer_epoch,
                last_sequence=last_sequence,
                last_offset=record.last_offset,
                timestamp=record.timestamp,
                coordinator_epoch=old.coordinator_epoch if old else -1,
                batches=batches,
                txn_first_offset=first,
            )
            if first >= 0:
                self.opened[pid] = entry
        self._apply_entries(record, pending_of=pid if record.transactional else None)

    def _apply_marker(self, record: CommitRecord) -> None:
        pid = record.producer_id
        old = self.producers.get(pid)
        same_epoch = old is not None and old.producer_epoch == record.producer_epoch
        self.producers[pid] = ProducerStateEntry(
            producer_id=pid,
            producer_epoch=record.producer_epoch,
            last_sequence=old.last_sequence if old and same_epoch else NO_SEQUENCE,
            last_offset=record.last_offset,
            timestamp=record.timestamp,
            coordinator_epoch=max(record.coordinator_epoch, old.coordinator_epoch if old else -1),
            batches=old.batches if old and same_epoch else (),
        )
        self.opened.pop(pid, None)
        rows = self.pending.pop(pid, {})
        if record.kind == "commit":
            for row in rows.values():
                self._commit_offset(row)
            self._apply_entries(record, pending_of=None)

    def _apply_entries(self, record: CommitRecord, pending_of: int | None) -> None:
        for number, entry in enumerate(record.entries):
            position = record.base_offset + number
            if isinstance(entry, TransactionEntry):
                if entry.value is None:
                    self.transactions.pop(entry.key, None)
                else:
                    self.transactions[entry.key] = TransactionRow(offset=position, value=entry.value)
            elif isinstance(entry, GroupEntry):
                self._apply_group(GroupRow(position=position, write_id=record.write_id, entry=entry))
            elif isinstance(entry, HeartbeatEntry):
                self._apply_heartbeat(entry, record.timestamp)
            else:
                row = OffsetRow(position=position, write_id=record.write_id, entry=entry)
                if pending_of is None:
                    self._commit_offset(row)
                else:
                    self.pending.setdefault(pending_of, {})[entry.key] = row

    def _apply_group(self, row: GroupRow) -> None:
        """Set or remove the row of a group. It keeps only heartbeats of its own members."""
        group, value = row.entry.group, row.entry.value
        old = self.groups.pop(group, None)
        if value is not None:
            ids = {member.member_id for member in value.members}
            beats = () if old is None else tuple(beat for beat in old.beats if beat.member_id in ids)
            self.groups[group] = msgspec.structs.replace(row, beats=beats)

    def _apply_heartbeat(self, entry: HeartbeatEntry, timestamp: int) -> None:
        """Note that a member lives, also if its transaction aborts. Ignore a heartbeat of another process."""
        row = self.groups.get(entry.group)
        value = row.entry.value if row is not None else None
        if row is None or value is None or all(entry.member_id != each.member_id for each in value.members):
            return
        beats = {beat.member_id: beat for beat in row.beats}
        beats[entry.member_id] = Heartbeat(member_id=entry.member_id, timestamp=timestamp)
        self.groups[entry.group] = msgspec.structs.replace(row, beats=tuple(beats[each] for each in sorted(beats)))

    def _commit_offset(self, row: OffsetRow) -> None:
        """Promote an offset. The later *record* wins, whatever the order of the commits (KAFKA-5247, invariant 12)."""
        current = self.committed.get(row.entry.key)
        if current is not None and current.position > row.position:
            return
        if row.entry.value is None:
            self.committed.pop(row.entry.key, None)
            # A tombstone's position is not stored. So older pending offsets are removed with it; otherwise their commit
            # would restore a deleted offset.
            for pid, rows in list(self.pending.items()):
                older = rows.get(row.entry.key)
                if older is not None and older.position < row.position:
                    del rows[row.entry.key]
                    if not rows:
                        del self.pending[pid]
        else:
            self.committed[row.entry.key] = row
