"""Scenarios of commits in one phase: instances that are fenced, forgotten or unsure; mutants of their rules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import bound, deletes
from lab.explore.client import Call, Client, failed, patiently
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant, no_guard
from lab.explore.scene import (
    FORGETFUL,
    FORGOTTEN_MS,
    GRACE_MS,
    HOUR_MS,
    TIMEOUT_MS,
    A,
    B,
    Scenario,
    Scene,
    Size,
    context,
)
from txlog.core import one_phase as core, transactions
from txlog.core.ages import ClockReading
from txlog.core.append_rules import Refuse
from txlog.core.effects import Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.records import StagedPart, StagedRows, StoreConstants
from txlog.core.transactions import Transit
from txlog.errors import (
    AbortableError,
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import one_phase as programs, table
from txlog.protocol.one_phase import OnePhase

PROGRAMS = HERE + "one_phase."
FORGETS_PRODUCERS = StoreConstants(
    transaction_state_partitions=1, consumer_offsets_partitions=1, producer_id_expiration_ms=HOUR_MS
)
"""Ids stay for a week, and what a partition knows of an idle producer for an hour."""

# -- calls ------------------------------------------------------------------------------------------------------------


def attach(tp: TopicPartition) -> Call:
    """Attach the instance to a partition."""

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        try:
            views, attached = yield from patiently(client, lambda: programs.attach(client.ctx, client.views, txn, tp))
        except TxlogError as error:
            return (yield from failed(client, error))
        return replace(client, views=views).taking(attached)

    return call


def at_once(tp: TopicPartition, *words: str, then_abort: bool = False) -> Call:
    """Commit rows in one phase; in two phases if the protocol asks for it.

    With `then_abort`, a client aborts after a commit of unknown outcome.
    """

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        payload = json.dumps(words).encode()
        part = StagedPart(
            topic=tp.topic,
            partition=tp.partition,
            schema_id=client.schema_of(tp.topic),
            inline=StagedRows(rows=len(words), payload=payload),
        )
        sequence = dict(client.sequences).get(tp, 0)
        view = client.views.get(tp)
        wanted = OnePhase(
            part=part,
            base_sequence=sequence,
            begun=(yield ReadClocks()),
            since=0 if view is None else view.state.next_offset,
        )
        said = tuple((tp, word) for word in words)
        given: dict[str, Any] = {"words": said, "producer_id": client.pid}
        for attempt in range(client.tries):
            try:
                views, result = yield from programs.commit_in_one_phase(client.ctx, client.views, txn, wanted)
                break
            except (RetriableError, OutcomeUnknownError) as error:
                unsure = isinstance(error, OutcomeUnknownError)
                wanted = replace(wanted, in_doubt=wanted.in_doubt or unsure)
                if attempt == client.tries - 1 or (then_abort and unsure):
                    if not then_abort:
                        return client.noted("unknown", text=str(error), stop=True, **given)
                    return (yield from _abort(client, wanted, given))
            except (AbortableError, FencedError, UnknownTopicOrPartitionError) as error:
                return client.noted("failed", text=type(error).__name__, stop=True, **given)
        if result is None:
            staged = replace(client, views=views, staged=(part,), words=said)
            return (yield from calls.commit()(staged))
        others = tuple((at, n) for at, n in client.sequences if at != tp)
        after = replace(client, views=views, sequences=(*others, (tp, sequence + len(words))))
        return after.noted("committed", **given)

    return call


def _abort(client: Client, wanted: OnePhase, given: dict[str, Any]) -> Program[Client]:
    assert client.txn is not None
    txn = client.txn
    try:
        views, ended = yield from patiently(
            client, lambda: programs.abort_one_phase(client.ctx, client.views, txn, wanted)
        )
    except (RetriableError, OutcomeUnknownError) as error:
        return client.noted("unknown", text=str(error), stop=True, **given)
    except TxlogError as error:
        return client.noted("failed", text=str(error), stop=True, **given)
    after = replace(client, views=views).after_end(ended.txn)
    return after.noted("committed" if ended.already_committed else "aborted", **given)


def seals(tp: TopicPartition) -> Call:
    """Seal all finished segments, as far as requests succeed."""

    def call(client: Client) -> Program[Client]:
        try:
            return (yield from keeper_calls.seal_all(tp)(client))
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))

    return call


# -- scenarios --------------------------------------------------------------------------------------------------------


def _one_phase(size: Size) -> Scene:
    """An attached instance commits, while a newer one takes over and commits, too."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=2 if full else 1))
    old = scene.before("old", scene.client("x"), calls.init(), attach(A))
    scene.actor("old", old, at_once(A, "a"), *([at_once(A, "b")] if full else []))
    scene.actor("new", scene.client("x"), calls.init(), attach(A), at_once(A, "c"))
    return scene


