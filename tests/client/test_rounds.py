"""Rounds of a producer's background thread: a failed batch is dropped once, a batch that registers meanwhile is
kept."""

from __future__ import annotations

import pyarrow as pa
import pytest

import txlog
from txlog.errors import InvalidProducerEpochError
from txlog.storage.memory import MemoryObjectStore

ROWS = pa.table({"n": [1, 2, 3]})
TIMEOUT_MS = 20_000


def test_rows_refused_by_the_partition_end_the_round_and_are_not_sent_again() -> None:
    store = txlog.open("memory://", object_store=MemoryObjectStore())
    store.create_topic("t", schema=ROWS.schema)
    old = store.producer("id", max_block_ms=TIMEOUT_MS, linger_ms=10 * TIMEOUT_MS)
    old.init_transactions()
    old.begin_transaction()
    old.send("t", ROWS).result(TIMEOUT_MS / 1000)
    new = store.producer("id")
    new.init_transactions()

    refused = [old.send("t", ROWS) for _ in range(3)]
    with pytest.raises(InvalidProducerEpochError, match="the partition has seen epoch 1"):
        old.commit_transaction()

    assert all(future.done() and future.exception() is not None for future in refused)
    store.runtime.close()


def test_offsets_and_rows_that_register_at_the_same_time_both_stay_registered() -> None:
    store = txlog.open("memory://", object_store=MemoryObjectStore())
    store.create_topic("t", schema=ROWS.schema, partitions=4)
    with store.producer("id", linger_ms=0) as producer:
        for offset in range(30):
            with producer.transaction():
                for partition in range(4):
                    producer.send("t", ROWS, partition=partition)
                producer.send_offsets_to_transaction({("t", 0): offset}, "group")
    store.close()
