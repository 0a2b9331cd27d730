"""What fsck says of a published topic: nothing, or which publication is damaged and which file of the tables is
lost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, many, orders
from tests.publication.lives import publish
from txlog.client.store import Store
from txlog.core import envelope, names
from txlog.core.records import Publication
from txlog.maintenance.fsck import FsckReport, check_store

CONFIG = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0"}


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world whose topic has three publications, and a file with copied rows in the newest."""
    made = World()
    store = made.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as plain, store.producer("late", staged=False) as late:
        for number in range(3):
            plain.send("orders", orders(number)).result()
            late.begin_transaction()
            late.send("orders", many(10, 100 * number)).result()
            late.abort_transaction()
            made.clock.advance_ms(10)
            publish(store)
    yield made
    made.close()


def check(world: World) -> FsckReport:
    return check_store(world.memory, threads=0, clock=world.clock)


def found(report: FsckReport) -> list[tuple[str, str, str]]:
    return [(each.kind, each.path, each.found) for each in report.findings]


def test_a_published_topic_is_clean(world: World) -> None:
    assert found(check(world)) == []


def test_a_lost_file_of_the_tables(world: World) -> None:
    (copy,) = [path for path in world.memory.list("orders/publication/") if path.endswith(".parquet")][:1]
    world.memory.delete(f"orders/publication/{copy}")
    assert found(check(world)) == [("missing", f"orders/publication/{copy}", "it does not exist")]


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_publication(world: World, number: int) -> None:
    path = names.publication_path("orders", number)
    world.memory.delete(path)
    assert found(check(world)) == [("missing", path, "it does not exist")]


def test_a_damaged_publication(world: World) -> None:
    path = names.publication_path("orders", 1)
    data = world.memory.get(path)
    assert data is not None
    value, _ = envelope.decode(data, Publication, path)
    overwrite(world.memory, path, envelope.encode(msgspec.structs.replace(value, previous="0" * 64)))
    ((kind, where, why),) = found(check(world))
    assert (kind, where) == ("damaged", path)
    assert why.startswith("it follows a publication with digest 000000000000…, and 0 has ")
    overwrite(world.memory, path, envelope.encode(msgspec.structs.replace(value, number=2)))
    ((kind, where, why),) = found(check(world))
    assert (kind, where) == ("damaged", path)
    assert why == "it says publication 2 of topic 'orders'; an object was swapped or copied"
    overwrite(world.memory, path, data[:-9] + b"x" + data[-8:])
    assert [(kind, where) for kind, where, _ in found(check(world))] == [("damaged", path)]


def test_a_topic_that_is_created_again_continues_its_tables(world: World) -> None:
    store: Store = world.open()
    (before,) = {each.table_id for each in _tables(world)}
    store.delete_topic("orders")
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as producer:
        producer.send("orders", orders(77)).result()
    world.clock.advance_ms(10)
    made = publish(store)
    assert (made.publications, made.rows_added) == (2, 1)
    assert [each.table_id for each in _tables(world)] == [before] * 7
    assert found(check(world)) == []


class _Version(msgspec.Struct):
    table_id: str = msgspec.field(name="table-uuid")


def _tables(world: World) -> list[_Version]:
    paths = [f"orders/metadata/{name}" for name in world.memory.list("orders/metadata/") if name.endswith(".json")]
    return [msgspec.json.decode(world.memory.get(path) or b"", type=_Version) for path in paths]
