"""`txlog sql`: what a query sees, what it may name and do, and each form of its result."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

import txlog
from tests.cli.support import FAST, Cli, run
from tests.cli.test_interrupts import program
from tests.storage.arrow_rows import EVERY_TYPE, ROWS, rows_table
from txlog.cli import sql
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.program import app
from txlog.client import Store

ORDERS = pa.schema(
    (
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("country", pa.string()),
        pa.field("amount", pa.float64()),
    )
)
PAYMENTS = pa.schema((pa.field("order_id", pa.int64(), nullable=False), pa.field("paid", pa.decimal128(10, 2))))
JOIN = "SELECT order_id, country, paid FROM orders JOIN payments USING (order_id) ORDER BY order_id"


@pytest.fixture
def shop(cli: Cli) -> Iterator[Store]:
    """Yield the runner's store with a transaction over two topics."""
    with txlog.open(str(cli.root), storage_options=FAST) as store:
        store.create_topic("orders", ORDERS, partitions=2)
        store.create_topic("payments", PAYMENTS)
        with store.producer("billing") as producer, producer.transaction(version=1):
            sell(producer, 1, "DE")
            sell(producer, 2, "FR")
            producer.send("orders", [{"order_id": 3}], partition=1)
        yield store


def sell(producer: Any, number: int, country: str | None) -> None:
    producer.send("orders", [{"order_id": number, "country": country, "amount": number * 1.5}], partition=number % 2)
    producer.send("payments", [{"order_id": number, "paid": Decimal(number)}])
    producer.flush()


def rows_of(cli: Cli, query: str, *options: str | int) -> list[Any]:
    return cli("sql", query, "--output", "json", *options).rows


def in_bytes(cli: Cli, *args: str) -> bytes:
    """Return the standard output, which need not be text."""
    result = CliRunner().invoke(app, [*args, "--store", str(cli.root)], prog_name="txlog")
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes


# -- what a query sees ------------------------------------------------------------------------------------------------


def test_a_join_sees_whole_committed_transactions_only(cli: Cli, shop: Store) -> None:
    committed = [{"order_id": 1, "country": "DE", "paid": "1.00"}, {"order_id": 2, "country": "FR", "paid": "2.00"}]
    with shop.producer("dropped") as dropped:
        dropped.begin_transaction()
        sell(dropped, 4, "ES")
        dropped.abort_transaction()
    with shop.producer("open") as hanging:
        hanging.begin_transaction()
        sell(hanging, 5, "IT")
        assert rows_of(cli, JOIN) == committed
        assert rows_of(cli, "SELECT count(*) AS n FROM orders") == [{"n": 3}]
        hanging.commit_transaction()
    assert rows_of(cli, JOIN) == [*committed, {"order_id": 5, "country": "IT", "paid": "5.00"}]


def test_the_place_of_a_row_has_columns(cli: Cli, shop: Store) -> None:
    query = "SELECT order_id, _partition, _offset, _timestamp <= now() AS past FROM orders ORDER BY order_id"
    assert rows_of(cli, query) == [
        {"order_id": 1, "_partition": 1, "_offset": 0, "past": True},
        {"order_id": 2, "_partition": 0, "_offset": 0, "past": True},
        {"order_id": 3, "_partition": 1, "_offset": 1, "past": True},
    ]


def test_as_of(cli: Cli, shop: Store) -> None:
    time.sleep(0.01)
    before = int(time.time() * 1000)
    time.sleep(0.01)
    with shop.producer("billing") as producer, producer.transaction(version=2):
        sell(producer, 6, "PT")
    spelled = datetime.fromtimestamp(before / 1000, UTC).isoformat()
    for moment in (before, spelled):
        assert [row["order_id"] for row in rows_of(cli, JOIN, "--as-of", moment)] == [1, 2]
    for later in (before + 60_000, 10**17):
        assert [row["order_id"] for row in rows_of(cli, JOIN, "--as-of", later)] == [1, 2, 6]
    assert "--as-of 'noon': expected a moment as in 2013-01-31" in cli.fails("sql", JOIN, "--as-of", "noon")
    assert "the log shows whole transactions only for delete.grace.ms" in cli.fails("sql", JOIN, "--as-of", 5)


