"""Rows that Spark's own Parquet writer or the driver stored: a read returns the same rows, and fsck accepts the
files."""

from __future__ import annotations

import datetime
import shutil
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession, functions as F

from pyspark_txlog import TxLog
from pyspark_txlog.native import one_job, write
from pyspark_txlog.native.task_files import move_to_partitions
from pyspark_txlog.native.write import Road
from tests.spark.conftest import ORDERS, Log, append, rows, to_df
from tests.spark.limits import IS_4_0
from tests.spark.scalars import SCALARS
from tests.spark.verbs import vacuum_topics
from txlog.errors import (
    InvalidRequestError,
    SchemaMismatchError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.fsck import check_store
from txlog.storage.local import LocalObjectStore
from txlog.testing.counting_store import CountingStore

pytestmark = pytest.mark.spark
ROADS: tuple[Road, ...] = ("driver", "executors")
WAYS = pytest.mark.parametrize(
    "how", [{"road": "driver"}, {"road": "executors"}, {"small_rows": 0}], ids=[*ROADS, "tasks"]
)
"""Each way that rows can go, as arguments of `append`."""
UTC = datetime.UTC
NESTED = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("when", pa.timestamp("us", "UTC"))])
EVERY_TYPE = pa.schema(
    (
        *SCALARS,
        pa.field("a_small_decimal", pa.decimal128(9, 2)),
        pa.field("a_list", pa.list_(pa.field("element", pa.int64()))),
        pa.field("a_map", pa.map_(pa.string(), pa.field("value", pa.float64()))),  # type: ignore[call-overload]
        pa.field("nested", pa.list_(pa.field("element", NESTED, nullable=False))),
        pa.field("a_struct", pa.struct([pa.field("key", pa.string()), pa.field("when", pa.timestamp("us", "UTC"))])),
    )
)
FULL: tuple[Any, ...] = (
    1,
    True,
    -128,
    32767,
    -(2**63),
    1.5,
    -0.1,
    "naïve ☃ \U0001f680",
    b"\x00\xff",
    datetime.date(1582, 10, 4),
    datetime.datetime(1582, 10, 4, 5, 0, 0, 123456, tzinfo=UTC),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    Decimal("12345678901234567890123456789.123456789"),
    Decimal("-1234567.89"),
    [1, None, 2**63 - 1],
    {"a": 1.0, "b": None},
    [("k", datetime.datetime(2000, 2, 29, tzinfo=UTC)), ("l", None)],
    ("m", datetime.datetime(2000, 2, 29, tzinfo=UTC)),
)
EMPTY = (2, *[None] * (len(FULL) - 1))


@pytest.fixture
def native(spark: SparkSession, log: Log) -> Iterator[TxLog]:
    """Yield the log through TxLog. Its files are not synced, because no test cuts the power."""
    with TxLog(spark, log.url, {"fsync": False}) as opened:
        yield opened


def shuffled(frame: DataFrame) -> DataFrame:
    """Return the frame with its columns in another order, as users may have them."""
    return frame.select(*sorted(frame.columns))


def assert_sound(log: Log) -> None:
    """Check that fsck opens every file and finds no damage. Orphans of failed jobs are not findings."""
    report = check_store(log.store.runtime.store)
    assert report.is_clean, report.findings


@pytest.mark.smoke
@WAYS
def test_every_type_comes_back(spark: SparkSession, log: Log, native: TxLog, how: dict[str, Any]) -> None:
    log.create("types", EVERY_TYPE)
    columns = native.table("types").schema
    frame = shuffled(spark.createDataFrame([FULL, EMPTY], columns))
    # The Parquet settings of the user's session do not apply to the log's files.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        append(native.table("types"), frame, **how)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "INT96"
    found = log.read("types").orderBy("row").collect()
    assert [tuple(row) for row in found] == [
        tuple(row) for row in spark.createDataFrame([FULL, EMPTY], columns).collect()
    ]
    assert_sound(log)


