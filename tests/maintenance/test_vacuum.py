"""Vacuum deletes what nothing needs, and nothing else: on a whole store, object by object."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import World
from tests.maintenance.test_merge import SCHEMA, fill, merge, read
from txlog.client import reading
from txlog.client.store import Store
from txlog.core import names
from txlog.core.names import NumberedName, SegmentObject
from txlog.maintenance.fsck import check_store
from txlog.maintenance.vacuum import VacuumReport, vacuum

DAY_MS = 86_400_000


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 4})
    return opened


def clean(store: Store, *, dry_run: bool = False, topics: list[str] | None = None) -> VacuumReport:
    runtime = store.runtime
    return vacuum(runtime, reading.read_session(runtime), topics, dry_run=dry_run)


def paths(world: World, folder: str = "") -> list[str]:
    return sorted(path for path in world.memory._objects if path.startswith(folder))


def whole(store: Store) -> None:
    report = check_store(store.runtime.store)
    assert not [found for found in report.findings if found.kind != "note"]


def kinds(world: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in paths(world, "orders/0/"):
        name = path.removeprefix("orders/0/")
        match names.parse_partition_object(name):
            case NumberedName(kind=kind):
                pass
            case SegmentObject(kind=kind):
                pass
            case _:
                kind = "rows"
        found[kind] = found.get(kind, 0) + 1
    return found


@pytest.mark.parametrize("seed", range(1))
def test_after_merge_and_vacuum_the_folder_is_as_kafkas(world: World, store: Store, seed: int) -> None:
    fill(world, store, seed)
    before = read(store)
    merge(store)
    for _ in range(4):
        world.clock.advance_ms(DAY_MS + 1)
        clean(store)
        assert read(store) == before
        whole(store)
    left = kinds(world)
    assert left["index"] == 1
    assert left["parquet"] == 1
    assert left["clean"] == 1
    assert left["boundary"] == 1
    assert left["snapshot"] == 1

    assert clean(store).deleted == ()
