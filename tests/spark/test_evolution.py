"""A topic whose columns change, in a real Spark: a native scan finds each file's columns by id."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_txlog import TxLog
from pyspark_txlog.native import scan as native_scan
from pyspark_txlog.native.format import load
from pyspark_txlog.schemas import to_spark
from pyspark_txlog.source.batch_reader import plan_topics, read_tasks
from pyspark_txlog.source.options import parse_read_options, settled
from tests.evolution.cases import CASES, ROW, SCHEMA as CASE_SCHEMA, expected, second_row
from tests.evolution.log import (
    CONFIG,
    LARGE,
    SCHEMA,
    Model,
    change,
    merge,
    topic_of,
    try_change,
)
from tests.golden.make_evolved import FORMAT_FOLDER
from tests.golden.test_evolved import LATEST, ORDERS as GOLDEN
from tests.spark.conftest import Log, append, to_df
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.evolution import AddColumn, AllowNulls, DropColumn, RenameColumn, SetType
from txlog.core.names import TopicPartition
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.maintenance.merge import merge_partition

pytestmark = [pytest.mark.spark, pytest.mark.python_source]


@pytest.fixture
def evolving(log: Log) -> Log:
    log.create(schema=SCHEMA, partitions=1, **{key.replace(".", "_"): str(value) for key, value in CONFIG.items()})
    return log


def plain(value: Any) -> Any:
    """Return Spark's rows as dicts."""
    if isinstance(value, tuple) and hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def rows(frame: DataFrame) -> list[Any]:
    """Return the rows of one partition, in the order of offsets."""
    made = (
        frame.collect() if "_offset" not in frame.columns else sorted(frame.collect(), key=lambda row: row["_offset"])
    )
    return [{name: value for name, value in plain(row).items() if name != "_offset"} for row in made]


def write(store: Store, model: Model, dice: random.Random, kind: str) -> None:
    topic = store.runtime.topic("orders")
    some, kept = model.some(topic, dice.choice([1, 2, 30]))
    with store.producer(None if kind == "plain" else kind, staged=kind == "staged") as producer:
        if kind == "plain":
            producer.send("orders", some, partition=0).result()
        else:
            producer.begin_transaction()
            producer.send("orders", some, partition=0)
            producer.commit_transaction()
    model.rows += kept


@pytest.mark.parametrize("seed", [1, 3, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, 2))])
def test_a_native_scan_of_a_random_world_finds_columns_by_id(evolving: Log, seed: int) -> None:
    dice = random.Random(seed)
    model = Model(dice)
    for step in range(24):
        what = dice.random()
        if what < 0.3:
            try_change(evolving.store, dice, step)
        elif what < 0.35:
            merge(evolving.store)
        else:
            write(evolving.store, model, dice, dice.choice(["plain", "eager", "staged"]))
    fields = topic_of(evolving.store).schema
    expected = model.seen_by(fields)
    with TxLog(evolving.spark, evolving.url) as native:
        table = native.table("orders")
        frame = to_df(table, columns=["*", "_offset"])
        assert frame.columns == [*(field.name for field in fields), "_offset"]
        assert rows(frame) == expected
        assert to_df(table).count() == len(expected)
        # What `load()` does after `install()`: the schema says also which columns are not nullable.
        exact = load(evolving.spark, {"path": evolving.url, "subscribe": "orders", "columns": "*,_offset"}, None)
        assert rows(exact) == expected
        assert [column.nullable for column in exact.schema] == [*(field.nullable for field in fields), False]
        half = len(expected) // 2
        offsets = sorted(row["_offset"] for row in frame.select("_offset").collect())
        part = to_df(table, columns=["*", "_offset"], where=f"_offset >= {offsets[half]}")
        assert rows(part) == expected[half:]
        for field in fields:
            condition = f"`{field.name}` IS NULL"
            missing = to_df(table, where=condition, columns=["*", "_offset"])
            assert rows(missing) == [row for row in expected if row[field.name] is None]
            if field.type.startswith("int"):
                large = frame.where(f"`{field.name}` > 20")
                assert rows(large) == [row for row in expected if row[field.name] is not None and row[field.name] > 20]


NESTED = pa.schema(
    (
        pa.field("id", pa.int32(), nullable=False),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("ratio", pa.float32()),
        pa.field("lines", pa.list_(pa.struct([pa.field("n", pa.int8()), pa.field("m", pa.string())]))),
        pa.field("by_day", pa.map_(pa.string(), pa.struct([pa.field("n", pa.float32())]))),
    )
)


