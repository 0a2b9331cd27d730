"""After an interrupt at any line, a consumer goes on as if the call had not begun, or refuses (docs/promise.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.lines.at_line import Line, interrupted, lines_of
from tests.lines.readers import CALLS, POLLS, Case, Lives
from txlog.errors import IllegalStateError

# A generator that is collected swallows an interrupt that comes while it ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SAMPLE = 4
"""Lines of each case that `make test` tries, in another place for each case."""


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are written when the test says so."""
    monkeypatch.setattr("txlog.client.groups.members.beat", lambda *_: None)


def again(lives: Lives, call: Callable[[], object]) -> None:
    call()


def poll_first(lives: Lives, call: Callable[[], object]) -> None:
    with contextlib.suppress(IllegalStateError):
        lives.main.poll()
    call()


def commit_first(lives: Lives, call: Callable[[], object]) -> None:
    lives.commit_all(lives.main)
    call()


def close(lives: Lives, call: Callable[[], object]) -> None:
    lives.main.consumer.close()


def another_member(lives: Lives, call: Callable[[], object]) -> None:
    lives.reader("c").subscribe()
    lives.readers[-1].poll()
    call()


WAYS = (again, poll_first, commit_first, close, another_member)


def life(case: Case, where: Line, way: Callable[[Lives, Callable[[], object]], None]) -> None:
    """Interrupt a call at a line, go on in one way, and judge what is read."""
    lives = Lives()
    try:
        call = case.prepare(lives)
        was_interrupted = interrupted(where, call)
        is_open = not lives.main.consumer._closed
        if was_interrupted and is_open:
            way(lives, call)
        lives.hand_over(*case.topics)
        lives.settle(*case.topics)
        if case.once and way in (again, commit_first) and was_interrupted:
            twice = {at: by for at, by in lives.received.items() if len(by) > 1}
            assert not twice
    finally:
        lives.close()


def lines(case: Case) -> list[Line]:
    lives = Lives()
    try:
        return lines_of(case.prepare(lives))
    finally:
        lives.close()


def every(case: Case, step: int) -> Iterator[tuple[Line, Callable[[Lives, Callable[[], object]], None]]]:
    found = lines(case)
    begin = len(case.name) % step
    for number, line in enumerate(found[begin::step]):
        way = WAYS[number % len(WAYS)]
        yield line, again if way is another_member and case.once else way


def run(case: Case, step: int) -> int:
    found, count = [], 0
    for line, way in every(case, step):
        count += 1
        try:
            life(case, line, way)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found.append(f"{line}, then {way.__name__}: {type(error).__name__}: {str(error)[:300]}")
    assert not found, f"{len(found)} of {count}:\n" + "\n".join(found)
    return count


@pytest.mark.parametrize("case", [*POLLS, *CALLS], ids=str)
def test_an_interrupt_at_a_line(case: Case) -> None:
    assert run(case, max(len(lines(case)) // SAMPLE, 1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [*POLLS, *CALLS], ids=str)
def test_an_interrupt_at_every_line(case: Case) -> None:
    assert run(case, 1)
