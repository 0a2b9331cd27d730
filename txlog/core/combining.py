"""Which records that wait beside the log may a leader take, and what do they become at their place?

See PROTOCOL.md, "Waiting", W65 to W67. Each function is pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from txlog.core import envelope, names
from txlog.core.append_rules import (
    BatchDraft,
    Duplicate,
    MarkerDraft,
    Proceed,
    Refuse,
    RollPolicy,
    check_batch,
    marker_is_there,
    next_marker,
    next_record,
)
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, CommitRecord, TransactionEntry
from txlog.core.state import PartitionState, replay
from txlog.errors import InvalidProducerEpochError, UnknownTopicOrPartitionError

MAX_FOLLOWING = 16
"""Slots after the one that a waiting record was made for, from which on no leader takes it."""
MAX_WAITING_BYTES = 2**20
"""A larger record does not wait: a combined one has at most 4 MiB."""
_ADDED_BYTES = 256
"""How much longer a record may be at its place than where it waited, because of its offsets, time and `more`."""
_NO_ROLL = RollPolicy(batches=2**48, bytes=2**62, ms=2**62)


def may_wait(tp: TopicPartition, stored: StoredRecord) -> bool:
    """Return whether a record may wait for a leader (W65)."""
    record = stored.record
    if tp.topic == names.CONSUMER_OFFSETS_TOPIC or len(stored.data) > MAX_WAITING_BYTES:
        return False
    if tp.topic == names.TRANSACTION_STATE_TOPIC:
        return record.kind == "data" and _replaces(record)
    if record.kind == "data":
        return record.base_sequence >= 0 and not (record.files and record.producer_id >= FIRST_DRAWN_PRODUCER_ID)
    return record.kind in ("commit", "abort")


def _replaces(record: CommitRecord) -> bool:
    """Return whether a record of the table is about ids that have one. An id's first record gives out its PID."""
    values = (entry.value for entry in record.entries if isinstance(entry, TransactionEntry))
    return all(value is None or value.state != "EMPTY" for value in values)


class Followed:
    """What followed each of the last slots of a partition's tail (W66)."""

    def __init__(self, base: PartitionState, tail: Sequence[StoredRecord], since: int | None = None) -> None:
        """Take the tail that follows `base`, from the offset `since` on (None: from where a record may be taken)."""
        first, slots, at = len(tail), 0, names.MAX_OFFSET
        while first and (tail[first - 1].slot == at or (slots < MAX_FOLLOWING if since is None else at > since)):
            first -= 1
            slots += tail[first].slot != at
            at = tail[first].slot
        before = tail[first - 1] if first else None
        self._digests = {base.next_offset: base.last_digest}
        if before is not None:
            self._digests = {before.record.end_offset: before.digest}
        self._slots: list[int] = []
        self._forgotten: dict[int, int] = {}
        self._changed: dict[str, int] = {}
        self._deleted = -1
        for stored in tail[first:]:
            self.add(stored)

    def add(self, stored: StoredRecord) -> None:
        """Add the next record."""
        record = stored.record
        if not self._slots or self._slots[-1] != stored.slot:
            self._slots.append(stored.slot)
        self._digests[record.end_offset] = stored.digest
        self._forgotten |= dict.fromkeys(record.expired, record.base_offset)
        self._changed |= dict.fromkeys(_keys(record), record.base_offset)
        if record.kind == "log_start":
            self._deleted = record.base_offset

    def knows(self, waiting: StoredRecord) -> bool:
        """Return whether the tail has all records from the slot on that a waiting one was made for.

        It has not if others have sealed some of them, or if the store was put back since.
        """
        return self._digests.get(waiting.record.base_offset) == waiting.record.previous

    def settles(self, state: PartitionState, waiting: StoredRecord) -> bool:
        """Return whether no leader takes a waiting record that is known any more.

        Then it is in the tail or will never be (W66). `state` is the fold after the tail.
        """
        record, since = waiting.record, waiting.record.base_offset
        if len(self._slots) - bisect_left(self._slots, since) >= MAX_FOLLOWING:
            return True
        # The fold may not recognise it any more, or the id has another record, or a topic was deleted (W46).
        keys = _keys(record)
        if max([self._forgotten.get(record.producer_id, -1), *(self._changed.get(key, -1) for key in keys)]) >= since:
            return True
        if keys:
            return self._deleted >= since
        if record.kind != "data":
            return marker_is_there(state, record.producer_id, record.producer_epoch)
        verdict = check_batch(state, _draft_of(waiting))
        entry = state.producers.get(record.producer_id)
        is_same_epoch = entry is not None and entry.producer_epoch == record.producer_epoch
        if entry is not None and is_same_epoch and 0 <= record.base_sequence <= entry.last_sequence:
            return True
        # Each later state repeats these. A gap may close, because the batch before may wait, too.
        final = InvalidProducerEpochError | UnknownTopicOrPartitionError
        return isinstance(verdict, Duplicate) or (isinstance(verdict, Refuse) and isinstance(verdict.error, final))


