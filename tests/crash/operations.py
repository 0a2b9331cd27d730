"""Every public operation that writes, as a program that may die anywhere, with the conditions after a restart.

An operation acts through the public client on a store with a history. It notes what it begins and which acknowledgement
it gets. `judge` compares these notes with what readers see. A unit is there as a whole and once, or not at all. What
was acknowledged is there. Committed offsets match the rows to which they belong.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

import txlog
from lab.invariants import Census, check_store
from lab.testing.damage import overwrite
from txlog.client.consumer import Consumer
from txlog.client.groups import GroupOffsets, offset_values
from txlog.client.producer import Producer
from txlog.client.session.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.transactions.staged_files import StagedFiles
from txlog.clock import Clock, IdGenerator, SystemClock
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.errors import FencedError, NotAStoreError, TopicExistsError, UnknownTopicOrPartitionError
from txlog.storage.conform import conform
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore

SCHEMA = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
ID = "loader"
GROUP = "g"
A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("audit", 0)

Note: TypeAlias = Callable[[str, str], None]
"""Takes an event (begin, ok, aborted) and the name of a unit."""
Notes: TypeAlias = Sequence[tuple[str, str]]
Restart: TypeAlias = Literal["init", "maintenance"]

SETTINGS: Mapping[str, object] = {
    # Rows are sent when the operation waits for them, so that each run has the same batches.
    "linger.ms": 10_000,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 20,
    # The open transaction of a dead process is overdue at once, so that a maintenance pass need not wait for it.
    "transaction.timeout.ms": 1,
    # Every operation that sends `large` rows has one file of rows beside inline batches.
    "inline.max.bytes": 4096,
    # A maintenance pass lists all partitions of each internal topic, so there are two.
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A transaction or one batch. It is there as a whole, or not at all."""

    rows: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Offsets of the group GROUP that belong to the rows."""
    eager: bool = False
    """Its rows enter the log before it is decided, so read_uncommitted may show some of them."""
    shows: Callable[[Store], bool] | None = None
    """For a change that is neither rows nor offsets: returns whether it took effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One public operation.

    It notes for each unit: begin, before the call that may create the unit; ok or aborted, the answer of the call. A
    caller that gets an error notes failed.
    """

    act: Callable[[Store, Note], None]
    units: Mapping[str, Unit] = field(default_factory=dict)
    ids: tuple[str, ...] = (ID,)
    """The ids that a restart inits. Without any, or for drawn ids, the restart is a maintenance pass."""
    repeat: Callable[[Store], None] = lambda store: None
    """The user's call after a crash: the same call again, if it promises to finish what the first one began."""


HISTORY = Unit(rows={A: (1, 4), B: (2,)}, offsets={A: 1})


def history(store: Store, segment_batches: int) -> None:
    """Make two topics, a committed and an aborted transaction, a plain append and a group's offset."""
    config = {"segment.batches": segment_batches}
    store.create_topic("orders", SCHEMA, partitions=2, config=config)
    store.create_topic("audit", SCHEMA, config=config)
    with store.producer(ID, staged=False) as producer:
        with producer.transaction():
            send(producer, A, 1)
            send(producer, B, 2)
            producer.send_offsets_to_transaction({A: 1}, GROUP)
        producer.begin_transaction()
        send(producer, A, 3)
        producer.flush()
        producer.abort_transaction()
    with store.producer() as producer:
        send(producer, A, 4)


# -- rows -------------------------------------------------------------------------------------------------------------


def left_open(store: Store, note: Note) -> Producer:
    """Return a producer with an open transaction, whose rows are in the log."""
    producer = store.producer(ID)
    producer.init_transactions()
    note("begin", "txn")
    producer.begin_transaction()
    send(producer, A, 10)
    send(producer, C, 13)
    producer.flush()
    return producer


