"""Random worlds whose columns change at every depth, with transactions across changes, clean-up, repair and old
plans."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World, rows_of
from tests.evolution.log import CONFIG, TP, Model, change, check, merge, topic_of
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.evolution import AddColumn, AllowNulls, Change, DropColumn, MoveColumn, Path, RenameColumn, SetType
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import InvalidConfigurationError, InvalidRequestError, SchemaMismatchError, TransactionAbortableError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.fsck.repair import repair
from txlog.maintenance.vacuum import vacuum

DAY_MS = 86_400_000
INNER = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.string())])
SCHEMA = pa.schema(
    (
        pa.field("id", pa.int32(), nullable=False),
        pa.field("a", pa.string()),
        pa.field("b", pa.string()),
        pa.field("s", pa.struct([pa.field("x", INNER), pa.field("y", pa.float32())])),
        pa.field("l", pa.list_(pa.field("element", INNER, nullable=False))),
        pa.field("m", pa.map_(pa.string(), INNER)),
    )
)
NAMES = ["a", "b", "x", "y", "z"]
OWN = ("_offset", "_timestamp", "_topic", "_partition")
WIDER = {"int8": "int16", "int16": "int64", "int32": "int64", "float32": "float64", "decimal(6,2)": "decimal(30,2)"}


def paths(fields: Sequence[SchemaField], above: Path = ()) -> Iterator[tuple[Path, SchemaField]]:
    for field in fields:
        yield (*above, field.name), field
        yield from paths(field.fields, (*above, field.name))


def some_change(topic: TopicMetadata, dice: random.Random, step: int) -> Change:
    """Return a change at any depth, which may be refused."""
    path, field = dice.choice(list(paths(topic.schema)))
    defaults: list[tuple[str, int | float | str]] = [
        ("int8", step % 100),
        ("float32", 0.5),
        ("string", f"d{step}"),
        ("decimal(6,2)", "1.25"),
    ]
    kind, default = dice.choice(defaults)
    added = SchemaField(id=1, name=dice.choice(NAMES), type=kind)
    with_default = SchemaField(id=1, name=dice.choice(NAMES), type=kind, default=default)
    structs = [(), *(path for path, each in paths(topic.schema) if each.type == "struct")]
    changes: list[Change] = [
        AddColumn(added, dice.choice(structs)),
        AddColumn(with_default, dice.choice(structs)),
        RenameColumn(path, dice.choice(NAMES)),
        RenameColumn(path, dice.choice(NAMES)),
        DropColumn(path),
        MoveColumn(path),
        SetType(path, WIDER.get(field.type, field.type)),
        AllowNulls(path),
    ]
    return dice.choice(changes)


def change_somehow(store: Store, dice: random.Random, step: int) -> None:
    """Change columns, or none if the drawn change is not allowed. Sometimes two top-level columns swap their names."""
    schema = topic_of(store).schema
    changes = [some_change(topic_of(store), dice, step)]
    if dice.random() < 0.2 and len(schema) > 1:
        one, two = (field.name for field in dice.sample(schema, 2))
        changes = [RenameColumn((one,), "tmp"), RenameColumn((two,), one), RenameColumn(("tmp",), two)]
    try:
        change(store, *changes)
    except (SchemaMismatchError, InvalidConfigurationError):
        return


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


class Writer:
    """A process that knows the columns of some time, and may have a transaction open."""

    def __init__(self, store: Store, model: Model, dice: random.Random, name: str) -> None:
        self.store, self.model, self.dice, self.name = store, model, dice, name
        self.open: Any = None
        self.waiting: list[Any] = []

    def act(self) -> None:
        dice = self.dice
        if self.open is None and dice.random() < 0.6:
            self.send(None)
            return
        if self.open is None:
            self.open = self.store.producer(self.name, staged=dice.choice([True, False, None]))
            self.open.init_transactions()
            self.open.begin_transaction()
        if dice.random() < 0.6:
            self.send(self.open)
            return
        self.end(commit=dice.random() < 0.7)

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self.open.commit_transaction()
                self.model.rows += self.waiting
        except (InvalidRequestError, TransactionAbortableError) as error:
            # A staged transaction has rows of one version only.
            if "cannot be one batch" not in str(error):
                raise
            commit = False
        if not commit:
            self.open.abort_transaction()
        self.open.close()
        self.open, self.waiting = None, []

    def send(self, producer: Any) -> None:
        topic = self.store.runtime.topic("orders")
        rows, kept = self.model.some(topic, self.dice.choice([1, 2, 30]))
        if producer is None:
            with self.store.producer() as own:
                own.send("orders", rows, partition=0).result()
            self.model.rows += kept
            return
        try:
            producer.send("orders", rows, partition=0)
        except TransactionAbortableError as error:
            if "cannot be one batch" not in str(error):
                raise
            self.end(commit=False)
        except SchemaMismatchError as error:
            # The transaction began with other meanings of these names.
            if "means another column" not in str(error):
                raise
        else:
            self.waiting += kept


def settle(writers: list[Writer]) -> None:
    """Commit what is open. An open transaction hides the rows after its own."""
    for each in writers:
        if each.open is not None:
            each.end(commit=True)


def compare(world: World, model: Model, dice: random.Random) -> None:
    store = world.open()
    fields = topic_of(store).schema
    expected = sorted(model.seen_by(fields), key=repr)

    def same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
        assert sorted(plain(found), key=repr) == sorted(wanted, key=repr)

    table = store.table("orders")
    read = table.to_arrow().to_pylist()
    assert len(read) == len(expected)
    same(read, expected)
    same(rows_of(store.consumer("orders", auto_offset_reset="earliest")), expected)
    same(store.snapshot("orders").table("orders").to_arrow().to_pylist(), expected)
    middle = read[len(read) // 2]["_offset"] if read else 0
    after = [row for row in read if row["_offset"] >= middle]
    same(table.to_arrow(start={0: middle}).to_pylist(), plain(after))
    same(table.changes(since={0: middle}).read_all().to_pylist(), plain(after))
    for field in fields:
        name = f"`{field.name}`"
        wanted = [row for row in expected if row[field.name] is None]
        same(table.to_arrow(where=f"{name} IS NULL").to_pylist(), wanted)
        if field.type.startswith(("int", "float")):
            bound = dice.randrange(-100, 100)
            wanted = [row for row in expected if row[field.name] is not None and row[field.name] < bound]
            same(table.to_arrow(where=f"{name} < {bound}").to_pylist(), wanted)
            assert table.count(where=f"{name} < {bound}") == len(wanted)
        elif field.type == "string":
            wanted = [row for row in expected if row[field.name] is not None and row[field.name] >= "d"]
            found = table.to_arrow(where=f"{name} >= 'd'", columns=[field.name]).to_pylist()
            same(found, [{field.name: row[field.name]} for row in wanted])


def read_plans(world: World, plans: list[tuple[reading.ReadTask, list[dict[str, Any]]]]) -> int:
    """Read old plans. Each shows the rows of its time in the columns of its time, or says that they changed."""
    told = 0
    for task, expected in plans:
        try:
            found = [row for batch in reading.read_task(task, world.memory) for row in batch.to_pylist()]
        except SchemaMismatchError as error:
            if "the topic's columns changed after this read began" not in str(error):
                raise
            told += 1
        else:
            assert sorted(plain(found), key=repr) == sorted(expected, key=repr)
    return told


def clean_up(world: World) -> None:
    merge(world.open())
    runtime = world.open().runtime
    for _ in range(2):
        world.clock.advance_ms(3 * DAY_MS)
        vacuum(runtime, reading.read_session(runtime), ["orders"], dry_run=False)


def damage_and_repair(world: World, dice: random.Random) -> None:
    sealed = [name for name in world.memory.list(TP.folder) if name.endswith("-0.index")]
    if not sealed:
        return
    world.memory.delete(TP.folder + dice.choice(sealed))
    repair(world.open().runtime, check_store(world.memory).findings, dry_run=False)


@pytest.mark.parametrize("seed", range(8))
def test_columns_change_at_every_depth(world: World, seed: int) -> None:
    run(world, seed)


def run(world: World, seed: int) -> None:
    dice = random.Random(seed)
    store = world.open()
    config = {**CONFIG, "segment.batches": dice.choice([2, 4]), "key.columns": "id"}
    store.create_topic("orders", SCHEMA, config=config)
    model = Model(dice)
    ages = [0, 10**9, 1000]
    writers = [Writer(world.open(metadata_max_age_ms=age), model, dice, f"w{age}") for age in ages]
    plans: list[tuple[reading.ReadTask, list[dict[str, Any]]]] = []
    for step in range(40):
        world.clock.advance_ms(dice.choice([0, 1, 1000]))
        what = dice.random()
        if what < 0.3:
            change_somehow(world.open(), dice, step)
        elif what < 0.36:
            merge(world.open())
        elif what < 0.4 and all(each.open is None for each in writers):
            planned = world.open()
            found = reading.plan(planned.runtime, "orders", 0, 0, None)
            expected = model.seen_by(topic_of(planned).schema)
            plans += [(pickle.loads(pickle.dumps(task)), expected) for task in reading.tasks(planned.runtime, [found])][
                :1
            ]
        elif what < 0.43 and all(each.open is None for each in writers):
            # The thread of an open transaction would meet the damage before the repair.
            damage_and_repair(world, dice)
        else:
            dice.choice(writers).act()
        if step % 13 == 12:
            settle(writers)
            compare(world, model, dice)
    settle(writers)
    compare(world, model, dice)
    read_plans(world, plans)
    clean_up(world)
    compare(world, model, dice)
    check(world.open())