def test_fields_inside_of_lists_and_maps_and_every_default(log: Log) -> None:
    log.create(schema=NESTED, partitions=1, inline_max_bytes="1")
    store = log.store
    with store.producer() as producer:
        row = {
            "id": 1,
            "ratio": float("nan"),
            "lines": [{"n": 3, "m": "m"}, None],
            "by_day": [("mo", {"n": 0.5}), ("tu", None)],
        }
        producer.send("orders", [row, {"id": 2}], partition=0).result()
    defaults: dict[str, Any] = {
        "bool": True,
        "int8": -7,
        "float32": 0.5,
        "float64": 2,
        "string": "it's `x`",
        "binary": "00ff",
        "date": -141428,
        "timestamp": -12219292800000001,
        "timestamp_ntz": 1500000,
        "decimal(20,3)": "-0.125",
    }
    added = [
        AddColumn(SchemaField(id=1, name=f"d {kind}", type=kind, default=value)) for kind, value in defaults.items()
    ]
    change(
        store,
        AllowNulls(("id",)),
        SetType(("price",), "decimal(20,2)"),
        SetType(("ratio",), "float64"),
        SetType(("lines", "element", "n"), "int64"),
        RenameColumn(("lines", "element", "m"), "n n"),
        AddColumn(SchemaField(id=1, name="m", type="string", default="new")),
        AddColumn(SchemaField(id=1, name="m", type="string", default="inner"), ("lines", "element")),
        SetType(("by_day", "value", "n"), "float64"),
        RenameColumn(("by_day", "value", "n"), "of.day"),
        *added,
    )
    with store.producer() as producer:
        row = {
            "id": None,
            "ratio": 1e300,
            "lines": [{"n": 2**40, "n n": "x", "m": None}],
            "by_day": [("we", {"of.day": 1e300})],
        }
        producer.send("orders", [row], partition=0).result()
    expected = store.table("orders").to_arrow(columns=["*"]).to_pylist()
    with TxLog(log.spark, log.url) as native:
        frame = to_df(native.table("orders"), columns=["*", "_offset"])
        # Spark returns a map as a dict, binary values as bytearray, and NaN is not equal to itself.
        found = frame.orderBy("_offset").drop("_offset").toArrow().to_pylist()
    assert repr(found) == repr(expected)
    assert found[1]["d decimal(20,3)"] is not None
    assert found[2]["d int8"] is None


def test_pushed_filters_on_a_column_that_became_wider_keep_every_row(evolving: Log) -> None:
    store = evolving.store
    with store.producer() as producer:
        made = [{"id": number, "at": {"x": 0.0 if number % 2 else -0.0, "y": 1}, "name": None} for number in range(200)]
        producer.send("orders", made, partition=0).result()
    change(store, SetType(("at", "x"), "float64"))
    with TxLog(evolving.spark, evolving.url) as native:
        frame = to_df(native.table("orders"))
        assert frame.where("at.x = 0.0").count() == 200
        assert frame.where("at.x > -1e300").count() == 200


def test_a_dropped_column_cannot_hide_a_newer_one(evolving: Log) -> None:
    """The newest version can have fewer columns than an older one, and a column of another id with an old name."""
    store = evolving.store
    with store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "old"}], partition=0).result()
    change(store, DropColumn(("name",)), DropColumn(("price",)), DropColumn(("tags",)), RenameColumn(("at",), "name"))
    with store.producer() as producer:
        producer.send("orders", [{"id": 2, "name": {"x": 1.0, "y": 2}}], partition=0).result()
    with TxLog(evolving.spark, evolving.url) as native:
        assert rows(to_df(native.table("orders"), columns=["*", "_offset"])) == [
            {"id": 1, "name": None},
            {"id": 2, "name": {"x": 1.0, "y": 2}},
        ]


def test_a_planned_frame_keeps_its_columns_or_says_restart(evolving: Log) -> None:
    store, spark = evolving.store, evolving.spark
    with store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "n", "price": 2}], partition=0).result()
    known = {"orders": topic_of(store)}
    with TxLog(spark, evolving.url) as native:
        before = to_df(native.table("orders"), columns="id,name")
        snapshot = native.snapshot("orders")
        change(store, RenameColumn(("name",), "tmp"), RenameColumn(("tags",), "name"), RenameColumn(("tmp",), "tags"))
        assert rows(before) == [{"id": 1, "name": "n"}]
        assert rows(snapshot.to_df("orders", columns="id,tags")) == [{"id": 1, "tags": "n"}]
        options = settled(parse_read_options({"path": evolving.url, "subscribe": "orders"}), native.runtime.settings)
        plans = plan_topics(native.runtime, options, {"orders": topic_of(store)})
        tasks = read_tasks(native.runtime, plans, ["id", "name"], options, known)
        old = native_scan.frame_of(spark, native.runtime, "orders", before.schema, tasks)
        assert rows(old) == [{"id": 1, "name": "n"}]
        change(store, DropColumn(("tags",)))
        with store.producer() as producer:
            producer.send("orders", [{"id": 2}], partition=0).result()
        plans = plan_topics(native.runtime, options, {"orders": topic_of(store)})
        tasks = read_tasks(native.runtime, plans, ["id", "name"], options, known)
        with pytest.raises(SchemaMismatchError, match=r"column 'name' was dropped.*restart the query"):
            native_scan.frame_of(spark, native.runtime, "orders", before.schema, tasks)
        other = replace(tasks[0], fields=topic_of(store).schema)
        with pytest.raises(SchemaMismatchError, match="changed while this read was planned"):
            native_scan.frame_of(spark, native.runtime, "orders", before.schema, [*tasks, other])


