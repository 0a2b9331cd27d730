"""Names of columns change while a query or a write of a real Spark runs: its values never go into another column."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import pyspark_txlog
import txlog
from pyspark_txlog import TxLog
from pyspark_txlog.datasource import TxlogDataSource
from pyspark_txlog.schemas import to_spark
from tests.spark.conftest import Log, append, to_df
from txlog.client.store import Store
from txlog.errors import SchemaMismatchError

pytestmark = [pytest.mark.spark, pytest.mark.python_source]

AB = pa.schema((("id", pa.int32()), ("a", pa.string()), ("b", pa.string())))
SWAP = {"a": "b", "b": "a"}
RESTART = (
    r"(?s)topic 'orders': since version \d+ the name 'a' means another column.*this query began.*restart the query"
)


@pytest.fixture(params=["python", "native", "named topics"])
def started(
    request: pytest.FixtureRequest, log: Log, tmp_path: Path
) -> Iterator[Callable[[DataFrame], StreamingQuery]]:
    """Yield what starts a query into `orders`, always with the same checkpoint, in one of the ways that there are."""
    way, check = request.param, str(tmp_path / "check")
    queries = []

    def start(frame: DataFrame) -> StreamingQuery:
        if way == "named topics":
            frame = frame.selectExpr("*", "'orders' AS topic")
        writer = frame.writeStream.format("txlog").option("checkpointLocation", check)
        writer = writer if way == "named topics" else writer.option("topic", "orders")
        query = writer.option("storage.fsync", "false").start(log.url)
        queries.append(query)
        return query

    if way == "native":
        pyspark_txlog.install()
    yield start
    for query in queries:
        query.stop()
    pyspark_txlog.uninstall()


class Input:
    """A folder with a file for each row."""

    def __init__(self, log: Log, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.frame = log.spark.readStream.schema("id int, a string, b string").json(str(folder))

    def add(self, number: int, a: str = "A", b: str = "B") -> None:
        hidden = self.folder / f".{number}.json"
        hidden.write_text(json.dumps({"id": number, "a": a, "b": b}) + "\n")
        hidden.rename(self.folder / f"{number}.json")


def rows(store: Store) -> list[tuple[Any, ...]]:
    found = store.table("orders").to_arrow().to_pylist()
    return sorted((row["id"], row["a"], row["b"]) for row in found)


def test_a_running_query_fails_if_its_names_mean_other_columns(
    log: Log, started: Callable[[DataFrame], StreamingQuery], tmp_path: Path
) -> None:
    log.create(schema=AB, partitions=1)
    given = Input(log, tmp_path / "in")
    query = started(given.frame)
    for number in (1, 2):
        given.add(number)
        query.processAllAvailable()
    # These changes do not touch what the query's names mean.
    log.store.alter_topic(
        "orders", set_types={"id": "int64"}, column_order=["b"], add_columns=pa.schema({"c": pa.int8()})
    )
    given.add(3)
    query.processAllAvailable()
    log.store.alter_topic("orders", rename_columns={"c": "d"})
    assert rows(log.store) == [(number, "A", "B") for number in (1, 2, 3)]
    log.store.alter_topic("orders", rename_columns=SWAP)
    given.add(4)
    with pytest.raises(StreamingQueryException, match=RESTART):
        query.processAllAvailable()
    assert rows(log.store) == [(number, "B", "A") for number in (1, 2, 3)]
    # The next run has the names of its own time, and writes what the failed one has not.
    again = started(given.frame)
    again.processAllAvailable()
    assert rows(log.store) == [*((number, "B", "A") for number in (1, 2, 3)), (4, "A", "B")]


def source_of(store: Store, **options: str) -> TxlogDataSource:
    return TxlogDataSource({"path": store.runtime.url, "storage.fsync": "false", **options})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as made:
        made.create_topic("orders", AB)
        yield made


def task(writer: Any, number: int, **more: list[str]) -> Any:
    rows = pa.table({"id": pa.array([number], pa.int32()), "a": ["A"], "b": ["B"], **more})
    return pickle.loads(pickle.dumps(writer)).write(iter(rows.to_batches()))


def with_topic(store: Store) -> StructType:
    return to_spark(store.runtime.topic("orders", 0).schema).add("topic", "string")


def test_tasks_of_rows_that_name_their_topics_cannot_mean_different_columns(store: Store) -> None:
    schema = with_topic(store)
    writer = source_of(store).writer(schema, False)
    first = task(writer, 1, topic=["orders"])
    store.alter_topic("orders", rename_columns=SWAP)
    second = task(writer, 2, topic=["orders"])
    with pytest.raises(
        SchemaMismatchError, match=r"'a' means another column.*first task of this write began.*write again"
    ):
        writer.commit([first, second])
    writer.abort([first, second])
    assert rows(store) == []
    # Both tasks after the change: as if the write had begun then.
    writer = source_of(store).writer(schema, False)
    writer.commit([task(writer, 1, topic=["orders"]), task(writer, 2, topic=["orders"])])
    assert rows(store) == [(1, "A", "B"), (2, "A", "B")]


def test_tasks_of_different_versions_commit_if_names_mean_the_same(store: Store) -> None:
    schema = with_topic(store)
    store.create_topic("other", AB, partitions=2)
    writer = source_of(store).writer(schema, False)
    parts = [task(writer, 1, topic=["orders"])]
    store.alter_topic("orders", drop_columns=["b"], add_columns=pa.schema({"c": pa.int8()}))
    with pytest.raises(SchemaMismatchError, match="no column 'b'"):
        task(writer, 2, topic=["orders"])
    parts.append(task(writer, 3, topic=["other"]))
    writer.commit(parts)
    assert store.table("orders").to_arrow(columns=["id", "a", "c"]).to_pylist() == [{"id": 1, "a": "A", "c": None}]
    assert store.table("other").count() == 1


def test_the_python_source_reads_each_version_in_batches_and_streams(log: Log, tmp_path: Path) -> None:
    """Spark's own processes read: the topic has segments of several versions, inline rows and a merged file."""
    log.create(schema=AB, partitions=1, segment_batches="2", inline_max_bytes="1")
    store = log.store
    with store.producer(metadata_max_age_ms=0) as producer:
        producer.send("orders", [{"id": 1, "a": "A", "b": "B"}, {"id": 2, "a": "A2", "b": None}]).result()
    before = log.read()
    store.alter_topic("orders", rename_columns=SWAP, set_types={"id": "int64"})
    store.alter_topic("orders", drop_columns=["a"], add_columns=pa.schema({"n": pa.int8()}), column_defaults={"n": 7})
    with store.producer() as producer:
        for number in range(3, 6):
            producer.send("orders", {"id": 2**40 + number, "b": "new", "n": None}).result()
    store.alter_topic("orders", add_columns=pa.schema({"a": pa.float64()}))
    wanted = [
        {"id": 1, "b": "A", "n": 7, "a": None},
        {"id": 2, "b": "A2", "n": 7, "a": None},
        *({"id": 2**40 + number, "b": "new", "n": None, "a": None} for number in range(3, 6)),
    ]
    found = [row.asDict() for row in log.read().orderBy("id").collect()]
    assert found == wanted
    assert log.read().columns == ["id", "b", "n", "a"]
    assert [row.n for row in log.read(columns="n", where="b = 'A'").collect()] == [7]
    assert log.read().where("n = 7").count() == 2
    assert log.read(schema="n tinyint, id bigint").where("id = 1").collect()[0].asDict() == {"n": 7, "id": 1}
    # A frame from before the changes: a dropped column cannot be shown, and nothing else is shown in its place.
    with pytest.raises(Exception, match=r"(?s)column '(a|b|id)'.*restart the query"):
        before.collect()
    stream = log.spark.readStream.format("txlog").option("subscribe", "orders").option("startingOffsets", "earliest")
    query = stream.load(log.url).writeStream.format("memory").queryName("evolved").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "check")).start().awaitTermination()
    assert [row.asDict() for row in log.spark.table("evolved").orderBy("id").collect()] == wanted
    with TxLog(log.spark, log.url) as native:
        assert [row.asDict() for row in to_df(native.table("orders")).orderBy("id").collect()] == wanted


