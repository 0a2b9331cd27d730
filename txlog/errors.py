"""Every error that txlog raises, grouped by what the caller does next.

    TxlogError
    |-- RetriableError           try the same call again
    |-- OutcomeUnknownError      the write may have landed: repeat the same call
    |-- AbortableError           abort the transaction, then start a new one
    |-- FencedError              another instance owns this identity: close
    |-- InvalidRequestError      fix the call (also a ValueError)
    `-- CorruptLogError          stored bytes break the format: stop and inspect

Names and meanings below the groups are Kafka's (see PROTOCOL.md, "Errors"). Types are API, texts are not. Texts contain
the details: who, where, expected, found, and after `hint:` what to do.
"""

from __future__ import annotations


class TxlogError(Exception):
    """Root of all errors of this package. The text is `<problem>` or `<problem> hint: <hint>`.

    Cause: A command or a job failed in a way that fits no group below.
    What to do: Do what the hint says. Catch a group or a class below it to handle one kind of error.
    """

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

    Cause: The store, another process or another transaction blocked the call.
    What to do: Repeat the same call. If it fails for minutes, look at the store and at what the message names.
    """


class OutcomeUnknownError(TxlogError):
    """A write may or may not have landed, and could not be settled before the deadline.

    Only the same call may be repeated: it joins the pending result. After a commit you may call `abort_transaction`
    too, which finds out what won. A producer without a transactional.id is an exception. Its partition may have
    forgotten it since, and a repeated call would write its rows twice. Files that the write named are kept.

    Cause: The answer of the store was lost, and the call ended before txlog could find out what the store did.
    What to do: Repeat the same call, and delete none of its files. Without a transactional.id read the topic first.
    """


class AbortableError(TxlogError):
    """The transaction cannot commit. Abort it; the producer is usable afterwards.

    Cause: A part of the transaction failed, or its condition does not hold any more.
    What to do: Abort (`with producer.transaction()` does it itself), then repeat the whole transaction.
    """


class FencedError(TxlogError):
    """A newer instance owns this transactional.id or group membership. Close this instance.

    Cause: Two processes use one name, or the process was away for longer than its timeout.
    What to do: Close the instance. Continue only if no other process does its work; then open a new one.
    """


class InvalidRequestError(TxlogError, ValueError):
    """The call itself is wrong. Nothing was written.

    Cause: An argument, an option or a command is not possible, or the topic, id or group is not in a state for it.
    What to do: Change the call as the message says. The same call fails again.
    """


class CorruptLogError(TxlogError):
    """Stored bytes break the format. The message names the object.

    Cause: A disk, a copy or another program changed or deleted objects of the store, or txlog has a bug.
    What to do: Stop the writers, run `txlog fsck`, and read docs/restore.md before you change or delete an object.
    """


# -- retry ----------------------------------------------------------------------------------------


class StorageError(RetriableError):
    """The store refused or failed a request that had no effect, or whose repetition is harmless.

    Cause: The store or the network failed, the store limits requests, or a write took too long.
    What to do: Repeat the same call. If it fails again, check the network, the disk, the quota and the store's status.
    """


class CatalogError(RetriableError):
    """A catalog did not take the newest version of a published table. The log and the tables by path have it.

    Cause: The catalog or the network failed, its configuration is wrong, or it refused the commit.
    What to do: Read the message, mend the catalog or its configuration, and publish again; see docs/publish.md.
    """


class ConcurrentTransactionsError(RetriableError):
    """Another transaction holds what this call needs (Kafka: CONCURRENT_TRANSACTIONS).

    Cause: Another transaction of the same id, or with offsets of the same group, is not decided yet.
    What to do: Repeat the call. `txlog transactions list` shows the transaction; see docs/hanging-transaction.md.
    """


class UnstableOffsetCommitError(RetriableError):
    """A transaction with a newer offset for this group and partition is still undecided (UNSTABLE_OFFSET_COMMIT).

    Cause: A producer has sent offsets of this group in a transaction, and has neither committed nor aborted it.
    What to do: Repeat the call. If the producer is dead, its transaction ends after its transaction.timeout.ms.
    """


class CoordinatorContentionError(RetriableError):
    """The slot of a log was lost to other writers more often than `retries` allows.

    Cause: Many writers append to one partition or change one topic at the same time.
    What to do: Repeat the call. If it happens often, use more partitions or larger batches; see docs/scale.md.
    """


class TxlogTimeoutError(RetriableError):
    """A call did not finish within its time (`max.block.ms`, `delivery.timeout.ms`).

    Cause: The store is slow or not reachable, another transaction blocks the call, or the limit is too low.
    What to do: Repeat the same call: it continues what the first one has begun. Raise the limit that the message names.
    """


# -- abort ----------------------------------------------------------------------------------------


class TransactionAbortedError(AbortableError):
    """The row was not written because its transaction was aborted (KIP-654).

    Cause: The transaction was aborted, or the producer was closed, before the row was written or committed.
    What to do: Send the row again in a new transaction, if it is still needed.
    """


class CommitFailedError(AbortableError):
    """The condition of an offset commit does not hold: generation, member or starting offset (Kafka: CommitFailed).

    Cause: Another consumer or job has these partitions or offsets now, or a checkpoint does not fit the group.
    What to do: Abort, and continue at the committed offsets. For a Spark query see docs/lost-checkpoint.md.
    """


class OutOfOrderSequenceError(AbortableError):
    """A batch is not the next one of its producer in this partition (OUT_OF_ORDER_SEQUENCE_NUMBER).

    Cause: An earlier batch is lost or too old, or two processes write as one producer.
    What to do: Abort and repeat the transaction with a new producer. Let one process at a time use a transactional.id.
    """


class InvalidProducerEpochError(AbortableError):
    """The transaction was ended by others, or a partition has a newer epoch (INVALID_PRODUCER_EPOCH).

    A time-out, an operator or a newer instance may have ended it. The partition shows only the epoch, not who ended it.

    Cause: The transaction was open for longer than its transaction.timeout.ms, an operator aborted it, or another
    process has called `init_transactions()` with the same transactional.id. Or the store lost the record of the
    transaction.
    What to do: Abort, and repeat the transaction. For long work raise transaction.timeout.ms. If the abort raises
    ProducerFencedError, a newer instance took over: close this producer.
    """


class TransactionAbortableError(AbortableError):
    """The transaction is not open, or no longer open, where the call needs it to be (TRANSACTION_ABORTABLE).

    Cause: A send of this transaction failed, or the columns of its topic changed.
    What to do: Call `abort_transaction()`, then repeat the whole transaction.
    """


# -- close ----------------------------------------------------------------------------------------


class ProducerFencedError(FencedError):
    """A newer instance of the transactional.id took over (PRODUCER_FENCED).

    Cause: Another process has called `init_transactions()` with the same transactional.id.
    What to do: Close this producer, and stop one of the two processes. Only different work needs two ids.
    """


class InvalidProducerIdMappingError(FencedError):
    """The transactional.id was removed or has another producer id (INVALID_PRODUCER_ID_MAPPING).

    It is fatal since KAFKA-18019.

    Cause: The id was idle for transactional.id.expiration.ms, or an operator removed it.
    What to do: Open a new producer. It has no txn.version, so check which version was written last.
    """


class InvalidTxnStateError(FencedError):
    """The coordinator's state does not allow the request (INVALID_TXN_STATE); fatal for the producer.

    Cause: The coordinator or a partition has another state for this producer than the call needs.
    What to do: Close the producer. Look at `txlog transactions describe ID`, then open a new producer.
    """


class StoreChangedError(FencedError):
    """The store was created again, or restored to an older state, since this client read it.

    The client looks at most once a second, so a call before this one may have left a record: run `txlog fsck`.

    Cause: A person or a program deleted or restored the store while this program ran.
    What to do: Close what was opened from this store, and open the store again. Run `txlog fsck`.
    """


# -- fix the call ---------------------------------------------------------------------------------


class InvalidTopicError(InvalidRequestError):
    """A topic name outside `[a-zA-Z0-9._-]{1,249}`, `.`/`..`, or reserved (`__`).

    Cause: The name has a character that is not allowed, is too long, or belongs to txlog.
    What to do: Choose another name.
    """


class UnknownTopicOrPartitionError(InvalidRequestError):
    """The topic or partition does not exist (UNKNOWN_TOPIC_OR_PARTITION).

    Cause: The name is misspelt, the topic was deleted, or the program opens another store.
    What to do: Check name and store with `txlog topics list`. Create the topic, or correct the partition.
    """


class TopicExistsError(InvalidRequestError):
    """The topic exists already (TOPIC_ALREADY_EXISTS).

    Cause: A topic of this name was created before.
    What to do: Choose another name, or pass `if_not_exists=True` (command line: `--if-not-exists`).
    """


class InvalidPartitionsError(InvalidRequestError):
    """A number of partitions that is not possible (INVALID_PARTITIONS).

    Cause: The number is out of range, is below the present one, or would move keys to other partitions.
    What to do: Choose a number as the message says. For fewer partitions copy the rows to a new topic.
    """


class InvalidConfigurationError(InvalidRequestError):
    """An unknown configuration key, or a value out of its range (INVALID_CONFIG).

    Cause: A setting is misspelt, belongs to another kind of object, or has a value that it cannot have.
    What to do: Correct it where the message says. docs/settings.md and conf/txlog.toml list all settings.
    """


class UnknownOptionError(InvalidRequestError):
    """An option that does not exist; the message names the most similar known one.

    Cause: An option is misspelt, or belongs to another call.
    What to do: Use the option that the message names, or leave it out. docs/kafka.md lists all options.
    """


class SchemaMismatchError(InvalidRequestError):
    """Rows do not fit the topic's schema; the message names the column, the expected and the found type.

    Cause: A column is missing, unknown, null, or has another type than the topic or the reader expects.
    What to do: Change the rows, or the columns of the topic (docs/columns.md).
    """


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset below the log start or beyond the log end (OFFSET_OUT_OF_RANGE).

    Cause: Retention or `delete_records` has removed these rows, or the log is shorter than expected.
    What to do: Choose an offset in the range that the message names. Or set auto.offset.reset: earliest may read rows
    again, and latest skips rows.
    """


