"""How do `load`, `save` and `start` of `format("txlog")` use Spark's own Parquet reader and writer?

With the options, errors and guarantees of the Python data source. A read has the rows and the schema that the Python
source would return. A write begins, commits and aborts through the Python sink's own writer, in this process
(`TxlogWriter.run`, `TxlogStreamWriter.run`). So ids, versions, fencing and sources' offsets are the same, and a
checkpoint continues with either of the two. Only the tasks differ: `write_frame` replaces them.

    call                                            how             why
    load()                                          native
      .schema(...), columns, where, cuts, topics    native
      metadata                                      Python          these rows are not in files
      minPartitions                                 Python          Spark splits a native scan itself
      failOnDataLoss=false                          Python          a native scan fails if a file is deleted
      Spark Connect, a column is not nullable       Python          all columns of a native scan are nullable there
    save()
      mode append and the option topic              native
      no option topic: rows name their topics       Python          a native write has one topic
      a compacted topic                             Python          it keeps the order of the rows of a key
      another mode, bucketBy, sortBy                Python          Spark or the sink refuses it
      partitionBy, clusterBy                        refused         a topic's keys choose the partitions
      Spark Connect                                 Python          Spark's writer loses the columns' ids there
    start()
      the option topic, any micro-batch trigger     native
      no option topic, a compacted topic            Python          as for save()
      another output mode, trigger, partitionBy     Python          Spark or the sink refuses it
      unpinned threads, commitSourceOffsets=false   Python          the query's id is in its tasks only
      Spark Connect                                 Python          batches run in the server
    every call
      Spark itself cannot read the store            Python          it uses txlog's drivers and storageOptions
      a relative path, after a change of folder     Python          it works in the folder where Spark was started
      wrong options, any error while planning       Python          it reports the error as it always does
    readStream, toTable, table, saveAsTable, SQL    not changed

`load` returns a planned frame. `begin_save` and `begin_stream` return the function that does the work. If one of the
three raises, nothing has happened, and the caller can still use the Python data source.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table, schemas
from pyspark_txlog.messages import NotNativeError, short_java_errors
from pyspark_txlog.native.locations import escape_glob, spark_folder
from pyspark_txlog.native.scan import frames_of
from pyspark_txlog.native.write import is_observed, write_frame
from pyspark_txlog.options import Options
from pyspark_txlog.sink.batch_writer import NativeWrite, TxlogWriter
from pyspark_txlog.sink.micro_batch import compute_skipped, hides_query, in_micro_batch, query_id
from pyspark_txlog.sink.options import parse_stream_write_options, parse_write_options
from pyspark_txlog.sink.routing import TopicRoute
from pyspark_txlog.sink.stream_writer import TxlogStreamWriter, query_names
from pyspark_txlog.source.batch_reader import check_schema
from pyspark_txlog.source.options import parse_read_options, settled
from pyspark_txlog.source.subscription import subscribed_topics
from pyspark_txlog.spark_ui import described
from txlog.engine import Runtime, StagedPart, TransactionMetadata
from txlog.engine.arrow import ColumnNames
from txlog.engine.schemas import TopicMetadata

_DESCRIPTOR = "txlog.json"
_READABLE: weakref.WeakKeyDictionary[SparkSession, set[str]] = weakref.WeakKeyDictionary()
"""Folders of stores that each session is known to read."""


def load(spark: SparkSession, options: Mapping[str, str], schema: StructType | None) -> DataFrame:
    """Return the rows of `spark.read.format("txlog")`, planned now; `schema` is the user's, if one was given.

    Raises NotNativeError, TxlogError, and what Spark raises if it cannot read the files.
    """
    if any(name.lower() == "metadata" for name in options):
        raise NotNativeError("the option 'metadata' does not read rows")
    parsed = parse_read_options(options)
    if table.MIN_PARTITIONS in parsed:
        raise NotNativeError("the option 'minPartitions' asks for tasks, and Spark splits a native scan itself")
    if not parsed[table.FAIL_ON_DATA_LOSS]:
        raise NotNativeError("failOnDataLoss=false: a native scan fails if a file is deleted while it reads")
    _check_folders(spark, parsed[table.PATH])
    with closing(parsed.open()) as runtime:
        wanted = settled(parsed, runtime.settings)
        topics = subscribed_topics(runtime, wanted)
        if schema is None:
            schema = schemas.select({name: topic.schema for name, topic in topics.items()}, wanted[table.COLUMNS])
        else:
            check_schema(schema, topics, wanted)
        _check_access(spark, runtime)
        parts = frames_of(spark, runtime, wanted, topics, dict.fromkeys(topics, schema), exact=True)
    frame = reduce(DataFrame.union, parts.values())
    # Over Spark Connect this is also the first look at the files.
    if frame.schema != schema:
        raise NotNativeError("here a native scan has only nullable columns, and this read has others")
    return frame


def begin_save(frame: DataFrame, options: Mapping[str, str]) -> Callable[[], None]:
    """Begin the transaction of `df.write.format("txlog").mode("append")`, and return what writes and commits it.

    Raises NotNativeError, and what `TxlogWriter.begin` raises.
    """
    parsed = parse_write_options(options)
    _check_folders(frame.sparkSession, parsed[table.PATH])
    runtime = parsed.open()
    try:
        _check_topic(runtime, parsed)
        _check_access(frame.sparkSession, runtime)
        writer, transaction = TxlogWriter.begin_in(runtime, parsed, frame.schema)
    except BaseException:
        runtime.close()
        raise

    def run() -> None:
        with closing(runtime):
            writer.run(runtime, transaction, _writing(frame))
            # An Observation would wait for ever.
            if writer.is_repeated and (is_observed(frame) or in_micro_batch(frame.sparkSession)):
                compute_skipped(frame)

    return run


def begin_stream(frame: DataFrame, options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """Check the options of `frame.writeStream.format("txlog")`, and return the function for `foreachBatch`.

    Raises NotNativeError, TxlogError. The function raises what `TxlogStreamWriter` raises.
    """
    parsed = parse_stream_write_options(options)
    _check_folders(frame.sparkSession, parsed[table.PATH], parsed[table.CHECKPOINT_LOCATION])
    with closing(parsed.open()) as runtime:
        topic = _check_topic(runtime, parsed)
        _check_access(frame.sparkSession, runtime)
    if not parsed[table.COMMIT_SOURCE_OFFSETS] and hides_query(frame.sparkSession):
        raise NotNativeError(
            "PYSPARK_PIN_THREAD=false hides the id of the query, and commitSourceOffsets=false does too"
        )
    names = query_names()
    names.check(topic, frame.schema.names)

    @short_java_errors
    def run(batch: DataFrame, number: int) -> None:
        # None in a thread that is not pinned. Then the checkpoint has it.
        own_id = query_id(batch.sparkSession)
        TxlogStreamWriter.run(
            parsed, batch.schema, _writing(batch, number, names), own_id, number, lambda: compute_skipped(batch)
        )

    return run


def _writing(frame: DataFrame, batch: int | None = None, names: ColumnNames | None = None) -> NativeWrite:
    """`names` are what the columns' names meant when the query began."""

    def write(
        runtime: Runtime, options: Options, txn: TransactionMetadata, topic: TopicMetadata | None
    ) -> tuple[StagedPart, ...]:
        assert topic is not None
        if names is not None:
            names.check(topic, frame.schema.names)
        route = TopicRoute(runtime, frame.schema, topic, options[table.KEY])
        codec = options[table.COMPRESSION_TYPE]
        # The next micro-batch takes the next partition, so a small one need not use several. The numbers of the tasks,
        # more files and more markers would make it slower.
        return write_frame(runtime, txn, frame, route, compression=codec, by_task=batch is None, batch=batch)

    return write


