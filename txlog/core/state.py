"""How does each record change a partition's state?

`replay` is the only fold: live appends, loading and recovery use it. It is lenient: it applies every record that is in
the chain, and `append_rules` judges. A state is immutable; `replay` returns a new one. See
PROTOCOL.md, "Partition state".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self, TypeAlias

import msgspec

from txlog.core import envelope, names
from txlog.core.names import TopicPartition
from txlog.core.records import (
    NO_OFFSET,
    NO_SEQUENCE,
    BatchMetadata,
    CommitRecord,
    DataFile,
    Entry,
    GroupEntry,
    GroupRow,
    OffsetEntry,
    OffsetRow,
    PendingOffsets,
    ProducerStateEntry,
    Snapshot,
    StagedPart,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.segments import check_rows
from txlog.errors import CorruptLogError, CorruptRecordError

BATCHES_TO_RETAIN = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: a duplicate of one of these batches is detected."""

_ENTRIES: Mapping[str, tuple[type[Entry], ...]] = {
    names.TRANSACTION_STATE_TOPIC: (TransactionEntry,),
    names.CONSUMER_OFFSETS_TOPIC: (OffsetEntry, GroupEntry),
}
"""The allowed kinds of entries in each internal topic."""

OffsetKey: TypeAlias = tuple[str, str, int]
"""(group, topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A commit record as stored: its value, its inline rows, and the digest of its bytes."""

    record: CommitRecord
    digest: str
    data: bytes = field(repr=False)

    @property
    def payload(self) -> bytes:
        """Return the inline rows, an Arrow IPC stream; empty if the batch has none."""
        return self.data[len(self.data) - self.record.payload_bytes :]


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


def stored_record(data: bytes, tp: TopicPartition, base_offset: int) -> StoredRecord:
    """Decode `<base_offset>.batch`; raise CorruptRecordError naming it if it is damaged."""
    path = tp.folder + names.batch_name(base_offset)
    record, _ = envelope.decode(data, CommitRecord, path)
    if record.base_offset != base_offset:
        raise CorruptRecordError(f"{path}: it says base_offset {record.base_offset}; an object was swapped or copied")
    _check_place(record, tp, path)
    try:
        check_rows(record, path)
    except CorruptLogError as error:
        raise CorruptRecordError(str(error)) from None
    check_files(record.files, tp, path)
    _check_kind(record, path)
    for entry in record.entries:
        if isinstance(entry, TransactionEntry) and entry.value is not None:
            _check_transaction(entry.key, entry.value, path)
    return StoredRecord(record=record, digest=envelope.digest(data), data=data)


def _check_place(record: CommitRecord, tp: TopicPartition, path: str) -> None:
    """Raise CorruptRecordError unless entries are in the right topic.

    An internal topic holds entries of its own kind, and a user's topic holds none.
    """
    kinds = _ENTRIES.get(tp.topic, ())
    strange = next((entry for entry in record.entries if not isinstance(entry, kinds)), None)
    if strange is not None:
        raise CorruptRecordError(
            f"{path}: an entry of type {strange.__struct_config__.tag!r} does not belong in {tp.topic}; an object was swapped or copied"
        )
    if kinds and (record.files or record.payload_bytes):
        raise CorruptRecordError(
            f"{path}: a batch of rows does not belong in {tp.topic}, whose records have entries; an object was swapped or copied"
        )


_OF_KINDS: Mapping[str, tuple[str, ...]] = {
    "coordinator_epoch": ("commit", "abort"),
    "first_offset": ("abort",),
    "last_stable_offset": ("abort",),
    "log_start_offset": ("log_start",),
    "deleted_version": ("log_start",),
    "expired": ("expire",),
}
"""Fields that only records of these kinds have. In other records they have their default, so a record cannot be
mistaken for another kind."""
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(CommitRecord)}


