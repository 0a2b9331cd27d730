"""A publisher may die or get no answer at every request, and others may be faster: all end in the same tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.client.world import ORDERS, World, many, orders
from tests.maintenance.crashes import prepared, strike_everywhere
from tests.maintenance.test_crashes import history, merge
from tests.publication.lives import Follower, publish
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.features import PUBLICATION, STORE_FEATURES
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.errors import InvalidRequestError, TableConflictError, UnsupportedStoreError
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import append_publication, read_chain
from txlog.publication import formats as table_formats, publish as publishing
from txlog.publication.outcome import Published
from txlog.storage.parquet_file import OpenedFile
from txlog.testing.clock import ManualClock
from txlog.testing.failing_store import FailingStore

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0"}
A = TopicPartition("orders", 0)
HOUR_MS = 3_600_000


def tables_of(store: Store, topic: str = "orders") -> Tables:
    """Return the newest tables, after a check that the Delta log has the same files."""
    chain = store.runtime.run(read_chain(topic))
    assert chain.newest is not None
    live: dict[str, int] = {}
    for version in range(chain.newest.version_of("delta") + 1):
        data = store.runtime.store.get(f"{topic}/_delta_log/{version:020d}.json")
        assert data is not None, version
        actions = [json.loads(line) for line in data.splitlines()]
        for action in actions:
            if "remove" in action:
                del live[action["remove"]["path"]]
        for action in actions:
            if "add" in action:
                vector = action["add"].get("deletionVector") or {"cardinality": 0}
                live[action["add"]["path"]] = vector["cardinality"]
    assert live == {
        path: sum(run.end_row - run.first_row for run in file.removed) for path, file in chain.newest.files.items()
    }
    return chain.newest


def tables_of_chain(store: Store) -> Tables:
    """Return the newest tables, whatever formats they have."""
    chain = store.runtime.run(read_chain("orders"))
    assert chain.newest is not None
    return chain.newest


def publish_and_check(store: Store) -> None:
    """Publish, and compare the tables with what a read shows."""
    assert isinstance(store.runtime.clock, ManualClock)
    store.runtime.clock.advance_ms(10)
    publish(store)
    tables = tables_of(store)
    shown = store.snapshot("orders").table("orders").to_arrow().to_pylist()
    expected = sum(tables.has(row["_partition"], row["_offset"]) for row in shown)
    assert (
        sum(file.rows - sum(r.end_row - r.first_row for r in file.removed) for file in tables.files.values())
        == expected
    )
    # A sealing that failed is left to the next publisher.
    assert expected == len(shown) or isinstance(store.runtime.store, FailingStore)


def published_history(store: Store) -> None:
    """Publish a history, merge it, and append more: the next publication replaces files and adds others."""
    history(store, CONFIG)
    publish(store)
    merge(store)
    with store.producer("z", staged=False) as eager:
        eager.begin_transaction()
        eager.send("orders", [{"id": 900, "name": "new"}]).result()
        eager.commit_transaction()


@pytest.mark.parametrize("prepare", [lambda store: history(store, CONFIG), published_history], ids=["first", "next"])
def test_a_publisher_may_die_at_every_request(prepare: Callable[[Store], None]) -> None:
    objects, now_ms = prepared(prepare)
    tally = strike_everywhere(objects, now_ms, publish_and_check, work_on=A, pass_ms=1000)
    assert tally.operations > 10
    assert tally.strikes > 20


@pytest.mark.parametrize("latest", [False, True])
def test_two_publishers_at_once_make_one_table(monkeypatch: pytest.MonkeyPatch, latest: bool) -> None:
    world = World()
    store = world.open()
    newest = {"key.columns": "id", "publish.rows": "latest"} if latest else {}
    store.create_topic("orders", ORDERS, partitions=2, config=CONFIG | newest)
    publish(store)
    with store.producer() as producer:
        producer.send("orders", orders(1, 2, 3), partition=0).result()
        producer.send("orders", orders(4), partition=1).result()
    raced: list[int] = []

    def faster(*args: Any) -> Any:
        if not raced:
            raced.append(1)
            assert publish(world.open()).publications == 1
        return append_publication(*args)

    monkeypatch.setattr(publishing, "append_publication", faster)
    world.clock.advance_ms(10)
    late = publish(world.open())
    assert (late.publications, late.rows_added, late.files_added) == (0, 0, 0)
    assert (tables_of(store).number, tables_of(store).newest.cut_at > 0) == (1, True)
    with store.producer() as producer:
        producer.send("orders", orders(5), partition=1).result()
    world.clock.advance_ms(10)
    assert publish(store).rows_added == 1
    assert tables_of(store).number == 2
    world.close()


def test_a_publisher_that_died_before_the_format_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    publish(store)
    write = table_formats.write_version

    def dies(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    for number in range(1, 3):
        with store.producer() as producer:
            producer.send("orders", orders(number)).result()
        world.clock.advance_ms(10)
        monkeypatch.setattr(publishing, "write_version", dies)
        with pytest.raises(KeyboardInterrupt):
            publish(world.open())
        chain = store.runtime.run(read_chain("orders"))
        assert chain.newest is not None
        assert world.memory.get(chain.newest.path_of("delta")) is None
        monkeypatch.setattr(publishing, "write_version", write)
        assert publish(world.open()).publications == 0
        assert tables_of(store).number == number
    world.close()


@pytest.mark.parametrize("left", [None, b"1"])
def test_a_publisher_that_died_before_the_hint_is_completed(left: bytes | None) -> None:
    """Readers that get only the topic's folder would find no table, or an old version, until there are new rows."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "iceberg"})
    for number in range(2):
        with store.producer() as producer:
            producer.send("orders", orders(number)).result()
        world.clock.advance_ms(10)
        publish(store)
    hint = "orders/metadata/version-hint.text"
    assert world.memory.get(hint) == b"3"
    world.memory.delete(hint)
    if left is not None:
        world.memory.put_if_absent(hint, left)
    assert publish(world.open()).publications == 0
    assert world.memory.get(hint) == b"3"
    world.close()


