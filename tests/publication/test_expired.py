"""Vacuum deletes objects of Delta tables that no kept version needs (C14): old versions, checkpoints and deletion
vectors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders
from tests.publication.lives import publish
from tests.publication.test_cuts import HOUR_MS, merge, rows_of, tables_of
from tests.publication.wild_lives import Spelled
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.row_runs import count_rows
from txlog.errors import TableConflictError
from txlog.maintenance.erase_check import find_remains
from txlog.maintenance.vacuum import VacuumReport, vacuum
from txlog.protocol import publications
from txlog.publication import delta, expired, publish as publishing
from txlog.publication.delta import vector_objects
from txlog.publication.iceberg_files import read_avro
from txlog.storage.parquet_file import OpenedFile
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0", "publish.retention.ms": str(HOUR_MS)}
LOG = "orders/_delta_log/"
WHOLE_EVERY = 6
CHECKPOINT_EVERY = 4
NAMED = "deletion_vector_"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(publications, "WHOLE_EVERY", WHOLE_EVERY)
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", CHECKPOINT_EVERY)
    made = World()
    yield made
    made.close()


def sweep(world: World, hours: int = 0) -> VacuumReport:
    world.clock.advance_ms(hours * HOUR_MS)
    other = world.open()
    report = vacuum(other.runtime, reading.read_session(other.runtime), ["orders"], dry_run=False)
    assert report.failed == ()
    return report


def publish_rows(world: World, first: int, end: int) -> None:
    store = world.open()
    with store.producer() as producer:
        for number in range(first, end):
            producer.send("orders", orders(number)).result()
            world.clock.advance_ms(10)
            publish(world.open())


def versions(world: World) -> tuple[list[int], list[int]]:
    """Return the versions of the Delta log, and its checkpoints."""
    names = world.memory.list(LOG)
    return (
        [int(name[:20]) for name in names if name.endswith(".json")],
        [int(name[:20]) for name in names if name.endswith(".checkpoint.parquet")],
    )


def files_at(world: World, wanted: int) -> set[str]:
    """Return the files of a version as a reader of Delta finds them: from the newest checkpoint that is not above
    it."""
    listed, checkpoints = versions(world)
    found: set[str] = set()
    start = max((each for each in checkpoints if each <= wanted), default=-1)
    if start >= 0:
        path = f"{LOG}{start:020d}.checkpoint.parquet"
        data = world.memory.get(path)
        assert data is not None
        rows = OpenedFile(world.memory, path, len(data), None).parquet.read(columns=["add"]).to_pylist()
        found = {row["add"]["path"] for row in rows if row["add"] is not None}
    assert set(range(start + 1, wanted + 1)) <= set(listed), f"version {wanted} cannot be read"
    for version in range(start + 1, wanted + 1):
        for line in (world.memory.get(f"{LOG}{version:020d}.json") or b"").splitlines():
            action = json.loads(line)
            if "remove" in action:
                found.discard(action["remove"]["path"])
            if "add" in action:
                found.add(action["add"]["path"])
    return found


def check_kept(world: World) -> None:
    """Check that a reader of Delta can read each version whose publication exists."""
    numbers = [int(name[:20]) for name in world.memory.list("orders/publication/") if name.endswith(".json")]
    for tables in world.open().runtime.run(publications.read_publications("orders", min(numbers), max(numbers))).tables:
        if world.memory.get(tables.path_of("delta")) is not None:
            assert files_at(world, tables.version_of("delta")) == set(tables.files)


def test_old_versions_of_the_log_are_deleted(world: World) -> None:
    world.open().create_topic("orders", ORDERS, config=CONFIG)
    publish_rows(world, 0, 3 * WHOLE_EVERY + 1)
    check_kept(world)
    before = versions(world)
    # Each fourth one, and those of whole publications, which are each sixth.
    assert before == ([*range(20)], [4, 6, 8, 12, 16, 18])
    # The publications are deleted first. So a vacuum that dies leaves versions, and no publication without them.
    assert sweep(world).deleted == ()
    sweep(world, 30)
    assert versions(world) == before
    sweep(world)
    assert versions(world) == ([18, 19], [18])
    check_kept(world)
    publish_rows(world, 100, 103)
    assert len(rows_of(world, tables_of(world)[-1])) == 22
    check_kept(world)
    # The next ones wait for the retention of the publications, and the checkpoint for the grace.
    sweep(world)
    assert versions(world)[0][0] == 18


def test_a_young_checkpoint_and_one_that_no_reader_is_told_of_replace_nothing(world: World) -> None:
    world.open().create_topic("orders", ORDERS, config=CONFIG)
    publish_rows(world, 0, 3 * WHOLE_EVERY + 1)
    sweep(world, 30)
    checkpoints = {f"{LOG}{each:020d}.checkpoint.parquet": each for each in versions(world)[1]}
    for path in [path for path, each in checkpoints.items() if each == 16]:
        # Another process completed it a moment ago.
        data = world.memory.get(path)
        assert data is not None
        world.memory.delete(path)
        world.memory.put_if_absent(path, data)
    overwrite(world.memory, f"{LOG}_last_checkpoint", b'{"version":8}')
    world.memory.put_if_absent(f"{LOG}00000000000000000000.json.tmp", b"not txlog's")
    sweep(world)
    assert versions(world) == ([*range(8, 20)], [8, 12, 16, 18])
    overwrite(world.memory, f"{LOG}_last_checkpoint", b'{"version":16}')
    sweep(world)
    assert versions(world) == ([*range(12, 20)], [12, 16, 18])
    overwrite(world.memory, f"{LOG}_last_checkpoint", b"{")
    sweep(world, 30)
    assert versions(world) == ([*range(12, 20)], [12, 16, 18])
    assert world.memory.get(f"{LOG}00000000000000000000.json.tmp") is not None
    check_kept(world)


def test_a_table_without_version_0_is_not_continued(world: World) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    publish_rows(world, 0, 3 * WHOLE_EVERY + 1)
    for _ in range(3):
        sweep(world, 30)
    assert versions(world)[0][0] > 0
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(world.open())
    store.alter_topic("orders", config=CONFIG)
    with pytest.raises(TableConflictError, match=r"^orders/_delta_log/\d+\.json: .* a table lies there already"):
        publish(world.open())


def _with_vectors(world: World) -> list[str]:
    """Publish three versions of a file with many removed rows, and return the vectors of the newest one."""
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "segment.batches": "1"})
    ids = [number * 7919 % 8000 for number in range(8000)]
    with store.producer() as producer:
        rows = pa.table({"id": ids, "name": ["x"] * 8000}, ORDERS)
        producer.send("orders", rows).result()
        producer.send("orders", orders(90_000)).result()
        producer.send("orders", orders(90_001)).result()
    merge(world, MergePolicy(target_bytes=2**30), FileLayout(sort=("id",)))
    for start in (0, 2000, 4000):
        if start:
            store.admin().delete_records("orders", 0, start)
        world.clock.advance_ms(10)
        publish(world.open())
    assert [sum(count_rows(file.removed) for file in each.files.values()) for each in tables_of(world)[-2:]] == [
        2000,
        4000,
    ]
    return [path.removeprefix("publication/") for path in vector_objects(tables_of(world)[-1:])]


def vectors(world: World) -> list[str]:
    return [name for name in world.memory.list("orders/publication/") if name.startswith(NAMED)]


def test_deletion_vectors_of_ended_versions_are_deleted(world: World) -> None:
    (newest,) = _with_vectors(world)
    assert len(vectors(world)) == 2
    stranger = f"{NAMED}of-another-program.bin"
    world.memory.put_if_absent(f"orders/publication/{stranger}", b"")
    sweep(world, 2)
    assert len(vectors(world)) == 3, "they are younger than the grace"
    sweep(world, 30)
    assert sorted(vectors(world)) == sorted([newest, stranger])
    assert len(rows_of(world, tables_of(world)[-1])) == 4002
    # A topic that is not published any more may be published again, with the same files and the same vectors.
    world.open().alter_topic("orders", remove_config=["publish.formats"])
    for _ in range(3):
        sweep(world, 30)
    assert newest in vectors(world)


@pytest.mark.parametrize("broken", ["vector_objects", "_aged"])
def test_each_condition_of_a_vector_is_needed(broken: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, vacuum deletes a vector that a version needs, or one that was written a moment ago."""
    (newest,) = _with_vectors(world)

    def all_are(ctx: Any, kept: Any, folder: str, some: Any) -> Any:
        yield from ()
        return list(some)

    made: dict[str, Any] = {"vector_objects": lambda _: set(), "_aged": all_are}
    monkeypatch.setattr(expired, broken, made[broken])
    sweep(world, 30 if broken == "vector_objects" else 2)
    left = vectors(world)
    assert newest not in left if broken == "vector_objects" else left == [newest]


