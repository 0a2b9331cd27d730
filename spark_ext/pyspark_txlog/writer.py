"""How does Spark write topics, as a batch: each row once, however often a task runs, all rows or none?

Where Spark runs what:

    driver's side    `begin`, once a write, before any task: checks the frame, then inits the transactional.id, which
                     fences an older run of the same job. Names of files need its producer id and epoch.
    executors        `write`, once a task attempt: splits rows by partition and writes files that no log knows.
    driver's side    `commit`, with the messages of the attempts that won: one transaction, one staged batch a partition.
    driver's side    `abort`, if a task failed for good or `commit` raised.

The four run in separate Python processes; the writer travels between them by pickling, so what one call changes in it
no other sees. `abort` therefore never knows whether a commit was tried: it asks the coordinator, and deletes nothing.
Files of attempts that lost are never named by any record; vacuum removes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txlog.committed_topics import check_topics, remember_topics
from pyspark_txlog.messages import plain_errors, say
from pyspark_txlog.options import WriteOptions, parse_write_options, settled_write
from txlog.client.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.core.records import StagedPart, TransactionMetadata
from txlog.core.transactions import TxnVersion, check_version, is_repeated
from txlog.errors import FencedError, InvalidRequestError, StoreChangedError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class TaskFiles(WriterCommitMessage):
    """What one task attempt wrote."""

    parts: tuple[StagedPart, ...]


class TxlogWriter(DataSourceArrowWriter):
    """One write: one staged transaction."""

    def __init__(
        self, options: WriteOptions, schema: StructType, txn: TransactionMetadata, *, drawn: bool, store_id: str = ""
    ) -> None:
        self._store_id = store_id
        self._options = options
        self._schema = schema
        self._txn = txn
        self._drawn = drawn

    @classmethod
    @plain_errors
    def begin(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Checks all that can be checked, then inits the transactional.id. Nothing is written, and nobody fenced, if it raises.

        Raises UnknownOptionError, InvalidRequestError, UnknownTopicOrPartitionError, SchemaMismatchError, TxnVersionScopeError
        (the id's versions are a stream's), and what `StagedTransaction.begin` raises.
        """
        # Here and in `write_parts`, not at the top: a commit goes without pyarrow.
        from pyspark_txlog.routing import TopicRoute, check_routing

        if overwrite:
            raise InvalidRequestError(
                'a log is only appended to: use .mode("append"). To start afresh, delete the topic and create it anew'
            )
        parsed = parse_write_options(options)
        check_routing(parsed, schema)
        version = None if parsed.txn_version is None else TxnVersion(version=parsed.txn_version)
        with closing(open_store(parsed)) as runtime:
            parsed = settled_write(parsed, runtime.settings)
            if parsed.topic is not None:
                TopicRoute(runtime, parsed, schema, runtime.topic(parsed.topic, 0))
            transaction = StagedTransaction.begin(
                runtime,
                parsed.transactional_id,
                config=producer_config(parsed),
                # A look at the id costs requests: only where there is something to find.
                check=None if version is None else lambda current: check_version(current, version),
            )
            store_id = runtime.require_store().store_id
            return cls(parsed, schema, transaction.txn, drawn=transaction.drawn, store_id=store_id)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:  # type: ignore[override]  # as pyspark's own
        """Executor side: this attempt's files. Raises SchemaMismatchError, UnknownTopicOrPartitionError, StorageError."""
        if self._is_repeated:
            # The coordinator will skip this version: the rows need not even be computed.
            return TaskFiles(parts=())
        with closing(open_store(self._options)) as runtime:
            return TaskFiles(
                parts=write_parts(runtime, self._options, self._schema, self._txn, TaskContext.get(), iterator)
            )

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver side: publishes what the winning attempts wrote, in one decision.

        Raises ProducerFencedError, TxnVersionScopeError, OutcomeUnknownError, TxlogTimeoutError, InvalidRequestError (this
        process has committed the version for another topic); Spark calls `abort` then.
        """
        parts = [part for message in messages if isinstance(message, TaskFiles) for part in message.parts]
        with closing(open_store(self._options)) as runtime:
            transaction = self._resume(runtime, attempted=False)
            result = transaction.commit(parts, version=self._options.txn_version)
            self._check_topics(runtime, parts, skipped=result.skipped)
            if result.skipped:
                say(
                    f"transactional.id {transaction.transactional_id!r}: txn.version {self._options.txn_version} is not above "
                    f"{result.txn.txn_version}, the last one committed: this write was done before, and is skipped"
                )
            transaction.forget()

    def _check_topics(self, runtime: Runtime, parts: Sequence[StagedPart], *, skipped: bool) -> None:
        if self._options.txn_version is None:
            return
        version = TxnVersion(version=self._options.txn_version)
        # Without the option each row names its topic, and rows of a skipped write are not looked at.
        topics = {part.topic for part in parts} if self._options.topic is None else {self._options.topic}
        note = check_topics if skipped else remember_topics
        note(runtime, self._txn.transactional_id, version, topics)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver side: gives the transaction up, unless a commit of it has won. Deletes nothing and raises nothing.

        Spark reports the error that brought it here; what became of the transaction goes to standard error.
        """
        try:
            with closing(open_store(self._options)) as runtime:
                transaction = self._resume(runtime, attempted=True)
                if transaction.abort().already_committed:
                    say(
                        f"transactional.id {self._txn.transactional_id!r}: the write is reported as failed, but its transaction was "
                        f"already committed, and all its rows are visible. Do not repeat it{self._hint}"
                    )
                transaction.forget()
        except FencedError:
            # A newer instance took over, and has ended whatever of this transaction was left; `commit` has said so.
            return
        except Exception as error:
            say(
                f"transactional.id {self._txn.transactional_id!r}: the failed write could not be aborted now ({type(error).__name__}: "
                f"{error}). The next write with this id, or `txlog transactions expire`, settles it"
            )

    @property
    def _is_repeated(self) -> bool:
        """Whether the coordinator is sure to skip this version: versions of an id only rise."""
        version = self._options.txn_version
        return version is not None and is_repeated(self._txn, TxnVersion(version=version))

    @property
    def _hint(self) -> str:
        return (
            ", or repeat it with the same txn.version: it will be skipped"
            if self._options.txn_version is not None
            else "; with 'txn.version' a repetition would be recognised"
        )

    def _resume(self, runtime: Runtime, *, attempted: bool) -> StagedTransaction:
        check_begun_here(runtime, self._store_id)
        return StagedTransaction.resume(
            runtime, self._txn, drawn=self._drawn, attempted=attempted, config=producer_config(self._options)
        )