class NoOffsetForPartitionError(InvalidRequestError):
    """No committed offset, and `auto.offset.reset` is `none`.

    Cause: The group reads this partition for the first time, or its offsets were deleted.
    What to do: Set auto.offset.reset to earliest (all rows) or latest (only new ones), seek, or commit an offset.
    """


class InvalidTxnTimeoutError(InvalidRequestError):
    """A transaction timeout ≤ 0 or beyond `transaction.max.timeout.ms` (INVALID_TRANSACTION_TIMEOUT).

    Cause: The producer asks for a longer transaction than the store permits, or for none.
    What to do: Lower transaction.timeout.ms, or raise transaction.max.timeout.ms.
    """


class IllegalStateError(InvalidRequestError):
    """A call in the wrong order: begin before init, commit without begin (Kafka: IllegalStateException).

    Cause: The program calls methods in another order than Kafka's, after `close()`, or from two threads or processes.
    What to do: Correct the order. Use one producer or consumer for each thread and process.
    """


class RecordTooLargeError(InvalidRequestError):
    """Rows that cannot be stored within `max.message.bytes` or a commit object's limit (RECORD_TOO_LARGE).

    Cause: One send has too many bytes for an object, or a list in the log has grown too long.
    What to do: Send fewer rows at once. For a list of files merge small files first (`txlog maintain`).
    """


