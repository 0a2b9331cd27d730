"""A native scan in a real Spark returns the rows of the Python source, and reads only the files that matter."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pyspark.sql import DataFrame, SparkSession

import txlog
from pyspark_txlog import TxLog
from pyspark_txlog.api.scan_options import scan_options
from pyspark_txlog.native import scan as native_scan
from pyspark_txlog.option_table import WHERE
from pyspark_txlog.source.batch_reader import plan_topics, read_tasks
from pyspark_txlog.source.options import parse_read_options
from pyspark_txlog.source.subscription import subscribed_topics
from tests.spark.conftest import ORDERS, Console, Log, to_df
from tests.spark.limits import IS_4_0
from tests.spark.test_datasource import EMPTY, EVERY_TYPE, FULL, ZERO
from txlog.core.fetch_plan import BY_COLUMN, FilePiece, RowRange
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile
from txlog.errors import InvalidRequestError, OffsetOutOfRangeError, SchemaMismatchError, UnknownOptionError

# It compares with what the Python data source writes and reads.
pytestmark = [pytest.mark.spark, pytest.mark.python_source]

PLACE = ["_topic", "_partition", "_offset", "_timestamp"]


def orders(first: int, count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"order_id": number, "amount": None if number % 7 == 0 else number / 2, "carrier": f"c{number % 3}"}
            for number in range(first, first + count)
        ],
        ORDERS,
    )


@pytest.fixture
def native(log: Log) -> Iterator[TxLog]:
    with TxLog(log.spark, log.url) as made:
        yield made


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def files_of(frame: DataFrame) -> list[str]:
    """Return the files that a scan reads, below the topic's folder."""
    return sorted("/".join(path.split("/")[-3:]) for path in frame.inputFiles())


# -- both ways give the same ------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("eager"),
            st.sampled_from(["commit", "abort", "open"]),
            st.integers(0, 1),
            st.lists(st.sampled_from([1, 2, 40]), min_size=1, max_size=3),
        ),
        st.tuples(st.just("staged"), st.sampled_from(["commit", "abort"]), st.integers(0, 1), st.just([3, 50])),
        st.tuples(
            st.just("plain"), st.just("commit"), st.integers(0, 1), st.lists(st.sampled_from([1, 40]), max_size=2)
        ),
        st.tuples(st.just("column"), st.just(""), st.just(0), st.just([])),
        st.tuples(st.just("delete"), st.just(""), st.integers(0, 1), st.integers(1, 9).map(lambda tenths: [tenths])),
    ),
    min_size=2,
    max_size=9,
)


class History:
    """A random history of one topic: inline rows, files, sealed segments, aborted and open transactions, added
    columns."""

    def __init__(self, url: str) -> None:
        self.store = txlog.open(url, storage_options={"fsync": False})
        self.store.create_topic("t", ORDERS, 2, config={"segment.batches": 3, "inline.max.bytes": 1500})
        self._next = 0
        self._columns = 0

    def do(self, kind: str, outcome: str, partition: int, counts: list[int]) -> None:
        if kind == "column":
            self._columns += 1
            self.store.alter_topic("t", add_columns=pa.schema([pa.field(f"more_{self._columns}", pa.int32())]))
        elif kind == "delete":
            info = self.store.admin().list_offsets("t")[TopicPartition("t", partition)]
            start = info.log_start_offset + (info.last_stable_offset - info.log_start_offset) * counts[0] // 10
            self.store.admin().delete_records("t", partition, start)
        elif kind == "plain":
            with self.store.producer() as producer:
                for count in counts:
                    producer.send("t", self._rows(count), partition=partition)
                    producer.flush()
        else:
            # Each producer has another id, so that an open transaction stays open.
            producer = self.store.producer(f"{kind}-{self._next}", staged=kind == "staged")
            producer.init_transactions()
            producer.begin_transaction()
            for count in counts:
                producer.send("t", self._rows(count), partition=partition)
                if kind == "eager":
                    producer.flush()
            if outcome == "commit":
                producer.commit_transaction()
            elif outcome == "abort":
                producer.abort_transaction()

    def _rows(self, count: int) -> pa.Table:
        made = orders(self._next, count)
        for number in range(1, self._columns + 1):
            made = made.append_column(f"more_{number}", pa.array([number] * count, pa.int32()))
        self._next += count
        return made


@settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    # Each example takes seconds, so a failure is reported without shrinking.
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, cut=st.tuples(st.integers(0, 10), st.integers(0, 10)), data=st.data())
def test_both_roads_give_the_same_rows(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Any],
    cut: tuple[int, int],
    data: st.DataObject,
) -> None:
    url = str(tmp_path_factory.mktemp("history") / "log")
    history = History(url)
    for step in steps:
        history.do(*step)
    infos = history.store.admin().list_offsets("t", isolation="read_uncommitted")
    low, high = sorted(cut)
    isolation = data.draw(st.sampled_from(["read_committed", "read_uncommitted"]))
    where = data.draw(st.sampled_from([None, "order_id >= 40 AND NOT carrier = 'c1'", "amount IS NULL OR _offset < 5"]))
    bounds = {
        name: {
            "t": {
                str(tp.partition): info.log_start_offset + (info.log_end_offset - info.log_start_offset) * part // 10
                for tp, info in infos.items()
            }
        }
        for name, part in (("startingOffsets", low), ("endingOffsets", high))
    }
    columns = ["*", *PLACE]
    reader = spark.read.format("txlog").option("subscribe", "t").option("isolation.level", isolation)
    if where:
        reader = reader.option("where", where)
    for name, value in bounds.items():
        reader = reader.option(name, json.dumps(value))
    expected = collected(reader.option("columns", ",".join(columns)).load(url))
    with TxLog(spark, url) as log:
        found = to_df(log.table("t"), columns=columns, isolation_level=isolation, where=where, **bounds)
        assert found.columns == [*history.store.topic("t").schema.names, *PLACE]
        assert collected(found) == expected
        assert found.count() == len(expected)
        pruned = to_df(
            log.table("t"), columns=["_offset", "order_id"], isolation_level=isolation, where=where, **bounds
        )
        assert collected(pruned) == sorted(((row[-2], row[0]) for row in expected), key=repr)
    history.store.close()


@pytest.mark.smoke
def test_every_type_comes_back_from_files_and_from_commit_records(log: Log, native: TxLog) -> None:
    log.create("types", EVERY_TYPE, partitions=1, inline_max_bytes="1")
    log.create("inline", EVERY_TYPE, partitions=1)
    frame = log.spark.createDataFrame([FULL, EMPTY, ZERO], log.read("types").schema)
    log.write(frame.coalesce(1), "types")
    with log.store.producer() as producer:
        producer.send("inline", frame.toArrow().cast(EVERY_TYPE))
    before: Any = log.spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone in ("UTC", "America/New_York"):
            log.spark.conf.set("spark.sql.session.timeZone", zone)
            for topic in ("types", "inline"):
                assert collected(to_df(native.table(topic))) == collected(log.read(topic))
                assert collected(to_df(native.table(topic), columns="row,_timestamp")) == collected(
                    log.read(topic, columns="row,_timestamp")
                )
    finally:
        log.spark.conf.set("spark.sql.session.timeZone", before)
    assert "LocalTableScan" in plan_of(to_df(native.table("inline")))
    assert "FileScan" in plan_of(to_df(native.table("types")))


