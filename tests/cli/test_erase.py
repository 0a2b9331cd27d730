"""`txlog erase`: dry run, output and status, and the search for what is left. tests/maintenance tests its effects."""

from __future__ import annotations

import pytest

from tests.cli.conftest import order_rows
from tests.cli.support import Cli
from txlog.cli.documents import EraseDocument, RemainsDocument
from txlog.client import Store

WHERE = ("--where", "id < 3 or id = 11")


@pytest.fixture
def some(cli: Cli, store: Store) -> Cli:
    """Five rows in each of two partitions of orders."""
    with store.producer(linger_ms=0) as producer:
        for partition in range(2):
            producer.send("orders", order_rows(10 * partition, 5), partition=partition).result()
    return cli


def ids(cli: Cli) -> list[int]:
    return sorted(row["id"] for row in cli("consume", "orders", "--from-beginning", "--timeout-ms", 0).rows)


def test_a_dry_run_counts_and_execute_erases(some: Cli) -> None:
    planned = some("erase", "orders", *WHERE)
    assert [line.split()[:2] for line in planned.lines[1:3]] == [["orders-0", "3"], ["orders-1", "1"]]
    assert planned.lines[-1] == "Would erase 4 rows. Add --execute to do it."
    assert len(ids(some)) == 10
    done = some("erase", "orders", *WHERE, "--execute")
    assert [line.split()[:3] for line in done.lines[1:3]] == [["orders-0", "3", "1"], ["orders-1", "1", "1"]]
    assert done.lines[-1] == "Erased 4 rows. The old files stay until vacuum deletes them."
    assert ids(some) == [3, 4, 10, 12, 13, 14]
    assert some("erase", "orders", *WHERE).out == "No row matches.\n"
    assert some("erase", "orders", *WHERE, "--execute").out == "No row matches.\n"
    assert "erase" in some("history").out


def test_json(some: Cli) -> None:
    planned = some("erase", "orders", *WHERE, "-o", "json").json
    assert set(planned[0]) == set(EraseDocument.__struct_fields__)
    assert [(each["partition"], each["rows"], each["executed"]) for each in planned] == [(0, 3, False), (1, 1, False)]
    done = some("erase", "orders", *WHERE, "--execute", "-o", "json").json
    assert [(each["partition"], each["rows"], each["executed"]) for each in done] == [(0, 3, True), (1, 1, True)]


def test_what_is_left_is_searched(some: Cli) -> None:
    some("erase", "orders", *WHERE, "--execute")
    found = some("erase", "orders", *WHERE, "--verify", "-o", "json").json
    assert set(found[0]) == set(RemainsDocument.__struct_fields__)
    assert sum(each["rows"] for each in found) >= 4
    assert not any(each["is_current"] for each in found)
    shown = some("erase", "orders", *WHERE, "--verify")
    assert shown.lines[0].split() == ["OBJECT", "ROWS", "GONE"]
    assert "The time is not known until vacuum has seen" in shown.lines[-1]
    for _ in range(2):
        some("vacuum", "--execute")
    assert "have the smallest and largest values" in some("erase", "orders", *WHERE, "--verify").lines[-2]
    assert some("erase", "orders", "--where", "id = 99", "--verify").out == "No object holds such a row.\n"


def test_vacuum_now_leaves_nothing_to_find(some: Cli, store: Store) -> None:
    """Also in the tables: the day and the week that readers have otherwise do not pass here."""
    store.alter_topic("orders", config={"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0"})
    some("publish", "--once")
    some("erase", "orders", *WHERE, "--execute")
    assert any(each["is_current"] for each in some("erase", "orders", *WHERE, "--verify", "-o", "json").json)
    some("publish", "--once")
    planned = some("vacuum", "orders", "--execute").lines
    assert some("erase", "orders", *WHERE, "--verify", "-o", "json").json, planned
    for _ in range(4):
        some("vacuum", "orders", "--execute", "--now")
        some("publish", "--once")
    assert some("erase", "orders", *WHERE, "--verify").out == "No object holds such a row.\n"
    assert ids(some) == [3, 4, 10, 12, 13, 14]
    warned = " ".join(some("vacuum", "--help").out.split())
    assert "Only while no other process uses the store" in warned
    assert "a reader may find files missing, and a writer that goes on after a pause may lose rows" in warned


def test_what_is_refused(some: Cli) -> None:
    assert "--verify and --execute exclude each other" in some.fails("erase", "orders", *WHERE, "--verify", "--execute")
    assert "topic 'order' does not exist. Did you mean 'orders'?" in some.fails("erase", "order", *WHERE)
    assert "no column 'x'" in some.fails("erase", "orders", "--where", "x = 1", "--execute")
    assert "is an internal topic, from which no row can be erased" in some.fails(
        "erase", "__consumer_offsets", "--where", "x = 1"
    )
    assert "Missing option '--where'" in some.fails("erase", "orders")


def test_an_erasure_that_has_not_ended_is_shown_and_cancelled(some: Cli, store: Store) -> None:
    assert some("erasures", "list").out == "Every erasure has ended.\n"
    with store.producer("hangs") as hangs:
        hangs.begin_transaction()
        hangs.send("orders", order_rows(30, 1), partition=0)
        hangs.flush()
        failed = some("erase", "orders", *WHERE, "--execute", "--wait-ms", 0, status=5)
        (found,) = some("erasures", "list", "-o", "json").json
        assert (found["topic"], found["where"], found["ends"]) == ("orders", "id < 3 or id = 11", [6, 5])
        assert f"`txlog erasures cancel {found['erasure_id']}`" in failed.err
        shown = some("erasures", "list")
        assert shown.lines[0].split() == ["ID", "TOPIC", "CONDITION", "BEGAN"]
        assert shown.lines[1].startswith(f"{found['erasure_id']}  orders  id < 3 or id = 11  ")
        assert (
            some("erasures", "cancel", found["erasure_id"]).out
            == f"Cancelled erasure {found['erasure_id']}. Rows that it has erased stay erased.\n"
        )
        hangs.commit_transaction()
    some("maintain", "--once")
    # The segment of partition 0 had rows of the open transaction, and partition 1 was done.
    assert ids(some) == [0, 1, 2, 3, 4, 10, 12, 13, 14, 30]
    assert "has ended, or never began" in some.fails("erasures", "cancel", found["erasure_id"])
