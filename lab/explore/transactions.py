"""Scenarios of transactions: their epochs, their decisions, and those who take over; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant, no_guard, nothing
from lab.explore.scene import FORGETFUL, FORGOTTEN_MS, TIMEOUT_MS, A, B, Scenario, Scene, Size, context
from txlog.core import append_rules, state, transactions
from txlog.core.append_rules import Proceed, Refuse
from txlog.core.records import NO_OFFSET, TransactionEntry
from txlog.core.transactions import Done, Skipped, Transit, TxnVersion, judge_end, judge_init
from txlog.protocol import load, slot as slot_programs, slot_record, table, transactions as coordinator
from txlog.protocol.context import with_view

# -- scenarios --------------------------------------------------------------------------------------------------------


def _fencing(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("old", old, calls.send(A, "b"), calls.commit())
    scene.actor(
        "new", scene.client("x"), calls.init(), calls.send(A, "c"), *([calls.commit()] if size == "full" else [])
    )
    return scene


def _commit(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", old, calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    if size == "full":
        scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _abort(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", old, calls.abort(), *([calls.send(A, "c"), calls.commit()] if size == "full" else []))
    scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _late_abort(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=2 if size == "full" else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.dies("sweep", owner, calls.abort(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("owner", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    if size == "full":
        scene.actor("second", replace(slow, views={}), keeper_calls.roll_forward())
    return scene


def _goes_on(size: Size) -> Scene:
    """The owner's next record follows its PREPARE_* directly, while another process rolls that one forward."""
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", owner, calls.abort(), calls.send(A, "c"), *([calls.commit()] if size == "full" else []))
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _goes_on_staged(size: Size) -> Scene:
    """One PREPARE_COMMIT follows another, while another process rolls the first one forward or takes over."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(), calls.stage(A, "b"), calls.commit())
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _completes(size: Size) -> Scene:
    """A transaction has every marker and no COMPLETE_*. Its owner goes on; its idle thread and others complete it."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.commit())
    scene.actor("owner", owner, calls.send(A, "b"), *([calls.commit()] if full else []))
    scene.actor("idle", owner, calls.complete())
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    else:
        scene.actor("slow", replace(scene.client(), prepare=scene.prepared()), keeper_calls.roll_forward())
    return scene


def _forgets(size: Size) -> Scene:
    """A tombstone follows PREPARE_COMMIT, while another process rolls that forward, and a late try is to forget the
    id."""
    full = size == "full"
    scene = Scene(
        ctx=context(constants=FORGETFUL), transactional_ids=("x",), budget=Budget(ticks=(FORGOTTEN_MS,) if full else ())
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(), calls.forget())
    scene.actor("late", owner, calls.forget())
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    if full:
        scene.actor("expirer", scene.client(), keeper_calls.expire_producers(A))
    return scene


def _staged(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if full else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.stage(A, "a"), calls.stage(B, "b"))
    scene.actor("owner", owner, calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _mixed(size: Size) -> Scene:
    """Staged and eager rows are in one transaction; the next transaction is aborted."""
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    owner = scene.before(
        "owner", scene.client("x"), calls.init(), calls.send(A, "a"), calls.stage(B, "b"), calls.stage(A, "c")
    )
    scene.actor("owner", owner, calls.commit(), calls.send(A, "d"), calls.abort())
    scene.actor("sweep", scene.client(), keeper_calls.sweep(), *([keeper_calls.sweep()] if size == "full" else []))
    return scene


def _inits(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("one", scene.client("x"), calls.init())
    scene.actor("two", scene.client("x"), calls.init())
    if full:
        scene.actor("old", old, calls.commit())
    return scene


def _first_init(size: Size) -> Scene:
    more = (calls.send(A, "b"), calls.commit()) if size == "full" else ()
    scene = Scene(ctx=context(max_settles=2), transactional_ids=("x", "y"), budget=Budget(lost=1))
    scene.actor("one", scene.client("x"), calls.init(), calls.send(A, "a"), calls.commit())
    scene.actor("two", scene.client("x"), calls.init(), *more)
    return scene


def _time_out(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1 if full else 0, ticks=(TIMEOUT_MS + 1,)))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _operator(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(B, "b"), calls.commit())
    scene.actor("operator", scene.client(), keeper_calls.operator_abort("x"))
    return scene


def _version(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), exclusive=("batch 5",), budget=Budget(lost=2 if full else 0))
    version = TxnVersion(version=5, scope="q")
    one = scene.before("one", scene.client("x"), calls.init(), calls.stage(A, "batch 5 by one"))
    scene.actor("one", one, calls.commit(version))
    scene.actor("two", scene.client("x"), calls.init(), calls.stage(A, "batch 5 by two"), calls.commit(version))
    return scene


