"""Scenarios of records that wait for a writer which appends them; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls, one_phase
from lab.explore.cleaner import bound, deletes
from lab.explore.client import Call, Client
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant, no_guard
from lab.explore.scene import FORGOTTEN_MS, GRACE_MS, A, B, Scenario, Scene, Size, context
from txlog.core import combining as core
from txlog.core.append_rules import Proceed
from txlog.core.effects import Delete, List, Program
from txlog.core.features import COMBINED_RECORDS, STORE_FEATURES
from txlog.core.names import WAITING_FOLDER, TopicPartition, parse_waiting_name
from txlog.errors import OutcomeUnknownError, RetriableError
from txlog.protocol import waiting
from txlog.protocol.context import Context
from txlog.protocol.load import get_fresh_view
from txlog.protocol.slot_record import find_own

AT_ONCE = {HERE + "slot.MAX_LOST_SLOTS": 0, HERE + "waiting.LOOKS": 1, HERE + "waiting.PATIENCE_MS": 0}
"""A writer waits without trying a slot first, and leads after one look. So few requests show what many do."""

# -- calls ------------------------------------------------------------------------------------------------------------


def shared(**changes: Any) -> Context:
    """Return the context of a store with the feature."""
    return context(features=(COMBINED_RECORDS, *STORE_FEATURES), **changes)


def alone(client: Client) -> Client:
    """Return a client whose records never wait, though others' may."""
    return replace(client, ctx=replace(client.ctx, features=STORE_FEATURES))


def lead(tp: TopicPartition) -> Call:
    """Append what waits, once, as a producer's threads do for others."""

    def call(client: Client) -> Program[Client]:
        try:
            views, view = yield from get_fresh_view(client.ctx, client.views, tp)
            desk = waiting.Desk(view)
            yield from waiting.collect(desk)
            view, _ = yield from waiting.append_waiting(client.ctx, view, desk.ready)
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views={**views, tp: view}).noted("done")

    return call


def tidy(tp: TopicPartition) -> Call:
    """Delete what waits, as far as the log has it."""

    def call(client: Client) -> Program[Client]:
        try:
            views, view = yield from get_fresh_view(client.ctx, client.views, tp)
            for name in (yield List(tp.folder + WAITING_FOLDER)):
                parsed = parse_waiting_name(name)
                if parsed is not None and find_own(view, parsed[1]) is not None:
                    yield Delete(tp.folder + WAITING_FOLDER + name)
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views).noted("done")

    return call


# -- scenarios --------------------------------------------------------------------------------------------------------


def _combine(size: Size) -> Scene:
    """Two writers let their batches wait, and each may append both; a third one knows of nothing."""
    full = size == "full"
    scene = Scene(ctx=shared(), budget=Budget(lost=1 if full else 0))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    two = scene.before("two", scene.client(), calls.idempotent(), calls.opened(A))
    plain = scene.before("plain", alone(scene.client()), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, calls.send(A, "a"))
    scene.actor("two", two, calls.send(A, "b"))
    if full:
        scene.actor("plain", plain, calls.send(A, "p"))
    return scene


def _lost(size: Size) -> Scene:
    """A writer whose requests fail gives up while its batch waits; leaders take it."""
    full = size == "full"
    scene = Scene(ctx=shared(max_settles=1), budget=Budget(lost=2 if full else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, calls.send(A, "a"), calls.send(A, "b"))
    scene.actor("leader", scene.client(), lead(A), *([lead(A)] if full else []))
    return scene


def _zombie(size: Size) -> Scene:
    """The batch of an attached instance waits, while a newer one takes over."""
    full = size == "full"
    scene = Scene(ctx=shared(), transactional_ids=("x",), budget=Budget(lost=1 if full else 0))
    attached = (calls.init(), one_phase.attach(A), one_phase.at_once(A, "o"))
    old = scene.before("old", alone(scene.client("x")), *attached)
    scene.actor("old", replace(old, ctx=scene.ctx), one_phase.at_once(A, "a"))
    scene.actor("new", alone(scene.client("x")), calls.init(), one_phase.attach(A), one_phase.at_once(A, "n"))
    scene.actor("leader", scene.client(), lead(A))
    return scene


def _forgets(size: Size) -> Scene:
    """A batch waits and is in the log, too. The partition forgets its producer before a leader, or the writer, comes."""
    scene = Scene(
        ctx=shared(constants=one_phase.FORGETS_PRODUCERS, max_settles=1),
        budget=Budget(lost=1, ticks=(FORGOTTEN_MS,)),
    )
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, calls.send(A, "a"))
    scene.actor("expirer", alone(scene.client()), keeper_calls.expire_producers(A))
    scene.actor("leader", scene.client(), lead(A), *([lead(A)] if size == "full" else []))
    return scene


def _woken(size: Size) -> Scene:
    """An attached instance that was fenced and forgotten lets a batch wait."""
    scene = Scene(
        ctx=shared(constants=one_phase.FORGETS_PRODUCERS),
        transactional_ids=("x",),
        budget=Budget(ticks=(FORGOTTEN_MS,)),
    )
    old = scene.before("old", alone(scene.client("x")), calls.init(), one_phase.attach(A))
    scene.actor("old", replace(old, ctx=scene.ctx), calls.opened(A), one_phase.at_once(A, "a"))
    scene.actor("new", alone(scene.client("x")), calls.init())
    scene.actor("leader", alone(scene.client()), keeper_calls.expire_producers(A), lead(A))
    return scene


