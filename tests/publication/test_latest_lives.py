"""Published tables of newest rows: each version has of each key the newest row of its cut that is no tombstone.

A life does what can happen to such a topic, and keeps all rows that were ever committed. Old defects are planted: some
life notices each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.publication.lives import TOPIC, Life, publish
from txlog.client import reading
from txlog.core import publication as deciding
from txlog.core.publication import Tables
from txlog.core.row_runs import removed_from
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.publications import read_chain
from txlog.publication import newest as newest_rows, publish as publishing
from txlog.storage.parquet_file import OpenedFile

HOUR_MS = 3_600_000
STEPS = 70


class LatestLife(Life):
    """A life of a topic whose newest rows are published."""

    schema = pa.schema([("id", pa.int64())]).append(pa.field("name", pa.string()))

    def __init__(self, seed: int) -> None:
        super().__init__(seed, keyed=True)
        self.compacts = self.random.random() < 0.7
        self.rows: dict[tuple[int, int], tuple[int | None, str | None]] = {}
        """Partition and offset of each row that was committed -> its key and value."""
        self.events: Counter[str] = Counter()
        self.set(**{"publish.rows": "latest", "cleanup.policy": "compact" if self.compacts else "delete"})

    def set(self, **config: str) -> None:
        self.store.alter_topic(TOPIC, config=config)

    def step(self) -> None:
        actions: list[Any] = [self._transaction] * 6 + [self._lone] * 2 + [self._merge, self._begin, self._begin]
        actions += [self._end, self._more, self._publish, self._publish, self._publish, self._vacuum, self._erase]
        actions += [self._compact] * 2 if self.compacts else [self._delete_records]
        actions += [self._toggle] if self.random.random() < 0.2 else []
        self.world.clock.advance_ms(self.random.choice([1, 10, 1000]))
        self.learn()
        self.random.choice(actions)()

    def learn(self) -> None:
        """Take what was committed since the last call."""
        for row in self.store.snapshot(TOPIC).table(TOPIC).to_arrow().to_pylist():
            self.rows[row["_partition"], row["_offset"]] = row["id"], row["name"]

    def check(self) -> Tables:
        """Publish, and compare each new version with the model."""
        self.learn()
        publish(self.world.open())
        tables = self._check_versions()
        self._check_files()
        return tables

    def _check_versions(self, *, change_nothing: bool = False) -> Tables:
        chain = self.store.runtime.run(read_chain(TOPIC)).tables
        if not change_nothing:
            for tables in chain:
                if tables.number <= max(self.follower.number, 0):
                    continue
                if not tables.newest.key:
                    missing = self.all_rows(tables) - self.shown(tables)
                    assert not missing, (tables.number, missing)
                    self.events["all rows"] += 1
                else:
                    found, expected = self.shown(tables), self.expected(tables)
                    assert found == expected, (tables.number, found - expected, expected - found)
                    self.events["updated"] += tables.newest.operation == "append" and any(
                        file.since == tables.number and file.removed_rows for file in tables.files.values()
                    )
                    self.events["moved"] += tables.newest.operation == "replace"
                    self.events["copied"] += any(file.source for file in tables.files.values())
        self.follower.number = chain[-1].number
        return chain[-1]

    def shown(self, tables: Tables) -> Counter[tuple[int | None, str | None]]:
        """Return the rows of a version."""
        found: Counter[tuple[int | None, str | None]] = Counter()
        for file in tables.files.values():
            rows = OpenedFile(self.world.memory, f"{TOPIC}/{file.path}", file.bytes, None).parquet.read()
            kept = rows.take(np.delete(np.arange(file.rows), removed_from(file)))
            found.update(zip(kept.column("id").to_pylist(), kept.column("name").to_pylist(), strict=True))
        return found

    def all_rows(self, tables: Tables) -> Counter[tuple[int | None, str | None]]:
        """Return the rows of the log at the cut."""
        rows = self.store.snapshot(TOPIC).table(TOPIC).to_arrow().to_pylist()
        return Counter((row["id"], row["name"]) for row in rows if tables.has(row["_partition"], row["_offset"]))

    def expected(self, tables: Tables) -> Counter[tuple[int | None, str | None]]:
        starts = [self.world.ends(TOPIC, number)[0] for number in range(3)]
        newest: dict[tuple[int, int], str | None] = {}
        keyless: list[tuple[int | None, str | None]] = []
        for (partition, offset), (key, value) in sorted(self.rows.items()):
            if offset >= starts[partition] and tables.has(partition, offset):
                if key is None:
                    keyless.append((key, value))
                else:
                    newest[partition, key] = value
        return Counter([*((key, value) for (_, key), value in newest.items() if value is not None), *keyless])

    def _rows(self, count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(count):
            self.next_id += 1
            key = None if not self.compacts and self.random.random() < 0.1 else self.random.randrange(20)
            value = (
                None if key is not None and self.random.random() < 0.2 else f"{'ab'[self.next_id % 2]}{self.next_id}"
            )
            rows.append({"id": key, "name": value})
        return rows

    def _erase(self) -> None:
        if self._open:
            return
        # A part of the rows, and all rows of a key with its tombstones.
        where, goes = self.random.choice(
            [
                ("name < 'b'", lambda _, name: name is not None and name < "b"),
                ("id < 4", lambda key, _: key is not None and key < 4),
            ]
        )
        # A row that a compaction has removed does not become the newest one of its key.
        self.rows = {}
        self.learn()
        self.store.admin().erase(TOPIC, where=where)
        before = len(self.rows)
        self.rows = {at: row for at, row in self.rows.items() if not goes(*row)}
        self.events["erased"] += len(self.rows) < before

    def _toggle(self) -> None:
        self.check()
        name, values = self.random.choice(
            [("publish.rows", ["all", "latest"]), ("publish.delete.mode", ["copy-on-write", "merge-on-read"])]
        )
        if name == "publish.rows":
            self.set(**{name: "all"})
            self.check()
        self.set(**{name: self.random.choice(values)})
        self.events[name] += 1

    def _vacuum(self) -> None:
        self.world.clock.advance_ms(self.random.choice([1, 20, 30]) * HOUR_MS)
        report = vacuum(self.store.runtime, reading.read_session(self.store.runtime), dry_run=False)
        assert not report.failed
        self.deleted_objects += len(report.deleted)
        if self.follower.number >= 0:
            self._check_versions(change_nothing=True)


@pytest.fixture(autouse=True)
def _no_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the files of the formats: these tests are about the chain of publications."""

    def nothing(*args: Any, **more: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(publishing, "write_version", nothing)
    monkeypatch.setattr(publishing, "complete_version", nothing)
    monkeypatch.setattr(publishing._Attempt, "_is_written", lambda *_: True)


def live(seed: int, steps: int = STEPS) -> LatestLife:
    life = LatestLife(seed)
    try:
        for _ in range(steps):
            life.step()
        life.check()
    except BaseException as error:
        error.add_note(f"life {seed}")
        raise
    finally:
        life.close()
    return life


@pytest.mark.parametrize("seed", range(6))
def test_each_version_has_the_newest_rows(seed: int) -> None:
    live(seed)


def _broken(name: str, patch: pytest.MonkeyPatch) -> None:
    part = newest_rows._Partition
    follow, compare, changes = part._follow, deciding.compare, newest_rows.newest_changes
    if name == "older rows stay beside a newer one":

        def choose(self: Any, touched: Any, in_cut: Any, was: Any, want: Any) -> None:
            for path in want:
                want[path] |= in_cut[path] & ~was[path]

        patch.setattr(part, "_choose", choose)
    elif name == "tombstones are rows":
        patch.setattr(part, "_are_tombstones", lambda _, __, rows: np.zeros(len(rows), dtype=np.bool_))
    elif name == "older rows come back with a merge":

        def shows_all(self: Any, gone: Any, old: Any, was: Any, touched: Any) -> bool:
            found = follow(self, gone, old, was, touched)
            was.update({path: flags for path, flags in old.items() if path not in self._parts})
            return found

        patch.setattr(part, "_follow", shows_all)
    elif name == "rows are lost with a merge":
        patch.setattr(part, "_follow", lambda *_: False)
    elif name == "keys of erased rows are not looked at again":

        def keeps_keys(self: Any, gone: Any, old: Any, was: Any, touched: Any) -> bool:
            return follow(self, gone, old, was, type(touched)(touched._keys))

        patch.setattr(part, "_follow", keeps_keys)
    elif name == "all rows stay when the newest ones are asked for":

        def goes_on(*given: Any) -> Any:
            *others, way = given
            goes: Any = changes
            return goes(*others, replace(way, starts_over=False))

        patch.setattr(newest_rows, "newest_changes", goes_on)
    else:
        assert name == "older rows stay away when all are asked for"

        def without_key(before: Any, *given: Any) -> Any:
            return compare(replace(before, newest=msgspec.structs.replace(before.newest, key=())), *given)

        patch.setattr(publishing, "compare", without_key)


MUTANTS = {
    "older rows stay beside a newer one": 0,
    "tombstones are rows": 0,
    "older rows come back with a merge": 0,
    "rows are lost with a merge": 0,
    "keys of erased rows are not looked at again": 6,
    "all rows stay when the newest ones are asked for": 0,
    "older rows stay away when all are asked for": 0,
}
"""The life that notices a mutant soonest, so it is the first to be tried."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _broken(name, monkeypatch)
    for seed in range(MUTANTS[name], MUTANTS[name] + 30):
        try:
            live(seed)
        except AssertionError:
            return
    pytest.fail("30 lives did not notice it")
