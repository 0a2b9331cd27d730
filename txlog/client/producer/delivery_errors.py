"""Which error does a batch that could not be written raise, and may its rows be in the log all the same?"""

from __future__ import annotations

from txlog.client.producer.batches import Batch
from txlog.errors import (
    InvalidProducerEpochError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RetriableError,
    TransactionAbortableError,
    TxlogError,
    TxlogTimeoutError,
    split_hint,
)
from txlog.text import count_text


def may_be_written(batch: Batch, error: Exception) -> bool:
    """Return whether the rows may be in the log, as far as this try shows.

    The protocol raises the error of a failed request, or of damage, unchanged only if nothing was written. An abandoned
    try has written nothing if all its creates were refused.
    """
    if isinstance(error, TxlogTimeoutError):
        return batch.created
    return isinstance(error, OutcomeUnknownError) or not isinstance(error, TxlogError)


def final_error(who: str, batch: Batch, error: Exception, *, transactional: bool) -> Exception:
    """Return what the batch's futures raise.

    It never advises a retry, because a new send would be other rows to the log (KIP-1050).
    """
    problem, _ = split_hint(str(error))
    rows = f"{who}: {count_text(batch.rows, 'row')} for {batch.tp}"
    final = error
    if transactional:
        # An error about this try (its epoch or sequence) does not show whether the first try succeeded (W44). Other
        # errors are about the transaction and are final.
        doubtful = batch.doubtful and isinstance(error, InvalidProducerEpochError | OutOfOrderSequenceError)
        open_ended = isinstance(error, RetriableError | OutcomeUnknownError) or not isinstance(error, TxlogError)
        if doubtful or open_ended:
            final = TransactionAbortableError(
                f"{rows} could not be written: {problem}. hint: abort the transaction, and send all its rows anew"
            )
    elif batch.doubtful or isinstance(error, OutcomeUnknownError):
        # The advice of the error itself is to repeat the call, but a second send would be other rows.
        final = OutcomeUnknownError(
            f"{rows}: {problem}. It may have been written all the same. "
            "hint: look whether the rows are there before you send them again; a transactional.id makes it certain"
        )
    elif isinstance(error, RetriableError):
        final = type(error)(f"{rows} could not be written, and nothing of it was: {problem}")
    if final is not error:
        final.__cause__ = error
    return final


def no_room_error(who: str, waiting_bytes: int, when: str) -> TxlogTimeoutError:
    """Return the error of a send that found too many rows waiting."""
    return TxlogTimeoutError(
        f"{who}: {waiting_bytes} bytes wait to be written, and no room came free {when}; nothing of this send was taken"
    )


def late_error(who: str, batch: Batch, timeout_ms: int, met: Exception | None) -> TxlogTimeoutError:
    """Return the error of a batch that is out of time. `met` is the last error that it met."""
    cause = f": {met}" if met is not None else ""
    return TxlogTimeoutError(
        f"{who}: {count_text(batch.rows, 'row')} for {batch.tp} did not get in within delivery.timeout.ms = "
        f"{timeout_ms}{cause}"
    )
