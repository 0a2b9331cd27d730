"""The newest row of each key: the same before and after compaction, tombstones and rows without a key included."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txlog.client.tables.latest as latest_module
from tests.client.world import World, rows_of, tp
from tests.effort import cases
from txlog.client import reading
from txlog.client.store import Store
from txlog.client.tables.latest import LatestTask, latest_tasks
from txlog.core.cleaning import MergePolicy
from txlog.core.fetch_plan import FilePiece
from txlog.errors import InvalidRequestError
from txlog.maintenance.compact import compact_partition, compact_partitions, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.storage.keys import key_values

SCHEMA = pa.schema((("id", pa.int64()), ("kind", pa.string()), ("name", pa.string()), ("amount", pa.int64())))
CONFIG: dict[str, Any] = {
    "segment.batches": 4,
    "inline.max.bytes": 4096,
    "cleanup.policy": "compact",
    "key.columns": "id,kind",
    "min.cleanable.dirty.ratio": 0.0,
}
DAY_MS = 86_400_000
Row = dict[str, Any]


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("prices", SCHEMA, partitions=2, config=CONFIG)
    return opened


def fill(store: Store, dice: random.Random, transactions: int = 15) -> None:
    """Append random rows of few keys, a fifth of them tombstones: committed, aborted and plain ones."""

    def some() -> list[Row]:
        return [
            {
                "id": dice.choice([None, *range(6)]),
                "kind": dice.choice(["a", "b"]),
                "name": None if gone else dice.choice([None, f"n{dice.randrange(1000)}"]),
                "amount": None if gone else dice.randrange(100),
            }
            for _ in range(dice.choice([1, 3, 300]))
            for gone in [dice.random() < 0.2]
        ]

    with store.producer("works") as works, store.producer() as plain:
        for _ in range(transactions):
            if dice.random() < 0.4:
                plain.send("prices", some()).result()
                continue
            works.begin_transaction()
            works.send("prices", some())
            works.flush()
            if dice.random() < 0.3:
                works.abort_transaction()
            else:
                works.commit_transaction()


def expected(store: Store, topic: str = "prices") -> list[Row]:
    """Return what a program that keeps a dictionary finds."""
    rows = rows_of(store.consumer(topic, auto_offset_reset="earliest"))
    newest: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: (row["_partition"], row["_offset"])):
        newest[row["id"], row["kind"]] = row
    kept = [row for row in newest.values() if (row["name"], row["amount"]) != (None, None)]
    return sorted(kept, key=lambda row: (row["_partition"], row["_offset"]))


def compact(store: Store, partition: int) -> None:
    policy = compaction_policy(store.runtime, store.runtime.topic("prices"))
    assert policy is not None
    compact_partition(store.runtime, reading.read_session(store.runtime), tp("prices", partition), policy)


@pytest.mark.parametrize("seed", cases(range(6)))
def test_the_newest_row_of_each_key_before_and_after_compaction(world: World, store: Store, seed: int) -> None:
    dice = random.Random(seed)
    prices = store.table("prices")
    names = prices.schema.names
    for _ in range(3):
        fill(store, dice)
        kept = [{name: row[name] for name in names} for row in expected(store)]
        assert prices.latest().read_all().to_pylist() == kept
        cheap = [row for row in kept if row["amount"] is not None and row["amount"] < 50]
        for where in ("amount < 50", pc.field("amount") < 50):
            found = prices.latest(["name", "id"], where).read_all().to_pylist()
            assert found == [{"name": row["name"], "id": row["id"]} for row in cheap]
        one = [row for row in kept if row["id"] == 3]
        for where in ("id = 3", pc.field("id") == 3):
            assert prices.latest(names, where).read_all().to_pylist() == one
        named = [row["amount"] for row in one if row["name"] is not None]
        assert prices.latest(["amount"], "id = 3 and name is not null").read_all().column(0).to_pylist() == named
        # Tombstones may go a day after the first compaction that saw them.
        world.clock.advance_ms(dice.choice([0, 2 * DAY_MS]))
        for partition in range(2):
            compact(store, partition)
        assert prices.latest().read_all().to_pylist() == kept
        assert prices.latest(names, "id = 3").read_all().to_pylist() == one
        if dice.random() < 0.5:
            policy = MergePolicy(target_bytes=2**30)
            merge_partition(store.runtime, reading.read_session(store.runtime), tp("prices", 0), policy)
            assert prices.latest().read_all().to_pylist() == kept
    assert sum(batch.num_rows for batch in prices.latest(["id"])) == len(kept)


def test_rows_without_a_key_and_kafka_s_columns(world: World) -> None:
    store = world.open()
    store.create_topic("events")
    with store.producer() as producer:
        for key, value in ((b"a", b"1"), (None, b"2"), (b"b", b"3"), (b"a", b"4"), (b"b", None), (None, None)):
            producer.send("events", [{"key": key, "value": value}], partition=0).result()
    found = store.table("events").latest(["key", "value", "_offset"]).read_all().to_pylist()
    assert [(row["key"], row["value"], row["_offset"]) for row in found] == [
        (None, b"2", 1),
        (b"a", b"4", 3),
        (None, None, 5),
    ]


def test_the_past_and_what_is_not_committed(world: World, store: Store) -> None:
    def send(producer: Any, amount: int) -> None:
        producer.send("prices", [{"id": 1, "kind": "a", "name": "x", "amount": amount}], partition=0).result()

    with store.producer() as plain, store.producer("hangs") as hanging:
        send(plain, 1)
        cut = store.snapshot("prices").table("prices")
        world.clock.advance_ms(1000)
        send(plain, 2)
        hanging.begin_transaction()
        send(hanging, 3)
        prices = store.table("prices")
        assert prices.latest(["amount"]).read_all().to_pylist() == [{"amount": 2}]
        assert cut.latest(["amount"]).read_all().to_pylist() == [{"amount": 1}]
        hanging.abort_transaction()
    first = prices.to_arrow(["_timestamp"], end={0: 1}).column(0)[0].as_py()
    assert prices.latest(["amount"], as_of=first).read_all().to_pylist() == [{"amount": 1}]
    assert store.snapshot("prices").table("prices").latest(["amount"]).read_all().to_pylist() == [{"amount": 2}]


def test_a_key_that_was_moved_has_a_row_in_each_partition(world: World) -> None:
    store = world.open()
    store.create_topic("moved", SCHEMA, config={"key.columns": "id"})
    rows = [{"id": number, "name": "old"} for number in range(8)]
    with store.producer() as producer:
        producer.send("moved", rows)
    store.alter_topic("moved", partitions=2, allow_key_movement=True)
    with store.producer() as producer:
        producer.send("moved", [{**row, "name": "new"} for row in rows])
    found = store.table("moved").latest(["id", "name", "_partition"]).read_all().to_pylist()
    stayed = {row["id"] for row in found if (row["_partition"], row["name"]) == (0, "new")}
    moved = {row["id"] for row in found if row["_partition"] == 1}
    assert stayed
    assert moved
    assert stayed | moved == set(range(8))
    assert {row["id"] for row in found if row["name"] == "old"} == moved
    assert len(found) == 8 + len(moved)


def latest_plan(store: Store, topic: str = "prices") -> list[LatestTask]:
    """Return what a read of the newest rows reads, planned now."""
    session = reading.read_session(store.runtime)
    plans = reading.plan_reads(session, {tp(topic, 0): (store_start(store, topic), None)})
    return latest_tasks(store.runtime, store.runtime.topic(topic), list(plans.values()), ["id", "name"])


def store_start(store: Store, topic: str) -> int:
    return store.admin().list_offsets(topic)[tp(topic, 0)].log_start_offset


def test_after_a_compaction_only_newer_keys_are_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a read of the newest rows costs what a scan costs."""
    store.create_topic("plain", SCHEMA, config={**CONFIG, "segment.batches": 1, "inline.max.bytes": 0})
    looked_at: list[int] = []

    def note(table: pa.Table, keys: Any) -> Any:
        looked_at.append(table.num_rows)
        return key_values(table, keys)

    monkeypatch.setattr(latest_module, "key_values", note)
    with store.producer() as producer:
        for number in range(4):
            producer.send("plain", [{"id": each, "kind": "a", "name": f"{number}"} for each in range(10)]).result()
    policy = compaction_policy(store.runtime, store.runtime.topic("plain"))
    assert policy is not None
    rows = store.table("plain")
    expected = rows.latest(["id", "name"]).read_all().to_pylist()
    compact_partition(store.runtime, reading.read_session(store.runtime), tp("plain", 0), policy)
    # The last batch is in the active segment.
    looked_at.clear()
    assert store.table("plain").latest(["id", "name"]).read_all().to_pylist() == expected
    assert sum(looked_at) == 10 + 10, "the new keys, and those of the compacted rows"
    (task,) = latest_plan(store, "plain")
    assert task.compacted_end == 30
    assert task.value_columns == (), "the statistics show that no name is null"


