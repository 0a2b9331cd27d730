"""Consumers of a group that are interrupted at a line, and what must hold of the rows that they return.

* Each row is returned, at least once. A consumer without a group returns each row once.
* Two members of one generation do not return the same row.
* No committed offset is above a row that nobody has received.
* A member reads what its listeners have heard of: partitions that were assigned, and neither revoked nor lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import txlog
from tests.lines.at_line import not_counted
from txlog.client.consumer import Consumer
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import CommitFailedError, IllegalStateError
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

KEYS = pa.schema([pa.field("k", pa.int64(), nullable=False)])
PARTITIONS = 3
ROWS = 6
GROUP = "g"
SETTINGS = {
    "auto.offset.reset": "earliest",
    "max.poll.records": 2,
    "enable.auto.commit": False,
    "linger.ms": 0,
    "partition.assignment.strategy": "cooperative-sticky",
}
T0 = TopicPartition("t", 0)
_filled: dict[str, tuple[dict[str, Any], int]] = {}


def filled() -> tuple[MemoryObjectStore, ManualClock]:
    """Return a store with the topics `t` and `u`: inline rows, files, an aborted transaction, sealed segments."""
    if not _filled:
        clock = ManualClock()
        memory = MemoryObjectStore(clock=clock)
        store = txlog.open("memory://", config=SETTINGS, clock=clock, ids=SeededIds(0), object_store=memory)
        store.create_topic("t", KEYS, PARTITIONS, {"segment.bytes": "14"})
        store.create_topic("u", KEYS, 1, {"inline.max.bytes": "0"})
        for half in (range(ROWS // 2), range(ROWS // 2, ROWS)):
            with store.producer() as producer:
                for number in range(PARTITIONS):
                    producer.send("t", [{"k": key} for key in half], partition=number)
                producer.send("u", [{"k": key} for key in half])
            with store.producer("x", staged=False) as producer:
                producer.begin_transaction()
                producer.send("t", [{"k": -1}], partition=0).result()
                producer.abort_transaction()
        store.close()
        _filled["store"] = (dict(memory._objects), clock.now_ms())
    objects, now_ms = _filled["store"]
    clock = ManualClock(now_ms=now_ms)
    memory = MemoryObjectStore(clock=clock)
    memory._objects.update(objects)
    return memory, clock


@dataclass(eq=False)
class Reader:
    """A consumer in a separate process, its rows, and what its listeners have heard."""

    lives: Lives
    name: str
    consumer: Consumer
    told: set[TopicPartition] = field(default_factory=set)
    is_member: bool = False

    def subscribe(self, *topics: str) -> None:
        """Become a member."""
        self.is_member = True
        self.consumer.subscribe(
            topics or "t",
            on_assign=self.told.update,
            on_revoke=self.told.difference_update,
            on_lost=self.told.difference_update,
        )

    def take(self, batch: pa.RecordBatch | None) -> bool:
        """Receive what a call has returned. Return whether it returned rows."""
        rows = [] if batch is None else batch.to_pylist()
        with not_counted():
            self.note(rows)
        return bool(rows)

    def note(self, rows: list[dict[str, Any]]) -> None:
        """Note rows."""
        for row in rows:
            self.lives.receive(self, TopicPartition(row["_topic"], row["_partition"]), row["_offset"], row["k"])

    def poll(self) -> bool:
        """Poll once."""
        return self.take(self.consumer.poll(0))

    def tick(self) -> None:
        """Do what the heartbeat thread does from time to time."""
        if self.is_member and not self.consumer._closed:
            self.consumer._membership.tick()  # type: ignore[union-attr]


class Lives:
    """One store, and the consumers that read it."""

    def __init__(self) -> None:
        self.memory, self.clock = filled()
        self.readers: list[Reader] = []
        self.stores: list[Store] = []
        self.received: dict[tuple[TopicPartition, int], list[tuple[str, int]]] = {}
        self.main = self.reader("a")

    def open(self) -> Store:
        """Open the store in another process."""
        ids = SeededIds(len(self.stores) + 1)
        store = txlog.open("memory://", config=SETTINGS, clock=self.clock, ids=ids, object_store=self.memory)
        self.stores.append(store)
        return store

    def reader(self, name: str, **settings: Any) -> Reader:
        """Make a consumer in another process."""
        made = Reader(self, name, self.open().consumer(group_id=GROUP, client_id=name, **settings))
        self.readers.append(made)
        return made

    def receive(self, reader: Reader, tp: TopicPartition, offset: int, key: int) -> None:
        """Note a row, and judge who else has received it."""
        assert key >= 0, f"{tp}, offset {offset}: a row of an aborted transaction"
        if reader.is_member:
            assert tp in reader.told, f"{reader.name} read {tp}, and its listener knows of {sorted(reader.told)}"
        generation = reader.consumer._membership.generation
        by = self.received.setdefault((tp, offset), [])
        twice = [name for name, at in by if at == generation and name != reader.name]
        assert not twice or generation < 0, f"{tp}, offset {offset}: {twice} and {reader.name} in {generation}"
        by.append((reader.name, generation))

    def hand_over(self, *topics: str) -> None:
        """Close the main reader if it reads nothing.

        If it is closed, let another one read the rest, from the group's offsets.
        """
        consumer = self.main.consumer
        if not consumer._closed and not consumer.assignment() and not consumer._membership.is_subscribed:
            consumer.close()
        if consumer._closed:
            self.readers = [each for each in self.readers if each is not self.main]
            self.main.told.clear()
            self.reader("d").subscribe(*topics)

    def commit_all(self, reader: Reader) -> None:
        """Let a consumer commit what it has returned, if it may."""
        with contextlib.suppress(CommitFailedError, IllegalStateError):
            reader.consumer.commit()
        self.check_committed()

    def check_committed(self) -> None:
        """Judge the group's offsets."""
        found = self.open().consumer(group_id=GROUP).committed(*self.partitions("t", "u"))
        for tp, value in found.items():
            skipped = [at for at in self.offsets(tp) if value is not None and at < value.offset]
            for at in skipped:
                assert (tp, at) in self.received, f"{tp}: {value} is committed, and nobody has received {at}"

    def partitions(self, *topics: str) -> list[TopicPartition]:
        """Return the partitions of topics."""
        return [tp for topic in topics for tp in self.stores[0].runtime.partitions(topic)]

    def offsets(self, tp: TopicPartition) -> list[int]:
        """Return the offsets of the rows of a partition that are not aborted."""
        if tp not in _offsets:
            reader = self.open().consumer()
            reader.assign([tp])
            _offsets[tp] = [row["_offset"] for batch in reader.iterate() for row in batch.to_pylist()]
        return _offsets[tp]

    def settle(self, *topics: str, rounds: int = 12) -> None:
        """Let all consumers read on until everything has been read, and judge the end."""
        for _ in range(rounds):
            self.clock.advance_ms(5_000)
            for reader in self.readers:
                if reader.consumer._closed:
                    continue
                for _ in range(40):
                    if not reader.poll():
                        break
                else:
                    raise AssertionError(f"{reader.name} polls without an end")
                reader.tick()
                self.commit_all(reader)
        for tp in self.partitions(*topics):
            missing = [at for at in self.offsets(tp) if (tp, at) not in self.received]
            assert not missing, f"{tp}: nobody has received {missing}"
        for reader in self.readers:
            if reader.is_member and not reader.consumer._closed:
                assert reader.told == set(reader.consumer.assignment()), reader.name
        owners = [tp for reader in self.readers if not reader.consumer._closed for tp in reader.told]
        assert len(owners) == len(set(owners)), "two members read one partition"

    def close(self) -> None:
        """End the processes, as a crash would."""
        for store in self.stores:
            store.runtime.close()


