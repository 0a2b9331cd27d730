"""Random worlds with an evolving topic: every road of the client shows each row's values under the ids of its
columns."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World, rows_of
from tests.evolution.log import TP, Model, change, check, made, merge, topic_of, try_change
from txlog.client import reading
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.evolution import AddColumn, AllowNulls, Change, DropColumn, MoveColumn, RenameColumn, SetType
from txlog.core.fetch_plan import FilePiece
from txlog.core.records import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.inspection.chain import read_rows
from txlog.maintenance.vacuum import vacuum
from txlog.storage.conform import conform

DAY_MS = 86_400_000
SCHEMA_OF_THREE = pa.schema((pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("price", pa.int8())))

OWN = ("_offset", "_timestamp", "_topic", "_partition")


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without txlog's columns."""
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert found == expected


def compare(world: World, model: Model) -> None:
    """Read the partition on every road, in a process that has seen nothing yet."""
    store = world.open()
    fields = topic_of(store).schema
    expected = model.seen_by(fields)
    table = store.table("orders")
    read = table.to_arrow()
    assert read.schema.names == [*(field.name for field in fields), "_partition", "_offset", "_timestamp"]
    same(plain(read.to_pylist()), expected)
    same(plain(rows_of(store.consumer("orders", auto_offset_reset="earliest"))), expected)
    same(plain(store.snapshot("orders").table("orders").to_arrow().to_pylist()), expected)
    same(plain(list(read_rows(store.runtime, TP, 0, 10**6))), expected)
    for field in fields:
        one = table.to_arrow(columns=[field.name]).column(0).to_pylist()
        same([{"": value} for value in one], [{"": row[field.name]} for row in expected])
    ids = [row[fields[0].name] for row in expected]
    for field in fields:
        condition = condition_on(field)
        if condition is not None:
            where, keeps = condition
            found = table.to_arrow(where=where)
            same(plain(found.to_pylist()), [row for row in expected if keeps(row[field.name])])
            assert table.count(where=where) == found.num_rows
    assert table.count() == len(ids)


def condition_on(field: SchemaField) -> Any:
    name = f"`{field.name}`"
    if field.type.startswith("int"):
        return f"{name} > 50", lambda value: value is not None and value > 50
    if field.type.startswith("float"):
        return f"{name} <= 0.5", lambda value: value is not None and value <= 0.5
    if field.type == "string":
        return f"{name} >= 'd'", lambda value: value is not None and value.encode() >= b"d"
    return f"{name} IS NULL", lambda value: value is None


def write(store: Store, model: Model, dice: random.Random, kind: str) -> None:
    """Write rows of the columns that this process knows, which may be older than the topic's."""
    topic = store.runtime.topic("orders")
    rows, kept = model.some(topic, dice.choice([1, 2, 30]))
    if kind == "plain":
        with store.producer() as producer:
            producer.send("orders", rows, partition=0).result()
    else:
        with store.producer(kind, staged=kind == "staged") as producer:
            producer.begin_transaction()
            producer.send("orders", rows, partition=0)
            producer.commit_transaction()
    model.rows += kept


@pytest.mark.parametrize("seed", range(12))
def test_every_road_finds_columns_by_id(world: World, seed: int) -> None:
    dice = random.Random(seed)
    store = made(world)
    writers = [store, world.open(metadata_max_age_ms=10**9), world.open()]
    model = Model(dice)
    for step in range(30):
        world.clock.advance_ms(dice.choice([0, 1, 1000]))
        what = dice.random()
        if what < 0.25:
            try_change(world.open(), dice, step)
        elif what < 0.3:
            merge(world.open())
        else:
            write(dice.choice(writers), model, dice, dice.choice(["plain", "eager", "staged"]))
        if step % 10 == 9:
            compare(world, model)
    merge(world.open())
    compare(world, model)
    check(world.open())


