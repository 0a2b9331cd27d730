"""How does one read several topics at one point, without a partial transaction? `TxLog.snapshot("orders", "audit")`.

A `read_committed` frame ends at each partition's last stable offset when that partition is planned. So a reader may see
the rows of one transaction in one topic and miss them in another. A snapshot is one cut over all of its topics
(PROTOCOL.md, "Reading"). It contains each transaction in all of its topics or in none. It contains every commit that
returned before the snapshot began. A transaction that hangs is hidden, but does not hide others and makes nobody wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.native.scan import frame_of
from txlog import engine
from txlog.engine import Runtime, TopicPartition
from txlog.engine.offsets import format_offsets
from txlog.engine.schemas import TopicMetadata
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError, UnsupportedStoreError

if TYPE_CHECKING:
    import pyarrow as pa


@engine.checked_calls
class Snapshot:
    """One cut. All frames made from it show the same rows; it is valid for `delete.grace.ms`."""

    def __init__(self, spark: SparkSession, runtime: Runtime, topics: Sequence[str]) -> None:
        """Raises InvalidRequestError without topics, UnknownTopicOrPartitionError."""
        if not topics:
            raise InvalidRequestError("a snapshot of which topics? Name them: log.snapshot('orders', 'audit')")
        self._spark = spark
        self._runtime = runtime
        self._session = engine.read_session(runtime)
        self._topics = tuple(dict.fromkeys(topics))
        self.cut = engine.take_cut(self._session, self._topics)
        # Compaction and retention keep what these views name during the grace period (C10).
        self._views = {tp: self._session.views[tp] for tp in self.cut.ends}

    def __repr__(self) -> str:
        return f"Snapshot({', '.join(self._topics)}: {self.offsets})"

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The log end of each partition at the cut; this offset itself is not included."""
        return self.cut.ends

    @property
    def offsets(self) -> str:
        """The same as the JSON of Spark's `startingOffsets`.

        A `read_committed` stream must not start there, because the rows that the snapshot hides lie below.
        """
        return format_offsets(self.cut.ends)

    def to_df(self, topic: str, columns: str | Sequence[str] | None = None) -> DataFrame:
        """Return the topic's rows in this cut; `columns` as in `format("txlog")`: names, "*", `_offset` and so on.

        The frame is planned now, so each use reads the same rows. It is a native scan as in `TxLog.to_dfs`; if Spark
        has no driver for the store, tasks read through txlog's driver. Raises UnknownTopicOrPartitionError for a topic
        that is not in the snapshot, SchemaMismatchError, InvalidRequestError if the snapshot is too old,
        OffsetOutOfRangeError if retention has moved the log start beyond the cut.
        """
        if topic not in self._topics:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} is not in this snapshot of {', '.join(self._topics)}. "
                "hint: take one snapshot of all topics that belong together"
            )
        self._check_age()
        if isinstance(columns, str):
            columns = table.COLUMNS.value.parse("columns", columns)
        metadata = self._runtime.topic(topic, 0)
        self.cut.check_topic(metadata)
        schema = schemas.select({topic: metadata.schema}, columns)
        tasks = self._tasks(metadata, schema)
        # Check again after the indexes are read, because the process may have slept before it read them.
        self._check_age()
        try:
            return frame_of(self._spark, self._runtime, topic, schema, tasks)
        except UnsupportedStoreError:
            return _frame(self._spark, engine.pack_tasks(tasks), schema)

    def to_dfs(self) -> dict[str, DataFrame]:
        """Return a frame of each topic, by name."""
        return {topic: self.to_df(topic) for topic in self._topics}

    def _check_age(self) -> None:
        self.cut.check_age(self._runtime.read_clocks(), self._runtime.constants.delete_grace_ms)

    def _tasks(self, topic: TopicMetadata, schema: StructType) -> Sequence[engine.ReadTask]:
        partitions = [tp for tp in self.cut.ends if tp.topic == topic.topic]
        ranges = {tp: (self._views[tp].state.log_start_offset, self.cut.ends[tp]) for tp in partitions}
        wanted = {tp: each for tp, each in ranges.items() if each[0] < each[1]}
        plans = engine.plan_reads(self._session, wanted, cut=self.cut, views=self._views)
        own, metadata = schemas.divided(schema.names)
        found = list(plans.values())
        return engine.tasks(self._runtime, found, columns=own, metadata_columns=metadata, fields=topic.schema)


def _frame(spark: SparkSession, runs: Sequence[Sequence[engine.ReadTask]], schema: StructType) -> DataFrame:
    """Return the rows of `runs`, each of which is a task that reads through txlog's driver."""
    if not runs:
        return spark.createDataFrame([], schema)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported here, as in `batch_reader`.
        from pyspark_txlog.arrow import spark_batches

        chosen = (task for batch in numbers for number in batch.column(0).to_numpy() for task in runs[number])
        return spark_batches((rows for task in chosen for rows in engine.read_task(task)), schema)

    return spark.range(0, len(runs), 1, len(runs)).mapInArrow(read, schema)
