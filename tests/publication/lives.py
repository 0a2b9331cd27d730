"""Random lives of a published topic, and what its tables hold after each publication."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.client.world import ORDERS, World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition, publication_path
from txlog.core.publication import Tables
from txlog.core.row_runs import removed_from
from txlog.errors import TxlogError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import first_whole, read_chain, read_publications
from txlog.publication.outcome import Published
from txlog.publication.publish import publish_topic
from txlog.storage.parquet_file import OpenedFile

TOPIC = "orders"
PUBLISH_RETENTION_MS = 48 * 3_600_000


def publish(store: Store, topic: str = TOPIC) -> Published:
    """Publish a topic as another process would."""
    return publish_topic(reading.read_session(store.runtime), store.runtime.topic(topic, 0))


def rows_of_file(world: World, path: str, size: int) -> list[int]:
    """Return the column `id` of a file, as the rows lie in it."""
    opened = OpenedFile(world.memory, f"{TOPIC}/{path}", size, None)
    rows: list[int] = opened.parquet.read(columns=["id"]).column("id").to_pylist()
    return rows


class Follower:
    """A reader of the tables: it knows their rows, and which rows each publication has added."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.seen: Counter[int] = Counter()
        """How often an `append` has brought a row. A streaming reader sees these."""
        self.number = -1
        """The newest version that it has read."""

    def rows(self, tables: Tables) -> Counter[int]:
        """Return the rows of the tables."""
        found: Counter[int] = Counter()
        for file in tables.files.values():
            found.update(self._of(file))
        return found

    def follow(self, chain: Sequence[Tables]) -> Tables:
        """Read what was added since the last call, and return the newest tables."""
        for tables in chain:
            if tables.number > self.number and tables.newest.operation == "append":
                for file in tables.files.values():
                    if file.since == tables.number:
                        self.seen.update(self._of(file))
        self.number = chain[-1].number
        return chain[-1]

    def _of(self, file: Any) -> list[int]:
        ids = rows_of_file(self._world, file.path, file.bytes)
        gone = set(removed_from(file).tolist())
        return [value for row, value in enumerate(ids) if row not in gone]


