"""The table in a catalog follows the publications of its topic, also after a crash, a race, a drop and an outage.

PROTOCOL.md, W60 and C17.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, ForbiddenError, ServiceUnavailableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders
from tests.maintenance.crashes import Place, prepared, strike_everywhere
from tests.maintenance.damage import objects_of
from tests.maintenance.test_crashes import history, merge
from tests.publication.lives import publish
from tests.publication.memory_catalog import NAME, Crashes, MemoryCatalog
from tests.publication.table_readers import Tables
from txlog.client import reading
from txlog.client.session.session import Session
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import CatalogError, InvalidRequestError, TableConflictError, TxlogError
from txlog.maintenance.erase import erase
from txlog.maintenance.erase_check import find_remains
from txlog.maintenance.fsck import check_store
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import read_chain
from txlog.publication import catalog_table
from txlog.publication.cache import PublicationCache
from txlog.publication.catalog import Way, follow, place_of
from txlog.publication.publish import publish_topic
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock
from txlog.testing.failing_store import FailingStore, SimulatedCrash

CONFIG = {"publish.formats": "iceberg", "publish.max.lag.ms": "0", "publish.catalog": "test"}
FILES = {"inline.max.bytes": "0"}
A = TopicPartition("orders", 0)
DAY_MS = 24 * 3_600_000


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    # pyiceberg notes the real time in the metadata, and times of a table do not decrease.
    made.clock.advance_ms(20 * 365 * DAY_MS)
    yield made
    made.close()


@pytest.fixture
def catalog(world: World, monkeypatch: pytest.MonkeyPatch) -> MemoryCatalog:
    made = MemoryCatalog(world.memory)
    monkeypatch.setattr(catalog_table, "open_catalog", lambda name: made)
    return made


def made(world: World, **config: str) -> Store:
    store = world.open()
    own = {name.replace("_", "."): text for name, text in config.items()}
    store.create_topic("orders", ORDERS, partitions=1, config=CONFIG | FILES | own)
    return store


def send(store: Store, *ids: int) -> None:
    with store.producer() as producer:
        producer.send("orders", orders(*ids)).result()


def away(request: str) -> None:
    raise ServiceUnavailableError("no route")


def session_of(world: World) -> Session:
    return reading.read_session(world.open().runtime)


def tidy(world: World, *, now: bool = False) -> None:
    session = session_of(world)
    report = vacuum(session.runtime, session, None if now else ["orders"], dry_run=False, now=now)
    assert not report.failed


def ids(catalog: MemoryCatalog, **how: bool) -> list[int]:
    return sorted(row["id"] for row in catalog.rows(**how))


def folders(world: World) -> list[str]:
    return list(world.memory.list("orders/catalog/"))


def test_the_table_follows_each_publication(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    for number in range(5):
        send(store, number)
        world.clock.advance_ms(1000)
        publish(world.open())
        assert ids(catalog) == list(range(number + 1))
    table = catalog.real.load_table(NAME)
    chain = store.runtime.run(read_chain("orders")).tables
    numbers = [int(each.summary["txlog.publication"] or -1) for each in table.snapshots() if each.summary]
    assert numbers == [each.number for each in chain[-len(numbers) :]]
    assert [each.summary.operation.value for each in table.snapshots() if each.summary] == ["append"] * len(numbers)
    assert [each.sequence_number for each in table.snapshots()] == list(range(1, len(numbers) + 1))


def test_a_publication_without_news_costs_one_request(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    asked: list[str] = []
    catalog.strike = asked.append
    publish(store)
    assert asked == ["before load_table", "after load_table"]


@pytest.mark.parametrize("files", ["copy", "log"])
def test_a_merge_replaces_files_in_the_table(world: World, catalog: MemoryCatalog, files: str) -> None:
    store = made(world, publish_files=files, segment_batches="2")
    for number in range(4):
        send(store, number)
        publish(store)
    merge(store)
    publish(store)
    assert ids(catalog, anywhere=files == "log") == [0, 1, 2, 3]
    last = catalog.real.load_table(NAME).current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert last.summary.operation.value == "replace"
    assert bool(_copies(world)) is (files == "copy")


def test_newest_rows_leave_out_older_ones(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_rows="latest", key_columns="id")
    for name in ("old", "new"):
        with store.producer() as producer:
            producer.send("orders", [{"id": number, "name": name + str(number)} for number in range(3)]).result()
        send(store, 7)
        publish(store)
    assert sorted((row["id"], row["name"]) for row in catalog.rows())[:3] == [(n, f"new{n}") for n in range(3)]
    assert ids(catalog) == [0, 1, 2, 7]


def test_columns_follow_and_the_catalog_numbers_them(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    for number, name in enumerate(["second", "third"]):
        # Changes of settings count as versions of the topic, too, so its numbers and the catalog's differ.
        store.alter_topic("orders", config={"publish.retention.ms": DAY_MS + number})
        store.alter_topic("orders", add_columns=pa.schema([(name, pa.int64())]))
        with store.producer() as producer:
            producer.send("orders", [{"id": 2 + number, "name": "x", name: number}]).result()
        publish(store)
    table = catalog.real.load_table(NAME)
    assert [each.schema_id for each in table.metadata.schemas] == [0, 1, 2]
    assert {each["id"]: each["third"] for each in catalog.rows()} == {1: None, 2: None, 3: 1}


def test_engines_may_purge_the_table_and_the_next_publication_makes_it_again(
    world: World, catalog: MemoryCatalog
) -> None:
    store = made(world)
    send(store, 1, 2)
    publish(store)
    before = world.read()
    catalog.real.purge_table(NAME)
    assert not any(_copies(world))
    assert world.read() == before
    send(store, 3)
    publish(store)
    assert world.read() == ids(catalog) == [1, 2, 3]
    assert check_store(world.memory, clock=world.clock, threads=0).is_clean


def test_a_dropped_table_is_registered_again_in_a_new_folder(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    first = folders(world)
    catalog.real.drop_table(NAME)
    publish(store)
    assert ids(catalog) == [1]
    assert len(folders(world)) == len(first) + 1
    world.clock.advance_ms(8 * DAY_MS)
    publish(store)
    tidy(world)
    (left,) = folders(world)
    assert left not in first
    assert ids(catalog) == [1]


def test_another_program_cannot_write(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    table = catalog.real.load_table(NAME)
    with pytest.raises(PermissionError, match="only txlog writes"):
        table.transaction().set_properties({"a": "b"}).commit_transaction()


def test_a_commit_of_another_program_is_refused_and_dropping_mends_it(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    table = catalog.real.load_table(NAME)
    foreign = table.current_snapshot().model_copy(  # type: ignore[union-attr]
        update={"snapshot_id": 7, "sequence_number": 2, "parent_snapshot_id": table.metadata.current_snapshot_id}
    )
    with catalog_table._writing(), table.transaction() as transaction:
        transaction._apply(
            (
                AddSnapshotUpdate(snapshot=foreign),
                SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": 7}),
            )
        )
    send(store, 2)
    with pytest.raises(TableConflictError, match=r"table txlog\.orders in the catalog 'test' cannot follow"):
        publish(store)
    assert world.read() == [1, 2]
    catalog.real.drop_table(NAME)
    publish(store)
    assert ids(catalog) == [1, 2]


def test_a_name_that_another_table_has_is_refused(world: World, catalog: MemoryCatalog) -> None:
    catalog.real.create_namespace(NAME[:-1])
    store = made(world)
    catalog.real.create_table(NAME, Schema(), location="memory:/orders/elsewhere")
    send(store, 1)
    with pytest.raises(TableConflictError, match=r"not that of this topic.* hint: if it belongs"):
        publish(store)
    assert catalog.real.load_table(NAME).location() == "memory:/orders/elsewhere"


def test_a_catalog_that_is_away_is_reported_and_caught_up(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 0)
    publish(store)

    catalog.strike = away
    for number in range(1, 30):
        send(store, number)
        with pytest.raises(CatalogError, match="ServiceUnavailableError: no route"):
            publish(world.open())
        assert world.read() == list(range(number + 1))
    catalog.strike = lambda request: None
    asked: list[str] = []
    catalog.strike = asked.append
    publish(world.open())
    assert ids(catalog) == list(range(30))
    assert asked.count("after commit_table") == 1
    last = catalog.real.load_table(NAME).current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert int(last.summary["added-data-files"] or 0) == 29


def test_a_table_that_is_behind_publications_which_are_gone_takes_all_files(
    world: World, catalog: MemoryCatalog
) -> None:
    store = made(world, publish_retention_ms="0")
    send(store, 0)
    publish(store)
    held = catalog.real.load_table(NAME).metadata_location

    catalog.strike = away
    for number in range(1, 120):
        send(store, number)
        with suppress(CatalogError):
            publish(store)
        world.clock.advance_ms(DAY_MS)
    tidy(world)
    assert world.memory.get(f"orders/publication/{0:020d}.json") is None
    assert ids(catalog) == [0]
    assert catalog.real.load_table(NAME).metadata_location == held
    catalog.strike = lambda request: None
    publish(store)
    assert ids(catalog) == list(range(120))
    last = catalog.real.load_table(NAME).current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert last.summary.operation.value == "overwrite"  # no reader that follows the table goes over it silently


def publish_beside(world: World, catalog: MemoryCatalog, at: str) -> None:
    """Publish, while another process publishes between two requests of this one."""
    raced: list[str] = []

    def race(request: str) -> None:
        if request == at and not raced:
            raced.append(request)
            publish(world.open())

    catalog.strike = race
    publish(world.open())
    assert raced


def test_two_publishers_at_once_and_the_slower_repeats(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    send(store, 2)
    publish_beside(world, catalog, "before commit_table")
    assert ids(catalog) == [1, 2]
    assert len(catalog.real.load_table(NAME).snapshots()) == 2


def test_two_publishers_register_at_once(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish_beside(world, catalog, "before register_table")
    assert ids(catalog) == [1]
    assert len(folders(world)) == 2  # vacuum deletes the other one


def test_a_lost_answer_of_the_catalog_changes_nothing(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    send(store, 2)
    lost: list[str] = []

    def lose(request: str) -> None:
        if request == "after commit_table" and not lost:
            lost.append(request)
            raise CommitFailedException("no answer")

    catalog.strike = lose
    publish(store)
    assert lost
    assert ids(catalog) == [1, 2]
    assert len(catalog.real.load_table(NAME).snapshots()) == 2


def test_a_publisher_that_slept_for_the_grace_commits_nothing(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    before = catalog.path
    send(store, 2)
    original = catalog_table.schema_in

    def slow(*args: Any) -> Any:
        world.clock.advance_ms(store.runtime.constants.delete_grace_ms)
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog_table, "schema_in", slow)
        with pytest.raises(CatalogError, match=r"more than half of delete\.grace\.ms"):
            publish(store)
    assert catalog.path == before
    publish(store)
    assert ids(catalog) == [1, 2]


def test_a_catalog_ahead_of_a_restored_store_is_refused(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    chain = store.runtime.run(read_chain("orders")).tables
    send(store, 2)
    publish(store)
    for number in range(chain[-1].number + 1, 10):
        world.memory.delete(f"orders/publication/{number:020d}.json")
        world.memory.delete(f"orders/metadata/v{number + 1}.metadata.json")
    world.memory.delete("orders/metadata/version-hint.text")
    with pytest.raises(TableConflictError, match="and the store has none so new"):
        catalog_step(world.open())


def catalog_step(store: Store) -> None:
    """Follow with the newest publication, as a publisher does after it has made none."""
    topic = store.runtime.topic("orders", 0)
    place = place_of(store.runtime, topic)
    assert place is not None
    known = {each.number: each for each in store.runtime.run(read_chain("orders")).tables}
    follow(
        store.runtime, topic, place, known, {}, Way(columns=lambda tables: (topic, [topic.schema]), again=lambda: None)
    )


def test_a_deleted_topic_shows_no_row(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.delete_topic("orders")
    assert catalog.rows() == []


@pytest.mark.parametrize(
    ("config", "message"),
    [({"publish_formats": "delta"}, "is not published as iceberg")],
)
def test_bad_settings_are_named(world: World, catalog: MemoryCatalog, config: dict[str, str], message: str) -> None:
    store = made(world, **config)
    send(store, 1)
    with pytest.raises(InvalidRequestError, match=message):
        publish(store)
    assert not world.memory.list("orders/publication/")


def test_vacuum_keeps_what_the_catalog_shows_and_nothing_else(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, segment_batches="2", publish_retention_ms=str(DAY_MS))
    for number in range(30):
        send(store, number)
        if number % 7 == 6:
            merge(store)
        publish(store)
        world.clock.advance_ms(DAY_MS // 4)
        tidy(world)
        assert ids(catalog) == list(range(number + 1))
    assert len(_copies(world)) < 25
    (folder,) = folders(world)
    metadata = world.memory.list(f"orders/catalog/{folder}metadata/")
    assert len([name for name in metadata if name.endswith(".json")]) <= 12
    assert len([name for name in metadata if name.startswith("snap-")]) <= 10
    assert check_store(world.memory, clock=world.clock, threads=0).is_clean


def test_vacuum_without_an_answer_deletes_nothing_of_the_table(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_retention_ms="0")
    for number in range(3):
        send(store, number)
        publish(store)
    before = _copies(world)

    catalog.strike = away
    merge(store)
    world.clock.advance_ms(30 * DAY_MS)
    with suppress(CatalogError):
        publish(store)
    tidy(world)
    assert before <= _copies(world)
    assert ids(catalog) == [0, 1, 2]


def test_vacuum_leaves_objects_of_others(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    (folder,) = folders(world)
    strange = [
        f"orders/catalog/{folder}data/mine.parquet",
        f"orders/catalog/{folder}metadata/mine.avro",
        "orders/catalog/other/data/0~00000000000000000000-00000000000000000004-0-0123456789abcdef.parquet",
    ]
    for path in strange:
        overwrite(world.memory, path, b"x")
    catalog.real.drop_table(NAME)
    publish(store)
    world.clock.advance_ms(30 * DAY_MS)
    tidy(world)
    left = {path for path in strange if world.memory.get(path) is not None}
    assert left == set(strange)
    assert not any(name.startswith("0~") for name in world.memory.list(f"orders/catalog/{folder}data/"))


def test_erased_rows_leave_the_copies(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1, 2)
    publish(store)
    session = session_of(world)
    copies = [each for each in find_remains(session, "orders", "id = 2") if "/catalog/" in each.path]
    assert any(each.is_current and each.rows for each in copies)
    assert not [
        each for _, each in erase(session_of(world), "orders", "id = 2", wait_ms=0) if isinstance(each, TxlogError)
    ]
    for _ in range(5):
        # These are the commands of docs/delete-rows.md if no other process uses the store.
        world.clock.advance_ms(1000)
        publish(world.open())
        tidy(world, now=True)
    assert find_remains(session_of(world), "orders", "id = 2") == ()
    assert ids(catalog) == [1]


# -- faults -----------------------------------------------------------------------------------------------------------


def first(store: Store) -> None:
    history(store, CONFIG)


def later(store: Store) -> None:
    history(store, CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        catalog = MemoryCatalog(_memory(store))
        patch.setattr(catalog_table, "open_catalog", lambda name: catalog)
        publish(store)
    merge(store)
    with store.producer("z", staged=False) as eager, eager.transaction():
        eager.send("orders", [{"id": 900, "name": "new"}])


def ticking(store: Store) -> Store:
    """Let a moment pass, so that rows in commit records are old enough to get a file."""
    assert isinstance(store.runtime.clock, ManualClock)
    store.runtime.clock.advance_ms(10)
    return store


def read_ids(store: Store) -> list[int]:
    rows = store.snapshot("orders").table("orders").to_arrow().to_pylist()
    return sorted(row["id"] for row in rows)


def _memory(store: Store) -> MemoryObjectStore:
    found: Any = store.runtime.store
    while not isinstance(found, MemoryObjectStore):
        found = found.inner
    return found


@pytest.mark.parametrize("prepare", [first, pytest.param(later, marks=pytest.mark.exhaustive)])
def test_a_publisher_may_die_at_every_request_to_the_store(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Store], None]
) -> None:
    objects, now_ms = prepared(prepare)
    catalogs: dict[int, tuple[MemoryObjectStore, MemoryCatalog]] = {}
    current: list[MemoryCatalog] = []
    monkeypatch.setattr(catalog_table, "open_catalog", lambda name: current[0])

    def verb(store: Store) -> None:
        memory = _memory(store)
        if id(memory) not in catalogs:
            catalogs[id(memory)] = (memory, MemoryCatalog(memory, objects))
        current[:] = [catalogs[id(memory)][1]]
        ticking(store)
        publish(store)
        # A sealing that failed is left to the next publisher.
        assert ids(current[0]) == read_ids(store) or isinstance(store.runtime.store, FailingStore)

    tally = strike_everywhere(objects, now_ms, verb, work_on=A, pass_ms=1000)
    assert tally.strikes > 20


@pytest.mark.parametrize("prepare", [first, later])
def test_a_publisher_may_die_at_every_request_to_the_catalog(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Store], None]
) -> None:
    objects, now_ms = prepared(prepare)
    for at in range(1, 100):
        with closing(Place(objects, now_ms)) as place:
            catalog = MemoryCatalog(place.memory, objects)
            monkeypatch.setattr(catalog_table, "open_catalog", lambda name, own=catalog: own)
            crash = Crashes(at)
            catalog.strike = crash
            with suppress(SimulatedCrash, TxlogError):
                publish(ticking(place.open()))
            catalog.strike = lambda request: None
            store = ticking(place.open())
            publish(store)
            assert ids(catalog) == read_ids(store)
            if not crash.struck:
                assert at > 4
                return
    raise AssertionError("the publisher never ended")


def _copies(world: World) -> set[str]:
    return {
        f"{folder}{name}" for folder in folders(world) for name in world.memory.list(f"orders/catalog/{folder}data/")
    }


# -- what an attacker found -------------------------------------------------------------------------------------------


def test_files_that_were_merged_and_vacuumed_while_the_catalog_was_away(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, segment_batches="2", publish_retention_ms=str(DAY_MS))
    for number in range(9):
        catalog.strike = away if number > 2 else lambda request: None
        send(store, number)
        with suppress(CatalogError):
            publish(store)
    merge(store)
    for _ in range(5):
        world.clock.advance_ms(3 * DAY_MS)
        with suppress(CatalogError):
            publish(world.open())
        tidy(world)
    catalog.strike = lambda request: None
    publish(store)
    assert ids(catalog) == list(range(9))


@pytest.mark.parametrize("behind", [19, 20, 21, 59])
def test_steps_around_their_bound(world: World, catalog: MemoryCatalog, behind: int) -> None:
    store = made(world)
    send(store, 0)
    publish(store)
    catalog.strike = away
    for number in range(1, behind + 1):
        send(store, number)
        with suppress(CatalogError):
            publish(world.open())
    asked: list[str] = []
    catalog.strike = asked.append
    publish(world.open())
    assert ids(catalog) == list(range(behind + 1))
    assert asked.count("after commit_table") == (behind if behind <= 20 else 1)


def test_no_version_is_left_that_names_files_of_the_log(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_files="log")
    for number in range(3):
        send(store, number)
        publish(store)
    store.alter_topic("orders", config={"publish.files": "copy"})
    send(store, 3)
    publish(store)
    assert len(catalog.real.load_table(NAME).snapshots()) == 1
    catalog.real.purge_table(NAME)
    assert world.read() == [0, 1, 2, 3]


def test_a_publication_that_ends_and_begins_again_goes_on_with_the_table(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(store)
    for _ in range(4):
        world.clock.advance_ms(10 * DAY_MS)
        tidy(world)
    assert ids(catalog) == [1]
    for path in ("metadata/", "_delta_log/"):
        assert not world.memory.list(f"orders/{path}")
    store.alter_topic("orders", config={"publish.formats": "iceberg"})
    send(store, 2)
    publish(store)
    assert ids(catalog) == [1, 2]
    # Without a publication, a dropped table leaves nothing.
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(store)
    catalog.real.drop_table(NAME)
    for _ in range(4):
        world.clock.advance_ms(10 * DAY_MS)
        tidy(world)
    assert not any(world.memory.list(f"orders/catalog/{folder}data/") for folder in folders(world))


def test_the_table_of_a_deleted_topic_stays_empty_and_goes_on_with_the_next_topic(
    world: World, catalog: MemoryCatalog
) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.delete_topic("orders")
    deleted = store.runtime.list_topics([], deleted=True)[0]
    for _ in range(4):
        world.clock.advance_ms(10 * DAY_MS)
        tidy(world)
        publish_topic(session_of(world), deleted)
        assert catalog.rows() == []
    assert not _copies(world)
    made(world)
    send(store, 5)
    publish(store)
    assert ids(catalog) == [5]


def test_a_dropped_table_of_a_deleted_topic_is_not_registered(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.delete_topic("orders")
    catalog.real.drop_table(NAME)
    publish_topic(session_of(world), store.runtime.list_topics([], deleted=True)[0])
    assert not catalog.real.table_exists(NAME)


def test_a_refused_registration_does_not_copy_the_topic_again_and_again(world: World, catalog: MemoryCatalog) -> None:
    store, cache = made(world), PublicationCache()
    send(store, 1)

    def refuse(request: str) -> None:
        if request == "before register_table":
            raise ForbiddenError("no permission")

    catalog.strike = refuse
    for _ in range(3):
        with pytest.raises(CatalogError, match="ForbiddenError: no permission"):
            publish_topic(session_of(world), store.runtime.topic("orders", 0), cache)
    assert len(folders(world)) == 1
    # The prepared table may be gone after the grace.
    world.clock.advance_ms(DAY_MS)
    catalog.strike = lambda request: None
    publish_topic(session_of(world), store.runtime.topic("orders", 0), cache)
    assert ids(catalog) == [1]
    assert len(folders(world)) == 2


def test_a_catalog_that_is_away_holds_up_no_rewrite(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.alter_topic("orders", rename_columns={"name": "label"})
    store.alter_topic("orders", config={"publish.formats": "delta,iceberg"})
    catalog.strike = away
    for _ in range(2):
        ((_, outcome),) = publish_topics(session_of(world), [store.runtime.topic("orders", 0)])
    assert isinstance(outcome, CatalogError)
    newest = store.runtime.run(read_chain("orders")).newest
    assert newest is not None
    assert newest.newest.formats.keys() == {"delta", "iceberg"}


def test_a_version_that_was_the_newest_until_now_keeps_its_files(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_retention_ms=str(DAY_MS))
    for number in range(3):
        send(store, number)
        publish(store)
    held = catalog.metadata
    catalog.strike = away
    for number in range(3, 40):
        send(store, number)
        with suppress(CatalogError):
            publish(store)
        world.clock.advance_ms(DAY_MS // 2)
        tidy(world)
    catalog.strike = lambda request: None
    publish(store)
    tidy(world)
    assert rows_at(catalog, held) == [0, 1, 2]


def test_a_rollback_is_brought_forward(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    for number in range(3):
        send(store, number)
        publish(store)
    roll_back(catalog)
    assert ids(catalog) == [0]
    publish(store)
    assert ids(catalog) == [0, 1, 2]
    send(store, 3)
    publish(store)
    assert ids(catalog) == [0, 1, 2, 3]


def test_a_deleted_topic_is_emptied_when_the_catalog_is_back(world: World, catalog: MemoryCatalog) -> None:
    store, cache = made(world), PublicationCache()
    send(store, 1)
    publish(store)
    catalog.strike = away
    store.delete_topic("orders")
    deleted = store.runtime.list_topics([], deleted=True)[0]
    with pytest.raises(CatalogError):
        publish_topic(session_of(world), deleted, cache)
    assert ids(catalog) == [1]
    assert deleted.topic_id not in cache.emptied
    catalog.strike = lambda request: None
    publish_topic(session_of(world), deleted, cache)
    assert catalog.rows() == []
    assert deleted.topic_id in cache.emptied


@pytest.mark.parametrize("damage", [None, b"Obj"])
def test_a_lost_or_damaged_list_is_written_again(world: World, catalog: MemoryCatalog, damage: bytes | None) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    (folder,) = folders(world)
    for name in world.memory.list(f"orders/catalog/{folder}metadata/"):
        if name.startswith("snap-"):
            path = f"orders/catalog/{folder}metadata/{name}"
            world.memory.delete(path)
            if damage is not None:
                overwrite(world.memory, path, damage)
    send(store, 2)
    publish(store)
    assert ids(catalog) == [1, 2]


def test_vacuum_with_another_catalog_of_the_name_deletes_nothing(
    world: World, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    other = MemoryCatalog(world.memory)
    monkeypatch.setattr(catalog_table, "open_catalog", lambda name: other)
    world.clock.advance_ms(30 * DAY_MS)
    tidy(world)
    assert ids(catalog) == [1]


def test_vacuum_of_a_store_that_was_put_back_leaves_what_the_catalog_shows(
    world: World, catalog: MemoryCatalog
) -> None:
    store = made(world, publish_retention_ms="0")
    send(store, 1)
    publish(store)
    before = objects_of(world.memory)
    send(store, 2)
    publish(store)
    for path in objects_of(world.memory).keys() - before.keys():
        if "/catalog/" not in path:
            world.memory.delete(path)
    send(world.open(), 3)
    with suppress(TxlogError):
        publish(world.open())
    world.clock.advance_ms(30 * DAY_MS)
    tidy(world)
    assert ids(catalog) == [1, 2]
    with pytest.raises(TableConflictError, match="is not that of the store"):
        publish(world.open())


def test_the_cost_of_a_publication_does_not_grow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/publish.md has these numbers."""

    def cost(*, followed: bool) -> list[int]:
        own = World()
        own.clock.advance_ms(20 * 365 * DAY_MS)
        made_for = MemoryCatalog(own.memory)
        monkeypatch.setattr(catalog_table, "open_catalog", lambda name: made_for)
        store = made(own)
        if not followed:
            store.alter_topic("orders", remove_config=["publish.catalog"])
        session, cache, totals = session_of(own), PublicationCache(), []
        for number in range(31):
            send(own.open(), number)
            asked: list[str] = []
            made_for.strike = asked.append
            with own.counting.counting() as spent:
                publish_topic(session, session.runtime.topic("orders", 0), cache)
            totals.append(spent.total)
        # A request is noted before and after it is made.
        assert len(asked) == (2 * 3 if followed else 0)
        own.close()
        return totals

    both = zip(cost(followed=True)[1:], cost(followed=False)[1:], strict=True)
    assert [with_catalog - without for with_catalog, without in both] == [8] * 30


