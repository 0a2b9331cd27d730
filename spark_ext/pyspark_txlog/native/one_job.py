"""How are the rows of a frame of unknown size stored with one run of its plan, whether they are few or many?

Spark's own counts (`Observation`, accumulators, `numInputRows` of a stream) are right only if the plan runs once. So no
job looks for the size first. Each task finds out: it holds its rows, and if they are few, it returns them. If not, it
writes them to files of the transaction, as a task of the Python sink does, and returns their names. The driver has all
rows of a small frame then, and stores them itself.

What the tasks return together is bounded, in bytes too: rows may be wide, and Spark fails a job whose results are
larger than `spark.driver.maxResultSize`. No task knows how many others there are. So `share_of` gives the tasks parts
of the bound whose sum stays below it for any number of tasks.

Only results of successful attempts reach the driver, each task's once. Files of other attempts belong to no log, and
vacuum removes them (PROTOCOL.md, "Staged").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame

from pyspark_txlog.sink.routing import TopicRoute
from pyspark_txlog.worker import spare_modules
from txlog.engine import Runtime, StagedPart, TransactionMetadata
from txlog.engine.arrow import MAX_INLINE_BYTES, StagedFiles
from txlog.errors import SchemaMismatchError, TxlogError, UnknownTopicOrPartitionError

MAX_BYTES = 16 * 2**20
"""Size of the rows that all tasks of a job may return together, if `spark.driver.maxResultSize` allows it."""
_RESULT_PART = 4
"""The part of `spark.driver.maxResultSize` that the rows may take. Spark's own reports of tasks count too."""
_RESULT = "result"
_PLAIN = re.compile("[A-Za-z0-9_]+")

