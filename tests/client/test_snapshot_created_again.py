"""Each way of reading refuses a snapshot of a topic that was created again meanwhile, each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.client.tables.snapshot import Snapshot
from txlog.client.tables.table import TopicTable
from txlog.errors import UnknownTopicOrPartitionError
from txlog.protocol.snapshot import take_snapshot

READS: dict[str, Callable[[TopicTable], Any]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "where": lambda table: table.count("id > 0"),
    "column": lambda table: table.to_arrow(["id"]),
    "count": lambda table: table.count(),
    "latest": lambda table: table.latest().read_all(),
    "schema": lambda table: table.schema,
    "stream": lambda table: pa.RecordBatchReader.from_stream(table).read_all(),
}


@pytest.fixture(params=[[], [1, 2]], ids=["empty", "rows"])
def snapshot(world: World, request: pytest.FixtureRequest) -> Snapshot:
    store = world.open()
    for name in ("t", "other"):
        store.create_topic(name, {"id": "int64"}, config={"key.columns": "id"})
    with store.producer() as producer:
        for number in request.param:
            producer.send("t", [{"id": number}]).result()
    return world.open().snapshot("t", "other")


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("how", READS)
def test_each_read_says_that_the_topic_was_created_again(
    world: World, snapshot: Snapshot, how: str, is_known: bool
) -> None:
    table = snapshot.table("t")
    store = world.open()
    store.delete_topic("t")
    store.create_topic("t", {"id": "int64"}, config={"key.columns": "id"})
    with store.producer() as producer:
        producer.send("t", [{"id": 7}]).result()
    if is_known:
        runtime = snapshot._runtime
        runtime.forget_topic("t")
        runtime.topic("t", 0)
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
            READS[how](table)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        snapshot.table("t")
    assert READS[how](snapshot.table("other")) is not None
    anew = store.snapshot("t", "other").table("t")
    assert anew.to_arrow(["id"]).to_pylist() == [{"id": 7}]


def test_a_cut_is_of_the_topics_that_existed_after_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    store.create_topic("t", {"id": "int64"})
    with store.producer() as producer:
        producer.send("t", [{"id": 1}]).result()
    reader = world.open()

    def again(*args: Any) -> Any:
        monkeypatch.setattr(reading, "take_snapshot", take_snapshot)
        result = yield from take_snapshot(*args)
        store.delete_topic("t")
        store.create_topic("t", {"id": "int64"})
        with store.producer() as producer:
            producer.send("t", [{"id": 2}]).result()
        return result

    monkeypatch.setattr(reading, "take_snapshot", again)
    with pytest.raises(UnknownTopicOrPartitionError, match="deleted and created again"):
        reader.snapshot("t")
    assert reader.snapshot("t").table("t").to_arrow(["id"]).to_pydict() == {"id": [2]}


def consumer_of(store: Store) -> Any:
    return store.consumer("t", auto_offset_reset="earliest", max_poll_records=1)


def test_a_consumer_with_an_old_view_goes_on_with_the_new_topic(world: World) -> None:
    store = world.open()
    store.create_topic("t", {"id": "int64"}, config={"segment.batches": "1"})
    with store.producer() as producer:
        for number in range(4):
            producer.send("t", [{"id": number}]).result()
    shared = world.open()
    consumer = consumer_of(shared)
    assert consumer.poll(0).column("id").to_pylist() == [0]
    store.delete_topic("t")
    store.create_topic("t", {"id": "int64"})
    with store.producer() as producer:
        producer.send("t", [{"id": 9}]).result()
    shared.runtime.forget_topic("t")
    shared.runtime.topic("t", 0)
    found: list[int] = []
    for _ in range(12):
        try:
            batch = consumer.poll(0)
        except UnknownTopicOrPartitionError:
            continue
        if batch is not None:
            found += batch.column("id").to_pylist()
    assert found[-1:] == [9]
    assert found[:-1] == list(range(1, len(found)))