@pytest.mark.parametrize("name", ["orders", "a..b", ".a", "a."])
def test_a_name_without_a_namespace_is_refused_when_it_is_set(world: World, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="does not name a namespace and a table"):
        made(world, publish_table=name)
    store = made(world)
    with pytest.raises(InvalidRequestError, match="does not name a namespace and a table"):
        store.alter_topic("orders", config={"publish.table": name})


def test_a_catalog_without_a_configuration_is_named(world: World) -> None:
    store = made(world, publish_catalog="offce")
    send(store, 1)
    with pytest.raises(InvalidRequestError, match=r"no such catalog .* hint: correct the name, .*__OFFCE__URI"):
        publish(store)
    assert world.read() == [1]


def roll_back(catalog: MemoryCatalog, at: int = 0) -> None:
    """Let an engine make an older version the newest one."""
    table = catalog.real.load_table(NAME)
    ref = {"ref-name": "main", "type": "branch", "snapshot-id": table.snapshots()[at].snapshot_id}
    with catalog_table._writing(), table.transaction() as transaction:
        transaction._apply((SetSnapshotRefUpdate.model_validate(ref),))


def test_a_rollback_and_a_switch_to_copies_leave_no_file_of_the_log(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_files="log")
    for number in range(3):
        send(store, number)
        publish(store)
    roll_back(catalog)
    store.alter_topic("orders", config={"publish.files": "copy"})
    with pytest.raises(TableConflictError, match="put it back to an older version"):
        publish(store)
    send(store, 3)
    publish(store)
    assert ids(catalog) == [0, 1, 2, 3]
    catalog.real.purge_table(NAME)
    assert world.read() == [0, 1, 2, 3]