def _check_kind(record: CommitRecord, path: str) -> None:
    """Raise CorruptRecordError unless all fields are possible for the record's kind (PROTOCOL.md, R21)."""
    kind = record.kind
    for name, kinds in _OF_KINDS.items():
        if kind not in kinds and getattr(record, name) != _DEFAULTS[name]:
            raise CorruptRecordError(f"{path}: a {kind} record cannot have `{name}` {getattr(record, name)}")
    pid, epoch, sequence = record.producer_id, record.producer_epoch, record.base_sequence
    marker = kind in ("commit", "abort")
    if (pid < 0) != (epoch < 0) or (pid < 0 and (sequence >= 0 or record.transactional)):
        raise CorruptRecordError(
            f"{path}: producer {pid}, epoch {epoch}, sequence {sequence}, transactional {record.transactional} do not fit each other"
        )
    if kind != "data" and (sequence >= 0 or record.transactional != marker or (pid >= 0) != marker):
        raise CorruptRecordError(
            f"{path}: a {kind} record cannot have producer {pid}, sequence {sequence}, transactional {record.transactional}"
        )
    if kind == "log_start" and record.log_start_offset < 0:
        raise CorruptRecordError(f"{path}: a log_start record without a `log_start_offset`")
    if kind == "abort" and not (
        record.first_offset < record.base_offset and 0 <= record.last_stable_offset <= record.end_offset
    ):
        raise CorruptRecordError(
            f"{path}: an ABORT at offset {record.base_offset} cannot have first offset {record.first_offset} and last stable offset "
            f"{record.last_stable_offset}"
        )


def _check_transaction(key: str, value: TransactionMetadata, path: str) -> None:
    """Raise CorruptRecordError unless a row of the transaction-state table is consistent (PROTOCOL.md, R21)."""
    if value.transactional_id != key:
        raise CorruptRecordError(
            f"{path}: the state of transactional.id {value.transactional_id!r} has the key {key!r}"
        )
    outcome = value.state.rpartition("_")[2].lower() if "_" in value.state else None
    epochs = (value.last_epoch, value.last_outcome)
    if outcome is not None and epochs != (value.producer_epoch - 1, outcome):
        raise CorruptRecordError(
            f"{path}: transactional.id {key!r} is {value.state} in epoch {value.producer_epoch}, with `last_epoch` {value.last_epoch} and "
            f"`last_outcome` {value.last_outcome}"
        )
    ways = bool(value.staged) + (value.staged_object is not None)
    if ways > (value.state == "PREPARE_COMMIT"):
        raise CorruptRecordError(
            f"{path}: transactional.id {key!r} is {value.state} and cannot have staged what it says"
        )


def check_targets(partitions: Iterable[TopicPartition], parts: Iterable[StagedPart], path: str) -> None:
    """Raise CorruptRecordError, beginning with `path`, unless a decision names possible partitions and staged parts.

    Each staged part must have its rows in one place, and in files of its partition. A decision that fails this check
    stops its own id, and no other id of its table.
    """
    staged = list(parts)
    for tp in (*partitions, *(part.topic_partition for part in staged)):
        if tp.partition < 0 or not names.is_topic_name(tp.topic):
            raise CorruptRecordError(f"{path}: it names {str(tp)[:100]!r}, which cannot be a partition")
    for part in staged:
        tp = part.topic_partition
        places = [bool(part.files), bool(part.entries), part.inline is not msgspec.UNSET]
        if sum(places) != 1 or not part.rows:
            raise CorruptRecordError(f"{path}: the staged part of {tp} has {part.rows} rows in {sum(places)} places")
        check_files(part.files, tp, path)


