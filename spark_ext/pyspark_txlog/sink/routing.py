"""To which topic and partition does each row of a DataFrame go?

The topic is the option `topic`, else the row's column `topic`. The partition is the row's column `partition` if it has
a value, else the hash of the key as a Kafka producer computes it. Without a key, all rows of a Spark task go to the
task's number, in a stream plus the micro-batch's, modulo the number of partitions. The key's columns are those of the
option `key`, or the topic's `key.columns`, or `key` in a topic of Kafka's record shape. The columns `topic` and
`partition` route only if the topic itself does not have them; then they are not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import types as spark

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.options import Options
from txlog.engine import Runtime, StagedPart, TransactionMetadata
from txlog.engine.arrow import (
    ColumnNames,
    StagedFiles,
    add_columns,
    check_keys,
    conform,
    key_columns_of,
    partition_table,
    topic_versions,
)
from txlog.engine.schemas import SchemaField, TopicMetadata, check_topic_name
from txlog.errors import InvalidRequestError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.text import count_text

TOPIC, PARTITION = "topic", "partition"
_INTEGERS = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


def check_routing(options: Options, schema: spark.StructType) -> None:
    """Raise InvalidRequestError if neither option nor column names a topic, SchemaMismatchError for columns of the
    wrong type."""
    if table.TOPIC in options:
        return
    if TOPIC not in schema.names:
        raise InvalidRequestError(
            "to which topic? Name it in the option 'topic', or for each row in a column 'topic' of type string"
        )
    if not isinstance(schema[TOPIC].dataType, spark.StringType):
        raise SchemaMismatchError(
            f"column 'topic': expected string, found {schema[TOPIC].dataType.simpleString()}; it names each row's topic"
        )


def merged_route(runtime: Runtime, options: Options, schema: spark.StructType) -> TopicRoute | None:
    """Return the route into the topic that the option `topic` names, after `mergeSchema=true` has added the frame's
    columns that it lacks.

    None without that option. Nothing is added if another column does not fit. Raises InvalidRequestError for
    `mergeSchema` without a topic, SchemaMismatchError, UnknownTopicOrPartitionError.
    """
    name = options[table.TOPIC]
    if name is not None:
        return route_to(runtime, name, schema, options[table.KEY], merge=options[table.MERGE_SCHEMA])
    if options[table.MERGE_SCHEMA]:
        raise InvalidRequestError(
            "option 'mergeSchema': the rows name their topics, and it needs one topic for all rows. "
            "hint: set the option 'topic'"
        )
    return None


def route_to(
    runtime: Runtime, name: str, schema: spark.StructType, key: Sequence[str] | None, *, merge: bool
) -> TopicRoute:
    """Return the route into the newest version of the topic. With `merge`, first add the columns of `schema` that it
    lacks.

    Nothing is added if another column does not fit. Raises SchemaMismatchError, UnknownTopicOrPartitionError.
    """
    topic = runtime.topic(name, 0)
    # `partition` routes the rows, as `TopicRoute` says. It refuses the columns that the log itself sets.
    known = {*(field.name for field in topic.schema), *schemas.METADATA.names, PARTITION}
    missing = [column for column in schema.fields if column.name not in known]
    if merge and missing:
        rest = spark.StructType([column for column in schema.fields if column not in missing])
        TopicRoute(runtime, rest, topic, key)
        nullable = spark.StructType([spark.StructField(each.name, each.dataType) for each in missing])
        topic = add_columns(runtime, topic, schemas.to_fields(nullable, f"topic {name!r}: mergeSchema"))
    return TopicRoute(runtime, schema, topic, key)


def check_columns_kept(
    runtime: Runtime,
    parts: Sequence[StagedPart],
    columns: Sequence[str],
    names: ColumnNames,
    begun: Mapping[str, int] | None = None,
) -> None:
    """Raise SchemaMismatchError if a name in `columns` meant different fields for the rows of `parts`.

    `begun` has the version of each topic's columns with which the query began; None for a batch write. Tasks find the
    topics of their rows by themselves, at different times. Costs no request if the versions are the same.
    """
    used: dict[str, set[int]] = {}
    for part in parts:
        used.setdefault(part.topic, set()).add(part.schema_id)
    for name, numbers in used.items():
        # A topic that did not exist then keeps the columns that it was created with.
        seen = numbers if begun is None else {*numbers, begun.get(name, 0)}
        if len(seen) > 1:
            for version in topic_versions(runtime, name):
                if min(seen) <= version.number <= max(seen):
                    names.check(version, columns)


class TopicRoute:
    """Routes the rows of one frame into one topic; the constructor checks that they fit."""

    def __init__(
        self,
        runtime: Runtime,
        schema: spark.StructType,
        topic: TopicMetadata,
        key: Sequence[str] | None,
        *,
        by_topic: bool = False,
    ) -> None:
        """`key` are the key columns of the call, if it names them; `by_topic` is whether a column names each row's
        topic.

        Raises SchemaMismatchError with the column that does not fit the topic.
        """
        columns = {field.name for field in topic.schema}
        routing = {TOPIC} if by_topic else set()
        self.topic = topic
        self.by_partition = PARTITION in schema.names and PARTITION not in columns
        if self.by_partition:
            routing.add(PARTITION)
            if not isinstance(schema[PARTITION].dataType, _INTEGERS):
                raise SchemaMismatchError(
                    f"topic {topic.topic!r}: column 'partition': expected an integer, found "
                    f"{schema[PARTITION].dataType.simpleString()}; it chooses each row's partition"
                )
        self.narrowed = {
            column.name: field
            for column in schema.fields
            for field in topic.schema
            if field.name == column.name and schemas.needs_range_check(column.dataType, field)
        }
        """Columns whose values must be checked, because the topic's integers are narrower than the frame's."""
        self.columns = [name for name in schema.names if name in columns or name not in routing]
        stored = spark.StructType([field for field in schema.fields if field.name in self.columns])
        schemas.check_frame(stored, topic.schema, topic.topic)
        config = runtime.settings.topic_config(topic)
        self.compacted_by = config.key_columns if "compact" in config.cleanup_policy else ()
        self.key = key_columns_of(runtime.settings, topic, key)
        if key is not None:
            missing = next((name for name in self.key if name not in schema.names), None)
            if missing is not None:
                raise SchemaMismatchError(f"topic {topic.topic!r}: key column {missing!r} is not in the DataFrame")

    @property
    def needs_task(self) -> bool:
        """Whether a row's partition may depend on its task: there are several partitions, and a row may have no key."""
        required = {field.name for field in self.topic.schema if not field.nullable}
        return self.topic.partitions > 1 and required.isdisjoint(self.key)

    def take(self, rows: pa.Table, task: int | NDArray[np.int64]) -> tuple[pa.Table, NDArray[np.int32]]:
        """Return the rows with exactly the topic's schema, and the partition of each; `task` (of all rows, or of each)
        decides for rows without a key.

        Raises SchemaMismatchError for a null in a column that is not nullable, UnknownTopicOrPartitionError for a
        partition that does not exist.
        """
        stored = conform(self._in_range(rows).select(self.columns), self.topic.schema, topic=self.topic.topic)
        if self.compacted_by:
            check_keys(stored, self.topic, self.compacted_by)
        found = partition_table(stored, self.key, self.topic.partitions)
        if self.by_partition:
            given = rows.column(PARTITION).cast(pa.int64())
            chosen = given.fill_null(pa.scalar(-1, pa.int64())).to_numpy()
            present = given.is_valid().to_numpy()
            outside = present & ((chosen < 0) | (chosen >= self.topic.partitions))
            if outside.any():
                raise UnknownTopicOrPartitionError(
                    f"topic {self.topic.topic!r} has no partition {int(chosen[outside][0])} (column 'partition'): it "
                    f"has {self.topic.partitions}, numbered 0 to {self.topic.partitions - 1}"
                )
            found = np.where(present, chosen, found).astype(np.int32)
        return stored, np.where(found < 0, task % self.topic.partitions, found).astype(np.int32)

    def _in_range(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the topic's integers.

        Raises SchemaMismatchError with a value that does not fit, and its key.
        """
        for name, field in self.narrowed.items():
            values: Any = rows.column(name)
            low, high = (pa.scalar(each, values.type) for each in schemas.INTEGER_RANGES[field.type])
            outside: Any = pc.or_(pc.less(values, low), pc.greater(values, high))
            bad = pc.indices_nonzero(outside.fill_null(False))
            if len(bad):
                row = bad[0].as_py()
                shown = [f"{key}={rows.column(key)[row].as_py()}" for key in self.key if key in rows.column_names]
                raise SchemaMismatchError(self.out_of_range(field, str(values[row].as_py()), ", ".join(shown)))
            at = rows.column_names.index(name)
            rows = rows.set_column(at, name, values.cast(field.type))
        return rows

    def out_of_range(self, field: SchemaField, value: str, key: str) -> str:
        """Return the error text for a value that a column cannot hold; `key` is that of the row, if it has one."""
        low, high = schemas.INTEGER_RANGES[field.type]
        row = f", in the row with the key {key}" if key else ""
        return (
            f"topic {self.topic.topic!r}: column {field.name!r} is {field.type} ({low} to {high}), "
            f"and a value is {value}{row}"
        )


def write_parts(
    runtime: Runtime,
    options: Options,
    schema: spark.StructType,
    txn: TransactionMetadata,
    task: int,
    batches: Iterable[pa.RecordBatch],
    begun: TopicMetadata | None = None,
) -> tuple[StagedPart, ...]:
    """Write the rows of one task attempt to files of the transaction `txn`. Rows without a key go to partition `task`,
    modulo the number of partitions.

    `begun` is the topic of the option, as it was when the write began, so that all tasks mean the same columns. Raises
    SchemaMismatchError, UnknownTopicOrPartitionError, InvalidTopicError, StorageError.
    """
    topic, key = options[table.TOPIC], options[table.KEY]
    files = StagedFiles(runtime, txn, compression=options[table.COMPRESSION_TYPE])
    routes: dict[str, TopicRoute] = {}
    for batch in batches:
        whole = pa.Table.from_batches([batch])
        for name, rows in _by_topic(whole) if topic is None else [(topic, whole)]:
            route = routes.get(name)
            if route is None:
                found = begun or runtime.topic(check_topic_name(name))
                route = routes[name] = TopicRoute(runtime, schema, found, key, by_topic=topic is None)
            files.add(route.topic, *route.take(rows, task))
    return files.finish()


def _by_topic(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    topics = rows.column(TOPIC)
    if topics.null_count:
        raise SchemaMismatchError(
            f"column 'topic' is null in {count_text(topics.null_count, 'row')}; it names each row's topic, "
            "unless the option 'topic' does"
        )
    for name in pc.unique(topics):
        yield str(name), rows.filter(pc.equal(topics, name))