def planned(store: Store) -> reading.ReadTask:
    """Return a task as another process has it that planned a read a while ago."""
    found = reading.plan(store.runtime, "orders", 0, 0, None)
    task: reading.ReadTask = pickle.loads(pickle.dumps(reading.tasks(store.runtime, [found])[0]))
    return task


def clean_up(world: World, store: Store, task: reading.ReadTask) -> None:
    """Merge, and delete the files that were merged. The task needs one of them."""
    merge(store)
    runtime = world.open().runtime
    for _ in range(2):
        world.clock.advance_ms(3 * DAY_MS)
        vacuum(runtime, reading.read_session(runtime), ["orders"], dry_run=False)
    files = [piece.file.path for piece in task.pieces if isinstance(piece, FilePiece)]
    assert not {path.removeprefix("0/rows/") for path in files} <= set(world.memory.list("orders/0/rows/"))


def filled(world: World) -> tuple[Store, Model]:
    store = made(world)
    model = Model(random.Random(1))
    for seed in range(9):
        write(store, model, random.Random(seed), "plain")
    return store, model


def test_a_read_that_was_planned_before_keeps_its_columns_after_a_merge(world: World) -> None:
    store, model = filled(world)
    change(store, RenameColumn(("tags",), "labels"))
    before, task = topic_of(store).schema, planned(store)
    change(store, RenameColumn(("name",), "title"), RenameColumn(("price",), "name"), MoveColumn(("id",), "labels"))
    clean_up(world, store, task)
    found = [row for batch in reading.read_task(task, world.memory) for row in batch.to_pylist()]
    assert plain(found) == model.seen_by(before)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([DropColumn(("name",))], "column 'name' was dropped"),
        (
            [DropColumn(("name",)), AddColumn(SchemaField(id=1, name="name", type="string"))],
            "column 'name' was dropped",
        ),
        ([SetType(("price",), "decimal(20,2)")], r"column 'price' is decimal\(20,2\) now"),
        ([DropColumn(("at", "x"))], r"column 'at\.x' was dropped"),
        ([AllowNulls(("id",))], "column 'id' may be null now"),
    ],
)
def test_a_read_whose_columns_cannot_hold_the_rows_any_more_says_restart(
    world: World, changes: list[Change], why: str
) -> None:
    store, _ = filled(world)
    task = planned(store)
    change(store, *changes)
    clean_up(world, store, task)
    with pytest.raises(
        SchemaMismatchError, match=f"orders-0: the topic's columns changed after this read began: {why}.*restart"
    ):
        list(reading.read_task(task, world.memory))


