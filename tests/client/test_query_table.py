"""DuckDB over topics: it hands over columns and conditions, and its answers are the same as over a copy of the rows."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.client.world import ORDERS, World, many
from tests.effort import cases
from txlog.client.store import Store
from txlog.client.tables.query_table import QueryTable
from txlog.errors import CorruptRecordError, SchemaMismatchError

TYPED = pa.schema(
    (
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("i8", pa.int8()),
        pa.field("i32", pa.int32()),
        pa.field("i64", pa.int64()),
        pa.field("f32", pa.float32()),
        pa.field("f64", pa.float64()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("big", pa.decimal128(38, 0)),
        pa.field("text", pa.string()),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("instant", pa.timestamp("us", "UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("point", pa.struct([("x", pa.float64()), ("n", pa.int32()), ("s", pa.string())])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("props", pa.map_(pa.string(), pa.int64())),
        pa.field("dot.ted", pa.int16()),
    )
)
VALUES: dict[str, list[tuple[Any, str]]] = {
    "flag": [(True, "TRUE"), (False, "FALSE")],
    "i8": [(-128, "-128"), (127, "127"), (0, "0"), (5, "5"), (5, "5.5"), (5, "1000")],
    "i32": [(-(2**31), "-2147483648"), (2**31 - 1, "2147483647"), (0, "0"), (3, "3"), (3, "3.25"), (3, "'3'")],
    "i64": [(-(2**63), "-9223372036854775808"), (2**63 - 1, "9223372036854775807"), (7, "7"), (8, "1e30"), (2**53 + 1, "9007199254740993")],
    "f32": [(0.5, "0.5"), (-0.0, "-0.0"), (0.0, "0"), (math.nan, "'NaN'::FLOAT"), (math.inf, "'inf'::FLOAT"), (0.1, "0.1"), (16777216.0, "16777217")],
    "f64": [(0.1, "0.1"), (-0.0, "-0.0"), (0.0, "0.0"), (math.nan, "'NaN'::DOUBLE"), (-math.inf, "'-inf'::DOUBLE"), (1e300, "1e300"), (2.0, "2")],
    "price": [(Decimal("1.25"), "1.25"), (Decimal("-0.01"), "-0.01"), (Decimal("9999999999.99"), "9999999999.99"), (Decimal("1.20"), "1.205"), (Decimal(0), "0")],
    "big": [(Decimal(10**37), "1e37"), (Decimal(-1), "-1"), (Decimal(12), "12"), (Decimal(10**37 + 1), "10000000000000000000000000000000000001")],
    "text": [("", "''"), ("a", "'a'"), ("A", "'A'"), ("zwölf €", "'zwölf €'"), ("it's", "'it''s'"), ("x" * 40, "'" + "x" * 40 + "'"), ("x" * 41, "'" + "x" * 33 + "'")],
    "raw": [(b"", "''::BLOB"), (b"\x00\xff", "'\\x00\\xFF'::BLOB"), (b"abc", "'abc'::BLOB")],
    "day": [(datetime.date(1969, 12, 31), "DATE '1969-12-31'"), (datetime.date(2024, 2, 29), "'2024-02-29'"), (datetime.date(9999, 12, 31), "TIMESTAMP '2024-02-29 12:00:00'")],
    "instant": [
        (datetime.datetime(2024, 2, 29, 12, 30, 1, 123456, datetime.UTC), "TIMESTAMPTZ '2024-02-29 13:30:01.123456+01'"),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC), "'1969-12-31 23:59:59.999999'"),
        (datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), "DATE '2024-02-29'"),
    ],
    "local": [
        (datetime.datetime(1500, 1, 1), "TIMESTAMP '1500-01-01 00:00:00'"),
        (datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), "'9999-12-31 23:59:59.999999'"),
        (datetime.datetime(2024, 2, 29), "DATE '2024-02-29'"),
    ],
    "point.x": [(0.5, "0.5"), (math.nan, "'NaN'::DOUBLE"), (-1.0, "-1")],
    "point.n": [(1, "1"), (-5, "-5"), (9, "9.5")],
    "point.s": [("a", "'a'"), ("b", "'b'")],
    "dot.ted": [(1, "1"), (2, "2"), (300, "300")],
}  # fmt: skip
"""Values of the columns, each with a literal that a predicate compares with. They need not be equal."""
SPELLED = {"dot.ted": '"dot.ted"', **{name: name for name in VALUES if name != "dot.ted"}}


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


def opened_files(world: World, connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, list[Any]]:
    """Return how many files of rows a query opened, and its rows."""
    with world.counting.counting() as cost:
        found = connection.sql(query).fetchall()
    return len({path for verb, path in cost.calls() if path.endswith(".parquet")}), found


# -- what is not read -------------------------------------------------------------------------------------------------


def test_files_are_skipped_by_the_condition_of_the_query(
    world: World, numbered: Store, connection: duckdb.DuckDBPyConnection
) -> None:
    connection.register("facts", QueryTable(numbered.snapshot("facts").table("facts")))
    for where, files, rows in (
        ("id >= 0", 3, 3001),
        ("id BETWEEN 1500 AND 1600", 1, 101),
        ("id < 0 OR id = 999", 1, 1),
        ("id + 1 = 1000", 1, 1),
        ("id IN (5, 2500)", 2, 2),
        ("_offset >= 2000", 1, 1001),
        ("_partition = 1", 0, 0),
        ("name IS NULL", 0, 0),
        ("id > 9999 AND name LIKE '%9'", 0, 0),
        # Not handed over, and still right.
        ("name LIKE '%01'", 3, 30),
        ("id % 1000 = 7", 3, 3),
    ):
        found = opened_files(world, connection, f"SELECT count(*) FROM facts WHERE {where}")
        assert found == (files, [(rows,)]), where
    joined = "SELECT count(*) FROM facts a JOIN facts b USING (id) WHERE a.id < 10 AND b.name IS NOT NULL"
    assert opened_files(world, connection, joined) == (1, [(10,)])


def test_only_the_columns_of_the_query_are_read(world: World, connection: duckdb.DuckDBPyConnection) -> None:
    store = world.open()
    store.create_topic("facts", ORDERS, config={"inline.max.bytes": 0, "segment.batches": 100})
    dice = random.Random(1)
    names = [f"{dice.getrandbits(120):x}" for _ in range(400_000)]
    with store.producer(batch_size=2**30) as producer:
        producer.send("facts", pa.table({"id": range(400_000), "name": names}, ORDERS)).result()
    (path,) = world.memory.list("facts/0/rows/")
    size = world.memory.size(f"facts/0/rows/{path}")
    connection.register("facts", QueryTable(store.snapshot("facts").table("facts")))

    def cost_of(query: str) -> tuple[list[Any], float]:
        with world.counting.counting() as cost:
            found = connection.sql(query).fetchall()
        return found, cost.read_bytes / size

    everything, ids, one = (
        cost_of(f"SELECT {what} FROM facts")
        for what in ("count(DISTINCT name), sum(id)", "sum(id)", "max(name) FILTER (TRUE), count(*)")
    )
    assert everything[1] > 0.9
    assert ids[0] == [(sum(range(400_000)),)]
    assert ids[1] < 0.4
    assert one[0] == [(max(names), 400_000)]
    found, part = cost_of("SELECT name FROM facts WHERE id = 399999")
    assert found == [(names[-1],)]
    assert part < 0.4  # one row group of four


def test_a_limit_ends_the_read(world: World, connection: duckdb.DuckDBPyConnection) -> None:
    store = world.open()
    store.create_topic("facts", ORDERS, config={"inline.max.bytes": 0, "segment.batches": 1000})
    with store.producer() as producer:
        for first in range(0, 60_000, 1000):
            producer.send("facts", many(1000, first, width=4000)).result()
    connection.register("facts", QueryTable(store.snapshot("facts").table("facts")))
    files, found = opened_files(world, connection, "SELECT id, length(name) FROM facts LIMIT 3")
    assert found == [(0, 4000), (1, 4000), (2, 4000)]
    assert files < 40


# -- right answers ----------------------------------------------------------------------------------------------------


def some_rows(dice: random.Random, first: int, count: int) -> pa.Table:
    """Return rows that have few distinct values, so that their file can be skipped."""
    few = {name: dice.sample(values, min(2, len(values))) for name, values in VALUES.items()}
    nulls = {name: dice.choice([0, 0, 0.3, 1]) for name in VALUES}

    def value(name: str) -> Any:
        return None if dice.random() < nulls[name] else dice.choice(few[name])[0]

    rows: list[dict[str, Any]] = []
    for number in range(first, first + count):
        row = {name: value(name) for name in VALUES if not name.startswith("point")}
        point = {name: value(f"point.{name}") for name in ("x", "n", "s")}
        row["point"] = None if dice.random() < 0.2 else point
        row["tags"] = dice.choice([None, [], ["a", None]])
        row["props"] = dice.choice([None, [], [("k", 1)]])
        rows.append({"id": number, **row})
    return pa.Table.from_pylist(rows, TYPED)


def some_predicate(dice: random.Random, depth: int = 0) -> str:
    if depth < 3 and dice.random() < 0.45:
        left, right = (some_predicate(dice, depth + 1) for _ in range(2))
        return f"({left} {dice.choice(['AND', 'OR'])} {right})"
    if dice.random() < 0.15:
        return f"(NOT {some_predicate(dice, depth + 1)})"
    name = dice.choice([*VALUES])
    column, literals = SPELLED[name], [literal for _, literal in VALUES[name]]
    match dice.choice(["null", "in", "between", "distinct", "like", "whole", *["compare"] * 2]):
        case "null":
            return f"{column} IS {dice.choice(['', 'NOT '])}NULL"
        case "in":
            chosen = ", ".join(dice.choices(literals, k=dice.randrange(1, 6)))
            return f"{column} {dice.choice(['', 'NOT '])}IN ({chosen})"
        case "between":
            return f"{column} BETWEEN {dice.choice(literals)} AND {dice.choice(literals)}"
        case "distinct":
            return f"{column} IS {dice.choice(['', 'NOT '])}DISTINCT FROM {dice.choice([*literals, 'NULL'])}"
        case "like" if name in ("text", "point.s"):
            return f"{column} {dice.choice(['', 'NOT '])}LIKE {dice.choice(['%', 'a%', '%x', 'x%'])!r}"
        case "like":
            return f"{dice.choice(['id', '_offset'])} {dice.choice(['<', '>='])} {dice.randrange(200)}"
        case "whole" if name == "flag":
            return column
        case "whole":
            return f"coalesce({column}, {dice.choice(literals)}) = {dice.choice(literals)}"
        case _:
            operator = dice.choice(["=", "<>", "<", "<=", ">", ">="])
            return f"{column} {operator} {dice.choice(literals)}"


@pytest.mark.parametrize("seed", cases(range(20)))
def test_answers_are_those_over_a_copy_of_the_rows(
    world: World, connection: duckdb.DuckDBPyConnection, seed: int
) -> None:
    dice = random.Random(seed)
    store = world.open()
    store.create_topic("typed", TYPED, config={"inline.max.bytes": 4096})
    with store.producer() as producer:
        first = 0
        for count in (50, 40, 1, 60, 3, 45):
            producer.send("typed", some_rows(dice, first, count)).result()
            first += count
    found = store.snapshot("typed").table("typed")
    connection.register("arrow", found.to_arrow())
    connection.execute("CREATE TABLE whole AS FROM arrow")
    pushed = QueryTable(found)
    connection.register("typed", pushed)
    files, kept = 0, 0
    for number in range(20):
        where = some_predicate(dice)
        query = "SELECT id FROM {} WHERE " + where + " ORDER BY id"
        expected = connection.sql(query.format("whole")).fetchall()
        opened, answer = opened_files(world, connection, query.format("typed"))
        assert answer == expected, where
        counted = connection.sql(f"SELECT count(*) FROM typed WHERE {where}").fetchall()
        assert counted == [(len(expected),)], where
        if number % 5 == 0:
            whole = "SELECT * FROM {} WHERE " + where + " ORDER BY id"
            rows = [connection.sql(whole.format(table)).to_arrow_table() for table in ("typed", "whole")]
            assert repr(rows[0].to_pylist()) == repr(rows[1].to_pylist()), where
        files += opened
        kept += len(expected)
    assert 0 < kept < 20 * first
    # Some of the conditions exclude some of the files.
    assert files < 20 * len(world.memory.list("typed/0/rows/"))


def test_columns_that_were_changed(world: World, connection: duckdb.DuckDBPyConnection) -> None:
    store = world.open()
    store.create_topic("facts", ORDERS, config={"inline.max.bytes": 0})
    with store.producer() as producer:
        producer.send("facts", [{"id": 1, "name": "old"}]).result()
    store.alter_topic("facts", add_columns=pa.schema([("note", pa.string())]))
    store.alter_topic("facts", rename_columns={"name": "title"})
    with store.producer() as producer:
        producer.send("facts", [{"id": 2, "title": "new", "note": "x"}]).result()
    connection.register("facts", QueryTable(store.snapshot("facts").table("facts")))
    query = "SELECT id, title, note FROM facts WHERE {} ORDER BY id"
    for where, expected in (
        ("TRUE", [(1, "old", None), (2, "new", "x")]),
        ("note IS NULL", [(1, "old", None)]),
        ("title = 'old'", [(1, "old", None)]),
        ("note = 'x'", [(2, "new", "x")]),
    ):
        assert connection.sql(query.format(where)).fetchall() == expected, where


def test_names_that_duckdb_does_not_distinguish(world: World, connection: duckdb.DuckDBPyConnection) -> None:
    store = world.open()
    columns = ["id", "ID_1", 'q"uote', "select", "a.b"]
    store.create_topic("names", pa.schema([(name, pa.int64()) for name in columns]))
    with store.producer() as producer:
        producer.send("names", [{name: number for number, name in enumerate(columns)}])
        producer.send("names", [dict.fromkeys(columns, 9)])
    connection.register("names", QueryTable(store.snapshot("names").table("names")))
    shown = connection.sql("DESCRIBE names").fetchall()
    query = "SELECT {} FROM names WHERE {} < 9".format
    for number, (name, *_) in enumerate(shown[: len(columns)]):
        quoted = '"' + name.replace('"', '""') + '"'
        assert connection.sql(query(quoted, quoted)).fetchall() == [(number,)], name


# -- errors -----------------------------------------------------------------------------------------------------------


def test_the_error_of_a_scan_is_kept(world: World, numbered: Store, connection: duckdb.DuckDBPyConnection) -> None:
    table = QueryTable(numbered.snapshot("facts").table("facts"))
    connection.register("facts", table)
    (path, *_) = world.memory.list("facts/0/rows/")
    world.memory.delete(f"facts/0/rows/{path}")
    world.memory.put_if_absent(f"facts/0/rows/{path}", b"PAR1 nothing PAR1")
    with pytest.raises(duckdb.Error):
        connection.sql("SELECT max(name) FROM facts").fetchall()
    assert isinstance(table.error, CorruptRecordError)
    assert path in str(table.error)


def test_columns_that_change_during_a_query_are_an_error(numbered: Store) -> None:
    table = QueryTable(numbered.snapshot("facts").table("facts"))
    numbered.alter_topic("facts", rename_columns={"name": "title"})
    with pytest.raises(SchemaMismatchError, match="no column 'name'"):
        table.scanner(columns=["name"])
    with pytest.raises(SchemaMismatchError):
        table.scanner(columns=["id"], filter=pc.field("name") == "x")
    assert isinstance(table.error, SchemaMismatchError)
    assert table.scanner(columns=["id"]).to_reader().read_all().num_rows == 3001


def test_progress(numbered: Store, connection: duckdb.DuckDBPyConnection) -> None:
    seen: list[tuple[object, int, int]] = []
    table = numbered.snapshot("facts").table("facts")
    connection.register("facts", QueryTable(table, lambda *call: seen.append(call)))
    connection.sql("SELECT sum(id) FROM facts").fetchall()
    assert seen[-1] == ("facts", 3001, 0)
    assert [rows for _, rows, _ in seen] == sorted(rows for _, rows, _ in seen)
