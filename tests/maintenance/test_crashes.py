"""Each maintenance verb dies or gets no answer at every storage operation: no reader and no writer notices it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from tests.maintenance.crashes import SCHEMA, STRIKES, Judge, Rows, Strikes, Verb, prepared, strike_everywhere
from tests.maintenance.retain import retain
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum

A = TopicPartition("orders", 0)


def history(store: Store, config: Mapping[str, object] | None = None) -> None:
    """Commit and abort rows of two producers over several segments, inline and in files; leave one transaction open."""
    store.create_topic("orders", SCHEMA, config={"segment.batches": 2, "inline.max.bytes": 2000, **(config or {})})
    with (
        store.producer() as plain,
        store.producer("x", staged=False) as eager,
        store.producer("y", staged=True) as staged,
    ):
        for number in range(3):
            plain.send("orders", [{"id": number, "name": "plain"}]).result()
            eager.begin_transaction()
            eager.send("orders", [{"id": 100 + number, "name": "e" * (3000 if number == 1 else 3)}]).result()
            if number == 1:
                eager.abort_transaction()
            else:
                eager.commit_transaction()
            with staged.transaction():
                staged.send("orders", [{"id": 200 + number, "name": "staged"}])


def merge(store: Store) -> object:
    return merge_partition(store.runtime, reading.read_session(store.runtime), A, MergePolicy(target_bytes=2**30))


def merged_history(store: Store) -> None:
    """Merge that history, and leave an aborted file and a run that was not published."""
    history(store)
    merge(store)


def vacuum_all(store: Store) -> object:
    return vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)


def compact(store: Store) -> object:
    policy = compaction_policy(store.runtime, store.runtime.topic("orders"))
    assert policy is not None
    return compact_partition(store.runtime, reading.read_session(store.runtime), A, policy)


def retain_a(store: Store) -> object:
    return retain(store, A)


def is_unchanged_by_key(before: Rows, now: Rows) -> None:
    """Check that the latest row of each key is the same, and that no row is new."""
    for tp, rows in now.items():
        assert set(rows) <= set(before[tp])
        assert {row[1]: row for row in rows} == {row[1]: row for row in before[tp]}


def is_unchanged_from_its_start(before: Rows, now: Rows) -> None:
    """Check that rows were removed only from the beginning."""
    for tp, rows in now.items():
        assert rows == before[tp][len(before[tp]) - len(rows) :]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verb, the store before it, and the changes that it may make."""

    verb: Verb
    before: Callable[[Store], None] = history
    judge: Judge | None = None
    pass_ms: int = 0
    """The age of the surviving writers and readers when the verb began."""


DAY_MS = 86_400_000
VERBS: dict[str, Case] = {
    "merge": Case(verb=merge),
    "vacuum": Case(verb=vacuum_all, before=merged_history, pass_ms=DAY_MS + 1),
    "compact": Case(
        verb=compact,
        before=lambda store: history(store, {"cleanup.policy": "compact", "key.columns": "name"}),
        judge=is_unchanged_by_key,
    ),
    "retention": Case(
        verb=retain_a,
        before=lambda store: history(store, {"retention.ms": DAY_MS}),
        judge=is_unchanged_from_its_start,
        pass_ms=DAY_MS + 1,
    ),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_struck_at_every_write(name: str) -> None:
    strike(name, (("crash", "after"), ("lose_reply", "after")))


@pytest.mark.storm
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_struck_at_every_operation(name: str) -> None:
    strike(name, STRIKES)


def strike(name: str, strikes: Strikes) -> None:
    case = VERBS[name]
    objects, now_ms = prepared(case.before)
    tally = strike_everywhere(
        objects, now_ms, case.verb, work_on=A, judge=case.judge, pass_ms=case.pass_ms, strikes=strikes
    )
    assert tally.strikes >= tally.operations >= 1
    print(f"{name}: {tally.operations} operations, {tally.strikes} strikes, {len(tally.states)} different stores")