def test_a_replacement_adds_no_new_row() -> None:
    """A follower of a Delta table takes a file of a replacement for no change, and would miss its rows."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "segment.batches": "1"})
    with store.producer() as producer:
        producer.send("orders", many(3000)).result()
        producer.send("orders", many(3000, 3000)).result()
        world.clock.advance_ms(10)
        publish(world.open())
        store.admin().delete_records("orders", 0, 3000)
        producer.send("orders", many(3000, 6000)).result()
        world.clock.advance_ms(10)
        made = publish(world.open())
    assert (made.publications, made.files_removed, made.files_added, made.rows_added) == (2, 1, 1, 3000)
    chain = store.runtime.run(read_chain("orders"))
    assert [(each.newest.operation, len(each.newest.added)) for each in chain.tables[2:]] == [
        ("replace", 0),
        ("append", 1),
    ]
    (new,) = chain.tables[3].newest.added
    lines = (world.memory.get("orders/_delta_log/00000000000000000003.json") or b"").splitlines()
    adds = [action["add"] for action in map(json.loads, lines) if "add" in action]
    assert [(each["path"], each["dataChange"]) for each in adds] == [(new.path, True)]
    world.close()


def test_a_publisher_with_an_old_version_of_the_topic_takes_the_new_one() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as producer:
        producer.send("orders", orders(1)).result()
        slow = world.open()
        old = slow.runtime.topic("orders", 0)
        store.alter_topic("orders", partitions=3)
        world.clock.advance_ms(10)
        publish(world.open())
        producer.send("orders", orders(2), partition=2).result()
        world.clock.advance_ms(10)
        assert publishing.publish_topic(reading.read_session(slow.runtime), old).rows_added == 1
    assert len(tables_of(store).newest.partitions) == 3
    world.close()


def test_a_publisher_that_sleeps_after_a_replacement_takes_another_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum goes by the age of the newest publication, and the replacement is younger than the cut (W58, C13)."""
    world = World()
    store = world.open()
    config = {**CONFIG, "publish.retention.ms": "0", "segment.batches": "1"}
    store.create_topic("orders", ORDERS, config=config)

    def clean(policy: MergePolicy) -> None:
        other = world.open()
        merge_partition(other.runtime, reading.read_session(other.runtime), A, policy)

    def sweep() -> None:
        other = world.open()
        vacuum(other.runtime, reading.read_session(other.runtime), dry_run=False)

    with store.producer() as producer:
        for first in (0, 3000, 6000):
            producer.send("orders", many(3000, first)).result()
        producer.send("orders", orders(90_000)).result()
        world.clock.advance_ms(10)
        publish(world.open())
        clean(MergePolicy(max_inputs=3))
        for first in (10_000, 13_000, 16_000):
            producer.send("orders", many(3000, first)).result()
        producer.send("orders", orders(99_000)).result()
    append = publishing._Attempt._append
    slept: list[int] = []

    def sleeps(*args: Any) -> Any:
        slept.append(1)
        if len(slept) == 1:
            clean(MergePolicy(target_bytes=2**30))
            sweep()
            world.clock.advance_ms(24 * 3_600_000 - 60_000)
        elif len(slept) == 2:
            world.clock.advance_ms(120_000)
            sweep()
            sweep()
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", sleeps)
    publish(world.open())
    newest = store.runtime.run(read_chain("orders")).newest
    assert newest is not None
    assert [path for path in newest.files if world.memory.get(f"orders/{path}") is None] == []
    assert len(slept) > 1
    world.close()


