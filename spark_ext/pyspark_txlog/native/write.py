"""How do the rows of a DataFrame become files that a transaction can name, with Spark's own Parquet writer?

There are three ways with one result: a part for each partition that got rows, which is not published yet.

    driver      A small frame is fetched as Arrow, without a Spark job of its own and in a third of the time. Rows of
                less than `inline.max.bytes` for a partition go into the commit itself; the rest becomes a file for each
                partition.
    executors   Spark's Parquet writer fills a folder of the transaction, without a shuffle. Rows that have a partition
    of
                their own need `partitionBy("_partition")`. Otherwise each task has one partition: Spark writes all
                files to one folder, and `task_files` moves them if a move is cheap. Then txlog reads the footers of the
                files that Spark's committer left, and names them in place.
    one job     If Spark's plan does not show the size, each task decides (`one_job`).

Each way runs the frame's plan once.

If a task failed, was retried or ran twice, Spark's own committer keeps at most one of its files. A failed job leaves
its folder, and no later job uses that folder. The job runs in its own session, so settings of the user's session
do not change the meaning of the files (timestamps as INT96, another calendar, dynamic overwriting).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import (
    Column,
    DataFrame,
    functions as F,  # noqa: N812  Spark's own habit
    types as spark,
)

from pyspark_txlog import schemas
from pyspark_txlog.native.locations import spark_folder
from pyspark_txlog.native.one_job import REFUSALS, FrameWrite, most_bytes, most_result, write_once
from pyspark_txlog.native.task_files import can_move, move_to_partitions, partition_folder
from pyspark_txlog.sink.micro_batch import task_of_batch
from pyspark_txlog.sink.routing import PARTITION, TopicRoute
from pyspark_txlog.source.predicate import named
from pyspark_txlog.spark_ui import described
from txlog.engine import Runtime, StagedPart, TransactionMetadata
from txlog.engine.arrow import NO_KEY, partition_table, read_staged_folder, staged_folder
from txlog.engine.schemas import PARTITION_COLUMN, SchemaField
from txlog.errors import InvalidRequestError, SchemaMismatchError, TxlogError, UnknownTopicOrPartitionError
from txlog.text import any_text

Road: TypeAlias = Literal["auto", "driver", "executors"]
ROADS: tuple[Road, ...] = ("auto", "driver", "executors")

SMALL_ROWS = 131_072
"""The driver writes frames of up to this many rows, as many as a row group has, if they are few bytes."""
CONNECT_ROWS = 10_000
"""Over Spark Connect it writes frames of up to this many by default, because nothing bounds their bytes."""
LARGE_BYTES = 64 * 2**20
"""A frame of all rows of files of this size is not small, however many rows that is."""

_FIELD_ID = "parquet.field.id"
"""Spark's name, in a column's metadata, for Parquet's field id."""
_REFUSED = "txlog refuses a row: "
"""How the error message of a task begins if no topic can take one of its rows."""
_CODECS = {"none": "uncompressed", "lz4": "lz4_raw"}
"""Spark's name of a codec, if it differs from Kafka's."""

_FIXED = (spark.NumericType, spark.BooleanType, spark.DateType, spark.TimestampType, spark.TimestampNTZType)
_WIDEST = 17
"""Bytes of a decimal and of its bit that says whether it is null. Other types of a fixed size are not wider."""

_PASSING = {
    "Repartition", "RepartitionByExpression", "Filter", "Sort", "GlobalLimit", "LocalLimit", "SubqueryAlias", "Project",
}  # fmt: skip
"""Nodes of a plan that add no row, and no value if their columns are those of the node below."""

_Test: TypeAlias = Callable[[Column, SchemaField, spark.DataType, bool], Column | None]
"""(value, the topic's field, Spark's type of it, whether that may be null) -> whether the topic refuses it."""

