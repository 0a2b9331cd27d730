"""Scenarios of records that combine batches of several writers, a prototype; mutants of their rules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lab.combining import programs
from lab.combining.rules import folder
from lab.explore import client as calls, keeper_calls, one_phase
from lab.explore.cleaner import bound, deletes
from lab.explore.client import Call, Client
from lab.explore.explorer import Budget
from lab.explore.mutant import Mutant, program_of
from lab.explore.scene import FORGOTTEN_MS, GRACE_MS, A, Scenario, Scene, Size, context
from lab.one_phase.rules import PATCHES
from txlog.core.append_rules import BatchDraft, Proceed
from txlog.core.effects import Delete, List, Program
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.errors import (
    AbortableError,
    FencedError,
    InvalidProducerEpochError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    StorageError,
    TxlogError,
)
from txlog.protocol.load import get_fresh_view
from txlog.protocol.slot import find_own

RULES, PROGRAMS = "lab.combining.rules.", "lab.combining.programs."

# -- calls ------------------------------------------------------------------------------------------------------------


def share(tp: TopicPartition, word: str, *, looks: int = 1, leads: bool = True, forgets: bool = False) -> Call:
    """Let a batch wait, and look for it; between two looks, lead. Give up after the last look.

    With `forgets` the writer opens the partition again before it looks.
    """

    def call(client: Client) -> Program[Client]:
        draft = _draft(client, tp, word)
        try:
            views, stored = yield from programs.wait(client.ctx, client.views, tp, draft, client.txn)
        except TxlogError as error:
            return client.noted("refused", words=((tp, word),), tp=tp, text=str(error), stop=True)
        views = {} if forgets else views
        return (yield from _look(replace(client, views=views), tp, word, stored, looks=looks, leads=leads))

    return call


def share_both(tp: TopicPartition, first: str, second: str) -> Call:
    """Let two batches wait, and look for the second before the first."""

    def call(client: Client) -> Program[Client]:
        views, one = yield from programs.wait(client.ctx, client.views, tp, _draft(client, tp, first))
        later = replace(client, views=views, sequences=((tp, 1),))
        views, two = yield from programs.wait(client.ctx, later.views, tp, _draft(later, tp, second))
        after = yield from _look(replace(later, views=views), tp, second, two, looks=1, leads=False, stops=False)
        return (yield from _look(after, tp, first, one, looks=1, leads=False))

    return call


def lead(tp: TopicPartition) -> Call:
    """Append what waits, once."""

    def call(client: Client) -> Program[Client]:
        views = yield from programs.lead(client.ctx, client.views, tp)
        return replace(client, views=views).noted("done")

    return call


def tidy(tp: TopicPartition) -> Call:
    """Delete what waits, as far as the log has it (*delete*)."""

    def call(client: Client) -> Program[Client]:
        views, view = yield from get_fresh_view(client.ctx, client.views, tp)
        for name in (yield List(folder(tp))):
            if find_own(view, name.partition("-")[2].removesuffix(".batch")) is not None:
                yield Delete(folder(tp) + name)
        return replace(client, views=views).noted("done")

    return call


def _draft(client: Client, tp: TopicPartition, word: str) -> BatchDraft:
    return BatchDraft(
        records=1,
        producer_id=client.pid,
        producer_epoch=client.epoch,
        base_sequence=dict(client.sequences).get(tp, 0),
        payload=json.dumps([word]).encode(),
    )


def _look(
    client: Client, tp: TopicPartition, word: str, stored: StoredRecord, *, looks: int, leads: bool, stops: bool = True
) -> Program[Client]:
    said: dict[str, Any] = {"words": ((tp, word),)}
    views = client.views
    try:
        for number in range(looks + 1):
            views, result = yield from programs.answered(client.ctx, views, tp, stored)
            if result is not None:
                after = replace(client, views=views, sequences=((tp, stored.record.last_sequence + 1),))
                return after.noted("appended", tp=tp, offset=result.base_offset, **said)
            if leads and number < looks:
                views = yield from programs.lead(client.ctx, views, tp, stored)
    except (AbortableError, FencedError) as error:
        return client.noted("refused", tp=tp, text=str(error), **said)
    left = programs.give_up(tp)
    kind = "unknown" if isinstance(left, OutcomeUnknownError) else "refused"
    # Only the same batch may follow under these sequences (W13).
    return replace(client, views=views).noted(kind, tp=tp, text=str(left), stop=stops, **said)


# -- scenarios --------------------------------------------------------------------------------------------------------


def _combine(size: Size) -> Scene:
    """Two writers let their batches wait, and each may append both; a third one knows of nothing."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=2 if full else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    two = scene.before("two", scene.client(), calls.idempotent(), calls.opened(A))
    plain = scene.before("plain", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, share(A, "a", looks=2 if full else 1))
    scene.actor("two", two, share(A, "b"), *([share(A, "c")] if full else []))
    scene.actor("plain", plain, calls.send(A, "p"))
    return scene


def _gives_up(size: Size) -> Scene:
    """A writer gives up while its batch waits; two leaders take it."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, share(A, "a", looks=0))
    scene.actor("leader", scene.client(), lead(A))
    if full:
        scene.actor("other", scene.client(), lead(A))
    return scene


def _zombie(size: Size) -> Scene:
    """The batch of an attached instance waits, while a newer one takes over."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=2 if full else 1))
    old = scene.before("old", scene.client("x"), calls.init(), one_phase.attach(A), one_phase.at_once(A, "o"))
    scene.actor("old", old, share(A, "a", looks=0))
    scene.actor("new", scene.client("x"), calls.init(), one_phase.attach(A), one_phase.at_once(A, "n"))
    scene.actor("leader", scene.client(), lead(A))
    return scene