def test_the_newest_row_of_each_key(cli: Cli, shop: Store) -> None:
    shop.create_topic("people.v-2", {"name": "string", "mail": "string"}, config={"key.columns": "name"})
    with shop.producer() as producer:
        for name, mail in (("ann", "old"), ("bob", "b"), ("ann", "new"), ("carl", "c"), ("bob", None)):
            producer.send("people.v-2", [{"name": name, "mail": mail}])
    newest = "SELECT name, mail FROM latest('people.v-2') {} ORDER BY name"
    assert rows_of(cli, newest.format("")) == [{"name": "ann", "mail": "new"}, {"name": "carl", "mail": "c"}]
    # The condition chooses among the newest rows.
    assert rows_of(cli, newest.format("WHERE mail = 'old'")) == []
    assert rows_of(cli, newest.format("AS p WHERE p.name <= 'ann'")) == [{"name": "ann", "mail": "new"}]
    both = "SELECT count(*) n, (SELECT count(*) FROM LATEST('people.v-2')) newest FROM \"people.v-2\""
    assert rows_of(cli, both) == [{"n": 5, "newest": 2}]
    assert rows_of(cli, "WITH t AS (FROM latest('people.v-2')) SELECT count(*) n FROM t") == [{"n": 2}]
    assert "topic 'orders' has no key" in cli.fails("sql", "FROM latest('orders')")
    assert "topic 'people' does not exist. Did you mean 'people.v-2'?" in cli.fails("sql", "FROM latest('people')")
    for wrong in ("latest()", "latest('a', 'b')", "latest(1)", "latest(NULL)", "latest('a' || 'b')"):
        assert "latest(...) takes the name of one topic, in single quotes" in cli.fails("sql", f"FROM {wrong}")


def test_empty_topics_and_changed_columns(cli: Cli, shop: Store) -> None:
    shop.create_topic("empty", ORDERS)
    assert cli("sql", "FROM empty").out == "No rows.\n"
    assert rows_of(cli, "SELECT count(*) n, sum(amount) s FROM empty") == [{"n": 0, "s": None}]
    shop.alter_topic("orders", add_columns=pa.schema([("note", pa.string())]))
    shop.alter_topic("orders", rename_columns={"country": "land"})
    with shop.producer() as producer:
        producer.send("orders", [{"order_id": 9, "land": "AT", "note": "new"}], partition=0)
    query = "SELECT order_id, land, note FROM orders WHERE land <= 'DE' ORDER BY order_id"
    assert rows_of(cli, query) == [
        {"order_id": 1, "land": "DE", "note": None},
        {"order_id": 9, "land": "AT", "note": "new"},
    ]