def eager_transaction(store: Store, note: Note) -> None:
    with store.producer(ID, staged=False) as producer:
        note("begin", "txn")
        producer.begin_transaction()
        send(producer, A, 10, 11)
        producer.flush()
        large(producer, B, 12)
        send(producer, C, 13)
        producer.flush()
        send(producer, A, 14)
        producer.send_offsets_to_transaction({A: 5, B: 3}, GROUP)
        producer.commit_transaction()
        note("ok", "txn")


def eager_abort(store: Store, note: Note) -> None:
    with store.producer(ID, staged=False) as producer:
        note("begin", "txn")
        producer.begin_transaction()
        send(producer, A, 10)
        large(producer, B, 12)
        producer.flush()
        producer.send_offsets_to_transaction({A: 5}, GROUP)
        producer.abort_transaction()
        note("aborted", "txn")
        note("begin", "next")
        with producer.transaction():
            send(producer, A, 20)
        note("ok", "next")


def rows_and_offsets(producer: Producer, note: Note) -> None:
    note("begin", "txn")
    producer.begin_transaction()
    send(producer, A, 10, 11)
    large(producer, B, 12)
    send(producer, C, 13)
    producer.send_offsets_to_transaction({A: 5, B: 3}, GROUP)
    producer.commit_transaction(version=1)
    note("ok", "txn")


def staged_transaction(store: Store, note: Note) -> None:
    with store.producer(ID, staged=True) as producer:
        rows_and_offsets(producer, note)


def deferred_transaction(store: Store, note: Note) -> None:
    """Rows wait for their commit; those of B become a file."""
    with store.producer(ID) as producer:
        rows_and_offsets(producer, note)


def deferred_without_offsets(store: Store, note: Note) -> None:
    """Nothing is in the store before the decision."""
    with store.producer(ID) as producer:
        note("begin", "txn")
        with producer.transaction():
            send(producer, A, 10)
            send(producer, B, 12)
        note("ok", "txn")


def staged_on_condition(store: Store, note: Note) -> None:
    with store.producer(ID, staged=True) as producer:
        note("begin", "txn")
        producer.begin_transaction()
        send(producer, A, 10)
        send(producer, B, 12)
        producer.send_offsets_to_transaction({A: 5, B: 3}, GROUP, expected={A: 1, B: None})
        producer.commit_transaction()
        note("ok", "txn")


def append(store: Store, note: Note) -> None:
    with store.producer() as producer:
        for name, tp, ids in (("one", A, (10, 11)), ("two", B, (12,)), ("three", A, (13,))):
            note("begin", name)
            (large if name == "two" else send)(producer, tp, *ids)
            producer.flush()
            note("ok", name)


def _member(store: Store, *, enable_auto_commit: bool = False) -> Consumer:
    """Return the group's one member. After a crash the next one takes over its partitions at once."""
    return store.consumer(
        "orders",
        group_id=GROUP,
        group_instance_id="one",
        enable_auto_commit=enable_auto_commit,
        auto_offset_reset="earliest",
    )


def pipeline(store: Store, note: Note) -> None:
    """Consume, transform, produce: the rows of partition 0 from the group's offset on."""
    with (
        store.producer(ID) as producer,
        _member(store) as consumer,
    ):
        note("begin", "txn")
        with producer.transaction():
            ids = [row["id"] for batch in consumer.iterate() for row in batch.to_pylist()]
            for one in sorted(ids):
                send(producer, C, one + 100)
                producer.flush()
            offsets = {tp: consumer.position(tp) for tp in consumer.assignment()}
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        note("ok", "txn")


def takeover(store: Store, note: Note) -> None:
    """End what an older instance left open and what it left decided, by inits that may die themselves."""
    old = left_open(store, note)
    with store.producer(ID) as new:
        note("aborted", "txn")
        note("begin", "next")
        with new.transaction():
            send(new, B, 20)
        note("ok", "next")
    with contextlib.suppress(FencedError):
        old.close()