def test_append_adds_columns_if_it_is_told_so(log: Log) -> None:
    log.create(schema=AB, partitions=1)
    frame = log.spark.sql("SELECT 1 AS id, 'A' AS a, 5 AS extra")
    with TxLog(log.spark, log.url, {"fsync": False}) as native:
        table = native.table("orders")
        with pytest.raises(SchemaMismatchError, match="the topic has no column 'extra'"):
            append(table, frame)
        with pytest.raises(SchemaMismatchError, match="column 'a': expected string, found int"):
            append(table, frame.selectExpr("1 AS a", "extra"), merge_schema=True)
        assert table.schema.names == ["id", "a", "b"]
        append(table, frame, merge_schema=True)
        append(table, frame.selectExpr("id", "extra"), merge_schema=True, road="executors")
        with native.transaction("t") as txn:
            txn.write(frame.selectExpr("extra", "'x' AS more"), "orders", merge_schema=True)
        assert table.schema.names == ["id", "a", "b", "extra", "more"]
        found = sorted(tuple(row) for row in to_df(table).fillna("", ["a", "b", "more"]).fillna(0).collect())
        assert found == [(0, "", "", 5, "x"), (1, "", "", 5, ""), (1, "A", "", 5, "")]


def test_the_writes_of_one_transaction_mean_the_same_columns(log: Log) -> None:
    log.create(schema=AB, partitions=1)
    frame = log.spark.sql("SELECT 1 AS id, 'A' AS a, 'B' AS b")

    def write_across_a_swap(native: TxLog) -> None:
        with native.transaction("t") as txn:
            txn.write(frame, "orders")
            log.store.alter_topic("orders", rename_columns=SWAP)
            txn.write(frame, "orders")

    with TxLog(log.spark, log.url, {"fsync": False}) as native:
        with pytest.raises(SchemaMismatchError, match="'a' means another column"):
            write_across_a_swap(native)
        with native.transaction("t") as txn:
            txn.write(frame, "orders")
    assert rows(log.store) == [(1, "A", "B")]