def test_a_time_without_an_offset_is_utc(cli: Cli, shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        query = (
            "SELECT DISTINCT TIMESTAMPTZ '2024-02-29 12:00:00' AS at, current_setting('TimeZone') AS zone FROM orders"
        )
        assert rows_of(cli, query) == [{"at": "2024-02-29T12:00:00Z", "zone": "UTC"}]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_damaged_file_is_named_and_has_status_4(cli: Cli, shop: Store) -> None:
    shop.create_topic("large", ORDERS, config={"inline.max.bytes": 0})
    with shop.producer() as producer:
        producer.send("large", [{"order_id": 1}])
    (path,) = (cli.root / "large" / "0" / "rows").glob("*.parquet")
    path.write_bytes(b"PAR1 nothing PAR1")
    assert path.name in cli.fails("sql", "SELECT max(amount) FROM large", status=4)
    error = msgspec.json.decode(cli.fails("sql", "FROM large", "--output", "json", status=4))
    assert (error["error"], error["status"]) == ("CorruptRecordError", 4)


# -- which topics -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "my-topic", "a.b.c", "Orders-2", "x.csv", "x.parquet", "main", "select", "information_schema", "pg_tables",
        "memory",
        "duckdb_tables", "sqlite_master", "temp", "-", "1", "_", "x" * 249, "orders.main",
    ],
)  # fmt: skip
def test_names_of_topics(cli: Cli, store: Store, name: str) -> None:
    store.create_topic(name, ORDERS)
    with store.producer() as producer:
        producer.send(name, [{"order_id": 7}])
    assert rows_of(cli, f'SELECT t.order_id FROM "{name}" AS t') == [{"order_id": 7}]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("WITH x AS (FROM orders), payments AS (FROM x) SELECT count(*) n FROM payments", 3),
        ("WITH orders AS (FROM orders WHERE order_id = 1) SELECT count(*) n FROM orders", 1),
        ("WITH nothing AS MATERIALIZED (SELECT 1) SELECT count(*) n FROM orders, Nothing", 3),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT count(*) n FROM t, orders", 9),
        ("SELECT count(*) n FROM orders absent WHERE absent.order_id IN (WITH c AS (FROM "
            "payments) SELECT order_id FROM c)", 2),
        ("SELECT count(*) n FROM (FROM orders UNION ALL BY NAME FROM payments)", 5),
        ("SELECT (SELECT count(*) FROM payments) n", 2),
        ("SELECT count(*) n FROM orders, LATERAL (SELECT 1 WHERE order_id > 1)", 2),
        ("SELECT count(*) n FROM orders ANTI JOIN payments USING (order_id);", 1),
        ("SELECT count(*) n FROM (PIVOT orders ON country IN ('DE', 'FR') USING sum(amount) GROUP BY _partition)", 2),
        ("SELECT count(*) n FROM (UNPIVOT payments ON paid)", 2),
        ("SELECT count(*) n FROM ORDERS_2", 0),
    ],
)  # fmt: skip
def test_names_that_are_topics(cli: Cli, shop: Store, query: str, expected: int) -> None:
    shop.create_topic("ORDERS_2", ORDERS)
    assert rows_of(cli, query) == [{"n": expected}]


def test_only_the_named_topics_are_in_the_snapshot(cli: Cli, shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    snapshot = Store.snapshot

    def note(store: Store, *topics: str, **options: Any) -> Any:
        taken.append(topics)
        return snapshot(store, *topics, **options)

    monkeypatch.setattr(Store, "snapshot", note)
    rows_of(cli, "WITH payments AS (SELECT 1) FROM orders a, payments, orders b")
    rows_of(cli, JOIN)
    assert taken == [("orders",), ("orders", "payments")]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("FROM ordes", "topic 'ordes' does not exist. Did you mean 'orders'?"),
        ("FROM Orders", "topic 'Orders' does not exist. Did you mean 'orders'?"),
        ("FROM 'x.csv'", "topic 'x.csv' does not exist"),
        ("FROM \"no'such\"", "topic name \"no'such\""),
        ("FROM orders, ORDERS", "names 'orders' and 'ORDERS', and DuckDB does not distinguish upper and lower case"),
        ("FROM orders JOIN 2024-orders", "a topic with other characters than letters, digits and _ needs double quotes"),
        ("FROM my-topic", "a topic with other characters than letters, digits and _ needs double quotes"),
        ("FROM main.orders", 'the query reads main.orders, which is not the name of a topic'),
        ("FROM a.b.c", 'quote a name with dots, as in FROM "a.b.c"'),
        ("FROM information_schema.tables", "information_schema.tables, which is not the name of a topic\n  "
            "hint: `txlog topics list` shows the topics"),
        ("SELECT 1", "the query names no topic, and it can read topics only\n  "
            "hint: name one, as in FROM orders or FROM latest('orders'); `txlog topics list` shows them"),
        ("SHOW TABLES", "the query names no topic"),
        ("FROM duckdb_settings()", "the query names no topic"),
        ("SELECT nothing FROM orders", 'the query failed: Binder Error: Referenced column "nothing" not found'),
        ("SELECT * FROM orders WHERE order_id = $1", "Values were not provided for the following parameters: 1"),
        ("SELECT CAST(country AS INTEGER) FROM orders", "' to INT32 when casting from source column country"),
        ("FROM orders, query('FROM payments')", "Table with name payments does not exist"),
    ],
)  # fmt: skip
def test_wrong_queries(cli: Cli, shop: Store, query: str, message: str) -> None:
    assert message in cli.fails("sql", query)


