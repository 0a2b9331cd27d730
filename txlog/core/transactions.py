"""Which transition may a transactional.id make next, and what record does it write?

The rules are Kafka's transaction.version 2 (KIP-890), with int64 epochs that are never exhausted. Every function takes
the id's last record and returns an intended transition, or the reason why there is none. The caller writes it by
compare-and-set. No transition changes a decision (invariant 4). See PROTOCOL.md, "Transactions".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.names import TopicPartition
from txlog.core.owner_errors import check_owner, describe_owner, fenced_error
from txlog.core.records import (
    NO_PRODUCER_EPOCH,
    NO_TIMESTAMP,
    Outcome,
    StagedObject,
    StagedPart,
    StoreConstants,
    TransactionMetadata,
    TransactionState,
)
from txlog.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    TxlogError,
    TxnVersionScopeError,
)

PREPARED: frozenset[TransactionState] = frozenset({"PREPARE_COMMIT", "PREPARE_ABORT"})
COMPLETE: frozenset[TransactionState] = frozenset({"COMPLETE_COMMIT", "COMPLETE_ABORT"})
IDLE: frozenset[TransactionState] = frozenset({"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"})

MAX_STORED_TOPICS = 100
"""The topics of a version with more of them are not stored: the id's record is kept as long as the id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnVersion:
    """The user's number of an id's transaction, such as a micro-batch id. A lower one than the last is skipped.

    Scope: a stream's query id, otherwise empty. Topics: all topics that the transaction is for; None if they are not
    known.
    """

    version: int
    scope: str = ""
    topics: frozenset[str] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        # In a record -1 means no version, so a transaction with version -1 would be committed again and again.
        if not 0 <= self.version < 2**63:
            raise InvalidRequestError(f"txn.version {self.version} must be from 0 to 2^63 - 1")


@dataclass(frozen=True, slots=True)
class Transit:
    """Write this record by compare-and-set on the one that was judged."""

    to: TransactionMetadata


@dataclass(frozen=True, slots=True)
class RollForward:
    """This PREPARE_* must be finished first; then ask again."""

    prepare: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to write: an earlier try of the same call succeeded. This is the id's record now."""

    txn: TransactionMetadata


@dataclass(frozen=True, slots=True)
class AlreadyCommitted:
    """An abort came too late: the transaction had been committed."""

    txn: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Skipped:
    """The version is not above the last committed one; nothing was decided."""

    txn: TransactionMetadata


@dataclass(frozen=True, slots=True)
class Refused:
    """The transition is not possible in this state. The verdict counts only on a fresh table."""

    error: TxlogError


@dataclass(frozen=True, slots=True)
class LookFirst:
    """Whether the topics of staged rows still exist must be read before this commit may be decided (W46)."""


Judgement: TypeAlias = Transit | RollForward | Done | AlreadyCommitted | Skipped | Refused | LookFirst


def judge_init(
    current: TransactionMetadata | None,
    *,
    transactional_id: str,
    new_producer_id: int,
    timeout_ms: int,
    now_ms: int,
    write_id: str,
) -> Transit | RollForward:
    """Judge the InitProducerId of a new instance: epoch + 1 (W24, invariant 8).

    An ONGOING transaction is aborted first, and an instance that is attached to partitions is fenced there (W62): the
    Transit is then a PREPARE_ABORT.
    """
    if current is None:
        return Transit(
            TransactionMetadata(
                transactional_id=transactional_id,
                producer_id=new_producer_id,
                producer_epoch=0,
                state="EMPTY",
                timeout_ms=timeout_ms,
                updated_at=now_ms,
                write_id=write_id,
            )
        )
    if current.state in PREPARED:
        return RollForward(current)
    if current.state == "ONGOING" or current.attached:
        return Transit(fence(current, now_ms=now_ms, write_id=write_id))
    return Transit(
        msgspec.structs.replace(
            current,
            producer_epoch=current.producer_epoch + 1,
            last_epoch=NO_PRODUCER_EPOCH,  # makes the old instance's retry fail
            state="EMPTY",
            timeout_ms=timeout_ms,
            partitions=(),
            started_at=NO_TIMESTAMP,
            updated_at=now_ms,
            write_id=write_id,
        )
    )


