"""Maintenance of what only older programs wrote ends well, in each round. The golden stores have some of it."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from lab.older_writers import next_control_of_v1
from lab.testing.damage import overwrite
from tests.client.world import World
from tests.maintenance.damage import objects_of
from tests.publication.test_cuts import rows_of as published_rows, tables_of
from tests.second_reader.compare import differences
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.features import PUBLICATION, PUBLISHED_LATEST, STORE_FEATURES
from txlog.errors import CorruptRecordError, UnsupportedStoreError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.fsck.repair import repair
from txlog.maintenance.maintain import Maintainer, MaintainPolicy, MaintainReport
from txlog.protocol import append, seal
from txlog.protocol.stores import create_store
from txlog.publication.publish import publish_topic

HOUR_MS = 3_600_000
OLD = pa.schema((pa.field("id", pa.int64()), pa.field("gone", pa.string())))
INNER = pa.struct([pa.field("city", pa.string(), nullable=False), pa.field("zip", pa.int32())])
STRICT = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in {
            "id": pa.string(),
            "ok": pa.bool_(),
            "small": pa.int16(),
            "double": pa.float64(),
            "raw": pa.binary(),
            "day": pa.date32(),
            "at": pa.timestamp("us", "UTC"),
            "price": pa.decimal128(9, 2),
            "tags": pa.list_(pa.field("element", pa.int32(), nullable=False)),
            "attrs": pa.map_(pa.string(), pa.field("value", pa.int32())),  # type: ignore[call-overload]
            "place": INNER,
        }.items()
    ]
).append(pa.field("maybe", INNER))


def strict(number: int) -> dict[str, Any]:
    """Return a row of STRICT, without a null where none is allowed."""
    return {
        "id": f"s{number}",
        "ok": True,
        "small": number,
        "double": number / 2,
        "raw": b"raw",
        "day": datetime.date(2026, 1, 1),
        "at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "price": Decimal("1.50"),
        "tags": [number],
        "attrs": [("a", number)],
        "place": {"city": "x", "zip": None},
        "maybe": None,
    }


def send(store: Store, *rows: dict[str, Any]) -> None:
    for row in rows:
        with store.producer() as producer:
            producer.send("orders", [row]).result()


def rounds(world: World, count: int = 3) -> list[MaintainReport]:
    """Return what rounds of maintenance did, each by a new process. They merge whatever is sealed."""
    made = []
    for _ in range(count):
        report = Maintainer(world.open().runtime, MaintainPolicy(merge_min_segments=1)).run()
        assert not [failure.text for step in report.steps for failure in step.failed]
        made.append(report)
        assert check_store(world.memory).is_clean
        world.clock.advance_ms(26 * HOUR_MS)
    return made


def second_reader(world: World, folder: Path) -> list[str]:
    """Return what the second reader sees differently."""
    for path, data in objects_of(world.memory).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return differences(folder)


@pytest.mark.parametrize("newer", [0, 3, 20], ids=["not again", "unsealed", "sealed"])
def test_a_deletion_inside_a_segment_does_not_keep_it_open(newer: int, world: World, tmp_path: Path) -> None:
    """Older programs did not begin a segment with a deletion, so it may hold inline rows of two topics (W37)."""
    store = world.open()
    store.create_topic("orders", OLD, config={"segment.batches": 8})
    send(store, *({"id": number, "gone": "text"} for number in range(3)))
    with mock.patch.object(append, "next_control", next_control_of_v1):
        store.delete_topic("orders")
    sent = [strict(number) for number in range(newer)]
    if newer:
        config = {"segment.batches": 8, "publish.formats": "delta,iceberg", "publish.max.lag.ms": 0}
        store.create_topic("orders", STRICT, config=config)
        # An older program did not seal the segment.
        with mock.patch.object(seal, "_seal_one", side_effect=CorruptRecordError("as an older program")):
            send(store, *sent)
        assert not [path for path in objects_of(world.memory, "orders/0/") if path.endswith(".index")]
    rounds(world)
    assert second_reader(world, tmp_path) == []
    if newer:
        names = ("id", "price", "maybe")
        kept = sorted(tuple(row[name] for name in names) for row in sent)
        assert world.read(column="id") == [row["id"] for row in sent]
        assert published_rows(world, tables_of(world)[-1], names) == kept


def test_the_index_of_such_a_segment_is_made_again(world: World) -> None:
    store = world.open()
    store.create_topic("orders", OLD, config={"segment.batches": 4})
    send(store, {"id": 1, "gone": "text"})
    with mock.patch.object(append, "next_control", next_control_of_v1):
        store.delete_topic("orders")
    store.create_topic("orders", STRICT, config={"segment.batches": 4})
    sent = [strict(number) for number in range(4)]
    send(store, *sent)
    (index,) = (path for path in objects_of(world.memory, "orders/0/") if path.endswith("-0.index"))
    overwrite(world.memory, index, b"damaged")
    (made,) = repair(world.open().runtime, check_store(world.memory).findings, dry_run=False)
    assert (made.path, made.is_made) == (index, True)
    assert check_store(world.memory).is_clean
    assert world.read() == [row["id"] for row in sent]


# -- a store without the feature `publication` ------------------------------------------------------------------------


@pytest.fixture
def unpublished(world: World) -> Store:
    return made_without(world, PUBLICATION)


def made_without(world: World, feature: str) -> Store:
    """Return a store that an earlier release has made."""
    store = world.open()
    features = tuple(each for each in STORE_FEATURES if each != feature)
    store.runtime.run(create_store(store.runtime.constants, features=features))
    return world.open()


def test_a_store_that_cannot_publish_refuses_the_setting(unpublished: Store) -> None:
    said = "topic 'orders': publish.formats=delta needs the feature 'publication', and the store was made without it"
    with pytest.raises(UnsupportedStoreError, match=said):
        unpublished.create_topic("orders", OLD, config={"publish.formats": "delta"})
    assert unpublished.topics() == ()
    unpublished.create_topic("orders", OLD, config={"publish.max.lag.ms": 5})
    with pytest.raises(UnsupportedStoreError, match=said):
        unpublished.alter_topic("orders", config={"publish.formats": ["delta"]})
    # A program that begins with this call goes on in an older store.
    found = unpublished.create_topic("orders", OLD, config={"publish.formats": "delta"}, if_not_exists=True)
    assert "publish.formats" not in found.config


def test_a_store_that_cannot_publish_newest_rows_refuses_them(world: World) -> None:
    """Also if a process's own settings ask for them."""
    store = made_without(world, PUBLISHED_LATEST)
    config = {"publish.formats": "delta", "key.columns": "id", "publish.max.lag.ms": 0}
    store.create_topic("orders", OLD, config=config)
    with pytest.raises(UnsupportedStoreError, match=r"publish.rows=latest needs the feature 'published-latest'"):
        store.alter_topic("orders", config={"publish.rows": "latest"})
    own = world.open(publish_rows="latest")
    with pytest.raises(
        UnsupportedStoreError, match=r"made without the feature 'published-latest'.*show older rows again"
    ):
        publish_topic(reading.read_session(own.runtime), own.runtime.topic("orders"))
    assert world.memory.list("orders/publication/") == []


def test_maintenance_leaves_a_setting_that_an_earlier_release_accepted(world: World, unpublished: Store) -> None:
    unpublished.create_topic("orders", OLD, config={"segment.batches": 2})
    with mock.patch("txlog.protocol.topic_changes.PUBLICATION", STORE_FEATURES[0]):
        unpublished.alter_topic("orders", config={"publish.formats": "delta"})
    send(unpublished, *({"id": number, "gone": "text"} for number in range(5)))
    for report in rounds(world):
        (step,) = (each for each in report.steps if each.step == "publish")
        assert [each.text for each in step.left] == [
            "publish.formats has no effect: the store was made without the feature 'publication'"
        ]
    # Other settings can be changed beside it, and it can be removed.
    store = world.open()
    store.alter_topic("orders", config={"retention.ms": 10**12})
    store.alter_topic("orders", remove_config=["publish.formats"])
    (report,) = rounds(world, 1)
    assert not [each for each in report.steps if each.step == "publish" and each.left]