def test_a_writer_that_sleeps_across_a_swap_of_names_does_not_swap_values(world: World) -> None:
    schema = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string())])
    store = made(world, schema, key_columns="a")
    with store.producer(metadata_max_age_ms=10**9) as producer, store.producer("t", staged=True) as staged:
        staged.begin_transaction()
        producer.send("orders", [{"a": "A", "b": "B"}], partition=0).result()
        staged.send("orders", [{"a": "A", "b": "B"}], partition=0)
        other = world.open()
        change(other, RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b"))
        producer.send("orders", [{"a": "A", "b": "B"}], partition=0).result()
        staged.send("orders", [{"a": "A", "b": "B"}], partition=0)
        staged.commit_transaction()
    rows = world.open().table("orders").to_arrow(columns=["a", "b"]).to_pylist()
    assert rows == [{"a": "B", "b": "A"}] * 4


def test_staged_rows_of_several_tasks_get_the_default_of_a_column_that_was_added_meanwhile(world: World) -> None:
    store = made(world, pa.schema((pa.field("id", pa.int64()), pa.field("name", pa.string()))))
    txn = StagedTransaction.begin(store.runtime, "nightly")
    old = topic_of(store)
    parts: list[Any] = []
    for number in (1, 2):
        files = StagedFiles(store.runtime, txn.txn, inline_bytes=10_000)
        files.add(old, conform([{"id": number, "name": "n"}], old.schema, topic="orders"), 0)
        parts += files.finish()
    change(world.open(), AddColumn(SchemaField(id=1, name="new", type="int8", default=7)), DropColumn(("name",)))
    txn.commit(parts)
    rows = world.open().table("orders").to_arrow(columns=["id", "new"]).to_pylist()
    assert rows == [{"id": 1, "new": 7}, {"id": 2, "new": 7}]


def test_rows_of_several_versions_are_sealed_into_one_file(world: World) -> None:
    store = made(
        world,
        pa.schema((pa.field("id", pa.int8()), pa.field("name", pa.string()))),
        key_columns=None,
        segment_batches=4,
    )
    with store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "a"}], partition=0).result()
    change(store, SetType(("id",), "int64"), AddColumn(SchemaField(id=1, name="new", type="string", default="d")))
    with store.producer() as producer:
        producer.send("orders", [{"id": 2**40, "name": "b", "new": None}], partition=0).result()
    change(store, DropColumn(("name",)), RenameColumn(("new",), "name"))
    with store.producer() as producer:
        for number in range(4):
            producer.send("orders", [{"id": number, "name": "x"}], partition=0).result()
    (sealed,) = [name for name in world.memory.list(TP.folder) if name.endswith("-0.index")]
    assert sealed.startswith("0" * 20)
    rows = world.open().table("orders").to_arrow(columns=["id", "name"]).to_pylist()
    assert rows[:3] == [{"id": 1, "name": "d"}, {"id": 2**40, "name": None}, {"id": 0, "name": "x"}]
    check(world.open())


def test_the_history_of_the_columns_is_kept(world: World) -> None:
    store = made(world)
    change(store, RenameColumn(("name",), "title"))
    store.alter_topic("orders", config={"retention.ms": 10**12})
    change(store, DropColumn(("price",)))
    versions = world.open().schema_history("orders")
    assert [(each.version, each.schema_id) for each in versions] == [(0, 0), (1, 1), (3, 3)]
    names = [[field.name for field in each.fields] for each in versions]
    assert [each[:3] for each in names] == [["id", "name", "price"], ["id", "title", "price"], ["id", "title", "at"]]
    store.delete_topic("orders")
    store.create_topic("orders", pa.schema([("a", pa.int8())]))
    assert [each.version for each in world.open().schema_history("orders")] == [6]


NEW = SchemaField(id=1, name="new", type="int8", default=7)


@pytest.mark.parametrize(
    ("step", "names", "what"),
    [
        (DropColumn(("name",)), ["id", "price"], "column 'name' has changed"),
        (RenameColumn(("name",), "title"), ["id", "title", "price"], "column 'name' has changed"),
        (AddColumn(NEW), ["id", "name", "price", "new"], "column 'new' was added"),
        (MoveColumn(("price",)), ["price", "id", "name"], "the order of the columns has changed"),
    ],
)
def test_a_consumer_that_iterates_across_a_change_says_so_and_goes_on_with_the_new_columns(
    world: World, step: Change, names: list[str], what: str
) -> None:
    store = made(world, SCHEMA_OF_THREE)
    with store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "a", "price": 1}], partition=0).result()
    change(store, MoveColumn(("id",)), AddColumn(SchemaField(id=1, name="tmp", type="int8")))
    change(store, DropColumn(("tmp",)))
    with store.consumer("orders", auto_offset_reset="earliest") as consumer:
        batches = consumer.iterate(1000)
        first = next(batches)
        assert first.schema.names[:3] == ["id", "name", "price"]
        changed = change(store, step)
        with store.producer() as producer:
            producer.send(
                "orders", [{field.name: 2 for field in changed.schema if field.type != "string"}], partition=0
            ).result()
        with pytest.raises(SchemaMismatchError, match=f"topic 'orders': {what} while .*call iterate\\(\\) again"):
            list(batches)
        (second,) = rows_of(consumer)
    assert list(plain([second])[0]) == names
    assert (second["id"], second["_offset"]) == (2, 1)