class Life:
    """One random life: producers, maintenance and publishers of one topic, and what it should hold."""

    schema = ORDERS

    def __init__(self, seed: int, *, keyed: bool = False) -> None:
        self.world = World()
        self.random = random.Random(seed)
        self.keyed = keyed
        self.store = self.world.open()
        lag_ms = self.random.choice([0, 0, 1000, 200_000_000])
        config = {"segment.batches": "4", "publish.formats": "delta", "publish.max.lag.ms": str(lag_ms)}
        config |= {"publish.retention.ms": str(PUBLISH_RETENTION_MS)}
        if keyed:
            config |= {"key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        self.store.create_topic(TOPIC, schema=self.schema, partitions=3, config=config)
        self.follower = Follower(self.world)
        self.next_id = 0
        self.deleted_objects = 0
        self.whole: list[set[int]] = []
        """The rows of each transaction that was committed."""
        self._open: dict[int, tuple[Any, set[int]]] = {}
        self._deleted: set[int] = set()

    def step(self) -> None:
        """Do one random thing."""
        actions: list[Any] = [self._transaction] * 6 + [self._lone] * 2 + [self._merge, self._begin, self._begin]
        actions += [self._end, self._more, self._publish, self._publish, self._vacuum]
        if self.keyed:
            actions += [self._compact]
        else:
            actions += [self._delete_records]
        self.world.clock.advance_ms(self.random.choice([1, 10, 1000]))
        self.random.choice(actions)()

    def check(self) -> Tables:
        """Publish, and compare each new version of the tables with a snapshot of the topic."""
        publish(self.world.open())
        tables = self._check_versions()
        self._check_files()
        found = self.follower.rows(tables)
        assert found == self._expected(tables)
        assert self.keyed or not found or max(found.values()) == 1
        if not self.keyed:
            shown = set(found) | self._deleted
            for rows in self.whole:
                assert rows <= shown or not (rows - self._deleted) & set(found), rows
            assert max(self.follower.seen.values(), default=1) == 1
            assert set(found) <= set(self.follower.seen)
        return tables

    def _check_versions(self, *, change_nothing: bool = False) -> Tables:
        """Check the rows of each version since the last call, and return the newest one.

        All of them belong to one call of a publisher, or of vacuum, whose versions `change_nothing`.
        """
        newest = self.store.runtime.run(read_chain(TOPIC)).newest
        assert newest is not None
        first = first_whole(max(self.follower.number, 0))
        chain = self.store.runtime.run(read_publications(TOPIC, first, newest.number)).tables
        for number, tables in enumerate(chain):
            if tables.number <= self.follower.number:
                continue
            found = self.follower.rows(tables)
            if change_nothing:
                assert found == self.follower.rows(chain[number - 1]), f"version {tables.number}"
                continue
            expected = self._expected(tables)
            if self.keyed and tables.newest.operation == "append":
                # A compaction has used the new rows: the rows that it removed leave the tables in the next version.
                assert expected <= found, f"version {tables.number}"
            else:
                assert found == expected, f"version {tables.number}"
        return self.follower.follow(chain)

    def _expected(self, tables: Tables) -> Counter[int]:
        """Return the committed rows at the cut of a version, as the topic has them now."""
        snapshot = self.store.snapshot(TOPIC).table(TOPIC).to_arrow()
        return Counter(row["id"] for row in snapshot.to_pylist() if tables.has(row["_partition"], row["_offset"]))

    def _check_files(self) -> None:
        """Check that a reader of each version that was not replaced long ago finds all of its files."""
        tables = self.store.runtime.run(read_chain(TOPIC)).tables
        now_ms = self.world.clock.now_ms()
        for number, each in enumerate(tables):
            path = publication_path(TOPIC, each.number + 1)
            replaced_ms = now_ms if number + 1 == len(tables) else self.world.memory.modified_ms(path)
            if replaced_ms is not None and replaced_ms > now_ms - PUBLISH_RETENTION_MS:
                for file in each.files:
                    assert self.world.memory.get(f"{TOPIC}/{file}") is not None, (each.number, file)

    def close(self) -> None:
        self.world.close()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _rows(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            if self.keyed:
                number = self.random.randrange(20)
            else:
                number, self.next_id = self.next_id, self.next_id + 1
            rows.append({"id": number, "name": self.random.choice(["a", "b" * 40])})
        return rows

    def _send(self, producer: Any, count: int) -> set[int]:
        sent = set()
        for row in self._rows(count):
            partition = None if self.keyed else self.random.randrange(3)
            producer.send(TOPIC, row, partition=partition)
            sent.add(row["id"])
        return sent

    def _config(self) -> dict[str, Any]:
        return {"staged": self.random.choice([None, True, False]), "inline_max_bytes": self.random.choice([0, 65536])}

    def _transaction(self) -> None:
        producer = self.world.open(inline_max_bytes=self.random.choice([0, 65536])).producer(
            f"t{self.random.randrange(4)}", staged=self.random.choice([None, True, False])
        )
        producer.init_transactions()
        producer.begin_transaction()
        rows = self._send(producer, self.random.randrange(1, 8))
        if self.random.random() < 0.3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            self.whole.append(rows)
        producer.close()

    def _begin(self) -> None:
        number = self.random.randrange(3)
        if number in self._open:
            return
        producer = self.world.open(inline_max_bytes=self.random.choice([0, 65536])).producer(
            f"open{number}", staged=False, transaction_timeout_ms=2**31 - 1, transaction_max_timeout_ms=2**31 - 1
        )
        producer.init_transactions()
        producer.begin_transaction()
        self._open[number] = (producer, self._send(producer, 3))
        producer.flush()

    def _more(self) -> None:
        for producer, rows in list(self._open.values()):
            rows |= self._send(producer, 2)
            producer.flush()

    def _end(self) -> None:
        if not self._open:
            return
        producer, rows = self._open.pop(self.random.choice(list(self._open)))
        try:
            if self.random.random() < 0.5:
                producer.commit_transaction()
                self.whole.append(rows)
            else:
                producer.abort_transaction()
        except TxlogError:
            return
        producer.close()

    def _lone(self) -> None:
        producer = self.world.open(inline_max_bytes=self.random.choice([0, 65536])).producer()
        self._send(producer, 3)
        producer.flush()
        producer.close()

    def _merge(self) -> None:
        session = reading.read_session(self.store.runtime)
        for number in range(3):
            merge_partition(
                self.store.runtime,
                session,
                TopicPartition(TOPIC, number),
                MergePolicy(max_inputs=self.random.choice([2, 100])),
                layout=FileLayout(sort=self.random.choice([(), ("id",), ("name", "id")])),
            )

    def _compact(self) -> None:
        session = reading.read_session(self.store.runtime)
        policy = compaction_policy(self.store.runtime, self.store.runtime.topic(TOPIC, 0))
        assert policy is not None
        for number in range(3):
            compact_partition(self.store.runtime, session, TopicPartition(TOPIC, number), policy)

    def _delete_records(self) -> None:
        number = self.random.randrange(3)
        start, stable, _ = self.world.ends(TOPIC, number)
        if start == stable:
            return
        before = self.random.randrange(start, min(start + 5, stable) + 1)
        rows = self.store.snapshot(TOPIC).table(TOPIC).to_arrow().to_pylist()
        self._deleted = self._deleted | {
            row["id"] for row in rows if row["_partition"] == number and row["_offset"] < before
        }
        self.store.admin().delete_records(TOPIC, number, before)

    def _vacuum(self) -> None:
        self.world.clock.advance_ms(self.random.choice([1, 20, 30]) * 3_600_000)
        report = vacuum(self.store.runtime, reading.read_session(self.store.runtime), dry_run=False)
        assert not report.failed
        self.deleted_objects += len(report.deleted)
        if self.follower.number >= 0:
            self._check_versions(change_nothing=True)

    def _publish(self) -> None:
        self.check()