@WAYS
def test_structs_that_may_be_null(spark: SparkSession, log: Log, native: TxLog, how: dict[str, Any]) -> None:
    """Such structs are narrower, in another order, or null.

    Spark rebuilds them, and Arrow finds nulls below a null struct.
    """
    pair = pa.struct([pa.field("number", pa.int64(), nullable=False), pa.field("text", pa.string())])
    schema = pa.schema(
        [pa.field("row", pa.int64()), pa.field("one", pair), pa.field("many", pa.list_(pa.field("element", pair)))]
    )
    log.create("pairs", schema, 1)
    frame = spark.range(3).selectExpr(
        "id AS row",
        "IF(id > 0, named_struct('text', string(id), 'number', int(id)), NULL) AS one",
        "array(named_struct('number', id, 'text', 'x'), IF(id > 1, NULL, named_struct('number', "
        "id, 'text', 'y'))) AS many",
    )
    append(native.table("pairs"), frame, **how)
    expected = [
        (0, None, [(0, "x"), (0, "y")]),
        (1, (1, "1"), [(1, "x"), (1, "y")]),
        (2, (2, "2"), [(2, "x"), None]),
    ]
    for found in (log.read("pairs"), to_df(native.table("pairs"))):
        assert [tuple(row) for row in found.orderBy("row").collect()] == expected
    assert_sound(log)


@WAYS
def test_keys_go_where_a_producer_sends_them(spark: SparkSession, log: Log, native: TxLog, how: dict[str, Any]) -> None:
    log.create(partitions=5, key_columns="order_id,carrier")
    # The frame's column is narrower than the topic's key: the hash uses the topic's type.
    frame = spark.range(200).selectExpr(
        "CAST(id AS INT) AS order_id", "IF(id % 3 = 0, NULL, concat('c', id % 7)) AS carrier", "id * 0.5D AS amount"
    )
    append(native.table("orders"), frame, **how)
    with log.store.producer() as producer:
        producer.send("orders", frame.toArrow())
    places = (
        log.read(columns="_partition,order_id")
        .groupBy("order_id")
        .agg(F.count_distinct("_partition").alias("places"), F.count("*").alias("times"))
    )
    assert {(row.places, row.times) for row in places.collect()} == {(1, 2)}
    assert_sound(log)


@pytest.mark.smoke
def test_rows_that_the_topic_cannot_take_fail_the_write(spark: SparkSession, log: Log, native: TxLog) -> None:
    """Try nulls where a column allows none, invalid text, an unknown partition, and a row without a key for a compacted
    topic."""
    log.create("types", EVERY_TYPE)
    base = spark.range(3).selectExpr("CAST(id AS INT) AS row")
    deep = base.selectExpr(
        "row", "array(named_struct('key', IF(row = 1, NULL, 'k'), 'when', current_timestamp())) nested"
    )
    shallow = base.selectExpr("NULLIF(row, 1) AS row")
    element = base.selectExpr(
        "row", "array(IF(row = 1, NULL, named_struct('key', 'k', 'when', current_timestamp()))) nested"
    )
    torn = base.selectExpr(
        "row",
        "array(named_struct('key', IF(row = 1, CAST(X'6bff' AS STRING), 'k'), 'when', current_timestamp())) nested",
    )
    wrongs = (
        (deep, "nested", "null"),
        (shallow, "row", "null"),
        (element, "nested", "null"),
        (torn, "nested", "not UTF-8"),
    )
    for frame, column, words in wrongs:
        with pytest.raises(SchemaMismatchError, match=f"topic 'types': column '{column}.*{words}"):
            append(native.table("types"), frame, road="executors")
    misled = base.selectExpr("row", "row * 5 AS partition")
    with pytest.raises(
        UnknownTopicOrPartitionError, match=r"'types' has no such partition .*: it has 2, numbered 0 to 1"
    ):
        append(native.table("types"), misled, road="executors")
    log.create("latest", ORDERS, cleanup_policy="compact", key_columns="carrier")
    keyless = spark.range(3).selectExpr("id AS order_id", "IF(id = 1, NULL, 'c') AS carrier")
    row = "row 0" if IS_4_0 else "a row"  # there a task of txlog writes it
    with pytest.raises(SchemaMismatchError, match=rf"compacted: {row} has no key \(carrier is null\)"):
        append(native.table("latest"), keyless, road="executors")
    assert log.ends("types") == log.ends("latest") == [(0, 0), (0, 0)]
    # The write does not even begin: the frame's schema does not fit the topic.
    for wrong in (base.withColumn("strange", F.lit(1)), base.selectExpr("CAST(row AS STRING) AS row")):
        with pytest.raises(SchemaMismatchError, match="topic 'types'"):
            append(native.table("types"), wrong, road="executors")
    with pytest.raises(InvalidRequestError, match="road='native': expected one of auto, driver, executors"):
        append(native.table("types"), base, road="native")
    assert_sound(log)