# -- groups -----------------------------------------------------------------------------------------------------------


def group_commit(store: Store, note: Note) -> None:
    with _member(store) as consumer:
        for _ in consumer.iterate():
            pass
        note("begin", "offsets")
        consumer.commit({A: 5, B: 3})
        note("ok", "offsets")


def group_reset(store: Store, note: Note) -> None:
    note("begin", "offsets")
    store.admin().reset_offsets(GROUP, {A: 5, B: 3})
    note("ok", "offsets")


def group_close(store: Store, note: Note) -> None:
    """Close a consumer with auto-commit."""
    consumer = _member(store, enable_auto_commit=True)
    note("begin", "offsets")
    consumer.seek(A, 5)
    consumer.seek(B, 3)
    consumer.close()
    note("ok", "offsets")


def subscribe(store: Store, note: Note) -> None:
    note("begin", "member")
    store.consumer("orders", group_id=GROUP, enable_auto_commit=False)
    note("ok", "member")


def _had_member(store: Store) -> bool:
    return store.admin().describe_group(GROUP).generation >= 1  # the group keeps the generation after a member leaves


def remove_members(store: Store, note: Note) -> None:
    consumer = store.consumer("orders", group_id=GROUP, enable_auto_commit=False)
    note("begin", "removed")
    store.admin().remove_members(GROUP)
    note("ok", "removed")
    consumer.close()


def _is_removed(store: Store) -> bool:
    return store.admin().describe_group(GROUP).generation >= 2


def delete_group(store: Store, note: Note) -> None:
    note("begin", "gone")
    store.admin().delete_group(GROUP)
    note("ok", "gone")


def _has_no_group(store: Store) -> bool:
    return GROUP not in {found.group for found in store.admin().list_groups()}


# -- the calls of Spark -----------------------------------------------------------------------------------------------


def spark_commit(store: Store, note: Note, transactional_id: str | None = ID) -> None:
    """Make the calls of a Spark write, in its driver's order: begin, the tasks' files, commit by another process,
    forget."""
    with contextlib.closing(_as_another_process(store)) as driver:
        txn = StagedTransaction.begin(driver, transactional_id, transaction_timeout_ms=1)
    note("begin", "txn")
    with contextlib.closing(_as_another_process(store)) as executor:
        files = StagedFiles(executor, txn.txn)
        for topic, ids, partitions in (("orders", (10, 12), (0, 1)), ("audit", (13,), (0,))):
            metadata = executor.topic(topic)
            for one, partition in zip(ids, partitions, strict=True):
                files.add(metadata, conform([{"id": one}], metadata.schema, topic=topic), partition)
        parts = files.finish()
    with contextlib.closing(_as_another_process(store)) as driver:
        resumed = StagedTransaction.resume(driver, txn.txn, drawn=txn.drawn, attempted=False)
        offsets = GroupOffsets(
            group=GROUP,
            offsets=offset_values({A: 5, B: 3}),
            condition=OffsetsCondition(expected={A: 1, B: None}) if transactional_id is not None else None,
        )
        resumed.commit(parts, offsets=[offsets], version=None if transactional_id is None else 7)
        note("ok", "txn")
        resumed.forget()


def spark_commit_drawn(store: Store, note: Note) -> None:
    """The user gives no transactional.id: one is drawn, and forgotten after the commit."""
    spark_commit(store, note, None)


def spark_abort(store: Store, note: Note) -> None:
    """Make a commit fail as Spark's driver sees it, and then the abort that the driver calls."""
    with contextlib.closing(_as_another_process(store)) as driver:
        txn = StagedTransaction.begin(driver, ID, transaction_timeout_ms=1)
        files = StagedFiles(driver, txn.txn)
        metadata = driver.topic("orders")
        files.add(metadata, conform([{"id": 10}], metadata.schema, topic="orders"), 0)
        files.finish()
        note("begin", "txn")
        StagedTransaction.resume(driver, txn.txn, drawn=False, attempted=True).abort()
        note("aborted", "txn")


