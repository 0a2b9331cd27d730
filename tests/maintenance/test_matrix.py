"""A damaged store: an error names the object, wrong rows and other exceptions never appear, and fsck finds the
damage."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders
from tests.fuzz.hostile import changed, closed, opened
from tests.maintenance import damage as d, fields, matrix
from txlog.core import envelope, record_checks, records
from txlog.core.names import TopicPartition
from txlog.errors import CorruptRecordError, InvalidConfigurationError, TxlogError, UnsupportedStoreError

SMALL_BYTES = 700


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.storm)])
@pytest.mark.parametrize("store", ["golden", "twins"])
def test_damage_is_an_error_and_fsck_finds_it(
    store: str, step: int, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Try every third damage; `make test-storm` tries all of them."""
    figures = matrix.Figures()
    matrix.try_all(store, itertools.islice(matrix.some_damages(store), 0, None, step), figures)
    record_property("damages", sum(figures.tried.values()))
    with capsys.disabled():
        print(f"\n{store}:", *figures.lines()[1:], sep="\n")
    assert not figures.faults
    assert sum(figures.tried.values()) > 100 / step


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(lambda: fields.some_cells(3), id="some"),
        pytest.param(fields.every_cell, marks=[pytest.mark.storm, pytest.mark.timeout(7200)], id="all"),
    ],
)
def test_every_field_is_checked_under_a_right_checksum(found: Any, record_property: Any) -> None:
    counts, faults, _ = fields.try_all(found())
    record_property("cells", sum(counts.values()))
    assert not faults, faults
    assert sum(counts.values()) > 40
    assert {cell.partition(":")[0] for cell in counts} == set(fields.HOWS)


SNAPSHOT = "orders/1/00000000000000000005.snapshot"
INDEX = "orders/1/00000000000000000000-00000000000000000005-0.index"
RECORD = "orders/1/00000000000000000007.batch"
AUDIT = "audit/topic.00000000000000000000.json"
CLEAN = "orders/0/00000000000000000000.clean"
VERSION = "orders/topic.00000000000000000001.json"


@pytest.mark.parametrize(
    ("path", "where", "new"),
    [
        pytest.param(SNAPSHOT, ("log_start_offset",), 10**6, id="a log start above the log end"),
        pytest.param(SNAPSHOT, ("producers", 0), "twice", id="a producer twice"),
        pytest.param(INDEX, ("entries", 0, "first_row"), 1, id="rows that another entry has"),
        pytest.param(INDEX, ("last_digest",), "", id="an index without a last digest"),
        pytest.param(INDEX, ("last_digest",), "f" * 64, id="another last digest than the snapshot's"),
        pytest.param("txlog.json", ("features",), "drop", id="no features"),
        pytest.param(RECORD, ("write_id",), "ab", id="an id that is too short"),
        pytest.param(RECORD, ("schema_id",), -1, id="a schema of no version"),
        pytest.param(RECORD, ("version",), 0, id="version 0"),
        pytest.param(RECORD, ("transactional",), "drop", id="not said whether it is transactional"),
        pytest.param(VERSION, ("topic_id",), "x", id="a topic id that cannot be one"),
    ],
)
def test_damage_under_a_right_checksum_is_named(path: str, where: tuple[Any, ...], new: Any) -> None:
    objects = matrix.objects_of("golden")
    said, payload = opened(objects[path])
    how = new if new in ("drop", "twice") else "put"
    damaged = {**objects, path: closed(changed(said, where, new, how), payload)}
    error = fields.limited(d.seen, damaged)
    assert isinstance(error, CorruptRecordError)
    assert path in str(error)
    assert any(finding.path == path for finding in d.checked(damaged).findings)


