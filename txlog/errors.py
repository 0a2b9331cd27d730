"""Every error that txlog raises, grouped by what the caller does next.

    TxlogError
    |-- RetriableError           try the same call again
    |-- OutcomeUnknownError      the write may have landed: repeat the same call, nothing else
    |-- AbortableError           abort the transaction, then start a new one
    |-- FencedError              another instance owns this identity: close
    |-- InvalidRequestError      fix the call (also a ValueError)
    `-- CorruptLogError          stored bytes break the format: stop and inspect

Names and meanings below the groups are Kafka's (see PROTOCOL.md, "Errors"). Types are API, texts are not. Texts contain
the details: who, where, expected, found, and after `hint:` what to do.
"""

from __future__ import annotations


class TxlogError(Exception):
    """Root of all errors of this package. The text is `<problem>` or `<problem> hint: <hint>`."""

    @property
    def problem(self) -> str:
        """The text without its hint."""
        return split_hint(str(self))[0]

    @property
    def hint(self) -> str | None:
        """The advice after `hint:`, if there is any."""
        return split_hint(str(self))[1]


def split_hint(text: str) -> tuple[str, str | None]:
    """Return the problem, without a full stop at its end, and the hint of an error's text."""
    # The text stays whole, so that pickles, logs and Spark's exceptions, which copy only the text, keep the hint.
    problem, found, hint = text.partition(" hint: ")
    return (problem.removesuffix("."), hint) if found else (problem, None)


# -- what the caller does next ---------------------------------------------------------------------


class RetriableError(TxlogError):
    """The same call may succeed later.

    Nothing was decided, except with a TxlogTimeoutError: repeat the same call first.
    """


class OutcomeUnknownError(TxlogError):
    """A write may or may not have landed, and could not be settled before the deadline.

    Only the same call may be repeated: it joins the pending result. A producer without a transactional.id is an
    exception. Its partition may have forgotten it since, and a repeated call would write its rows twice. Files that the
    write named are kept.
    """


class AbortableError(TxlogError):
    """The transaction cannot commit. Abort it; the producer is usable afterwards."""


class FencedError(TxlogError):
    """A newer instance owns this transactional.id or group membership. Close this instance."""


class InvalidRequestError(TxlogError, ValueError):
    """The call itself is wrong. Nothing was written."""


class CorruptLogError(TxlogError):
    """Stored bytes break the format. The message names the object."""


# -- retry ----------------------------------------------------------------------------------------


class StorageError(RetriableError):
    """The store refused or failed a request that had no effect, or whose repetition is harmless."""


class ConcurrentTransactionsError(RetriableError):
    """Another transaction holds what this call needs (Kafka: CONCURRENT_TRANSACTIONS)."""


class UnstableOffsetCommitError(RetriableError):
    """A transaction with a newer offset for this group and partition is still undecided (UNSTABLE_OFFSET_COMMIT)."""


class CoordinatorContentionError(RetriableError):
    """The slot of a log was lost to other writers more often than `retries` allows."""


class TxlogTimeoutError(RetriableError):
    """A call did not finish within its time (`max.block.ms`, `delivery.timeout.ms`)."""


# -- abort ----------------------------------------------------------------------------------------


class TransactionAbortedError(AbortableError):
    """The row was not written because its transaction was aborted (KIP-654)."""


class CommitFailedError(AbortableError):
    """The condition of an offset commit does not hold: generation, member or starting offset (Kafka: CommitFailed)."""


