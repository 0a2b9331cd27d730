"""Which anomalies can a reader or writer meet at which level? Small programs that try to produce each of them.

An anomaly that a program produces is allowed. One that it does not produce may still be allowed, so docs/isolation.md
gives a reason for each.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import txlog
from lab.explain.commits import LEVELS, TOPICS, Level, trace
from txlog.client.store import Store
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import Names, ObjectStore

_COLUMNS: list[pa.Field[Any]] = [pa.field("key", pa.string()), pa.field("value", pa.int64())]
SCHEMA = pa.schema(_COLUMNS)
A, B = "a", "b"


@contextmanager
def store_of_two_topics() -> Iterator[Store]:
    """Yield a store with topics `a` and `b`, whose rows have a key."""
    with tempfile.TemporaryDirectory() as folder, txlog.open(folder, storage_options={"fsync": False}) as store:
        for topic in (A, B):
            store.create_topic(topic, SCHEMA, config={"key.columns": "key"})
        yield store


class Reader:
    """Reads at one level. All reads of one Reader at level `snapshot` are of one snapshot, taken by the first."""

    def __init__(self, store: Store, level: Level) -> None:
        self._store, self._level = store, level
        self._tables = store.snapshot(A, B).tables() if level == "snapshot" else None

    def rows(self, topic: str) -> list[tuple[str, int]]:
        """Return (key, value) of all rows, in order."""
        columns = ["key", "value"]
        if self._tables is not None:
            read = self._tables[topic].to_arrow(columns)
        else:
            read = self._store.table(topic).to_arrow(columns, isolation_level=self._level)
        return [(row["key"], row["value"]) for row in read.to_pylist()]

    def values(self, topic: str) -> list[int]:
        """Return the values of all rows."""
        return [value for _, value in self.rows(topic)]

    def latest(self, topic: str, key: str = "x") -> int | None:
        """Return the newest value of a key."""
        return dict(self.rows(topic)).get(key)


def commit(store: Store, transactional_id: str, rows: dict[str, int], key: str = "x") -> None:
    """Commit one row to each of these topics, in one transaction."""
    with store.producer(transactional_id) as producer, producer.transaction():
        for topic, value in rows.items():
            producer.send(topic, [{"key": key, "value": value}])


def dirty_write(level: Level) -> bool:
    """Two transactions write both topics in opposite order: the newest rows are of different transactions."""
    with store_of_two_topics() as store:
        with store.producer("one", staged=False) as one, store.producer("two", staged=False) as two:
            for producer in (one, two):
                producer.begin_transaction()
            for producer, topic, value in ((one, A, 1), (two, A, 2), (two, B, 2), (one, B, 1)):
                producer.send(topic, [{"key": "x", "value": value}])
                producer.flush()
            one.commit_transaction()
            two.commit_transaction()
        reader = Reader(store, level)
        return reader.latest(A) != reader.latest(B)


def dirty_read(level: Level) -> bool:
    """A reader sees a row of a transaction that is aborted afterwards."""
    with store_of_two_topics() as store, store.producer("one", staged=False) as producer:
        producer.begin_transaction()
        producer.send(A, [{"key": "x", "value": 1}])
        producer.flush()
        seen = Reader(store, level).values(A)
        producer.abort_transaction()
        return bool(seen)


def intermediate_read(level: Level) -> bool:
    """A reader sees, in one partition, the first of two rows of a transaction that commits both."""
    with store_of_two_topics() as store, store.producer("one", staged=False) as producer:
        producer.begin_transaction()
        producer.send(A, [{"key": "x", "value": 1}])
        producer.flush()
        seen = Reader(store, level).values(A)
        producer.send(A, [{"key": "x", "value": 2}])
        producer.commit_transaction()
        return len(seen) == 1


def torn_transaction(level: Level) -> bool:
    """A reader sees a transaction in one topic and not in the other, at some point of the commit."""
    return any(0 < len(step.shown[level]) < len(TOPICS) for step in trace().steps)


def non_repeatable_read(level: Level) -> bool:
    """The newest value of a key changes between two reads."""
    with store_of_two_topics() as store:
        commit(store, "one", {A: 1})
        reader = Reader(store, level)
        before = reader.latest(A)
        commit(store, "one", {A: 2})
        return reader.latest(A) != before


def phantom(level: Level) -> bool:
    """Two reads of a whole topic find another number of rows."""
    with store_of_two_topics() as store:
        reader = Reader(store, level)
        before = reader.values(A)
        commit(store, "one", {A: 1})
        return reader.values(A) != before


def read_skew(level: Level) -> bool:
    """A reader reads one topic before a transaction commits to both, and the other one after it."""
    with store_of_two_topics() as store:
        reader = Reader(store, level)
        a = reader.values(A)
        commit(store, "one", {A: 1, B: 1})
        return a != reader.values(B)


def long_fork(level: Level) -> bool:
    """One reader sees the first of two transactions and not the second, another reader the second and not the first."""
    if level == "snapshot":
        return _long_fork_of_snapshots()
    with store_of_two_topics() as store:
        one, two = Reader(store, level), Reader(store, level)
        a, b = one.values(A), two.values(B)
        commit(store, "one", {A: 1})
        commit(store, "two", {B: 1})
        return (a, one.values(B)) == ([], [1]) and (two.values(A), b) == ([1], [])


def lost_update(level: Level) -> bool:
    """Two transactions read one value and add 1 to it: one of the two additions has no effect."""
    with store_of_two_topics() as store:
        commit(store, "one", {A: 10})
        first, second = Reader(store, level).latest(A), Reader(store, level).latest(A)
        commit(store, "one", {A: (first or 0) + 1})
        commit(store, "two", {A: (second or 0) + 1})
        return Reader(store, level).latest(A) == 11


def write_skew(level: Level) -> bool:
    """Two transactions read both values, each sets another one to 0: now both are 0, which each of them would
    refuse."""
    with store_of_two_topics() as store:
        commit(store, "one", {A: 1, B: 1})
        readers = {topic: Reader(store, level) for topic in (A, B)}
        on_call = {mine: sum(reader.latest(each) or 0 for each in (A, B)) for mine, reader in readers.items()}
        for mine, count in on_call.items():
            if count > 1:
                commit(store, mine, {mine: 0})
        return all(Reader(store, level).latest(topic) == 0 for topic in (A, B))


ANOMALIES: dict[str, Callable[[Level], bool]] = {
    "dirty write (G0)": dirty_write,
    "dirty read of an aborted transaction (G1a)": dirty_read,
    "dirty read of an intermediate state (G1b)": intermediate_read,
    "torn transaction (fractured read)": torn_transaction,
    "non-repeatable read (Berenson P2)": non_repeatable_read,
    "phantom (Berenson P3)": phantom,
    "read skew (A5A)": read_skew,
    "long fork": long_fork,
    "lost update (Berenson P4)": lost_update,
    "write skew (A5B)": write_skew,
}


def observed() -> dict[str, dict[Level, bool]]:
    """Return which anomaly was produced at which level."""
    return {name: {level: produce(level) for level in LEVELS} for name, produce in ANOMALIES.items()}


# -- a long fork of snapshots -----------------------------------------------------------------------------------------


class _Between:
    """A store that runs a program between the lists of the two folders of the table of transactions."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._first_was_read = threading.Event()
        self.program: Callable[[], None] | None = None

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._inner, verb)

    def list(self, prefix: str, start_after: str = "") -> Names:
        if self.program is not None and prefix == "__transaction_state/1/":
            self._first_was_read.wait(10)
            program, self.program = self.program, None
            program()
        found = self._inner.list(prefix, start_after)
        if prefix == "__transaction_state/0/":
            self._first_was_read.set()
        return found