@pytest.mark.parametrize(
    ("path", "where", "new"),
    [
        pytest.param(VERSION, ("schema", 1, "id"), 99, id="a column under another id"),
        pytest.param(VERSION, ("schema", 1, "name"), "customers", id="a column under another name"),
        pytest.param(VERSION, ("schema", 5, "id"), 99, id="an added column under another id"),
        pytest.param(VERSION, ("schema", 5, "name"), "notes", id="an added column under another name"),
        pytest.param(AUDIT, ("schema", 1, "id"), 99, id="a column of the only version under another id"),
        pytest.param(AUDIT, ("schema", 1, "name"), "values", id="a column of the only version under another name"),
        pytest.param(CLEAN, ("runs",), [], id="superseded segments without a run"),
        pytest.param(CLEAN, ("runs", 0, "base_offset"), 1, id="a run that begins within a segment"),
    ],
)
def test_damage_that_other_objects_show(path: str, where: Any, new: Any) -> None:
    """Two objects contradict each other. The error names one of them; fsck names the damaged one, or both."""
    topic = path.partition("/")[0]
    objects = fields.alone(topic)
    said, payload = opened(objects[path])
    damaged = {**objects, path: closed(changed(said, where, new, "put"), payload)}
    error = fields.limited(d.seen, damaged)
    assert isinstance(error, CorruptRecordError)
    assert f"{topic}/" in str(error)
    assert any(found.kind != "note" and found.path.startswith(f"{topic}/") for found in d.checked(damaged).findings)


@pytest.mark.parametrize(
    ("path", "where", "new"),
    [
        pytest.param(RECORD, "transactional", False, id="a plain batch of a coordinator's producer"),
        pytest.param(
            "scratch/0/00000000000000000003.batch", "transactional", True, id="a drawn producer's transaction"
        ),
        pytest.param(
            "orders/0/00000000000000000014.snapshot", "log_start_offset", 1, id="a log start that no record moved"
        ),
        pytest.param("orders/0/00000000000000000017.batch", "producer_id", 0, id="another producer"),
        pytest.param(VERSION, "partitions", 1, id="fewer partitions than before"),
    ],
)
def test_damage_that_only_fsck_finds(path: str, where: str, new: Any) -> None:
    """Readers return other rows, because no object that they read contradicts the field."""
    assert fields.judge(fields.Cell("a field", "another value", path, (where,), new, False).damage)[1] in (
        "found",
        "found elsewhere",
    )


