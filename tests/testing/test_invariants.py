"""Does the checker of stores find what it must find?

One planted fault for each invariant, and a sound store that passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab.invariants import check_store, find_violations
from lab.testing.damage import overwrite
from tests.crash import operations
from tests.crash.operations import A, B
from txlog.core import envelope, names
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.core.record_checks import stored_record
from txlog.core.records import CommitRecord, TopicMetadata, TransactionEntry
from txlog.core.state import PartitionState
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import load
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore

Records = list[tuple[CommitRecord, bytes]]
TABLE = TopicPartition(names.TRANSACTION_STATE_TOPIC, 0)


@pytest.fixture
def store() -> MemoryObjectStore:
    """Return an unsealed store with a committed, an aborted, a staged and an open transaction."""
    memory = MemoryObjectStore()
    operations.fill(memory, operations.prepared("append", 100))
    operations.run("staged transaction", memory, lambda event, unit: None)
    return memory


def rewrite(store: MemoryObjectStore, tp: TopicPartition, change: Callable[[Records], Records]) -> None:
    """Rewrite the partition's chain by `change`, with correct links: offsets and digests are computed again."""
    found: Records = []
    for name in store.list(tp.folder):
        if name.endswith(".batch"):
            stored = stored_record(store.get(tp.folder + name) or b"", tp, int(name[:20]))
            found.append((stored.record, stored.payload))
            store.delete(tp.folder + name)
    offset, previous = 0, PartitionState.empty(tp).last_digest
    for record, payload in change(found):
        linked = msgspec.structs.replace(record, base_offset=offset, previous=previous, segment_base=0)
        data = envelope.encode(linked, payload)
        overwrite(store, tp.folder + names.batch_name(offset), data)
        offset, previous = linked.end_offset, envelope.digest(data)


def edit(number: int, **fields: Any) -> Callable[[Records], Records]:
    def change(records: Records) -> Records:
        record, payload = records[number]
        records[number] = msgspec.structs.replace(record, **fields), payload
        return records

    return change


def edit_entry(number: int, **fields: Any) -> Callable[[Records], Records]:
    def change(records: Records) -> Records:
        record, payload = records[number]
        entry = record.entries[0]
        assert isinstance(entry, TransactionEntry)
        assert entry.value is not None
        value = msgspec.structs.replace(entry.value, **fields)
        changed = msgspec.structs.replace(record, entries=(msgspec.structs.replace(entry, value=value),))
        records[number] = changed, payload
        return records

    return change


def at_end(number: int, **fields: Any) -> Callable[[Records], Records]:
    """Append one of the records again."""

    def change(records: Records) -> Records:
        record, payload = records[number]
        again = msgspec.structs.replace(record, timestamp=records[-1][0].timestamp, **fields)
        return [*records, (again, payload)]

    return change


def without(number: int) -> Callable[[Records], Records]:
    return lambda records: records[:number] + records[number + 1 :]


def the_table(store: MemoryObjectStore) -> TopicPartition:
    """Return the partition of the table that has the id."""
    return TABLE if store.list(TABLE.folder) else TopicPartition(TABLE.topic, 1)


def found(store: MemoryObjectStore, **kwargs: Any) -> str:
    return "\n".join(find_violations(store, **kwargs)[1])


def test_a_sound_store(store: MemoryObjectStore) -> None:
    census = check_store(store)
    assert (census.rows, census.decisions, census.segments) == (8, 3, 1)
    assert census.records > 10


def test_an_empty_place_and_a_wreck() -> None:
    memory = MemoryObjectStore()
    assert check_store(memory).records == 0
    overwrite(memory, "orders/0/00000000000000000000.batch", b"")
    assert "no txlog.json" in found(memory)


def test_the_golden_store_is_sound_but_for_what_it_leaves_open() -> None:
    golden = LocalObjectStore(str(Path(__file__).parents[1] / "golden" / "v1"))
    assert find_violations(golden, settled=False)[1] == []
    assert "invariant 11" in "\n".join(find_violations(golden)[1])


# In orders/0: 0 data of the first transaction, 1 its COMMIT, 2 data of the aborted one, 3 ABORT, 4 a plain append,
# 5 the staged COMMIT. In the table: 0 EMPTY, 1 and 2 ONGOING, 3 PREPARE_COMMIT, 4 COMPLETE_COMMIT, ...
PARTITION_FAULTS: dict[str, tuple[Callable[[Records], Records], str]] = {
    "a batch twice": (at_end(4), "invariant 3: orders-0 offset 7: (producer, epoch, sequence)"),
    "a sequence left out": (edit(4, base_sequence=1), "invariant 3: orders-0 offset 4: sequence 1 after -1"),
    "time goes back": (
        edit(4, timestamp=5),
        "invariant 1: orders-0: orders/0/00000000000000000004.batch: its timestamp 5 is before",
    ),
    "a late batch of a finished transaction": (at_end(0), "invariant 8: orders-0 offset 7: a batch of epoch 0 after"),
    "a marker twice": (at_end(1), "invariant 10: orders-0 offset 7: a marker of epoch 1, and epoch"),
    "no marker": (without(1), "orders-0, transaction of loader decided at"),
    "the other marker": (
        edit(1, kind="abort", first_offset=0, last_stable_offset=2),
        "invariant 10: orders-0 offset 1: a abort marker; decided was commit",
    ),
    "an ABORT that lies": (
        edit(3, first_offset=1),
        "orders/0/00000000000000000003.batch: the ABORT of producer 1 says first offset 1",
    ),
}


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_faults_in_a_partition(store: MemoryObjectStore, fault: str) -> None:
    change, expected = PARTITION_FAULTS[fault]
    rewrite(store, A, change)
    assert expected in found(store)


