"""`produce` and `consume`: rows as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.cli.support import Cli
from txlog import client
from txlog.cli import formats, inputs
from txlog.cli.rows import decode_rows, encode_row
from txlog.client import Store, TopicPartition
from txlog.errors import OutcomeUnknownError, TxlogTimeoutError
from txlog.storage.local import LocalObjectStore
from txlog.testing.failing_store import FailingStore, Fault


def lines(*rows: dict[str, Any]) -> str:
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


ROWS = [{"id": number, "item": f"item {number}"} for number in range(6)]
ALL = lines(*ROWS)
NOW = ("--from-beginning", "--timeout-ms", 0)


def test_what_consume_prints_produce_reads(seen: Cli, cli: Cli) -> None:
    for topic, create in [("orders", ("--column", "id:int64:not-null", "--column", "item:string")), ("events", ())]:
        printed = seen("consume", topic, *NOW).out
        cli("topics", "create", topic, *create)
        cli("produce", topic, stdin=printed)
        assert cli("consume", topic, *NOW).out == printed


def test_rows_and_their_metadata(seen: Cli) -> None:
    (event,) = seen("consume", "events", *NOW).rows
    assert event == {
        "key": "k",
        "value": {"base64": "/w=="},
        "headers": [{"key": "h", "value": "v"}],
        "timestamp": None,
    }
    (event,) = seen("consume", "events", *NOW, "--metadata").rows
    assert list(event)[:4] == ["_topic", "_partition", "_offset", "_timestamp"]
    assert (event["_topic"], event["_partition"], event["_offset"]) == ("events", 0, 0)


def test_the_newest_row_of_each_key(cli: Cli, store: Store) -> None:
    config = {"key.columns": "id"}
    store.create_topic("people", {"id": "int64", "name": "string"}, partitions=2, config=config)
    with store.producer("loader") as producer:
        with producer.transaction():
            producer.send("people", [{"id": number, "name": "old"} for number in range(6)])
        with producer.transaction():
            producer.send("people", [{"id": 1, "name": "new"}, {"id": 2, "name": None}])
        producer.begin_transaction()
        producer.send("people", [{"id": 3, "name": "open"}])
        producer.flush()
        newest = {number: "new" if number == 1 else "old" for number in (0, 1, 3, 4, 5)}
        found = cli("consume", "people", "--latest").rows
        assert {row["id"]: row["name"] for row in found} == newest
        producer.abort_transaction()
    assert cli("consume", "people", "--latest", "--where", "name = 'new'", "--columns", "name").rows == [
        {"name": "new"}
    ]
    assert len(cli("consume", "people", "--latest", "--max-messages", 2).rows) == 2
    assert cli("consume", "people", "--latest", "--max-messages", 0).rows == []
    printed = cli("consume", "people", "--latest", "--format", "csv", "--columns", "id").lines
    assert (printed[0], sorted(printed[1:])) == ('"id"', ["0", "1", "3", "4", "5"])
    row = cli("consume", "people", "--latest", "--metadata", "--where", "id = 1").rows[0]
    assert list(row) == ["_topic", "_partition", "_offset", "_timestamp", "id", "name"]
    assert "--group and --latest exclude each other" in cli.fails("consume", "people", "--latest", "--group", "g")
    assert "topic 'orders' has no key" in cli.fails("consume", "orders", "--latest")


def test_isolation_levels(seen: Cli) -> None:
    def ids(*options: str) -> list[int]:
        return [row["id"] for row in seen("consume", "orders", "--partition", 0, *NOW, *options).rows]

    assert ids() == [0, 1, 2, 10, 11, 30, 31]
    assert ids("--isolation-level", "read_uncommitted") == [0, 1, 2, 10, 11, 20, 21, 30, 31, 90, 91]


def test_produce_says_where_rows_went(cli: Cli, store: Store) -> None:
    done = cli("produce", "orders", "--partition", 1, stdin=ALL)
    assert done.lines == [
        "TOPIC   PARTITION  ROWS  FIRST OFFSET  LAST OFFSET",
        "orders          1     6             0            5",
        "",
        "Wrote 6 rows to 'orders'.",
    ]
    assert cli("produce", "orders", "--partition", 1, "--batch", 4, "-o", "json", stdin=ALL).json == {
        "topic": "orders",
        "records": 6,
        "transactional_id": None,
        "skipped": False,
        "partitions": [{"partition": 1, "records": 6, "first_offset": 6, "last_offset": 11}],
    }
    assert cli("produce", "orders", stdin="").out == "Wrote no rows to 'orders'.\n"


def test_keys_decide_partitions(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--key", "id", stdin=ALL)
    by_partition = {
        number: {row["id"] for row in cli("consume", "orders", "--partition", number, *NOW).rows} for number in (0, 1)
    }
    assert by_partition[0] | by_partition[1] == set(range(6))
    assert by_partition[0]
    assert by_partition[1]
    cli("produce", "orders", "--key", "id,item", stdin=ALL)
    assert len(cli("consume", "orders", *NOW).rows) == 12


def test_one_transaction_a_run(cli: Cli, store: Store) -> None:
    done = cli("produce", "orders", "--transactional-id", "loader", "--partition", 0, "--batch", 2, stdin=ALL)
    assert done.lines[-1] == "Wrote 6 rows to 'orders', committed as one transaction of 'loader'."
    ends = store.admin().list_offsets("orders")[TopicPartition("orders", 0)]
    assert (ends.last_stable_offset, ends.log_end_offset) == (7, 7)


def test_a_bad_line_leaves_nothing_of_a_transaction(cli: Cli, store: Store) -> None:
    bad = ALL + lines({"id": "seven"})
    message = cli.fails("produce", "orders", "--transactional-id", "loader", "--batch", 2, stdin=bad)
    assert message.splitlines() == [
        "line 7: column 'id': expected int64 not null, found \"seven\"",
        "Dropped: 6 rows before line 7. The transaction of 'loader' was aborted: nothing of it is visible.",
    ]
    assert cli("consume", "orders", *NOW).rows == []
    assert cli("transactions", "list", "--state", "ONGOING", "-o", "json").json == []


def test_a_bad_line_without_a_transaction_says_what_was_written(cli: Cli, store: Store) -> None:
    message = cli.fails("produce", "orders", "--batch", 4, stdin=ALL + lines({"id": None}, {"id": 8}))
    assert message.splitlines() == [
        "line 7: column 'id' is not nullable, and its value is missing or null",
        "Written: 6 rows before line 7, and nothing from there on. Repeat the command without the first 6. "
        "With --transaction it is all or nothing.",
    ]
    assert cli("consume", "orders", *NOW).rows == ROWS
    message = cli.fails("produce", "orders", stdin="{\n" + ALL)
    assert message.splitlines()[2] == "Nothing was written. With --transaction it is all or nothing."
    assert cli("consume", "orders", *NOW).rows == ROWS


# -- rows that a wrapper would write twice if it retried by exit status -----------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, cli: Cli, *faults: Fault) -> None:
    """Let the command line work on a store that fails."""
    real = client.open

    def broken(url: str, **options: Any) -> Store:
        return real(url, **options, object_store=FailingStore(LocalObjectStore(str(cli.root), fsync=False), *faults))

    monkeypatch.setattr(client, "open", broken)


def test_an_unknown_outcome_without_a_transaction_is_no_case_for_a_retry(
    cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Fault(action="lose_reply", match=r"put_if_absent orders/1/.*batch", times=10**6)
    failing(monkeypatch, cli, lost, Fault(action="fail", match=r"get orders/1/.*batch", times=10**6))
    produce = ("produce", "orders", "--partition", 1, "--property", "delivery.timeout.ms=1500")
    message = cli.fails(*produce, status=4, stdin=ALL)
    assert "may have been written" in message
    assert message.splitlines()[1:] == [
        "  hint: look whether the rows are there before you send them again; a transactional.id makes it certain",
        "Written for sure: 0 of 6 rows. With --transaction it is all or nothing.",
    ]


@pytest.mark.parametrize(("options", "status"), [((), 4), (("--version", 1), 5)])
def test_an_unknown_commit_may_be_repeated_only_by_its_version(
    cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch, options: tuple[str | int, ...], status: int
) -> None:
    produce = ("produce", "orders", "--transactional-id", "loader", *options)

    def commit(*_: Any, **__: Any) -> None:
        real(*_, **__)
        raise OutcomeUnknownError("the outcome is unknown")

    real = client.Producer.commit_transaction
    with monkeypatch.context() as patched:
        patched.setattr(client.Producer, "commit_transaction", commit)
        assert cli.fails(*produce, status=status, stdin=ALL) == "the outcome is unknown"
    # The commit took effect, so a wrapper's retry at status 5 must change nothing.
    if status == 5:
        assert cli(*produce, stdin=ALL).out.startswith("Skipped: ")
    assert cli("consume", "orders", *NOW).rows == ROWS


def test_a_store_that_fails_before_any_row_was_taken_is_worth_a_retry(
    cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: Any, **__: Any) -> None:
        raise TxlogTimeoutError("too much waits")

    monkeypatch.setattr(client.Producer, "send", send)
    assert cli.fails("produce", "orders", status=5, stdin=ALL) == "too much waits"


def test_a_version_that_was_committed_is_skipped(cli: Cli, store: Store) -> None:
    version = ("produce", "orders", "--transactional-id", "loader", "--version")
    assert cli(*version, 3, stdin=ALL).status == 0
    assert cli(*version, 3, stdin=ALL).out == (
        "Skipped: 'loader' has committed txn.version 3 or a higher one; nothing of this run is visible.\n"
    )
    document = cli(*version, 2, "-o", "json", stdin=ALL).json
    assert (document["skipped"], document["records"], document["partitions"]) == (True, 0, [])
    assert len(cli("consume", "orders", *NOW).rows) == 6


def test_staged_rows_have_no_offset_yet(cli: Cli, store: Store) -> None:
    done = cli(
        "produce", "orders", "--transactional-id", "loader", "--property", "staged=true", "-o", "json", stdin=ALL
    ).json
    (part,) = done["partitions"]
    assert (part["records"], part["first_offset"], part["last_offset"]) == (6, None, None)
    assert len(cli("consume", "orders", *NOW).rows) == 6


def test_a_second_instance_fences_the_first(cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_a_rival(*args: Any, first: int, **more: Any) -> Iterator[dict[str, Any]]:
        if first == 4:
            store.admin().fence("loader")
        return decode_rows(*args, first=first, **more)

    monkeypatch.setattr(inputs, "decode_rows", with_a_rival)
    message = cli.fails("produce", "orders", "--transactional-id", "loader", "--batch", 1, status=3, stdin=ALL)
    assert "loader" in message
    assert "newer instance" in message
    assert cli("consume", "orders", *NOW).rows == []


def test_max_messages(seen: Cli) -> None:
    assert len(seen("consume", "orders", *NOW, "--max-messages", 3).rows) == 3
    assert seen("consume", "orders", *NOW, "--max-messages", 0).out == ""


def test_begin_at_an_offset(seen: Cli) -> None:
    at_nine = ("consume", "orders", "--partition", 0, "--offset", 9, "--timeout-ms", 0)
    assert [row["id"] for row in seen(*at_nine).rows] == [30, 31]


def test_the_end_is_where_it_begins_by_default(seen: Cli) -> None:
    assert seen("consume", "orders", "--timeout-ms", 0).out == ""


def test_several_topics(seen: Cli) -> None:
    found = seen("consume", "orders", "events", *NOW, "--metadata").rows
    assert {(row["_topic"], row["_partition"]) for row in found} == {("orders", 0), ("orders", 1), ("events", 0)}


def test_a_group_goes_on_behind_what_was_printed(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--partition", 0, stdin=ALL)
    group = ("consume", "orders", "--group", "audit", *NOW)
    assert [row["id"] for row in cli(*group, "--max-messages", 4).rows] == [0, 1, 2, 3]
    offsets = cli("consumer-groups", "describe", "audit", "-o", "json").json["offsets"]
    assert [(each["partition"], each["committed"]) for each in offsets] == [(0, 4), (1, 0)]
    assert [row["id"] for row in cli(*group).rows] == [4, 5]
    assert cli(*group).rows == []
    described = cli("consumer-groups", "describe", "audit", "-o", "json").json
    assert described["state"] == "EMPTY"
    assert [(each["partition"], each["lag"]) for each in described["offsets"]] == [(0, 0), (1, 0)]


def test_a_group_says_which_member_it_waits_for(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--partition", 0, stdin=ALL)
    member = store.consumer("orders", group_id="audit", client_id="nightly")
    for timeout_ms in (0, 20):
        begin = ("--group", "audit", "--from-beginning", "--timeout-ms", timeout_ms)
        done = cli("consume", "orders", *begin, "--until-timestamp", store.runtime.clock.now_ms())
        assert done.rows == []
        assert done.err.count("This consumer waits for member 'nightly-") == 1
    member.close()
    assert "waits for" not in cli("consume", "orders", *begin).err


def test_a_consumer_that_was_removed_from_its_group_is_fenced(
    cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("produce", "orders", "--partition", 0, stdin=ALL)

    def with_an_operator(row: Any) -> str:
        if row["id"] == 3:
            store.admin().remove_members("audit")
        return encode_row(row)

    monkeypatch.setattr(formats, "encode_row", with_an_operator)
    done = cli("consume", "orders", "--group", "audit", *NOW, status=3)
    assert "this one left, or was removed" in done.err
    described = store.admin().describe_group("audit")
    assert [each.committed for each in described.offsets if each.committed] == []


def test_a_group_passes_over_rows_that_it_does_not_see(cli: Cli, store: Store) -> None:
    """Lag reaches zero although the log ends with an aborted transaction (R11)."""
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send("orders", ROWS, partition=0)
        producer.flush()
        producer.abort_transaction()
    assert cli("consume", "orders", "--group", "audit", *NOW).rows == []
    offsets = cli("consumer-groups", "describe", "audit", "-o", "json").json["offsets"]
    assert [(each["partition"], each["committed"], each["lag"]) for each in offsets] == [(0, 7, 0), (1, 0, 0)]