def _late(size: Size) -> Scene:
    """The records since a batch began to wait are sealed when its writer looks, and its epoch is over."""
    full = size == "full"
    scene = Scene(
        ctx=shared(batches=1), transactional_ids=("x",), budget=Budget(lost=1 if full else 0, ticks=(GRACE_MS // 5,))
    )
    old = scene.before("old", alone(scene.client("x")), calls.init(), one_phase.attach(A), one_phase.at_once(A, "o"))
    scene.actor("old", replace(old, ctx=scene.ctx), one_phase.at_once(A, "a"))
    scene.actor("new", alone(scene.client("x")), calls.init())
    scene.actor("leader", scene.client(), lead(A), one_phase.seals(A))
    return scene


def _tidy(size: Size) -> Scene:
    """What waits is deleted beside its writer and a leader."""
    full = size == "full"
    scene = Scene(
        ctx=shared(), deletable=lambda path: f"/{WAITING_FOLDER}" in path, budget=Budget(lost=1 if full else 0)
    )
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, calls.send(A, "a"))
    scene.actor("leader", scene.client(), lead(A))
    scene.actor("vacuum", scene.client(), tidy(A), *([tidy(A)] if full else []))
    return scene


def _wakes(size: Size) -> Scene:
    """The slot that a leader is to create was sealed, bounded and deleted while it slept."""
    full = size == "full"
    scene = Scene(ctx=shared(batches=1), deletable=deletes(A), budget=Budget(lost=1 if full else 0, ticks=(GRACE_MS,)))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", alone(scene.client()), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("one", one, calls.send(A, "a"))
    scene.actor("cleaner", scene.client(), bound(A))
    return scene


def _decisions(size: Size) -> Scene:
    """Decisions and markers of two ids wait, beside an init of one of them."""
    full = size == "full"
    scene = Scene(ctx=shared(), transactional_ids=("x", "y"), partitions=(A, B), budget=Budget(lost=1 if full else 0))
    x = scene.before("x", alone(scene.client("x")), calls.init(), calls.opened(A))
    y = scene.before("y", alone(scene.client("y")), calls.init(), calls.opened(A))
    scene.actor("x", replace(x, ctx=scene.ctx), calls.stage(A, "a", inline=True), calls.commit())
    if full:
        scene.actor("y", replace(y, ctx=scene.ctx), calls.stage(A, "b", inline=True), calls.commit())
    else:
        scene.actor("leader", scene.client(), lead(TABLE), lead(A))
    scene.actor("new", alone(scene.client("x")), calls.init())
    return scene


TABLE = TopicPartition("__transaction_state", 0)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="combine", what="two writers append both of their batches, beside a third writer", rules=(1, 2, 3), build=_combine, patches=AT_ONCE),
        Scenario(name="combine lost", what="leaders take the batch of a writer that gave up", rules=(1, 2, 3), build=_lost, patches=AT_ONCE),
        Scenario(name="combine zombie", what="the batch of an instance that is being fenced waits", rules=(3, 8), build=_zombie, patches=AT_ONCE),
        Scenario(name="combine woken", what="an instance that was fenced and forgotten lets a batch wait", rules=(8, 9), build=_woken, patches=AT_ONCE),
        Scenario(name="combine late", what="a writer looks when its batch is sealed and its epoch is over", rules=(2, 5), build=_late, patches=AT_ONCE),
        Scenario(name="combine forgets", what="a batch that waits is in the log, and its producer is forgotten", rules=(3,), build=_forgets, patches=AT_ONCE),
        Scenario(name="combine wakes", what="the slot of a leader was deleted while it slept", rules=(2, 3, 14), build=_wakes, patches=AT_ONCE),
        Scenario(name="combine tidy", what="what waits is deleted beside its writer and a leader", rules=(2, 3, 16), build=_tidy, patches=AT_ONCE),
        Scenario(name="combine decisions", what="decisions and markers wait, beside an init", rules=(4, 5, 8, 10), build=_decisions, patches=AT_ONCE),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _remembers(self: Any, state: Any, stored: Any) -> bool:
    forgotten, self._forgotten = self._forgotten, {}
    try:
        return bool(_SETTLES(self, state, stored))
    finally:
        self._forgotten = forgotten


_SETTLES = core.Followed.settles


def _takes_any_decision(self: Any, state: Any, stored: Any) -> bool:
    return False if stored.record.entries else bool(_SETTLES(self, state, stored))


def _says_that_it_failed(ctx: Any, view: Any, stored: Any) -> Any:
    found = yield from _WAIT(ctx, view, stored)
    return found if found[1] is not None else (found[0], None, True)


_WAIT = waiting.wait

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a leader takes the batch of a fenced instance", "combine zombie", "invariant 8, W67", {CORE + "combining.check_batch": lambda *_: Proceed()}),
        ("a leader takes what the partition may have forgotten", "combine forgets", "invariant 3, W66", {CORE + "combining.Followed.settles": _remembers}),
        ("a batch waits without the consent of the table", "combine woken", "invariant 8, W65", {HERE + "one_phase._attached_guard": no_guard}),
        ("a state refuses a batch that may be in sealed records", "combine late", "invariant 2, W68", {HERE + "slot.wait": _says_that_it_failed}),
        ("a leader takes a decision whose id goes on", "combine decisions", "invariant 8, W66", {CORE + "combining.Followed.settles": _takes_any_decision}),
        ("a marker that is there is written again", "combine decisions", "invariant 10, W67", {CORE + "combining.marker_is_there": lambda *_: False}),
    )
)  # fmt: skip