def check_files(files: Iterable[DataFile], tp: TopicPartition, path: str) -> None:
    """Raise CorruptRecordError, beginning with `path`, unless the files can be the partition's.

    They must also have as many rows as their row groups.
    """
    for file in files:
        try:
            names.check_data_path(tp.topic, tp.partition, file.path)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{path}: {error}") from None
        if sum(file.row_groups) != file.rows:
            raise CorruptRecordError(
                f"{path}: {file.path}: {file.rows} rows, and its row groups hold {sum(file.row_groups)}"
            )


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
        self.segment = (state.segment_base, state.segment_batches, state.segment_bytes, state.segment_started_at)
        self.segment_record_bytes = state.segment_record_bytes
        self.last_timestamp = state.last_timestamp
        self.last_digest = state.last_digest
        self.last_base: int | None = None
        """Base offset of the last record that this fold took."""
        self.deleted_version = state.deleted_version

    def state(self) -> PartitionState:
        base, batches, size, started = self.segment
        return replace(
            self.base,
            log_start_offset=self.log_start_offset,
            next_offset=self.next_offset,
            segment_base=base,
            segment_batches=batches,
            segment_bytes=size,
            segment_record_bytes=self.segment_record_bytes,
            segment_started_at=started,
            last_timestamp=self.last_timestamp,
            last_digest=self.last_digest,
            deleted_version=self.deleted_version,
            producers=self.producers,
            opened=self.opened,
            transactions=self.transactions,
            committed=self.committed,
            pending=self.pending,
            groups=self.groups,
        )

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
            folder = self.base.topic_partition.folder
            if not record.base_offset:
                raise CorruptRecordError(
                    f"{path}: as the first record of {self.base.topic_partition} it names {self.last_digest[:12]}… as the one "
                    f"before it, and it says {record.previous[:12] or 'nothing'}…; it is another partition's"
                )
            before = (
                f"what ends at offset {record.base_offset}"
                if self.last_base is None
                else folder + names.batch_name(self.last_base)
            )
            raise CorruptRecordError(
                f"{path}: it follows a record with digest {record.previous[:12] or 'none'}…, the one before it ({before}) has "
                f"{self.last_digest[:12]}…; one of the two was replaced"
            )
        if record.segment_base not in (record.base_offset, self.segment[0]):
            raise CorruptRecordError(
                f"{path}: segment_base {record.segment_base}, the active segment begins at {self.segment[0]}"
            )
        if record.timestamp < self.last_timestamp:
            raise CorruptRecordError(
                f"{path}: its timestamp {record.timestamp} is before {self.last_timestamp}, that of the record before it"
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
                f"{path}: the ABORT of producer {record.producer_id} says first offset {record.first_offset} and last stable offset "
                f"{record.last_stable_offset}; by the records before it these are {first} and {lso}"
            )

    def _count_segment(self, stored: StoredRecord) -> None:
        record = stored.record
        base, batches, size, started = self.segment
        if record.segment_base != base:
            base, batches, size, started = record.segment_base, 0, 0, -1
            self.segment_record_bytes = 0
        self.segment_record_bytes += len(stored.data) - record.payload_bytes
        size += len(stored.data) + sum(file.bytes for file in record.files)
        self.segment = (base, batches + 1, size, started if started >= 0 else record.timestamp)

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
            last_sequence=old.last_sequence if old and same_epoch and not record.records else NO_SEQUENCE,
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
                if entry.value is None:
                    self.groups.pop(entry.group, None)
                else:
                    self.groups[entry.group] = GroupRow(position=position, write_id=record.write_id, entry=entry)
            else:
                row = OffsetRow(position=position, write_id=record.write_id, entry=entry)
                if pending_of is None:
                    self._commit_offset(row)
                else:
                    self.pending.setdefault(pending_of, {})[entry.key] = row

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


# -- snapshots --------------------------------------------------------------------------------------------------------


def to_snapshot(state: PartitionState) -> Snapshot:
    """Return the stored form of a state at a segment's end (W38); equal states give equal bytes.

    Producers are kept here and not in rows, so no maintenance job loses a sequence (C11).
    """
    return Snapshot(
        partition=str(state.topic_partition),
        offset=state.next_offset,
        log_start_offset=state.log_start_offset,
        deleted_version=state.deleted_version,
        last_timestamp=state.last_timestamp,
        last_digest=state.last_digest,
        producers=tuple(state.producers[pid] for pid in sorted(state.producers)),
        transactions=tuple(state.transactions[key] for key in sorted(state.transactions)),
        committed=tuple(state.committed[key] for key in sorted(state.committed)),
        pending=tuple(
            PendingOffsets(producer_id=pid, rows=tuple(rows[key] for key in sorted(rows)))
            for pid, rows in sorted(state.pending.items())
        ),
        groups=tuple(state.groups[key] for key in sorted(state.groups)),
    )