_offsets: dict[TopicPartition, list[int]] = {}


@dataclass(frozen=True)
class Case:
    """A call in one state. `prepare` brings a reader into it, and returns the call."""

    name: str
    prepare: Callable[[Lives], Callable[[], object]]
    once: bool = False
    """Whether each row must be returned once: without a group, and without a seek."""
    changes: bool = False
    """Whether the call changes what is read. After an interrupt, polls may refuse until it is called again."""
    topics: tuple[str, ...] = ("t",)
    method: str = "poll"

    def __str__(self) -> str:
        return self.name


def _assigned(lives: Lives, *topics: str) -> Reader:
    lives.main.consumer.assign(lives.partitions(*(topics or ("t",))))
    return lives.main


def _member(lives: Lives, *, polls: int = 1, **settings: Any) -> Reader:
    if settings:
        lives.readers = []
        lives.main = lives.reader("a", **settings)
    lives.main.subscribe()
    for _ in range(polls):
        lives.main.poll()
    return lives.main


def _polls(make: Callable[[Lives], Reader]) -> Callable[[Lives], Callable[[], object]]:
    return lambda lives: make(lives).poll


def _after(polls: int, *topics: str) -> Callable[[Lives], Reader]:
    def make(lives: Lives) -> Reader:
        reader = _assigned(lives, *topics)
        for _ in range(polls):
            reader.poll()
        return reader

    return make