# -- transactions of others -------------------------------------------------------------------------------------------


def operator_abort(store: Store, note: Note) -> None:
    producer = left_open(store, note)
    producer.send_offsets_to_transaction({A: 5}, GROUP)
    store.admin().abort_transaction(ID)
    note("aborted", "txn")


def sweep(store: Store, note: Note) -> None:
    left_open(store, note)
    store.runtime.clock.sleep_ms(3)
    store.admin().expire()
    note("aborted", "txn")


def forget_id(store: Store, note: Note) -> None:
    note("begin", "forgotten")
    store.admin().expire_id(ID, force=True)
    note("ok", "forgotten")


def _is_forgotten(store: Store) -> bool:
    return ID not in {found.transactional_id for found in store.admin().list_transactions()}


def delete_records(store: Store, note: Note) -> None:
    note("begin", "removed")
    store.admin().delete_records("orders", 0, 2)
    note("ok", "removed")


def _has_fewer_records(store: Store) -> bool:
    return store.admin().list_offsets("orders")[A].log_start_offset == 2


# -- topics -----------------------------------------------------------------------------------------------------------


def _unheard(event: str, unit: str) -> None:
    """Ignore the notes of a repetition."""


def create_topic(store: Store, note: Note = _unheard) -> None:
    with contextlib.suppress(TopicExistsError):
        note("begin", "topic")
        store.create_topic("new", SCHEMA, partitions=3, config={"segment.batches": 5})
        note("ok", "topic")
    found = store.topic("new")
    assert (found.partitions, found.schema.names) == (3, ["id", "name"])


def alter_topic(store: Store, note: Note = _unheard) -> None:
    if "extra" not in store.topic("orders").schema.names:
        note("begin", "column")
        store.alter_topic("orders", add_columns=pa.schema([("extra", pa.float64())]), partitions=3)
        note("ok", "column")
    note("begin", "setting")
    store.alter_topic("orders", config={"retention.ms": 1000})
    note("ok", "setting")
    found = store.topic("orders")
    assert (found.partitions, found.schema.names[-1]) == (3, "extra")
    assert found.config["retention.ms"] in (1000, "1000")


def delete_topic(store: Store, note: Note = _unheard) -> None:
    """Delete the topic while a transaction has rows in it; the rows are deleted too."""
    with contextlib.suppress(UnknownTopicOrPartitionError):
        note("begin", "deleted")
        store.delete_topic("orders")
        note("ok", "deleted")
    assert [topic.name for topic in store.topics()] == ["audit"]


def delete_beside_transaction(store: Store, note: Note) -> None:
    producer = store.producer(ID)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, A, 10)
    producer.flush()
    delete_topic(store, note)
    producer.abort_transaction()


def make_anew(store: Store, note: Note = _unheard) -> None:
    """Delete the topic, and create it again under the same name."""
    if store.topic("audit").config.get("retention.ms") is None:
        with contextlib.suppress(UnknownTopicOrPartitionError):
            store.delete_topic("orders")
        with contextlib.suppress(TopicExistsError):
            note("begin", "anew")
            store.create_topic("orders", SCHEMA, partitions=2)
            note("ok", "anew")
        store.alter_topic("audit", config={"retention.ms": 1})
    assert store.topic("orders").partitions == 2


def first_topic(store: Store, note: Note = _unheard) -> None:
    """Create a topic in an empty place, which also creates the store."""
    create_topic(store, note)


def _has(topic: str, version: int = 0) -> Callable[[Store], bool]:
    def shows(store: Store) -> bool:
        try:
            return any(found.name == topic and found.version >= version for found in store.topics())
        except NotAStoreError:
            return False

    return shows


