"""A topic's columns in Spark: which ones a read returns, a user may select, and a write may contain."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession, types

from pyspark_txlog import schemas
from pyspark_txlog.arrow import arrow_schema
from txlog.core.records import SchemaField
from txlog.core.schema import assign_ids
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_schema import to_arrow


def fields(*specs: str) -> tuple[SchemaField, ...]:
    """Return fields from strings: `fields("a int64", "b string not null")`."""
    made = []
    for spec in specs:
        name, kind, *rest = spec.split()
        made.append(SchemaField(id=1, name=name, type=kind, nullable=not rest))
    return assign_ids(made)


def struct_of(ddl: str) -> types.StructType:
    made = types.StructType.fromDDL(ddl)
    assert isinstance(made, types.StructType)
    return made


ORDERS = fields("order_id int64 not null", "amount float64", "carrier string")
NESTED = assign_ids(
    [
        SchemaField(
            id=1,
            name="items",
            type="list",
            fields=(
                SchemaField(
                    id=1,
                    name="element",
                    type="struct",
                    nullable=False,
                    fields=(
                        SchemaField(id=1, name="sku", type="string", nullable=False),
                        SchemaField(id=1, name="price", type="decimal(10,2)"),
                    ),
                ),
            ),
        ),
        SchemaField(
            id=1,
            name="tags",
            type="map",
            fields=(
                SchemaField(id=1, name="key", type="string", nullable=False),
                SchemaField(id=1, name="value", type="timestamp_ntz"),
            ),
        ),
    ]
)
EVERY_TYPE = fields(
    "a bool",
    "b int8",
    "c int16",
    "d int32",
    "e int64",
    "f float32",
    "g float64",
    "h string",
    "i binary",
    "j date",
    "k timestamp",
    "l timestamp_ntz",
    "m decimal(38,9)",
)


def test_every_type_there_and_back() -> None:
    for topic in (EVERY_TYPE, NESTED, ORDERS):
        assert schemas.to_fields(schemas.to_spark(topic), "frame") == topic


def test_spark_and_arrow_agree_on_every_type() -> None:
    for topic in (EVERY_TYPE, NESTED, ORDERS):
        assert arrow_schema(schemas.to_spark(topic)).equals(to_arrow(topic))


def test_types_without_a_counterpart_are_refused_by_name() -> None:
    frame = types.StructType([types.StructField("gap", types.DayTimeIntervalType())])
    with pytest.raises(SchemaMismatchError, match="frame: column 'gap': no topic can hold interval day to second"):
        schemas.to_fields(frame, "frame")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, ["order_id", "amount", "carrier"]),
        (("*",), ["order_id", "amount", "carrier"]),
        (("carrier", "_offset"), ["carrier", "_offset"]),
        (("_topic", "*", "_partition"), ["_topic", "order_id", "amount", "carrier", "_partition"]),
    ],
)
def test_a_read_shows_the_columns_asked_for_in_that_order(columns: tuple[str, ...] | None, expected: list[str]) -> None:
    schema = schemas.select({"orders": ORDERS}, columns)
    assert schema.names == expected
    assert [schema[name].nullable for name in expected] == [name in {"amount", "carrier"} for name in expected]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ("amuont",),
            "topic 'orders' has no column 'amuont'. Did you mean 'amount'\\? The columns are order_id, amount,",
        ),
        (("_offst",), "no column '_offst'. Did you mean '_offset'"),
        (("amount", "*"), "'amount' is asked for twice"),
    ],
)
def test_columns_that_cannot_be_are_named(columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        schemas.select({"orders": ORDERS}, columns)


def test_topics_read_together_need_equal_columns() -> None:
    other = fields("order_id int64 not null", "amount string", "extra int32")
    with pytest.raises(SchemaMismatchError, match=r"different columns: only one has '(carrier|extra)'"):
        schemas.select({"orders": ORDERS, "audit": other}, None)
    with pytest.raises(SchemaMismatchError, match="'amount' is float64 in topic 'orders', and string in topic 'audit'"):
        schemas.select({"orders": ORDERS, "audit": other}, ("amount",))
    with pytest.raises(SchemaMismatchError, match="topic 'audit' has no column 'carrier'"):
        schemas.select({"orders": ORDERS, "audit": other}, ("carrier",))
    assert schemas.select({"orders": ORDERS, "audit": other}, ("order_id", "_topic")).names == ["order_id", "_topic"]


@pytest.mark.spark
@pytest.mark.parametrize(
    "ddl",
    [
        "amount double",
        "order_id bigint, _offset bigint",
        "carrier string, _timestamp timestamp, _topic string, _partition int",
    ],
)
def test_a_user_schema_selects(spark: SparkSession, ddl: str) -> None:
    schemas.check_user_schema(struct_of(ddl), {"orders": ORDERS})


@pytest.mark.spark
def test_a_user_schema_may_loosen_nested_nullability(spark: SparkSession) -> None:
    ddl = "tags map<string, timestamp_ntz>, items array<struct<sku: string, price: decimal(10,2)>>"
    schemas.check_user_schema(struct_of(ddl), {"orders": NESTED})


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("amount float", "column 'amount': the topic has double, the schema of this read asks for float"),
        ("amount double not null", "the topic has double, the schema of this read asks for double not null"),
        ("Amount double", "no column 'Amount'. Did you mean 'amount'"),
        ("_offset int", "column '_offset': the topic has bigint not null, the schema of this read asks for int"),
    ],
)
def test_a_user_schema_does_not_cast(spark: SparkSession, ddl: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        schemas.check_user_schema(struct_of(ddl), {"orders": ORDERS})
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        schemas.check_user_schema(types.StructType([]), {"orders": ORDERS})


@pytest.mark.spark
@pytest.mark.parametrize(
    "ddl",
    [
        "order_id bigint, amount double, carrier string",
        "carrier string, order_id int",
        "order_id smallint not null, amount float",
        "order_id tinyint, amount int, carrier varchar(10)",
        "order_id bigint, amount void",
    ],
)
def test_a_frame_may_leave_out_nullable_columns_and_be_narrower(spark: SparkSession, ddl: str) -> None:
    schemas.check_frame(struct_of(ddl), ORDERS, "orders")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("order_id bigint, amount string", "topic 'orders': column 'amount': expected double, found string"),
        ("order_id string", "topic 'orders': column 'order_id': expected bigint, found string"),
        (
            "order_id bigint, amount bigint",
            r"column 'amount': expected double, found bigint\. hint: cast it: .*'amount'\]\.cast\('double'\)",
        ),
        ("order_id void", "column 'order_id': expected bigint, found void"),
        ("amount double", "column 'order_id' \\(int64 not null\\) is missing from the DataFrame"),
        (
            "order_id bigint, amuont double",
            "the topic has no column 'amuont', which the DataFrame has. Did you mean 'amount'",
        ),
        ("order_id bigint, _offset bigint", "'_offset' is set by the log, drop it before writing"),
        ("order_id bigint, carrier string, carrier string", "two columns 'carrier'"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_by_column(spark: SparkSession, ddl: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        schemas.check_frame(struct_of(ddl), ORDERS, "orders")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "fits"),
    [
        ("items array<struct<sku: string, price: decimal(8,1)>>", True),
        ("items array<struct<price: decimal(10,2), sku: string>>", True),
        ("items array<struct<sku: string>>", False),
        ("items array<struct<sku: string, price: decimal(10,3)>>", False),
        ("items array<struct<sku: string, price: decimal(11,2)>>", False),
        ("tags map<string, timestamp_ntz>", True),
        ("tags map<string, timestamp>", False),
        ("tags array<string>", False),
    ],
)
def test_nested_columns_fit_or_not(spark: SparkSession, ddl: str, fits: bool) -> None:
    frame = struct_of(ddl)
    if fits:
        schemas.check_frame(frame, NESTED, "orders")
    else:
        with pytest.raises(SchemaMismatchError, match=r"expected .*, found"):
            schemas.check_frame(frame, NESTED, "orders")
