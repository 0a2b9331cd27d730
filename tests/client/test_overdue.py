"""A writer that meets a dead transaction past its time-out ends it, so that readers go on (DESIGN 4.1)."""

from __future__ import annotations

import pyarrow as pa

import txlog
from txlog.core.names import TopicPartition
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock

ROWS = pa.table({"n": [1, 2, 3]})
TP = TopicPartition("t", 0)


def test_a_writer_ends_the_timed_out_transaction_that_it_meets() -> None:
    clock = ManualClock()
    store = txlog.open("memory://", object_store=MemoryObjectStore(clock=clock), clock=clock)
    store.create_topic("t", schema=ROWS.schema)
    dead = store.producer("dead", transaction_timeout_ms=1000)
    dead.init_transactions()
    dead.begin_transaction()
    dead.send("t", ROWS).result(20)

    alive = store.producer()
    alive.send("t", ROWS).result(20)
    alive.flush()
    assert store.admin().list_offsets("t")[TP].last_stable_offset == 0, "not due yet"

    clock.advance_ms(11_000)
    alive.send("t", ROWS).result(20)
    alive.flush()
    info = store.admin().list_offsets("t")[TP]
    assert info.last_stable_offset == info.log_end_offset == 10
    assert store.admin().describe_transaction("dead").state == "COMPLETE_ABORT"
    store.runtime.close()
