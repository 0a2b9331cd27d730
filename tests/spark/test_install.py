"""`install()`: format("txlog") by Spark's own Parquet reader and writer, with the results of the Python data source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lab.invariants import check_store
from pyspark_txlog import install, patch, uninstall
from pyspark_txlog.messages import NotNativeError
from pyspark_txlog.native import write
from tests.spark.conftest import ORDERS, Console, Log
from tests.spark.limits import IS_4_0, at_most
from tests.spark.test_stream_sink import Files, committed, forget_last_commit, query_id, run, start
from txlog.errors import InvalidRequestError
from txlog.storage.open import open_object_store

pytestmark = pytest.mark.spark

METHODS = ((DataFrameReader, "load"), (DataFrameWriter, "save"), (DataStreamWriter, "start"), (SparkSession, "sql"))


@pytest.fixture(autouse=True)
def installed(format_used: None) -> None:
    """Install, whatever the run's --spark-format is."""
    install()
    patch._SAID.clear()


@contextmanager
def python_source() -> Iterator[None]:
    uninstall()
    try:
        yield
    finally:
        install()


def is_native(frame: DataFrame) -> bool:
    return "BatchScan" not in frame._jdf.queryExecution().executedPlan().toString()


def sorted_rows(frame: DataFrame) -> list[str]:
    return sorted(map(str, frame.collect()))


# -- the hook ---------------------------------------------------------------------------------------------------------


def test_install_and_uninstall_are_idempotent() -> None:
    uninstall()
    originals = [getattr(owner, name) for owner, name in METHODS]
    install()
    ours = [getattr(owner, name) for owner, name in METHODS]
    assert all(one is not other for one, other in zip(ours, originals, strict=True))
    assert [method.__doc__ for method in ours] == [method.__doc__ for method in originals]
    install()
    assert [getattr(owner, name) for owner, name in METHODS] == ours
    for _ in range(2):
        uninstall()
        assert [getattr(owner, name) for owner, name in METHODS] == originals


@pytest.mark.parametrize("native", [True, False])
def test_sql_that_would_change_rows_is_refused_in_one_sentence(log: Log, native: bool) -> None:
    """Spark's own error for a native scan has 119 lines of INTERNAL_ERROR."""
    log.create()
    log.write(log.frame(0, 10))
    options: dict[str, Any] = {} if native else {"minPartitions": 1}
    frame = log.read(**options)
    assert is_native(frame) is native
    frame.createOrReplaceTempView("v")
    frame.filter("order_id > 5").select("order_id").createOrReplaceTempView("`some rows`")
    changes = {
        "DELETE FROM v": " WHERE order_id = 1",
        "update v": " SET order_id = 1",
        "MERGE INTO v": " USING (SELECT 1 AS n) s ON v.order_id = s.n WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE v": "",
        "DELETE  FROM `some rows`": "",
    }
    for what, rest in changes.items():
        with pytest.raises(InvalidRequestError) as found:
            log.spark.sql(what + rest)
        said = str(found.value)
        with pytest.raises(InvalidRequestError, match="SQL cannot change or delete"):
            log.spark.sql(f"-- a note\n/* and\none */ {what} /* more */{rest}")
        assert said.startswith(f"{what}: SQL cannot change or delete the rows of a topic. hint: `txlog erase TOPIC ")
        assert (len(said) <= 300, found.value.__context__) == (True, None)
    assert log.ids() == [*range(10)]
    for view in ("v", "some rows"):
        log.spark.catalog.dropTempView(view)


def test_what_spark_says_of_other_tables_stays(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 10))
    log.read().createOrReplaceTempView("v")
    log.spark.range(3).createOrReplaceTempView("numbers")
    for statement in ("DELETE FROM numbers", "UPDATE numbers SET id = 1", "DELETE FROM nope", "SELECT nope FROM v"):
        said = r"nope|numbers|unknown|Unexpected table relation"
        with pytest.raises(Exception, match=rf"{said}|UPDATE TABLE is not supported" if IS_4_0 else said) as found:
            log.spark.sql(statement)
        assert not isinstance(found.value, InvalidRequestError)
    numbers = log.spark.sql("SELECT * FROM {rows} WHERE id > :least", args={"least": 1}, rows=log.spark.range(3))
    assert numbers.collect() == [(2,)]
    for view in ("v", "numbers"):
        log.spark.catalog.dropTempView(view)


