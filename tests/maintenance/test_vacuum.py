"""Vacuum deletes what no process needs, and nothing else: on a whole store, object by object."""

from __future__ import annotations

from pathlib import Path

import pytest

import txlog
from tests.client.world import World
from tests.maintenance.test_merge import SCHEMA, fill, merge, read
from txlog.client import reading
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.core import names
from txlog.core.ages import MAX_CLOCK_SKEW_MS
from txlog.core.names import NumberedName, SegmentObject
from txlog.errors import ClockSkewError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.vacuum import VacuumReport, vacuum
from txlog.testing.clock import ManualClock, SeededIds

DAY_MS = 86_400_000


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


def test_folders_that_a_killed_job_of_sparks_left_empty_are_removed(tmp_path: Path) -> None:
    with txlog.open(tmp_path / "log", storage_options={"fsync": False}) as store:
        store.create_topic("orders", SCHEMA)
        dead = StagedTransaction.begin(store.runtime, "job").txn
        alive = StagedTransaction.begin(store.runtime, "job").txn
        staged = [
            tmp_path / "log" / "orders" / names.staged_folder(txn.producer_id, txn.producer_epoch, "a" * 32)
            for txn in (dead, alive)
        ]
        for folder in staged:
            (folder / "_temporary" / "0" / "_temporary").mkdir(parents=True)
            (folder / "_temporary" / "0" / "task").mkdir()
        (staged[0] / "_temporary" / "0" / "task" / "part-0.parquet").write_bytes(b"x")
        assert len(clean(store, dry_run=True).deleted) == 1
        assert staged[0].exists()
        assert len(clean(store).deleted) == 1
        assert not staged[0].exists()
        # The folder of a job that may still run does not change.
        assert (staged[1] / "_temporary" / "0" / "_temporary").exists()


def test_a_clock_that_was_set_since_the_store_was_opened_deletes_nothing(world: World, store: Store) -> None:
    clock = ManualClock(world.clock.now_ms())
    daemon = txlog.open("memory://", clock=clock, ids=SeededIds(99), object_store=world.counting)
    daemon.runtime.ensure_writable()
    slow = store.producer()
    slow.send("orders", [{"id": 0, "name": "a"}]).result()
    with world.open().producer() as producer:
        for number in range(1, 14):
            producer.send("orders", [{"id": number, "name": "a"}]).result()
    before = paths(world)
    clock.step_wall_ms(2 * DAY_MS)
    with pytest.raises(ClockSkewError, match="ahead of the store's"):
        clean(daemon)
    assert paths(world) == before
    # The producer's view is young, and its next slot is taken. If that were deleted, the row would be acknowledged and
    # lost.
    slow.send("orders", [{"id": 14, "name": "a"}]).result()
    slow.close()
    assert world.read() == list(range(15))
    daemon.runtime.close()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_vacuum_whose_clock_is_ahead_by_more_than_the_grace_deletes_nothing_young(
    world: World, dry_run: bool
) -> None:
    """Otherwise the writer, whose view is young, would create a deleted slot again and acknowledge a row that no reader
    sees."""
    opened = world.open(**{"delete.grace.ms": 10_000})
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 2})
    with opened.producer() as writer, opened.producer() as others:
        writer.send("orders", [{"id": 0, "name": "n"}], partition=0).result()
        for number in range(1, 7):
            others.send("orders", [{"id": number, "name": "n"}], partition=0).result()
        world.clock.advance_ms(500)
        ahead = ManualClock(world.clock.now_ms() + MAX_CLOCK_SKEW_MS)
        vacuuming = txlog.open("memory://", object_store=world.memory, clock=ahead, ids=SeededIds(77))
        assert clean(vacuuming, dry_run=dry_run).deleted == ()
        assert writer.send("orders", [{"id": 7, "name": "n"}], partition=0).result().base_offset == 7
        assert world.read() == list(range(8))
        # ... and vacuum deletes what is old by the store's clock, whatever the machine's clock shows.
        world.clock.advance_ms(10_000)
        behind = ManualClock(world.clock.now_ms() - MAX_CLOCK_SKEW_MS)
        vacuuming = txlog.open("memory://", object_store=world.memory, clock=behind, ids=SeededIds(78))
        assert clean(vacuuming, dry_run=dry_run).deleted
        vacuuming.close()