def _long_fork_of_snapshots() -> bool:
    """Take a snapshot that reads one folder of the table before both transactions, and the other one after them."""
    memory = MemoryObjectStore()
    between = _Between(memory)
    two_folders = {"transaction.state.log.num.partitions": 2}

    def another() -> Store:
        return txlog.open("memory://", object_store=memory, config=two_folders)

    found: list[bool] = []
    with another() as store:
        for topic in (A, B):
            store.create_topic(topic, SCHEMA, config={"key.columns": "key"})
        for transactional_id, topic in (("id-0", A), ("id-1", B)):
            commit(store, transactional_id, {topic: 0})
        folders = {name: len(memory.list(f"__transaction_state/{name}/")) > 0 for name in (0, 1)}
        assert all(folders.values()), "the ids are in one folder of the table"

        def both() -> None:
            commit(store, "id-0", {A: 1})
            with another() as process:
                middle = Reader(process, "snapshot")
                found.append(middle.latest(A) == 1 and middle.latest(B) == 0)
            commit(store, "id-1", {B: 1})

        with txlog.open("memory://", object_store=between, config=two_folders) as slow:
            between.program = both
            outer = Reader(slow, "snapshot")
            found.append(outer.latest(A) == 0 and outer.latest(B) == 1)
    return all(found) and len(found) == 2