@pytest.mark.parametrize("ends", [False, True])
def test_readers_keep_the_version_that_they_see_if_its_successor_has_no_format(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publisher dies between a publication and its format, so the version before is the newest that is shown
    (C13)."""
    world = World()
    store = world.open()
    config = {**CONFIG, "publish.retention.ms": str(48 * HOUR_MS), "segment.batches": "1"}
    store.create_topic("orders", ORDERS, config=config)
    with store.producer() as producer:
        for first in (0, 3000):
            producer.send("orders", many(3000, first)).result()
        producer.send("orders", orders(90_000)).result()
    world.clock.advance_ms(10)
    publish(world.open())
    shown = tables_of(store).files
    merge_partition(store.runtime, reading.read_session(store.runtime), A, MergePolicy(target_bytes=2**30))

    def dies(*args: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(publishing, "write_version", dies)
        with pytest.raises(KeyboardInterrupt):
            publish(world.open())
    assert tables_of_chain(store).number == 2

    def sweep(passes: int) -> None:
        for _ in range(passes):
            world.clock.advance_ms(25 * HOUR_MS)
            other = world.open()
            vacuum(other.runtime, reading.read_session(other.runtime), dry_run=False)

    def gone() -> list[str]:
        return [path for path in shown if world.memory.get(f"orders/{path}") is None]

    sweep(8)
    assert gone() == []
    if ends:
        store.alter_topic("orders", remove_config=["publish.formats"])
    else:
        publish(world.open())
        tables_of(store)
    sweep(1)
    assert gone() == []
    # Now the version is replaced for readers, too, and its time is over.
    sweep(4)
    assert len(gone()) >= 2
    world.close()


def test_rows_inside_commit_records_wait_for_their_lag() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.max.lag.ms": "60000"})
    with store.producer() as producer:
        producer.send("orders", orders(1, 2)).result()
        assert (publish(store).rows_added, tables_of(store).files) == (0, {})
        world.clock.advance_ms(60_001)
        producer.send("orders", orders(3)).result()
        assert publish(store).rows_added == 3
    world.close()


def test_a_renamed_column_rewrites_the_files_first() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as producer:
        producer.send("orders", orders(1, 2)).result()
        world.clock.advance_ms(10)
        publish(store)
        before = tables_of(store)
        store.alter_topic("orders", rename_columns={"name": "title"})
        assert [each.why for each in publish(store).must_rewrite] == ["column 'title' is 'name' there"]
        assert tables_of(store).number == before.number, "the tables wait"
        session = reading.read_session(store.runtime)
        ((_, made),) = publish_topics(session, [store.runtime.topic("orders", 0)])
        assert not isinstance(made, Exception)
        assert (made.files_added, made.files_removed, made.rows_added) == (1, 1, 0)
        assert not set(tables_of(store).files) & set(before.files)
    world.close()


@pytest.mark.parametrize("formats", ["delta", "iceberg,delta"])
def test_an_open_transaction_does_not_stop_tables_whose_columns_were_renamed(formats: str) -> None:
    """No merge may take a file above the LSO, so its rows are copied with the new names."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": formats, "segment.batches": "1"})
    late = store.producer("late", staged=False)
    late.init_transactions()
    late.begin_transaction()
    late.send("orders", orders(7))
    late.flush()

    def made() -> Published:
        session = reading.read_session(world.open().runtime)
        ((_, found),) = publish_topics(session, [world.open().runtime.topic("orders", 0)])
        assert isinstance(found, Published)
        assert found.must_rewrite == ()
        return found

    def send(name: str, *ids: int) -> None:
        with world.open().producer() as producer:
            producer.send("orders", [{"id": number, name: "x"} for number in ids]).result()
        world.clock.advance_ms(10)

    def names() -> set[str]:
        found = set()
        for path, file in tables_of(store).files.items():
            opened = OpenedFile(world.memory, f"orders/{path}", file.bytes, None)
            found |= {*opened.parquet.schema_arrow.names} - {"_offset", "_timestamp"}
        return found

    follower = Follower(world)
    send("name", 1, 2)
    made()
    send("name", 3)
    for new, number in (("title", 4), ("label", 5)):
        world.open().alter_topic("orders", rename_columns={"name" if new == "title" else "title": new})
        send(new, number)
        made()
        assert names() == {"id", new}
        assert sorted(follower.rows(tables_of(store)).elements()) == [*range(1, number + 1)]
        assert publish(store).publications == 0
    late.commit_transaction()
    world.clock.advance_ms(10)
    made()
    made()
    assert names() == {"id", "label"}
    assert sorted(follower.rows(tables_of(store)).elements()) == [1, 2, 3, 4, 5, 7]
    follower.follow(store.runtime.run(read_chain("orders")).tables)
    assert max(follower.seen.values()) == 1, "a reader that follows the tables sees each row once"
    late.close()
    world.close()