_SESSION_SETTINGS = {
    # INT96 has no statistics and no unit; milliseconds would lose precision.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Columns are found by id (PROTOCOL.md, "Parquet files").
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Keep days and instants before 1582 unchanged, without conversion to another calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.sources.partitionOverwriteMode": "static",
    # A task sorts its rows by partition only from its second partition on. Without a key it has one partition.
    "spark.sql.maxConcurrentOutputFileWriters": "1",
}
"""Committers are not included: a cluster's own committer for its object store also commits tasks and jobs correctly."""
_WRITER_SETTINGS = {
    # Version 2 moves files as each task ends, so files of an attempt that fails then would stay.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.page.write-checksum.enabled": "true",
}


def is_over_connect(frame: DataFrame) -> bool:
    """Whether the frame's session is a client of Spark Connect: without a JVM beside this program, and with the
    server's settings."""
    return not hasattr(frame, "_jdf")


def check_road(road: str, small_rows: int | None) -> None:
    """Raise InvalidRequestError if `road` or `small_rows` is not valid."""
    if road not in ROADS:
        raise InvalidRequestError(f"road={any_text(road)}: expected one of {', '.join(ROADS)}")
    if small_rows is None:
        return
    if isinstance(small_rows, bool) or not isinstance(small_rows, int) or small_rows < 0:
        raise InvalidRequestError(f"small_rows={small_rows!r}: expected a number of rows from 0")


def write_frame(
    runtime: Runtime,
    txn: TransactionMetadata,
    frame: DataFrame,
    route: TopicRoute,
    *,
    road: Road = "auto",
    small_rows: int | None = None,
    compression: str | None = None,
    by_task: bool = False,
    batch: int | None = None,
) -> tuple[StagedPart, ...]:
    """Write the frame's rows to files of `txn`, or inline if there are few. No log contains them before the commit.

    With `by_task`, rows without a key go to the partitions of their tasks, also if the driver writes them. Otherwise
    the driver writes them to one partition, and a frame that is not a micro-batch begins at a random partition. `batch`
    is the number of the micro-batch, if the frame is one. `small_rows` None: the default of the session's kind.

    Raises SchemaMismatchError for a row that the topic cannot take, UnknownTopicOrPartitionError for a row whose column
    `partition` names no partition, StorageError, and what Spark raises for a failed job. Raises InvalidRequestError
    over Spark Connect if the frame is too large for the driver.
    """
    session = frame.sparkSession
    what = f"txlog: rows of {route.topic.topic!r} for transactional.id {txn.transactional_id!r}"
    first = _first_task(runtime, batch, by_task=by_task)
    write = FrameWrite(runtime=runtime, txn=txn, route=route, compression=compression, first=first)
    if small_rows is None:
        small_rows = CONNECT_ROWS if is_over_connect(frame) else SMALL_ROWS
    if road == "auto":
        road = _known_road(frame, small_rows)
        # Spark would number each task of local rows 0, because it computes their columns while it optimizes the plan.
        if road == "driver" and by_task and route.needs_task and _optimized(frame).nodeName() == "LocalRelation":
            road = "auto"
    if road == "executors" and (is_observed(frame) or not _can_hash(route)):
        road, small_rows = "auto", 0
    if road == "auto" and not is_over_connect(frame):
        with described(session, f"{what}, by the driver if they are few"):
            return write_once(write, frame, _fetched, small_rows=small_rows, by_task=by_task)
    if road != "executors":
        by_task = by_task and route.needs_task
        with described(session, what):
            numbered = frame
            # Spark needs longer for a plan with numbers. The frame's own plan is also the one that is fetched.
            if by_task and (road == "auto" or not _has_one_task(frame)):
                # `select` and `alias` would send 24 calls into Java, and this sends 4.
                numbered = frame.withColumn(PARTITION_COLUMN, F.spark_partition_id())
            rows = _fetched(numbered if road == "driver" else numbered.limit(small_rows + 1))
        if road == "driver" or rows.num_rows <= small_rows:
            # Without numbers of tasks, one partition takes all rows without a key.
            task: int | NDArray[np.int64] = first
            if PARTITION_COLUMN in rows.column_names:
                task = rows.column(PARTITION_COLUMN).to_numpy().astype(np.int64) + first
            return write.store(rows, task)
    if is_over_connect(frame):
        raise InvalidRequestError(
            f"topic {route.topic.topic!r}: over Spark Connect, Spark's own writer loses the column ids that readers "
            'need. hint: use df.write.format("txlog") for one transaction, or road="driver", which fetches the rows'
        )
    with described(session, f"{what}, by Spark's own writer"):
        return _write_there(write, frame)


