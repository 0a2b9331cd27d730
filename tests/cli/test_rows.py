"""Rows as lines of JSON, and back."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from txlog.cli.columns import parse_columns
from txlog.cli.rows import decode_rows, encode_row
from txlog.core.records import SchemaField
from txlog.core.schema import KAFKA_FIELDS
from txlog.errors import SchemaMismatchError
from txlog.storage.conform import conform

UTC = datetime.UTC
COLUMNS = [
    "id:int64:not-null",
    "small:int8",
    "flag:bool",
    "price:decimal(10,2)",
    "ratio:float64",
    "name:string",
    "raw:binary",
    "day:date",
    "at:timestamp",
    "local:timestamp_ntz",
    "tags:list<string>",
    "counts:map<string, int32>",
    "codes:map<int32, string>",
    "place:struct<city string not null, zip int32>",
]


def fields(*columns: str) -> tuple[SchemaField, ...]:
    found = parse_columns(list(columns), None)
    assert found is not None
    return found


FIELDS = fields(*COLUMNS)


def decode(line: str, schema: tuple[SchemaField, ...]) -> dict[str, Any]:
    (row,) = decode_rows([line.encode()], schema, "orders")
    return row


def test_every_type_reads_back_as_it_was() -> None:
    row = {
        "id": 2**62,
        "small": -128,
        "flag": True,
        "price": Decimal("12345678.90"),
        "ratio": -0.5,
        "name": 'größe " \\ \n',
        "raw": b"\xff\x00",
        "day": datetime.date(2013, 1, 31),
        "at": datetime.datetime(2013, 1, 31, 5, 17, 0, 123456, tzinfo=UTC),
        "local": datetime.datetime(2013, 1, 31, 5, 17),
        "tags": ["a", None],
        "counts": [("x", 1), ("y", None)],
        "codes": [(1, "a"), (2, "b")],
        "place": {"city": "New York", "zip": None},
    }
    table = conform([row], FIELDS, topic="orders")
    line = encode_row(table.to_pylist()[0])
    assert "\n" not in line
    assert conform(list(decode_rows([line.encode()], FIELDS, "orders")), FIELDS, topic="orders").equals(table)


def test_the_form_of_what_json_lacks() -> None:
    line = encode_row(
        {
            "text": b"abc",
            "raw": b"\xff",
            "nan": math.nan,
            "low": -math.inf,
            "at": datetime.datetime(2013, 1, 31, 5, 17, tzinfo=UTC),
            "local": datetime.datetime(2013, 1, 31, 5, 17),
            "day": datetime.date(2013, 1, 31),
            "price": Decimal("1.10"),
            "map": [("a", 1)],
            "pairs": [(1, "a")],
            "twice": [("a", 1), ("a", 2)],
        }
    )
    assert msgspec.json.decode(line) == {
        "text": "abc",
        "raw": {"base64": "/w=="},
        "nan": "NaN",
        "low": "-Infinity",
        "at": "2013-01-31T05:17:00Z",
        "local": "2013-01-31T05:17:00",
        "day": "2013-01-31",
        "price": "1.10",
        "map": {"a": 1},
        "pairs": [[1, "a"]],
        "twice": [["a", 1], ["a", 2]],
    }


@given(st.binary(max_size=30))
def test_binary_reads_back(raw: bytes) -> None:
    schema = fields("raw:binary")
    assert decode(encode_row({"raw": raw}), schema) == {"raw": raw}


@given(st.floats())
def test_floats_read_back(number: float) -> None:
    found = decode(encode_row({"x": number}), fields("x:float64"))["x"]
    assert found == number or (math.isnan(found) and math.isnan(number))


def test_numbers_that_are_exact_stay_exact() -> None:
    assert decode('{"p": 1.10, "n": 3}', fields("p:decimal(10,2)", "n:decimal(10,2)")) == {
        "p": Decimal("1.1"),
        "n": Decimal(3),
    }
    assert decode('{"id": 9223372036854775807}', fields("id:int64")) == {"id": 2**63 - 1}


def test_decimals_keep_the_digits_that_a_float_has_not() -> None:
    schema = fields("p:decimal(38,2)", "x:float64", "a:list<decimal(38,2)>")
    row = decode('{"p": 12345678901234567890.12, "x": 0.1, "a": [1E+3, -0.500, 0.000, "7"]}', schema)
    assert row == {
        "p": Decimal("12345678901234567890.12"),
        "x": 0.1,
        "a": [Decimal(1000), Decimal("-0.5"), Decimal(0), Decimal(7)],
    }
    assert type(row["x"]) is float
    assert conform([row], schema, topic="orders").to_pylist() == [row]


def test_zeros_below_microseconds_change_nothing() -> None:
    row = decode('{"at": "2024-10-27T02:30:00.123456000Z"}', fields("at:timestamp"))
    assert row == {"at": datetime.datetime(2024, 10, 27, 2, 30, 0, 123456, tzinfo=UTC)}


def test_a_record_of_kafkas_shape() -> None:
    row = decode('{"key": "k", "value": "v", "headers": [{"key": "h", "value": "x"}]}', KAFKA_FIELDS)
    assert row == {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}], "timestamp": None}
    assert pa.Table.from_pylist([row]).num_rows == 1


def test_empty_lines_are_passed_over_but_counted() -> None:
    with pytest.raises(SchemaMismatchError, match="line 4: "):
        list(decode_rows([b'{"id": 1}\n', b"\n", b"  \n", b"{}"], fields("id:int64:not-null"), "orders"))


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        ("{", "id:int64", "line 1: expected a JSON object with the columns of topic .* .not JSON: "),
        (
            "\xff",
            "id:int64",
            "line 1: expected a JSON object with the columns of topic .* .not JSON: .*hint: name the format",
        ),
        (
            "[1]",
            "id:int64",
            r"line 1: expected a JSON object with the .* 'orders', found \[1\]\. hint: write one object a line",
        ),
        ("[", "id:int64", r"found '\[' .not JSON: .*hint: write one object a line, without \[ and \]"),
        (
            '{"quantitty": 1}',
            "quantity:int32",
            "line 1: column 'quantitty' is unknown; topic 'orders' has quantity. Did you mean 'quantity'?",
        ),
        ('{"id": 1, "id": 2}', "id:int64", "line 1: 'id' is there twice in one object"),
        ('{"id": {"b": 1, "b": 1}}', "id:struct<b int32>", "line 1: 'b' is there twice in one object"),
        ("{}", "id:int64:not-null", "line 1: column 'id' is not nullable, and its value is missing or null"),
        ('{"id": "7"}', "id:int64", "line 1: column 'id': expected int64, found \"7\""),
        ('{"id": 1.0}', "id:int64", "line 1: column 'id': expected int64, found 1.0"),
        ('{"id": true}', "id:int64", "line 1: column 'id': expected int64, found true"),
        (
            '{"id": 1e40}',
            "id:float32",
            r"line 1: column 'id': expected float32 \(finite numbers up to 3.4028235e\+38\), found 1e\+?40",
        ),
        (
            '{"id": 16777217}',
            "id:float32",
            r"expected float32 \(-16777216 to 16777216 without rounding, and .*\), found 16777217",
        ),
        (
            '{"id": 9007199254740993}',
            "id:float64",
            r"expected float64 \(.* without rounding, and .*\), found 9007199254740993",
        ),
        ('{"id": 300}', "id:int8", r"line 1: column 'id': expected int8 \(-128 to 127\), found 300"),
        ('{"id": 1}', "id:string", "line 1: column 'id': expected string, found 1"),
        ('{"id": 1}', "id:bool:not-null", "line 1: column 'id': expected bool not null, found 1"),
        ('{"id": "x"}', "id:float64", "line 1: column 'id': expected float64, found \"x\""),
        ('{"id": "x"}', "id:decimal(5,2)", "line 1: column 'id': expected decimal"),
        ('{"id": "NaN"}', "id:decimal(5,2)", "line 1: column 'id': expected decimal"),
        (
            '{"id": 1.234}',
            "id:decimal(9,2)",
            r"expected decimal\(9,2\) \(at most 2 digits after the point\), found 1.234$",
        ),
        ('{"id": "1.234"}', "id:decimal(9,2)", r"\(at most 2 digits after the point\), found \"1.234\""),
        ('{"id": 12345678}', "id:decimal(9,2)", r"\(at most 7 digits before the point\), found 12345678"),
        ('{"id": 1e999999999}', "id:decimal(9,2)", r"at most 7 digits before the point"),
        (
            '{"id": [0.5, 0.25]}',
            "id:list<decimal(2,1)>",
            r"'id.element': .*\(at most 1 digit after the point\), found 0.25",
        ),
        ('{"id": "31.1.2013"}', "id:date", r"expected date \(as in 2013-01-31\), found \"31.1.2013\""),
        ('{"id": "2013-01-31T05:17"}', "id:timestamp", "with its zone, as in 2013-01-31T05:17:00Z"),
        ('{"id": "2013-01-31T05:17Z"}', "id:timestamp_ntz", "without a zone, as in 2013-01-31T05:17:00"),
        (
            '{"id": "2024-10-27T02:30:00.123456789Z"}',
            "id:timestamp",
            r"expected timestamp \(at most 6 digits after the point: microseconds\), found",
        ),
        ('{"id": "2024-10-27T02:30:00,1234561"}', "id:timestamp_ntz", "at most 6 digits after the point"),
        ('{"id": 7}', "id:binary", r"expected binary \(text, or \{\"base64\": \"…\"\}\), found 7"),
        ('{"id": {"base64": "?"}}', "id:binary", "no base64"),
        ('{"id": [1, "x"]}', "id:list<int32>", "line 1: column 'id.element': expected int32, found \"x\""),
        ('{"id": {"a": 1}}', "id:struct<b int32>", "line 1: 'id' has no field 'a', only b"),
        ('{"id": [1]}', "id:map<string,int32>", "an object, or a list of pairs"),
        ('{"id": "' + "x" * 300 + '"}', "id:int32", "x…$"),
    ],
)
def test_a_line_that_does_not_fit_names_line_column_and_both_types(line: str, column: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message.replace("?", r"\?") if message.endswith("?") else message):
        list(decode_rows([line.encode("latin-1")], fields(column), "orders"))