def judge_add_partitions(
    current: TransactionMetadata | None,
    txn: TransactionMetadata,
    partitions: Iterable[TopicPartition],
    *,
    now_ms: int,
    write_id: str,
    version: TxnVersion | None = None,
) -> Judgement:
    """Judge AddPartitionsToTxn by the owner of `txn`.

    `version` is given when conditional offsets are registered (W22, W31).
    """
    if (wrong := check_owner(current, txn)) is not None:
        return Refused(wrong)
    assert current is not None
    current = as_its_owner_knows(current, txn, now_ms)
    if current.state in PREPARED:
        return RollForward(current)
    if current.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(current, txn, "a partition could be added"))
    if version is not None and (verdict := judge_version(current, version)) is not None:
        return verdict
    wanted = set(partitions)
    if current.state != "ONGOING":
        current = msgspec.structs.replace(
            current, last_epoch=NO_PRODUCER_EPOCH, state="ONGOING", partitions=(), started_at=now_ms
        )
    elif wanted <= set(current.partitions):
        return Done(current)
    grown = tuple(sorted(wanted.union(current.partitions)))
    return Transit(msgspec.structs.replace(current, partitions=grown, updated_at=now_ms, write_id=write_id))


def judge_end(
    current: TransactionMetadata | None,
    txn: TransactionMetadata,
    outcome: Outcome,
    *,
    now_ms: int,
    write_id: str,
    staged: tuple[StagedPart, ...] = (),
    staged_object: StagedObject | None = None,
    version: TxnVersion | None = None,
) -> Judgement:
    """Judge EndTxn by the owner of `txn` (PROTOCOL.md, "The coordinator": the table of its outcomes; W30)."""
    if (wrong := check_owner(current, txn)) is not None:
        return Refused(wrong)
    assert current is not None
    current = as_its_owner_knows(current, txn, now_ms)
    if current.state in PREPARED:
        return RollForward(current)
    has_ended = (current.producer_epoch, current.last_epoch) == (txn.producer_epoch + 1, txn.producer_epoch)
    if has_ended and current.state != "EMPTY":
        return _answer_retry(current, txn, outcome, version)
    if current.producer_epoch != txn.producer_epoch:
        return Refused(fenced_error(current, txn, f"it could {outcome}"))
    if outcome == "commit":
        if version is not None and (verdict := judge_version(current, version)) is not None:
            return verdict
        if current.state != "ONGOING" and not staged and staged_object is None and version is None:
            return Refused(
                InvalidTxnStateError(
                    f"{describe_owner(txn)}: commit of a transaction that was never begun; the coordinator's "
                    f"state is {current.state}"
                )
            )
    return Transit(
        _prepare(
            current,
            outcome,
            now_ms=now_ms,
            write_id=write_id,
            staged=staged,
            staged_object=staged_object,
            version=version,
        )
    )


def judge_abort_by_others(
    current: TransactionMetadata | None, *, now_ms: int, write_id: str, only_if_timed_out: bool
) -> Transit | RollForward | None:
    """Judge the abort by the time-out sweep or by an operator; return None if there is nothing to do.

    A PREPARE_* is only rolled forward (W25, W28).
    """
    if current is None:
        return None
    if current.state in PREPARED:
        return RollForward(current)
    if current.state != "ONGOING" or (only_if_timed_out and not is_timed_out(current, now_ms)):
        return None
    return Transit(fence(current, now_ms=now_ms, write_id=write_id))


def judge_complete(
    current: TransactionMetadata | None, txn: TransactionMetadata, *, now_ms: int, write_id: str
) -> Transit | None:
    """Judge the writing of `txn`, a COMPLETE_*; None unless the id's record is its PREPARE_* (W27).

    Every marker must be in.
    """
    if current is None or not is_completed_by(current, txn):
        return None
    return Transit(completed(current, now_ms=now_ms, write_id=write_id))


def completed(prepare: TransactionMetadata, *, now_ms: int, write_id: str) -> TransactionMetadata:
    """Return the COMPLETE_* of a PREPARE_*. All but its time and write_id is the same whichever process writes it."""
    return msgspec.structs.replace(
        prepare,
        state="COMPLETE_COMMIT" if prepare.state == "PREPARE_COMMIT" else "COMPLETE_ABORT",
        partitions=(),
        staged=(),
        staged_object=None,
        updated_at=now_ms,
        write_id=write_id,
    )


