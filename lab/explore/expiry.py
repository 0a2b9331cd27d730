"""Scenarios of producers and ids that expire while somebody sleeps; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import bound, deletes
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, ORIGINAL_APPLY, Mutant, may_expire_with_versions, no_guard
from lab.explore.scene import FORGETFUL, FORGOTTEN_MS, GRACE_MS, A, Scenario, Scene, Size, context
from txlog.core.records import TransactionState
from txlog.core.transactions import TxnVersion
from txlog.protocol import load

# -- scenarios --------------------------------------------------------------------------------------------------------


def _pause(size: Size) -> Scene:
    """A producer pauses within its transaction for longer than idle producers are kept, and no sweep runs."""
    scene = Scene(ctx=context(constants=FORGETFUL), transactional_ids=("x",), budget=Budget(ticks=(FORGOTTEN_MS,)))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p", scene.client(), calls.idempotent())
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"), *([keeper_calls.expire_producers(A)] if size == "full" else []))
    scene.expects = {"owner": {"committed"}}
    return scene


def _expiry(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        # In quick size the transaction is overdue when it begins.
        past_ms=0 if full else FORGOTTEN_MS,
        budget=Budget(ticks=(FORGOTTEN_MS, GRACE_MS + FORGOTTEN_MS) if full else (FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.register(A), calls.opened(A))
    scene.actor("sleeper", owner, calls.send(A, "a"), *([calls.commit()] if full else []))
    forget = [keeper_calls.sweep(), keeper_calls.expire_producers(A), *([keeper_calls.sweep()] if full else [])]
    scene.actor("maintenance", scene.client(), *forget)
    return scene


def _slow_marker(size: Size) -> Scene:
    """The client that rolls forward sleeps until the partition has forgotten the producer."""
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        budget=Budget(lost=1 if size == "full" else 0, ticks=(FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.dies("x!", owner, calls.commit(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("sweep", scene.client(), keeper_calls.sweep(), *([keeper_calls.sweep()] if size == "full" else []))
    scene.actor("expiry", scene.client(), keeper_calls.expire_producers(A))
    return scene


def _forgotten(size: Size) -> Scene:
    """A drawn producer's batch of unknown outcome is sealed, deleted and forgotten before the producer asks for it."""
    scene = Scene(
        ctx=context(batches=1, constants=FORGETFUL),
        deletable=deletes(A),
        budget=Budget(lost=2 if size == "full" else 1, ticks=(FORGOTTEN_MS, GRACE_MS)),
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.actor("maintenance", scene.client(), keeper_calls.expire_producers(A), bound(A))
    return scene


def _replay(size: Size) -> Scene:
    """A stream restarts from an old checkpoint, long after its last commit."""
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        exclusive=("batch 5",),
        budget=Budget(ticks=(FORGOTTEN_MS,)),
    )
    version = TxnVersion(version=5, scope="q")
    scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "batch 5 first"), calls.commit(version))
    scene.actor("again", scene.client("x"), calls.init(), calls.stage(A, "batch 5 again"), calls.commit(version))
    scene.actor(
        "sweep", scene.client(), keeper_calls.sweep(), *([keeper_calls.expire_producers(A)] if size == "full" else [])
    )
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="pause", what="a producer pauses in its transaction for longer than idle producers are kept", rules=(7,), build=_pause),
        Scenario(name="expiry", what="an id and its producer state expire while the producer sleeps", rules=(8, 9, 11), build=_expiry),
        Scenario(name="slow marker", what="a client that rolls forward sleeps until the partition has forgotten the producer", rules=(5, 10), build=_slow_marker),
        Scenario(name="forgotten", what="a drawn producer's batch is sealed, deleted and forgotten before its outcome is known", rules=(3, 14), build=_forgotten),
        Scenario(name="replay", what="a stream restarts from an old checkpoint, long after its last commit", rules=(4, 8), build=_replay),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _apply_with_a_clock(self: Any, stored: Any) -> None:
    ORIGINAL_APPLY(self, stored)
    for pid, entry in list(self.producers.items()):
        if stored.record.timestamp - entry.timestamp >= 3_600_000:
            del self.producers[pid]
            self.opened.pop(pid, None)


def _guarded_once(view: Any, end_offset: int | None) -> bool:
    return end_offset is not None


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a drawn producer in doubt is decided by a fold that lacks it", "forgotten", "W15", {HERE + "slot._is_known": lambda *_: True}),
        ("no re-read before the first batch", "expiry", "W21", {HERE + "append.registered_guard": no_guard}),
        ("the re-read is of what is held", "expiry", "W21", {HERE + "table.get_fresh_view": load.get_view}),
        ("the re-read holds after an expire", "expiry", "W21", {HERE + "slot._continues": _guarded_once}),
        ("the re-read before a marker holds after an expire", "slow marker", "W21", {HERE + "slot._continues": _guarded_once}),
        ("no re-read before a marker", "slow marker", "W21", {HERE + "transactions.prepared_guard": no_guard}),
        ("a producer expires whatever its transaction does", "slow marker", "W33", {HERE + "expiry.IDLE": frozenset(get_args(TransactionState))}),
        ("producers expire by the clock", "pause", "W33", {CORE + "state._Fold.apply": _apply_with_a_clock}),
        ("an id with a version expires", "replay", "W32", {HERE + "expiry.may_expire": may_expire_with_versions}),
    )
)  # fmt: skip
