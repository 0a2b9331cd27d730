"""Check and repair of a partition whose rows have several versions of the columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import World
from tests.evolution.log import TP, check
from txlog.client.store import Store
from txlog.errors import TxlogError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.fsck.repair import repair
from txlog.storage.memory import MemoryObjectStore

ROWS = [
    {"id": 1, "name": "default"},
    {"id": 2**40, "name": "B"},
    *({"id": number, "name": "x"} for number in range(4)),
]


@pytest.fixture
def store(world: World) -> Store:
    """Return a store with one sealed segment, whose file has rows of three versions."""
    made = world.open()
    made.create_topic("orders", pa.schema((("id", pa.int8()), ("name", pa.string()))), config={"segment.batches": 4})
    with made.producer() as producer:
        producer.send("orders", {"id": 1, "name": "A"}).result()
        made.alter_topic(
            "orders",
            set_types={"id": "int64"},
            add_columns=pa.schema({"new": pa.string()}),
            column_defaults={"new": "default"},
        )
    with made.producer() as producer:
        producer.send("orders", {"id": 2**40, "name": "b", "new": "B"}).result()
    made.alter_topic("orders", drop_columns=["name"], rename_columns={"new": "name"})
    with made.producer() as producer:
        for number in range(4):
            producer.send("orders", {"id": number, "name": "x"}).result()
    return made


def rows(world: World) -> list[dict[str, Any]]:
    return world.open().table("orders").to_arrow(columns=["id", "name"]).to_pylist()


def damage(memory: MemoryObjectStore, path: str, kind: str) -> None:
    data = memory.get(path)
    assert data is not None
    if kind == "gone":
        memory.delete(path)
    else:
        overwrite(memory, path, data[:40] + bytes([data[40] ^ 1]) + data[41:])


@pytest.mark.parametrize("kind", ["bit", "gone"])
def test_an_index_over_rows_of_several_versions_is_made_again(world: World, store: Store, kind: str) -> None:
    memory = world.memory
    assert rows(world) == ROWS
    check(world.open())
    (index,) = [TP.folder + name for name in memory.list(TP.folder) if name.endswith("-0.index")]
    damage(memory, index, kind)
    findings = check_store(memory).findings
    assert (kind == "gone") or any(found.path == index for found in findings)
    repair(world.open().runtime, findings, dry_run=False)
    assert rows(world) == ROWS
    check(world.open())


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("kind", ["bit", "gone"])
def test_a_damaged_version_is_found_and_no_wrong_column_is_shown(
    world: World, store: Store, kind: str, number: int
) -> None:
    path = f"orders/topic.{number:020}.json"
    damage(world.memory, path, kind)
    assert any(
        found.path == path and found.kind in ("damaged", "missing") for found in check_store(world.memory).findings
    )
    found: object
    try:
        found = rows(world)
    except TxlogError as error:
        found = str(error)
    # The sealed file has all rows in the columns of the newest version, so the older versions are seldom needed.
    assert found == ROWS or path in str(found)
