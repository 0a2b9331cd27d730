"""A pipeline that stood still at any step writes the result of no row that another member has processed meanwhile (W54,
W55).

A member of a group reads rows, and commits its results and offsets in transactions. It is paused at each step of a
cycle, by more than its session, the time-out of its transaction, or the grace. Another member goes on. Each row has one
result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.lines.pauses import PATIENT, SlowClock, SlowStore, Step, Steps, Where, every, judge_all, some
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import AbortableError, FencedError, OutcomeUnknownError, RetriableError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
ROWS = 12
CYCLES = 40
"""No pipeline needs more cycles in a row."""
GRACE_MS = 86_400_000
KINDS = {"deferred": None, "eager": False, "staged": True}
ALL = list(KINDS)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlog.client.groups.members.beat", lambda *_: None)


class Pipeline:
    """One process: a member of the group, and its producer."""

    def __init__(self, store: Store, name: str, kind: str) -> None:
        settings: dict[str, Any] = {"max_poll_records": 2, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
        self.consumer: Consumer = store.consumer(group_id="g", client_id=name, **settings)
        self.consumer.subscribe("in", on_lost=lambda _: None)
        self.store, self.name, self.kind = store, name, kind
        self.producer = self.begin()

    def begin(self) -> Producer:
        producer = self.store.producer(f"id-{self.name}", staged=KINDS[self.kind])
        producer.init_transactions()
        return producer

    def cycle(self) -> bool:
        """Process the rows of one poll. Return whether there were any."""
        batch = self.consumer.poll(0)
        if batch is None:
            return False
        self.producer.begin_transaction()
        rows = batch.to_pylist()
        tp = TopicPartition("in", rows[0]["_partition"])
        try:
            self.producer.send("out", [{"k": row["k"]} for row in rows])
            offsets = {tp: rows[-1]["_offset"] + 1}
            self.producer.send_offsets_to_transaction(offsets, self.consumer.group_metadata())
            try:
                self.producer.commit_transaction()
            except (RetriableError, OutcomeUnknownError):
                self.producer.commit_transaction()
        except (AbortableError, RetriableError, OutcomeUnknownError):
            self.producer.abort_transaction()
            self.consumer.seek_to_committed()
        except FencedError:
            self.producer = self.begin()
            self.consumer.seek_to_committed()
        return True

    def run(self) -> None:
        """Process all rows that there are."""
        assert not all(self.cycle() for _ in range(CYCLES)), f"{self.name} reads the same rows again and again"


class Scene:
    """A topic with rows, and the pipeline that is paused after its first cycle."""

    def __init__(self, kind: str) -> None:
        self.clock, self.steps, self.opened = ManualClock(oversleeps_ms=1), Steps(), 0
        self.memory = MemoryObjectStore(clock=self.clock)
        store = self.open()
        store.create_topic("in", SCHEMA, 2, {"segment.batches": "2"})
        store.create_topic("out", SCHEMA, 1, {"segment.batches": "2"})
        with store.producer() as producer:
            for k in range(ROWS):
                producer.send("in", [{"k": k}], partition=k % 2).result()
        self.kind = kind
        self.main = Pipeline(self.open(slow=True), "a", kind)
        self.main.cycle()
        self.others: list[Pipeline] = []

    def open(self, *, slow: bool = False) -> Store:
        self.opened += 1
        return txlog.open(
            "memory://",
            object_store=SlowStore(self.memory, self.steps) if slow else self.memory,
            clock=SlowClock(self.clock, self.steps) if slow else self.clock,
            ids=SeededIds(self.opened),
            config={"linger.ms": 0, "metadata.max.age.ms": 0, **PATIENT},
        )

    def maintain(self) -> None:
        report = Maintainer(self.open().runtime, MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)).run()
        failed = [action for step in report.steps for action in step.failed]
        assert not failed, failed

    def another(self) -> Pipeline:
        self.others.append(Pipeline(self.open(), f"p{len(self.others)}", self.kind))
        return self.others[-1]

    def judge(self) -> None:
        """Let all pipelines go on to the end, and look at the results."""
        for _ in range(15):
            self.clock.advance_ms(5_000)
            for each in (self.main, *self.others):
                each.run()
        self.maintain()
        with self.open().consumer("out", auto_offset_reset="earliest") as consumer:
            found = sorted(row["k"] for batch in consumer.iterate() for row in batch.to_pylist())
        assert found == list(range(ROWS)), f"results: {found}"
        findings = [each for each in check_store(self.memory, clock=self.clock).findings if each.kind != "note"]
        assert not findings, findings


def session_ends(scene: Scene) -> None:
    """Another member takes the partitions over, and may have to wait for the transaction."""
    scene.clock.advance_ms(50_000)
    scene.another().run()


def times_out(scene: Scene) -> None:
    """The transaction is overdue, too."""
    scene.clock.advance_ms(70_000)
    scene.another().run()


def another_and_cleaned(scene: Scene) -> None:
    """Another member processes everything and leaves, and what it needed is merged and deleted."""
    times_out(scene)
    scene.others.pop().consumer.close()
    for _ in range(2):
        scene.maintain()
        scene.clock.advance_ms(GRACE_MS + 3_600_000)
    scene.maintain()


MEANWHILE = (session_ends, times_out, another_and_cleaned)


def life(kind: str, where: Where, meanwhile: Callable[[Scene], None]) -> bool:
    scene = Scene(kind)
    try:
        scene.steps.paused(where, lambda: meanwhile(scene), scene.main.cycle)
        scene.judge()
        return scene.steps.since >= 0
    finally:
        scene.main.store.runtime.close()


def steps(kind: str) -> list[Step]:
    scene = Scene(kind)
    return scene.steps.of(scene.main.cycle)


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: ALL[number])
def test_a_pause_at_some_steps(number: int) -> None:
    kind = ALL[number]
    judge_all(some(steps(kind), MEANWHILE, number, 2), partial(life, kind))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ALL)
def test_a_pause_at_every_step(kind: str) -> None:
    judge_all(every(steps(kind), MEANWHILE), partial(life, kind))
