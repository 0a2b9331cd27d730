"""Where does a Spark program begin that wants more than one DataFrame at a time? `TxLog(spark, root)`.

`spark.read.format("txlog")` and `df.write.format("txlog")` stand for one frame each, in processes of their own. A TxLog
lives in the driver's own process, beside its session: it plans and commits there, and leaves the rows to Spark. So
several frames can share one cut of the log when they are read, and one decision when they are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from pyspark_txlog import native_scan, views
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.snapshot import Snapshot
from pyspark_txlog.spark_session import activate
from pyspark_txlog.spark_version import check_spark
from pyspark_txlog.table import TopicTable
from pyspark_txlog.transactions import Transaction, Transactions, version_of
from txlog.client.runtime import Runtime
from txlog.client.settings import call_layer
from txlog.config import Layer
from txlog.core.records import TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import UnsupportedStoreError
from txlog.storage.object_store import ObjectStore


class TxLog:
    """One store, through one Spark session. Thread-safe; `close` ends its helper threads."""

    @plain_errors
    def __init__(
        self,
        spark: SparkSession,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        *,
        object_store: ObjectStore | None = None,
    ) -> None:
        """Opens the store at `root`: a folder, or a URL as in `.load(...)`; `storage_options` are its driver's.

        `object_store` is for tests and fault injection. Raises NotAStoreError if something else lies there,
        UnsupportedStoreError, CorruptRecordError, InvalidRequestError for a Spark that is too old.
        """
        check_spark()
        if str(root).lower().startswith("memory:"):
            raise UnsupportedStoreError(
                f"{str(root)!r}: a store in memory lives in one process, and Spark reads and writes from many; use a folder or an object store"
            )
        activate(spark)
        self.spark = spark
        self.runtime = Runtime.open(root, storage_options=storage_options, object_store=object_store)
        self._transactions = Transactions(self.runtime)

    def __repr__(self) -> str:
        return f"TxLog({self.runtime.where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def store(self) -> ObjectStore:
        """Where the bytes lie."""
        return self.runtime.store

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self.runtime.where

    def table(self, topic: str) -> TopicTable:
        """One topic. Raises UnknownTopicOrPartitionError, naming the most similar one."""
        return TopicTable(self, topic)

    def transaction(
        self,
        transactional_id: str | None = None,
        version: int | TxnVersion | None = None,
        *,
        scope: str | None = None,
        config: Layer | None = None,
        **settings: object,
    ) -> AbstractContextManager[Transaction]:
        """A transaction around a block: committed at its end, aborted if the block raises.

            with log.transaction("nightly", version=20130131) as txn:
                txn.write(orders, "orders", key="order_id")
                txn.write(audit, "audit")
                txn.send_offsets({("clicks", 0): 1700}, group="nightly", expected={("clicks", 0): 1500})

        `version` numbers the id's transactions: one that is not above the last committed is recognised at the start
        (`txn.repeated`), and its writes compute nothing. In `foreachBatch` the batch's number is the version; its scope is
        then the query's id, so that a query which lost its checkpoint is refused instead of skipped (over Spark Connect, and
        in threads of your own, which do not know the query, give the `scope` yourself). Without a transactional.id, here or in the
        producer's settings, one is drawn, and nothing is recognised or fenced.

        This TxLog stays the one instance of the id: a second program with the same id fences it. `config` and keywords
        are a producer's settings (`transaction_timeout_ms`, `max_block_ms`).

        Raises what `Transaction.write` raises; ProducerFencedError, TxnVersionScopeError, CommitFailedError and
        ConcurrentTransactionsError (a condition on offsets), IllegalStateError (the id has a transaction open here):
        then nothing of it is visible, ever. OutcomeUnknownError or TxlogTimeoutError: it may have been decided; run it
        again with the same version.
        """
        wanted = version_of(self.spark, version, scope)
        given = call_layer(config, settings)
        name = transactional_id or self.runtime.settings.producer_config(given).transactional_id
        return self._transactions.begin(name, wanted, given)

    @plain_errors
    def snapshot(self, *topics: str) -> Snapshot:
        """One cut over all partitions of `topics` in which every transaction is whole; nothing is written or waited for.

            cut = log.snapshot("orders", "audit")
            orders, audit = cut.to_df("orders"), cut.to_df("audit")

        Raises InvalidRequestError without topics, UnknownTopicOrPartitionError.
        """
        return Snapshot(self.spark, self.runtime, topics)

    def take_over(
        self,
        transactional_id: str,
        *,
        check: Callable[[TransactionMetadata | None], None] | None = None,
        config: Layer | None = None,
        **settings: object,
    ) -> TransactionMetadata:
        """Makes this TxLog the one instance of the id now: older ones are fenced, what they left is finished or aborted.
        Returns the id's record as it is then.

        For a job that resumes from offsets which an earlier run committed: take the id over first, then fetch them
        (PROTOCOL.md, W42). A transaction does it by itself otherwise. `check` gets the id's record as it was (None: there is
        none); if it raises, nobody is fenced. Raises what `StagedTransaction.begin` raises.
        """
        return self._transactions.take_over(transactional_id, call_layer(config, settings), check)

    @plain_errors
    def to_dfs(self, *topics: str, **options: object) -> dict[str, DataFrame]:
        """Several topics as `TopicTable.to_df` gives one, planned together; by name.

        The topics named, those of `subscribe_pattern` or `assign`, or all of them. Offsets and times are for all of their
        partitions. Raises what `to_df` raises, UnknownTopicOrPartitionError.
        """
        names = list(topics)
        if not names and not {name.replace("_", "").lower() for name in options} & {"subscribepattern", "assign"}:
            names = [topic.topic for topic in self.runtime.list_topics()]
            if not names:
                return {}
        return native_scan.scan(self.spark, self.runtime, native_scan.scan_options(self.runtime, names, options))

    @plain_errors
    def fsck(self, *topics: str, rows: bool = True) -> DataFrame:
        """What a check of `topics` (all, and the whole store, if none is named) finds, worst first; empty: not even a note.

        Columns: kind (damaged, missing, note), path, expected, found, advice, count. Executors check the partitions; without
        `rows` no file of rows is opened. Nothing is changed. Raises UnknownTopicOrPartitionError, NotAStoreError,
        InvalidRequestError over Spark Connect.
        """
        # Here and not at the top: it loads pyarrow's Parquet, which planning goes without.
        from pyspark_txlog import fsck

        return fsck.to_frame(self.spark, fsck.check(self.spark, self.runtime, topics, rows=rows))

    @plain_errors
    def create_views(self, *topics: str, prefix: str = "", **options: object) -> dict[str, str]:
        """A temporary view for each topic (those named, or all), over `to_dfs` with the same options; it shows what is there now.

        -> the view's name for each topic, quoted for SQL. Views of these names are replaced. Raises what `to_dfs` raises,
        InvalidRequestError if two names differ in case alone.
        """
        return views.create_views(self.to_dfs(*topics, **options), prefix)

    def close(self) -> None:
        """Ends the helper threads; idempotent. DataFrames that were made from this stay good."""
        self.runtime.close()
