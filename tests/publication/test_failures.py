"""A failure in one topic, or in the middle of a publication or of a vacuum, harms no other and is made good."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders
from tests.maintenance.crashes import Strikes, prepared, strike_everywhere
from tests.publication.lives import publish
from txlog.client import reading
from txlog.client.store import Store
from txlog.core import envelope, names
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.core.row_runs import count_rows
from txlog.errors import (
    CoordinatorContentionError,
    InvalidConfigurationError,
    InvalidRequestError,
    RecordTooLargeError,
    StorageError,
    TxlogError,
)
from txlog.maintenance.maintain import Maintainer
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import publications, vacuum_published
from txlog.protocol.publications import append_publication, read_chain
from txlog.publication import formats, publish as publishing
from txlog.publication.outcome import Published
from txlog.storage.parquet_file import OpenedFile

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0"}
HOUR_MS = 3_600_000
WHOLE_EVERY = 6
A = TopicPartition("orders", 0)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def newest(store: Store, topic: str = "orders") -> Tables:
    found = store.runtime.run(read_chain(topic)).newest
    assert found is not None
    return found


def sweep(world: World, *topics: str) -> Any:
    other = world.open()
    return vacuum(other.runtime, reading.read_session(other.runtime), list(topics) or None, dry_run=False)


# -- one of many topics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [ZeroDivisionError("a bug"), OSError("no space"), TxlogError("known")])
def test_no_error_of_one_topic_stops_the_others(
    raised: Exception, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open()
    for name in ("broken", "orders"):
        store.create_topic(name, ORDERS, config=CONFIG)
    write = formats.write_version

    def fails(name: Any, before: Any, after: Tables, *args: Any, **more: Any) -> Any:
        if after.newest.topic == "broken":
            raise raised
        return write(name, before, after, *args, **more)

    monkeypatch.setattr(publishing, "write_version", fails)
    topics = [store.runtime.topic(name, 0) for name in ("broken", "orders")]
    (_, broken), (_, made) = publish_topics(reading.read_session(store.runtime), topics)
    assert isinstance(made, Published)
    assert isinstance(broken, TxlogError)
    assert str(raised) in str(broken)
    if not isinstance(raised, TxlogError):
        assert f"topic 'broken' could not be published, because of {type(raised).__name__}" in str(broken)
        assert "test_failures.py, line " in str(broken)
        assert broken.__cause__ is raised
    report = Maintainer(store.runtime).run()
    (step,) = (each for each in report.steps if each.step == "publish")
    assert [each.topic for each in step.failed] == ["broken"]
    assert report.is_whole


def test_tables_that_cannot_go_on_do_not_stop_vacuum_elsewhere(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    for name in ("huge", "orders"):
        store.create_topic(name, ORDERS, config={**CONFIG, "publish.retention.ms": "0"})
        with store.producer() as producer:
            producer.send(name, orders(1)).result()
        publish(world.open(), name)

    def refuses(ctx: Any, before: Any, publication: Any) -> Any:
        if publication.topic == "huge":
            raise RecordTooLargeError("it names too many files")
        return append_publication(ctx, before, publication)

    monkeypatch.setattr(vacuum_published, "append_publication", refuses)
    world.clock.advance_ms(100 * HOUR_MS)
    report = sweep(world)
    assert report.failed == (("huge", "it names too many files"),)
    assert "orders" in report.topics
    assert newest(store).number == 1, "vacuum went on to the other topic"


def test_an_unknown_format_concerns_its_topic_alone(world: World) -> None:
    """A later version of txlog may know more formats."""
    store = world.open()
    for name in ("later", "orders"):
        store.create_topic(name, ORDERS, config=CONFIG)
        publish(world.open(), name)
    path = "later/topic.00000000000000000001.json"
    old = store.runtime.topic("later", 0)
    store.alter_topic("later", config={"publish.formats": "iceberg"})
    altered = store.runtime.topic("later", 0)
    assert altered.number == old.number + 1
    changed = msgspec.structs.replace(altered, config={**altered.config, "publish.formats": "hudi"})
    overwrite(world.memory, path, envelope.encode(changed))
    fresh = world.open()
    with pytest.raises(InvalidConfigurationError, match=r"topic 'later': .*hudi.*delta"):
        publish(fresh, "later")
    world.clock.advance_ms(100 * HOUR_MS)
    report = sweep(world)
    assert [topic for topic, _ in report.failed] == ["later"]
    assert newest(store).number == 1
    assert newest(store, "later").number == 0


def test_a_topic_that_is_deleted_in_the_middle_is_named(world: World) -> None:
    store = world.open()
    for name in ("old", "orders"):
        store.create_topic(name, ORDERS, config=CONFIG)
    topics = [store.runtime.topic(name, 0) for name in ("old", "orders")]
    store.delete_topic("old")
    (_, old), (_, made) = publish_topics(reading.read_session(store.runtime), topics)
    assert isinstance(old, InvalidRequestError)
    assert "'old'" in str(old)
    assert isinstance(made, Published)


def test_a_missing_library_is_named_before_anything_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "pyiceberg" or name == "txlog.publication.iceberg_files":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    import txlog.publication

    monkeypatch.delattr(txlog.publication, "iceberg_files", raising=False)
    store = world.open()
    store.create_topic("frozen", ORDERS, config={**CONFIG, "publish.formats": "delta,iceberg"})
    store.create_topic("orders", ORDERS, config=CONFIG)
    with pytest.raises(InvalidRequestError, match=r"needs pyiceberg.*hint: pip install 'pyspark-txlog\[iceberg\]'"):
        publish(store, "frozen")
    assert store.runtime.run(read_chain("frozen")).newest is None
    assert list(world.memory.list("frozen/_delta_log/")) == []
    report = Maintainer(store.runtime).run()
    assert report.is_whole
    assert [(each.step, each.failed[0].topic) for each in report.steps if each.failed] == [("publish", "frozen")]
    assert newest(store).number == 0


# -- what a publisher that gives up tells ------------------------------------------------------------------------------


def _fails_at_iceberg(monkeypatch: pytest.MonkeyPatch, raised: Exception) -> None:
    write = formats.write_version

    def fails(name: Any, before: Any, after: Tables, *args: Any, **more: Any) -> Any:
        if name == "iceberg" and after.number == 1:
            raise raised
        return write(name, before, after, *args, **more)

    monkeypatch.setattr(publishing, "write_version", fails)


@pytest.mark.parametrize("raised", [StorageError("HTTP 500"), ZeroDivisionError("a bug")])
def test_an_error_tells_how_many_publications_were_created(
    raised: Exception, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.formats": "delta,iceberg"})
    with store.producer() as producer:
        producer.send("orders", orders(1)).result()
    world.clock.advance_ms(10)
    _fails_at_iceberg(monkeypatch, raised)
    ((_, error),) = publish_topics(reading.read_session(store.runtime), [store.runtime.topic("orders", 0)])
    assert isinstance(error, TxlogError)
    assert error.__notes__ == [
        "Topic 'orders': this call has created 2 publications. The next "
        "`txlog publish orders --once` writes what is missing."
    ]
    monkeypatch.undo()
    made = publish(world.open())
    assert (made.number, made.publications) == (1, 0)
    assert world.memory.get("orders/metadata/v2.metadata.json") is not None
    # An error of a call that has created nothing has no such note.
    monkeypatch.setattr(publishing, "read_chain", _raises(StorageError("HTTP 500")))
    with pytest.raises(StorageError) as found:
        publish(world.open())
    assert not hasattr(found.value, "__notes__")


def _raises(error: Exception) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


def test_a_publisher_that_is_always_slower_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has created number 0 itself. Then another process adds a partition before each of its cuts."""
    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    shown = publishing._Attempt._shown

    def slow(attempt: Any) -> Any:
        other = world.open()
        other.alter_topic("orders", partitions=other.runtime.topic("orders", 0).partitions + 1)
        return shown(attempt)

    monkeypatch.setattr(publishing._Attempt, "_shown", slow)
    with pytest.raises(CoordinatorContentionError, match=r"topic 'orders': .* in 20 rounds .* hint: ") as found:
        publish(world.open())
    assert len(str(found.value)) <= 300
    assert found.value.__notes__ == [
        "Topic 'orders': this call has created 1 publication. The next "
        "`txlog publish orders --once` writes what is missing."
    ]
    assert newest(store).number == 0
    monkeypatch.undo()
    with store.producer() as producer:
        producer.send("orders", orders(1)).result()
    world.clock.advance_ms(10)
    publish(world.open())
    assert newest(store).number == 1


