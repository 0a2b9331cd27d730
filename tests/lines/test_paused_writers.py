"""A producer that stood still at any step of a call: are its rows there once or not at all, and nothing after it was
fenced?

Each call is paused at each step of its process, those of its thread included. Meanwhile another instance of the
`transactional.id` commits, the transaction times out, or maintenance deletes everything that is older than the grace.
Then the program goes on: it commits, or aborts if it must, and closes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
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
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import AbortableError, FencedError, OutcomeUnknownError, RetriableError, TxlogError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
SENT = [0, 1, 2, 3]
LAST = [10, 11]
"""Rows of the send that is paused."""
OTHERS = [20, 21]
"""Rows of the other instance."""
OWN_OFFSET, OTHERS_OFFSET = 4, 9
SOURCE = TopicPartition("source", 0)
GRACE_MS = 86_400_000
SAMPLE = 1


class Scene:
    """A producer in a process whose steps are counted."""

    def __init__(self, kind: str, call: str) -> None:
        self.clock = ManualClock(oversleeps_ms=1)
        self.memory = MemoryObjectStore(clock=self.clock)
        self.steps = Steps()
        self.opened = 0
        self.kind = kind
        self.at_fence: list[int] | None = None
        """Rows of the paused instance that were visible when the other one had committed."""
        store = self.open()
        for topic in "ab":
            store.create_topic(
                topic, SCHEMA, 2, {"segment.batches": "2", "inline.max.bytes": "0" if topic == "b" else "65536"}
            )
        store.create_topic("source", SCHEMA)
        self.before(store)
        settings: dict[str, Any] = (
            {} if kind == "plain" else {"staged": {"deferred": None, "eager": False, "staged": True}[kind]}
        )
        self.producer: Producer = self.open(slow=True).producer(None if kind == "plain" else "id", **settings)
        self.futures: list[Future[Any]] = []
        self.sent: list[int] = []
        if call == "init_transactions":
            return
        if kind != "plain":
            self.producer.init_transactions()
            self.producer.begin_transaction()
        for row in SENT:
            self.put(row)
        if kind != "plain" and call != "send_offsets":
            self.send_offsets()

    def before(self, store: Store) -> None:
        """Write what earlier producers have left: sealed segments, and this id's last transaction."""
        with store.producer("id") as producer:
            for _ in range(3):
                with producer.transaction():
                    for topic in "ab":
                        for number in (0, 1):
                            producer.send(topic, [{"k": -1}], partition=number)

    def open(self, *, slow: bool = False) -> Store:
        self.opened += 1
        return txlog.open(
            "memory://",
            object_store=SlowStore(self.memory, self.steps) if slow else self.memory,
            clock=SlowClock(self.clock, self.steps) if slow else self.clock,
            ids=SeededIds(self.opened),
            config={"linger.ms": 0, "metadata.max.age.ms": 0, **PATIENT},
        )

    def put(self, row: int) -> None:
        self.futures.append(self.producer.send("ab"[row // 2 % 2], [{"k": row}], partition=row % 2))
        self.sent.append(row)

    def send(self) -> None:
        for row in LAST:
            self.put(row)

    def send_offsets(self) -> None:
        self.producer.send_offsets_to_transaction({SOURCE: OWN_OFFSET}, "g")

    def init_transactions(self) -> None:
        self.producer.init_transactions()

    def call(self, name: str) -> Callable[[], object]:
        found: Callable[[], object] = getattr(self, name, None) or getattr(self.producer, name)
        return found

    def rows(self) -> list[int]:
        """Return the committed rows, but not those from the beginning."""
        found: list[Any] = []
        for topic in "ab":
            with self.open().consumer(topic, auto_offset_reset="earliest") as consumer:
                for batch in consumer.iterate():
                    found += batch.column("k").to_pylist()
        assert found.count(-1) == 12, f"rows from the beginning: {found}"
        return sorted(row for row in found if row >= 0)

    def offset(self) -> int | None:
        found = self.open().consumer(group_id="g").committed(SOURCE)[SOURCE]
        return None if found is None else found.offset

    def maintain(self) -> None:
        policy = MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)
        report = Maintainer(self.open().runtime, policy).run()
        failed = [action for step in report.steps for action in step.failed]
        assert not failed, failed


def nobody_else(scene: Scene) -> None:
    """Time goes by: less than a transaction's time-out, and more than a time-out of a look."""
    scene.clock.advance_ms(50_000)


def another_instance(scene: Scene) -> None:
    """Another instance takes the transactional.id over, and commits."""
    scene.clock.advance_ms(1_000)
    with scene.open().producer("id" if scene.kind != "plain" else "other") as producer, producer.transaction():
        producer.send("a", [{"k": OTHERS[0]}], partition=0)
        producer.send("b", [{"k": OTHERS[1]}], partition=1)
        producer.send_offsets_to_transaction({SOURCE: OTHERS_OFFSET}, "g")
    if scene.kind != "plain":
        scene.at_fence = [row for row in scene.rows() if row not in OTHERS]


def times_out(scene: Scene) -> None:
    """The transaction is overdue, and maintenance ends it."""
    scene.clock.advance_ms(70_000)
    scene.maintain()


def cleaned(scene: Scene) -> None:
    """Maintenance merges everything, and deletes what is older than the grace."""
    for _ in range(2):
        scene.maintain()
        scene.clock.advance_ms(GRACE_MS + 3_600_000)
    scene.maintain()


def another_instance_and_cleaned(scene: Scene) -> None:
    another_instance(scene)
    cleaned(scene)


MEANWHILE = (nobody_else, another_instance, times_out, cleaned, another_instance_and_cleaned)


class Case(NamedTuple):
    kind: str
    call: str

    def __str__(self) -> str:
        return f"{self.kind} {self.call}"


CALLS = ("init_transactions", "send", "flush", "send_offsets", "commit_transaction", "abort_transaction", "close")
ALL = [
    *(Case(kind, call) for kind in ("deferred", "eager", "staged") for call in CALLS),
    *(Case("plain", call) for call in ("send", "flush", "close")),
]


def go_on(scene: Scene, case: Case, said: dict[str, str]) -> None:
    """End what the program had begun, as the documentation says."""

    def attempt(name: str) -> TxlogError | None:
        try:
            scene.call(name)()
        except TxlogError as error:
            said[name] = f"{type(error).__name__}: {error}"
            return error
        said[name] = "ok"
        return None

    if case.kind == "plain":
        if "send" in said and said["send"] != "ok":
            scene.sent = [*SENT]
    elif case.call in ("send", "flush", "send_offsets"):
        if said[case.call] != "ok":
            attempt("abort_transaction")
        else:
            for _ in range(3):
                error = attempt("commit_transaction")
                if not isinstance(error, RetriableError | OutcomeUnknownError):
                    break
            if error is not None:
                attempt("abort_transaction")
    elif case.call == "commit_transaction" and said[case.call] != "ok":
        error = attempt("commit_transaction")
        if error is not None:
            attempt("abort_transaction")
    attempt("close")


def judge(scene: Scene, case: Case, said: dict[str, str]) -> None:
    """Judge the rows, the offsets, and the store."""
    found = scene.rows()
    own, others = [row for row in found if row not in OTHERS], [row for row in found if row in OTHERS]
    assert not (pending := [row for row, each in zip(scene.sent, scene.futures, strict=False) if not each.done()]), (
        f"{pending} are pending"
    )
    assert len(set(own)) == len(own), f"rows twice: {own}"
    assert others in ([], OTHERS)
    if case.kind == "plain":
        for row, future in zip(scene.sent, scene.futures, strict=False):
            error = future.exception()
            if error is None:
                assert row in own, f"row {row} is acknowledged, and is not there"
            elif not isinstance(error, OutcomeUnknownError | RetriableError):
                assert row not in own, f"row {row} has failed ({error}), and is there"
    else:
        assert own in ([], sorted(scene.sent)), f"a torn transaction: {own} of {scene.sent}"
        if said.get("commit_transaction") == "ok":
            assert own == sorted(scene.sent), "the commit said ok"
        elif "commit_transaction" not in said or said.get("abort_transaction") == "ok":
            assert not own, f"it was not committed, and there are {own}"
        if scene.at_fence is not None and case.call != "init_transactions":
            assert own == scene.at_fence, (
                f"the fenced instance wrote: {scene.at_fence} were visible before, {own} are now"
            )
        with_offsets = bool(own) and (case.call != "send_offsets" or said["send_offsets"] == "ok")
        expected = OTHERS_OFFSET if others else OWN_OFFSET if with_offsets else None
        assert scene.offset() == expected, f"offset {scene.offset()}, expected {expected}"
    scene.clock.advance_ms(70_000)
    scene.maintain()
    for topic in "ab":
        for tp, info in scene.open().admin().list_offsets(topic).items():
            assert info.last_stable_offset == info.log_end_offset, f"{tp}: {info} hangs"
    findings = [each for each in check_store(scene.memory, clock=scene.clock).findings if each.kind != "note"]
    assert not findings, findings


def life(case: Case, where: Where, meanwhile: Callable[[Scene], None]) -> bool:
    """Pause a call, go on, and judge. Return whether it was paused."""
    scene = Scene(case.kind, case.call)
    said: dict[str, str] = {}
    try:
        try:
            scene.steps.paused(where, lambda: meanwhile(scene), scene.call(case.call))
            said[case.call] = "ok"
        except (RetriableError, OutcomeUnknownError, AbortableError, FencedError) as error:
            said[case.call] = f"{type(error).__name__}: {error}"
        was_paused = scene.steps.since >= 0
        go_on(scene, case, said)
        try:
            judge(scene, case, said)
        except AssertionError as error:
            raise AssertionError(f"{error}; {said}") from error
        return was_paused
    finally:
        scene.producer._runtime.close()


def steps(case: Case) -> list[Step]:
    scene = Scene(case.kind, case.call)
    try:
        return scene.steps.of(scene.call(case.call))
    finally:
        scene.producer.close()
        scene.producer._runtime.close()


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: str(ALL[number]))
def test_a_pause_at_some_steps(number: int) -> None:
    case = ALL[number]
    judge_all(some(steps(case), MEANWHILE, number, SAMPLE), partial(life, case))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_a_pause_at_every_step(case: Case) -> None:
    judge_all(every(steps(case), MEANWHILE), partial(life, case))
