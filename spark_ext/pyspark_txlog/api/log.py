"""Where does a Spark program begin that needs more than one DataFrame at a time? `TxLog(spark, root)`.

`spark.read.format("txlog")` and `df.write.format("txlog")` each handle one frame, in separate processes. A TxLog lives
in the driver's own process, beside its session: it plans and commits there, and Spark moves the rows. So several frames
can share one cut of the log when they are read, and one decision when they are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table
from pyspark_txlog.api.scan_options import scan_options
from pyspark_txlog.api.table import TopicTable
from pyspark_txlog.api.transactions import Transaction, Transactions, version_of
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.native.scan import scan
from pyspark_txlog.native.snapshot import Snapshot
from pyspark_txlog.source.predicate import quoted
from pyspark_txlog.spark_session import activate
from pyspark_txlog.spark_version import check_spark
from txlog.engine import Layer, ObjectStore, Runtime, TransactionMetadata, TxnVersion, call_layer, checked_calls
from txlog.errors import InvalidRequestError

FINDINGS = StructType()
"""The columns of a check's report."""
for _name, _kind, _doc in (
    ("kind", "string", "damaged, missing or note: what a crash may leave behind"),
    ("path", "string", "the object, relative to the store's root; a folder ends in /"),
    ("expected", "string", "what should be there"),
    ("found", "string", "what is there"),
    ("advice", "string", "what to do"),
    ("count", "integer", "how much speaks of it"),
):
    FINDINGS.add(_name, _kind, False, {"comment": _doc})


