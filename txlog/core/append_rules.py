"""May this batch, marker or segment come next in this partition, and what does its record hold?

The functions judge on the state folded up to the slot that is about to be created. So "checked against everything
before it" and "right after it" are one step (PROTOCOL.md, W10). This module writes nothing; a verdict is a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from txlog.core.names import TopicPartition
from txlog.core.records import (
    NO_OFFSET,
    NO_SEQUENCE,
    CommitRecord,
    DataFile,
    Entry,
    HeartbeatEntry,
    OffsetEntry,
    StagedPart,
)
from txlog.core.state import PartitionState, lso_of
from txlog.errors import (
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TxlogError,
    UnknownTopicOrPartitionError,
)

MAX_SEGMENT_RECORD_BYTES = 16 * 2**20
"""A segment with more bytes than this in its records, less inline rows, is full. A larger segment's index would exceed
the limit of a metadata object (PROTOCOL.md, W5), and a sealed segment cannot be unsealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPolicy:
    """The settings that make an active segment full: `segment.batches`, `segment.bytes`, `segment.ms`."""

    batches: int = 100
    bytes: int = 2**30
    ms: int = 604_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDraft:
    """A data batch before it has an offset. A retry must present the identical draft (W16)."""

    records: int
    transactional_id: str = ""
    """Used in messages only."""
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    transactional: bool = False
    schema_id: int = 0
    files: tuple[DataFile, ...] = ()
    payload: bytes = b""
    entries: tuple[Entry, ...] = ()
    roll: RollPolicy = RollPolicy()

    @property
    def last_sequence(self) -> int:
        return self.base_sequence + self.records - 1 if self.base_sequence >= 0 else NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class Proceed:
    """Append it at the next offset."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is already in the log, at these offsets."""

    base_offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """It must not be appended; `error` is the reason. The verdict counts only on a fresh tail."""

    error: TxlogError


Verdict: TypeAlias = Proceed | Duplicate | Refuse


def check_batch(state: PartitionState, draft: BatchDraft) -> Verdict:
    """Judge a batch by the table of PROTOCOL.md, "Idempotence" (W17, invariant 3), and by a topic's deletion (W19)."""
    tp = state.topic_partition
    if draft.schema_id < state.deleted_version:
        return Refuse(
            UnknownTopicOrPartitionError(
                f"{tp}: topic {tp.topic!r} was deleted after this producer looked it up, and may have been created "
                "again; the rows were not written. "
                "hint: abort the transaction if one is open, then send them again: the producer looks the topic up"
            )
        )
    pid = draft.producer_id
    if pid < 0:
        return Proceed()
    name = f" (transactional.id {draft.transactional_id!r})" if draft.transactional_id else ""
    who = (
        f"{tp}: batch of producer {pid}{name}, epoch {draft.producer_epoch}, sequences "
        f"{draft.base_sequence}..{draft.last_sequence}"
    )
    entry = state.producers.get(pid)
    if entry is not None and draft.base_sequence >= 0 and draft.producer_epoch == entry.producer_epoch:
        for batch in entry.batches:
            if (batch.base_sequence, batch.last_sequence) == (draft.base_sequence, draft.last_sequence):
                return Duplicate(batch.base_offset, batch.timestamp)
    if entry is not None and draft.producer_epoch < entry.producer_epoch:
        return Refuse(
            InvalidProducerEpochError(
                f"{who}: the partition has seen epoch {entry.producer_epoch}; a newer instance took over, or a "
                "time-out or an operator ended the transaction. "
                "hint: abort; if that raises ProducerFencedError, close"
            )
        )
    if entry is not None and entry.txn_first_offset >= 0 and not draft.transactional:
        return Refuse(
            InvalidTxnStateError(
                f"{who}: not transactional, but this producer has a transaction open since offset "
                f"{entry.txn_first_offset}"
            )
        )
    if draft.base_sequence < 0:  # offsets of a group have keys, so only the epoch is checked, as in Kafka
        return Proceed()
    last = entry.last_sequence if entry is not None and entry.producer_epoch == draft.producer_epoch else NO_SEQUENCE
    if draft.base_sequence != last + 1:
        found = (
            f"the last sequence here is {last}" if entry is not None else "the partition does not know this producer"
        )
        return Refuse(
            OutOfOrderSequenceError(
                f"{who}: {found}, so {last + 1} must come next; a batch was lost, split or is older than five"
            )
        )
    return Proceed()