class OutOfOrderSequenceError(AbortableError):
    """A batch is not the next one of its producer in this partition (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpochError(AbortableError):
    """The transaction was ended by others, or a partition has a newer epoch (INVALID_PRODUCER_EPOCH).

    A time-out or an operator may have ended it.
    """


class TransactionAbortableError(AbortableError):
    """The transaction is not open, or no longer open, where the call needs it to be (TRANSACTION_ABORTABLE)."""


# -- close ----------------------------------------------------------------------------------------


class ProducerFencedError(FencedError):
    """A newer instance of the transactional.id took over (PRODUCER_FENCED)."""


class InvalidProducerIdMappingError(FencedError):
    """The transactional.id was removed or has another producer id (INVALID_PRODUCER_ID_MAPPING).

    It is fatal since KAFKA-18019.
    """


class InvalidTxnStateError(FencedError):
    """The coordinator's state does not allow the request (INVALID_TXN_STATE); fatal for the producer."""


class StoreChangedError(FencedError):
    """The store was created again, or restored to an older state, since this client read it.

    The client looks at most once a second, so a call before this one may have left a record: run `txlog fsck`.
    """


# -- fix the call ---------------------------------------------------------------------------------


class InvalidTopicError(InvalidRequestError):
    """A topic name outside `[a-zA-Z0-9._-]{1,249}`, `.`/`..`, or reserved (`__`)."""


class UnknownTopicOrPartitionError(InvalidRequestError):
    """The topic or partition does not exist (UNKNOWN_TOPIC_OR_PARTITION)."""


class TopicExistsError(InvalidRequestError):
    """The topic exists already (TOPIC_ALREADY_EXISTS)."""


class InvalidPartitionsError(InvalidRequestError):
    """A number of partitions that is not possible (INVALID_PARTITIONS)."""


class InvalidConfigurationError(InvalidRequestError):
    """An unknown configuration key, or a value out of its range (INVALID_CONFIG)."""


class UnknownOptionError(InvalidRequestError):
    """An option that does not exist; the message names the most similar known one."""


class SchemaMismatchError(InvalidRequestError):
    """Rows do not fit the topic's schema; the message names the column, the expected and the found type."""


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start or beyond the log end (OFFSET_OUT_OF_RANGE)."""


class NoOffsetForPartitionError(InvalidRequestError):
    """No committed offset, and `auto.offset.reset` is `none`."""


class InvalidTxnTimeoutError(InvalidRequestError):
    """A transaction timeout ≤ 0 or beyond `transaction.max.timeout.ms` (INVALID_TRANSACTION_TIMEOUT)."""


class IllegalStateError(InvalidRequestError):
    """A call in the wrong order: begin before init, commit without begin (Kafka: IllegalStateException)."""


class RecordTooLargeError(InvalidRequestError):
    """Rows that cannot be stored within `max.message.bytes` or a commit object's limit (RECORD_TOO_LARGE)."""


class TransactionalIdNotFoundError(InvalidRequestError):
    """No such transactional.id (TRANSACTIONAL_ID_NOT_FOUND)."""


class GroupIdNotFoundError(InvalidRequestError):
    """No such consumer group (GROUP_ID_NOT_FOUND)."""


class OffsetMetadataTooLargeError(InvalidRequestError):
    """Offset metadata beyond 4096 characters (OFFSET_METADATA_TOO_LARGE)."""


class TxnVersionScopeError(InvalidRequestError):
    """The id holds a `txn.version` of another scope: a lost checkpoint, or a second query with the same id."""


class NotAStoreError(InvalidRequestError):
    """The location holds something other than a txlog store."""


class StoreAccessError(InvalidRequestError):
    """The store refuses the credentials, or none were given: HTTP 401 or 403. The message names where to give them."""


class UnsupportedStoreError(InvalidRequestError):
    """The backend cannot do what the format needs (atomic create), or the store needs features unknown here."""


class ClockSkewError(InvalidRequestError):
    """This machine's clock is too far from the store's."""


# -- stop and inspect -----------------------------------------------------------------------------


class CorruptRecordError(CorruptLogError):
    """An object fails its checksum, digest or syntax (CORRUPT_MESSAGE)."""


class MissingObjectError(CorruptLogError):
    """An object that the log names does not exist."""


class TableConflictError(CorruptLogError):
    """Another program wrote to a table of another format that txlog publishes."""