# -- a publisher or a vacuum that died ---------------------------------------------------------------------------------


def test_a_missed_checkpoint_is_written_by_the_next_publisher(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from txlog.publication import delta

    store = world.open()
    store.create_topic("orders", ORDERS, config=CONFIG)
    path = f"orders/_delta_log/{10:020d}.checkpoint.parquet"
    write = delta._write_checkpoint

    def dies(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(delta, "_write_checkpoint", dies)
    with store.producer() as producer:
        for number in range(10):
            producer.send("orders", orders(number)).result()
            world.clock.advance_ms(10)
            if number < 9:
                publish(world.open())
    with pytest.raises(KeyboardInterrupt):
        publish(world.open())
    monkeypatch.setattr(delta, "_write_checkpoint", write)
    assert newest(store).version_of("delta") == 10
    assert world.memory.get(path) is None
    assert publish(world.open()).publications == 0
    expected = world.memory.get(path)
    assert expected is not None
    files = newest(store).files
    rows = OpenedFile(world.memory, path, len(expected), None).parquet.read(columns=["add"]).to_pylist()
    assert {row["add"]["path"] for row in rows if row["add"] is not None} == set(files)
    # The version that vacuum appends meanwhile does not hide it.
    world.memory.delete(path)
    world.clock.advance_ms(100 * HOUR_MS)
    sweep(world, "orders")
    assert newest(store).version_of("delta") == 11
    publish(world.open())
    assert world.memory.get(path) == expected


def long_chain(store: Store) -> None:
    """Publish more often than a list of all files lasts, with copies and files that a merge replaced."""
    store.create_topic(
        "orders", ORDERS, config={**CONFIG, "publish.retention.ms": str(HOUR_MS), "segment.batches": "1"}
    )
    for number in range(WHOLE_EVERY + 3):
        with store.producer() as producer:
            producer.send("orders", orders(number)).result()
        store.runtime.clock.sleep_ms(10)
        publish(store)
        if number % 3 == 2:
            merge_partition(store.runtime, reading.read_session(store.runtime), A, MergePolicy(target_bytes=2**30))


def sweep_and_check(store: Store) -> None:
    """Vacuum, then check that the tables have all files, and that a publisher goes on."""
    report = vacuum(store.runtime, reading.read_session(store.runtime), ["orders"], dry_run=False)
    assert report.failed == ()
    tables = newest(store)
    held = store.runtime.store
    assert [path for path in tables.files if held.get(f"orders/{path}") is None] == []
    numbers = [int(name[:20]) for name in held.list("orders/publication/") if name.endswith(".json")]
    assert numbers == list(range(WHOLE_EVERY, tables.number + 1))


def test_a_vacuum_may_die_at_each_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of old publications is deleted by the next vacuum, and never takes a file along."""
    monkeypatch.setattr(publications, "WHOLE_EVERY", WHOLE_EVERY)
    objects, now_ms = prepared(long_chain)
    assert sum("/publication/" in path for path in objects) > WHOLE_EVERY
    strikes: Strikes = (("crash", "before"),)
    tally = strike_everywhere(objects, now_ms, sweep_and_check, work_on=A, pass_ms=2 * HOUR_MS, strikes=strikes)
    assert tally.strikes > WHOLE_EVERY


def test_a_vacuum_that_died_before_a_whole_publication_does_not_stop_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has deleted a publication in the middle, and the newest one is the whole one that needs none of them."""
    monkeypatch.setattr(publications, "WHOLE_EVERY", WHOLE_EVERY)
    store = world.open()
    store.create_topic("orders", ORDERS, config={**CONFIG, "publish.retention.ms": str(HOUR_MS)})
    with store.producer() as producer:
        for number in range(WHOLE_EVERY):
            producer.send("orders", orders(number)).result()
            world.clock.advance_ms(10)
            publish(world.open())
    assert newest(store).number == WHOLE_EVERY
    world.clock.advance_ms(2 * HOUR_MS)
    world.memory.delete(names.publication_path("orders", 3))
    assert sweep(world, "orders").failed == ()
    assert newest(store).number == WHOLE_EVERY
    left = [names.parse_publication_name(name) for name in world.memory.list("orders/publication/")]
    assert [number for number in left if number is not None] == [WHOLE_EVERY]


# -- columns ----------------------------------------------------------------------------------------------------------


def _columns_of(world: World, tables: Tables) -> dict[str, tuple[str, str]]:
    """Return the name and the type of the second column of each published file."""
    found = {}
    for path, file in tables.files.items():
        field = OpenedFile(world.memory, f"orders/{path}", file.bytes, None).parquet.schema_arrow.field(1)
        found[path] = (field.name, str(field.type))
    return found


def _with_copy(world: World, formats: str) -> Any:
    """Publish a file in which a transaction is still open: the tables have the row before it, as a copy.

    Return that transaction's producer.
    """
    store = world.open()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32())])
    store.create_topic("orders", schema, config={"publish.formats": formats, "publish.max.lag.ms": "0"})
    slow = world.open().producer("t", staged=False)
    slow.init_transactions()
    slow.begin_transaction()
    with store.producer() as other:
        other.send("orders", [{"id": 1, "n": 1}]).result()
        slow.send("orders", [{"id": 2, "n": 2}]).result()
        slow.flush()
    world.clock.advance_ms(10)
    assert publish(world.open()).rows_copied == 1
    return slow