def test_a_wrapper_of_another_library_stays_and_ours_passes_calls_on(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.create()
    log.write(log.frame(0, 10))
    ours = DataFrameReader.load

    def theirs(reader: DataFrameReader, *args: Any) -> DataFrame:
        return ours(reader, *args)

    monkeypatch.setattr(DataFrameReader, "load", theirs)
    assert is_native(log.read())
    uninstall()
    assert vars(DataFrameReader)["load"] is theirs
    assert not is_native(log.read())


def test_options_are_read_from_sparks_own_map(spark: SparkSession) -> None:
    given = {f"option{number}": f"{number}\n, {number}" for number in range(9)} | {"empty": ""}

    def read(options: dict[str, str]) -> dict[str, str]:
        return patch._options(spark.read.options(**options)._jreader.extraOptions(), None)

    assert read({}) == {}
    assert read(given) == given
    with pytest.raises(NotNativeError, match="contains a NUL character"):
        read({**given, "another": "a\0b"})


def test_other_formats_are_not_touched(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("another format was prepared natively")

    for name in ("load", "begin_save", "begin_stream"):
        monkeypatch.setattr(f"pyspark_txlog.native.format.{name}", fail)
    frame = log.frame(0, 10)
    frame.write.save(str(tmp_path / "default"))
    frame.write.format("json").mode("append").save(str(tmp_path / "json"))
    frame.write.save(str(tmp_path / "orc"), "orc", "append", None, compression="none")
    assert log.spark.read.load(str(tmp_path / "default")).count() == 10
    assert log.spark.read.load(str(tmp_path / "json"), "json", frame.schema).count() == 10
    assert log.spark.read.format("orc").load([str(tmp_path / "orc")]).count() == 10
    stream = log.spark.readStream.schema(frame.schema).parquet(str(tmp_path / "default"))
    query = stream.writeStream.trigger(availableNow=True).start(
        str(tmp_path / "copy"), "parquet", checkpointLocation=str(tmp_path / "checkpoint")
    )
    query.awaitTermination()
    assert log.spark.read.parquet(str(tmp_path / "copy")).count() == 10


def test_arguments_count_like_calls(log: Log) -> None:
    log.create()
    log.frame(0, 10).write.save(log.url, "txlog", "append", None, topic="orders")
    found = log.spark.read.load(log.url, format="TxLog", schema="order_id long", subscribe="orders")
    assert is_native(found)
    assert sorted(row.order_id for row in found.collect()) == list(range(10))


# -- reads ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def used(log: Log) -> Log:
    """A topic with rows in files and inline, of two schemas, with columns that are not nullable at every depth."""
    fields = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.list_(pa.string()))])
    log.create("orders", pa.schema([*ORDERS, pa.field("inner", fields, nullable=False)]), key_columns="order_id")
    inner = "named_struct('x', int(order_id), 'y', array(carrier)) AS inner"
    log.write(log.frame(0, 11_000).selectExpr("*", inner))
    log.write(log.frame(11_000, 50).selectExpr("*", inner))
    log.store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    log.write(log.frame(11_050, 50).selectExpr("*", inner, "'new' AS note"))
    return log


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"columns": "*,_topic,_partition,_offset,_timestamp"},
        {"columns": "_offset"},
        {"schema": "note string, order_id long not null, _offset long, _partition int not null"},
        {"where": "order_id > 10990 AND carrier = 'c1'", "columns": "order_id,_offset"},
        {"startingOffsets": '{"orders":{"0":7,"1":5000}}', "endingOffsets": '{"orders":{"0":-1,"1":5500}}'},
        {"assign": '{"orders":[1]}', "isolation_level": "read_uncommitted"},
        {"endingTimestamp": 1},
    ],
    ids=str,
)
def test_rows_and_schema_are_those_of_the_python_source(used: Log, options: dict[str, Any]) -> None:
    topic = None if "assign" in options else "orders"
    found = used.read(topic, **options)
    with python_source():
        expected = used.read(topic, **options)
    assert (is_native(found), is_native(expected)) == (True, False)
    assert found.schema == expected.schema
    assert sorted_rows(found) == sorted_rows(expected)
    assert found.count() == expected.count()


