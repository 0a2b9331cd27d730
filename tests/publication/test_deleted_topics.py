"""The tables of a deleted topic show no row, and their objects are deleted after `publish.retention.ms` (C16)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.client.world import ORDERS, World, orders
from tests.maintenance.crashes import STRIKES, WRITES, Place, prepared
from tests.publication.lives import publish
from tests.publication.table_readers import Tables as Readers
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.publication import Tables
from txlog.errors import InvalidRequestError, TableConflictError, TxlogError, UnknownTopicOrPartitionError
from txlog.maintenance.maintain import Maintainer
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import VacuumReport, vacuum
from txlog.protocol import topic_changes, vacuum_published
from txlog.protocol.publications import read_chain
from txlog.protocol.topics import find_topic
from txlog.publication import expired, formats, publish as publishing
from txlog.publication.cache import PublicationCache
from txlog.publication.outcome import Published
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import Names
from txlog.testing.clock import ManualClock
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

HOUR_MS = 3_600_000
RETENTION_HOURS = 48
CONFIG = {
    "publish.formats": "delta,iceberg",
    "publish.max.lag.ms": "0",
    "publish.retention.ms": str(RETENTION_HOURS * HOUR_MS),
    "segment.batches": "1",
}
TABLES = ("orders/_delta_log/", "orders/metadata/")


@pytest.fixture
def world() -> Iterator[World]:
    pytest.importorskip("pyiceberg")
    world = World()
    fill(world.open())
    yield world
    world.close()


def fill(store: Store, *ids: int) -> None:
    """Create the topic, and publish these rows of it, as a copy of a file with a row that is aborted later."""
    assert isinstance(store.runtime.clock, ManualClock)
    store.create_topic("orders", ORDERS, config={**CONFIG, "segment.batches": "9"})
    with store.producer("eager", staged=False) as producer:
        producer.begin_transaction()
        with store.producer() as plain:
            plain.send("orders", orders(*(ids or (1, 2, 3)))).result()
        producer.send("orders", orders(99))
        producer.flush()
        store.runtime.clock.advance_ms(10)
        publish(store)
        producer.abort_transaction()


def objects(memory: MemoryObjectStore) -> dict[str, bytes]:
    return {path: memory.get(path) or b"" for path in memory._objects}


def shown(memory: MemoryObjectStore) -> tuple[list[int], list[int]]:
    """Return what readers find in the newest version of each format."""
    tables = Readers(objects(memory), "orders", ["memory:"])
    version = tables.hinted()
    assert version is not None
    return sorted(row["id"] for row in tables.delta()), sorted(row["id"] for row in tables.iceberg(version))


def left(world: World) -> list[str]:
    """Return the objects of the tables, with copies of rows and deletion vectors."""
    return [
        path
        for path in objects(world.memory)
        if path.startswith(TABLES) or (path.startswith("orders/publication/") and not path.endswith(".json"))
    ]


def newest(store: Store) -> Tables:
    found = store.runtime.run(read_chain("orders")).newest
    assert found is not None
    return found


def sweep(world: World, hours: int = 0, *, dry_run: bool = False) -> VacuumReport:
    world.clock.advance_ms(hours * HOUR_MS)
    store = world.open()
    report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=dry_run)
    assert report.failed == ()
    return report


def maintain(store: Store) -> None:
    assert Maintainer(store.runtime).run().failures == 0


def delete_as_older(world: World) -> None:
    """Delete the topic as programs did that left its tables as they are, or as one that died before it emptied them."""
    ctx = world.open().runtime.context()
    deletion = topic_changes.delete_topic(ctx, "orders", append_log_start=topic_changes.ending_logs(ctx))
    world.open().runtime.run(deletion)
    assert shown(world.memory)[0] == [1, 2, 3]


# -- what readers see -------------------------------------------------------------------------------------------------


def test_readers_see_no_row_at_once(world: World) -> None:
    assert shown(world.memory) == ([1, 2, 3], [1, 2, 3])
    world.open().delete_topic("orders")
    assert shown(world.memory) == ([], [])
    found = newest(world.open())
    assert (found.newest.topic_version, found.newest.operation, len(found.files)) == (2, "replace", 0)
    # Old versions can be read until the retention has passed.
    tables = Readers(objects(world.memory), "orders", ["memory:"])
    assert (len(tables.delta(1)), len(tables.iceberg(1))) == (3, 3)
    assert tables.delta_new_rows(2) == []


def test_pyiceberg_sees_no_row(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.table import StaticTable

    def rows() -> list[Any]:
        found: list[Any] = StaticTable.from_metadata(str(tmp_path / "orders")).scan().to_arrow()["id"].to_pylist()
        return sorted(found)

    with txlog.open(tmp_path) as store:
        store.create_topic("orders", ORDERS, config=CONFIG)
        for ids in ((1, 2), (5,)):
            with store.producer(inline_max_bytes=0) as producer:
                producer.send("orders", orders(*ids)).result()
            publish(store)
            assert rows() == [*ids]
            store.delete_topic("orders")
            assert rows() == []
            store.create_topic("orders", ORDERS, config=CONFIG)


def test_a_topic_without_tables_costs_no_request_more(world: World) -> None:
    paths: list[str] = []

    class Seen(MemoryObjectStore):
        def list(self, prefix: str, start_after: str = "") -> Names:
            paths.append(prefix)
            return world.memory.list(prefix, start_after)

        def get(self, path: str) -> bytes | None:
            paths.append(path)
            return world.memory.get(path)

    seen = Seen(clock=world.clock)
    seen.put_if_absent, seen._objects = world.memory.put_if_absent, world.memory._objects  # type: ignore[method-assign]
    world.open().create_topic("plain", ORDERS)
    world.open(seen).delete_topic("plain")
    assert paths
    assert [path for path in paths if path.startswith("plain/publication/")] == []
    world.open(seen).delete_topic("orders")
    assert [path for path in paths if path.startswith("orders/publication/")] != []


@pytest.mark.parametrize(("wanted", "requests"), [("delta", 12), ("iceberg", 20), ("delta,iceberg", 28)])
def test_the_requests_of_a_deletion(wanted: str, requests: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROTOCOL.md, "Request budget"."""
    pytest.importorskip("pyiceberg")
    monkeypatch.setitem(CONFIG, "publish.formats", wanted)
    found = []
    for publishes in (True, False):
        world = World()
        fill(world.open())
        store = world.open()
        store.topics()
        if not publishes:
            monkeypatch.setattr("txlog.maintenance.publish.publish_topics", lambda *_: ())
        with world.counting.counting() as cost:
            store.delete_topic("orders")
        found.append(cost.total)
        world.close()
    assert found[0] - found[1] == requests