REFUSALS: dict[str, type[TxlogError]] = {
    kind.__name__: kind for kind in (SchemaMismatchError, UnknownTopicOrPartitionError)
}
"""Why a topic cannot take a row, by the name of the class."""


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a task returns: its rows, or the parts that it wrote, or why the topic cannot take one of its rows."""

    task: int
    rows: bytes | None = None
    parts: tuple[StagedPart, ...] = ()
    refused: tuple[str, str] | None = None
    """The class of the error, and its message."""

    def table(self) -> pa.Table:
        assert self.rows is not None
        return pa.ipc.open_stream(self.rows).read_all()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameWrite:
    """The write of one frame to a topic, in a transaction."""

    runtime: Runtime
    txn: TransactionMetadata
    route: TopicRoute
    compression: str | None
    first: int
    """Is added to the number of a task."""

    @property
    def codec(self) -> str:
        """How pages are compressed. The driver's settings decide, and those of the tasks' processes may differ."""
        config = self.runtime.settings.row_config({"compression.type": self.compression}, self.route.topic)
        return config.compression_type

    def store(
        self, rows: pa.Table, task: int | NDArray[np.int64], inline_bytes: int = MAX_INLINE_BYTES
    ) -> tuple[StagedPart, ...]:
        """Store rows that the driver has, inline or in files. `task` is as in `TopicRoute.take`."""
        files = StagedFiles(self.runtime, self.txn, compression=self.compression, inline_bytes=inline_bytes)
        stored, partitions = self.route.take(rows, task)
        files.add(self.route.topic, stored, partitions)
        return files.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWriter:
    """The work of each task; Spark pickles it."""

    url: str
    storage_options: Mapping[str, object]
    txn: TransactionMetadata
    route: TopicRoute
    compression: str
    first: int
    """Is added to the number of a task."""
    columns: tuple[str, ...]
    """The names of the columns, which have others in the job."""
    rows: int
    """How many rows a task may return."""
    bytes: int
    """How many bytes all tasks may return together."""
    tasks: int
    """The likely number of tasks."""

    def run(self, task: int, batches: Iterator[pa.RecordBatch]) -> TaskResult | None:
        """Store the rows of a task, in their order. None if there are none. Raises StorageError, NotAStoreError."""
        share, size, count = share_of(task, self.bytes, self.tasks), 0, 0
        held: list[pa.RecordBatch] = []
        with ExitStack() as opened:
            files: StagedFiles | None = None
            for batch in batches:
                if not batch.num_rows:
                    continue
                held.append(batch.rename_columns(list(self.columns)))
                size, count = size + batch.nbytes, count + batch.num_rows
                if files is None and size <= share and count <= self.rows:
                    continue
                if files is None:
                    runtime = opened.enter_context(
                        closing(Runtime.open(self.url, storage_options=self.storage_options))
                    )
                    files = StagedFiles(runtime, self.txn, compression=self.compression)
                try:
                    stored, partitions = self.route.take(pa.Table.from_batches(held), task + self.first)
                except tuple(REFUSALS.values()) as error:
                    # Not raised here: another attempt would find the same row, and Spark would wrap the error.
                    return TaskResult(task=task, refused=(type(error).__name__, str(error)))
                files.add(self.route.topic, stored, partitions)
                held = []
            if files is not None:
                return TaskResult(task=task, parts=files.finish())
        return TaskResult(task=task, rows=_packed(held)) if held else None


def share_of(task: int, limit: int, tasks: int) -> int:
    """Return how much of `limit` a task may use, so that all tasks together stay below it, however many there are.

    The first `tasks` tasks share one half equally. Tasks 0, 1, 2 get a half, a sixth, a twelfth of the other half, and
    so on, because there may be few tasks.
    """
    alike = limit // (2 * tasks) if task < tasks else 0
    return alike + limit // (2 * (task + 1) * (task + 2))


def most_bytes(frame: DataFrame) -> int:
    """Return the size of the rows that the tasks of a job over the frame may return together."""
    allowed = most_result(frame)
    return min(MAX_BYTES, allowed // _RESULT_PART) if allowed else MAX_BYTES


def most_result(frame: DataFrame) -> int:
    """Return how many bytes the tasks of a job may return to the driver; 0: no limit."""
    configuration: Any = frame.sparkSession._jsparkSession.sparkContext().conf()
    return int(configuration.getSizeAsBytes("spark.driver.maxResultSize", "1g"))


def likely_tasks(frame: DataFrame) -> int:
    """Return how many tasks a job over the frame has after a shuffle. Spark decides it only while the job runs."""
    session: Any = frame.sparkSession._jsparkSession
    return max(1, int(session.sessionState().conf().numShufflePartitions()))


def write_once(
    write: FrameWrite, frame: DataFrame, fetch: Callable[[DataFrame], pa.Table], *, small_rows: int, by_task: bool
) -> tuple[StagedPart, ...]:
    """Run the frame's plan once, and return the parts with its rows, in the order of the tasks.

    If the driver got all rows, those without a key go to one partition, `write.first`, unless `by_task`. Otherwise they
    go to those of their tasks. Raises SchemaMismatchError, UnknownTopicOrPartitionError, StorageError, and what Spark
    raises.
    """
    writer = TaskWriter(
        url=write.runtime.url,
        storage_options=write.runtime.storage_options,
        txn=write.txn,
        route=write.route,
        compression=write.codec,
        first=write.first,
        rows=small_rows,
        columns=tuple(frame.columns),
        bytes=most_bytes(frame),
        tasks=likely_tasks(frame),
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run_task(writer, batches)

    # Spark finds the columns of a frame by name, and cannot find one with a dot or a quote in its name.
    plain = frame
    if not all(map(_PLAIN.fullmatch, frame.columns)) or len({*map(str.lower, frame.columns)}) < len(frame.columns):
        plain = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    found = fetch(plain.mapInArrow(run, f"{_RESULT} binary")).column(_RESULT)
    decoder = msgspec.msgpack.Decoder(TaskResult)
    results = sorted((decoder.decode(each.as_py()) for each in found), key=lambda each: each.task)
    for result in results:
        if result.refused is not None:
            kind, message = result.refused
            raise REFUSALS[kind](message)
    few = all(result.rows is not None for result in results)
    parts: list[StagedPart] = []
    for has_rows, group in groupby(results, lambda result: result.rows is not None):
        if not has_rows:
            parts += (part for result in group for part in result.parts)
            continue
        members = list(group)
        tables = [result.table() for result in members]
        tasks = np.repeat([result.task + write.first for result in members], [table.num_rows for table in tables])
        inline_bytes = MAX_INLINE_BYTES if few else 0
        parts += write.store(pa.concat_tables(tables), write.first if few and not by_task else tasks, inline_bytes)
    return tuple(parts)


def run_task(writer: TaskWriter, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the result of this task as Spark takes it; runs on the executors."""
    spare_modules()
    context = TaskContext.get()
    assert context is not None
    result = writer.run(context.partitionId(), batches)
    if result is not None:
        yield pa.record_batch({_RESULT: pa.array([msgspec.msgpack.encode(result)], pa.binary())})


def _packed(batches: list[pa.RecordBatch]) -> bytes:
    # Joined, because each batch of a stream has a header, and a session may ask for batches of one row.
    rows = pa.Table.from_batches(batches).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()
