"""Tables of another life of the topic: an earlier publication that was ended, or one that an incomplete copy has lost.

No row comes from it, none is missing because of it, and a reader that follows the table notices it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.client.world import ORDERS, World, orders
from tests.publication.lives import Follower, publish
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.errors import TableConflictError
from txlog.maintenance.merge import merge_partition
from txlog.protocol.publications import read_chain
from txlog.publication import delta, iceberg
from txlog.publication.iceberg_names import HINT
from txlog.storage.memory import MemoryObjectStore

CONFIG = {"publish.max.lag.ms": "0", "segment.batches": "1", "inline.max.bytes": "0"}
FOLDERS = {"delta": "orders/_delta_log/", "iceberg": "orders/metadata/"}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def newest(world: World) -> Tables:
    found = world.open().runtime.run(read_chain("orders")).newest
    assert found is not None
    return found


def objects(memory: MemoryObjectStore) -> dict[str, bytes]:
    return {path: memory.get(path) or b"" for path in memory._objects}


def send(world: World, *ids: int) -> None:
    with world.open().producer() as producer:
        producer.send("orders", orders(*ids)).result()
    world.clock.advance_ms(10)


def end(world: World, *formats: str, rest: str = "") -> None:
    """End the publication in some formats, and remove their tables as the docs say."""
    store = world.open()
    if rest:
        store.alter_topic("orders", config={"publish.formats": rest})
    else:
        store.alter_topic("orders", remove_config=["publish.formats"])
    publish(world.open())
    for path in objects(world.memory):
        if any(path.startswith(FOLDERS[name]) for name in formats):
            world.memory.delete(path)


def with_copies(world: World) -> tuple[Store, Any]:
    """Publish a file without rows of a transaction, which follow as a copy, and delete the first record."""
    store = world.open()
    late = store.producer("late", staged=False)
    late.init_transactions()
    late.begin_transaction()
    send(world, 1)
    late.send("orders", orders(2))
    late.flush()
    send(world, 3, 4)
    publish(world.open())
    late.commit_transaction()
    send(world, 5)
    session = reading.read_session(store.runtime)
    merge_partition(store.runtime, session, TopicPartition("orders", 0), MergePolicy(max_inputs=100))
    world.clock.advance_ms(10)
    return store, late


@pytest.mark.parametrize("formats", ["delta", "iceberg", "delta,iceberg"])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_publication_that_begins_again_has_each_row(world: World, formats: str, deleted: bool) -> None:
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": formats})
    store, late = with_copies(world)
    publish(world.open())
    assert any(file.source for file in newest(world).files.values())
    end(world, *formats.split(","))
    if deleted:
        store.admin().delete_records("orders", 0, 1)
    send(world, 6)
    store.alter_topic("orders", config={"publish.formats": formats})
    for _ in range(2):
        publish(world.open())
        tables = newest(world)
        assert sorted(Follower(world).rows(tables).elements()) == world.read()
        assert not any(file.source for file in tables.files.values()) or deleted
    late.close()


def test_a_delta_table_that_begins_again_has_another_id(world: World) -> None:
    """A stream of Spark that followed the old table then refuses to go on."""
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta"})
    found = []
    for number in range(3):
        send(world, number)
        publish(world.open())
        send(world, 10 + number)
        publish(world.open())
        found.append(_ids(world))
        end(world, "delta")
        world.open().alter_topic("orders", config={"publish.formats": "delta"})
    assert all(len(ids) == 1 for ids in found)
    assert len(set.union(*found)) == 3


def test_a_delta_table_of_an_older_program_keeps_its_id(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta"})
    send(world, 1)
    with monkeypatch.context() as older:
        be_older(older)
        publish(world.open())
    old = _ids(world)
    assert old == {newest(world).newest.topic_id}
    for number in range(12):
        send(world, 2 + number)
        with monkeypatch.context() as older:
            if number % 3 == 2:
                be_older(older)
            publish(world.open())
    world.open().alter_topic("orders", add_columns={"more": "string"})
    publish(world.open())
    assert _ids(world) == old


def be_older(patch: pytest.MonkeyPatch) -> None:
    """Publish as programs did before each table got a new id. They knew only this field of `commitInfo`."""

    def own(data: bytes) -> Any:
        try:
            found = json.loads(data.partition(b"\n")[0])["commitInfo"]["txlog"]
        except (ValueError, LookupError, TypeError):
            return None
        return msgspec.convert({name: each for name, each in found.items() if name != "table_id"}, delta._State)

    patch.setattr(delta, "_own", own)
    patch.setattr(delta, "new_table_id", lambda first: "")


def test_an_older_program_refuses_a_newer_delta_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would give the table the topic's id, which an earlier table had. Streams of Spark then skip rows."""
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta"})
    send(world, 1)
    publish(world.open())
    before = _ids(world)
    versions = {path for path in objects(world.memory) if path.startswith(FOLDERS["delta"])}
    with monkeypatch.context() as older:
        be_older(older)
        for number in range(2, 4):
            send(world, number)
            with pytest.raises(TableConflictError, match=r"is not the one that txlog published"):
                publish(world.open())
    assert {path for path in objects(world.memory) if path.startswith(FOLDERS["delta"])} == versions
    publish(world.open())
    assert _ids(world) == before
    assert sorted(Follower(world).rows(newest(world)).elements()) == [1, 2, 3]


