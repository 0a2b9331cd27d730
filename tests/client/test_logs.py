"""Each event is one record: its level, its text, and its fields, which JSON formatters see.

By default nothing is printed.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.client.test_members import FOUR, SESSION_MS, Member, send, settle
from tests.client.test_staged import staged
from tests.client.world import ORDERS, World, orders
from txlog import logs
from txlog.client.session.retry import WARN_AFTER_MS
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.core.records import OffsetValue
from txlog.errors import InvalidProducerEpochError, OutcomeUnknownError, ProducerFencedError
from txlog.maintenance.maintain import Maintainer
from txlog.testing.failing_store import Fault

Said = Callable[[str], dict[str, Any]]


def field(record: logging.LogRecord, name: str) -> Any:
    """Return a field of an event."""
    return vars(record)[logs.PREFIX + name]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """Return a function that takes the only record of an event from the log: its level, its text, and its fields."""
    caplog.set_level(logging.DEBUG, "txlog")

    def take(event: str) -> dict[str, Any]:
        (record,) = [each for each in caplog.records if field(each, "event") == event]
        names = {*logs.Fields.__annotations__, "event"}
        fields = {name[6:]: value for name, value in vars(record).items() if name.startswith(logs.PREFIX)}
        assert fields.keys() <= names
        assert record.name.startswith("txlog.")
        assert "\n" not in record.getMessage()
        caplog.clear()
        return {"level": record.levelname, "text": record.getMessage(), **fields}

    return take


def begun(store: Store, name: str, **settings: Any) -> Any:
    producer = store.producer(name, **settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_the_life_of_a_transaction(world: World, store: Store, said: Said) -> None:
    producer = store.producer("loader")
    producer.init_transactions()
    started = said("producer_initialized")
    who = {name: started[name] for name in ("transactional_id", "producer_id", "producer_epoch")}
    assert who == {"transactional_id": "loader", "producer_id": started["producer_id"], "producer_epoch": 0}
    assert started["level"] == "INFO"
    assert f"'loader'): initialized as producer {who['producer_id']}, epoch 0; earlier" in started["text"]
    with producer.transaction(version=7):
        producer.send("orders", orders(1, 2), partition=0)
        producer.send("orders", orders(3), partition=2)
        producer.send_offsets_to_transaction({("facts", 1): 12}, "audit")
    committed = said("transaction_committed")
    offsets = committed.pop("offsets")
    # Rows, and then the marker, which takes the offset after them.
    home = next(name for name in offsets if name.startswith("__consumer_offsets-"))
    assert offsets == {"orders-0": world.ends()[2], "orders-2": world.ends(partition=2)[2], home: 2}
    assert committed.pop("text") == (
        f"producer (transactional.id 'loader'): committed version 7, producer {who['producer_id']}, epoch 0: "
        + ", ".join(f"{tp} up to {offset}" for tp, offset in offsets.items())
    )
    assert committed == {"level": "DEBUG", "event": "transaction_committed", "txn_version": 7, "txn_scope": "", **who}
    with producer.transaction(version=7):
        producer.send("orders", orders(4), partition=0)
    skipped = said("transaction_skipped")
    assert (skipped["level"], skipped["txn_version"], skipped["transactional_id"]) == ("INFO", 7, "loader")
    assert "version 7 was committed before (now 7): this transaction was skipped" in skipped["text"]
    with producer.transaction(version=5):
        producer.send("orders", orders(4), partition=0)
    lower = said("transaction_skipped")
    assert (lower["level"], lower["txn_version"], lower["last_txn_version"]) == ("WARNING", 5, 7)
    assert "version 5 is below the last committed version 7: this transaction was skipped" in lower["text"]
    producer.begin_transaction()
    producer.send("orders", orders(5), partition=0).result(20)
    producer.abort_transaction()
    aborted = said("transaction_aborted")
    assert (aborted["level"], aborted["transactional_id"], aborted["producer_epoch"]) == ("INFO", "loader", 1)


def test_a_staged_transaction_shows_the_same(world: World, store: Store, said: Said) -> None:
    txn = StagedTransaction.begin(store.runtime, "staged")
    txn.commit(staged(store, txn, 7))
    committed = said("transaction_committed")
    assert committed["offsets"] == {"orders-0": world.ends()[2]}
    assert (committed["transactional_id"], committed["producer_epoch"]) == ("staged", 0)


@pytest.mark.parametrize("call", ["commit", "send"])
def test_a_fenced_producer(world: World, store: Store, said: Said, call: str) -> None:
    old = begun(store, "loader")
    old.send("orders", orders(1), partition=0).result(20)
    world.open().producer("loader").init_transactions()
    ended = said("transaction_aborted_by_init")
    assert (ended["level"], ended["producer_epoch"], ended["partitions"]) == ("INFO", 0, ("orders-0",))
    assert "of transactional.id 'loader' (producer" in ended["text"]
    calls = {"commit": old.commit_transaction, "send": lambda: old.send("orders", orders(2), partition=1).result(20)}
    with pytest.raises(ProducerFencedError):
        calls[call]()
    with pytest.raises(ProducerFencedError):
        old.commit_transaction()
    fenced = said("producer_fenced")
    assert (fenced["level"], fenced["error"]) == ("WARNING", "ProducerFencedError")
    assert (fenced["transactional_id"], fenced["producer_epoch"]) == ("loader", 0)
    assert "was fenced before" in fenced["text"]


def test_a_transaction_that_another_process_timed_out(world: World, store: Store, said: Said) -> None:
    dead = begun(world.open(), "dead", transaction_timeout_ms=1000)
    dead.send("orders", orders(1), partition=0).result(20)
    world.clock.advance_ms(20_000)
    with store.producer() as other:
        other.send("orders", orders(2), partition=0).result(20)
    ended = said("transaction_timed_out")
    assert (ended["level"], ended["transactional_id"], ended["producer_epoch"]) == ("WARNING", "dead", 0)
    assert ended["text"].endswith("epoch 0) was timed out")
    with pytest.raises(InvalidProducerEpochError):
        dead.commit_transaction()
    lost = said("transaction_lost")
    assert (lost["level"], lost["transactional_id"]) == ("WARNING", "dead")
    assert "by its time-out of 1000 ms or by an operator" in lost["text"]


def test_a_transaction_that_an_operator_aborted(world: World, store: Store, said: Said) -> None:
    begun(world.open(), "hanging").send("orders", orders(1), partition=0).result(20)
    store.admin().abort_transaction("hanging")
    ended = said("transaction_aborted_by_operator")
    assert (ended["level"], ended["transactional_id"]) == ("INFO", "hanging")


def test_a_decided_transaction_that_another_process_finished(world: World, store: Store, said: Said) -> None:
    _, dying = world.outage()
    producer = begun(dying, "dead", max_block_ms=1)
    producer.send("orders", orders(1), partition=0).result(20)
    dying.runtime.store.pattern = r"put_if_absent orders/"  # type: ignore[attr-defined]
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    world.clock.advance_ms(20_000)
    with store.producer() as other:
        other.send("orders", orders(2), partition=0).result(20)
    ended = said("transaction_rolled_forward")
    assert (ended["level"], ended["transactional_id"], ended["producer_epoch"]) == ("INFO", "dead", 0)
    assert ended["text"].endswith("was rolled forward: it is committed")


@pytest.mark.parametrize("is_eager", [True, False])
def test_retries_are_quiet_at_first(
    world: World, store: Store, caplog: pytest.LogCaptureFixture, is_eager: bool
) -> None:
    caplog.set_level(logging.DEBUG, "txlog")
    outage, opened = world.outage(linger_ms=0)
    producer = begun(opened, "loader", delivery_timeout_ms=60_000) if is_eager else opened.producer("loader")
    outage.pattern = "put_if_absent"
    fails = (
        (lambda: producer.send("orders", orders(1), partition=0).result(200))
        if is_eager
        else producer.init_transactions
    )
    with pytest.raises(Exception, match=r"fails|not finish|could not be written"):
        fails()
    retries = [record for record in caplog.records if field(record, "event") == "retry"]
    number = [field(record, "attempt") for record in retries]
    assert number == list(range(1, len(retries) + 1))
    assert {field(record, "error") for record in retries} == {"StorageError"}
    warned = [record for record in retries if record.levelno == logging.WARNING]
    assert retries[0].levelno == logging.DEBUG
    # A minute of retries: a warning every ten seconds.
    assert 3 <= len(warned) <= 60_000 // WARN_AFTER_MS
    call = "registering orders-0 with the transaction" if is_eager else "init_transactions"
    assert {field(record, "call") for record in retries} == {call}
    assert f"'loader'): {call}: retry " in warned[0].getMessage()


def test_a_batch_that_is_retried(world: World, store: Store, said: Said) -> None:
    _, opened = world.failing(Fault(action="fail", match="put_if_absent orders/0/"), linger_ms=0)
    opened.producer().send("orders", orders(1), partition=0).result(20)
    retried = said("retry")
    assert (retried["level"], retried["call"], retried["attempt"]) == ("DEBUG", "appending to orders-0", 1)


def test_a_consumer_without_members(world: World, store: Store, said: Said) -> None:
    with store.producer() as producer:
        producer.send("orders", orders(1, 2), partition=0)
    consumer = store.consumer("orders", group_id="audit", auto_offset_reset="earliest", enable_auto_commit=False)
    joined = said("group_joined")
    assert (joined["level"], joined["group_id"], joined["generation_id"]) == ("INFO", "audit", 1)
    consumer.poll(100)
    consumer.commit()
    committed = said("offsets_committed")
    assert (committed["level"], committed["offsets"]) == (
        "DEBUG",
        {"orders-0": 2, **dict.fromkeys(committed["offsets"], 0)} | {"orders-0": 2},
    )
    assert "committed offsets of group 'audit': orders-0 at 2" in committed["text"]


def test_a_rebalance_and_a_loss(said: Said) -> None:
    world = World()
    world.open().create_topic("orders", ORDERS, partitions=4)
    world.open().create_topic("out", ORDERS)
    a = Member(world, "a", lost=False)
    assert said("group_joined")["member_id"] == a.membership.member_id
    b = Member(world, "b")
    settle(a)
    revoked = said("partitions_revoked")
    assert (revoked["level"], revoked["partitions"]) == ("INFO", ("orders-2", "orders-3"))
    assert revoked["text"] == "consumer 'a' (group 'g'): generation 2 revoked orders-2, orders-3"
    settle(b)
    assigned = said("partitions_assigned")
    assert (assigned["partitions"], assigned["member_id"]) == (("orders-2", "orders-3"), b.membership.member_id)
    send(world, 1)
    world.clock.advance_ms(SESSION_MS + 1)
    with pytest.raises(Exception, match="lost 2 partitions"):
        a.consumer.poll(0)
    lost = said("partitions_lost")
    assert (lost["level"], lost["partitions"]) == ("WARNING", (str(FOUR[0]), str(FOUR[1])))
    a.consumer.close()
    b.consumer.unsubscribe()
    assert said("partitions_lost")["level"] == "INFO", "the listener on_lost is told"
    world.close()


def test_a_round_of_maintenance(world: World, store: Store, said: Said) -> None:
    dead = begun(world.open(), "dead", transaction_timeout_ms=1000)
    dead.send("orders", orders(1), partition=0).result(20)
    world.clock.advance_ms(20_000)
    Maintainer(world.open().runtime).run()
    done = said("maintenance_done")
    assert (done["level"], done["step"]) == ("INFO", "transactions")
    assert done["text"].startswith("maintain, transactions: ")
    assert "dead" in done["text"]


def test_every_line_is_json(world: World, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "txlog")
    with store.producer("loader") as producer, producer.transaction(version=1):
        producer.send("orders", orders(1), partition=0)
        producer.send_offsets_to_transaction({("orders", 0): OffsetValue(offset=3)}, "g")
    assert {"producer_initialized", "transaction_committed"} <= {field(record, "event") for record in caplog.records}
    for record in caplog.records:
        json.dumps({name: value for name, value in vars(record).items() if name.startswith(logs.PREFIX)})


PROGRAM = """
import logging, sys, txlog
store = txlog.open(sys.argv[1])
store.create_topic("orders", config={"compression.type": "none"}, if_not_exists=True)
with store.producer("loader") as old, old.transaction(version=1):
    old.send("orders", [{"value": b"a"}])
