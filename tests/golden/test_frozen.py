"""Format version 1 is frozen: the golden stores hold all of it, and every later version reads them and writes into
copies.

Other tests look at single answers of `v1` and `v2`. Here all answers of each store are compared with a file beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pytest

import txlog
from lab.testing.damage import overwrite
from tests.golden.answers import HERE, answers, groups, opened, rows, text_of, transactions
from tests.golden.coverage import STORES, look, missing
from tests.golden.make_evolved import paths
from tests.golden.make_frozen import FEATURES, FORMAT_FOLDER, LARGE, make
from tests.second_reader.compare import differences
from txlog.client import reading
from txlog.client.store import Store
from txlog.core import envelope, features, records
from txlog.core.names import TopicPartition
from txlog.errors import CorruptLogError, UnsupportedStoreError
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.fsck import check_store
from txlog.maintenance.history import read_history
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.vacuum import vacuum
from txlog.storage.memory import MemoryObjectStore

EXCEPTIONS = {
    "field CommitRecord.more": "no writer writes it yet; test_combined.py makes such stores of the golden ones",
    "field TransactionMetadata.attached": "as the field before",
    "field AbortedTxn.version": "its only value is also the one that a reader assumes",
    "value CommitRecord.more = true": "as the field",
    "trait feature combined-records": "as the field",
}
"""What PROTOCOL.md defines and no golden store can hold, with the reason."""
MAX_STORE_BYTES = 1_500_000
NAMES = [path.name for path in STORES]
LATER_MS = 1_764_000_000_000 + 400 * 24 * 3_600_000
"""Long after the end of each story: every age that allows a deletion is over."""


def test_together_the_golden_stores_hold_every_part_of_the_format() -> None:
    assert missing(look(STORES)) == list(EXCEPTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_what_it_was_when_the_store_was_written(name: str) -> None:
    _, store = opened(HERE / name)
    try:
        assert json.loads(text_of(answers(store))) == json.loads((HERE / f"{name}.json").read_text())
    finally:
        store.runtime.close()


def test_the_features_of_the_frozen_format_are_all_known() -> None:
    assert set(FEATURES) <= features.KNOWN_FEATURES
    assert features.FORMAT_VERSION == 1


def test_the_store_stays_small() -> None:
    assert sum(path.stat().st_size for path in FORMAT_FOLDER.rglob("*")) < MAX_STORE_BYTES


def test_the_script_still_tells_the_same_story(tmp_path: Path) -> None:
    """Ids are drawn by several threads, so names differ. What the store holds of the format does not."""
    make(tmp_path / "again")
    again = look([tmp_path / "again"])
    written = look([FORMAT_FOLDER])
    assert (written.fields - again.fields, written.traits - again.traits) == (set(), set())
    assert differences(tmp_path / "again") == []


# -- a later version writes into a copy -------------------------------------------------------------------------------


def committed(store: Store) -> dict[TopicPartition, list[dict[str, Any]]]:
    return {
        tp: rows(store, tp, "read_committed")
        for each in store.topics()
        for tp in (TopicPartition(each.name, number) for number in range(each.partitions))
    }


def new_row(store: Store, topic: str, number: int) -> dict[str, Any]:
    """Return a row of a topic that has a value only where it must."""
    return {field.name: number for field in store.runtime.topic(topic, 0).schema if not field.nullable}


@pytest.mark.parametrize("name", NAMES)
def test_writers_and_maintenance_go_on_in_a_copy_and_change_no_old_row(name: str, tmp_path: Path) -> None:
    memory, store = opened(HERE / name, LATER_MS)
    old_groups = groups(store)
    store.admin().expire()  # finishes what the writers left, first
    before = committed(store)
    topics = [each.name for each in store.topics() if not store.runtime.topic(each.name, 0).deleting]
    compacted = {name for name in topics if "compact" in store.topic(name).config.get("cleanup.policy", "")}
    keyed = [name for name in topics if new_row(store, name, 0) or not store.topic(name).config.get("key.columns")]
    for staged in (None, True, False):
        with store.producer(f"later-{staged}", staged=staged) as producer:
            with producer.transaction():
                for topic in keyed:
                    producer.send(topic, [new_row(store, topic, 10_000)])
            producer.begin_transaction()
            producer.send(keyed[0], [new_row(store, keyed[0], 10_001)])
            producer.abort_transaction()
    with store.producer() as producer:
        for topic in keyed:
            for number in range(3):
                producer.send(topic, [new_row(store, topic, 20_000 + number)]).result()
    after_writing = committed(store)
    for tp, old in before.items():
        assert after_writing[tp][: len(old)] == old, tp
        assert len(after_writing[tp]) >= len(old)
    runtime = store.runtime
    session = reading.read_session(runtime)
    for tp in before:
        merge_partition(runtime, session, tp, LARGE)
    assert committed(store) == after_writing
    for topic in compacted:
        policy = compaction_policy(runtime, runtime.topic(topic, 0), min_cleanable_dirty_ratio=0)
        assert policy is not None
        compact_partition(runtime, session, TopicPartition(topic, 0), policy)
    for topic in topics:
        if "publish.formats" in store.topic(topic).config:
            ((_, outcome),) = publish_topics(reading.read_session(runtime), [runtime.topic(topic, 0)])
            assert not isinstance(outcome, Exception), outcome
    deleted = 0
    for _ in range(3):
        report = vacuum(runtime, reading.read_session(runtime), None, dry_run=False)
        assert report.failed == ()
        deleted += len(report.deleted)
        runtime.clock.advance_ms(100 * 3_600_000)  # type: ignore[attr-defined]
    assert deleted
    kept = committed(store)
    for tp, old in after_writing.items():
        if tp.topic in compacted:
            known = {row["_offset"]: row for row in old}
            assert all(known[row["_offset"]] == row for row in kept[tp]), tp
        else:
            assert kept[tp] == old, tp
    # A group that no longer has pending offsets shows the same ones as before, or those of the transaction that ended.
    assert set(groups(store)) >= {group for group, found in old_groups.items() if not found["pending"]}
    assert [found for found in check_store(memory).findings if found.kind != "note"] == []
    runtime.close()
    for path in paths(memory):
        data = memory.get(path)
        assert data is not None
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    assert differences(tmp_path) == []
    if name == "v1":  # nothing of a feature that the store does not name
        held = look([tmp_path])
        assert not {trait for trait in held.traits if "zstd" in trait or "staged inline" in trait}
        of_features = {"sorted_by", "members", "beats", "last_field_id", "default", "inline"}
        assert not {field for _, field in held.fields} & of_features
        assert "name: publication" not in held.traits


# -- what a later version may add (PROTOCOL.md, "What may change without a new version") ------------------------------


def changed(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a stored object whose fields were changed, with a right CRC."""
    line, _, payload = data.partition(b"\n")
    value = json.loads(line)
    value.pop("crc32c")
    change(value)
    head = json.dumps(value, separators=(",", ":")).encode()[:-1] + b',"crc32c":"'
    zeroed = head + b'00000000"}\n' + payload
    return head + f"{google_crc32c.value(zeroed):08x}".encode() + b'"}\n' + payload


