"""A publication with a right checksum that no publisher can have made is refused before anything is written or
deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, many
from tests.publication.lives import publish
from txlog.client import reading
from txlog.core import envelope
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition, publication_path
from txlog.core.records import Publication
from txlog.core.records.publications import OffsetRun, PublishedFile, PublishedPartition, RowRun
from txlog.errors import CorruptRecordError
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import read_chain

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0", "segment.batches": "1", "publish.retention.ms": "0"}
HOUR_MS = 3_600_000
NEWEST = publication_path("orders", 2)


@pytest.fixture
def world() -> Iterator[World]:
    """Two publications of three files, after the empty one.

    A merge has replaced two of them since, so vacuum has something to delete.
    """
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, partitions=2, config=CONFIG)
    with store.producer() as producer:
        producer.send("orders", many(3000), partition=0).result()
        publish(world.open())
        producer.send("orders", many(3000, 3000), partition=0).result()
        producer.send("orders", many(3000, 6000), partition=1).result()
        publish(world.open())
        producer.send("orders", many(10, 9000), partition=0).result()
    session = reading.read_session(store.runtime)
    merge_partition(store.runtime, session, TopicPartition("orders", 0), MergePolicy(target_bytes=2**30))
    world.clock.advance_ms(100 * HOUR_MS)
    yield world
    world.close()


Change = Callable[[Publication], Any]


def _first(**changed: Any) -> Change:
    """Return a change of the first file that the publication adds."""

    def change(publication: Publication) -> dict[str, Any]:
        first, *others = publication.added
        return {"added": (msgspec.structs.replace(first, **changed), *others)}

    return change


def _copied(publication: Publication, **changed: Any) -> tuple[PublishedFile, ...]:
    first, *others = publication.added
    made: dict[str, Any] = {
        "path": f"publication/{1:020d}-{'a' * 32}.parquet",
        "source": first.path,
        "source_rows": (RowRun(0, first.rows),),
    }
    return (msgspec.structs.replace(first, **{**made, **changed}), *others)


def _cut(*partitions: PublishedPartition) -> Change:
    return lambda _: {"partitions": partitions}


def _hidden(*runs: tuple[int, int]) -> Change:
    def change(publication: Publication) -> dict[str, Any]:
        first, *others = publication.partitions
        hidden = tuple(OffsetRun(*run) for run in runs)
        return {"partitions": (msgspec.structs.replace(first, hidden=hidden), *others)}

    return change


DAMAGES: dict[str, tuple[Change, str]] = {
    "a path above the topic": (_first(path="../txlog.json"), "cannot belong to partition 0"),
    "an absolute path": (_first(path="/etc/passwd"), "cannot belong to partition 0"),
    "a path of another partition": (_first(partition=1), "cannot belong to partition 1"),
    "a partition that the cut lacks": (_first(partition=7), "its cut has 2 partitions"),
    "a source above the topic": (lambda p: {"added": _copied(p, source="../x")}, "'../x', which cannot belong"),
    "a copy with another name": (lambda p: {"added": _copied(p, path=p.added[0].path)}, "is not a name of one"),
    "a copy for a later publication": (
        lambda p: {"added": _copied(p, path=f"publication/{9:020d}-{'a' * 32}.parquet")},
        "is not a name of one",
    ),
    "a copy of fewer rows": (
        lambda p: {"added": _copied(p, source_rows=(RowRun(0, 7),))},
        "has 3000 rows, and is a copy of 7 rows",
    ),
    "rows of no source": (_first(source_rows=(RowRun(0, 3000),)), "is a copy of 3000 rows of ''"),
    "removed rows beyond the file": (_first(removed=(RowRun(2999, 3001),)), "are not in order below 3000"),
    "removed rows that overlap": (_first(removed=(RowRun(0, 9), RowRun(8, 10))), "are not in order below 3000"),
    "an empty run of removed rows": (_first(removed=(RowRun(9, 9),)), "are not in order below 3000"),
    "removed rows backwards": (_first(removed=(RowRun(9, 3),)), "are not in order below 3000"),
    "a file of a later publication": (_first(since=3, group=3), "not possible in 2"),
    "a file in a list of a later publication": (_first(group=3), "not possible in 2"),
    "a file in a list that is older": (_first(since=2, group=1), "not possible in 2"),
    "a file twice": (lambda p: {"added": (p.added[0], *p.added)}, "it names a file twice"),
    "a file that comes and goes": (lambda p: {"removed": (p.added[0].path,)}, "it names a file twice"),
    "a removed file that is not there": (lambda _: {"removed": ("0/x.parquet",)}, "which the tables do not have"),
    "fewer partitions": (_cut(PublishedPartition(end_offset=9000)), "its cut has 1 partitions"),
    "an older cut": (
        _cut(PublishedPartition(end_offset=5), PublishedPartition(end_offset=9000)),
        "ends at offset 5, and the one before at 3000",
    ),
    "hidden offsets beyond the cut": (_hidden((99_999, 100_000)), "it hides offsets 99999 to 100000"),
    "hidden offsets that overlap": (_hidden((3, 5), (4, 6)), "it hides offsets 4 to 6"),
    "hidden offsets backwards": (_hidden((5, 3)), "it hides offsets 5 to 3"),
    "a format that begins later": (lambda _: {"formats": {"delta": 2}}, "begins at publication 2, expected 0"),
    "a format that begins again": (lambda _: {"formats": {"delta": 1}}, "begins at publication 1, expected 0"),
    "a new format that began before": (
        lambda _: {"formats": {"delta": 0, "iceberg": 0}},
        "format iceberg begins at publication 0, expected 2",
    ),
}


def _damage(world: World, path: str, change: Change) -> None:
    stored = world.memory.get(path)
    assert stored is not None
    publication, _ = envelope.decode(stored, Publication, path)
    overwrite(world.memory, path, envelope.encode(msgspec.structs.replace(publication, **change(publication))))


def _objects(world: World, folder: str = "orders/") -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in world.memory.list(folder):
        found |= (
            _objects(world, folder + name) if name.endswith("/") else {folder + name: world.memory.get(folder + name)}
        )
    return found


@pytest.mark.parametrize("name", DAMAGES)
def test_a_publication_that_nobody_can_have_made_stops_everything(name: str, world: World) -> None:
    change, why = DAMAGES[name]
    _damage(world, NEWEST, change)
    before = _objects(world)
    store = world.open()
    with pytest.raises(CorruptRecordError) as found:
        publish(store)
    assert NEWEST in str(found.value)
    assert why in str(found.value)
    assert found.value.hint is not None
    report = vacuum(store.runtime, reading.read_session(store.runtime), ["orders"], dry_run=False)
    assert [(topic, NEWEST in error) for topic, error in report.failed] == [("orders", True)]
    assert report.deleted == ()
    assert _objects(world) == before


def test_the_first_publication_follows_none(world: World) -> None:
    path = publication_path("orders", 0)
    _damage(world, path, lambda _: {"previous": "0" * 64})
    with pytest.raises(CorruptRecordError, match="it is the first publication, and follows another one"):
        world.open().runtime.run(read_chain("orders"))


def test_the_same_chain_without_damage_lets_vacuum_delete(world: World) -> None:
    """The other tests would pass, too, if vacuum had nothing to do."""
    store = world.open()
    publish(store)
    world.clock.advance_ms(100 * HOUR_MS)
    report = vacuum(store.runtime, reading.read_session(store.runtime), ["orders"], dry_run=False)
    assert report.failed == ()
    assert report.deleted != ()
