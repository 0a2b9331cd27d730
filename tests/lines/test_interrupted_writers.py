"""After an interrupt at any line of a producer's call, the program goes on: are its rows there once, or not at all?

Each case is a call of a producer in one state. It is interrupted before a line, and the program goes on in each way
that docs/promise.md allows. All rows of the transaction are in the log exactly once if its end said so, and otherwise
none is. No future stays pending after `close`, and no call waits for ever (pytest's own time-out would end the test).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import txlog
from tests.effort import PROFILE
from tests.lines.at_line import Line, interrupted, lines_of
from txlog.client.producer import Producer
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
SENT = [0, 1, 2, 3]
LAST = [10, 11, 12, 13]
"""Rows of the send that is interrupted."""
STRIDE = 150 if PROFILE == "quick" else 60
BEFORE_INIT = ("init_transactions", "enter")
BEFORE_BEGIN = ("begin_transaction", "transaction")
"""Calls that come before the first row."""
FILES = {"inline": "65536", "files": "0"}


class Scene:
    """A producer with four sent rows over two topics and two partitions, unless the call comes before the first row."""

    def __init__(self, kind: str, inline_bytes: str, call: str = "") -> None:
        self.clock = ManualClock()
        self.memory = MemoryObjectStore(clock=self.clock)
        store = self.open(1)
        for topic in "ab":
            store.create_topic(topic, SCHEMA, 2, {"inline.max.bytes": inline_bytes})
        staged = {"deferred": None, "eager": False, "staged": True}.get(kind)
        settings: dict[str, Any] = {} if staged is None else {"staged": staged}
        self.kind = kind
        self.producer: Producer = store.producer(None if kind == "plain" else "id", **settings)
        if kind != "plain" and call not in BEFORE_INIT:
            self.producer.init_transactions()
            if call not in BEFORE_BEGIN:
                self.producer.begin_transaction()
        self.sent = [] if call in BEFORE_INIT + BEFORE_BEGIN else SENT
        self.futures: list[Future[Any]] = [
            self.producer.send("ab"[row // 2], [{"k": row}], partition=row % 2) for row in self.sent
        ]

    def open(self, seed: int) -> txlog.Store:
        config = {"linger.ms": 0, "metadata.max.age.ms": 0}
        return txlog.open("memory://", object_store=self.memory, clock=self.clock, ids=SeededIds(seed), config=config)

    def send(self) -> None:
        rows = [{"k": row} for row in LAST]
        self.futures.append(self.producer.send("a", rows, key="k"))

    def result(self) -> None:
        for future in self.futures:
            future.result()

    def send_offsets_to_transaction(self) -> None:
        self.producer.send_offsets_to_transaction({TopicPartition("a", 0): 1}, "g")

    def transaction(self) -> None:
        with self.producer.transaction():
            self.send()

    def partitions_for(self) -> None:
        assert len(self.producer.partitions_for("a")) == 2

    def enter(self) -> None:
        self.producer.__enter__()

    def leave(self) -> None:
        self.producer.__exit__(None, None, None)

    def offset(self) -> int | None:
        with self.open(3).consumer(group_id="g") as consumer:
            (found,) = consumer.committed(TopicPartition("a", 0)).values()
        return None if found is None else found.offset

    def committed(self) -> list[int]:
        found: list[Any] = []
        store = self.open(2)
        for topic in "ab":
            with store.consumer(topic, auto_offset_reset="earliest") as consumer:
                for batch in consumer.iterate():
                    found += batch.column("k").to_pylist()
        return sorted(found)


class Case(NamedTuple):
    kind: str
    call: str
    ways: tuple[tuple[str, ...], ...]


WHOLE = ("begin_transaction", "send", "commit_transaction", "close")
AFTER_OFFSETS = (
    ("send_offsets_to_transaction", "commit_transaction", "close"),
    ("commit_transaction", "close"),
    ("abort_transaction", "close"),
)
AFTER_SEND = (("commit_transaction", "close"), ("send", "commit_transaction", "close"), ("abort_transaction", "close"))
AFTER_COMMIT = (
    ("commit_transaction", "close"),
    ("close",),
    ("abort_transaction", "close"),
    ("result", "commit_transaction", "close"),
)
AFTER_ABORT = (
    ("abort_transaction", "close"),
    ("commit_transaction", "close"),
    ("result", "abort_transaction", "close"),
)
TRANSACTIONAL = ("deferred", "eager", "staged")
CASES = [
    *(Case(kind, "send", AFTER_SEND) for kind in TRANSACTIONAL),
    *(
        Case(kind, "flush", (("commit_transaction", "close"), ("flush", "commit_transaction", "close")))
        for kind in TRANSACTIONAL
    ),
    *(Case(kind, "commit_transaction", AFTER_COMMIT) for kind in TRANSACTIONAL),
    *(Case(kind, "abort_transaction", AFTER_ABORT) for kind in TRANSACTIONAL),
    *(Case(kind, "close", (("close",),)) for kind in TRANSACTIONAL),
    *(Case(kind, "leave", (("close",),)) for kind in TRANSACTIONAL),
    *(Case(kind, "result", (("commit_transaction", "close"),)) for kind in TRANSACTIONAL),
    *(Case(kind, "send_offsets_to_transaction", AFTER_OFFSETS) for kind in TRANSACTIONAL),
    *(
        Case(kind, "transaction", (("commit_transaction", "close"), ("abort_transaction", "close")))
        for kind in TRANSACTIONAL
    ),
    Case("deferred", "init_transactions", (("init_transactions", *WHOLE),)),
    Case("deferred", "enter", (("enter", *WHOLE),)),
    Case("deferred", "begin_transaction", (WHOLE,)),
    Case("deferred", "partitions_for", (("partitions_for", "commit_transaction", "close"),)),
    Case("plain", "result", (("result", "close"),)),
    Case("plain", "send", (("close",), ("send", "close"))),
    Case("plain", "flush", (("flush", "close"),)),
    Case("plain", "close", (("close",),)),
]


def call_of(scene: Scene, name: str) -> Callable[[], object]:
    found: Callable[[], object] = getattr(scene, name, None) or getattr(scene.producer, name)
    return found


def go_on(scene: Scene, way: tuple[str, ...]) -> dict[str, str]:
    """Run the calls of `way`. Return what each of them said."""
    said = {}
    for step in way:
        try:
            call_of(scene, step)()
            said[step] = "ok"
        except TxlogError as error:
            said[step] = f"{type(error).__name__}: {error}"
    return said


def judge(case: Case, way: tuple[str, ...], scene: Scene, said: dict[str, str]) -> str:
    """Return what is wrong; nothing if all is well."""
    rows = scene.committed()
    sent = scene.sent
    expected = [*sent, *LAST] if said.get("send") == "ok" else sent
    if said["close"] != "ok":
        return "close() failed"
    if pending := sum(not Future.done(future) for future in scene.futures):
        return f"{pending} futures are pending"
    if case.call == "transaction":
        return "" if rows in ([], LAST) else f"rows {rows}"
    if case.call == "send_offsets_to_transaction":
        # Without the same call again, a commit must not succeed if the transaction has these offsets.
        carried = said.get(case.call) == said.get("commit_transaction") == "ok"
        if scene.offset() != (1 if carried else None):
            return f"offset {scene.offset()}, {said}"
    if case.kind == "plain":
        return "" if rows in (expected, sorted([*expected, *LAST])) and rows.count(LAST[0]) <= 2 else f"rows {rows}"
    if said.get("commit_transaction") == "ok":
        complete = rows in (expected, [*sent, *LAST])
        return "" if complete else f"commit said ok, and the rows are {rows}"
    if case.call == "commit_transaction":
        if "commit_transaction" in way:
            # After its last step the interrupted commit has taken effect, and no transaction is open.
            done = "in state READY" in said["commit_transaction"] and rows == SENT
            return "" if done else f"the repeated commit failed, rows {rows}"
        return "" if rows in ([], SENT) else f"rows {rows}"
    return "" if not rows else f"rows of a transaction that was not committed: {rows}"


def lines_in(case: Case, inline_bytes: str) -> list[Line]:
    scene = Scene(case.kind, inline_bytes, case.call)
    lines = lines_of(call_of(scene, case.call))
    go_on(scene, ("close",))
    return lines


def live(case: Case, inline_bytes: str, line: Line, way: tuple[str, ...]) -> str | None:
    """Return what is wrong after an interrupt before the line, or None if the call did not run the line this time."""
    scene = Scene(case.kind, inline_bytes, case.call)
    if not interrupted(line, call_of(scene, case.call)):
        go_on(scene, ("close",))  # the thread of the producer did this line's work first
        return None
    said = go_on(scene, way)
    found = judge(case, way, scene, said)
    return found and f"{line}, then {said}: {found}"


def run(case: Case, inline_bytes: str, stride: int) -> None:
    """Interrupt every `stride`th line, with one way to go on; with 1 each line with each way."""
    wrong, tried = [], 0
    lines = lines_in(case, inline_bytes)
    stride = min(stride, max(len(lines) // 2, 1))
    for number, at in enumerate(range(stride // 2, len(lines), stride)):
        for way in case.ways if stride == 1 else (case.ways[number % len(case.ways)],):
            # In a sample, the next line that runs stands for one that does not.
            outcomes = (live(case, inline_bytes, line, way) for line in lines[at : at + stride])
            found = next((outcome for outcome in outcomes if outcome is not None), None)
            tried += found is not None
            if found:
                wrong.append(found)
    assert not wrong, "\n".join(wrong)
    assert tried


SOME = [
    case for case in CASES if case.kind in ("deferred", "plain") or case.call in ("send", "commit_transaction", "close")
]


@pytest.mark.parametrize("case", SOME, ids=lambda case: f"{case.kind}-{case.call}")
def test_some_lines(case: Case) -> None:
    run(case, FILES["inline"], STRIDE)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.call}")
def test_each_line(case: Case, form: str) -> None:
    run(case, FILES[form], 1)