@pytest.mark.parametrize(("value", "is_text"), [('"FR"', True), ("FR", False)])
def test_a_text_in_double_quotes_is_told_from_a_wrong_name(cli: Cli, shop: Store, value: str, is_text: bool) -> None:
    message = cli.fails("sql", f"SELECT * FROM orders WHERE country = {value}")
    assert 'Referenced column "FR" not found' in message
    assert ("hint: a text stands in single quotes" in message) == is_text


def test_an_error_that_is_not_about_a_name_has_no_hint_about_names(cli: Cli, shop: Store) -> None:
    assert "hint" not in cli.fails("sql", "SELEC order_id FROM orders")


def test_a_long_query_and_one_that_is_nested_too_deeply(cli: Cli, shop: Store) -> None:
    long = " OR ".join(f"order_id = {number}" for number in range(2000))
    assert rows_of(cli, f"SELECT count(*) n FROM orders WHERE {long}") == [{"n": 3}]
    deep = "+".join(["1"] * 900)
    assert cli.fails("sql", f"SELECT {deep} FROM orders") == "the query is too deeply nested"


# -- what a query may do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("COPY orders TO 'stolen.csv'", "COPY"), ("COPY (SELECT 1) TO 'stolen.csv'", "COPY"),
        ("ATTACH 'stolen.db'", "ATTACH"),
        ("INSTALL httpfs", "LOAD"), ("LOAD httpfs", "LOAD"), ("CREATE TABLE t AS FROM orders", "CREATE"),
        ("PRAGMA database_size", "PRAGMA"), ("SET enable_external_access = true", "SET"),
        ("CALL pragma_version()", "CALL"),
        ("INSERT INTO orders VALUES (1)", "INSERT"), ("DELETE FROM orders", "DELETE"),
        ("EXPORT DATABASE 'stolen'", "EXPORT"),
        ("IMPORT DATABASE 'stolen'", "PRAGMA"), ("SELECT 1; SELECT 2", "SELECT, SELECT"),
        ("LOAD x; FROM orders", "LOAD, SELECT"),
        ("EXPLAIN ANALYZE FROM orders", "EXPLAIN"), ("CREATE SECRET s (TYPE s3)", "CREATE"), ("", "nothing"),
        ("/* x */", "nothing"),
        ("PIVOT orders ON country", "MULTI"),
    ],
)  # fmt: skip
def test_only_a_query_is_run(
    cli: Cli, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"expected one query that only reads, found {kind}\n" in cli.fails("sql", query)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('secret.csv')", "read_text('secret.csv')", "read_blob('secret.csv')", "glob('*')",
        "read_parquet('secret.csv')",
        "read_json('secret.csv')", "read_csv('http://127.0.0.1:9/x')", "read_csv('/dev/stdin')",
        "query('FROM \"secret.csv\"')",
        "query_table(['secret.csv'])", "sniff_csv('secret.csv')", "query_table('session')", "query('FROM schema')",
    ],
)  # fmt: skip
def test_a_query_reads_neither_files_nor_variables(
    cli: Cli, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "secret.csv").write_text("a\nhidden\n")
    monkeypatch.chdir(tmp_path)
    done = cli("sql", f"SELECT * FROM orders, {source}", "--output", "csv", status=2)
    assert "hidden" not in done.out + done.err
    assert "the query failed: " in done.err


def test_a_query_cannot_write_in_a_with(cli: Cli, shop: Store) -> None:
    message = cli.fails("sql", "WITH gone AS (DELETE FROM orders RETURNING *) FROM gone")
    assert "the query failed: " in message
    assert rows_of(cli, "SELECT count(*) n FROM orders") == [{"n": 3}]