_TOPIC = {"topic": Unit(shows=_has("new"))}
_DELETED = {"deleted": Unit(shows=lambda store: not _has("orders")(store))}
_BOTH = {"txn": Unit(rows={A: (10,), B: (12,)}, offsets={A: 5, B: 3})}
_OFFSETS = {"offsets": Unit(offsets={A: 5, B: 3})}
_OPEN = {"txn": Unit(rows={A: (10,), C: (13,)}, offsets={}, eager=True)}
_SPARK = {"txn": Unit(rows={A: (10,), B: (12,), C: (13,)}, offsets={A: 5, B: 3})}

OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(
        act=append,
        units={"one": Unit(rows={A: (10, 11)}), "two": Unit(rows={B: (12,)}), "three": Unit(rows={A: (13,)})},
    ),
    "eager transaction": Operation(
        act=eager_transaction,
        units={"txn": Unit(rows={A: (10, 11, 14), B: (12,), C: (13,)}, offsets={A: 5, B: 3}, eager=True)},
    ),
    "eager abort": Operation(
        act=eager_abort,
        units={
            "txn": Unit(rows={A: (10,), B: (12,)}, offsets={A: 5}, eager=True),
            "next": Unit(rows={A: (20,)}, eager=True),
        },
    ),
    "staged transaction": Operation(
        act=staged_transaction, units={"txn": Unit(rows={A: (10, 11), B: (12,), C: (13,)}, offsets={A: 5, B: 3})}
    ),
    "deferred transaction": Operation(
        act=deferred_transaction, units={"txn": Unit(rows={A: (10, 11), B: (12,), C: (13,)}, offsets={A: 5, B: 3})}
    ),
    "deferred without offsets": Operation(act=deferred_without_offsets, units={"txn": Unit(rows={A: (10,), B: (12,)})}),
    "staged on a condition": Operation(act=staged_on_condition, units=_BOTH),
    "pipeline": Operation(act=pipeline, units={"txn": Unit(rows={C: (102, 104)}, offsets={A: 5, B: 2}, eager=True)}),
    "takeover": Operation(act=takeover, units={**_OPEN, "next": Unit(rows={B: (20,)}, eager=True)}),
    "group commit": Operation(act=group_commit, units=_OFFSETS),
    "group reset": Operation(act=group_reset, units=_OFFSETS),
    "Spark commit": Operation(act=spark_commit, units=_SPARK),
    "Spark commit, drawn id": Operation(act=spark_commit_drawn, units=_SPARK, ids=()),
    "Spark abort": Operation(act=spark_abort, units={"txn": Unit(rows={A: (10,)})}),
    "operator's abort": Operation(
        act=operator_abort, units={"txn": Unit(rows={A: (10,), C: (13,)}, offsets={A: 5}, eager=True)}
    ),
    "sweep": Operation(act=sweep, units=_OPEN),
    "forget an id": Operation(act=forget_id, units={"forgotten": Unit(shows=_is_forgotten)}),
    "create a topic": Operation(act=create_topic, units=_TOPIC, repeat=create_topic),
    "alter a topic": Operation(
        act=alter_topic,
        units={
            "column": Unit(shows=lambda store: "extra" in store.topic("orders").schema.names),
            "setting": Unit(shows=lambda store: "retention.ms" in store.topic("orders").config),
        },
        repeat=alter_topic,
    ),
    "delete a topic": Operation(act=delete_topic, units=_DELETED, repeat=delete_topic),
    "delete beside a transaction": Operation(act=delete_beside_transaction, units=_DELETED, repeat=delete_topic),
    "make a topic anew": Operation(act=make_anew, units={"anew": Unit(shows=_has("orders", 2))}, repeat=make_anew),
    "make a store": Operation(act=first_topic, units=_TOPIC, repeat=first_topic, ids=()),
}
CALLS: Mapping[str, Operation] = {
    **OPERATIONS,
    # These write one record each, so a crash cannot tear them. Other tests check their answers.
    "delete records": Operation(act=delete_records, units={"removed": Unit(shows=_has_fewer_records)}),
    "delete a group": Operation(act=delete_group, units={"gone": Unit(shows=_has_no_group)}),
    "remove a member": Operation(act=remove_members, units={"removed": Unit(shows=_is_removed)}),
    "subscribe": Operation(act=subscribe, units={"member": Unit(shows=_had_member)}),
    "close a consumer": Operation(act=group_close, units=_OFFSETS),
}
WITHOUT_ROWS = (
    "delete a topic",
    "delete beside a transaction",
    "make a topic anew",
    "make a store",
    "delete records",
    "delete a group",
)
"""Their history is deleted, or never existed."""


