"""Which rows does each version show, not only the newest: beside sorted and compacted runs, sleeps, and changes of the
topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.client.world import ORDERS, World, many, orders
from tests.publication.lives import publish
from txlog.client import reading
from txlog.client.producer import Producer
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.errors import InvalidRequestError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import read_chain
from txlog.publication import iceberg, publish as publishing
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_file import OpenedFile
from txlog.testing.clock import ManualClock

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0", "segment.batches": "1"}
A = TopicPartition("orders", 0)
HOUR_MS = 3_600_000


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def tables_of(world: World) -> tuple[Tables, ...]:
    return world.open().runtime.run(read_chain("orders")).tables


def rows_of(world: World, tables: Tables, columns: tuple[str, ...] = ("id",)) -> list[tuple[Any, ...]]:
    """Return the rows of a version, sorted. Raises if a file is missing."""
    found: list[tuple[Any, ...]] = []
    for file in tables.files.values():
        opened = OpenedFile(world.memory, f"orders/{file.path}", file.bytes, None)
        rows = opened.parquet.read(columns=list(columns)).to_pylist()
        gone = {row for run in file.removed for row in range(run.first_row, run.end_row)}
        found += [tuple(row[name] for name in columns) for at, row in enumerate(rows) if at not in gone]
    return sorted(found)


def history(world: World, columns: tuple[str, ...] = ("id",)) -> list[tuple[str, list[tuple[Any, ...]]]]:
    return [(each.newest.operation, rows_of(world, each, columns)) for each in tables_of(world)]


def merge(world: World, policy: MergePolicy | None = None, layout: FileLayout | None = None) -> None:
    other = world.open()
    session = reading.read_session(other.runtime)
    more: dict[str, Any] = {} if layout is None else {"layout": layout}
    merge_partition(other.runtime, session, A, policy or MergePolicy(target_bytes=2**30), **more)


def sweep(world: World, passes: int = 1) -> None:
    for _ in range(passes):
        world.clock.advance_ms(25 * HOUR_MS)
        other = world.open()
        assert not vacuum(other.runtime, reading.read_session(other.runtime), dry_run=False).failed


def ones(*ids: int) -> list[tuple[int]]:
    return [(each,) for each in ids]


def long_rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each, "name": "x" * 40} for each in ids]


def test_a_sorted_run_has_its_rows_in_another_order_than_the_log(world: World) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with world.open(inline_max_bytes=0).producer() as producer:
        for ids in ((8, 7, 6), (5, 4, 3)):
            producer.send("orders", long_rows(*ids)).result()
        world.clock.advance_ms(10)
        publish(world.open())
        for later in ((2, 1, 0), (50,)):
            producer.send("orders", long_rows(*later)).result()
    merge(world, MergePolicy(), FileLayout(sort=("id",)))
    world.clock.advance_ms(10)
    publish(world.open())
    assert history(world) == [
        ("append", []),
        ("append", ones(3, 4, 5, 6, 7, 8)),
        ("replace", ones(3, 4, 5, 6, 7, 8)),
        ("append", ones(0, 1, 2, 3, 4, 5, 6, 7, 8, 50)),
    ]
    store.admin().delete_records("orders", 0, 4)
    publish(world.open())
    assert rows_of(world, tables_of(world)[-1]) == ones(0, 1, 2, 3, 4, 50)


def test_a_compaction_takes_no_key_from_the_tables(world: World) -> None:
    """It has used newer rows that the tables do not show yet. So these are added before files are replaced."""
    store = world.open()
    keyed = {"key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    store.create_topic("orders", ORDERS, config={**CONFIG, **keyed})

    def commit(producer: Producer, *rows: tuple[int, str]) -> None:
        with producer.transaction():
            producer.send("orders", [{"id": key, "name": name} for key, name in rows])

    with store.producer("t") as producer:
        commit(producer, (1, "a"), (2, "a"))
        world.clock.advance_ms(10)
        publish(world.open())
        for key in (1, 3, 4):
            commit(producer, (key, "b"))
    world.clock.advance_ms(100 * HOUR_MS)
    merge(world, MergePolicy(target_bytes=1))
    other = world.open()
    policy = compaction_policy(other.runtime, other.runtime.topic("orders", 0))
    assert policy is not None
    compact_partition(other.runtime, reading.read_session(other.runtime), A, policy)
    made = publish(world.open())
    assert (made.publications, made.files_removed, made.rows_added) == (2, 1, 3)
    now = [(1, "b"), (2, "a"), (3, "b"), (4, "b")]
    assert history(world, ("id", "name")) == [
        ("append", []),
        ("append", [(1, "a"), (2, "a")]),
        ("append", sorted([(1, "a"), *now])),
        ("replace", now),
    ]


@pytest.mark.parametrize("sleeps_at", [1, 2])
def test_the_first_publisher_of_a_topic_may_sleep(
    sleeps_at: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No publication has a number that vacuum could take, so the first one names no file."""
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    with store.producer() as producer:
        for first in (0, 3000, 6000):
            producer.send("orders", many(3000, first)).result()
        producer.send("orders", orders(90_000)).result()
    world.clock.advance_ms(10)
    append = publishing._Attempt._append
    calls: list[int] = []

    def sleeps(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == sleeps_at:
            merge(world)
            sweep(world, 3)
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", sleeps)
    publish(world.open())
    assert len(rows_of(world, tables_of(world)[-1])) == 9001
    assert [rows_of(world, each) for each in tables_of(world)[:sleeps_at]] == [[]] * sleeps_at


def test_a_second_cut_lists_the_log_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge supersedes new rows after the first cut, and the publisher sleeps after the second one.

    Vacuum deletes their files before it takes a number: the publication between the two cuts is younger than they are.
    """
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    grace_ms = store.runtime.constants.delete_grace_ms
    with store.producer() as producer:
        for first in (0, 3000, 6000):
            producer.send("orders", many(3000, first)).result()
        world.clock.advance_ms(10)
        publish(world.open())
        merge(world)
        for first in (9000, 12_000, 15_000):
            producer.send("orders", many(3000, first)).result()
        producer.send("orders", orders(90_000)).result()
    world.clock.advance_ms(10)
    append = publishing._Attempt._append
    calls: list[str] = []

    def sleeps(*args: Any) -> Any:
        calls.append(args[3])
        if len(calls) == 1:
            merge(world)
            world.clock.advance_ms(60_000)
        elif len(calls) == 2:
            world.clock.advance_ms(grace_ms - 30_000)
            deleted: list[str] = []
            for _ in range(3):
                other = world.open()
                report = vacuum(other.runtime, reading.read_session(other.runtime), dry_run=False)
                deleted += [each.dead.path for each in report.deleted]
            assert [path for path in deleted if path.endswith(".parquet")] != []
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", sleeps)
    publish(world.open())
    assert calls[0] == "replace"
    assert len(calls) > 1
    assert len(rows_of(world, tables_of(world)[-1])) == 18_001


def test_a_publication_that_ended_and_begins_again_has_no_copies_of_before(world: World) -> None:
    store = world.open()
    config = {**CONFIG, "segment.batches": "100", "publish.retention.ms": str(HOUR_MS)}
    store.create_topic("orders", ORDERS, config=config)
    with store.producer() as plain, store.producer("t", staged=False) as late:
        late.begin_transaction()
        plain.send("orders", orders(1)).result()
        late.send("orders", orders(2)).result()
        world.clock.advance_ms(10)
        assert publish(world.open()).rows_copied == 1
        late.abort_transaction()
    store.alter_topic("orders", remove_config=["publish.formats"])
    publish(world.open())
    (copy,) = [path for path, file in tables_of(world)[-1].files.items() if file.source]
    sweep(world, 8)
    assert world.memory.get(f"orders/{copy}") is None
    for name in world.memory.list("orders/_delta_log/"):
        world.memory.delete(f"orders/_delta_log/{name}")
    store.alter_topic("orders", config=config)
    publish(world.open())
    assert rows_of(world, tables_of(world)[-1]) == ones(1)


def _before_the_cut(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    cut = publishing._Attempt._shown
    done: list[int] = []

    def late(attempt: Any) -> Any:
        if not done:
            done.append(1)
            change()
        return cut(attempt)

    monkeypatch.setattr(publishing._Attempt, "_shown", late)


def test_a_partition_that_is_added_before_the_cut_is_in_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    publish(store)

    def change() -> None:
        world.open().alter_topic("orders", partitions=2)
        with world.open().producer("t") as producer, producer.transaction():
            producer.send("orders", orders(1), partition=0)
            producer.send("orders", orders(2), partition=1)
        world.clock.advance_ms(10)

    _before_the_cut(monkeypatch, change)
    publish(world.open())
    assert history(world) == [("append", []), ("append", ones(1, 2))]


def test_a_column_that_is_dropped_before_the_cut_is_not_in_the_tables(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    publish(store)

    def change() -> None:
        world.open().alter_topic("orders", drop_columns=["name"])
        with world.open().producer() as producer:
            producer.send("orders", [{"id": 1}]).result()
        world.clock.advance_ms(10)

    _before_the_cut(monkeypatch, change)
    publish(world.open())
    for tables in tables_of(world):
        for file in tables.files.values():
            assert file.schema_id <= tables.newest.topic_version
    assert rows_of(world, tables_of(world)[-1]) == ones(1)


def test_a_publisher_that_loses_a_number_looks_at_the_log_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.max.lag.ms": "60000", "segment.batches": "2"})
    publish(store)
    with world.open(inline_max_bytes=0).producer() as large, store.producer() as small:
        large.send("orders", orders(0)).result()
        small.send("orders", orders(1)).result()
        small.send("orders", orders(2)).result()
    append = publishing._Attempt._append
    calls: list[int] = []

    def raced(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            with world.open().producer() as other:
                other.send("orders", orders(3)).result()
                other.send("orders", orders(4)).result()
            merge(world)
            publish(world.open())
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", raced)
    publish(world.open())
    assert rows_of(world, tables_of(world)[-1]) == ones(0, 1, 2, 3)


def test_what_iceberg_does_not_take_is_refused_before_anything_is_written(world: World) -> None:
    store = world.open()
    item = pa.struct([("b", pa.int64())])
    columns = pa.schema([("a.b", pa.int64()), ("a", item)])
    store.create_topic("orders", columns, config={**CONFIG, "publish.formats": "iceberg"})
    with pytest.raises(InvalidRequestError, match=r"topic .orders.: Iceberg does not take these columns: .*a\.b"):
        publish(store)
    assert world.memory.list("orders/publication/") == []
    topic = store.runtime.topic("orders", 0)
    with pytest.raises(InvalidRequestError, match=r"of a store with '#' in its URL, file:///a#b\."):
        iceberg.check_writable(topic, "file:///a#b")


class Busy:
    """A store in which another process does something before one of `every` requests, up to request `last`."""

    def __init__(self, inner: ObjectStore, act: Callable[[], object], *, every: int, last: int) -> None:
        self._inner, self._act, self._every, self._last = inner, act, every, last
        self._asked = 0

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(*args: Any) -> Any:
            self._asked += 1
            if self._asked <= self._last and self._asked % self._every == 0:
                self._act()
            return found(*args)

        return request


@pytest.mark.parametrize("every", [10, 20, 36, 44])
def test_a_publisher_with_a_clock_ahead_of_the_grace_takes_its_cut_again(world: World, every: int) -> None:
    """Each row that comes while it looks is older than delete.grace.ms by its clock. It gives these a file, too."""
    lazy = {"publish.formats": "delta", "publish.max.lag.ms": "10000"}
    world.open(delete_grace_ms=20_000).create_topic("orders", ORDERS, config=lazy, partitions=4)
    ahead = World.of(world.memory, ManualClock(world.clock.now_ms() + 60_000))
    ids = count()
    with world.open().producer() as producer:

        def send() -> None:
            number = next(ids)
            producer.send("orders", orders(number), partition=number % 4).result()

        publish(ahead.open(cast(ObjectStore, Busy(ahead.counting, send, every=every, last=150))))
    shown = [row for (row,) in rows_of(world, tables_of(world)[-1])]
    for partition in range(4):
        own = [row for row in shown if row % 4 == partition]
        assert own == list(range(partition, 4 * len(own), 4))
    ahead.clock.advance_ms(10_001)
    publish(ahead.open())
    assert rows_of(world, tables_of(world)[-1]) == ones(*range(next(ids)))
    ahead.close()