def from_snapshot(snapshot: Snapshot, tp: TopicPartition) -> PartitionState:
    """Return the state that `snapshot` holds: an empty active segment begins at its offset."""
    return PartitionState(
        topic_partition=tp,
        log_start_offset=snapshot.log_start_offset,
        next_offset=snapshot.offset,
        segment_base=snapshot.offset,
        last_timestamp=snapshot.last_timestamp,
        last_digest=snapshot.last_digest,
        deleted_version=snapshot.deleted_version,
        producers={entry.producer_id: entry for entry in snapshot.producers},
        transactions={row.value.transactional_id: row for row in snapshot.transactions},
        committed={row.entry.key: row for row in snapshot.committed},
        pending={p.producer_id: {row.entry.key: row for row in p.rows} for p in snapshot.pending},
        groups={row.entry.group: row for row in snapshot.groups},
    )


def decode_snapshot(data: bytes, tp: TopicPartition, offset: int) -> PartitionState:
    """Return the state in `<offset>.snapshot`; raise CorruptRecordError naming it if it is damaged."""
    path = tp.folder + names.snapshot_name(offset)
    snapshot, _ = envelope.decode(data, Snapshot, path)
    if snapshot.offset != offset:
        raise CorruptRecordError(f"{path}: it says offset {snapshot.offset}; an object was swapped or copied")
    check_snapshot(snapshot, path)
    return from_snapshot(snapshot, tp)


def check_snapshot(snapshot: Snapshot, path: str) -> None:
    """Raise CorruptRecordError naming `path` unless the snapshot is possible at its offset (PROTOCOL.md, R21)."""
    names.check_own(snapshot.partition, path)
    if snapshot.log_start_offset > snapshot.offset:
        raise CorruptRecordError(
            f"{path}: log start {snapshot.log_start_offset}, above the log end {snapshot.offset} of this state"
        )
    tables: dict[str, list[Any]] = {
        "producers": [entry.producer_id for entry in snapshot.producers],
        "transactions": [row.value.transactional_id for row in snapshot.transactions],
        "committed": [row.entry.key for row in snapshot.committed],
        "pending": [each.producer_id for each in snapshot.pending],
        "groups": [row.entry.group for row in snapshot.groups],
        **{
            f"pending of producer {each.producer_id}": [row.entry.key for row in each.rows] for each in snapshot.pending
        },
    }
    for name, keys in tables.items():
        if any(a >= b for a, b in pairwise(keys)):
            raise CorruptRecordError(f"{path}: its table of {name} is not in order, or holds a key twice")
    for entry in snapshot.producers:
        _check_producer(entry, snapshot.offset, path)
    opened = {entry.producer_id for entry in snapshot.producers if entry.txn_first_offset >= 0}
    for each in snapshot.pending:
        if each.producer_id not in opened or not each.rows:
            raise CorruptRecordError(
                f"{path}: it has pending offsets of producer {each.producer_id}, which has no open transaction in it"
            )
    for row in snapshot.transactions:
        _check_transaction(row.value.transactional_id, row.value, path)
    positions = [
        *(row.offset for row in snapshot.transactions),
        *(row.position for row in snapshot.committed),
        *(row.position for row in snapshot.groups),
        *(row.position for each in snapshot.pending for row in each.rows),
    ]
    if any(position >= snapshot.offset for position in positions):
        raise CorruptRecordError(f"{path}: a row of it is of offset {max(positions)}, above its own offset")
    if None in [*(row.entry.value for row in snapshot.committed), *(row.entry.value for row in snapshot.groups)]:
        raise CorruptRecordError(f"{path}: a row of it is a tombstone, and those are not kept")


def _check_producer(entry: ProducerStateEntry, end: int, path: str) -> None:
    ordered = [0, *(at for batch in entry.batches for at in (batch.base_offset, batch.base_offset + 1)), end]
    if (
        ordered != sorted(ordered)
        or any(batch.base_sequence > batch.last_sequence for batch in entry.batches)
        or len(entry.batches) > BATCHES_TO_RETAIN
        or (entry.batches and entry.batches[-1].last_sequence != entry.last_sequence)
        or max(entry.last_offset, entry.txn_first_offset) >= end
    ):
        raise CorruptRecordError(
            f"{path}: the state of producer {entry.producer_id} (last sequence {entry.last_sequence}, last offset {entry.last_offset}, "
            f"transaction from {entry.txn_first_offset}, {len(entry.batches)} batches) is not possible at offset {end}"
        )
