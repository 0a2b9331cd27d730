"""A row that is sent alone: the same values, keys and errors as in a list of rows."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from tests.storage.arrow_rows import FIELDS, ROWS, rows_table
from txlog.core.partitioning import partition_for
from txlog.core.schema import KAFKA_FIELDS
from txlog.errors import SchemaMismatchError
from txlog.storage.arrow_schema import to_fields
from txlog.storage.conform import conform, single_row
from txlog.storage.keys import NO_KEY, partition_table
from txlog.storage.one_row import RowForm, joined_table

UTC = datetime.UTC


def fields_of(**columns):
    return to_fields(pa.schema(list(columns.items())))


def alone(rows, fields):
    form = RowForm(fields, "orders")
    return joined_table([form.take(row) for row in rows])


def test_every_type():
    assert alone(ROWS, FIELDS).equals(rows_table())
    assert alone([ROWS[0], {"i64": 1}], FIELDS).equals(conform([ROWS[0], {"i64": 1}], FIELDS, topic="orders"))


def test_rows_between_tables_stay_in_order():
    form = RowForm(FIELDS, "orders")
    one, two, three = [conform([row], FIELDS, topic="orders") for row in ROWS]
    parts: list[Any] = [form.take(ROWS[0]), form.take(ROWS[1]), three, form.take(ROWS[0]), one, two]
    assert joined_table(parts).combine_chunks().equals(rows_table([*ROWS, ROWS[0], ROWS[0], ROWS[1]]))


NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.sampled_from([np.int8(3), np.float32(0.1), 2**53 + 1])
)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.one_of(st.booleans(), st.integers()),
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()), NUMBERS),
    pa.string(): st.one_of(st.text(st.characters(exclude_categories=())), st.binary()),
    pa.binary(): st.one_of(st.binary(), st.text(), st.binary().map(bytearray), st.binary().map(memoryview)),  # type: ignore[arg-type]
    pa.date32(): st.one_of(st.dates(), st.datetimes()),
    pa.timestamp("us", "UTC"): st.datetimes(
        datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30),
        timezones=st.sampled_from([None, UTC, datetime.timezone(datetime.timedelta(hours=-9))]),
    ),
    pa.decimal128(5, 2): st.one_of(st.decimals(allow_nan=False, allow_infinity=False), st.integers(), st.floats()),
    pa.list_(pa.int64()): st.lists(st.one_of(st.none(), st.integers(-9, 2**63))),
}  # fmt: skip


def some_values(arrow: pa.DataType) -> Any:
    """The values of one column, in several rows."""
    return st.tuples(st.just(arrow), st.lists(st.none() | VALUES[arrow], min_size=1, max_size=3))


def outcome(make):
    """Return the rows as text, as NaN does not equal itself, or the message of the error."""
    try:
        return str(make().to_pylist())
    except SchemaMismatchError as error:
        return f"{type(error).__name__}: {error}"


@given(st.sampled_from(list(VALUES)).flatmap(some_values))
def test_a_row_alone_is_what_it_is_in_a_list(drawn):
    arrow, values = drawn
    fields = fields_of(c=arrow, other=pa.int64())
    rows = [{"c": value} for value in values]
    # The second row keeps each of these from being a single one.
    listed = [outcome(lambda row=row: conform([row, {}], fields, topic="orders").slice(0, 1)) for row in rows]
    assert [outcome(lambda row=row: alone([row], fields)) for row in rows] == listed
    taken = [row for row, found in zip(rows, listed, strict=True) if found.startswith("[")]
    together = conform([*taken, {}], fields, topic="orders").slice(0, len(taken))
    assert str(alone([*taken, {}], fields).slice(0, len(taken)).to_pylist()) == str(together.to_pylist())
    assert alone([{}], fields).schema.equals(together.schema, check_metadata=True)


def test_an_unknown_or_missing_column():
    fields = to_fields(pa.schema([pa.field("amount", pa.int64(), nullable=False)]))
    with pytest.raises(SchemaMismatchError, match=r"row 0: column 'amuont' is unknown.*Did you mean 'amount'"):
        alone([{"amuont": 1}], fields)
    with pytest.raises(SchemaMismatchError, match="column 'amount' is not nullable"):
        alone([{}], fields)


def test_a_value_that_changes_later_is_a_copy():
    raw, tags, point = bytearray(b"ab"), ["x"], {"x": 1.0, "y": 2.0}
    form = RowForm(FIELDS, "orders")
    row = form.take({"i64": 1, "raw": raw, "tags": tags, "point": point})
    raw[:], tags[0], point["x"] = b"cd", "y", 9.0
    (found,) = joined_table([row]).to_pylist()
    assert (found["raw"], found["tags"], found["point"]["x"]) == (b"ab", ["x"], 1.0)


def test_the_size_is_about_that_of_a_table():
    form = RowForm(FIELDS, "orders")
    for row in (ROWS[0], ROWS[2]):
        assert 0.3 < form.take(row).nbytes / conform([row], FIELDS, topic="orders").nbytes < 3


# -- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"trace": b"7", "kind": "new"},
        [("trace", b"7"), ("kind", b"new")],
        (["trace", b"7"], {"key": "kind", "value": b"new"}),
        [{"key": "trace", "value": b"7"}, {"key": "kind", "value": b"new"}],
    ],
    ids=["dictionary", "pairs", "mixed", "rows"],
)
def test_headers(headers):
    (row,) = conform([{"value": b"x", "headers": headers}], KAFKA_FIELDS, topic="t").to_pylist()
    assert row["headers"] == [{"key": "trace", "value": b"7"}, {"key": "kind", "value": b"new"}]
    assert alone([{"value": b"x", "headers": headers}], KAFKA_FIELDS).to_pylist() == [row]


@pytest.mark.parametrize("headers", [{"trace": 7}, [("a", b"b", b"c")], "a=b", {1: b"x"}])
def test_wrong_headers(headers):
    with pytest.raises(SchemaMismatchError, match="'headers"):
        conform({"headers": headers}, KAFKA_FIELDS, topic="t")


def test_a_dictionary_is_no_list_of_another_type():
    with pytest.raises(SchemaMismatchError, match="expected list<int64>, found dict"):
        conform({"c": {"a": 1}}, fields_of(c=pa.list_(pa.int64())), topic="t")


# -- what a single row is ---------------------------------------------------------------------------------------------


def test_what_is_one_row():
    class Frame(dict[str, Any]):
        def __arrow_c_stream__(self, requested_schema=None):
            raise AssertionError("not asked for")

    assert single_row({"a": 1}) == single_row([{"a": 1}]) == {"a": 1}
    for data in ([], [{"a": 1}, {"a": 2}], [7], pa.table({"a": [1]}), Frame(a=1), "text", None):
        assert single_row(data) is None


# -- keys -------------------------------------------------------------------------------------------------------------

KEYS = {
    pa.string(): st.text(),
    pa.binary(): st.binary() | st.text(),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats() | st.just(math.nan) | st.just(-0.0),
}


@given(
    st.lists(
        st.sampled_from(list(KEYS)).flatmap(lambda arrow: st.tuples(st.just(arrow), st.none() | KEYS[arrow])),
        min_size=1,
        max_size=3,
    )
)
def test_a_key_alone_has_the_partition_that_it_has_in_a_table(columns):
    names = [f"k{number}" for number in range(len(columns))]
    row = RowForm(fields_of(**{n: arrow for n, (arrow, _) in zip(names, columns, strict=True)}), "t").take(
        {n: value for n, (_, value) in zip(names, columns, strict=True)}
    )
    (expected,) = partition_table(joined_table([row]), names, 1000).tolist()
    key = row.key(names)
    assert (NO_KEY if key is None else partition_for(key, 1000)) == expected


def test_wrong_keys_are_refused_as_in_a_table():
    row = RowForm(fields_of(a=pa.decimal128(5, 2), b=pa.int64()), "t").take({"a": Decimal(1), "b": 2})
    with pytest.raises(SchemaMismatchError, match="key column 'c' is unknown; the table has a, b"):
        row.key(["b", "c"])
    with pytest.raises(SchemaMismatchError, match=r"key column 'a': decimal128\(5, 2\) cannot be a key"):
        row.key(["a"])
    assert row.key([]) is None