def test_columns_that_a_frame_lacks_are_null_and_a_partition_column_routes(
    spark: SparkSession, log: Log, native: TxLog
) -> None:
    log.create(partitions=3)
    frame = spark.range(9).selectExpr("id AS order_id", "CAST(id % 3 AS BYTE) AS partition")
    for road in ROADS:
        append(native.table("orders"), frame, road=road)
    found = rows(
        log.read(columns="_partition,order_id,amount,carrier"), ["_partition", "order_id", "amount", "carrier"]
    )
    assert found == sorted((number % 3, number, None, None) for number in [*range(9)] * 2)
    assert_sound(log)


def test_a_column_that_was_added_meanwhile(spark: SparkSession, log: Log, native: TxLog) -> None:
    """The log then contains files of both schemas, and a file with a constant column keeps its schema id."""
    log.create()
    table = native.table("orders")
    append(table, spark.range(2).selectExpr("id AS order_id"), road="executors")
    log.store.alter_topic("orders", add_columns=pa.schema([pa.field("paid", pa.bool_())]))
    append(table, spark.range(2, 4).selectExpr("id AS order_id", "true AS paid", "'c' AS carrier"), road="executors")
    columns = ["order_id", "amount", "carrier", "paid"]
    assert rows(log.read(), columns) == [
        (0, None, None, None),
        (1, None, None, None),
        (2, None, "c", True),
        (3, None, "c", True),
    ]
    assert_sound(log)


def test_the_small_go_through_the_driver_and_nobody_need_say_so(spark: SparkSession, log: Log, native: TxLog) -> None:
    log.create()
    table = native.table("orders")
    append(table, log.frame(0, 100), small_rows=100)
    assert not (Path(log.url) / "orders" / "staged").exists()
    # The first write is smaller than inline.max.bytes, the second one is larger.
    assert log.files() == []
    append(table, log.frame(100, 5000))
    assert len(log.files()) == 1
    # Both of its tasks have more rows than the driver takes, and write a file.
    append(table, log.frame(5100, 202), small_rows=100)
    assert len(log.files()) == 3
    assert not (Path(log.url) / "orders" / "staged").exists()
    append(table, log.frame(0, 0))
    assert log.ids() == list(range(5302))
    assert rows(to_df(table), ["order_id"]) == [(number,) for number in range(5302)]
    assert_sound(log)


def jobs_of(spark: SparkSession, action: Callable[[], object]) -> int:
    """Return how many jobs of Spark the action starts."""
    group = uuid.uuid4().hex
    spark.sparkContext.setJobGroup(group, "a test")
    try:
        action()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        spark.sparkContext.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(group))


def test_no_job_looks_for_what_sparks_plan_knows(spark: SparkSession, log: Log, native: TxLog) -> None:
    """The plan knows the most rows of a range, and how many rows a cache holds."""
    log.create()
    table = native.table("orders")
    cached = log.frame(100, 200).cache()
    try:
        cached.count()
        narrow = cached.select("order_id")
        assert jobs_of(spark, lambda: append(table, log.frame(0, 100), small_rows=100)) == 1
        assert log.files() == []
        assert jobs_of(spark, lambda: append(table, narrow, small_rows=200)) == 1
        assert not (Path(log.url) / "orders" / "staged").exists()
        assert jobs_of(spark, lambda: append(table, narrow, small_rows=199)) == 1
        assert (Path(log.url) / "orders" / "staged").exists()
    finally:
        cached.unpersist()
    assert log.ids() == sorted([*range(300), *range(100, 300)])


