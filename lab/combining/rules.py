"""Which waiting batches may a leader take, and what record do they become? Each function is pure.

The names of the rules are those of `lab/scale/many-writers.md`.
"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.core.append_rules import BatchDraft, Proceed, check_batch, next_record
from txlog.core.names import TopicPartition, batch_name
from txlog.core.record_checks import StoredRecord
from txlog.core.records import CommitRecord
from txlog.core.state import replay
from txlog.protocol.context import PartitionView
from txlog.protocol.slot import encode_combined

MAX_FOLLOWING = 64
"""Records after the slot that a batch wanted, from which on no leader takes it any more."""


def folder(tp: TopicPartition) -> str:
    """Return the folder of the batches that wait."""
    return tp.folder + "waiting/"


def waiting_name(stored: StoredRecord) -> str:
    """Return the name of a waiting batch: the slot that its writer wanted, and whose it is."""
    return f"{batch_name(stored.record.base_offset).removesuffix('.batch')}-{stored.record.write_id}.batch"


def draft_of(stored: StoredRecord) -> BatchDraft:
    """Return the batch of a record that waits."""
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
    )


def may_be_taken(view: PartitionView, stored: StoredRecord) -> bool:
    """Return whether a view shows all that came after the slot which the batch's writer wanted (*take*).

    Then the view's fold recognises the batch if it is there already. It does not if the partition has forgotten its
    producer since, or if the store was put back.
    """
    wanted = stored.record
    if wanted.files:
        return False
    later = [each.record for each in view.tail if each.record.base_offset >= wanted.base_offset]
    return (
        # None behind the sealed end, where the view does not show what followed.
        view.digest_at(wanted.base_offset) == wanted.previous
        and len(later) < MAX_FOLLOWING
        and not any(is_forgotten_by(each, wanted.producer_id) for each in later)
    )


def is_forgotten_by(record: CommitRecord, producer_id: int) -> bool:
    """Return whether a record makes its partition forget a producer."""
    return producer_id in record.expired


def shows_all(view: PartitionView, stored: StoredRecord) -> bool:
    """Return whether a view has each record from the slot on that the batch's writer wanted (*answer*)."""
    return view.sealed_end <= stored.record.base_offset


def combined(view: PartitionView, waiting: Iterable[StoredRecord], now_ms: int) -> tuple[StoredRecord, ...]:
    """Return the batches that come next, each with its offsets (*judge again*).

    Each is judged on the fold of all before it. A batch that is refused there, or is there already, is left out.
    """
    state = view.state
    found: list[tuple[CommitRecord, bytes]] = []
    for stored in waiting:
        draft = draft_of(stored)
        if not may_be_taken(view, stored) or not isinstance(check_batch(state, draft), Proceed):
            continue
        record = next_record(state, draft, now_ms=now_ms, write_id=stored.record.write_id)
        # The digests of the records are computed when all are known.
        placed = StoredRecord(record=record, digest="", data=stored.payload, slot=view.state.next_offset)
        state = replay(state, (placed,))
        found.append((record, stored.payload))
    return encode_combined(view.topic_partition, found) if found else ()
