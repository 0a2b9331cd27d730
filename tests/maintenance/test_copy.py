"""How is a store copied during writes? All objects that are not younger than a moment are a whole store."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import txlog
from tests.client.world import ORDERS, orders, tp
from txlog.maintenance.fsck import check_store
from txlog.storage.local import LocalObjectStore

FAST = {"fsync": False}


def test_what_is_not_younger_than_a_moment_is_a_whole_store(tmp_path: Path) -> None:
    store = txlog.open(tmp_path / "log", storage_options=FAST, config={"linger.ms": 0})
    store.create_topic("orders", ORDERS, partitions=3, config={"segment.batches": 8})
    moments: list[int] = []
    ended = threading.Event()

    def write() -> None:
        number = 0
        with store.producer("loader") as producer:
            while not ended.is_set():
                with producer.transaction():
                    for partition in range(3):
                        producer.send("orders", orders(number), partition=partition)
                    producer.send_offsets_to_transaction({tp("orders", 0): 0}, "group")
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            time.sleep(0.2)
            moments.append(time.time_ns())
            time.sleep(0.02)
    finally:
        ended.set()
        writer.join()
    for moment in moments:
        copy = tmp_path / str(moment)
        _copy(tmp_path / "log", copy, moment)
        assert check_store(LocalObjectStore(str(copy), fsync=False)).is_clean
        with txlog.open(copy, storage_options=FAST) as again, again.producer("loader") as producer:
            # Decided transactions are finished, open ones are aborted, and each partition has the same rows.
            with producer.transaction():
                producer.send("orders", orders(-1), partition=0)
            ids: dict[int, list[int]] = {0: [], 1: [], 2: []}
            with again.consumer("orders", auto_offset_reset="earliest") as consumer:
                for batch in consumer.iterate(0):
                    for row in batch.to_pylist():
                        ids[row["_partition"]].append(row["id"])
        assert ids[0][:-1] == ids[1] == ids[2] == list(range(len(ids[1])))
        assert check_store(LocalObjectStore(str(copy), fsync=False)).is_clean
    store.close()


def _copy(source: Path, target: Path, moment: int) -> None:
    for path in source.rglob("*"):
        if path.is_file() and path.stat().st_mtime_ns <= moment:
            own = target / path.relative_to(source)
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, own)
