"""A maintained partition opens in the same few requests, however many batches it has
(PROTOCOL.md, "Request budget")."""

from __future__ import annotations

import pytest

from tests.client.world import ORDERS, World
from txlog.client import reading
from txlog.core.append_rules import BatchDraft, RollPolicy
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID
from txlog.maintenance.maintain import Maintainer
from txlog.protocol.append import append_batch
from txlog.protocol.context import Views
from txlog.storage.conform import conform
from txlog.storage.driver import Driver
from txlog.storage.inline_rows import encode_ipc
from txlog.testing.clock import SeededIds

TP = TopicPartition("orders", 0)
GRACE_MS = 3_600_000
A_ROUND = 250
"""Batches between two rounds of maintenance."""


@pytest.mark.parametrize(
    ("batches", "a_segment"),
    [(1_000, 20), pytest.param(100_000, 100, marks=[pytest.mark.storm, pytest.mark.timeout(3600)])],
)
def test_opening_cold_costs_one_list_and_the_tail(
    world: World, batches: int, a_segment: int, capsys: pytest.CaptureFixture[str]
) -> None:
    store = world.open(delete_grace_ms=GRACE_MS)
    store.create_topic("orders", ORDERS)
    maintainer = Maintainer(world.open().runtime)
    driver = Driver(world.memory, world.clock, SeededIds(9), threads=0)
    payload = encode_ipc(conform([{"id": 1, "name": "n"}], store.runtime.topic("orders").schema, topic="orders"))
    ctx = store.runtime.context()

    def append(first: int, views: Views) -> Program[Views]:
        for sequence in range(first, first + A_ROUND):
            draft = BatchDraft(
                producer_id=FIRST_DRAWN_PRODUCER_ID,
                producer_epoch=0,
                base_sequence=sequence,
                records=1,
                payload=payload,
                roll=RollPolicy(batches=a_segment),
            )
            views, _ = yield from append_batch(ctx, views, TP, draft)
        return views

    for first in range(0, batches, A_ROUND):
        driver.run(append(first, {}))
        world.clock.advance_ms(GRACE_MS + 1000)
        report = maintainer.run()
        assert not report.failures
    opened = world.open().runtime
    session = reading.read_session(opened)
    with world.counting.counting() as cost:
        view = session.fresh_views([TP], "opening")[TP]
    assert view.state.next_offset == batches
    # The snapshot, the list of cleaned runs, and the tail, which is never longer than a segment.
    assert cost.list == 1
    assert cost.get == len(view.tail) + 2
    assert len(view.tail) <= a_segment
    names = len(world.memory.list(TP.folder))
    assert names < 1000
    with world.counting.counting() as plan:
        reading.plan(opened, "orders", 0, 0, None)
    segments = len(view.walk)
    with capsys.disabled():
        print(
            f"\n{batches:,} batches: cold in {cost.requests()}; a read planned in {plan.requests()}; {segments} "
            f"segments and runs, {names} names"
        )
    assert segments <= 30