def _keys(record: CommitRecord) -> list[str]:
    return [entry.key for entry in record.entries if isinstance(entry, TransactionEntry)]


def combine(
    state: PartitionState, followed: Followed, waiting: Iterable[StoredRecord], *, roll: RollPolicy, now_ms: int
) -> list[tuple[CommitRecord, bytes]]:
    """Return the records of the next slot, each with its inline rows: what a leader takes (W67).

    Each waiting record is judged on the fold of all before it, also those in the same slot. One that is refused there
    is left out. `followed` is that of the tail up to `state`. It gets the new records, so it is used once.
    """
    found: list[tuple[CommitRecord, bytes]] = []
    slot, left_bytes = state.next_offset, envelope.MAX_COMMIT_BYTES
    for stored in waiting:
        fits = len(stored.data) + _ADDED_BYTES <= left_bytes
        if not fits or not followed.knows(stored) or followed.settles(state, stored):
            continue
        record = _at_its_place(state, stored, _NO_ROLL if found else roll, now_ms)
        if record is None:
            continue
        if found and record.segment_base != found[0][0].segment_base:
            break  # the segment is full
        left_bytes -= len(stored.data) + _ADDED_BYTES
        payload = stored.payload if record.payload_bytes else b""
        # The digests of the records are computed when all are known.
        placed = StoredRecord(record=record, digest="", data=payload, slot=slot)
        state = replay(state, (placed,))
        followed.add(placed)
        found.append((record, payload))
    return found


def _at_its_place(state: PartitionState, stored: StoredRecord, roll: RollPolicy, now_ms: int) -> CommitRecord | None:
    """Return what a waiting record becomes after `state`; None if it is refused or not needed there."""
    record = stored.record
    if record.kind == "data":
        draft = _draft_of(stored, roll)
        # Records of the table are compared with the one that they replace, by what followed.
        if not record.entries and not isinstance(check_batch(state, draft), Proceed):
            return None
        return next_record(state, draft, now_ms=now_ms, write_id=record.write_id)
    marker = MarkerDraft(
        commit=record.kind == "commit",
        producer_id=record.producer_id,
        marker_epoch=record.producer_epoch,
        coordinator_epoch=record.coordinator_epoch,
        records=record.records,
        schema_id=record.schema_id,
        files=record.files,
        payload=stored.payload,
        entries=record.entries,
        roll=roll,
    )
    return next_marker(state, marker, now_ms=now_ms, write_id=record.write_id)


def _draft_of(stored: StoredRecord, roll: RollPolicy = _NO_ROLL) -> BatchDraft:
    record = stored.record
    return BatchDraft(
        records=record.records,
        producer_id=record.producer_id,
        producer_epoch=record.producer_epoch,
        base_sequence=record.base_sequence,
        transactional=record.transactional,
        schema_id=record.schema_id,
        files=record.files,
        payload=stored.payload,
        entries=record.entries,
        roll=roll,
    )