@checked_calls
class TxLog:
    """One store, through one Spark session. Thread-safe; `close` stops its helper threads."""

    @plain_errors
    def __init__(
        self,
        spark: SparkSession,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        *,
        object_store: ObjectStore | None = None,
    ) -> None:
        """Open the store at `root`: a folder, or a URL as in `.load(...)`; `storage_options` are for its driver.

        `object_store` is for tests and fault injection. Raises NotAStoreError if something else is there,
        UnsupportedStoreError, CorruptRecordError, InvalidRequestError if Spark is too old.
        """
        check_spark()
        table.PATH.value.parse("path", str(root))
        activate(spark)
        self.spark = spark
        self.runtime = Runtime.open(root, storage_options=storage_options, object_store=object_store)
        self._transactions = Transactions(self.runtime)

    def __repr__(self) -> str:
        return f"TxLog({self.runtime.where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def store(self) -> ObjectStore:
        """The object store that holds the bytes."""
        return self.runtime.store

    @property
    def url(self) -> str:
        """The location of the store, without credentials."""
        return self.runtime.where

    def table(self, topic: str) -> TopicTable:
        """Return one topic. Raises UnknownTopicOrPartitionError with the most similar topic."""
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
        """Run a transaction around a block: committed at its end, aborted if the block raises.

            with log.transaction("nightly", version=20130131) as txn:
                txn.write(orders, "orders", key="order_id")
                txn.write(audit, "audit")
                txn.send_offsets({("clicks", 0): 1700}, group="nightly", expected={("clicks", 0): 1500})

        `version` numbers the id's transactions. If it is not above the last committed one, the transaction is detected
        as repeated at the start (`txn.repeated`), and its writes compute nothing. In `foreachBatch` use the batch's
        number as the version. Its scope is then the query's id, so that a query that lost its checkpoint is refused and
        not skipped. In threads of your own the query is not known: give the `scope` yourself. With
        PYSPARK_PIN_THREAD=false, and in `foreachBatch` over Spark Connect, a version without a scope is an error.
        Without a transactional.id, here or in the producer's settings, a random id is used, and nothing is detected or
        fenced.

        This TxLog stays the only instance of the id: a second program with the same id fences it. `config` and keywords
        are a producer's settings (`transaction_timeout_ms`, `max_block_ms`).

        Raises what `Transaction.write` raises. After ProducerFencedError, TxnVersionScopeError, CommitFailedError or
        ConcurrentTransactionsError (a condition on offsets), and IllegalStateError (the id has a transaction open
        here), nothing of it ever becomes visible. After OutcomeUnknownError or TxlogTimeoutError it may be committed:
        run it again with the same version.
        """
        wanted = version_of(self.spark, version, scope)
        given = call_layer(config, settings)
        name = transactional_id or self.runtime.settings.producer_config(given).transactional_id
        return self._transactions.begin(name, wanted, given)

    @plain_errors
    def snapshot(self, *topics: str) -> Snapshot:
        """Return one cut over all partitions of `topics`, with whole transactions only; it writes nothing and waits for
        nothing.

            cut = log.snapshot("orders", "audit")
            orders, audit = cut.to_df("orders"), cut.to_df("audit")

        Topics are named one by one. Raises InvalidRequestError without topics, UnknownTopicOrPartitionError.
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
        """Make this TxLog the only instance of the id now, and return the id's record.

        Older instances are fenced; what they left is finished or aborted. This is for a job that resumes from offsets
        of an earlier run: take the id over first, then fetch the offsets (PROTOCOL.md, W42). Otherwise a transaction
        does it itself. `check` gets the id's previous record (None if there is none); if it raises, no instance is
        fenced. Raises what `StagedTransaction.begin` raises.
        """
        return self._transactions.instance(transactional_id, call_layer(config, settings), check, take_over=True).txn

    @plain_errors
    def to_dfs(self, *topics: str, **options: object) -> dict[str, DataFrame]:
        """Return the rows of several topics, planned together, by topic, through Spark's own Parquet reader.

            orders = log.to_dfs("orders", columns=["order_id", "_offset"], where="amount > 100")["orders"]

        Rows and options are those of `format("txlog")`. Options are keyword arguments here:
        `isolation_level="read_uncommitted"`, `starting_offsets={"orders": {"0": 5}}`; see `scan_options`.

        The topics are the named ones, those of `subscribe_pattern` or `assign`, or all. Offsets and times apply to all
        of their partitions. The plan is fixed now: a frame does not grow, and is valid as long as its files are kept.
        All its columns are nullable.

        Raises OffsetOutOfRangeError, SchemaMismatchError, UnknownOptionError, UnsupportedStoreError,
        UnknownTopicOrPartitionError.
        """
        names = list(topics)
        if not names and not {name.replace("_", "").lower() for name in options} & {"subscribepattern", "assign"}:
            names = [topic.topic for topic in self.runtime.list_topics()]
            if not names:
                return {}
        return scan(self.spark, self.runtime, scan_options(self.runtime, names, options))

    @plain_errors
    def fsck(self, *topics: str, rows: bool = True) -> DataFrame:
        """Return what a check of `topics` finds, worst first; the frame is empty if there is not even a note.

        Without topics it checks the whole store. Columns: kind (damaged, missing, note), path, expected, found, advice,
        count. Executors check the partitions; with `rows=False` no file of rows is opened. Nothing is changed. Raises
        UnknownTopicOrPartitionError, NotAStoreError, InvalidRequestError over Spark Connect.
        """
        # Imported here because it loads pyarrow's Parquet, which planning does not need.
        from pyspark_txlog.jobs.spark_workers import SparkWorkers
        from txlog.maintenance.fsck import check_store

        workers = SparkWorkers(self.runtime, lambda: self.spark)
        runtime = self.runtime
        report = check_store(runtime.store, topics=topics, rows=rows, clock=runtime.clock, workers=workers)
        found = [tuple(getattr(finding, name) for name in FINDINGS.names) for finding in report.findings]
        return self.spark.createDataFrame(found, FINDINGS)

    @plain_errors
    def create_views(self, *topics: str, prefix: str = "", **options: object) -> dict[str, str]:
        """Create a temporary view for each topic (the named ones, or all), over `to_dfs` with the same options.

        Views show the rows that exist now, and replace views of the same names. SQL over several views sees one plan,
        which does not change under a query; call this again to see newer rows. Returns the view's name for each topic,
        quoted for SQL. Raises what `to_dfs` raises. Raises InvalidRequestError, and creates no view, if two names
        differ only in case: Spark treats them as one.
        """
        return register(self.to_dfs(*topics, **options), prefix)

    def close(self) -> None:
        """Stop the helper threads; idempotent. DataFrames made from this TxLog stay valid."""
        self.runtime.close()


def register(frames: Mapping[str, DataFrame], prefix: str) -> dict[str, str]:
    """Make each frame a temporary view, as `TxLog.create_views`."""
    seen: dict[str, str] = {}
    for name in (f"{prefix}{topic}" for topic in frames):
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidRequestError(
                f"the views {other!r} and {name!r} would be one, because Spark ignores case. "
                "hint: name the topics one by one, with a prefix for one of them"
            )
    named = {topic: quoted(f"{prefix}{topic}") for topic in frames}
    for topic, frame in frames.items():
        frame.createOrReplaceTempView(named[topic])
    return named
