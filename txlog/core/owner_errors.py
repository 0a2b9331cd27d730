"""How does an instance of a transactional.id learn that it may not go on?"""

from __future__ import annotations

from txlog.core.records import TransactionMetadata
from txlog.errors import InvalidProducerEpochError, InvalidProducerIdMappingError, ProducerFencedError, TxlogError


def check_owner(current: TransactionMetadata | None, txn: TransactionMetadata) -> TxlogError | None:
    """Return why the id's record is not of the producer of `txn`; None if it is."""
    if current is not None and current.producer_id == txn.producer_id:
        return None
    found = (
        "it is gone (expired or removed)" if current is None else f"it belongs to producer {current.producer_id} now"
    )
    return InvalidProducerIdMappingError(
        f"transactional.id {txn.transactional_id!r} of producer {txn.producer_id}, epoch "
        f"{txn.producer_epoch}: {found}. "
        "hint: close this producer; a new one starts afresh and knows no txn.version: look which one is in the log"
    )


def fenced_error(current: TransactionMetadata, txn: TransactionMetadata, before: str) -> TxlogError:
    """Return why `txn`, whose epoch has ended, may not go on."""
    # Until PREPARE_ABORT is finished it is unknown whether a time-out or a newer instance began it. The error is fatal
    # only if that instance's own record is there (KIP-588).
    timed_out = current.last_epoch == txn.producer_epoch and current.state in ("PREPARE_ABORT", "COMPLETE_ABORT")
    if timed_out:
        return InvalidProducerEpochError(
            f"{describe_owner(txn)}: the transaction was aborted before {before}, by its time-out of "
            f"{current.timeout_ms} ms or by an operator (epoch now {current.producer_epoch}). "
            "hint: abort it, then start a new one, and send all its rows again"
        )
    return ProducerFencedError(
        f"{describe_owner(txn)} was fenced before {before}: a newer instance of this transactional.id took over with "
        f"epoch {current.producer_epoch} (state {current.state}). "
        "hint: close this producer; only the newest instance may go on"
    )


def describe_owner(txn: TransactionMetadata) -> str:
    """Return the id, producer and epoch for the beginning of a message."""
    return f"transactional.id {txn.transactional_id!r} (producer {txn.producer_id}, epoch {txn.producer_epoch})"
