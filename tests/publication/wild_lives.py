"""Random lives of a published topic, with all that may happen to it and to its store, judged at every version.

Columns change, and names are used again. The topic is made again. Formats end and begin. Publishers die at any request,
and others with another spelling of the store's URL work in between. Stores are moved, and copies of them end early.
Clean-up of all kinds runs meanwhile.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.client.world import World
from tests.publication.table_readers import Row, Tables
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables as Published
from txlog.core.records.publications import FormatName
from txlog.errors import TableConflictError, TxlogError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import first_whole, newest_number, read_publications
from txlog.protocol.topics import earlier_version
from txlog.publication import publish as publishing
from txlog.testing.failing_store import Fault, SimulatedCrash

TOPIC = "orders"
RETENTION_MS = 48 * 3_600_000
FOLDERS: dict[FormatName, str] = {"delta": "_delta_log", "iceberg": "metadata"}
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True, slots=True)
class Check:
    """What a version of one format must show."""

    format: FormatName
    version: int
    rows: dict[int, Row]
    """The rows that it must have, by id, each with the version's columns."""
    also: frozenset[int]
    """Ids of rows that it may have, too: they were committed, and left the log since."""
    place: str
    """Where the table was. Names in Iceberg's metadata are absolute."""

    def why_wrong(self, found: list[Row]) -> str | None:
        ids = [row["id"] for row in found]
        if len(set(ids)) != len(ids):
            return f"rows twice: {sorted(number for number in set(ids) if ids.count(number) > 1)}"
        if missing := self.rows.keys() - set(ids):
            return f"rows are missing: {sorted(missing)}"
        if more := set(ids) - self.rows.keys() - self.also:
            return f"rows that it never had: {sorted(more)}"
        for row in found:
            if (wanted := self.rows.get(row["id"])) is not None and wanted != row:
                return f"row {row}, expected {wanted}"
        return None


