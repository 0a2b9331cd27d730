"""How do several DataFrames, to several topics, and the offsets they were made from, become visible by one decision?

`TxLog.transaction("nightly")` takes the id over (older instances are fenced, what they left is finished), then every
`write` puts files beside the log that no record names, and the end of the block commits them all: one PREPARE_COMMIT
(PROTOCOL.md, "Staged"). A program that dies before it has written nothing that anybody sees; one that dies after it has
committed. Numbered by a version, a transaction that is run again is recognised before any row is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog.committed_topics import check_topics, remember_topics
from pyspark_txlog.messages import say
from pyspark_txlog.micro_batch import MicroBatch
from pyspark_txlog.native_write import SMALL_ROWS, Road, check_connect, check_road, write_frame
from pyspark_txlog.options import StoreOptions, WriteOptions
from pyspark_txlog.routing import TopicRoute
from txlog.client.coordinator import look_up, txn_version
from txlog.client.groups import ConsumerGroupMetadata, GroupOffsets, Offsets, group_offsets
from txlog.client.offsets import parse_offsets
from txlog.client.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.core.names import TopicPartition, check_topic_name
from txlog.core.records import StagedPart, TransactionMetadata
from txlog.core.transactions import TxnVersion, check_version, is_repeated
from txlog.errors import IllegalStateError, InvalidRequestError, StoreChangedError, TxlogError
from txlog.protocol.transactions import EndResult

Check: TypeAlias = Callable[[TransactionMetadata | None], None]

QUERY_ID = "sql.streaming.queryId"
"""Spark's local property that says in which streaming query a thread works."""


class Transaction:
    """One transaction, between its begin and its end. Its calls may come from several threads."""

    def __init__(self, runtime: Runtime, staged: StagedTransaction, version: TxnVersion | None) -> None:
        self._runtime = runtime
        self._staged = staged
        self._lock = threading.Lock()
        self._parts: list[StagedPart] = []
        self._offsets: list[GroupOffsets] = []
        self._topics: set[str] = set()
        self._failed: BaseException | None = None
        self._open = True
        self.version = version
        self.repeated = False
        """Whether this version was committed before: then nothing is computed or written, and the end says `skipped`."""
        self.result: EndResult | None = None
        """How it ended; None until it has, and after an abort."""
        if version is not None:
            check_version(staged.txn, version)
            self.repeated = is_repeated(staged.txn, version)

    def __repr__(self) -> str:
        return f"Transaction({self.transactional_id!r}, version={self.version})"

    @property
    def transactional_id(self) -> str:
        return self._staged.transactional_id

    def carry_sources(self, batch: MicroBatch) -> None:
        """Has the transaction carry where the sources of a micro-batch end; of one that was committed before, checks that it
        is the very one.

        Raises CommitFailedError: their rows were taken already; InvalidRequestError: the checkpoint is older than the log.
        """
        session, before = self._staged.session, self._staged.txn
        if self.repeated:
            batch.check_replay(session, before)
            return
        sent = batch.offsets(session, before)
        with self._lock:
            self._offsets += sent

    def write(
        self,
        frame: DataFrame,
        topic: str,
        *,
        key: str | Sequence[str] | None = None,
        road: Road = "auto",
        small_rows: int = SMALL_ROWS,
        compression_type: str | None = None,
    ) -> None:
        """Computes the frame and puts its rows beside the log; they are visible once the transaction has committed.

        Columns by name, as `df.write.format("txlog")` takes them; `key` (columns), a column `partition` or the topic's
        `key.columns` choose the partition. A frame of up to `small_rows` rows is written by the driver, others by Spark's
        own Parquet writer; `road` ("driver", "executors") says so without a look. A frame that is not small is computed
        once for the look, as far as `limit(small_rows + 1)` goes, and once for its rows: cache what is dear, or give the
        road. Order: rows of one task and one key stay in order only on the driver's road.

        Raises SchemaMismatchError, UnknownTopicOrPartitionError, InvalidRequestError (also if this process has committed the
        version for other topics, see `committed_topics`), StorageError, and what Spark raises
        for a job that failed. A write that raised lets the transaction only be aborted, whoever catches it.
        """
        check_road(road, small_rows)
        self._check_open("write")
        try:
            # Checked also if it is repeated: a program that is wrong is wrong the second time too.
            route = _route(self._runtime, frame, topic, key)
            self._topics.add(topic)
            if self.repeated and self.version is not None:
                check_topics(self._runtime, self.transactional_id, self.version, {topic})
                return
            made = write_frame(
                self._runtime,
                self._staged.txn,
                frame,
                route,
                road=road,
                small_rows=small_rows,
                compression=compression_type,
            )
        except BaseException as error:
            with self._lock:
                self._failed = self._failed or error
            raise
        with self._lock:
            self._parts += made

    def send_offsets(
        self,
        offsets: Offsets | str,
        group: str | ConsumerGroupMetadata,
        expected: Mapping[TopicPartition, int | None] | str | None = None,
    ) -> None:
        """Commits a group's offsets, the next to read, with this transaction and only with it.

        Offsets by (topic, partition), or the JSON of Spark's `startingOffsets`. `expected` are the committed offsets that
        the work started from (None: none was): if the group stands elsewhere, because another job took the same range,
        the commit fails with CommitFailedError and nothing of the transaction is visible.

        Raises InvalidRequestError, InvalidConfigurationError, OffsetMetadataTooLargeError.
        """
        self._check_open("send_offsets")
        if isinstance(offsets, str):
            offsets = parse_offsets(offsets, "offsets")
        if isinstance(expected, str):
            expected = dict(parse_offsets(expected, "expected"))
        sent = group_offsets(offsets, group, expected, who=self._who)
        if sent.offsets and not self.repeated:
            with self._lock:
                self._offsets.append(sent)

    def _commit(self) -> EndResult:
        with self._lock:
            if self._failed is not None:
                raise IllegalStateError(
                    f"{self._who}: a write of this transaction failed ({type(self._failed).__name__}: {self._failed}), so it is aborted as a "
                    "whole and nothing of it is visible; do not catch what write() raises, or write in another transaction"
                ) from self._failed
            self._open = False
            parts, offsets = tuple(self._parts), tuple(self._offsets)
        result = self._staged.commit(parts, offsets=offsets, version=self.version)
        if self.version is not None:
            if result.skipped:
                check_topics(self._runtime, self.transactional_id, self.version, self._topics)
            else:
                remember_topics(self._runtime, self.transactional_id, self.version, self._topics)
        self.result = result
        return self.result

    def _abort(self) -> EndResult:
        self._open = False
        return self._staged.abort()

    @property
    def _who(self) -> str:
        return f"transactional.id {self.transactional_id!r}"

    def _check_open(self, call: str) -> None:
        if not self._open:
            raise IllegalStateError(f"{self._who}: {call}() after the end of its transaction; begin another one")


