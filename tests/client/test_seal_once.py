"""If many writers notice a finished segment, one of them writes its rows."""

from __future__ import annotations

import pyarrow as pa

import txlog
from txlog.storage.memory import MemoryObjectStore

ROWS = pa.table({"n": [1, 2, 3]})


def test_a_segment_that_is_sealed_gets_no_second_file_of_rows() -> None:
    objects = MemoryObjectStore()
    store = txlog.open("memory://", object_store=objects)
    store.create_topic("t", schema=ROWS.schema, config={"segment.batches": "2"})
    producers = [store.producer(f"id-{number}") for number in range(4)]
    for producer in producers:
        producer.init_transactions()
    for _ in range(10):
        for producer in producers:
            with producer.transaction():
                producer.send("t", ROWS)
    store.close()

    listed = objects.list("t/0/")
    indexes = [name for name in listed if name.endswith(".index")]
    files = [name for name in listed if name.endswith(".parquet")]
    assert len(indexes) >= 15
    assert len(files) == len(indexes)