def open_store(options: WriteOptions) -> Runtime:
    """The store to write to."""
    return Runtime.open(options.store.path, storage_options=options.store.storage)


def check_begun_here(runtime: Runtime, store_id: str) -> None:
    """Raises StoreChangedError unless a write that another process began, in the store `store_id`, is committed to that store."""
    now = runtime.require_store().store_id
    if store_id and now != store_id:
        raise StoreChangedError(
            f"{runtime.where}: this write was begun in the store with store_id {store_id[:8]}…, and here lies {now[:8]}… now: the store was deleted "
            "and made anew meanwhile. Nothing was written. Write again"
        )


def producer_config(options: WriteOptions) -> dict[str, object]:
    """What the options say of the transaction's producer; what they leave out, the store's settings say."""
    timeout_ms = options.transaction_timeout_ms
    return {} if timeout_ms is None else {"transaction.timeout.ms": timeout_ms}


def write_parts(
    runtime: Runtime,
    options: WriteOptions,
    schema: StructType,
    txn: TransactionMetadata,
    context: TaskContext | None,
    batches: Iterator[pa.RecordBatch],
) -> tuple[StagedPart, ...]:
    """The rows of one task attempt as files of the transaction `txn`. Raises SchemaMismatchError,
    UnknownTopicOrPartitionError, StorageError."""
    # Here and not at the top: a commit goes without pyarrow.
    from pyspark_txlog.routing import Router
    from txlog.client.staged_files import StagedFiles

    router = Router(runtime, options, schema, context.partitionId() if context is not None else 0)
    files = StagedFiles(runtime, txn, compression=options.compression_type)
    for batch in batches:
        for topic, rows, partitions in router.route(batch):
            files.add(topic, rows, partitions)
    return files.finish()