class Transactions:
    """The transactions of one TxLog: it stays the one instance of each id from the first of them on.

    So a second program with the same id fences this one for good, where an init before every transaction would let two
    take turns. After an error that ends an instance, the next transaction of the id begins a new one.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._instances: dict[str, tuple[Mapping[str, object], StagedTransaction]] = {}
        self._busy: set[str] = set()

    @contextmanager
    def begin(
        self, transactional_id: str | None, version: TxnVersion | None, settings: Mapping[str, object]
    ) -> Iterator[Transaction]:
        """A transaction around a block; see `TxLog.transaction`."""
        if transactional_id is None:
            if version is not None:
                raise InvalidRequestError(
                    "version numbers the transactions of one transactional.id: name one, or a repeated transaction cannot be recognised"
                )
            staged = StagedTransaction.begin(self._runtime, None, config=settings)
            with self._around(Transaction(self._runtime, staged, None)) as txn:
                yield txn
            staged.forget()
            return
        with self._lock:
            if transactional_id in self._busy:
                raise IllegalStateError(
                    f"transactional.id {transactional_id!r} has a transaction open already; end it first, or use another id for what runs beside it"
                )
            self._busy.add(transactional_id)
        try:

            def check(current: TransactionMetadata | None) -> None:
                # Before the init: what is refused anyway must not fence the one whose id it is.
                check_version(current, version)

            txn = Transaction(self._runtime, self._instance(transactional_id, settings, check), version)
            ended = False
            try:
                with self._around(txn):
                    yield txn
                ended = True
            finally:
                # After an abort that was none, too: what was never attempted leaves the instance as it was, but a failed
                # one may be fenced, or not know its outcome.
                if not ended:
                    self._forget(transactional_id)
        finally:
            with self._lock:
                self._busy.discard(transactional_id)

    @contextmanager
    def _around(self, txn: Transaction) -> Iterator[Transaction]:
        try:
            yield txn
            result = txn._commit()
        except BaseException as error:
            _abort_beside(txn, error)
            raise
        if result.skipped and txn.version is not None:
            say(
                f"transactional.id {txn.transactional_id!r}: version {txn.version.version} is not above {result.txn.txn_version}, the last one "
                "committed: this transaction was done before, and is skipped"
            )

    def take_over(
        self, transactional_id: str, settings: Mapping[str, object], check: Check | None = None
    ) -> TransactionMetadata:
        """Makes this TxLog the id's one instance now, before its first transaction; the id's record, as it is then."""
        return self._instance(transactional_id, settings, check).txn

    def _instance(
        self, transactional_id: str, settings: Mapping[str, object], check: Check | None = None
    ) -> StagedTransaction:
        """This TxLog's instance of the id; `check` may refuse a new one before anybody is fenced."""
        with self._lock:
            known = self._instances.get(transactional_id)
        # The store may have been made anew, or put back to an older state, since this TxLog last looked (W47).
        if known is None or known[0] != settings:
            self._runtime.check_store(now=True)
        else:
            session = known[1].session
            try:
                session.doubt()
                look_up(session, transactional_id)
            except StoreChangedError:
                self._forget(transactional_id)
                raise
            if check is not None:
                check(known[1].txn)
            return known[1]
        staged = StagedTransaction.begin(self._runtime, transactional_id, config=settings, check=check)
        with self._lock:
            self._instances[transactional_id] = (dict(settings), staged)
        return staged

    def _forget(self, transactional_id: str) -> None:
        with self._lock:
            self._instances.pop(transactional_id, None)


