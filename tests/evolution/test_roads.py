"""The table of the client: each way to read rows, times each change of columns, times each form of stored rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.client.world import World, rows_of
from tests.evolution.cases import CASES, ROW, SCHEMA, expected, second_row
from tests.evolution.log import TP, change, check, made, merge
from tests.evolution.test_worlds import plain
from txlog.client.store import Store
from txlog.inspection.chain import read_rows

Road = Callable[[Store], list[dict[str, Any]]]
READS: dict[str, Road] = {
    "table": lambda store: store.table("orders").to_arrow().to_pylist(),
    "snapshot": lambda store: store.snapshot("orders").table("orders").to_arrow().to_pylist(),
    "consumer": lambda store: rows_of(store.consumer("orders", auto_offset_reset="earliest")),
    "txlog dump-log": lambda store: list(read_rows(store.runtime, TP, 0, 10**6)),
}
STORED = {"inline": (1, 1), "files": (1, 1), "staged": (1, 1), "sealed": (1, 2), "merged": (2, 3)}
"""How many rows are written before and after the change. Two batches are a segment, and the third one seals it. So a
sealed file has rows of two versions, and a merge joins a segment of each version."""


def write(store: Store, row: dict[str, Any], stored: str) -> None:
    if stored == "staged":
        with store.producer("t", staged=True, inline_max_bytes=0) as producer:
            producer.begin_transaction()
            producer.send("orders", [row], partition=0)
            producer.commit_transaction()
        return
    with store.producer() as producer:
        producer.send("orders", [row], partition=0).result()


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", CASES)
def test_every_read_shows_each_change(world: World, name: str, stored: str) -> None:
    case = CASES[name]
    before, after = STORED[stored]
    inline = 10_000 if stored in ("inline", "sealed") else 1
    batches = 2 if stored in ("sealed", "merged") else 100
    store = made(world, SCHEMA, key_columns=None, segment_batches=batches, inline_max_bytes=inline)
    for _ in range(before):
        write(store, ROW, stored)
    for each in case.changes:
        change(store, each)
    for _ in range(after):
        write(store, second_row(case), stored)
    if stored == "merged":
        merge(store)
    old, new = expected(case)
    wanted = [old] * before + [new] * after
    for read in READS.values():
        found = plain(read(world.open()))
        assert found == wanted
        assert list(found[0])[: len(case.first)] == list(case.first)
    table = world.open().table("orders")
    for column in old:
        assert table.to_arrow(columns=[column]).column(0).to_pylist() == [row[column] for row in wanted]
    if case.where:
        assert plain(table.to_arrow(where=case.where).to_pylist()) == [old] * before
        assert table.count(where=case.where) == before
    assert table.count() == len(wanted)
    check(world.open())