def test_a_round_looks_once_at_the_tables_of_a_deleted_topic(world: World) -> None:
    delete_as_older(world)
    store = world.open()
    maintainer = Maintainer(store.runtime)
    (step,) = (each for each in maintainer.run().steps if each.step == "publish")
    assert [each.text for each in step.done] == ["published no new rows; no files added, 1 removed"]
    assert shown(world.memory) == ([], [])
    maintainer.run()
    before = newest(store).number
    with world.counting.counting() as cost:
        maintainer.run()
    assert newest(store).number == before
    assert (cost.list, cost.put_if_absent) == (3, 0)
    assert maintainer.published.emptied == {store.runtime.run(find_topic("orders")).topic_id}  # type: ignore[union-attr]


# -- processes that die, or that are slow -----------------------------------------------------------------------------


@pytest.mark.parametrize("strike", STRIKES, ids=" ".join)
def test_a_deletion_that_died_anywhere_is_finished_by_maintenance(strike: Any) -> None:
    pytest.importorskip("pyiceberg")
    there, now_ms = prepared(fill)
    action, moment = strike
    struck = emptied = 0
    for number in range(1, 200):
        place = Place(there, now_ms)
        match = "" if strike == ("lose_reply", "before") else WRITES
        failing = FailingStore(place.memory, Fault(action=action, moment=moment, match=match, number=number))
        with suppress(SimulatedCrash, TxlogError):
            place.open(failing).delete_topic("orders")
        if not failing.struck:
            place.close()
            break
        struck += 1
        found = place.open().runtime.run(find_topic("orders"))
        assert found is not None
        for _ in range(2):
            maintain(place.open())
            assert shown(place.memory) == (([], []) if found.number else ([1, 2, 3], [1, 2, 3]))
        emptied += bool(found.number)
        place.close()
    assert struck >= emptied >= 10


