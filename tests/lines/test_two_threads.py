"""One thread is interrupted while another one holds what it needs, or waits for what it holds. Neither hangs, and no
row is torn.

`waits`: the second thread begins its call at a line of the first one, which is interrupted there. If the first one
holds a lock, the second waits for it. `holds`: the second thread stops at a line of its own call, perhaps with a lock,
and a real signal interrupts the first one, which may wait for that lock.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.lines import stores, test_interrupted_writers as writers
from tests.lines.at_line import Line, at_line, lines_of, not_counted
from tests.lines.readers import CALLS, POLLS, Case, Lives
from tests.lines.stores import rows
from txlog.errors import TxlogError

# A generator that is collected swallows an interrupt that comes while it ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SAMPLE = 1
HANG_S = 20
A_MOMENT_S = 0.003
OTHER = [20, 21, 22, 23]
"""Rows that the second thread sends."""


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are written when the test asks for them."""
    monkeypatch.setattr("txlog.client.groups.members.beat", lambda *_: None)


class Second(threading.Thread):
    """A call in a second thread. With `stop_at` it stops before that line until `go` is set."""

    def __init__(self, call: Callable[[], object], stop_at: Line | None = None) -> None:
        super().__init__(daemon=True)
        self.call = call
        self.stop_at = stop_at
        self.stopped = threading.Event()
        self.go = threading.Event()
        self.said = "hangs"

    def run(self) -> None:
        try:
            if self.stop_at is None:
                self.call()
            else:
                with at_line(self.stop_at, self.stop):
                    self.call()
            self.said = "ok"
        except TxlogError as error:
            self.said = f"{type(error).__name__}: {error}"
        except BaseException as error:  # the judge must see it
            self.said = f"unexpected {type(error).__name__}: {error}"
        finally:
            self.stopped.set()

    def stop(self) -> None:
        with not_counted():
            self.stopped.set()
            self.go.wait(HANG_S)

    def end(self) -> None:
        self.go.set()
        self.join(HANG_S)
        assert not self.said.startswith(("hangs", "unexpected")), f"the second thread {self.said}"


def waits(where: Line, call: Callable[[], object], second: Second) -> None:
    """Begin the second call before a line of the first one, and interrupt the first one there."""

    def act() -> None:
        with not_counted():
            second.start()
            second.join(A_MOMENT_S)
        raise KeyboardInterrupt

    try:
        with at_line(where, act):
            call()
    except KeyboardInterrupt:
        pass
    except TxlogError:
        assert second.ident is not None  # it met what the second one has done
    if second.ident is None:  # the line did not run this time
        second.start()
    second.end()


def holds(call: Callable[[], object], second: Second) -> str:
    """Stop the second thread at its line, then interrupt the first call with a signal, also while it waits."""
    main, sent, begun = threading.get_ident(), threading.Event(), threading.Event()

    def kill() -> None:
        begun.wait(HANG_S)
        time.sleep(A_MOMENT_S)
        signal.pthread_kill(main, signal.SIGINT)
        sent.set()

    second.start()
    assert second.stopped.wait(HANG_S)
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    said = "interrupted"
    try:
        begun.set()
        call()
        said = "ok"
    except KeyboardInterrupt:
        sent.wait(HANG_S)
    except TxlogError as error:
        said = f"{type(error).__name__}: {error}"
    try:
        if said != "interrupted":
            sent.wait(HANG_S)
            time.sleep(0.05)
    except KeyboardInterrupt:
        pass
    second.end()
    return said


class Pair(NamedTuple):
    kind: str
    call: str
    other: str
    mode: str

    @property
    def name(self) -> str:
        return "-".join(self)


TRANSACTIONAL = ("send", "result", "flush", "commit_transaction", "abort_transaction", "close")
PLAIN = ("send", "result", "flush", "close")
PAIRS = [
    Pair(kind, call, other, mode)
    for kind in ("deferred", "eager", "staged", "plain")
    for call in (PLAIN if kind == "plain" else TRANSACTIONAL)
    for other in (PLAIN if kind == "plain" else TRANSACTIONAL)
    for mode in ("waits", "holds")
]
FEW = [
    *PAIRS[3::29],
    Pair("deferred", "commit_transaction", "result", "waits"),
    Pair("deferred", "abort_transaction", "result", "waits"),
]


def _other(scene: writers.Scene, name: str) -> Callable[[], object]:
    if name == "send":
        return lambda: scene.futures.append(scene.producer.send("b", [{"k": row} for row in OTHER], key="k"))
    return writers.call_of(scene, name)


def produce(pair: Pair, line: Line) -> str:
    """Return what is wrong."""
    scene = writers.Scene(pair.kind, writers.FILES["inline"])
    call = writers.call_of(scene, pair.call)
    second = Second(_other(scene, pair.other), line if pair.mode == "holds" else None)
    said = {pair.call: "interrupted"}
    if pair.mode == "holds":
        said[pair.call] = holds(call, second)
    else:
        waits(line, call, second)
    said[f"second {pair.other}"] = second.said
    said |= writers.go_on(scene, ("close",) if pair.kind == "plain" else ("commit_transaction", "close"))
    found = scene.committed()
    if said["close"] != "ok":
        return f"close() failed: {said}"
    if any(not future.done() for future in scene.futures):
        return f"futures are pending: {said}"
    for group in (writers.SENT, writers.LAST, OTHER):
        part = [row for row in found if row in group]
        if part not in ([], group):
            return f"rows {found}, {said}"
    ended_well = (
        said.get("commit_transaction") == "ok"
        or pair.kind == "plain"
        or (pair.other == "commit_transaction" and second.said == "ok")
    )
    if ended_well and not set(writers.SENT) <= set(found):
        return f"it is committed, and the rows are {found}: {said}"
    if (
        ended_well
        and pair.other == "send"
        and second.said == "ok"
        and said.get("commit_transaction") == "ok"
        and not set(OTHER) <= set(found)
    ):
        return f"rows of the second thread are missing: {found}, {said}"
    return ""


