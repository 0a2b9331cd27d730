"""Many producers of one partition, in one process: their records wait, leaders take them, and all of it is found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txlog
from lab.invariants import check_store as check_invariants
from tests.client.world import ORDERS
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.features import COMBINED_RECORDS, STORE_FEATURES
from txlog.core.names import WAITING_FOLDER, TopicPartition, waiting_path
from txlog.core.record_checks import stored_records
from txlog.maintenance.fsck import check_store
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import slot, stores

WRITERS, EACH = 6, 12
A = TopicPartition("orders", 0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Return a store on disk with the feature, whose writers wait for a leader at once."""
    features = (COMBINED_RECORDS, *STORE_FEATURES)
    monkeypatch.setattr(stores, "create_store", partial(stores.create_store, features=features))
    monkeypatch.setattr(slot, "MAX_LOST_SLOTS", 0)
    opened = txlog.open(str(tmp_path / "store"))
    opened.create_topic("orders", ORDERS, config={"segment.batches": "20"})
    yield opened
    opened.runtime.close()


def write(store: Store, writer: int, errors: list[BaseException], transactional: bool) -> None:
    try:
        with store.producer(f"writer-{writer}" if transactional else None) as producer:
            for number in range(EACH):
                row = [{"id": writer * 1000 + number, "name": "x"}]
                if not transactional:
                    producer.send("orders", row, partition=0).result()
                    continue
                with producer.transaction():
                    producer.send("orders", row, partition=0)
    except BaseException as error:
        errors.append(error)


@pytest.mark.parametrize("transactional", [True, False])
def test_all_rows_of_many_writers_are_there_once_and_in_order(store: Store, transactional: bool) -> None:
    errors: list[BaseException] = []
    threads = [threading.Thread(target=write, args=(store, number, errors, transactional)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    ids = [row["id"] for batch in consumer.iterate(0) for row in batch.to_pylist()]
    assert sorted(ids) == [writer * 1000 + number for writer in range(WRITERS) for number in range(EACH)]
    for writer in range(WRITERS):
        own = [each for each in ids if each // 1000 == writer]
        assert own == sorted(own)
    objects = store.runtime.store
    slots = sorted(name for name in objects.list(A.folder) if name.endswith(".batch"))
    held = [len(stored_records(objects.get(A.folder + name) or b"", A, int(name[:20]))) for name in slots]
    assert max(held) > 1  # somebody has led
    assert [each for each in check_store(objects).findings if each.kind != "note"] == []
    check_invariants(objects, settled=False)


def test_a_vacuum_deletes_what_waits_for_a_sealed_slot(store: Store) -> None:
    def waiting() -> list[str]:
        return list(store.runtime.store.list(A.folder + WAITING_FOLDER))

    errors: list[Any] = []
    for number in range(2):
        write(store, number, errors, False)
    assert errors == []
    objects = store.runtime.store
    first = stored_records(objects.get(A.folder + f"{0:020d}.batch") or b"", A, 0)[0]
    objects.put_if_absent(waiting_path(A, 0, first.record.write_id), first.data)
    objects.put_if_absent(waiting_path(A, 10**6, "f" * 32), first.data)
    assert {name[:20] for name in waiting()} >= {f"{0:020d}", f"{10**6:020d}"}
    report = vacuum(store.runtime, reading.read_session(store.runtime), ["orders"], dry_run=False)
    assert report.failed == ()
    assert [name[:20] for name in waiting()][:1] != [f"{0:020d}"]
    assert f"{10**6:020d}-{'f' * 32}.batch" in waiting()
    assert [each for each in check_store(objects).findings if each.kind != "note"] == []
