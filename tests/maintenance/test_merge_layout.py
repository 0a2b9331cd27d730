"""Rows may be sorted inside a merged file, which may have Bloom filters; txlog's readers see the same order of rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.client.world import World
from tests.maintenance.test_merge import LARGE, SCHEMA, TP, check, fill, indexes, look, read
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.maintenance.merge import Merged, copy_rows, merge_partition, plan_partition, publish_merge

SORTED = FileLayout(sort=("name", "id"))


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 4})
    return opened


def merge(store: Store, layout: FileLayout) -> tuple[Merged, ...]:
    return merge_partition(store.runtime, reading.read_session(store.runtime), TP, LARGE, layout=layout)


def merged_file(world: World, store: Store) -> pq.ParquetFile:
    (index,) = [each for each in indexes(store).values() if each.generation]
    (file,) = index.files
    return pq.ParquetFile(pa.BufferReader(world.memory.get(f"orders/{file.path}") or b""))


@pytest.mark.parametrize(("age_ms", "row_group_rows"), [(0, 131_072), (90_000_000, 700)], ids=["young", "old"])
def test_no_reader_sees_the_order_in_the_file(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, age_ms: int, row_group_rows: int
) -> None:
    monkeypatch.setattr("txlog.client.rows.ROW_GROUP_ROWS", row_group_rows)
    fill(world, store, 11)
    world.clock.advance_ms(age_ms)
    before = look(store)
    (done,) = merge(store, SORTED)
    assert done.took_effect
    assert look(store) == before
    offsets = merged_file(world, store).read().column("_offset").to_numpy()
    assert sorted(offsets) != list(offsets)
    dice = random.Random(1)
    for _ in range(20):
        start, end = sorted(dice.sample(range(int(offsets.max())), 2))
        assert [offset for offset in before["read"]["_offset"].to_pylist() if start <= offset < end] == (
            read(store, start, end)["_offset"].to_pylist() if ((offsets >= start) & (offsets < end)).any() else []
        )
    check(store)
    # A new merge may restore the order of offsets.
    fill(world, store, 12, transactions=8)
    before = look(store)
    (done,) = merge(store, FileLayout())
    assert done.generation == 2
    assert look(store) == before
    check(store)


def test_rows_of_each_entry_are_sorted_and_those_of_row_groups_stay_apart(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlog.client.rows.ROW_GROUP_ROWS", 60_000)
    fill(world, store, 13)
    with store.producer() as producer:
        for _ in range(9):
            ids = np.random.default_rng(1).permutation(90_000)
            names = pa.array([None if each % 7 == 0 else f"n{each % 100}" for each in ids])
            producer.send("orders", pa.table([pa.array(ids), names], schema=SCHEMA)).result()
    world.clock.advance_ms(90_000_000)
    merge(store, SORTED)
    file = merged_file(world, store)
    (index,) = [each for each in indexes(store).values() if each.generation]
    assert index.files[0].sorted_by == (2, 1)
    groups = [file.read_row_group(number) for number in range(file.num_row_groups)]
    assert len(groups) > 2
    last = -1
    for group in groups:
        offsets = group.column("_offset").to_numpy()
        assert offsets.min() > last
        last = int(offsets.max())
    bounds = {each.first_row for each in index.entries} | set(np.cumsum([0, *index.files[0].row_groups]).tolist())
    rows = file.read(["name", "id"]).to_pylist()
    keys = [(row["name"] is None, row["name"], row["id"]) for row in rows]
    steps = [at for at in range(1, len(keys)) if keys[at][:2] != keys[at - 1][:2] and keys[at - 1][0] > keys[at][0]]
    # The keys step back only where an entry, a row group, or a part that fits in memory ends.
    assert len(set(steps) - bounds) <= len(rows) // 60_000
    assert file.metadata.row_group(0).column(0).has_column_index


def test_bloom_filters(world: World, store: Store) -> None:
    """The filters are between the row groups and the footer, and do not disturb a reader."""
    fill(world, store, 14)
    before = look(store)
    session = reading.read_session(store.runtime)
    (planned,) = plan_partition(session, TP, LARGE)
    plain = copy_rows(store.runtime, planned)
    filtered = planned.written_as("0" * 32)
    file = copy_rows(store.runtime, filtered, layout=FileLayout(bloom=("id", "name")))
    assert plain is not None
    assert file is not None
    assert file.rows == plain.rows
    assert file.bytes > plain.bytes + plain.rows
    assert publish_merge(session, filtered, file).took_effect
    assert look(store) == before
    check(store)


def test_statistics_of_the_run(world: World, store: Store) -> None:
    fill(world, store, 15)
    merge(store, SORTED)
    (index,) = [each for each in indexes(store).values() if each.generation]
    rows = read(store, 0, index.end_offset)["id"].to_numpy()
    assert index.files[0].statistics["1"][:2] == (rows.min(), rows.max())


def test_what_is_refused(world: World, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.schema([pa.field("tags", pa.list_(pa.string())), pa.field("paid", pa.bool_())])
    store.alter_topic("orders", add_columns=columns)
    fill(world, store, 16, transactions=8)
    with pytest.raises(SchemaMismatchError, match=r"no column 'nam'.*'name'"):
        merge(store, FileLayout(sort=("nam",)))
    with pytest.raises(SchemaMismatchError, match="'tags' of topic 'orders' is of type list"):
        merge(store, FileLayout(sort=("tags",)))
    with pytest.raises(SchemaMismatchError, match="'paid' of topic 'orders' is of type bool"):
        merge(store, FileLayout(bloom=("paid",)))
    monkeypatch.setattr("txlog.maintenance.merge.SORTED_RUNS", "none-of-this-store")
    with pytest.raises(InvalidRequestError, match="without the feature"):
        merge(store, SORTED)
    assert not [each for each in indexes(store).values() if each.generation]


def test_the_file_is_compressed_as_the_merging_client_says(world: World, store: Store) -> None:
    """As elsewhere, the client's settings have precedence over the topic's."""
    fill(world, store, 3)
    assert merge(world.open(compression_type="snappy"), FileLayout())
    assert merged_file(world, store).metadata.row_group(0).column(0).compression == "SNAPPY"
