"""How does one see several topics at one moment, no transaction in part? `TxLog.snapshot("orders", "audit")`.

A `read_committed` frame ends where each partition's last stable offset is when that partition is planned: of a transaction
over three topics a reader may see one topic with its rows and another without. A snapshot is one cut over all of its topics
(PROTOCOL.md, "Reading"): each transaction is in it in all of them or in none, every commit that had returned before is in
it, and one that hangs hides itself alone and holds nobody back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_txlog import native_scan, packing, schemas
from pyspark_txlog.options import parse_columns
from txlog.client import reading
from txlog.client.offsets import format_offsets
from txlog.client.runtime import Runtime
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError, UnsupportedStoreError
from txlog.storage.open import open_object_store

if TYPE_CHECKING:
    import pyarrow as pa


class Snapshot:
    """One cut. Frames made from it, now or later, show the same rows; it holds for `delete.grace.ms`."""

    def __init__(self, spark: SparkSession, runtime: Runtime, topics: Sequence[str]) -> None:
        """Raises InvalidRequestError without topics, UnknownTopicOrPartitionError."""
        if not topics:
            raise InvalidRequestError("a snapshot of which topics? Name them: log.snapshot('orders', 'audit')")
        self._spark = spark
        self._runtime = runtime
        self._session = reading.read_session(runtime)
        self._topics = tuple(dict.fromkeys(topics))
        self.cut = reading.take_cut(self._session, self._topics)
        # What these name stays for the grace, whatever a compaction or retention does meanwhile (C10).
        self._views = {tp: self._session.views[tp] for tp in self.cut.ends}

    def __repr__(self) -> str:
        return f"Snapshot({', '.join(self._topics)}: {self.offsets})"

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Where the cut lies in each partition: the log end then, its own offset not included."""
        return self.cut.ends

    @property
    def offsets(self) -> str:
        """The same as the JSON of Spark's `startingOffsets`. Not where a `read_committed` stream may go on: what the
        snapshot hides lies below."""
        return format_offsets(self.cut.ends)

    def to_df(self, topic: str, columns: str | Sequence[str] | None = None) -> DataFrame:
        """The topic's rows in this cut; `columns` as in `format("txlog")`: names, "*", `_offset` and its like.

        Planned here and now, so a frame that is used twice reads the same twice. A native scan, as `TopicTable.to_df` is; where
        Spark has no driver for the store, its tasks read through txlog's. Raises UnknownTopicOrPartitionError for a
        topic that is not in it, SchemaMismatchError, InvalidRequestError once it is too old, OffsetOutOfRangeError if
        retention has moved the start beyond the cut.
        """
        if topic not in self._topics:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} is not in this snapshot of {', '.join(self._topics)}; take one of all topics that belong together"
            )
        self._check_age()
        if isinstance(columns, str):
            columns = parse_columns("columns", columns)
        metadata = self._runtime.topic(topic, 0)
        schema = schemas.select({topic: metadata.schema}, columns)
        tasks = self._tasks(metadata, schema)
        # Again, now that the indexes are read: a process may have slept before it read them.
        self._check_age()
        try:
            return native_scan.frame_of(self._spark, self._runtime, topic, schema, tasks)
        except UnsupportedStoreError:
            parts = [part for task in tasks for part in _parts(task)]
            return _frame(self._spark, parts, schema)

    def to_dfs(self) -> dict[str, DataFrame]:
        """A frame of each topic, by name."""
        return {topic: self.to_df(topic) for topic in self._topics}

    def _check_age(self) -> None:
        self.cut.check_age(self._runtime.moment(), self._runtime.constants.delete_grace_ms)

    def _tasks(self, topic: TopicMetadata, schema: StructType) -> Sequence[reading.ReadTask]:
        partitions = [tp for tp in self.cut.ends if tp.topic == topic.topic]
        ranges = {tp: (self._views[tp].state.log_start_offset, self.cut.ends[tp]) for tp in partitions}
        wanted = {tp: each for tp, each in ranges.items() if each[0] < each[1]}
        plans = reading.plan_reads(self._session, wanted, cut=self.cut, views=self._views)
        return reading.tasks(
            self._runtime,
            list(plans.values()),
            columns=[name for name in schema.names if name not in schemas.METADATA.names],
            metadata_columns=[name for name in schema.names if name in schemas.METADATA.names],
            cut=self.cut,
        )


def _parts(task: reading.ReadTask) -> Iterator[reading.ReadTask]:
    """The task in pieces that are worth a Spark task each."""
    for run in packing.pack(task.pieces):
        gaps = any(map(packing.has_gaps, run))
        yield replace(
            task,
            start=packing.offsets_of(run[0])[0],
            end=packing.offsets_of(run[-1])[1],
            pieces=run,
            relist=not gaps,
        )


def _frame(spark: SparkSession, tasks: Sequence[reading.ReadTask], schema: StructType) -> DataFrame:
    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_reader(tasks, schema), schema)


def _reader(
    tasks: Sequence[reading.ReadTask], schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Takes numbers of tasks and yields their rows; runs on the executors."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Here and not at the top, as in `reader`.
        from pyspark_txlog.arrow import spark_batches

        chosen = (tasks[number] for batch in numbers for number in batch.column(0).to_numpy())
        return spark_batches(
            (
                rows
                for task in chosen
                for rows in reading.read_task(task, open_object_store(task.url, task.storage_options))
            ),
            schema,
        )

    return read
