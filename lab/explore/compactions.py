"""Scenarios of compactions; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import compact, everything, merge, vacuum, wait
from lab.explore.explorer import Budget
from lab.explore.keys import Compacted
from lab.explore.mutant import CORE, HERE, ORIGINAL_MERGED, Mutant, clean_whatever_is_current
from lab.explore.scene import GRACE_MS, HOUR_MS, KEYED, A, B, Scenario, Scene, Size, context
from txlog.core import cleaning, compaction
from txlog.protocol import compact as compact_programs

# -- scenarios --------------------------------------------------------------------------------------------------------


def _compaction(size: Size) -> Scene:
    """Rows of a key are followed by aborted rows, by rows of an open transaction, and by a row beyond it."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        transactional_ids=("x", "y"),
        compacted={A: Compacted()},
        budget=Budget(lost=1 if full else 0),
        recovers=full,
    )
    words = (calls.send(A, "a@k", "b@j", "o@i"), calls.send(A, "c@i"))
    plain = scene.before("p", scene.client(), calls.idempotent(), *words)
    scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x@k"), calls.abort())
    owner = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "y@j"))
    scene.before("p1", plain, calls.send(A, "d@k"), calls.send(A, "e"))
    scene.actor("compactor", scene.client(), compact(A, KEYED))
    scene.actor("owner", owner, calls.abort())
    scene.actor("reader", scene.client(), *[keeper_calls.read(A)] * (2 if full else 1))
    return scene


def _compaction_merge(size: Size) -> Scene:
    """The same segments are compacted and merged before a sleeping reader. One has a tombstone, one has no key."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0))
    words = ("a@k", "-@k", "n", "c@j") if full else ("a@k", "-@k", "n")
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.before("q", plain, calls.send(A, "d@j"))
    scene.actor("compactor", scene.client(), compact(A, KEYED), *[compact(A, KEYED)] * full)
    scene.actor("merger", scene.client(), merge(A))
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _two_compactions(size: Size) -> Scene:
    """Two compactions, one with little memory, run on a log while a writer seals another segment, and compacts once
    more."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0), recovers=full
    )
    words = ("a@k", "b@j", "-@k", "c@j") if full else ("a@k", "b@j", "c@k", "d")
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.actor("one", scene.client(), compact(A, KEYED))
    scene.actor("two", scene.client(), compact(A, replace(KEYED, max_keys=1)))
    if full:
        scene.actor("writer", plain, calls.send(A, "d@k"), compact(A, KEYED))
    return scene


def _tombstone(size: Size) -> Scene:
    """Everything older than a tombstone is compacted already. After its retention the tombstone is removed."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        compacted={A: Compacted(tombstones_stay=False)},
        budget=Budget(ticks=(HOUR_MS,)),
        recovers=full,
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a@k"), calls.send(A, "b@j"))
    scene.before("c", scene.client(), compact(A, KEYED))
    scene.before("q", plain, calls.send(A, "-@k"), calls.send(A, "c@j"))
    scene.actor("compactor", scene.client(), compact(A, KEYED), wait(HOUR_MS), compact(A, KEYED))
    scene.actor("merger", scene.client(), merge(A))
    if full:
        scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


def _compaction_looks(size: Size) -> Scene:
    """As in `merge looks`, in a log with keys: newer rows supersede some or all rows of the transaction."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), compacted={A: Compacted()}, recovers=full
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p@k"))
    words = (calls.send(A, "xa@k"), calls.send(A, "xc@j"), calls.send(B, "xb"))
    owner = scene.before("x", scene.client("x"), calls.init(), *words)
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.before("q", plain, calls.send(A, "q@k"), calls.send(A, "r"))
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("compactor", scene.client(), compact(A, KEYED), *[merge(A)] * full)
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


def _compaction_hides(size: Size) -> Scene:
    """A hanging commit has a newer row of a key in the compacted log; snapshots show the older row."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), compacted={A: Compacted()}, recovers=False
    )
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p@k"))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x@k"), calls.send(B, "xb"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.before("r", scene.client(), calls.idempotent(), calls.send(A, "r"))
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.cleaner("compactor", compact(A, KEYED), *[compact(A, KEYED)] * full, keeper_calls.look(A, B, anew=True))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B, anew=True))
    # A snapshot that begins after the compaction is never too old for it.
    scene.expects = {"compactor": {"looked"}}
    return scene


def _compaction_vacuum(size: Size) -> Scene:
    """A reader sleeps while all segments of its plan are compacted, and deleted a grace later."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, budget=Budget(ticks=(GRACE_MS,)), recovers=False,
        compacted={A: Compacted(tombstones_stay=False, all_distinct=False)},
    )  # fmt: skip
    first = ("a@k",) if size == "full" else ("a@k", "b@k")
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, *first, in_file=True))
    scene.before("q", plain, *(calls.send(A, word) for word in (("-@k", "z") if size == "full" else ("z",))))
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    scene.cleaner("cleaner", compact(A, KEYED), *[vacuum(A)] * (2 if size == "full" else 1))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="compaction", what="rows of a key are followed by aborted rows, open rows and later rows", rules=(5, 6, 7, 13), build=_compaction),
        Scenario(name="compaction merge", what="the same segments are compacted and merged, and read", rules=(6, 13), build=_compaction_merge),
        Scenario(name="two compactions", what="two compactions run on the same log while a writer seals another segment", rules=(6, 13, 15), build=_two_compactions),
        Scenario(name="tombstone", what="a tombstone waits for its time, and is removed with older rows", rules=(6, 13), build=_tombstone),
        Scenario(name="compaction looks", what="a snapshot reads two partitions while one of them is compacted", rules=(13, 17), build=_compaction_looks),
        Scenario(name="compaction hides", what="a commit hangs in a compacted log, with snapshots before and after the compaction", rules=(13, 17), build=_compaction_hides),
        Scenario(name="compaction vacuum", what="a reader sleeps while the segments of its plan are compacted and deleted", rules=(6, 13, 15), build=_compaction_vacuum),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------