def _unsure(size: Size) -> Scene:
    """A commit of unknown outcome is followed by an abort, as in Spark. The late commit must not win after that."""
    full = size == "full"
    scene = Scene(ctx=context(max_settles=1), transactional_ids=("x",), budget=Budget(lost=2 if full else 1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(then_abort=True))
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    else:
        scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="fencing", what="init fences an append and a commit in flight", rules=(8, 9), build=_fencing),
        Scenario(name="commit", what="an eager commit over two partitions; its coordinator dies anywhere, one or two take over", rules=(4, 5, 11), build=_commit),
        Scenario(name="abort", what="an eager abort over two partitions; its coordinator dies anywhere, another takes over", rules=(4, 5, 11), build=_abort),
        Scenario(name="late abort", what="a delayed, repeated ABORT meets the producer's next transaction", rules=(10,), build=_late_abort),
        Scenario(name="goes on", what="an owner goes on after an end without COMPLETE, while another process rolls it forward", rules=(4, 5, 10, 11), build=_goes_on),
        Scenario(name="goes on staged", what="... and its next transaction is staged, too", rules=(4, 5, 10, 11), build=_goes_on_staged),
        Scenario(name="completes", what="COMPLETE is written late, beside the owner's next record and a takeover", rules=(4, 5, 8, 11), build=_completes),
        Scenario(name="forgets", what="an owner removes its id after an end without COMPLETE, while others roll it forward", rules=(4, 5, 11), build=_forgets),
        Scenario(name="staged", what="a staged commit over two partitions; two other instances take over", rules=(4, 5, 16), build=_staged),
        Scenario(name="mixed", what="a transaction both eager and staged during a sweep, and the next transaction", rules=(5, 10), build=_mixed),
        Scenario(name="inits", what="two inits race with each other and with a commit", rules=(8,), build=_inits),
        Scenario(name="first init", what="two instances create the same id at once, and commit", rules=(8, 9), build=_first_init),
        Scenario(name="time-out", what="the timeout races with an append and a commit", rules=(4, 5), build=_time_out),
        Scenario(name="operator", what="an operator's abort races with a registration and a commit", rules=(4, 5, 9), build=_operator),
        Scenario(name="version", what="two runs of one query commit the same version", rules=(4, 8), build=_version),
        Scenario(name="unsure", what="a commit of unknown outcome is followed by an abort", rules=(4, 5), build=_unsure),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _newer_only(folded: state.PartitionState, pid: int, epoch: int) -> bool:
    entry = folded.producers.get(pid)
    return entry is not None and entry.producer_epoch > epoch


def _complete_anything(current: Any, txn: Any, *, now_ms: int, write_id: str) -> Any:
    return Transit(msgspec.structs.replace(txn, updated_at=now_ms, write_id=write_id))


def _known_by_anybody(current: Any, txn: Any) -> bool:
    return current.state in transactions.PREPARED


def _remove_by_any_instance(ctx: Any, views: Any, txn: Any) -> Any:
    return (
        yield from table.put_tombstone(ctx, views, txn.transactional_id, lambda current, _: current.state != "ONGOING")
    )


def _first_marker(ctx: Any, views: Any, prepare: Any) -> Any:
    first = msgspec.structs.replace(prepare.value, partitions=prepare.value.partitions[:1])
    return (yield from _ORIGINAL_MARKERS(ctx, views, msgspec.structs.replace(prepare, value=first)))


def _all_markers(ctx: Any, views: Any, prepare: Any) -> Any:
    views = yield from _ORIGINAL_MARKERS(ctx, views, prepare)
    return (yield from coordinator._put_complete(ctx, views, coordinator._completed(prepare.value)))


_ORIGINAL_MARKERS = coordinator._put_markers


def _prepare_bumping(by: int) -> Any:
    original = transactions._prepare

    def prepare(current: Any, *args: Any, **kwargs: Any) -> Any:
        return msgspec.structs.replace(original(current, *args, **kwargs), producer_epoch=current.producer_epoch + by)

    return prepare


