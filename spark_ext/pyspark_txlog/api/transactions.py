"""How do several DataFrames for several topics, and their source offsets, become visible by one decision?

`TxLog.transaction("nightly")` takes over the id: it fences older instances and finishes what they left. Then every
`write` stores files beside the log that no record names. The end of the block commits them all with one PREPARE_COMMIT
(PROTOCOL.md, "Staged"). If the program crashes before that, nothing is visible; if it crashes after that, the
transaction is committed. With a version, txlog detects a repeated transaction before it computes any row.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog.native.write import Road, check_road, write_frame
from pyspark_txlog.sink.micro_batch import MicroBatch, compute_skipped, hides_query, in_micro_batch, query_id
from pyspark_txlog.sink.routing import route_to
from txlog.engine import (
    ConsumerGroupMetadata,
    EndResult,
    GroupOffsets,
    Runtime,
    StagedPart,
    StagedTransaction,
    TopicPartition,
    TransactionMetadata,
    TxnVersion,
    check_version,
    checked_calls,
    group_offsets,
    is_repeated,
    txn_version,
)
from txlog.engine.arrow import ColumnNames
from txlog.engine.offsets import Offsets, parse_offsets
from txlog.engine.schemas import check_topic_name
from txlog.errors import (
    FencedError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidRequestError,
    StoreChangedError,
)
from txlog.logs import log

_LOG = logging.getLogger(__name__)

Check: TypeAlias = Callable[[TransactionMetadata | None], None]


@checked_calls
class Transaction:
    """One transaction, between its begin and its end. Several threads may call it."""

    def __init__(self, runtime: Runtime, staged: StagedTransaction, version: TxnVersion | None) -> None:
        self._runtime = runtime
        self._staged = staged
        self._lock = threading.Lock()
        self._parts: list[StagedPart] = []
        self._offsets: list[GroupOffsets] = []
        self._topics: set[str] = set()
        self._failed: BaseException | None = None
        self._names = ColumnNames("this transaction", "run the transaction again")
        self._open = True
        self.version = version
        self.repeated = version is not None and is_repeated(staged.txn, version)
        """Whether this version was committed before. Then nothing is computed or written, and the result says
        `skipped`."""
        self.result: EndResult | None = None
        """How it ended; None before the end, and after an abort."""

    def __repr__(self) -> str:
        return f"Transaction({self.transactional_id!r}, version={self.version})"

    @property
    def transactional_id(self) -> str:
        return self._staged.transactional_id

    def carry_sources(self, batch: MicroBatch) -> None:
        """Include the end offsets of a micro-batch's sources in the transaction. If it was committed before, check that
        it is the same micro-batch.

        Raises CommitFailedError (the rows of the sources are already committed), InvalidRequestError (the checkpoint is
        older than the log).
        """
        self._check_open("carry_sources")
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
        small_rows: int | None = None,
        compression_type: str | None = None,
        merge_schema: bool = False,
    ) -> None:
        """Compute the frame and store its rows beside the log. They become visible when the transaction commits.

        Columns are matched by name, as in `df.write.format("txlog")`. `merge_schema` first adds the frame's columns
        that the topic lacks, as nullable ones; they stay even if the transaction is aborted. `key` (a column or a list
        of columns), a column `partition` or the topic's `key.columns` choose the partition. The driver writes a frame
        of up to `small_rows` rows (None: 131,072; 10,000 over Spark Connect). `road` chooses the driver or Spark's own
        Parquet writer ("executors").

        The frame's plan runs once. Spark's writer writes a frame that is large by its plan: more rows in the cache, and
        one that reads 64 MiB of files or more without a filter. If the plan does not show the size, a task of up to
        `small_rows` rows, which are few bytes too, returns them to the driver. Any other task writes its rows to files.
        Over Spark Connect the driver fetches `small_rows + 1` rows. Rows of one task and one key keep their order,
        except by Spark's writer.

        Raises SchemaMismatchError, UnknownTopicOrPartitionError, StorageError, and what Spark raises for a failed job.
        Raises InvalidRequestError too, also if the version was committed for other topics (W31). After a failed write
        the transaction can only be aborted, even if the caller catches the error.
        """
        check_road(road, small_rows)
        self._check_open("write")
        try:
            # Also checked if the transaction is repeated: a wrong program must fail the second time too.
            keys = (key,) if isinstance(key, str) else key
            route = route_to(self._runtime, check_topic_name(topic), frame.schema, keys, merge=merge_schema)
            self._names.check(route.topic, frame.schema.names)
            self._topics.add(topic)
            if self.repeated and self.version is not None:
                check_version(self._staged.txn, replace(self.version, topics=frozenset({topic})))
                if in_micro_batch(frame.sparkSession):
                    compute_skipped(frame)
                return
            made = write_frame(
                self._runtime,
                self._staged.txn,
                frame,
                route,
                road=road,
                small_rows=small_rows,
                compression=compression_type,
                batch=None if self.version is None or not self.version.scope else self.version.version,
            )
        except BaseException as error:
            with self._lock:
                self._failed = self._failed or error
            raise
        with self._lock:
            # Another thread may have ended the transaction while this one computed.
            self._check_open("write")
            self._parts += made

    def send_offsets(
        self,
        offsets: Offsets | str,
        group: str | ConsumerGroupMetadata,
        expected: Mapping[TopicPartition, int | None] | str | None = None,
    ) -> None:
        """Commit a group's offsets (the next offsets to read) with this transaction.

        Offsets are given by (topic, partition), or as the JSON of Spark's `startingOffsets`. `expected` are the
        committed offsets from which the work started (None: there was no offset). If the group has other offsets at the
        commit, another job has processed the same range. Then the commit fails with CommitFailedError, and nothing of
        the transaction becomes visible.

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
                self._check_open("send_offsets")
                self._offsets.append(sent)

    def _commit(self) -> EndResult:
        with self._lock:
            if self._failed is not None:
                raise IllegalStateError(
                    f"{self._who}: a write of this transaction failed ({type(self._failed).__name__}: "
                    f"{self._failed}), so the whole transaction is aborted. "
                    "hint: do not catch what write() raises, or write in another transaction"
                ) from self._failed
            self._open = False
            parts, offsets = tuple(self._parts), tuple(self._offsets)
        version = None if self.version is None else replace(self.version, topics=frozenset(self._topics))
        self.result = self._staged.commit(parts, offsets=offsets, version=version)
        return self.result

    def _abort(self) -> EndResult:
        self._open = False
        return self._staged.abort()

    @property
    def _who(self) -> str:
        return f"transactional.id {self.transactional_id!r}"

    def _check_open(self, call: str) -> None:
        if not self._open:
            raise IllegalStateError(f"{self._who}: {call}() after the end of its transaction. hint: begin another one")


