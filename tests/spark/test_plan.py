"""Planning without Spark: the columns, offsets and pieces of the input partitions, and the requests that planning
costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import txlog
from pyspark_txlog.arrow import MAX_ROWS, spark_batches
from pyspark_txlog.source.batch_reader import TxlogReader, plan_input, schema_and_topics
from pyspark_txlog.source.metadata_tables import _OF_PARTITIONS, _OF_THE_STORE
from pyspark_txlog.source.options import ReadOptions, parse_read_options, settled
from txlog.client.reading import ReadTask
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.engine import pack_tasks
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore

ORDERS = pa.schema(
    (
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("carrier", pa.string()),
    )
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Yield a store with two partitions of orders: 12 small batches of one row each."""
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as made:
        made.create_topic("orders", ORDERS, 2)
        with made.producer() as producer:
            for number in range(12):
                producer.send("orders", [{"order_id": number, "carrier": "x"}], partition=number % 2)
                producer.flush()
        yield made


def options(store: Store, **others: str) -> ReadOptions:
    given = {"path": store.runtime.url, "subscribe": "orders", **others}
    return settled(parse_read_options(given), store.runtime.settings)


def plan(store: Store, schema: StructType | None = None, **others: str) -> list[tuple[ReadTask, ...]]:
    parsed = options(store, **others)
    with_schema = schema or schema_and_topics(parsed)[0]
    found = plan_input(store.runtime, parsed, with_schema)
    return [tuple(task for task in run if isinstance(task, ReadTask)) for run in found]


def test_columns_are_pruned_at_planning(store: Store) -> None:
    for made in (
        plan(store, columns="amount,_offset"),
        plan(store, StructType([StructField("amount", DoubleType()), StructField("_offset", LongType())])),
    ):
        assert [(task.columns, task.metadata_columns) for run in made for task in run] == [
            (("amount",), ("_offset",))
        ] * 2
    (run,) = plan(store)
    assert [(task.columns, task.metadata_columns) for task in run] == [(tuple(ORDERS.names), ())] * 2


def test_an_input_partition_says_which_offsets_it_holds(store: Store) -> None:
    made = plan(store, minPartitions="4")
    assert len(made) == 4
    assert [[(task.topic_partition.partition, task.start, task.end, task.rows) for task in run] for run in made] == [
        [(0, 0, 3, 3)],
        [(0, 3, 6, 3)],
        [(1, 0, 3, 3)],
        [(1, 3, 6, 3)],
    ]
    assert all(task.relist for run in made for task in run)


def test_small_pieces_of_several_partitions_share_a_spark_task(store: Store) -> None:
    ((first, second),) = pack_tasks([task for run in plan(store, minPartitions="4") for task in run if not task.start])
    assert [(each.topic_partition.partition, each.start, each.end) for each in (first, second)] == [
        (0, 0, 3),
        (1, 0, 3),
    ]


def test_a_read_gives_the_columns_in_the_order_asked_for(store: Store) -> None:
    schema = StructType(
        [StructField("_offset", LongType()), StructField("carrier", StringType()), StructField("order_id", LongType())]
    )
    reader = TxlogReader(options(store), schema)
    (partition,) = reader.partitions()
    (batch,) = reader.read(partition)
    assert batch.schema.names == ["_offset", "carrier", "order_id"]
    assert batch.column("order_id").to_pylist() == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]
    assert batch.column("_offset").to_pylist() == [0, 1, 2, 3, 4, 5] * 2


def test_no_rows_no_input_partition(store: Store) -> None:
    ends: dict[str, Any] = {"startingOffsets": '{"orders":{"0":6,"1":6}}'}
    assert plan(store, **ends) == []
    reader = TxlogReader(options(store, **ends), schema_and_topics(options(store))[0])
    assert reader.partitions() == []
    # Spark itself then makes an empty partition.
    assert list(reader.read(InputPartition(None))) == []