@pytest.mark.parametrize(("before", "after"), [("log", "copy"), ("copy", "log")])
def test_a_change_of_the_files_needs_no_new_rows(world: World, catalog: MemoryCatalog, before: str, after: str) -> None:
    store = made(world, publish_files=before)
    send(store, 1)
    publish(store)
    store.alter_topic("orders", config={"publish.files": after})
    publish(store)
    publish(store)
    table = catalog.real.load_table(NAME)
    assert table.properties["txlog.files"] == after
    assert table.properties["gc.enabled"] == ("true" if after == "copy" else "false")
    (snapshot,) = table.snapshots()
    assert snapshot.summary is not None
    # A reader who begins to follow the table gets all rows.
    assert (snapshot.summary.operation.value, snapshot.summary["added-records"]) == ("append", "1")
    assert ids(catalog, anywhere=True) == [1]
    if after == "copy":
        catalog.real.purge_table(NAME)
        assert world.read() == [1]


def test_a_deleted_topic_whose_catalog_is_not_configured_fails_no_round(world: World) -> None:
    store = made(world, publish_catalog="nowhere")
    send(store, 1)
    with pytest.raises(InvalidRequestError):
        publish(store)
    store.delete_topic("orders")
    publish_topic(session_of(world), store.runtime.list_topics([], deleted=True)[0])


