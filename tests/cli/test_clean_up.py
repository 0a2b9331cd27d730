"""`txlog retention` and `txlog vacuum`: output and status. tests/maintenance tests their effects on a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import ORDERS, order_rows
from tests.cli.support import Cli
from txlog.cli.documents import RetentionDocument, VacuumDocument
from txlog.client import Store, TopicPartition

ORDERS_0 = TopicPartition("orders", 0)


@pytest.fixture
def segments(cli: Cli, store: Store) -> Cli:
    """orders-0: three sealed segments and a tail. A transaction that can never commit has left a file."""
    store.alter_topic("orders", config={"segment.batches": 2})
    with store.producer(linger_ms=0) as producer:
        for number in range(8):
            producer.send("orders", order_rows(10 * number, 2), partition=0).result()
    # One process died before its commit; the next one takes over.
    dies = store.producer("loader", staged=True, inline_max_bytes=0)
    dies.init_transactions()
    dies.begin_transaction()
    dies.send("orders", order_rows(0, 3), partition=1)
    dies.flush()
    store._clients.discard(dies)
    store.producer("loader").init_transactions()
    return cli


def files(cli: Cli) -> set[Path]:
    return {path for path in cli.root.rglob("*") if path.is_file()}


def test_retention_is_a_dry_run_unless_it_is_told(segments: Cli, store: Store) -> None:
    assert (
        segments("retention").out
        == "Nothing to remove: no row of 2 partitions is beyond retention.ms or retention.bytes.\n"
    )
    store.alter_topic("orders", config={"retention.bytes": 0})
    before = files(segments)
    said = segments("retention", "orders")
    assert said.lines[0].split() == [
        "PARTITION",
        "LOG",
        "START",
        "WILL",
        "BE",
        "SEGMENTS",
        "ROWS",
        "BYTES",
        "BECAUSE",
        "OF",
    ]
    assert said.lines[1].split()[:5] == ["orders-0", "0", "12", "3", "12"]
    assert said.lines[1].endswith("retention.bytes")
    assert said.lines[-2].startswith("Would remove 12 rows, ")
    assert said.lines[-1].startswith(
        "orders-0: 4 rows beyond retention.ms or retention.bytes stay, in the active segment."
    )
    assert files(segments) == before
    (planned,) = segments("retention", "-o", "json").json
    assert set(planned) == set(RetentionDocument.__struct_fields__)
    assert (planned["log_start_after"], planned["executed"]) == (12, False)
    done = segments("retention", "--execute", "--partition", 0)
    assert done.lines[-2].startswith("Removed 12 rows, ")
    assert segments("consume", "orders", "--from-beginning", "--timeout-ms", 0, "-o", "json").out.count("\n") == 4
    (step,) = segments("history", "-o", "json").json
    assert "retention" in str(step)
    assert "12" in str(step)


def test_retention_says_for_whom_rows_stay(segments: Cli, store: Store) -> None:
    with store.consumer("orders", group_id="audit", enable_auto_commit=False) as consumer:
        consumer.commit({ORDERS_0: 5})
    store.alter_topic("orders", config={"retention.bytes": 0, "retention.hold.groups": "audit"})
    said = segments("retention")
    assert said.lines[1].split()[:3] == ["orders-0", "0", "4"]
    assert said.lines[-1] == ("orders-0: consumer group 'audit' holds more rows, until it commits or until <time>.")


def test_vacuum_is_a_dry_run_unless_it_is_told(segments: Cli) -> None:
    before = files(segments)
    said = segments("vacuum")
    why = "nothing names it, and its producer is at a later epoch with that transaction finished"
    assert said.lines[0].split() == ["KIND", "OBJECTS", "BYTES", "WHY"]
    assert said.lines[1].startswith("rows ")
    assert said.lines[1].endswith(why)
    assert said.lines[-1].startswith("Would delete 1 object, ")
    assert said.lines[-1].endswith(" Add --execute to do it.")
    assert files(segments) == before
    listed = segments("vacuum", "--objects")
    assert listed.lines[1].startswith("orders/1/rows/")
    found = segments("vacuum", "orders", "-o", "json").json
    assert set(found) == set(VacuumDocument.__struct_fields__)
    assert found["executed"] is False
    (one,) = found["deleted"]
    assert one["why"] == why
    done = segments("vacuum", "--execute")
    assert done.lines[-1].startswith("Deleted 1 object, ")
    (gone,) = before - files(segments)
    assert gone == segments.root / one["path"]
    assert segments("vacuum", "--execute").out.startswith("Nothing to delete in 2 topics with ")
    (step,) = segments("history", "-o", "json").json
    assert "vacuum" in str(step)
    assert segments("fsck").status == 0


def test_vacuum_now_waits_for_nothing(segments: Cli) -> None:
    segments("merge", "orders", "--execute")
    # The fixture's store has a longer grace than this test takes.
    assert "must wait out delete.grace.ms" in segments("vacuum", "orders").out
    before = segments("consume", "orders", "--from-beginning", "--timeout-ms", 0).rows
    planned = segments("vacuum", "orders", "--now")
    assert "Would delete " in planned.out
    assert planned.lines[-1].endswith("cannot be read any more.")
    done = segments("vacuum", "orders", "--now", "--execute")
    assert done.lines[-1].startswith("Call it again until two calls in a row delete nothing")
    for _ in range(5):
        done = segments("vacuum", "orders", "--now", "--execute")
    assert done.out.startswith("Nothing to delete in 1 topic with 1 partition.\nCall it again until two calls")
    assert segments("consume", "orders", "--from-beginning", "--timeout-ms", 0).rows == before
    assert segments("fsck").lines[-1]


def test_vacuum_of_what_is_no_topic(segments: Cli) -> None:
    assert "has no topic 'order', and no deleted one" in segments.fails("vacuum", "order")


def test_vacuum_leaves_a_damaged_topic_alone(segments: Cli) -> None:
    index = next(path for path in files(segments) if path.name.endswith(".index"))
    index.write_bytes(index.read_bytes()[:-9] + b"x" * 9)
    before = files(segments)
    done = segments("vacuum", "--execute", status=4)
    assert "Vacuum stopped in topic 'orders'" in done.out
    assert {path for path in before if "orders" in path.parts} <= files(segments)


def test_retention_names_rows_of_the_active_segment(cli: Cli, store: Store) -> None:
    store.create_topic("old", ORDERS, config={"retention.bytes": 0})
    with store.producer() as producer:
        producer.send("old", order_rows(0, 2)).result()
    reason = (
        "2 rows beyond retention.ms or retention.bytes stay, in the active segment. It ends with the first "
        "write after segment.batches, "
    )
    lines = cli("retention", "old").lines
    assert lines[0] == "Nothing can be removed now."
    assert lines[1].startswith(f"old-0: {reason}")
    left = next(line for line in cli("maintain", "--once").lines if reason in line)
    assert left.split()[:3] == ["retention", "old", "0"]