class TransactionalIdNotFoundError(InvalidRequestError):
    """No such transactional.id (TRANSACTIONAL_ID_NOT_FOUND).

    Cause: The id is misspelt, expired, or belongs to another store.
    What to do: Check id and store with `txlog transactions list`.
    """


class GroupIdNotFoundError(InvalidRequestError):
    """No such consumer group (GROUP_ID_NOT_FOUND).

    Cause: The name is misspelt, the group was deleted, or it has committed nothing in this store.
    What to do: Check group and store with `txlog consumer-groups list`.
    """


class OffsetMetadataTooLargeError(InvalidRequestError):
    """Offset metadata beyond 4096 characters (OFFSET_METADATA_TOO_LARGE).

    Cause: A program commits a text with an offset that is longer than this.
    What to do: Shorten the text, or keep it in a topic.
    """


class TxnVersionScopeError(InvalidRequestError):
    """The id holds a `txn.version` of another scope: a lost checkpoint, or a second query with the same id.

    Cause: A streaming query lost its checkpoint, or two jobs use one transactional.id.
    What to do: After a lost checkpoint keep the id, and follow docs/lost-checkpoint.md: another id writes all rows
    again. Two different jobs need two ids.
    """


class NotAStoreError(InvalidRequestError):
    """The location holds something other than a txlog store.

    Cause: The path or URL is misspelt or names a folder inside a store, or the store has no topic yet.
    What to do: Name the root of a store. To make a new store, create a topic in an empty location.
    """


class StoreAccessError(InvalidRequestError):
    """The store refuses the credentials, or none were given: HTTP 401 or 403. The message names where to give them.

    Cause: Credentials are missing, expired, or have too few rights. A folder has another owner or mode.
    What to do: Give credentials that may list, read, write and delete there. See docs/object-stores.md.
    """


class UnsupportedStoreError(InvalidRequestError):
    """The backend cannot do what the format needs (atomic create), or the store needs features unknown here.

    Cause: A driver is missing or old, a file system or bucket ignores conditions, or a newer txlog made the store.
    What to do: Install or upgrade what the message names, or use a store that docs/object-stores.md lists.
    """


class ClockSkewError(InvalidRequestError):
    """This machine's clock is too far from the store's.

    Cause: The clock of this machine or that of the store is wrong.
    What to do: Synchronise the clock (NTP), then repeat the call.
    """


# -- stop and inspect -----------------------------------------------------------------------------


class CorruptRecordError(CorruptLogError):
    """An object fails its checksum, digest or syntax (CORRUPT_MESSAGE).

    Cause: A disk or a copy damaged the object, another program wrote to it, or objects were swapped.
    What to do: Run `txlog fsck`. Repair the store or restore the object from a copy; see docs/restore.md.
    """


class MissingObjectError(CorruptLogError):
    """An object that the log names does not exist.

    Cause: Another program, a lifecycle rule of the bucket or an incomplete copy removed the object.
    What to do: Run `txlog fsck`, which lists missing objects, and restore them from a copy; see docs/restore.md.
    """


class TableConflictError(CorruptLogError):
    """Another program wrote to a table of another format that txlog publishes.

    Cause: Another engine or a person wrote to the Delta or Iceberg table, or deleted a part of it.
    What to do: Let only txlog write there, follow the message, and publish again; see docs/publish.md.
    """
