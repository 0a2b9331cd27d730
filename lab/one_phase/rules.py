"""Who may commit in one phase, who fences whom, and what is too old? Each function is pure.

The names of the rules are those of `lab/scale/many-writers.md`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from txlog.core import transactions
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
)
from txlog.errors import InvalidTxnStateError

_JUDGE_INIT = transactions.judge_init
_JUDGE_ABORT_BY_OTHERS = transactions.judge_abort_by_others
_MAY_EXPIRE = transactions.may_expire
_MAY_BE_FORGOTTEN = transactions.may_be_forgotten


def attached_to(txn: TransactionMetadata | None) -> frozenset[TopicPartition]:
    """Return the partitions where the instance may commit in one phase."""
    topics = () if txn is None or txn.txn_topics is msgspec.UNSET else txn.txn_topics
    pairs = (each[1:].rpartition("-") for each in topics if each.startswith("@"))
    return frozenset(TopicPartition(topic, int(partition)) for topic, _, partition in pairs)


def with_attached(txn: TransactionMetadata, tps: frozenset[TopicPartition]) -> TransactionMetadata:
    topics = tuple(f"@{tp}" for tp in sorted(tps)) or msgspec.UNSET
    return msgspec.structs.replace(txn, txn_topics=topics)


def fence(current: TransactionMetadata, *, now_ms: int, write_id: str) -> TransactionMetadata:
    """Return the PREPARE_ABORT that ends the epoch in each partition where its instance may write (*fence*)."""
    prepare = transactions._prepare(current, "abort", now_ms=now_ms, write_id=write_id)
    partitions = tuple(sorted({*prepare.partitions, *attached_to(current)}))
    return with_attached(msgspec.structs.replace(prepare, partitions=partitions), frozenset())


def judge_init(current: TransactionMetadata | None, **given: Any) -> Transit | RollForward:
    """Judge the init of a new instance: it fences an older one wherever that one is attached (*fence*)."""
    if current is not None and current.state not in PREPARED and attached_to(current):
        return Transit(fence(current, now_ms=given["now_ms"], write_id=given["write_id"]))
    return _JUDGE_INIT(current, **given)


def judge_abort_by_others(
    current: TransactionMetadata | None, *, now_ms: int, write_id: str, only_if_timed_out: bool
) -> Transit | RollForward | None:
    """Judge a time-out or an operator's abort: it ends the epoch wherever the instance is attached, too (*fence*)."""
    verdict = _JUDGE_ABORT_BY_OTHERS(current, now_ms=now_ms, write_id=write_id, only_if_timed_out=only_if_timed_out)
    if isinstance(verdict, Transit) and current is not None:
        return Transit(fence(current, now_ms=now_ms, write_id=write_id))
    return verdict


def may_expire(txn: TransactionMetadata, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether a sweep may remove the id: never one that is attached (*remove*)."""
    return not attached_to(txn) and _MAY_EXPIRE(txn, now_ms, constants)


def may_be_forgotten(txn: TransactionMetadata, now_ms: int, grace_ms: int) -> bool:
    """Return whether anybody may remove the id: never one that is attached (*remove*)."""
    return not attached_to(txn) and _MAY_BE_FORGOTTEN(txn, now_ms, grace_ms)


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
    """Judge that the owner of `txn` attaches itself to a partition (*attach*). The state of the id stays as it is."""
    found = _of_owner(current, txn, now_ms)
    if not isinstance(found, TransactionMetadata):
        return found
    current = found
    if current.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(current, txn, f"it could attach itself to {tp}"))
    if current.state not in IDLE:
        return Refused(
            InvalidTxnStateError(f"{describe_owner(txn)}: it has an open transaction, so it cannot be attached to {tp}")
        )
    if tp in attached_to(current):
        return Done(current)
    made = with_attached(current, attached_to(current) | {tp})
    return Transit(msgspec.structs.replace(made, updated_at=now_ms, write_id=write_id))


def judge_fence(
    current: TransactionMetadata | None, txn: TransactionMetadata, *, now_ms: int, write_id: str
) -> Judgement:
    """Judge that the owner of `txn` ends its epoch after a commit in one phase of unknown outcome (*abort*)."""
    found = _of_owner(current, txn, now_ms)
    if not isinstance(found, TransactionMetadata):
        return found
    current = found
    if (current.producer_epoch, current.last_epoch) == (txn.producer_epoch + 1, txn.producer_epoch):
        return Done(current)
    if current.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(current, txn, "it could abort"))
    return Transit(fence(current, now_ms=now_ms, write_id=write_id))


def judge_detach(
    current: TransactionMetadata | None, *, now_ms: int, write_id: str, constants: StoreConstants
) -> Transit | None:
    """Judge that a sweep ends the epoch of an idle, attached id (*remove*); None: leave it alone."""
    if current is None or current.state not in IDLE or not attached_to(current):
        return None
    if not _MAY_EXPIRE(with_attached(current, frozenset()), now_ms, constants):
        return None
    return Transit(fence(current, now_ms=now_ms, write_id=write_id))


def judge_detach_own(
    current: TransactionMetadata | None, txn: TransactionMetadata, *, now_ms: int, write_id: str
) -> Transit | None:
    """Judge that the instance of `txn` detaches itself because it ends; None if that is not needed, or not its own."""
    owner = (txn.producer_id, txn.producer_epoch)
    if current is None or not attached_to(current) or (current.producer_id, current.producer_epoch) != owner:
        return None
    current = as_its_owner_knows(current, txn, now_ms)
    if current.state not in IDLE:
        return None
    made = with_attached(current, frozenset())
    return Transit(msgspec.structs.replace(made, updated_at=now_ms, write_id=write_id))


def is_attached(current: TransactionMetadata | None, txn: TransactionMetadata, tp: TopicPartition) -> bool:
    """Return whether the table still shows the instance of `txn` attached to the partition (*attach*)."""
    return (
        current is not None
        and (current.producer_id, current.producer_epoch) == (txn.producer_id, txn.producer_epoch)
        and tp in attached_to(current)
    )


def is_too_old(state: PartitionState, draft: BatchDraft, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether the partition may soon forget, or has forgotten, what the producer wrote in this epoch (*old
    sequences*).

    An expired producer would make the next batch a gap. The next one then needs a new epoch, which a commit in two
    phases gives.
    """
    entry = state.producers.get(draft.producer_id)
    if entry is None or entry.producer_epoch != draft.producer_epoch:
        return draft.base_sequence > 0
    return 2 * (max(now_ms, state.last_timestamp) - entry.timestamp) >= constants.producer_id_expiration_ms


def is_id_too_old(txn: TransactionMetadata, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether a sweep may soon take the id for idle: commits in one phase do not change its record."""
    return 2 * (now_ms - txn.updated_at) >= constants.transactional_id_expiration_ms


_HERE = "txlog.protocol."
PATCHES = {
    _HERE + "transactions.judge_init": judge_init,
    _HERE + "transactions.judge_abort_by_others": judge_abort_by_others,
    _HERE + "expiry.may_expire": may_expire,
    _HERE + "expiry.may_be_forgotten": may_be_forgotten,
}
"""What init, time-outs, operators and sweeps do differently, by its place in the shipped code."""
