"""How does Spark write topics as a batch: each row once even if tasks are repeated, and all rows or none?

Where Spark runs each call:

    driver's side    `begin`, once for each write, before any task. It checks the frame, then inits the
                     transactional.id, which fences an older run of the same job. File names need its producer id
                     and epoch.
    executors        `write`, once for each task attempt. It splits rows by partition and writes files that no log
                     names.
    driver's side    `commit`, with the messages of the successful attempts: one transaction, with one staged batch for
                     each partition.
    driver's side    `abort`, if a task failed finally or `commit` raised.

The four calls run in separate Python processes. The writer is pickled between them, so no call sees what another one
changed in it. So `abort` never knows whether a commit was tried: it asks the coordinator, and deletes nothing. No
record names the files of the other attempts; vacuum removes them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self, TypeAlias, Unpack

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options
from pyspark_txlog.sink.micro_batch import QUERY_ID_PROPERTY
from pyspark_txlog.sink.options import parse_write_options, settled_write
from pyspark_txlog.worker import spare_modules
from txlog.engine import (
    Runtime,
    Session,
    StagedPart,
    StagedTransaction,
    TransactionMetadata,
    TxnVersion,
    check_version,
    is_repeated,
)
from txlog.errors import FencedError, InvalidRequestError, StoreChangedError
from txlog.logs import Fields, log

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.schemas import TopicMetadata

_LOG = logging.getLogger(__name__)

NativeWrite: TypeAlias = "Callable[[Runtime, Options, TransactionMetadata, TopicMetadata | None], Sequence[StagedPart]]"
"""Stores the rows of a write or of a micro-batch in files of a transaction, without tasks of a Python sink.

The topic is as the write's begin has seen it, so that a name means the same column in all of its steps.
"""


@dataclass(frozen=True, kw_only=True)
class TaskFiles(WriterCommitMessage):
    """What one task attempt wrote."""

    parts: tuple[StagedPart, ...]


@dataclass(eq=False)
class TxlogWriter(DataSourceArrowWriter):
    """One write: one staged transaction."""

    options: Options
    schema: StructType
    txn: TransactionMetadata
    drawn: bool
    store_id: str
    topic: TopicMetadata | None
    """The topic of the option, as it was when the write began. All its rows have these columns."""

    @classmethod
    @plain_errors
    def begin(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Check everything that can be checked, then init the transactional.id. If it raises, nothing is written or
        fenced.

        Raises UnknownOptionError, InvalidRequestError, UnknownTopicOrPartitionError, SchemaMismatchError,
        TxnVersionScopeError (the id's versions belong to a stream), InvalidRequestError (the version was committed for
        another topic), and what `StagedTransaction.begin` raises.
        """
        if overwrite:
            raise InvalidRequestError(
                'a log is append-only. hint: use .mode("append"); to start over, delete the topic and create it again'
            )
        parsed = parse_write_options(options)
        with closing(parsed.open()) as runtime:
            return cls.begin_in(runtime, parsed, schema)[0]

    @classmethod
    def begin_in(cls, runtime: Runtime, options: Options, schema: StructType) -> tuple[Self, StagedTransaction]:
        """Do the work of `begin` in an open store, and return the transaction too."""
        # Imported here, in `write` and in `begin_staged`, because a commit does not need pyarrow.
        from pyspark_txlog.sink.routing import check_routing

        check_routing(options, schema)
        version = version_of(options)
        options = settled_write(options, runtime.settings)
        # Reading the id's record costs requests, so do it only if there is a version to check.
        check = None if version is None else partial(check_version, version=version)
        topic, transaction = begin_staged(runtime, options, schema, check)
        store_id = runtime.require_store().store_id
        return cls(options, schema, transaction.txn, transaction.drawn, store_id, topic), transaction

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:  # type: ignore[override]  # as pyspark's own
        """Executor side: write this attempt's files.

        Raises SchemaMismatchError, UnknownTopicOrPartitionError, StorageError.
        """
        spare_modules()
        context = TaskContext.get()
        if self.is_repeated:
            # The coordinator will skip this version. In foreachBatch Spark keeps a query's state only of tasks that
            # end.
            if context is not None and context.getLocalProperty(QUERY_ID_PROPERTY) is not None:
                deque(iterator, maxlen=0)
            return TaskFiles(parts=())
        from pyspark_txlog.sink.routing import write_parts

        task = context.partitionId() if context is not None else 0
        with closing(self.options.open()) as runtime:
            parts = write_parts(runtime, self.options, self.schema, self.txn, task, iterator, self.topic)
            return TaskFiles(parts=parts)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver side: publish what the successful attempts wrote, in one decision.

        Raises ProducerFencedError, TxnVersionScopeError, OutcomeUnknownError, TxlogTimeoutError, InvalidRequestError
        (the version was committed for other topics), SchemaMismatchError (tasks found different columns by one name).
        Spark then calls `abort`.
        """
        parts = [part for message in messages if isinstance(message, TaskFiles) for part in message.parts]
        with self._resumed(attempted=False) as transaction:
            versions = {(part.topic, part.schema_id) for part in parts}
            if self.topic is None and len(versions) > len({topic for topic, _ in versions}):
                # Imported here because a commit seldom needs it.
                from pyspark_txlog.sink.routing import check_columns_kept
                from txlog.engine.arrow import ColumnNames

                names = ColumnNames("the first task of this write", "write again")
                check_columns_kept(transaction.session.runtime, parts, self.schema.names, names)
            self._commit(transaction, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Driver side: abort the transaction unless it is already committed. Deletes nothing and raises nothing.

        Spark reports the original error; the outcome of the transaction is printed to standard error.
        """
        who = f"transactional.id {self.txn.transactional_id!r}"
        hint = (
            ", or repeat it with the same txn.version: it will be skipped"
            if table.TXN_VERSION in self.options
            else "; with 'txn.version' a repeated write would be detected"
        )
        abort_quietly(
            _LOG,
            self._resumed(attempted=True),
            f"{who}: the write is reported as failed, but its transaction was already committed, and all its rows are "
            f"visible. Do not repeat it{hint}",
            failed=f"{who}: the failed write",
            ends="The next write with this id",
            txn=self.txn,
        )

    @plain_errors
    def run(self, runtime: Runtime, transaction: StagedTransaction, write: NativeWrite) -> None:
        """Do the whole write in the process of `begin_in`: `write` stores the rows in place of Spark's tasks.

        Raises what `write` and `commit` raise, after `abort`.
        """
        try:
            self._commit(transaction, () if self.is_repeated else write(runtime, self.options, self.txn, self.topic))
        except BaseException:
            self.abort(())
            raise

    def _commit(self, transaction: StagedTransaction, parts: Sequence[StagedPart]) -> None:
        result = transaction.commit(parts, version=version_of(self.options, {part.topic for part in parts}))
        if result.skipped:
            version, last = self.options[table.TXN_VERSION] or 0, result.txn.txn_version
            text = (
                f"transactional.id {transaction.transactional_id!r}: txn.version {version} is not above "
                f"{last}, the last one committed: this write "
            ) + (
                "was done before, and is skipped"
                if version == last
                else 'is skipped. hint: if its rows were never written, see the page "After a lost checkpoint"'
            )
            log(_LOG, logging.WARNING, "transaction_skipped", text, txn=result.txn, txn_version=version)
        transaction.forget()

    @property
    def is_repeated(self) -> bool:
        """Whether the coordinator is sure to skip this version, because the versions of an id only increase."""
        version = version_of(self.options)
        return version is not None and is_repeated(self.txn, version)

    @contextmanager
    def _resumed(self, *, attempted: bool) -> Iterator[StagedTransaction]:
        with closing(self.options.open()) as runtime:
            check_begun_here(runtime, self.store_id)
            yield StagedTransaction.resume(
                runtime, self.txn, drawn=self.drawn, attempted=attempted, config=producer_config(self.options)
            )