with store.producer("loader") as producer, producer.transaction(version=1):
    producer.send("orders", [{"value": b"b"}])
"""
FENCED = """
old = store.producer("loader")
old.init_transactions()
old.begin_transaction()
store.producer("loader").init_transactions()
try:
    old.send("orders", [{"value": b"c"}]).result()
except txlog.ProducerFencedError:
    old.close()
"""


def printed(folder: Path, program: str, **environment: str) -> list[str]:
    """Return the lines of standard error of a program that prints nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "log")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


def test_a_program_prints_nothing_by_default(tmp_path: Path) -> None:
    assert printed(tmp_path, PROGRAM + FENCED) == []


def test_a_version_that_is_too_low_is_printed(tmp_path: Path) -> None:
    lower = PROGRAM.replace("version=1", "version=2", 1)
    assert lower != PROGRAM
    (line,) = printed(tmp_path, lower)
    assert line.startswith(
        "txlog: producer (transactional.id 'loader'): version 1 is below the last committed version 2: "
    )


def test_the_environment_prints_lines(tmp_path: Path) -> None:
    lines = printed(tmp_path, PROGRAM, TXLOG_LOG_LEVEL="info")
    assert [line.split(" ", 3)[2] for line in lines] == ["INFO", "INFO", "INFO"]
    assert (
        "txlog.client.producer.transaction_manager: "
        "producer (transactional.id 'loader'): version 1 was committed before" in lines[2]
    )
    assert "committed version 1" in "\n".join(printed(tmp_path / "new", PROGRAM, TXLOG_LOG_LEVEL="DEBUG"))


def test_the_log_of_the_program_counts(tmp_path: Path) -> None:
    own = "import logging\nlogging.basicConfig(level='WARNING', format='own %(txlog_event)s %(message)s')\n"
    (line,) = printed(tmp_path, own + PROGRAM + FENCED)
    assert line.startswith("own producer_fenced transactional.id 'loader' (producer ")
    assert printed(tmp_path, "import logging\nlogging.getLogger().addHandler(logging.NullHandler())\n" + PROGRAM) == []


def test_an_unknown_level_is_said(tmp_path: Path) -> None:
    (line,) = printed(tmp_path, PROGRAM, TXLOG_LOG_LEVEL="loud")
    assert line == "txlog: TXLOG_LOG_LEVEL=loud is not a level. hint: use DEBUG, INFO, WARNING, ERROR"