def test_a_schema_that_grew_after_load_still_reads(store: Store) -> None:
    schema = schema_and_topics(options(store))[0]
    store.alter_topic("orders", add_columns=pa.schema([pa.field("note", pa.string())]))
    ((task, _),) = plan(store, schema)
    assert task.columns == tuple(ORDERS.names)


def test_what_planning_costs(store: Store) -> None:
    """PROTOCOL.md, "Request budget": planning opens no file of rows.

    It needs a LIST and the tail's GETs for each partition, and the topic's metadata.
    """
    counting = CountingStore(open_object_store(store.runtime.url))
    runtime = Runtime.open(store.runtime.url, object_store=counting)
    parsed = options(store)
    schema = schema_and_topics(parsed)[0]
    with counting.counting() as cost:
        plan_input(runtime, parsed, schema)
    assert (cost.list, cost.get, cost.total) == (1 + 2, 1 + 12, 16)
    runtime.close()


@pytest.mark.parametrize(
    ("table", "lists", "gets"),
    [
        ("partitions", 1 + 2, 1 + 12),
        ("segments", 1 + 2, 1 + 12),
        ("aborted", 1 + 2, 1 + 12),
        ("files", 1 + 2, 1 + 12),
        ("transactions", 1, 0),
        ("consumer_groups", 1 + 2, 1),
        ("history", 1, 0),
    ],
)
def test_what_a_task_of_a_metadata_table_costs(store: Store, table: str, lists: int, gets: int) -> None:
    """A look-up of each topic, then a LIST and the tail's GETs for each partition; or one LIST: nothing is in use."""
    counting = CountingStore(open_object_store(store.runtime.url))
    runtime = Runtime.open(store.runtime.url, object_store=counting)
    rows_of = {**_OF_THE_STORE, **_OF_PARTITIONS}[table]
    with counting.counting() as cost:
        rows = list(rows_of(runtime, [TopicPartition("orders", 0), TopicPartition("orders", 1)]))
    assert len(rows) == (2 if table == "partitions" else 0)
    assert (cost.list, cost.get, cost.total) == (lists, gets, lists + gets), str(cost.requests())
    runtime.close()


def test_batches_suit_spark() -> None:
    schema = StructType([StructField("n", LongType(), False)])
    small = [pa.record_batch({"n": pa.array(range(1000))}) for _ in range(100)]
    made = list(spark_batches(iter(small), schema))
    assert [batch.num_rows for batch in made] == [33_000, 33_000, 33_000, 1000]
    large = [pa.record_batch({"n": pa.array(range(600_000))}), pa.record_batch({"n": pa.array([], pa.int64())})]
    made = list(spark_batches(iter(large), schema))
    assert [batch.num_rows for batch in made] == [MAX_ROWS, MAX_ROWS, 600_000 - 2 * MAX_ROWS]
    assert made[0].schema == pa.schema([pa.field("n", pa.int64(), False)])


def test_texts_above_two_gib_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Table:
        """Arrow leaves several chunks of a column whose texts have more than 2 GiB."""

        @staticmethod
        def from_batches(batches: list[pa.RecordBatch]) -> SimpleNamespace:
            return SimpleNamespace(combine_chunks=lambda: SimpleNamespace(to_batches=lambda: batches))

    monkeypatch.setattr(pa, "Table", Table)
    schema = StructType([StructField("n", LongType())])
    made = spark_batches(iter([pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]})]), schema)
    assert [batch.column(0).to_pylist() for batch in made] == [[1, 2], [3]]


def test_wide_rows_make_smaller_batches() -> None:
    schema = StructType([StructField("text", StringType())])
    wide = pa.record_batch({"text": ["x" * 10_000] * 20_000})
    made = list(spark_batches(iter([wide]), schema))
    assert sum(batch.num_rows for batch in made) == 20_000
    assert max(batch.num_rows for batch in made) * 10_000 <= 64 * 2**20