def test_a_file_that_is_gone_or_changed(store: MemoryObjectStore) -> None:
    (name,) = store.list("orders/1/rows/")
    path = f"orders/1/rows/{name}"
    data = store.get(path) or b""
    overwrite(store, path, data[:-1] + b"?")
    assert f"{path} is not what its record says" in found(store)
    store.delete(path)
    assert f"{path} is gone" in found(store)


def test_a_file_that_belongs_to_another_producer(store: MemoryObjectStore) -> None:
    rewrite(store, B, edit(2, producer_id=77))
    assert "does not carry producer 77" in found(store)


def test_a_hole(store: MemoryObjectStore) -> None:
    store.delete(A.folder + names.batch_name(2))
    assert "invariant 1: orders-0" in found(store)


TABLE_FAULTS: dict[str, tuple[Callable[[Records], Records], str]] = {
    "another outcome": (
        edit_entry(-1, state="COMPLETE_ABORT", last_outcome="abort"),
        "COMPLETE_ABORT after PREPARE_COMMIT",
    ),
    "a decision passed over": (edit_entry(-1, state="EMPTY", last_epoch=-1), "EMPTY after PREPARE_COMMIT"),
    "a decision taken back": (
        edit_entry(-1, state="PREPARE_ABORT", last_outcome="abort"),
        "PREPARE_ABORT of epoch 4 after epoch 4",
    ),
    "another epoch after a decision": (
        edit_entry(-1, state="ONGOING", producer_epoch=9, last_epoch=-1),
        "ONGOING of epoch 9 after epoch 4",
    ),
    "an epoch that stays": (edit_entry(3, producer_epoch=0, last_epoch=-1), "PREPARE_COMMIT of epoch 0 after epoch 0"),
    "a partition that was never registered": (
        lambda records: edit_entry(2, partitions=(B,))(edit_entry(1, partitions=(B,))(records)),
        "invariant 9: orders-0 offset 0: producer",
    ),
    "a new id with an old epoch": (edit_entry(0, producer_epoch=4), "a new id begins as EMPTY"),
    "never finished": (lambda records: records[:-1], "invariant 11: "),
    "a decision forgotten": (lambda records: records[:1], "a marker of a transaction that was never decided"),
}


@pytest.mark.parametrize("fault", TABLE_FAULTS)
def test_faults_in_the_table(store: MemoryObjectStore, fault: str) -> None:
    change, expected = TABLE_FAULTS[fault]
    rewrite(store, the_table(store), change)
    assert expected in found(store)


def test_an_open_transaction(store: MemoryObjectStore) -> None:
    with operations.open_store(store) as process:
        producer = process.producer("other")
        producer.init_transactions()
        producer.begin_transaction()
        operations.send(producer, A, 50)
        producer.send_offsets_to_transaction({A: 7}, "g")
        producer.flush()
        assert find_violations(store, settled=False)[1] == []
        said = found(store)
        assert "invariant 7: orders-0: transactions of ['other'] are open" in said
        assert "invariant 7: orders-0: LSO" in said
        assert "invariant 12: __consumer_offsets-" in said
        assert "its transaction is still ONGOING" in said


def test_a_state_that_forgets_who_is_open(store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stable offset is computed from those whom the fold keeps as open."""
    with operations.open_store(store) as process:
        producer = process.producer("other")
        producer.init_transactions()
        producer.begin_transaction()
        operations.send(producer, A, 50)
        producer.flush()

        def forgetful(ctx: Context, tp: TopicPartition) -> Program[PartitionView]:
            view = yield from load(ctx, tp)
            return replace(view, state=replace(view.state, opened={}))

        monkeypatch.setattr("lab.invariants.load", forgetful)
        assert "have open transactions, and the state says []" in "\n".join(find_violations(store, settled=False)[1])


def test_a_dropped_column_that_is_back(store: MemoryObjectStore) -> None:
    path = names.topic_metadata_path("orders", 0)
    first, _ = envelope.decode(store.get(path) or b"", TopicMetadata, path)
    *kept, dropped = first.schema
    renamed = msgspec.structs.replace(dropped, name="other")
    for number, schema in enumerate(((*kept, renamed), kept, (*kept, renamed)), 1):
        version = msgspec.structs.replace(first, number=number, schema=tuple(schema))
        overwrite(store, names.topic_metadata_path("orders", number), envelope.encode(version))
        back = f"orders: version {number} has field id {dropped.id}, whose column was dropped"
        assert (back in found(store)) is (number == 3)


def test_what_is_sealed_says_what_the_chain_says() -> None:
    memory = MemoryObjectStore()
    operations.fill(memory, operations.prepared("append", 2))
    operations.run("append", memory, lambda event, unit: None)
    assert check_store(memory).segments > 2
    listed = memory.list(A.folder)
    sound = dict(operations.objects_of(memory))
    for ending, expected in {
        ".snapshot": "sealed without a snapshot",
        ".txnindex": "missing, with 1 aborted transactions",
    }.items():
        name = next(name for name in listed if name.endswith(ending))
        memory.delete(A.folder + name)
        assert expected in found(memory)
        operations.fill(memory, sound)
    first, second = [name for name in listed if name.endswith(".snapshot")][:2]
    overwrite(memory, A.folder + first, sound[A.folder + second])
    assert f"{A.folder}{first}: it is not the fold of the chain" in found(memory)