def is_completed_by(current: TransactionMetadata, txn: TransactionMetadata) -> bool:
    """Return whether `current` is the PREPARE_* that `txn`, a COMPLETE_*, completes.

    One process at most decides an epoch (W24), so its epochs identify a PREPARE_*.
    """
    return (
        current.state in PREPARED
        and txn.state in COMPLETE
        and (current.producer_id, current.producer_epoch, current.last_epoch, current.last_outcome)
        == (txn.producer_id, txn.producer_epoch, txn.last_epoch, txn.last_outcome)
    )


def as_its_owner_knows(current: TransactionMetadata, txn: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Return the id's record as the owner of `txn` judges it: a PREPARE_* that it has finished is a COMPLETE_* (W25).

    An owner holds `txn`, a COMPLETE_*, only after every marker was in. The time of completion is not known, only that
    it was not later than now.
    """
    if not is_completed_by(current, txn):
        return current
    return completed(current, now_ms=now_ms, write_id=current.write_id)


def fence(current: TransactionMetadata, *, now_ms: int, write_id: str) -> TransactionMetadata:
    """Return the PREPARE_ABORT that ends the epoch in each partition where its instance may write (W62).

    These are the registered partitions of an open transaction, and those to which the instance is attached.
    """
    prepare = _prepare(current, "abort", now_ms=now_ms, write_id=write_id)
    if not current.attached:
        return prepare
    partitions = tuple(sorted({*prepare.partitions, *current.attached}))
    return msgspec.structs.replace(prepare, partitions=partitions, attached=msgspec.UNSET)


FORGET_CLOCK_ERRORS_MS = 4 * MAX_CLOCK_ERROR_MS
"""Four clocks: the remover's, that of the COMPLETE_*, and the two that measure the age of a snapshot (W32)."""


def is_timed_out(txn: TransactionMetadata, now_ms: int) -> bool:
    """Return whether it has been ONGOING for longer than its timeout; exactly as long is not enough (W28)."""
    return txn.state == "ONGOING" and txn.started_at + txn.timeout_ms < now_ms


def may_expire(txn: TransactionMetadata, now_ms: int, constants: StoreConstants) -> bool:
    """Return whether a sweep may remove an idle id (W32).

    It must not remove an id with a `txn.version`, nor an id that changed within the grace. The record does not show
    whether an earlier transaction had hung: init may have finished it a moment ago.
    """
    least_ms = max(
        constants.transactional_id_expiration_ms + 2 * MAX_CLOCK_ERROR_MS,
        constants.delete_grace_ms + FORGET_CLOCK_ERRORS_MS,
    )
    return (
        may_be_forgotten(txn, now_ms, constants.delete_grace_ms)
        and txn.txn_version < 0
        and now_ms - txn.updated_at >= least_ms
    )


def may_be_forgotten(txn: TransactionMetadata, now_ms: int, grace_ms: int) -> bool:
    """Return whether an id may be removed at all (W32).

    It must not be removed while its transaction is open, or its instance attached to a partition (W62). If a
    transaction was open for the grace, the id must also stay for the grace after its end. The reason: a merge judges
    rows of a removed id by their age alone, and a snapshot that began before that end must not show them (C3).
    """
    hung = txn.state == "COMPLETE_COMMIT" and txn.updated_at - txn.started_at >= grace_ms
    if txn.attached:
        return False
    return txn.state in IDLE and not (hung and now_ms - txn.updated_at < grace_ms + FORGET_CLOCK_ERRORS_MS)


def is_this_ongoing(current: TransactionMetadata | None, txn: TransactionMetadata) -> bool:
    """Return whether the table still shows the transaction of `txn` as open (W21)."""
    return (
        current is not None
        and current.state == "ONGOING"
        and (current.producer_id, current.producer_epoch) == (txn.producer_id, txn.producer_epoch)
    )


def not_registered_error(
    current: TransactionMetadata | None, txn: TransactionMetadata, tp: TopicPartition
) -> TxlogError:
    """Return why `txn` may not write to a partition that does not know its producer."""
    if (wrong := check_owner(current, txn)) is not None:
        return wrong
    assert current is not None
    if is_this_ongoing(current, txn):
        return IllegalStateError(
            f"transactional.id {txn.transactional_id!r}: {tp} was not registered with its "
            "transaction before the first batch"
        )
    return fenced_error(current, txn, f"it could write to {tp}")


def judge_version(current: TransactionMetadata, version: TxnVersion) -> Skipped | Refused | None:
    """Return the result of a PREPARE_COMMIT with `version` on this record: None if it may be decided (W31).

    The last version is refused for a topic that it was not committed for. Users of Delta's `txnAppId` and `txnVersion`
    write each topic on its own, with one id and one version. The second write is not a repetition: a skip would lose
    it.
    """
    if current.txn_version < 0:
        return None
    if current.txn_scope != version.scope:
        return Refused(
            TxnVersionScopeError(
                f"transactional.id {current.transactional_id!r} holds txn.version {current.txn_version} of scope "
                f"{current.txn_scope!r}, and this transaction has version {version.version} of scope "
                f"{version.scope!r}: a lost checkpoint, or two queries with one id. "
                "hint: after a lost checkpoint let the query write only the rows that the log lacks, run "
                f"`txlog transactions expire --transactional-id {current.transactional_id} --force --execute`, and "
                'remove the new checkpoint: see the page "After a lost checkpoint". '
                "Another id is for other rows: it writes these again"
            )
        )
    if (
        version.version == current.txn_version
        and version.topics is not None
        and current.txn_topics is not msgspec.UNSET
    ):
        others = sorted(version.topics.difference(current.txn_topics))
        if others:
            return Refused(
                InvalidRequestError(
                    f"transactional.id {current.transactional_id!r}, version {version.version}: it was "
                    f"committed for {', '.join(current.txn_topics) or 'no topic'}, so the rows for "
                    f"{', '.join(others)} would be skipped. "
                    "hint: write all topics in one transaction (Spark: TxLog.transaction), or give each topic "
                    "its own transactional.id"
                )
            )
    return Skipped(current) if is_repeated(current, version) else None


def check_version(current: TransactionMetadata | None, version: TxnVersion | None) -> None:
    """Raise TxnVersionScopeError or InvalidRequestError if `version` can only be refused on this record.

    Call this before an init, so that a refused call does not fence another producer.
    """
    verdict = None if current is None or version is None else judge_version(current, version)
    if isinstance(verdict, Refused):
        raise verdict.error


def is_repeated(current: TransactionMetadata, version: TxnVersion) -> bool:
    """Return whether a transaction with `version` is sure to be skipped: versions of an id only rise."""
    return current.txn_scope == version.scope and version.version <= current.txn_version


def _prepare(
    current: TransactionMetadata,
    outcome: Outcome,
    *,
    now_ms: int,
    write_id: str,
    staged: tuple[StagedPart, ...] = (),
    staged_object: StagedObject | None = None,
    version: TxnVersion | None = None,
) -> TransactionMetadata:
    """Return PREPARE_*, the decision. It has epoch e + 1 and last_epoch e, whichever process writes it (W24)."""
    commit = outcome == "commit"
    return msgspec.structs.replace(
        current,
        producer_epoch=current.producer_epoch + 1,
        last_epoch=current.producer_epoch,
        last_outcome=outcome,
        state="PREPARE_COMMIT" if commit else "PREPARE_ABORT",
        partitions=current.partitions if current.state == "ONGOING" else (),
        staged=staged if commit else (),
        staged_object=staged_object if commit else None,
        started_at=current.started_at if current.state == "ONGOING" else now_ms,
        updated_at=now_ms,
        txn_scope=version.scope if commit and version else current.txn_scope,
        txn_version=version.version if commit and version else current.txn_version,
        txn_topics=_stored_topics(version) if commit and version else current.txn_topics,
        write_id=write_id,
    )


def _stored_topics(version: TxnVersion) -> tuple[str, ...] | msgspec.UnsetType:
    if version.topics is None or len(version.topics) > MAX_STORED_TOPICS:
        return msgspec.UNSET
    return tuple(sorted(version.topics))


def _answer_retry(
    current: TransactionMetadata, txn: TransactionMetadata, outcome: Outcome, version: TxnVersion | None
) -> Judgement:
    committed = current.state == "COMPLETE_COMMIT"
    if outcome == "commit":
        if committed:
            return Done(current)
        if version is not None and is_repeated(current, version):
            # The version is an earlier transaction's, so the first try was skipped. The answer does not depend on which
            # process aborted this transaction.
            return Skipped(current)
        return Refused(
            # As `_fenced` for a send: no other producer has taken over the id, so this one may go on.
            InvalidProducerEpochError(
                f"{describe_owner(txn)}: its transaction was aborted before it could commit, by its time-out of "
                f"{current.timeout_ms} ms or by an operator; nothing of it is visible. "
                "hint: abort it, then start a new one, and send all its rows again"
            )
        )
    return AlreadyCommitted(current) if committed else Done(current)
