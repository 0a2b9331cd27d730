"""The log's own state as DataFrames: every table has its documented columns, and agrees with the admin client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row

from pyspark_txlog.metadata_schemas import TABLES
from pyspark_txlog.source.options import parse_metadata_options
from tests.spark.conftest import ORDERS, Log
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, UnknownOptionError
from txlog.maintenance.history import recorded

pytestmark = pytest.mark.spark


def orders(first: int, count: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"order_id": number, "amount": number / 2, "carrier": "c"} for number in range(first, first + count)], ORDERS
    )


@pytest.fixture
def state(log: Log) -> Callable[..., DataFrame]:
    """Return a function that reads a table of the state."""

    def read(table: str, **options: Any) -> DataFrame:
        reader = log.spark.read.format("txlog").option("metadata", table)
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load(log.url)

    return read


@pytest.fixture
def used(log: Log) -> Log:
    """Fill topic orders, partition 0; topic other stays empty.

    The partition has a sealed segment with inline rows and a file, then an aborted file, then an open row.
    """
    log.create(segment_batches="4", inline_max_bytes="2000")
    log.create("other", partitions=1)
    with log.store.producer("done", staged=False) as done:
        for count in (3, 1000):
            with done.transaction():
                done.send("orders", orders(0, count), partition=0)
        done.begin_transaction()
        done.send("orders", orders(0, 500), partition=0)
        done.flush()
        done.abort_transaction()
    hanging = log.store.producer("open")
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.send("orders", orders(0, 1), partition=0)
    hanging.flush()
    with log.store.consumer("orders", group_id="audit", auto_offset_reset="earliest") as consumer:
        while consumer.poll(500) is not None:
            pass
        consumer.commit()
    return log


def test_each_column_has_a_name_of_its_own_and_a_meaning() -> None:
    for table in TABLES.values():
        names = [name for name, _, _ in table.columns]
        assert len(set(names)) == len(names) == len(table.schema.fields)
        assert all(doc and not doc.endswith(".") for _, _, doc in table.columns)


def test_every_table_has_its_columns_and_is_empty_in_an_empty_place(log: Log, state: Callable[..., DataFrame]) -> None:
    for name, table in TABLES.items():
        frame = state(name)
        assert frame.schema.simpleString() == table.schema.simpleString()
        assert frame.collect() == []


@pytest.mark.smoke
def test_what_the_tables_say(used: Log, state: Callable[..., DataFrame]) -> None:
    (stable, end), _ = used.ends()
    transactions = {row.transactional_id: row for row in state("transactions").collect()}
    assert {name: row.state for name, row in transactions.items()} == used.transactions()
    assert transactions["open"].partitions == [Row(topic="orders", partition=0)]
    assert transactions["open"].duration_ms >= 0
    assert transactions["done"].duration_ms is None
    assert transactions["done"].last_outcome == "abort"

    first, second = state("partitions", subscribe="orders").orderBy("partition").collect()
    assert (first.log_start_offset, first.last_stable_offset, first.log_end_offset) == (0, stable, end)
    assert (first.open_transactions, first.first_open_offset) == (1, stable)
    assert first.bytes > 0
    assert (second.log_end_offset, second.open_transactions, second.first_open_offset) == (0, 0, None)
    assert second.last_timestamp is None
    assert state("partitions").count() == 3

    segments = state("segments").collect()
    assert [(row.topic, row.base_offset, row.generation) for row in segments][:1] == [("orders", 0, 0)]
    assert sum(row.files for row in segments) == state("files").where("segment IS NOT NULL").count() > 0

    (aborted,) = state("aborted").collect()
    assert aborted.last_offset - aborted.first_offset == 500
    groups = state("consumer_groups").orderBy("partition").collect()
    assert [(row.group_id, row.topic, row.partition, row.committed_offset, row.lag) for row in groups] == [
        ("audit", "orders", 0, stable, 0),
        ("audit", "orders", 1, 0, 0),
    ]
    with recorded(used.store.runtime, "maintain") as recorder, recorder.over(TopicPartition("orders", 1), "merge"):
        recorder.add(TopicPartition("orders", 1), "published", base_offset=0, end_offset=8, generation=1, input_files=2)
        recorder.add(TopicPartition("orders", 1), "failed", message="disk full")
    failed, merged = state("history").orderBy("job", "outcome").collect()
    assert (failed.outcome, failed.message, failed.base_offset, failed.generation) == (
        "failed",
        "disk full",
        None,
        None,
    )
    assert (merged.job, merged.topic, merged.partition, merged.end_offset, merged.generation) == (
        "merge",
        "orders",
        1,
        8,
        1,
    )
    assert merged.run_id == failed.run_id
    assert merged.started_at <= merged.ended_at


def test_files_say_what_readers_see(used: Log, state: Callable[..., DataFrame]) -> None:
    files = state("files").orderBy("first_offset").collect()
    by_rows = {row.rows: row for row in files}
    assert by_rows[1000].committed_rows == 1000
    assert by_rows[500].committed_rows == 0
    assert by_rows[3].has_offset_column
    assert by_rows[1000].statistics["order_id"] == Row(min="0", max="999", nulls=0)
    assert by_rows[1000].producer_id == by_rows[500].producer_id is not None
    assert by_rows[3].producer_id is None
    assert by_rows[1000].first_timestamp == by_rows[1000].last_timestamp is not None
    on_disk = {str(path.relative_to(used.url + "/orders")) for path in used.files()}
    assert on_disk <= {row.path for row in files}
    used.store.admin().delete_records("orders", 0, 100)
    assert {row.rows: row.live_rows for row in state("files").collect()}[1000] == 1000 - 100 + by_rows[
        1000
    ].first_offset


def test_a_file_is_one_row_also_where_batches_of_other_files_lie_between_its_batches(
    log: Log, state: Callable[..., DataFrame]
) -> None:
    log.create(segment_batches="4", inline_max_bytes="2000")
    with log.store.producer() as producer:
        for count in (3, 1000, 4, 1000, 1):
            producer.send("orders", orders(0, count), partition=0)
            producer.flush()
    rows = [row for row in state("files").collect() if row.has_offset_column]
    assert [(row.rows, row.live_rows, row.committed_rows) for row in rows] == [(7, 7, 7)]
    assert (rows[0].first_offset, rows[0].end_offset) == (0, 1007)


def test_columns_are_chosen_by_a_schema_or_by_select(used: Log, state: Callable[..., DataFrame]) -> None:
    reader = used.spark.read.format("txlog").option("metadata", "transactions").schema("state string")
    assert sorted(row.state for row in reader.load(used.url).collect()) == sorted(used.transactions().values())
    with pytest.raises(
        Exception, match=r"metadata=transactions: no column 'stat' of type string. Did you mean 'state'?"
    ):
        used.spark.read.format("txlog").option("metadata", "transactions").schema("stat string").load(
            used.url
        ).collect()
    assert state("aborted", subscribePattern="oth.*").collect() == []
    assert state("partitions", assign='{"orders": [1]}').count() == 1


def test_wrong_options() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"expected one of transactions, .*found 'segment'. Did you mean 'segments'"
    ):
        parse_metadata_options({"path": "x", "metadata": "segment"})
    with pytest.raises(UnknownOptionError, match="option 'startingOffsets' is unknown: a read of metadata has"):
        parse_metadata_options({"path": "x", "metadata": "files", "startingOffsets": "earliest"})
    assert parse_metadata_options({"path": "x", "metadata": "Files"})[0] == "files"