def add_unknown(value: Any) -> None:
    """Add an unknown field to an object and to each object in it."""
    for item in list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []:
        add_unknown(item)
    if isinstance(value, dict) and "version" in value:
        value["not known yet"] = {"a": [1, None, 1.5, "ä"]}


def frozen() -> tuple[MemoryObjectStore, Store]:
    return opened(FORMAT_FOLDER)


@pytest.mark.parametrize("ending", [".boundary", ".clean", ".index", ".txnindex", ".snapshot", ".json"])
def test_unknown_fields_are_ignored(ending: str) -> None:
    """R4. A commit record is left as it is, because the next one and the snapshot have its digest."""
    memory, store = frozen()
    expected = text_of(answers(store))
    store.runtime.close()
    for path in list(paths(memory)):
        is_other = "/_delta_log/" in path or "/metadata/" in path or "/publication/" in path
        if path.endswith(ending) and not is_other:
            data = memory.get(path)
            assert data is not None
            overwrite(memory, path, changed(data, add_unknown))
    again = txlog.open("memory://", clock=store.runtime.clock, object_store=memory)
    assert text_of(answers(again)) == expected
    again.runtime.close()


KINDS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "txlog.json": (records.StoreDescriptor, "txlog.json"),
    "topic": (records.TopicMetadata, "types/topic.00000000000000000002.json"),
    "batch": (records.CommitRecord, "types/0/00000000000000000000.batch"),
    "index": (records.SegmentIndex, "types/0/*-0.index"),
    "snapshot": (records.Snapshot, "types/0/*.snapshot"),
    "publication": (records.Publication, "orders/publication/00000000000000000000.json"),
    "history": (records.CleanupRun, "__maintenance/*.json"),
}