def test_a_publisher_that_has_its_cut_does_not_bring_the_rows_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open().producer() as producer:
        producer.send("orders", orders(4)).result()
    world.clock.advance_ms(10)
    append = publishing._Attempt._append
    slept: list[int] = []

    def late(*args: Any) -> Any:
        if not slept:
            slept.append(1)
            world.open().delete_topic("orders")
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", late)
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
        publish(world.open())
    assert (slept, shown(world.memory)) == ([1], ([], []))
    maintain(world.open())
    assert shown(world.memory) == ([], [])


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_publisher_that_writes_its_version_late_does_not_bring_the_rows_back(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.open().producer() as producer:
        producer.send("orders", orders(4)).result()
    world.clock.advance_ms(10)
    write = formats.write_version
    slept: list[int] = []

    def late(format_name: Any, *args: Any, **more: Any) -> Any:
        if not slept and format_name == name:
            slept.append(1)
            world.open().delete_topic("orders")
        return write(format_name, *args, **more)

    monkeypatch.setattr(publishing, "write_version", late)
    with suppress(TxlogError):
        publish(world.open())
    assert (slept, shown(world.memory)) == ([1], ([], []))
    assert newest(world.open()).number == 3


def test_two_that_empty_the_tables_make_one_publication(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    delete_as_older(world)
    topic = world.open().runtime.run(find_topic("orders"))
    assert topic is not None
    append = vacuum_published.append_nothing
    raced: list[Any] = []

    def slower(*args: Any) -> Any:
        if not raced:
            raced.append(None)
            (raced[0],) = publish_topics(reading.read_session(world.open().runtime), [topic])
        return append(*args)

    monkeypatch.setattr(publishing, "append_nothing", slower)
    ((_, made),) = publish_topics(reading.read_session(world.open().runtime), [topic])
    assert [each.publications for each in (raced[0][1], made) if isinstance(each, Published)] == [1, 0]
    assert (newest(world.open()).number, shown(world.memory)) == (2, ([], []))
    with pytest.raises(UnknownTopicOrPartitionError):
        world.open().delete_topic("orders")
    assert newest(world.open()).number == 2


def test_a_process_without_pyiceberg_leaves_iceberg_to_another(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(formats: Any, *_: Any) -> None:
        if "iceberg" in formats:
            raise InvalidRequestError("publish.formats: 'iceberg' needs pyiceberg, which is not installed")

    with monkeypatch.context() as without, caplog.at_level(logging.WARNING, "txlog"):
        without.setattr(publishing, "check_writable", refuses)
        world.open().delete_topic("orders")
        assert shown(world.memory) == ([], [1, 2, 3])
        (said,) = (each for each in caplog.records if getattr(each, "txlog_event", "") == "tables_not_emptied")
        assert "topic 'orders' is deleted" in said.getMessage()
        assert "needs pyiceberg" in said.getMessage()
        assert Maintainer(world.open().runtime).run().failures == 1
    maintain(world.open())
    assert shown(world.memory) == ([], [])


# -- vacuum -----------------------------------------------------------------------------------------------------------


def test_no_object_of_the_tables_is_left_after_the_retention(world: World) -> None:
    """Readers of old versions have it until then, and nothing shows an older version meanwhile."""
    assert [path for path in left(world) if path.endswith(".parquet")] != []
    world.open().delete_topic("orders")
    stranger = "orders/metadata/of-another-program.avro"
    world.memory.put_if_absent(stranger, b"")
    before = left(world)
    sweep(world, RETENTION_HOURS - 1)
    assert left(world) == before
    assert shown(world.memory) == ([], [])
    assert sweep(world, 1, dry_run=True).deleted == () or left(world) == before
    sweep(world)
    assert newest(world.open()).newest.formats == {}
    # The newest version stays until the older ones are gone.
    assert sorted(path for path in left(world) if path.endswith((".json", "checkpoint.parquet"))) == [
        f"orders/_delta_log/{2:020d}.json",
        "orders/metadata/v3.metadata.json",
    ]
    assert Readers(objects(world.memory), "orders", ["memory:"]).iceberg(2) == []
    sweep(world)
    assert left(world) == [stranger]
    for _ in range(3):
        sweep(world, RETENTION_HOURS)
    assert sweep(world).deleted == ()


def test_vacuum_alone_ends_the_tables(world: World) -> None:
    """No other job runs. So no format is written, and the old versions count until the publication has ended."""
    delete_as_older(world)
    sweep(world)
    assert (newest(world.open()).number, len(newest(world.open()).files)) == (2, 0)
    assert shown(world.memory)[0] == [1, 2, 3]
    sweep(world, RETENTION_HOURS)
    assert newest(world.open()).newest.formats == {}
    sweep(world, RETENTION_HOURS - 1)
    assert shown(world.memory)[0] == [1, 2, 3]
    for _ in range(2):
        sweep(world, 1)
    assert left(world) == []


def test_a_vacuum_that_died_goes_on(world: World) -> None:
    """A part of the newest versions that is left waits once more, because nothing shows when readers got these."""
    world.open().delete_topic("orders")
    passes = 0
    while left(world):
        world.clock.advance_ms(RETENTION_HOURS * HOUR_MS)
        failing, store = world.failing(Fault(action="crash", match=f"^delete ({'|'.join(TABLES)})", number=2))
        store.runtime.driver = Driver(failing, world.clock, store.runtime.ids, threads=0)
        with suppress(SimulatedCrash):
            vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        passes += 1
        there = [path for path in left(world) if path.endswith(".metadata.json")]
        assert there == [] or "orders/metadata/v3.metadata.json" in there
    assert 5 < passes < 30


def test_tables_of_a_topic_that_is_not_published_any_more_are_deleted_too(world: World) -> None:
    """A table that begins later needs no work by hand."""
    store = world.open()
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(world.open())
    assert shown(world.memory) == ([1, 2, 3], [1, 2, 3])
    sweep(world, RETENTION_HOURS - 1)
    assert shown(world.memory) == ([1, 2, 3], [1, 2, 3])
    for _ in range(3):
        sweep(world, 1)
    assert [path for path in left(world) if path.startswith(TABLES)] == []
    store.alter_topic("orders", config={"publish.formats": "delta,iceberg"})
    publish(world.open())
    assert shown(world.memory) == ([1, 2, 3], [1, 2, 3])


# -- a topic that is created again ------------------------------------------------------------------------------------


def table_ids(world: World) -> set[str]:
    tables = Readers(objects(world.memory), "orders")
    return {tables.delta_id(max(tables._versions(".json")))}


@pytest.mark.parametrize("older", [False, True])
def test_a_topic_that_is_created_again_continues_its_tables(older: bool, world: World) -> None:
    before = table_ids(world)
    if older:
        delete_as_older(world)
    else:
        world.open().delete_topic("orders")
    sweep(world, RETENTION_HOURS - 1)
    world.open().create_topic("orders", {"id": "int64", "more": "string"}, config=CONFIG)
    for number in range(2):
        # A stale process still knows the deleted topic.
        maintain(world.open())
        with world.open().producer() as producer:
            producer.send("orders", {"id": 7 + number, "more": "x"}).result()
        world.clock.advance_ms(10)
        publish(world.open())
        assert shown(world.memory) == ([7, 8][: number + 1],) * 2
    assert table_ids(world) == before
    for _ in range(3):
        sweep(world, RETENTION_HOURS)
        assert shown(world.memory) == ([7, 8], [7, 8])


def test_a_process_that_knows_the_deleted_topic_alone_leaves_the_next_one(world: World) -> None:
    world.open().delete_topic("orders")
    known = world.open().runtime.run(find_topic("orders"))
    assert known is not None
    fill(world.open(), 7, 8)
    cache = PublicationCache()
    ((_, made),) = publish_topics(reading.read_session(world.open().runtime), [known], cache=cache)
    assert isinstance(made, Published)
    assert (made.number, made.publications, shown(world.memory)) == (-1, 0, ([7, 8], [7, 8]))
    assert known.topic_id in cache.emptied


def test_a_topic_that_is_created_after_the_retention_begins_new_tables(world: World) -> None:
    before = table_ids(world)
    world.open().delete_topic("orders")
    for _ in range(2):
        sweep(world, RETENTION_HOURS)
    fill(world.open(), 7, 8)
    assert shown(world.memory) == ([7, 8], [7, 8])
    assert not table_ids(world) & before
    for _ in range(3):
        sweep(world, RETENTION_HOURS)
        publish(world.open())
        assert shown(world.memory) == ([7, 8], [7, 8])
    world.open().delete_topic("orders")
    assert shown(world.memory) == ([], [])


@pytest.mark.parametrize("broken", [False, True])
def test_vacuum_does_not_delete_a_table_that_began_while_it_looked(
    broken: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.open().delete_topic("orders")
    for _ in range(2):
        sweep(world, RETENTION_HOURS)
    assert left(world) == []
    began: list[int] = []
    list_ = MemoryObjectStore.list

    def late(memory: MemoryObjectStore, prefix: str, start_after: str = "") -> Names:
        if prefix == TABLES[0] and not began:
            began.append(1)
            fill(world.open(), 7, 8)
        return list_(memory, prefix, start_after)

    monkeypatch.setattr(MemoryObjectStore, "list", late)
    if broken:

        def newest_known(_: str) -> Any:
            yield from ()
            return 3

        monkeypatch.setattr(expired, "newest_number", newest_known)
    sweep(world)
    assert began == [1]
    if not broken:
        assert shown(world.memory) == ([7, 8], [7, 8])
    else:
        with pytest.raises(AssertionError, match=r"nothing to begin version 1 with"):
            shown(world.memory)


@pytest.mark.parametrize("hours", [26, 100])
def test_a_topic_that_is_created_again_is_published_when_the_tables_are_gone(world: World, hours: int) -> None:
    """Its deletion was vacuum's work, so the tables show rows until vacuum deletes them."""
    delete_as_older(world)
    while newest(world.open()).newest.formats:
        sweep(world, 100)
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as producer:
        producer.send("orders", orders(7)).result()
    for _ in range(12):
        with suppress(TableConflictError):
            publish(world.open())
            break
        sweep(world, hours)
    assert shown(world.memory) == ([7], [7])
