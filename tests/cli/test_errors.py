"""Bad input: one clear message, an exit status that tells the caller what to do, no traceback, and no write."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.support import Cli, run
from txlog import errors
from txlog.cli.errors import BROKEN_PIPE, exit_status, report
from txlog.cli.output import OutputFormat
from txlog.client import Store, TopicPartition
from txlog.core import envelope
from txlog.core.records import StoreConstants, StoreDescriptor


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError, 2),
        (errors.SchemaMismatchError, 2),
        (errors.NotAStoreError, 2),
        (errors.FencedError, 3),
        (errors.InvalidProducerIdMappingError, 3),
        (errors.InvalidProducerEpochError, 3),
        (errors.CorruptLogError, 4),
        (errors.MissingObjectError, 4),
        (errors.RetriableError, 5),
        (errors.TxlogTimeoutError, 5),
        (errors.OutcomeUnknownError, 5),
        (errors.AbortableError, 1),
        (errors.CommitFailedError, 3),
        (errors.TxlogError, 1),
    ],
)
def test_the_exit_status_tells_the_next_move(error: type[errors.TxlogError], status: int) -> None:
    assert exit_status(error("x")) == status
    assert exit_status(error("x"), repeatable=False) == (4 if status == 5 else status)


def test_an_error_and_its_notes(capsys: pytest.CaptureFixture[str]) -> None:
    error = errors.StorageError("the store did not answer. hint: try again")
    error.add_note("closing failed too")
    assert report(error, OutputFormat.TEXT) == 5
    assert capsys.readouterr() == ("", "Error: the store did not answer\n  hint: try again\nclosing failed too\n")
    assert report(error, OutputFormat.JSON) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert msgspec.json.decode(err) == {
        "error": "StorageError",
        "message": "the store did not answer",
        "hint": "try again",
        "status": 5,
        "notes": ["closing failed too"],
    }


PRODUCE = ("produce", "orders")
ROW = '{"id": 1, "item": "x"}\n'


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("topics", "create", "bad name"), "topic name 'bad name' is not valid: expected 1 to 249 of the characters"),
        (("topics", "create", "__mine"), "topic name '__mine' is reserved"),
        (("topics", "create"), "which topic? Name it after the command"),
        (("topics", "create", "a", "--topic", "b"), "two topics are named, 'a' and 'b'; name one"),
        (("topics", "create", "a", "--partitions", 0), "topic 'a': 0 is not a number of partitions"),
        (
            ("topics", "create", "a", "--set", "retention.mss=1"),
            "unknown topic configuration key 'retention.mss'. Did you mean 'retention.ms'?",
        ),
        (
            ("topics", "create", "a", "--set", "retention.ms=-5"),
            "retention.ms = '-5': expected an integer of at least -1",
        ),
        (("topics", "create", "a", "--set", "retention.ms"), "--set takes KEY=VALUE, found 'retention.ms' without ="),
        (
            ("topics", "create", "a", "--config", "retention.ms=1"),
            "--config 'retention.ms=1': this file does not exist; settings are given as --set KEY=VALUE (topics)",
        ),
        (("topics", "create", "a", "--column", "x:in32"), "type 'in32' is not supported"),
        (
            ("topics", "create", "a", "--column", "x:int32", "--column", "X:int32"),
            "columns 'x' and 'X' differ in case only",
        ),
        (("topics", "describe", "order"), "topic 'order' does not exist. Did you mean 'orders'?"),
        (
            ("topics", "alter", "orders"),
            "nothing to alter; give --set, --unset, --partitions, --add-column, --rename-column, --drop-column",
        ),
        (("topics", "alter", "orders", "--partitions", 1), "topic 'orders'"),
        (("topics", "alter", "orders", "--column", "n:string:not-null"), "new column 'n' must be nullable"),
        (("topics", "delete", "nope"), "topic 'nope' does not exist"),
        (("get-offsets", "nope"), "topic 'nope' does not exist"),
        (("get-offsets", "--partitions", "x"), "--partitions 'x': expected numbers of partitions, as in 0,1"),
        (
            ("get-offsets", "orders", "--partitions", "2"),
            "topic 'orders' has no partition 2: it has 2, numbered 0 to 1",
        ),
        (
            ("get-offsets", "--time", "soon"),
            "--time 'soon': expected earliest, latest, a moment as in 2013-01-31T05:17:00Z",
        ),
        (("get-offsets", "--isolation-level", "dirty"), "expected one of read_committed, read_uncommitted"),
        (("transactions", "describe", "nobody"), "no transactional.id 'nobody' in this store"),
        (("transactions", "describe"), "which transactional.id? Name it after the command"),
        (("transactions", "abort", "nobody"), "no transactional.id 'nobody' in this store"),
        (("transactions", "expire", "--transactional-id", "nobody"), "no transactional.id 'nobody' in this store"),
        (("transactions", "expire", "--force"), "--force needs --transactional-id"),
        (
            ("transactions", "list", "--state", "DEAD"),
            "'DEAD' is not a state of a transaction; expected one of EMPTY, ONGOING",
        ),
        (("transactions", "find-hanging", "--partition", 1), "--partition needs --topic"),
        (("transactions", "find-hanging", "--topic", "orders", "--partition", 7), "topic 'orders' has no partition 7"),
        (("transactions", "find-hanging", "--max-transaction-timeout", -1), "expected minutes, at least 0"),
        (("consumer-groups", "describe", "nobody"), "no consumer group 'nobody' in this store"),
        (("consumer-groups", "delete", "nobody"), "no consumer group 'nobody' in this store"),
        (("consumer-groups", "reset-offsets", "g"), "where to? Give one of --to-earliest, --to-latest, --to-offset N,"),
        (("consumer-groups", "reset-offsets", "g", "--to-latest", "--to-offset", 3), "where to? Give one of"),
        (("consumer-groups", "reset-offsets", "nobody", "--to-latest"), "no consumer group 'nobody' in this store"),
        (
            ("consumer-groups", "reset-offsets", "g", "--to-offset", -3, "--topic", "orders"),
            "--to-offset -3: expected an offset",
        ),
        (
            ("consumer-groups", "reset-offsets", "g", "--to-datetime", "soon", "--topic", "orders"),
            "--to-datetime 'soon': expected",
        ),
        (
            ("consumer-groups", "reset-offsets", "g", "--to-latest", "--topic", "orders:5"),
            "topic 'orders' has no partition 5",
        ),
        (("produce", "nope"), "topic 'nope' does not exist"),
        ((*PRODUCE, "--batch", 0), "--batch 0: expected a number of rows, at least 1"),
        ((*PRODUCE, "--version", 3), "--version needs --transactional-id"),
        ((*PRODUCE, "--partition", 5), "topic 'orders' has no partition 5: it has 2, numbered 0 to 1"),
        ((*PRODUCE, "--key", "ide"), "Did you mean 'id'?"),
        (
            (*PRODUCE, "--property", "linger=5"),
            "unknown producer configuration key 'linger'. Did you mean 'linger.ms'?",
        ),
        ((*PRODUCE, "--property", "staged=true"), "staged = true needs a transactional.id"),
        (
            (*PRODUCE, "--transactional-id", "t", "--property", "transaction.timeout.ms=900001"),
            "transaction.timeout.ms = 900001 is beyond transaction.max.timeout.ms = 900000",
        ),
        ((*PRODUCE, "--transactional-id", "t", "--property", "transaction.timeout.ms=0"), "transaction.timeout.ms"),
        (("consume",), "which topic? Name it after the command"),
        (("consume", "nope", "--timeout-ms", 0), "topic 'nope' does not exist"),
        (("consume", "orders", "--offset", 3), "--offset needs --partition"),
        (("consume", "orders", "events", "--partition", 0), "--partition needs one topic, and 2 are named"),
        (("consume", "orders", "--partition", 0, "--group", "g"), "--partition and --group exclude each other"),
        (("consume", "orders", "--partition", 9, "--timeout-ms", 0), "topic 'orders' has no partition 9"),
        (("consume", "orders", "--max-messages", -1), "--max-messages -1: expected a number of rows"),
        (("consume", "orders", "--timeout-ms", -1), "--timeout-ms -1: expected milliseconds"),
        (
            ("consume", "orders", "--isolation-level", "dirty"),
            "isolation.level = 'dirty': expected one of read_committed",
        ),
        (
            ("consume", "orders", "--partition", 1, "--offset", 9, "--timeout-ms", 0),
            "orders-1: offset 9 is out of range, the log holds 0 to 0. It lies beyond the log end\n  hint: ",
        ),
    ],
)
def test_bad_input_is_a_clear_message_and_writes_nothing(
    cli: Cli, store: Store, command: tuple[str | int, ...], message: str
) -> None:
    before = sorted(path for path in cli.root.rglob("*") if path.is_file())
    assert message in cli.fails(*command, stdin=ROW)
    after = sorted(path for path in cli.root.rglob("*") if path.is_file())
    # The only change: the command took over a transactional.id before it met the first bad row.
    assert [path for path in after if path not in before and "__transaction_state" not in str(path)] == []


def test_a_wrong_option_names_the_nearest(cli: Cli) -> None:
    done = run("topics", "list", "--stroe", "x", status=2)
    assert done.err.startswith("Error: No such option: --stroe")
    assert "--store" in done.err
    assert done.err.endswith("Try 'txlog topics list --help'.\n")
    assert "Did you mean 'topics', 'top'?" in run("topcis", "list", status=2).err
    assert "'xml'" in run("topics", "list", "--output", "xml", status=2).err
    assert "--partitions" in run("topics", "create", "a", "--partitions", "many", status=2).err


# -- a place that is not a store, or not one for this txlog ------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ("--bootstrap-server", "localhost:9092", "topics", "list"),
            "there are no servers, so name the store with --store URL",
        ),
        (("topics", "create", "t", "--replication-factor", 3), "leave it out, because the storage keeps the copies"),
        (("compact", "--max-keys", 0), "expected at least 1"),
        (("compact", "--min-cleanable-dirty-ratio", 5), "expected at most 1"),
        (
            ("topics", "create", "t", "--column", "a:decimal(50,2)"),
            "expected decimal(p,s) with p from 1 to 38 and s from 0 to p",
        ),
        (("topics", "describe", "nothing-like-it"), "does not exist. The topics are orders"),
        (("topics", "--list"), "this is a command, not an option; write `list`"),
        (("topics", "alter", "orders", "--partitions", 1), "partitions cannot be removed\n  hint: create a new topic"),
        (("maintain", "--once", "--metrics-port", 80), "hint: --metrics-file keeps them"),
        (("consume", "orders/0"), "hint: name topic 'orders' and partition 0 separately"),
        (("topics", "describe", "orders:1"), "hint: name topic 'orders' and partition 1 separately"),
        (("produce", "orders"), "expected a JSON object with the columns of topic 'orders', found 'id,item'"),
    ],
)
def test_what_a_newcomer_types_is_answered_with_what_to_type(
    cli: Cli, store: Store, command: tuple[str, ...], said: str
) -> None:
    assert store.topic("orders").partitions == 2
    found = cli.fails(*command, stdin="id,item\n1,x\n")
    assert said in found
    assert len(found) <= 300


def test_a_partition_is_named_as_elsewhere_on_the_command_line(cli: Cli, store: Store) -> None:
    def partitions(*named: str | int) -> list[tuple[str, int]]:
        return [(each["topic"], each["partition"]) for each in cli("get-offsets", *named, "-o", "json").json]

    store.create_topic("other-1", store.topic("orders").schema)
    for spelling in ("orders/1", "orders:1", "orders-1", "orders/1/"):
        assert partitions(spelling) == [("orders", 1)], spelling
    assert partitions("orders/1", "orders:0") == partitions("orders:0,1") == partitions("orders", "orders/1")
    assert len(partitions("orders:0,1")) == 2
    # A topic with this name has precedence.
    assert partitions("other-1", "orders-0") == [("orders", 0), ("other-1", 0)]
    for command in ("get-offsets", "merge", "retention"):
        assert "topic 'orders' has no partition 7: it has 2" in cli.fails(command, "orders/7")
        assert "names partitions, and so does --partitions 0" in cli.fails(command, "orders/1", "--partitions", 0)
        assert "topic 'ordres-1' does not exist" in cli.fails(command, "ordres-1")
    assert "no row of 1 partition is beyond" in cli("retention", "orders/0").out
    assert "--set cleanup.policy=compact --set key.columns=COLUMN` sets them" in cli.fails("compact", "orders/0")
    cli("topics", "alter", "orders", "--set", "key.columns=id")
    assert "topic 'orders' is not compacted" in (message := cli.fails("compact", "orders/0"))
    assert "`txlog topics alter orders --set cleanup.policy=compact` sets them" in message


def test_no_transaction_is_open(cli: Cli, store: Store) -> None:
    assert store.topics()
    assert cli("transactions", "find-hanging", "--max-transaction-timeout", 0).out == "No transaction is open.\n"
    assert cli("transactions", "find-hanging").out == (
        "No transaction hangs: each open one wrote in the last 15 min and is not past its time-out. "
        "--max-transaction-timeout 0 lists every open one.\n"
    )


def test_no_store_is_named() -> None:
    done = run("topics", "list", status=2)
    assert done.err == "Error: which store? Name it with --store URL, or in the environment as TXLOG_STORE\n"


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("transactions", "list"), ("dump-log", "orders/0"), ("get-offsets",)]
)
def test_an_empty_location_is_no_store_to_look_into(cli: Cli, command: tuple[str, ...]) -> None:
    message = cli.fails(*command)
    assert (
        message == f"file://{cli.root} holds no txlog store: it is empty or missing. Check --store; "
        "`txlog topics create` makes one"
    )
    assert not cli.root.exists()


def test_a_directory_that_is_no_store(cli: Cli) -> None:
    cli.root.mkdir()
    (cli.root / "notes.txt").write_text("hello")
    for command in [("topics", "list"), ("topics", "create", "orders")]:
        message = cli.fails(*command)
        assert "holds 'notes.txt', and no txlog.json: it is not a txlog store" in message
    assert [path.name for path in cli.root.iterdir()] == ["notes.txt"]


def descriptor(**changes: object) -> bytes:
    made = StoreDescriptor(store_id="0" * 32, created_at=0, constants=StoreConstants())
    return envelope.encode(msgspec.structs.replace(made, **changes))


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (descriptor(version=2), 2, "txlog.json: format version 2, and this txlog reads up to 1; upgrade pyspark-txlog"),
        (descriptor(features=("time-travel",)), 2, "the store needs time-travel, and this txlog knows"),
        (descriptor().replace(b"created", b"creatad"), 4, "txlog.json: checksum "),
        (b"{}\n", 4, "txlog.json: its line does not end in a crc32c field"),
        (b"", 4, "txlog.json: no end of line in 0 bytes"),
    ],
)
def test_a_store_that_this_txlog_must_not_touch(cli: Cli, data: bytes, status: int, message: str) -> None:
    cli.root.mkdir()
    (cli.root / "txlog.json").write_bytes(data)
    for command in [("topics", "list"), ("topics", "create", "orders")]:
        assert message in cli.fails(*command, status=status)
    assert [path.name for path in cli.root.iterdir()] == ["txlog.json"]


@pytest.mark.parametrize("url", ["ftp://host/x", "hdfs://host/x"])
def test_a_backend_without_atomic_create_is_refused(cli: Cli, url: str) -> None:
    assert cli.fails("topics", "list", store=url)


@pytest.mark.parametrize(
    "store", ["s3://user:SECRET@bucket/x", "abfs://c@a.dfs.core.windows.net/x?sig=SECRET", "s3://bucket/x?key=SECRET"]
)
def test_credentials_never_appear(store: str) -> None:
    for option in ["secret=SECRET", "=SECRET", "SECRET"]:
        done = run("topics", "list", "--store", store, "--storage-option", option, status=2)
        assert done.err
        assert "SECRET" not in done.err + done.out


def test_a_configuration_file(cli: Cli, tmp_path: Path) -> None:
    cli("topics", "create", "orders")
    missing = tmp_path / "none.toml"
    assert f"--config '{missing}': this file does not exist; give the path of a TOML file" in cli.fails(
        "topics", "list", "--config", str(missing)
    )
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[client]\n'retry.backof.ms' = 5\n")
    assert f"{wrong}: unknown client configuration key 'retry.backof.ms'. Did you mean" in cli.fails(
        "topics", "list", "--config", str(wrong)
    )
    right = tmp_path / "right.toml"
    right.write_text("[consumer]\n'auto.offset.reset' = 'earliest'\n")
    cli("produce", "orders", stdin='{"value": "x"}\n')
    assert len(cli("consume", "orders", "--timeout-ms", 0, "--config", str(right)).rows) == 1


# -- the store ---------------------------------------------------------------------------------------------------------


def test_damage_in_the_log_names_the_object(cli: Cli, store: Store) -> None:
    cli("produce", "orders", "--partition", 0, stdin=ROW)
    store.admin().reset_offsets("audit", {("orders", 0): 0, ("orders", 1): 0})
    path = cli.root / "orders/0/00000000000000000000.batch"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    for command in [
        ("consume", "orders", "--from-beginning", "--timeout-ms", 0),
        ("dump-log", "orders/0"),
    ]:
        assert cli.fails(*command, status=4).startswith("orders/0/00000000000000000000.batch: checksum ")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("topics", "list", "-o", "yaml"), "Invalid value for '--output' / '-o': 'yaml' is not one of 'text', 'json'."),
        (("consume", "t", "--max-messages", "abc"), "Invalid value for '--max-messages': expected an integer"),
        (("topics", "create", "t", "--partitions", "1.5"), "Invalid value for '--partitions': expected an integer"),
        (
            ("compact", "--min-cleanable-dirty-ratio", "abc"),
            "Invalid value for '--min-cleanable-dirty-ratio': expected a number",
        ),
    ],
)
def test_a_value_that_cannot_be_read(cli: Cli, command: tuple[str, ...], said: str) -> None:
    assert cli.fails(*command).splitlines()[0] == said


def test_a_partition_that_the_topic_does_not_have_is_refused_without_rows_too(cli: Cli, store: Store) -> None:
    assert cli.fails("produce", "orders", "--partition", 77) == (
        "topic 'orders' has no partition 77: it has 2, numbered 0 to 1"
    )


def test_an_empty_store_option_is_not_the_environments_store(cli: Cli, store: Store) -> None:
    done = run("topics", "list", "--store", "", env={"TXLOG_STORE": str(cli.root)}, status=2)
    assert "--store is empty; name the store's URL, or leave --store out to use TXLOG_STORE" in done.err


def test_help_for_a_reader_that_leaves(tmp_path: Path) -> None:
    """For `txlog --help | head` the status is the one that a shell gives to a broken pipe, as for any output."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "txlog.cli.main", "--help"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


