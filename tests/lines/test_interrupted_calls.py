"""After an interrupt at any line of a call of a store, a table, a snapshot or an operator, the program goes on.

The same goes for staged transactions. Another process sees the call done, or not begun. The same call again ends where
an undisturbed one ends, and gives its answer. Then the objects are used on, and closed. No call waits for ever
(pytest's own time-out would end the test).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.lines.at_line import Line, interrupted, lines_of
from tests.lines.stores import ADMINS, STAGED, STORES, TABLES, Act, Call, Scene, nothing
from txlog.errors import IllegalStateError

# A generator that is collected swallows an interrupt that comes while it ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CALLS = (*STORES, *ADMINS, *TABLES, *STAGED)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of a test that has ended write no heartbeats."""
    monkeypatch.setattr("txlog.client.groups.members.beat", lambda *_: None)


@functools.cache
def undisturbed(call: Call) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], Any]:
    """Return what others see before the call, after it, and after what follows it; and its answer."""
    scene = Scene()
    try:
        act = call.prepare(scene)
        before = scene.seen()
        answer = act()
        after = scene.seen()
        call.end(scene)
        return before, after, after if call.end is nothing else scene.seen(), answer
    finally:
        scene.close()


def lines(call: Call) -> list[Line]:
    scene = Scene()
    try:
        return lines_of(call.prepare(scene))
    finally:
        scene.close()


def life(call: Call, line: Line, number: int) -> bool:
    """Interrupt a call at a line, go on, and judge. Return whether the call ran that line."""
    before, after, _, _ = undisturbed(call)
    scene = Scene()
    try:
        act = call.prepare(scene)
        if not interrupted(line, act):
            return False
        found = scene.seen()
        assert call.steps or found in (before, after), _differ(found, before, after)
        way = number % (2 + len(call.ways))
        if way > 1:
            call.ways[way - 2](scene, act)
            expected, seen = [_rows(each) for each in undisturbed(call)[:3]], _rows(scene.seen(whole=True))
            assert seen in expected, f"way {way}: {_differ(seen, *expected)}"
        else:
            _again(call, scene, act, found, elsewhere=bool(way) and not call.ways and call.end is nothing)
        _use(scene)
        scene.store.close()
    finally:
        scene.close()
    return True


def _again(call: Call, scene: Scene, act: Act, found: dict[str, Any], *, elsewhere: bool) -> None:
    before, after, end, answer = undisturbed(call)
    if elsewhere:
        scene.store = scene.open()
        scene.admin = scene.store.admin()
    try:
        said = act()
        if found == before:
            assert said == answer, f"{said} instead of {answer}"
    except call.over:
        assert call.steps or found == after, "it was refused, but not done"
    call.end(scene)
    seen = scene.seen(whole=True)
    assert seen == end, _differ(seen, end)


def _rows(seen: dict[str, Any]) -> dict[str, Any]:
    """Return the rows, without those of the next transaction."""
    return {key: [row for row in value if row[1] < 40] for key, value in seen.items() if key.endswith(" rows")}


def _use(scene: Scene) -> None:
    """Call something else of the same objects."""
    try:
        scene.store.topics()
        scene.store.table("audit").count()
    except IllegalStateError as error:
        assert "is closed" in str(error)  # noqa: PT017  a store that was closed
    scene.admin.list_groups()
    scene.admin.list_transactions()


def _differ(found: dict[str, Any], *expected: dict[str, Any]) -> str:
    return (
        "; ".join(
            f"{key}: {found.get(key)}, not {[each.get(key) for each in expected]}"
            for key in {*found, *(key for each in expected for key in each)}
            if found.get(key) not in [each.get(key) for each in expected]
        )
        or "half of it is done"
    )


def run(call: Call, chosen: Iterable[tuple[int, list[Line]]]) -> int:
    """Try lines, each with a number that chooses how to go on.

    The next lines stand for one that does not run this time.
    """
    wrong, tried = [], 0
    for number, group in chosen:
        for line in group:
            try:
                ran = life(call, line, number)
            except Exception as error:
                ran = True
                wrong.append(f"{line}: {type(error).__name__}: {str(error)[:500]}")
            tried += ran
            if ran:
                break
    assert not wrong, f"{call}: {len(wrong)} of {tried}:\n" + "\n".join(wrong)
    return tried


def every(found: list[Line], step: int, begin: int) -> Iterator[tuple[int, list[Line]]]:
    """Yield each `step`th line and the last one."""
    for number, at in enumerate(range(begin % step, len(found), step)):
        yield number + begin, found[at : at + step]
    yield begin, found[:-9:-1]


@pytest.mark.parametrize("call", [*CALLS[: -len(STAGED) : 3], *STAGED], ids=str)
def test_an_interrupt_at_a_line(call: Call) -> None:
    """Try one line of a part of the calls, in another place for each call, or the last one: behind the last step of a
    staged transaction."""
    found, number = lines(call), CALLS.index(call)
    at = len(found) - 1 if call in STAGED else number * 37 % len(found)
    assert run(call, [(0, [*found[at:], *found[:at]])])


@pytest.mark.exhaustive
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_an_interrupt_at_every_line(call: Call) -> None:
    assert run(call, every(lines(call), 1, 0))