def begin_staged(
    runtime: Runtime,
    options: Options,
    schema: StructType,
    check: Callable[[TransactionMetadata | None], None] | None,
    session: Session | None = None,
    last: TransactionMetadata | None = None,
) -> tuple[TopicMetadata | None, StagedTransaction]:
    """Check the frame's columns, then init the transactional.id. Return the topic of the option, and the transaction.

    Raises SchemaMismatchError, UnknownTopicOrPartitionError, InvalidRequestError, and what `StagedTransaction.begin`
    raises, which has the last three parameters.
    """
    from pyspark_txlog.sink.routing import merged_route

    route = merged_route(runtime, options, schema)
    topic = None if route is None else route.topic
    name, config = options[table.TRANSACTIONAL_ID], producer_config(options)
    return topic, StagedTransaction.begin(runtime, name, config=config, check=check, session=session, last=last)


def abort_quietly(
    logger: logging.Logger,
    resumed: AbstractContextManager[StagedTransaction],
    too_late: str,
    *,
    failed: str,
    ends: str,
    txn: TransactionMetadata,
    **fields: Unpack[Fields],
) -> None:
    """Abort a transaction unless it is already committed, which `too_late` says. Raises nothing.

    If it cannot be aborted now, the message begins with `failed`, and names what `ends` it later.
    """
    try:
        with resumed as transaction:
            if transaction.abort().already_committed:
                log(logger, logging.WARNING, "abort_too_late", "%s", too_late, txn=txn, **fields)
            transaction.forget()
    except FencedError:
        # A newer instance took over and has ended what was left of this transaction. `commit` has reported it.
        return
    except Exception as error:
        kind = fields["error"] = type(error).__name__
        text = "%s could not be aborted now (%s: %s). %s, or `txlog transactions expire --execute`, ends it"
        log(logger, logging.WARNING, "abort_failed", text, failed, kind, error, ends, txn=txn, **fields)


def version_of(options: Options, topics: Collection[str] = ()) -> TxnVersion | None:
    """Return the version of a write; `topics` are those of its rows, which count if the options name no topic."""
    version, topic = options[table.TXN_VERSION], options[table.TOPIC]
    if version is None:
        return None
    return TxnVersion(version=version, topics=frozenset(topics if topic is None else {topic}))


def check_begun_here(runtime: Runtime, store_id: str) -> None:
    """Raise StoreChangedError unless this is the store `store_id`, in which another process began the write."""
    now = runtime.require_store().store_id
    if store_id and now != store_id:
        raise StoreChangedError(
            f"{runtime.where}: this write was begun in the store with store_id {store_id[:8]}…, but now {now[:8]}… is "
            "here: the store was deleted and created again in the meantime. Nothing was written. hint: write again"
        )


def producer_config(options: Options) -> dict[str, object]:
    """Return the options of the transaction's producer; the store's settings decide the rest."""
    given = {option.name: options[option] for option in (table.TRANSACTION_TIMEOUT_MS, table.ALLOW_MIXED_GROUPS)}
    return {name: value for name, value in given.items() if value is not None}