def _prepare_dropping_partitions(current: Any, *args: Any, **kwargs: Any) -> Any:
    made = _ORIGINAL_PREPARE(current, *args, **kwargs)
    return msgspec.structs.replace(made, partitions=made.partitions[:1])


_ORIGINAL_PREPARE = transactions._prepare


def _init_aborting_what_is_prepared(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "PREPARE_COMMIT":
        return Transit(msgspec.structs.replace(current, state="PREPARE_ABORT", write_id=kwargs["write_id"]))
    return judge_init(current, **kwargs)


def _init_over_what_is_prepared(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state.startswith("PREPARE"):
        current = msgspec.structs.replace(current, state="COMPLETE_" + current.state[8:])
    return judge_init(current, **kwargs)


def _init_over_what_is_open(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "ONGOING":
        current = msgspec.structs.replace(current, state="COMPLETE_ABORT")
    return judge_init(current, **kwargs)


def _init_without_a_bump(current: Any, **kwargs: Any) -> Any:
    verdict = judge_init(current, **kwargs)
    if isinstance(verdict, Transit) and verdict.to.state == "EMPTY" and current is not None:
        return Transit(msgspec.structs.replace(verdict.to, producer_epoch=current.producer_epoch))
    return verdict


def _time_out_of_decisions(current: Any, **kwargs: Any) -> Any:
    if current is not None and current.state == "PREPARE_COMMIT":
        return Transit(
            msgspec.structs.replace(
                current, state="PREPARE_ABORT", last_outcome="abort", staged=(), write_id=kwargs["write_id"]
            )
        )
    return transactions.judge_abort_by_others(current, **kwargs)


def _abort_of_nothing_decides_nothing(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    if outcome == "abort" and current is not None and current.state in transactions.IDLE:
        return Done(current)
    return judge_end(current, txn, outcome, **kwargs)


def _end_by_anybody(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    if (
        current is not None
        and current.state in transactions.IDLE | {"ONGOING"}
        and current.producer_epoch > txn.producer_epoch
    ):
        txn = current
    return judge_end(current, txn, outcome, **kwargs)


def _end_by_the_version_of_init(current: Any, txn: Any, outcome: Any, **kwargs: Any) -> Any:
    version = kwargs.pop("version", None)
    if version is not None and current is not None and current.producer_epoch == txn.producer_epoch:
        if txn.txn_version >= version.version:
            return Skipped(current)
        # Ignores the record that it replaces: only the record that init found counts.
        current = msgspec.structs.replace(current, txn_version=-1)
    return judge_end(current, txn, outcome, version=version, **kwargs)


def _init_remembering_the_version_before(
    ctx: Any, views: Any, transactional_id: str, timeout_ms: int, **kw: Any
) -> Any:
    views, view = yield from load.get_fresh_view(ctx, views, table.state_partition(ctx, transactional_id))
    row = view.state.transactions.get(transactional_id)
    before = row.value.txn_version if row is not None else -1
    views, txn = yield from _ORIGINAL_INIT(ctx, views, transactional_id, timeout_ms, **kw)
    return views, msgspec.structs.replace(txn, txn_version=before)


_ORIGINAL_INIT = coordinator.init_producer


def _transit_without_ids(ctx: Any, views: Any, transactional_id: str, judge: Any) -> Any:
    def same_id(folded: Any, current: Any, now_ms: int, _: str) -> Any:
        return judge(folded, current, now_ms, "0" * 32)

    tp = table.state_partition(ctx, transactional_id)
    views, view = yield from load.get_view(ctx, views, tp)

    def decide(folded: Any, now_ms: int) -> Any:
        row = folded.transactions.get(transactional_id)
        judgement = same_id(folded, row.value if row is not None else None, now_ms, "")
        if not isinstance(judgement, Transit):
            return slot_record.Stop(judgement)
        entry = TransactionEntry(key=transactional_id, value=judgement.to)
        return table._table_record(ctx, folded, entry, now_ms, "0" * 32)

    view, outcome = yield from slot_programs.append_slot(ctx, view, decide, write_id="0" * 32)
    result = (
        outcome.value
        if isinstance(outcome, slot_record.Stop)
        else table.Written(view.state.transactions[transactional_id])
    )
    return with_view(views, view), result


def _register_in_memory(ctx: Any, views: Any, txn: Any, partitions: Any, version: Any = None) -> Any:
    return views, msgspec.structs.replace(txn, partitions=tuple(sorted({*txn.partitions, *partitions})))
    yield


def _check_without_epochs(folded: Any, draft: Any) -> Any:
    verdict = append_rules.check_batch(folded, draft)
    entry = folded.producers.get(draft.producer_id)
    if isinstance(verdict, Refuse) and entry is not None and draft.producer_epoch < entry.producer_epoch:
        return Proceed()
    return verdict


def _abort_without_its_first_offset(folded: Any, draft: Any, **kwargs: Any) -> Any:
    return msgspec.structs.replace(append_rules.next_marker(folded, draft, **kwargs), first_offset=NO_OFFSET)


def _complete_first(ctx: Any, views: Any, prepare: Any) -> Any:
    views = yield from coordinator._put_complete(ctx, views, coordinator._completed(prepare.value))
    return (yield from _ORIGINAL_ROLL(ctx, views, prepare))


_ORIGINAL_ROLL = coordinator.roll_forward

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("epochs are not checked", "fencing", "W17", {HERE + "append.check_batch": _check_without_epochs}),
        ("partitions are registered in memory", "fencing", "W22", {HERE + "transactions.add_partitions": _register_in_memory, HERE + "append.registered_guard": no_guard}),
        ("markers are compared with >", "late abort", "W26", {HERE + "transactions.marker_is_there": _newer_only}),
        ("a staged COMMIT is appended by everybody who rolls forward", "staged", "W26", {HERE + "transactions.marker_is_there": _newer_only}),
        ("COMPLETE without compare-and-set", "late abort", "W27", {HERE + "transactions.judge_complete": _complete_anything}),
        ("COMPLETE before the markers", "commit", "W27", {HERE + "transactions.roll_forward": _complete_first}),
        ("anybody may pass over what is prepared", "late abort", "W25", {CORE + "transactions.is_completed_by": _known_by_anybody}),
        ("anybody may remove what is prepared", "forgets", "W25", {HERE + "expiry.remove_own": _remove_by_any_instance}),
        ("an end returns before the last marker", "goes on", "W27", {HERE + "transactions._put_markers": _first_marker, HERE + "transactions.roll_forward": _all_markers}),
        ("a COMPLETE is written over a newer record", "completes", "W27", {HERE + "transactions.judge_complete": _complete_anything}),
        ("a decision drops partitions", "commit", "W25", {CORE + "transactions._prepare": _prepare_dropping_partitions}),
        ("an end does not bump the epoch", "fencing", "W24", {CORE + "transactions._prepare": _prepare_bumping(0)}),
        ("an end bumps the epoch twice", "late abort", "W24", {CORE + "transactions._prepare": _prepare_bumping(2)}),
        ("init does not bump the epoch", "inits", "W24", {HERE + "transactions.judge_init": _init_without_a_bump}),
        ("an epoch is owned without write_id", "inits", "W23", {HERE + "transactions.transit": _transit_without_ids}),
        ("init aborts what was decided", "commit", "W25", {HERE + "transactions.judge_init": _init_aborting_what_is_prepared}),
        ("init passes over what was decided", "commit", "W25", {HERE + "transactions.judge_init": _init_over_what_is_prepared}),
        ("init leaves an open transaction", "fencing", "invariant 4", {HERE + "transactions.judge_init": _init_over_what_is_open}),
        ("the time-out revokes a decision", "staged", "W25, W28", {HERE + "transactions.judge_abort_by_others": _time_out_of_decisions}),
        ("an end does not compare epochs", "fencing", "invariant 8", {HERE + "transactions.judge_end": _end_by_anybody}),
        ("an abort is answered after an attempted commit", "unsure", "W30", {HERE + "transactions.judge_end": _abort_of_nothing_decides_nothing}),
        ("versions are not compared", "version", "W31", {CORE + "transactions.judge_version": nothing}),
        ("a version is checked before init", "version", "W31", {HERE + "transactions.init_producer": _init_remembering_the_version_before, HERE + "transactions.judge_end": _end_by_the_version_of_init}),
        ("an ABORT does not say where its transaction began", "abort", "W5, R21", {HERE + "transactions.next_marker": _abort_without_its_first_offset}),
    )
)  # fmt: skip
