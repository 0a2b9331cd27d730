"""Bad input through Spark: the error states the problem and the remedy, and the log does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import Log

pytestmark = pytest.mark.spark


@pytest.fixture
def orders(log: Log) -> Log:
    """Return a log with ten orders."""
    log.create()
    log.write(log.frame(0, 10))
    return log


def objects(log: Log) -> list[Path]:
    return sorted(path for path in Path(log.url).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "ordrs"}, "UnknownTopicOrPartitionError: topic 'ordrs' does not exist. Did you mean 'orders'"),
        ({"topic": "or/ders"}, "InvalidTopicError: topic name 'or/ders' is not valid"),
        ({"topic": "__consumer_offsets"}, "InvalidTopicError: .*reserved"),
        ({"topik": "x"}, "UnknownOptionError: option 'topik' is unknown: a write has .* Did you mean 'topic'"),
        ({"txn_version": 1}, "txn.version numbers the transactions of one transactional.id: set that option too"),
        (
            {"transactional_id": "x", "transaction_timeout_ms": 900_001},
            "InvalidTxnTimeoutError: transaction.timeout.ms = 900001 is beyond transaction.max.timeout.ms = 900000",
        ),
        ({"key": "carier"}, "SchemaMismatchError: topic 'orders' has no column 'carier'. Did you mean 'carrier'"),
        ({"storage_fsinc": "false"}, "UnknownOptionError: storage option 'fsinc' is unknown: .* Did you mean 'fsync'"),
        ({"storage_secret": "hunter2"}, "storage option 'secret' is unknown"),
    ],
)
def test_options_of_a_write(orders: Log, options: dict[str, Any], message: str) -> None:
    before = objects(orders)
    with pytest.raises(Exception, match=message) as caught:
        orders.write(orders.frame(0, 5), **{"topic": "orders", **options} if "topic" not in options else options)
    assert "hunter2" not in str(caught.value)
    assert objects(orders) == before


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "1L AS order_id, 'x' AS amount",
            "SchemaMismatchError: topic 'orders': column 'amount': expected double, found string",
        ),
        (
            "1L AS order_id, 2 AS total",
            "the topic has no column 'total', which the DataFrame has. The columns are order_id, amount, carrier",
        ),
        ("1D AS amount", r"column 'order_id' \(int64 not null\) is missing from the DataFrame"),
        ("1L AS order_id, 'x' AS partition", "column 'partition': expected an integer, found string"),
    ],
)
def test_frames_that_do_not_fit(orders: Log, sql: str, message: str) -> None:
    before = objects(orders)
    with pytest.raises(Exception, match=message):
        orders.write(orders.spark.sql(f"SELECT {sql}"))
    assert objects(orders) == before


def test_a_write_without_a_topic(orders: Log) -> None:
    with pytest.raises(
        Exception, match="to which topic\\? Name it in the option 'topic', or for each row in a column 'topic'"
    ):
        orders.write(orders.frame(0, 5), None)
    with pytest.raises(Exception, match="column 'topic': expected string, found int"):
        orders.write(orders.spark.sql("SELECT 1L AS order_id, 2 AS topic"), None)


def test_a_partition_that_is_not_there(orders: Log) -> None:
    with pytest.raises(
        Exception, match=r"topic 'orders' has no partition 2 \(column 'partition'\): it has 2, numbered 0 to 1"
    ):
        orders.write(orders.spark.sql("SELECT 1L AS order_id, 2 AS partition"))
    assert orders.ids() == list(range(10))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("overwrite", 'a log is append-only. hint: use .mode\\("append"\\)'),
        ("errorifexists", "(?i)append"),
        ("ignore", "(?i)append"),
    ],
)
def test_save_modes(orders: Log, mode: str, message: str) -> None:
    before = objects(orders)
    with pytest.raises(Exception, match=message):
        orders.frame(0, 5).write.format("txlog").option("topic", "orders").mode(mode).save(orders.url)
    assert objects(orders) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "ordrs"}, "topic 'ordrs' does not exist. Did you mean 'orders'"),
        ({"subscribePattern": "x.*"}, "subscribePattern: no topic of .* matches 'x.\\*'; there are orders"),
        ({"assign": '{"orders":[2]}'}, "topic 'orders' has no partition 2: it has 2, numbered 0 to 1"),
        ({"subscribe": "orders", "assign": '{"orders":[0]}'}, "exactly one of subscribe, subscribePattern, assign"),
        ({}, "exactly one of subscribe, subscribePattern, assign; found none"),
        (
            {"subscribe": "orders", "endingOfsets": "latest"},
            "'endingofsets' is unknown: .* Did you mean 'endingOffsets'",
        ),
        ({"subscribe": "orders", "columns": "amuont"}, "no column 'amuont'. Did you mean 'amount'"),
        (
            {"subscribe": "orders", "startingOffsets": '{"orders":{"0":999,"1":-2}}'},
            r"OffsetOutOfRangeError: orders-0: startingOffsets asks for offset 999, but the log holds 0 to 5.*"
            "failOnDataLoss",
        ),
        (
            {"subscribe": "orders", "endingOffsets": '{"orders":{"0":1}}'},
            "endingOffsets must name every partition that is read, and lacks orders-1",
        ),
        (
            {"subscribe": "orders", "startingTimestamp": 4_102_444_800_000},
            "no row is as new as that.*the option 'startingOffsetsByTimestampStrategy' does",
        ),
        (
            {"subscribe": "orders", "startingOffsets": "committed", "group_id": "nobody"},
            "there is no committed offset of group 'nobody'.*the option 'auto.offset.reset' does",
        ),
    ],
)
def test_options_of_a_read(orders: Log, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        orders.read(None, **options).collect()


def test_a_user_schema_that_does_not_fit(orders: Log) -> None:
    with pytest.raises(
        Exception, match="column 'amount': the topic has double, the schema of this read asks for string"
    ):
        orders.read(schema="amount string").collect()
    with pytest.raises(
        Exception, match="the option 'columns' asks for amount, and the schema of this read for carrier; give"
    ):
        orders.read(schema="carrier string", columns="amount").collect()


def test_topics_of_different_schemas(orders: Log) -> None:
    orders.create("totals", pa.schema((pa.field("order_id", pa.int64()), pa.field("total", pa.float64()))))
    with pytest.raises(Exception, match="topics 'orders' and 'totals' have different columns"):
        orders.read("orders,totals")


def test_places_that_are_no_store(orders: Log, tmp_path: Path) -> None:
    def read(path: str) -> None:
        orders.spark.read.format("txlog").option("subscribe", "orders").load(path)

    with pytest.raises(
        Exception, match="UnsupportedStoreError: 'memory://log': a store in memory lives in one process"
    ):
        read("memory://log")
    with pytest.raises(Exception, match=r"topic 'orders' does not exist: .*empty is empty, there is no store yet"):
        read(str(tmp_path / "empty"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file.csv").write_text("a,b\n")
    with pytest.raises(Exception, match="NotAStoreError"):
        read(str(tmp_path / "other"))
    with pytest.raises(Exception, match=r"where is the store\? Name its folder or URL in .load"):
        orders.spark.read.format("txlog").option("subscribe", "orders").load()
    with pytest.raises(Exception, match=r"where is the store\? Name its folder or URL in .save"):
        orders.frame(0, 1).write.format("txlog").option("topic", "orders").mode("append").save()


def test_damage_names_the_object(orders: Log) -> None:
    path = Path(orders.url) / "orders" / "0" / f"{0:020d}.batch"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(Exception, match=f"CorruptRecordError: .*orders/0/{path.name}"):
        orders.read().collect()
