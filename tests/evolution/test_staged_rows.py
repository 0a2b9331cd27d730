"""Rows of a staged transaction and a change of columns beside it: the rows stay in the columns that they were written
for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World
from tests.evolution.log import change, check, made, topic_of
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.evolution import AddColumn, Change, MoveColumn, RenameColumn
from txlog.core.records import SchemaField, StagedPart, TopicMetadata
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.storage.conform import conform

AB = pa.schema([pa.field("a", pa.string()), pa.field("b", pa.string())])
LARGE = "A" * 1700
"""Two such values are too large together for a commit record, so settling writes them to a file."""
SWAP = (RenameColumn(("a",), "c"), RenameColumn(("b",), "a"), RenameColumn(("c",), "b"), MoveColumn(("b",), "a"))
CHANGES: dict[str, tuple[Change, ...]] = {
    "swap": SWAP,
    "rename": (RenameColumn(("a",), "t"),),
    "move": (MoveColumn(("b",)),),
    "add": (AddColumn(SchemaField(id=1, name="n", type="string", default="N")),),
}


def staged(store: Store, txn: StagedTransaction, value: str, *, inline: bool = True) -> tuple[StagedPart, ...]:
    """Return the part of a task that has written one row."""
    topic = topic_of(store)
    files = StagedFiles(store.runtime, txn.txn, inline_bytes=10_000 if inline else 0)
    files.add(topic, conform([{"a": value, "b": "B"}], topic.schema, topic="orders"), 0)
    return files.finish()


@pytest.mark.parametrize("value", ["A", LARGE], ids=["inline", "file"])
@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("name", CHANGES)
def test_columns_that_change_while_parts_are_joined(world: World, name: str, look: int, value: str) -> None:
    store = made(world, AB, key_columns=None, inline_max_bytes=3000)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    parts = [*staged(store, txn, value), *staged(store, txn, value)]
    looks = world_that_changes(world, store, look, CHANGES[name])
    txn.commit(parts)
    # One look is enough; a second one could see another version.
    assert looks == ["orders"]
    store = world.open()
    check(store)
    names = {field.id: field.name for field in topic_of(store).schema}
    rows = store.table("orders").to_arrow(columns=[names[1], names[2]]).to_pylist()
    assert rows == [{names[1]: value, names[2]: "B"}] * 2


def world_that_changes(world: World, store: Store, nth: int, changes: tuple[Change, ...]) -> list[str]:
    """Change columns before the process looks a topic up for the nth time. Return the list of its looks."""
    inner, looks = store.runtime.topic, list[str]()

    def topic(name: str, max_age_ms: int | None = None) -> TopicMetadata:
        looks.append(name)
        if len(looks) == nth:
            change(world.open(), *changes)
        return inner(name, max_age_ms)

    store.runtime.topic = topic  # type: ignore[method-assign]
    return looks


def test_columns_that_change_while_rows_beside_files_are_written(world: World) -> None:
    store = made(world, AB, key_columns=None)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    parts = [*staged(store, txn, "A", inline=False), *staged(store, txn, "A")]
    world_that_changes(world, store, 1, SWAP)
    with pytest.raises(
        InvalidRequestError, match=r"orders-0: .*files of schema 0 and of schema 1 .*cannot be one batch"
    ):
        txn.commit(parts)
    txn.abort()
    check(world.open())
    assert world.open().table("orders").count() == 0


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_one_task_does_not_mix_versions(world: World, name: str, inline: bool) -> None:
    store = made(world, AB, key_columns=None)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    files = StagedFiles(store.runtime, txn.txn, inline_bytes=10_000 if inline else 0)

    def add() -> None:
        topic = topic_of(store)
        row: dict[str, Any] = {field.name: "x" for field in topic.schema}
        files.add(topic, conform([row], topic.schema, topic="orders"), 0)

    add()
    change(store, *CHANGES[name])
    with pytest.raises(
        SchemaMismatchError,
        match=r"orders-0: rows for version 1 of the topic's columns cannot follow rows for version 0.*hint",
    ):
        add()
    txn.abort()
    assert world.open().table("orders").count() == 0


def test_settings_that_change_do_not_stop_a_task(world: World) -> None:
    store = made(world, AB, key_columns=None)
    txn = StagedTransaction.begin(store.runtime, "nightly")
    files = StagedFiles(store.runtime, txn.txn)
    for _ in range(2):
        topic = topic_of(store)
        files.add(topic, conform([{"a": "A", "b": "B"}], topic.schema, topic="orders"), 0)
        store.alter_topic("orders", config={"retention.ms": 10**12})
    txn.commit(files.finish())
    assert world.open().table("orders").count() == 2