def marker_is_there(state: PartitionState, producer_id: int, marker_epoch: int) -> bool:
    """Return whether a marker of this epoch is already in: the partition's epoch is ≥ it (W26, invariant 10).

    With `>`, a slow second coordinator's repeated ABORT would end the producer's next transaction.
    """
    entry = state.producers.get(producer_id)
    return entry is not None and entry.producer_epoch >= marker_epoch


def next_record(state: PartitionState, draft: BatchDraft, *, now_ms: int, write_id: str) -> CommitRecord:
    """Return the commit record of `draft` at the state's next offset (invariant 1).

    Its timestamp is never below the last one (W11), and above that of the last heartbeat of its member (W54).
    """
    return CommitRecord(
        base_offset=state.next_offset,
        records=draft.records,
        kind="data",
        producer_id=draft.producer_id,
        producer_epoch=draft.producer_epoch,
        base_sequence=draft.base_sequence,
        transactional=draft.transactional,
        timestamp=max(now_ms, state.last_timestamp, _after_beats(state, draft.entries)),
        segment_base=next_segment_base(state, draft.roll, now_ms),
        schema_id=draft.schema_id,
        files=draft.files,
        payload_bytes=len(draft.payload),
        entries=draft.entries,
        write_id=write_id,
        previous=state.last_digest,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerDraft:
    """A COMMIT or ABORT marker; a COMMIT may carry the transaction's staged rows or offsets."""

    commit: bool
    producer_id: int
    marker_epoch: int
    coordinator_epoch: int
    records: int = 0
    schema_id: int = 0
    files: tuple[DataFile, ...] = ()
    payload: bytes = b""
    entries: tuple[Entry, ...] = ()
    roll: RollPolicy = RollPolicy()


def next_marker(state: PartitionState, draft: MarkerDraft, *, now_ms: int, write_id: str) -> CommitRecord:
    """Return the marker's record at the state's next offset.

    If the topic was deleted, the record leaves out the rows but is still written (W19).
    """
    offset = state.next_offset
    rows = draft.commit and draft.schema_id >= state.deleted_version
    first = lso = NO_OFFSET
    if not draft.commit:
        entry = state.producers.get(draft.producer_id)
        first = entry.txn_first_offset if entry is not None else NO_OFFSET
        lso = lso_of(state.open_producers, offset + 1, state.log_start_offset, but=draft.producer_id)
    return CommitRecord(
        base_offset=offset,
        records=draft.records if rows else 0,
        kind="commit" if draft.commit else "abort",
        producer_id=draft.producer_id,
        producer_epoch=draft.marker_epoch,
        transactional=True,
        timestamp=max(now_ms, state.last_timestamp),
        segment_base=next_segment_base(state, draft.roll, now_ms),
        schema_id=draft.schema_id if rows else 0,
        files=draft.files if rows else (),
        payload_bytes=len(draft.payload) if rows else 0,
        entries=draft.entries if rows else (),
        write_id=write_id,
        previous=state.last_digest,
        coordinator_epoch=draft.coordinator_epoch,
        first_offset=first,
        last_stable_offset=lso,
    )


def next_control(
    state: PartitionState,
    *,
    now_ms: int,
    write_id: str,
    log_start_offset: int | None = None,
    deleted_version: int = 0,
    expired: tuple[int, ...] = (),
    roll: RollPolicy = RollPolicy(),
) -> CommitRecord:
    """Return a log_start record (if `log_start_offset` is given) or an expire record at the state's next offset.

    The log_start record that empties a log for a deletion begins a segment. The topic may be created again with another
    schema, and the inline rows of one segment are sealed into one file.
    """
    empties = deleted_version > 0 and log_start_offset is not None and log_start_offset > state.next_offset
    segment_base = state.next_offset if empties else next_segment_base(state, roll, now_ms)
    return CommitRecord(
        base_offset=state.next_offset,
        records=0,
        kind="expire" if log_start_offset is None else "log_start",
        timestamp=max(now_ms, state.last_timestamp),
        segment_base=segment_base,
        write_id=write_id,
        previous=state.last_digest,
        log_start_offset=NO_OFFSET if log_start_offset is None else log_start_offset,
        deleted_version=deleted_version,
        expired=expired,
    )


def next_segment_base(state: PartitionState, policy: RollPolicy, now_ms: int) -> int:
    """Return where the next record's segment begins (W11, W20).

    This is the base offset of the active segment, or the record's own offset if that segment is full.
    """
    # A log that a deletion has emptied goes on in the segment of that record alone. So the index that has the first
    # rows also shows later that the deletion set the log start.
    is_emptied = state.segment_batches == 1 and state.next_offset == state.log_start_offset
    if state.segment_batches == 0 or is_emptied:
        return state.segment_base
    full = (
        state.segment_batches >= policy.batches
        or state.segment_bytes >= policy.bytes
        or now_ms - state.segment_started_at >= policy.ms
        # This limit does not depend on the topic's settings: the index names all files and must stay readable.
        or state.segment_record_bytes >= MAX_SEGMENT_RECORD_BYTES
    )
    return state.next_offset if full else state.segment_base


def merge_parts(parts: Iterable[StagedPart]) -> tuple[StagedPart, ...]:
    """Return one part per partition, in order: what becomes one batch (W29).

    The files of a partition follow each other. If a key has several offsets, the last one counts. Parts without rows
    and entries are left out. Raises InvalidRequestError if the files of one partition have different schemas. It is
    also raised if inline rows are not the partition's only part, because a record has its rows in one place.
    """
    merged: dict[TopicPartition, StagedPart] = {}
    for part in parts:
        if part.files or part.entries or part.payload:
            before = merged.get(part.topic_partition)
            merged[part.topic_partition] = part if before is None else _joined(before, part)
    return tuple(merged[tp] for tp in sorted(merged))


def _joined(before: StagedPart, part: StagedPart) -> StagedPart:
    if before.schema_id != part.schema_id:
        raise InvalidRequestError(
            f"{part.topic_partition}: the topic's columns changed while rows were staged: files of schema "
            f"{before.schema_id} and of schema {part.schema_id} (versions of the topic) cannot be one batch. "
            "hint: abort the transaction, and write its rows again"
        )
    if before.payload or part.payload:
        raise InvalidRequestError(
            f"{part.topic_partition}: inline rows and other rows cannot be one batch; write all of them to files"
        )
    entries: dict[tuple[str, str, int], OffsetEntry] = {entry.key: entry for entry in (*before.entries, *part.entries)}
    return msgspec.structs.replace(
        before, files=(*before.files, *part.files), entries=tuple(entries[key] for key in sorted(entries))
    )


def _after_beats(state: PartitionState, entries: Iterable[Entry]) -> int:
    """Return the lowest time that makes heartbeats among `entries` differ from the last ones of their members.

    A clock that was ahead may have set the time of the partition. Without this, all heartbeats would have that time.
    """
    given = {(entry.group, entry.member_id) for entry in entries if isinstance(entry, HeartbeatEntry)}
    rows = {group: state.groups.get(group) for group, _ in given}
    beats = (
        beat.timestamp + 1
        for group, row in rows.items()
        if row is not None
        for beat in row.beats
        if (group, beat.member_id) in given
    )
    return max(beats, default=-1)
