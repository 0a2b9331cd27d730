"""The thread of a producer fails, or ends, at any line of a call that ends the transaction: no commit says that it
succeeded without the rows.

The thread's first write of rows is held. At a line of the call it fails, and the call goes on when the thread has told
the producer. Then the program goes on as docs/promise.md says, and all rows are in the log if the end said so, and
otherwise none is.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import txlog
from tests.lines.at_line import Line, at_line, lines_of, not_counted
from tests.lines.test_interrupted_writers import FILES, SENT, Scene, call_of
from txlog.errors import StoreAccessError, TxlogError
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import SeededIds

HELD_S = 0.05
"""How long the write is held if the call waits for it before the line, and the line waits for a write to begin."""
HANG_S = 0.3
SAMPLE = 6
ROWS = re.compile(r"[ab]/\d+/")


class Ended(BaseException):
    """Ends the thread, as a callback can that ends the program."""


class Held:
    """A store whose first write of rows waits until it may fail."""

    def __init__(self, inner: ObjectStore, error: type[BaseException], *, appends: bool) -> None:
        self.inner = inner
        self.error = error
        self.appends = appends
        """Whether the thread appends its rows. Otherwise it writes them to files, and the commit appends them."""
        self.begun = False
        self.all_sent = threading.Event()
        self.go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put_if_absent(self, path: str, data: bytes) -> Any:
        if self.appends:
            self._fail_once(path)
        return self.inner.put_if_absent(path, data)

    def write_file(self, path: str, chunks: Any) -> int:
        self._fail_once(path)
        return self.inner.write_file(path, chunks)

    def _fail_once(self, path: str) -> None:
        if not self.begun and ROWS.match(path):
            self.begun = True
            # On a busy machine the program may need longer than HELD_S to send its rows.
            self.all_sent.wait()
            self.go.wait(HELD_S)
            raise self.error(f"held {path}")


class FailingScene(Scene):
    """A producer with four sent rows, whose first write by the thread fails."""

    def __init__(self, kind: str, form: str, error: type[BaseException]) -> None:
        self.error = error
        self.held: Held | None = None
        self.appends = kind != "staged"
        super().__init__("deferred" if kind == "large" else kind, FILES[form])
        assert self.held is not None
        self.held.all_sent.set()

    def open(self, seed: int) -> txlog.Store:
        if seed != 1:
            return super().open(seed)
        self.held = Held(self.memory, self.error, appends=self.appends)
        config = {"linger.ms": 0, "metadata.max.age.ms": 0, "retries": 0}
        ids = SeededIds(seed)
        return txlog.open("memory://", object_store=self.held, clock=self.clock, ids=ids, config=config)

    def fail(self) -> None:
        """Let the thread fail, and return when the producer knows; at once if this thread has the lock it needs."""
        with not_counted():
            assert self.held is not None
            self.held.go.set()
            begun = time.monotonic()
            # The name of the lock's C type has no public way to ask who holds it.
            while not self.producer._lock._is_owned():  # type: ignore[attr-defined]
                told = self.producer._state.error is not None or any(future.done() for future in self.futures)
                if told or time.monotonic() > begun + (HANG_S if self.held.begun else HELD_S):
                    return
                time.sleep(0.0005)


class Case(NamedTuple):
    kind: str
    call: str
    error: type[BaseException]

    def __str__(self) -> str:
        return f"{self.kind}-{self.call}-{self.error.__name__}"


FORMS = {"eager": ("inline", "files"), "large": ("inline",), "staged": ("files",)}
CASES = [
    Case(kind, call, error)
    for kind in FORMS
    for call in ("commit_transaction", "send_offsets_to_transaction", "flush", "abort_transaction")
    for error in (StoreAccessError, Ended)
]


@pytest.fixture(autouse=True)
def few_rows_are_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the four rows of a `large` case be too large for the decision only when they are inline rows."""
    case = request.node.callspec.params["case"]
    if case.kind == "large":
        monkeypatch.setattr("txlog.client.producer.sender.MAX_DEFERRED_BYTES", 200)


def said_by(call: Callable[[], object]) -> str:
    try:
        call()
    except (TxlogError, Ended) as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def lines_in(case: Case, form: str) -> list[Line]:
    """Return the lines of the call until it has learned of the failure."""
    scene = FailingScene(case.kind, form, case.error)
    found = lines_of(lambda: said_by(call_of(scene, case.call)))
    said_by(scene.producer.close)
    return found


def life(case: Case, form: str, line: Line) -> str:
    """Return what is wrong."""
    scene = FailingScene(case.kind, form, case.error)
    with at_line(line, scene.fail):
        said = {case.call: said_by(call_of(scene, case.call))}
    if case.call not in ("commit_transaction", "abort_transaction"):
        said["commit_transaction"] = said_by(scene.producer.commit_transaction)
    said["close"] = said_by(scene.producer.close)
    assert scene.held is not None
    rows = scene.committed()
    committed = said.get("commit_transaction") == "ok"
    if scene.held.begun and committed:
        return f"{line}: a write failed, and the commit said ok, rows {rows}: {said}"
    if rows != (SENT if committed else []):
        return f"{line}: rows {rows}, {said}"
    if any(not future.done() for future in scene.futures):
        return f"{line}: futures are pending: {said}"
    return ""


def run(case: Case, form: str, samples: int | None) -> None:
    found = lines_in(case, form)
    step = 1 if samples is None else max(len(found) // samples, 1)
    wrong = [text for line in found[len(str(case)) % step :: step] if (text := life(case, form, line))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_thread_fails_at_some_lines(case: Case) -> None:
    run(case, FORMS[case.kind][0], SAMPLE)


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_thread_fails_at_every_line(case: Case) -> None:
    for form in FORMS[case.kind]:
        run(case, form, None)
