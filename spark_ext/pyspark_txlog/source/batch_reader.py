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
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options
from pyspark_txlog.source.options import ReadOptions, reads_latest, settled
from pyspark_txlog.source.subscription import read_ranges, subscribed_partitions, subscribed_topics
from pyspark_txlog.worker import spare_modules
from txlog import engine
from txlog.engine import ReadPlan, Runtime, TopicPartition
from txlog.engine.conditions import Predicate, bind
from txlog.engine.schemas import TopicMetadata
from txlog.errors import InvalidRequestError
from txlog.logs import log

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.arrow import LatestTask

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

    tasks: Sequence[engine.ReadTask | LatestTask] = input_of(partition) or ()
    on_lost = None if options[table.FAIL_ON_DATA_LOSS] else _say_lost

    def read(task: engine.ReadTask) -> Iterator[pa.RecordBatch]:
        return engine.read_task(task, on_lost=on_lost)

    parts = (read(task) if isinstance(task, engine.ReadTask) else task.read(read) for task in tasks)
    return spark_batches((batch for part in parts for batch in part), schema)


def input_of(partition: InputPartition | None) -> Any:
    """Return what one task reads. For a read without input partitions Spark makes one task itself: None."""
    # Spark 4.0 then gives the task no input partition at all.
    return None if partition is None else partition.value


@plain_errors
def schema_and_topics(options: Options) -> tuple[StructType, dict[str, TopicMetadata]]:
    """Return the columns of a read if the user gave no schema, and the topics that they come from."""
    with closing(options.open()) as runtime:
        # Report wrong options at load(), not at the first use of the frame.
        settled(options, runtime.settings)
        topics = subscribed_topics(runtime, options)
    for topic in topics.values():
        condition_of(options, topic)
    return schemas.select({name: topic.schema for name, topic in topics.items()}, options[table.COLUMNS]), topics


def plan_input(
    runtime: Runtime, options: ReadOptions, schema: StructType, known: Mapping[str, TopicMetadata] | None = None
) -> Sequence[tuple[engine.ReadTask | LatestTask, ...]]:
    """Return what each input partition reads; none of them is empty.

    `known` are the topics as they were when `schema` was made from them. Names in `schema` and in `where` are theirs,
    also if columns were renamed since. None: the user gave `schema`, and its names are the newest.
    """
    topics = subscribed_topics(runtime, options)
    known = {**topics, **(known or {})}
    check_schema(schema, {name: engine.columns_as_known(topic, known[name]) for name, topic in topics.items()}, options)
    if reads_latest(options):
        return [(task,) for task in _latest_tasks(runtime, options, topics, schema.names, known)]
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
    for plan in plans:
        topic = _topic_of(runtime, plan, known)
        condition = condition_of(options, topic)
        if condition is not None and reads_latest(options):
            # A row that the rest of the condition excludes may be the newest of its key.
            condition = condition.on(key_columns(runtime, topic))
        wanted = dict.fromkeys([*names, *(() if condition is None else condition.columns)])
        own, metadata = schemas.divided(list(wanted))
        (task,) = engine.tasks(runtime, [plan], columns=own, metadata_columns=metadata, fields=topic.schema)
        made.append(task.where(condition))
    return made


def condition_of(options: Options, topic: TopicMetadata) -> Predicate | None:
    """Return the option `where` for the columns of `topic`. Raises InvalidRequestError, SchemaMismatchError."""
    text = options[table.WHERE]
    return None if text is None else bind(text, topic.schema, topic.topic)


def key_columns(runtime: Runtime, topic: TopicMetadata) -> tuple[str, ...]:
    """Return the key of a topic whose newest rows are read. Raises InvalidRequestError if it has none."""
    # A local import: it loads numpy and pyarrow.
    from txlog.engine.arrow import keys_of_latest

    return keys_of_latest(runtime.settings, topic)


def _latest_tasks(
    runtime: Runtime,
    options: ReadOptions,
    topics: Mapping[str, TopicMetadata],
    names: Sequence[str],
    known: Mapping[str, TopicMetadata],
) -> Iterator[LatestTask]:
    """Yield a task for each partition that has rows."""
    from txlog.engine.arrow import latest_tasks

    for plan in plan_topics(runtime, options, topics):
        topic = _topic_of(runtime, plan, known)
        key_columns(runtime, topic)
        if plan.pieces:
            yield from latest_tasks(runtime, topic, [plan], names, condition_of(options, topic))


def _topic_of(runtime: Runtime, plan: ReadPlan, known: Mapping[str, TopicMetadata]) -> TopicMetadata:
    return engine.columns_as_known(engine.topic_for(runtime, plan), known.get(plan.topic_partition.topic))


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