def _first_task(runtime: Runtime, batch: int | None, *, by_task: bool) -> int:
    """Return the number that is added to those of the tasks: that of the micro-batch. Other frames have a random one,
    because many of them have one task, and its rows must not always fill partition 0."""
    if batch is not None:
        return task_of_batch(0, batch)
    return 0 if by_task else int(runtime.ids.new_id()[-8:], 16)


def _has_one_task(frame: DataFrame) -> bool:
    """Return whether Spark knows without a job that one task has all rows of the frame."""
    return bool(frame._jdf.queryExecution().executedPlan().outputPartitioning().numPartitions() == 1)


def _optimized(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().optimizedPlan()


def _known_road(frame: DataFrame, small_rows: int) -> Road:
    """Return the road if Spark knows without a job whether the frame is small; else "auto"."""
    if is_over_connect(frame):
        return "auto"
    plan = _optimized(frame)
    most = plan.maxRows()
    if most.isDefined() and most.get() <= small_rows:
        return "driver" if _are_narrow(frame, most.get()) or _is_local(frame) else "auto"
    # A projection has as many rows as what it projects.
    while plan.nodeName() == "Project":
        plan = plan.child()
    if plan.nodeName() == "InMemoryRelation" and plan.cacheBuilder().isCachedColumnBuffersLoaded():
        count = plan.stats().rowCount().get()
        return "executors" if count > small_rows else "driver" if _are_narrow(frame, count) else "auto"
    return "executors" if _file_bytes(plan) >= LARGE_BYTES else "auto"


def is_observed(frame: DataFrame) -> bool:
    """Return whether the plan has an `Observation`. It would wait for ever for a job of Spark's writer, because that
    runs in another session."""
    return not is_over_connect(frame) and "CollectMetrics" in frame._jdf.queryExecution().analyzed().toString()


def _can_hash(route: TopicRoute) -> bool:
    """Return whether Spark can hash key columns for its own writer. Spark 4.0 has no functions over Arrow columns."""
    return hasattr(F, "arrow_udf") or not any(name in route.columns for name in route.key)


def _are_narrow(frame: DataFrame, rows: int) -> bool:
    """Return whether so many rows of the frame are small because of their types, whatever the values are."""
    widths = [_width(field.dataType) for field in frame.schema]
    return None not in widths and rows * sum(filter(None, widths)) <= most_bytes(frame)


def _is_local(frame: DataFrame) -> bool:
    """Return whether the driver has all values of the plan already, and a job may return them."""
    # Spark computes new columns of local rows while it optimizes the plan, and then does not show where they come from.
    plan = frame._jdf.queryExecution().analyzed()
    while plan.nodeName() in _PASSING:
        above, plan = plan, plan.child()
        if above.output().size() > plan.output().size() or not above.outputSet().subsetOf(plan.outputSet()):
            return False
    # Spark makes a job's input of more bytes than this.
    most = int(frame._jdf.sparkSession().sessionState().conf().arrowLocalRelationThreshold())
    return plan.nodeName() == "LocalRelation" and 2 * most <= (most_result(frame) or 2 * most)


def _width(kind: spark.DataType) -> int | None:
    """Return the most bytes of a value as Arrow stores it; None if that depends on the value."""
    if isinstance(kind, spark.StructType):
        inner = [_width(field.dataType) for field in kind]
        return None if None in inner else 1 + sum(filter(None, inner))
    return _WIDEST if isinstance(kind, _FIXED) else None


def _file_bytes(plan: Any) -> int:
    """Return the size of the listed files that the plan reads without a filter; 0 for another plan."""
    if plan.nodeName() != "LogicalRelation" or plan.relation().getClass().getSimpleName() != "HadoopFsRelation":
        return 0
    files = plan.relation().location()
    # A catalog's index states a huge size if it does not know it.
    return int(files.sizeInBytes()) if files.getClass().getSimpleName() == "InMemoryFileIndex" else 0


# -- the driver's road ------------------------------------------------------------------------------------------------


def _fetched(frame: DataFrame) -> pa.Table:
    if is_over_connect(frame):
        return frame.toArrow()
    # Like toArrow(), but without its cast to the frame's schema. Arrow refuses that cast if a null struct has fields
    # that are not nullable.
    classic: Any = frame
    return pa.Table.from_batches(classic._collect_as_arrow(empty_list_if_zero_records=False))


# -- Spark's road -----------------------------------------------------------------------------------------------------


def _write_there(write: FrameWrite, frame: DataFrame) -> tuple[StagedPart, ...]:
    runtime, txn, route, first = write.runtime, write.txn, write.route, write.first
    topic, codec = route.topic, write.codec
    folder = staged_folder(txn.producer_id, txn.producer_epoch, runtime.ids.new_id())
    url = f"{spark_folder(frame.sparkSession, runtime)}/{topic.topic}/{folder}"
    by_row = _has_partition_by_row(route) or not can_move(url, topic.partitions)
    writer = _in_own_session(_prepared(frame, route, first if by_row else None)).write.mode("append")
    if by_row:
        writer = writer.partitionBy(PARTITION_COLUMN)
    writer = writer.options(**_WRITER_SETTINGS, compression=_CODECS.get(codec, codec))
    try:
        writer.parquet(url if by_row else f"{url}{partition_folder(first % topic.partitions)}")
    except Exception as error:
        refused = _refusal(error)
        if refused is None:
            raise
        raise refused from error
    if not by_row:
        move_to_partitions(frame.sparkSession, url, first, topic.partitions)
    return read_staged_folder(runtime, topic, folder)


def _has_partition_by_row(route: TopicRoute) -> bool:
    """Whether rows of one task may go to several partitions, or be refused because of their partition or key."""
    by_key = route.topic.partitions > 1 and any(name in route.columns for name in route.key)
    return by_key or route.by_partition or bool(route.compacted_by)


def _prepared(frame: DataFrame, route: TopicRoute, first: int | None) -> DataFrame:
    """Return the frame with exactly the topic's columns, types and field ids; a bad row fails its task.

    If `first` is given, `_partition` follows. A task's number plus `first` chooses it for rows without a key.
    """
    topic = route.topic
    fields = [field for field in topic.schema if field.name in route.columns]
    columns: list[Column] = []
    schema = frame.schema
    for field in fields:
        own = schema[field.name]
        column = named(field.name)
        for test, what in (
            (_null, "is not nullable, and a value is null"),
            (_no_utf8, "has a string that is not UTF-8"),
        ):
            bad = _any(test, named(field.name), field, own.dataType, own.nullable)
            if bad is not None:
                refusal = _raise(SchemaMismatchError, f"topic {topic.topic!r}: column {field.name!r} {what}")
                column = F.when(bad, refusal).otherwise(column)
        if field.name in route.narrowed:
            column = _narrowed(route, field, column)
        columns.append(column.alias(field.name))
    partition: list[spark.StructField] = []
    if first is not None:
        columns.append(_partition_of(route, first).alias(PARTITION_COLUMN))
        partition.append(spark.StructField(PARTITION_COLUMN, spark.IntegerType(), True))
    # This casts, and finds fields of structs by name. It must not add the ids: Spark drops those of a struct's fields
    # if it changes a nullable struct, and takes a column that gains only metadata for unchanged.
    typed = frame.select(*columns).to(spark.StructType([*schemas.to_spark(fields).toNullable(), *partition]))
    target = [*map(_target, fields), *partition]
    return typed.select(
        *(named(each.name).cast(each.dataType).alias(each.name, metadata=each.metadata) for each in target)
    )


def _narrowed(route: TopicRoute, field: SchemaField, column: Column) -> Column:
    """Return a column of integers that fails the task for a value that the topic's column cannot hold."""
    low, high = schemas.INTEGER_RANGES[field.type]
    keys = [name for name in route.key if name in route.columns]
    # The message is that of the driver's road, with two values that only the task knows.
    before, between = route.out_of_range(field, "\0", "\0" if keys else "").split("\0")[:2]
    shown = [F.coalesce(named(name).cast("string"), F.lit("None")) for name in keys]
    key = F.concat_ws(", ", *(F.concat(F.lit(f"{name}="), value) for name, value in zip(keys, shown, strict=True)))
    text = F.concat(F.lit(before), named(field.name).cast("string"), F.lit(between), key)
    refusal = F.raise_error(F.concat(F.lit(f"{_REFUSED}SchemaMismatchError: "), text, F.lit(".")))
    return F.when((named(field.name) < low) | (named(field.name) > high), refusal).otherwise(column)


def _target(field: SchemaField) -> spark.StructField:
    """Return the topic's column with its id for Spark's writer. It is nullable, because nulls are refused before."""
    return spark.StructField(field.name, _target_type(field), True, {_FIELD_ID: field.id})


def _target_type(field: SchemaField) -> spark.DataType:
    if field.type == "struct":
        return spark.StructType([_target(child) for child in field.fields])
    if field.type == "list":
        return spark.ArrayType(_target_type(field.fields[0]), True)
    if field.type == "map":
        key, value = map(_target_type, field.fields)
        return spark.MapType(key, value, True)
    return schemas.to_spark([field])[0].dataType


def _null(column: Column, field: SchemaField, kind: spark.DataType, nullable: bool) -> Column | None:
    """Whether it is null and the topic does not allow null; None if its type excludes null."""
    return column.isNull() if nullable and not field.nullable else None


def _no_utf8(column: Column, field: SchemaField, kind: spark.DataType, nullable: bool) -> Column | None:
    """Whether it is a string that is not UTF-8, which a reader would report as damage."""
    if not isinstance(kind, spark.StringType):
        return None
    invalid = ~F.is_valid_utf8(column)
    return column.isNotNull() & invalid if nullable else invalid


def _any(test: _Test, column: Column, field: SchemaField, kind: spark.DataType, nullable: bool) -> Column | None:
    """Whether `test` is true for a value or anything inside it; None if the type excludes that."""
    found = test(column, field, kind, nullable)
    checks = [] if found is None else [found]
    if isinstance(kind, spark.StructType):
        for child in field.fields:
            own = kind[child.name]
            inner = _any(test, column.getField(child.name), child, own.dataType, own.nullable)
            if inner is not None:
                checks.append(column.isNotNull() & inner)
    elif isinstance(kind, spark.ArrayType):
        checks += _elements(test, column, field.fields[0], kind.elementType, kind.containsNull)
    elif isinstance(kind, spark.MapType):
        # A map's keys are never null in Spark, but their fields may be.
        checks += _elements(test, F.map_keys(column), field.fields[0], kind.keyType, False)
        checks += _elements(test, F.map_values(column), field.fields[1], kind.valueType, kind.valueContainsNull)
    return reduce(or_, checks) if checks else None


def _elements(test: _Test, values: Column, field: SchemaField, kind: spark.DataType, nullable: bool) -> list[Column]:
    if _any(test, F.lit(None), field, kind, nullable) is None:
        return []

    def bad(element: Column) -> Column:
        found = _any(test, element, field, kind, nullable)
        # The call with a stand-in above has already returned a check.
        assert found is not None
        return found

    return [values.isNotNull() & F.exists(values, bad)]


def _partition_of(route: TopicRoute, first: int) -> Column:
    """Return the row's own column `partition`, else the hash of its key, else the task's number plus `first`, as in
    `pyspark_txlog.sink.routing`."""
    topic = route.topic
    candidates: list[Column] = []
    if route.by_partition:
        given = named(PARTITION).cast("bigint")
        message = (
            f"topic {topic.topic!r} has no such partition (column 'partition'): it has {topic.partitions}, numbered 0 "
            f"to {topic.partitions - 1}"
        )
        outside = (given < 0) | (given >= topic.partitions)
        candidates.append(F.when(outside, _raise(UnknownTopicOrPartitionError, message)).otherwise(given).cast("int"))
    # A key column that the frame lacks counts as null in every row.
    present = [name for name in route.key if name in route.columns]
    if present:
        types = {field.name: schemas.to_spark([field])[0].dataType for field in topic.schema}
        keys = [
            _key_column(route, name, types[name]) if name in route.columns else F.lit(None).cast(types[name])
            for name in route.key
        ]
        candidates.append(_key_hash(topic.partitions)(*keys))
    # Only the remainder counts, and it cannot overflow.
    start = F.lit(first % topic.partitions)
    candidates.append(F.pmod(F.spark_partition_id() + start, F.lit(topic.partitions)))
    chosen = F.coalesce(*candidates)
    if route.compacted_by:
        keyless = F.lit(True)
        for name in route.compacted_by:
            keyless = keyless & (named(name).isNull() if name in route.columns else F.lit(True))
        message = (
            f"topic {topic.topic!r} is compacted: a row has no key ({', '.join(route.compacted_by)} is null); "
            "expected a key in every row"
        )
        chosen = F.when(keyless, _raise(SchemaMismatchError, message)).otherwise(chosen)
    return chosen.cast("int")


def _key_column(route: TopicRoute, name: str, kind: spark.DataType) -> Column:
    # A value that does not fit is refused with its column, and with a better message.
    return named(name).try_cast(kind) if name in route.narrowed else named(name).cast(kind)


def _key_hash(partitions: int) -> Any:
    """Return Kafka's murmur2 over key columns as a Spark function.

    Only the key columns pass through Python, not the rows.
    """

    # The types have no parameters, because Spark reads them to find the kind of the function.
    def partition(*keys: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        names = [str(number) for number in range(len(keys))]
        found = partition_table(pa.table(list(keys), names=names), names, partitions)
        return pa.array(found, pa.int32(), mask=found == NO_KEY)

    return F.arrow_udf(partition, "int")  # type: ignore[attr-defined]


def _in_own_session(frame: DataFrame) -> DataFrame:
    """Return the frame in a copy of its session with our settings."""
    session = frame.sparkSession
    own = session._jsparkSession.cloneSession()
    for name, value in _SESSION_SETTINGS.items():
        own.conf().set(name, value)
    jvm: Any = session._jvm
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(own, frame._jdf.logicalPlan()), session)


def _raise(kind: type[TxlogError], message: str) -> Column:
    return F.raise_error(F.lit(f"{_REFUSED}{kind.__name__}: {message}."))


def _refusal(error: Exception) -> TxlogError | None:
    """Return the error that a task reported when it refused a row; None for any other error."""
    text = str(error)
    at = text.find(_REFUSED)
    if at < 0:
        return None
    name, _, rest = text[at + len(_REFUSED) :].partition(": ")
    message = rest.partition("\n")[0].rpartition(".")[0]
    return REFUSALS[name](message) if name in REFUSALS else None