STRICT = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field(
            "s", pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.string())]), nullable=False
        ),
        pa.field(
            "l", pa.list_(pa.field("element", pa.struct([pa.field("x", pa.int8(), nullable=False)]), nullable=False))
        ),
        pa.field("m", pa.map_(pa.string(), pa.field("value", pa.struct([pa.field("x", pa.int8(), nullable=False)])))),  # type: ignore[call-overload]
    ]
)


@pytest.mark.parametrize("inline", ["1", "10000"])
@pytest.mark.parametrize("installed", [False, True])
def test_fields_inside_of_columns_become_nullable(log: Log, installed: bool, inline: str) -> None:
    log.create(schema=STRICT, partitions=1, inline_max_bytes=inline)
    store = log.store
    old = {"id": 1, "s": {"x": 1, "y": "Y"}, "l": [{"x": 1}], "m": [("k", {"x": 1})]}
    new = {"id": 2, "s": {"x": None, "y": None}, "l": [None, {"x": None}], "m": [("k", {"x": None})]}
    with store.producer() as producer:
        producer.send("orders", old).result()
    store.alter_topic(
        "orders",
        nullable_columns=["s.x", "l.element", "l.element.x", "m.value.x"],
        set_types={"s.x": "int32", "l.element.x": "int64"},
        rename_columns={"s.y": "z"},
    )
    with store.producer() as producer:
        producer.send("orders", {**new, "s": {"x": None, "z": None}}).result()
    wanted = [{**old, "s": {"x": 1, "z": "Y"}}, {**new, "s": {"x": None, "z": None}}]
    schema = to_spark(store.runtime.topic("orders", 0).schema)
    if installed:
        pyspark_txlog.install()
    frame = log.read()
    assert frame.schema == schema
    assert frame.orderBy("id").toArrow().to_pylist() == wanted
    assert frame.where("s.x IS NULL").count() == 1
    assert frame.where("exists(l, each -> each IS NULL OR each.x IS NULL)").count() == 1
    with TxLog(log.spark, log.url) as native:
        assert to_df(native.table("orders")).orderBy("id").toArrow().to_pylist() == wanted
        # Spark's own writer: a null that was refused before.
        append(native.table("orders"), frame.selectExpr("id + 10 AS id", "s", "l", "m"), road="executors")
        assert to_df(native.table("orders")).where("s.x IS NULL AND id > 10").count() == 1
    assert [row["s"] for row in store.table("orders").to_arrow(columns=["s"]).to_pylist()] == [
        {"x": 1, "z": "Y"},
        {"x": None, "z": None},
    ] * 2