@pytest.mark.smoke
def test_several_topics_are_one_frame(log: Log) -> None:
    for number, topic in enumerate(["eu", "us", "empty"]):
        log.create(topic)
        log.write(log.frame(number * 10, 10 if number < 2 else 0), topic)
    options = {"columns": "_topic,order_id,_offset"}
    found = log.read("eu,us,empty", **options)
    with python_source():
        expected = log.read("eu,us,empty", **options)
    assert found.schema == expected.schema
    assert sorted_rows(found) == sorted_rows(expected)
    assert is_native(log.read(None, subscribePattern=".*"))


def test_a_native_frame_is_planned_when_it_is_made(log: Log) -> None:
    log.create()
    log.write(log.frame(0, 10))
    before = log.read()
    log.write(log.frame(10, 10))
    assert (before.count(), log.read().count()) == (10, 20)


def test_filters_and_columns_reach_the_files(used: Log) -> None:
    plan = used.read().where("order_id = 5").select("amount")._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [EqualTo(order_id,5)]" in plan
    assert "ReadSchema: struct<order_id:bigint,amount:double>" in plan


def test_a_read_that_is_not_native_says_why_once(log: Log, console: Console) -> None:
    log.create()
    for _ in range(2):
        assert not is_native(log.read(minPartitions=2))
        assert log.read(None, metadata="partitions").count() == 2
    assert not is_native(log.read(failOnDataLoss="false"))
    said = [line for line in console.text().splitlines() if "Python data source" in line]
    assert [line.rpartition("source: ")[2].split(" ")[:3] for line in said] == [
        ["the", "option", "'minPartitions'"],
        ["the", "option", "'metadata'"],
        ["failOnDataLoss=false:", "a", "native"],
    ]


@pytest.mark.parametrize(
    "options", [{"topic": "ordrs"}, {"endingOfsets": "latest"}, {"where": "order_id ~ 3"}, {"schema": "order_id int"}]
)
def test_errors_of_a_read_are_those_of_the_python_source(log: Log, options: dict[str, Any]) -> None:
    log.create()

    def error() -> tuple[type, str]:
        with pytest.raises(Exception) as caught:
            log.read(**options).collect()
        return type(caught.value), [line for line in str(caught.value).splitlines() if "txlog.errors." in line][-1]

    found = error()
    with python_source():
        assert found == error()


# -- writes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 12_000, 48_000])
def test_a_write_is_the_write_of_the_python_sink(log: Log, count: int) -> None:
    """Row for row: partitions of keys, and of tasks without a key. The driver writes the rows, or each task its own."""
    for topic in ("native", "python"):
        log.create(topic, partitions=3)
        log.create(f"{topic}-keys", partitions=3, key_columns="carrier")

    def write(topic: str) -> None:
        frame = log.frame(0, count, tasks=4)
        log.write(frame, topic)
        log.write(frame, f"{topic}-keys", transactional_id=topic, txn_version=4, compression_type="snappy")

    write("native")
    with python_source():
        write("python")
    assert not patch._SAID
    for suffix in ("", "-keys"):
        places = [sorted_rows(log.read(f"{topic}{suffix}", columns="*,_partition")) for topic in ("native", "python")]
        assert places[0] == places[1]
    described = [log.store.admin().describe_transaction(topic) for topic in ("native", "python")]
    assert {(each.state, each.txn_version, each.txn_scope) for each in described} == {("COMPLETE_COMMIT", 4, "")}
    check_store(open_object_store(log.url))


