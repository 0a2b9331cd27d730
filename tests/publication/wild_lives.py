"""Random lives of a published topic, with all that may happen to it and to its store, judged at every version.

Columns change, and names are used again. The topic is made again. Formats end and begin. Publishers die at any request,
and others with another spelling of the store's URL work in between. Stores are moved, and copies of them end early.
Clean-up of all kinds runs meanwhile. `EVENTS` names what the lives together must have had.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from tests.client.world import World
from tests.publication.table_readers import Row, Tables
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition, table_version_path
from txlog.core.publication import Tables as Published
from txlog.core.records import SchemaField
from txlog.core.records.publications import FormatName
from txlog.errors import InvalidRequestError, TableConflictError, TxlogError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import first_whole, newest_number, read_publications
from txlog.protocol.topics import earlier_version
from txlog.storage.backends import backend_of, canonical_url
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

TOPIC = "orders"
RETENTION_MS = 48 * 3_600_000
FOLDERS: dict[FormatName, str] = {"delta": "_delta_log", "iceberg": "metadata"}
NAMES = ("a", "b", "c", "d")


WRITES = ("publication", "rows copied", "delta", "delta checkpoint", "iceberg", "iceberg hint", "log")
"""What a publisher writes."""
BETWEEN = ("publish", "die", "vacuum", "merge", "columns", "delete records", "toggle")
"""What happens between two requests of a publisher."""
COLUMNS = ("add", "default", "drop", "rename", "swap", "widen", "again")
EVENTS = (
    *(f"died {moment} a write: {what}" for what in WRITES for moment in ("before", "after")),
    *(f"died {moment} a read" for moment in ("before", "after")),
    *(f"between two requests: {what}" for what in BETWEEN),
    *(f"another URL than the version before: {what}" for what in ("link", "mount")),
    "one of the schemes that mean the same",
    *(f"columns: {what}" for what in COLUMNS),
    *(f"moved: {what}" for what in ("mount", "link", "no link")),
    *(f"copy ended early: {what}" for what in ("publications", "delta", "iceberg", "log")),
    *(f"{what} {name}" for what in ("ended", "begun") for name in FOLDERS),
    "topic made again",
    "vacuum deleted objects",
    "compacted",
    "table made again after a conflict",
    *(f"judged {which} version of {name}" for which in ("newest", "older", "replaced") for name in FOLDERS),
)
"""What each run of all lives must have had."""


def kind_of(request: str) -> str:
    """Return what a request of a publisher is about."""
    verb, _, path = request.partition(" ")
    path = path.strip("'").removeprefix(f"{TOPIC}/")
    if verb not in ("put_if_absent", "write_file", "delete"):
        return "a read"
    if path.startswith("publication/"):
        return f"a write: {'publication' if path.endswith('.json') else 'rows copied'}"
    if path.startswith("_delta_log/"):
        return f"a write: {'delta checkpoint' if 'checkpoint' in path else 'delta'}"
    if path.startswith("metadata/"):
        return f"a write: {'iceberg hint' if 'hint' in path else 'iceberg'}"
    return "a write: log"


def _offset(row: Row) -> int:
    offset: int = row["_offset"]
    return offset


class Spelled:
    """A store as a process sees it that opened it by a URL."""

    def __init__(self, inner: Any, url: str) -> None:
        self._inner, self.url = inner, url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


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
    next: str = ""
    """The object that replaces this version."""
    replaced_ms: int | None = None
    """When it did. Vacuum may delete that object, too."""

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

    between: tuple[str, ...] = BETWEEN

    def __init__(
        self,
        seed: int,
        root: str,
        judge: Callable[[WildLife, list[Check]], None] | None = None,
        *,
        latest: bool = False,
    ) -> None:
        self.world = World()
        self.latest = latest
        """Whether the tables have the newest row of each key only."""
        self.random = random.Random(seed)
        self.root, self._judge = root, judge
        """The URL of the folder or bucket in which the store lies."""
        self.place = "p0"
        # Half of the lives have two mounts from the beginning.
        self.links: dict[str, str] = {} if seed % 2 else {"p1": "p0"}
        """Other names of the store's folder -> the folder."""
        self._mounts = set(self.links)
        self.keyed = self.random.random() < 0.25
        choices: list[tuple[FormatName, ...]] = [("delta",), ("iceberg",), ("delta", "iceberg"), ("delta", "iceberg")]
        self.formats = self.random.choice(choices)
        self._ended: set[str] = set()
        self.next_id = 0
        self.rows: dict[int, dict[int, Any]] = {}
        """Of each row that was sent, the values by the ids of columns."""
        self.committed: set[int] = set()
        self.erased: set[int] = set()
        """Rows that an erasure takes. It may not have ended yet."""
        self._whole: list[set[int]] = []
        self._open: dict[int, tuple[Any, set[int], Sequence[SchemaField]]] = {}
        self._known = -1
        """The newest publication that the life has looked at."""
        self._pending: list[Check] = []
        self._copy: dict[str, bytes] = {}
        self._as_copied: tuple[Any, ...] = ()
        """What a life that goes on with the copy must know."""
        self._seen: dict[str, set[int]] = {}
        """By the id of a Delta table, the rows that a reader which follows it has got."""
        self._files: dict[str, pa.Table] = {}
        self.checked = 0
        self.events: Counter[str] = Counter()
        self._hides_rows = seed % 4 == 3
        self._checks: list[Check] = []
        """Of versions that readers may still use."""
        self.told: list[str] = []
        self._create()

    # -- the whole ----------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self._publish()
        self._publish()
        self._judge_again()
        self.look()
        self._end_of_life()
        self.world.close()

    def _end_of_life(self) -> None:
        """Do what this kind of life does before its store is closed."""

    def step(self) -> None:
        actions: list[Callable[[], None]] = (
            [self._transaction] * 5 + [self._lone] * 3 + [self._begin, self._more, self._end]
        )
        actions += [self._publish] * 5 + [self._killed] * 3 + [self._between] * 3 + [self._merge] * 2
        actions += [self._columns] * 2 + [self._vacuum, self._again, self._toggle, self._toggle, self._move]
        actions += [self._keep_copy] * 2 + [self._lose] * 2 + [self._lose_log]
        actions += [self._compact if self.keyed else self._delete_records, *self._more_actions()]
        self.world.clock.advance_ms(self.random.choice([1, 10, 1000]))
        action = self.random.choice(actions)
        self.told.append(action.__name__)
        action()

    def _more_actions(self) -> list[Callable[[], None]]:
        """Return what else happens in this kind of life."""
        return []

    def look(self) -> None:
        """Let the judge check what is left to check."""
        if self._judge is not None and self._pending:
            self._judge(self, self._pending)
        self._pending = []

    def objects(self) -> dict[str, bytes]:
        return {path: self.world.memory.get(path) or b"" for path in self.world.memory._objects}

    def tables(self) -> Tables:
        # Every engine knows one scheme of those that mean the same.
        places = [canonical_url(f"{self.root}/{name}") for name in self._names()]
        return Tables(self.objects(), TOPIC, places, self._files)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Return the names of the store's folder."""
        return [self.place, *(name for name, place in self.links.items() if place == self.place)]

    def _opened_by_name(self, store: Any = None) -> Store:
        """Open the store by any of its URLs."""
        scheme, _, place = f"{self.root}/{self.random.choice(self._names())}".partition("://")
        backend = backend_of(self.root)
        schemes = (scheme,) if backend is None else backend.schemes
        # Takes the same from the random numbers, however many schemes there are.
        chosen = schemes[int(self.random.random() * len(schemes))]
        self.events["one of the schemes that mean the same"] += len(schemes) > 1
        spelled: Any = Spelled(store or self.world.counting, f"{chosen}://{place}")
        # A publisher that sleeps for a day goes on.
        return self.world.open(spelled, default_api_timeout_ms=2**31 - 1)

    def _opened_by_place(self) -> Store:
        """Open the store by the URL of its folder."""
        spelled: Any = Spelled(self.world.counting, canonical_url(f"{self.root}/{self.place}"))
        return self.world.open(spelled)

    def _publish(self) -> None:
        try:
            self._publish_with(self._opened_by_name())
        except TableConflictError as error:
            self.told.append(f"  {error}"[:100])
            self._start_over()
        self.check(is_settled=True)

    def _publish_with(self, store: Store, *, is_disturbed: bool = False) -> None:
        if not self.formats and not self._is_published():
            return
        session = reading.read_session(store.runtime)
        for _, made in publish_topics(session, [store.runtime.topic(TOPIC, 0)]):
            if isinstance(made, Exception):
                assert "report this line as a bug" not in str(made), made
                raise made
            assert not made.must_rewrite or is_disturbed

    def _killed(self) -> None:
        """A publisher dies before or after a request."""
        self._send_lone(1)
        self._die(is_alone=True)
        if self.random.random() < 0.6:
            self._publish()

    def _die(self, *, is_alone: bool = False) -> None:
        where = self.random.choice(
            [
                "",
                f"write_file {TOPIC}/publication/",
                f"put_if_absent {TOPIC}/metadata/",
                f"(put_if_absent|delete) {TOPIC}/metadata/version-hint",
                f"put_if_absent {TOPIC}/(_delta_log|publication)/",
                f"(put_if_absent|delete) {TOPIC}/_delta_log/.*checkpoint",
                f"write_file {TOPIC}/publication/",
            ]
        )
        number = self.random.choice([1, 1, 1, 2, 2, 3, 5]) if where else self.random.randrange(1, 60)
        if where.startswith("write_file"):
            # Few publications copy rows, and few of these need two files.
            number = 1
            if is_alone and self._hides_rows:
                self._hide_rows()
        moment = self.random.choice(["before", "after"])
        failing = FailingStore(self.world.memory, Fault(action="crash", moment=moment, match=where, number=number))  # type: ignore[arg-type]
        try:
            self._publish_with(self._opened_by_name(failing), is_disturbed=True)
        except SimulatedCrash as error:
            request = str(error).removeprefix(f"{moment} ")
            # Another thread may have met the fault.
            request = failing.operations[-1] if request == "this process is dead" else request
            self.told.append(f"  died {moment} {request}")
            self.events[f"died {moment} {kind_of(request)}"] += 1
        except TxlogError as error:
            # It may die while it settles an error. The next publisher meets the same.
            self.told.append(f"  {error}"[:100])

    def _hide_rows(self) -> None:
        """Make a file of rows that are published and rows of a transaction that was open then."""
        self._begin()
        self._send_lone(4)
        self._publish()
        self._more()
        while self._open:
            self._end()
        self._send_lone(4)
        self._merge()
        self.world.clock.advance_ms(2000)

    def _between(self) -> None:
        """Something happens, or another publisher works, while one is in the middle."""
        at = self.random.randrange(1, 40)
        what = self.random.choice([*self.between, *BETWEEN[:1] * 5])
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
                        life.events[f"between two requests: {what}"] += 1
                        life.told.append(f"  {what}")
                        life._try(lambda: life._in_between(what))
                    return found(*args, **more)

                return request

        self._try(lambda: self._publish_with(self._opened_by_name(Interrupted()), is_disturbed=True))
        self._publish()

    def _in_between(self, what: str) -> None:
        if what == "publish":
            self._publish_with(self._opened_by_name())
        elif what == "die":
            self._die()
        elif what == "vacuum":
            self._vacuum()
        elif what == "merge":
            (self._compact if self.keyed else self._merge)()
        elif what == "columns":
            self._columns()
        elif what == "delete records":
            (self._merge if self.keyed else self._delete_records)()
        elif self.formats:
            formats, self.formats = self.formats, ()
            self._set_formats()
            self.formats = formats
            self._set_formats()

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except (TableConflictError, InvalidRequestError) as error:
            # The settings may have changed between two requests.
            if isinstance(error, InvalidRequestError) and "is not published" not in str(error):
                raise
            self.told.append(f"  {error}"[:100])

    def _start_over(self) -> None:
        """Do what the hint of a TableConflictError says."""
        self.events["table made again after a conflict"] += 1
        self.look()
        self._checks = []
        formats = self.formats
        self.formats = ()
        self._set_formats()
        if self._is_published():
            self._publish_with(self._opened_by_name())
        for name in formats:
            self._remove(name)
        newest = self._newest()
        if newest is not None:
            self._known = newest.number
        self.formats = formats
        self._set_formats()
        self._publish_with(self._opened_by_name())

    def _set_formats(self) -> None:
        store = self.world.open()
        if self.formats:
            store.alter_topic(TOPIC, config={"publish.formats": ",".join(self.formats)})
        else:
            store.alter_topic(TOPIC, remove_config=["publish.formats"])

    def _remove(self, name: FormatName) -> None:
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

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self, *, is_settled: bool) -> None:
        """Check each version since the last call, and leave it to the judge, too.

        Unless it `is_settled`, the publisher of the newest ones may have died before it wrote them.
        """
        newest = self._newest()
        if newest is None:
            return
        self._note_replaced()
        store = self.world.open()
        first = max(first_whole(max(self._known, 0)), 0)
        chain = store.runtime.run(read_publications(TOPIC, first, newest.number)).tables
        columns = ["id", "key", "_partition", "_offset"]
        log = store.snapshot(TOPIC).table(TOPIC).to_arrow().select(columns).to_pylist()
        there = {row["id"] for row in log}
        assert there <= self.committed | self._being_erased(), "the log itself"
        tables = self.tables()
        for each in chain:
            if each.number <= self._known:
                continue
            names = [name for name in each.newest.formats if name in self.formats]
            if not is_settled and any(each.path_of(name) not in tables.objects for name in names):
                return
            schema = store.runtime.run(earlier_version(TOPIC, each.newest.topic_version)).schema
            shown = [row for row in log if each.has(row["_partition"], row["_offset"])]
            if self.latest:
                shown = list({(row["_partition"], row["key"]): row for row in sorted(shown, key=_offset)}.values())
            is_newest = each is chain[-1] and is_settled
            maybe: set[int] = set()
            if self.latest and not is_newest:
                # A row that was erased since then may have been the newest one of its key.
                keys = {value for number in self.erased for value in self._keys_of(number, schema)}
                maybe = {row["id"] for row in shown if row["key"] in keys}
                shown = [row for row in shown if row["key"] not in keys]
            rows = {row["id"]: self._row(row["id"], schema) for row in shown}
            is_exact = is_newest and (self.latest or each.newest.operation == "replace")
            left = self.committed if is_newest else self.committed | self.erased
            also = frozenset(() if is_exact else left - there | maybe)
            for name in names:
                version = each.version_of(name)
                after = table_version_path(name, TOPIC, version + 1)
                check = Check(name, version, rows, also, self.place, after)
                self._check_one(check, tables, each)
                self._pending.append(check)
                self._checks.append(check)
                self.events[f"judged {'newest' if each is chain[-1] else 'older'} version of {name}"] += 1
                if name == "iceberg" and version and (how := self._other_url(tables, version)):
                    self.events[f"another URL than the version before: {how}"] += 1
            self._known = each.number
        if not is_settled:
            return
        for name in newest.newest.formats:
            if name in self.formats:
                version = newest.version_of(name)
                if name == "iceberg":
                    assert tables.hinted() == version, f"the hint names version {tables.hinted()} and not {version}"
                else:
                    ids = sorted(row["id"] for row in tables.delta())
                    assert ids == sorted(row["id"] for row in tables.delta(version)), "the log goes on behind its end"

    def _note_replaced(self) -> None:
        memory = self.world.memory
        self._checks = [
            replace(each, replaced_ms=memory.modified_ms(each.next))
            if each.replaced_ms is None and memory.get(each.next) is not None
            else each
            for each in self._checks
        ]

    def _being_erased(self) -> set[int]:
        """Return the rows of erasures that have not ended."""
        return set()

    def _keys_of(self, number: int, schema: Sequence[SchemaField]) -> list[Any]:
        return [self.rows[number].get(column.id) for column in schema if column.name == "key"]

    def _judge_again(self) -> None:
        """Check versions that were replaced less than the retention ago: readers may still use them (C13)."""
        now_ms, tables = self.world.clock.now_ms(), self.tables()
        self._note_replaced()
        left = []
        for check in self._checks:
            if check.replaced_ms is not None and check.replaced_ms <= now_ms - RETENTION_MS:
                continue
            left.append(check)
            found = tables.delta(check.version) if check.format == "delta" else tables.iceberg(check.version)
            why = check.why_wrong(found)
            assert why is None, f"version {check.version} of {check.format}, later: {why}"
            self.events[f"judged replaced version of {check.format}"] += check.replaced_ms is not None
        self._checks = left
        self._pending = list(left)

    def _other_url(self, tables: Tables, version: int) -> str:
        """Return how the URL of a version of the Iceberg table differs from the one before; "" if it does not."""
        places = [tables.place(number) for number in (version - 1, version)]
        if None in places or places[0] == places[1]:
            return ""
        names = {place.split("/")[-2] for place in places}
        return "mount" if names & self._mounts else "link"

    def _check_one(self, check: Check, tables: Tables, each: Published) -> None:
        found = tables.delta(check.version) if check.format == "delta" else tables.iceberg(check.version)
        why = check.why_wrong(found)
        assert why is None, f"version {check.version} of {check.format}, publication {each.number}: {why}"
        ids = {row["id"] for row in found}
        for rows in self._whole:
            left = rows & check.rows.keys()
            assert not left or left <= ids, f"rows {sorted(left)} are of one transaction"
        self.checked += 1
        # Nobody can follow a table of newest rows by its new files.
        if check.format == "delta" and not self.latest:
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

    # -- the store ----------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move the store, with a link at its old place or without, or mount it under one more name."""
        self._publish()
        self.look()
        name = f"p{len(self.links) + int(self.place[1:]) + 1}"
        if self.random.random() < 0.5:
            self.links[name] = self.place
            self._mounts.add(name)
            self.events["moved: mount"] += 1
            return
        old, self.place = self.place, name
        if self.random.random() < 0.5:
            self.links = dict.fromkeys((*self.links, old), name)
        else:
            self.links = {}
            # Iceberg's versions of the old place are not valid until the next one.
            self._checks = [each for each in self._checks if each.format == "delta"]
        self.events[f"moved: {'link' if self.links else 'no link'}"] += 1
        self._checks = [replace(each, place=name) for each in self._checks]
        self._pending = []
        self._send_lone(2)
        self._publish()

    def _keep_copy(self) -> None:
        self._copy = self.objects()
        self._as_copied = set(self.committed), list(self._whole), self.formats

    def _lose(self) -> None:
        """Go on with a copy that ended early: publications are lost, and tables are newer, or the other way round."""
        if not self._copy:
            return
        self.check(is_settled=False)
        self.look()
        now = self.objects()
        folder = self.random.choice(["publication", *(FOLDERS[name] for name in FOLDERS)])
        if folder != "publication" and self.random.random() < 0.5:
            # Only the last versions of a format are missing. Publishers write them again.
            newer = sorted(path for path in now.keys() - self._copy.keys() if path.startswith(f"{TOPIC}/{folder}/"))
            lost = newer[int(self.random.random() * len(newer)) :]
            self.events[f"copy ended early: {next(name for name in FOLDERS if FOLDERS[name] == folder)}"] += bool(lost)
        else:
            start = f"{TOPIC}/publication/"
            newer = sorted(p for p in now.keys() - self._copy.keys() if p.startswith(start) and p.endswith(".json"))
            lost = list(newer)
            for name in FOLDERS.values():
                more = sorted(p for p in now.keys() - self._copy.keys() if p.startswith(f"{TOPIC}/{name}/"))
                lost += more[self.random.randrange(len(more) + 1) :]
        if any(path not in now for path in self._copy if path.startswith(f"{TOPIC}/publication/")):
            # A vacuum ran since the copy. The rest would not be a chain.
            return
        for path in lost:
            self.world.memory.delete(path)
        self.told.append(f"  lost {len(lost)} of {folder}")
        self.events["copy ended early: publications"] += any("/publication/" in path for path in lost)
        self._go_on_with_copy()

    def _lose_log(self) -> None:
        """Go on with a copy whose tables are newer than the log and the publications."""
        if not self._copy:
            return
        self.check(is_settled=False)
        self.look()
        now, copy = self.objects(), self._copy
        of_tables = tuple(f"{TOPIC}/{folder}/" for folder in FOLDERS.values())
        lost = [path for path in now if path not in copy and not path.startswith(of_tables) and ".parquet" not in path]
        for start in of_tables:
            newer = sorted(path for path in now if path not in copy and path.startswith(start))
            lost += newer[self.random.randrange(len(newer) + 1) :] if self.random.random() < 0.5 else []
        changed = [path for path in copy if path in now and now[path] != copy[path] and not path.startswith(of_tables)]
        for path in (*lost, *changed):
            self.world.memory.delete(path)
        for path in copy.keys() - (now.keys() - set(changed)):
            self.world.memory.put_if_absent(path, copy[path])
        self.told.append(f"  lost {len(lost)} objects and the log behind")
        self.events["copy ended early: log"] += 1
        self._take_back()
        # The next owners end the transactions of the copy.
        self._open = {}
        for number in range(3):
            producer = self.world.open().producer(f"open{number}", staged=False)
            producer.init_transactions()
            producer.close()
        self._go_on_with_copy()

    def _take_back(self) -> None:
        """Let the model be what it was when the copy was made."""
        self.committed, self._whole, self.formats = self._as_copied

    def _go_on_with_copy(self) -> None:
        self._copy = {}
        newest = self._newest()
        self._known = -1 if newest is None else newest.number
        self._seen, self._checks, self._pending = {}, [], []
        for name in self.formats:
            self._remove_unless_whole(name)
        self._send_lone(2)
        # Inline rows are published, too. Without a new publication no publisher looks at the versions behind the
        # newest.
        self.world.clock.advance_ms(2000)
        self._publish()

    def _remove_unless_whole(self, name: FormatName) -> None:
        """Remove a table of which a version in the middle is lost: nothing can read it, and no publisher is asked
        to."""
        newest = self._newest()
        if newest is None or name not in newest.newest.formats:
            self._remove(name)

    def _vacuum(self) -> None:
        self.check(is_settled=False)
        self.look()
        self.world.clock.advance_ms(self.random.choice([1, 20, 30]) * 3_600_000)
        store = self.world.open()
        report = vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)
        assert not report.failed, report.failed
        self.events["vacuum deleted objects"] += bool(report.deleted)
        self._judge_again()
        self._copy = {}

    # -- the topic ----------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        config = {"segment.batches": self.random.choice(["1", "4"]), "publish.retention.ms": str(RETENTION_MS)}
        config["publish.max.lag.ms"] = self.random.choice(["0", "0", "1000"])
        if self.formats:
            config["publish.formats"] = ",".join(self.formats)
        if self.keyed:
            config |= {"key.columns": "key", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        if self.latest:
            mode = self.random.choice(["copy-on-write", "merge-on-read", "merge-on-read"])
            config |= {"key.columns": "key", "publish.rows": "latest", "publish.delete.mode": mode}
        used = self.random.sample(NAMES, 2)
        columns: list[pa.Field[Any]] = [pa.field("id", pa.int64(), nullable=False), pa.field("key", pa.int64())]
        schema = pa.schema([*columns, *(pa.field(name, pa.string()) for name in used), pa.field("n", pa.int32())])
        self.world.open().create_topic(TOPIC, schema=schema, partitions=3, config=config)

    def _again(self) -> None:
        if self.random.random() < 0.5:
            return
        self.check(is_settled=False)
        self.events["topic made again"] += 1
        # It publishes a version without rows, so it must know a URL of the store.
        self._opened_by_place().delete_topic(TOPIC)
        for producer, *_ in self._open.values():
            self._give_up(producer)
        self._open = {}
        self._create()

    def _toggle(self) -> None:
        """End a format, or begin one."""
        if self.random.random() < 0.5:
            return
        self.check(is_settled=False)
        self.look()
        every: tuple[FormatName, ...] = ("delta", "iceberg")
        name = self.random.choice(every)
        if name in self.formats:
            self.formats = tuple(each for each in self.formats if each != name)
            self._set_formats()
            self._publish()
            self._remove(name)
            self._checks = [each for each in self._checks if each.format != name]
            self.events[f"ended {name}"] += 1
        else:
            self.formats = (*self.formats, name)
            self._set_formats()
            self._publish()
            self.events[f"begun {name}"] += 1

    def _columns(self) -> None:
        store = self.world.open()
        columns = [each.name for each in store.runtime.topic(TOPIC, 0).schema]
        texts = [name for name in columns if name in NAMES]
        free = [name for name in NAMES if name not in columns]
        # A change that decides which rows are tombstones is refused.
        kind = self.random.choice(["rename", "swap", "widen"] if self.keyed else COLUMNS)
        before = store.runtime.topic(TOPIC, 0).schema_id
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
        self.events[f"columns: {kind}"] += self.world.open().runtime.topic(TOPIC, 0).schema_id != before

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _send(self, store: Store, producer: Any, count: int, old: Sequence[SchemaField] = ()) -> set[int]:
        """Send rows. A producer that began with the `old` columns writes a name into the column that it had then."""
        schema: Sequence[SchemaField] = store.runtime.topic(TOPIC, 0).schema
        known = {column.name: column.id for column in old}
        if any(known.get(column.name, column.id) != column.id for column in schema):
            schema = old
        sent = set()
        for _ in range(count):
            number, self.next_id = self.next_id, self.next_id + 1
            values: dict[int, Any] = {}
            for column in schema:
                fixed = {"id": number, "key": self.random.randrange(12), "n": number * 3}
                values[column.id] = fixed.get(column.name, self._text(column.id, number))
            self.rows[number] = values
            partition = None if self.keyed else self.random.randrange(3)
            producer.send(TOPIC, {column.name: values[column.id] for column in schema}, partition=partition)
            sent.add(number)
        return sent

    def _text(self, column_id: int, number: int) -> str:
        return f"c{column_id}-{number}"

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
        rows = self._send(store, producer, 3)
        self._open[number] = (producer, rows, store.runtime.topic(TOPIC, 0).schema)
        producer.flush()

    def _more(self) -> None:
        for number, (producer, rows, old) in list(self._open.items()):
            try:
                rows |= self._send(self.world.open(), producer, 2, old)
                producer.flush()
            except TxlogError:
                # The columns have changed.
                del self._open[number]
                self._give_up(producer)

    def _end(self) -> None:
        if not self._open:
            return
        producer, rows, _ = self._open.pop(self.random.choice(list(self._open)))
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

    # -- clean-up -----------------------------------------------------------------------------------------------------

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
        self.events["compacted"] += 1
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
