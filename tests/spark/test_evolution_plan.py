"""A topic whose columns change between `load()`, planning and each micro-batch, called as Spark calls it but without
Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

import txlog
from pyspark_txlog.datasource import TxlogDataSource
from tests.evolution.log import change
from tests.spark.streaming import Query
from txlog.client.store import Store
from txlog.core.evolution import AddColumn, Change, DropColumn, RenameColumn, SetType
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError

AB = pa.schema((("id", pa.int32()), ("a", pa.string()), ("b", pa.string())))
SWAP: list[Change] = [RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as made:
        made.create_topic("orders", AB)
        yield made


def send(store: Store, *rows: dict[str, Any]) -> None:
    with store.producer() as producer:
        producer.send("orders", list(rows), partition=0).result()


def loaded(store: Store, **options: str) -> tuple[TxlogDataSource, StructType]:
    """Return what Spark keeps of a `load()`: the instance that told the schema, and the schema as JSON."""
    source = TxlogDataSource({"path": store.runtime.url, "subscribe": "orders", **options})
    schema = source.schema()
    kept: TxlogDataSource = pickle.loads(pickle.dumps(source))
    return kept, StructType.fromJson(schema.jsonValue())


def read(source: TxlogDataSource, schema: StructType) -> list[dict[str, Any]]:
    reader: Any = source.reader(schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_frame_that_was_loaded_before_a_swap_of_names_keeps_its_columns(store: Store) -> None:
    send(store, {"id": 1, "a": "A", "b": "B"})
    before = loaded(store)
    filtered = loaded(store, where="a = 'A'", columns="id")
    change(store, *SWAP)
    send(store, {"id": 2, "a": "B", "b": "A"})
    everything = [{"id": 1, "a": "A", "b": "B"}, {"id": 2, "a": "A", "b": "B"}]
    assert read(*before) == everything
    assert read(*filtered) == [{"id": 1}, {"id": 2}]
    # The second change: the topic already has ids that were given by a change.
    between = loaded(store)
    change(store, *SWAP)
    assert read(*between) == [{"id": 1, "a": "B", "b": "A"}, {"id": 2, "a": "B", "b": "A"}]
    assert read(*before) == everything


def test_a_users_own_schema_names_the_newest_columns(store: Store) -> None:
    send(store, {"id": 1, "a": "A", "b": "B"})
    change(store, *SWAP)
    source = TxlogDataSource({"path": store.runtime.url, "subscribe": "orders"})
    schema = StructType([StructField("id", IntegerType()), StructField("a", StringType())])
    assert read(pickle.loads(pickle.dumps(source)), schema) == [{"id": 1, "a": "B"}]


def test_df_schema_is_that_of_a_topic_that_never_changed(store: Store) -> None:
    _, before = loaded(store)
    change(store, *SWAP)
    _, after = loaded(store)
    assert [column.jsonValue() for column in after] == [
        {"name": name, "type": column.dataType.jsonValue(), "nullable": True, "metadata": {}}
        for name, column in zip(["id", "b", "a"], before, strict=True)
    ]


def test_a_frame_fails_if_newer_rows_lack_its_column(store: Store) -> None:
    send(store, {"id": 1, "a": "A", "b": "B"})
    before = loaded(store)
    change(store, DropColumn(("a",)), AddColumn(SchemaField(id=1, name="a", type="string", default="other")))
    assert read(*before) == [{"id": 1, "a": "A", "b": "B"}]
    assert read(*loaded(store)) == [{"id": 1, "b": "B", "a": "other"}]
    send(store, {"id": 2, "a": "new", "b": "B"})
    with pytest.raises(SchemaMismatchError, match=r"column 'a' was dropped.*restart the query"):
        read(*before)


def test_a_topic_that_was_created_again_has_columns_of_its_own(store: Store) -> None:
    send(store, {"id": 1, "a": "A", "b": "B"})
    change(store, *SWAP)
    before = loaded(store)
    store.delete_topic("orders")
    store.create_topic("orders", AB)
    change(store, RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b"))
    send(store, {"id": 2, "a": "A", "b": "B"})
    assert read(*before) == [{"id": 2, "a": "A", "b": "B"}]


def rows_of_batch(query: Query) -> list[dict[str, Any]]:
    assert query.next()
    made = query.read(query.plan())
    query.done()
    return made


@pytest.mark.parametrize("has_schema", [False, True])
def test_each_batch_of_a_query_has_the_columns_of_its_first(store: Store, has_schema: bool) -> None:
    own = StructType([StructField("id", IntegerType()), StructField("a", StringType()), StructField("b", StringType())])
    query = Query(store, schema=own if has_schema else None, metadata_max_age_ms="0")
    send(store, {"id": 1, "a": "A", "b": "B"})
    assert rows_of_batch(query) == [{"id": 1, "a": "A", "b": "B"}]
    change(store, *SWAP)
    send(store, {"id": 2, "a": "B", "b": "A"})
    assert rows_of_batch(query) == [{"id": 2, "a": "A", "b": "B"}]
    change(store, RenameColumn(("a",), "z"))
    send(store, {"id": 3, "z": "B", "b": "A"})
    assert rows_of_batch(query) == [{"id": 3, "a": "A", "b": "B"}]
    # A new run of the query, on the same checkpoint, has the newest columns.
    again = Query(store, query.checkpoint, metadata_max_age_ms="0")
    change(store, SetType(("id",), "int64"))
    send(store, {"id": 2**40, "z": "Z", "b": "A"})
    assert again.next()
    with pytest.raises(SchemaMismatchError, match=r"column 'id' is int64 now.*restart the query"):
        again.read(again.plan())
    third = Query(store, query.checkpoint, metadata_max_age_ms="0")
    assert rows_of_batch(third) == [{"id": 2**40, "b": "A", "z": "Z"}]


def test_all_tasks_of_a_write_mean_the_columns_of_its_begin(store: Store) -> None:
    """The names are swapped after the write began and before its task runs."""
    _, schema = loaded(store)
    sink = TxlogDataSource({"path": store.runtime.url, "topic": "orders", "storage.fsync": "false"})
    writer = pickle.loads(pickle.dumps(sink.writer(schema, False)))
    change(store, *SWAP)
    rows = pa.RecordBatch.from_pylist([{"id": 1, "a": "A", "b": "B"}], schema=AB)
    writer.commit([writer.write(iter([rows]))])
    assert store.table("orders").to_arrow(columns=["id", "a", "b"]).to_pylist() == [{"id": 1, "a": "B", "b": "A"}]
