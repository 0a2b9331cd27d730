"""Current code reads, changes and merges a store whose columns an old program changed.

The expected rows are literals here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from lab.testing.damage import overwrite
from tests.golden.make_evolved import FORMAT_FOLDER, START_MS, compact, make
from txlog.client import reading
from txlog.client.store import Store
from txlog.core import features
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.errors import UnsupportedStoreError
from txlog.inspection.chain import read_rows
from txlog.maintenance.fsck import check_store, store_check
from txlog.maintenance.merge import merge_partition
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

TP = TopicPartition("orders", 0)
NAMES = ["n", "id", "title", "f", "d", "s", "l", "m", "a", "note", "day"]
OLD: dict[str, Any] = {"a": 2**40, "note": "none", "day": date(1969, 12, 31)}
NULLS: dict[str, Any] = dict.fromkeys(NAMES)


def first(number: int, title: str | None, **more: Any) -> dict[str, Any]:
    """Return a row that was written before most changes, as the last version has it."""
    row = {
        "n": -number,
        "id": number,
        "title": title,
        "f": number / 2,
        "d": Decimal(number) / 4,
        "s": {"y": True, "z": number} if number % 2 else None,
        "l": [{"x": number}, None],
        "m": [("k", number / 4)],
    }
    return {**row, **OLD, **more}


ORDERS: list[dict[str, Any]] = [
    first(1, "a1"),
    first(2, None),
    first(3, "a3"),
    first(4, "a4"),
    first(5, "a5", n=2**31 - 1, f=1e300, d=Decimal("1000000000000000.00")),
    first(6, "a6"),
    {**NULLS, **OLD, "title": "a7", "s": {"y": None, "z": 7}, "l": [{"x": 2**40}], "m": [("k", 1e300)], "a": 7},
    {**NULLS, **OLD, "id": 8, "title": "a8", "s": {"y": False, "z": 8}, "a": None},
    {**NULLS, **OLD, "id": 9, "a": None},
    {**NULLS, "id": 10, "title": "a10"},
]
LATEST = [(1, "z7", 1e300), (0, "z8", 1e300), (5, "z9", 0.5)]
"""Key, name and price of `prices`. The key was `id` and is `zone`; key 2 ended with a tombstone."""


@pytest.fixture
def store() -> Iterator[Store]:
    clock = ManualClock(START_MS + 60_000)
    memory = MemoryObjectStore(clock=clock)
    for path in FORMAT_FOLDER.rglob("*"):
        if path.is_file():
            overwrite(memory, path.relative_to(FORMAT_FOLDER).as_posix(), path.read_bytes())
    with txlog.open("memory://", clock=clock, ids=SeededIds(9), object_store=memory) as opened:
        yield opened


def own(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in NAMES if name in row} for row in rows]


def consumed(store: Store) -> list[dict[str, Any]]:
    with store.consumer("orders", auto_offset_reset="earliest") as consumer:
        return [row for batch in consumer.iterate() for row in batch.to_pylist()]


READS: dict[str, Callable[[Store], list[dict[str, Any]]]] = {
    "consumer": consumed,
    "table": lambda store: store.table("orders").to_arrow().to_pylist(),
    "snapshot": lambda store: store.snapshot("orders").table("orders").to_arrow().to_pylist(),
    "dump-log": lambda store: list(read_rows(store.runtime, TP, 0, 100)),
}
WHERE = {
    "id = 3": [2],
    "id IS NULL": [6],
    "title >= 'a4'": [3, 4, 5, 6, 7],
    "a = 1099511627776": [0, 1, 2, 3, 4, 5],
    "n > 100": [4],
    "f > 1e100": [4],
    "d < 0.6": [0, 1],
    "note IS NULL": [9],
    "day < DATE'1970-01-01'": [0, 1, 2, 3, 4, 5, 6, 7, 8],
}


@pytest.mark.parametrize("road", READS)
def test_every_road_reads_each_change(store: Store, road: str) -> None:
    assert own(READS[road](store)) == ORDERS


@pytest.mark.parametrize("where", WHERE)
def test_conditions_skip_no_row(store: Store, where: str) -> None:
    table = store.table("orders")
    assert own(table.to_arrow(where=where).to_pylist()) == [ORDERS[at] for at in WHERE[where]]
    assert table.count(where=where) == len(WHERE[where])


@pytest.mark.parametrize("column", NAMES)
def test_each_column_is_read_alone(store: Store, column: str) -> None:
    assert store.table("orders").to_arrow(columns=[column]).column(0).to_pylist() == [row[column] for row in ORDERS]


def test_the_newest_row_of_each_key_is_the_same_before_and_after_compaction(store: Store) -> None:
    for _ in range(2):
        rows = store.table("prices").latest().read_all().to_pylist()
        assert [(row["zone"], row["id"], row["price"]) for row in rows] == LATEST
        compact(store)
    assert store.topic("prices").config["key.columns"] == "zone"


def test_the_store_is_whole_and_goes_on(store: Store) -> None:
    assert [found for found in check_store(store.runtime.store).findings if found.kind != "note"] == []
    assert [(each.version, len(each.fields)) for each in store.schema_history("orders")] == [
        (0, 9),
        (1, 9),
        (2, 8),
        (3, 9),
        (4, 9),
        (5, 11),
    ]
    store.alter_topic("orders", rename_columns={"title": "a", "a": "title"}, add_columns=pa.schema({"b": pa.int8()}))
    assert [field.id for field in store.topic("orders").fields][-1] == 20
    with store.producer() as producer:
        producer.send("orders", {"a": "new", "title": 1, "b": 1}).result()
    merge_partition(store.runtime, reading.read_session(store.runtime), TP, MergePolicy(target_bytes=2**30))
    rows = store.table("orders").to_arrow(columns=["id", "a", "title", "b"]).to_pylist()
    expected = [{"id": row["id"], "a": row["title"], "title": row["a"], "b": None} for row in ORDERS]
    assert rows == [*expected, {"id": None, "a": "new", "title": 1, "b": 1}]
    assert [found for found in check_store(store.runtime.store).findings if found.kind != "note"] == []


def test_a_program_without_the_feature_refuses_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    older = features.KNOWN_FEATURES - {features.SCHEMA_EVOLUTION}
    monkeypatch.setattr(features, "KNOWN_FEATURES", older)
    monkeypatch.setattr(store_check, "KNOWN_FEATURES", older)
    with pytest.raises(UnsupportedStoreError, match=r"the store needs schema-evolution, and this txlog knows.*upgrade"):
        txlog.open("memory://", object_store=store.runtime.store)
    assert "schema-evolution" in str(check_store(store.runtime.store).findings)


def test_the_script_still_tells_the_same_story(tmp_path: Path) -> None:
    """Only bytes and drawn ids may differ: another pyarrow writes other Parquet files, so their digests differ too."""
    make(tmp_path / "again")

    def paths(folder: Path) -> list[str]:
        found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return sorted(re.sub(r"/rows/\d+|-[0-9a-f]{32}\.", "", path) for path in found)

    assert paths(tmp_path / "again") == paths(FORMAT_FOLDER)
