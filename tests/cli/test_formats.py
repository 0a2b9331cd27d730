"""`produce` and `consume` with CSV, Parquet and Arrow, from files and the standard input; `topics create --from`."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from pyarrow import csv

from tests.cli.support import Cli, run
from tests.cli.test_records import ALL, NOW, ROWS, lines
from tests.storage.arrow_rows import FIELDS, rows_table
from txlog.cli import consume, csv_rows, formats, inputs
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.rows import json_value
from txlog.client import Consumer, Store, TopicPartition
from txlog.client.store import TopicDescription
from txlog.clock import SystemClock
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.storage.arrow_schema import SCALARS, to_arrow, to_fields

COLUMNS: dict[str, list[Any]] = {name: [row[name] for row in ROWS] for name in ("id", "item")}
TABLE = pa.table(COLUMNS)
WRITERS: dict[str, Any] = {
    "csv": lambda path: csv.write_csv(TABLE, path),
    "parquet": lambda path: pq.write_table(TABLE, path, row_group_size=2),
    "arrow": lambda path: _write_arrow(path, pa.ipc.new_stream),
    "feather": lambda path: _write_arrow(path, pa.ipc.new_file),
    "jsonl": lambda path: path.write_text(ALL),
}


def _write_arrow(path: Path, kind: Any) -> None:
    with kind(path, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=4)


def printed(cli: Cli, *options: str | int) -> list[Any]:
    return cli("consume", "orders", *NOW, *options).rows


# -- produce ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_file(cli: Cli, store: Store, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    WRITERS[suffix](path)
    done = cli("produce", "orders", "--from", path, "--partition", 0)
    assert done.lines[-1] == "Wrote 6 rows to 'orders'."
    assert printed(cli) == ROWS


def test_several_files_are_one_transaction(cli: Cli, store: Store, tmp_path: Path) -> None:
    names = []
    for suffix, write in WRITERS.items():
        names += ["--from", str(tmp_path / f"rows.{suffix}")]
        write(tmp_path / f"rows.{suffix}")
    done = cli("produce", "orders", *names, "--transaction", "--partition", 0)
    assert re.fullmatch(
        r"Wrote 30 rows to 'orders', committed as one transaction of 'txlog-produce-\w+'\.", done.lines[-1]
    )
    ends = store.admin().list_offsets("orders")[TopicPartition("orders", 0)]
    assert (ends.last_stable_offset, len(printed(cli))) == (31, 30)


def test_nothing_of_a_transaction_stays_if_a_later_file_is_bad(cli: Cli, store: Store, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.csv"
    WRITERS["parquet"](good)
    bad.write_text("id,item\n7,x\nseven,y\n")
    files = ("--from", good, "--from", bad)
    message = cli.fails("produce", "orders", *files, "--transaction")
    assert f"{bad}: row 2: column 'id': expected int64, found 'seven'" in message
    assert "Dropped: 6 rows before the error. The transaction of 'txlog-produce-" in message
    assert printed(cli) == []
    # Without a transaction the rows before are written.
    message = cli.fails("produce", "orders", *files)
    assert (
        "Written: 6 rows before the error, and nothing from there on. Repeat the command without the first 6."
        in message
    )
    assert printed(cli)[:6] == ROWS


def test_a_bad_line_of_a_file_is_named(cli: Cli, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a:b.jsonl"
    path.write_text(ALL + lines({"id": "seven"}))
    message = cli.fails("produce", "orders", "--from", path, "--partition", 0)
    assert message.splitlines() == [
        f"{path}, line 7: column 'id': expected int64 not null, found \"seven\"",
        f"Written: 6 rows before {path}, line 7, and nothing from there on. Repeat the command "
        "without the first 6. With --transaction it is all or nothing.",
    ]


def test_a_version_is_written_once(cli: Cli, store: Store) -> None:
    version = ("produce", "orders", "--transactional-id", "loader", "--version", 3)
    assert cli(*version, stdin=ALL).status == 0
    assert cli(*version, stdin=ALL).out.startswith("Skipped: 'loader' has committed txn.version 3")
    assert len(printed(cli)) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--from", "absent.csv"), "--from absent.csv: this file does not exist"),
        (("--from", Path(__file__).parent), "cli: this is a folder"),
        (("--from", __file__), "the format of '.py' is not known"),
        (("--format", "parquet"), "standard input cannot be read as a Parquet file"),
        (("--format", "arrow"), "standard input cannot be read as arrow"),
        (("--format", "csv"), "its first line does not name columns of the topic, which has "),
        (("--format", "yaml"), "'yaml' is not one of"),
        (("--version", 3), "--version needs --transactional-id"),
    ],
)
def test_wrong_inputs(cli: Cli, store: Store, options: tuple[str | int, ...], words: str) -> None:
    assert words in cli.fails("produce", "orders", *options, stdin="nothing\n1\n")
    assert printed(cli) == []


def test_csv_may_name_a_column_with_the_mark_of_another_separator(cli: Cli, store: Store) -> None:
    store.create_topic("marks", {"A|B;c": "int64", "id": "int64"})
    cli("produce", "marks", "--format", "csv", stdin="A|B;c,id\n1,2\n")
    assert store.table("marks").to_arrow(["A|B;c", "id"]).to_pylist() == [{"A|B;c": 1, "id": 2}]


@pytest.mark.parametrize("text", ["id;item\n1;a\n", "1,a\n2,b\n", "item;x,id\na;1,2\n"])
def test_csv_whose_first_line_does_not_name_the_columns(cli: Cli, store: Store, text: str) -> None:
    message = cli.fails("produce", "orders", "--format", "csv", stdin=text)
    line = text.splitlines()[0]
    assert re.match(
        f"standard input: its first line does not name columns of the topic, which has id, .*: found '{line}'", message
    )
    assert "hint: name the columns in the first line, and separate all cells by commas" in message
    other_case = cli.fails("produce", "orders", "--format", "csv", stdin="ID,QUANTITY\n1,2\n")
    assert "column 'ID' is unknown" in other_case
    assert "Did you mean 'id'?" in other_case
    assert printed(cli) == []


@pytest.mark.parametrize("suffix", ["parquet", "feather"])
def test_a_damaged_footer(cli: Cli, store: Store, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    WRITERS[suffix](path)
    data = path.read_bytes()
    path.write_bytes(data[:-60] + b"\3" * 50 + data[-10:])
    assert f"{path} cannot be read as " in cli.fails("produce", "orders", "--from", path)


def test_a_signal_ends_the_files_after_a_batch(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    WRITERS["parquet"](path)
    interrupts = Interrupts()
    found = inputs.Inputs(
        [str(path)] * 2,
        None,
        store.topic("orders"),
        batch=2,
        clock=SystemClock(),
        interrupts=interrupts,
        show=None,
    )
    counts = []
    for chunk in found:
        counts.append(chunk.count)
        interrupts.received = 2  # type: ignore[assignment]
    assert counts == [2]


def test_the_bar_shows_rows(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    WRITERS["parquet"](path)
    shown: list[tuple[object, int, int]] = []
    topic: TopicDescription = store.topic("orders")
    found = inputs.Inputs(
        [str(path)],
        None,
        topic,
        batch=4,
        clock=SystemClock(),
        interrupts=Interrupts(),
        show=lambda *each: shown.append(each),
    )
    assert sum(chunk.count for chunk in found) == 6
    assert shown[-1] == (str(path), 6, 6)


# -- consume ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def full(cli: Cli, store: Store) -> Cli:
    """Return a runner on a store whose topic `orders` has ROWS in its partition 0."""
    cli("produce", "orders", "--partition", 0, stdin=ALL)
    return cli


def in_bytes(cli: Cli, *args: str | int) -> bytes:
    """Run a command whose output is not text."""
    from typer.testing import CliRunner

    from txlog.cli.program import app

    line = [*map(str, args), "--store", str(cli.root), "--storage-option", "fsync=false"]
    result = CliRunner().invoke(app, line, prog_name="txlog")
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes


def test_each_format_holds_the_rows(full: Cli) -> None:
    command = ("consume", "orders", *NOW, "--format")
    assert in_bytes(full, *command, "csv").decode().splitlines()[:2] == ['"id","item"', '0,"item 0"']
    assert csv.read_csv(io.BytesIO(in_bytes(full, *command, "csv"))).to_pylist() == ROWS
    assert pq.read_table(io.BytesIO(in_bytes(full, *command, "parquet"))).to_pylist() == ROWS
    assert pa.ipc.open_stream(in_bytes(full, *command, "arrow")).read_all().to_pylist() == ROWS
    for kind in ("csv", "parquet", "arrow"):
        limited = in_bytes(full, *command, kind, "--max-messages", 0)
        assert limited  # the columns, without rows
    named = pq.read_table(io.BytesIO(in_bytes(full, *command, "parquet", "--metadata")))
    assert named.column_names == ["_topic", "_partition", "_offset", "_timestamp", "id", "item"]


@pytest.mark.parametrize("kind", ["json", "csv", "parquet", "arrow"])
def test_every_type_there_and_back(cli: Cli, store: Store, tmp_path: Path, kind: str) -> None:
    for name in ("from", "to"):
        store.create_topic(name, to_arrow(FIELDS))
    with store.producer() as producer:
        producer.send("from", rows_table())
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(in_bytes(cli, "consume", "from", *NOW, "--format", kind))
    cli("produce", "to", "--from", path)
    assert store.table("to").to_arrow(["*"]).to_pylist() == store.table("from").to_arrow(["*"]).to_pylist()


_TEXTS = ["", 'a\n"b",', "a\r\nb\r", "null", " ", '{"base64":"AAA="}', "zw\0ölf"]


@pytest.mark.parametrize(
    "values", [_TEXTS, [*(text.encode() for text in _TEXTS), b"\xff", b'{"base64":\xff'], [1.5, None]]
)
def test_csv_tells_nulls_from_empty_texts_and_keeps_line_ends(
    cli: Cli, store: Store, tmp_path: Path, values: list[Any]
) -> None:
    table = pa.table({"c": [None, *values]})
    for name in ("one", "other"):
        store.create_topic(name, table.schema)
    with store.producer() as producer:
        producer.send("one", table)
    path = tmp_path / "rows.csv"
    path.write_bytes(in_bytes(cli, "consume", "one", *NOW, "--format", "csv"))
    cli("produce", "other", "--from", path)
    assert store.table("other").to_arrow(["c"]).to_pydict() == table.to_pydict()


def test_one_column_of_csv_with_nulls(cli: Cli, store: Store) -> None:
    table = pa.table({"id": [1, 2, 3], "item": ["x", None, ""]})
    with store.producer() as producer:
        producer.send("orders", table, partition=0)
    store.create_topic("items", pa.schema((("id", pa.int64()), ("item", pa.string()))))
    out = in_bytes(cli, "consume", "orders", *NOW, "--format", "csv", "--columns", "item")
    cli("produce", "items", "--format", "csv", stdin=out.decode())
    assert store.table("items").to_arrow(["item"]).to_pydict() == {"item": ["x", None, ""]}
    # With several columns an empty line does not make a row.
    cli("produce", "items", "--format", "csv", stdin='"id",item\n\n4,y\n\n')
    assert store.table("items").to_arrow(["id"]).to_pydict()["id"] == [None, None, None, 4]


def test_bytes_of_csv_that_are_not_base64(cli: Cli, store: Store) -> None:
    store.create_topic("bytes", pa.schema([("c", pa.binary())]))
    message = cli.fails("produce", "bytes", "--format", "csv", stdin='c\nab\n"{""base64"":""?""}"\n')
    assert "standard input: row 2: column 'c': expected binary (no base64: " in message


FLOATS = [
    "1e39",
    "-1e39",
    "16777217",
    "16777217.0",
    "0016777216",
    "inf",
    "-Infinity",
    "NaN",
    " 1.5 ",
    "+.5",
    "1e-60",
    "",
]
FLOATS += ["1e400", "-1e400", "9007199254740993", "-9007199254740993", "9007199254740993.0", "1" * 400, "x", "0x10"]
EXACT = ["16777217.0", "0016777216", "inf", "-Infinity", "NaN", " 1.5 ", "+.5", "1e-60", "", "9007199254740993.0"]


@pytest.mark.parametrize("text", FLOATS)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_csv_keeps_or_refuses_a_number_as_json_does(cli: Cli, kind: str, text: str) -> None:
    cli("topics", "create", "numbers", "--column", f"x:{kind}", "--column", "y:int64")
    line = f"1.5,1\n{text},2\n"
    if text in EXACT or (kind == "float64" and text in FLOATS[:3]):
        cli("produce", "numbers", "--format", "csv", stdin="x,y\n" + line)
        found = [row["x"] for row in cli("consume", "numbers", *NOW).rows]
        wanted: Any = pa.array([float(text) if text else None], SCALARS[kind])
        assert found == [1.5, json_value(wanted.to_pylist()[0])]
    else:
        message = cli.fails("produce", "numbers", "--format", "csv", stdin="x,y\n" + line)
        assert f"standard input: row 2: column 'x': expected {kind}" in message
        assert f"found {text[:20]!r}"[:-1] in message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff,item\n1,a\n", "the line with the names of the columns is not UTF-8"),
        (b'id,"it\n\xff"\n1,a\n', "the line with the names of the columns is not UTF-8"),
        (gzip.compress(b"id,item\n1,a\n", mtime=0), "it is compressed with gzip"),
        (b"id,item\n1,\xff\n", "invalid UTF8 data"),
        (b"", "Empty CSV file"),
        (b'id,"it', "row 1: it ends inside a quote"),
        (b'id,item\n1,"a', "row 1: it ends inside a quote"),
        (b'id,item\n1,"a""\n\n', "row 1: it ends inside a quote"),
    ],
)
def test_csv_that_is_not_whole_or_not_text(cli: Cli, store: Store, tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(data)
    message = cli.fails("produce", "orders", "--from", path)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert printed(cli) == []


def test_the_rows_before_an_open_quote_are_written(cli: Cli, store: Store) -> None:
    message = cli.fails("produce", "orders", "--format", "csv", stdin='id,item\n1,5"\n2,"b"\n3,"c\n')
    assert "standard input: row 3: it ends inside a quote" in message
    assert "Written: 2 rows before the error" in message
    assert sorted(printed(cli), key=lambda row: row["id"]) == [{"id": 1, "item": '5"'}, {"id": 2, "item": "b"}]


CELLS = ["a", '"a"', '"\n"', '"x""y"', 'a"b', "", '""', '"a\n,""\r\n"', "\ufeffz", '"c"d"', "\r\n"]


@given(
    st.lists(st.tuples(st.sampled_from(CELLS), st.sampled_from(CELLS)), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(3, 30),
    st.booleans(),
)
def test_blocks_of_csv_give_the_rows_of_one_block(
    rows: list[tuple[str, str]], line_end: str, size: int, ended: bool
) -> None:
    fields = to_fields(pa.schema([("a", pa.string()), ("b", pa.string())]))
    data = (line_end.join(["\ufeffa,b", *map(",".join, rows)]) + line_end * ended).encode()

    def read(block_bytes: int) -> list[Any] | str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(csv_rows, "_BLOCK_BYTES", block_bytes)
            batches = csv_rows.csv_batches(io.BytesIO(data), fields, to_arrow(fields), "here")
            try:
                return [row for batch in batches for row in batch.to_pylist()]
            except (pa.ArrowInvalid, SchemaMismatchError) as error:
                return str(error)

    # pyarrow names the line of an error itself.
    assert read(size) == read(1 << 20)


def test_a_row_of_csv_without_an_end(cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "_BLOCK_BYTES", 8)
    monkeypatch.setattr(csv_rows, "_MAX_ROW_BYTES", 100)
    text = 'id,item\n1,a\n2,"b\n' + "3,c\n" * 100
    message = cli.fails("produce", "orders", "--format", "csv", stdin=text)
    assert message.startswith(
        "standard input: row 2 is longer than 100 bytes\n  hint: look for a quote that is not closed"
    )


def test_json_after_a_byte_order_mark(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--partition", 0, stdin="\ufeff" + ALL)
    assert printed(cli) == ROWS


def test_an_empty_map_is_an_object(cli: Cli) -> None:
    columns = ("m:map<string, int32>", "n:map<int32, int32>", "l:list<int32>", "s:struct<m map<string, list<int32>>>")
    cli("topics", "create", "maps", *(word for column in columns for word in ("--column", column)))
    rows: list[dict[str, Any]] = [
        {"m": {}, "n": {}, "l": [], "s": {"m": {}}},
        {"m": {"a": 1}, "n": [[1, 2]], "l": [1], "s": {"m": {"a": []}}},
        {"m": None, "n": None, "l": None, "s": None},
    ]
    cli("produce", "maps", stdin=lines(*rows))
    assert cli("consume", "maps", *NOW).rows == rows
    text = cli("consume", "maps", *NOW, "--format", "csv").out
    assert text.splitlines()[1] == '"{}","{}","[]","{""m"":{}}"'
    cli("produce", "maps", "--format", "csv", stdin=text)
    assert cli("consume", "maps", *NOW).rows == [*rows, *rows]


def test_a_parquet_file_has_large_row_groups(full: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "_PRINT_ROWS", 2)
    command = ("consume", "orders", *NOW, "--format", "parquet")
    file = pq.ParquetFile(io.BytesIO(in_bytes(full, *command)))
    assert (file.num_row_groups, file.metadata.num_rows) == (1, 6)
    monkeypatch.setattr(formats, "_GROUP_BYTES", 1)
    file = pq.ParquetFile(io.BytesIO(in_bytes(full, *command)))
    assert (file.num_row_groups, file.metadata.num_rows) == (3, 6)


def test_columns_and_conditions(full: Cli) -> None:
    assert printed(full, "--columns", "item", "--where", "id >= 4") == [{"item": "item 4"}, {"item": "item 5"}]
    assert printed(full, "--columns", "_offset,id", "--where", "item = 'item 2'") == [{"_offset": 2, "id": 2}]
    assert printed(full, "--where", "id = 3", "--metadata", "--columns", "id")[0].keys() == {
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
        "id",
    }
    assert printed(full, "--where", "id >= 1", "--max-messages", 2) == ROWS[1:3]
    assert "no column 'itme'. Did you mean 'item'?" in full.fails("consume", "orders", "--columns", "itme")
    assert "where" in full.fails("consume", "orders", "--where", "id >")
    full("topics", "create", "other")
    assert "needs one topic" in full.fails("consume", "orders", "other", "--format", "csv")


def test_a_group_passes_over_rows_that_the_condition_excludes(full: Cli, store: Store) -> None:
    group = ("--group", "audit", "--where", "id = 1 OR id = 3")
    assert printed(full, *group, "--max-messages", 1) == [ROWS[1]]
    assert store.admin().describe_group("audit").offsets[0].committed == 2
    assert printed(full, *group) == [ROWS[3]]
    assert store.admin().describe_group("audit").offsets[0].committed == 6


def test_a_group_goes_on_in_partitions_that_it_has_not_reached(cli: Cli, store: Store) -> None:
    store.create_topic("wide", TABLE.schema, partitions=3)
    with store.producer() as producer:
        for partition in range(3):
            producer.send("wide", TABLE, partition=partition)
    found: list[Any] = []
    for begin in (["--from-beginning"], *[[]] * 4):
        part = cli("consume", "wide", "--group", "audit", *begin, "--max-messages", 4, "--timeout-ms", 0).rows
        assert len(part) == 4 or len(found) == 16
        found += part
    assert sorted(row["id"] for row in found) == sorted(COLUMNS["id"] * 3)


def test_a_signal_during_a_poll_commits_none_of_its_rows(
    full: Cli, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll = Consumer.poll

    def interrupted(self: Consumer, timeout_ms: int = 500) -> Any:
        batch = poll(self, timeout_ms)
        os.kill(os.getpid(), signal.SIGTERM)
        return batch

    with monkeypatch.context() as patch, contextlib.suppress(Interrupted):
        patch.setattr(Consumer, "poll", interrupted)
        full("consume", "orders", "--group", "audit", "--from-beginning", status=143)
    assert store.admin().describe_group("audit").offsets[0].committed == 0
    assert printed(full, "--group", "audit") == ROWS


def test_enough_rows_end_a_batch_at_the_last_one(full: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows are printed in parts. The parts after the last wanted row hold none.
    monkeypatch.setattr(consume, "_PRINT_ROWS", 2)
    group = ("--group", "audit", "--where", "id <= 1")
    assert printed(full, *group, "--max-messages", 1) == [ROWS[0]]
    assert store.admin().describe_group("audit").offsets[0].committed == 1
    assert printed(full, *group) == [ROWS[1]]


def test_a_group_commits_what_a_complete_file_holds(full: Cli, store: Store) -> None:
    out = in_bytes(full, "consume", "orders", *NOW, "--group", "audit", "--format", "parquet", "--max-messages", 4)
    assert pq.read_table(io.BytesIO(out)).num_rows == 4
    assert store.admin().describe_group("audit").offsets[0].committed == 4


def test_bytes_are_not_for_a_terminal(full: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("txlog.cli.formats.sys.stdout", Terminal(io.BytesIO()))
    with pytest.raises(InvalidRequestError, match="--format parquet writes bytes"):
        formats.row_output(formats.FileFormat.PARQUET, TABLE.schema, Interrupts())


# -- where the read ends ----------------------------------------------------------------------------------------------


def test_the_read_ends_at_an_offset(full: Cli) -> None:
    one = ("consume", "orders", "--partition", 0, "--offset", 1)
    assert [row["id"] for row in full(*one, "--to-offset", 4).rows] == [1, 2, 3]
    assert full(*one, "--to-offset", 1).rows == []
    assert full(*one, "--to-offset", 0).rows == []
    # Partition 1 has no rows, and never gets so far: the time ends the read.
    both = ("consume", "orders", "--partition", "0,1", "--from-beginning", "--to-offset", 2, "--timeout-ms", 0)
    assert [row["id"] for row in full(*both).rows] == [0, 1]
    assert "--to-offset needs --partition" in full.fails("consume", "orders", "--to-offset", 1)


def test_the_read_ends_at_a_time(cli: Cli, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", ROWS[:3], partition=0).result()
        store.runtime.clock.sleep_ms(20)
        last = producer.send("orders", ROWS[3:], partition=0).result()
    at_ms = last.timestamp
    read = ("consume", "orders", "--from-beginning", "--until-timestamp")
    assert cli(*read, at_ms).rows == ROWS[:3]
    assert cli(*read, at_ms + 1).rows == ROWS
    group = cli(*read, at_ms, "--group", "audit")
    assert group.rows == ROWS[:3]
    assert [each.committed for each in store.admin().describe_group("audit").offsets] == [3, 0]
    assert cli(*read, at_ms + 1, "--group", "audit").rows == ROWS[3:]
    assert "--until-timestamp 'soon': expected a moment" in cli.fails(*read, "soon")


def test_rows_that_wait_are_told_at_the_end_of_a_time(full: Cli, store: Store) -> None:
    producer = store.producer("loader", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", ROWS, partition=0).result()
    now_ms = store.runtime.clock.now_ms() + 1
    done = full("consume", "orders", "--from-beginning", "--until-timestamp", now_ms)
    assert done.rows == ROWS
    assert "orders-0: 6 offsets from 6 on wait behind an open transaction of 'loader'" in done.err
    producer.abort_transaction()


def test_rows_that_wait_are_told_after_a_while(full: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = store.producer("loader", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", ROWS, partition=0).result()
    monkeypatch.setattr(consume, "NOTICE_MS", 0)
    real = consume._say_what_waits

    def said(*args: Any) -> None:
        real(*args)
        producer.commit_transaction()

    monkeypatch.setattr(consume, "_say_what_waits", said)
    done = full("consume", "orders", "--from-beginning", "--max-messages", 12)
    assert done.rows == [*ROWS, *ROWS]
    assert done.err.count("wait behind an open transaction of 'loader'") == 1


# -- topics create ----------------------------------------------------------------------------------------------------


def test_a_topic_with_the_columns_of_a_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    point = pa.struct([("x", pa.float16()), pa.field("y", pa.large_list(pa.uint8()), nullable=False)])
    schema = pa.schema(
        [
            pa.field("id", pa.uint32(), nullable=False),
            pa.field("kind", pa.dictionary(pa.int8(), pa.string())),
            pa.field("at", pa.timestamp("ns", "Europe/Berlin")),
            pa.field("local", pa.timestamp("ms")),
            pa.field("name", pa.large_string()),
            pa.field("point", point),
            pa.field("tags", pa.map_(pa.string(), pa.uint16())),
        ]
    )
    row = {"id": 1, "kind": "a", "at": 10**9, "local": 7, "name": "n", "point": None, "tags": [("t", 3)]}
    pq.write_table(pa.Table.from_pylist([row], schema), path)
    cli("topics", "create", "orders", "--from", path)
    (topic,) = cli("topics", "describe", "orders", "-o", "json").json
    assert [(column["name"], column["type"], column["nullable"]) for column in topic["columns"]] == [
        ("id", "int64", False),
        ("kind", "string", True),
        ("at", "timestamp", True),
        ("local", "timestamp_ntz", True),
        ("name", "string", True),
        ("point", "struct", True),
        ("tags", "map", True),
    ]
    cli("produce", "orders", "--from", path)
    (found,) = printed(cli)
    assert (found["id"], found["kind"], found["at"], found["tags"]) == (1, "a", "1970-01-01T00:00:01Z", {"t": 3})


def test_wrong_files_for_a_topic(cli: Cli, tmp_path: Path) -> None:
    assert "No such file" in cli.fails("topics", "create", "t", "--from", tmp_path / "absent.parquet")
    assert "cannot be read as a Parquet file" in cli.fails("topics", "create", "t", "--from", __file__)
    pq.write_table(pa.table({"t": pa.array([1], pa.time64("us"))}), tmp_path / "time.parquet")
    message = cli.fails("topics", "create", "t", "--from", tmp_path / "time.parquet")
    assert "column 't': Arrow's time64[us] is not a type of a topic" in message
    both = ("topics", "create", "t", "--from", __file__, "--column", "a:int64")
    assert "name the columns in one way" in cli.fails(*both)


def test_help_names_the_formats() -> None:
    for command in ("produce", "consume"):
        assert "csv, parquet or arrow" in " ".join(run(command, "--help").out.split())


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_pipe_with_a_name(cli: Cli, store: Store, tmp_path: Path, suffix: str) -> None:
    path, pipe = tmp_path / f"rows.{suffix}", tmp_path / f"pipe.{suffix}"
    WRITERS[suffix](path)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    if suffix == "feather":
        # A pipe can hold a stream only, because the end of Arrow's file format lists where its rows are.
        assert "cannot be read as arrow" in cli.fails("produce", "orders", "--from", pipe)
    else:
        cli("produce", "orders", "--from", pipe, "--partition", 0)
        assert printed(cli) == ROWS
    writer.join()
