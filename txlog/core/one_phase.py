"""When may a transaction be one batch, without a decision in the table? See PROTOCOL.md, "One phase", W61 to W64."""

from __future__ import annotations

import msgspec

from txlog.core.append_rules import BatchDraft
from txlog.core.names import TopicPartition
from txlog.core.owner_errors import check_owner, describe_owner, fenced_error
from txlog.core.records import StoreConstants, TransactionMetadata
from txlog.core.state import PartitionState
from txlog.core.transactions import (
    IDLE,
    PREPARED,
    Done,
    Judgement,
    Refused,
    RollForward,
    Transit,
    as_its_owner_knows,
    fence,
    may_expire,
)
from txlog.errors import InvalidTxnStateError

MAX_ATTACHED = 16
"""Partitions to which one instance may be attached. The init after one that died writes an ABORT to each."""


def _of_owner(
    current: TransactionMetadata | None, txn: TransactionMetadata, now_ms: int
) -> TransactionMetadata | RollForward | Refused:
    """Return the id's record as its owner judges it, or what comes first."""
    if (wrong := check_owner(current, txn)) is not None:
        return Refused(wrong)
    assert current is not None
    known = as_its_owner_knows(current, txn, now_ms)
    return RollForward(known) if known.state in PREPARED else known


def judge_attach(
    current: TransactionMetadata | None, txn: TransactionMetadata, tp: TopicPartition, *, now_ms: int, write_id: str
) -> Judgement:
    """Judge that the owner of `txn` attaches itself to a partition (W61). The state of the id stays as it is."""
    known = _of_owner(current, txn, now_ms)
    if not isinstance(known, TransactionMetadata):
        return known
    if known.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(known, txn, f"it could attach itself to {tp}"))
    if known.state not in IDLE:
        return Refused(
            InvalidTxnStateError(f"{describe_owner(txn)}: it has an open transaction, so it cannot be attached to {tp}")
        )
    if tp in (known.attached or ()):
        return Done(known)
    attached = tuple(sorted({*(known.attached or ()), tp}))
    return Transit(msgspec.structs.replace(known, attached=attached, updated_at=now_ms, write_id=write_id))


def judge_fence(
    current: TransactionMetadata | None, txn: TransactionMetadata, *, now_ms: int, write_id: str
) -> Judgement:
    """Judge that the owner of `txn` ends its epoch after a commit in one phase of unknown outcome (W64)."""
    known = _of_owner(current, txn, now_ms)
    if not isinstance(known, TransactionMetadata):
        return known
    if (known.producer_epoch, known.last_epoch) == (txn.producer_epoch + 1, txn.producer_epoch):
        return Done(known)
    if known.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(known, txn, "it could abort"))
    return Transit(fence(known, now_ms=now_ms, write_id=write_id))


def judge_detach(
    current: TransactionMetadata | None, *, now_ms: int, write_id: str, constants: StoreConstants, force: bool
) -> Transit | None:
    """Judge that others end the epoch of an idle, attached id, which may then be removed (W62). None: it stays."""
    if current is None or current.state not in IDLE or not current.attached:
        return None
    if not force and not may_expire(msgspec.structs.replace(current, attached=msgspec.UNSET), now_ms, constants):
        return None
    return Transit(fence(current, now_ms=now_ms, write_id=write_id))


def judge_detach_own(
    current: TransactionMetadata | None, txn: TransactionMetadata, *, now_ms: int, write_id: str
) -> Transit | None:
    """Judge that the instance of `txn` detaches itself because it ends (W62); None if that is not needed, or not its
    own to do."""
    owner = (txn.producer_id, txn.producer_epoch)
    if current is None or not current.attached or (current.producer_id, current.producer_epoch) != owner:
        return None
    current = as_its_owner_knows(current, txn, now_ms)
    if current.state not in IDLE:
        return None
    return Transit(msgspec.structs.replace(current, attached=msgspec.UNSET, updated_at=now_ms, write_id=write_id))


def is_attached(current: TransactionMetadata | None, txn: TransactionMetadata, tp: TopicPartition) -> bool:
    """Return whether the table still shows the instance of `txn` attached to the partition (W61)."""
    return (
        current is not None
        and (current.producer_id, current.producer_epoch) == (txn.producer_id, txn.producer_epoch)
        and tp in (current.attached or ())
    )


def is_too_old(state: PartitionState, draft: BatchDraft, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether the partition may soon forget, or has forgotten, what the producer wrote in this epoch (W63).

    An expired producer would make the next batch a gap. The next one then needs a new epoch, which a commit in two
    phases gives.
    """
    entry = state.producers.get(draft.producer_id)
    if entry is None or entry.producer_epoch != draft.producer_epoch:
        return draft.base_sequence > 0
    return 2 * (max(now_ms, state.last_timestamp) - entry.timestamp) >= constants.producer_id_expiration_ms


def is_id_too_old(txn: TransactionMetadata, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether a sweep may soon take the id for idle: commits in one phase do not change its record (W63)."""
    return 2 * (now_ms - txn.updated_at) >= constants.transactional_id_expiration_ms