def _ids(world: World) -> set[str]:
    """Return the ids in all versions and checkpoints of the Delta table."""
    from txlog.storage.parquet_exchange import parquet_rows

    found = set()
    for path, data in objects(world.memory).items():
        if path.startswith(FOLDERS["delta"]) and path.endswith(".parquet"):
            found |= {row["metaData"]["id"] for row in parquet_rows(data, ["metaData"]) if row["metaData"]}
        elif path.startswith(FOLDERS["delta"]) and path[-6].isdigit():
            actions = [json.loads(line) for line in data.splitlines()]
            found |= {each["metaData"]["id"] for each in actions if "metaData" in each}
    return {each.replace("-", "") for each in found}


def lose(world: World, before: dict[str, bytes], *kept: str) -> None:
    """Take away what came after `before`, as a copy that ended early does. Keep objects with one of these texts."""
    for path in objects(world.memory).keys() - before.keys():
        if not any(text in path for text in (*kept, ".parquet")):
            world.memory.delete(path)


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_version_of_a_lost_publication_is_named_each_time(world: World, name: str) -> None:
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": name})
    send(world, 1)
    publish(world.open())
    before = objects(world.memory)
    send(world, 2, 3)
    publish(world.open())
    lose(world, before, "/metadata/", "/_delta_log/")
    send(world, 22, 33, 44)
    for _ in range(3):
        # Also if there is nothing new to publish.
        with pytest.raises(TableConflictError, match=r"is not the one that txlog published"):
            publish(world.open())
    # Readers by the folder find no table, instead of rows that the log never had.
    assert world.memory.get(f"orders/{HINT}") is None
    end(world, name)
    world.open().alter_topic("orders", config={"publish.formats": name})
    publish(world.open())
    assert sorted(Follower(world).rows(newest(world)).elements()) == [1, 22, 33, 44]
    assert name == "delta" or world.memory.get(f"orders/{HINT}") is not None


def test_lists_of_a_lost_publication_are_not_taken(world: World) -> None:
    """The copy ended in the folder of the metadata: lists are there, and the version that names them is not."""
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "iceberg"})
    send(world, 1)
    publish(world.open())
    before = objects(world.memory)
    send(world, 2, 3)
    publish(world.open())
    lose(world, before, "/metadata/m", "/metadata/s")
    left = objects(world.memory)
    send(world, 22, 33, 44)
    publish(world.open())
    tables = newest(world)
    data = world.memory.get(tables.path_of("iceberg")) or b""
    known = iceberg._version_of(tables, data)
    assert known is not None
    assert f"orders/{known.list_path}" not in left
    lines = iceberg.iceberg_library().read_manifest_list(world.memory.get(f"orders/{known.list_path}"), "")
    mine = {line.manifest_path.rpartition("/")[2] for line in lines if f"m{tables.number}-" in line.manifest_path}
    assert mine
    assert not {f"{FOLDERS['iceberg']}{name}" for name in mine} & left.keys()


def test_a_checkpoint_of_a_lost_publication_is_replaced(world: World) -> None:
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta"})
    path = f"orders/_delta_log/{10:020d}.checkpoint.parquet"
    number = 0
    before: dict[str, bytes] = {}
    while world.memory.get(path) is None:
        before = objects(world.memory)
        send(world, number)
        publish(world.open())
        number += 1
    stale = world.memory.get(path)
    lose(world, before, "checkpoint")
    send(world, 100)
    publish(world.open())
    assert world.memory.get(path) != stale
    # A publisher may have died before that.
    right = world.memory.get(path)
    assert stale is not None
    world.memory.delete(path)
    world.memory.put_if_absent(path, stale)
    publish(world.open())
    assert world.memory.get(path) == right