def test_rows_that_the_driver_has_pass_no_task_in_python(
    spark: SparkSession, log: Log, native: TxLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are as small as its memory shows. A new value may be of any size, and so may a job's result be too large."""
    log.create()
    made = spark.createDataFrame(log.frame(0, 100).select("order_id", "carrier").toArrow()).coalesce(1)
    by_tasks: list[int] = []
    original = one_job.write_once

    def noted(*given: Any, **more: Any) -> Any:
        by_tasks.append(1)
        return original(*given, **more)

    monkeypatch.setattr(write, "write_once", noted)
    few = made.where("order_id < 50").orderBy("order_id").limit(40)
    append(native.table("orders"), few.select("carrier", "order_id"))
    assert by_tasks == []
    for other in (made, spark.createDataFrame(made.toArrow())):  # Spark computes the second one while it plans
        append(native.table("orders"), other.selectExpr("order_id", "repeat(carrier, 2) AS carrier"))
        assert by_tasks.pop() == 1
    monkeypatch.setattr(write, "most_result", lambda _: 1)
    append(native.table("orders"), made)
    assert by_tasks == [1]
    assert log.ids() == sorted([*range(40), *[*range(100)] * 3])


def test_no_job_looks_how_many_rows_large_files_have(
    spark: SparkSession, log: Log, native: TxLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create()
    table, files = native.table("orders"), str(tmp_path / "files")
    log.frame(0, 100).write.parquet(files)
    scan = spark.read.parquet(files).select("order_id", "carrier")
    append(table, scan, small_rows=10)
    assert log.ids() == list(range(100))
    monkeypatch.setattr(write, "LARGE_BYTES", 1000)
    assert jobs_of(spark, lambda: append(table, scan, small_rows=1000)) == 1
    staged = Path(log.url) / "orders" / "staged"
    assert len(list(staged.iterdir())) == 1
    # A filter may leave few rows.
    assert jobs_of(spark, lambda: append(table, scan.where("order_id < 3"))) == 1
    assert len(list(staged.iterdir())) == 1
    assert log.ids() == sorted([*range(100)] * 2 + [*range(3)])


def test_sparks_files_have_the_ids_of_constant_renamed_and_nested_columns(
    spark: SparkSession, log: Log, native: TxLog
) -> None:
    pair = pa.struct([pa.field("number", pa.int64()), pa.field("text", pa.string())])
    schema = pa.schema(
        [
            *ORDERS,
            pa.field("one", pair),
            pa.field("many", pa.list_(pa.field("element", pair))),
            pa.field("named", pa.map_(pa.string(), pa.field("value", pair))),  # type: ignore[call-overload]
        ]
    )
    log.create(schema=schema, partitions=1)
    made = "named_struct('number', id, 'text', 'x')"
    table = native.table("orders")
    frame = spark.range(10, numPartitions=1).selectExpr(
        "id AS order_id",
        "1.5D AS amount",
        "'c' AS carrier",
        f"{made} AS one",
        f"array({made}) AS many",
        f"map('a', {made}) AS named",
    )
    append(table, frame, road="executors")
    # Spark's optimizer sees through the projection, the union and the cache of a frame.
    append(table, frame.union(frame.select(*frame.columns)), road="executors")
    append(table, to_df(table).where("order_id < 3"), road="executors")
    expected = [
        (
            field.name,
            str(field.id),
            [(child.name, str(child.id)) for child in field.fields] if field.type == "struct" else [],
        )
        for field in table.topic().schema
    ]
    files = sorted((Path(log.url) / "orders" / "staged").glob("*/_partition=0/*.parquet"))
    assert len(files) >= 3
    for file in files:
        found = pq.read_schema(file)
        assert [
            (
                field.name,
                field_id(field),
                [(child.name, field_id(child)) for child in field.type] if pa.types.is_struct(field.type) else [],
            )
            for field in found
        ] == expected
    assert log.ids() == sorted([*range(10)] * 3 + [*range(3)] * 3)
    assert_sound(log)


def field_id(field: pa.Field[Any]) -> str:
    return (field.metadata or {})[b"PARQUET:field_id"].decode()


@WAYS
def test_micro_batches_of_one_task_go_to_one_partition_after_the_other(
    log: Log, native: TxLog, how: dict[str, Any]
) -> None:
    """All rows of one task stay together, and in their order."""
    log.create(partitions=3)
    for number in range(4):
        append(
            native.table("orders"),
            log.frame(number * 10, 10, tasks=1),
            transactional_id="query",
            version=number,
            scope="its id",
            **how,
        )
    found = log.read(columns="_partition,_offset,order_id").orderBy("_partition", "_offset").collect()
    by_partition = {number: [row.order_id for row in found if row._partition == number] for number in range(3)}
    assert by_partition == {0: [*range(10), *range(30, 40)], 1: [*range(10, 20)], 2: [*range(20, 30)]}


@pytest.mark.parametrize("moves", [True, False])
def test_all_files_of_a_task_go_to_the_partition_of_its_number(
    spark: SparkSession, log: Log, native: TxLog, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """They do so where files are moved after the job, and where Spark's writer fills several folders (object
    stores)."""
    if not moves:
        monkeypatch.setattr(write, "can_move", lambda url, partitions: False)
    log.create(partitions=3)
    # The third of five tasks has no rows. The others have two files each.
    frame = log.frame(0, 50, tasks=5).where("order_id < 20 OR order_id >= 30")
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "6")
    try:
        append(native.table("orders"), frame, transactional_id="query", version=1, scope="its id", road="executors")
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    found = log.read(columns="_partition,_offset,order_id").orderBy("_partition", "_offset").collect()
    by_partition = {number: [row.order_id for row in found if row._partition == number] for number in range(3)}
    assert by_partition == {0: [], 1: [*range(10), *range(30, 40)], 2: [*range(10, 20), *range(40, 50)]}
    assert len(list((Path(log.url) / "orders" / "staged").glob("*/_partition=[12]/part-*.parquet"))) >= 8
    assert_sound(log)


@pytest.mark.parametrize("road", ROADS)
def test_frames_of_one_task_do_not_all_go_to_the_first_partition(log: Log, native: TxLog, road: Road) -> None:
    log.create(partitions=64)
    for number in range(5):
        append(native.table("orders"), log.frame(number, 1, tasks=1), road=road)
    # They all draw the same partition once in 16 million runs.
    assert len([end for _, end in log.ends() if end]) > 1
    assert log.ids() == list(range(5))


def test_a_key_needs_no_hash_if_there_is_one_partition(log: Log, native: TxLog) -> None:
    log.create(partitions=1, key_columns="order_id")
    append(native.table("orders"), log.frame(0, 20, tasks=3), road="executors")
    assert log.ids() == list(range(20))
    misled = log.frame(0, 3).selectExpr("order_id", "1 AS partition")
    with pytest.raises(UnknownTopicOrPartitionError, match="it has 1"):
        append(native.table("orders"), misled, road="executors")
    assert log.ids() == list(range(20))
    assert_sound(log)


def test_a_driver_that_fails_between_job_and_moves_publishes_nothing(
    spark: SparkSession, log: Log, native: TxLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create()
    table = native.table("orders")

    def fails(*_: object) -> None:
        raise OSError("the driver dies")

    with monkeypatch.context() as patched:
        patched.setattr(write, "move_to_partitions", fails)
        with pytest.raises(OSError, match="the driver dies"):
            append(table, log.frame(0, 100, tasks=4), transactional_id="nightly", version=1, road="executors")
    left = list((Path(log.url) / "orders" / "staged").glob("*/_partition=*/part-*.parquet"))
    assert len(left) == 4
    assert log.ends() == [(0, 0), (0, 0)]
    append(table, log.frame(0, 100, tasks=4), transactional_id="nightly", version=1, road="executors")
    assert log.ids() == list(range(100))
    assert_sound(log)
    vacuum_topics(spark, log.store, ["orders"])
    assert not [file for file in left if file.exists()]
    assert log.ids() == list(range(100))


def test_files_are_moved_by_the_number_in_their_name(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/job/"
    first = tmp_path / "job" / "_partition=1"
    move_to_partitions(spark, url, 4, 3)
    assert not (tmp_path / "job").exists()
    first.mkdir(parents=True)
    names = [
        "part-00000-a-c000.zstd.parquet",
        "part-00001-a-c000.parquet",
        "part-100001-a-c001.parquet",
        "other.parquet",
    ]
    for name in names:
        (first / name).touch()
    move_to_partitions(spark, url, 4, 3)
    assert {str(file.relative_to(tmp_path / "job")) for file in tmp_path.glob("job/*/*.parquet")} == {
        "_partition=1/part-00000-a-c000.zstd.parquet",
        "_partition=2/part-00001-a-c000.parquet",
        "_partition=0/part-100001-a-c001.parquet",
        "_partition=1/other.parquet",
    }
    (first / "part-00004-a-c000.parquet").touch()
    shutil.rmtree(tmp_path / "job" / "_partition=2")
    (tmp_path / "job" / "_partition=2").touch()
    with pytest.raises(StorageError, match="cannot move files"):
        move_to_partitions(spark, url, 4, 3)


def test_a_small_append_costs_no_file(spark: SparkSession, log: Log) -> None:
    """A write to one partition takes PREPARE_COMMIT, the commit that holds the rows, and COMPLETE_COMMIT."""
    log.create()
    store = CountingStore(LocalObjectStore(str(Path(log.url)), fsync=False))
    with TxLog(spark, log.url, object_store=store) as native:
        table = native.table("orders")
        for number in range(3):
            with store.counting() as cost:
                append(table, log.frame(number * 10, 10), transactional_id="small")
        assert (cost.write_file, cost.put_if_absent) == (0, 3)
    assert log.ids() == list(range(30))


def test_frames_of_one_transaction_share_a_partition_whatever_their_size(
    spark: SparkSession, log: Log, native: TxLog
) -> None:
    """A record has its rows in one place. Small frames are joined, and written beside large ones, in their order."""
    log.create(partitions=1)
    with native.transaction("etl") as txn:
        txn.write(log.frame(0, 10), "orders")
        txn.write(log.frame(10, 10), "orders")
    assert log.files() == []
    with native.transaction("etl") as txn:
        txn.write(log.frame(20, 10), "orders")
        txn.write(log.frame(30, 10, tasks=1), "orders", road="executors")
        txn.write(log.frame(40, 10), "orders")
    # One of them is where Spark wrote it.
    assert len(log.files()) == 3
    found = log.read(columns="_offset,order_id").orderBy("_offset").collect()
    assert [row.order_id for row in found] == list(range(50))
    assert_sound(log)


def test_a_flipped_bit_in_sparks_own_file_is_seen(spark: SparkSession, log: Log, native: TxLog) -> None:
    log.create(partitions=1)
    append(native.table("orders"), log.frame(0, 1000, tasks=1), road="executors")
    (file,) = (Path(log.url) / "orders" / "staged").glob("*/_partition=0/*.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)
    report = check_store(log.store.runtime.store)
    assert [found.kind for found in report.findings if "staged" in found.path and found.kind != "note"] == ["damaged"]
    with pytest.raises(Exception, match=r"staged/.*\.parquet"):
        log.ids()


def test_tasks_that_fail_are_run_again_and_leave_one_file_each(
    spark: SparkSession, log: Log, native: TxLog, tmp_path: Path
) -> None:
    log.create()
    marks = tmp_path / "marks"
    marks.mkdir()

    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            yield batch
        # The attempt fails after its file contains its rows.
        if task.attemptNumber() < 2 and batch.num_rows:
            (marks / f"{task.partitionId()}-{task.attemptNumber()}").touch()
            raise RuntimeError("this attempt dies")

    frame = log.frame(0, 1000, tasks=4)
    append(native.table("orders"), frame.mapInArrow(fail_first, frame.schema), road="executors")
    assert len(list(marks.iterdir())) == 8
    assert log.ids() == list(range(1000))
    assert_sound(log)


def test_a_job_that_fails_publishes_nothing_and_its_folder_is_nobodys(
    spark: SparkSession, log: Log, native: TxLog
) -> None:
    log.create()
    table = native.table("orders")
    dies = log.frame(0, 100, tasks=4).withColumn(
        "amount", F.when(F.col("order_id") == 77, F.raise_error(F.lit("the job dies"))).otherwise(F.col("amount"))
    )
    with pytest.raises(Exception, match="the job dies"):
        append(table, dies, transactional_id="nightly", version=1, road="executors")
    assert log.ends() == [(0, 0), (0, 0)]
    result = append(table, log.frame(0, 100), transactional_id="nightly", version=1, road="executors")
    assert not result.skipped
    assert log.ids() == list(range(100))
    assert_sound(log)