COPY = "lab.compacting."


def _dirt_with_aborted_rows(plan: compact_programs.CompactionPlan) -> Any:
    return _ORIGINAL_DIRT(replace(plan, aborted=()))


_ORIGINAL_DIRT: Any = compact_programs.CompactionPlan.dirty_pieces.fget  # type: ignore[attr-defined]


def _cleanable_beyond_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_CLEANABLE(walk, indexes, **{**kwargs, "last_stable_offset": 2**62, "complete": None})


def _cleanable_below_the_lso(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    """Ignores what the table of transactions shows."""
    return _ORIGINAL_CLEANABLE(walk, indexes, **{**kwargs, "complete": None})


def _cleanable_from_the_first_dirt(walk: Any, indexes: Any, **kwargs: Any) -> Any:
    """Skips a segment with nothing to clean, wherever it is."""
    found = _ORIGINAL_CLEANABLE(walk, indexes, **kwargs)

    def has_dirt(name: Any) -> bool:
        compacted = indexes[name].compacted
        due = () if compacted is msgspec.UNSET else compacted.tombstones
        return bool(
            name.end_offset > found.first_dirty_offset or any(item.delete_at <= kwargs["now_ms"] for item in due)
        )

    first = next((at for at, name in enumerate(found.names) if has_dirt(name)), len(found.names))
    return replace(found, names=found.names[first:], is_due=found.is_due and first < len(found.names))


_ORIGINAL_CLEANABLE = compaction.find_cleanable


class _HastySelection(compaction.Selection):
    """Removes a tombstone together with the rows that it supersedes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_due[:] = True


def _end_of_all(names: Any, **_: Any) -> Any:
    """Treats a full map as a map of everything."""
    return tuple(names), names[-1].end_offset


def _index_without_emptied_batches(*args: Any, **kwargs: Any) -> Any:
    index, txn_index = ORIGINAL_MERGED(*args, **kwargs)
    return msgspec.structs.replace(index, entries=tuple(each for each in index.entries if each.records)), txn_index


def _all_was_compacted(inputs: Any) -> Any:
    found = _ORIGINAL_COMPACTED(inputs)
    return found if found is msgspec.UNSET else msgspec.structs.replace(found, end_offset=inputs[-1].end_offset)


_ORIGINAL_COMPACTED = cleaning._compacted

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("an aborted row supersedes a committed one", "compaction", "C2", {HERE + "compact.CompactionPlan.dirty_pieces": property(_dirt_with_aborted_rows)}),
        ("a compaction passes an open transaction", "compaction", "C1, C2", {HERE + "compact.find_cleanable": _cleanable_beyond_the_lso}),
        ("a compaction goes by the last stable offset alone", "compaction hides", "C2c", {HERE + "compact.find_cleanable": _cleanable_below_the_lso}),
        ("a snapshot is read on runs that were compacted since", "compaction hides", "R19", {CORE + "snapshots.SnapshotCut.check_compacted": lambda *_: None}),
        ("a tombstone goes with what it supersedes", "compaction merge", "C2a", {COPY + "Selection": _HastySelection}),
        ("a tombstone goes from a run that does not start at the log start", "tombstone", "C2a", {HERE + "compact.find_cleanable": _cleanable_from_the_first_dirt}),
        ("a merge says that all of it was compacted", "tombstone", "C2b", {CORE + "cleaning._compacted": _all_was_compacted}),
        ("a compaction is published whatever became of its inputs", "two compactions", "C4", {CORE + "cleaning.next_clean": clean_whatever_is_current}),
        ("a full map of keys is taken for a whole one", "two compactions", "C2b", {COPY + "choose_end": _end_of_all}),
        ("a run forgets whose the rows were that a compaction took", "compaction looks", "C3", {CORE + "cleaning.merged_index": _index_without_emptied_batches}),
    )
)  # fmt: skip