def _gives_up(lives: Lives, **settings: Any) -> Reader:
    reader = _member(lives, **settings)
    lives.reader("b").subscribe()
    lives.clock.advance_ms(6_000)
    return reader


def _gains(lives: Lives) -> Reader:
    reader = _gives_up(lives)
    other = lives.readers[-1]
    for _ in range(3):
        for each in (reader, other):
            each.poll()
        lives.clock.advance_ms(6_000)
    lives.commit_all(other)
    other.consumer.close()
    return reader


def _lost(lives: Lives) -> Reader:
    reader = _member(lives, polls=2)
    lives.clock.advance_ms(50_000)
    lives.reader("b").subscribe()
    lives.readers[-1].poll()
    return reader


def _alone_again(lives: Lives) -> Reader:
    reader = _member(lives, polls=2)
    lives.clock.advance_ms(50_000)
    return reader


def _auto(lives: Lives) -> Reader:
    reader = _member(lives, polls=2, enable_auto_commit=True)
    lives.clock.advance_ms(6_000)
    return reader


def _on_member(call: Callable[[Reader], object], **settings: Any) -> Callable[[Lives], Callable[[], object]]:
    def prepare(lives: Lives) -> Callable[[], object]:
        reader = _member(lives, **settings)
        return lambda: call(reader)

    return prepare


def _iterating(lives: Lives) -> Callable[[], object]:
    reader = _assigned(lives, "t", "u")
    rows: Iterator[pa.RecordBatch] = reader.consumer.iterate()
    reader.take(next(rows))
    return lambda: reader.take(next(rows))


def _for_ever(lives: Lives) -> Callable[[], object]:
    reader = _assigned(lives, "t", "u")
    rows = iter(reader.consumer)
    reader.take(next(rows))
    return lambda: reader.take(next(rows))


def _seeking_end(lives: Lives) -> Callable[[], object]:
    """Skip rows of one partition, which another consumer has read."""
    reader = _assigned(lives)
    other = lives.reader("b")
    other.consumer.assign([T0])
    while other.poll():
        pass
    return lambda: reader.consumer.seek_to_end(T0)


def _beside(call: Callable[[Reader], object]) -> Callable[[Lives], Callable[[], object]]:
    """Make a call of a member whose partitions another one waits for."""

    def prepare(lives: Lives) -> Callable[[], object]:
        reader = _gives_up(lives, enable_auto_commit=True)
        lives.readers[-1].poll()
        return lambda: call(reader)

    return prepare


