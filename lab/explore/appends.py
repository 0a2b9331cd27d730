"""Scenarios of appends: a slot, those who compete for it, and writers that slept; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import bound, deletes
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, ORIGINAL_LISTING, Mutant, program_of
from lab.explore.scene import GRACE_MS, A, B, Scenario, Scene, Size, context
from txlog.core import append_rules
from txlog.core.append_rules import Duplicate, Proceed
from txlog.core.effects import PutIfAbsent, PutOutcome, ReadClocks
from txlog.core.names import batch_name
from txlog.errors import StorageError
from txlog.protocol import load, slot_record

# -- scenarios --------------------------------------------------------------------------------------------------------


def _slot(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(budget=Budget(lost=2 if full else 1))
    # A client that does not retry a call trusts its error.
    one = scene.before("one", replace(scene.client(), tries=1), calls.idempotent(), calls.opened(A))
    later = scene.before("z", one, calls.send(A, "z"))
    stale = replace(later, views=one.views)
    scene.actor("first", stale, calls.send(A, "a"))
    scene.actor("retry", later, calls.send(A, "a"))
    scene.actor("nobody", scene.client(), calls.send(A, "n"))
    if full:
        two = scene.before("two", scene.client(), calls.idempotent())
        scene.actor("second", two, calls.send(A, "b"))
    scene.expects = {name: {"appended"} for name in scene.actors}
    return scene


def _stale(size: Size) -> Scene:
    scene = Scene(ctx=context(batches=1), deletable=deletes(A), budget=Budget(lost=1, ticks=(GRACE_MS,)))
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    other = scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.actor("cleaner", scene.client(), bound(A))
    if size == "full":
        scene.actor("other", other, calls.send(A, "q"))
    return scene


def _deleted_tail(size: Size) -> Scene:
    """A client asks for the next slot by name, but the slot was deleted. The missing slot is not the end of the log."""
    scene = Scene(ctx=context(batches=1), deletable=deletes(A), budget=Budget(ticks=(GRACE_MS,)))
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    later = scene.before("z", sleeper, calls.send(A, "z"))
    other = scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", replace(later, views=sleeper.views), calls.send(A, "s"))
    scene.actor("cleaner", scene.client(), bound(A))
    if size == "full":
        scene.actor("other", other, calls.send(A, "q"))
    scene.expects = {"sleeper": {"appended"}}
    return scene


def _stale_txn(size: Size) -> Scene:
    """The sleeper is a transaction's owner, or a client that rolls the transaction forward."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        deletable=deletes(A),
        transactional_ids=("x",),
        budget=Budget(lost=1 if full else 0, ticks=(GRACE_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.dies("x!", owner, calls.abort(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.before("y", scene.client("x"), calls.init(), calls.send(A, "b"), *([calls.commit()] if full else []))
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("late", owner, calls.send(A, "c"))
    scene.actor("cleaner", scene.client(), bound(A))
    return scene


def _weather(size: Size) -> Scene:
    """Requests of one client fail, or their outcome is unknown."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1, failures=2 if full else 1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(B, "b", in_file=True), calls.commit(), calls.send(A, "c"), calls.abort())
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="slot", what="two appenders and a retry compete for one slot", rules=(1, 2, 3), build=_slot),
        Scenario(name="stale", what="a writer slept; its slot was sealed, bounded and deleted", rules=(2, 14), build=_stale),
        Scenario(name="deleted tail", what="a client reads a deleted slot by its name", rules=(13, 14), build=_deleted_tail),
        Scenario(name="stale txn", what="a coordinator and an owner slept, and the slots were deleted", rules=(10, 14), build=_stale_txn),
        Scenario(name="weather", what="requests fail, or their outcome is unknown", rules=(2, 3, 5, 11), build=_weather),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _keep_view(ctx: Any, view: Any, *_: Any) -> Any:
    return view
    yield


def _unknown_means_failed(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + batch_name(stored[0].slot), stored[0].data)
    if outcome is PutOutcome.UNKNOWN:
        raise StorageError("a time-out, so it failed")
    return stored if outcome is PutOutcome.WRITTEN else (yield from load.read_slot(tp, stored[0].slot))


def _conflict_means_lost(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    tp = view.topic_partition
    outcome = yield PutIfAbsent(tp.folder + batch_name(stored[0].slot), stored[0].data)
    if outcome is PutOutcome.WRITTEN:
        return stored
    held = yield from load.read_slot(tp, stored[0].slot)
    if not held:
        return (yield from _ORIGINAL_CREATE(ctx, view, stored, write_id))
    return tuple(
        replace(each, record=msgspec.structs.replace(each.record, write_id="somebody else's")) for each in held
    )


def _slot_alone_decides(ctx: Any, view: Any, stored: Any, write_id: str) -> Any:
    """After an unknown outcome, trusts the record in the slot, wherever the boundary is."""
    tp, number = view.topic_partition, stored[0].slot
    while True:
        outcome = yield PutIfAbsent(tp.folder + batch_name(number), stored[0].data)
        if outcome is PutOutcome.WRITTEN:
            return stored if (yield from slot_record._not_overtaken(ctx, view, number)) else None
        holder = yield from load.read_slot(tp, number)
        if holder:
            return holder


_ORIGINAL_CREATE = slot_record.create_slot


def _check_without_duplicates(folded: Any, draft: Any) -> Any:
    verdict = append_rules.check_batch(folded, draft)
    if isinstance(verdict, Duplicate):
        forgotten = {pid: msgspec.structs.replace(entry, batches=()) for pid, entry in folded.producers.items()}
        return append_rules.check_batch(replace(folded, producers=forgotten), draft)
    return verdict


def _without_boundaries(listed: Any, folder: str = "") -> Any:
    return ORIGINAL_LISTING([name for name in listed if not name.endswith(".boundary")], folder)


def _refresh_by_name(ctx: Any, view: Any, max_age_ms: int | None = None) -> Any:
    """Accepts a slot that is found by name, however long the request took."""
    if view.age_ms((yield ReadClocks())) >= ctx.max_view_age_ms:
        return (yield from load.load(ctx, view.topic_partition))
    while stored := (yield from load.read_slot(view.topic_partition, view.state.next_offset)):
        view = view.extended(stored)
    return view


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("sequences are not checked", "slot", "W17", {HERE + "append.check_batch": lambda *_: Proceed()}),
        ("a duplicate is not recognised", "slot", "W16, W17", {HERE + "append.check_batch": _check_without_duplicates}),
        ("an unknown write is taken for a failed one", "slot", "W12, W13", {HERE + "slot.create_slot": _unknown_means_failed}),
        ("a conflict with oneself is taken for a lost race", "slot", "W12", {HERE + "slot.create_slot": _conflict_means_lost}),
        ("a refusal counts on a stale tail", "slot", "W15", {HERE + "slot.refresh": _keep_view}),
        ("acknowledged without the boundary check", "stale", "W14", {HERE + "slot_record._not_overtaken": program_of(True)}),
        ("a view never grows old", "stale", "W14, R7", {HERE + "context.Context.max_view_age_ms": property(lambda _: 10**15)}),
        ("boundaries are ignored", "stale", "R5", {CORE + "chain.parse_listing": _without_boundaries}),
        ("what is found by name counts, however old the view", "deleted tail", "R7", {HERE + "slot.refresh": _refresh_by_name}),
        ("the slot is read instead of the state", "stale", "W12", {HERE + "slot.create_slot": _slot_alone_decides}),
    )
)  # fmt: skip
