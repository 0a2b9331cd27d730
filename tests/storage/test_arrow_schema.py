"""The closed list of types, and the values that fit into a topic."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.arrow_rows import EVERY_TYPE, FIELDS, ROWS, UTC, rows_table
from txlog.core import schema as core_schema
from txlog.core.records import SchemaField
from txlog.errors import CorruptRecordError, SchemaMismatchError
from txlog.storage import arrow_schema
from txlog.storage.arrow_schema import check_stored, field_id, stored_fields, to_arrow, to_fields
from txlog.storage.conform import conform
from txlog.storage.inline_rows import (
    MAX_STREAM_BYTES,
    MAX_STREAM_ROWS,
    USUAL_STREAM_BYTES,
    compressed,
    encode_ipc,
    read_ipc,
    select_fields,
)


def fields_of(**types: pa.DataType) -> tuple[SchemaField, ...]:
    return to_fields(pa.schema(list(types.items())))


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_every_type_there_and_back():
    assert to_arrow(FIELDS).equals(EVERY_TYPE)
    assert to_fields(to_arrow(FIELDS)) == FIELDS
    assert stored_fields(to_arrow(FIELDS), "x") == FIELDS


def test_each_scalar_of_the_core_has_one_arrow_type():
    assert set(arrow_schema.SCALARS) == core_schema.SCALAR_TYPES


def test_ids_are_given_depth_first():
    fields = to_fields(
        pa.schema(
            [("a", pa.int64()), ("m", pa.map_(pa.string(), pa.list_(pa.int32()))), ("s", pa.struct([("x", pa.int8())]))]
        )
    )
    assert [(field.id, field.name, field.type) for field in core_schema.all_fields(fields)] == [
        (1, "a", "int64"),
        (2, "m", "map"),
        (3, "key", "string"),
        (4, "value", "list"),
        (5, "element", "int32"),
        (6, "s", "struct"),
        (7, "x", "int8"),
    ]
    arrow = to_arrow(fields)
    assert [field_id(field) for field in arrow] == [1, 2, 6]
    assert field_id(arrow.field("m").type.item_field) == 4
    assert field_id(arrow.field("m").type.item_field.type.value_field) == 5


def test_the_kafka_shape():
    shape = to_arrow(core_schema.KAFKA_FIELDS)
    assert shape.names == ["key", "value", "headers", "timestamp"]
    assert shape.field("headers").type == pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert shape.field("timestamp").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("arrow", "words"),
    [
        (pa.uint8(), ("uint8", "use int16")),
        (pa.uint16(), ("uint16", "use int32")),
        (pa.uint32(), ("uint32", "use int64")),
        (pa.uint64(), ("uint64", "decimal128")),
        (pa.float16(), ("halffloat", "use float32")),
        (pa.large_string(), ("large_string", "use string")),
        (pa.large_binary(), ("large_binary", "use binary")),
        (pa.binary(4), ("fixed_size_binary[4]", "use binary")),
        (pa.string_view(), ("string_view", "use string")),
        (pa.dictionary(pa.int8(), pa.string()), ("dictionary", "the type of its values")),
        (pa.large_list(pa.int8()), ("large_list", "use list")),
        (pa.list_(pa.int8(), 2), ("fixed_size_list", "use list")),
        (pa.timestamp("ns", "UTC"), ("timestamp[ns, tz=UTC]", 'timestamp("us"')),
        (pa.timestamp("ms"), ("timestamp[ms]", 'timestamp("us"')),
        (pa.timestamp("us", "Europe/Berlin"), ("Europe/Berlin", 'tz="UTC"')),
        (pa.date64(), ("date64", "use date32")),
        (pa.time64("us"), ("time64[us]",)),
        (pa.duration("s"), ("duration[s]",)),
        (pa.decimal256(40, 2), ("decimal256", "decimal128")),
        (pa.decimal128(5, 7), ("decimal128(5, 7)", "scale <= precision")),
        (pa.null(), ("null",)),
        (pa.list_view(pa.int8()), ("list_view",)),
    ],
)
def test_other_types_are_refused_by_name(arrow, words):
    for schema, path in (
        (pa.schema([("c", arrow)]), "'c'"),
        (pa.schema([("c", pa.list_(pa.struct([("d", arrow)])))]), "'c.element.d'"),
    ):
        with pytest.raises(SchemaMismatchError) as raised:
            to_fields(schema, where="topic 't'")
        for word in ("topic 't'", path, *words):
            assert word in str(raised.value)


@pytest.mark.parametrize("name", ["_offset", "_Topic", "_partition_x", "_timestamp", "", "a\0"])
def test_bad_names_are_refused(name):
    with pytest.raises(SchemaMismatchError):
        to_fields(pa.schema([(name, pa.int64())]))


def test_names_equal_but_for_case_are_refused():
    with pytest.raises(SchemaMismatchError, match="case"):
        to_fields(pa.schema([("id", pa.int64()), ("ID", pa.int64())]))


def test_a_schema_without_ids_is_none_that_we_stored():
    with pytest.raises(CorruptRecordError, match="field id"):
        stored_fields(pa.schema([("a", pa.int64())]), "x.batch")
    with pytest.raises(CorruptRecordError, match=r"x\.batch.*uint8"):
        stored_fields(pa.schema([("a", pa.uint8())]), "x.batch")


# -- rows in: Arrow ---------------------------------------------------------------------------------------------------


def test_rows_of_every_type_from_dictionaries():
    table = conform(ROWS, FIELDS, topic="t")
    assert table.equals(rows_table())
    assert table.schema.equals(to_arrow(FIELDS), check_metadata=True)


@pytest.mark.parametrize("form", ["table", "batch", "reader", "stream", "array", "chunks"])
def test_every_way_of_speaking_arrow(form):
    table = rows_table()
    plain = pa.Table.from_batches(table.to_batches()).replace_schema_metadata({"pandas": "x"})
    data = {
        "table": lambda: plain,
        "batch": lambda: plain.to_batches()[0],
        "reader": lambda: pa.RecordBatchReader.from_batches(plain.schema, plain.to_batches()),
        "stream": lambda: _OnlyStream(plain),
        "array": lambda: _OnlyArray(plain.to_batches()[0]),
        "chunks": lambda: pa.concat_tables([plain.slice(0, 1), plain.slice(1)]),
    }[form]()
    found = conform(data, FIELDS, topic="t")
    assert found.equals(table)
    assert found.schema.equals(to_arrow(FIELDS), check_metadata=True)
    for name in ("tags", "point", "props"):
        assert found.column(name).type.equals(to_arrow(FIELDS).field(name).type, check_metadata=True)


def test_columns_are_matched_by_name_and_missing_ones_are_null():
    fields = fields_of(a=pa.int64(), b=pa.string(), c=pa.list_(pa.int8()))
    found = conform(pa.table({"b": ["x"], "a": [1]}), fields, topic="t")
    assert found.to_pylist() == [{"a": 1, "b": "x", "c": None}]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.array(["a", None]), pa.binary()),
        (pa.array([b"a", None], pa.large_binary()), pa.binary()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([1, None], pa.int32()), pa.int64()),
        (pa.array([1, None], pa.uint8()), pa.int8()),
        (pa.array([1, None], pa.int64()), pa.int32()),
        (pa.array([1, None], pa.int64()), pa.float64()),
        (pa.array([1, None], pa.int16()), pa.float32()),
        (pa.array([0.5, None], pa.float32()), pa.float64()),
        (pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)), pa.decimal128(38, 1)),
        (pa.array([1_000, None], pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC")),
        (pa.array([1_000, None], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([1_000, None], pa.timestamp("us", "Europe/Berlin")), pa.timestamp("us", "UTC")),
        (pa.array([86_400_000, None], pa.date64()), pa.date32()),
        (pa.nulls(2), pa.list_(pa.int8())),
        (pa.array([["a"], None], pa.large_list(pa.large_string())), pa.list_(pa.string())),
        (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.int64())),
        (pa.array([{"b": 1, "a": "x"}, None], pa.struct([("b", pa.int8()), ("a", pa.large_string())])), pa.struct([("a", pa.string()), ("b", pa.int64())])),
        (pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int32())), pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)  # fmt: skip
def test_casts_that_change_no_value(given, target):
    found = conform(pa.table({"c": given}), fields_of(c=target), topic="t").column("c")
    assert found.type == target
    assert found.null_count == given.null_count
    if not pa.types.is_struct(target) and given.null_count < len(given):
        assert str(found[0].as_py()).replace("b'", "'").strip("'") == str(given.cast(target)[0].as_py()).replace(
            "b'", "'"
        ).strip("'")


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([b"a"]), pa.string()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([1.0]), pa.float32()),
        (pa.array([1], pa.int32()), pa.float32()),
        (pa.array([1]), pa.bool_()),
        (pa.array([True]), pa.int8()),
        (pa.array([1]), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([1], pa.date32()), pa.timestamp("us")),
        (pa.array([1], pa.timestamp("us")), pa.date32()),
        (pa.array([1]), pa.decimal128(5, 2)),
        (pa.array([1.5]), pa.decimal128(5, 2)),
        (pa.array([["a"]], pa.list_view(pa.string())), pa.list_(pa.string())),
        (pa.array([[1]]), pa.list_(pa.string())),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        (pa.array([{"a": 1}]), pa.map_(pa.string(), pa.int64())),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), pa.struct([("a", pa.int64())])),
        (pa.array([1], pa.time32("s")), pa.int64()),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_wrong_types_are_refused(given, target):
    with pytest.raises(SchemaMismatchError) as raised:
        conform(pa.table({"c": given}), fields_of(c=target), topic="orders")
    for word in (
        "topic 'orders'",
        "column 'c'",
        f"expected {core_schema.describe(fields_of(c=target)[0])}",
    ):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("given", "target", "words"),
    [
        (pa.array([1.5]), pa.float32(), "expected float32 (SQL FLOAT), found float64; cast"),
        (pa.array([1.5], pa.float16()), pa.int32(), "expected int32 (SQL INT), found float16; cast"),
        (pa.array(["a"]), pa.float64(), "expected float64 (SQL DOUBLE), found string; cast"),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC"), "expected timestamp (Arrow timestamp[us, tz=UTC]), found timestamp[us]; cast"),
        (pa.array([2**53 + 1]), pa.float64(), "expected float64 (SQL DOUBLE), found int64 with values that do not fit"),
        (pa.array([1001], pa.timestamp("ns")), pa.timestamp("us"), "would lose data: 1001. hint: cut it to microseconds, in pandas"),
        (pa.array([2**63 - 1]), pa.float64(), "Integer value 9223372036854775807 not in range"),
    ],
    ids=str,
)  # fmt: skip
def test_types_are_named_as_users_write_them(given, target, words):
    """str(pyarrow.float64()) is "double" and str(pyarrow.float32()) is "float", which in Python means the former."""
    with pytest.raises(SchemaMismatchError) as raised:
        conform(pa.table({"c": given}), fields_of(c=target), topic="orders")
    assert words in str(raised.value)


@pytest.mark.parametrize("arrow", [pa.float32(), pa.float64()], ids=str)
def test_an_integer_is_stored_exactly_or_refused_however_it_comes(arrow):
    """The same rule holds for every kind of input: the integers of a float column do not end at 2**24 or 2**53."""
    fits, does_not = (2**25, 2**24 + 1) if arrow == pa.float32() else (2**60, 2**60 + 1)
    fields = fields_of(c=arrow, n=pa.list_(arrow))
    for value in (fits, -fits, np.int64(fits)):
        assert conform([{"c": value, "n": [value]}], fields, topic="t").to_pylist() == [{"c": value, "n": [value]}]
    for row in ({"c": does_not}, {"n": [does_not]}, {"c": -does_not}, {"c": np.int64(does_not)}, {"c": 10**400}):
        with pytest.raises(SchemaMismatchError, match="does not fit into float"):
            conform([row], fields, topic="t")
    if arrow == pa.float64():
        columns = pa.table({"c": [fits, None], "n": [[fits], None]})
        frame = pd.DataFrame({"c": [fits, -fits]})
        assert conform(columns, fields, topic="t").to_pylist() == columns.to_pylist()
        assert conform(frame, fields, topic="t").column("c").to_pylist() == [fits, -fits]
        for wrong in (pa.table({"c": [does_not]}), pa.table({"n": [[does_not]]}), pd.DataFrame({"c": [does_not]})):
            with pytest.raises(SchemaMismatchError, match="not in range"):
                conform(wrong, fields, topic="t")
    # Python has only one float type, so a single float is rounded to the nearest. A whole float64 column is not
    # narrowed.
    assert conform([{"c": 16777217.0}], fields_of(c=pa.float32()), topic="t").column("c").to_pylist() == [16777216.0]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (pa.array([2**40]), pa.int32()),
        (pa.array([300], pa.uint16()), pa.int8()),
        (pa.array([2**63], pa.uint64()), pa.int64()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([1], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([2**62], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([Decimal("1.55")]), pa.decimal128(5, 1)),
        (pa.array([Decimal("12345.5")]), pa.decimal128(3, 1)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_values_that_do_not_fit_are_refused(given, target):
    with pytest.raises(SchemaMismatchError, match=rf"column 'c': expected .*found {given.type!s:.6}.*do not fit"):
        conform(pa.table({"c": given}), fields_of(c=target), topic="t")


def test_unknown_repeated_and_missing_columns():
    fields = to_fields(pa.schema((pa.field("amount", pa.int64(), nullable=False), pa.field("note", pa.string()))))
    with pytest.raises(
        SchemaMismatchError,
        match=r"topic 'orders': column 'amuont' is unknown; the topic has amount, note.*Did you mean 'amount'",
    ):
        conform(pa.table({"amuont": [1]}), fields, topic="orders")
    with pytest.raises(SchemaMismatchError, match=r"column 'amount' \(int64 not null\) is missing"):
        conform(pa.table({"note": ["x"]}), fields, topic="orders")
    with pytest.raises(SchemaMismatchError, match=r"'note' is there more than once\. hint: drop or rename one of them"):
        conform(pd.DataFrame([[1, "x", "y"]], columns=["amount", "note", "note"]), fields, topic="orders")
    with pytest.raises(SchemaMismatchError, match="'note' is there more than once"):
        conform(
            pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array(["y"])], ["amount", "note", "note"]),
            fields,
            topic="orders",
        )
    with pytest.raises(SchemaMismatchError, match="'_offset' belongs to txlog"):
        conform(pa.table({"amount": [1], "_offset": [1]}), fields, topic="orders")


def test_nulls_where_none_may_be():
    fields = to_fields(pa.schema([pa.field("amount", pa.int64(), nullable=False)]))
    with pytest.raises(
        SchemaMismatchError, match=r"column 'amount' is not nullable, and 2 values are null, the first in row 1"
    ):
        conform(pa.table({"amount": [1, None, None]}), fields, topic="t")


EXAMPLES = {
    pa.bool_(): True,
    pa.int8(): 7,
    pa.float64(): 0.5,
    pa.string(): "a",
    pa.binary(): b"a",
    pa.date32(): datetime.date(1582, 10, 4),
    pa.timestamp("us", "UTC"): datetime.datetime(1969, 12, 31, 23, 59, tzinfo=datetime.UTC),
    pa.timestamp("us"): datetime.datetime(2000, 2, 29),
    pa.decimal128(10, 3): Decimal("1.500"),
    pa.list_(pa.field("element", pa.int64(), nullable=False)): [1, 2],
}


@pytest.mark.parametrize("slot", [slice(0, None), slice(1, None), slice(2, 5)])
@pytest.mark.parametrize(
    "inner",
    EXAMPLES,
    ids=str,
)
@pytest.mark.parametrize("wrap", ["struct", "list", "map", "struct in a struct", "required struct in a struct"])
def test_nulls_below_a_null_struct_are_none(wrap, inner, slot):
    """Spark leaves nulls in the fields of a null struct, also in fields that are not nullable."""

    def around(struct):
        return {
            "struct": struct,
            "list": pa.list_(pa.field("element", struct)),
            "map": pa.map_(pa.string(), pa.field("value", struct)),  # type: ignore[call-overload]
            "struct in a struct": pa.struct([pa.field("i", struct)]),
            "required struct in a struct": pa.struct([pa.field("i", struct, nullable=False)]),
        }[wrap]

    some = {"k": EXAMPLES[inner]}
    values: Any = {
        "struct": [None, some],
        "list": [[None, some], None, []],
        "map": [[("a", None), ("b", some)], None, []],
        "struct in a struct": [None, {"i": None}, {"i": some}],
        "required struct in a struct": [None, {"i": some}],
    }[wrap]
    whole = pa.table({"c": pa.array(values * 3, around(pa.struct([pa.field("k", inner)])))})
    # pa.array puts a value below a null, and Parquet returns a null there.
    sink = io.BytesIO()
    pq.write_table(whole, sink)
    loose = pq.read_table(sink).column("c").combine_chunks()[slot]
    fields = to_fields(pa.schema([pa.field("c", around(pa.struct([pa.field("k", inner, nullable=False)])))]))
    found = conform(pa.table({"c": loose}), fields, topic="t")
    assert found.schema.equals(to_arrow(fields), check_metadata=True)
    assert found.column("c").to_pylist() == loose.to_pylist()
    # Parquet's writer checks a field without its parents.
    pq.write_table(found, io.BytesIO())


@pytest.mark.parametrize(
    ("values", "where"),
    [
        (pa.array([b"a", b"\x80"], pa.binary()).view(pa.string()), "column 'c'"),
        (pa.array([[b"a", b"\xff"]], pa.list_(pa.binary())).view(pa.list_(pa.string())), "column 'c'"),
        (pa.array([Decimal(123456)], pa.decimal128(9, 0)).view(pa.decimal128(5, 0)), "column 'c'"),
    ],
)
def test_values_that_are_none_of_their_type_are_refused(values, where):
    """Arrow accepts these values, but no reader could read them from inline rows."""
    fields = to_fields(pa.schema([pa.field("c", values.type)]))
    with pytest.raises(SchemaMismatchError, match=where):
        conform(pa.table({"c": values}), fields, topic="t")


@pytest.mark.parametrize(
    ("arrow", "good", "bad", "path"),
    [
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), [None, {"x": 1}], [{"x": None}], "c.x"),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), [None, [], [1]], [[1, None]], "c.element"),
        (pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), [None, [("a", 1)]], [[("a", None)]], "c.value"),  # type: ignore[call-overload]
        (
            pa.list_(pa.struct([pa.field("x", pa.list_(pa.field("element", pa.int8(), nullable=False)))])),
            [None, [], [None, {"x": None}, {"x": [1]}]],
            [[{"x": [1]}, {"x": [None]}]],
            "c.element.x.element",
        ),
    ],
)  # fmt: skip
def test_nulls_inside_nested_values(arrow, good, bad, path):
    fields = to_fields(pa.schema([("c", arrow)]))
    loose = _all_nullable(arrow)
    fillers: list[Any] = [[], good]
    for filler in fillers:
        fine = pa.array([*bad, *filler, *good], loose).slice(len(bad))
        assert conform(pa.table({"c": fine}), fields, topic="t").column("c").to_pylist() == [*filler, *good]
        fine = pa.array([*bad, good[-1]], loose).slice(len(bad))
        assert conform(pa.table({"c": fine}), fields, topic="t").num_rows == 1
        with pytest.raises(SchemaMismatchError, match=f"column '{path}' is not nullable"):
            conform(pa.table({"c": pa.array([*filler, *bad], loose)}), fields, topic="t")


@pytest.mark.parametrize("data", [None, 1, "rows", b"rows", object(), {1, 2}])
def test_what_is_no_table(data):
    with pytest.raises(SchemaMismatchError, match=rf"topic 't': rows must be .*found {type(data).__name__}"):
        conform(data, fields_of(a=pa.int64()), topic="t")


def test_a_dictionary_is_one_row_and_not_columns():
    assert conform({"a": 1}, fields_of(a=pa.int64()), topic="t").to_pylist() == [{"a": 1}]
    with pytest.raises(SchemaMismatchError, match=r"topic 't': row 0: column 'a': expected int64, found list \[1\]"):
        conform({"a": [1]}, fields_of(a=pa.int64()), topic="t")


def test_a_stream_that_breaks():
    with pytest.raises(SchemaMismatchError, match="_BrokenStream could not be read"):
        conform(_BrokenStream(), fields_of(a=pa.int64()), topic="t")


def test_pandas_frames():
    fields = fields_of(a=pa.int64(), at=pa.timestamp("us"), s=pa.string())
    frame = pd.DataFrame({"a": [1, 2], "at": pd.to_datetime(["2024-01-01", "2024-01-02"]), "s": ["x", None]})
    assert conform(frame, fields, topic="t").column("at")[1].as_py() == datetime.datetime(2024, 1, 2)
    with pytest.raises(SchemaMismatchError, match="index of a pandas frame"):
        conform(frame[frame.a > 1], fields, topic="t")


# -- rows in: dictionaries --------------------------------------------------------------------------------------------


def test_no_rows_at_all():
    assert conform([], FIELDS, topic="t").equals(rows_table([]))


def test_dictionaries_may_leave_out_nullable_columns_and_use_numpy():
    fields = to_fields(
        pa.schema(
            (pa.field("a", pa.int8(), nullable=False), pa.field("f", pa.float32()), pa.field("l", pa.list_(pa.int64())))
        )
    )
    rows = [{"a": np.int64(1)}, {"a": 2, "f": np.float32(0.5), "l": np.array([1, 2])}, {"a": 3, "f": 1}]
    assert conform(rows, fields, topic="t").to_pylist() == [
        {"a": 1, "f": None, "l": None},
        {"a": 2, "f": 0.5, "l": [1, 2]},
        {"a": 3, "f": 1.0, "l": None},
    ]


def test_maps_may_be_dictionaries():
    fields = fields_of(m=pa.map_(pa.string(), pa.int64()))
    assert conform([{"m": {"a": 1}}], fields, topic="t").column("m").to_pylist() == [[("a", 1)]]


@pytest.mark.parametrize(
    ("arrow", "value", "words"),
    [
        (pa.int64(), 1.5, "expected int64, found float 1.5"),
        (pa.int64(), "1", "expected int64, found str '1'"),
        (pa.int64(), True, "expected int64, found bool True"),
        (pa.int8(), 300, "row 1: column 'c': 300 does not fit into int8, which holds -128 to 127"),
        (pa.int16(), np.int64(-(2**15) - 1), "does not fit into int16, which holds -32768 to 32767"),
        (pa.int64(), 2**63, "9223372036854775808 does not fit into int64, which holds -9223372036854775808 to 9223372036854775807"),
        (pa.float32(), 1e40, "row 1: column 'c': 1e+40 does not fit into float32, which holds finite numbers up to 3.4028235e+38"),
        (pa.float32(), np.float64(-1e40), "does not fit into float32"),
        (pa.list_(pa.float32()), [1.0, 1e40], "row 1: column 'c.element': 1e+40 does not fit into float32"),
        (pa.float32(), 2**24 + 1, "16777217 does not fit into float32, which holds -16777216 to 16777216 without rounding"),
        (pa.float64(), 2**53 + 1, "does not fit into float64, which holds -9007199254740992 to 9007199254740992 without rounding"),
        (pa.float64(), "1", "expected float64, found str"),
        (pa.bool_(), 1, "expected bool, found int 1"),
        (pa.string(), b"x", "expected string, found bytes"),
        (pa.string(), 1, "expected string, found int 1"),
        (pa.string(), "\ud800", "'c'"),
        (pa.binary(), 1, "expected binary, found int 1. hint: give text or bytes, as in str(1)"),
        (pa.date32(), datetime.datetime(2020, 1, 1), "expected date, found datetime without a time zone"),
        (pa.timestamp("us", "UTC"), datetime.datetime(2020, 1, 1), "expected timestamp, found datetime without a time zone"),
        (pa.timestamp("us"), datetime.datetime(2020, 1, 1, tzinfo=UTC), "found datetime with a time zone"),
        (pa.timestamp("us"), datetime.date(2020, 1, 1), "found date "),
        (pa.timestamp("us"), pd.Timestamp("2020-01-01 00:00:00.000000001"), "hint: cut it to microseconds, in pandas with .floor('us')"),
        (pa.timestamp("us"), pd.NaT, "'c'"),
        (pa.decimal128(5, 2), 1.5, "expected decimal(5,2), found float 1.5"),
        (pa.decimal128(5, 2), Decimal("1.555"), "'c'"),
        (pa.decimal128(5, 2), True, "found bool True"),
        (pa.list_(pa.int64()), "ab", "expected list<int64>, found str"),
        (pa.list_(pa.int64()), ["a"], "'c.element': expected int64, found str 'a'"),
        (pa.struct([("x", pa.int64())]), {"y": 1}, "'c' has no field 'y', only x"),
        (pa.struct([("x", pa.int64())]), {"x": "a"}, "'c.x': expected int64, found str 'a'"),
        (pa.struct([pa.field("x", pa.int64(), nullable=False)]), {}, "'c.x' is not nullable"),
        (pa.map_(pa.string(), pa.int64()), [("a", 1, 2)], "expected pairs of key and value"),
        (pa.map_(pa.string(), pa.int64()), {1: 1}, "'c.key': expected string not null, found int 1"),
        (pa.map_(pa.string(), pa.int64()), {None: 1}, "'c.key' is not nullable"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(arrow, value, words):
    with pytest.raises(SchemaMismatchError) as raised:
        conform([{}, {"c": value}], fields_of(c=arrow), topic="orders")
    assert "topic 'orders'" in str(raised.value)
    assert words in str(raised.value)


def test_fractions_are_rounded_and_infinities_kept():
    values: list[Any] = [0.1, 3.4028235e38, float("inf"), -float("inf"), np.float32(0.5), 2**24, np.int8(1)]
    found = (
        conform([{"c": value} for value in values], fields_of(c=pa.float32()), topic="orders").column("c").to_pylist()
    )
    assert found == [float(np.float32(value)) for value in values]


def test_wrong_rows_are_refused():
    fields = to_fields(pa.schema([pa.field("amount", pa.int64(), nullable=False)]))
    with pytest.raises(SchemaMismatchError, match="row 1: expected a dictionary, found int"):
        conform([{"amount": 1}, 7], fields, topic="t")
    with pytest.raises(SchemaMismatchError, match=r"row 0: column 'amuont' is unknown.*Did you mean 'amount'"):
        conform([{"amuont": 1}], fields, topic="t")
    for row in ({}, {"amount": None}):
        with pytest.raises(
            SchemaMismatchError, match="row 0: column 'amount' is not nullable, and its value is missing or None"
        ):
            conform([row], fields, topic="t")


# -- inline rows ------------------------------------------------------------------------------------------------------


def decoded(payload, fields, where="x"):
    return select_fields(read_ipc(payload, where), fields, where)


def test_ipc_there_and_back():
    payload = encode_ipc(rows_table())
    with pa.ipc.new_stream(sink := pa.BufferOutputStream(), rows_table().schema) as writer:
        writer.write_table(rows_table())
    assert payload == sink.getvalue().to_pybytes()
    assert decoded(payload, FIELDS).equals(rows_table())
    assert stored_fields(read_ipc(payload, "x").schema, "x") == FIELDS
    assert decoded(encode_ipc(rows_table().slice(1, 1)), FIELDS).to_pylist() == rows_table().slice(1, 1).to_pylist()
    assert decoded(encode_ipc(rows_table([])), FIELDS).num_rows == 0


def test_a_compressed_stream_there_and_back():
    stream = encode_ipc(rows_table())
    frame = compressed(stream, rows_table().num_rows)
    assert len(frame) < len(stream)
    assert decoded(frame, FIELDS).equals(rows_table())
    # A stream that does not become smaller stays as it is.
    assert compressed(frame, 1) == frame


@pytest.mark.parametrize("more", [-8, 0, 8])
def test_a_stream_about_as_long_as_the_first_read_is_read_whole(more):
    other = len(encode_ipc(pa.table({"a": [bytes(8)]}))) - 8
    table = pa.table({"a": [bytes(USUAL_STREAM_BYTES + more - other)]})
    stream = encode_ipc(table)
    assert len(stream) == USUAL_STREAM_BYTES + more
    assert read_ipc(compressed(stream, 1), "x").equals(table)


@pytest.mark.parametrize("damaged", [lambda frame: frame[:-5], lambda frame: frame[:5], lambda frame: frame + b"x"])
def test_a_damaged_frame(damaged):
    with pytest.raises(CorruptRecordError, match=r"orders-0 7\.batch: \d+ bytes are not a"):
        read_ipc(damaged(compressed(encode_ipc(rows_table()), 3)), "orders-0 7.batch")


def test_a_frame_expands_to_so_many_bytes_and_no_more():
    zeros = pa.table({"a": [bytes(MAX_STREAM_BYTES - 1000)]})
    fits = compressed(encode_ipc(zeros), 1)
    assert len(fits) < 1000
    assert read_ipc(fits, "x").equals(zeros)
    large = encode_ipc(pa.table({"a": [bytes(MAX_STREAM_BYTES)]}))
    assert compressed(large, 1) == large
    with pytest.raises(CorruptRecordError, match=r"x: \d+ compressed bytes expand to more than 3145728"):
        read_ipc(pa.compress(large, codec="zstd", asbytes=True), "x")


def test_a_frame_has_so_many_rows_and_no_more():
    bits = encode_ipc(pa.table({"a": pa.nulls(MAX_STREAM_ROWS, pa.bool_())}))
    assert read_ipc(compressed(bits, MAX_STREAM_ROWS), "x").num_rows == MAX_STREAM_ROWS
    many = encode_ipc(pa.table({"a": pa.nulls(MAX_STREAM_ROWS + 1, pa.bool_())}))
    assert compressed(many, MAX_STREAM_ROWS + 1) == many
    with pytest.raises(CorruptRecordError, match="cannot hold 65537 rows"):
        read_ipc(pa.compress(many, codec="zstd", asbytes=True), "x")


def test_older_rows_get_nulls_for_newer_columns():
    old = fields_of(a=pa.int64(), b=pa.string())
    new = core_schema.add_columns(old, fields_of(c=pa.list_(pa.int64())))
    payload = encode_ipc(conform([{"a": 1, "b": "x"}], old, topic="t"))
    assert decoded(payload, new).to_pylist() == [{"a": 1, "b": "x", "c": None}]


def test_columns_are_found_by_id():
    old = fields_of(a=pa.int64(), b=pa.int64())
    payload = encode_ipc(conform([{"a": 1, "b": 2}], old[::-1], topic="t"))
    assert decoded(payload, old).to_pylist() == [{"a": 1, "b": 2}]
    swapped = tuple(SchemaField(id=3 - field.id, name=field.name, type=field.type) for field in old)
    with pytest.raises(CorruptRecordError, match=r"column 'b' \(id 2\): int64 is in it, .* has 'a': int64"):
        decoded(payload, swapped)


def test_a_foreign_table_without_ids_is_read_by_name():
    fields = fields_of(a=pa.int64(), b=pa.string())
    assert select_fields(pa.table({"b": ["x"], "a": [1]}), fields, "x").to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize("payload", [b"", b"junk", b"\xff" * 64])
def test_junk_is_no_stream(payload):
    with pytest.raises(CorruptRecordError, match=r"orders-0 7\.batch: \d+ bytes are not an Arrow stream"):
        read_ipc(payload, "orders-0 7.batch")


def test_a_cut_off_stream():
    payload = encode_ipc(rows_table())
    for length in range(1, len(payload) - 8, 97):
        try:
            table = decoded(payload[:length], FIELDS)
        except CorruptRecordError:
            continue
        # A stream may end after any message. The count in the record shows that rows are missing.
        assert table.num_rows == 0


def test_stored_columns_that_do_not_fit():
    stored = pa.table({"a": ["x"]})
    with pytest.raises(CorruptRecordError, match=r"x\.parquet: column 'a' \(id 1\): expected int64, found string"):
        select_fields(stored, fields_of(a=pa.int64()), "x.parquet")
    not_null = to_fields(pa.schema([pa.field("b", pa.int64(), nullable=False)]))
    with pytest.raises(
        CorruptRecordError, match=r"x\.parquet: column 'b' \(id 1\) is not in it, and it is not nullable"
    ):
        select_fields(pa.table({"_offset": [1]}), not_null, "x.parquet")
    with pytest.raises(CorruptRecordError, match="is not nullable and has 1 nulls"):
        select_fields(pa.table({"b": pa.array([None], pa.int64())}), not_null, "x.parquet")


class _OnlyStream:
    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class _OnlyArray:
    def __init__(self, batch):
        self._batch = batch

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


class _BrokenStream:
    def __arrow_c_stream__(self, requested_schema=None):
        raise ValueError("broken")


def _all_nullable(arrow):
    if pa.types.is_map(arrow):
        return pa.map_(arrow.key_type, _all_nullable(arrow.item_type))
    if pa.types.is_list(arrow):
        return pa.list_(_all_nullable(arrow.value_type))
    if pa.types.is_struct(arrow):
        return pa.struct([(field.name, _all_nullable(field.type)) for field in arrow])
    return arrow


def test_stored_columns_without_ids_are_found_by_name():
    fields = to_fields(pa.schema([("a", pa.int64())]))
    stored = pa.schema([("a", pa.int64()), ("_offset", pa.int64())])
    check_stored(stored, fields, "orders/0/x")
    with pytest.raises(
        CorruptRecordError, match=r"^orders/0/x: column 'b' is in it, and the topic's metadata has no such"
    ):
        check_stored(stored.append(pa.field("b", pa.int64())), fields, "orders/0/x")


def test_an_id_of_zero_is_an_id_of_no_column() -> None:
    fields = to_fields(pa.schema([("a", pa.int64())]))
    stored = pa.schema([pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "0"})])
    with pytest.raises(
        CorruptRecordError, match=r"column 'a' \(id 0\): int64 is in it, and the topic's metadata has no such"
    ):
        check_stored(stored, fields, "orders/0/x")


def test_the_schema_of_the_same_fields_is_made_once() -> None:
    fields = to_fields(pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.list_(pa.string()))]))
    assert to_arrow(fields) is to_arrow(list(fields))
    assert to_arrow(fields) is not to_arrow(fields[:1])


def test_a_list_of_maps_is_not_taken_for_headers() -> None:
    """The children of a map are `key` and `value`, too."""
    schema = pa.schema([pa.field("a", pa.list_(pa.map_(pa.string(), pa.binary())))])
    value = [[("k", b"1"), ("l", b"2")], [("m", None)]]
    assert conform([{"a": value}], to_fields(schema), topic="t").to_pylist() == [{"a": value}]