def _forgets(size: Size) -> Scene:
    """A batch waits and is in the log, too. The partition forgets its producer before a leader, or the writer, comes."""
    scene = Scene(
        ctx=context(constants=one_phase.FORGETS_PRODUCERS),
        budget=Budget(lost=2 if size == "full" else 1, ticks=(FORGOTTEN_MS,)),
    )
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, share(A, "a"))
    scene.actor("expirer", scene.client(), keeper_calls.expire_producers(A))
    scene.actor("leader", scene.client(), lead(A))
    return scene


def _woken(size: Size) -> Scene:
    """An attached instance that was fenced and forgotten lets a batch wait."""
    scene = Scene(
        ctx=context(constants=one_phase.FORGETS_PRODUCERS),
        transactional_ids=("x",),
        budget=Budget(ticks=(FORGOTTEN_MS,)),
    )
    old = scene.before("old", scene.client("x"), calls.init(), one_phase.attach(A))
    scene.actor("old", old, calls.opened(A), share(A, "a", looks=0))
    scene.actor("new", scene.client("x"), calls.init())
    if size == "full":
        scene.actor("expirer", scene.client(), keeper_calls.expire_producers(A))
        scene.actor("leader", scene.client(), lead(A))
    else:
        scene.actor("leader", scene.client(), keeper_calls.expire_producers(A), lead(A))
    return scene


def _late(size: Size) -> Scene:
    """A writer looks for its batch when it is sealed, and its epoch is over."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), budget=Budget(lost=1 if full else 0))
    old = scene.before("old", scene.client("x"), calls.init(), one_phase.attach(A), one_phase.at_once(A, "o"))
    scene.actor("old", old, share(A, "a", looks=0, forgets=True))
    scene.actor(
        "new", scene.client("x"), calls.init(), *([one_phase.attach(A), one_phase.at_once(A, "n")] if full else [])
    )
    scene.actor("leader", scene.client(), lead(A), one_phase.seals(A))
    return scene


def _order(size: Size) -> Scene:
    """Two batches of one producer wait, and are found in any order."""
    scene = Scene(budget=Budget(lost=2 if size == "full" else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, share_both(A, "a", "b"))
    scene.actor("leader", scene.client(), lead(A), lead(A))
    return scene


def _tidy(size: Size) -> Scene:
    """What waits is deleted beside its writer and a leader."""
    full = size == "full"
    scene = Scene(deletable=lambda path: "/waiting/" in path, budget=Budget(lost=2 if full else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("one", one, share(A, "a"))
    scene.actor("leader", scene.client(), lead(A))
    scene.actor("vacuum", scene.client(), tidy(A), *([tidy(A)] if full else []))
    return scene


def _wakes(size: Size) -> Scene:
    """The slot that a leader is to create was sealed, bounded and deleted while it slept."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), deletable=deletes(A), budget=Budget(lost=1 if full else 0, ticks=(GRACE_MS,)))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("one", one, share(A, "a"))
    scene.actor("cleaner", scene.client(), bound(A))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="combine", what="two writers append both of their batches, beside a third writer", rules=(1, 2, 3), build=_combine),
        Scenario(name="combine gives up", what="leaders take the batch of a writer that gave up", rules=(1, 2, 3), build=_gives_up),
        Scenario(name="combine zombie", what="the batch of an instance that is being fenced waits", rules=(3, 8), build=_zombie, patches=PATCHES),
        Scenario(name="combine woken", what="an instance that was fenced and forgotten lets a batch wait", rules=(8, 9), build=_woken, patches=PATCHES),
        Scenario(name="combine late", what="a writer looks when its batch is sealed and its epoch is over", rules=(2, 5), build=_late, patches=PATCHES),
        Scenario(name="combine forgets", what="a batch that waits is in the log, and its producer is forgotten", rules=(3,), build=_forgets),
        Scenario(name="combine order", what="two batches of one producer wait", rules=(2, 3), build=_order),
        Scenario(name="combine wakes", what="the slot of a leader was deleted while it slept", rules=(2, 3, 14), build=_wakes),
        Scenario(name="combine tidy", what="what waits is deleted beside its writer and a leader", rules=(2, 3, 16), build=_tidy),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a leader judges no batch again", "combine", "invariant 3, the rule *judge again*", {RULES + "check_batch": lambda *_: Proceed()}),
        ("a leader takes the batch of a fenced instance", "combine zombie", "invariant 8, the rule *judge again*", {RULES + "check_batch": lambda *_: Proceed()}),
        ("a leader takes what the partition may have forgotten", "combine forgets", "invariant 3, the rule *take*", {RULES + "is_forgotten_by": lambda *_: False}),
        ("a writer that gives up says that it failed", "combine gives up", "invariant 2, the rule *answer*", {PROGRAMS + "give_up": lambda _: StorageError("given up")}),
        ("a batch waits without the consent of the table", "combine woken", "invariant 8, the rule *consent*", {PROGRAMS + "consent": program_of(None)}),
        ("a state refuses a batch that may be in sealed records", "combine late", "invariant 2, the rule *answer*", {PROGRAMS + "shows_all": lambda *_: True}),
        ("a gap is a final refusal", "combine order", "invariant 2, the rule *answer*", {PROGRAMS + "_FINAL": (InvalidProducerEpochError, OutOfOrderSequenceError)}),
    )
)  # fmt: skip