def _publish_with_merges(world: World) -> Published:
    store = world.open()
    ((_, made),) = publish_topics(reading.read_session(store.runtime), [store.runtime.topic("orders", 0)])
    assert isinstance(made, Published)
    return made


def test_a_column_that_gets_wider_after_rows_were_copied(world: World) -> None:
    slow = _with_copy(world, "delta")
    slow.commit_transaction()
    store = world.open()
    store.alter_topic("orders", set_types={"n": pa.int64()})
    assert _publish_with_merges(world).must_rewrite == ()
    assert set(_columns_of(world, newest(store)).values()) == {("n", "int64")}
    assert sum(file.rows - count_rows(file.removed) for file in newest(store).files.values()) == 2


def test_a_copy_with_another_name_is_replaced_with_its_source(world: World) -> None:
    """The source has the column's first name again, and the copy was written in between. Delta goes by names."""
    pytest.importorskip("pyiceberg")
    slow = _with_copy(world, "iceberg")
    store = world.open()
    store.alter_topic("orders", rename_columns={"n": "m"})
    slow.commit_transaction()
    world.clock.advance_ms(10)
    assert publish(world.open()).rows_copied == 1
    assert set(_columns_of(world, newest(store)).values()) == {("n", "int32"), ("m", "int32")}
    store.alter_topic("orders", rename_columns={"m": "n"})
    store.alter_topic("orders", config={"publish.formats": "iceberg,delta"})
    assert [each.why for each in publish(world.open()).must_rewrite] == ["column 'n' is 'm' there"]
    assert _publish_with_merges(world).must_rewrite == ()
    assert set(_columns_of(world, newest(store)).values()) == {("n", "int32")}
    assert sum(file.rows - count_rows(file.removed) for file in newest(store).files.values()) == 2
