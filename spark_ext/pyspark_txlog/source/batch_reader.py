"""How does Spark read topics as a batch?

Spark plans in a Python process beside the driver. There `partitions` resolves offsets, plans every topic partition on
its fresh tail, and packs the pieces into input partitions, without opening a file of rows. The executors' processes
then call `read`, which needs only the input partition. Spark plans once, at the first use of a DataFrame or view, and
keeps the plan. Only a new `load()` sees later rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options
from pyspark_txlog.source.options import ReadOptions, settled
from pyspark_txlog.source.subscription import read_ranges, subscribed_partitions, subscribed_topics
from pyspark_txlog.worker import spare_modules
from txlog import engine
from txlog.engine import ReadPlan, Runtime, TopicPartition
from txlog.engine.conditions import bind
from txlog.engine.schemas import TopicMetadata
from txlog.errors import InvalidRequestError
from txlog.logs import log

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


class TxlogReader(DataSourceReader):
    """A batch read. Driver side: `partitions`. Executor side: `read`."""

    def __init__(self, options: Options, schema: StructType, known: Mapping[str, TopicMetadata] | None = None) -> None:
        self._options = options
        self._schema = schema
        self._known = known

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Return the read as runs of pieces.

        Raises OffsetOutOfRangeError, UnknownTopicOrPartitionError, SchemaMismatchError.
        """
        with closing(self._options.open()) as runtime:
            options = settled(self._options, runtime.settings)
            return [InputPartition(tasks) for tasks in plan_input(runtime, options, self._schema, self._known)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition, in the order of offsets within each topic partition."""
        return read_input(partition, self._schema, self._options)


def read_input(partition: InputPartition, schema: StructType, options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one input partition, on an executor.

    Raises OffsetOutOfRangeError if retention overtook the read.
    """
    spare_modules()
    # Imported here because planning does not need pyarrow.
    from pyspark_txlog.arrow import spark_batches

    tasks: Sequence[engine.ReadTask] = partition.value or ()
    on_lost = None if options[table.FAIL_ON_DATA_LOSS] else _say_lost
    batches = (batch for task in tasks for batch in engine.read_task(task, on_lost=on_lost))
    return spark_batches(batches, schema)


@plain_errors
def schema_and_topics(options: Options) -> tuple[StructType, dict[str, TopicMetadata]]:
    """Return the columns of a read if the user gave no schema, and the topics that they come from."""
    with closing(options.open()) as runtime:
        # Report wrong options at load(), not at the first use of the frame.
        settled(options, runtime.settings)
        topics = subscribed_topics(runtime, options)
    if (condition := options[table.WHERE]) is not None:
        for name, topic in topics.items():
            bind(condition, topic.schema, name)
    return schemas.select({name: topic.schema for name, topic in topics.items()}, options[table.COLUMNS]), topics


def plan_input(
    runtime: Runtime, options: ReadOptions, schema: StructType, known: Mapping[str, TopicMetadata] | None = None
) -> list[tuple[engine.ReadTask, ...]]:
    """Return what each input partition reads; none of them is empty.

    `known` are the topics as they were when `schema` was made from them. Names in `schema` and in `where` are theirs,
    also if columns were renamed since. None: the user gave `schema`, and its names are the newest.
    """
    topics = subscribed_topics(runtime, options)
    known = {**topics, **(known or {})}
    check_schema(schema, {name: engine.columns_as_known(topic, known[name]) for name, topic in topics.items()}, options)
    tasks = topic_tasks(runtime, options, topics, dict.fromkeys(topics, schema), known)
    whole = [replace(task, last_end=task.end) for own in tasks.values() for task in own]
    return engine.pack_tasks(whole, options[table.MIN_PARTITIONS])


def topic_tasks(
    runtime: Runtime,
    options: ReadOptions,
    topics: Mapping[str, TopicMetadata],
    wanted: Mapping[str, StructType],
    known: Mapping[str, TopicMetadata],
) -> dict[str, list[engine.ReadTask]]:
    """Return the tasks of each topic that read the columns `wanted` of it, planned together on fresh tails.

    `known` as in `read_tasks`. Raises as `plan_topics` does.
    """
    plans = plan_topics(runtime, options, topics)
    made = {}
    for name in topics:
        own = [plan for plan in plans if plan.topic_partition.topic == name]
        made[name] = read_tasks(runtime, own, wanted[name].names, options, known)
    return made


def plan_topics(runtime: Runtime, options: ReadOptions, topics: Mapping[str, TopicMetadata]) -> list[ReadPlan]:
    """Return the plan of each partition of `topics` to read, on its fresh tail.

    Raises OffsetOutOfRangeError, NoOffsetForPartitionError, UnknownTopicOrPartitionError.
    """
    session = engine.read_session(runtime)
    partitions = subscribed_partitions(session, options, topics)
    ranges = read_ranges(session, partitions, options)
    return list(engine.plan_reads(session, ranges, options.isolation_level).values())


def read_tasks(
    runtime: Runtime,
    plans: Iterable[ReadPlan],
    names: Sequence[str],
    options: ReadOptions,
    known: Mapping[str, TopicMetadata],
) -> list[engine.ReadTask]:
    """Return a task for each plan: the columns `names` and those of `where`, and the pieces that may contain matching
    rows.

    `known` are the topics whose columns these names mean.
    """
    made = []
    condition = options[table.WHERE]
    for plan in plans:
        predicate = None
        wanted = list(names)
        topic = engine.columns_as_known(engine.topic_for(runtime, plan), known.get(plan.topic_partition.topic))
        if condition is not None:
            predicate = bind(condition, topic.schema, topic.topic)
            wanted += [name for name in predicate.columns if name not in names]
        own, metadata = schemas.divided(wanted)
        (task,) = engine.tasks(runtime, [plan], columns=own, metadata_columns=metadata, fields=topic.schema)
        if predicate is not None:
            pieces = tuple(piece for piece in task.pieces if predicate.may_match(piece))
            task = replace(task, keep=predicate, pieces=pieces)
        made.append(task)
    return made


def check_schema(schema: StructType, topics: Mapping[str, TopicMetadata], options: Options) -> None:
    """Raise SchemaMismatchError unless each topic has the columns of `schema`, InvalidRequestError if `columns` names
    others."""
    columns = options[table.COLUMNS]
    if columns is not None and schemas.ALL_COLUMNS not in columns and list(columns) != schema.names:
        raise InvalidRequestError(
            f"the option 'columns' asks for {', '.join(columns)}, and the schema of this read for "
            f"{', '.join(schema.names)}; give only one of them"
        )
    schemas.check_user_schema(schema, {name: topic.schema for name, topic in topics.items()})


def _say_lost(tp: TopicPartition, start: int, end: int) -> None:
    text = (
        f"failOnDataLoss=false, {tp}: {end - start} offsets, {start} to {end}, were removed during the read; the read "
        f"continues at {end}"
    )
    log(_LOG, logging.WARNING, "data_loss", text, topic_partition=str(tp), offset=start, count=end - start)