def test_a_rollback_over_versions_that_are_not_there_any_more(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_retention_ms=str(DAY_MS))
    for number in range(6):
        send(store, number)
        publish(store)
        world.clock.advance_ms(DAY_MS // 3)
    roll_back(catalog)
    table = catalog.real.load_table(NAME)
    gone = [each.snapshot_id for each in table.snapshots()[1:]]
    with catalog_table._writing(), table.transaction() as transaction:
        transaction._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone}),))
    with pytest.raises(TableConflictError, match="put it back to an older version"):
        publish(store)
    send(store, 6)
    publish(store)
    assert ids(catalog) == list(range(7))


@pytest.mark.parametrize("changed", [{"publish.files": "copy"}, {"publish.table": "other.orders"}])
def test_a_prepared_table_serves_only_the_settings_that_it_was_made_with(
    world: World, catalog: MemoryCatalog, changed: dict[str, str]
) -> None:
    store, cache = made(world, publish_files="log"), PublicationCache()
    send(store, 1)

    def lost(request: str) -> None:
        if request == "after register_table":
            raise ServiceUnavailableError("no answer")

    catalog.strike = lost
    with pytest.raises(CatalogError):
        publish_topic(session_of(world), store.runtime.topic("orders", 0), cache)
    catalog.strike = lambda request: None
    if "publish.files" in changed:
        catalog.real.drop_table(NAME)
    store.alter_topic("orders", config=changed)
    publish_topic(session_of(world), store.runtime.topic("orders", 0), cache)
    assert len(folders(world)) == 2
    if "publish.files" in changed:
        catalog.real.purge_table(NAME)
        assert world.read() == [1]


