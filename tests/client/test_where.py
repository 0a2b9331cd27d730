"""`where`: the whole text is understood or refused, three readers agree, and no file is wrongly skipped."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.effort import examples
from txlog.client.tables.predicate import Predicate
from txlog.client.tables.where import MAX_LENGTH, bind
from txlog.core.fetch_plan import FilePiece, InlinePiece, RowRange
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.storage.arrow_schema import to_fields
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_writer import write_rows_file

SCHEMA = pa.schema(
    (
        ("tiny", pa.int8()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("instant", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("money", pa.decimal128(10, 2)),
        ("raw", pa.binary()),
        ("dot.ted", pa.int64()),
    )
)
FIELDS = to_fields(SCHEMA)
TP = TopicPartition("orders", 3)


def predicate(text: str) -> Predicate:
    return bind(text, FIELDS, "orders")


def kept(text: str, *rows: dict[str, Any]) -> list[int]:
    batch = pa.RecordBatch.from_pylist([{"tiny": None, **row} for row in rows], SCHEMA)
    numbered = pa.RecordBatch.from_arrays([*batch.columns, pa.array(range(len(rows)))], [*SCHEMA.names, "n"])
    numbers: list[Any] = predicate(text).keep(numbered).column("n").to_pylist()
    return numbers


# -- meaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("big > 1", [2, 3]),
        ("1 < big", [2, 3]),
        ("BIG >= 1.5", [2, 3]),
        ("big = 1.5", []),
        ("big != 1.5", [1, 2, 3]),
        ("NOT big = 1.5", [1, 2, 3]),
        ("big < 1e18", [1, 2, 3]),
        ("big > 99999999999999999999999999", []),
        ("big < 99999999999999999999999999", [1, 2, 3]),
        ("big IN (1, 3, 5.5)", [1, 3]),
        ("big NOT IN (1, 3, 5.5)", [2]),
        ("big IN (5.5)", []),
        ("big NOT IN (5.5)", [1, 2, 3]),
        ("big BETWEEN 2 AND 3", [2, 3]),
        ("big NOT BETWEEN 2 AND 3", [1]),
        ("big IS NULL", [0]),
        ("big IS NOT NULL AND big <> 2", [1, 3]),
        ("big = 1 OR big IS NULL", [0, 1]),
        ("NOT (big = 1 OR big IS NULL)", [2, 3]),
        ("big = 1 OR big = 2 AND big = 3", [1]),
        ("(big = 1 OR big = 2) AND NOT (big = 2)", [1]),
        ("`dot.ted` = 4", [1]),
        ("-1 < big AND big < +3", [1, 2]),
    ],
)
def test_three_valued_logic_on_whole_numbers(text: str, expected: list[int]) -> None:
    assert kept(text, {}, {"big": 1, "dot.ted": 4}, {"big": 2}, {"big": 3}) == expected


def test_nan_is_above_every_number_and_both_zeros_are_one() -> None:
    rows = [{"double": value, "single": value} for value in (math.nan, math.inf, 0.0, -0.0, -1.0, None)]
    for column in ("double", "single"):
        assert kept(f"{column} > 5", *rows) == [0, 1]
        assert kept(f"{column} >= 0", *rows) == [0, 1, 2, 3]
        assert kept(f"{column} < 1", *rows) == [2, 3, 4]
        assert kept(f"NOT {column} < 1", *rows) == [0, 1]
        assert kept(f"{column} = -0.0", *rows) == [2, 3]
        assert kept(f"{column} IN (0, 7)", *rows) == [2, 3]
        assert kept(f"{column} NOT IN (0, 7)", *rows) == [0, 1, 4]
        assert kept(f"{column} != 0", *rows) == [0, 1, 4]


def test_a_single_float_is_compared_as_a_double() -> None:
    assert kept("single = 0.1", {"single": 0.1}) == []
    assert kept("single = 0.5", {"single": 0.5}) == [0]
    assert kept("single > 0.1", {"single": 0.1}) == [0]


def test_other_types() -> None:
    row = {
        "text": "it's",
        "flag": False,
        "day": datetime.date(2013, 1, 31),
        "instant": datetime.datetime(2013, 1, 31, 5, tzinfo=datetime.UTC),
        "wall": datetime.datetime(1500, 1, 1),
        "money": Decimal("12.30"),
    }
    for text in (
        r"text = 'it\'s'",
        "text > 'it'",
        "NOT flag",
        "flag = FALSE",
        "flag IS FALSE",
        "NOT flag IS TRUE",
        "day = DATE '2013-01-31'",
        "day < '2013-02-01'",
        "instant = TIMESTAMP '2013-01-31 05:00:00'",
        "instant = '2013-01-31T06:00:00+01:00'",
        "instant > '2013-01-31'",
        "wall < TIMESTAMP_NTZ '1582-10-15 00:00:00'",
        "money = 12.3",
        "money > 12.299",
        "money <= 12.301 AND money < 1000000000000",
        "money BETWEEN 12.3 AND 12.3",
        "raw IS NULL",
    ):
        assert kept(text, row) == [0], text
        assert kept(f"NOT ({text})", row) == [], text


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("big >", r"where = 'big >': expected a condition such as amount > 100"),
        ("big > 1 AND a text = 'x'", r"Unexpected token.*\. hint: put a name with a space in backticks"),
        ("a text IN ('x')", r"Line 1, Col: 9\. hint: put a name with a space in backticks, as in `first name`"),
        ("big = 1 AND AND tiny = 2", r"expected a condition[^`]*$"),
        ("big = 1; DROP TABLE x", "expected one condition, found 2"),
        ("-- nothing", "expected one condition, found 0"),
        ("big + 1 > 2", "one side of a comparison must be a column"),
        ('"text" = 1', "text in double quotes is a value; write the column as `text`"),
        ("big = tiny", r"one side of a comparison must be a column, the other a literal\. .*filter the rows"),
        ("upper(text) = 'A'", "one side of a comparison must be a column"),
        ("text LIKE 'a%'", "this kind of condition is not supported here"),
        ("big <=> 1", "this kind of condition is not supported"),
        ("big = NULL", "never true; use IS NULL"),
        ("big IN (1, NULL)", "never true"),
        ("big IN (SELECT 1)", "this kind of condition is not supported"),
        ("a.b = 1", "only whole columns"),
        ("text = 'it''s'", "two texts stand side by side"),
        (r"text = 'a\tb'", "a backslash may only stand before a quote"),
        ("big = 1e999", "too large"),
        ("1 = 1", "must be a column"),
        ("TRUE", "this kind of condition is not supported"),
        ("big IS TRUE", "but a boolean is needed here"),
        ("SELECT 1", "this kind of condition is not supported"),
        ("big BETWEEN SYMMETRIC 3 AND 2", "Spark has neither SYMMETRIC"),
        ("NOT big BETWEEN ASYMMETRIC 2 AND 3", "Spark has neither SYMMETRIC"),
        ("big = 1 " + "AND big = 1 " * (MAX_LENGTH // 8), "characters are too many"),
        ("(" * 3000 + "big = 1" + ")" * 3000, "too deeply nested"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, message: str) -> None:
    with pytest.raises((InvalidRequestError, SchemaMismatchError), match=message):
        predicate(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bigg = 1", r"topic 'orders' has no column 'bigg'\. Did you mean 'big'\? The columns are tiny, "),
        (
            "big = '1'",
            r"column 'big' of topic 'orders' is int64, and '1' cannot be compared with that\. Write a number",
        ),
        ("text = 1", "Write a text in single quotes"),
        ("flag > FALSE", "Write TRUE or FALSE"),
        ("big", "but a boolean is needed here"),
        ("day = '2013-02-30'", "Write a date"),
        ("day = '2013-01-31 05:00:00'", "Write a date"),
        ("instant = '31.1.2013'", "Write a time"),
        ("instant = '2013-01-31 05:00:00.1234567'", "Write a time"),
        ("wall = '2013-01-31 05:00:00Z'", "without an offset"),
        ("raw = 'x'", "Only IS NULL and IS NOT NULL"),
        ("double = 1e350", "cannot be compared"),
    ],
)
def test_a_literal_must_suit_its_column(text: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        predicate(text)


# -- which files it skips ---------------------------------------------------------------------------------------------


def file_of(rows: list[dict[str, Any]]) -> DataFile:
    table = pa.Table.from_pylist(rows, SCHEMA)
    return write_rows_file(
        MemoryObjectStore("where"), "orders", f"3/rows/1-1-{'a' * 32}.parquet", table.to_batches(), FIELDS
    )


def piece_of(file: DataFile, base_offset: int = 100, timestamp: int = 5000) -> FilePiece:
    ranges = (RowRange(first_row=0, rows=file.rows, base_offset=base_offset, timestamp=timestamp),)
    return FilePiece(topic_partition=TP, file=file, schema_id=0, ranges=ranges, offset_column=False, start=0, end=2**62)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tiny": st.integers(-3, 3),
    "big": st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
    "single": st.sampled_from([0.0, -0.0, 0.5, math.nan, math.inf, -2.0]),
    "double": st.sampled_from([0.0, -0.0, 0.1, math.nan, -math.inf, 1e300]),
    "text": st.sampled_from(["", "a", "b", "\U0010ffff" * 9, "é" * 20, "z" * 40, "z" * 31 + "é", "\ud7ff" * 12]),
    "flag": st.booleans(),
    "day": st.sampled_from([datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(2013, 1, 31)]),
    "instant": st.sampled_from(
        [datetime.datetime(1500, 1, 1, tzinfo=datetime.UTC), datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)]
    ),
    "wall": st.sampled_from([datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.datetime(2013, 1, 1)]),
    "money": st.sampled_from([Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=4
)
LITERALS: dict[str, list[str]] = {
    "tiny": ["-3", "0", "2.5", "200"],
    "big": ["-9223372036854775808", "0", "0.5", "9223372036854775807", "1e30"],
    "single": ["0", "0.5", "-1.5", "0.1"],
    "double": ["0", "0.1", "-1e300"],
    "text": ["''", "'a'", "'aa'", f"'{'z' * 31}'", f"'{'z' * 41}'", f"'{chr(0x10FFFF) * 8}'"],
    "flag": ["TRUE", "FALSE"],
    "day": ["'0001-01-01'", "DATE '1970-01-02'", "'2013-01-31'"],
    "instant": ["'1500-01-01'", "'2013-01-01T00:00:00.000001Z'"],
    "wall": ["'1969-12-31 23:59:59.999999'", "'2013-01-01'"],
    "money": ["-1.5", "0.001", "1e9"],
}


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> str:
    """Draw a random condition on the columns of VALUES."""
    if depth and draw(st.booleans()):
        joined = draw(st.sampled_from([" AND ", " OR "])).join(
            f"({draw(conditions(depth=depth - 1))})" for _ in range(2)
        )
        return f"NOT ({joined})" if draw(st.booleans()) else joined
    column = draw(st.sampled_from(sorted(LITERALS)))
    literal = st.sampled_from(LITERALS[column])
    if column == "flag":
        return draw(
            st.sampled_from(["flag", "NOT flag", "flag != TRUE", "flag IS TRUE", "flag IS NOT FALSE", "flag IS NULL"])
        )
    form = draw(st.integers(0, 4))
    if form == 0:
        return f"{column} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
    if form == 1:
        return f"{column} {draw(st.sampled_from(['', 'NOT ']))}IN ({draw(literal)}, {draw(literal)})"
    if form == 2:
        return f"{column} {draw(st.sampled_from(['', 'NOT ']))}BETWEEN {draw(literal)} AND {draw(literal)}"
    return f"{column} {draw(st.sampled_from(['=', '!=', '<', '<=', '>', '>=']))} {draw(literal)}"


@examples(300)
@given(rows=ROWS, text=conditions())
def test_no_file_that_holds_a_kept_row_is_skipped(rows: list[dict[str, Any]], text: str) -> None:
    """Use real files with real statistics: nulls, NaN, infinities, both zeros, strings cut in the middle of a
    character."""
    bound = pickle.loads(pickle.dumps(predicate(text)))
    found = kept(text, *rows)
    assert bound.may_match(piece_of(file_of(rows))) or not found
    # The rows of a condition and of its negation are disjoint; the other rows are unknown because of a null.
    assert not set(found) & set(kept(f"NOT ({text})", *rows))


def test_files_are_skipped() -> None:
    file = file_of([{"big": 10, "text": "x" * 40}, {"big": 20, "flag": None}])
    for text, match in {
        "big > 20": False,
        "big >= 20": True,
        "big < 10": False,
        "big = 15": True,
        "big = 25": False,
        "big IN (1, 2)": False,
        "NOT (big <= 20)": False,
        "big IS NULL": False,
        "tiny IS NOT NULL": False,
        "tiny = 1": False,
        "tiny IS NULL AND big = 10": True,
        "text > 'y'": False,
        "text < 'x'": False,
        f"text = '{'x' * 32}'": True,
        "big > 20 OR text > 'y'": False,
        "big > 20 OR text >= 'x'": True,
        "_partition = 3": True,
        "_partition != 3": False,
        "_topic = 'orders' AND _topic IN ('orders')": True,
        "_topic > 'orders'": False,
        "_offset < 100": False,
        "_offset >= 101": True,
        "_offset > 101": False,
        "_timestamp > '1970-01-01 00:00:05'": False,
        "_timestamp >= '1970-01-01 00:00:05'": True,
    }.items():
        assert predicate(text).may_match(piece_of(file)) is match, text
    inline = InlinePiece(
        topic_partition=TP,
        payload=b"",
        schema_id=0,
        range=RowRange(first_row=0, rows=1, base_offset=7, timestamp=0),
        rows=1,
    )
    assert predicate("big > 20").may_match(inline)
    assert not predicate("_offset > 7").may_match(inline)


@pytest.mark.parametrize(
    "statistics",
    [
        {},
        {"2": (10, 20)},
        {"2": ("10", "20", 0)},
        {"2": (True, True, 0)},
        {"2": (20, 10, 0)},
        {"2": (None, None, 0)},
        {"2": (10, 20, -1)},
        {"2": (10, 20, 99)},
        {"2": (10, 20, "0")},
        {"2": (math.nan, math.nan, 0)},
    ],
)
def test_statistics_that_make_no_sense_skip_nothing(statistics: dict[str, Any]) -> None:
    """The reader then reads the file (R14a)."""
    file = DataFile(path="x", rows=3, bytes=1, digest=None, footer_digest="", row_groups=(3,), statistics=statistics)
    for text in ("big > 1000", "big IS NULL", "big IS NOT NULL"):
        assert predicate(text).may_match(piece_of(file))


def test_a_cleaned_run_has_no_time_of_its_own(tmp_path: Path) -> None:
    file = file_of([{"big": 1}])
    piece = FilePiece(
        topic_partition=TP,
        file=file,
        schema_id=0,
        ranges=(RowRange(first_row=0, rows=1, base_offset=-1, timestamp=-1),),
        offset_column=True,
        start=50,
        end=60,
    )
    assert predicate("_timestamp > '2030-01-01'").may_match(piece)
    assert predicate("_offset = 59").may_match(piece)
    assert not predicate("_offset = 60").may_match(piece)