POLLS = (
    Case("first poll of assigned partitions", _polls(_assigned), once=True),
    Case("poll in the middle of a file", _polls(_after(1, "u")), once=True, topics=("u",)),
    Case("poll at the end of a plan", _polls(_after(3)), once=True),
    Case("iterate", _iterating, once=True, topics=("t", "u"), method="iterate"),
    Case("iterate for ever", _for_ever, once=True, topics=("t", "u"), method="__iter__"),
    Case("first poll of a member", _polls(lambda lives: _member(lives, polls=0))),
    Case("poll that gives up partitions", _polls(_gives_up)),
    Case("poll that gives up partitions and commits", _polls(lambda lives: _gives_up(lives, enable_auto_commit=True))),
    Case("poll that gets partitions", _polls(_gains)),
    Case("poll after the session", _polls(_lost)),
    Case("poll after the session of the only member", _polls(_alone_again)),
    Case("poll that commits", _polls(_auto)),
)
CALLS = (
    Case("commit", _on_member(lambda reader: reader.consumer.commit()), method="commit"),
    Case("committed", _on_member(lambda reader: reader.consumer.committed()), method="committed"),
    Case("position", _on_member(lambda reader: reader.consumer.position(T0)), method="position"),
    Case("lag", _on_member(lambda reader: reader.consumer.lag()), method="lag"),
    Case(
        "offsets for times",
        _on_member(lambda reader: reader.consumer.offsets_for_times({T0: 0})),
        method="offsets_for_times",
    ),
    Case("group metadata", _on_member(lambda reader: reader.consumer.group_metadata()), method="group_metadata"),
    Case("pause", _on_member(lambda reader: (reader.consumer.pause(), reader.consumer.resume())), method="pause"),
    Case("seek", _on_member(lambda reader: reader.consumer.seek(T0, 0)), method="seek"),
    Case(
        "seek to the beginning",
        _on_member(lambda reader: reader.consumer.seek_to_beginning()),
        method="seek_to_beginning",
    ),
    Case(
        "seek to the committed offsets",
        _on_member(lambda reader: reader.consumer.seek_to_committed()),
        method="seek_to_committed",
    ),
    Case(
        "enforce a rebalance",
        _on_member(lambda reader: (reader.consumer.enforce_rebalance(), reader.poll())),
        method="enforce_rebalance",
    ),
    Case("subscribe", lambda lives: lives.main.subscribe, changes=True, method="subscribe"),
    Case(
        "subscribe to more",
        _on_member(lambda reader: reader.subscribe("t", "u")),
        changes=True,
        topics=("t", "u"),
        method="subscribe",
    ),
    Case(
        "assign",
        lambda lives: lambda: lives.main.consumer.assign(lives.partitions("t")),
        changes=True,
        once=True,
        method="assign",
    ),
    Case(
        "assign topics",
        lambda lives: lambda: lives.main.consumer.assign_topics("t"),
        changes=True,
        once=True,
        method="assign_topics",
    ),
    Case("unsubscribe", _on_member(lambda reader: reader.consumer.unsubscribe()), changes=True, method="unsubscribe"),
    Case("close", _on_member(lambda reader: reader.consumer.close()), changes=True, method="close"),
    Case(
        "close with auto commit",
        _on_member(lambda reader: reader.consumer.close(), polls=2, enable_auto_commit=True),
        changes=True,
        method="close",
    ),
    Case("resume", _on_member(lambda reader: reader.consumer.resume()), method="resume"),
    Case("seek to the end", _seeking_end, method="seek_to_end"),
    Case(
        "beginning offsets", _on_member(lambda reader: reader.consumer.beginning_offsets()), method="beginning_offsets"
    ),
    Case("end offsets", _on_member(lambda reader: reader.consumer.end_offsets()), method="end_offsets"),
    Case(
        "leave a block",
        _on_member(lambda reader: reader.consumer.__exit__(None, None, None)),
        changes=True,
        method="__exit__",
    ),
    Case(
        "leave a block after an error",
        _on_member(
            lambda reader: reader.consumer.__exit__(ValueError, ValueError(), None), polls=2, enable_auto_commit=True
        ),
        changes=True,
        method="__exit__",
    ),
    Case(
        "unsubscribe beside another member",
        _beside(lambda reader: reader.consumer.unsubscribe()),
        changes=True,
        method="unsubscribe",
    ),
    Case("close beside another member", _beside(lambda reader: reader.consumer.close()), changes=True, method="close"),
)
