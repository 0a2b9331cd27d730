"""A read that stood still while maintenance deleted what it was about to read returns right rows, or one clear error.

The topics are `logs` (retention), `keys` (compacted) and `facts`; transaction `n` writes a row to each of them. A read
is paused at each step of its process. Meanwhile others commit more transactions, and may compact, merge, move log
starts, and vacuum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, cast

import pytest

import txlog
from tests.lines.pauses import (
    PATIENT,
    SlowClock,
    SlowStore,
    Step,
    Steps,
    Where,
    every,
    judge_all,
    some,
)
from txlog.client.store import Store
from txlog.client.tables.snapshot import Snapshot
from txlog.errors import InvalidRequestError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
TOPICS = ("logs", "keys", "facts")
KEYS = 5
BEFORE = 9
AFTER = 6
REMOVED = 3
"""The key whose last row, of the last transaction, is a tombstone."""
SAMPLE = 1


@dataclass
class Scene:
    """A store, the time of it, and a process whose steps are counted."""

    clock: ManualClock = field(default_factory=ManualClock)
    steps: Steps = field(default_factory=Steps)
    committed: int = 0
    """Transactions so far."""
    opened: int = 0

    def __post_init__(self) -> None:
        self.memory = MemoryObjectStore(clock=self.clock)

    def open(self, *, slow: bool = False) -> Store:
        self.opened += 1
        return txlog.open(
            "memory://",
            object_store=SlowStore(self.memory, self.steps) if slow else self.memory,
            clock=SlowClock(self.clock, self.steps) if slow else self.clock,
            ids=SeededIds(1000 * self.opened + self.committed),
            config={
                "linger.ms": 0,
                "delete.grace.ms": HOUR_MS,
                "metadata.max.age.ms": 0,
                "default.api.timeout.ms": PATIENT["default.api.timeout.ms"],
            },
        )

    def commit(self, number: int) -> None:
        """Commit transactions, each in another process than the last."""
        for _ in range(number):
            n = self.committed
            with self.open().producer(f"id{n % 2}", staged=(None, False)[n % 2]) as producer, producer.transaction():
                producer.send("logs", [{"id": n, "v": n}], partition=n % 2)
                value = None if n == BEFORE + AFTER - 1 else n
                producer.send("keys", [{"id": REMOVED if value is None else n % KEYS, "v": value}])
                producer.send("facts", [{"id": n, "v": n}], partition=n % 2)
            self.committed += 1
            self.clock.advance_ms(MINUTE_MS)

    def maintain(self) -> None:
        policy = MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)
        report = Maintainer(self.open().runtime, policy).run()
        failed = [action for step in report.steps for action in step.failed]
        assert not failed, failed

    def kept(self) -> set[int]:
        """Return the rows of `logs` that retention has left."""
        with self.open().consumer("logs", auto_offset_reset="earliest") as consumer:
            return {row["v"] for row in rows(consumer.iterate())}


@cache
def filled() -> tuple[dict[str, Any], int]:
    scene = Scene()
    store = scene.open()
    schema = {"id": "int64", "v": "int64"}
    settings = {"segment.batches": "2"}
    store.create_topic("logs", schema, 2, {**settings, "retention.ms": str(HOUR_MS), "inline.max.bytes": "0"})
    compacted = {"key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    store.create_topic("keys", schema, 1, {**settings, **compacted, "delete.retention.ms": str(HOUR_MS)})
    store.create_topic("facts", schema, 2, {**settings, "inline.max.bytes": "0"})
    scene.commit(BEFORE - 3)
    scene.maintain()
    scene.commit(3)
    return dict(scene.memory._objects), scene.clock.now_ms()


def scene() -> Scene:
    objects, now_ms = filled()
    made = Scene(ManualClock(now_ms), committed=BEFORE, opened=100)
    made.memory._objects.update(objects)
    return made


Found = dict[str, list[dict[str, Any]]]
Call = Callable[[], Found]


def rows(batches: Iterable[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def consume(store: Store) -> Call:
    consumer = store.consumer(auto_offset_reset="earliest", max_poll_records=2)
    consumer.assign_topics(TOPICS)

    def call() -> Found:
        found = rows(consumer.iterate())
        return {name: [row for row in found if row["_topic"] == name] for name in TOPICS}

    return call


def tables_of(snapshot: Snapshot) -> Found:
    return {name: rows(table.scan()) for name, table in snapshot.tables().items()}


def take(store: Store) -> Call:
    return lambda: tables_of(store.snapshot(*TOPICS))


def read(store: Store) -> Call:
    snapshot = store.snapshot(*TOPICS)
    return lambda: tables_of(snapshot)


def counted(store: Store) -> Call:
    snapshot = store.snapshot(*TOPICS)
    return lambda: {"counts": [{name: table.count("v >= 0") for name, table in snapshot.tables().items()}]}


def table(name: str) -> Callable[[Store], Call]:
    return lambda store: lambda: {name: rows(store.table(name).scan())}


def changes(store: Store) -> Call:
    return lambda: {"facts": rows(store.table("facts").changes())}


def latest(store: Store) -> Call:
    return lambda: {"latest": rows(store.table("keys").latest())}


def latest_where(store: Store) -> Call:
    return lambda: {"latest": rows(store.table("keys").latest(where="id >= 0"))}


def latest_of_snapshot(store: Store) -> Call:
    snapshot = store.snapshot("keys")
    return lambda: {"latest": rows(snapshot.table("keys").latest())}


@dataclass(frozen=True)
class Case:
    name: str
    prepare: Callable[[Store], Call]
    exact: bool = False
    """Whether the read shows the point at which it was prepared."""
    whole: bool = False
    """Whether it shows whole transactions."""

    def __str__(self) -> str:
        return self.name


ALL = [
    Case("consume", consume),
    Case("take a snapshot and read it", take, whole=True),
    Case("read a snapshot", read, exact=True, whole=True),
    Case("count in a snapshot", counted, exact=True),
    Case("table with retention", table("logs")),
    Case("table of facts", table("facts")),
    Case("compacted table", table("keys")),
    Case("changes", changes),
    Case("latest", latest),
    Case("latest with a condition", latest_where),
    Case("latest of a snapshot", latest_of_snapshot, exact=True),
]


def others_commit(scene: Scene) -> None:
    scene.commit(AFTER)


def others_clean(scene: Scene) -> None:
    """Others commit, compact, merge, move log starts, and delete what nobody may use any more."""
    scene.commit(AFTER)
    for _ in range(3):
        scene.maintain()
        scene.clock.advance_ms(2 * HOUR_MS)
    scene.maintain()


def others_clean_at_once(scene: Scene) -> None:
    """The same, and only just so long as it takes."""
    scene.commit(AFTER)
    scene.maintain()
    scene.clock.advance_ms(HOUR_MS + 1000)
    scene.maintain()


MEANWHILE = (others_commit, others_clean, others_clean_at_once)


def newest(transactions: Iterable[int]) -> dict[int, int | None]:
    """Return the value of each key after these transactions."""
    found: dict[int, int | None] = {}
    for n in sorted(transactions):
        found[REMOVED if n == BEFORE + AFTER - 1 else n % KEYS] = None if n == BEFORE + AFTER - 1 else n
    return found


def judge(case: Case, found: Found, scene: Scene) -> None:
    """Judge what a read has returned."""
    ends = [BEFORE] if case.exact else list(range(BEFORE, scene.committed + 1))
    for name, got in found.items():
        if name == "counts":
            assert got[0]["facts"] == got[0]["logs"] == BEFORE, got
            assert KEYS <= got[0]["keys"] <= BEFORE, got
            continue
        values = [row["v"] for row in got]
        if "_offset" in (got[0] if got else {}):
            places = [(row["_partition"], row["_offset"]) for row in got]
            assert len(set(places)) == len(places), f"{name}: rows twice: {places}"
        if name == "latest":
            ids = [row["id"] for row in got]
            assert len(set(ids)) == len(ids), f"keys twice: {ids}"
            for key in range(KEYS):
                possible = {newest(range(end))[key] for end in ends}
                value = next((row["v"] for row in got if row["id"] == key), None)
                assert value in possible, f"key {key}: {value}, expected one of {possible}: {got}"
        elif name == "keys":
            least = newest(range(BEFORE))
            for key in range(KEYS):
                mine = [row["v"] for row in got if row["id"] == key]
                late = scene.committed == BEFORE + AFTER and key == REMOVED
                ok = any(v is None or v >= (least[key] or 0) for v in mine)
                assert ok or (late and not mine), f"key {key} has the rows {mine}, and its newest one was {least[key]}"
        else:
            assert len(set(values)) == len(values), f"{name}: rows twice: {values}"
            assert not case.exact or sorted(values) == list(range(BEFORE)), f"{name}: {values}"
            for half in (0, 1):
                mine = [v for v in values if v % 2 == half]
                last = max([*mine, BEFORE - 2 + (half == BEFORE % 2)])
                missing = set(range(half, last + 1, 2)) - set(mine)
                kept = scene.kept() if name == "logs" else missing
                assert mine == sorted(mine), f"{name}: {values} are not in order"
                assert not missing & kept, f"{name}: {values} lacks {sorted(missing & kept)}"
    if case.whole:
        # Not a prefix: of transactions that are committed while the snapshot is taken, any may be in it.
        seen = {row["v"] for row in found["facts"]}
        assert seen >= set(range(BEFORE)), f"the snapshot lacks commits that had returned: {seen}"
        logs = {row["v"] for row in found["logs"]}
        assert logs <= seen, f"torn: {logs} in logs, {seen} in facts"
        assert not (seen - logs) & scene.kept(), f"torn: {logs} in logs, {seen} in facts"
        shown = {row["id"]: row["v"] for row in found["keys"]}
        assert shown == newest(seen), f"keys: {shown}, but {seen} in facts make {newest(seen)}"


def life(case: Case, where: Where, meanwhile: Callable[[Scene], None]) -> bool:
    made = scene()
    store = made.open(slow=True)
    try:
        call = case.prepare(store)
        found: object = None
        # After a pause in which something was deleted, a read may refuse with one of these.
        with suppress(*(() if meanwhile is others_commit else (InvalidRequestError,))):
            found = made.steps.paused(where, lambda: meanwhile(made), call)
        if found is not None:
            judge(case, cast(Found, found), made)
        else:
            assert made.steps.since >= 0, "it fails without a pause"
        findings = [each for each in check_store(made.memory, clock=made.clock).findings if each.kind != "note"]
        assert not findings, findings
        return made.steps.since >= 0
    finally:
        store.runtime.close()


def steps(case: Case) -> list[Step]:
    made = scene()
    store = made.open(slow=True)
    try:
        return made.steps.of(case.prepare(store))
    finally:
        store.runtime.close()


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: str(ALL[number]))
def test_a_pause_at_some_steps(number: int) -> None:
    case = ALL[number]
    judge_all(some(steps(case), MEANWHILE, number, SAMPLE), partial(life, case))


@pytest.mark.parametrize("name", ["read a snapshot", "compacted table", "latest"])
def test_files_are_deleted_right_before_they_are_read(name: str) -> None:
    (case,) = (case for case in ALL if case.name == name)
    where = next(step for step in steps(case) if step.what.startswith("before get_range keys/"))
    assert life(case, where, others_clean)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_pause_at_every_step(case: Case) -> None:
    judge_all(every(steps(case), MEANWHILE), partial(life, case))
