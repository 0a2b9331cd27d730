"""Each verb of clean-up dies, or is told nothing, at every storage operation: nobody who reads or writes may notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.maintenance.crashes import SCHEMA, STRIKES, Strikes, Verb, prepared, strike_everywhere
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum

A = TopicPartition("orders", 0)


def history(store: Store) -> None:
    """Committed and aborted rows of two producers over several segments, inline and in files; one transaction is open."""
    store.create_topic("orders", SCHEMA, config={"segment.batches": 2, "inline.max.bytes": 2000})
    with store.producer() as plain, store.producer("x") as eager, store.producer("y", staged=True) as staged:
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
    """... and it was merged, and an aborted file and a run that nobody published lie there."""
    history(store)
    merge(store)


def vacuum_all(store: Store) -> object:
    return vacuum(store.runtime, reading.read_session(store.runtime), dry_run=False)


DAY_MS = 86_400_000
VERBS: dict[str, tuple[Callable[[Store], None], Verb, int]] = {
    "merge": (history, merge, 0),
    "vacuum": (merged_history, vacuum_all, DAY_MS + 1),
}
"""Name -> what was before, the verb, and how long writers and readers that live on had been there when it began."""


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_struck_at_every_write(name: str) -> None:
    strike(name, (("crash", "after"), ("lose_reply", "after")))


@pytest.mark.storm
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_struck_at_every_operation(name: str) -> None:
    strike(name, STRIKES)


def strike(name: str, strikes: Strikes) -> None:
    before, verb, pass_ms = VERBS[name]
    objects, now_ms = prepared(before)
    tally = strike_everywhere(objects, now_ms, verb, work_on=A, pass_ms=pass_ms, strikes=strikes)
    assert tally.strikes >= tally.operations >= 3
    print(f"{name}: {tally.operations} operations, {tally.strikes} strikes, {len(tally.states)} different stores")