def test_the_settings_are_locked(cli: Cli, shop: Store) -> None:
    names = ("enable_external_access", "lock_configuration", "autoload_known_extensions", "python_enable_replacements")
    columns = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    (found,) = rows_of(cli, f"SELECT {columns} FROM orders LIMIT 1")
    assert found == {**dict.fromkeys(names, False), "lock_configuration": True}


def test_memory(cli: Cli, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    sort = (
        "SELECT max(n) m FROM (SELECT row_number() OVER (ORDER BY t) n FROM (SELECT md5(i::VARCHAR) t FROM "
        "orders, range(1000000) r(i)))"
    )
    # It is sorted in the temporary folder, which is deleted.
    assert rows_of(cli, sort, "--memory-limit", "150MB") == [{"m": 3_000_000}]
    message = cli.fails("sql", "SELECT list(i) FROM orders, range(9000000) r(i)", "--memory-limit", "20MB", status=1)
    assert "the query failed: Out of Memory Error" in message
    assert "hint: give it more with --memory-limit" in message
    assert "--memory-limit 'much': expected a size such as 2GB" in cli.fails("sql", JOIN, "--memory-limit", "much")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("output", ["table", "csv"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_the_query(cli: Cli, shop: Store, tmp_path: Path, number: signal.Signals, output: str) -> None:
    query = "SELECT i FROM orders, range(1000000000000) r(i) WHERE i = -1 OR i % 1000000000 = 1"
    env_before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(tmp_path)
    try:
        with program(cli, "sql", query, "--output", output) as process:
            for _ in range(600):
                if list(tmp_path.glob("txlog-sql-*")):
                    break
                time.sleep(0.05)
            time.sleep(1)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
    finally:
        os.environ.pop("TMPDIR") if env_before is None else os.environ.update(TMPDIR=env_before)
    assert (process.returncode, err) == (128 + number, "")
    assert list(tmp_path.glob("txlog-sql-*")) == []


def test_a_signal_just_before_a_query_begins_ends_it_too() -> None:
    def query() -> object:
        time.sleep(0.5)  # DuckDB forgets an interrupt that comes meanwhile
        return connection.sql("SELECT count(*) FROM range(1000000000000) r(i) WHERE i % 3 = 1").fetchall()

    with duckdb.connect() as connection, Interrupts() as interrupts:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted), sql._Worker(connection, interrupts) as worker:
            worker.call(query)


def test_a_reader_that_goes_away_ends_it(cli: Cli, shop: Store) -> None:
    with program(cli, "sql", "SELECT i FROM orders, range(100000000) r(i)", "--output", "csv") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == '"i"\n'
        process.stdout.close()
        assert process.wait(timeout=60) == 141


# -- the result -------------------------------------------------------------------------------------------------------


def test_a_table(cli: Cli, shop: Store) -> None:
    query = (
        "SELECT country, sum(order_id) AS ids, sum(amount) AS amount, count(*) = 1 AS one, '' AS empty, "
        "e'a\\n\\x1b[2J' AS hostile, [1, NULL] AS list FROM orders GROUP BY country ORDER BY country"
    )
    assert cli("sql", query).out.splitlines() == [
        "COUNTRY  IDS  AMOUNT  ONE   EMPTY  HOSTILE         LIST",
        'DE         1     1.5  true  ""     "a\\n\\u001b[2J"  [1,null]',
        'FR         2     3.0  true  ""     "a\\n\\u001b[2J"  [1,null]',
        '-          3       -  true  ""     "a\\n\\u001b[2J"  [1,null]',
    ]
    assert cli("sql", "DESCRIBE payments").lines[:3] == [
        "COLUMN_NAME  COLUMN_TYPE               NULL  KEY  DEFAULT  EXTRA",
        "order_id     BIGINT                    YES   -    -        -",
        "paid         DECIMAL(10,2)             YES   -    -        -",
    ]
    assert cli("sql", "SUMMARIZE payments").lines[1].split()[:4] == ["order_id", "BIGINT", "1", "2"]


def test_a_table_ends_after_1000_rows_and_says_so(cli: Cli, shop: Store) -> None:
    for rows, shown, note in (
        (1000, 1000, ""),
        (1001, 1000, "More rows follow the first 1,000. --output csv or json writes all of them.\n"),
    ):
        done = cli("sql", f"SELECT i FROM payments, range({rows}) r(i) WHERE order_id = 1 ORDER BY i")
        assert (len(done.lines), done.lines[-1], done.err) == (shown + 1, "999", note)
    done = cli("sql", "SELECT repeat('x', 5000) AS long FROM payments LIMIT 1")
    assert done.lines[1] == "x" * 199 + "…"
    assert len(rows_of(cli, "SELECT i FROM payments, range(20000) r(i)")) == 40_000


def test_every_form_has_the_rows(cli: Cli, shop: Store) -> None:
    query = "SELECT order_id, country, amount, sum(order_id) OVER () AS ids FROM orders ORDER BY order_id"
    expected = [
        {"order_id": 1, "country": "DE", "amount": 1.5, "ids": 6},
        {"order_id": 2, "country": "FR", "amount": 3.0, "ids": 6},
        {"order_id": 3, "country": None, "amount": None, "ids": 6},
    ]
    assert rows_of(cli, query) == expected
    assert run("-o", "json", "sql", query, "--store", str(cli.root)).rows == expected
    assert (
        cli("sql", query, "-o", "csv").out == '"order_id","country","amount","ids"\n1,"DE",1.5,6\n2,"FR",3,6\n3,,,6\n'
    )
    assert csv.read_csv(io.BytesIO(in_bytes(cli, "sql", query, "-o", "csv"))).num_rows == 3
    assert pq.read_table(io.BytesIO(in_bytes(cli, "sql", query, "-o", "parquet"))).to_pylist() == expected
    assert pa.ipc.open_stream(in_bytes(cli, "sql", query, "-o", "arrow")).read_all().to_pylist() == expected
    nothing = "SELECT order_id FROM orders WHERE order_id > 9"
    assert rows_of(cli, nothing) == []
    assert cli("sql", nothing, "-o", "csv").out == '"order_id"\n'
    assert pq.read_table(io.BytesIO(in_bytes(cli, "sql", nothing, "-o", "parquet"))).schema.names == ["order_id"]


def test_every_type_of_a_topic(cli: Cli, store: Store) -> None:
    store.create_topic("typed", EVERY_TYPE)
    with store.producer() as producer:
        producer.send("typed", rows_table()).result()
    consumed = cli("consume", "typed", "--from-beginning", "--timeout-ms", 0).rows
    query = "SELECT * EXCLUDE (_partition, _offset, _timestamp) FROM typed"
    found = rows_of(cli, query)
    assert [{**row, "big": row["big"] and str(row["big"])} for row in found] == consumed
    assert len(cli("sql", query).lines) == 1 + len(ROWS)
    table = pq.read_table(io.BytesIO(in_bytes(cli, "sql", query, "-o", "parquet")))
    assert table.select(["i64", "price", "text", "raw", "at", "point"]).to_pylist() == [
        {name: row[name] for name in ("i64", "price", "text", "raw", "at", "point")} for row in ROWS
    ]
    # Its CSV can be written to a topic again.
    (cli.root.parent / "typed.csv").write_bytes(in_bytes(cli, "sql", query, "-o", "csv"))
    store.create_topic("copy", EVERY_TYPE)
    cli("produce", "copy", "--from", cli.root.parent / "typed.csv")
    assert cli("consume", "copy", "--from-beginning", "--timeout-ms", 0).rows == consumed


def test_columns_of_one_name_are_numbered(cli: Cli, shop: Store) -> None:
    query = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a, 5 AS A FROM orders LIMIT 1"
    assert rows_of(cli, query) == [{"a": 1, "a_2": 2, "a_1": 3, "a_3": 4, "A": 5}]
    assert cli("sql", query, "-o", "csv").out.splitlines()[0] == '"a","a_2","a_1","a_3","A"'


def test_sums_beyond_64_bits_and_other_types_of_duckdb(cli: Cli, shop: Store) -> None:
    query = (
        "SELECT sum(9223372036854775807) AS large, TIME '10:00' AS t, 'x'::ENUM('x') AS e, NULL AS n, "
        "INTERVAL 1 DAY AS i FROM orders"
    )
    assert rows_of(cli, query) == [
        {"large": "27670116110564327421", "t": "10:00:00", "e": "x", "n": None, "i": [0, 1, 0]}
    ]
    for kind in ("csv", "parquet"):
        ended = cli("sql", query, "-o", kind, status=2)
        assert f"--output {kind} cannot write column 'i', which has an INTERVAL" in ended.err
        assert 'hint: convert it in the query, as in CAST("i" AS VARCHAR)' in ended.err
        assert ended.out == ""
        nested = cli("sql", "SELECT MAP {'a': [{'b': INTERVAL 1 DAY}]} AS i FROM orders", "-o", kind, status=2)
        assert "cannot write column 'i', which has an INTERVAL" in nested.err
        assert nested.out == ""
    late = "SELECT DATE '12345-01-01' AS d FROM orders"
    assert "--output json cannot write this result: " in cli.fails("sql", late, "-o", "json")
    assert cli("sql", late, "-o", "csv").lines[1] == "12345-01-01"


def test_errors_are_documents_if_the_result_is_json(cli: Cli, shop: Store) -> None:
    error = msgspec.json.decode(cli.fails("sql", "FROM ordes", "--output", "json"))
    assert (error["error"], error["status"]) == ("UnknownTopicOrPartitionError", 2)
    message = "'text' is not one of 'table', 'json', 'csv', 'parquet', 'arrow'"
    assert message in " ".join(cli("sql", JOIN, "--output", "text", status=2).err.split())


def at_a_terminal(cli: Cli, *args: str) -> tuple[int, str]:
    """Return the status and all output of a command whose output is a terminal."""
    controller, terminal = pty.openpty()
    line = [str(Path(sys.executable).with_name("txlog")), *args, "--store", str(cli.root)]
    with subprocess.Popen(line, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL) as process:
        os.close(terminal)
        shown = b""
        try:
            while data := os.read(controller, 1 << 16):
                shown += data
        except OSError:
            pass  # the terminal is closed
        finally:
            os.close(controller)
    return process.returncode, shown.decode()


def test_at_a_terminal(cli: Cli, shop: Store) -> None:
    status, shown = at_a_terminal(cli, "sql", JOIN)
    assert (status, "COUNTRY" in shown, "FR" in shown) == (0, True, True)
    # No bar stands between the lines.
    assert at_a_terminal(cli, "sql", "SELECT order_id FROM payments", "-o", "csv") == (0, '"order_id"\r\n1\r\n2\r\n')
    status, shown = at_a_terminal(cli, "sql", JOIN, "-o", "parquet")
    assert (status, "--output parquet writes bytes" in shown, "> rows.parquet" in shown) == (2, True, True)


# -- without DuckDB ---------------------------------------------------------------------------------------------------


def test_without_duckdb_the_error_names_the_extra(cli: Cli, shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert cli.fails("sql", JOIN) == ("`txlog sql` needs DuckDB: pip install 'pyspark-txlog[sql]'")
    assert "orders" in cli("topics", "list").out


def test_the_help_does_not_load_duckdb() -> None:
    code = "import sys\nfrom txlog.cli.program import app\nprint('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert "Its first" not in run("sql", "--help").out
    assert "table (its first 1,000 rows)" in " ".join(run("sql", "--help").out.split())


def test_the_version_of_duckdb_is_that_of_the_extra() -> None:
    """Older ones hand over comparisons of floats as pyarrow means them: without NaN."""
    assert int(duckdb.__version__.partition(".")[0]) >= 2
