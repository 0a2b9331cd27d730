"""Which calls work on one whole topic? `TxLog.table("orders")` returns a TopicTable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from pyspark_txlog import schemas
from pyspark_txlog.api.scan_options import scan_options
from pyspark_txlog.api.transactions import How, check_write
from pyspark_txlog.messages import plain_errors, short_java_errors
from pyspark_txlog.native.newest import newest
from pyspark_txlog.native.scan import scan
from pyspark_txlog.native.write import SMALL_ROWS, Road, is_over_connect
from pyspark_txlog.sink.checkpoint import Checkpoint
from pyspark_txlog.sink.micro_batch import (
    MicroBatch,
    add_hint,
    check_scope,
    check_without_offsets,
    hides_query,
    query_id,
)
from pyspark_txlog.sink.stream_writer import query_names
from pyspark_txlog.source.predicate import quoted
from txlog.engine import EndResult, Layer, TransactionMetadata, TxnVersion, call_layer, producer_session
from txlog.engine.schemas import TopicMetadata, check_topic_name
from txlog.errors import CommitFailedError, InvalidRequestError

if TYPE_CHECKING:
    from pyspark_txlog.api.log import TxLog


class TopicTable:
    """One topic of a TxLog. It holds no rows and no view of them: each call reads the present state."""

    @plain_errors
    def __init__(self, log: TxLog, name: str) -> None:
        """Raises InvalidTopicError, and UnknownTopicOrPartitionError with the most similar topic."""
        self.log = log
        self.name = check_topic_name(name)
        self.topic()

    def __repr__(self) -> str:
        return f"{self.log!r}.table({self.name!r})"

    def topic(self) -> TopicMetadata:
        """Return the topic's present metadata."""
        return self.log.runtime.topic(self.name, 0)

    def append(
        self,
        frame: DataFrame,
        *,
        transactional_id: str | None = None,
        version: int | TxnVersion | None = None,
        scope: str | None = None,
        key: str | Sequence[str] | None = None,
        road: Road = "auto",
        small_rows: int = SMALL_ROWS,
        compression_type: str | None = None,
        merge_schema: bool = False,
        config: Layer | None = None,
    ) -> EndResult:
        """Append all rows of the frame or none, as one transaction; return when they are visible.

        Short for `TxLog.transaction` with one `Transaction.write`, with the same arguments and errors. In the result,
        `skipped` means that this version was committed before and nothing was computed. A frame that does not fit the
        topic is refused before any instance is fenced.
        """
        how = How(
            key=key,
            road=road,
            small_rows=small_rows,
            compression_type=compression_type,
            merge_schema=merge_schema,
        )
        check_write(self.log.runtime, frame, self.name, how)
        with self.log.transaction(transactional_id, version, scope=scope, config=config) as txn:
            txn.write(frame, self.name, **how)
        assert txn.result is not None
        return txn.result

    def append_stream(
        self,
        frame: DataFrame,
        *,
        transactional_id: str,
        checkpoint_location: str,
        key: str | Sequence[str] | None = None,
        road: Road = "auto",
        small_rows: int = SMALL_ROWS,
        compression_type: str | None = None,
        merge_schema: bool = False,
        commit_source_offsets: bool = True,
        query_name: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        config: Layer | None = None,
    ) -> StreamingQuery:
        """Start a query that appends a streaming frame's rows, each micro-batch as one transaction, exactly once.

        It is `foreachBatch` over `append`. The micro-batch's number is the version and the query's id its scope, so
        txlog detects a repeated batch before it is computed. If a query runs twice, the later run fences the earlier
        one, which fails with ProducerFencedError. `trigger` has the keywords of Spark's own (`{"availableNow": True}`).

        Each transaction includes the end offsets of the batch's sources, as in the sink of `writeStream`
        (`committed_offsets`). A query whose checkpoint was lost continues there. `commit_source_offsets=False` never reads
        the checkpoint.

        The query fails with SchemaMismatchError if a name means another column of the topic than when it began.

        Raises InvalidRequestError, also over Spark Connect, where the batches run in another process. Raises
        UnsupportedStoreError for a checkpoint that txlog cannot read, and what `StagedTransaction.begin` raises. Raises
        TxnVersionScopeError if the id's micro-batches belong to another query; if the checkpoint is not read, the query
        fails with it later. The query fails with what `append` raises, and with CommitFailedError if the sources' rows
        are already committed.
        """
        if not frame.isStreaming:
            raise InvalidRequestError(
                f"topic {self.name!r}: append_stream() takes a streaming DataFrame, from spark.readStream. hint: use append() for this one"
            )
        if is_over_connect(frame):
            raise InvalidRequestError(
                f"topic {self.name!r}: append_stream() commits in this process, but over Spark Connect a query's batches run in the server's. hint: use "
                f'.writeStream.format("txlog").option("topic", {self.name!r}), or foreachBatch with a TxLog(batch.sparkSession, ...) made in '
                "the function"
            )
        if not commit_source_offsets and hides_query(frame.sparkSession):
            raise InvalidRequestError(
                f"topic {self.name!r}: with PYSPARK_PIN_THREAD=false only the checkpoint tells append_stream() which query runs. hint: leave "
                "commit_source_offsets on, or let Spark pin its threads"
            )
        how = How(
            key=key,
            road=road,
            small_rows=small_rows,
            compression_type=compression_type,
            merge_schema=merge_schema,
        )
        check_write(self.log.runtime, frame, self.name, how)
        runtime = self.log.runtime
        checkpoint = (
            Checkpoint.beside(checkpoint_location, runtime.url, runtime.storage_options)
            if commit_source_offsets
            else None
        )
        settings = call_layer(config, {})
        names = query_names()
        names.check(self.topic(), frame.schema.names)
        if checkpoint is None:
            parsed = runtime.settings.producer_config(settings)
            session = producer_session(runtime, parsed, f"transactional.id {transactional_id!r}")
            check_without_offsets(session, transactional_id)

        def check(current: TransactionMetadata | None) -> None:
            # Check before the init: a query that is refused anyway must not fence the owner of the id.
            if checkpoint is not None and current is not None:
                check_scope(current, checkpoint.begun_query_id())

        @short_java_errors
        def append_batch(batch: DataFrame, batch_id: int) -> None:
            # A thread that is not pinned has no property with the id; the checkpoint contains the same id.
            query = query_id(batch.sparkSession) or (checkpoint.query_id() if checkpoint else "")
            version = TxnVersion(version=batch_id, scope=query)
            check_query = partial(check_scope, query_id=query)
            try:
                with self.log._transactions.begin(transactional_id, version, settings, check_query) as txn:
                    txn.keep_columns(names)
                    txn.carry_sources(MicroBatch(query_id=query, number=batch_id, checkpoint=checkpoint))
                    txn.write(batch, self.name, **how)
            except CommitFailedError as error:
                add_hint(error, batch_id)
                raise

        writer = frame.writeStream.foreachBatch(append_batch).option("checkpointLocation", checkpoint_location)
        if query_name is not None:
            writer = writer.queryName(query_name)
        if trigger is not None:
            writer = writer.trigger(**trigger)
        # Before Spark asks where the sources begin, so that an older query of this id can no longer commit (W42).
        self.log.take_over(transactional_id, check=check, config=config)
        return writer.start()

    @property
    def schema(self) -> StructType:
        """Return the topic's own columns as Spark's, as they are now."""
        return schemas.to_spark(self.topic().schema)

    @plain_errors
    def to_df(self, **options: object) -> DataFrame:
        """Return the topic's rows through Spark's own Parquet reader: the same rows and options as `format("txlog")`.

        Options are keyword arguments here: `isolation_level="read_uncommitted"`, `starting_offsets={"orders": {"0":
        5}}`, `columns=["order_id", "_offset"]`, `where="amount > 100"`; see `api.scan_options.scan_options`. The plan is
        fixed now: the frame does not grow, and is valid as long as its files are kept. All its columns are nullable.

        Raises OffsetOutOfRangeError, SchemaMismatchError, UnknownOptionError, UnsupportedStoreError.
        """
        runtime = self.log.runtime
        return scan(self.log.spark, runtime, scan_options(runtime, [self.name], options))[self.name]

    @plain_errors
    def latest(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the newest committed row of each key, without keys whose newest row is a tombstone.

        The key is `key.columns` of the topic, or `key` in a topic with Kafka's columns. Compaction has the same rule,
        so the result is the same before and after it. Rows without a key are all in the result. A key that has rows in
        several partitions has a row for each of them. The columns of now tell a tombstone, also among rows from before a
        column was dropped, or added with a default. `columns` are those of `to_df`. The plan is fixed now.

        Raises InvalidRequestError for a topic without a key, and what `to_df` raises.
        """
        # A local import: it loads numpy and pyarrow.
        from txlog.engine.arrow import key_columns_of, value_columns

        frame: DataFrame | None = None
        while frame is None:
            topic = self.topic()
            keys = key_columns_of(self.log.runtime.settings, topic)
            if not keys:
                raise InvalidRequestError(
                    f"topic {self.name!r} has no key, so no row of it is newer than another one. hint: set key.columns of the topic"
                )
            names = schemas.select({self.name: topic.schema}, columns).names
            planned = self.to_df(columns=["*", *schemas.METADATA.names], isolation_level="read_committed")
            # The plan looked the topic up itself. The columns may have changed since, and the key's names with them.
            known = self.log.runtime.known_topic(self.name)
            if known is not None and known.schema_id == topic.schema_id:
                frame = planned
        kept = newest(frame, keys, value_columns(topic.schema, keys))
        return kept.select(*(quoted(name) for name in names))
