"""Commands that read: topics, offsets, transactions, groups, as text and as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Cli
from txlog.client import Store


def keys(document: Any) -> set[str]:
    return set(document)


def test_topics_list(seen: Cli) -> None:
    assert [line.split() for line in seen("topics", "list").lines] == [
        ["TOPIC", "PARTITIONS", "COLUMNS", "VERSION", "CHANGED", "SETTINGS"],
        ["events", "1", "4", "0", "<time>", "-"],
        ["orders", "2", "2", "0", "<time>", "segment.batches=3"],
    ]


def test_topics_list_json(seen: Cli) -> None:
    events, orders = seen("topics", "list", "--output", "json").json
    assert (events["topic"], orders["topic"]) == ("events", "orders")
    assert {name: orders[name] for name in ("partitions", "columns", "version", "config")} == {
        "partitions": 2,
        "columns": 2,
        "version": 0,
        "config": {"segment.batches": "3"},
    }
    assert keys(orders) == {"topic", "topic_id", "version", "partitions", "columns", "config", "changed_at"}


def test_topics_describe(seen: Cli) -> None:
    lines = seen("topics", "describe", "orders").lines
    assert lines[0] == "topic       orders"
    assert "partitions  2" in lines
    assert " 1  id    int64 not null" in lines
    assert " 2  item  string" in lines
    assert ["segment.batches", "3", "topic"] in map(str.split, lines)
    assert ["retention.ms", "-1", "default"] in map(str.split, lines)
    assert lines[lines.index("Partitions") + 1].split() == ["PARTITION", "LOG", "START", "LAST", "STABLE", "LOG", "END"]
    assert lines[-2].split() == ["0", "0", "12", "14"]
    assert lines[-1].split() == ["1", "0", "4", "4"]


def test_a_compacted_topic_shows_its_own_default(cli: Cli, store: Store) -> None:
    assert ["segment.ms", "604800000", "default"] in map(str.split, cli("topics", "describe", "orders").lines)
    store.create_topic("people", {"a": "int64"}, config={"key.columns": "a", "cleanup.policy": "compact"})
    assert ["segment.ms", "86400000", "default"] in map(str.split, cli("topics", "describe", "people").lines)


def test_topics_describe_all_and_kafkas_option(seen: Cli) -> None:
    assert [topic["topic"] for topic in seen("topics", "describe", "-o", "json").json] == ["events", "orders"]
    (only,) = seen("topics", "describe", "--topic", "events", "-o", "json").json
    assert [column["name"] for column in only["columns"]] == ["key", "value", "headers", "timestamp"]
    assert only["ends"] == [{"partition": 0, "log_start_offset": 0, "last_stable_offset": 1, "log_end_offset": 1}]
    assert keys(only) == {
        "topic",
        "topic_id",
        "version",
        "partitions",
        "config",
        "schema_id",
        "columns",
        "changed_at",
        "ends",
        "sizes",
        "schema_history",
        "published",
    }


def test_get_offsets(seen: Cli) -> None:
    assert seen("get-offsets").lines == [
        "TOPIC   PARTITION  LOG START  LAST STABLE  LOG END",
        "events          0          0            1        1",
        "orders          0          0           12       14",
        "orders          1          0            4        4",
    ]
    assert seen("get-offsets", "orders", "--partitions", "1").lines[1:] == [
        "orders          1          0            4        4"
    ]


@pytest.mark.parametrize(
    ("time", "level", "offsets"),
    [
        ("earliest", "read_committed", [0, 0]),
        ("-2", "read_committed", [0, 0]),
        ("latest", "read_committed", [12, 4]),
        ("-1", "read_uncommitted", [14, 4]),
        ("2013-01-31", "read_committed", [0, 0]),
        ("0", "read_committed", [0, 0]),
        ("2200-01-01T00:00:00Z", "read_committed", [None, None]),
    ],
)
def test_get_offsets_at_a_time(seen: Cli, time: str, level: str, offsets: list[int | None]) -> None:
    found = seen("get-offsets", "orders", f"--time={time}", "--isolation-level", level, "-o", "json").json
    assert [info["offset"] for info in found] == offsets
    assert keys(found[0]) == {
        "topic",
        "partition",
        "log_start_offset",
        "last_stable_offset",
        "log_end_offset",
        "offset",
        "timestamp",
    }


def test_transactions_list(seen: Cli) -> None:
    lines = seen("transactions", "list").lines
    assert lines[0].split("  ")[0] == "TRANSACTIONAL ID"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["hanging", "ONGOING"],
        ["loader", "COMPLETE_COMMIT"],
        ["stager", "COMPLETE_COMMIT"],
    ]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--state", "ONGOING"], ["hanging"]),
        (["--state", "complete-commit"], ["loader", "stager"]),
        (["--state", "EMPTY"], []),
        (["--duration-filter", "0"], ["hanging"]),
        (["--duration-filter", "99999999999"], []),
        (["--producer-id", "1"], []),
    ],
)
def test_transactions_list_filtered(seen: Cli, options: list[str], ids: list[str]) -> None:
    """As in `kafka-transactions.sh list`, but an id without an open transaction passes no duration filter."""
    found = seen("transactions", "list", *options, "--output", "json").json
    assert [each["transactional_id"] for each in found] == ids
    if not ids:
        assert seen("transactions", "list", *options).lines == ["There are no such transactions."]


def test_transactions_describe(seen: Cli) -> None:
    found = seen("transactions", "describe", "loader", "-o", "json").json
    assert {name: found[name] for name in ("state", "last_outcome", "txn_version", "duration_ms", "timeout_ms")} == {
        "state": "COMPLETE_COMMIT",
        "last_outcome": "commit",
        "txn_version": 3,
        "duration_ms": -1,
        "timeout_ms": 60_000,
    }
    lines = seen("transactions", "describe", "hanging").lines
    assert lines[0] == "transactional id  hanging"
    assert "state             ONGOING" in lines
    assert lines[-3:] == ["Partitions", "TOPIC   PARTITION", "orders          0"]
    assert seen("transactions", "describe", "--transactional-id", "hanging").status == 0


def test_transactions_find_hanging(seen: Cli) -> None:
    # Its own timeout is over, so the threshold of 15 minutes does not matter.
    (found,) = seen("transactions", "find-hanging", "-o", "json").json
    assert (
        seen("transactions", "find-hanging", "--max-transaction-timeout", 0, "-o", "json").json[0]["producer_id"]
        == found["producer_id"]
    )
    assert (found["transactional_id"], found["topic"], found["partition"], found["first_offset"]) == (
        "hanging",
        "orders",
        0,
        12,
    )
    assert found["advice"] == "it is past its time-out; `txlog transactions expire --execute` aborts it"
    assert not seen("transactions", "find-hanging", "--topic", "orders", "--partition", 1, "-o", "json").json


def test_consumer_groups(seen: Cli) -> None:
    lines = seen("consumer-groups", "list").lines
    assert lines[0].split() == ["GROUP", "STATE", "MEMBER", "PARTITIONS", "LAG"]
    assert [line.split() for line in lines[1:]] == [
        ["audit", "EMPTY", "-", "1", "0"],
        ["readers", "EMPTY", "-", "2", "13"],
    ]
    readers = seen("consumer-groups", "describe", "readers", "-o", "json").json
    assert [(o["topic"], o["partition"], o["committed"], o["lag"]) for o in readers["offsets"]] == [
        ("orders", 0, 3, 9),
        ("orders", 1, 0, 4),
    ]
    lines = seen("consumer-groups", "describe", "--group", "audit").lines
    assert lines[0] == "group           audit"
    assert lines[-1].split()[:3] == ["events", "0", "3"]


def test_an_empty_store_says_so(cli: Cli) -> None:
    cli("topics", "create", "only")
    cli("topics", "delete", "only", "--execute")
    said = {
        ("topics", "list"): "There are no topics.",
        ("topics", "describe"): "There are no topics.",
        ("get-offsets",): "There are no topics.",
        ("transactions", "list"): "There are no transactional.ids.",
        ("consumer-groups", "list"): "There are no consumer groups.",
        ("transactions", "expire"): "Nothing is due.",
    }
    for command, sentence in said.items():
        assert cli(*command).lines == [sentence]
        document = cli(*command, "-o", "json").json
        assert document == [] or not any(document[name] for name in ("aborted", "rolled_forward", "removed"))


def test_the_size_of_a_topic_is_told_on_request(seen: Cli) -> None:
    lines = seen("topics", "describe", "orders", "--size").lines
    heading = next(line for line in lines if line.startswith("PARTITION  OBJECTS"))
    assert heading.split() == ["PARTITION", "OBJECTS", "SEGMENTS", "TAIL", "FILES", "SMALL", "BYTES", "ROWS", "ABORTED"]
    assert any(line.startswith("A merge would make 1 file of 2 files") for line in lines)
    first, second = seen("topics", "describe", "orders", "--size", "--output", "json").json[0]["sizes"]
    assert (first["aborted_rows"], first["merge_runs"], second["merge_runs"]) == (2, 1, 0)
    assert seen("topics", "describe", "orders", "--output", "json").json[0]["sizes"] == []
    assert any("would gain nothing" in line for line in seen("topics", "describe", "events", "--size").lines)