def test_what_cannot_be_published_is_refused() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS)
    with pytest.raises(InvalidRequestError, match="topic 'orders' is not published"):
        publish(store)
    world.close()


def test_a_store_without_the_feature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    descriptor = store.runtime.require_store()
    older = tuple(each for each in STORE_FEATURES if each != PUBLICATION)
    monkeypatch.setattr(store.runtime, "_descriptor", msgspec.structs.replace(descriptor, features=older))
    with pytest.raises(UnsupportedStoreError, match="without the feature 'publication'"):
        publish(store)
    world.close()


def test_a_format_that_was_removed_does_not_go_on_over_its_old_table() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    publish(store)
    store.alter_topic("orders", remove_config=["publish.formats"])
    assert (publish(store).publications, tables_of_chain(store).newest.formats) == (1, {})
    with pytest.raises(InvalidRequestError, match="is not published"):
        publish(store)
    store.alter_topic("orders", config=CONFIG)
    with pytest.raises(TableConflictError, match=r"orders/_delta_log/0{20}\.json: .* a table lies there already"):
        publish(store)
    world.memory.delete("orders/_delta_log/00000000000000000000.json")
    assert publish(store).publications == 1
    assert tables_of(store).version_of("delta") == 0
    world.close()


@pytest.mark.parametrize("formats", ["", "iceberg,"])
def test_two_publishers_begin_a_format_at_once(formats: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG | {"publish.formats": "iceberg" if formats else "delta"})
    if formats:
        publish(store)
        store.alter_topic("orders", config={"publish.formats": formats + "delta"})
    first_version = table_formats.first_version

    def late(name: Any, topic: str) -> Any:
        monkeypatch.setattr(table_formats, "first_version", first_version)
        publish(world.open())
        return first_version(name, topic)

    monkeypatch.setattr(table_formats, "first_version", late)
    assert publish(store).publications == 0
    assert tables_of(store).version_of("delta") == 0
    world.close()
