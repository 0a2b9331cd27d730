"""Topics as tables: the rows are a consumer's, whatever the options, the layout of the files, and who reads them."""

from __future__ import annotations

import datetime
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any, cast

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

import txlog
from tests.client.test_where import FIELDS, LITERALS, ROWS, SCHEMA as TYPED, conditions, file_of, piece_of
from tests.client.world import ORDERS, World, rows_of, tp
from tests.effort import cases, examples
from txlog.client import reading
from txlog.client.store import Store
from txlog.client.tables import read_ahead
from txlog.client.tables.expression import Expression
from txlog.client.tables.where import bind
from txlog.core.cleaning import MergePolicy
from txlog.errors import (
    CorruptRecordError,
    InvalidConfigurationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.merge import merge_partition
from txlog.testing.failing_store import Fault, SimulatedCrash

SCHEMA = pa.schema(
    (
        pa.field("id", pa.int64(), nullable=False),
        pa.field("txn", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("amount", pa.float64()),
    )
)
TOPICS = ("orders", "payments")
LARGE = MergePolicy(target_bytes=2**30)
Row = dict[str, Any]


def read(store: Store, topic: str, isolation: str = "read_committed") -> list[Row]:
    """Return a consumer's rows, in the order and with the columns of a table."""
    consumer = store.consumer(topic, auto_offset_reset="earliest", isolation_level=isolation)
    found = sorted(rows_of(consumer), key=lambda row: (row["_partition"], row["_offset"]))
    names = store.table(topic).schema.names
    return [{name: row[name] for name in names} for row in found]


def merge(store: Store, topic: str, partition: int) -> None:
    merge_partition(store.runtime, reading.read_session(store.runtime), tp(topic, partition), LARGE)


def fill(world: World, store: Store, dice: random.Random, transactions: int = 20) -> None:
    """Append random transactions over both topics: aborted ones, inline and in files, eager and staged, and plain
    rows."""
    number = 0

    def some(txn: int | None) -> list[Row]:
        nonlocal number
        count = dice.choice([1, 2, 5, 400])
        number += count
        return [
            {
                "id": each,
                "txn": txn,
                "name": dice.choice([None, "a", "n" * 40]),
                "amount": dice.choice([None, 1.5, each / 7, math.nan]),
            }
            for each in range(number - count, number)
        ]

    with (
        store.producer("eager", staged=False) as eager,
        store.producer("staged", staged=True) as staged,
        store.producer() as plain,
    ):
        for txn in range(transactions):
            world.clock.advance_ms(dice.choice([0, 1, 1000]))
            which = dice.choice([eager, staged, plain])
            if which is plain:
                plain.send(dice.choice(TOPICS), some(None), partition=dice.randrange(2)).result()
                continue
            which.begin_transaction()
            for _ in range(dice.randrange(1, 5)):
                which.send(dice.choice(TOPICS), some(txn), partition=dice.randrange(2))
                which.flush()
                world.clock.advance_ms(dice.choice([0, 1, 1000]))
            if dice.random() < 0.3:
                which.abort_transaction()
            else:
                which.commit_transaction()


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    for topic in TOPICS:
        opened.create_topic(topic, SCHEMA, partitions=2, config={"segment.batches": 4, "inline.max.bytes": 4096})
    return opened


def same(found: list[Any], expected: list[Any]) -> bool:
    """Return whether the rows are equal; NaN equals NaN here."""
    return repr(found) == repr(expected)


# -- the rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", cases(range(10)))
def test_a_table_has_the_rows_of_a_consumer(world: World, store: Store, seed: int) -> None:
    dice = random.Random(seed)
    fill(world, store, dice)
    for topic in TOPICS:
        for partition in range(2):
            if dice.random() < 0.5:
                merge(store, topic, partition)
    if dice.random() < 0.5:
        store.admin().delete_records("orders", 0, 7)
    fill(world, store, dice, 6)
    hanging = store.producer("hangs")
    hanging.init_transactions()
    hanging.begin_transaction()
    hanging.send("orders", [{"id": -1}], partition=1).result()
    fill(world, store, dice, 3)
    for topic in TOPICS:
        for isolation in ("read_committed", "read_uncommitted"):
            expected = read(store, topic, isolation)
            opened = store.table(topic)
            found = opened.to_arrow(isolation_level=isolation)
            assert same(found.to_pylist(), expected)
            assert found.schema.equals(opened.schema)
            assert opened.count(isolation_level=isolation) == len(expected)
            assert opened.count("id >= 0", isolation_level=isolation) == sum(row["id"] >= 0 for row in expected)
            low, high = (dict.fromkeys(range(2), 0) for _ in range(2))
            for partition in range(2):
                info = store.admin().list_offsets(topic)[tp(topic, partition)]
                ends = {"read_committed": info.last_stable_offset, "read_uncommitted": info.log_end_offset}
                picked = sorted(dice.randint(info.log_start_offset, ends[isolation]) for _ in range(2))
                low[partition], high[partition] = picked
            inside = [row for row in expected if low[row["_partition"]] <= row["_offset"] < high[row["_partition"]]]
            options: dict[str, Any] = {"start": low, "end": high, "isolation_level": isolation}
            assert same(opened.to_arrow(**options).to_pylist(), inside)
            assert opened.count(**options) == len(inside)
    hanging.abort_transaction()


def test_every_type(world: World) -> None:
    nested = pa.schema(
        [
            *TYPED,
            ("small", pa.int16()),
            ("list", pa.list_(pa.int32())),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("struct", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ]
    )
    row = {
        "tiny": 1, "big": 2**62, "single": 0.5, "double": math.pi, "text": "é", "flag": True,
        "day": datetime.date(2013, 1, 31),
        "instant": datetime.datetime(2013, 1, 31, 5, tzinfo=datetime.UTC), "wall": datetime.datetime(1500, 1, 1),
        "raw": b"\0",
        "dot.ted": 3, "small": -5, "list": [1, None], "map": [("k", 1)], "struct": {"a": 1, "b": None},
    }  # fmt: skip
    store = world.open()
    store.create_topic("typed", nested)
    given = pa.Table.from_pylist([row, {}], nested)
    with store.producer() as producer:
        producer.send("typed", given)
    found = store.table("typed").to_arrow(["*"])
    assert found.cast(nested).equals(given)


def test_columns(store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", [{"id": 7, "name": "x"}], partition=1)
    orders = store.table("orders")
    assert orders.schema.names == [*SCHEMA.names, "_partition", "_offset", "_timestamp"]
    found = orders.to_arrow(["_topic", "name", "_partition", "id"], "amount IS NULL AND _offset = 0")
    assert found.to_pylist() == [{"_topic": "orders", "name": "x", "_partition": 1, "id": 7}]
    assert orders.scan(["*", "_offset"]).schema.names == [*SCHEMA.names, "_offset"]
    for columns, message in (
        (["nam"], r"'orders' has no column 'nam'\. Did you mean 'name'\? The columns are id, txn, "),
        (["id", "*"], "'id' is asked for twice"),
        ([], r"at least one column\. hint: use count"),
        ("id", r"expected a list of names\. hint: columns=\['id'\]"),
    ):
        with pytest.raises(SchemaMismatchError, match=message):
            orders.scan(columns)


def test_columns_that_were_added_later(store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", [{"id": 1}], partition=0).result()
        store.alter_topic("orders", add_columns=pa.schema([("note", pa.string())]))
    with store.producer() as producer:
        producer.send("orders", [{"id": 2, "note": "new"}], partition=0).result()
    orders = store.table("orders")
    assert orders.to_arrow(["id", "note"]).to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": "new"}]
    assert orders.to_arrow(["id"], "note IS NULL").to_pylist() == [{"id": 1}]
    assert orders.to_arrow(["id"], pc.field("note") == "new").to_pylist() == [{"id": 2}]


def test_a_scan_is_fixed_when_it_is_called(store: Store) -> None:
    orders = store.table("orders")
    before = orders.scan()
    with store.producer() as producer:
        producer.send("orders", [{"id": 1}])
    assert before.read_all().num_rows == 0
    assert orders.scan().read_all().num_rows == 1


# -- where a read begins and ends -------------------------------------------------------------------------------------


def test_starts_and_ends(world: World, store: Store) -> None:
    times = []
    with store.producer() as producer:
        for number in range(6):
            world.clock.advance_ms(1000)
            times.append(datetime.datetime.fromtimestamp(world.clock.now_ms() / 1000, datetime.UTC))
            producer.send("orders", [{"id": number}], partition=number % 2).result()
    orders = store.table("orders")

    def ids(**options: Any) -> list[int]:
        found: list[Any] = orders.to_arrow(["id"], **options).column("id").to_pylist()
        return sorted(found)

    assert ids(start="earliest", end="latest") == list(range(6))
    assert ids(start="latest") == []
    assert ids(end="earliest") == []
    assert ids(start={0: 1}) == [1, 2, 3, 4, 5]
    assert ids(start={tp("orders", 1): 2}, end={0: 1}) == [0, 5]
    assert ids(start={0: -1}) == [1, 3, 5]
    assert ids(start=times[2]) == [2, 3, 4, 5]
    assert ids(end=times[2]) == [0, 1]
    assert ids(start=times[2] + datetime.timedelta(microseconds=1)) == [3, 4, 5]
    assert ids(end=times[2] + datetime.timedelta(microseconds=1)) == [0, 1, 2]
    assert ids(start=times[5] + datetime.timedelta(days=1)) == []
    assert ids(start=times[1], end=times[4]) == [1, 2, 3]
    assert ids(start={0: 2}, end={0: 1, 1: 0}) == []
    assert ids(start={"0": 1}, end={"1": 2}) == [1, 2, 3, 4]
    for options, error, message in (
        ({"start": {0: 9}}, OffsetOutOfRangeError, "orders-0: start asks for offset 9, but the log holds 0 to 3"),
        (
            {"start": {7: 0}},
            InvalidConfigurationError,
            "start names orders-7, which is not read: 2 partitions are read, the last one is orders-1; -2 is earliest",
        ),
        ({"start": {"7": 0}}, InvalidConfigurationError, "start names orders-7, which is not read"),
        ({"start": {"0": 0, 0: 1}}, InvalidRequestError, "a partition is there twice, in two forms"),
        ({"end": {0: "1"}}, InvalidRequestError, "end: '1' is not an offset"),
        ({"end": {0: -3}}, InvalidRequestError, "end: -3 is not an offset"),
        ({"end": 5}, InvalidRequestError, "end = 5: expected 'earliest', 'latest', a datetime with a time zone"),
        (
            {"start": "2026-11-24"},
            InvalidConfigurationError,
            r'hint: datetime.datetime.fromisoformat\("2026-11-24T00:00:00.000\+00:00"\)',
        ),
        (
            {"start": datetime.date(2026, 11, 24)},
            InvalidRequestError,
            r'hint: datetime.datetime.fromisoformat\("2026-11-24T00',
        ),
        ({"start": "begin"}, InvalidConfigurationError, "start = 'begin': expected 'earliest', 'latest', a datetime"),
        ({"start": datetime.datetime(2026, 1, 1)}, InvalidRequestError, "expected a datetime with a time zone"),
        ({"isolation_level": "chaos"}, InvalidConfigurationError, "isolation.level = 'chaos'"),
    ):
        with pytest.raises(error, match=message):
            orders.scan(**options)


def test_the_isolation_level_is_that_of_consumers(world: World, store: Store) -> None:
    with store.producer("hangs") as hanging:
        hanging.begin_transaction()
        hanging.send("orders", [{"id": 1}]).result()
        assert store.table("orders").count() == 0
        opened = world.open(isolation_level="read_uncommitted")
        assert opened.table("orders").count() == 1
        assert opened.table("orders").count(isolation_level="read_committed") == 0
        hanging.abort_transaction()
    assert store.table("orders").count() == 0


# -- conditions -------------------------------------------------------------------------------------------------------


@examples(50)
@given(rows=ROWS, text=conditions())
def test_both_kinds_of_conditions_keep_and_skip_alike(rows: list[Row], text: str) -> None:
    keep_and_skip_alike(rows, text)


@pytest.mark.exhaustive
@examples(1000)
@given(rows=ROWS, text=conditions())
def test_many_conditions_of_both_kinds_keep_and_skip_alike(rows: list[Row], text: str) -> None:
    keep_and_skip_alike(rows, text)


def keep_and_skip_alike(rows: list[Row], text: str) -> None:
    """Compare a condition in SQL with the pyarrow expression of each of its comparisons."""
    batch = pa.RecordBatch.from_pylist([{"tiny": None, **row} for row in rows], TYPED)
    file = file_of(rows)
    by_text = bind(text, FIELDS, "orders")
    kept = by_text.keep(batch)
    assert by_text.may_match(piece_of(file)) or not kept.num_rows
    assert by_text.may_match_rows(file.statistics, file.rows) or not kept.num_rows
    for name in sorted(LITERALS):
        value = next((each for each in batch.column(name).to_pylist() if each is not None), None)
        if value is None:
            continue
        literal = pa.scalar(value, TYPED.field(name).type)
        for made in (pc.field(name) == literal, pc.field(name) > literal, ~(pc.field(name) <= literal)):
            expression = Expression(made, FIELDS, "orders")
            assert expression.columns == (name,)
            found = expression.keep(batch)
            assert expression.may_match(piece_of(file)) or not found.num_rows
            assert expression.may_match_rows(file.statistics, file.rows) or not found.num_rows
            expected = pa.Table.from_batches([batch]).filter(made)
            assert repr(found.to_pylist()) == repr(expected.to_pylist())


def test_a_pyarrow_expression_means_what_pyarrow_says() -> None:
    batch = pa.RecordBatch.from_pylist([{"double": value} for value in (math.nan, 1.0, None)], TYPED)
    assert Expression(pc.field("double") > 0, FIELDS, "orders").keep(batch).num_rows == 1
    assert bind("double > 0", FIELDS, "orders").keep(batch).num_rows == 2


def test_what_is_no_condition_is_refused(store: Store) -> None:
    orders = store.table("orders")
    refused: tuple[tuple[Any, type[Exception], str], ...] = (
        ("idd > 1", SchemaMismatchError, r"topic 'orders' has no column 'idd'\. Did you mean 'id'"),
        ("id >", InvalidRequestError, "expected a condition such as"),
        (
            pc.field("idd") > 1,
            SchemaMismatchError,
            r"not a condition on the columns of topic 'orders': No match for .*idd",
        ),
        (pc.field("name") > 1, SchemaMismatchError, "not a condition on the columns of topic 'orders'"),
        (pc.field(1) > 1, SchemaMismatchError, r"by its number\. hint: name it, as in pyarrow\.compute\.field\('id'\)"),
        ((pc.field("id") > 1) & (pc.field(0) > 1), SchemaMismatchError, "by its number"),
        (5, InvalidRequestError, "where = 5: expected a text such as"),
    )
    for where, error, message in refused:
        with pytest.raises(error, match=message):
            orders.scan(where=where)
        with pytest.raises(error, match=message):
            orders.count(where)


def test_sqlglot_is_needed_only_for_text() -> None:
    program = """
import sys
sys.modules["sqlglot"] = None
import pyarrow as pa, pyarrow.compute as pc, txlog
store = txlog.open("memory://x")
store.create_topic("t", pa.schema([("id", pa.int64())]))
print(store.table("t").count(pc.field("id") > 1))
try:
    store.table("t").count("id > 1")
except txlog.TxlogError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0"
    assert "'where' as text needs sqlglot: pip install 'pyspark-txlog[sql]'" in done.stdout


# -- what is not read -------------------------------------------------------------------------------------------------


def opened_files(world: World, store: Store, where: Any, columns: list[str] | None = None) -> tuple[int, int]:
    """Return how many files of rows a scan opened, and how many rows it found."""
    facts = store.table("facts")
    with world.counting.counting() as cost:
        found = facts.to_arrow(columns, where).num_rows
    return len({path for verb, path in cost.calls() if path.endswith(".parquet")}), found


@pytest.mark.parametrize("kind", ["text", "expression"])
def test_files_are_skipped_by_their_statistics(world: World, numbered: Store, kind: str) -> None:
    field = pc.field
    for text, expression, files, rows in (
        ("id >= 0", field("id") >= 0, 3, 3001),
        ("id BETWEEN 1500 AND 1600", (field("id") >= 1500) & (field("id") <= 1600), 1, 101),
        ("id < 0 OR id = 999", (field("id") < 0) | (field("id") == 999), 1, 1),
        ("id IN (5, 2500)", field("id").isin([5, 2500]), 2, 2),
        ("_offset >= 2000", field("_offset") >= 2000, 1, 1001),
        ("_partition = 1", field("_partition") == 1, 0, 0),
        ("name IS NULL", field("name").is_null(), 0, 0),
        ("id > 9999", field("id") > 9999, 0, 0),
    ):
        where = text if kind == "text" else expression
        assert opened_files(world, numbered, where) == (files, rows), text


def test_row_groups_are_skipped_and_columns_pruned(world: World) -> None:
    store = world.open()
    store.create_topic("facts", ORDERS, config={"inline.max.bytes": 0, "segment.batches": 100})
    rows = 400_000
    dice = random.Random(1)
    names = [f"{dice.getrandbits(120):x}" for _ in range(rows)]
    with store.producer(batch_size=2**30) as producer:
        producer.send("facts", pa.table({"id": range(rows), "name": names}, ORDERS)).result()
    facts = store.table("facts")
    (path,) = world.memory.list("facts/0/rows/")
    size = world.memory.size(f"facts/0/rows/{path}")

    def cost_of(columns: list[str], where: Any = None) -> tuple[int, int]:
        with world.counting.counting() as cost:
            found = facts.to_arrow(columns, where).num_rows
        return found, cost.read_bytes

    assert cost_of(["id", "name"])[1] > size * 0.9
    ids = cost_of(["id"])
    assert ids[0] == rows
    assert ids[1] < size * 0.4
    for where in ("id = 399999", pc.field("id") == 399_999):
        found, read_bytes = cost_of(["id", "name"], where)
        assert found == 1
        # One row group of four.
        assert read_bytes < size * 0.4
    with world.counting.counting() as cost:
        assert facts.count() == rows
    assert not [path for _, path in cost.calls() if path.endswith(".parquet")]


def test_row_groups_with_nan_are_not_skipped(world: World) -> None:
    """Arrow leaves NaN out of the bounds of a row group, and NaN is greater than every number in SQL."""
    store = world.open()
    store.create_topic("facts", pa.schema([("x", pa.float64())]), config={"inline.max.bytes": 0})
    with store.producer() as producer:
        producer.send("facts", pa.table({"x": [1.0, math.nan] * 500})).result()
    assert store.table("facts").count("x > 5") == 500
    assert store.table("facts").count(pc.field("x") > 5) == 0
    assert store.table("facts").count(pc.is_nan(pc.field("x"))) == 500


def test_a_second_scan_costs_one_look_at_each_partition(world: World, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", [{"id": 1}], partition=0)
    orders = store.table("orders")
    assert orders.count() == 1
    with world.counting.counting() as cost:
        assert orders.count() == 1
    assert (cost.list, cost.get_range, cost.put_if_absent) == (0, 0, 0)
    assert cost.get <= 4  # the store, the topic, and the next slot of each partition


# -- reading ahead ----------------------------------------------------------------------------------------------------


def batches_of(number: int, count: int, taken: list[int]) -> Iterator[pa.RecordBatch]:
    for each in range(count):
        taken.append(number)
        yield pa.record_batch({"n": pa.array([number * 1000 + each] * 1000, pa.int64())})


def table_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("txlog-table")]


def wait_for_no_thread() -> None:
    for thread in table_threads():
        thread.join(10)
    assert table_threads() == []


def test_reads_at_once_keep_their_order_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 4 * 8000)
    reads = [lambda number=number: batches_of(number, 10, taken) for number in range(9)]
    found = read_ahead.in_order(reads)
    first = next(found)
    deadline = time.monotonic() + 10
    while len(set(taken)) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    # Four batches wait, and one more of the first read. One was returned, and each of the four threads holds one. So
    # the first read has not ended, and no thread has begun a fifth one.
    assert len(taken) <= 4 + 1 + 1 + 4
    assert len(set(taken)) == 4
    rest = [batch.column("n")[0].as_py() for batch in found]
    assert [first.column("n")[0].as_py(), *rest] == [number * 1000 + each for number in range(9) for each in range(10)]
    wait_for_no_thread()


def test_a_reader_that_stops_early_ends_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES", 0)
    reads = [lambda number=number: batches_of(number, 100, taken) for number in range(9)]
    found = read_ahead.in_order(reads)
    next(found)
    assert table_threads()
    assert isinstance(found, Generator)
    found.close()
    wait_for_no_thread()
    assert len(taken) < 20


def test_few_threads_read_large_row_groups() -> None:
    sizes = (0, 1, 64 * 2**20, 65 * 2**20, 128 * 2**20, 129 * 2**20, 2**31)
    assert [read_ahead.threads_for(size) for size in sizes] == [4, 4, 4, 3, 2, 1, 1]


def test_rows_before_an_error_come_first() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": [2]})
        raise CorruptRecordError("orders/0/x.parquet: damaged")

    found = read_ahead.in_order([lambda: iter([pa.record_batch({"n": [1]})]), broken, broken])
    assert [next(found).column("n")[0].as_py() for _ in range(2)] == [1, 2]
    with pytest.raises(CorruptRecordError, match="damaged"):
        next(found)
    wait_for_no_thread()


def test_a_table_of_many_files_is_read_in_order_and_dropped(
    world: World, numbered: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlog.client.tables.packing.MIN_TASK_BYTES", 1000)
    facts = numbered.table("facts")
    assert facts.to_arrow(["id"]).column("id").to_pylist() == list(range(3001))
    reader = facts.scan()
    assert reader.read_next_batch().num_rows
    del reader
    wait_for_no_thread()
    (name, *_) = world.memory.list("facts/0/rows/")
    world.memory.delete(f"facts/0/rows/{name}")
    with pytest.raises(txlog.MissingObjectError, match=name):
        facts.to_arrow()
    wait_for_no_thread()


# -- snapshots --------------------------------------------------------------------------------------------------------


def whole(rows: dict[str, list[Row]], committed: set[int]) -> bool:
    """Return whether the rows are those of `committed` transactions."""
    return {row["txn"] for each in rows.values() for row in each} - {None} == committed


def test_a_snapshot_shows_whole_transactions(store: Store) -> None:
    def commit(number: int, producer: Any) -> None:
        with producer.transaction():
            for topic in TOPICS:
                for partition in range(2):
                    producer.send(topic, [{"id": number, "txn": number}], partition=partition)

    with store.producer("hangs") as hanging, store.producer("works") as works:
        hanging.begin_transaction()
        hanging.send("orders", [{"id": -1, "txn": -1}], partition=0).result()
        for number in range(3):
            commit(number, works)
        cut = store.snapshot(*TOPICS)
        commit(3, works)
        # A reader of the log waits behind the open transaction. A snapshot hides only that transaction.
        assert store.table("orders").count("_partition = 0") == 0
        for _ in range(2):
            rows = {name: opened.to_arrow().to_pylist() for name, opened in cut.tables().items()}
            assert [len(each) for each in rows.values()] == [6, 6]
            assert whole(rows, {0, 1, 2})
            assert cut.table("orders").count() == 6
            assert cut.table("orders").count("id > 0") == 4
            hanging.flush()
        hanging.commit_transaction()
    assert cut.table("orders").count() == 6
    assert store.snapshot("orders").table("orders").count() == 9
    assert cut.table("orders").count(start={0: 3}) == 4
    assert repr(cut).startswith('Snapshot(orders, payments: {"orders":{"0":')
    assert cut.ends[tp("orders", 0)] == 4


def test_what_a_snapshot_refuses(world: World, store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="a snapshot of which topics"):
        store.snapshot()
    with pytest.raises(UnknownTopicOrPartitionError, match="Did you mean 'orders'"):
        store.snapshot("ordres")
    cut = store.snapshot("orders")
    with pytest.raises(UnknownTopicOrPartitionError, match="'payments' is not in this snapshot of orders"):
        cut.table("payments")
    for options, message in (
        ({"isolation_level": "read_uncommitted"}, "show whole transactions"),
        ({"as_of": datetime.datetime.now(datetime.UTC)}, "as_of belongs to the snapshot"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            cut.table("orders").scan(**options)
    with pytest.raises(InvalidRequestError, match="a snapshot hides rows below its end"):
        cut.table("orders").changes()
    assert cut.table("orders").count(isolation_level="read_committed") == 0
    world.clock.advance_ms(store.runtime.constants.delete_grace_ms)
    with pytest.raises(InvalidRequestError, match="this snapshot is 86400 s old"):
        cut.table("orders").scan()


@pytest.mark.parametrize("seed", cases(range(10)))
def test_as_of_shows_whole_transactions_of_the_past(world: World, store: Store, seed: int) -> None:
    dice = random.Random(seed)
    fill(world, store, dice)
    every = {topic: read(store, topic) for topic in TOPICS}
    times = sorted({row["_timestamp"] for rows in every.values() for row in rows})
    chosen = [*dice.sample(times, min(5, len(times))), times[0] - datetime.timedelta(seconds=1), times[-1]]
    for merged in (False, True):
        if merged:
            # The transactions are younger than the grace, so a merge keeps them distinct.
            for topic in TOPICS:
                merge(store, topic, dice.randrange(2))
        for time_ in chosen:

            def expected(topics: tuple[str, ...], end: datetime.datetime = time_) -> dict[str, list[Row]]:
                late = {row["txn"] for topic in topics for row in every[topic] if row["_timestamp"] > end} - {None}
                return {
                    topic: [row for row in every[topic] if row["_timestamp"] <= end and row["txn"] not in late]
                    for topic in topics
                }

            past = store.snapshot(*TOPICS, as_of=time_)
            found = {name: opened.to_arrow().to_pylist() for name, opened in past.tables().items()}
            assert same([*found.values()], [*expected(TOPICS).values()])
            assert {name: opened.count() for name, opened in past.tables().items()} == {
                name: len(rows) for name, rows in found.items()
            }
            orders = store.table("orders")
            assert same(orders.to_arrow(as_of=time_).to_pylist(), expected(("orders",))["orders"])


def test_as_of_hides_a_commit_that_another_process_finished_later(world: World, store: Store) -> None:
    commit = r"put_if_absent payments/0/.*\"kind\":\"commit\""
    _, dying = world.failing(Fault(action="crash", match=commit))
    dying.runtime.driver._threads = 0  # the rows of orders come first
    producer = dying.producer("loader", staged=True)
    producer.init_transactions()
    producer.begin_transaction()
    for topic in TOPICS:
        producer.send(topic, [{"id": 1}], partition=0)
    with pytest.raises(SimulatedCrash):
        producer.commit_transaction()
    early = datetime.datetime.fromtimestamp(world.clock.now_ms() / 1000, datetime.UTC)
    assert [store.table(topic).count() for topic in TOPICS] == [1, 0]
    world.clock.advance_ms(5000)
    world.open().producer("loader").init_transactions()
    past = store.snapshot(*TOPICS, as_of=early)
    assert [opened.count() for opened in past.tables().values()] == [0, 0]
    # In a snapshot of this topic alone, every row of the transaction is old enough.
    assert store.snapshot("orders", as_of=early).table("orders").count() == 1
    assert [opened.count() for opened in store.snapshot(*TOPICS).tables().values()] == [1, 1]


def test_as_of_reaches_back_as_long_as_snapshots_hold(world: World, store: Store) -> None:
    def ago(milliseconds: int) -> datetime.datetime:
        return datetime.datetime.fromtimestamp((world.clock.now_ms() - milliseconds) / 1000, datetime.UTC)

    grace_ms = store.runtime.constants.delete_grace_ms
    with store.producer() as producer:
        for number in range(12):
            world.clock.advance_ms(1000)
            producer.send("orders", [{"id": number}], partition=0).result()
    fourth = ago(8000)
    orders = store.table("orders")
    past = store.snapshot("orders", as_of=fourth)
    assert (orders.count(as_of=fourth), orders.count(end=fourth)) == (4, 3)
    assert orders.count(as_of=ago(-5000)) == 12
    world.clock.advance_ms(grace_ms - 8000 - 1000)
    merge(store, "orders", 0)
    assert orders.count(as_of=fourth) == 4
    assert past.table("orders").count() == 4
    world.clock.advance_ms(1000)
    with pytest.raises(
        InvalidRequestError,
        match=r"as_of = .*: the log shows whole transactions only for delete\.grace\.ms = 86400000 ms",
    ):
        store.snapshot("orders", as_of=fourth)
    with pytest.raises(InvalidRequestError, match="this snapshot is 86400 s old"):
        past.table("orders").count()
    assert orders.count(end=fourth) == 3
    with pytest.raises(InvalidRequestError, match="expected a datetime with a time zone"):
        orders.scan(as_of=datetime.datetime(2026, 1, 1))


# -- changes ----------------------------------------------------------------------------------------------------------


def test_changes_go_on_where_the_last_ones_ended(world: World, store: Store) -> None:
    orders = store.table("orders")
    seen: list[Any] = []
    offsets: Any = "earliest"
    with store.producer("works") as producer:
        for number in range(5):
            with producer.transaction():
                producer.send("orders", [{"id": number}] * 3, partition=number % 2)
            changes = orders.changes(offsets, ["id"])
            seen += [each for batch in changes for each in batch.column("id").to_pylist()]
            offsets = changes.offsets
    assert seen == [number for number in range(5) for _ in range(3)]
    assert orders.changes(offsets).read_all().num_rows == 0
    assert orders.changes(offsets).offsets == offsets
    assert orders.changes(json.loads(json.dumps(offsets))).offsets == offsets
    store.alter_topic("orders", partitions=3)
    with store.producer() as producer:
        producer.send("orders", [{"id": 9}], partition=2)
    found = store.table("orders").changes(offsets, ["id"])
    assert pl.DataFrame(found).to_dicts() == [{"id": 9}]
    assert set(found.offsets) == {0, 1, 2}
    assert store.table("orders").changes(offsets, where="id > 9").offsets == found.offsets
    store.admin().delete_records("orders", 0)
    with pytest.raises(OffsetOutOfRangeError, match="orders-0: start asks for offset 0"):
        orders.changes({0: 0})


# -- other libraries --------------------------------------------------------------------------------------------------


def test_duckdb_polars_and_pandas_take_tables_and_readers(numbered: Store) -> None:
    facts = numbered.table("facts")
    reader = facts.scan(["id"], "id < 10")  # noqa: F841  DuckDB finds the variable
    assert cast(Any, duckdb.sql("SELECT count(*), sum(id) FROM reader")).fetchall() == [(10, 45)]
    assert cast(Any, duckdb.sql("SELECT count(*), max(name) FROM facts")).fetchall() == [(3001, "last")]
    frame = facts.to_polars(["id", "name"], "id >= 2998")
    assert frame.to_dicts() == [
        {"id": 2998, "name": f"{2998:040d}"},
        {"id": 2999, "name": f"{2999:040d}"},
        {"id": 3000, "name": "last"},
    ]
    ids = pl.from_arrow(facts.scan(["id"]))
    assert isinstance(ids, pl.DataFrame)
    assert ids.lazy().filter(pl.col("id") > 10).select(pl.len()).collect().item() == 2990
    assert pl.DataFrame(facts).height == 3001
    pandas = facts.to_pandas(["id"], start={0: 2999})
    assert isinstance(pandas, pd.DataFrame)
    assert pandas["id"].tolist() == [2999, 3000]
    nullable = facts.to_pandas(["id"], end={0: 1}, types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    assert nullable.dtypes.tolist() == [pd.Int64Dtype()]
    assert pa.table(facts).num_rows == 3001


def test_a_library_that_is_missing_is_named(numbered: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = numbered.table("facts")
    monkeypatch.setitem(sys.modules, "polars", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidRequestError, match=r"to_polars\(\) needs polars\. hint: pip install polars"):
        facts.to_polars()
    with pytest.raises(InvalidRequestError, match=r"to_pandas\(\) needs pandas\. hint: pip install pandas"):
        facts.to_pandas()


def test_notebooks_show_names_and_columns(store: Store) -> None:
    store.create_topic("odd", pa.schema([("<b>", pa.int64())]), config={"retention.ms": 5})
    shown = store.table("odd")._repr_html_()
    assert "<td>&lt;b&gt;</td><td>int64</td>" in shown
    assert "partitions=1, retention.ms=5" in shown
    assert store.topic("odd")._repr_html_().startswith("<table><caption>topic odd: partitions=1")
    assert '<td>orders</td><td class="n">2</td><td>id int64 not null, txn int64' in store._repr_html_()
    assert repr(store.snapshot("odd").table("odd")) == "TopicTable('odd', of a snapshot)"


def test_a_closed_store_and_an_unknown_topic(world: World, store: Store) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="Did you mean 'orders'"):
        store.table("order")
    opened = world.open()
    opened.close()
    for call in (lambda: opened.table("orders"), lambda: opened.snapshot("orders")):
        with pytest.raises(txlog.IllegalStateError, match="is closed"):
            call()