def test_a_publisher_that_slept_through_the_deletions_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open().create_topic("orders", ORDERS, config=CONFIG)
    publish_rows(world, 0, WHOLE_EVERY + 1)
    roll_forward = publishing._Attempt.roll_forward

    def late(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(publishing._Attempt, "roll_forward", roll_forward)
        publish_rows(world, WHOLE_EVERY + 1, 4 * WHOLE_EVERY)
        for _ in range(3):
            sweep(world, 48)
        assert versions(world)[0][0] > WHOLE_EVERY + 2
        roll_forward(*args, **more)

    monkeypatch.setattr(publishing._Attempt, "roll_forward", late)
    assert publish(world.open()).publications == 0
    check_kept(world)


def named(world: World, version: str) -> set[str]:
    """Return the metadata objects that a version of the Iceberg table needs, as a reader finds them."""
    folder = "orders/metadata/"
    data = json.loads(world.memory.get(folder + version) or b"")
    (snapshot,) = (each for each in data["snapshots"] if each["snapshot-id"] == data["current-snapshot-id"])
    found = {version}
    names = [snapshot["manifest-list"].rpartition("/")[2]]
    while names:
        name = names.pop()
        found.add(name)
        stored = world.memory.get(folder + name)
        assert stored is not None, f"{version} needs {name}"
        if name.endswith(".avro"):
            text = repr(read_avro(stored, name))
            names += re.findall(r"/metadata/([md]\d+-[-0-9a-f]*(?:deletes)?\.(?:avro|parquet))", text)
    return found


@pytest.mark.parametrize("latest", [False, True])
def test_metadata_of_iceberg_that_no_kept_version_names_are_deleted(world: World, latest: bool) -> None:
    config = {**CONFIG, "publish.formats": "iceberg", "segment.batches": "2", "inline.max.bytes": "0"}
    if latest:
        config |= {"key.columns": "name", "publish.rows": "latest"}
    store = world.open()
    store.create_topic("orders", ORDERS, config=config)
    with store.producer() as producer:
        for number in range(3 * WHOLE_EVERY):
            producer.send("orders", orders(*range(10 * number, 10 * number + 10))).result()
            if number % 5 == 4:
                merge(world, MergePolicy(max_inputs=2))
            if number == 11:
                store.admin().delete_records("orders", 0, 35)
            world.clock.advance_ms(10)
            publish(world.open())
    folder = "orders/metadata/"
    hint = "version-hint.text"
    before = set(world.memory.list(folder))
    world.memory.put_if_absent(f"{folder}of-another-program.avro", b"")
    sweep(world, 2)
    assert set(world.memory.list(folder)) > before, "they are younger than the grace"
    sweep(world, 30)
    left = set(world.memory.list(folder)) - {hint, "of-another-program.avro"}
    versions = [name for name in left if name.endswith(".metadata.json")]
    assert len(left) < len(before) / 2
    assert left == set().union(*(named(world, name) for name in versions))
    assert len(rows_of(world, tables_of(world)[-1])) > 0
    # The next publisher builds on what is left.
    with store.producer() as producer:
        producer.send("orders", orders(1000)).result()
    world.clock.advance_ms(10)
    publish(world.open())
    assert named(world, f"v{tables_of(world)[-1].version_of('iceberg') + 1}.metadata.json")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_metadata_that_a_publisher_left_when_it_died_replace_nothing(world: World, moment: str) -> None:
    """It saw the store at another place, so it wrote all manifests again, and no version names these; or it did not
    write the hint."""
    config = {**CONFIG, "publish.formats": "iceberg", "segment.batches": "1", "inline.max.bytes": "0"}
    world.open().create_topic("orders", ORDERS, config=config)

    def opened(place: str, inner: Any = None) -> Store:
        return world.open(cast(Any, Spelled(inner or world.counting, f"memory:///mnt/{place}")))

    def put(number: int) -> None:
        with world.open().producer() as producer:
            producer.send("orders", orders(number)).result()
        world.clock.advance_ms(10)

    for number in range(2):
        put(number)
        publish(opened("a"))
    put(2)
    fault = Fault(action="crash", moment=cast(Any, moment), match="put_if_absent orders/metadata/v4")
    with pytest.raises(SimulatedCrash):
        publish(opened("b", FailingStore(world.memory, fault)))
    if moment == "before":
        for number in range(3, 6):
            put(number)
            publish(opened("a"))
    for _ in range(3):
        sweep(world, 30)
        hint = int(world.memory.get("orders/metadata/version-hint.text") or b"")
        there = set(world.memory.list("orders/metadata/"))
        assert named(world, f"v{hint}.metadata.json") <= there
        if moment == "before":
            assert f"v{hint - 1}.metadata.json" not in there


def test_versions_whose_metadata_are_deleted_keep_no_file(world: World) -> None:
    """Iceberg's old metadata are deleted before Delta's old versions (C14)."""
    store = world.open()
    config = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0", "publish.retention.ms": str(HOUR_MS)}
    store.create_topic("orders", ORDERS, config={**config, "segment.batches": "1"})
    session = reading.read_session(store.runtime)
    for number in range(8):
        with store.producer() as producer:
            producer.send("orders", orders(number)).result()
        publish(world.open())
        world.clock.advance_ms(1000)
    for _ in range(3):
        vacuum(store.runtime, session, ["orders"], dry_run=False, now=True)
        world.clock.advance_ms(1000)
    for each in (6, 7):
        store.admin().erase("orders", where=f"id = {each}")
        publish(world.open())
        world.clock.advance_ms(1000)
    for _ in range(5):
        world.clock.advance_ms(1000)
        assert not vacuum(store.runtime, session, ["orders"], dry_run=False, now=True).failed
        publish(world.open())
    assert "v1.metadata.json" not in world.memory.list("orders/metadata/")
    assert find_remains(session, "orders", "id IN (6, 7)") == ()