def test_a_run_that_is_compacted_in_part_keeps_its_rows(store: Store) -> None:
    """The map was full before the end of the run, so rows of a file lie below the compaction's end and behind it."""
    store.create_topic("partly", SCHEMA, config={**CONFIG, "segment.batches": 1, "inline.max.bytes": 0})
    with store.producer() as producer:
        producer.send("partly", [{"id": each, "kind": "a", "name": "old"} for each in range(10)]).result()
        producer.send("partly", [{"id": each, "kind": "a", "name": "new"} for each in (1, 8)]).result()
    policy = compaction_policy(store.runtime, store.runtime.topic("partly"))
    assert policy is not None
    session = reading.read_session(store.runtime)
    next(compact_partitions(session, {tp("partly", 0): replace(policy, max_keys=5)}))  # one pass of two
    (task,) = latest_plan(store, "partly")
    assert task.compacted_end == 5
    names = {row["id"]: row["name"] for row in store.table("partly").latest(["id", "name"]).read_all().to_pylist()}
    assert names == {each: "new" if each in (1, 8) else "old" for each in range(10)}


@pytest.mark.parametrize("careful", [True, False])
def test_a_deleted_key_stays_deleted_when_a_file_goes_during_the_read(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, careful: bool
) -> None:
    """Compactions remove a tombstone and the older row. The file of the tombstone goes before that of the row."""
    store.create_topic("forgotten", SCHEMA, config={**CONFIG, "segment.batches": 1, "inline.max.bytes": 0})

    def send(**row: Any) -> None:
        with store.producer() as producer:
            producer.send("forgotten", [{"kind": "a", **row}]).result()

    def clean() -> None:
        policy = compaction_policy(store.runtime, store.runtime.topic("forgotten"))
        assert policy is not None
        compact_partition(store.runtime, reading.read_session(store.runtime), tp("forgotten", 0), policy)

    send(id=1, name="ann")
    send(id=2, name="bob")
    store.admin().seal("forgotten")
    clean()
    send(id=1)
    store.admin().seal("forgotten")
    (task,) = latest_plan(store, "forgotten")
    assert task.compacted_end == 2
    for _ in range(2):
        clean()
        world.clock.advance_ms(2 * DAY_MS)
    clean()
    assert [row["id"] for row in rows_of(store.consumer("forgotten", auto_offset_reset="earliest"))] == [2]
    of_tombstone = task.keys.pieces[-1]
    assert isinstance(of_tombstone, FilePiece)
    world.memory.delete(f"forgotten/{of_tombstone.file.path}")
    if not careful:
        # The bug: a look at the newer keys goes on in the newer files.
        monkeypatch.setattr(
            latest_module, "replace", lambda task, **changes: replace(task, **{**changes, "relist": True})
        )
    found = [
        row["id"]
        for batch in task.read(lambda one: reading.read_task(one, world.memory), world.memory)
        for row in batch.to_pylist()
    ]
    assert found == ([2] if careful else [1, 2])


def test_a_topic_without_a_key_is_refused(world: World, store: Store) -> None:
    store.create_topic("plain", SCHEMA)
    with pytest.raises(InvalidRequestError, match=r"topic 'plain' has no key, .*hint: set key\.columns of the topic"):
        store.table("plain").latest()