def _goes_on(size: Size) -> Scene:
    """One instance commits in one phase and in two, to two partitions, beside a time-out or an operator's abort."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(ticks=() if full else (TIMEOUT_MS + 1,)))
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), at_once(A, "a"))
    scene.actor("owner", owner, calls.send(B, "b"), calls.commit(), at_once(A, "c"))
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    if full:
        scene.actor("operator", scene.client(), keeper_calls.operator_abort("x"))
    return scene


def _attaches(size: Size) -> Scene:
    """An instance attaches itself to one more partition, while a newer one takes over."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.stage(A, "a"), calls.commit(), attach(A))
    scene.actor("old", old, attach(B), at_once(B, "b"))
    scene.actor("new", scene.client("x"), calls.init(), *([attach(B), at_once(B, "c")] if full else []))
    return scene


def _unsure(size: Size) -> Scene:
    """A commit of unknown outcome is followed by an abort, which finds out what won."""
    full = size == "full"
    scene = Scene(ctx=context(max_settles=1), transactional_ids=("x",), budget=Budget(lost=2 if full else 1))
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), at_once(A, "a"))
    scene.actor("owner", owner, at_once(A, "b", then_abort=True), attach(A), at_once(A, "c"))
    scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _repeats(size: Size) -> Scene:
    """A commit of unknown outcome is repeated, while its epoch ends, or its records are sealed."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1, max_settles=1), transactional_ids=("x",), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), at_once(A, "a"))
    scene.actor("owner", owner, at_once(A, "b"))
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.actor("sealer", scene.client(), seals(A), *([seals(A)] if full else []))
    return scene


def _sleeps(size: Size) -> Scene:
    """An attached instance sleeps until its partition has forgotten it, and a newer one may have taken over."""
    scene = Scene(
        ctx=context(constants=FORGETS_PRODUCERS, max_settles=1),
        transactional_ids=("x",),
        budget=Budget(lost=1 if size == "full" else 0, ticks=(FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), calls.opened(A))
    scene.actor("owner", owner, at_once(A, "a"))
    scene.actor("expirer", scene.client(), keeper_calls.expire_producers(A))
    scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _doubts(size: Size) -> Scene:
    """An attached instance is unsure of its first try, and its partition may forget it before the next one."""
    scene = Scene(
        ctx=context(constants=FORGETS_PRODUCERS, max_settles=1),
        transactional_ids=("x",),
        budget=Budget(lost=1, ticks=(FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), calls.opened(A))
    scene.actor("owner", owner, at_once(A, "a"), *([at_once(A, "b")] if size == "full" else []))
    scene.actor("expirer", scene.client(), keeper_calls.expire_producers(A))
    return scene


def _refused(size: Size) -> Scene:
    """The first commit of an instance is unsure, and a newer instance is in the table, but not yet in the partition."""
    scene = Scene(ctx=context(max_settles=1), transactional_ids=("x",), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), calls.opened(A))
    scene.actor("owner", owner, at_once(A, "a"))
    scene.actor("takeover", scene.client("x"), calls.init(), *([attach(A)] if size == "full" else []))
    return scene


def _forgotten(size: Size) -> Scene:
    """A sweep takes the id of an attached instance for idle, and removes it."""
    full = size == "full"
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        past_ms=FORGOTTEN_MS,
        budget=Budget(ticks=(GRACE_MS + FORGOTTEN_MS,) if full else ()),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), at_once(A, "a"))
    scene.actor("owner", owner, at_once(A, "b"))
    scene.actor("sweep", scene.client(), keeper_calls.sweep(), *([keeper_calls.sweep()] if full else []))
    if not full:
        scene.actor("new", scene.client("x"), calls.init())
    return scene


def _wakes(size: Size) -> Scene:
    """The slot of a sleeping instance was sealed, bounded and deleted, and a newer instance may have taken over."""
    scene = Scene(
        ctx=context(batches=1), deletable=deletes(A), transactional_ids=("x",), budget=Budget(ticks=(GRACE_MS,))
    )
    owner = scene.before("x", scene.client("x"), calls.init(), attach(A), at_once(A, "a"))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("owner", owner, at_once(A, "b"))
    scene.actor("cleaner", scene.client(), bound(A))
    if size == "full":
        scene.actor("takeover", replace(scene.client("x"), views=owner.views), calls.init())
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="one phase", what="a newer instance takes over while the older one commits in one phase", rules=(2, 3, 8), build=_one_phase),
        Scenario(name="one phase goes on", what="commits in one phase and in two of one instance, beside sweeps", rules=(4, 5, 10), build=_goes_on),
        Scenario(name="one phase attaches", what="an instance is attached to one more partition while a newer one takes over", rules=(8, 9), build=_attaches),
        Scenario(name="one phase unsure", what="a commit in one phase of unknown outcome is followed by an abort", rules=(2, 3, 5), build=_unsure),
        Scenario(name="one phase repeats", what="a commit in one phase of unknown outcome is repeated, and records are sealed", rules=(2, 3, 8), build=_repeats),
        Scenario(name="one phase refused", what="an unsure instance is refused by the table, and not yet by the partition", rules=(2, 5), build=_refused),
        Scenario(name="one phase sleeps", what="an attached instance sleeps until it may be forgotten", rules=(3, 8, 9, 11), build=_sleeps),
        Scenario(name="one phase doubts", what="an instance is unsure of its first try, and may be forgotten before the next", rules=(2, 3), build=_doubts),
        Scenario(name="one phase forgotten", what="the id of an attached instance is removed as idle", rules=(3, 8, 11), build=_forgotten),
        Scenario(name="one phase wakes", what="the slot of an attached instance was deleted while it slept", rules=(2, 8, 14), build=_wakes),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _init_over_what_is_attached(current: Any, **given: Any) -> Any:
    bare = current and msgspec.structs.replace(current, attached=msgspec.UNSET)
    return transactions.judge_init(bare, **given)


def _fence_the_first(current: Any, **given: Any) -> Any:
    return _FENCE(
        msgspec.structs.replace(current, attached=tuple(current.attached or ())[:1] or msgspec.UNSET), **given
    )


_FENCE = transactions.fence


def _attach_by_any_instance(current: Any, txn: Any, tp: Any, *, now_ms: int, write_id: str) -> Any:
    return Transit(msgspec.structs.replace(txn, attached=(tp,), updated_at=now_ms, write_id=write_id))


def _end_without_a_fence(current: Any, txn: Any, **given: Any) -> Any:
    verdict = core.judge_fence(current, txn, **given)
    if isinstance(verdict, Transit):
        return Transit(msgspec.structs.replace(verdict.to, partitions=()))
    return verdict


def _looks_for_nothing(ctx: Any, views: Any, txn: Any, wanted: Any) -> Any:
    return views, False
    yield


def _detach_by_removing(ctx: Any, views: Any, transactional_id: str, *, force: bool = False) -> Any:
    return (yield from table.put_tombstone(ctx, views, transactional_id, _may_expire_attached(ctx)))


def _may_expire_attached(ctx: Any) -> Any:
    return lambda current, now_ms: now_ms - current.updated_at > ctx.constants.transactional_id_expiration_ms


def _guard_of_any_age(ctx: Any, views: Any, txn: Any, wanted: Any) -> Any:
    return _GUARD(ctx, views, txn, replace(wanted, begun=_NOT_YET))


_GUARD = programs._attached_guard
_NOT_YET = ClockReading(wall_ms=2**60, monotonic_ms=2**60)


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=broken, patches=patches)
    for name, scenario, broken, patches in (
        ("an init does not fence an attached instance", "one phase", "W62", {HERE + "transactions.judge_init": _init_over_what_is_attached}),
        ("an init fences in one attached partition", "one phase attaches", "W62", {CORE + "transactions.fence": _fence_the_first}),
        ("an instance that was fenced attaches itself", "one phase attaches", "W61", {PROGRAMS + "judge_attach": _attach_by_any_instance}),
        ("no re-read before the first batch in one phase", "one phase sleeps", "W61", {PROGRAMS + "_attached_guard": no_guard}),
        ("the first try of a commit in one phase may be old", "one phase doubts", "W63", {PROGRAMS + "_attached_guard": _guard_of_any_age}),
        ("an abort of a fenced instance looks for no row", "one phase unsure", "W64", {PROGRAMS + "_of_fenced": _looks_for_nothing}),
        ("a refusal of the table settles a commit in one phase", "one phase refused", "W64", {PROGRAMS + "_NotAttached": Refuse, PROGRAMS + "_FINAL": (TxlogError,)}),
        ("a sweep removes an id whose instance is attached", "one phase forgotten", "W62", {HERE + "expiry.detach": _detach_by_removing}),
        ("an abort of a commit in one phase ends no epoch in its partition", "one phase unsure", "W64", {PROGRAMS + "judge_fence": _end_without_a_fence}),
    )
)  # fmt: skip