@pytest.mark.parametrize("columns", [["order_id", "carrier"], ["order_id"], ["order_id + 0 AS order_id"], ["view"]])
def test_local_rows_go_to_the_partitions_of_their_tasks(log: Log, columns: list[str]) -> None:
    """Spark itself computes a column of such rows while it plans, and would number each row's task 0."""
    frame = log.spark.createDataFrame(log.frame(0, 100).select("order_id", "carrier").toArrow())
    if columns == ["view"]:
        frame.select("order_id").createOrReplaceTempView("local_rows")
        frame = log.spark.table("local_rows")
    else:
        frame = frame.selectExpr(*columns)
    log.create("native", partitions=4)
    log.write(frame, "native")
    log.create("python", partitions=4)
    with python_source():
        log.write(frame, "python")
    places = [sorted_rows(log.read(topic, columns="order_id,_partition")) for topic in ("native", "python")]
    assert places[0] == places[1]
    assert len({row.rpartition("_partition")[2] for row in places[0]}) == 2, "those of two tasks"


def test_tasks_are_numbered_only_if_that_can_choose_a_partition(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark needs longer for a plan with the numbers of tasks. These rows are small by their types."""
    log.create("one", partitions=1)
    required = pa.schema([pa.field("order_id", pa.int64(), nullable=False)])
    log.create("keyed", required, partitions=3, key_columns="order_id")
    log.create("nullable", partitions=3, key_columns="carrier")
    log.create("several", partitions=3)
    fetched: list[bool] = []

    original = write._fetched

    def fetch(frame: DataFrame) -> pa.Table:
        fetched.append("_partition" in frame.columns)
        return original(frame)

    monkeypatch.setattr(write, "_fetched", fetch)
    rows = log.frame(0, 10, tasks=4).drop("carrier")

    def numbered(frame: DataFrame, topic: str) -> list[bool]:
        fetched.clear()
        log.write(frame, topic)
        return fetched

    assert numbered(rows, "one") == [False]
    assert numbered(rows.select("order_id"), "keyed") == [False]
    assert numbered(rows, "nullable") == [True], "a row without a key goes to the partition of its task"
    assert numbered(rows, "several") == [True]
    assert numbered(rows.coalesce(1), "several") == [False]
    assert numbered(log.frame(0, 10, tasks=1).drop("carrier"), "several") == [False]
    places = log.read("several", columns="_partition").groupBy("_partition").count().collect()
    # Tasks 0 and 3 of the first write, and all rows of the two others.
    assert {row._partition: row["count"] for row in places} == {0: 25, 1: 3, 2: 2}


def test_a_version_counts_whichever_way_wrote_it(log: Log, console: Console) -> None:
    log.create()
    once: dict[str, Any] = {"transactional_id": "nightly", "txn_version": 1}
    log.write(log.frame(0, 10), **once)
    with python_source():
        log.write(log.frame(0, 10), **once)
        log.write(log.frame(10, 10), transactional_id="nightly", txn_version=2)
    log.write(log.frame(10, 10), transactional_id="nightly", txn_version=2)
    assert console.says("'nightly': txn.version 2 is not above 2, the last one committed: this write was done before")
    assert log.ids() == list(range(20))


def test_a_native_write_that_fails_leaves_nothing(log: Log) -> None:
    log.create()
    frame = log.spark.sql("SELECT IF(id = 70, NULL, id) AS order_id FROM range(100)")
    with pytest.raises(Exception, match="topic 'orders': column 'order_id' is not nullable"):
        log.write(frame, transactional_id="nightly")
    assert log.ids(isolation_level="read_uncommitted") == []
    assert log.transactions() == {"nightly": "COMPLETE_ABORT"}
    log.write(log.frame(0, 10), transactional_id="nightly")
    assert log.ids() == list(range(10))


def test_writes_that_are_not_native(log: Log, console: Console) -> None:
    log.create()
    log.create("latest", cleanup_policy="compact", key_columns="order_id")
    for _ in range(2):
        log.write(log.frame(0, 10).selectExpr("*", "'orders' AS topic"), None)
    log.write(log.frame(0, 10), "latest")
    assert (log.ids(), log.ids("latest")) == (sorted([*range(10), *range(10)]), list(range(10)))
    said = [line for line in console.text().splitlines() if "Python data source" in line]
    assert ["'topic'" in said[0], "'latest' is compacted" in said[1], len(said)] == [True, True, 2]
    for mode in ("overwrite", "errorifexists", "ignore"):
        with pytest.raises(Exception, match=r"append|Append"):
            log.frame(0, 1).write.format("txlog").mode(mode).option("topic", "orders").save(log.url)
    writer = log.frame(0, 1).write.format("txlog").mode("append").option("topic", "orders")
    with pytest.raises(InvalidRequestError, match=r"not partitioned .* hint: leave partitionBy and clusterBy out"):
        writer.partitionBy("carrier").save(log.url)
    with pytest.raises(AnalysisException, match="bucketBy"):
        log.frame(0, 1).write.format("txlog").mode("append").bucketBy(2, "carrier").save(log.url)
    assert len(log.ids()) == 20


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(log: Log, tmp_path: Path) -> Files:
    log.create()
    return Files(log, tmp_path / "files")


@pytest.mark.parametrize("native_first", [True, False])
def test_a_checkpoint_goes_on_with_the_other_sink(log: Log, files: Files, tmp_path: Path, native_first: bool) -> None:
    """Also over a crash between the commit of the sink and that of Spark: the other sink detects the repeated batch."""
    checkpoint = tmp_path / "checkpoint"
    for life in range(4):
        expected = files.add(2)
        if (life % 2 == 0) == native_first:
            run(log, files.stream(), checkpoint)
        else:
            with python_source():
                run(log, files.stream(), checkpoint)
        assert log.ids() == expected
        assert forget_last_commit(checkpoint) == 2 * life + 1
        txn = log.store.admin().describe_transaction(f"spark-stream:{checkpoint}")
        assert (txn.txn_version, txn.txn_scope) == (2 * life + 1, query_id(checkpoint))
    check_store(open_object_store(log.url))


def test_offsets_of_a_topic_go_on_with_the_other_sink(log: Log, tmp_path: Path) -> None:
    log.create()
    log.create("clean")

    def go_on() -> None:
        stream = log.spark.readStream.format("txlog").option("subscribe", "orders").option("columns", "order_id")
        rows = stream.option("startingOffsets", "earliest").options(**at_most(30)).load(log.url)
        run(log, rows, tmp_path / "checkpoint", topic="clean", transactional_id="cleaner")

    for life in range(4):
        log.write(log.frame(life * 50, 50))
        if life % 2:
            with python_source():
                go_on()
        else:
            go_on()
        assert log.ids("clean") == list(range((life + 1) * 50))
        assert committed(log, "cleaner") == {number: end for number, (end, _) in enumerate(log.ends())}


@pytest.mark.smoke
def test_a_stream_writer_can_start_again(log: Log, files: Files, tmp_path: Path) -> None:
    expected = files.add()
    writer = files.stream().writeStream.format("txlog").option("topic", "orders").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(log.url, queryName="twice")
    assert (query.name, query.awaitTermination(120)) == ("twice", True)
    progress = query.lastProgress
    assert progress is not None
    assert progress["sink"]["description"] == "ForeachBatchSink"
    assert log.ids() == expected
    expected = files.add()
    with python_source():
        assert writer.start(log.url).awaitTermination(120)
    assert log.ids() == expected


def test_streams_that_are_not_native(log: Log, files: Files, tmp_path: Path, console: Console) -> None:
    files.add()
    rows = files.stream().selectExpr("order_id", "'orders' AS topic")
    query = start(log, rows, tmp_path / "checkpoint", topic=None, transactional_id="split")
    assert query.awaitTermination(120)
    progress = query.lastProgress
    assert progress is not None
    assert "Foreach" not in progress["sink"]["description"]
    assert "start() of format(\"txlog\") uses the Python data source: there is no option 'topic'" in console.text()
