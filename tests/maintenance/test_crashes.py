"""Each verb of clean-up dies, or is told nothing, at every storage operation: nobody who reads or writes may notice."""

from __future__ import annotations

import pytest

from tests.maintenance.crashes import SCHEMA, prepared, strike_everywhere
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import merge_partition

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


VERBS = {"merge": merge}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_is_struck_at_every_operation(name: str) -> None:
    objects, now_ms = prepared(history)
    tally = strike_everywhere(objects, now_ms, VERBS[name], work_on=A)
    assert tally.strikes > tally.operations > 5
    print(f"{name}: {tally.operations} operations, {tally.strikes} strikes, {len(tally.states)} different stores")