class WildLife:
    """One life. `judge` is called with checks before what they are about may be gone, and at the end."""

    def __init__(self, seed: int, root: str, judge: Callable[[WildLife, list[Check]], None] | None = None) -> None:
        self.world = World()
        self.random = random.Random(seed)
        self.root, self._judge = root, judge
        self.place = "p0"
        self.spelled = "p0"
        self.links: dict[str, str] = {}
        """Other names of the store's folder -> the folder."""
        self.keyed = self.random.random() < 0.25
        self.formats = self.random.choice([("delta",), ("iceberg",), ("delta", "iceberg"), ("delta", "iceberg")])
        self._ended: set[str] = set()
        self.next_id = 0
        self.rows: dict[int, dict[int, Any]] = {}
        """Of each row that was sent, the values by the ids of columns."""
        self.committed: set[int] = set()
        self._whole: list[set[int]] = []
        self._open: dict[int, tuple[Any, set[int]]] = {}
        self._known = -1
        """The newest publication that the life has looked at."""
        self._pending: list[Check] = []
        self._copy: dict[str, bytes] = {}
        self._seen: dict[str, set[int]] = {}
        """By the id of a Delta table, the rows that a reader which follows it has got."""
        self._files: dict[str, pa.Table] = {}
        self.checked = 0
        self.told: list[str] = []
        self._create()

    # -- the whole ------------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        with self._spelling():
            for _ in range(steps):
                self.step()
            self._publish()
            self._publish()
            self.look()
            self.world.close()

    def step(self) -> None:
        actions: list[Callable[[], None]] = (
            [self._transaction] * 5 + [self._lone] * 3 + [self._begin, self._more, self._end]
        )
        actions += [self._publish] * 5 + [self._killed] * 3 + [self._between] * 3 + [self._merge] * 2
        actions += [self._columns] * 2 + [
            self._vacuum,
            self._again,
            self._toggle,
            self._toggle,
            self._move,
            self._keep_copy,
        ]
        actions += [self._lose, self._compact if self.keyed else self._delete_records]
        self.world.clock.advance_ms(self.random.choice([1, 10, 1000]))
        action = self.random.choice(actions)
        self.told.append(action.__name__)
        action()

    def look(self) -> None:
        """Let the judge check what is left to check."""
        if self._judge is not None and self._pending:
            self._judge(self, self._pending)
        self._pending = []

    def objects(self) -> dict[str, bytes]:
        return {path: self.world.memory.get(path) or b"" for path in self.world.memory._objects}

    def tables(self) -> Tables:
        here = [self.place, *(name for name, place in self.links.items() if place == self.place)]
        return Tables(self.objects(), TOPIC, [f"file://{self.root}/{name}" for name in here], self._files)

    # -- publishing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _spelling(self) -> Iterator[None]:
        """Let Iceberg's metadata name files by the spelling of the moment: the store itself is in memory."""
        real = publishing.write_version
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                publishing,
                "write_version",
                lambda *a, **k: real(*a, **{**k, "url": f"file://{self.root}/{self.spelled}"}),
            )
            yield

    def _spell(self) -> str:
        return self.random.choice([self.place, *(name for name, place in self.links.items() if place == self.place)])

    def _publish(self) -> None:
        self.spelled = self._spell()
        try:
            self._publish_with(self.world.open())
        except TableConflictError as error:
            self.told.append(f"  {error}"[:100])
            self._start_over()
        self.check(is_settled=True)

    def _publish_with(self, store: Store) -> None:
        if not self.formats and not self._is_published():
            return
        session = reading.read_session(store.runtime)
        for _, made in publish_topics(session, [store.runtime.topic(TOPIC, 0)]):
            if isinstance(made, Exception):
                assert "report this line as a bug" not in str(made), made
                raise made
            assert not made.must_rewrite

    def _killed(self) -> None:
        """A publisher dies before or after a request."""
        self.spelled = self._spell()
        number = self.random.randrange(1, 60)
        where = self.random.choice(
            ["", "put_if_absent", "put_if_absent .*metadata", "put_if_absent .*(_delta|publication)"]
        )
        number = number % 8 + 1 if where else number
        fault = Fault(action="crash", moment=self.random.choice(["before", "after"]), match=where, number=number)  # type: ignore[arg-type]
        try:
            self._publish_with(self.world.failing(fault)[1])
        except SimulatedCrash:
            self.told.append("  died")
        except TxlogError as error:
            # It may die while it settles an error. The next publisher meets the same.
            self.told.append(f"  {error}"[:100])
        if self.random.random() < 0.6:
            self._publish()

    def _between(self) -> None:
        """Another publisher, with another spelling, works while one is in the middle."""
        mine = self.spelled = self._spell()
        at = self.random.randrange(1, 40)
        counting, life = self.world.memory, self

        class Interrupted:
            left = at

            def __getattr__(self, verb: str) -> Any:
                found = getattr(counting, verb)
                if not callable(found):
                    return found

                def request(*args: Any, **more: Any) -> Any:
                    self.left -= 1
                    if self.left == 0:
                        life.spelled = life._spell()
                        life._try(lambda: life._publish_with(life.world.open()))
                        life.spelled = mine
                    return found(*args, **more)

                return request

        self._try(lambda: self._publish_with(self.world.open(Interrupted())))  # type: ignore[arg-type]
        self._publish()

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TableConflictError as error:
            self.told.append(f"  {error}"[:100])

    def _start_over(self) -> None:
        """Do what the hint of a TableConflictError says."""
        self.look()
        formats = self.formats
        self.formats = ()
        self._set_formats()
        if self._is_published():
            self._publish_with(self.world.open())
        for name in formats:
            self._remove(name)
        newest = self._newest()
        if newest is not None:
            self._known = newest.number
        self.formats = formats
        self._set_formats()
        self._publish_with(self.world.open())

    def _set_formats(self) -> None:
        store = self.world.open()
        if self.formats:
            store.alter_topic(TOPIC, config={"publish.formats": ",".join(self.formats)})
        else:
            store.alter_topic(TOPIC, remove_config=["publish.formats"])

    def _remove(self, name: str) -> None:
        for path in self.objects():
            if path.startswith(f"{TOPIC}/{FOLDERS[name]}/"):
                self.world.memory.delete(path)

    def _is_published(self) -> bool:
        newest = self._newest()
        return newest is not None and bool(newest.newest.formats)

    def _newest(self) -> Published | None:
        store = self.world.open()
        number = store.runtime.run(newest_number(TOPIC))
        if number is None:
            return None
        return store.runtime.run(read_publications(TOPIC, first_whole(number), number)).newest

    # -- checks ---------------------------------------------------------------------------------------------------------

    def check(self, *, is_settled: bool) -> None:
        """Check each version since the last call, and leave it to the judge, too."""
        newest = self._newest()
        if newest is None:
            return
        store = self.world.open()
        first = max(first_whole(max(self._known, 0)), 0)
        chain = store.runtime.run(read_publications(TOPIC, first, newest.number)).tables
        log = store.snapshot(TOPIC).table(TOPIC).to_arrow().select(["id", "_partition", "_offset"]).to_pylist()
        there = {row["id"] for row in log}
        assert there <= self.committed, "the log itself"
        tables = self.tables()
        for each in chain:
            if each.number <= self._known:
                continue
            schema = store.runtime.run(earlier_version(TOPIC, each.newest.topic_version)).schema
            rows = {
                row["id"]: self._row(row["id"], schema) for row in log if each.has(row["_partition"], row["_offset"])
            }
            is_exact = each is chain[-1] and is_settled and each.newest.operation == "replace"
            also = frozenset(() if is_exact else self.committed - there)
            for name in each.newest.formats:
                if name in self.formats:
                    check = Check(name, each.version_of(name), rows, also, self.place)
                    self._check_one(check, tables, each)
                    self._pending.append(check)
        self._known = newest.number
        for name in newest.newest.formats:
            if name in self.formats:
                version = newest.version_of(name)
                if name == "iceberg":
                    assert tables.hinted() == version, f"the hint names version {tables.hinted()} and not {version}"
                else:
                    ids = sorted(row["id"] for row in tables.delta())
                    assert ids == sorted(row["id"] for row in tables.delta(version)), "the log goes on behind its end"

    def _check_one(self, check: Check, tables: Tables, each: Published) -> None:
        found = tables.delta(check.version) if check.format == "delta" else tables.iceberg(check.version)
        why = check.why_wrong(found)
        assert why is None, f"version {check.version} of {check.format}, publication {each.number}: {why}"
        ids = {row["id"] for row in found}
        for rows in self._whole:
            left = rows & check.rows.keys()
            assert not left or left <= ids, f"rows {sorted(left)} are of one transaction"
        self.checked += 1
        if check.format == "delta":
            table, new = tables.delta_id(check.version), {row["id"] for row in tables.delta_new_rows(check.version)}
            if table not in self._seen and check.version:
                # The store is a copy. Who followed the lost versions begins again.
                self._seen[table] = ids - new
            seen = self._seen.setdefault(table, set())
            assert not new & seen, f"a reader that follows the table gets rows {sorted(new & seen)} twice"
            seen |= new
            assert ids <= seen, f"a reader that follows the table does not get rows {sorted(ids - seen)}"

    def _row(self, number: int, schema: Any) -> Row:
        values = self.rows[number]
        return {
            column.name: values.get(column.id, None if column.default is msgspec.UNSET else column.default)
            for column in schema
        }

    # -- the store ------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move the store, with a link at its old place or without, or mount it under one more name."""
        self._publish()
        self.look()
        name = f"p{len(self.links) + int(self.place[1:]) + 1}"
        if self.random.random() < 0.5:
            self.links[name] = self.place
            return
        old, self.place = self.place, name
        if self.random.random() < 0.5:
            self.links = dict.fromkeys((*self.links, old), name)
        else:
            self.links = {}
            # Iceberg's versions of the old place are not valid until the next one.
        self._pending = []
        self._send_lone(2)
        self._publish()

    def _keep_copy(self) -> None:
        self._copy = self.objects()

    def _lose(self) -> None:
        """Go on with a copy that ended early: publications are lost, and tables are newer, or the other way round."""
        if not self._copy:
            return
        self.look()
        now = self.objects()
        folder = self.random.choice(["publication", *(FOLDERS[name] for name in FOLDERS)])
        if folder != "publication" and self.random.random() < 0.5:
            # Only the last versions of a format are missing. Publishers write them again.
            newer = sorted(path for path in now.keys() - self._copy.keys() if path.startswith(f"{TOPIC}/{folder}/"))
            lost = newer[self.random.randrange(len(newer) + 1) :]
        else:
            start = f"{TOPIC}/publication/"
            newer = sorted(p for p in now.keys() - self._copy.keys() if p.startswith(start) and p.endswith(".json"))
            lost = list(newer)
            for name in FOLDERS.values():
                more = sorted(p for p in now.keys() - self._copy.keys() if p.startswith(f"{TOPIC}/{name}/"))
                lost += more[self.random.randrange(len(more) + 1) :]
        if any(path not in now for path in self._copy if path.startswith(f"{TOPIC}/publication/")):
            # A vacuum ran since the copy. What is left would not be a chain.
            return
        for path in lost:
            self.world.memory.delete(path)
        self.told.append(f"  lost {len(lost)} of {folder}")
        self._copy = {}
        newest = self._newest()
        self._known = -1 if newest is None else newest.number
        self._seen = {}
        for name in self.formats:
            self._remove_unless_whole(name)
        self._send_lone(2)
        self._publish()

    def _remove_unless_whole(self, name: str) -> None:
        """Remove a table of which a version in the middle is lost: nothing can read it, and no publisher is asked to."""
        newest = self._newest()
        if newest is None or name not in newest.newest.formats:
            self._remove(name)

    def _vacuum(self) -> None:
        self.look()
        self.world.clock.advance_ms(self.random.choice([1, 20, 30]) * 3_600_000)
        store = self.world.open()
        report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        assert not report.failed, report.failed
        self._copy = {}

    # -- the topic ------------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        config = {"segment.batches": self.random.choice(["1", "4"]), "publish.retention.ms": str(RETENTION_MS)}
        config["publish.max.lag.ms"] = self.random.choice(["0", "0", "1000"])
        if self.formats:
            config["publish.formats"] = ",".join(self.formats)
        if self.keyed:
            config |= {"key.columns": "key", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        used = self.random.sample(NAMES, 2)
        columns = [pa.field("id", pa.int64(), nullable=False), pa.field("key", pa.int64())]
        schema = pa.schema([*columns, *(pa.field(name, pa.string()) for name in used), pa.field("n", pa.int32())])
        self.world.open().create_topic(TOPIC, schema=schema, partitions=3, config=config)

    def _again(self) -> None:
        if self.random.random() < 0.5:
            return
        self.world.open().delete_topic(TOPIC)
        for producer, _ in self._open.values():
            self._give_up(producer)
        self._open = {}
        self._create()

    def _toggle(self) -> None:
        """End a format, or begin one."""
        if self.random.random() < 0.5:
            return
        self.look()
        every: tuple[FormatName, ...] = ("delta", "iceberg")
        name = self.random.choice(every)
        if name in self.formats:
            self.formats = tuple(each for each in self.formats if each != name)
            self._set_formats()
            self._publish()
            self._remove(name)
        else:
            self.formats = (*self.formats, name)
            self._set_formats()
            self._publish()

    def _columns(self) -> None:
        store = self.world.open()
        columns = [each.name for each in store.runtime.topic(TOPIC, 0).schema]
        texts = [name for name in columns if name in NAMES]
        free = [name for name in NAMES if name not in columns]
        # A change that decides which rows are tombstones is refused.
        kinds = (
            ["rename", "swap", "widen"]
            if self.keyed
            else ["add", "default", "drop", "rename", "swap", "widen", "again"]
        )
        kind = self.random.choice(kinds)
        if kind == "default" and free:
            store.alter_topic(TOPIC, add_columns={free[0]: "string"}, column_defaults={free[0]: "none"})
        elif kind == "add" and free:
            store.alter_topic(TOPIC, add_columns={free[0]: "string"})
        elif kind == "drop" and texts:
            store.alter_topic(TOPIC, drop_columns=[self.random.choice(texts)])
        elif kind == "rename" and texts and free:
            store.alter_topic(TOPIC, rename_columns={self.random.choice(texts): self.random.choice(free)})
        elif kind == "swap" and len(texts) > 1:
            store.alter_topic(TOPIC, rename_columns={texts[0]: texts[1], texts[1]: texts[0]})
        elif kind == "widen":
            store.alter_topic(TOPIC, set_types={"n": "int64"})
        elif kind == "again" and texts:
            store.alter_topic(TOPIC, drop_columns=[texts[0]])
            store.alter_topic(TOPIC, add_columns={texts[0]: "string"})

    # -- rows -----------------------------------------------------------------------------------------------------------

    def _send(self, store: Store, producer: Any, count: int) -> set[int]:
        schema = store.runtime.topic(TOPIC, 0).schema
        sent = set()
        for _ in range(count):
            number, self.next_id = self.next_id, self.next_id + 1
            values: dict[int, Any] = {}
            for column in schema:
                fixed = {"id": number, "key": self.random.randrange(12), "n": number * 3}
                values[column.id] = fixed.get(column.name, f"c{column.id}-{number}")
            self.rows[number] = values
            partition = None if self.keyed else self.random.randrange(3)
            producer.send(TOPIC, {column.name: values[column.id] for column in schema}, partition=partition)
            sent.add(number)
        return sent

    def _opened(self) -> Store:
        return self.world.open(inline_max_bytes=self.random.choice([0, 0, 65536]))

    def _transaction(self) -> None:
        store = self._opened()
        producer = store.producer(f"t{self.random.randrange(3)}", staged=self.random.choice([None, True, False]))
        producer.init_transactions()
        producer.begin_transaction()
        rows = self._send(store, producer, self.random.randrange(1, 8))
        if self.random.random() < 0.3:
            producer.abort_transaction()
        else:
            self.committed |= rows
            producer.commit_transaction()
            self._whole.append(rows)
        producer.close()

    def _lone(self) -> None:
        self._send_lone(3)

    def _send_lone(self, count: int) -> None:
        store = self._opened()
        with store.producer() as producer:
            self.committed |= self._send(store, producer, count)

    def _begin(self) -> None:
        number = self.random.randrange(3)
        if number in self._open:
            return
        store = self._opened()
        most = 2**31 - 1
        producer = store.producer(
            f"open{number}", staged=False, transaction_timeout_ms=most, transaction_max_timeout_ms=most
        )
        producer.init_transactions()
        producer.begin_transaction()
        self._open[number] = (producer, self._send(store, producer, 3))
        producer.flush()

    def _more(self) -> None:
        for number, (producer, rows) in list(self._open.items()):
            try:
                rows |= self._send(self.world.open(), producer, 2)
                producer.flush()
            except TxlogError:
                # The columns have changed.
                del self._open[number]
                self._give_up(producer)

    def _end(self) -> None:
        if not self._open:
            return
        producer, rows = self._open.pop(self.random.choice(list(self._open)))
        if self.random.random() < 0.6:
            self.committed |= rows
            try:
                producer.commit_transaction()
                self._whole.append(rows)
            except TxlogError as error:
                self.told.append(f"  {error}"[:100])
                return
        else:
            self._give_up(producer)
            return
        producer.close()

    def _give_up(self, producer: Any) -> None:
        try:
            producer.abort_transaction()
            producer.close()
        except TxlogError as error:
            self.told.append(f"  {error}"[:100])

    # -- clean-up -------------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        store = self.world.open()
        session = reading.read_session(store.runtime)
        columns = [each.name for each in store.runtime.topic(TOPIC, 0).schema]
        sort = self.random.choice([(), ("id",), tuple(columns[-1:])])
        for number in range(3):
            policy = MergePolicy(max_inputs=self.random.choice([2, 100]), target_bytes=2**30)
            merge_partition(store.runtime, session, TopicPartition(TOPIC, number), policy, layout=FileLayout(sort=sort))

    def _compact(self) -> None:
        store = self.world.open()
        session = reading.read_session(store.runtime)
        policy = compaction_policy(store.runtime, store.runtime.topic(TOPIC, 0))
        assert policy is not None
        for number in range(3):
            compact_partition(store.runtime, session, TopicPartition(TOPIC, number), policy)

    def _delete_records(self) -> None:
        number = self.random.randrange(3)
        start, stable, _ = self.world.ends(TOPIC, number)
        if start < stable:
            before = self.random.randrange(start, min(start + 5, stable) + 1)
            self.world.open().admin().delete_records(TOPIC, number, before)


def dump(objects: dict[str, bytes], folder: Any) -> None:
    """Write a store to a folder."""
    for path, data in objects.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def as_json(check: Check) -> str:
    return json.dumps({"rows": {str(number): row for number, row in check.rows.items()}, "also": sorted(check.also)})