def producer_lines(pair: Pair) -> list[Line]:
    """Return the lines where the pair meets: of the first call, or of the second one if that one stops."""
    scene = writers.Scene(pair.kind, writers.FILES["inline"])
    found = lines_of(_other(scene, pair.other) if pair.mode == "holds" else writers.call_of(scene, pair.call))
    writers.go_on(scene, ("close",))
    return found


def run_producers(pair: Pair, samples: int | None) -> None:
    found = producer_lines(pair)
    step = 1 if samples is None else max(len(found) // samples, 1)
    wrong = [f"{line}: {text}" for line in found[len(pair.name) % step :: step] if (text := produce(pair, line))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("pair", FEW, ids=lambda pair: pair.name)
def test_two_threads_of_a_producer(pair: Pair) -> None:
    run_producers(pair, SAMPLE)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_two_threads_of_a_producer_at_every_line(pair: Pair) -> None:
    run_producers(pair, None)


BESIDE: dict[str, Callable[[Lives], object]] = {
    "heartbeat": lambda lives: lives.main.tick(),
    "close": lambda lives: lives.main.consumer.close(),
    "commit": lambda lives: lives.main.consumer.commit(),
}


def consume(case: Case, other: str, line: Line) -> None:
    """Interrupt a consumer's call while a second thread writes its heartbeat, or makes a call.

    Then judge what is read.
    """
    lives = Lives()
    try:
        call = case.prepare(lives)
        lives.clock.advance_ms(4_000)  # a heartbeat is due
        waits(line, call, Second(lambda: BESIDE[other](lives)))
        lives.hand_over(*case.topics)
        lives.settle(*case.topics)
    finally:
        lives.close()


MEMBERS = [
    case
    for case in (*POLLS, *CALLS)
    if case.name not in ("seek to the end", "iterate", "iterate for ever") and not case.once
]


def run_consumers(case: Case, other: str, samples: int | None) -> None:
    lives = Lives()
    found = lines_of(case.prepare(lives))
    lives.close()
    step = 1 if samples is None else max(len(found) // samples, 1)
    wrong = []
    for line in found[len(case.name) % step :: step]:
        try:
            consume(case, other, line)
        except Exception as error:
            wrong.append(f"{line}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", MEMBERS[::5], ids=str)
def test_a_heartbeat_beside_an_interrupt(case: Case) -> None:
    run_consumers(case, "heartbeat", SAMPLE)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("other", BESIDE)
@pytest.mark.parametrize("case", MEMBERS, ids=str)
def test_two_threads_of_a_consumer_at_every_line(case: Case, other: str) -> None:
    run_consumers(case, other, None)


def _made(scene: stores.Scene) -> None:
    with scene.store.producer() as producer:
        producer.send("audit", rows(60)).result()


SHARED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "two scans of one table": (lambda scene: scene.made.scan().read_all(), lambda scene: scene.made.scan().read_all()),
    "topics beside topics": (lambda scene: scene.store.topics(), lambda scene: scene.store.topic("orders")),
    "close beside a producer": (lambda scene: scene.store.close(), _made),
    "a producer beside close": (_made, lambda scene: scene.store.close()),
    "close beside close": (lambda scene: scene.store.close(), lambda scene: scene.store.close()),
    "admin beside admin": (lambda scene: scene.admin.list_groups(), lambda scene: scene.admin.delete_group("g")),
    "two resets": (
        lambda scene: scene.admin.reset_offsets("g", {stores.T0: 1}),
        lambda scene: scene.admin.reset_offsets("g", {stores.T0: 1}),
    ),
    "commit beside abort": (
        lambda scene: scene.staging.commit(scene.parts_made),
        lambda scene: scene.staging.abort(),
    ),
}


def share(name: str, mode: str, line: Line) -> None:
    """Let two threads use the same object, interrupt one, and use the object on."""
    first, other = SHARED[name]
    scene = _scene(name)
    try:
        second = Second(lambda: other(scene), line if mode == "holds" else None)
        if mode == "holds":
            holds(lambda: first(scene), second)
        else:
            waits(line, lambda: first(scene), second)
        if name == "commit beside abort":
            committed = scene.staging.abort().already_committed
            found = stores.keys(scene).count(30)
            assert found <= 1, "rows are doubled"
            assert not committed or found
        scene.store.close()
        scene.seen(whole=True)
    finally:
        scene.close()


def _scene(name: str) -> Any:
    scene: Any = stores.Scene()
    scene.made = scene.table()
    if name == "commit beside abort":
        scene.staging = scene.staged()
        scene.parts_made = scene.parts(scene.staging, 30, 31, 32)
    return scene


def run_shared(name: str, mode: str, samples: int | None) -> None:
    scene = _scene(name)
    found = lines_of(lambda: SHARED[name][mode == "holds"](scene))
    scene.close()
    step = 1 if samples is None else max(len(found) // samples, 1)
    wrong = []
    for line in found[len(name) % step :: step]:
        try:
            share(name, mode, line)
        except Exception as error:
            wrong.append(f"{line}: {type(error).__name__}: {str(error)[:300]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SHARED)
def test_two_threads_of_one_object(name: str) -> None:
    run_shared(name, "waits" if len(name) % 2 else "holds", SAMPLE)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("mode", ["waits", "holds"])
@pytest.mark.parametrize("name", SHARED)
def test_two_threads_of_one_object_at_every_line(name: str, mode: str) -> None:
    run_shared(name, mode, None)