def _check_topic(runtime: Runtime, options: Options) -> TopicMetadata:
    name = options[table.TOPIC]
    if name is None:
        raise NotNativeError("there is no option 'topic': the rows name their topics")
    topic = runtime.topic(name, 0)
    if "compact" in runtime.settings.topic_config(topic).cleanup_policy:
        raise NotNativeError(
            f"topic {name!r} is compacted, and Spark's own writer may change the order of the rows of a key"
        )
    return topic


def _check_folders(spark: SparkSession, *locations: str) -> None:
    """Raise NotNativeError if Java has another working folder, which the Python data source and Spark use."""
    if all("://" in location or os.path.isabs(location) for location in locations):
        return
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or not os.path.samefile(jvm.java.lang.System.getProperty("user.dir"), os.getcwd()):
        raise NotNativeError("a path is relative, and Spark works in another folder than this program")


def _check_access(spark: SparkSession, runtime: Runtime) -> None:
    """Raise NotNativeError unless Spark reads this very store, with its own drivers and credentials.

    Raises UnsupportedStoreError without a driver, and what Spark raises.
    """
    folder = spark_folder(spark, runtime)
    known = _READABLE.setdefault(spark, set())
    if folder in known:
        return
    # Without Connect, the driver's files are this program's files.
    if not folder.startswith("file:") or not hasattr(spark, "_jvm"):
        with described(spark, f"txlog: whether Spark can read {runtime.where}"):
            found = spark.read.text(escape_glob(f"{folder}/{_DESCRIPTOR}"), wholetext=True).first()
        if found is None or found[0].encode() != runtime.store.get(_DESCRIPTOR):
            raise NotNativeError(f"Spark finds another store at {folder}")
    known.add(folder)
