"""Scenarios of retention and of topics that are deleted, and created again; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, ORIGINAL_APPLY, Mutant, program_of
from lab.explore.scene import CONSTANTS, A, C, Scenario, Scene, Size, context
from txlog.core import append_rules, state
from txlog.protocol import topic_changes, topics, transactions as coordinator

# -- scenarios --------------------------------------------------------------------------------------------------------


def _retention(size: Size) -> Scene:
    """The log start moves into an open transaction."""
    full = size == "full"
    scene = Scene(ctx=context(batches=2), transactional_ids=("x",), budget=Budget(lost=2 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("retention", scene.client(), keeper_calls.log_start(A, 2))
    if full:
        scene.actor("reader", scene.client(), keeper_calls.read(A), keeper_calls.read(A))
    return scene


def _deletion(size: Size) -> Scene:
    """A topic is deleted while a staged commit and an append are on their way."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(), budget=Budget(lost=1))
    staged = scene.before(
        "x", scene.client("x"), calls.init(), calls.stage(A, "a"), *([calls.send(A, "b")] if full else [])
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("owner", staged, calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"))
    scene.actor("deletion", scene.client(), keeper_calls.log_start(A, None, deleted_version=1))
    return scene


def _made_anew(size: Size) -> Scene:
    """A client that knows one of its topics from before the deletion begins, writes and commits a staged
    transaction."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(C,), budget=Budget(lost=2 if full else 1))
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic, C.topic), calls.stage(C, "xc"))
    if full:
        owner = scene.before("x1", owner, calls.stage(A, "xa"))
    scene.before("d", scene.client(), calls.delete_topic(A.topic), *([calls.make_topic(A.topic)] if full else []))
    scene.actor("owner", owner, *([] if full else [calls.stage(A, "xa")]), calls.commit())
    if full:
        new = scene.before("y", scene.client(), calls.idempotent(), calls.open_topic(A.topic))
        scene.actor("new", new, calls.send(A, "y"))
    else:
        scene.actor("topics", scene.client(), calls.make_topic(A.topic))
    scene.expects = {"owner": {"failed"}}
    return scene


def _deleted_under(size: Size) -> Scene:
    """A topic is deleted and created again while rows for it are staged and committed."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(C,), budget=Budget(lost=1 if full else 0))
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic, C.topic))
    scene.actor("owner", owner, calls.stage(A, "xa"), calls.stage(C, "xc"), calls.commit())
    scene.actor("topics", scene.client(), calls.delete_topic(A.topic), calls.make_topic(A.topic))
    return scene


def _looked_before(_: Size) -> Scene:
    """A topic is deleted while a client commits to it that has looked at it before, and does not look again.

    Another id begins its partition of the table meanwhile.
    """
    two = msgspec.structs.replace(CONSTANTS, transaction_state_partitions=2)
    scene = Scene(ctx=context(constants=two), transactional_ids=("x", "y"), partitions=(C,), looks=True)
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    owner = scene.before(
        "x", scene.client("x"), calls.init(), calls.open_topic(A.topic, C.topic), calls.stage(A, "xa"), calls.commit()
    )
    scene.actor("owner", owner, calls.stage(A, "xb"), calls.stage(C, "xc"), calls.commit())
    scene.actor("topics", scene.client(), calls.delete_topic(A.topic))
    new = (calls.init(), calls.open_topic(A.topic), calls.stage(A, "ya"), calls.commit())
    scene.actor("new", scene.client("y"), *new, calls.stage(A, "yb"), calls.commit())
    return scene


