"""Do objects show themselves in a notebook: with drawings, without matplotlib, and without an error?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.world import World
from tests.page.reading import Parsed
from tests.page.stores import random_topic
from txlog.client import Store
from txlog.client.admin.descriptions import GroupList, TransactionList
from txlog.core.names import TopicPartition
from txlog.inspection import notebook

SHOWN: dict[str, Callable[[Store], Any]] = {
    "store": lambda store: store,
    "table": lambda store: store.table("orders"),
    "partition": lambda store: store.admin().describe_partition("orders", 0),
    "transactions": lambda store: store.admin().list_transactions(),
    "transaction": lambda store: store.admin().describe_transaction("writer-1"),
    "groups": lambda store: store.admin().list_groups(),
    "group": lambda store: store.admin().describe_group("<b>"),
}


@pytest.fixture
def store(world: World) -> Store:
    store = random_topic(world, 5)
    with store.consumer("orders", group_id="<b>", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition("orders", 0): 2})
    return store


@pytest.mark.parametrize("name", SHOWN)
def test_objects_are_drawn(store: Store, name: str) -> None:
    shown = SHOWN[name](store)._repr_html_()
    parsed = Parsed(shown)
    parsed.check_harmless()
    assert parsed.tags["svg"] == 1
    assert parsed.tags["b"] == 0
    assert parsed.titles
    expected = {"transaction": "writer-1", "transactions": "writer-1", "group": "<b>", "groups": "<b>"}
    assert any(expected.get(name, "orders") in text for text in parsed.texts)


@pytest.mark.parametrize("name", SHOWN)
def test_without_matplotlib_they_are_tables(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    parsed = Parsed(SHOWN[name](store)._repr_html_())
    parsed.check_harmless()
    assert parsed.tags["svg"] == 0
    assert parsed.tags["table"] == 1
    assert len(parsed.texts) > 4


@pytest.mark.parametrize("name", ["store", "table"])
def test_a_store_that_does_not_answer_is_shown_with_its_error(world: World, name: str) -> None:
    random_topic(world, 5)
    outage, broken = world.outage(default_api_timeout_ms=50)
    shown = SHOWN[name](broken)
    outage.pattern = "."
    text = shown._repr_html_()
    assert text.startswith("<pre>")
    assert "memory://" in text


def test_a_drawing_that_fails_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> str:
        raise RuntimeError("<no drawing>")

    monkeypatch.setattr(notebook, "draw", fail)
    for show in SHOWN.values():
        assert "<svg" not in show(store)._repr_html_()


def test_the_requests_are_bounded(world: World) -> None:
    store = world.open()
    for number in range(5):
        store.create_topic(f"topic-{number}", partitions=10, config={"segment.batches": 2})
    producer = store.producer()
    for step in range(60):
        producer.send(f"topic-{step % 5}", [{"value": b"v"}], partition=0)
        producer.flush()
    with world.counting.counting() as cost:
        shown = store._repr_html_()
    assert "34 further partitions not drawn" in shown
    assert cost.list <= notebook.MAX_PARTITIONS + 6  # the topics: one for the store, and one for each
    assert cost.get <= 2 * notebook.MAX_INDEXES + 5 * 3 + 20
    assert (cost.put_if_absent, cost.write_file, cost.delete) == (0, 0, 0)


def test_lists_are_tuples_as_before(store: Store) -> None:
    admin = store.admin()
    transactions, groups = admin.list_transactions(), admin.list_groups()
    assert isinstance(transactions, TransactionList)
    assert isinstance(groups, GroupList)
    assert transactions == tuple(transactions)
    assert [each.transactional_id for each in transactions] == ["writer-0", "writer-1", "writer-2"]


def test_a_snapshot_shows_its_columns_and_no_present_partition(store: Store) -> None:
    snapshot = store.snapshot("orders")
    for tp, end in snapshot.ends.items():
        assert f'<td>{tp}</td><td class="n">{end:,}</td>' in snapshot._repr_html_()
    shown = snapshot.table("orders")._repr_html_()
    assert "<svg" not in shown
    assert "int64 not null" in shown
