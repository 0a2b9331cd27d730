"""Objects of a table that no publication explains: copies of a store that ended early, and tables that were deleted.

A reader finds them before a publisher comes to them. So a publisher looks behind the end of each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.world import ORDERS, World, orders
from tests.publication.lives import publish
from tests.publication.table_readers import Tables as Readers
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.effects import Program
from txlog.core.publication import Tables
from txlog.errors import TableConflictError
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import publications
from txlog.protocol.publications import read_chain
from txlog.protocol.topics import earlier_version
from txlog.publication import formats, iceberg
from txlog.storage.object_store import Names

CONFIG = {
    "publish.formats": "delta,iceberg",
    "publish.max.lag.ms": "0",
    "publish.retention.ms": "0",
    "segment.batches": "1",
}
HOUR_MS = 3_600_000
HINT = "orders/metadata/version-hint.text"
LAST = "orders/_delta_log/_last_checkpoint"
CHECKPOINT = f"orders/_delta_log/{10:020d}.checkpoint.parquet"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    for number in range(3):
        send(world, number)
    yield world
    world.close()


def send(world: World, number: int) -> None:
    """Commit a row, and publish it."""
    with world.open(inline_max_bytes=0).producer() as producer:
        producer.send("orders", orders(number)).result()
    world.clock.advance_ms(10)
    publish(world.open())


def newest(store: Store) -> Tables:
    found = store.runtime.run(read_chain("orders")).newest
    assert found is not None
    return found


def objects(world: World) -> dict[str, bytes]:
    return {path: world.memory.get(path) or b"" for path in world.memory._objects}


def put_back(world: World, copy: dict[str, bytes], more: dict[str, bytes]) -> None:
    for path in objects(world):
        world.memory.delete(path)
    for path, data in (copy | more).items():
        world.memory.put_if_absent(path, data)


def rows(world: World) -> tuple[list[int], list[int]]:
    """Return what readers find: those of Delta at its end, those of Iceberg by the hint."""
    found = Readers(objects(world), "orders", ["memory:"])
    version = found.hinted()
    assert version is not None
    return sorted(row["id"] for row in found.delta()), sorted(row["id"] for row in found.iceberg(version))


def lost_life(world: World) -> dict[str, bytes]:
    """Return the objects of a longer life, which the store then does not have."""
    before = objects(world)
    for number in range(100, 110):
        send(world, number)
    lost = objects(world)
    put_back(world, before, {})
    return lost


# Each chooses what an incomplete copy has of the newer versions. The folders of the log and of publications are older.
LEFT: dict[str, tuple[str, Callable[[str], bool]]] = {
    "a version of Delta behind a gap": (f"{12:020d}.json", lambda path: path.endswith(f"_delta_log/{12:020d}.json")),
    "Iceberg's next version": ("v5.metadata.json", lambda path: path.endswith("v5.metadata.json")),
}


@pytest.mark.parametrize("left", LEFT)
def test_a_version_that_no_publication_explains_is_named(left: str, world: World) -> None:
    named, chosen = LEFT[left]
    copy = objects(world)
    lost = lost_life(world)
    put_back(world, copy, {path: data for path, data in lost.items() if chosen(path)})
    number = newest(world.open()).number
    for _ in range(2):
        with pytest.raises(TableConflictError, match=named.rpartition("/")[2]):
            publish(world.open())
        assert newest(world.open()).number == number
        assert "Delta" in left or world.memory.get(HINT) is None
    # What the error says.
    store = world.open()
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(world.open())
    for path in objects(world):
        if path.startswith(("orders/_delta_log/", "orders/metadata/")):
            world.memory.delete(path)
    store.alter_topic("orders", config={"publish.formats": "delta,iceberg"})
    send(world, 3)
    assert rows(world) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_readers_of_iceberg_are_not_led_to_a_version_of_no_publication(world: World) -> None:
    """The hint is one of a lost life, and the versions up to that are not there: publishers write them again."""
    copy = objects(world)
    lost = lost_life(world)
    hinted = lost[HINT].decode()
    left = (HINT, "orders/metadata/v9.metadata.json", f"orders/metadata/v{hinted}.metadata.json")
    put_back(world, copy, {p: data for p, data in lost.items() if p in left or p.endswith(".avro")})
    for number in range(3, 6):
        send(world, number)
        assert rows(world)[1] == [*range(number + 1)]
    for _ in range(2):
        # Spark would go on from version 8 to version 9.
        with pytest.raises(TableConflictError, match="v9"):
            send(world, 6)
        assert world.memory.get(HINT) is None
        assert "orders/metadata/v8.metadata.json" not in objects(world)


@pytest.mark.parametrize("left", [(CHECKPOINT, LAST), (LAST,), (CHECKPOINT,)])
def test_a_checkpoint_of_no_version_is_removed(left: tuple[str, ...], world: World) -> None:
    """Readers would begin with it, or find no table."""
    copy = objects(world)
    lost = lost_life(world)
    put_back(world, copy, {path: lost[path] for path in left})
    send(world, 3)
    assert not {CHECKPOINT, LAST} & objects(world).keys()
    assert rows(world)[0] == [0, 1, 2, 3]
    for number in range(4, 12):
        send(world, number)
    assert {CHECKPOINT, LAST} <= objects(world).keys()
    publish(world.open())
    assert {CHECKPOINT, LAST} <= objects(world).keys()


def test_a_checkpoint_with_other_columns_is_replaced(world: World) -> None:
    """Its files are those of the version. Readers would find no values in the columns that it lacks."""
    for number in range(3, 9):
        send(world, number)
    assert newest(world.open()).number == 9
    copy = objects(world)
    world.open().alter_topic("orders", add_columns={"lost": "string"})
    publish(world.open())
    stale = world.memory.get(CHECKPOINT)
    assert stale is not None
    put_back(world, copy, {})
    world.open().alter_topic("orders", add_columns={"other": "string"})
    publish(world.open())
    world.memory.delete(CHECKPOINT)
    world.memory.put_if_absent(CHECKPOINT, stale)
    publish(world.open())
    # It compares the checkpoint with the log.
    assert {*Readers(objects(world), "orders").delta(10)[0]} >= {"other"}


@pytest.mark.parametrize("hint", [b"0004", b"4\n", b"9" * 30])
def test_a_hint_that_readers_do_not_understand_is_replaced(hint: bytes, world: World) -> None:
    world.memory.delete(HINT)
    world.memory.put_if_absent(HINT, hint)
    publish(world.open())
    assert world.memory.get(HINT) == b"4"


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_hint_at_a_version_of_a_lost_publication_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    """The copy of the store lacks the versions before it, too, so nothing lies directly behind the end."""
    for number in range(3, 7):
        send(world, number)
    for number in range(4, 8):
        world.memory.delete(f"orders/publication/{number:020d}.json")
        world.memory.delete(f"orders/_delta_log/{number:020d}.json")
        if number > 4:
            world.memory.delete(f"orders/metadata/v{number}.metadata.json")
    assert (world.memory.get(HINT), world.memory.get("orders/metadata/v8.metadata.json") is None) == (b"8", False)
    if is_trusted:

        def is_decided(*_: Any) -> Program[bool]:
            yield from ()
            return True

        monkeypatch.setattr(iceberg, "is_decided", is_decided)
    publish(world.open())
    assert world.memory.get(HINT) == (b"8" if is_trusted else b"5")


def test_a_faster_publisher_is_no_conflict(world: World) -> None:
    """A publisher looks behind the end that it knows when others have gone on."""
    known = newest(world.open())
    for number in range(3, 12):
        send(world, number)
    store = world.open()
    for name in ("delta", "iceberg"):
        columns = earlier_version("orders", 0)
        store.runtime.run(formats.complete_version(name, known, columns, retention_ms=0))
    assert world.memory.get(HINT) == b"13"
    assert (world.memory.get(LAST) or b"").startswith(b'{"version":10,')


def test_a_last_checkpoint_that_another_publisher_replaces_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests replace it. A publisher that looks between them must not delete the new one."""
    for number in range(3, 12):
        send(world, number)
    known = newest(world.open())
    there, get, list_ = world.memory.get(LAST), world.memory.get, world.memory.list
    assert there is not None

    def between(prefix: str, start_after: str = "") -> Names:
        found = list_(prefix, start_after)
        if prefix.endswith("_delta_log/"):
            world.memory.delete(LAST)
        return found

    def last_one(path: str) -> bytes | None:
        found = get(path)
        if path == LAST:
            world.memory.put_if_absent(LAST, there)
        return found

    monkeypatch.setattr(world.memory, "list", between)
    monkeypatch.setattr(world.memory, "get", last_one)
    columns = earlier_version("orders", 0)
    world.open().runtime.run(formats.complete_version("delta", known, columns, retention_ms=0))
    assert get(LAST) == there