def test_an_index_that_contradicts_the_columns_of_its_file() -> None:
    """The index agrees with itself, and only the file shows the damage."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, config={"segment.batches": 2})
    with store.producer() as producer:
        for count in (1, 2, 1):
            producer.send("orders", orders(*range(count)), partition=0).result()
    world.close()
    objects = d.objects_of(world.memory)
    (path,) = (path for path in objects if path.endswith("-0.index"))
    said, _ = opened(objects[path])
    said["entries"][1]["timestamp"] += 1
    error = d.seen({**objects, path: closed(said)})
    assert isinstance(error, CorruptRecordError)
    assert "the index of its segment says" in str(error)
    assert path.removesuffix("-0.index") in str(error)


def test_an_unknown_setting_locks_nobody_out() -> None:
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS)
    path = "orders/topic.00000000000000000000.json"
    data = world.memory.get(path)
    assert data is not None
    for config in ({"later.setting": "7"}, {"later.setting": "7", "segment.batches": "many"}):
        overwrite(world.memory, path, closed({**opened(data)[0], "config": config}))
        with world.open().consumer("orders", auto_offset_reset="earliest") as consumer:
            assert list(consumer.iterate()) == []
    with (
        world.open().producer() as producer,
        pytest.raises(InvalidConfigurationError, match=r"'orders'.*segment\.batches"),
    ):
        producer.send("orders", orders(1), partition=0).result()
    changed_topic = world.open().alter_topic("orders", config={"segment.batches": 5})
    assert changed_topic.config == {"later.setting": "7", "segment.batches": "5"}
    with world.open().producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
    assert world.open().alter_topic("orders", remove_config=["later.setting"]).config == {"segment.batches": "5"}


def test_every_struct_of_the_golden_store_has_its_cells() -> None:
    found = {cell.name for cell in fields.every_cell()}
    assert found >= fields.EXCUSED | fields.FSCK_ALONE | fields.ONLY_PLACE_OF_ROWS
    assert {name.partition(".")[0] for name in found} >= {kind.__name__ for kind in fields.STRUCTS.values()}


def test_every_kind_of_object_is_damaged() -> None:
    kinds = {d.kind_of(path) for path in matrix.objects_of("golden")}
    assert kinds == {
        "txlog.json", "topic.json", "batch", "index", "txnindex", "snapshot", "boundary", "clean", "staged",
        "parquet of a producer", "parquet of Spark's", "parquet of a segment", "parquet of a run",
    }  # fmt: skip


def test_whole_stores_are_clean() -> None:
    for store in ("golden", "twins"):
        report = d.checked(matrix.objects_of(store))
        assert report.is_clean, report.findings
        assert report.objects == len(matrix.objects_of(store))


def test_what_cannot_be_seen_is_there_to_be_deleted() -> None:
    """The lists of exceptions name existing objects, each once."""
    for store in ("golden", "twins"):
        lists = [getattr(matrix, name)[store] for name in ("LAST_RECORDS", "UNFINISHED", "SUPERSEDED", "UNPUBLISHED")]
        assert sum(map(len, lists)) == len(matrix.undetectable(store))
        assert matrix.undetectable(store) | matrix.VERSIONS[store] | matrix.LOST_TAIL[store] <= set(
            matrix.objects_of(store)
        )


STRUCTS = {
    "txlog.json": records.StoreDescriptor,
    "topic.json": records.TopicMetadata,
    "index": records.SegmentIndex,
    "txnindex": records.TxnIndex,
    "snapshot": records.Snapshot,
    "boundary": records.Boundary,
    "clean": records.Clean,
    "staged": records.StagedList,
}


def test_every_bit_of_every_small_object() -> None:
    """No object with a flipped bit decodes. (The same CRC protects larger objects; the test above samples them.)"""
    tried = 0
    for path, data in sorted(matrix.objects_of("golden").items()):
        kind = d.kind_of(path)
        if len(data) > SMALL_BYTES or kind.startswith("parquet"):
            continue
        for bit in range(len(data) * 8):
            changed = d.flipped(data, bit)
            with pytest.raises((CorruptRecordError, UnsupportedStoreError), match=path.replace(".", r"\.")):
                decode(path, changed)
        tried += len(data) * 8
    assert tried > 50_000


def decode(path: str, data: bytes) -> object:
    kind = d.kind_of(path)
    if kind != "batch":
        struct: Any = STRUCTS[kind]
        return envelope.decode(data, struct, path)
    topic, partition, name = path.split("/")
    return record_checks.stored_records(data, TopicPartition(topic, int(partition)), int(Path(name).stem))


def test_every_length_of_every_small_object() -> None:
    for path, data in sorted(matrix.objects_of("golden").items()):
        if len(data) <= SMALL_BYTES and not d.kind_of(path).startswith("parquet"):
            for length in range(len(data)):
                with pytest.raises(TxlogError):
                    decode(path, data[:length])


def test_the_only_record_of_a_partition_says_whose_it_is() -> None:
    """Swap the only records of two partitions of a topic: no other object names them."""
    world = World()
    store = world.open()
    store.create_topic("orders", ORDERS, partitions=2)
    with store.producer() as producer:
        for partition in range(2):
            producer.send("orders", orders(partition), partition=partition).result()
    world.close()
    objects = d.objects_of(world.memory)
    first = "orders/0/00000000000000000000.batch"
    (swapped,) = d.swaps(first, objects, count=1)
    damaged = swapped.applied_to(objects)
    error = d.seen(damaged)
    assert isinstance(error, CorruptRecordError)
    assert first in str(error)
    assert "another partition's" in str(error)
    assert not d.checked(damaged).is_clean
