"""Another program may put any bytes where the formats' objects are.

Publishers and vacuum go on, or say so in one sentence.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.client.world import ORDERS, World, orders
from tests.fuzz.hostile import VALUES, changed, places
from txlog.client import reading
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum

HOUR_MS = 3_600_000
CONFIG = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0", "publish.retention.ms": "0"}
CONFIG |= {"segment.batches": "1", "inline.max.bytes": "0"}
BYTES = (
    b"", b"\0" * 64, b"{", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"[]", b"{}", b"5", b"9" * 5000, b"\xff\xfe",
    b'{"version":1e999,"size":1}', b'{"version":1e300}', b'{"version":-5}', b'{"version":true}', b'{"version":NaN}',
    b'{"version":' + b"9" * 5000 + b"}", b'{"version":9223372036854775807}', b'{"version":"7"}', b"PAR1" * 5,
    b"Obj\x01" * 9,
)  # fmt: skip


@cache
def objects() -> dict[str, bytes]:
    """Return a store with a topic of twelve versions in both formats, and some rows left out."""
    world = World()
    store = world.open()
    for name in ("orders", "other"):
        store.create_topic(name, ORDERS, config=CONFIG)
    with store.producer() as producer:
        for number in range(11):
            for name in ("orders", "other"):
                producer.send(name, orders(number)).result()
            world.clock.advance_ms(10)
            publish(world)
    store.admin().delete_records("orders", 0, 1)
    publish(world)
    found = {path: world.memory.get(path) or b"" for path in world.memory._objects}
    world.close()
    return found


def publish(world: World) -> dict[str, Any]:
    store = world.open()
    topics = [store.runtime.topic(name, 0) for name in ("orders", "other")]
    return dict(publish_topics(reading.read_session(store.runtime), topics))


def newest(folder: str, end: str) -> str:
    found = [path for path in objects() if path.startswith(f"orders/{folder}/") and path.endswith(end)]
    return max(found, key=lambda path: (len(path), path))


def targets() -> list[str]:
    return [
        newest("_delta_log", "0.json"), newest("_delta_log", ".json"), newest("_delta_log", "_last_checkpoint"),
        newest("_delta_log", "checkpoint.parquet"), newest("metadata", ".metadata.json"),
        newest("metadata", "hint.text"),
        current_list(),
    ]  # fmt: skip


def current_list() -> str:
    value = json.loads(objects()[newest("metadata", ".metadata.json")])
    manifests: str = value["snapshots"][-1]["manifest-list"]
    return "orders/metadata/" + manifests.rpartition("/")[2]


def try_it(path: str, data: bytes) -> None:
    """Publish and vacuum a store in which the object at `path` is `data`."""
    world = World()
    for name, value in objects().items():
        world.memory.put_if_absent(name, data if name == path else value)
    world.clock.advance_ms(HOUR_MS)
    with world.open().producer() as producer:
        for number in range(2):
            for name in ("orders", "other"):
                producer.send(name, orders(100 + number)).result()
            world.clock.advance_ms(10)
            made = publish(world)
            assert not isinstance(made["other"], Exception)
            found = made["orders"]
            if isinstance(found, TxlogError):
                assert found.__cause__ is None or "report this line as a bug" not in str(found), found
                assert len(str(found)) <= 300, found
    store = world.open()
    merge_partition(
        store.runtime, reading.read_session(store.runtime), TopicPartition("other", 0), MergePolicy(max_inputs=100)
    )
    for _ in range(2):
        world.clock.advance_ms(30 * HOUR_MS)
        report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        assert not [each for each in report.failed if "bug" in each[1]], report.failed
    assert report.deleted
    world.close()


@pytest.mark.parametrize("number", range(7))
def test_some_bytes(number: int) -> None:
    for data in BYTES[number::7]:
        try_it(targets()[number], data)


@cache
def many_versions() -> tuple[dict[str, bytes], int]:
    """Return a store whose Delta log has versions that vacuum looks at, and the time there."""
    world = World()
    world.open().create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta"})
    publish_some(world, 55)
    found = {path: world.memory.get(path) or b"" for path in world.memory._objects}
    now_ms = world.clock.now_ms()
    world.close()
    return found, now_ms


def publish_some(world: World, count: int) -> None:
    for number in range(count):
        store = world.open()
        with store.producer() as producer:
            producer.send("orders", orders(number)).result()
        world.clock.advance_ms(10)
        for _, made in publish_topics(reading.read_session(store.runtime), [store.runtime.topic("orders", 0)]):
            assert not isinstance(made, Exception), made


@pytest.mark.parametrize("data", [b'{"version":1e999,"size":1}', b"[" * 100_000], ids=["no end", "deep"])
def test_a_hint_that_raises_no_value_error(data: bytes) -> None:
    """Vacuum reads `_last_checkpoint` from publication 50 on, and a publisher at each tenth version."""
    found, now_ms = many_versions()
    world, path = World(), "orders/_delta_log/_last_checkpoint"
    world.seed = now_ms  # ids that the store does not have yet
    world.clock.advance_ms(now_ms - world.clock.now_ms())
    for name, value in found.items():
        world.memory.put_if_absent(name, data if name == path else value)
    world.clock.advance_ms(30 * HOUR_MS)
    for _ in range(2):
        store = world.open()
        report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        assert not report.failed
        world.clock.advance_ms(30 * HOUR_MS)
    publish_some(world, 10)
    assert json.loads(world.memory.get(path) or b"")["version"] == 60
    world.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(7))
def test_any_bytes(number: int) -> None:
    for data in BYTES:
        try_it(targets()[number], data)


@pytest.mark.parametrize("number", [1, 2, 4])
def test_some_values(number: int) -> None:
    try_values(targets()[number], 8)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_more_values(number: int) -> None:
    try_values(targets()[number], 400)


def try_values(path: str, count: int) -> None:
    """Try JSON of the right form, with one value replaced, left out or repeated."""
    first, newline, rest = objects()[path].partition(b"\n")
    value = json.loads(first)
    every = [(place, new, how) for place in places(value) for how in ("drop", "twice", "put") for new in VALUES]
    every = [each for each in every if each[2] == "put" or each[1] is None]
    for place, new, how in every[:: max(1, len(every) // count)]:
        edited = changed(value, place, new, how)
        try_it(path, json.dumps(edited).encode() + newline + rest)
