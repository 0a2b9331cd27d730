"""Scenarios of snapshots of the past, and mutants of their rules.

A snapshot of the past shows what was appended up to a time, without transactions that have later rows.
"""

from __future__ import annotations

from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import compact, merge
from lab.explore.client import Call, Client, Word
from lab.explore.explorer import Budget
from lab.explore.keeper_calls import rows_of
from lab.explore.keys import Compacted
from lab.explore.mutant import Mutant
from lab.explore.scene import HOUR_MS, KEYED, A, B, Scenario, Scene, Size, context
from lab.explore.world import START_MS
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, OffsetOutOfRangeError
from txlog.protocol.load import load
from txlog.protocol.read import offset_for_timestamp, plan_read
from txlog.protocol.snapshot import take_snapshot
from txlog.protocol.snapshot_as_of import cut_as_of

AS_OF_MS = START_MS - HOUR_MS // 2
"""Between the prelude and the beginning of each scenario here."""


def look_back(*tps: TopicPartition, due: str = "") -> Call:
    """Read what was appended up to AS_OF_MS, as `store.snapshot(as_of=...)` does.

    `due` are words of transactions that had ended before that.
    """

    def call(client: Client) -> Program[Client]:
        views, cut = yield from take_snapshot(client.ctx, client.views, tps)
        words: list[Word] = []
        ends: dict[TopicPartition, int] = {}
        try:
            for tp in tps:
                view, hits = yield from offset_for_timestamp(client.ctx, views[tp], AS_OF_MS + 1, "read_uncommitted")
                views = {**views, tp: view}
                ends[tp] = hits[0].offset if hits else cut.ends[tp]
            views, past = yield from cut_as_of(client.ctx, views, cut, ends, AS_OF_MS)
            for tp in tps:
                view = yield from load(client.ctx, tp)
                _, plan = yield from plan_read(
                    client.ctx, view, view.state.log_start_offset, None, "read_committed", cut=past
                )
                words += [(tp, word) for _, word in (yield from rows_of(plan))]
        except (InvalidRequestError, OffsetOutOfRangeError) as error:
            return client.noted("too old", text=str(error))
        return client.noted("looked back", words=tuple(words), ends=tuple(past.ends.items()), end=AS_OF_MS, text=due)

    return call


# -- scenarios --------------------------------------------------------------------------------------------------------


def _looks_back(size: Size) -> Scene:
    """x has rows on both sides of the time, and y all of its rows before it. Both end now."""
    full = size == "full"
    scene = Scene(
        transactional_ids=("x", "y"),
        partitions=(A, B),
        past_ms=HOUR_MS,
        budget=Budget(lost=1 if full else 0),
        recovers=False,
    )
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "w"), calls.commit(), calls.send(A, "xa"))
    y = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "ya"), calls.send(B, "yb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("x", x, calls.send(B, "xb"), calls.commit())
    if full:
        scene.actor("y", y, calls.commit())
    scene.actor("looks", scene.client(), *[look_back(A, B, due="w")] * (2 if full else 1))
    return scene


def _looks_back_small(size: Size) -> Scene:
    """The next transaction of an id is a small one whose rows are all later."""
    full = size == "full"
    scene = Scene(
        transactional_ids=("x",),
        partitions=(A, B),
        past_ms=HOUR_MS,
        budget=Budget(lost=1 if full else 0),
        recovers=False,
    )
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "aa"), calls.send(B, "ab"))
    small = (calls.stage(A, "ba", inline=True), calls.stage(B, "bb", inline=True))
    scene.actor("x", x, calls.commit(), *small, calls.commit())
    if full:
        scene.actor("sweep", scene.client(), keeper_calls.sweep())
    scene.actor("looks", scene.client(), look_back(A, B), look_back(A, B))
    return scene


def _looks_back_merged(size: Size) -> Scene:
    """The segments of both sides are merged into one run, while a snapshot of the past is read."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), past_ms=HOUR_MS, recovers=False,
        budget=Budget(lost=1 if full else 0),
    )  # fmt: skip
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.past_ms = 0
    x = scene.before("x!", x, calls.send(A, "xc"), calls.send(B, "xb"))
    if not full:
        x = scene.before("x!!", x, calls.commit())
    scene.before("q", plain, calls.send(A, "q"), calls.send(A, "r"))
    if full:
        scene.actor("x", x, calls.commit())
    scene.actor("merger", scene.client(), merge(A))
    scene.actor("looks", scene.client(), look_back(A, B), look_back(A, B))
    return scene


def _looks_back_compacted(size: Size) -> Scene:
    """A row of the past is superseded by a later one, and compacted away meanwhile."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), past_ms=HOUR_MS, recovers=False,
        compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0),
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p@k"), calls.send(A, "o@j"))
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa@j"))
    scene.past_ms = 0
    x = scene.before("x!", x, calls.send(B, "xb"))
    scene.before("q", plain, calls.send(A, "q@k"), calls.send(A, "r"))
    scene.actor("x", x, calls.commit(), calls.complete())
    scene.actor("compactor", scene.client(), compact(A, KEYED), *[compact(A, KEYED)] * full)
    scene.actor("looks", scene.client(), look_back(A, B))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="looks back", what="a snapshot of the past is read while transactions over its time end", rules=(17,), build=_looks_back),
        Scenario(name="looks back, small", what="... while an id goes on with a small transaction", rules=(17,), build=_looks_back_small),
        Scenario(name="looks back, merged", what="... while the rows of both sides of its time are merged", rules=(13, 17), build=_looks_back_merged),
        Scenario(name="looks back, compacted", what="... while its rows are compacted away", rules=(13, 17), build=_looks_back_compacted),
    )
}  # fmt: skip


# -- mutants ----------------------------------------------------------------------------------------------------------

_PAST = "txlog.protocol.snapshot_as_of."


def _by_own_epoch(batches: Any) -> set[tuple[int, int]]:
    return {(each.producer_id, each.producer_epoch) for each in batches if each.kind == "commit" or each.transactional}


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a snapshot of the past shows what has later rows", "looks back, merged", "invariant 17", {_PAST + "hide_transactions": lambda cut, later: cut}),
        ("a snapshot of the past takes rows for their marker", "looks back", "invariant 17", {_PAST + "transactions_of": _by_own_epoch}),
        ("a snapshot of the past is read on runs that were compacted since", "looks back, compacted", "R19", {"txlog.core.snapshots.SnapshotCut.check_compacted": lambda *_: None}),
    )
)  # fmt: skip