@pytest.mark.parametrize("folder", ["_delta_log", "metadata"])
def test_a_deleted_table_is_named_after_vacuum_took_old_publications(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing in the log. So the error must not send anybody to fsck."""
    monkeypatch.setattr(publications, "WHOLE_EVERY", 3)
    world = World()
    world.open().create_topic("orders", ORDERS, config=CONFIG)
    for number in range(8):
        send(world, number)
    world.clock.advance_ms(30 * HOUR_MS)
    store = world.open()
    assert vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False).failed == ()
    assert not any(path.endswith(f"publication/{0:020d}.json") for path in objects(world))
    publish(world.open())
    for path in objects(world):
        if path.startswith(f"orders/{folder}/"):
            world.memory.delete(path)
    with pytest.raises(TableConflictError, match=f"orders/{folder}/"):
        publish(world.open())
    world.close()


def test_checkpoints_alone_are_a_table_too(world: World) -> None:
    """Readers would begin with them when the new table has as many versions."""
    lost = lost_life(world)
    store = world.open()
    store.alter_topic("orders", config={"publish.formats": "iceberg"})
    publish(world.open())
    for path in objects(world):
        if path.startswith("orders/_delta_log/"):
            world.memory.delete(path)
    world.memory.put_if_absent(CHECKPOINT, lost[CHECKPOINT])
    store.alter_topic("orders", config={"publish.formats": "delta,iceberg"})
    with pytest.raises(TableConflictError, match="a table lies there already"):
        publish(world.open())


@pytest.mark.parametrize("change", ["drop", "add"])
def test_maps_have_the_same_fields_in_each_file_of_a_delta_table(change: str) -> None:
    """delta-rs does not read a map whose values have another field in the file."""
    import pyarrow as pa

    world = World()
    values = pa.map_(pa.string(), pa.struct([("a", pa.string()), ("b", pa.string())]))
    config = {**CONFIG, "publish.formats": "delta"}
    world.open().create_topic("orders", schema=pa.schema({"id": pa.int64(), "m": values}), config=config)
    with world.open(inline_max_bytes=0).producer() as producer:
        producer.send("orders", {"id": 1, "m": {"k": {"a": "x", "b": "y"}}})
    world.clock.advance_ms(10)
    publish(world.open())
    store = world.open()
    if change == "drop":
        store.alter_topic("orders", drop_columns=["m.value.b"])
    else:
        store.alter_topic("orders", add_fields={"m.value": pa.schema({"c": pa.string()})})
    ((_, made),) = publish_topics(reading.read_session(store.runtime), [store.runtime.topic("orders", 0)])
    assert not isinstance(made, Exception)
    version = store.runtime.topic("orders", 0).schema_id
    assert {file.schema_id for file in newest(store).files.values()} == {version}
    world.close()