def check_write(
    runtime: Runtime,
    frame: DataFrame,
    topic: str,
    *,
    key: str | Sequence[str] | None,
    road: Road,
    small_rows: int,
    compression_type: str | None,
) -> None:
    """Raises what `Transaction.write` would raise of a frame that it has not computed yet: asked before an init, so that what is
    refused anyway fences nobody. Costs no request, if the topic is known and the frame fits."""
    check_road(road, small_rows)
    check_connect(frame, topic, road)
    runtime.settings.row_config({"compression.type": compression_type}, runtime.topic(topic))
    try:
        _route(runtime, frame, topic, key, max_age_ms=None)
    except TxlogError:
        # A column of the frame may be newer than what is known of the topic.
        _route(runtime, frame, topic, key)


def version_of(spark: SparkSession, version: int | TxnVersion | None, scope: str | None) -> TxnVersion | None:
    """The version of a transaction; in `foreachBatch` its scope is the query's id unless another one is given.

    Raises InvalidRequestError.
    """
    wanted = txn_version(version)
    if wanted is None:
        if scope is not None:
            raise InvalidRequestError(f"scope={scope!r} without a version: it says whose numbers the versions are")
        return None
    if isinstance(version, TxnVersion) or scope is not None:
        return wanted if scope is None else txn_version(TxnVersion(version=wanted.version, scope=scope))
    return TxnVersion(version=wanted.version, scope=query_id(spark) or "")


def query_id(spark: SparkSession) -> str | None:
    """The id of the streaming query in whose `foreachBatch` this thread works; None elsewhere, and over Spark Connect."""
    context = getattr(spark, "_sc", None)
    return None if context is None else context.getLocalProperty(QUERY_ID)


def _route(
    runtime: Runtime, frame: DataFrame, topic: str, key: str | Sequence[str] | None, max_age_ms: int | None = 0
) -> TopicRoute:
    options = WriteOptions(
        store=StoreOptions(path=runtime.url, storage=runtime.storage_options),
        topic=check_topic_name(topic),
        key=(key,) if isinstance(key, str) else None if key is None else tuple(key),
        transactional_id=None,
        txn_version=None,
        transaction_timeout_ms=None,
        compression_type=None,
    )
    return TopicRoute(runtime, options, frame.schema, runtime.topic(topic, max_age_ms))


def _abort_beside(txn: Transaction, error: BaseException) -> None:
    """Aborts because of `error`, which stays the one to see."""
    try:
        if txn._abort().already_committed:
            error.add_note(
                "The transaction was committed all the same: all of it is visible. Do not repeat it without a version"
            )
    except Exception as failure:
        error.add_note(f"aborting the transaction failed too: {type(failure).__name__}: {failure}")