class Transactions:
    """The transactions of one TxLog. From the first transaction of an id on, the TxLog stays the one instance of that
    id.

    So a second program with the same id fences this one permanently. If each transaction made a new init, the two
    programs could alternate. After an error that ends an instance, the next transaction of the id starts a new
    instance.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._instances: dict[str, tuple[Mapping[str, object], StagedTransaction]] = {}
        self._busy: set[str] = set()

    @contextmanager
    def begin(
        self,
        transactional_id: str | None,
        version: TxnVersion | None,
        settings: Mapping[str, object],
        check: Check | None = None,
    ) -> Iterator[Transaction]:
        """Run a transaction around a block; see `TxLog.transaction`.

        `check` gets the id's record, before an init and after it, and raises to refuse the transaction.
        """
        if transactional_id is None:
            if version is not None:
                raise InvalidRequestError(
                    "version numbers the transactions of one transactional.id: name one, or txlog cannot "
                    "detect a repeated transaction"
                )
            staged = StagedTransaction.begin(self._runtime, None, config=settings)
            with self._around(Transaction(self._runtime, staged, None)) as txn:
                yield txn
            staged.forget()
            return
        with self._lock:
            if transactional_id in self._busy:
                raise IllegalStateError(
                    f"transactional.id {transactional_id!r} has a transaction open already. "
                    "hint: end it first, or use another id for concurrent work"
                )
            self._busy.add(transactional_id)
        try:

            def refuse(current: TransactionMetadata | None) -> None:
                if check is not None:
                    check(current)
                check_version(current, version)

            # Checked before the init, because a call that is refused anyway must not fence the current owner of the id.
            # Checked again after it, because the init may have finished a commit.
            staged = self.instance(transactional_id, settings, refuse)
            refuse(staged.txn)
            txn = Transaction(self._runtime, staged, version)
            try:
                with self._around(txn):
                    yield txn
            except BaseException:
                # Also after an abort that did nothing. If nothing was attempted, the instance is unchanged. But after a
                # failed attempt it may be fenced, or its outcome may be unknown.
                self._forget(transactional_id, staged)
                raise
        finally:
            with self._lock:
                self._busy.discard(transactional_id)

    @contextmanager
    def _around(self, txn: Transaction) -> Iterator[Transaction]:
        try:
            yield txn
            result = txn._commit()
        except BaseException as error:
            # This error stays the one that the caller sees.
            try:
                if txn._abort().already_committed:
                    error.add_note(
                        "The transaction was committed in spite of this error: all of it is visible. Do not "
                        "repeat it without a version"
                    )
            except Exception as failure:
                error.add_note(f"aborting the transaction failed too: {type(failure).__name__}: {failure}")
            raise
        if result.skipped and txn.version is not None:
            number, scope = txn.version.version, txn.version.scope
            text = (
                f"transactional.id {txn.transactional_id!r}: version {number} is not above {result.txn.txn_version}, "
                "the last one committed: this transaction was done before, and is skipped"
            )
            log(_LOG, logging.WARNING, "transaction_skipped", text, txn=result.txn, txn_version=number, txn_scope=scope)

    def instance(
        self,
        transactional_id: str,
        settings: Mapping[str, object],
        check: Check | None = None,
        *,
        take_over: bool = False,
    ) -> StagedTransaction:
        """Return this TxLog's instance of the id. `check` may refuse a new one before any other instance is fenced.

        If another program has taken the id over since, only `take_over` takes it back. Otherwise that program would be
        fenced by one that does not know of it.
        """
        with self._lock:
            known = self._instances.get(transactional_id)
        # The store may have been recreated, or restored to an older state, since this TxLog last looked (W47).
        if known is None or known[0] != settings:
            self._runtime.check_store(now=True)
        else:
            session = known[1].session
            try:
                session.doubt()
                lost = known[1].look_again()
                if lost is not None and not take_over:
                    raise lost
            except (StoreChangedError, FencedError, InvalidProducerEpochError):
                self._forget(transactional_id, known[1])
                raise
            if lost is None:
                if check is not None:
                    check(known[1].txn)
                return known[1]
        staged = StagedTransaction.begin(self._runtime, transactional_id, config=settings, check=check)
        with self._lock:
            self._instances[transactional_id] = (dict(settings), staged)
        return staged

    def _forget(self, transactional_id: str, staged: StagedTransaction) -> None:
        with self._lock:
            # Another thread may have taken the id over meanwhile.
            if self._instances.get(transactional_id, ({}, None))[1] is staged:
                del self._instances[transactional_id]


def version_of(spark: SparkSession, version: int | TxnVersion | None, scope: str | None) -> TxnVersion | None:
    """Return the version of a transaction. In `foreachBatch` its scope is the query's id, unless another one is given.

    Raises InvalidRequestError.
    """
    wanted = txn_version(version)
    if wanted is None:
        if scope is not None:
            raise InvalidRequestError(f"scope={scope!r} without a version: a scope only qualifies a version")
        return None
    if isinstance(version, TxnVersion) or scope is not None:
        return wanted if scope is None else txn_version(TxnVersion(version=wanted.version, scope=scope))
    query = query_id(spark)
    if query is None and hides_query(spark):
        raise InvalidRequestError(
            f"version={wanted.version} without a scope: txlog cannot see whether a streaming query runs this code "
            "(PYSPARK_PIN_THREAD=false, or foreachBatch "
            'over Spark Connect). hint: give scope=, in foreachBatch the id of the query, elsewhere ""'
        )
    return TxnVersion(version=wanted.version, scope=query or "")
