"""Writes that change a topic's columns, or hold wider integers than its columns: `mergeSchema`, and Spark's store
assignment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import pyspark_txlog
from pyspark_txlog import TxLog
from pyspark_txlog.native.write import Road
from tests.spark.conftest import Log, append, to_df
from txlog.core.schema import describe

pytestmark = [pytest.mark.spark, pytest.mark.python_source]

SMALL = pa.schema((("id", pa.int32()), ("n", pa.int8()), ("name", pa.string())))


@pytest.fixture(params=["python", "native"])
def either(request: pytest.FixtureRequest, log: Log) -> Iterator[Log]:
    """Yield a log that is written by the Python sink, or by Spark's own writer."""
    if request.param == "native":
        pyspark_txlog.install()
    yield log
    pyspark_txlog.uninstall()


def columns(log: Log) -> list[tuple[str, str]]:
    return [(field.name, describe(field)) for field in log.store.topic("orders").fields]


OWN = [("order_id", "int64 not null"), ("amount", "float64"), ("carrier", "string")]


def test_a_write_adds_the_columns_that_the_topic_lacks(either: Log) -> None:
    log = either
    log.create()
    wide = log.frame(0, 3).selectExpr("*", "1 AS `a.b`", "array(order_id) AS more")
    with pytest.raises(Exception, match=r"the topic has no column 'a\.b'"):
        log.write(wide)
    assert columns(log) == OWN
    log.write(wide, mergeSchema="true")
    assert columns(log) == [*OWN, ("a.b", "int32"), ("more", "list<int64 not null>")]
    version = log.store.topic("orders").version
    log.write(log.frame(3, 3), mergeSchema="true")
    log.write(wide.withColumn("partition", wide["order_id"] % 2), mergeSchema="true")
    assert log.store.topic("orders").version == version
    found = [(row["order_id"], row["a.b"], row["more"]) for row in log.read().collect()]
    assert len(found) == 9
    assert found.count((0, 1, [0])) == 2
    assert (3, None, None) in found


@pytest.mark.parametrize(
    ("add", "options", "error"),
    [
        ("'x' AS country, 'x' AS amount", {}, "column 'amount': expected double, found string"),
        ("'x' AS country, 1L AS _offset", {}, "'_offset' is set by the log, drop it before writing"),
        ("'x' AS AMOUNT", {}, "differ in case only, and Spark confuses them"),
        ("'orders' AS topic, 'x' AS country", {"topic": None}, "option 'mergeSchema': .*set the option 'topic'"),
    ],
)
def test_a_write_that_is_refused_adds_nothing(either: Log, add: str, options: dict[str, Any], error: str) -> None:
    log = either
    log.create()
    with pytest.raises(Exception, match=error):
        log.write(log.frame(0, 3).select("order_id").selectExpr("*", *add.split(", ")), mergeSchema="true", **options)
    assert columns(log) == OWN


def test_a_stream_adds_columns_in_its_first_micro_batch(either: Log, tmp_path: Path) -> None:
    log = either
    log.create()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"order_id": 1, "country": "DE"}\n')
    frame = log.spark.readStream.schema("order_id bigint, country string").json(str(tmp_path / "in"))
    writer = frame.writeStream.format("txlog").option("topic", "orders").option("mergeSchema", "true")
    query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start(log.url)
    query.awaitTermination()
    assert columns(log) == [*OWN, ("country", "string")]
    assert [row.country for row in log.read().collect()] == ["DE"]


def small(log: Log, values: str, n: str) -> DataFrame:
    return log.spark.createDataFrame([{"i": number} for number in range(3)], "i bigint").selectExpr(
        f"{values} AS id", f"{n} AS n", "'x' AS name"
    )


def test_wider_integers_are_written_if_each_value_fits(either: Log) -> None:
    log = either
    log.create(schema=SMALL, key_columns="id")
    log.write(small(log, "i - 2147483648", "CAST(IF(i = 0, NULL, i * 127 - 128) AS int)"))
    found = sorted((row.id, row.n) for row in log.read().collect())
    assert found == [(-(2**31), None), (1 - 2**31, -1), (2 - 2**31, 126)]
    with pytest.raises(Exception, match="column 'id': expected int, found double"):
        log.write(small(log, "i + 0.5D", "0"))


@pytest.mark.parametrize(("value", "n"), [("i + 2147483646", "0"), ("i", "i * 64")])
def test_a_value_that_does_not_fit_is_named_with_the_key_of_its_row(either: Log, value: str, n: str) -> None:
    log = either
    log.create(schema=SMALL, key_columns="id")
    column = r"'id' is int32 .*a value is 2147483648, in the row with the key id=2147483648"
    if n != "0":
        column = r"'n' is int8 \(-128 to 127\), and a value is 128, in the row with the key id=2"
    with pytest.raises(Exception, match=f"topic 'orders': column {column}"):
        log.write(small(log, value, n))
    assert log.read().count() == 0


@pytest.mark.parametrize("road", ["driver", "executors"])
def test_each_road_of_txlog_refuses_such_a_value(log: Log, road: Road) -> None:
    log.create(schema=SMALL)
    with TxLog(log.spark, log.url) as native:
        table = native.table("orders")
        append(table, small(log, "i", "i * 63"), road=road)
        with pytest.raises(Exception, match=r"column 'n' is int8 \(-128 to 127\), and a value is 128(?!, in)"):
            append(table, small(log, "i", "i * 64"), road=road)
        assert sorted((row.id, row.n) for row in to_df(table).collect()) == [(0, 0), (1, 63), (2, 126)]
