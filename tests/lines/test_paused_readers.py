"""A consumer that stood still at any step of a call returns no row, and writes no offset, that others have taken over
(W54, W56).

Each case of `readers` is paused by more than a session, or by more than the grace. Meanwhile nobody notices, or another
member takes the partitions over, reads and commits, and maintenance merges and vacuums. Then the call goes on, and all
read to the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import txlog
from tests.lines.at_line import Line
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
from tests.lines.readers import CALLS, GROUP, PARTITIONS, POLLS, SETTINGS, Case, Lives, Reader
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import CommitFailedError, TxlogTimeoutError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.testing.clock import SeededIds

SESSION_MS = 45_000
GRACE_MS = 86_400_000
SAMPLE = 1
"""Steps of each case that `make test` tries, in another place for each case."""


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are written when the test asks for them."""
    monkeypatch.setattr("txlog.client.groups.members.beat", lambda *_: None)


class Paused(Lives):
    """Lives in which the steps of member `a` are counted, and what others have committed while it stood still."""

    def __init__(self, limits: dict[str, int] | None = None) -> None:
        self.limits = {"default.api.timeout.ms": PATIENT["default.api.timeout.ms"]} if limits is None else limits
        self.steps = Steps()
        self.floor: dict[TopicPartition, int] = {}
        super().__init__()

    def reader(self, name: str, **settings: Any) -> Reader:
        if name != "a":
            return super().reader(name, **settings)
        store = txlog.open(
            "memory://",
            config={**SETTINGS, **self.limits},
            clock=SlowClock(self.clock, self.steps),
            ids=SeededIds(len(self.stores) + 1),
            object_store=SlowStore(self.memory, self.steps),
        )
        self.stores.append(store)
        made = Reader(self, name, store.consumer(group_id=GROUP, client_id=name, **settings))
        self.readers.append(made)
        return made

    def partitions(self, *topics: str) -> list[TopicPartition]:
        # `Lives` asks the process of member `a`, which cannot answer while it stands still.
        counts = {"t": PARTITIONS, "u": 1}
        return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's offsets."""
        found = self.open().consumer(group_id=GROUP).committed(*self.partitions("t", "u"))
        return {tp: 0 if value is None else value.offset for tp, value in found.items()}

    def receive(self, reader: Reader, tp: TopicPartition, offset: int, key: int) -> None:
        # Rows that were as good as returned when the pause began: no check could have come later.
        is_late = reader is self.main and self.steps.since == 0
        if reader.is_member and not is_late:
            assert offset >= self.floor.get(tp, 0), (
                f"{reader.name} returned {tp}, offset {offset}: others committed {self.floor}"
            )
        if not is_late:
            super().receive(reader, tp, offset, key)

    def check_floor(self) -> None:
        """Judge that nothing which others committed has been taken back."""
        behind = {tp: at for tp, at in self.committed().items() if at < self.floor.get(tp, 0)}
        assert not behind, f"{behind} are committed, after {self.floor}"


def nobody_notices(lives: Paused, case: Case) -> None:
    lives.clock.advance_ms(SESSION_MS + 5_000)


def another_reads(lives: Paused, case: Case) -> None:
    """Another member takes the partitions over, reads and commits, and stays."""
    lives.clock.advance_ms(SESSION_MS + 5_000)
    other = lives.reader("p")
    other.subscribe(*case.topics)
    for _ in range(40):
        if not other.poll():
            break
    other.consumer.commit()
    lives.floor = lives.committed()


def another_reads_and_leaves(lives: Paused, case: Case) -> None:
    another_reads(lives, case)
    lives.readers[-1].consumer.close()


def maintain(store: Store) -> None:
    policy = MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)
    report = Maintainer(store.runtime, policy).run()
    failed = [action for step in report.steps for action in step.failed]
    assert not failed, failed


def others_maintain(lives: Paused, case: Case) -> None:
    """Everything is merged, and what this replaced is deleted."""
    if lives.main.is_member:
        another_reads_and_leaves(lives, case)
    for _ in range(2):
        maintain(lives.open())
        lives.clock.advance_ms(GRACE_MS + 3_600_000)
    maintain(lives.open())


MEANWHILE = (nobody_notices, another_reads, another_reads_and_leaves, others_maintain)


def life(case: Case, where: Where, meanwhile: Callable[[Paused, Case], None]) -> bool:
    """Pause a call, and judge what is read. Return whether it was paused."""
    lives = Paused()
    try:
        call = case.prepare(lives)
        generation = lives.main.consumer._membership.generation
        # A heartbeat may take as long as a session; its thread ignores the error.
        with suppress(CommitFailedError, TxlogTimeoutError):
            lives.steps.paused(where, lambda: meanwhile(lives, case), call)
        was_paused = lives.steps.since >= 0
        lives.steps.since = max(lives.steps.since, 1)
        lives.check_floor()
        main = lives.main
        if was_paused and generation > 0 and not main.consumer._closed and main.consumer._membership.is_subscribed:
            main.poll()
            now = main.consumer._membership.generation
            assert now > generation, f"it reads on in generation {now} after its session was over"
        if not main.consumer._closed and not main.consumer.assignment() and not main.consumer._membership.is_subscribed:
            main.consumer.close()
        if main.consumer._closed:
            lives.readers = [each for each in lives.readers if each is not main]
            main.told.clear()
            lives.reader("d").subscribe(*case.topics)
        lives.settle(*case.topics)
        lives.check_floor()
        found = [each for each in check_store(lives.memory, clock=lives.clock).findings if each.kind != "note"]
        assert not found, found
        return was_paused
    finally:
        lives.close()


def steps(case: Case) -> list[Step]:
    lives = Paused()
    try:
        return lives.steps.of(case.prepare(lives))
    finally:
        lives.close()


def lines(case: Case) -> list[Line]:
    lives = Paused()
    try:
        return lives.steps.lines_of(case.prepare(lives))
    finally:
        lives.close()


def _heartbeat(lives: Lives) -> Callable[[], object]:
    lives.main.subscribe()
    lives.main.poll()
    lives.clock.advance_ms(20_000)
    return lives.main.tick


ALL = [*POLLS, *CALLS, Case("heartbeat", _heartbeat)]


def test_a_heartbeat_after_a_pause_revives_no_member() -> None:
    case = ALL[-1]
    assert life(case, steps(case)[0], nobody_notices)


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: str(ALL[number]))
def test_a_pause_at_some_steps(number: int) -> None:
    case = ALL[number]
    judge_all(some(steps(case), MEANWHILE, number, SAMPLE), partial(life, case))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_pause_at_every_step(case: Case) -> None:
    judge_all(every(steps(case), MEANWHILE), partial(life, case))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_pause_at_every_line(case: Case) -> None:
    judge_all(every(lines(case), [another_reads]), partial(life, case))
