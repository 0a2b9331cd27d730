"""How does Spark read topics, as a batch?

Spark plans in a Python process beside the driver: `partitions` resolves offsets, plans every topic partition on its
fresh tail, and packs the pieces into input partitions; no file of rows is opened. The executors' processes then call
`read`, which needs nothing but the input partition. What is read is fixed at planning: a DataFrame that is used twice
is planned twice, as with Spark's Kafka source, unless it is cached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog import packing, schemas
from pyspark_txlog.messages import plain_errors, say
from pyspark_txlog.options import ReadOptions, parse_read_options
from txlog.client import reading
from txlog.client.offsets import check_exist, resolve
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.core.fetch_plan import FilePiece, Piece
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata
from txlog.errors import (
    InvalidRequestError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from txlog.storage.open import open_object_store

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TxlogReader", "open_runtime", "parse_read_options", "plan_input", "schema_of"]


class TxlogReader(DataSourceReader):
    """A batch read. Driver side: `partitions`. Executor side: `read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """The read as runs of pieces; raises OffsetOutOfRangeError, UnknownTopicOrPartitionError, SchemaMismatchError."""
        with closing(self._open()) as runtime:
            return [InputPartition(tasks) for tasks in plan_input(runtime, self._options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one input partition, in the order of offsets within each topic partition."""
        # Here and not at the top: planning goes without pyarrow.
        from pyspark_txlog.arrow import spark_batches

        tasks: Sequence[reading.ReadTask] = partition.value or ()
        return spark_batches((batch for task in tasks for batch in _read(task)), self._schema)

    def _open(self) -> Runtime:
        return open_runtime(self._options)


def open_runtime(options: ReadOptions) -> Runtime:
    """The store that the options name."""
    return Runtime.open(options.store.path, storage_options=options.store.storage)


@plain_errors
def schema_of(options: ReadOptions) -> StructType:
    """The columns of a read for which the user gave no schema."""
    with closing(open_runtime(options)) as runtime:
        topics = _topics(runtime, options)
    return schemas.select({name: topic.schema for name, topic in topics.items()}, options.columns)


def plan_input(runtime: Runtime, options: ReadOptions, schema: StructType) -> list[tuple[reading.ReadTask, ...]]:
    """What each input partition reads; none of them is empty."""
    topics = _topics(runtime, options)
    if options.columns is not None and schemas.ALL_COLUMNS not in options.columns:
        _check_one_choice(options.columns, schema)
    schemas.check_user_schema(schema, {name: topic.schema for name, topic in topics.items()})
    session = reading.read_session(runtime)
    ranges = _ranges(session, _partitions(session, options, topics), options)
    plans = reading.plan_reads(session, ranges, options.isolation_level)
    tasks = reading.tasks(
        runtime,
        list(plans.values()),
        columns=[name for name in schema.names if name not in schemas.METADATA.names],
        metadata_columns=[name for name in schema.names if name in schemas.METADATA.names],
        isolation=options.isolation_level,
    )
    by_partition = {task.topic_partition: task for task in tasks}
    pieces = [_light(piece) for task in tasks for piece in task.pieces]
    return [_input(run, by_partition) for run in packing.pack(pieces, options.min_partitions)]


def _check_one_choice(columns: Sequence[str], schema: StructType) -> None:
    if list(columns) != schema.names:
        raise InvalidRequestError(
            f"the option 'columns' asks for {', '.join(columns)}, and the schema of this read for {', '.join(schema.names)}; give one of them"
        )


def _topics(runtime: Runtime, options: ReadOptions) -> dict[str, TopicMetadata]:
    if options.mode != "subscribePattern":
        return {name: runtime.topic(name, 0) for name in options.topics}
    pattern = re.compile(options.pattern)
    known = runtime.list_topics()
    found = {topic.topic: topic for topic in known if pattern.fullmatch(topic.topic)}
    if not found:
        names = ", ".join(topic.topic for topic in known) or "no topics at all"
        raise UnknownTopicOrPartitionError(
            f"subscribePattern: no topic of {runtime.where} is matched by {options.pattern!r}; there are {names}"
        )
    return found


def _partitions(session: Session, options: ReadOptions, topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    if options.partitions is not None:
        assigned = [TopicPartition(name, number) for name, numbers in options.partitions.items() for number in numbers]
        check_exist(session, assigned)
        return assigned
    return [TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partitions)]


def _ranges(
    session: Session, partitions: list[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, tuple[int, int | None]]:
    """Where to begin and to end in each partition; None is the end that the isolation level gives."""
    try:
        return _strict_ranges(session, partitions, options, clamp=False)
    except OffsetOutOfRangeError as error:
        if options.fail_on_data_loss:
            raise
        say(f"failOnDataLoss=false, reading what there is. {error}")
        return _strict_ranges(session, partitions, options, clamp=True)


def _strict_ranges(
    session: Session, partitions: list[TopicPartition], options: ReadOptions, *, clamp: bool
) -> dict[TopicPartition, tuple[int, int | None]]:
    isolation = options.isolation_level
    try:
        start = resolve(
            session,
            partitions,
            options.start,
            isolation,
            group=options.group_id,
            missing=options.missing_start,
            clamp=clamp,
        )
    except NoOffsetForPartitionError as error:
        option = "auto.offset.reset" if options.start.kind == "committed" else "startingOffsetsByTimestampStrategy"
        raise NoOffsetForPartitionError(f"{error}; the option '{option}' does") from error
    if options.end.kind == "latest":
        # No second look at the tails: the plan ends where the views that resolved the start do.
        return {tp: (start[tp], None) for tp in partitions}
    end = resolve(session, partitions, options.end, isolation, missing="latest", clamp=clamp)
    return {tp: (start[tp], end[tp]) for tp in partitions}


def _input(run: tuple[Piece, ...], tasks: Mapping[TopicPartition, reading.ReadTask]) -> tuple[reading.ReadTask, ...]:
    made: list[reading.ReadTask] = []
    for piece in run:
        first, end = packing.offsets_of(piece)
        again = not packing.has_gaps(piece)
        last = made[-1] if made else None
        if last is not None and last.topic_partition == piece.topic_partition:
            made[-1] = replace(last, end=end, pieces=(*last.pieces, piece), relist=last.relist and again)
        else:
            task = tasks[piece.topic_partition]
            made.append(replace(task, start=first, end=end, pieces=(piece,), relist=again))
    return tuple(made)


def _light(piece: Piece) -> Piece:
    """Without statistics, which planning has used and the executors do not need."""
    if isinstance(piece, FilePiece):
        return replace(piece, file=msgspec.structs.replace(piece.file, statistics={}))
    return piece


def _read(task: reading.ReadTask) -> Iterator[pa.RecordBatch]:
    return reading.read_task(task, open_object_store(task.url, task.storage_options))
