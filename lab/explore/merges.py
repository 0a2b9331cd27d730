"""Scenarios of merges; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import deletes, forget_cleans, merge
from lab.explore.explorer import Budget, ClockErrors
from lab.explore.mutant import (
    CLEANER,
    CORE,
    HERE,
    ORIGINAL_MERGED,
    Mutant,
    clean_whatever_is_current,
    may_expire_with_versions,
    own_clock,
)
from lab.explore.scene import (
    BRIEF,
    CONSTANTS,
    FORGETFUL,
    GRACE_MS,
    HOUR_MS,
    LONG,
    SMALL_ONES,
    A,
    B,
    Scenario,
    Scene,
    Size,
    context,
)
from txlog.core import cleaning
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import PutIfAbsent, PutOutcome
from txlog.core.fetch_plan import plan_fetch
from txlog.core.records import StoreConstants
from txlog.protocol import clean

# -- scenarios --------------------------------------------------------------------------------------------------------


def _merge(size: Size) -> Scene:
    """A merge leaves two things alone: a large segment with an aborted row, and everything from an open transaction on.

    The merge copies the marker of the aborted row.
    """
    full = size == "full"
    scene = Scene(ctx=context(batches=1), transactional_ids=("x", "y"), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent())
    aborts = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a" * LONG))
    plain = scene.before("p1", plain, calls.send(A, "p"))
    scene.before("x1", aborts, calls.abort())
    plain = scene.before("p2", plain, calls.send(A, "q"))
    owner = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "b"))
    scene.before("p3", plain, calls.send(A, "r"))
    scene.actor("merger", scene.client(), merge(A, SMALL_ONES))
    scene.actor("owner", owner, calls.abort())
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _two_merges(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(ctx=context(batches=1), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("one", scene.client(), merge(A))
    scene.actor("two", scene.client(), merge(A))
    scene.actor("writer", plain, calls.send(A, "d"))
    return scene


def _late_merge(size: Size) -> Scene:
    """A merger sleeps during two merges of another one, and until the number that it wants to create is removed."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), deletable=deletes(A, kinds=(".clean",)), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("slow", scene.client(), merge(A))
    scene.actor("fast", plain, merge(A), calls.send(A, "d"), merge(A), forget_cleans(A))
    return scene


def _merge_looks(size: Size, past_ms: int = 0, constants: StoreConstants = CONSTANTS) -> Scene:
    """A commit has its marker in one partition.

    This is merged before, while and after the other partition gets its marker.
    """
    scene = Scene(
        ctx=context(batches=1, constants=constants), transactional_ids=("x",), partitions=(A, B), past_ms=past_ms, recovers=size == "full",
    )  # fmt: skip
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"), calls.send(B, "xb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("merger", scene.client(), merge(A))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


def _merge_looks_late(size: Size) -> Scene:
    """... and no client had rolled it forward for longer than the grace."""
    return _merge_looks(size, past_ms=GRACE_MS + HOUR_MS)


def _merge_looks_skewed(size: Size) -> Scene:
    """... by the clock of the client that finishes it.

    The merger's clock was set forward by a day, and no client has noticed that yet.
    """
    scene = _merge_looks(size, past_ms=BRIEF.delete_grace_ms + HOUR_MS, constants=BRIEF)
    scene.recovers = False
    scene.clocks = {
        "slow": ClockErrors(wall=(-MAX_CLOCK_ERROR_MS,)),
        "merger": ClockErrors(wall=(GRACE_MS + HOUR_MS,)),
        "looks": ClockErrors(wall=(MAX_CLOCK_ERROR_MS,)),
    }
    return scene


def _merge_looks_forgotten(size: Size) -> Scene:
    """... for longer than twice the grace, and ids expire after an hour: the id is removed, and then A is merged."""
    scene = Scene(
        ctx=context(batches=1, constants=FORGETFUL),
        transactional_ids=("x",),
        partitions=(A, B),
        past_ms=2 * GRACE_MS + HOUR_MS,
        budget=Budget(ticks=(HOUR_MS,)),
        recovers=size == "full",
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"), calls.send(B, "xb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.cleaner("maintenance", keeper_calls.sweep(), keeper_calls.sweep(), merge(A))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


def _retention_merge(size: Size) -> Scene:
    """The log start moves into an aborted transaction, of which a large row stays.

    The segment with its marker is merged.
    """
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), recovers=size == "full")
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(A, "b" * LONG))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.before("x1", owner, calls.abort())
    scene.before("q", plain, calls.send(A, "q"), calls.send(A, "r"))
    scene.actor("retention", scene.client(), keeper_calls.log_start(A, 1))
    scene.actor("merger", scene.client(), merge(A, SMALL_ONES), *([merge(A, SMALL_ONES)] if size == "full" else []))
    scene.actor("reader", scene.client(), *[keeper_calls.read(A)] * (2 if size == "full" else 1))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="merge", what="segments are merged below an open transaction, beside a large one with aborted rows", rules=(5, 6, 7, 13), build=_merge),
        Scenario(name="two merges", what="two mergers merge the same segments while a writer seals another one", rules=(6, 13, 15), build=_two_merges),
        Scenario(name="late merge", what="a merger sleeps during two merges of another one, and its number is free again", rules=(6, 13), build=_late_merge),
        Scenario(name="merge looks", what="a snapshot reads two partitions while one of them is merged", rules=(13, 17), build=_merge_looks),
        Scenario(name="merge looks late", what="... after a commit that was unfinished for longer than the grace", rules=(13, 17), build=_merge_looks_late),
        Scenario(name="merge looks, skewed", what="... with a grace that is shorter than the error of the clocks", rules=(13, 17), build=_merge_looks_skewed),
        Scenario(name="merge looks, forgotten", what="... for twice the grace, and its id expires after an hour", rules=(13, 17), build=_merge_looks_forgotten),
        Scenario(name="retention merge", what="the log start moves into an aborted transaction whose marker is merged", rules=(5, 6, 13), build=_retention_merge),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _may_expire_after_hanging(txn: Any, now_ms: int, constants: Any) -> bool:
    return txn.txn_version < 0 and may_expire_with_versions(txn, now_ms, constants)