def test_few_rows_are_one_task(log: Log, native: TxLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has two cores; without care Spark would make a task for each, and one for a file."""
    log.create(partitions=2)
    with log.store.producer() as producer:
        for partition in range(2):
            producer.send("orders", orders(partition * 10, 10), partition=partition)
    frame = to_df(native.table("orders"), columns=["order_id"])
    assert frame.rdd.getNumPartitions() == 1
    assert sorted(row.order_id for row in frame.collect()) == list(range(20))
    log.write(log.frame(20, 10, tasks=1))
    small = to_df(native.table("orders"), columns=["order_id"])
    assert small.rdd.getNumPartitions() == 1
    # Not a barrier for what Spark moves into the scan.
    assert "Exchange" not in plan_of(small.groupBy().count())
    assert "ReadSchema: struct<>" in plan_of(small.groupBy().count())
    assert "PushedFilters: [IsNotNull(order_id), LessThan(order_id,25)]" in plan_of(small.where("order_id < 25"))
    assert small.where("order_id < 25").count() == 25
    monkeypatch.setattr("pyspark_txlog.native.scan.ONE_TASK_BYTES", 0)
    assert to_df(native.table("orders")).rdd.getNumPartitions() == 2
    assert log.ids() == list(range(30))


def test_rows_of_a_cleaned_run_take_their_place_from_its_columns(log: Log, native: TxLog) -> None:
    """No job makes such runs yet.

    A read of one is planned with ranges by column, over a file with the name of its segment.
    """
    log.create(partitions=1, segment_batches="3", inline_max_bytes="100000")
    with log.store.producer() as producer:
        # The fourth send begins a new segment, so the first segment is sealed.
        for number in range(4):
            producer.send("orders", orders(number * 10, 10))
            producer.flush()
    options = scan_options(native.runtime, ["orders"], {"columns": "order_id,_offset,_timestamp"})
    topics = subscribed_topics(native.runtime, options)
    (plan,) = plan_topics(native.runtime, options, topics)
    (task,) = read_tasks(native.runtime, [plan], ["order_id", "_offset", "_timestamp"], options, {})
    piece, _ = task.pieces
    assert isinstance(piece, FilePiece)
    assert piece.offset_column
    everything = collected(to_df(native.table("orders"), columns="order_id,_offset,_timestamp"))
    by_column = RowRange(first_row=0, rows=30, base_offset=BY_COLUMN, timestamp=BY_COLUMN)
    scan = native_scan._TopicScan(log.spark, native.runtime, f"file://{log.url}/orders")
    schema = to_df(native.table("orders"), columns="order_id,_offset,_timestamp").schema
    for start, end in ((0, 30), (7, 22), (0, 1)):
        cleaned = replace(piece, ranges=(by_column,), start=start, end=end)
        found = scan.frame(schema, [replace(task, pieces=(cleaned,))])
        assert collected(found) == [row for row in everything if start <= row[1] < end]
        (group,) = native_scan._grouped([cleaned], task.fields)
        assert group[0].whole == ((start, end) == (0, 30))


# -- what is read -----------------------------------------------------------------------------------------------------


def test_spark_prunes_columns_and_pushes_filters_down(log: Log, native: TxLog) -> None:
    log.create(partitions=2)
    log.write(log.frame(0, 20_000))
    frame = to_df(native.table("orders"), columns=["*", *PLACE])
    plan = plan_of(frame.where("amount > 9000").select("order_id"))
    assert "GreaterThan(amount,9000.0)" in plan
    assert "carrier" not in plan.partition("ReadSchema")[2]
    assert frame.where("amount > 9000").count() == log.read().where("amount > 9000").count() > 0
    assert "ReadSchema: struct<>" in plan_of(to_df(native.table("orders")).groupBy().count())


@pytest.mark.smoke
def test_aborted_files_are_never_listed(log: Log, native: TxLog) -> None:
    log.create(partitions=1, inline_max_bytes="1")
    kept: list[Path] = []
    gone: list[Path] = []
    with log.store.producer("p") as producer:
        for number in range(4):
            before = set(log.files())
            producer.begin_transaction()
            producer.send("orders", orders(number * 10, 10))
            producer.flush()
            producer.abort_transaction() if number % 2 else producer.commit_transaction()
            (gone if number % 2 else kept).extend(set(log.files()) - before)
    below = Path(log.url) / "orders"
    committed = to_df(native.table("orders"))
    assert files_of(committed) == sorted(str(path.relative_to(below)) for path in kept)
    assert len(files_of(to_df(native.table("orders"), isolation_level="read_uncommitted"))) == 4
    for path in gone:
        path.unlink()
    assert committed.count() == 20


def test_where_skips_files_on_both_roads(log: Log, native: TxLog) -> None:
    log.create(partitions=1, inline_max_bytes="1")
    for number in range(5):
        log.write(log.frame(number * 100, 100, tasks=1))
    where = "order_id BETWEEN 150 AND 160 OR (carrier = 'c1' AND order_id > 490)"
    frame = to_df(native.table("orders"), where=where, columns=["order_id"])
    assert len(files_of(frame)) == 2
    # The skipped objects are not needed: the scan opens only the two files.
    opened = {Path(path).name for path in files_of(frame)}
    for path in log.files():
        if path.name not in opened:
            path.unlink()
    expected = [*range(150, 161), 493, 496, 499]
    assert sorted(row.order_id for row in frame.collect()) == expected
    assert sorted(row.order_id for row in log.read(where=where).collect()) == expected
    by_schema = log.read(where=where, schema="amount double")
    assert by_schema.columns == ["amount"]
    assert sorted(row.amount for row in by_schema.collect()) == [number / 2 for number in expected]
    assert log.read(where="order_id > 1000").collect() == []
    assert to_df(native.table("orders"), where="order_id > 1000").collect() == []
    with pytest.raises(Exception, match=r"where = .*topic 'orders' has no column 'order'. Did you mean 'order_id'"):
        log.read(where="order > 1")
    with pytest.raises(SchemaMismatchError, match="Did you mean 'order_id'"):
        to_df(native.table("orders"), where="order > 1")


def test_both_roads_and_sparks_own_filter_agree_on_where(log: Log, native: TxLog) -> None:
    log.create("types", EVERY_TYPE, partitions=1)
    log.write(log.spark.createDataFrame([FULL, EMPTY, ZERO], log.read("types").schema).coalesce(1), "types")
    conditions = (
        "a_bool",
        "NOT a_bool",
        "a_bool IS NOT TRUE",
        "a_byte <= -128",
        "a_long = -9223372036854775808 OR a_long IN (0, 1)",
        "a_float > 1.25",
        "a_double < 0 AND a_double != -0.2",
        "a_double = -0.0",
        "a_string >= 'naïve'",
        "a_string = ''",
        "a_date < DATE '1582-10-16'",
        "a_date IN (DATE '1582-10-15')",
        "an_instant = TIMESTAMP '2013-01-01 05:00:00.123456'",
        "a_wall_clock < TIMESTAMP_NTZ '1970-01-01 00:00:00'",
        "a_decimal > 0.000000001",
        "a_decimal NOT BETWEEN -1 AND 1",
        "a_list IS NULL OR nested IS NULL",
        "some_bytes IS NOT NULL",
        "_partition = 0 AND _offset >= 1",
    )
    everything = log.read("types", columns="*,_partition,_offset")
    table = native.table("types")
    roads: dict[str, Callable[[str], DataFrame]] = {
        "filter": everything.where,
        "format": lambda where: log.read("types", where=where),
        "to_df": lambda where: to_df(table, where=where),
    }
    found = {
        road: sorted(
            tuple(row)
            for row in reduce(
                DataFrame.union,
                [frame(where).selectExpr(f"{number} AS n", "row") for number, where in enumerate(conditions)],
            ).collect()
        )
        for road, frame in roads.items()
    }
    assert found["format"] == found["to_df"] == found["filter"]
    assert {number for number, _ in found["filter"]} == set(range(len(conditions)))


def test_floats_that_push_down_would_leave_out(log: Log, native: TxLog) -> None:
    """NaN is greater than any number, and -0.0 equals 0.0. The bounds and the dictionary of a row group disagree."""
    log.create(partitions=1, inline_max_bytes="1")
    for number, values in enumerate(("if(id = 3, double('NaN'), 1D)", "-0.0D", "2D")):
        log.write(
            log.frame(number * 10, 10, tasks=1).selectExpr("order_id", f"{values.replace('id', 'order_id')} AS amount")
        )
    table, expected = native.table("orders"), {"amount > 100": [3], "amount = 0": list(range(10, 20))}
    for where, ids in expected.items():
        for frame in (log.read(where=where), to_df(table, where=where), to_df(table).where(where)):
            assert sorted(row.order_id for row in frame.collect()) == ids
    # With these settings Spark lets parquet-mr compare each row, and parquet-mr does not treat -0.0 as 0.0 either.
    by_row = {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.recordLevelFilter.enabled": "true",
    }
    with session_settings(log.spark, by_row):
        assert sorted(row.order_id for row in to_df(table).where("amount = 0").collect()) == list(range(10, 20))
    groups = native_scan._grouped(planned(native), table.topic().schema)
    # The bounds of files without a NaN are used as usual.
    assert sorted((group[0].odd, len(group)) for group in groups) == [(False, 2), (True, 1)]


@contextmanager
def session_settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        assert old is not None
        spark.conf.set(name, old)


def planned(native: TxLog) -> list[FilePiece]:
    options = scan_options(native.runtime, ["orders"], {})
    topics = subscribed_topics(native.runtime, options)
    tasks = read_tasks(native.runtime, plan_topics(native.runtime, options, topics), ["amount"], options, topics)
    return [piece for task in tasks for piece in task.pieces if isinstance(piece, FilePiece)]


def test_offsets_and_times(log: Log, native: TxLog) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 10, tasks=1))
    log.write(log.frame(10, 10, tasks=1))
    table = native.table("orders")

    def ids(**options: Any) -> list[int]:
        return sorted(row.order_id for row in to_df(table, columns="order_id", **options).collect())

    tp = TopicPartition("orders", 0)
    assert ids(starting_offsets={tp: 4}, ending_offsets={"orders": {0: 12}}) == list(range(4, 12))
    assert ids(startingOffsets='{"orders":{"0":15}}') == list(range(15, 20))
    second = max(row._timestamp for row in log.read(columns="_timestamp").collect()).replace(tzinfo=datetime.UTC)
    assert ids(starting_timestamp=second) == list(range(10, 20))
    assert ids(ending_timestamp=int(second.timestamp() * 1000)) == list(range(10))
    with pytest.raises(OffsetOutOfRangeError, match="startingOffsets asks for offset 99"):
        ids(starting_offsets={tp: 99})
    with pytest.raises(InvalidRequestError, match="no time zone"):
        ids(starting_timestamp=datetime.datetime(2020, 1, 1))


def test_a_frame_does_not_grow(log: Log, native: TxLog) -> None:
    log.create()
    log.write(log.frame(0, 10))
    frame = to_df(native.table("orders"))
    log.write(log.frame(10, 10))
    assert frame.count() == 10
    assert to_df(native.table("orders")).count() == 20
    native.close()
    assert frame.count() == 10


def test_several_topics_at_once(log: Log, native: TxLog) -> None:
    for topic in ("orders", "orders-us"):
        log.create(topic)
    log.create("audit", pa.schema([("note", pa.string())]))
    log.write(log.frame(0, 10), "orders-us")
    frames = native.to_dfs("orders", "audit")
    assert {topic: frame.columns for topic, frame in frames.items()} == {"orders": ORDERS.names, "audit": ["note"]}
    assert sorted(native.to_dfs()) == ["audit", "orders", "orders-us"]
    assert {topic: frame.count() for topic, frame in native.to_dfs(subscribe_pattern="orders.*").items()} == {
        "orders": 0,
        "orders-us": 10,
    }
    assert native.to_dfs(assign={"orders-us": [0]})["orders-us"].count() <= 10


def test_many_files_start_no_listing_job(log: Log, native: TxLog) -> None:
    log.create(partitions=1, inline_max_bytes="1")
    with log.store.producer() as producer:
        for number in range(40):
            producer.send("orders", orders(number * 5, 5))
            producer.flush()
    before: Any = log.spark.conf.get(native_scan.LISTING_THRESHOLD)
    try:
        log.spark.conf.set(native_scan.LISTING_THRESHOLD, "32")
        log.spark.sparkContext.setJobGroup("native", "native")
        frame = to_df(native.table("orders"), columns="order_id,_offset")
        assert not log.spark.sparkContext.statusTracker().getJobIdsForGroup("native")
        assert log.spark.conf.get(native_scan.LISTING_THRESHOLD) == "32"
    finally:
        log.spark.conf.set(native_scan.LISTING_THRESHOLD, before)
        for name in ("spark.jobGroup.id", "spark.job.description"):
            log.spark.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]
    assert collected(frame) == sorted(((number, number) for number in range(200)), key=repr)


@pytest.mark.parametrize("folder", ["a b", "{x,y} [z]*?", "50%20ü'$", "_hidden/.dot"])
def test_folders_with_odd_names(spark: SparkSession, console: Console, tmp_path: Path, folder: str) -> None:
    url = str(tmp_path / folder / "log")
    log = Log(url, spark)
    # A topic and columns whose names have a meaning in Spark or in paths work, too.
    schema = pa.schema((("_metadata", pa.int64()), ("a.b `c`", pa.string()), ("file path", pa.string())))
    log.create("rows", schema, inline_max_bytes="1", segment_batches="2")
    with log.store.producer() as producer:
        for number in range(6):
            producer.send(
                "rows", pa.Table.from_pylist([{"_metadata": number, "a.b `c`": "x"}] * 3, schema), partition=number % 2
            )
            producer.flush()
    with TxLog(spark, url) as native:
        found = to_df(native.table("rows"), columns=["*", *PLACE], where="`a.b ``c``` = 'x'")
        assert collected(found) == collected(log.read("rows", columns=json.dumps(["*", *PLACE])))
    log.store.close()


# -- damage and mistakes ----------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_page_is_an_error_whatever_the_session_says(log: Log, native: TxLog) -> None:
    log.create(partitions=1)
    log.write(log.frame(0, 1000, tasks=1))
    (path,) = log.files()
    good = path.read_bytes()
    keys = {
        "spark.hadoop.parquet.page.verify-checksum.enabled": "false",
        "parquet.page.verify-checksum.enabled": "false",
        "spark.sql.files.ignoreCorruptFiles": "true",
        "spark.sql.files.ignoreMissingFiles": "true",
    }
    before = {key: log.spark.conf.get(key, None) for key in keys}
    try:
        for key, value in keys.items():
            log.spark.conf.set(key, value)
        for position in (100, 2000, len(good) // 2):
            damaged = bytearray(good)
            damaged[position] ^= 1
            path.write_bytes(bytes(damaged))
            with pytest.raises(Exception, match=r"(?s)could not verify page integrity|CRC|checksum"):
                to_df(native.table("orders")).collect()
        frame = to_df(native.table("orders"))
        path.unlink()
        with pytest.raises(Exception, match=path.name):
            frame.collect()
    finally:
        for key, old in before.items():
            log.spark.conf.unset(key) if old is None else log.spark.conf.set(key, old)


def test_a_file_that_was_not_planned_for_is_an_error(log: Log) -> None:
    """If Spark reports a path in an unexpected form, the rows must not get a wrong offset or be left out."""
    log.create(partitions=1, inline_max_bytes="1")
    log.write(log.frame(0, 10, tasks=1))
    log.write(log.frame(10, 10, tasks=1))
    frame = log.spark.read.parquet(*(f"file://{path}" for path in log.files()))
    files = []
    for base, name in enumerate("ab"):
        rows = RowRange(first_row=0, rows=1, base_offset=base, timestamp=0)
        piece = FilePiece(
            topic_partition=TopicPartition("orders", 0),
            file=DataFile(
                path=f"0/rows/{name}.parquet", rows=1, bytes=1, digest=None, footer_digest="", row_groups=(1,)
            ),
            schema_id=0,
            ranges=(rows,),
            offset_column=False,
            start=0,
            end=9,
        )
        files.append(
            native_scan._ScannedFile(tp=piece.topic_partition, file=piece.file, stored=False, ranges=[(rows, piece)])
        )
    for whole in (True, False):
        place = native_scan._Place(frame, files, "orders", stored=False, whole=whole, wanted=["_offset"])
        with pytest.raises(Exception, match="was not planned for a file"):
            frame.select(place.fact("b") if whole else place.matching_range()).collect()


def test_files_of_one_name_are_told_apart_by_their_folders(log: Log, native: TxLog) -> None:
    """Spark's own writer gives a task's files the same name in each `_partition=<n>`."""
    log.create(partitions=2)
    with native.transaction("adopts") as txn:
        txn.write(log.frame(0, 20_000, tasks=1), "orders", key="order_id", road="executors")
    frame = to_df(native.table("orders"), columns=["*", *PLACE])
    names = [Path(path).name for path in files_of(frame)]
    # Spark 4.0 cannot hash keys, so txlog's tasks write, each with another name.
    assert (len(set(names)) < len(names)) is not IS_4_0
    assert frame.exceptAll(log.read(columns=",".join(["*", *PLACE]))).isEmpty()
    assert frame.count() == 20_000


def test_wrong_options(log: Log, native: TxLog) -> None:
    log.create()
    table = native.table("orders")
    with pytest.raises(
        UnknownOptionError,
        match=r"option 'isolation' is unknown: a native scan has no such option. Did you mean 'isolation_level'",
    ):
        to_df(table, isolation="read_committed")
    with pytest.raises(UnknownOptionError, match=r"'zzz' is unknown: a native scan has .*, isolation_level, "):
        to_df(table, zzz=1)
    with pytest.raises(
        InvalidRequestError,
        match=r"'minPartitions' is not supported by a native scan. hint: Spark splits this scan itself",
    ):
        to_df(table, min_partitions=3)
    with pytest.raises(
        InvalidRequestError, match=r"option 'isolation\.level' is given twice, once as 'ISOLATIONLEVEL'"
    ):
        to_df(table, isolation_level="read_committed", ISOLATIONLEVEL="read_uncommitted")
    with pytest.raises(InvalidRequestError, match="option 'subscribe' is not supported by a native scan"):
        native.to_dfs(subscribe="orders")
    with pytest.raises(SchemaMismatchError, match="has no column 'x'"):
        to_df(table, columns=["x"])
    assert parse_read_options({"path": log.url, "subscribe": "orders", "WHERE": "a = 1"})[WHERE] == "a = 1"


def test_a_session_that_reads_parquet_without_row_numbers_is_told_so(log: Log, native: TxLog) -> None:
    log.create()
    log.write(log.frame(0, 10))
    before: Any = log.spark.conf.get(native_scan.V1_SOURCES)
    log.spark.conf.set(native_scan.V1_SOURCES, "avro, csv")
    try:
        with pytest.raises(InvalidRequestError, match=r"topic 'orders': .*'avro, csv'.* add .parquet. to the list"):
            to_df(native.table("orders"))
    finally:
        log.spark.conf.set(native_scan.V1_SOURCES, before)
    assert to_df(native.table("orders")).count() == 10
