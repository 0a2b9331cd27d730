"""How does a streaming query write each micro-batch exactly once, after any crash and any repetition by Spark?

One micro-batch is one staged transaction of the query's transactional.id. Its version is (batch id, query id), so the
coordinator detects a repeated batch and skips it. The offsets of the batch's sources are part of the transaction
(`committed_offsets`). Where Spark runs each call, always in another Python process:

    driver's side    `begin`, once for each micro-batch, before any task. It checks the frame, then inits the id. This
                     fences an older run of the query that is still running. File names need the id's epoch.
    executors        `write`, once for each task attempt: writes files that no log names.
    driver's side    `commit`, with the messages of the successful attempts. Spark makes a new writer for it from the
                     options alone, so the tasks' messages carry what `begin` learned.
    driver's side    `abort`, after a task failed finally or `commit` raised.

Spark writes a batch's planned offsets before `begin`, and its own commit log after `commit`. The version handles a
crash between the two commits.

Each micro-batch begins with an init, which fences earlier ones. So two runs of one query, on two drivers, cannot both
commit a batch that both work on. The run that began it earlier gets ProducerFencedError and stops. (In most cases
Spark's own check of the checkpoint stops one of the two runs before that.)

After `install` the driver's process does all of a micro-batch itself (`run`). Then an init is necessary only if another
process has changed the id's record since the last commit: otherwise there is nothing to fence.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options
from pyspark_txlog.sink.batch_writer import NativeWrite, abort_quietly, begin_staged, check_begun_here, producer_config
from pyspark_txlog.sink.micro_batch import (
    QUERY_ID_PROPERTY,
    MicroBatch,
    add_hint,
    check_scope,
    check_without_offsets,
    task_of_batch,
)
from pyspark_txlog.sink.options import checkpoint_of, parse_stream_write_options
from pyspark_txlog.sink.session_cache import cached_session
from pyspark_txlog.worker import spare_modules
from txlog.engine import Session, StagedPart, StagedTransaction, TransactionMetadata, TxnVersion, is_repeated
from txlog.errors import (
    AbortableError,
    CommitFailedError,
    FencedError,
    InvalidRequestError,
    StoreChangedError,
    TxlogError,
)
from txlog.logs import log

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.arrow import ColumnNames
    from txlog.engine.schemas import TopicMetadata

_LOG = logging.getLogger(__name__)

BATCH_ID_PROPERTY = "streaming.sql.batchId"

_SKIPPED: Counter[str] = Counter()
"""Micro-batches that this process found already committed, by transactional.id. Spark reuses its processes."""

_WITHOUT_OFFSETS: set[tuple[str, str]] = set()
"""Stores and ids whose queries are known to have committed no sources' offsets. A process checks each once."""

_LAST: WeakKeyDictionary[Session, TransactionMetadata] = WeakKeyDictionary()
"""The id's record after the last commit of `run` through a cached session, until the next micro-batch begins."""


@dataclass(frozen=True, kw_only=True)
class StreamFiles(WriterCommitMessage):
    """The files of one task attempt, and what `commit` must know about its micro-batch."""

    parts: tuple[StagedPart, ...]
    txn: TransactionMetadata
    """The id's record after `begin`: the same in all messages of a batch."""
    query_id: str
    store_id: str = ""
    """The store in which `begin` ran; files and `txn` are not valid in another store."""


if TYPE_CHECKING or hasattr(datasource, "DataSourceStreamArrowWriter"):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
        """Spark 4.0 has no such class. It gives batches of Arrow to each writer of the first kind."""


