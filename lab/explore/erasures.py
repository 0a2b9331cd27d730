"""Scenarios of erasures; mutants of their rules. A word with an exclamation mark is to be erased."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import compact, merge
from lab.explore.eraser import erase
from lab.explore.explorer import Budget
from lab.explore.keys import Compacted
from lab.explore.mutant import CORE, HERE, Mutant, clean_whatever_is_current
from lab.explore.scene import KEYED, A, B, Scenario, Scene, Size, context
from txlog.core import cleaning
from txlog.protocol.context import Views

# -- scenarios --------------------------------------------------------------------------------------------------------


def _erasure(size: Size) -> Scene:
    """Rows to erase lie in sealed segments, in the tail, among aborted rows, and behind a decided transaction."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=2), transactional_ids=("x",), erased=True, budget=Budget(lost=1 if full else 0), recovers=full,
    )  # fmt: skip
    words = ("a!", "b", "c!") if full else ("a!", "b")
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    aborts = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x!"), calls.abort())
    owner = scene.before("y", aborts, calls.stage(A, "y!"))
    scene.dies("y!", owner, calls.commit(), A.folder)
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("eraser", scene.client(), erase(A))
    scene.expects["eraser"] = {"erased"}
    scene.actor("slow", slow, keeper_calls.roll_forward())
    if full:
        scene.actor("writer", plain, calls.send(A, "d"))
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _erasure_open(size: Size, *, aborts: bool = False) -> Scene:
    """An open transaction with a row to erase, and another one, ends while the erasure goes on, or after it."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), erased=True, budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a!"))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x!"), calls.send(A, "xk"))
    scene.before("q", plain, calls.send(A, "b!"), calls.send(A, "c"))
    scene.actor("eraser", scene.client(), erase(A), *[erase(A)] * full)
    scene.actor("owner", owner, calls.abort() if aborts else calls.commit())
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _erasure_aborted(size: Size) -> Scene:
    return _erasure_open(size, aborts=True)


def _erasure_beyond(size: Size, *, aborts: bool = False) -> Scene:
    """An open transaction sends behind the end of the erasure, into the segment in which it ends."""
    full = size == "full"
    scene = Scene(ctx=context(batches=2), transactional_ids=("x",), erased=True, budget=Budget(lost=1 if full else 0))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a!"))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.register(A))
    scene.actor("eraser", scene.client(), erase(A), *[erase(A)] * full)
    scene.actor("owner", owner, calls.send(A, "x"), calls.abort() if aborts else calls.commit())
    return scene


def _erasure_beyond_aborted(size: Size) -> Scene:
    return _erasure_beyond(size, aborts=True)


def _erasure_merge(size: Size) -> Scene:
    """A merge copies the rows of before, and both want to replace the same segments."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), erased=True, budget=Budget(lost=1 if full else 0), recovers=full)
    words = ("a!", "b", "c!", "d") if full else ("a!", "b", "c")
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.actor("eraser", scene.client(), erase(A))
    scene.actor("merger", scene.client(), merge(A), *[merge(A)] * full)
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _two_erasures(size: Size) -> Scene:
    """Two processes finish what a third one has begun, and either may be the first to end it."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), erased=True, budget=Budget(lost=1 if full else 0), recovers=full)
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a!"), calls.send(A, "b"))
    scene.dies("e!", scene.client(), erase(A), ".clean")
    scene.actor("one", scene.client(), erase(A, begins=False))
    scene.actor("two", scene.client(), erase(A, begins=False))
    if full:
        scene.actor("writer", plain, calls.send(A, "c"))
    return scene


def _erasure_compaction(size: Size) -> Scene:
    """In a log with keys a tombstone and the row before it are erased while they are compacted."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), erased=True, compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0), recovers=full,
    )  # fmt: skip
    words = ("a!@k", "!-@k", "b@j", "c@j") if full else ("a!@k", "!-@k", "b@j")
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.actor("eraser", scene.client(), erase(A))
    scene.actor("compactor", scene.client(), compact(A, KEYED))
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _erasure_followed(size: Size) -> Scene:
    """A reader that knows the segments follows the tail, and begins to read when the erasure has ended."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), erased=True, budget=Budget(lost=1 if full else 0), recovers=full)
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in ("a!", "b", "c!")))
    knows = scene.before("k", scene.client(), keeper_calls.read(A))
    scene.actor("eraser", scene.client(), erase(A), _knowing(knows.views, keeper_calls.look(A)))
    if full:
        scene.actor("writer", plain, calls.send(A, "d"))
    return scene


def _knowing(views: Views, call: calls.Call) -> calls.Call:
    """Return the call of another process, with its views."""
    return lambda client: call(replace(client, views=views))


def _erasure_looks(size: Size) -> Scene:
    """A commit hangs between two partitions of which one is erased from; snapshots show it in both or in none."""
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), erased=True, recovers=size == "full"
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"), calls.send(B, "xb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p!"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("eraser", scene.client(), erase(A))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="erasure", what="rows are erased from segments, from the tail, and behind a decided transaction", rules=(5, 6, 7, 13), build=_erasure),
        Scenario(name="erasure, open", what="... behind an open transaction", rules=(6, 7, 13), build=_erasure_open),
        Scenario(name="erasure, aborted", what="... that is aborted", rules=(5, 6, 13), build=_erasure_aborted),
        Scenario(name="erasure, beyond", what="... whose segment also has later rows of an open transaction", rules=(6, 7, 13), build=_erasure_beyond),
        Scenario(name="erasure, beyond, aborted", what="... that is aborted", rules=(5, 6, 13), build=_erasure_beyond_aborted),
        Scenario(name="erasure, merge", what="... while their segments are merged", rules=(6, 13), build=_erasure_merge),
        Scenario(name="two erasures", what="... by two processes, which finish what a third one had begun", rules=(11, 13), build=_two_erasures),
        Scenario(name="erasure, compaction", what="... with their tombstone, in a log that is compacted", rules=(6, 13), build=_erasure_compaction),
        Scenario(name="erasure, followed", what="... from a log that a reader follows", rules=(13,), build=_erasure_followed),
        Scenario(name="erasure looks", what="... beside a commit that hangs between two partitions", rules=(13, 17), build=_erasure_looks),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _erases_over_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_CHOICE(walk, indexes, **{**kwargs, "last_stable_offset": 2**62})


_ORIGINAL_CHOICE = cleaning.choose_erasures


def _erases_up_to_a_segment(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    """Leaves out the segment in which the erasure ends."""
    return _ORIGINAL_CHOICE(walk, indexes, **{**kwargs, "end_offset": max(0, kwargs["end_offset"] - 1)})


def _seals_nothing(_: Any, views: Any, __: Any) -> Any:
    return views, None
    yield


def _rolls_nothing_forward(_: Any, views: Any, *__: Any) -> Any:
    return views, None
    yield


def _creates_nothing(_: Any, __: str, data: bytes, read: Any, **___: Any) -> Any:
    return read(data)
    yield


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("an erasure passes an open transaction", "erasure, aborted", "C1, C15", {CORE + "cleaning.choose_erasures": _erases_over_the_lso}),
        ("an erasure leaves the active segment alone", "erasure", "C15", {HERE + "erase.seal_up_to": _seals_nothing}),
        ("an erasure leaves out the segment in which it ends", "erasure", "C15", {CORE + "cleaning.choose_erasures": _erases_up_to_a_segment}),
        ("an erasure does not finish decided transactions first", "erasure", "C15", {HERE + "erase.expire": _rolls_nothing_forward}),
        ("an erasure is not recorded", "two erasures", "C15", {HERE + "erase.create_or_read": _creates_nothing}),
        ("an erasure does not wait for segments that reach beyond its end", "erasure, beyond", "C15", {HERE + "erase.reach_of": lambda _, end: end}),
        ("a merge brings erased rows back", "erasure, merge", "C4", {CORE + "cleaning.next_clean": clean_whatever_is_current}),
        ("a reader that follows the tail does not list erased segments again", "erasure, followed", "R23", {"txlog.core.records.CommitRecord.asks_for_a_list": False}),
        ("an erasure tells no transaction apart", "erasure looks", "C3", {HERE + "clean.Merge.keeps_distinct": lambda *_: False}),
    )
)  # fmt: skip
