"""Is a stored commit record one that a writer may have written at this place (R21)?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from txlog.core import envelope, names
from txlog.core.names import TopicPartition
from txlog.core.records import (
    CommitRecord,
    Entry,
    GroupEntry,
    GroupValue,
    HeartbeatEntry,
    OffsetEntry,
    StagedPart,
    TransactionEntry,
    TransactionMetadata,
)
from txlog.core.segments import check_files, check_rows
from txlog.errors import CorruptLogError, CorruptRecordError

_ENTRIES: Mapping[str, tuple[type[Entry], ...]] = {
    names.TRANSACTION_STATE_TOPIC: (TransactionEntry,),
    names.CONSUMER_OFFSETS_TOPIC: (OffsetEntry, GroupEntry, HeartbeatEntry),
}
"""The allowed kinds of entries in each internal topic."""
_COMBINED = ("data", "commit", "abort")
"""The kinds of records of which one object may hold several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A commit record as stored: its value, its inline rows, and the digest of its bytes."""

    record: CommitRecord
    digest: str
    data: bytes = field(repr=False)
    slot: int
    """The offset that names its object: its own, or that of an earlier record in the same object."""

    @property
    def payload(self) -> bytes:
        """Return the inline rows, an Arrow IPC stream; empty if the batch has none."""
        return self.data[len(self.data) - self.record.payload_bytes :]


def stored_records(data: bytes, tp: TopicPartition, slot: int) -> tuple[StoredRecord, ...]:
    """Decode `<slot>.batch`, which holds one record or several; raise CorruptRecordError naming it if it is damaged."""
    path = tp.folder + names.batch_name(slot)
    if len(data) > envelope.MAX_COMMIT_BYTES:
        raise CorruptRecordError(
            f"{path}: {len(data)} bytes, more than the {envelope.MAX_COMMIT_BYTES} that a commit record may have"
        )
    base_offset, found = slot, []
    for part in envelope.split(data, path):
        found.append(stored_record(part, tp, base_offset, slot=slot))
        base_offset = found[-1].record.end_offset
    first = found[0].record
    strange = next((each.record for each in found if each.record.kind not in _COMBINED), None)
    if len(found) > 1 and strange is not None:
        raise CorruptRecordError(f"{path}: a {strange.kind} record cannot share its object with other records")
    if any(each.record.segment_base != first.segment_base for each in found):
        raise CorruptRecordError(f"{path}: its records are of several segments")
    return tuple(found)


def decode_records(data: bytes, path: str) -> tuple[tuple[CommitRecord, bytes], ...]:
    """Return the records of a `.batch`, each with its inline rows, without a check of their place.

    Raises CorruptRecordError naming `path` if it is damaged.
    """
    return tuple(envelope.decode(part, CommitRecord, path) for part in envelope.split(data, path))


def end_digest(data: bytes) -> str:
    """Return the digest of the last record of an object; empty if the object is damaged."""
    try:
        return envelope.digest(envelope.split(data, "")[-1])
    except CorruptRecordError:
        return ""


def stored_record(
    data: bytes, tp: TopicPartition, base_offset: int, *, slot: int | None = None, hashed: bool = True
) -> StoredRecord:
    """Decode one record, which is all of `<base_offset>.batch`, or a part of `<slot>.batch`.

    Raises CorruptRecordError naming the object if it is damaged. If not `hashed`, the digest is empty, because no
    record will follow this one.
    """
    slot = base_offset if slot is None else slot
    path = tp.folder + names.batch_name(slot)
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
            check_transaction(entry.key, entry.value, path)
        if isinstance(entry, GroupEntry) and entry.value is not None:
            check_group(entry.group, entry.value, path)
    return StoredRecord(record=record, digest=envelope.digest(data) if hashed else "", data=data, slot=slot)


def _check_place(record: CommitRecord, tp: TopicPartition, path: str) -> None:
    """Raise CorruptRecordError unless entries are in the right topic.

    An internal topic holds entries of its own kind, and a user's topic holds none.
    """
    kinds = _ENTRIES.get(tp.topic, ())
    strange = next((entry for entry in record.entries if not isinstance(entry, kinds)), None)
    if strange is not None:
        raise CorruptRecordError(
            f"{path}: an entry of type {strange.__struct_config__.tag!r} does not belong in {tp.topic}; an "
            "object was swapped or copied"
        )
    if kinds and (record.files or record.payload_bytes):
        raise CorruptRecordError(
            f"{path}: a batch of rows does not belong in {tp.topic}, whose records have entries; an "
            "object was swapped or copied"
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
            f"{path}: producer {pid}, epoch {epoch}, sequence {sequence}, transactional "
            f"{record.transactional} do not fit each other"
        )
    if kind != "data" and (sequence >= 0 or record.transactional != marker or (pid >= 0) != marker):
        raise CorruptRecordError(
            f"{path}: a {kind} record cannot have producer {pid}, sequence {sequence}, "
            f"transactional {record.transactional}"
        )
    if kind == "log_start" and record.log_start_offset < 0:
        raise CorruptRecordError(f"{path}: a log_start record without a `log_start_offset`")
    if kind == "abort" and not (
        record.first_offset < record.base_offset and 0 <= record.last_stable_offset <= record.end_offset
    ):
        raise CorruptRecordError(
            f"{path}: an ABORT at offset {record.base_offset} cannot have first offset {record.first_offset} and last "
            f"stable offset {record.last_stable_offset}"
        )


def check_transaction(key: str, value: TransactionMetadata, path: str) -> None:
    """Raise CorruptRecordError unless a row of the transaction-state table is consistent (PROTOCOL.md, R21)."""
    if value.transactional_id != key:
        raise CorruptRecordError(
            f"{path}: the state of transactional.id {value.transactional_id!r} has the key {key!r}"
        )
    outcome = value.state.rpartition("_")[2].lower() if "_" in value.state else None
    epochs = (value.last_epoch, value.last_outcome)
    if outcome is not None and epochs != (value.producer_epoch - 1, outcome):
        raise CorruptRecordError(
            f"{path}: transactional.id {key!r} is {value.state} in epoch {value.producer_epoch}, with `last_epoch` "
            f"{value.last_epoch} and `last_outcome` {value.last_outcome}"
        )
    ways = bool(value.staged) + (value.staged_object is not None)
    if ways > (value.state == "PREPARE_COMMIT"):
        raise CorruptRecordError(
            f"{path}: transactional.id {key!r} is {value.state} and cannot have staged what it says"
        )


def check_group(group: str, value: GroupValue, path: str) -> None:
    """Raise CorruptRecordError unless members are in order and own no partition twice (PROTOCOL.md, R21)."""
    ids = [member.member_id for member in value.members]
    owned = [(topic, number) for each in value.members for topic, numbers in each.owned.items() for number in numbers]
    ahead = any(member.generation > value.generation for member in value.members)
    if any(a >= b for a, b in pairwise(ids)) or len(set(owned)) < len(owned) or ahead or (ids and value.member_id):
        raise CorruptRecordError(f"{path}: the members of group {group!r} do not fit each other")


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