@dataclass(eq=False)
class TxlogStreamWriter(DataSourceStreamArrowWriter):
    """One query's sink; on the driver's side Spark makes a new one for each call."""

    options: Options
    schema: StructType
    txn: TransactionMetadata | None
    store_id: str = ""
    topic: TopicMetadata | None = None
    """The topic of the option, as it was when the micro-batch began. All its rows have these columns."""
    begun: Mapping[str, int] | None = None
    """The versions of `begun_columns`, with which the query began."""

    @classmethod
    @plain_errors
    def begin(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Check everything that can be checked, then init the transactional.id. If it raises, nothing is written or
        fenced.

        Raises UnknownOptionError, InvalidRequestError, UnknownTopicOrPartitionError, SchemaMismatchError,
        TxnVersionScopeError (the id has committed another query's micro-batches). Raises StoreChangedError if the store
        is another one, or older, than this process saw in the query's last micro-batch. Raises what
        `StagedTransaction.begin` raises.
        """
        # Imported here because a commit does not need pyarrow.
        from pyspark_txlog.sink.routing import check_routing

        if overwrite:
            raise InvalidRequestError(
                'outputMode("complete") rewrites the whole result in each micro-batch, but a log is append-only. '
                'hint: use "append" (an aggregation '
                "then needs a watermark), or foreachBatch with df.write, which appends each result"
            )
        parsed = parse_stream_write_options(options)
        check_routing(parsed, schema)
        query_id = checkpoint_of(parsed).query_id() if parsed[table.COMMIT_SOURCE_OFFSETS] else None
        with cached_session(parsed, query_id) as session:
            return cls._begin_in(session, parsed, schema, query_id)[0]

    @classmethod
    def _begin_in(
        cls,
        session: Session,
        options: Options,
        schema: StructType,
        query_id: str | None,
        last: TransactionMetadata | None = None,
    ) -> tuple[Self, TransactionMetadata]:
        def check(current: TransactionMetadata | None) -> None:
            if query_id is not None:
                check_scope(current, query_id)

        runtime, name = session.runtime, options[table.TRANSACTIONAL_ID]
        assert name is not None
        if not options[table.COMMIT_SOURCE_OFFSETS] and (runtime.where, name) not in _WITHOUT_OFFSETS:
            check_without_offsets(session, name)
            _WITHOUT_OFFSETS.add((runtime.where, name))
        topic, transaction = begin_staged(runtime, options, schema, check, session, last)
        txn = transaction.txn
        return cls(options, schema, txn, runtime.require_store().store_id, topic), txn

    @classmethod
    @plain_errors
    def settling(cls, options: Mapping[str, str], schema: StructType, begun: Mapping[str, int] | None = None) -> Self:
        """Return a writer for `commit` and `abort` of a micro-batch that `begin` has begun in another process.

        `begun` are the versions of `begun_columns`, with which the query began.
        """
        return cls(parse_stream_write_options(options), schema, None, begun=begun)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamFiles:  # type: ignore[override]  # as pyspark's own
        """Executor side: write this attempt's files.

        Raises SchemaMismatchError, UnknownTopicOrPartitionError, StorageError.
        """
        spare_modules()
        context = TaskContext.get()
        assert context is not None
        assert self.txn is not None
        query_id, batch_id = (context.getLocalProperty(name) for name in (QUERY_ID_PROPERTY, BATCH_ID_PROPERTY))
        if query_id is None or batch_id is None:
            raise InvalidRequestError(
                "this task belongs to no micro-batch: Spark sent neither query nor batch, and exactly once needs both. "
                "hint: use a micro-batch trigger; a continuous or real-time trigger is not supported"
            )
        parts: tuple[StagedPart, ...] = ()
        if is_repeated(self.txn, TxnVersion(version=int(batch_id), scope=query_id)):
            # The coordinator is sure to skip a committed version. But Spark keeps a query's state only of tasks that
            # end.
            deque(iterator, maxlen=0)
        else:
            # Imported here because a commit does not need pyarrow.
            from pyspark_txlog.sink.routing import write_parts

            with closing(self.options.open()) as runtime:
                task = task_of_batch(context.partitionId(), int(batch_id))
                parts = write_parts(runtime, self.options, self.schema, self.txn, task, iterator, self.topic)
        return StreamFiles(parts=parts, txn=self.txn, query_id=query_id, store_id=self.store_id)

    @plain_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Driver side: publish what the successful attempts wrote and the sources' offsets, in one decision.

        Raises ProducerFencedError (another run of the query took over), StoreChangedError, CommitFailedError (the
        sources' rows are already committed), TxnVersionScopeError, OutcomeUnknownError, TxlogTimeoutError,
        SchemaMismatchError (a name means another column than when the query began). Spark then calls `abort`, and the
        query ends.
        """
        begun = _begun(messages)
        if begun is None:
            raise InvalidRequestError(
                f"micro-batch {batchId}: Spark sent no message of any task, so there is nothing to commit"
            )
        parts = [part for message in messages if isinstance(message, StreamFiles) for part in message.parts]
        with self._session(begun) as session:
            self._commit_in(session, begun, parts, batchId)

    def _commit_in(
        self, session: Session, begun: StreamFiles, parts: Sequence[StagedPart], batch_id: int
    ) -> TransactionMetadata | None:
        """Return the id's record after the commit; None if the micro-batch is skipped."""
        version = TxnVersion(version=batch_id, scope=begun.query_id)
        checkpoint = checkpoint_of(self.options) if self.options[table.COMMIT_SOURCE_OFFSETS] else None
        batch = MicroBatch(query_id=begun.query_id, number=batch_id, checkpoint=checkpoint)
        if is_repeated(begun.txn, version):
            batch.check_replay(session, begun.txn)
            _say_skipped(begun, batch_id)
            return None
        versions = self.begun
        if versions is not None and any(versions.get(part.topic) != part.schema_id for part in parts):
            # Imported here because a commit seldom needs it.
            from pyspark_txlog.sink.routing import check_columns_kept

            check_columns_kept(session.runtime, parts, self.schema.names, query_names(), versions)
        transaction = self._resume(session, begun, attempted=False)
        try:
            offsets = batch.offsets(session, begun.txn)
            result = transaction.commit(parts, offsets=offsets, version=version)
        except AbortableError as error:
            # Abort here and at once, because the pending offsets block every client that fetches them.
            with suppress(TxlogError):
                transaction.abort()
            if isinstance(error, CommitFailedError):
                add_hint(error, batch_id)
            raise
        except StoreChangedError:
            raise
        except FencedError as error:
            raise type(error)(
                f"query {begun.query_id}, micro-batch {batch_id}: another run of this query, or another program with "
                "its transactional.id, has taken over. This run wrote nothing of this micro-batch; its earlier ones "
                f"stay. hint: let only one run continue. ({error})"
            ) from None
        if result.skipped:
            batch.check_replay(session, result.txn)
            _say_skipped(begun, batch_id)
            return None
        return result.txn

    @classmethod
    @plain_errors
    def run(
        cls,
        options: Options,
        schema: StructType,
        write: NativeWrite,
        query_id: str | None,
        batch_id: int,
        skip: Callable[[], None],
    ) -> None:
        """Do the whole micro-batch here, through one session: `begin`, `write` in place of Spark's tasks, `commit`.

        `query_id` may be None if the checkpoint is read, which has it. If the micro-batch is committed already, `skip`
        runs its plan.

        Raises what the three raise. If the commit raises, after `abort`.
        """
        known = checkpoint_of(options).query_id() if options[table.COMMIT_SOURCE_OFFSETS] else None
        with cached_session(options, known) as session:
            writer, txn = cls._begin_in(session, options, schema, known, _LAST.pop(session, None))
            if (query := query_id or known) is None:
                raise InvalidRequestError(
                    f"micro-batch {batch_id}: neither Spark nor the checkpoint says of which query"
                )
            begun = StreamFiles(parts=(), txn=txn, query_id=query, store_id=writer.store_id)
            repeated = is_repeated(txn, TxnVersion(version=batch_id, scope=begun.query_id))
            if repeated:
                skip()
            parts = () if repeated else write(session.runtime, options, txn, writer.topic)
            try:
                last = writer._commit_in(session, begun, parts, batch_id)
            except BaseException:
                writer.abort([begun], batch_id)
                raise
            if last is not None:
                _LAST[session] = last

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        """Driver side: abort the micro-batch unless it is already committed. Deletes nothing and raises nothing.

        Spark reports the original error; the outcome of the transaction is printed to standard error.
        """
        begun = _begun(messages)
        if begun is None or is_repeated(begun.txn, TxnVersion(version=batchId, scope=begun.query_id)):
            # No task succeeded, so no commit was tried; or there was nothing to write.
            return
        who = f"transactional.id {begun.txn.transactional_id!r}, micro-batch {batchId}"
        abort_quietly(
            _LOG,
            self._resumed(begun),
            f"{who}: reported as failed, but its transaction was already committed, and all its rows are visible. "
            "hint: start the query again from its checkpoint; it detects and skips this batch",
            failed=f"{who}:",
            ends="The query's next start",
            txn=begun.txn,
            query_id=begun.query_id,
            batch_id=batchId,
        )

    @contextmanager
    def _session(self, begun: StreamFiles) -> Iterator[Session]:
        with cached_session(self.options, begun.query_id) as session:
            check_begun_here(session.runtime, begun.store_id)
            yield session

    @contextmanager
    def _resumed(self, begun: StreamFiles) -> Iterator[StagedTransaction]:
        with self._session(begun) as session:
            yield self._resume(session, begun, attempted=True)

    def _resume(self, session: Session, begun: StreamFiles, *, attempted: bool) -> StagedTransaction:
        return StagedTransaction.resume(
            session.runtime,
            begun.txn,
            drawn=False,
            attempted=attempted,
            config=producer_config(self.options),
            session=session,
        )


def query_names() -> ColumnNames:
    """Return what keeps the meaning of a query's column names."""
    from txlog.engine.arrow import ColumnNames

    return ColumnNames("this query", "restart the query with the topic's present columns")


def begun_columns(options: Mapping[str, str]) -> dict[str, int]:
    """Return the version of the columns of each topic that the query may write: that of the option, or all.

    Raises TxlogError.
    """
    parsed = parse_stream_write_options(options)
    with closing(parsed.open()) as runtime:
        topic = parsed[table.TOPIC]
        topics = runtime.list_topics() if topic is None else [runtime.topic(topic, 0)]
        return {each.topic: each.schema_id for each in topics}


def _begun(messages: Sequence[WriterCommitMessage | None]) -> StreamFiles | None:
    return next((message for message in messages if isinstance(message, StreamFiles)), None)


def _say_skipped(begun: StreamFiles, batch_id: int) -> None:
    name = begun.txn.transactional_id
    _SKIPPED[name] += 1
    log(
        _LOG,
        logging.WARNING,
        "transaction_skipped",
        "transactional.id %r: micro-batch %d of query %s was committed before Spark recorded it, and is skipped: its "
        "rows are there once (micro-batches skipped by this process for this id: %d)",
        name,
        batch_id,
        begun.query_id,
        _SKIPPED[name],
        txn=begun.txn,
        txn_version=batch_id,
        txn_scope=begun.query_id,
        query_id=begun.query_id,
        batch_id=batch_id,
        count=_SKIPPED[name],
    )