def first(kind: str) -> str:
    return sorted(path.relative_to(FORMAT_FOLDER).as_posix() for path in FORMAT_FOLDER.glob(KINDS[kind][1]))[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_of_a_later_version_is_refused_whatever_else_it_holds(kind: str) -> None:
    """R1: also if another field has a value that this version would call damage."""
    data = (FORMAT_FOLDER / first(kind)).read_bytes()
    later = changed(data, lambda value: value.update(version=2, write_id=7, steps=7, partition=7))
    with pytest.raises(UnsupportedStoreError, match="format version 2"):
        envelope.decode(later, KINDS[kind][0], "x")


def test_an_unknown_feature_is_refused_before_anything_else() -> None:
    """R1, W3."""
    memory, store = frozen()
    store.runtime.close()

    def change(value: dict[str, Any]) -> None:
        value["features"] = [*value["features"], "not-known-yet"]
        value["constants"]["hash"] = "another"

    overwrite(memory, "txlog.json", changed((FORMAT_FOLDER / "txlog.json").read_bytes(), change))
    with pytest.raises(UnsupportedStoreError, match="needs not-known-yet"):
        txlog.open("memory://", clock=store.runtime.clock, object_store=memory)


def set_field(*at: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of one field: the way to it, and its value."""

    def change(value: dict[str, Any]) -> None:
        found: Any = value
        for step in at[:-2]:
            found = found[step]
        found[at[-2]] = at[-1]

    return change


UNKNOWN_VALUES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "kind of a record": ("types/0/*.batch", set_field("kind", "merge")),
    "kind in an index": ("types/0/00000000000000000000-*-0.index", set_field("entries", 0, "kind", "merge")),
    "type of an entry": ("__transaction_state/0/*.batch", set_field("entries", 0, "type", "lease")),
    "state of a transaction": (
        "__transaction_state/0/*.batch",
        set_field("entries", 0, "value", "state", "PREPARE_XA"),
    ),
    "type of a column": ("types/topic.00000000000000000002.json", set_field("schema", 0, "type", "int128")),
    "hash of ids": ("txlog.json", set_field("constants", "hash", "xxh3")),
    "operation of a publication": (
        "orders/publication/00000000000000000000.json",
        set_field("operation", "overwrite"),
    ),
    "format of a publication": (
        "orders/publication/00000000000000000000.json",
        set_field("formats", {"delta": 0, "hudi": 0}),
    ),
}


@pytest.mark.parametrize("what", UNKNOWN_VALUES)
def test_an_unknown_value_of_an_enumeration_is_damage_and_never_skipped(what: str) -> None:
    """R22."""
    pattern, change = UNKNOWN_VALUES[what]
    memory, store = frozen()
    store.runtime.close()
    path = max(FORMAT_FOLDER.glob(pattern))  # the last one, because a sealed record is not read
    name = path.relative_to(FORMAT_FOLDER).as_posix()
    data = changed(path.read_bytes(), change)
    overwrite(memory, name, data)

    def look_again() -> None:
        again = txlog.open("memory://", clock=store.runtime.clock, object_store=memory)
        try:
            answers(again)
        finally:
            again.runtime.close()

    with pytest.raises(CorruptLogError, match=re.escape(name)):
        look_again()


def test_names_that_are_not_known_yet_are_left_alone() -> None:
    """W59: vacuum, merges and deletions keep them, however old they are; readers skip them (R3)."""
    memory, store = opened(FORMAT_FOLDER, LATER_MS)
    expected = text_of(answers(store))
    unknown = [
        "__leases/00000000000000000000.json",
        "orders/leases/0.json",
        "orders/0/00000000000000000000.lease",
        "orders/0/00000000000000000000-00000000000000000004-0.bloom",
        "orders/0/rows/notes.txt",
        "orders/publication/00000000000000000000.lease",
        "__transaction_state/0/00000000000000000000.lease",
        "__consumer_offsets/leases.json",
        "types/staged/notes/part.parquet",
    ]
    for path in unknown:
        overwrite(memory, path, b"of a later version")
    assert text_of(answers(store)) == expected
    for number in range(2):
        merge_partition(store.runtime, reading.read_session(store.runtime), TopicPartition("orders", number), LARGE)
    store.delete_topic("tally")
    for _ in range(2):
        assert vacuum(store.runtime, reading.read_session(store.runtime), None, dry_run=False).failed == ()
        store.runtime.clock.advance_ms(100 * 3_600_000)  # type: ignore[attr-defined]
    assert [path for path in unknown if memory.get(path) is None] == []
    store.runtime.close()


def test_a_new_version_of_a_topic_keeps_unknown_settings() -> None:
    """R4."""
    memory, store = frozen()
    path = "types/topic.00000000000000000002.json"
    overwrite(
        memory, path, changed((FORMAT_FOLDER / path).read_bytes(), set_field("config", "not.known.yet", "some value"))
    )
    again = txlog.open("memory://", clock=store.runtime.clock, object_store=memory)
    assert again.topic("types").config["not.known.yet"] == "some value"
    again.alter_topic("types", add_columns=pa.schema({"later": pa.string()}))
    assert again.topic("types").config["not.known.yet"] == "some value"
    for each in (store, again):
        each.runtime.close()


def test_a_job_and_an_outcome_of_the_history_that_are_not_known_are_shown() -> None:
    """R22: they are texts for people, and nothing depends on them."""
    memory, store = frozen()
    path = first("history")
    overwrite(memory, path, changed((FORMAT_FOLDER / path).read_bytes(), set_field("steps", 0, "job", "rebalance")))
    assert "rebalance" in {each.step.job for each in read_history(store.runtime)}
    store.runtime.close()


def test_the_store_holds_an_id_in_each_state() -> None:
    _, store = frozen()
    states = {each["state"] for each in transactions(store)}
    store.runtime.close()
    assert states == {"EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"}