def test_a_namespace_that_is_there_needs_no_right_to_create_one(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    catalog.real.create_namespace(NAME[:-1])

    def refuse(request: str) -> None:
        if request == "before create_namespace":
            raise ForbiddenError("no permission")

    catalog.strike = refuse
    publish(store)
    assert ids(catalog) == [1]


def test_a_deleted_topic_whose_settings_never_fitted_is_emptied(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    store.alter_topic("orders", config={"publish.formats": "delta"})
    store.delete_topic("orders")
    deleted = store.runtime.list_topics([], deleted=True)[0]
    publish_topic(session_of(world), deleted)


def test_what_a_catalog_refused_is_vacuumed_after_the_next_publication(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_retention_ms="0")

    def refuse(request: str) -> None:
        if request == "before register_table":
            raise ForbiddenError("no permission")

    catalog.strike = refuse
    for number in range(3):
        send(store, number)
        with pytest.raises(CatalogError):
            publish(world.open())
    world.clock.advance_ms(10 * DAY_MS)
    tidy(world)
    tidy(world)
    assert len({copy.partition("/")[0] for copy in _copies(world)}) <= 1
    catalog.strike = lambda request: None
    publish(world.open())
    assert ids(catalog) == [0, 1, 2]


def test_a_publisher_whose_clock_is_ahead_does_not_keep_copies_for_ever(world: World, catalog: MemoryCatalog) -> None:
    store = made(world, publish_retention_ms=str(DAY_MS), segment_batches="2")
    for number in range(24):
        send(store, number)
        if number % 5 == 4:
            merge(store)
        world.clock.advance_ms(2 * 60_000)
        publish(store)
        world.clock.advance_ms(DAY_MS // 4 - 2 * 60_000)
        tidy(world)
    assert ids(catalog) == list(range(24))
    assert len(_copies(world)) < 20


@pytest.mark.parametrize("behind", [12, 30])
def test_a_version_that_was_the_newest_a_moment_ago_has_readers(
    world: World, catalog: MemoryCatalog, behind: int
) -> None:
    store = made(world, publish_retention_ms=str(DAY_MS))
    send(store, 0)
    publish(store)
    held = catalog.metadata
    catalog.strike = away
    for number in range(1, behind + 1):
        send(store, number)
        with suppress(CatalogError):
            publish(store)
        world.clock.advance_ms(DAY_MS // 2)
        tidy(world)
    catalog.strike = lambda request: None
    publish(store)
    tidy(world)
    assert ids(catalog) == list(range(behind + 1))
    assert rows_at(catalog, held) == [0]
    for _ in range(3):
        world.clock.advance_ms(DAY_MS)
        tidy(world)
    with pytest.raises(AssertionError, match="is missing"):
        rows_at(catalog, held)


def test_a_version_that_was_rolled_back_to_has_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    # pyiceberg notes the time of the machine for a rollback.
    world = World()
    world.clock.advance_ms(int(time.time() * 1000) - 21 * DAY_MS - world.clock.now_ms())
    catalog = MemoryCatalog(world.memory)
    monkeypatch.setattr(catalog_table, "open_catalog", lambda name: catalog)
    store = made(world, publish_retention_ms=str(DAY_MS))
    for number in range(3):
        send(store, number)
        publish(store)
    world.clock.advance_ms(21 * DAY_MS)
    roll_back(catalog)
    held, shown = catalog.metadata, ids(catalog)
    assert shown != [0, 1, 2]
    publish(store)
    tidy(world)
    assert ids(catalog) == [0, 1, 2]
    assert rows_at(catalog, held) == shown
    world.close()


def test_a_name_that_is_taken_by_something_else_copies_nothing_twice(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)

    def refuse(request: str) -> None:
        if request == "before register_table":
            raise TableAlreadyExistsError("a view")

    catalog.strike = refuse
    with pytest.raises(TableConflictError, match="gives no Iceberg table for it"):
        publish(store)
    assert len(folders(world)) == 1


def rows_at(catalog: MemoryCatalog, metadata: bytes) -> list[int]:
    """Return the rows that a reader gets who has asked the catalog before, and was given `metadata`."""
    place = catalog.real.load_table(NAME).location()
    left = {**objects_of(catalog.memory), "orders/held.json": metadata}
    reader = Tables(left, "orders", [place[: place.index("/orders/")]])
    return sorted(row["id"] for row in reader.iceberg_at("held.json"))


def test_the_name_of_a_deleted_topic_may_belong_to_another_table(world: World, catalog: MemoryCatalog) -> None:
    store = made(world)
    send(store, 1)
    publish(store)
    catalog.real.drop_table(NAME)
    catalog.real.create_table(NAME, Schema(), location="memory:/orders/elsewhere")
    store.delete_topic("orders")
    publish_topic(session_of(world), store.runtime.list_topics([], deleted=True)[0])
    for _ in range(4):
        world.clock.advance_ms(10 * DAY_MS)
        tidy(world)
    assert not _copies(world)
