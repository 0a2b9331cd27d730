"""A damaged store: an error that names the object, never a wrong row, never another exception; and fsck finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.world import ORDERS, World, orders
from tests.maintenance import damage as d
from tests.maintenance import matrix
from txlog.core import envelope, records, state
from txlog.core.names import TopicPartition
from txlog.errors import CorruptRecordError, TxlogError, UnsupportedStoreError

SMALL_BYTES = 700


@pytest.mark.parametrize("store", ["golden", "twins"])
def test_damage_is_an_error_and_fsck_finds_it(store: str, record_property, capsys: pytest.CaptureFixture[str]) -> None:
    figures = matrix.Figures()
    matrix.try_all(store, matrix.some_damages(store), figures)
    record_property("damages", sum(figures.tried.values()))
    with capsys.disabled():
        print(f"\n{store}:", *figures.lines()[1:], sep="\n")
    assert not figures.faults
    assert sum(figures.tried.values()) > 100


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
    """The lists of exceptions name objects, each once."""
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
    """No flipped bit decodes. (Larger objects are guarded by the same CRC, and sampled above.)"""
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
        return envelope.decode(data, STRUCTS[kind], path)
    topic, partition, name = path.split("/")
    return state.stored_record(data, TopicPartition(topic, int(partition)), int(Path(name).stem))


def test_every_length_of_every_small_object() -> None:
    for path, data in sorted(matrix.objects_of("golden").items()):
        if len(data) <= SMALL_BYTES and not d.kind_of(path).startswith("parquet"):
            for length in range(len(data)):
                with pytest.raises(TxlogError):
                    decode(path, data[:length])


def test_the_only_record_of_a_partition_says_whose_it_is() -> None:
    """Two of the same topic, both first and last, in each other's place: nothing else speaks of them."""
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
