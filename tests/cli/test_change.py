"""Commands that change topics, transactions and groups: their effects, and what a dry run leaves alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import ORDERS
from tests.cli.support import Cli
from txlog.client import Store, TopicPartition
from txlog.core.schema import KAFKA_FIELDS
from txlog.errors import CommitFailedError, InvalidConfigurationError, InvalidPartitionsError
from txlog.storage.arrow_schema import to_arrow

ORDERS_0 = TopicPartition("orders", 0)


def rows(count: int) -> list[dict[str, object]]:
    return [{"id": number, "item": "x"} for number in range(count)]


# -- topics -----------------------------------------------------------------------------------------------------------


def test_create_a_topic_and_the_store_with_it(cli: Cli) -> None:
    done = cli(
        *("topics", "create", "orders", "--partitions", 3, "--column", "id:int64:not-null"),
        *("--column", "tags:list<string>", "--set", "retention.ms=-1", "--set", "key.columns=id"),
    )
    assert done.out == "Created topic 'orders' with 3 partitions.\n"
    (topic,) = cli("topics", "describe", "orders", "-o", "json").json
    assert topic["partitions"] == 3
    assert topic["config"] == {"key.columns": "id", "retention.ms": "-1"}
    assert topic["columns"] == [
        {"id": 1, "name": "id", "type": "int64", "nullable": False, "fields": []},
        {
            "id": 2,
            "name": "tags",
            "type": "list",
            "nullable": True,
            "fields": [{"id": 3, "name": "element", "type": "string", "nullable": True, "fields": []}],
        },
    ]


def test_a_schema_travels_from_one_topic_to_another(cli: Cli, tmp_path: Path) -> None:
    cli("topics", "create", "a", "--column", "id:int64:not-null", "--column", "m:map<string, decimal(9,2)>")
    (described,) = cli("topics", "describe", "a", "-o", "json").json
    path = tmp_path / "schema.json"
    path.write_bytes(msgspec.json.encode(described["columns"]))
    made = cli("topics", "create", "b", "--schema", str(path), "-o", "json").json
    assert made["columns"] == described["columns"]


def test_create_again(cli: Cli) -> None:
    cli("topics", "create", "orders")
    assert cli.fails("topics", "create", "orders").startswith("topic 'orders' exists already, with 1 partition;")
    assert cli("topics", "create", "orders", "--if-not-exists").out == (
        "Topic 'orders' exists already, with 1 partition; nothing was changed.\n"
    )
    assert cli.fails("topics", "create", "orders", "--column", "id:int64", "--if-not-exists").startswith(
        "topic 'orders' exists already, with another schema: it has no column 'id'"
    )


def test_what_if_not_exists_compares(cli: Cli) -> None:
    """As its help states, it compares columns and types, and other columns only if they are nullable.

    It does not compare partitions and settings.
    """
    create = ("topics", "create", "orders", "--column", "id:int64")
    cli(*create, "--column", "note:string")
    assert "nothing was changed" in cli(*create, "--partitions", 9, "--set", "segment.ms=1", "--if-not-exists").out
    (found,) = cli("topics", "list", "-o", "json").json
    assert (found["partitions"], found["config"]) == (1, {})
    assert "its column 'id' is int64, and int32 was asked for" in cli.fails(
        "topics", "create", "orders", "--column", "id:int32", "--if-not-exists"
    )
    cli("topics", "create", "strict", "--column", "id:int64", "--column", "note:string:not-null")
    assert "'note' (string not null) was not asked for, and takes no null" in cli.fails(
        "topics", "create", "strict", "--column", "id:int64", "--if-not-exists"
    )


def test_alter(cli: Cli, store: Store) -> None:
    done = cli("topics", "alter", "orders", "--partitions", 4, "--column", "note:string", "--set", "segment.batches=7")
    assert done.out == "Changed topic 'orders': version 1, 4 partitions, 3 columns, segment.batches=7.\n"
    assert cli("topics", "alter", "orders", "--partitions", 4).out == (
        "Topic 'orders' is as asked for already; nothing was changed.\n"
    )
    assert cli("topics", "alter", "orders", "--unset", "segment.batches", "-o", "json").json["config"] == {}
    assert store.topic("orders").partitions == 4


def test_more_partitions_move_keys(cli: Cli, store: Store) -> None:
    """W39: new rows of a key would go to another partition than its older ones, so the command warns and needs a
    flag."""
    cli("topics", "alter", "orders", "--set", "key.columns=id")
    more = ("topics", "alter", "orders", "--partitions", 3)
    said = cli.fails(*more)
    assert said.startswith("topic 'orders': 3 partitions instead of 2 would move keys (id) to other partitions")
    assert "--allow-key-movement" in said
    with pytest.raises(InvalidPartitionsError, match="allow_key_movement=True"):
        store.alter_topic("orders", partitions=3)
    cli("topics", "alter", "orders", "--set", "cleanup.policy=compact")
    for command in (more, (*more, "--allow-key-movement")):
        assert "compaction (cleanup.policy) would keep rows of a key in both" in cli.fails(*command)
    assert store.topic("orders").partitions == 2
    cli("topics", "alter", "orders", "--unset", "cleanup.policy")
    assert cli(*more, "--allow-key-movement", "-o", "json").json["partitions"] == 3
    assert store.alter_topic("orders", partitions=4, allow_key_movement=True).partitions == 4
    # The same number of partitions moves no key.
    assert store.alter_topic("orders", partitions=4).partitions == 4


def test_another_key_moves_keys(cli: Cli, store: Store) -> None:
    """W39: with rows in several partitions, a change of key.columns needs a flag. Compacted topics refuse it."""
    alter = ("topics", "alter", "orders", "--set")
    cli("topics", "delete", "orders", "--execute")
    cli("topics", "create", "other", "--column", "id:int64", "--column", "item:string", "--partitions", 2)
    cli("topics", "alter", "other", "--set", "key.columns=id")
    cli("topics", "alter", "other", "--set", "key.columns=item")  # no row was written yet, so no key moves
    store.create_topic("orders", ORDERS, partitions=2, config={"key.columns": "item"})
    with store.producer() as producer:
        producer.send("orders", rows(5))
    said = cli.fails(*alter, "key.columns=id")
    assert said.startswith(
        "topic 'orders': the change (key.columns=item, 2 partitions; then key.columns=id, 2 partitions) would move keys"
    )
    assert "--allow-key-movement" in said
    with pytest.raises(InvalidConfigurationError, match="allow_key_movement=True"):
        store.alter_topic("orders", remove_config=["key.columns"])
    cli(*alter, "cleanup.policy=compact")
    for more in ((), ("--allow-key-movement",)):
        assert "compaction would keep rows of a key in both" in cli.fails(*alter, "key.columns=id", *more)
    cli("topics", "alter", "orders", "--unset", "cleanup.policy")
    assert cli(*alter, "key.columns=id", "--allow-key-movement", "-o", "json").json["config"] == {"key.columns": "id"}


@pytest.mark.parametrize("moved", [{"partitions": 3}, {"config": {"key.columns": "item"}}], ids=["partitions", "key"])
def test_a_topic_whose_keys_have_moved_is_not_compacted(store: Store, moved: dict[str, Any]) -> None:
    """W39: compaction works within a partition, so the old row of a moved key would stay for ever."""
    compact = {"cleanup.policy": "compact"}
    store.alter_topic("orders", config={"key.columns": "id"})
    with store.producer() as producer:
        producer.send("orders", rows(5))
    store.alter_topic("orders", **moved, allow_key_movement=True)
    store.alter_topic("orders", config={"segment.batches": 7})
    for asked in (False, True):
        with pytest.raises(
            InvalidConfigurationError, match=r"version 2 moved keys to other partitions \(key.columns=id, 2 p"
        ) as refused:
            store.alter_topic("orders", config=compact, allow_key_movement=asked)
        assert "copy the rows" in str(refused.value)
        assert len(str(refused.value)) <= 300
    # A topic that is created again under the same name starts without moved keys.
    store.delete_topic("orders")
    store.create_topic("orders", ORDERS, partitions=3, config={"key.columns": "id"})
    assert store.alter_topic("orders", config=compact).config["cleanup.policy"] == "compact"


def test_one_partition_has_nowhere_to_move_keys_to(store: Store) -> None:
    store.create_topic("single", ORDERS, config={"key.columns": "id"})
    with store.producer() as producer:
        producer.send("single", rows(5))
    config = {"key.columns": "item", "cleanup.policy": "compact"}
    assert dict(store.alter_topic("single", config=config).config) == dict(sorted(config.items()))


def test_alter_with_a_schema_file_adds_what_is_new(cli: Cli, store: Store, tmp_path: Path) -> None:
    (described,) = cli("topics", "describe", "orders", "-o", "json").json
    path = tmp_path / "schema.json"
    path.write_bytes(msgspec.json.encode([*described["columns"], {"name": "note", "type": "string"}]))
    assert len(cli("topics", "alter", "orders", "--schema", str(path), "-o", "json").json["columns"]) == 3
    path.write_bytes(msgspec.json.encode(described["columns"][1:]))
    assert cli.fails("topics", "alter", "orders", "--schema", str(path)) == (
        "topic 'orders': column 'id' is missing; columns can be added, not dropped or renamed"
    )


def test_the_history_of_the_columns(cli: Cli) -> None:
    cli("topics", "create", "orders", "--column", "id:int64:not-null")
    cli("topics", "alter", "orders", "--column", "note:string")
    cli("topics", "alter", "orders", "--set", "retention.ms=5")
    (topic,) = cli("topics", "describe", "orders", "--schema-history", "-o", "json").json
    assert [(each["schema_id"], each["changes"]) for each in topic["schema_history"]] == [
        (0, ["created"]),
        (1, ["added note string"]),
    ]
    assert [each["name"] for each in topic["schema_history"][1]["columns"]] == ["id", "note"]
    lines = cli("topics", "describe", "orders", "--schema-history").lines
    assert any(line.split()[:1] == ["1"] and line.rstrip().endswith("added note string") for line in lines)
    assert not any("Schema history" in line for line in cli("topics", "describe", "orders").lines)


def test_delete_is_a_dry_run_unless_executed(cli: Cli, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", rows(5), partition=1)
    assert cli("topics", "delete", "orders").out == (
        "Would delete topic 'orders': 2 partitions, 5 offsets. Add --execute to do it.\n"
    )
    assert cli("topics", "delete", "orders", "-o", "json").json == {
        "kind": "topic",
        "name": "orders",
        "executed": False,
    }
    assert cli("get-offsets", "orders").status == 0
    assert cli("topics", "delete", "orders", "--execute").out == "Deleted topic 'orders': 2 partitions, 5 offsets.\n"
    assert "orders" in cli.fails("topics", "describe", "orders")


# -- transactions -----------------------------------------------------------------------------------------------------


def leave_open(store: Store, transactional_id: str, timeout_ms: int) -> None:
    """Leave the open transaction of a producer that died."""
    producer = store.producer(transactional_id, transaction_timeout_ms=timeout_ms)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", rows(2), partition=0)
    producer.flush()
    store._clients.discard(producer)


def test_abort_lets_readers_go_on(cli: Cli, store: Store) -> None:
    leave_open(store, "loader", 60_000)
    assert cli("get-offsets", "orders", "--partitions", 0, "-o", "json").json[0]["last_stable_offset"] == 0
    done = cli("transactions", "abort", "loader")
    assert done.out.startswith("Aborted the transaction of 'loader'; nothing of it is visible. Its producer ")
    assert done.out.endswith(" may go on at epoch 1.\n")
    assert cli("get-offsets", "orders", "--partitions", 0, "-o", "json").json[0]["last_stable_offset"] == 3
    assert cli("transactions", "abort", "loader").out == "'loader' has no open transaction; nothing was changed.\n"
    document = cli("transactions", "abort", "--transactional-id", "loader", "-o", "json").json
    assert (document["result"], document["producer_epoch"]) == ("nothing open", 1)


def test_expire_says_first_and_does_then(cli: Cli, store: Store) -> None:
    leave_open(store, "late", 1)
    leave_open(store, "busy", 60_000)
    assert cli("transactions", "expire").lines == [
        "TRANSACTIONAL ID  RESULT            BECAUSE",
        "late              would be aborted  past its time-out",
        "",
        "Add --execute to do it.",
    ]
    assert cli("transactions", "expire", "-o", "json").json["executed"] is False
    assert cli("transactions", "expire", "--execute", "-o", "json").json == {
        "executed": True,
        "aborted": ["late"],
        "rolled_forward": [],
        "removed": [],
    }
    assert cli("transactions", "expire", "--execute").out == "Nothing is due.\n"
    assert [each["state"] for each in cli("transactions", "list", "-o", "json").json] == ["ONGOING", "COMPLETE_ABORT"]


def test_expire_one_id(cli: Cli, store: Store) -> None:
    leave_open(store, "busy", 60_000)
    with store.producer("versioned") as producer, producer.transaction(version=7):
        producer.send("orders", rows(1), partition=1)
    store.admin().fence("plain")
    said = {
        "busy": "'busy' is kept: its transaction is ONGOING; end it first (txlog transactions abort busy).\n",
        "plain": "'plain' is kept: it is not idle for long enough (transactional.id.expiration.ms, and at least "
        "delete.grace.ms); --force forgets it all the same.\n",
        "versioned": "'versioned' is kept: it holds txn.version 7, without which a late replay of an older transaction "
        "would be let in; --force forgets it all the same.\n",
    }
    for name, sentence in said.items():
        assert cli("transactions", "expire", "--execute", "--transactional-id", name).out == sentence
    forced = ("transactions", "expire", "--force", "--transactional-id")
    assert cli(*forced, "busy", "--execute").out == said["busy"]
    assert cli(*forced, "versioned").out.startswith("Would forget 'versioned' (producer ")
    assert cli(*forced, "versioned", "--execute", "-o", "json").json["removed"] == ["versioned"]
    assert cli(*forced, "plain", "--execute").out.startswith("Forgot 'plain' (producer ")
    assert [each["transactional_id"] for each in cli("transactions", "list", "-o", "json").json] == ["busy"]


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def group(store: Store) -> str:
    """Return a group that has read orders-0 up to offset 4 of 10."""
    with store.producer() as producer:
        producer.send("orders", rows(10), partition=0)
    store.admin().reset_offsets("audit", {ORDERS_0: 4})
    return "audit"


def committed(store: Store, group: str) -> dict[tuple[str, int], int | None]:
    return {(each.topic, each.partition): each.committed for each in store.admin().describe_group(group).offsets}


@pytest.mark.parametrize("target", [["--to-earliest"], ["--to-offset", "0"]])
def test_a_reset_passes_over_what_stands_for_another_systems_offset(
    cli: Cli, store: Store, group: str, target: list[str]
) -> None:
    with store.producer(transactional_id="sink") as producer, producer.transaction():
        producer.send_offsets_to_transaction({("__source.0", 0): 9}, group)
    plan = cli("consumer-groups", "reset-offsets", group, *target)
    assert [line.split()[:4] for line in plan.lines if "__source" in line] == []
    assert plan.lines[1].split()[:4] == ["orders", "0", "4", "0"]


@pytest.mark.parametrize(
    ("target", "after", "asked"),
    [
        (["--to-earliest"], 0, None),
        (["--to-latest"], 10, None),
        (["--to-offset", "7"], 7, None),
        (["--to-offset", "99"], 10, 99),
        (["--to-datetime", "2013-01-31T05:17:00Z"], 0, None),
        (["--to-datetime", "2200-01-01"], 10, None),
        (["--shift-by", "3"], 7, None),
        (["--shift-by", "-9"], 0, -5),
    ],
)
def test_reset_offsets(cli: Cli, store: Store, group: str, target: list[str], after: int, asked: int | None) -> None:
    dry = cli("consumer-groups", "reset-offsets", group, *target)
    assert dry.lines[1].split()[:4] == ["orders", "0", "4", str(after)]
    said = {
        None: "",
        99: "the log has no offset 99: this is its end",
        -5: "the log has no offset -5: this is its start",
    }
    assert dry.lines[1].endswith(said[asked])
    assert ("BECAUSE" in dry.lines[0]) == (asked is not None)
    assert dry.lines[-1] == "Would move 1 offset of group 'audit'. Add --execute to do it."
    assert committed(store, group) == {("orders", 0): 4}
    done = cli("consumer-groups", "reset-offsets", "--group", group, *target, "--execute", "-o", "json").json
    assert done == {
        "group": "audit",
        "executed": True,
        "offsets": [{"topic": "orders", "partition": 0, "before": 4, "after": after, "asked": asked}],
        "removed_members": [],
        "refusal": None,
    }
    assert committed(store, group) == {("orders", 0): after}


def test_reset_offsets_of_named_topics(cli: Cli, store: Store, group: str) -> None:
    def plan(*options: str) -> list[tuple[int, int | None, int]]:
        document = cli("consumer-groups", "reset-offsets", group, *options, "-o", "json").json
        return [(each["partition"], each["before"], each["after"]) for each in document["offsets"]]

    assert plan("--topic", "orders", "--to-latest") == [(0, 4, 10), (1, None, 0)]
    assert plan("--topic", "orders:1", "--to-offset", "0") == [(1, None, 0)]
    assert "shift_by needs one" in cli.fails(
        "consumer-groups", "reset-offsets", group, "--topic", "orders:1", "--shift-by", 1
    )


RESET = ("reset-offsets", "--to-earliest")


@pytest.mark.parametrize("command", [RESET, ("delete",)])
def test_a_group_in_use_is_left_alone(cli: Cli, store: Store, group: str, command: tuple[str, ...]) -> None:
    consumer = store.consumer("orders", group_id=group, client_id="desk")
    call = ("consumer-groups", command[0], group, *command[1:])
    refused = cli.fails(*call, "--execute")
    assert refused.startswith("group 'audit' is in use by member 'desk-")
    assert ", which joined 20" in refused
    assert "if it is gone, --force" in refused
    # The error has its hint on a separate line; a dry run shows it in a sentence.
    refused = refused.replace("\n  hint: ", ". hint: ")
    dry = cli(*call)
    assert dry.out.splitlines()[-2].startswith("Would ")
    assert dry.out.splitlines()[-1] == f"It would be refused: {refused}."
    assert cli(*call, "-o", "json").json["refusal"] == refused
    assert cli("consumer-groups", "list").lines[1].split()[:3] == ["audit", "STABLE", "desk"]
    assert committed(store, group) == {("orders", 0): 4}
    consumer.close()


def test_a_group_whose_members_are_dead_is_shown_as_empty(cli: Cli, store: Store, group: str) -> None:
    settings: dict[str, Any] = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 900}
    store.consumer("orders", group_id=group, client_id="desk", group_instance_id="one", **settings).close()
    time.sleep(1.1)
    assert cli("consumer-groups", "list").lines[1].split()[:3] == ["audit", "EMPTY", "-"]
    shown = cli("consumer-groups", "describe", group, "-o", "json").json
    assert (shown["state"], shown["members"]) == ("EMPTY", [])
    assert "It would be refused" not in cli("consumer-groups", "delete", group).out


def test_the_lag_is_unknown_while_a_member_has_no_offset(cli: Cli, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", [{"id": 1}], partition=0).result()
    with store.consumer("orders", group_id="new", enable_auto_commit=False, auto_offset_reset="earliest") as consumer:
        assert consumer.poll(0) is not None
        shown = cli("consumer-groups", "describe", "new").lines
        assert [line.split()[:3] for line in shown if line.startswith("orders ")] == [
            ["orders", str(n), "-"] for n in (0, 1)
        ]
        assert cli("consumer-groups", "list").lines[1].split()[-1] == "-"
        consumer.commit()
        assert cli("consumer-groups", "list").lines[1].split()[-1] == "0"


def test_a_group_says_that_a_transaction_holds_its_readers_back(cli: Cli, store: Store, group: str) -> None:
    call = ("consumer-groups", "describe", group)
    says = "An open transaction holds readers back in orders-0, and LAG ends there: "
    assert says not in cli(*call).out
    with store.producer("hanging", staged=False) as producer:
        producer.begin_transaction()
        producer.send("orders", [{"id": 1}], partition=0)
        producer.flush()
        assert cli(*call).lines[-1].startswith(says)
        shown = cli("transactions", "find-hanging", "--max-transaction-timeout", 0).out
        assert "hanging" in shown
        producer.abort_transaction()
    assert says not in cli(*call).out


@pytest.mark.parametrize("command", [RESET, ("delete",)])
def test_a_consumer_that_was_killed_is_removed_by_force(
    cli: Cli, store: Store, group: str, command: tuple[str, ...]
) -> None:
    killed = store.consumer("orders", group_id=group, client_id="desk", enable_auto_commit=False)
    member = store.admin().describe_group(group).member_id
    call = ("consumer-groups", command[0], group, *command[1:], "--force")
    assert cli(*call).out.splitlines()[-1].startswith(f"Would remove member '{member}', and ")
    assert cli(*call, "-o", "json").json["removed_members"] == [member]
    assert store.admin().describe_group(group).state == "STABLE"
    assert cli(*call, "--execute").out.splitlines()[-1].startswith(f"Removed member '{member}', and ")
    if command == RESET:
        assert committed(store, group) == {("orders", 0): 0}
        assert store.admin().describe_group(group).state == "EMPTY"
    else:
        assert store.admin().list_groups() == ()
    with pytest.raises(CommitFailedError, match="this one left, or was removed"):
        killed.commit({ORDERS_0: 7})
    killed.close()


def test_the_lag_of_a_group_is_unknown_if_that_of_a_partition_is(cli: Cli, store: Store, group: str) -> None:
    assert cli("consumer-groups", "list").lines[-1].split() == ["audit", "EMPTY", "-", "1", "6"]
    store.create_topic("gone", ORDERS)
    store.admin().reset_offsets(group, {TopicPartition("gone", 0): 0})
    store.delete_topic("gone")
    assert cli("consumer-groups", "list").lines[-1].split() == ["audit", "EMPTY", "-", "2", "-"]
    assert "lag             -" in cli("consumer-groups", "describe", group).lines


def test_delete_a_group(cli: Cli, store: Store, group: str) -> None:
    assert (
        cli("consumer-groups", "delete", group).out == "Would delete group 'audit': 1 offset. Add --execute to do it.\n"
    )
    assert committed(store, group) == {("orders", 0): 4}
    assert cli("consumer-groups", "delete", group, "--execute").out == "Deleted group 'audit': 1 offset.\n"
    assert cli("consumer-groups", "list", "-o", "json").json == []


def test_partitions_and_keys_do_not_move_at_once_into_compaction(store: Store) -> None:
    """A change of both moves keys too, in a topic without an explicit key.columns (W39)."""
    store.create_topic("records", to_arrow(KAFKA_FIELDS))
    with store.producer() as producer:
        producer.send("records", [{"key": b"a", "value": b"old", "headers": None, "timestamp": None}]).result()
    compact = {"key.columns": "key", "cleanup.policy": "compact"}
    with pytest.raises(InvalidConfigurationError, match="compaction would keep rows of a key in both"):
        store.alter_topic("records", partitions=4, config=compact, allow_key_movement=True)
    # Without an explicit key.columns, keys may move without a flag in a topic that is not compacted.
    assert store.alter_topic("records", partitions=4).partitions == 4
