"""Does the compaction of the explorer and the random worlds keep exactly the rows that the shipped one keeps?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from lab.compacting import KeyedRow, choose, reach
from tests.client.world import World
from tests.maintenance.test_compact import CONFIG, SCHEMA, TP, fill
from txlog.client import reading, rows
from txlog.client.store import Store
from txlog.core.fetch_plan import Piece
from txlog.maintenance.compact import compaction_policy, copy_survivors, plan_partition, publish_compaction


@pytest.fixture
def store() -> Iterator[Store]:
    world = World()
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config=CONFIG)
    yield opened
    world.close()


def keyed(store: Store, pieces: Sequence[Piece]) -> tuple[KeyedRow, ...]:
    topic = store.runtime.topic("orders")
    batches = rows.read_pieces(store.runtime.store, pieces, topic.schema, None, digests=True)
    return tuple(
        KeyedRow(row["_offset"], str(row["id"]), row["name"] is None and row["city"] is None)
        for batch in batches
        for row in batch.to_pylist()
    )


@pytest.mark.parametrize("max_keys", [3, 1_000])
def test_both_choose_the_same_rows(store: Store, max_keys: int) -> None:
    passes = gone = 0
    for seed in (1, 2):
        fill(store, seed, transactions=12, sizes=(1, 2, 5))
        policy = compaction_policy(
            store.runtime, store.runtime.topic("orders"), min_cleanable_dirty_ratio=0.0, max_keys=max_keys
        )
        assert policy is not None
        session = reading.read_session(store.runtime)
        for _ in range(3):
            plan = plan_partition(session, TP, policy)
            if plan is None:
                break
            copied = copy_survivors(store.runtime, plan)
            dirty = keyed(store, plan.dirty_pieces)
            names = reach(plan, dirty)
            assert len(names) == copied.inputs
            everything = keyed(store, plan.merge(names).pieces)
            stays, kept = choose(plan, dirty, everything)
            assert sum(stays) == (0 if copied.file is None else copied.file.rows)
            assert np.array_equal(kept.rows, copied.kept.rows)
            assert kept.compaction == copied.kept.compaction
            assert publish_compaction(session, plan, copied).took_effect
            gone += len(stays) - sum(stays)
            passes += 1
    assert passes > 1
    assert gone > 0