def test_rows_that_wait_behind_an_open_transaction_are_told(cli: Cli, store: Store) -> None:
    producer = store.producer("loader", linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", [{"id": 1}], partition=0).result()
    cli("produce", "orders", "--partition", 0, stdin=ROW * 3)
    cli("produce", "orders", "--partition", 1, stdin=ROW)
    look = ("consume", "orders", "--from-beginning", "--timeout-ms", 0)
    done = cli(*look)
    assert len(done.rows) == 1
    (told,) = [line for line in done.err.splitlines() if "wait" in line]
    assert told.startswith("orders-0: 4 offsets from 0 on wait behind an open transaction of 'loader', quiet for ")
    assert "`txlog transactions abort loader` ends it" in told
    assert "wait" not in cli(*look, "--isolation-level", "read_uncommitted").err
    assert "wait" not in cli(*look, "--property", "isolation.level=read_uncommitted").err
    assert "wait" not in cli(*look, "--partition", 1).err
    producer.commit_transaction()
    assert (len(cli(*look).rows), cli(*look).err) == (5, "")


@pytest.mark.parametrize("harm", ["damaged", "lost"])
def test_what_is_not_damaged_is_shown_all_the_same(cli: Cli, store: Store, harm: str) -> None:
    for number in (0, 1):
        cli("produce", "orders", "--partition", number, stdin=ROW * 2)
        cli("produce", "orders", "--partition", number, stdin=ROW)
    store.admin().reset_offsets("audit", {("orders", 0): 0, ("orders", 1): 0})
    path = cli.root / "orders/0/00000000000000000000.batch"
    path.unlink() if harm == "lost" else path.write_bytes(b"{}")

    def shown(*command: str) -> Any:
        done = cli(*command, "-o", "json", status=4)
        error = msgspec.json.decode(done.err)
        assert error["status"] == 4
        assert "orders/0/00000000000000000000.batch" in error["message"]
        if harm == "lost":
            assert error["hint"] == "check the store with `txlog fsck`"
        return done.json

    assert [(each["partition"], each["log_end_offset"]) for each in shown("get-offsets", "orders")] == [(1, 3)]
    (described,) = shown("topics", "describe", "orders")
    assert [each["partition"] for each in described["ends"]] == [1]
    group = shown("consumer-groups", "describe", "audit")
    assert [(each["partition"], each["lag"]) for each in group["offsets"]] == [(0, None), (1, 3)]
    for command in (("consumer-groups", "describe", "audit"), ("consumer-groups", "list")):
        (total,) = [line.split()[-1] for line in cli(*command, status=4).lines if line.startswith(("lag", "audit "))]
        assert total == "-"  # a sum without a partition would look like the lag
    (listed,) = shown("consumer-groups", "list")
    assert listed["group"] == "audit"


@pytest.mark.parametrize("harm", ["damaged", "lost"])
def test_transactions_and_groups_beside_a_damaged_partition_are_shown(cli: Cli, store: Store, harm: str) -> None:
    cli("produce", "orders", stdin=ROW)
    for number in range(4):
        for name in (f"loader-{number}", f"other-{number}"):
            cli("produce", "orders", "--transactional-id", name, stdin=ROW)
            for _ in range(2):  # a partition whose only record is lost looks empty
                store.admin().reset_offsets(name, {("orders", 0): 0})
    for command, topic in (("transactions", "__transaction_state"), ("consumer-groups", "__consumer_offsets")):
        key = "transactional_id" if command == "transactions" else "group"
        whole = {each[key] for each in cli(command, "list", "-o", "json").json}
        assert len(whole) == 8
        path = min(cli.root.glob(f"{topic}/*/*0000.batch"))
        path.unlink() if harm == "lost" else path.write_bytes(b"{}")
        done = cli(command, "list", "-o", "json", status=4)
        assert f"{topic}/{path.parent.name}/" in msgspec.json.decode(done.err)["message"]
        left = {each[key] for each in done.json}
        assert 0 < len(left) < len(whole)
        assert left < whole
        if command == "transactions":
            assert cli(command, "find-hanging", status=4).out == "No transaction can be shown.\n"
        assert cli(command, "list", status=4).out.count("loader-") == sum(name.startswith("loader-") for name in left)


def test_a_topic_beside_one_with_damaged_metadata_is_shown(cli: Cli, store: Store) -> None:
    store.create_topic("events")
    next(cli.root.glob("events/topic.*.json")).write_bytes(b"{}")
    for command in (("topics", "list"), ("topics", "describe"), ("get-offsets",)):
        done = cli(*command, "-o", "json", status=4)
        assert {each["topic"] for each in done.json} == {"orders"}
        assert "events/topic." in msgspec.json.decode(done.err)["message"]
    assert "No topic" not in cli("topics", "list", status=4).out


def test_times_and_sizes_beside_a_damaged_index(seen: Cli, tmp_path: Path) -> None:
    shutil.copytree(seen.root, tmp_path / "store")
    cli = Cli(tmp_path / "store")
    (path, *_) = sorted(cli.root.glob("orders/0/*.index"))
    path.write_bytes(b"{}")
    for command in (("get-offsets", "orders", "--time", 0), ("topics", "describe", "orders", "--size")):
        done = cli(*command, "-o", "json", status=4)
        assert "orders/0/" in msgspec.json.decode(done.err)["message"]
        (found, *_) = done.json
        sizes = found.get("sizes", done.json)
        assert [each["partition"] for each in sizes] == [1]


def test_undecided_offsets_are_worth_another_try(cli: Cli, store: Store) -> None:
    """The answer is never the older offset, but an error with the status for a retry (R16)."""
    producer = store.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("orders", 0): 0}, "audit")
    message = cli.fails(
        *("consume", "orders", "--group", "audit", "--timeout-ms", 0),
        *("--property", "default.api.timeout.ms=200", "--from-beginning"),
        status=5,
    )
    assert "audit" in message
    producer.abort_transaction()
    assert cli("consume", "orders", "--group", "audit", "--timeout-ms", 0).rows == []


def test_an_error_in_json(cli: Cli) -> None:
    cli("topics", "create", "orders")
    done = cli("topics", "describe", "order", "-o", "json", status=2)
    assert done.out == ""
    assert msgspec.json.decode(done.err) == {
        "error": "UnknownTopicOrPartitionError",
        "message": "topic 'order' does not exist. Did you mean 'orders'?",
        "hint": None,
        "status": 2,
        "notes": [],
    }