def _open_over(size: Size) -> Scene:
    """A transaction is open in a topic that is deleted and created again.

    Another transaction commits there, and then the first one continues.
    """
    full = size == "full"
    budget = Budget(lost=1 if full else 0)
    scene = Scene(ctx=context(batches=2), transactional_ids=("x",), partitions=(), budget=budget)
    scene.before("t", scene.client(), calls.make_topic(A.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic), calls.send(A, "xa"))
    scene.actor("owner", owner, calls.open_topic(A.topic), calls.send(A, "xb"), calls.commit())
    topics = (calls.delete_topic(A.topic), calls.make_topic(A.topic))
    new = scene.before("y", scene.client(), calls.idempotent())
    scene.actor("topics", new, *topics, calls.send(A, "y"), *([calls.send(A, "z")] if full else []))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="retention", what="the log start moves into an open transaction", rules=(2, 5, 7), build=_retention),
        Scenario(name="deletion", what="a topic is deleted under a staged commit and an append", rules=(2, 5), build=_deletion),
        Scenario(name="made anew", what="a staged commit has rows for a topic that was deleted since its writer opened it", rules=(2, 5), build=_made_anew),
        Scenario(name="deleted under", what="a topic is deleted and created again while rows for it are staged and committed", rules=(2, 4, 5), build=_deleted_under),
        Scenario(name="looked before", what="a topic is deleted under a commit whose client has looked at it at an earlier one", rules=(2, 5), build=_looked_before),
        Scenario(name="open over", what="a topic is deleted and created again under an open transaction, which continues in the new one", rules=(5, 6, 7), build=_open_over),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _rows_for_the_dead(folded: Any, draft: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_MARKER(replace(folded, deleted_version=0), draft, **kwargs)


_ORIGINAL_MARKER = append_rules.next_marker


def _check_of_the_living(folded: Any, draft: Any) -> Any:
    return append_rules.check_batch(replace(folded, deleted_version=0), draft)


def _lso_below_the_start(producers: Any, next_offset: int, log_start_offset: int, but: int | None = None) -> int:
    return _ORIGINAL_LSO(producers, next_offset, 0, but)


_ORIGINAL_LSO = state.lso_of


def _closed_by_retention(self: Any, stored: Any) -> None:
    ORIGINAL_APPLY(self, stored)
    for pid, entry in self.producers.items():
        if 0 <= entry.txn_first_offset < self.log_start_offset:
            self.producers[pid] = msgspec.structs.replace(entry, txn_first_offset=-1)
            self.opened.pop(pid, None)


def _never_opened_anew(self: Any, stored: Any) -> None:
    """Keeps the transaction's first offset below the log start."""
    before = self.producers.get(stored.record.producer_id)
    ORIGINAL_APPLY(self, stored)
    if stored.record.kind == "data" and before is not None and before.txn_first_offset >= 0:
        after = self.producers[before.producer_id]
        old = msgspec.structs.replace(after, txn_first_offset=before.txn_first_offset)
        self.producers[before.producer_id] = self.opened[before.producer_id] = old


def _end_without_looks(
    ctx: Any,
    views: Any,
    txn: Any,
    commit: Any,
    staged: Any = (),
    version: Any = None,
    looks: Any = None,
    noted: Any = None,
) -> Any:
    return _ORIGINAL_END(ctx, views, txn, commit, staged, version)


_ORIGINAL_END = coordinator.end_transaction


def _newest_of_the_name(topic: str, schema_id: int, known: Any) -> Any:
    newest: Any = yield from _ORIGINAL_FIND(topic)
    return newest if not newest.deleted else (yield from _ORIGINAL_REFRESH(topic, schema_id, known))


def _any_look(self: Any, schema_ids: Any, deletions: Any) -> bool:
    return all(rows in self.seen or rows[0] not in self.known for rows in schema_ids.items())


def _as_if_it_stayed(metadata: Any, *, of_topic: bool = False) -> Any:
    newest = yield from _ORIGINAL_NEWEST(metadata, of_topic=of_topic)
    return msgspec.structs.replace(newest, deleting=False)


def _told_first(ctx: Any, metadata: Any) -> Any:
    if metadata.deleting:
        yield from _ORIGINAL_TELL(ctx)
    return (yield from _ORIGINAL_PUT(ctx, metadata))


_ORIGINAL_TELL, _ORIGINAL_PUT = topic_changes.tell_writers, topic_changes.put_version
_ORIGINAL_NEWEST = topics.newest_version
_ORIGINAL_FIND, _ORIGINAL_REFRESH = topics.find_topic, topics.refresh_topic_of_rows

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("the LSO lies below the log start", "retention", "invariant 7", {CORE + "state.lso_of": _lso_below_the_start}),
        ("retention closes a transaction", "retention", "invariant 7", {CORE + "state._Fold.apply": _closed_by_retention}),
        ("rows of a deleted topic are committed", "deletion", "W19", {HERE + "transactions.next_marker": _rows_for_the_dead}),
        ("a staged commit decides whatever became of its topics", "made anew", "W46", {HERE + "transactions.end_transaction": _end_without_looks}),
        ("a deletion tells no writer", "looked before", "W46", {HERE + "topic_changes.tell_writers": program_of(None)}),
        ("a topic is deleted before the writers are told", "looked before", "W46", {HERE + "topic_changes.DELETION_RECORDS": "no feature"}),
        ("writers are told before the topic is being deleted", "looked before", "W46", {HERE + "topic_changes.tell_writers": program_of(None), HERE + "topic_changes.put_version": _told_first}),
        ("a look counts although a topic was deleted since", "looked before", "W46", {"lab.topic_looks.LooksAtKnown.hold": _any_look}),
        ("a topic that is being deleted still takes staged rows", "looked before", "W46", {HERE + "topics.newest_version": _as_if_it_stayed}),
        ("a topic that was made anew is taken for the old one", "made anew", "W46", {HERE + "topics.refresh_topic_of_rows": _newest_of_the_name}),
        ("a transaction of a deleted topic holds the LSO", "open over", "invariant 7", {CORE + "state._holds_back": lambda entry, _: entry.txn_first_offset >= 0}),
        ("a transaction goes on in a topic made anew as if it had never ended", "open over", "invariant 7", {CORE + "state._Fold.apply": _never_opened_anew}),
        ("a deleted topic still takes batches", "deletion", "W19", {HERE + "append.check_batch": _check_of_the_living}),
    )
)  # fmt: skip
