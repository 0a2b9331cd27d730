"""How do records become the object of a slot, and which record has it? See PROTOCOL.md, "Appending"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from txlog.core import chain, envelope, names
from txlog.core.effects import List, Program, PutOutcome, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import CommitRecord, GroupRow, OffsetRow
from txlog.core.state import PartitionState
from txlog.errors import CorruptRecordError, InvalidRequestError, RecordTooLargeError
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import read_slot
from txlog.protocol.put import create

Decide: TypeAlias = "Callable[[PartitionState, int], CommitRecord | Stop]"
"""(state folded up to the slot, wall clock) -> the record for that slot, or a Stop."""
Guard: TypeAlias = "Callable[[PartitionState], Program[Stop | None]]"
"""Called before a PUT, after the fold. None: go on."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Do not append; `value` is the caller's. It counts only on a fresh tail; `append_slot` ensures that."""

    value: Any
    refused: bool = False
    """Whether the record must not be appended. False: it need not be appended."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The record is in the chain, at these offsets, and acknowledged."""

    base_offset: int
    records: int
    timestamp: int
    duplicate: bool = False
    """Whether an earlier try had already written the batch."""


def encode_combined(tp: TopicPartition, records: Sequence[tuple[CommitRecord, bytes]]) -> tuple[StoredRecord, ...]:
    """Return the stored form of records that are one object, each with its inline rows, in order.

    Their digests are computed here, so only the first must name the record before it. Raises as `encode_checked`.
    """
    slot, previous = records[0][0].base_offset, records[0][0].previous
    found: list[StoredRecord] = []
    for number, (record, payload) in enumerate(records, start=1):
        more = msgspec.UNSET if number == len(records) else True
        linked = msgspec.structs.replace(record, previous=previous, more=more)
        found.append(encode_checked(tp, linked, payload, slot=slot))
        previous = found[-1].digest
    return tuple(found)


def encode_checked(
    tp: TopicPartition, record: CommitRecord, payload: bytes = b"", headroom_bytes: int = 0, slot: int | None = None
) -> StoredRecord:
    """Return the record's stored form, after reading it back as readers do (W5).

    If readers refused a stored record, no record could follow it. Raises InvalidRequestError; RecordTooLargeError
    unless `headroom_bytes` are left below the limit. A record with headroom is only tried, so it gets no digest.
    `slot` is that of an earlier record in the same object.
    """
    try:
        data = envelope.encode(record, payload)
        if len(data) + headroom_bytes > envelope.MAX_COMMIT_BYTES:
            raise RecordTooLargeError(
                f"{tp}: a commit object of {len(data)} bytes, more than the {envelope.MAX_COMMIT_BYTES} that one may "
                "have; send fewer rows at once"
            )
        stored = stored_record(data, tp, record.base_offset, slot=slot, hashed=not headroom_bytes)
    except RecordTooLargeError:
        raise
    except (CorruptRecordError, ValueError) as error:
        raise InvalidRequestError(f"{tp}: this cannot be stored: {error}") from None
    check_owner_of_files(tp, record)
    return stored


def check_owner_of_files(tp: TopicPartition, record: CommitRecord) -> None:
    """Raise InvalidRequestError if a record names a file of another producer or epoch (W7)."""
    # A staged COMMIT names files of its transaction's epoch (W7). Vacuum uses these names (C8).
    owner = (record.producer_id, record.producer_epoch - (1 if record.kind == "commit" else 0))
    for file in record.files:
        parsed = names.parse_rows_path(file.path)
        if parsed is None or (parsed.producer_id, parsed.producer_epoch) != owner:
            raise InvalidRequestError(
                f"{tp}: a batch of producer {owner[0]}, epoch {owner[1]}, names the file {file.path}, which is not "
                "of that producer and epoch"
            )


def create_slot(
    ctx: Context, view: PartitionView, stored: tuple[StoredRecord, ...], write_id: str
) -> Program[tuple[StoredRecord, ...] | None]:
    """Put records into their slot, as one object, until the slot is taken.

    Return the records that have it; None if the slot is below a boundary.
    """
    tp, slot = view.topic_partition, stored[0].slot

    def look(outcome: PutOutcome) -> Program[tuple[tuple[StoredRecord, ...] | None] | None]:
        # CONFLICT may be the process's own write, repeated inside the adapter. UNKNOWN may still land. The stored
        # record decides.
        holder = stored if outcome is PutOutcome.WRITTEN else (yield from read_slot(tp, slot))
        if not (yield from _not_overtaken(ctx, view, slot)):
            return (None,)
        return (holder,) if holder else None

    path, data = tp.folder + names.batch_name(slot), b"".join(each.data for each in stored)
    (found,) = yield from create(ctx, path, data, look, what=f"the record (write_id {write_id})")
    return found


def _not_overtaken(ctx: Context, view: PartitionView, slot: int) -> Program[bool]:
    """Return whether no boundary is above `slot` (W14, invariants 2 and 14).

    That is so if the view is young, or if a LIST made now shows no such boundary.
    """
    if view.age_ms((yield ReadClocks())) < ctx.max_view_age_ms:
        return True
    listed = yield List(view.topic_partition.folder)
    return chain.parse_listing(listed, view.topic_partition.folder).boundary <= slot


def find_own(view: PartitionView, write_id: str) -> AppendResult | None:
    """Return the record with this `write_id`, from the tail or as the last one of its key in the folded tables."""
    for stored in view.tail:
        if stored.record.write_id == write_id:
            return appended(stored.record)
    state = view.state
    pending = (row for rows in state.pending.values() for row in rows.values())
    rows: list[OffsetRow | GroupRow] = [*state.committed.values(), *pending, *state.groups.values()]
    for row in rows:
        if row.write_id == write_id:
            return AppendResult(row.position, 1, state.last_timestamp)
    for txn in state.transactions.values():
        if txn.value.write_id == write_id:
            return AppendResult(txn.offset, 1, txn.value.updated_at)
    return None


def appended(record: CommitRecord) -> AppendResult:
    return AppendResult(record.base_offset, record.records, record.timestamp)