# -- the life of a process --------------------------------------------------------------------------------------------


def open_store(
    object_store: ObjectStore,
    clock: Clock | None = None,
    ids: IdGenerator | None = None,
    settings: Mapping[str, object] = SETTINGS,
) -> Store:
    """Open the store as one process does. With a test's clock it makes requests one by one, the same in each run."""
    store = txlog.open(object_store.url, object_store=object_store, config=settings, clock=clock, ids=ids)
    if clock is not None:
        _make_sequential(store.runtime)
    return store


def prepared(
    name: str, segment_batches: int, clock: Clock | None = None, ids: IdGenerator | None = None
) -> dict[str, bytes]:
    """Return the objects of the store that an operation finds, by path."""
    memory = MemoryObjectStore(clock=clock)
    if name != "make a store":
        with open_store(memory, clock, ids) as store:
            history(store, segment_batches)
    return dict(objects_of(memory))


def fill(store: ObjectStore, objects: Mapping[str, bytes]) -> None:
    """Put the objects into the store."""
    for path, data in objects.items():
        overwrite(store, path, data)


def objects_of(store: ObjectStore, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield every object, by path."""
    for name in store.list(prefix):
        if name.endswith("/"):
            yield from objects_of(store, prefix + name)
        else:
            data = store.get(prefix + name)
            assert data is not None
            yield prefix + name, data


def run(
    name: str, object_store: ObjectStore, note: Note, clock: Clock | None = None, ids: IdGenerator | None = None
) -> None:
    """Run the operation in a process that may die."""
    with open_store(object_store, clock, ids) as store:
        CALLS[name].act(store, note)


def restart(
    name: str,
    object_store: ObjectStore,
    notes: Notes,
    how: Restart,
    clock: Clock | None = None,
    ids: IdGenerator | None = None,
) -> Census:
    """Recover in a new process. Then check that everything is in order, and stays so while the process writes."""
    operation = CALLS[name]
    with open_store(object_store, clock, ids) as store:
        if how == "init" and operation.ids:
            for transactional_id in operation.ids:
                store.producer(transactional_id).init_transactions()
        else:
            store.runtime.clock.sleep_ms(3)
            store.admin().expire()
        # A second call finishes a deletion that died midway.
        operation.repeat(store)
        check_store(object_store)
        if name not in WITHOUT_ROWS:
            judge(store, operation, notes)
        later(store)
    return check_store(object_store)


def judge(store: Store, operation: Operation, notes: Notes) -> None:
    """Compare what readers see with the notes."""
    committed, uncommitted = read(store, "read_committed"), read(store, "read_uncommitted")
    units = {"history": HISTORY, **operation.units}
    events = {unit: [event for event, name in notes if name == unit] for unit in units}
    events["history"] = ["ok"]
    offsets: dict[TopicPartition, int] = {}
    possible = [offsets]
    for name, unit in units.items():
        there = _whole(name, unit.rows, committed)
        hidden = there if there or not unit.eager else None
        if hidden is not None:
            assert _whole(name, unit.rows, uncommitted) == hidden, f"{name}: read_uncommitted sees a part"
        if "ok" in events[name]:
            assert there or not unit.rows, f"{name} was acknowledged, and is not there"
        if {"aborted", "failed"} & set(events[name]) or not events[name]:
            assert not there or not unit.rows, f"{name} was {events[name] or 'never begun'}, and is there"
        if unit.offsets and (there or (not unit.rows and events[name] and "failed" not in events[name])):
            offsets = {**offsets, **unit.offsets}
            possible = [offsets] if unit.rows or "ok" in events[name] else [*possible, offsets]
    known = {one for unit in units.values() for ids in unit.rows.values() for one in ids} | {3}
    for level, seen in (("read_committed", committed), ("read_uncommitted", uncommitted)):
        for tp, ids in seen.items():
            doubled = [one for one, count in Counter(ids).items() if count > 1]
            assert not doubled, f"{level} {tp}: {doubled} twice"
            assert set(ids) <= known, f"{level} {tp}: {set(ids) - known} came from nowhere"
    assert 3 not in committed[A], "an aborted row came back"
    with store.consumer(group_id=GROUP, enable_auto_commit=False) as consumer:
        found = {tp: value.offset for tp, value in consumer.committed(A, B, C).items() if value is not None}
    assert found in possible, f"committed offsets {found}, expected one of {possible}"


def later(store: Store) -> None:
    """Check that writes after the recovery succeed: with the same id, without an id, and in the group."""
    topics = [topic for topic in store.topics() if topic.name in ("orders", "audit", "new")]
    tps = [TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)]
    before = read(store, "read_committed", tps)
    if not tps:
        return
    with store.producer(ID) as producer, producer.transaction():
        for tp in tps:
            send(producer, tp, 1000)
        producer.send_offsets_to_transaction(dict.fromkeys(tps, 1), GROUP)
    with store.producer() as producer:
        for tp in tps:
            send(producer, tp, 1001)
    after = read(store, "read_committed", tps)
    for tp in tps:
        assert after[tp] == [*before[tp], 1000, 1001], f"{tp}: {before[tp]} became {after[tp]}"
    with store.consumer(group_id=GROUP, enable_auto_commit=False) as consumer:
        assert {value.offset for value in consumer.committed(*tps).values() if value} == {1}


def read(
    store: Store, isolation: str, partitions: Iterable[TopicPartition] = (A, B, C)
) -> dict[TopicPartition, list[int]]:
    """Return the ids of every partition, in the order of offsets."""
    found: dict[TopicPartition, list[Any]] = {tp: [] for tp in partitions}
    with store.consumer(isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        if found:
            consumer.assign(found)
            for batch in consumer.iterate():
                tp = TopicPartition(batch["_topic"][0].as_py(), batch["_partition"][0].as_py())
                found[tp].extend(batch["id"].to_pylist())
    return found


def send(producer: txlog.Producer, tp: TopicPartition, *ids: int) -> None:
    """Send inline rows."""
    producer.send(tp.topic, [{"id": one} for one in ids], partition=tp.partition)


def large(producer: txlog.Producer, tp: TopicPartition, *ids: int) -> None:
    """Send rows that get a separate file."""
    producer.send(tp.topic, [{"id": one, "name": "x" * 8000} for one in ids], partition=tp.partition)


def _whole(name: str, rows: Mapping[TopicPartition, tuple[int, ...]], seen: Mapping[TopicPartition, list[int]]) -> bool:
    found = {tp: tuple(one for one in seen[tp] if one in ids) for tp, ids in rows.items()}
    if not any(found.values()):
        return False
    assert found == dict(rows), f"{name} is torn or out of order: {found} of {dict(rows)}"
    return True


def _as_another_process(store: Store) -> Runtime:
    mine = store.runtime
    runtime = Runtime(mine.store, settings=mine.settings, clock=mine.clock, ids=mine.ids)
    if not isinstance(mine.clock, SystemClock):
        _make_sequential(runtime)
    return runtime


def _make_sequential(runtime: Runtime) -> None:
    runtime.driver = Driver(runtime.store, runtime.clock, runtime.ids, threads=0)