def _index_without_aborts(tp: Any, run: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Drops the transactions of the aborted rows that the merge removes, although rows in older segments may belong to
    them."""
    return ORIGINAL_MERGED(tp, run, [(index, ()) for index, _ in inputs], *args, **kwargs)


def _index_of_what_began_above_the_start(tp: Any, run: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Forgets a transaction that began below the log start, even if parts of it are above."""
    start = kwargs["log_start_offset"]
    kept = [(index, tuple(txn for txn in txns if txn.first_offset >= start)) for index, txns in inputs]
    return ORIGINAL_MERGED(tp, run, kept, *args, **kwargs)


def _index_of_all_rows(tp: Any, run: Any, inputs: Any, aborted: Any, *args: Any, **kwargs: Any) -> Any:
    return ORIGINAL_MERGED(tp, run, inputs, (), *args, **kwargs)


def _fetch_of_all_rows(**kwargs: Any) -> Any:
    return plan_fetch(**{**kwargs, "aborted": ()})


def _named_by_the_put(ctx: Any, merge: Any) -> Any:
    """Assumes that a number that was written took effect, without another LIST."""
    program = _ORIGINAL_NAME_RUN(ctx, merge)
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield effect
        if isinstance(effect, PutIfAbsent) and answer is PutOutcome.WRITTEN:
            return True


_ORIGINAL_NAME_RUN = clean._name_run


def _named_first(ctx: Any, merge: Any, file: Any) -> Any:
    took_effect = yield from _ORIGINAL_NAME_RUN(ctx, merge)
    yield from _ORIGINAL_PUBLISH(ctx, merge, file)
    return took_effect


_ORIGINAL_PUBLISH = clean.publish


def _merges_over_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_CHOICE(walk, indexes, **{**kwargs, "last_stable_offset": 2**62})


_ORIGINAL_CHOICE = cleaning.choose_merges


def _run_with_one_name(inputs: Any, unique: str) -> Any:
    return _ORIGINAL_RUN(inputs, "5ea1" * 8)


_ORIGINAL_RUN = cleaning.merged_run


def _distinct_by_the_table_alone(merge: Any, entry: Any) -> bool:
    return bool(_ORIGINAL_DISTINCT(replace(merge, distinct_from_ms=2**62, removed_from_ms=2**62), entry))


def _distinct_by_age_alone(merge: Any, entry: Any) -> bool:
    return bool(_ORIGINAL_DISTINCT(replace(merge, settled={}, removed_from_ms=2**62), entry))


def _settled_by_now(table: Any, indexes: Any, before_ms: int) -> Any:
    return _ORIGINAL_SETTLED(table, (), 2**62)


_ORIGINAL_SETTLED = cleaning.settled_epochs

_ORIGINAL_DISTINCT = clean.Merge.keeps_distinct

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a .txnindex goes with the merged rows", "merge", "C3", {CORE + "cleaning.merged_index": _index_without_aborts}),
        ("a .txnindex forgets what began below the log start", "retention merge", "C3", {CORE + "cleaning.merged_index": _index_of_what_began_above_the_start}),
        ("a merge copies aborted rows", "merge", "C2", {HERE + "clean.plan_fetch": _fetch_of_all_rows, CORE + "cleaning.merged_index": _index_of_all_rows}),
        ("a run passes an open transaction", "merge", "C1", {CORE + "cleaning.choose_merges": _merges_over_the_lso}),
        ("a run is named before it is there", "merge", "C4", {CLEANER + "publish": _named_first}),
        ("a run is published whatever became of its inputs", "two merges", "C4", {CORE + "cleaning.next_clean": clean_whatever_is_current}),
        ("two mergers share a name", "two merges", "C1", {CORE + "cleaning.merged_run": _run_with_one_name}),
        ("a run took effect because its number was written", "late merge", "C4", {HERE + "clean._name_run": _named_by_the_put}),
        ("a run tells no transaction apart", "merge looks", "C3", {HERE + "clean.Merge.keeps_distinct": lambda *_: False}),
        ("a run tells a transaction apart until it is complete", "merge looks", "C3", {HERE + "clean.Merge.keeps_distinct": _distinct_by_the_table_alone, CORE + "cleaning.settled_epochs": _settled_by_now}),
        ("an old batch need not be told apart, however lately its transaction was complete", "merge looks late", "C3", {CORE + "cleaning.settled_epochs": _settled_by_now}),
        ("an id expires as soon as its hung commit is finished", "merge looks, forgotten", "W32", {HERE + "expiry.may_expire": _may_expire_after_hanging}),
        ("a run tells a transaction apart for the grace", "merge looks late", "C3", {HERE + "clean.Merge.keeps_distinct": _distinct_by_age_alone}),
        ("a merge goes by its own clock", "merge looks, skewed", "W48", {HERE + "clean.store_now": own_clock}),
        ("a run allows for no error of the clocks", "merge looks, skewed", "C3", {CORE + "cleaning.MAX_CLOCK_ERROR_MS": 0}),
    )
)  # fmt: skip