SOME = [
    "swap names",
    "drop and use the name again with another type",
    "add with a default",
    "in a struct",
    "everything, twice",
]
"""Changes that files, Spark and merges show in `make test`."""


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        pytest.param("inline", CASES, id="inline"),
        pytest.param("files", SOME, id="files"),
        pytest.param("spark", SOME, id="spark"),
        pytest.param("merged", SOME, id="merged"),
        pytest.param("files", CASES, id="files, all", marks=pytest.mark.exhaustive),
        pytest.param("spark", CASES, id="spark, all", marks=pytest.mark.exhaustive),
        pytest.param("merged", CASES, id="merged, all", marks=pytest.mark.exhaustive),
    ],
)
def test_a_native_scan_shows_each_change(log: Log, stored: str, names: Iterable[str]) -> None:
    """The rows of the table of `tests/evolution/cases.py`, for each form of stored rows."""
    # As in the table of the client: a merge joins a segment of each version.
    before, after = (2, 3) if stored == "merged" else (1, 1)
    for number, name in enumerate(names):
        case, topic = CASES[name], f"t{number}"
        log.create(topic, CASE_SCHEMA, 1, segment_batches="2", inline_max_bytes="10000" if stored == "inline" else "1")
        with TxLog(log.spark, log.url) as native:
            for _ in range(before):
                put(log, native, topic, ROW, stored)
            for each in case.changes:
                change(log.store, each, topic=topic)
        with TxLog(log.spark, log.url) as native:
            for _ in range(after):
                put(log, native, topic, second_row(case), stored)
            if stored == "merged":
                read = reading.read_session(log.store.runtime)
                merge_partition(log.store.runtime, read, TopicPartition(topic, 0), LARGE)
            old, new = expected(case)
            wanted = [old] * before + [new] * after
            frame = to_df(native.table(topic), columns=["*", "_offset"])
            assert frame.toArrow().sort_by("_offset").drop_columns("_offset").to_pylist() == wanted, name
            assert frame.columns[: len(case.first)] == list(case.first), name
            last = list(old)[-1]
            one = to_df(native.table(topic), columns=[last, "_offset"]).toArrow().sort_by("_offset")
            assert one.column(last).to_pylist() == [row[last] for row in wanted], name
            if case.where:
                assert to_df(native.table(topic), where=case.where).count() == before, name
                assert frame.where(case.where).count() == before, name


def put(log: Log, native: TxLog, topic: str, row: dict[str, Any], stored: str) -> None:
    if stored == "spark":
        fields = log.store.runtime.topic(topic, 0).schema
        given = {name: dict(value) if name == "m" and value else value for name, value in row.items()}
        schema = StructType([field for field in to_spark(fields) if field.name in row])
        append(native.table(topic), log.spark.createDataFrame([given], schema), road="executors")
        return
    with log.store.producer() as producer:
        producer.send(topic, [row], partition=0).result()


def test_spark_reads_the_golden_store_of_changed_columns(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path / "v2")
    shutil.copytree(FORMAT_FOLDER, url)
    frames = [spark.read.format("txlog").option("subscribe", "orders").load(url)]
    frames.append(load(spark, {"path": url, "subscribe": "orders"}, None))
    with TxLog(spark, url) as native:
        frames.append(to_df(native.table("orders")))
        frames.append(native.snapshot("orders").to_df("orders"))
        by_id = sorted(GOLDEN, key=lambda row: -1 if row["id"] is None else row["id"])
        for frame in frames:
            assert frame.orderBy("id").toArrow().to_pylist() == by_id
            assert [row.title for row in frame.where("d < 0.6 AND day = DATE'1969-12-31'").orderBy("id").collect()] == [
                "a1",
                None,
            ]
        latest = native.table("prices").latest()
        assert sorted((row.zone, row.id, row.price) for row in latest.collect()) == sorted(LATEST)
